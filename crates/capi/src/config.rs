// SPDX-License-Identifier: Apache-2.0
//! Configurations: settings that are collected, checked one by one, and frozen while a context is made of them.

use std::ffi::{c_char, c_int, c_void};

use datafusion::execution::context::SessionConfig;
use device::{ApplicationQueue, DriverKind};
use devicefusion::DeviceOptions;
use parking_lot::Mutex;

use crate::boundary::{code, text, without_context};
use crate::error::{Failure, Result};
use crate::handle::Registry;
use crate::settings;

/// The settings of a context that is to be made. Cheap to make and to free; making one opens no driver and starts no thread.
/// Of a setting that is set several times, by whatever function, the last value counts.
pub struct devicefusion_context_config {
    _opaque: [u8; 0],
}

pub(crate) static CONFIGS: Registry<devicefusion_context_config, Config> = Registry::new("configuration");

/// What C has set so far.
#[derive(Default)]
pub(crate) struct Config(Mutex<State>);

#[derive(Default)]
struct State {
    choices: Choices,
    /// Whether a context lives that was made of this.
    lent: bool,
}

/// What a context is made of.
#[derive(Clone, Default)]
pub(crate) struct Choices {
    /// Names and values, in the order in which they were set.
    settings: Vec<(String, String)>,
    /// Worker threads; 0 for one for each processor.
    pub threads: usize,
    /// Bytes of host memory that operators of the host may claim; 0 for no limit.
    pub host_memory: usize,
    /// The queue or stream that the program shares.
    pub queue: Option<ApplicationQueue>,
    pub logging: bool,
    pub debugging: bool,
}

impl Choices {
    /// The session's configuration. Made anew each time, since sessions share what their device has frozen.
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
    /// Changes what is set; nothing if the result is not valid, or a context lives that was made of it.
    fn change(&self, change: impl FnOnce(&mut Choices) -> Result<()>) -> Result<()> {
        let mut state = self.0.lock();
        if state.lent {
            return Err(Failure::program("the configuration is frozen: a context that was made of it has not been freed"));
        }
        let mut choices = state.choices.clone();
        change(&mut choices)?;
        choices.session_config()?;
        state.choices = choices;
        Ok(())
    }

    /// What is set, for a context, until that calls [`give_back`](Self::give_back).
    pub fn lend(&self) -> Result<Choices> {
        let mut state = self.0.lock();
        if std::mem::replace(&mut state.lent, true) {
            return Err(Failure::program(
                "the configuration is that of another context, which has not been freed; make one for each context",
            ));
        }
        Ok(state.choices.clone())
    }

    pub fn give_back(&self) {
        self.0.lock().lent = false;
    }
}

fn change(config: *mut devicefusion_context_config, change: impl FnOnce(&mut Choices) -> Result<()>) -> c_int {
    code(without_context(|| CONFIGS.get(config)?.change(change)))
}

fn set(config: *mut devicefusion_context_config, name: &str, value: impl ToString) -> c_int {
    change(config, |choices| {
        choices.settings.push((name.to_owned(), value.to_string()));
        Ok(())
    })
}

/// As [`set`], for a value that C passes as a text.
///
/// # Safety
/// `value` is NULL or a C string.
unsafe fn set_text(config: *mut devicefusion_context_config, name: &str, value: *const c_char) -> c_int {
    change(config, |choices| {
        // SAFETY: as this function's own condition.
        let value = unsafe { text(name, value) }?;
        choices.settings.push((name.to_owned(), value.to_owned()));
        Ok(())
    })
}

/// As [`set_text`], where NULL is no folder.
///
/// # Safety
/// As [`set_text`].
unsafe fn set_folder(config: *mut devicefusion_context_config, name: &str, folder: *const c_char) -> c_int {
    let folder = if folder.is_null() { c"".as_ptr() } else { folder };
    // SAFETY: as this function's own condition.
    unsafe { set_text(config, name, folder) }
}

