// SPDX-License-Identifier: Apache-2.0
//! Contexts: a session with its device, threads, log and last error.

use std::ffi::{c_char, c_int, c_void};
use std::ptr;
use std::sync::Arc;

use device::DriverKind;

use crate::boundary::{caught, code, give_text, with_context, without_context};
use crate::config::{CONFIGS, Config, devicefusion_context_config};
use crate::error::{Failure, LastError, Result, take_from_thread};
use crate::handle::Registry;
use crate::log::Log;
use crate::session::Session;

/// Tables, queries and the device that runs them. Contexts know nothing of each other. All functions may be called from
/// several threads at once.
pub struct devicefusion_context {
    _opaque: [u8; 0],
}

pub(crate) static CONTEXTS: Registry<devicefusion_context, Context> = Registry::new("context");

pub(crate) struct Context {
    pub errors: LastError,
    pub log: Arc<Log>,
    /// Nothing if it could not be opened.
    session: Option<Session>,
    config: Arc<Config>,
}

impl Context {
    /// A context with a session, or with the error that kept it from having one.
    fn new(config: Arc<Config>) -> Result<Self> {
        let choices = config.lend()?;
        let log = Arc::new(Log::new());
        let errors = LastError::default();
        let session = match caught(|| Session::open(&choices, &log)) {
            Ok(session) => Some(session),
            Err(failure) => {
                errors.keep(failure.text);
                None
            }
        };
        Ok(Self { errors, log, session, config })
    }

    pub fn session(&self) -> Result<&Session> {
        self.session.as_ref().ok_or_else(|| Failure::program("this context could not be made, and can only be freed"))
    }

    /// The device, where one was opened.
    pub fn device(&self) -> Result<Option<device::Context>> {
        Ok(self.session()?.device.opened())
    }
}

/// Makes a context: opens the device and starts threads. The configuration is frozen until the context is freed; for several
/// contexts make several of them.
///
/// Call devicefusion_context_get_error next: a text tells why the context could not be made. Such a context can only be freed,
/// which it must be. Without a device the context runs everything on the host, unless the configuration asked for a device
/// or for strictness. NULL only if `config` is none, or is in use; devicefusion_context_get_error(NULL) has the reason.
#[unsafe(no_mangle)]
pub extern "C" fn devicefusion_context_new(config: *mut devicefusion_context_config) -> *mut devicefusion_context {
    without_context(|| Ok(CONTEXTS.insert(Context::new(CONFIGS.get(config)?)?))).unwrap_or(ptr::null_mut())
}

/// Frees a context with its tables, and waits until its threads have ended. Queries and streams that are still there keep what
/// they need until they are freed and released themselves.
#[unsafe(no_mangle)]
pub extern "C" fn devicefusion_context_free(context: *mut devicefusion_context) -> c_int {
    code(without_context(|| {
        let context = CONTEXTS.take(context)?;
        context.config.give_back();
        if let Some(session) = Arc::into_inner(context).and_then(|context| context.session) {
            session.shut_down();
        }
        Ok(())
    }))
}

/// Waits until the device has done everything that this context gave it, and tells what of that failed.
#[unsafe(no_mangle)]
pub extern "C" fn devicefusion_context_sync(context: *mut devicefusion_context) -> c_int {
    code(with_context(context, |context| match context.device()? {
        Some(device) => Ok(device.synchronize()?),
        None => Ok(()),
    }))
}

/// The cl_command_queue that this context shares with the program: the one of the configuration, else a queue in the context's
/// own cl_context, made by the first call. The queue stays the library's; it is good until the context has been freed.
///
/// What the program has enqueued there when it calls a function of this library comes before the work of that call, on the
/// device: kernels may write what a query reads, and nobody waits. The library's own work runs in queues of its own. What the
/// program enqueues behind a query waits for its rows by their `sync_event`, or after devicefusion_array_values_raw.
#[unsafe(no_mangle)]
pub extern "C" fn devicefusion_context_get_command_queue(context: *mut devicefusion_context) -> *mut c_void {
    shared_queue(context, DriverKind::OpenCl)
}

