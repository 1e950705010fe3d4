// SPDX-License-Identifier: Apache-2.0
//! A context: one opened device with its configuration, queues, memory and programs.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;

use crate::driver::{Driver, Native, RawEvent, RawQueue};
use crate::lane::Lane;
use crate::loss::Loss;
use crate::meter::{Counters, Totals};
use crate::pinned::Pinned;
use crate::pool::Pool;
use crate::program::Compiler;
use crate::shared::Shared;
use crate::timeline::{LaunchRecord, Timeline};
use crate::{Buffer, DeviceConfig, DeviceEntry, DeviceInfo, DriverKind, Error, Queue, Result, cuda, devices_for, exit, opencl};

/// From so many queues on, an idle one is reused although work of its former user is still going on.
const MANY_QUEUES: usize = 32;

/// An opened device. A handle: clones share everything.
///
/// The configuration is frozen here. Buffers, queues and programs live on as long as someone holds them,
/// also after the last handle of their context.
#[derive(Clone)]
pub struct Context(Arc<Inner>);

struct Inner {
    info: DeviceInfo,
    config: DeviceConfig,
    lanes: Mutex<Lanes>,
    /// How many lanes there ever were.
    lanes_made: AtomicU32,
    /// Whether launches are left untimed for now.
    profiling_paused: AtomicBool,
    /// What [`Queue::constant`] has put onto the device, by the host's address.
    constants: Mutex<HashMap<usize, Buffer>>,
    compiler: Arc<Compiler>,
    pinned: Arc<Pinned>,
    pool: Pool,
    totals: Arc<Totals>,
    timeline: Arc<Timeline>,
    loss: Loss,
    /// The program's, where there is one or it has asked for one.
    shared: Mutex<Option<Arc<Shared>>>,
    driver: Arc<dyn Driver>,
}

#[derive(Default)]
struct Lanes {
    idle: Vec<Arc<Lane>>,
    /// All that may still be alive.
    all: Vec<Weak<Lane>>,
}

impl Inner {
    /// All lanes that are alive.
    fn lanes(&self) -> Vec<Arc<Lane>> {
        self.lanes.lock().all.iter().filter_map(Weak::upgrade).collect()
    }
}

/// A context that may be gone.
pub(crate) struct WeakContext(Weak<Inner>);

impl WeakContext {
    pub(crate) fn is_alive(&self) -> bool {
        self.0.strong_count() > 0
    }

