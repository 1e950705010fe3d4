// SPDX-License-Identifier: Apache-2.0
//! The settings of a context. They are read once, when it is created.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use crate::driver::{Driver, DriverOptions, LogSink};
use crate::drivers::devices_for;
use crate::error::MEMORY_SETTING;
use crate::exit;
use crate::host::HostMemory;
use crate::info::{DeviceEntry, DeviceInfo, DeviceKind};
use crate::interop::ApplicationQueue;
use crate::selector::Selector;
use crate::{Error, Result};

/// Wraps a context's driver in a driver of a test.
pub type Wrap = Arc<dyn Fn(Arc<dyn Driver>) -> Arc<dyn Driver> + Send + Sync>;

/// Whether kernels use host memory in place, or a copy.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum UnifiedMemory {
    /// Columns are copied to memory of the driver, and results back.
    Never,
    /// In place; other devices are refused.
    Always,
    /// In place where the device can: a CPU.
    #[default]
    Auto,
}

impl UnifiedMemory {
    /// The device's properties with this setting applied.
    pub(crate) fn apply(self, mut info: DeviceInfo) -> Result<DeviceInfo> {
        match self {
            Self::Never => info.unified_memory = false,
            Self::Auto => {}
            Self::Always if info.unified_memory => {}
            Self::Always => {
                let reason = "it cannot work in the host's memory, which device.unified_memory = always asks for".to_owned();
                return Err(Error::Unusable { device: info.name, reason });
            }
        }
        Ok(info)
    }

    /// Whether devices in need of a copy are refused.
    pub fn is_required(self) -> bool {
        match self {
            Self::Always => true,
            Self::Never | Self::Auto => false,
        }
    }
}

/// The folder of compiled programs that later processes reuse.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum CacheDir {
    /// No program is kept.
    #[default]
    None,
    /// This folder. A folder that cannot be used is an error.
    Folder(PathBuf),
    /// This folder, except for CPU devices: their drivers have caches of their own. A folder that
    /// cannot be used is none.
    GpuDefault(PathBuf),
}

/// The configuration of a context.
///
/// # Examples
/// ```
/// use device::{DeviceConfig, DriverKind, Selector};
/// let opencl = Selector::Driver(DriverKind::OpenCl);
/// let config = DeviceConfig::default().with_selector(opencl).with_memory_bytes(1 << 30);
/// assert_eq!(config.memory_bytes, 1 << 30);
/// assert!(config.profiling);
/// ```
#[derive(Clone)]
pub struct DeviceConfig {
    /// The rule that selects the device.
    pub selector: Selector,
    /// A part of the platform's name, where several drivers offer the same device.
    pub platform: Option<String>,
    /// The limit of the memory pool in bytes. 0 is the default: 90 % of a GPU's memory, half of the
    /// host's memory for a CPU. Other values below
    /// [`LEAST_MEMORY_BYTES`](Self::LEAST_MEMORY_BYTES) or above the device's memory are refused.
    pub memory_bytes: usize,
    /// Options for the device's compiler, after those of this crate.
    pub compile_options: Vec<String>,
    /// The folder of compiled programs that later processes reuse. It has at most
    /// [`CACHE_BYTES`](Self::CACHE_BYTES).
    pub cache_dir: CacheDir,
    /// Whether the device times each launch, at a cost of a few microseconds.
    pub profiling: bool,
    /// The most launches in [`Context::timeline`](crate::Context::timeline), about 40 bytes each; 0
    /// for none. Above 0 each launch is timed, even without `profiling`.
    pub timeline: usize,
    /// CUDA's run-time compiler: a file or its folder, outside of the searched folders.
    pub nvrtc_path: Option<PathBuf>,
    /// Whether kernels use host memory in place.
    pub unified_memory: UnifiedMemory,
    /// A queue of the application. The context uses its device and, with OpenCL, its `cl_context`.
    ///
    /// - Work enqueued there comes before the work of each [`queue`](crate::Context::queue) that is
    ///   taken later.
    /// - The selector must be `auto` or match the same device.
    pub application_queue: Option<ApplicationQueue>,
    /// The folder for source and image of each program, for [`load_programs`](Self::load_programs)
    /// or tools.
    pub dump_programs: Option<PathBuf>,
    /// The folder that is searched before a compilation:
    /// - an image is used if all its dependencies are equal;
    /// - an edited source replaces the source of the same file name.
    pub load_programs: Option<PathBuf>,
    /// Takes the lines that the context logs.
    pub log: Option<LogSink>,
    /// For tests: wraps the driver, see [`testing`](crate::testing).
    pub wrap: Option<Wrap>,
}