/// As devicefusion_context_get_command_queue, the CUstream of a context on a device of CUDA's.
#[unsafe(no_mangle)]
pub extern "C" fn devicefusion_context_get_cuda_stream(context: *mut devicefusion_context) -> *mut c_void {
    shared_queue(context, DriverKind::Cuda)
}

fn shared_queue(context: *mut devicefusion_context, driver: DriverKind) -> *mut c_void {
    let queue = with_context(context, |context| {
        let Some(device) = context.device()? else { return Err(Failure::program("the context has no device, and no queue")) };
        let info = device.info();
        if info.driver != driver {
            let label = info.label();
            return Err(Failure::program(format!("the context's device is {label}, which has no queue of {driver}'s")));
        }
        Ok(ptr::without_provenance_mut(usize::try_from(device.shared_queue()?.0).unwrap_or_default()))
    });
    queue.unwrap_or(ptr::null_mut())
}

/// The text of the last failure in this context, on whatever thread, or NULL if there was none since this was last called. The
/// caller frees it. With NULL as context: of the last failure on this thread that no context could keep, such as a setting
/// that was refused.
#[unsafe(no_mangle)]
pub extern "C" fn devicefusion_context_get_error(context: *mut devicefusion_context) -> *mut c_char {
    let text = match context.is_null() {
        true => Ok(take_from_thread()),
        false => without_context(|| CONTEXTS.get(context).map(|context| context.errors.take())),
    };
    text.ok().flatten().map_or(ptr::null_mut(), |text| give_text(&text))
}

/// What the context has done, as JSON: "version", "device", "kernels" (name, launches, nanoseconds), "copies", "programs" and
/// "memory". Without a device only "version", "device", which is null, and "problem". The caller frees the text. NULL on
/// failure.
#[unsafe(no_mangle)]
pub extern "C" fn devicefusion_context_report(context: *mut devicefusion_context) -> *mut c_char {
    let report = with_context(context, |context| {
        let session = context.session()?;
        let report = session.device.report();
        let report =
            report.unwrap_or_else(|| serde_json::json!({ "version": 1, "device": null, "problem": session.device.problem() }));
        Ok(give_text(&report.to_string()))
    });
    report.unwrap_or(ptr::null_mut())
}

/// Gives up what is only kept for later: free device memory, compiled programs that no query holds, idle queues. Tables stay.
#[unsafe(no_mangle)]
pub extern "C" fn devicefusion_context_clear_caches(context: *mut devicefusion_context) -> c_int {
    code(with_context(context, |context| {
        if let Some(device) = context.device()? {
            device.trim();
        }
        Ok(())
    }))
}

/// Leaves the kernels that come untimed. They are still counted.
#[unsafe(no_mangle)]
pub extern "C" fn devicefusion_context_pause_profiling(context: *mut devicefusion_context) -> c_int {
    code(with_context(context, |context| {
        if let Some(device) = context.device()? {
            device.pause_profiling();
        }
        Ok(())
    }))
}

/// Times kernels again, if the configuration asked for it.
#[unsafe(no_mangle)]
pub extern "C" fn devicefusion_context_unpause_profiling(context: *mut devicefusion_context) -> c_int {
    code(with_context(context, |context| {
        if let Some(device) = context.device()? {
            device.unpause_profiling();
        }
        Ok(())
    }))
}

/// Sends the log to `file`, or to standard error with NULL. The file must stay open until another one is named or the context
/// has been freed with all that came from it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn devicefusion_context_set_logging_file(
    context: *mut devicefusion_context,
    file: *mut libc::FILE,
) -> c_int {
    code(with_context(context, |context| {
        // SAFETY: the file stays open as the header asks.
        unsafe { context.log.send_to(file) };
        Ok(())
    }))
}