    /// Sees to the completion of everything that was enqueued; a context that is alive stays so for ever.
    pub(crate) fn settle_and_keep(&self) {
        if let Some(inner) = self.0.upgrade() {
            inner.lanes().iter().for_each(Lane::settle_later);
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
    /// `NoDriver`, `NoDevice` or `Unusable` with what there is and what is missing; `Config` for a memory limit
    /// that is too small to work with, a cache folder that cannot be made, or a compiler that cannot be used.
    pub fn new(config: DeviceConfig) -> Result<Self> {
        let entries = devices_for(config.nvrtc_path.as_deref());
        if let Some(log) = &config.log {
            let name = |entry: &DeviceEntry| entry.info.as_ref().map_or_else(|| entry.driver.to_string(), DeviceInfo::label);
            let passed_over = entries.iter().filter_map(|entry| Some((name(entry), entry.problem.as_deref()?)));
            passed_over.for_each(|(name, problem)| log(&format!("{name} cannot be used: {problem}")));
        }
        let info = match &config.program_queue {
            Some(queue) => queue.device(&entries, &config),
            None => config.selector.choose(&entries, config.platform.as_deref()),
        };
        let info = config.unified_memory.apply(info?)?;
        let mut driver = match info.driver {
            DriverKind::OpenCl => opencl::open(&info, &config)?,
            DriverKind::Cuda => cuda::open(&info, &config)?,
        };
        if let Some(wrap) = &config.wrap {
            driver = wrap(driver);
        }
        Self::with_driver(driver, config)
    }

    /// A context over a driver that is open already.
    fn with_driver(driver: Arc<dyn Driver>, config: DeviceConfig) -> Result<Self> {
        let info = driver.info().clone();
        if let Some(reason) = info.missing() {
            return Err(Error::Unusable { device: info.name, reason });
        }
        let totals = Arc::new(Totals::default());
        let loss = Loss::default();
        let limit = config.memory_limit(&info)?;
        if let Some(log) = &config.log {
            log(&format!("{} is \"{}\" of \"{}\", {limit} bytes of memory", info.label(), info.name, info.platform));
        }
        let inner = Arc::new(Inner {
            info,
            lanes: Mutex::default(),
            lanes_made: AtomicU32::new(0),
            profiling_paused: AtomicBool::new(false),
            constants: Mutex::default(),
            compiler: Compiler::new(Arc::clone(&driver), Arc::clone(&totals), loss.clone(), &config)?,
            pinned: Pinned::new(Arc::clone(&driver), loss.clone()),
            pool: Pool::new(Arc::clone(&driver), Arc::clone(&totals), limit),
            totals,
            timeline: Arc::new(Timeline::new(config.timeline)),
            loss,
            shared: Mutex::new(config.program_queue.clone().map(|queue| Arc::new(Shared::of(queue, &driver)))),
            driver,
            config,
        });
        exit::waits_for(WeakContext(Arc::downgrade(&inner)));
        Ok(Self(inner))
    }

    /// Whether both are handles of one context.
    pub fn same(&self, other: &Context) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// What is known of the device.
    pub fn info(&self) -> &DeviceInfo {
        &self.0.info
    }

    /// What the device is called in its driver's own interface: `cl_context` and `cl_device_id`, or CUDA's.
    pub fn native(&self) -> Native {
        self.0.driver.native()
    }

    /// The configuration that the context was made from.
    pub fn config(&self) -> &DeviceConfig {
        &self.0.config
    }

    /// A queue that nobody else uses. With its last handle it becomes free for others.
    ///
    /// # Errors
    /// The driver's refusal.
    pub fn queue(&self) -> Result<Queue> {
        let lane = match self.idle_lane() {
            Some(lane) => lane,
            None => {
                let Inner { driver, loss, timeline, lanes, lanes_made, .. } = &*self.0;
                let lane = Lane::new(lanes_made.fetch_add(1, Relaxed) + 1, driver, loss, timeline)?;
                lanes.lock().all.push(Arc::downgrade(&lane));
                lane
            }
        };
        let queue = Queue::new(self.clone(), lane);
        let shared = self.0.shared.lock().clone();
        shared.map_or(Ok(()), |shared| shared.comes_before(queue.lane()))?;
        Ok(queue)
    }

    /// The queue that the context shares with the program around it, `cl_command_queue` or `CUstream`: the one of the
    /// [configuration](crate::DeviceConfig::program_queue), else one that is made at the first call. What is enqueued there comes
    /// before the work of each queue that is taken later. It is good as long as the context.
    ///
    /// # Errors
    /// The driver's refusal.
    pub fn shared_queue(&self) -> Result<RawQueue> {
        Ok(self.shared()?.raw())
    }

    fn shared(&self) -> Result<Arc<Shared>> {
        let mut shared = self.0.shared.lock();
        if let Some(shared) = &*shared {
            return Ok(Arc::clone(shared));
        }
        Ok(Arc::clone(shared.insert(Arc::new(Shared::new(&self.0.driver)?))))
    }

    /// Has what is enqueued in the [`shared_queue`](Self::shared_queue) from now on wait for an event, a `CUevent` or
    /// `cl_event`. The device waits; for an event of another OpenCL context this thread does.
    ///
    /// # Errors
    /// The failure of what the event stands for, where it is known already; as [`shared_queue`](Self::shared_queue).
    ///
    /// # Safety
    /// The event is live.
    pub unsafe fn shared_queue_waits_for(&self, event: RawEvent) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { self.shared()?.wait_for(event) }
    }

    /// An idle lane, preferably one without work of its former user.
    fn idle_lane(&self) -> Option<Arc<Lane>> {
        let mut lanes = self.0.lanes.lock();
        // The work of its last user may have failed after it was given back.
        lanes.idle.retain(|lane| lane.outcome().is_ok());
        lanes.all.retain(|lane| lane.strong_count() > 0);
        let many = lanes.all.len() >= MANY_QUEUES;
        let free = lanes.idle.iter().rposition(|lane| lane.is_idle());
        let any = if many && !lanes.idle.is_empty() { Some(0) } else { None };
        free.or(any).map(|index| lanes.idle.remove(index))
    }

    /// Takes a lane back from its last handle. One whose work failed is not used again.
    pub(crate) fn give_back(&self, lane: &Arc<Lane>) {
        if lane.outcome().is_ok() {
            self.0.lanes.lock().idle.push(Arc::clone(lane));
        }
    }

    /// The memory.
    pub fn pool(&self) -> &Pool {
        &self.0.pool
    }

    /// What the context has done so far.
    pub fn counters(&self) -> Counters {
        self.0.totals.snapshot()
    }

    /// Leaves the launches that come untimed, until [`unpause_profiling`](Self::unpause_profiling): they are counted, but add
    /// nothing to the times of their kernels, nor to the [`timeline`](Self::timeline).
    pub fn pause_profiling(&self) {
        self.0.profiling_paused.store(true, Relaxed);
    }

    /// Times launches again, if the configuration asked for it.
    pub fn unpause_profiling(&self) {
        self.0.profiling_paused.store(false, Relaxed);
    }

    /// Whether the next launch is timed.
    pub(crate) fn times_launches(&self) -> bool {
        self.0.config.times_launches() && !self.0.profiling_paused.load(Relaxed)
    }

    /// When the latest kernels ran, by their start: as many launches as
    /// [`DeviceConfig::timeline`](crate::DeviceConfig::timeline) says, none by default.
    ///
    /// A launch is here once its completion has been seen; after [`synchronize`](Self::synchronize) all are. Only a queue
    /// that has got more than 4096 launches ahead of its device leaves those after them untimed.
    ///
    /// # Examples
    /// ```
    /// use device::{Context, DeviceConfig, Grid, ProgramSource};
    ///
    /// # let Ok(context) = Context::new(DeviceConfig::default()) else { return Ok(()) };
    /// # if context.info().driver == device::DriverKind::Cuda { return Ok(()) }
    /// let context = Context::new(DeviceConfig::default().with_timeline(1000))?;
    /// let queue = context.queue()?;
    /// let text = "kernel void twice(global uint *x) { x[get_global_id(0)] *= 2; }";
    /// let program = futures::executor::block_on(queue.compile(ProgramSource::new(text, "example")))?;
    /// let values = queue.upload_values(vec![1u32, 2])?;
    /// queue.launch(&program.kernel("twice")?, Grid { groups: 1, work_group_size: 2 }, &[(&values).into()])?;
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

    /// The [`timeline`](Self::timeline) in Chrome's trace event format, a row for each queue. As the text of a file it opens
    /// in Perfetto (<https://ui.perfetto.dev>) and `chrome://tracing`.
    ///
    /// Times are in microseconds from the first record's start.
    pub fn trace(&self) -> serde_json::Value {
        self.0.timeline.trace(&format!("{} {}", self.0.info.label(), self.0.info.name))
    }

    /// Waits, on this thread, for every compilation and for everything that was enqueued in any queue.
    ///
    /// A process whose main thread opened a context ends only once nothing is at work in a driver, or after ten
    /// seconds. Another one calls this first where it may end beside its work, and so does who has work that takes
    /// longer: a driver for the CPU crashes if it is taken down then.
    ///
    /// # Errors
    /// The failure of a queue that something still refers to.
    pub fn synchronize(&self) -> Result<()> {
        self.0.compiler.synchronize();
        let mut first = Ok(());
        for lane in self.0.lanes() {
            first = first.and(lane.synchronize());
        }
        first
    }

    /// Whether work of this context has met a fault that cost it its device. Asks nobody, so that it can be
    /// called before each query.
    pub fn has_met_fatal_fault(&self) -> bool {
        self.0.loss.is_met()
    }

    /// Whether a fault has cost this context its device, so that only a new one can work. Asks the driver;
    /// meant for after an error.
    pub fn is_lost(&self) -> bool {
        match self.0.driver.create_queue() {
            Ok(queue) => {
                // SAFETY: made just now; no work is in it.
                unsafe { self.0.driver.destroy_queue(queue) };
                false
            }
            Err(error) => error.is_device_lost(),
        }
    }

    /// Gives up what is only kept for later: free memory, constants, idle queues and programs that nobody holds.
    pub fn trim(&self) {
        self.0.constants.lock().clear();
        let idle: Vec<_> = self.0.lanes.lock().idle.extract_if(.., |lane| lane.is_idle()).collect();
        drop(idle);
        self.0.compiler.trim();
        self.0.pinned.trim();
        self.0.pool.trim();
    }

    /// What the context has done, for people and programs.
    ///
    /// The keys are stable; new ones may be added. Times are in nanoseconds, sizes in bytes.
    /// - `version`: 1
    /// - `device`: `driver`, `index`, `name`, `platform`, `driver_version`
    /// - `kernels`: for each name `name`, `launches` and `nanos`, the time on the device
    /// - `copies`: `bytes_up` and `bytes_down`, shared memory included
    /// - `programs`: `compiled`, `cache_hits_memory`, `cache_hits_disk`, `first_launches`, `nanos`
    /// - `memory`: `limit`, `in_use`, `peak`, `cached`, `reserved`, `allocations`
    ///
    /// # Examples
    /// ```
    /// # use device::{Context, DeviceConfig};
    /// # let Ok(context) = Context::new(DeviceConfig::default()) else { return Ok(()) };
    /// assert_eq!(context.report()["programs"]["compiled"], 0);
    /// # Ok::<(), device::Error>(())
    /// ```
    pub fn report(&self) -> serde_json::Value {
        let Inner { info, pool, totals, .. } = &*self.0;
        let counters = self.counters();
        serde_json::json!({
            "version": 1,
            "device": {
                "driver": info.driver.to_string(),
                "index": info.index,
                "name": info.name,
                "platform": info.platform,
                "driver_version": info.driver_version,
            },
            "kernels": totals.kernels(),
            "copies": { "bytes_up": counters.bytes_up, "bytes_down": counters.bytes_down },
            "programs": {
                "compiled": counters.programs_compiled,
                "cache_hits_memory": counters.cache_hits_memory,
                "cache_hits_disk": counters.cache_hits_disk,
                "first_launches": counters.first_launches,
                "nanos": totals.compile_nanos.load(Relaxed),
            },
            "memory": {
                "limit": pool.limit(),
                "in_use": pool.in_use(),
                "peak": pool.peak(),
                "cached": pool.cached(),
                "reserved": pool.reserved(),
                "allocations": counters.allocations,
            },
        })
    }

    pub(crate) fn driver(&self) -> &Arc<dyn Driver> {
        &self.0.driver
    }

    pub(crate) fn totals(&self) -> &Arc<Totals> {
        &self.0.totals
    }

    pub(crate) fn constants(&self) -> &Mutex<HashMap<usize, Buffer>> {
        &self.0.constants
    }

    pub(crate) fn pinned(&self) -> &Arc<Pinned> {
        &self.0.pinned
    }

    pub(crate) fn compiler(&self) -> &Arc<Compiler> {
        &self.0.compiler
    }
}
