// SPDX-License-Identifier: Apache-2.0
//! The session's device: opened on first use from the settings, then shared by all its queries.

use std::path::PathBuf;
use std::sync::Arc;

use datafusion::common::{DataFusionError, Result, exec_datafusion_err};
use datafusion::execution::TaskContext;
use datafusion::execution::context::SessionConfig;
use device::{Context, DeviceConfig, DeviceKind};
use kernels::codegen::Profile;
use parking_lot::Mutex;

use crate::options::{DeviceOptions, ProfileSetting};

/// Opens the device once and hands it to every query of the sessions that share this object.
///
/// What the device's context logs (the device, each program that is compiled) goes to the crate `log`, at the
/// level `debug`; [`with_context`](Self::with_context) takes a context with a log of its own.
#[derive(Debug, Default)]
pub struct DeviceRuntime {
    opened: Mutex<Option<Context>>,
    /// Why the last attempt to open a device failed.
    problem: Mutex<Option<String>>,
}

impl DeviceRuntime {
    /// A runtime whose device is not open yet.
    pub fn new() -> Arc<Self> {
        Arc::new(Self::default())
    }

    /// A runtime on a device that is open already.
    pub fn with_context(context: Context) -> Arc<Self> {
        Arc::new(DeviceRuntime { opened: Mutex::new(Some(context)), problem: Mutex::default() })
    }

    /// The runtime that [`SessionStateBuilderExt::with_device`](crate::SessionStateBuilderExt) put into a session.
    pub fn of(config: &SessionConfig) -> Option<Arc<DeviceRuntime>> {
        config.get_extension::<DeviceRuntime>()
    }

    /// The device, opened now if it was not.
    ///
    /// # Errors
    /// Why there is no device, in the driver's words.
    pub fn context(&self, options: &DeviceOptions) -> Result<Context> {
        let mut opened = self.opened.lock();
        if let Some(context) = opened.as_ref() {
            // Another session may have opened it.
            options.freeze();
            return Ok(context.clone());
        }
        // A failure is not kept: another selector may find a device.
        let result = open(options);
        *self.problem.lock() = result.as_ref().err().cloned();
        let context = result.map_err(|reason| exec_datafusion_err!("{reason}"))?;
        options.freeze();
        *opened = Some(context.clone());
        Ok(context)
    }

    /// The device if it is open.
    pub fn opened(&self) -> Option<Context> {
        self.opened.lock().clone()
    }

    /// Why there is no device, where the last query looked for one in vain.
    pub fn problem(&self) -> Option<String> {
        self.problem.lock().clone()
    }

    /// Counters of the open device.
    pub fn counters(&self) -> Option<device::Counters> {
        self.opened().map(|context| context.counters())
    }

    /// JSON report of the open device: kernels, copies, compilations, memory.
    pub fn report(&self) -> Option<serde_json::Value> {
        self.opened().map(|context| context.report())
    }
}

fn open(options: &DeviceOptions) -> std::result::Result<Context, String> {
    let Some(selector) = options.selector.clone() else {
        return Err("device.selector = 'none'".to_string());
    };
    let config = DeviceConfig {
        selector,
        platform: non_empty(&options.platform),
        memory_bytes: options.memory_bytes,
        compile_options: options.compile_options.split_whitespace().map(str::to_string).collect(),
        cache_dir: non_empty(&options.cache_dir).map(PathBuf::from),
        profiling: options.profiling,
        nvrtc_path: non_empty(&options.nvrtc_path).map(PathBuf::from),
        log: Some(Arc::new(|line| log::debug!("{line}"))),
        ..DeviceConfig::default()
    };
    Context::new(config).map_err(|error| error.to_string())
}

fn non_empty(text: &str) -> Option<String> {
    (!text.is_empty()).then(|| text.to_string())
}

/// The profile that a session's kernels have on a device.
pub(crate) fn profile(options: &DeviceOptions, context: &Context) -> Profile {
    match (options.profile, context.info().kind) {
        (ProfileSetting::Cpu, _) | (ProfileSetting::Auto, DeviceKind::Cpu) => Profile::Cpu,
        _ => Profile::Gpu,
    }
}

/// Settings of a session; the defaults where the plugin's are not installed.
pub(crate) fn options_of(config: &datafusion::common::config::ConfigOptions) -> DeviceOptions {
    config.extensions.get::<DeviceOptions>().cloned().unwrap_or_default()
}

/// The device of a running query.
pub(crate) fn task_context(task: &TaskContext) -> Result<(Context, DeviceOptions)> {
    let options = options_of(task.session_config().options());
    let runtime = DeviceRuntime::of(task.session_config()).ok_or_else(|| {
        exec_datafusion_err!("this session has no device: build its state with SessionStateBuilderExt::with_device")
    })?;
    Ok((runtime.context(&options)?, options))
}

/// A device error as DataFusion's: out of memory keeps its kind.
pub(crate) fn device_error(error: device::Error) -> DataFusionError {
    match error {
        device::Error::OutOfMemory { .. } => DataFusionError::ResourcesExhausted(error.to_string()),
        error => DataFusionError::External(Box::new(error)),
    }
}
