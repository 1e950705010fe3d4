// SPDX-License-Identifier: Apache-2.0
//! The session's device. The first use opens it; all queries of the session share it.

use std::fmt;
use std::path::PathBuf;
use std::sync::{Arc, Weak};

use datafusion::common::{DataFusionError, Result, exec_datafusion_err, exec_err};
use datafusion::execution::TaskContext;
use datafusion::execution::context::SessionConfig;
use device::{ApplicationQueue, CacheDir, Context, DeviceConfig, DeviceInfo, LogSink};
use futhark::WeakContext;
use kernels::ops::{Options, Sizes};
use parking_lot::Mutex;

use super::options::{AUTO, DeviceOptions};
use crate::table::{CachedColumn, FileCache, RunFileCache};

/// Opens the device once, for all queries of the sessions that share this object.
///
/// - A fault that costs the context its device fails the running queries. The next query gets a new
///   context. Resident tables are lost with the old context, and their queries say so.
/// - The context logs to the crate `log` at the level `debug`: the device, and each compiled
///   program. [`for_program`](Self::for_program) logs elsewhere. A context of
///   [`with_context`](Self::with_context) has a log of its own.
#[derive(Default)]
pub struct DeviceRuntime {
    /// Log of the context; `None` is the crate `log`.
    log: Option<LogSink>,
    /// A queue of the program that embeds the library.
    queue: Option<ApplicationQueue>,
    device: Mutex<Device>,
    /// Why the last attempt to open a device failed.
    problem: Mutex<Option<String>>,
    /// Contexts of profiled Futhark libraries.
    libraries: Mutex<Vec<WeakContext>>,
    /// Columns of files in the context's memory.
    file_cache: Mutex<Option<Arc<FileCache>>>,
    /// The settings of the last planned query. A lock of its own: opening a device takes long.
    noted: Mutex<Option<DeviceOptions>>,
}

impl fmt::Debug for DeviceRuntime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeviceRuntime").field("device", &*self.device.lock()).finish_non_exhaustive()
    }
}

#[derive(Debug, Default)]
struct Device {
    context: Option<Context>,
    /// Configuration of a lost context, for the next one.
    config: Option<DeviceConfig>,
    /// Whether the last attempt to open a context failed.
    has_failed: bool,
    /// Tables that may have memory of the context.
    tables: Vec<Weak<dyn ReleaseLost>>,
}

/// Holders of device memory, such as resident tables.
pub(crate) trait ReleaseLost: fmt::Debug + Send + Sync {
    /// Drops the memory if its device is lost.
    fn release_lost(&self);
}

/// A failure to open the device.
#[derive(Debug, Clone)]
pub(crate) struct Problem {
    pub reason: String,
    /// Whether a setting asks for a missing device. The host is no substitute then.
    pub is_mistake: bool,
}

impl DeviceRuntime {
    /// A runtime whose device is not open yet.
    pub fn new() -> Arc<Self> {
        Arc::new(Self::default())
    }

    /// A runtime whose device is not open yet, with a log. The device is that of the queue, if
    /// there is one.
    pub fn for_program(log: LogSink, queue: Option<ApplicationQueue>) -> Arc<Self> {
        Arc::new(DeviceRuntime { log: Some(log), queue, ..DeviceRuntime::default() })
    }

    /// A runtime with an open device.
    pub fn with_context(context: Context) -> Arc<Self> {
        let device = Device { context: Some(context), ..Device::default() };
        Arc::new(DeviceRuntime { device: Mutex::new(device), ..DeviceRuntime::default() })
    }

    /// The runtime that [`SessionStateBuilderExt::with_device`](crate::SessionStateBuilderExt) put
    /// into a session.
    pub fn of(config: &SessionConfig) -> Option<Arc<DeviceRuntime>> {
        config.get_extension::<DeviceRuntime>()
    }

    /// The device; opens it if it is not open.
    ///
    /// # Errors
    /// Why there is no device, as the driver says it.
    pub fn context(&self, options: &DeviceOptions) -> Result<Context> {
        self.try_context(options).map_err(|problem| exec_datafusion_err!("{}", problem.reason))
    }

