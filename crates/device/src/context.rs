// SPDX-License-Identifier: Apache-2.0
//! A context: one opened device with its configuration, queues, memory and programs.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;

use crate::device_loss::DeviceLoss;
use crate::driver::{Driver, NativeHandles, RawEvent, RawQueue};
use crate::drivers::open;
use crate::exit::{self, Unfinished};
use crate::interop::SharedQueue;
use crate::memory::{Buffer, PinnedPool, Pool};
use crate::program::{Compiler, ProgramSource, RunningQuery};
use crate::queue::{Queue, QueueWorker, Workers};
use crate::report::{CacheUse, Counters, KernelTotal, LaunchRecord, LiveCounters, Timeline};
use crate::{DeviceConfig, DeviceInfo, Error, Result};

/// An opened device. Clones share everything.
///
/// The configuration does not change any more. Buffers, queues and programs stay valid after the
/// last handle of their context.
#[derive(Clone)]
pub struct Context(Arc<ContextInner>);

struct ContextInner {
    info: DeviceInfo,
    config: DeviceConfig,
    workers: Mutex<Workers>,
    /// Whether launches are not timed for now.
    profiling_paused: AtomicBool,
    /// Buffers of [`Queue::constant`], by the host's address.
    constants: Mutex<HashMap<usize, Buffer>>,
    compiler: Arc<Compiler>,
    pinned: Arc<PinnedPool>,
    pool: Pool,
    counters: Arc<LiveCounters>,
    timeline: Arc<Timeline>,
    loss: DeviceLoss,
    /// The queue shared with the application, if it has one or has asked for one.
    shared_queue: Mutex<Option<Arc<SharedQueue>>>,
    driver: Arc<dyn Driver>,
}

impl ContextInner {
    /// All live queues.
    fn workers(&self) -> Vec<Arc<QueueWorker>> {
        self.workers.lock().alive()
    }
}

/// A reference to a context that may have been dropped.
struct WeakContext(Weak<ContextInner>);

impl Unfinished for WeakContext {
    fn is_alive(&self) -> bool {
        self.0.strong_count() > 0
    }

    fn flush_and_leak(&self) {
        if let Some(inner) = self.0.upgrade() {
            inner.workers().iter().for_each(QueueWorker::flush);
            std::mem::forget(inner);
        }
    }
}

impl fmt::Debug for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Context").field("device", &self.0.info.label()).field("name", &self.0.info.name).finish()
    }
}

impl Context {
    /// Opens the device that `config` selects.
    ///
    /// # Errors
    /// - `NoDriver`, `NoDevice` or `Unusable`, with the available devices and the reason.
    /// - `Config` for a memory limit out of bounds, a cache folder that cannot be created, or an
    ///   unusable compiler.
    pub fn new(config: DeviceConfig) -> Result<Self> {
        let info = config.choose()?;
        let mut driver = open(&info, &config.driver_options())?;
        if let Some(wrap) = &config.wrap {
            driver = wrap(driver);
        }
        Self::with_driver(driver, config)
    }

    /// A context over an open driver.
    fn with_driver(driver: Arc<dyn Driver>, config: DeviceConfig) -> Result<Self> {
        let info = driver.info().clone();
        if let Some(reason) = info.missing() {
            return Err(Error::Unusable { device: info.name, reason });
        }
        let counters = Arc::new(LiveCounters::default());
        let loss = DeviceLoss::default();
        let limit = config.memory_limit(&info);
        if let Some(log) = &config.log {
            log(&format!("{} is \"{}\" of \"{}\", {limit} bytes of memory", info.label(), info.name, info.platform));
        }
        let inner = Arc::new(ContextInner {
            info,
            workers: Mutex::default(),
            profiling_paused: AtomicBool::new(false),
            constants: Mutex::default(),
            compiler: Compiler::new(Arc::clone(&driver), Arc::clone(&counters), loss.clone(), &config)?,
            pinned: PinnedPool::new(Arc::clone(&driver), loss.clone()),
            pool: Pool::new(Arc::clone(&driver), Arc::clone(&counters), limit),
            counters,
            timeline: Arc::new(Timeline::new(config.timeline)),
            loss,
            shared_queue: Mutex::new(config.application_queue.clone().map(|queue| Arc::new(SharedQueue::adopt(queue, &driver)))),
            driver,
            config,
        });
        exit::wait_for(WeakContext(Arc::downgrade(&inner)));
        Ok(Self(inner))
    }

