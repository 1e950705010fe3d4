// SPDX-License-Identifier: Apache-2.0
//! The settings of a context. They are read once, when the context is made.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use crate::driver::Driver;
use crate::error::MEMORY_SETTING;
use crate::{DeviceInfo, DeviceKind, Error, ProgramQueue, Result, Selector};

/// The smallest limit of a pool.
const LEAST_MEMORY_BYTES: usize = 64 << 10;

/// Takes lines that a context logs.
pub type LogSink = Arc<dyn Fn(&str) + Send + Sync>;

/// Puts a driver of a test's own between a context and its driver.
pub type Wrap = Arc<dyn Fn(Arc<dyn Driver>) -> Arc<dyn Driver> + Send + Sync>;

/// Whether kernels work in memory of the host in place, or in copies.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum UnifiedMemory {
    /// Each column is copied to memory of the driver's, and results back.
    Never,
    /// In place; a device that cannot is not opened.
    Always,
    /// In place where the device can: a CPU.
    #[default]
    Auto,
}

impl UnifiedMemory {
    /// The device as the driver is to see it.
    pub(crate) fn apply(self, mut info: DeviceInfo) -> Result<DeviceInfo> {
        if self == Self::Always && !info.unified_memory {
            let reason = "it cannot work in the host's memory, which device.unified_memory = always asks for".to_owned();
            return Err(Error::Unusable { device: info.name, reason });
        }
        info.unified_memory &= self != Self::Never;
        Ok(info)
    }
}

/// What a context is made from.
///
/// # Examples
/// ```
/// use device::{DeviceConfig, Selector};
/// let config = DeviceConfig::default().with_selector(Selector::OpenCl).with_memory_bytes(1 << 30);
/// assert_eq!(config.memory_bytes, 1 << 30);
/// assert!(config.profiling);
/// ```
#[derive(Clone)]
pub struct DeviceConfig {
    /// Which device.
    pub selector: Selector,
    /// A part of the platform's name, where several drivers offer the same device.
    pub platform: Option<String>,
    /// Bytes that the pool may hold; 0 means 90 % of a GPU's memory, half of the host's for a CPU. Below 64 KiB
    /// nothing could run: no context is made then.
    pub memory_bytes: usize,
    /// Options for the device's compiler, after our own.
    pub compile_options: Vec<String>,
    /// Folder that compiled programs are kept in between processes; none are without it.
    pub cache_dir: Option<PathBuf>,
    /// Whether each launch is timed by the device. Costs a few microseconds a launch.
    pub profiling: bool,
    /// How many launches [`Context::timeline`](crate::Context::timeline) keeps, the latest ones, of some 40 bytes each; 0 for
    /// none. Above 0 each launch is timed, whatever `profiling` says.
    pub timeline: usize,
    /// CUDA's run-time compiler, a file or its folder, where it lies outside the places that are searched.
    pub nvrtc_path: Option<PathBuf>,
    /// Whether kernels work in host memory in place.
    pub unified_memory: UnifiedMemory,
    /// A queue of the program's own, whose device is used, and its `cl_context`. Whatever the program has enqueued there when
    /// a [`queue`](crate::Context::queue) is taken comes before the work of that. The selector may leave the choice, or name
    /// the same device.
    pub program_queue: Option<ProgramQueue>,
    /// Folder that the text and the image of each program is left in, for [`load_programs`](Self::load_programs) or tools.
    pub dump_programs: Option<PathBuf>,
    /// Folder that programs are taken from before one is compiled: images where all that they depend on is the same, and texts
    /// in place of those that bear their name.
    pub load_programs: Option<PathBuf>,
    /// Takes lines that tell what the context does.
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
            cache_dir: None,
            profiling: true,
            timeline: 0,
            nvrtc_path: None,
            unified_memory: UnifiedMemory::Auto,
            program_queue: None,
            dump_programs: None,
            load_programs: None,
            log: None,
            wrap: None,
        }
    }
}