    /// As [`context`](Self::context), but `None` without a device if no setting asks for one. The
    /// host is the substitute then, and [`problem`](Self::problem) has the reason.
    ///
    /// # Errors
    /// As [`context`](Self::context), if a setting asks for the device. Also for settings with
    /// sizes that its kernels cannot have.
    pub fn context_if_any(&self, options: &DeviceOptions) -> Result<Option<Context>> {
        match self.try_context(options) {
            // Unsupported sizes fail here, not in the first query.
            Ok(context) => kernel_options(options, &context).map(|_| Some(context)),
            Err(problem) if problem.is_mistake => exec_err!("{}", problem.reason),
            Err(_) => Ok(None),
        }
    }

    pub(crate) fn try_context(&self, options: &DeviceOptions) -> std::result::Result<Context, Problem> {
        let mut device = self.device.lock();
        device.release_lost();
        let context = match &device.context {
            // Opened by this or another session.
            Some(context) => context.clone(),
            None => {
                // A failure is not cached: another selector may find a device.
                let result = device.open(options, self.log.as_ref(), self.queue.as_ref());
                device.has_failed = result.is_err();
                *self.problem.lock() = result.as_ref().err().map(|problem| problem.reason.clone());
                result?
            }
        };
        options.freeze();
        device.context = Some(context.clone());
        Ok(context)
    }

    /// The device for a plan. One for EXPLAIN leaves a closed device closed, unless an attempt to
    /// open it has failed.
    pub(crate) fn device_for_plan(&self, options: &DeviceOptions) -> std::result::Result<PlannedDevice, Problem> {
        let device = self.device.lock();
        if options.explained().is_none() || !device.is_untried() {
            drop(device);
            return self.try_context(options).map(PlannedDevice::from);
        }
        let chosen = device.config(options, self.log.as_ref(), self.queue.as_ref()).and_then(|config| {
            let info = config.choose().map_err(|error| Problem::of(error, options, self.queue.as_ref()))?;
            Ok(PlannedDevice { memory_limit: config.memory_limit(&info), info, context: None })
        });
        *self.problem.lock() = chosen.as_ref().err().map(|problem| problem.reason.clone());
        chosen
    }

    /// Loads the drivers in the background, unless a device was looked for before.
    pub(crate) fn load_drivers(&self, options: &DeviceOptions) {
        let Some(device) = self.device.try_lock() else { return };
        if device.is_untried()
            && let Ok(config) = device.config(options, self.log.as_ref(), self.queue.as_ref())
        {
            config.load_drivers();
        }
    }

    /// Notes the settings of a query that is planned.
    pub(crate) fn note_settings(&self, options: &DeviceOptions) {
        *self.noted.lock() = Some(options.clone());
    }

    /// The settings of the last planned query.
    pub(crate) fn noted_settings(&self) -> DeviceOptions {
        self.noted.lock().clone().unwrap_or_default()
    }

    /// Releases a table's memory when its device is lost. Memory of a lost context prevents a new
    /// one.
    pub(crate) fn watch(&self, table: &Arc<impl ReleaseLost + 'static>) {
        let tables = &mut self.device.lock().tables;
        tables.retain(|known| known.strong_count() > 0);
        let known: Weak<_> = Arc::downgrade(table);
        tables.push(known);
        // The device may have been lost since the upload.
        table.release_lost();
    }

    /// Columns of files in the memory of a context.
    fn file_cache(&self, context: &Context) -> Arc<FileCache> {
        let mut cache = self.file_cache.lock();
        match &*cache {
            Some(cache) if cache.is_of(context) => Arc::clone(cache),
            Some(_) | None => {
                let new = FileCache::new(context);
                let old = cache.replace(Arc::clone(&new));
                drop(cache);
                drop(old);
                self.watch(&new);
                new
            }
        }
    }

    /// The columns of files that are on the device.
    pub(crate) fn cached_columns(&self) -> Vec<CachedColumn> {
        self.file_cache.lock().as_ref().map_or_else(Vec::new, |cache| cache.columns())
    }

    /// The open device.
    pub fn opened(&self) -> Option<Context> {
        self.device.lock().context.clone()
    }