    /// Whether both are clones of one context.
    pub fn same(&self, other: &Context) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Whether a buffer was allocated in this context.
    pub fn owns(&self, buffer: &Buffer) -> bool {
        buffer.home().is_of(self.driver())
    }

    /// Properties of the device.
    pub fn info(&self) -> &DeviceInfo {
        &self.0.info
    }

    /// The driver's own handles of the device.
    pub fn native(&self) -> NativeHandles {
        self.0.driver.native()
    }

    /// The configuration that the context was made from.
    pub fn config(&self) -> &DeviceConfig {
        &self.0.config
    }

    /// An idle queue, or a new one. The last handle returns it.
    ///
    /// A context has at most 32 queues. Further callers share them: their work waits for work of
    /// others that was enqueued earlier, and a failure is one of all of them.
    ///
    /// # Errors
    /// The driver's refusal.
    pub fn queue(&self) -> Result<Queue> {
        let ContextInner { driver, loss, timeline, workers, .. } = &*self.0;
        let worker = workers.lock().lease(|number| QueueWorker::new(number, driver, loss, timeline))?;
        let queue = Queue::new(self.clone(), worker);
        let shared = self.0.shared_queue.lock().clone();
        shared.map_or(Ok(()), |shared| shared.order_before(queue.worker()))?;
        Ok(queue)
    }

    /// The queue that the context shares with the application: a `cl_command_queue` or `CUstream`.
    ///
    /// - It is the [configured](crate::DeviceConfig::application_queue) one, else the first call
    ///   creates one.
    /// - Its work comes before the work of each queue that is taken later.
    /// - It is valid as long as the context.
    ///
    /// # Errors
    /// The driver's refusal.
    pub fn shared_queue(&self) -> Result<RawQueue> {
        Ok(self.get_shared_queue()?.raw())
    }

    fn get_shared_queue(&self) -> Result<Arc<SharedQueue>> {
        let mut shared = self.0.shared_queue.lock();
        if let Some(shared) = &*shared {
            return Ok(Arc::clone(shared));
        }
        Ok(Arc::clone(shared.insert(Arc::new(SharedQueue::create(&self.0.driver)?))))
    }

