// SPDX-License-Identifier: Apache-2.0
//! The session's device: opened on first use from the settings, then shared by all its queries.

use std::fmt;
use std::path::PathBuf;
use std::sync::{Arc, Weak};

use datafusion::common::{DataFusionError, Result, exec_datafusion_err, exec_err};
use datafusion::execution::TaskContext;
use datafusion::execution::context::SessionConfig;
use device::{Context, DeviceConfig, DeviceKind, LogSink, ProgramQueue, UnifiedMemory};
use futhark::WeakContext;
use kernels::codegen::Profile;
use kernels::ops::{Options, Sizes};
use parking_lot::Mutex;

use super::options::{DeviceOptions, ProfileSetting};

/// Opens the device once and hands it to every query of the sessions that share this object.
///
/// A fault that costs the context its device fails the queries that run; the next one gets a new
/// context. Resident tables are lost with the old one, and say so.
///
/// What the device's context logs (the device, each program that is compiled) goes to the crate
/// `log`, at the level `debug`; [`for_program`](Self::for_program) sends it elsewhere, and
/// [`with_context`](Self::with_context) takes a context with a log of its own.
#[derive(Default)]
pub struct DeviceRuntime {
    /// Where the lines of the device's context go; to the crate `log` without it.
    log: Option<LogSink>,
    /// What the device's context shares with the program.
    queue: Option<ProgramQueue>,
    device: Mutex<Device>,
    /// Why the last attempt to open a device failed.
    problem: Mutex<Option<String>>,
    /// Contexts of Futhark libraries that measure themselves.
    libraries: Mutex<Vec<WeakContext>>,
    /// The settings that a plan was last made under. Apart, since opening a device takes its time.
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
    /// Of a context that was lost: the next one is made alike.
    config: Option<DeviceConfig>,
    /// Tables that may lie in the context's memory.
    tables: Vec<Weak<dyn ReleaseLost>>,
}

/// Holders of device memory, such as resident tables.
pub(crate) trait ReleaseLost: fmt::Debug + Send + Sync {
    /// Drops the memory if its device is lost.
    fn release_lost(&self);
}

/// Why there is no device.
#[derive(Debug, Clone)]
pub(crate) struct Problem {
    pub reason: String,
    /// Whether a setting asks for what there is not: the host is no substitute then.
    pub is_mistake: bool,
}

impl DeviceRuntime {
    /// A runtime whose device is not open yet.
    pub fn new() -> Arc<Self> {
        Arc::new(Self::default())
    }

    /// A runtime whose device is not open yet, and will log here. With a queue its device is that
    /// of the queue.
    pub fn for_program(log: LogSink, queue: Option<ProgramQueue>) -> Arc<Self> {
        Arc::new(DeviceRuntime { log: Some(log), queue, ..DeviceRuntime::default() })
    }

    /// A runtime on a device that is open already.
    pub fn with_context(context: Context) -> Arc<Self> {
        let device = Device { context: Some(context), ..Device::default() };
        Arc::new(DeviceRuntime { device: Mutex::new(device), ..DeviceRuntime::default() })
    }

    /// The runtime that [`SessionStateBuilderExt::with_device`](crate::SessionStateBuilderExt) put
    /// into a session.
    pub fn of(config: &SessionConfig) -> Option<Arc<DeviceRuntime>> {
        config.get_extension::<DeviceRuntime>()
    }

    /// The device, opened now if it was not.
    ///
    /// # Errors
    /// Why there is no device, in the driver's words.
    pub fn context(&self, options: &DeviceOptions) -> Result<Context> {
        self.try_context(options).map_err(|problem| exec_datafusion_err!("{}", problem.reason))
    }

    /// As [`context`](Self::context), but nothing where no setting asks for the device that there
    /// is not: the host is the substitute then, and [`problem`](Self::problem) has the reason.
    ///
    /// # Errors
    /// As [`context`](Self::context), where the device was asked for; or if its kernels cannot have
    /// the sizes that were.
    pub fn context_if_any(&self, options: &DeviceOptions) -> Result<Option<Context>> {
        match self.try_context(options) {
            // Sizes that it cannot take are told now, and not by the first query.
            Ok(context) => kernel_options(options, &context).map(|_| Some(context)),
            Err(problem) if problem.is_mistake => exec_err!("{}", problem.reason),
            Err(_) => Ok(None),
        }
    }

    pub(crate) fn try_context(&self, options: &DeviceOptions) -> std::result::Result<Context, Problem> {
        let mut device = self.device.lock();
        device.let_go_of_lost();
        let context = match &device.context {
            // Another session may have opened it.
            Some(context) => context.clone(),
            None => {
                // A failure is not kept: another selector may find a device.
                let result = device.open(options, self.log.as_ref(), self.queue.as_ref());
                *self.problem.lock() = result.as_ref().err().map(|problem| problem.reason.clone());
                result?
            }
        };
        options.freeze();
        device.context = Some(context.clone());
        Ok(context)
    }

    /// Notes the settings that a plan is made under.
    pub(crate) fn note_settings(&self, options: &DeviceOptions) {
        *self.noted.lock() = Some(options.clone());
    }

    /// The settings that a plan was last made under.
    pub(crate) fn noted_settings(&self) -> DeviceOptions {
        self.noted.lock().clone().unwrap_or_default()
    }