impl Default for DeviceConfig {
    fn default() -> Self {
        Self {
            selector: Selector::Auto,
            platform: None,
            memory_bytes: 0,
            compile_options: Vec::new(),
            cache_dir: CacheDir::None,
            profiling: true,
            timeline: 0,
            nvrtc_path: None,
            unified_memory: UnifiedMemory::Auto,
            application_queue: None,
            dump_programs: None,
            load_programs: None,
            log: None,
            wrap: None,
        }
    }
}

impl fmt::Debug for DeviceConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Without `..`: the compiler lists a new field.
        let Self {
            selector,
            platform,
            memory_bytes,
            compile_options,
            cache_dir,
            profiling,
            timeline,
            nvrtc_path,
            unified_memory,
            application_queue,
            dump_programs,
            load_programs,
            log,
            wrap,
        } = self;
        f.debug_struct("DeviceConfig")
            .field("selector", selector)
            .field("platform", platform)
            .field("memory_bytes", memory_bytes)
            .field("compile_options", compile_options)
            .field("cache_dir", cache_dir)
            .field("profiling", profiling)
            .field("timeline", timeline)
            .field("nvrtc_path", nvrtc_path)
            .field("unified_memory", unified_memory)
            .field("application_queue", application_queue)
            .field("dump_programs", dump_programs)
            .field("load_programs", load_programs)
            .field("log", &log.is_some())
            .field("wrap", &wrap.is_some())
            .finish()
    }
}

impl DeviceConfig {
    /// The smallest limit of a memory pool in bytes. Queries of a few columns and 1024 rows run
    /// within half of it.
    pub const LEAST_MEMORY_BYTES: usize = 1 << 20;

    /// Bytes of compiled programs in a cache folder. Beyond them the programs go that were used
    /// least recently, by any process.
    pub const CACHE_BYTES: u64 = 1 << 30;

    /// Sets which device.
    pub fn with_selector(mut self, selector: Selector) -> Self {
        self.selector = selector;
        self
    }

    /// Sets a part of the platform's name.
    pub fn with_platform(mut self, platform: impl Into<String>) -> Self {
        self.platform = Some(platform.into());
        self
    }

    /// Sets the limit of the memory pool in bytes, 0 for the device's default.
    pub fn with_memory_bytes(mut self, bytes: usize) -> Self {
        self.memory_bytes = bytes;
        self
    }

    /// Adds an option for the device's compiler.
    pub fn with_compile_option(mut self, option: impl Into<String>) -> Self {
        self.compile_options.push(option.into());
        self
    }

    /// Sets the folder of compiled programs.
    pub fn with_cache_dir(mut self, folder: impl Into<PathBuf>) -> Self {
        self.cache_dir = CacheDir::Folder(folder.into());
        self
    }

    /// Sets whether launches are timed.
    pub fn with_profiling(mut self, profiling: bool) -> Self {
        self.profiling = profiling;
        self
    }

    /// Sets the most launches in the timeline, 0 for none.
    pub fn with_timeline(mut self, launches: usize) -> Self {
        self.timeline = launches;
        self
    }

    /// Sets the path of CUDA's run-time compiler.
    pub fn with_nvrtc_path(mut self, path: impl Into<PathBuf>) -> Self {
        self.nvrtc_path = Some(path.into());
        self
    }

    /// Sets whether kernels use host memory in place.
    pub fn with_unified_memory(mut self, unified_memory: UnifiedMemory) -> Self {
        self.unified_memory = unified_memory;
        self
    }

    /// Sets the queue of the application.
    pub fn with_application_queue(mut self, queue: ApplicationQueue) -> Self {
        self.application_queue = Some(queue);
        self
    }

    /// Sets the folder that programs are left in.
    pub fn with_dump_programs(mut self, folder: impl Into<PathBuf>) -> Self {
        self.dump_programs = Some(folder.into());
        self
    }

    /// Sets the folder that programs are loaded from.
    pub fn with_load_programs(mut self, folder: impl Into<PathBuf>) -> Self {
        self.load_programs = Some(folder.into());
        self
    }

