// SPDX-License-Identifier: Apache-2.0
//! Configurations: settings that C collects for a context.

use std::ffi::{c_char, c_int, c_void};

use datafusion::execution::context::SessionConfig;
use device::{ApplicationQueue, DriverKind};
use devicefusion::DeviceOptions;
use parking_lot::Mutex;

use crate::boundary::{code, string, without_context};
use crate::error::{Failure, Result};
use crate::handle::Registry;
use crate::pushed::ProducerTimeout;
use crate::settings;

/// The settings of a future context. Making one is cheap: it opens no driver and starts no thread.
/// If several calls set one setting, the last value counts.
pub struct devicefusion_context_config {
    _opaque: [u8; 0],
}

pub(crate) static CONFIGS: Registry<devicefusion_context_config, Config> = Registry::new("configuration");

/// A configuration, frozen while a context uses it.
#[derive(Default)]
pub(crate) struct Config(Mutex<ConfigState>);

#[derive(Default)]
struct ConfigState {
    options: ContextOptions,
    /// Whether a live context was made of this.
    in_use: bool,
}

/// The settings so far.
#[derive(Clone, Default)]
pub(crate) struct ContextOptions {
    /// Names and values, in the order of the calls.
    settings: Vec<(String, String)>,
    /// Worker threads; 0 means one for each processor.
    pub threads: usize,
    /// Bytes of host memory that host operators may claim; 0 means no limit.
    pub host_memory: usize,
    /// The queue or stream that the program shares.
    pub queue: Option<ApplicationQueue>,
    pub logging: bool,
    pub debugging: bool,
    /// How long a registration waits for a silent producer.
    pub producer_timeout: ProducerTimeout,
}

impl ContextOptions {
    /// A new session configuration. Clones of one would share the settings that an open device has
    /// frozen.
    pub fn session_config(&self) -> Result<SessionConfig> {
        let mut config = SessionConfig::new().with_option_extension(DeviceOptions::default());
        if self.threads > 0 {
            config = config.with_target_partitions(self.threads);
        }
        for (name, value) in &self.settings {
            config.options_mut().set(name, value)?;
        }
        Ok(config)
    }
}

impl Config {
    /// Applies a change, unless the result is invalid or a context uses the configuration.
    fn change(&self, change: impl FnOnce(&mut ContextOptions) -> Result<()>) -> Result<()> {
        let mut state = self.0.lock();
        if state.in_use {
            return Err(Failure::program("the configuration is frozen: its context has not been freed"));
        }
        let mut options = state.options.clone();
        change(&mut options)?;
        options.session_config()?;
        state.options = options;
        Ok(())
    }

    /// The settings for a context, frozen until [`release`](Self::release).
    pub fn acquire(&self) -> Result<ContextOptions> {
        let mut state = self.0.lock();
        if std::mem::replace(&mut state.in_use, true) {
            return Err(Failure::program(
                "another context uses the configuration, and has not been freed; make one for each context",
            ));
        }
        Ok(state.options.clone())
    }

    pub fn release(&self) {
        self.0.lock().in_use = false;
    }
}

fn change(config: *mut devicefusion_context_config, change: impl FnOnce(&mut ContextOptions) -> Result<()>) -> c_int {
    code(without_context(|| CONFIGS.get(config)?.change(change)))
}

fn set(config: *mut devicefusion_context_config, name: &str, value: impl ToString) -> c_int {
    change(config, |options| {
        options.settings.push((name.to_owned(), value.to_string()));
        Ok(())
    })
}

/// [`set`] for a C string.
///
/// # Safety
/// `value` is NULL or a C string.
unsafe fn set_string(config: *mut devicefusion_context_config, name: &str, value: *const c_char) -> c_int {
    change(config, |options| {
        // SAFETY: this function's own condition.
        let value = unsafe { string(name, value) }?;
        options.settings.push((name.to_owned(), value.to_owned()));
        Ok(())
    })
}

/// [`set_string`] for a folder; NULL means none.
///
/// # Safety
/// That of [`set_string`].
unsafe fn set_folder(config: *mut devicefusion_context_config, name: &str, folder: *const c_char) -> c_int {
    let folder = if folder.is_null() { c"".as_ptr() } else { folder };
    // SAFETY: this function's own condition.
    unsafe { set_string(config, name, folder) }
}

