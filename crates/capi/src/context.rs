// SPDX-License-Identifier: Apache-2.0
//! Contexts: a session with its device, threads, log and last failure.

use std::ffi::{c_char, c_int, c_void};
use std::ptr;
use std::sync::Arc;

use device::DriverKind;

use crate::boundary::{catch_panics, code, malloc_string, without_context};
use crate::cancel::{Canceller, unless_cancelled};
use crate::config::{CONFIGS, Config, devicefusion_context_config};
use crate::error::{Failure, LastErrors, Result, take_from_thread};
use crate::handle::Registry;
use crate::log::Log;
use crate::session::Session;

/// Tables, queries and the device that runs them. Contexts are independent of each other. All
/// functions may be called from several threads at once.
pub struct devicefusion_context {
    _opaque: [u8; 0],
}

pub(crate) static CONTEXTS: Registry<devicefusion_context, Context> = Registry::new("context");

pub(crate) struct Context {
    pub errors: LastErrors,
    pub log: Arc<Log>,
    /// Of all that is under way.
    pub canceller: Canceller,
    /// `None` if it could not be opened.
    session: Option<Session>,
    config: Arc<Config>,
}

impl Context {
    /// A context with a session, or with the reason why it has none.
    fn new(config: Arc<Config>) -> Result<Self> {
        let options = config.acquire()?;
        let log = Arc::new(Log::new());
        let errors = LastErrors::new();
        let session = match catch_panics(|| Session::open(&options, &log)) {
            Ok(session) => Some(session),
            Err(failure) => {
                errors.keep(failure.message);
                None
            }
        };
        Ok(Self { errors, log, canceller: Canceller::new(), session, config })
    }

    pub fn session(&self) -> Result<&Session> {
        self.session.as_ref().ok_or_else(|| Failure::program("this context could not be made, so it can only be freed"))
    }

    /// Runs the body of a C function and keeps its failure in this context.
    pub fn report<T>(&self, body: impl FnOnce() -> Result<T>) -> std::result::Result<T, c_int> {
        catch_panics(body).map_err(|failure| {
            self.errors.keep(failure.message);
            failure.code
        })
    }

    /// Drives `work` until it ends, or this context is cancelled. `what` names the work.
    pub fn run<T>(&self, what: &str, work: impl Future<Output = Result<T>>) -> Result<T> {
        self.session()?.block_on(unless_cancelled(what, self.canceller.cancelled(), work))
    }

    /// The device, if one was opened.
    pub fn device(&self) -> Result<Option<device::Context>> {
        Ok(self.session()?.device.opened())
    }
}

/// Runs the body of a C function with a context, which keeps its failure.
pub(crate) fn with_context<T>(
    context: *const devicefusion_context,
    body: impl FnOnce(&Arc<Context>) -> Result<T>,
) -> std::result::Result<T, c_int> {
    let context = without_context(|| CONTEXTS.get(context))?;
    context.report(|| body(&context))
}

/// Makes a context: opens the device and starts threads. The configuration is frozen until the
/// context is freed; several contexts need several configurations.
///
/// - Call devicefusion_context_get_error next. A message says why the context could not be made.
///   Such a context must still be freed, and allows nothing else.
/// - Without a device the context runs everything on the host. If the configuration names a device
///   or is strict, the function fails instead.
/// - NULL if `config` is not a configuration or is in use. devicefusion_context_get_error(NULL) has
///   the message.
#[unsafe(no_mangle)]
pub extern "C" fn devicefusion_context_new(config: *mut devicefusion_context_config) -> *mut devicefusion_context {
    without_context(|| Ok(CONTEXTS.insert(Context::new(CONFIGS.get(config)?)?))).unwrap_or(ptr::null_mut())
}

/// Frees a context with its tables, and waits for its threads. Remaining queries and streams keep
/// the parts of the context that they need.
#[unsafe(no_mangle)]
pub extern "C" fn devicefusion_context_free(context: *mut devicefusion_context) -> c_int {
    code(without_context(|| {
        let context = CONTEXTS.take(context)?;
        context.config.release();
        if let Some(session) = Arc::into_inner(context).and_then(|context| context.session) {
            session.shut_down();
        }
        Ok(())
    }))
}

/// Waits until the device has finished all work of this context. Fails if some of that work failed.
#[unsafe(no_mangle)]
pub extern "C" fn devicefusion_context_sync(context: *mut devicefusion_context) -> c_int {
    code(with_context(context, |context| match context.device()? {
        Some(device) => Ok(device.synchronize()?),
        None => Ok(()),
    }))
}

