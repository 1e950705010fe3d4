// SPDX-License-Identifier: Apache-2.0
//! Times of kernels on a GPU, from their memory traffic. `docs/model.md` explains each constant.

use std::str::FromStr;

use device::Traffic;

/// Bytes of a sector.
pub const SECTOR: f64 = 32.0;

/// A GPU's constants.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Gpu {
    /// Name on the command line.
    pub name: &'static str,
    /// Bytes a second that copies read and write.
    pub memory: f64,
    /// Random sectors a second.
    pub random_sectors: f64,
    /// Bytes of the second-level cache.
    pub cache_bytes: f64,
    /// Bytes a second of the second-level cache.
    pub cache: f64,
    /// Operations a second of shared memory on one address, over all multiprocessors.
    pub shared_conflicts: f64,
    /// Seconds from one launch to the next.
    pub launch: f64,
    /// Seconds that the host takes to wake up.
    pub wait: f64,
}

/// NVIDIA's H100 with 80 GB: bandwidth and random sectors as measured on 2026-11-26.
const H100: Gpu = Gpu {
    name: "h100",
    memory: 2.96e12,
    random_sectors: 30.4e9,
    cache_bytes: 50e6,
    cache: 5.5e12,
    shared_conflicts: 132.0 * 1.7e9,
    launch: 3e-6,
    wait: 8e-6,
};

/// NVIDIA's H200: the same processor with memory that is faster by 4.8 to 3.35.
const H200: Gpu = Gpu { name: "h200", memory: 2.96e12 * 4.8 / 3.35, random_sectors: 30.4e9 * 4.8 / 3.35, ..H100 };

impl FromStr for Gpu {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        [H100, H200].into_iter().find(|gpu| gpu.name == name).ok_or_else(|| format!("{name}: there are h100 and h200"))
    }
}

/// Seconds of a kernel by what bounds it.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct KernelTime {
    pub memory: f64,
    pub cache: f64,
    pub shared: f64,
}

impl KernelTime {
    /// The longest: a GPU overlaps them.
    pub fn seconds(self) -> f64 {
        self.memory.max(self.cache).max(self.shared)
    }
}

impl Gpu {
    /// Time of all launches of a kernel, whose data is `factor` times as large as the counted.
    pub fn time(&self, traffic: &Traffic, factor: f64) -> KernelTime {
        let bytes = |sectors: u64| sectors as f64 * SECTOR * factor;
        let moved = |sectors: u64, alone: u64| {
            let alone = alone.min(sectors);
            bytes(sectors - alone) / self.memory + alone as f64 * factor / self.random_sectors
        };
        let atomics = bytes(traffic.atomic_addresses) * 2.0;
        KernelTime {
            memory: moved(traffic.memory_reads, traffic.memory_alone_reads)
                + moved(traffic.memory_writes, traffic.memory_alone_writes),
            cache: (bytes(traffic.load_sectors) + bytes(traffic.store_sectors) + atomics) / self.cache,
            // Lanes on one address go one after another.
            shared: (traffic.shared_requests + traffic.shared_lanes - traffic.shared_addresses) as f64 * factor
                / self.shared_conflicts,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_the_gpus() {
        assert_eq!("h200".parse::<Gpu>().unwrap().name, "h200");
        assert!("a100".parse::<Gpu>().unwrap_err().contains("h100 and h200"));
    }

    /// Loads of so many sectors, of which memory gives so many, some of them alone.
    fn loads(load_sectors: u64, memory_reads: u64, memory_alone_reads: u64) -> Traffic {
        Traffic { load_sectors, memory_reads, memory_alone_reads, ..Traffic::default() }
    }

    #[test]
    fn a_scan_takes_its_bytes_over_the_bandwidth() {
        let sectors = 1 << 20;
        let time = H100.time(&loads(sectors, sectors, 0), 1000.0);
        assert!((time.seconds() - sectors as f64 * 32e3 / H100.memory).abs() < 1e-9, "{time:?}");
    }

    #[test]
    fn sectors_that_come_alone_are_slower_unless_the_cache_has_them() {
        let sectors = 1 << 16;
        let (cached, random) = (H200.time(&loads(sectors, 0, 0), 1e4), H200.time(&loads(sectors, sectors, sectors), 1e4));
        assert!((random.memory - sectors as f64 * 1e4 / H200.random_sectors).abs() < 1e-9, "{random:?}");
        assert!(random.seconds() > 2.0 * cached.seconds(), "{cached:?}");
    }

    #[test]
    fn conflicts_in_shared_memory_cost_a_turn_each() {
        let same = Traffic { shared_requests: 100, shared_lanes: 3200, shared_addresses: 100, ..Traffic::default() };
        let apart = Traffic { shared_addresses: 3200, ..same };
        assert!((H100.time(&same, 1.0).shared / H100.time(&apart, 1.0).shared - 32.0).abs() < 1e-9);
    }
}