/// Makes a configuration in which every setting has its default. Free it with devicefusion_context_config_free.
#[unsafe(no_mangle)]
pub extern "C" fn devicefusion_context_config_new() -> *mut devicefusion_context_config {
    CONFIGS.insert(Config::default())
}

/// Frees a configuration. Contexts that were made of it are not touched.
#[unsafe(no_mangle)]
pub extern "C" fn devicefusion_context_config_free(config: *mut devicefusion_context_config) -> c_int {
    code(without_context(|| CONFIGS.take(config).map(drop)))
}

/// Chooses the device: "auto" (a GPU if there is one, else an OpenCL CPU device; the default), "none" (queries run on the
/// host), "opencl", "cuda", "#k" for the k-th device, or a part of its name. That there is no such device is found out by
/// devicefusion_context_new.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn devicefusion_context_config_set_device(
    config: *mut devicefusion_context_config,
    device: *const c_char,
) -> c_int {
    // SAFETY: `device` is as the header asks.
    unsafe { set_text(config, "device.selector", device) }
}

/// Shares a queue of the program's, a cl_command_queue of any kind: the context uses its device, which the configuration may
/// also name, and its cl_context, so that each cl_mem and cl_event of the one is good in the other. The queue is retained as
/// long as configuration and context need it. See devicefusion_context_get_command_queue for what the two promise each other. The
/// queue must be live: that is not checked.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn devicefusion_context_config_set_command_queue(
    config: *mut devicefusion_context_config,
    queue: *mut c_void,
) -> c_int {
    // SAFETY: the queue is NULL or live, as the header asks.
    share(config, || unsafe { ApplicationQueue::new(DriverKind::OpenCl, queue.addr() as u64) })
}

/// As devicefusion_context_config_set_command_queue, for a CUstream or cudaStream_t of a device's primary context, which is the one
/// that CUDA's run-time library uses. The stream must live until the context has been freed with all that came from it. CUDA's
/// default stream is CU_STREAM_LEGACY here, not NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn devicefusion_context_config_set_cuda_stream(
    config: *mut devicefusion_context_config,
    stream: *mut c_void,
) -> c_int {
    // SAFETY: the stream is NULL or live, and stays so, as the header asks.
    share(config, || unsafe { ApplicationQueue::new(DriverKind::Cuda, stream.addr() as u64) })
}

fn share(config: *mut devicefusion_context_config, queue: impl FnOnce() -> device::Result<ApplicationQueue>) -> c_int {
    change(config, |choices| {
        choices.queue = Some(queue()?);
        Ok(())
    })
}

/// Takes only devices of OpenCL platforms with this part in their name; "" takes any, which is the default.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn devicefusion_context_config_set_platform(
    config: *mut devicefusion_context_config,
    platform: *const c_char,
) -> c_int {
    // SAFETY: `platform` is as the header asks.
    unsafe { set_text(config, "device.platform", platform) }
}

/// With a nonzero flag, which is the default, each kernel is timed, for devicefusion_context_report and EXPLAIN ANALYZE: a few
/// microseconds each.
#[unsafe(no_mangle)]
pub extern "C" fn devicefusion_context_config_set_profiling(config: *mut devicefusion_context_config, flag: c_int) -> c_int {
    set(config, "device.profiling", flag != 0)
}

/// With a nonzero flag the context logs what it does (the device, each program that is compiled, each query), to standard
/// error or to devicefusion_context_set_logging_file. Off by default.
#[unsafe(no_mangle)]
pub extern "C" fn devicefusion_context_config_set_logging(config: *mut devicefusion_context_config, flag: c_int) -> c_int {
    change(config, |choices| {
        choices.logging = flag != 0;
        Ok(())
    })
}

/// With a nonzero flag the log has the plan of each query as well, with the reason of whatever runs on the host; this turns
/// the log on. Off by default.
#[unsafe(no_mangle)]
pub extern "C" fn devicefusion_context_config_set_debugging(config: *mut devicefusion_context_config, flag: c_int) -> c_int {
    change(config, |choices| {
        choices.debugging = flag != 0;
        Ok(())
    })
}