/// Cancels all that is under way in this context, from any thread: registrations of tables,
/// devicefusion_store, devicefusion_execute, and runs of queries with their streams. They fail.
/// Later calls are not affected.
#[unsafe(no_mangle)]
pub extern "C" fn devicefusion_context_cancel(context: *mut devicefusion_context) -> c_int {
    code(with_context(context, |context| {
        context.canceller.cancel();
        Ok(())
    }))
}

/// The cl_command_queue that this context shares with the program. It is that of the configuration,
/// or a queue that the first call makes in the context's cl_context. The library owns it until the
/// context is freed.
///
/// - The device finishes the program's earlier work in this queue before the work of a later call.
///   A kernel may write the rows that a query reads; the host does not wait.
/// - The library's work runs in its own queues. The program's later work waits for a query's rows
///   by their `sync_event`, or by devicefusion_array_values_raw.
#[unsafe(no_mangle)]
pub extern "C" fn devicefusion_context_get_command_queue(context: *mut devicefusion_context) -> *mut c_void {
    shared_queue(context, DriverKind::OpenCl)
}

/// devicefusion_context_get_command_queue for CUDA: the CUstream of a context on a CUDA device.
#[unsafe(no_mangle)]
pub extern "C" fn devicefusion_context_get_cuda_stream(context: *mut devicefusion_context) -> *mut c_void {
    shared_queue(context, DriverKind::Cuda)
}

fn shared_queue(context: *mut devicefusion_context, driver: DriverKind) -> *mut c_void {
    let queue = with_context(context, |context| {
        let Some(device) = context.device()? else {
            return Err(Failure::program("the context has no device, so it has no queue"));
        };
        let info = device.info();
        if info.driver != driver {
            let label = info.label();
            return Err(Failure::program(format!("the context's device is {label}, which has no queue of the driver {driver}")));
        }
        Ok(ptr::without_provenance_mut(usize::try_from(device.shared_queue()?.0).unwrap_or_default()))
    });
    queue.unwrap_or(ptr::null_mut())
}

/// The message of this thread's last failure in this context. The caller frees it. NULL without a
/// failure since the last call. As with errno, failures of other threads change nothing here.
///
/// With NULL as the context: this thread's last failure that belongs to no context, such as a
/// refused setting.
#[unsafe(no_mangle)]
pub extern "C" fn devicefusion_context_get_error(context: *mut devicefusion_context) -> *mut c_char {
    let message = match context.is_null() {
        true => Ok(take_from_thread()),
        false => without_context(|| CONTEXTS.get(context).map(|context| context.errors.take())),
    };
    message.ok().flatten().map_or(ptr::null_mut(), |message| malloc_string(&message))
}

/// Counters of the context as JSON: "version", "device", "kernels" (name, launches, nanoseconds),
/// "copies", "programs" and "memory". The caller frees the string. NULL on failure.
///
/// Without a device there are only "version", "device", which is null, and "problem".
#[unsafe(no_mangle)]
pub extern "C" fn devicefusion_context_report(context: *mut devicefusion_context) -> *mut c_char {
    let report = with_context(context, |context| {
        let session = context.session()?;
        let report = session.device.report();
        let report =
            report.unwrap_or_else(|| serde_json::json!({ "version": 1, "device": null, "problem": session.device.problem() }));
        Ok(malloc_string(&report.to_string()))
    });
    report.unwrap_or(ptr::null_mut())
}

/// Frees caches: free device memory, compiled programs that no query holds, idle queues. Tables
/// stay.
#[unsafe(no_mangle)]
pub extern "C" fn devicefusion_context_clear_caches(context: *mut devicefusion_context) -> c_int {
    code(with_context(context, |context| {
        if let Some(device) = context.device()? {
            device.trim();
        }
        Ok(())
    }))
}

/// Stops the timing of later kernels. They are still counted.
#[unsafe(no_mangle)]
pub extern "C" fn devicefusion_context_pause_profiling(context: *mut devicefusion_context) -> c_int {
    code(with_context(context, |context| {
        if let Some(device) = context.device()? {
            device.pause_profiling();
        }
        Ok(())
    }))
}

/// Resumes the timing of kernels, if the configuration asked for it.
#[unsafe(no_mangle)]
pub extern "C" fn devicefusion_context_unpause_profiling(context: *mut devicefusion_context) -> c_int {
    code(with_context(context, |context| {
        if let Some(device) = context.device()? {
            device.unpause_profiling();
        }
        Ok(())
    }))
}

/// Sends the log to `file`, or to standard error with NULL. The file must stay open until another
/// call replaces it, or the context is freed with all its queries and streams.
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