    /// Why the last query that looked for a device found none.
    pub fn problem(&self) -> Option<String> {
        self.problem.lock().clone()
    }

    /// Counters of the open device.
    pub fn counters(&self) -> Option<device::Counters> {
        self.opened().map(|context| context.counters())
    }

    /// JSON report of the open device: kernels, copies, compilations and memory.
    ///
    /// With `device.futhark_profiling` it also has `libraries`: the report of each Futhark library
    /// by its path. It then waits until running calls of the library have ended.
    pub fn report(&self) -> Option<serde_json::Value> {
        let mut report = self.opened()?.report();
        let libraries: Vec<futhark::Context> = {
            let mut libraries = self.libraries.lock();
            libraries.retain(|library| library.upgrade().is_some());
            libraries.iter().filter_map(WeakContext::upgrade).collect()
        };
        for context in libraries {
            let report_of_library = context.report().unwrap_or_else(|error| serde_json::json!({ "error": error.to_string() }));
            report["libraries"][context.library().path().display().to_string()] = report_of_library;
        }
        Some(report)
    }

    /// Adds a profiled library to the report.
    pub(crate) fn join_report(&self, library: &futhark::Context) {
        if library.is_profiled() {
            self.libraries.lock().push(library.downgrade());
        }
    }
}

impl Device {
    /// Whether no query has looked for a device yet.
    fn is_untried(&self) -> bool {
        self.context.is_none() && self.config.is_none() && !self.has_failed
    }

    /// Drops a context that has lost its device, and tables in its memory.
    fn release_lost(&mut self) {
        if let Some(lost) = self.context.take_if(|context| context.has_met_fatal_fault()) {
            self.config = Some(lost.config().clone());
            self.tables.retain(|table| table.upgrade().inspect(|table| table.release_lost()).is_some());
        }
    }

    fn open(
        &self,
        options: &DeviceOptions,
        log: Option<&LogSink>,
        queue: Option<&ApplicationQueue>,
    ) -> std::result::Result<Context, Problem> {
        let is_lost = self.config.is_some();
        let context = Context::new(self.config(options, log, queue)?).map_err(|error| match is_lost {
            true => Problem { reason: error.to_string(), is_mistake: true },
            false => Problem::of(error, options, queue),
        })?;
        if is_lost && context.is_lost() {
            let label = context.info().label();
            let reason = format!(
                "{label} has lost its context to a fault, and queries that still run or their results hold on to it; end or drop them"
            );
            return Err(Problem { reason, is_mistake: true });
        }
        Ok(context)
    }

    /// The configuration of the next context: that of a lost one, else that of the settings.
    fn config(
        &self,
        options: &DeviceOptions,
        log: Option<&LogSink>,
        queue: Option<&ApplicationQueue>,
    ) -> std::result::Result<DeviceConfig, Problem> {
        if let Some(config) = &self.config {
            return Ok(config.clone());
        }
        let Some(selector) = options.selector.clone() else {
            return Err(match queue {
                Some(_) => {
                    let reason = "device.selector = 'none', and the program's queue is one of a device".to_string();
                    Problem { reason, is_mistake: true }
                }
                None => Problem { reason: "device.selector = 'none'".to_string(), is_mistake: false },
            });
        };
        Ok(DeviceConfig {
            selector,
            platform: non_empty(&options.platform),
            memory_bytes: options.memory_bytes,
            compile_options: options.compile_options.split_whitespace().map(str::to_string).collect(),
            cache_dir: cache_dir(&options.cache_dir),
            profiling: options.profiling,
            nvrtc_path: non_empty(&options.nvrtc_path).map(PathBuf::from),
            unified_memory: options.unified_memory,
            application_queue: queue.cloned(),
            dump_programs: non_empty(&options.dump_programs).map(PathBuf::from),
            load_programs: non_empty(&options.load_programs).map(PathBuf::from),
            log: Some(log.cloned().unwrap_or_else(|| Arc::new(|line| log::debug!("{line}")))),
            // No settings: programs that open the context themselves have them.
            timeline: 0,
            wrap: None,
        })
    }
}

