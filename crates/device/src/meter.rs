// SPDX-License-Identifier: Apache-2.0
//! What work costs: per context, per kernel and per caller.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use parking_lot::Mutex;

/// Collects the costs of whatever runs through the queue handles that [`metered`](crate::Queue::metered)
/// gives, an operator's for instance. Kernel times arrive when the queue's work has completed.
///
/// # Examples
/// ```
/// use std::sync::Arc;
/// use device::{Context, DeviceConfig, Meter};
/// # let Ok(context) = Context::new(DeviceConfig::default()) else { return Ok(()) };
/// let meter = Arc::new(Meter::default());
/// let queue = context.queue()?.metered(&meter);
/// let buffer = queue.alloc(1000)?;
/// assert!(meter.allocated_bytes() >= 1000);
/// drop(buffer);
/// assert_eq!(meter.allocated_bytes(), 0);
/// assert!(meter.peak_bytes() >= 1000);
/// # Ok::<(), device::Error>(())
/// ```
#[derive(Debug, Default)]
pub struct Meter {
    launches: AtomicU64,
    waits: AtomicU64,
    kernel_nanos: AtomicU64,
    compile_nanos: AtomicU64,
    bytes_up: AtomicU64,
    bytes_down: AtomicU64,
    allocated: AtomicU64,
    peak: AtomicU64,
}

impl Meter {
    /// Launches of kernels.
    pub fn launches(&self) -> u64 {
        self.launches.load(Relaxed)
    }

    /// How often the host has waited for the device: to read something, or for all work to end. Several reads that are
    /// waited for at the same time are one wait.
    pub fn waits(&self) -> u64 {
        self.waits.load(Relaxed)
    }

    /// Time that the device spent in kernels whose completion has been seen; 0 without profiling.
    pub fn kernel_time(&self) -> Duration {
        Duration::from_nanos(self.kernel_nanos.load(Relaxed))
    }

    /// Time that compilers and loaders took for programs that were in no memory cache.
    pub fn compile_time(&self) -> Duration {
        Duration::from_nanos(self.compile_nanos.load(Relaxed))
    }

    /// Bytes from the host to the device, shared ones included.
    pub fn bytes_up(&self) -> u64 {
        self.bytes_up.load(Relaxed)
    }

    /// Bytes from the device to the host, shared ones included.
    pub fn bytes_down(&self) -> u64 {
        self.bytes_down.load(Relaxed)
    }

    /// Bytes of device memory in buffers that are still alive.
    pub fn allocated_bytes(&self) -> u64 {
        self.allocated.load(Relaxed)
    }

    /// The highest value that [`allocated_bytes`](Self::allocated_bytes) has had.
    pub fn peak_bytes(&self) -> u64 {
        self.peak.load(Relaxed)
    }
}

/// The meters that one queue handle charges.
#[derive(Debug, Clone, Default)]
pub(crate) struct Meters(Option<Arc<[Arc<Meter>]>>);

impl Meters {
    /// These and one more.
    pub(crate) fn with(&self, meter: &Arc<Meter>) -> Self {
        let mut all: Vec<Arc<Meter>> = self.iter().cloned().collect();
        if !all.iter().any(|known| Arc::ptr_eq(known, meter)) {
            all.push(Arc::clone(meter));
        }
        Self(Some(all.into()))
    }

    fn iter(&self) -> impl Iterator<Item = &Arc<Meter>> {
        self.0.iter().flat_map(|meters| meters.iter())
    }

    pub(crate) fn launched(&self) {
        self.iter().for_each(|meter| _ = meter.launches.fetch_add(1, Relaxed));
    }

    pub(crate) fn waited(&self) {
        self.iter().for_each(|meter| _ = meter.waits.fetch_add(1, Relaxed));
    }

    pub(crate) fn ran(&self, nanos: u64) {
        self.iter().for_each(|meter| _ = meter.kernel_nanos.fetch_add(nanos, Relaxed));
    }

    pub(crate) fn compiled(&self, time: Duration) {
        self.iter().for_each(|meter| _ = meter.compile_nanos.fetch_add(nanos(time), Relaxed));
    }