/// Makes a configuration with default settings. Free it with devicefusion_context_config_free.
#[unsafe(no_mangle)]
pub extern "C" fn devicefusion_context_config_new() -> *mut devicefusion_context_config {
    CONFIGS.insert(Config::default())
}

/// Frees a configuration. Contexts that were made of it live on.
#[unsafe(no_mangle)]
pub extern "C" fn devicefusion_context_config_free(config: *mut devicefusion_context_config) -> c_int {
    code(without_context(|| CONFIGS.take(config).map(drop)))
}

/// Chooses the device. devicefusion_context_new fails if there is no such device.
///
/// - "auto", the default: a GPU if there is one, else an OpenCL CPU device.
/// - "none": queries run on the host.
/// - a driver's name, such as "opencl": a device of that driver.
/// - "#k": the device with number k; or a part of a device's name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn devicefusion_context_config_set_device(
    config: *mut devicefusion_context_config,
    device: *const c_char,
) -> c_int {
    // SAFETY: `device` is as the header asks.
    unsafe { set_string(config, "device.selector", device) }
}

/// Shares the program's cl_command_queue, of any kind. The context uses its device and cl_context,
/// so that program and context can use each other's cl_mem and cl_event.
///
/// The configuration may also name the device. The queue must be live, which is not checked. It is
/// retained while configuration and context need it. devicefusion_context_get_command_queue has the
/// order of work in it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn devicefusion_context_config_set_command_queue(
    config: *mut devicefusion_context_config,
    queue: *mut c_void,
) -> c_int {
    // SAFETY: the queue is NULL or live, as the header asks.
    share(config, || unsafe { ApplicationQueue::new(DriverKind::OpenCl, queue.addr() as u64) })
}

/// devicefusion_context_config_set_command_queue for a CUstream or cudaStream_t.
///
/// - The stream belongs to a device's primary context, which CUDA's runtime library uses.
/// - It must live until the context is freed, with all streams and tables of the context.
/// - CUDA's default stream is CU_STREAM_LEGACY here, not NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn devicefusion_context_config_set_cuda_stream(
    config: *mut devicefusion_context_config,
    stream: *mut c_void,
) -> c_int {
    // SAFETY: the stream is NULL or live, and stays so, as the header asks.
    share(config, || unsafe { ApplicationQueue::new(DriverKind::Cuda, stream.addr() as u64) })
}

fn share(config: *mut devicefusion_context_config, queue: impl FnOnce() -> device::Result<ApplicationQueue>) -> c_int {
    change(config, |options| {
        options.queue = Some(queue()?);
        Ok(())
    })
}

/// Restricts devices to OpenCL platforms with this part in their name; "", the default, allows any.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn devicefusion_context_config_set_platform(
    config: *mut devicefusion_context_config,
    platform: *const c_char,
) -> c_int {
    // SAFETY: `platform` is as the header asks.
    unsafe { set_string(config, "device.platform", platform) }
}

/// With a nonzero flag, the default, each kernel is timed for devicefusion_context_report and
/// EXPLAIN ANALYZE. Timing costs a few microseconds each.
#[unsafe(no_mangle)]
pub extern "C" fn devicefusion_context_config_set_profiling(config: *mut devicefusion_context_config, flag: c_int) -> c_int {
    set(config, "device.profiling", flag != 0)
}

/// With a nonzero flag the context logs its device, each compiled program and each query. The log
/// goes to standard error, or to devicefusion_context_set_logging_file. Off by default.
#[unsafe(no_mangle)]
pub extern "C" fn devicefusion_context_config_set_logging(config: *mut devicefusion_context_config, flag: c_int) -> c_int {
    change(config, |options| {
        options.logging = flag != 0;
        Ok(())
    })
}

/// With a nonzero flag the log also has the plan of each query, with the reason why an operator
/// runs on the host. This turns the log on. Off by default.
#[unsafe(no_mangle)]
pub extern "C" fn devicefusion_context_config_set_debugging(config: *mut devicefusion_context_config, flag: c_int) -> c_int {
    change(config, |options| {
        options.debugging = flag != 0;
        Ok(())
    })
}

/// With a nonzero flag a query fails if an operator would run on the host, and a context needs a
/// device. Off by default: operators that the device does not support run on the host.
/// devicefusion_query_explain says why.
#[unsafe(no_mangle)]
pub extern "C" fn devicefusion_context_config_set_strict(config: *mut devicefusion_context_config, flag: c_int) -> c_int {
    set(config, "device.fallback", if flag == 0 { "host" } else { "error" })
}