impl Problem {
    fn of(error: device::Error, options: &DeviceOptions, queue: Option<&ApplicationQueue>) -> Problem {
        let demand = options.demand();
        let asked = demand.is_some() || queue.is_some() || options.unified_memory.is_required();
        let is_mistake = asked || matches!(error, device::Error::Config { .. });
        let reason = match (demand, error) {
            (Some(demand), device::Error::NoDevice { available, .. }) => format!("{demand}: no such device; {available}"),
            (Some(demand), device::Error::NoDriver { reason, .. }) => {
                format!("{demand}: no driver could be opened: {reason}")
            }
            (_, error) => error.to_string(),
        };
        Problem { reason, is_mistake }
    }
}

/// A device as a plan needs it.
pub(crate) struct PlannedDevice {
    pub info: DeviceInfo,
    /// That of the memory pool, in bytes.
    pub memory_limit: usize,
    /// `None` where it is not open, for EXPLAIN.
    pub context: Option<Context>,
}

impl From<Context> for PlannedDevice {
    fn from(context: Context) -> Self {
        PlannedDevice { info: context.info().clone(), memory_limit: context.pool().limit(), context: Some(context) }
    }
}

/// The folder that a value of `device.cache_dir` means.
fn cache_dir(setting: &str) -> CacheDir {
    match setting {
        "" => CacheDir::None,
        AUTO => user_cache().map_or(CacheDir::None, CacheDir::GpuDefault),
        folder => CacheDir::Folder(PathBuf::from(folder)),
    }
}

/// The folder of compiled programs below that of the user's caches.
fn user_cache() -> Option<PathBuf> {
    Some(dirs::cache_dir()?.join("devicefusion").join("programs"))
}

fn non_empty(setting: &str) -> Option<String> {
    (!setting.is_empty()).then(|| setting.to_string())
}

/// The shape of a session's kernels on a device.
///
/// # Errors
/// If the device or the profile does not support a size of the settings.
pub(crate) fn kernel_options(options: &DeviceOptions, context: &Context) -> Result<Options> {
    kernel_options_for(options, context.info(), context.pool().limit())
}

/// As [`kernel_options`], for a device that may be closed. The limit is that of its memory pool.
pub(crate) fn kernel_options_for(options: &DeviceOptions, info: &DeviceInfo, memory_limit: usize) -> Result<Options> {
    let DeviceOptions { work_group_size, compaction_tile_rows, max_work_groups, .. } = *options;
    let sizes = Sizes { work_group_size, compaction_tile_rows, max_work_groups };
    let kernels = Options::new(options.profile.shape(info.kind)).with_threshold_divisor(options.threshold_divisor);
    let sized = kernels.with_memory(memory_limit).with_sizes(sizes, info);
    sized.map_err(|error| DataFusionError::Configuration(error.to_string()))
}

/// The number of a running query: all of its operators have one task.
pub(crate) fn number_of_query(task: &Arc<TaskContext>) -> usize {
    Arc::as_ptr(task) as usize
}

/// The least limit of a device with columns of files by default.
const LEAST_LIMIT_WITH_FILES: usize = 256 << 20;

/// The columns of files that a running query may find on the device, and may leave there.
pub(crate) fn file_cache(task: &TaskContext, context: &Context, options: &DeviceOptions) -> Option<RunFileCache> {
    let limit = context.pool().limit();
    let bytes = match options.file_cache_bytes {
        _ if !options.file_cache => 0,
        0 if limit < LEAST_LIMIT_WITH_FILES => 0,
        0 => limit / 2,
        bytes => bytes.min(limit),
    };
    let runtime = DeviceRuntime::of(task.session_config()).filter(|_| bytes > 0)?;
    Some(runtime.file_cache(context).reader(bytes))
}

/// The device and settings of a running query.
pub(crate) fn task_context(task: &TaskContext) -> Result<(Context, DeviceOptions)> {
    let options = DeviceOptions::of(task.session_config().options());
    let runtime = DeviceRuntime::of(task.session_config()).ok_or_else(|| {
        exec_datafusion_err!("this session has no device: build its state with SessionStateBuilderExt::with_device")
    })?;
    Ok((runtime.context(&options)?, options))
}