/// With a nonzero flag a query fails rather than compute anything on the host, and a context without a device cannot be
/// made. Off by default: operators that the device does not support run on the host, and devicefusion_query_explain says why.
#[unsafe(no_mangle)]
pub extern "C" fn devicefusion_context_config_set_strict(config: *mut devicefusion_context_config, flag: c_int) -> c_int {
    set(config, "device.fallback", if flag == 0 { "host" } else { "error" })
}

/// Limits the device memory of the context, in bytes. 0, the default, takes 90 % of a GPU's memory or half of the host's.
#[unsafe(no_mangle)]
pub extern "C" fn devicefusion_context_config_set_memory_limit(config: *mut devicefusion_context_config, bytes: usize) -> c_int {
    set(config, "device.memory_bytes", bytes)
}

/// Limits the memory, in bytes, that operators on the host may claim for what they gather, as SQL's
/// SET datafusion.runtime.memory_limit does; beyond it they spill to temporary files where they can, and fail where not. 0, the
/// default, is no limit.
#[unsafe(no_mangle)]
pub extern "C" fn devicefusion_context_config_set_host_memory_limit(
    config: *mut devicefusion_context_config,
    bytes: usize,
) -> c_int {
    change(config, |choices| {
        choices.host_memory = bytes;
        Ok(())
    })
}

/// Says whether kernels work in memory of the host in place: 0 for never, 1 for always, in which case a context on a device that
/// cannot is refused, 2, the default, where the device is the host's processor. Results are the same.
#[unsafe(no_mangle)]
pub extern "C" fn devicefusion_context_config_set_unified_memory(config: *mut devicefusion_context_config, flag: c_int) -> c_int {
    change(config, |choices| {
        let value = match flag {
            0 => "never",
            1 => "always",
            2 => "auto",
            other => return Err(Failure::program(format!("unified memory is 0, 1 or 2, and not {other}"))),
        };
        choices.settings.push(("device.unified_memory".to_owned(), value.to_owned()));
        Ok(())
    })
}

/// Sets how many items a group has in kernels of the profile "gpu": a power of two from 32 to 512, or 0, the default, for the
/// profile's own choice. devicefusion_context_new refuses a size that the device cannot take, and any where its kernels
/// have the profile "cpu", which has no groups of items.
#[unsafe(no_mangle)]
pub extern "C" fn devicefusion_context_config_set_default_group_size(
    config: *mut devicefusion_context_config,
    items: c_int,
) -> c_int {
    set(config, "device.work_group_size", items)
}

/// Sets how many groups a grid has at most where its items share a batch's rows among themselves: up to 65536, or 0, the default,
/// for a few for each unit of the device.
#[unsafe(no_mangle)]
pub extern "C" fn devicefusion_context_config_set_default_grid_size(
    config: *mut devicefusion_context_config,
    groups: c_int,
) -> c_int {
    set(config, "device.max_work_groups", groups)
}

/// Sets of how many rows a group brings those together that pass a filter: a multiple of 32 up to 1048576, or 0, the default, for
/// the profile's own choice. In the profile "gpu" it is a multiple of the group's size, and at most 32 times as many: else
/// devicefusion_context_new refuses it.
#[unsafe(no_mangle)]
pub extern "C" fn devicefusion_context_config_set_default_tile_size(
    config: *mut devicefusion_context_config,
    rows: c_int,
) -> c_int {
    set(config, "device.compaction_tile_rows", rows)
}

/// Leaves each program that the context compiles or loads in this folder: its text as HASH.cl, and its image as HASH.program.
/// NULL or "", the default, leaves none.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn devicefusion_context_config_dump_programs_to(
    config: *mut devicefusion_context_config,
    folder: *const c_char,
) -> c_int {
    // SAFETY: `folder` is as the header asks.
    unsafe { set_folder(config, "device.dump_programs", folder) }
}