/// Limits the device memory of the context, in bytes: from 1 MiB to all of the device's memory.
/// 0, the default, takes 90 % of a GPU's memory or half of the host's, at most three quarters of
/// what other processes leave.
#[unsafe(no_mangle)]
pub extern "C" fn devicefusion_context_config_set_memory_limit(config: *mut devicefusion_context_config, bytes: usize) -> c_int {
    set(config, "device.memory_bytes", bytes)
}

/// Limits the memory of host operators, in bytes, as SQL's SET datafusion.runtime.memory_limit.
/// Beyond it they spill to temporary files if they can, else they fail. 0, the default: no limit.
#[unsafe(no_mangle)]
pub extern "C" fn devicefusion_context_config_set_host_memory_limit(
    config: *mut devicefusion_context_config,
    bytes: usize,
) -> c_int {
    change(config, |options| {
        options.host_memory = bytes;
        Ok(())
    })
}

/// Chooses whether kernels use host memory in place. Results are the same.
///
/// - 0: never.
/// - 1: always; devicefusion_context_new refuses a device that cannot.
/// - 2, the default: if the device is the host's processor.
#[unsafe(no_mangle)]
pub extern "C" fn devicefusion_context_config_set_unified_memory(config: *mut devicefusion_context_config, flag: c_int) -> c_int {
    change(config, |options| {
        let value = match flag {
            0 => "never",
            1 => "always",
            2 => "auto",
            other => return Err(Failure::program(format!("unified memory is 0, 1 or 2, not {other}"))),
        };
        options.settings.push(("device.unified_memory".to_owned(), value.to_owned()));
        Ok(())
    })
}

/// Sets the work-group size (CUDA: block size) of kernels of the profile "gpu": a power of two from
/// 32 to 512. 0, the default, leaves it to the profile.
///
/// devicefusion_context_new refuses a size that the device does not support. It refuses any size in
/// the profile "cpu", which does not use work-groups.
#[unsafe(no_mangle)]
pub extern "C" fn devicefusion_context_config_set_default_group_size(
    config: *mut devicefusion_context_config,
    work_items: c_int,
) -> c_int {
    set(config, "device.work_group_size", work_items)
}

/// Limits the work-groups (CUDA: blocks) of kernels that loop over a batch's rows: up to 65536. 0,
/// the default, means a few for each compute unit of the device.
#[unsafe(no_mangle)]
pub extern "C" fn devicefusion_context_config_set_default_grid_size(
    config: *mut devicefusion_context_config,
    work_groups: c_int,
) -> c_int {
    set(config, "device.max_work_groups", work_groups)
}

/// Sets the rows of a compaction tile: a multiple of 32 up to 1048576. 0, the default, leaves it to
/// the profile. A work-group collects the rows of a tile that pass a filter.
///
/// In the profile "gpu" it must be a multiple of the work-group size, and at most 32 times as
/// large. Otherwise devicefusion_context_new refuses it.
#[unsafe(no_mangle)]
pub extern "C" fn devicefusion_context_config_set_default_tile_size(
    config: *mut devicefusion_context_config,
    rows: c_int,
) -> c_int {
    set(config, "device.compaction_tile_rows", rows)
}

/// Writes each program that the context compiles or loads to this folder: its source as HASH.cl,
/// its binary as HASH.program. NULL or "", the default, writes none.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn devicefusion_context_config_dump_programs_to(
    config: *mut devicefusion_context_config,
    folder: *const c_char,
) -> c_int {
    // SAFETY: `folder` is as the header asks.
    unsafe { set_folder(config, "device.dump_programs", folder) }
}

/// Reads programs from a folder that devicefusion_context_config_dump_programs_to has filled.
/// Nothing is written there. NULL or "", the default, reads none.
///
/// - A HASH.cl with changed source is compiled in place of the original.
/// - A binary is loaded if device, driver, compiler, options and source are the same.
/// - Programs that are absent are compiled as usual.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn devicefusion_context_config_load_programs_from(
    config: *mut devicefusion_context_config,
    folder: *const c_char,
) -> c_int {
    // SAFETY: `folder` is as the header asks.
    unsafe { set_folder(config, "device.load_programs", folder) }
}

