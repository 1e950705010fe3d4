// SPDX-License-Identifier: Apache-2.0
//! The bandwidth of a device's memory.

use std::hint::black_box;
use std::sync::{Barrier, OnceLock};
use std::thread;
use std::time::Instant;

use crate::{DeviceInfo, DeviceKind};

/// Bytes that a thread copies. They fit no cache of a core.
const BYTES: usize = 16 << 20;
const ROUNDS: usize = 4;
/// More threads reach no higher bandwidth on most machines.
const MOST_THREADS: usize = 8;

/// The bandwidth of a device's memory, or how to find it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MemoryBandwidth {
    /// Bytes a second, at the memory's clock.
    Clocked(u64),
    /// That of the host's memory.
    OfHost,
    /// The driver does not tell it.
    Unknown,
}

impl MemoryBandwidth {
    /// Bytes read and bytes written in a second; `None` if it is unknown.
    ///
    /// That of the host is measured once in a process, by copies in some 20 ms.
    ///
    /// # Examples
    /// ```
    /// use device::MemoryBandwidth;
    ///
    /// assert_eq!(MemoryBandwidth::Clocked(3_350_000_000_000).bytes_per_second(), Some(3_350_000_000_000));
    /// assert!(MemoryBandwidth::OfHost.bytes_per_second() > Some(100_000_000));
    /// ```
    pub fn bytes_per_second(self) -> Option<u64> {
        static OF_HOST: OnceLock<Option<u64>> = OnceLock::new();
        match self {
            MemoryBandwidth::Clocked(bytes) => Some(bytes),
            MemoryBandwidth::OfHost => *OF_HOST.get_or_init(of_host),
            MemoryBandwidth::Unknown => None,
        }
    }
}

impl DeviceInfo {
    /// The bandwidth of the device's memory.
    pub fn memory_bandwidth(&self) -> MemoryBandwidth {
        match (self.memory_bytes_per_second, self.kind) {
            (Some(bytes), _) => MemoryBandwidth::Clocked(bytes),
            (None, DeviceKind::Cpu) => MemoryBandwidth::OfHost,
            (None, _) => MemoryBandwidth::Unknown,
        }
    }
}

/// The best rounds of all threads together.
fn of_host() -> Option<u64> {
    let threads = thread::available_parallelism().map_or(1, |cores| cores.get().min(MOST_THREADS));
    let start = Barrier::new(threads);
    let copied = thread::scope(|scope| {
        let copies: Vec<_> = (0..threads).map(|_| scope.spawn(|| bytes_per_second(&start))).collect();
        copies.into_iter().map(|copy| copy.join().unwrap_or_default()).sum::<f64>()
    });
    (copied > 0.0).then_some(copied as u64)
}

/// The best round of one thread.
fn bytes_per_second(start: &Barrier) -> f64 {
    let (from, mut to) = (vec![1_u8; BYTES], vec![2_u8; BYTES]);
    start.wait();
    let mut best = 0.0_f64;
    for _ in 0..ROUNDS {
        let begun = Instant::now();
        to.copy_from_slice(black_box(&from));
        black_box(&to);
        best = best.max((2 * BYTES) as f64 / begun.elapsed().as_secs_f64());
    }
    best
}