/// Takes programs from a folder that devicefusion_context_config_dump_programs_to has filled, in which nothing is written: a HASH.cl
/// whose text was changed is compiled in place of the one that it is named for, an image is loaded where device, driver,
/// compiler, options and text are the same. Whatever is not there is compiled as ever. NULL or "", the default, takes none.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn devicefusion_context_config_load_programs_from(
    config: *mut devicefusion_context_config,
    folder: *const c_char,
) -> c_int {
    // SAFETY: `folder` is as the header asks.
    unsafe { set_folder(config, "device.load_programs", folder) }
}

/// Keeps compiled programs in this folder, for the next process. NULL or "", the default, keeps none. What does not fit the
/// device, its driver or this library is compiled anew; hits are counted in devicefusion_context_report.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn devicefusion_context_config_set_cache_dir(
    config: *mut devicefusion_context_config,
    folder: *const c_char,
) -> c_int {
    // SAFETY: `folder` is as the header asks.
    unsafe { set_folder(config, "device.cache_dir", folder) }
}

/// Hands one more option to the device's compiler, behind those that were added before: clBuildProgram's or NVRTC's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn devicefusion_context_config_add_build_option(
    config: *mut devicefusion_context_config,
    option: *const c_char,
) -> c_int {
    const NAME: &str = "device.compile_options";
    change(config, |choices| {
        // SAFETY: `option` is as the header asks.
        let option = unsafe { text("build option", option) }?;
        if option.is_empty() || option.contains(char::is_whitespace) {
            return Err(Failure::program(format!("the build option '{option}' must be one word: options are parted by spaces")));
        }
        let options = choices.settings.iter().rev().find(|(name, _)| name == NAME).map_or("", |(_, options)| options);
        let options = format!("{options} {option}");
        choices.settings.push((NAME.to_owned(), options.trim_start().to_owned()));
        Ok(())
    })
}

/// Names the library of CUDA's run-time compiler, libnvrtc.so.*, or its folder; "", the default, searches the usual places.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn devicefusion_context_config_set_nvrtc_path(
    config: *mut devicefusion_context_config,
    path: *const c_char,
) -> c_int {
    // SAFETY: `path` is as the header asks.
    unsafe { set_text(config, "device.nvrtc_path", path) }
}

/// Sets how many threads the context has for planning, decoding and what runs on the host; less than 1, the default, is one
/// for each processor.
#[unsafe(no_mangle)]
pub extern "C" fn devicefusion_context_config_set_num_threads(config: *mut devicefusion_context_config, threads: c_int) -> c_int {
    change(config, |choices| {
        choices.threads = usize::try_from(threads).unwrap_or(0);
        Ok(())
    })
}

/// Sets any setting, by the name and with the value that SQL's SET takes: those that devicefusion_get_option_name lists, and
/// DataFusion's own, as in "datafusion.execution.batch_size".
#[unsafe(no_mangle)]
pub unsafe extern "C" fn devicefusion_context_config_set_option(
    config: *mut devicefusion_context_config,
    name: *const c_char,
    value: *const c_char,
) -> c_int {
    change(config, |choices| {
        // SAFETY: both texts are as the header asks.
        let (name, value) = unsafe { (text("name of the setting", name)?, text("value of the setting", value)?) };
        choices.settings.push((name.to_owned(), value.to_owned()));
        Ok(())
    })
}

/// Sets a tuning parameter, one of those that devicefusion_get_tuning_param_name lists. Those of the class "threshold" can
/// change later, by SQL's SET; the others cannot.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn devicefusion_context_config_set_tuning_param(
    config: *mut devicefusion_context_config,
    name: *const c_char,
    value: usize,
) -> c_int {
    change(config, |choices| {
        // SAFETY: `name` is as the header asks.
        let name = unsafe { text("name of the tuning parameter", name) }?;
        if !settings::tuning_params().any(|param| param.name() == name) {
            let known: Vec<&str> = settings::tuning_params().map(|param| param.name()).collect();
            return Err(Failure::program(format!("{name} is no tuning parameter; there are {}", known.join(", "))));
        }
        choices.settings.push((name.to_owned(), value.to_string()));
        Ok(())
    })
}