/// Caches compiled programs in this folder, for the next process; at most 1 GiB of them. NULL or ""
/// caches none. The default is a folder of the user for GPUs, and none for CPUs, whose drivers have
/// caches of their own.
///
/// A program of another device, driver or version of this library is compiled again.
/// devicefusion_context_report counts the hits.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn devicefusion_context_config_set_cache_dir(
    config: *mut devicefusion_context_config,
    folder: *const c_char,
) -> c_int {
    // SAFETY: `folder` is as the header asks.
    unsafe { set_folder(config, "device.cache_dir", folder) }
}

/// Appends an option for the device's compiler, clBuildProgram or NVRTC. Unknown options are
/// refused, with a list of the known ones.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn devicefusion_context_config_add_build_option(
    config: *mut devicefusion_context_config,
    option: *const c_char,
) -> c_int {
    const NAME: &str = "device.compile_options";
    change(config, |options| {
        // SAFETY: `option` is as the header asks.
        let option = unsafe { string("build option", option) }?;
        if option.is_empty() || option.contains(char::is_whitespace) {
            return Err(Failure::program(format!(
                "the build option '{option}' must be one option, because spaces separate options"
            )));
        }
        let earlier = options.settings.iter().rev().find(|(name, _)| name == NAME).map_or("", |(_, value)| value);
        let value = format!("{earlier} {option}").trim_start().to_owned();
        options.settings.push((NAME.to_owned(), value));
        Ok(())
    })
}

/// Sets the path of CUDA's runtime compiler, libnvrtc.so.*, or of its folder. "", the default,
/// searches the usual folders.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn devicefusion_context_config_set_nvrtc_path(
    config: *mut devicefusion_context_config,
    path: *const c_char,
) -> c_int {
    // SAFETY: `path` is as the header asks.
    unsafe { set_string(config, "device.nvrtc_path", path) }
}

/// Sets the number of the context's threads, for planning, decoding and host operators. Less than
/// 1, the default, means one for each processor.
#[unsafe(no_mangle)]
pub extern "C" fn devicefusion_context_config_set_num_threads(config: *mut devicefusion_context_config, threads: c_int) -> c_int {
    change(config, |options| {
        options.threads = usize::try_from(threads).unwrap_or(0);
        Ok(())
    })
}

/// Limits how long the registration of a table waits for a silent producer, in milliseconds. 0: no
/// limit. The default is 300000, five minutes.
///
/// - devicefusion_register_async_stream waits for the schema, and for each array of a table of the
///   kind DEVICEFUSION_TABLE_HOST or DEVICEFUSION_TABLE_DEVICE. Each wait has this limit.
/// - A registration that fails cancels the producer, and refuses its later calls.
/// - Queries wait without a limit. devicefusion_query_cancel ends them.
#[unsafe(no_mangle)]
pub extern "C" fn devicefusion_context_config_set_producer_timeout(
    config: *mut devicefusion_context_config,
    milliseconds: usize,
) -> c_int {
    change(config, |options| {
        options.producer_timeout = ProducerTimeout::of_milliseconds(milliseconds);
        Ok(())
    })
}

/// Sets any setting, by the name and value that SQL's SET takes: those of
/// devicefusion_get_option_name, and DataFusion's own, such as "datafusion.execution.batch_size".
#[unsafe(no_mangle)]
pub unsafe extern "C" fn devicefusion_context_config_set_option(
    config: *mut devicefusion_context_config,
    name: *const c_char,
    value: *const c_char,
) -> c_int {
    change(config, |options| {
        // SAFETY: both strings are as the header asks.
        let (name, value) = unsafe { (string("name of the setting", name)?, string("value of the setting", value)?) };
        options.settings.push((name.to_owned(), value.to_owned()));
        Ok(())
    })
}

/// Sets one of the tuning parameters that devicefusion_get_tuning_param_name lists. SQL's SET can
/// change those of the class "threshold" later.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn devicefusion_context_config_set_tuning_param(
    config: *mut devicefusion_context_config,
    name: *const c_char,
    value: usize,
) -> c_int {
    change(config, |options| {
        // SAFETY: `name` is as the header asks.
        let name = unsafe { string("name of the tuning parameter", name) }?;
        if !settings::tuning_params().any(|param| param.name() == name) {
            let known: Vec<&str> = settings::tuning_params().map(|param| param.name()).collect();
            return Err(Failure::program(format!("{name} is not a tuning parameter; there are {}", known.join(", "))));
        }
        options.settings.push((name.to_owned(), value.to_string()));
        Ok(())
    })
}