impl fmt::Debug for DeviceConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeviceConfig")
            .field("selector", &self.selector)
            .field("platform", &self.platform)
            .field("memory_bytes", &self.memory_bytes)
            .field("compile_options", &self.compile_options)
            .field("cache_dir", &self.cache_dir)
            .field("profiling", &self.profiling)
            .field("timeline", &self.timeline)
            .field("nvrtc_path", &self.nvrtc_path)
            .field("unified_memory", &self.unified_memory)
            .field("program_queue", &self.program_queue)
            .field("dump_programs", &self.dump_programs)
            .field("load_programs", &self.load_programs)
            .field("log", &self.log.is_some())
            .field("wrap", &self.wrap.is_some())
            .finish()
    }
}

impl DeviceConfig {
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

    /// Sets the bytes that the pool may hold, 0 for the device's default.
    pub fn with_memory_bytes(mut self, bytes: usize) -> Self {
        self.memory_bytes = bytes;
        self
    }

    /// Adds an option for the device's compiler.
    pub fn with_compile_option(mut self, option: impl Into<String>) -> Self {
        self.compile_options.push(option.into());
        self
    }

    /// Keeps compiled programs in a folder.
    pub fn with_cache_dir(mut self, folder: impl Into<PathBuf>) -> Self {
        self.cache_dir = Some(folder.into());
        self
    }

    /// Sets whether launches are timed.
    pub fn with_profiling(mut self, profiling: bool) -> Self {
        self.profiling = profiling;
        self
    }

    /// Sets how many launches the timeline keeps, 0 for none.
    pub fn with_timeline(mut self, launches: usize) -> Self {
        self.timeline = launches;
        self
    }

    /// Names CUDA's run-time compiler.
    pub fn with_nvrtc_path(mut self, path: impl Into<PathBuf>) -> Self {
        self.nvrtc_path = Some(path.into());
        self
    }

    /// Sets whether kernels work in host memory in place.
    pub fn with_unified_memory(mut self, unified_memory: UnifiedMemory) -> Self {
        self.unified_memory = unified_memory;
        self
    }

    /// Sets the queue that the program shares.
    pub fn with_program_queue(mut self, queue: ProgramQueue) -> Self {
        self.program_queue = Some(queue);
        self
    }

    /// Leaves programs in a folder.
    pub fn with_dump_programs(mut self, folder: impl Into<PathBuf>) -> Self {
        self.dump_programs = Some(folder.into());
        self
    }

    /// Takes programs from a folder.
    pub fn with_load_programs(mut self, folder: impl Into<PathBuf>) -> Self {
        self.load_programs = Some(folder.into());
        self
    }

    /// Sets what takes the log's lines.
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

    /// The pool's limit on `info`, in bytes.
    pub(crate) fn memory_limit(&self, info: &DeviceInfo) -> Result<usize> {
        if (1..LEAST_MEMORY_BYTES).contains(&self.memory_bytes) {
            let reason = format!("must be 0, for the device's default, or at least {LEAST_MEMORY_BYTES}");
            return Err(Error::Config { setting: MEMORY_SETTING, value: self.memory_bytes.to_string(), reason });
        }
        let limit = match (self.memory_bytes, info.kind) {
            (0, DeviceKind::Cpu) => host_memory_bytes().unwrap_or(info.memory_bytes) / 2,
            (0, _) => info.memory_bytes / 10 * 9,
            (bytes, _) => bytes as u64,
        };
        Ok(usize::try_from(limit).unwrap_or(usize::MAX))
    }
}

/// Bytes of memory that this process may use: the machine's, or its control group's where that is less.
pub(crate) fn host_memory_bytes() -> Option<u64> {
    let file = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = file.lines().find(|line| line.starts_with("MemTotal:"))?;
    let kibibytes: u64 = line.split_whitespace().nth(1)?.parse().ok()?;
    let group = std::fs::read_to_string("/sys/fs/cgroup/memory.max").ok().and_then(|text| text.trim().parse().ok());
    Some(group.unwrap_or(u64::MAX).min(kibibytes * 1024))
}