    /// Sets the sink of the log's lines.
    pub fn with_log(mut self, log: LogSink) -> Self {
        self.log = Some(log);
        self
    }

    /// Sets a test's wrapper around the driver.
    pub fn with_wrap(mut self, wrap: Wrap) -> Self {
        self.wrap = Some(wrap);
        self
    }

    /// Whether launches are timed.
    pub(crate) fn times_launches(&self) -> bool {
        self.profiling || self.timeline > 0
    }

    /// The settings that concern the driver.
    pub(crate) fn driver_options(&self) -> DriverOptions {
        DriverOptions {
            profiling: self.times_launches(),
            nvrtc_path: self.nvrtc_path.clone(),
            application_queue: self.application_queue.as_ref().map(ApplicationQueue::raw),
            log: self.log.clone(),
        }
    }

    /// Refuses a limit of the pool that a device cannot have.
    pub(crate) fn check_memory_bytes(&self, info: &DeviceInfo) -> Result<()> {
        let bound = match self.memory_bytes {
            0 => return Ok(()),
            1..Self::LEAST_MEMORY_BYTES => format!("at least {}", Self::LEAST_MEMORY_BYTES),
            bytes if bytes as u64 > info.memory_bytes => {
                format!("at most {}, the memory of {}", info.memory_bytes, info.label())
            }
            _ => return Ok(()),
        };
        let reason = format!("must be 0, for the device's default, or {bound}");
        Err(Error::Config { setting: MEMORY_SETTING, value: self.memory_bytes.to_string(), reason })
    }

    /// The device that [`Context::new`](crate::Context::new) would open.
    ///
    /// # Errors
    /// - `NoDriver` or `NoDevice`, with the available devices and the reason.
    /// - `Config` for a memory limit out of bounds.
    ///
    /// Errors of opening the device are not known yet, such as a cache folder that cannot be
    /// created.
    ///
    /// # Examples
    /// ```
    /// use device::{DeviceConfig, Selector};
    ///
    /// let config = DeviceConfig::default().with_selector(Selector::Name("no such device".to_owned()));
    /// assert!(config.choose().is_err());
    /// ```
    pub fn choose(&self) -> Result<DeviceInfo> {
        let entries = devices_for(self.nvrtc_path.as_deref());
        if let Some(log) = &self.log {
            let name = |entry: &DeviceEntry| entry.info.as_ref().map_or_else(|| entry.driver.to_string(), DeviceInfo::label);
            let unusable = entries.iter().filter_map(|entry| Some((name(entry), entry.problem.as_deref()?)));
            unusable.for_each(|(name, problem)| log(&format!("{name} cannot be used: {problem}")));
        }
        let platform = self.platform.as_deref();
        let info = match &self.application_queue {
            Some(queue) => queue.device(&entries, &self.selector, platform),
            None => self.selector.choose(&entries, platform),
        };
        let info = self.unified_memory.apply(info?)?;
        self.check_memory_bytes(&info)?;
        Ok(info)
    }

    /// Begins to load the drivers on another thread, once in a process: the first list of devices
    /// takes a driver some 40 ms. The next [`choose`](Self::choose) waits for what is left. A child
    /// that the process forks meanwhile cannot use devices.
    ///
    /// Does nothing on another thread than the main one, which makes the end of the process wait.
    ///
    /// # Examples
    /// ```
    /// device::DeviceConfig::default().load_drivers();
    /// ```
    pub fn load_drivers(&self) {
        let nvrtc_path = self.nvrtc_path.clone();
        exit::load_in_background(move || _ = devices_for(nvrtc_path.as_deref()));
    }

    /// The limit of a device's memory pool in bytes.
    pub fn memory_limit(&self, info: &DeviceInfo) -> usize {
        let limit = match (self.memory_bytes, info.kind) {
            (0, DeviceKind::Cpu) => HostMemory::now().map_or(info.memory_bytes / 2, default_limit),
            (0, _) => info.memory_bytes / 10 * 9,
            (bytes, _) => bytes as u64,
        };
        usize::try_from(limit).unwrap_or(usize::MAX)
    }
}

/// The limit on a CPU where none is set: half of the memory, at most three quarters of what other
/// processes leave. The rest is for the host's own work.
fn default_limit(host: HostMemory) -> u64 {
    (host.total / 2).min(host.available / 4 * 3).max(DeviceConfig::LEAST_MEMORY_BYTES as u64)
}