    /// Takes a table's memory back when its device is lost: what is left of a context keeps the
    /// next one from being made.
    pub(crate) fn watch(&self, table: &Arc<impl ReleaseLost + 'static>) {
        let tables = &mut self.device.lock().tables;
        tables.retain(|known| known.strong_count() > 0);
        let known: Weak<_> = Arc::downgrade(table);
        tables.push(known);
        // The device may have been lost since the rows went up.
        table.release_lost();
    }

    /// The device if it is open.
    pub fn opened(&self) -> Option<Context> {
        self.device.lock().context.clone()
    }

    /// Why there is no device, where the last query looked for one in vain.
    pub fn problem(&self) -> Option<String> {
        self.problem.lock().clone()
    }

    /// Counters of the open device.
    pub fn counters(&self) -> Option<device::Counters> {
        self.opened().map(|context| context.counters())
    }

    /// JSON report of the open device: kernels, copies, compilations, memory; with
    /// `device.futhark_profiling` also `libraries`, what each Futhark library says of itself, by
    /// its path. For that it waits until a call of the library has ended.
    pub fn report(&self) -> Option<serde_json::Value> {
        let mut report = self.opened()?.report();
        let libraries: Vec<futhark::Context> = {
            let mut libraries = self.libraries.lock();
            libraries.retain(|library| library.upgrade().is_some());
            libraries.iter().filter_map(WeakContext::upgrade).collect()
        };
        for context in libraries {
            let own = context.report().unwrap_or_else(|error| serde_json::json!({ "error": error.to_string() }));
            report["libraries"][context.library().path().display().to_string()] = own;
        }
        Some(report)
    }

    /// Joins what a library measures to the report, if it does.
    pub(crate) fn join_report(&self, library: &futhark::Context) {
        if library.is_profiled() {
            self.libraries.lock().push(library.downgrade());
        }
    }
}

impl Device {
    /// Drops a context that has lost its device, and what lies in its memory.
    fn let_go_of_lost(&mut self) {
        if let Some(lost) = self.context.take_if(|context| context.has_met_fatal_fault()) {
            self.config = Some(lost.config().clone());
            self.tables.retain(|table| table.upgrade().inspect(|table| table.release_lost()).is_some());
        }
    }

    fn open(
        &self,
        options: &DeviceOptions,
        log: Option<&LogSink>,
        queue: Option<&ProgramQueue>,
    ) -> std::result::Result<Context, Problem> {
        if let Some(config) = self.config.clone() {
            let problem = |reason: String| Problem { reason, is_mistake: true };
            let context = Context::new(config).map_err(|error| problem(error.to_string()))?;
            if context.is_lost() {
                let label = context.info().label();
                return Err(problem(format!(
                    "{label} has lost its context to a fault, and queries that still run or their results hold on to it; end or drop them"
                )));
            }
            return Ok(context);
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
        let config = DeviceConfig {
            selector,
            platform: non_empty(&options.platform),
            memory_bytes: options.memory_bytes,
            compile_options: options.compile_options.split_whitespace().map(str::to_string).collect(),
            cache_dir: non_empty(&options.cache_dir).map(PathBuf::from),
            profiling: options.profiling,
            nvrtc_path: non_empty(&options.nvrtc_path).map(PathBuf::from),
            unified_memory: options.unified_memory,
            program_queue: queue.cloned(),
            dump_programs: non_empty(&options.dump_programs).map(PathBuf::from),
            load_programs: non_empty(&options.load_programs).map(PathBuf::from),
            log: Some(log.cloned().unwrap_or_else(|| Arc::new(|line| log::debug!("{line}")))),
            ..DeviceConfig::default()
        };
        Context::new(config).map_err(|error| {
            let demand = options.demand();
            let asked = demand.is_some() || queue.is_some() || options.unified_memory == UnifiedMemory::Always;
            let is_mistake = asked || matches!(error, device::Error::Config { .. });
            let reason = match (demand, error) {
                (Some(demand), device::Error::NoDevice { available, .. }) => format!("{demand}: no such device; {available}"),
                (Some(demand), device::Error::NoDriver { reason, .. }) => {
                    format!("{demand}: no driver could be opened: {reason}")
                }
                (_, error) => error.to_string(),
            };
            Problem { reason, is_mistake }
        })
    }
}

fn non_empty(text: &str) -> Option<String> {
    (!text.is_empty()).then(|| text.to_string())
}

/// How a session's kernels are shaped for a device.
///
/// # Errors
/// If the device, or the shape, cannot take a size that a setting asks for.
pub(crate) fn kernel_options(options: &DeviceOptions, context: &Context) -> Result<Options> {
    let profile = match (options.profile, context.info().kind) {
        (ProfileSetting::Cpu, _) | (ProfileSetting::Auto, DeviceKind::Cpu) => Profile::Cpu,
        _ => Profile::Gpu,
    };
    let DeviceOptions { work_group_size, compaction_tile_rows, max_work_groups, .. } = *options;
    let sized =
        Options::new(profile).with_sizes(Sizes { work_group_size, compaction_tile_rows, max_work_groups }, context.info());
    sized.map_err(|error| DataFusionError::Configuration(error.to_string()))
}

/// The device of a running query.
pub(crate) fn task_context(task: &TaskContext) -> Result<(Context, DeviceOptions)> {
    let options = DeviceOptions::of(task.session_config().options());
    let runtime = DeviceRuntime::of(task.session_config()).ok_or_else(|| {
        exec_datafusion_err!("this session has no device: build its state with SessionStateBuilderExt::with_device")
    })?;
    Ok((runtime.context(&options)?, options))
}
