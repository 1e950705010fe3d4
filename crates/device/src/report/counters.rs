// SPDX-License-Identifier: Apache-2.0
//! Counters of a context and of its kernels.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use parking_lot::Mutex;

use super::Traffic;

/// A snapshot of a context's counters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counters {
    /// Compiled programs.
    pub programs_compiled: u64,
    /// Programs that began without optimization and are optimized now.
    pub programs_optimized: u64,
    /// Programs found in the context's memory cache.
    pub cache_hits_memory: u64,
    /// Programs from the cache folder or from
    /// [`DeviceConfig::load_programs`](crate::DeviceConfig::load_programs).
    pub cache_hits_disk: u64,
    /// First launches of a kernel after its program was loaded, unless its machine code was made
    /// before.
    pub first_launches: u64,
    /// Launches of kernels.
    pub launches: u64,
    /// Bytes from the host to the device, including shared memory that needs no copy.
    pub bytes_up: u64,
    /// Bytes from the device to the host, including shared memory that needs no copy.
    pub bytes_down: u64,
    /// Bytes that the device has set to a value.
    pub bytes_filled: u64,
    /// Allocated buffers, from the pool's free lists or the driver.
    pub allocations: u64,
}

/// The launches of all kernels with one name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KernelTotal {
    /// The kernels' name.
    pub name: Arc<str>,
    /// Launches so far.
    pub launches: u64,
    /// Time on the device; zero without profiling.
    pub time: Duration,
}

/// A cache of a context.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CacheUse {
    /// `programs`, `constants` or `pinned`.
    pub name: &'static str,
    /// `None` if they are not counted.
    pub entries: Option<usize>,
    /// Bytes of all entries.
    pub bytes: usize,
}

/// The counters of a context, updated concurrently.
#[derive(Debug, Default)]
pub(crate) struct LiveCounters {
    pub(crate) programs_compiled: AtomicU64,
    pub(crate) programs_optimized: AtomicU64,
    pub(crate) cache_hits_memory: AtomicU64,
    pub(crate) cache_hits_disk: AtomicU64,
    pub(crate) first_launches: AtomicU64,
    pub(crate) launches: AtomicU64,
    pub(crate) bytes_up: AtomicU64,
    pub(crate) bytes_down: AtomicU64,
    pub(crate) bytes_filled: AtomicU64,
    pub(crate) allocations: AtomicU64,
    pub(crate) compile_nanos: AtomicU64,
    kernels: Mutex<BTreeMap<Arc<str>, Arc<KernelTotals>>>,
}

/// Launches of all kernels with one name.
#[derive(Debug)]
pub(crate) struct KernelTotals {
    pub(crate) name: Arc<str>,
    pub(crate) launches: AtomicU64,
    pub(crate) nanos: AtomicU64,
    pub(crate) traffic: Mutex<Traffic>,
}

impl LiveCounters {
    pub(crate) fn snapshot(&self) -> Counters {
        Counters {
            programs_compiled: self.programs_compiled.load(Relaxed),
            programs_optimized: self.programs_optimized.load(Relaxed),
            cache_hits_memory: self.cache_hits_memory.load(Relaxed),
            cache_hits_disk: self.cache_hits_disk.load(Relaxed),
            first_launches: self.first_launches.load(Relaxed),
            launches: self.launches.load(Relaxed),
            bytes_up: self.bytes_up.load(Relaxed),
            bytes_down: self.bytes_down.load(Relaxed),
            bytes_filled: self.bytes_filled.load(Relaxed),
            allocations: self.allocations.load(Relaxed),
        }
    }

    /// The totals of kernels with this name.
    pub(crate) fn kernel(&self, name: &str) -> Arc<KernelTotals> {
        let mut kernels = self.kernels.lock();
        if let Some(totals) = kernels.get(name) {
            return Arc::clone(totals);
        }
        let name: Arc<str> = name.into();
        let totals = KernelTotals {
            name: Arc::clone(&name),
            launches: AtomicU64::new(0),
            nanos: AtomicU64::new(0),
            traffic: Mutex::default(),
        };
        Arc::clone(kernels.entry(name).or_insert(Arc::new(totals)))
    }

    /// The launched kernels by name.
    pub(crate) fn kernel_totals(&self) -> Vec<KernelTotal> {
        let kernels = self.kernels.lock();
        let totals = kernels.values().map(|totals| KernelTotal {
            name: Arc::clone(&totals.name),
            launches: totals.launches.load(Relaxed),
            time: Duration::from_nanos(totals.nanos.load(Relaxed)),
        });
        totals.filter(|totals| totals.launches > 0).collect()
    }

    /// A JSON record for each name of a launched kernel.
    pub(crate) fn kernels(&self) -> Vec<serde_json::Value> {
        let kernels = self.kernels.lock();
        let records = kernels.values().filter(|totals| totals.launches.load(Relaxed) > 0).map(|totals| {
            let mut record = serde_json::json!({
                "name": &*totals.name,
                "launches": totals.launches.load(Relaxed),
                "nanos": totals.nanos.load(Relaxed),
            });
            let traffic = *totals.traffic.lock();
            if !traffic.is_empty() {
                let counts = traffic.counts().map(|(name, count)| (name.to_owned(), count.into()));
                record["traffic"] = serde_json::Value::Object(counts.collect());
            }
            record
        });
        records.collect()
    }
}

/// Nanoseconds of a duration, saturating.
pub(crate) fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}