    /// Makes later work of the [`shared_queue`](Self::shared_queue) wait for an event, a `CUevent`
    /// or `cl_event`. The device waits; for an event of another OpenCL context this thread waits.
    ///
    /// # Errors
    /// The failure of the event's work, where it is known already; as
    /// [`shared_queue`](Self::shared_queue).
    ///
    /// # Safety
    /// The event is live.
    pub unsafe fn shared_queue_waits_for(&self, event: RawEvent) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { self.get_shared_queue()?.wait_for(event) }
    }

    /// Makes later work of the [`shared_queue`](Self::shared_queue) wait for the work that a queue
    /// of the application, a `CUstream` or `cl_command_queue`, has so far. The device waits.
    ///
    /// # Errors
    /// The driver's refusal; as [`shared_queue`](Self::shared_queue).
    ///
    /// # Safety
    /// The queue is live, and of this context's [driver context](crate::driver::NativeHandles).
    pub unsafe fn shared_queue_follows(&self, queue: RawQueue) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { self.get_shared_queue()?.follow(queue) }
    }

    /// Takes a queue back from the last handle of a lease.
    pub(crate) fn give_back(&self, worker: &Arc<QueueWorker>) {
        self.0.workers.lock().give_back(worker);
    }

    /// The memory pool.
    pub fn pool(&self) -> &Pool {
        &self.0.pool
    }

    /// A snapshot of the counters.
    pub fn counters(&self) -> Counters {
        self.0.counters.snapshot()
    }

    /// Stops timing launches until [`unpause_profiling`](Self::unpause_profiling). They are
    /// counted, but not in kernel times and the [`timeline`](Self::timeline).
    pub fn pause_profiling(&self) {
        self.0.profiling_paused.store(true, Relaxed);
    }

    /// Times launches again, if the configuration asks for it.
    pub fn unpause_profiling(&self) {
        self.0.profiling_paused.store(false, Relaxed);
    }

    /// Whether the next launch is timed.
    pub(crate) fn times_launches(&self) -> bool {
        self.0.config.times_launches() && !self.0.profiling_paused.load(Relaxed)
    }

    /// The latest launches with their times, sorted by start: at most
    /// [`DeviceConfig::timeline`](crate::DeviceConfig::timeline), none by default.
    ///
    /// A launch is listed once it is known to have completed; after
    /// [`synchronize`](Self::synchronize) all are. If a queue is more than 4096 launches ahead of
    /// its device, the launches beyond them are not timed.
    ///
    /// # Examples
    /// ```
    /// use device::{Context, DeviceConfig, Grid, ProgramSource};
    ///
    /// # let Ok(context) = Context::new(DeviceConfig::default()) else { return Ok(()) };
    /// # if context.info().driver == device::DriverKind::Cuda { return Ok(()) }
    /// let context = Context::new(DeviceConfig::default().with_timeline(1000))?;
    /// let queue = context.queue()?;
    /// let source = "kernel void twice(global uint *x) { x[get_global_id(0)] *= 2; }";
    /// let program = futures::executor::block_on(queue.compile(ProgramSource::new(source, "example")))?;
    /// let values = queue.upload_values(vec![1u32, 2])?;
    /// let grid = Grid { work_groups: 1, work_group_size: 2 };
    /// queue.launch(&program.kernel("twice")?, grid, &[(&values).into()])?;
    /// context.synchronize()?;
    ///
    /// let [record] = &context.timeline()[..] else { panic!("one launch, one record") };
    /// assert_eq!((&*record.kernel, record.queue), ("twice", queue.number()));
    /// assert!(record.start_nanos <= record.end_nanos);
    /// # Ok::<(), device::Error>(())
    /// ```
    pub fn timeline(&self) -> Vec<LaunchRecord> {
        self.0.timeline.records()
    }

    /// The [`timeline`](Self::timeline) in Chrome's trace event format, a row for each queue.
    /// Written to a file, it opens in Perfetto (<https://ui.perfetto.dev>) and `chrome://tracing`.
    ///
    /// Times are in microseconds from the first record's start.
    pub fn trace(&self) -> serde_json::Value {
        self.0.timeline.trace(&format!("{} {}", self.0.info.label(), self.0.info.name))
    }

    /// Blocks until every requested compilation and all enqueued work has completed. Programs of
    /// [`prepare`](Self::prepare) may still wait.
    ///
    /// If the main thread opened a context, the end of the process waits for unfinished work, ten
    /// seconds at most. Call this method before the process ends, if
    /// - only other threads opened contexts, or
    /// - the work may take longer.
    ///
    /// Otherwise a driver for the CPU may crash at the end of the process.
    ///
    /// # Errors
    /// The failure of a live queue.
    pub fn synchronize(&self) -> Result<()> {
        self.0.compiler.synchronize();
        let mut first = Ok(());
        for worker in self.0.workers() {
            first = first.and(worker.synchronize());
        }
        first
    }

    /// Whether an error has reported the loss of this context's device. Cheap, without a driver
    /// call, so that each query can check first.
    pub fn has_met_fatal_fault(&self) -> bool {
        self.0.loss.has_occurred()
    }

    /// Whether this context has lost its device to a fault, so that only a new context can work.
    /// Calls the driver; meant for after an error.
    pub fn is_lost(&self) -> bool {
        match self.0.driver.create_queue() {
            Ok(queue) => {
                // SAFETY: just created, without work.
                unsafe { self.0.driver.destroy_queue(queue) };
                false
            }
            Err(error) => error.is_device_lost(),
        }
    }

    /// Compiles programs in the background, down to machine code, one at a time and while no query
    /// runs. A request for one of them has it compiled at once, and reports an earlier failure.
    ///
    /// # Examples
    /// ```
    /// use device::{Context, DeviceConfig, ProgramSource};
    ///
    /// # let Ok(context) = Context::new(DeviceConfig::default()) else { return Ok(()) };
    /// # if context.info().driver == device::DriverKind::Cuda { return Ok(()) }
    /// let source = ProgramSource::new("kernel void f(global uint *x) { x[0] = 1; }", "example");
    /// context.prepare(vec![source.clone()]);
    /// assert!(context.wait_until_prepared(std::time::Duration::from_secs(60)));
    /// assert!(context.is_ready(&source));
    /// # Ok::<(), device::Error>(())
    /// ```
    pub fn prepare(&self, sources: Vec<ProgramSource>) {
        self.0.compiler.prepare(sources);
    }

    /// Whether this program is compiled. Also true if [`prepare`](Self::prepare) has failed: the
    /// next request compiles it again, and reports why.
    pub fn is_ready(&self, source: &ProgramSource) -> bool {
        self.0.compiler.is_ready(source)
    }

    /// Programs of [`prepare`](Self::prepare) that wait or are being compiled.
    pub fn unprepared(&self) -> usize {
        self.0.compiler.unprepared()
    }

    /// Blocks until all programs of [`prepare`](Self::prepare) are compiled, and all programs are
    /// optimized. False if `longest` passes first.
    pub fn wait_until_prepared(&self, longest: Duration) -> bool {
        self.0.compiler.wait_until_prepared(longest)
    }

    /// Programs that wait or are being compiled, for queries and for [`prepare`](Self::prepare).
    pub fn compiling(&self) -> usize {
        self.0.compiler.compiling()
    }

    /// Begins a run of a query, on this device or in its place. `query` is a number of the
    /// caller's, the same for all runs of a query. Compilations in the background wait until the
    /// result is dropped, two seconds at most for each.
    pub fn begin_query(&self, query: usize) -> RunningQuery {
        self.0.compiler.begin_query(query)
    }

    /// Number of the [runs](Self::begin_query) of a query that have not ended.
    pub fn runs_of_query(&self, query: usize) -> usize {
        self.0.compiler.runs_of_query(query)
    }

    /// Number of the other queries that have [runs](Self::begin_query).
    pub fn other_queries(&self, query: usize) -> usize {
        self.0.compiler.other_queries(query)
    }

    /// The kernels that have run, by name.
    pub fn kernel_totals(&self) -> Vec<KernelTotal> {
        self.0.counters.kernel_totals()
    }

    /// The caches of the context, each with its entries and their bytes.
    ///
    /// - `programs`: compiled programs, with the bytes of their sources on the host
    /// - `constants`: constants in device memory
    /// - `pinned`: free blocks of pinned host memory; the number of blocks is not known
    ///
    /// # Examples
    /// ```
    /// # use device::{Context, DeviceConfig};
    /// # let Ok(context) = Context::new(DeviceConfig::default()) else { return Ok(()) };
    /// assert!(context.caches().iter().all(|cache| cache.bytes == 0));
    /// # Ok::<(), device::Error>(())
    /// ```
    pub fn caches(&self) -> Vec<CacheUse> {
        let (programs, source_bytes) = self.0.compiler.cached();
        let constants = self.0.constants.lock();
        let constant_bytes = constants.values().map(Buffer::len).sum();
        vec![
            CacheUse { name: "programs", entries: Some(programs), bytes: source_bytes },
            CacheUse { name: "constants", entries: Some(constants.len()), bytes: constant_bytes },
            CacheUse { name: "pinned", entries: None, bytes: self.0.pinned.cached() },
        ]
    }

    /// Bytes of pinned host memory in use by uploads, and by downloads.
    ///
    /// # Examples
    /// ```
    /// # use device::{Context, DeviceConfig};
    /// # let Ok(context) = Context::new(DeviceConfig::default()) else { return Ok(()) };
    /// assert_eq!(context.staged_bytes(), (0, 0));
    /// # Ok::<(), device::Error>(())
    /// ```
    pub fn staged_bytes(&self) -> (usize, usize) {
        self.0.pinned.in_use()
    }

    /// Frees caches: free memory, constants, idle queues and unused programs.
    pub fn trim(&self) {
        self.0.constants.lock().clear();
        let idle = self.0.workers.lock().take_idle();
        drop(idle);
        self.0.compiler.trim();
        self.0.pinned.trim();
        self.0.pool.trim();
    }

    /// A JSON report of the context's work.
    ///
    /// The keys are stable; new ones may be added. Times are in nanoseconds, sizes in bytes.
    /// - `version`: 1
    /// - `device`: `driver`, `index`, `name`, `platform`, `driver_version`
    /// - `kernels`: for each name `name`, `launches` and `nanos`, the time on the device
    /// - `copies`: `bytes_up` and `bytes_down`, including shared memory; `bytes_filled` with one
    ///   value
    /// - `programs`: `compiled`, `optimized`, `cache_hits_memory`, `cache_hits_disk`,
    ///   `first_launches`, `nanos`
    /// - `memory`: `limit`, `in_use`, `peak`, `cached`, `reserved`, `allocations`
    /// - `host`: `uploading`, `downloading` and `cached`, of pinned host memory
    ///
    /// # Examples
    /// ```
    /// # use device::{Context, DeviceConfig};
    /// # let Ok(context) = Context::new(DeviceConfig::default()) else { return Ok(()) };
    /// assert_eq!(context.report()["programs"]["compiled"], 0);
    /// # Ok::<(), device::Error>(())
    /// ```
    pub fn report(&self) -> serde_json::Value {
        let ContextInner { info, pool, counters: live, .. } = &*self.0;
        let (counters, (uploading, downloading)) = (live.snapshot(), self.staged_bytes());
        serde_json::json!({
            "version": 1,
            "device": {
                "driver": info.driver.to_string(),
                "index": info.index,
                "name": info.name,
                "platform": info.platform,
                "driver_version": info.driver_version,
            },
            "kernels": live.kernels(),
            "copies": {
                "bytes_up": counters.bytes_up,
                "bytes_down": counters.bytes_down,
                "bytes_filled": counters.bytes_filled,
            },
            "programs": {
                "compiled": counters.programs_compiled,
                "optimized": counters.programs_optimized,
                "cache_hits_memory": counters.cache_hits_memory,
                "cache_hits_disk": counters.cache_hits_disk,
                "first_launches": counters.first_launches,
                "nanos": live.compile_nanos.load(Relaxed),
            },
            "memory": {
                "limit": pool.limit(),
                "in_use": pool.in_use(),
                "peak": pool.peak(),
                "cached": pool.cached(),
                "reserved": pool.reserved(),
                "allocations": counters.allocations,
            },
            "host": {
                "uploading": uploading,
                "downloading": downloading,
                "cached": self.0.pinned.cached(),
            },
        })
    }

    pub(crate) fn driver(&self) -> &Arc<dyn Driver> {
        &self.0.driver
    }

    pub(crate) fn live_counters(&self) -> &Arc<LiveCounters> {
        &self.0.counters
    }

    pub(crate) fn constants(&self) -> &Mutex<HashMap<usize, Buffer>> {
        &self.0.constants
    }

    pub(crate) fn pinned(&self) -> &Arc<PinnedPool> {
        &self.0.pinned
    }

    pub(crate) fn compiler(&self) -> &Arc<Compiler> {
        &self.0.compiler
    }
}
