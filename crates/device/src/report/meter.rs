// SPDX-License-Identifier: Apache-2.0
//! Costs of work, charged to its caller.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::Traffic;
use super::counters::nanos;
use super::record::{Records, WorkKind, WorkRecord};

/// The costs of all launches of one kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct KernelCosts {
    /// Launches of the kernel.
    pub launches: u64,
    /// Time on the device of launches known to have completed; 0 without profiling.
    pub time: Duration,
    /// Bytes of the buffers among the arguments, whole even where a launch needs a part of them.
    pub bytes: u64,
}

/// The costs of work through [`metered`](crate::Queue::metered) queue handles, an operator's for
/// instance.
///
/// Kernel times arrive when the queue's work has completed.
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
    name: Option<String>,
    launches: AtomicU64,
    waits: AtomicU64,
    kernel_nanos: AtomicU64,
    compile_nanos: AtomicU64,
    bytes_up: AtomicU64,
    bytes_down: AtomicU64,
    allocated: AtomicU64,
    peak: AtomicU64,
    traffic: Mutex<Traffic>,
    kernels: Mutex<BTreeMap<Arc<str>, KernelCosts>>,
    records: Option<Records>,
}

impl Meter {
    /// A meter whose name stands in errors of a pool without memory, with the bytes it counts.
    pub fn named(name: impl Into<String>) -> Meter {
        Meter { name: Some(name.into()), ..Meter::default() }
    }

    /// The meter, which also records the times of its work.
    ///
    /// # Examples
    /// ```
    /// use std::sync::Arc;
    /// use device::{Context, DeviceConfig, Meter, WorkKind};
    /// # let Ok(context) = Context::new(DeviceConfig::default()) else { return Ok(()) };
    /// let meter = Arc::new(Meter::default().recording());
    /// let queue = context.queue()?.metered(&meter);
    /// let buffer = queue.alloc(1000)?;
    /// queue.write(&buffer, 0, &[7; 1000])?;
    /// let records = meter.take_records();
    /// assert!(records[0].kind == WorkKind::Upload { bytes: 1000 } && records[0].start <= records[0].end);
    /// # Ok::<(), device::Error>(())
    /// ```
    #[must_use]
    pub fn recording(self) -> Meter {
        Meter { records: Some(Records::default()), ..self }
    }

    /// The records since the last call, in no order; none without [recording](Self::recording).
    pub fn take_records(&self) -> Vec<WorkRecord> {
        self.records.as_ref().map(Records::take).unwrap_or_default()
    }

    /// The name, if it has one.
    pub fn name(&self) -> Option<&str> {
        self.name.as_deref()
    }

    /// Launches of kernels.
    pub fn launches(&self) -> u64 {
        self.launches.load(Relaxed)
    }

    /// Waits of the host for the device, for a read or for all work. Concurrent waits count once.
    pub fn waits(&self) -> u64 {
        self.waits.load(Relaxed)
    }

    /// Time on the device of kernels known to have completed; 0 without profiling.
    pub fn kernel_time(&self) -> Duration {
        Duration::from_nanos(self.kernel_nanos.load(Relaxed))
    }

    /// The costs of each launched kernel, by its name in the source.
    pub fn kernels(&self) -> BTreeMap<Arc<str>, KernelCosts> {
        self.kernels.lock().clone()
    }

    /// Memory traffic of kernels known to have completed, where the device counts it.
    pub fn traffic(&self) -> Traffic {
        *self.traffic.lock()
    }

    /// Adds to the costs of a kernel.
    fn add(&self, kernel: &Arc<str>, add: impl FnOnce(&mut KernelCosts)) {
        let mut kernels = self.kernels.lock();
        match kernels.get_mut(kernel) {
            Some(costs) => add(costs),
            None => add(kernels.entry(Arc::clone(kernel)).or_default()),
        }
    }

    /// Time to compile or load programs that were not in the memory cache. On CPU devices with that
    /// of a kernel's machine code, which drivers make at its first launch; none without profiling.
    pub fn compile_time(&self) -> Duration {
        Duration::from_nanos(self.compile_nanos.load(Relaxed))
    }

    /// Bytes from the host to the device, including shared memory that needs no copy.
    pub fn bytes_up(&self) -> u64 {
        self.bytes_up.load(Relaxed)
    }

    /// Bytes from the device to the host, including shared memory that needs no copy.
    pub fn bytes_down(&self) -> u64 {
        self.bytes_down.load(Relaxed)
    }

    /// Bytes of device memory in live buffers.
    pub fn allocated_bytes(&self) -> u64 {
        self.allocated.load(Relaxed)
    }

    /// The highest [`allocated_bytes`](Self::allocated_bytes) so far.
    pub fn peak_bytes(&self) -> u64 {
        self.peak.load(Relaxed)
    }
}

/// The meters that a queue handle charges.
#[derive(Debug, Clone, Default)]
pub(crate) struct Meters(Option<Arc<[Arc<Meter>]>>);

impl Meters {
    /// A copy with one more meter.
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

    /// Counts a launch with these bytes of buffers among its arguments.
    pub(crate) fn launched(&self, kernel: &Arc<str>, bytes: u64) {
        for meter in self.iter() {
            meter.launches.fetch_add(1, Relaxed);
            meter.add(kernel, |costs| {
                costs.launches += 1;
                costs.bytes += bytes;
            });
        }
    }

    pub(crate) fn waited(&self) {
        self.iter().for_each(|meter| _ = meter.waits.fetch_add(1, Relaxed));
    }

    /// Records work that ends now.
    pub(crate) fn record(&self, kind: WorkKind, start: Instant) {
        self.record_at(kind, || start..Instant::now());
    }

    fn record_at(&self, kind: WorkKind, time: impl FnOnce() -> Range<Instant>) {
        let mut recording = self.iter().filter_map(|meter| meter.records.as_ref()).peekable();
        if recording.peek().is_some() {
            let time = time();
            recording.for_each(|records| records.push(kind.clone(), time.clone()));
        }
    }

    /// The time of a launch on the host's clock.
    pub(crate) fn record_launch(&self, name: &Arc<str>, queue: u32, time: Range<Instant>) {
        self.record_at(WorkKind::Kernel { name: Arc::clone(name), queue }, || time);
    }

    pub(crate) fn ran(&self, kernel: &Arc<str>, nanos: u64) {
        for meter in self.iter() {
            meter.kernel_nanos.fetch_add(nanos, Relaxed);
            meter.add(kernel, |costs| costs.time += Duration::from_nanos(nanos));
        }
    }

    pub(crate) fn moved(&self, traffic: Traffic) {
        self.iter().for_each(|meter| *meter.traffic.lock() += traffic);
    }

    pub(crate) fn compiled(&self, time: Range<Instant>) {
        self.iter().for_each(|meter| _ = meter.compile_nanos.fetch_add(nanos(time.end - time.start), Relaxed));
        self.record_at(WorkKind::Compile, || time);
    }

    pub(crate) fn uploaded(&self, bytes: usize) {
        self.iter().for_each(|meter| _ = meter.bytes_up.fetch_add(bytes as u64, Relaxed));
    }

    pub(crate) fn downloaded(&self, bytes: usize) {
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