    pub(crate) fn up(&self, bytes: usize) {
        self.iter().for_each(|meter| _ = meter.bytes_up.fetch_add(bytes as u64, Relaxed));
    }

    pub(crate) fn down(&self, bytes: usize) {
        self.iter().for_each(|meter| _ = meter.bytes_down.fetch_add(bytes as u64, Relaxed));
    }

    pub(crate) fn allocated(&self, bytes: usize) {
        for meter in self.iter() {
            let now = meter.allocated.fetch_add(bytes as u64, Relaxed) + bytes as u64;
            meter.peak.fetch_max(now, Relaxed);
        }
    }

    pub(crate) fn released(&self, bytes: usize) {
        self.iter().for_each(|meter| _ = meter.allocated.fetch_sub(bytes as u64, Relaxed));
    }
}

/// A snapshot of what a context has done since it was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counters {
    /// Programs that a compiler built.
    pub programs_compiled: u64,
    /// Programs that this context had already.
    pub cache_hits_memory: u64,
    /// Programs that came from the cache folder, or that of [`DeviceConfig::load_programs`](crate::DeviceConfig::load_programs).
    pub cache_hits_disk: u64,
    /// Kernels launched for the first time since their program was loaded.
    pub first_launches: u64,
    /// Launches of kernels.
    pub launches: u64,
    /// Bytes from the host to the device, shared ones included.
    pub bytes_up: u64,
    /// Bytes from the device to the host, shared ones included.
    pub bytes_down: u64,
    /// Buffers that were given out, from the cache or the driver.
    pub allocations: u64,
}

/// The living counters of a context.
#[derive(Debug, Default)]
pub(crate) struct Totals {
    pub(crate) programs_compiled: AtomicU64,
    pub(crate) cache_hits_memory: AtomicU64,
    pub(crate) cache_hits_disk: AtomicU64,
    pub(crate) first_launches: AtomicU64,
    pub(crate) launches: AtomicU64,
    pub(crate) bytes_up: AtomicU64,
    pub(crate) bytes_down: AtomicU64,
    pub(crate) allocations: AtomicU64,
    pub(crate) compile_nanos: AtomicU64,
    kernels: Mutex<BTreeMap<Arc<str>, Arc<KernelTotals>>>,
}

/// What all launches of kernels of one name have cost.
#[derive(Debug)]
pub(crate) struct KernelTotals {
    pub(crate) name: Arc<str>,
    pub(crate) launches: AtomicU64,
    pub(crate) nanos: AtomicU64,
}

impl Totals {
    pub(crate) fn snapshot(&self) -> Counters {
        Counters {
            programs_compiled: self.programs_compiled.load(Relaxed),
            cache_hits_memory: self.cache_hits_memory.load(Relaxed),
            cache_hits_disk: self.cache_hits_disk.load(Relaxed),
            first_launches: self.first_launches.load(Relaxed),
            launches: self.launches.load(Relaxed),
            bytes_up: self.bytes_up.load(Relaxed),
            bytes_down: self.bytes_down.load(Relaxed),
            allocations: self.allocations.load(Relaxed),
        }
    }

    /// The totals that kernels of this name add to.
    pub(crate) fn kernel(&self, name: &str) -> Arc<KernelTotals> {
        let mut kernels = self.kernels.lock();
        if let Some(totals) = kernels.get(name) {
            return Arc::clone(totals);
        }
        let name: Arc<str> = name.into();
        let totals = KernelTotals { name: Arc::clone(&name), launches: AtomicU64::new(0), nanos: AtomicU64::new(0) };
        Arc::clone(kernels.entry(name).or_insert(Arc::new(totals)))
    }

    /// One record for each name of a kernel that was launched.
    pub(crate) fn kernels(&self) -> Vec<serde_json::Value> {
        let kernels = self.kernels.lock();
        let records = kernels.values().filter(|totals| totals.launches.load(Relaxed) > 0).map(|totals| {
            serde_json::json!({
                "name": &*totals.name,
                "launches": totals.launches.load(Relaxed),
                "nanos": totals.nanos.load(Relaxed),
            })
        });
        records.collect()
    }
}

/// Nanoseconds of a duration, as far as they fit.
pub(crate) fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}
