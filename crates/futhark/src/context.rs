// SPDX-License-Identifier: Apache-2.0
//! The context of a library, which owns values and serialises calls.
//!
//! - The C API allows one thread at a time, so each context has a lock.
//! - The lock is reentrant: a call and the copies around it can hold it together.
//! - Values keep their context alive.
//! - Dropping a value never waits. If another thread holds the lock, the next holder frees the
//!   value.

use std::ffi::{CStr, CString, c_char};
use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock, Weak};

use device::{Buffer, ForeignContext, Queue};
use parking_lot::{Mutex, ReentrantMutex};

use crate::library::{BackendApi, FreeFn, Raw};
use crate::manifest::Backend;
use crate::{Error, Library, Result};

/// Settings of a new context.
#[derive(Debug, Clone, Default)]
pub struct ContextConfig {
    /// Tuning parameters by name; [`Library::tuning_params`] lists them.
    pub tuning: Vec<(String, usize)>,
    /// Whether the library runs extra checks. They are slow and print to standard error.
    pub debugging: bool,
    /// Whether the library measures times, for [`Context::report`].
    pub profiling: bool,
    /// Whether the library logs to standard error.
    pub logging: bool,
    /// Threads of a `multicore` or `ispc` library, at least one; by default one per core.
    pub threads: Option<u16>,
    /// A cache file for the library's compiled kernels; by default none.
    pub cache_file: Option<PathBuf>,
}

/// A Futhark context, which owns values. Clones are the same context.
#[derive(Clone)]
pub struct Context {
    inner: Arc<ContextInner>,
}

/// A weak reference to a context.
#[derive(Clone)]
pub struct WeakContext {
    inner: Weak<ContextInner>,
}

impl WeakContext {
    /// The context, if it still exists.
    pub fn upgrade(&self) -> Option<Context> {
        self.inner.upgrade().map(|inner| Context { inner })
    }
}

struct ContextInner {
    library: Library,
    pointers: ReentrantMutex<RawContext>,
    /// Values dropped while another thread held the lock.
    dropped: Mutex<Vec<(SendRaw, FreeFn)>>,
    /// The device that the context shares.
    shared: OnceLock<SharedDevice>,
    profiling: bool,
    tuning: Vec<(String, usize)>,
}

/// A device that the context shares with other users.
struct SharedDevice {
    device: device::Context,
    /// The library's own driver context on the device, whose kernels do not see memory of other
    /// contexts.
    foreign_context: Option<ForeignContext>,
}

struct RawContext {
    config: Raw,
    context: Raw,
}

// SAFETY: used under the lock only, and the API is not tied to a thread.
unsafe impl Send for RawContext {}

struct SendRaw(Raw);

// SAFETY: as above.
unsafe impl Send for SendRaw {}

impl Context {
    /// Creates a context.
    ///
    /// # Errors
    /// - [`Error::Usage`] for an unknown tuning parameter, or a thread count for a back end without
    ///   threads.
    /// - [`Error::Setup`] with the library's message.
    pub fn new(library: &Library, config: ContextConfig) -> Result<Context> {
        Self::make(library, config, None)
    }

    /// Creates a context that shares a device, so that values need not pass through the host
    /// ([`prepare_buffer`](Self::prepare_buffer), [`array_from_buffer`](Self::array_from_buffer),
    /// [`Array::into_buffer`](crate::Array::into_buffer)).
    ///
    /// - Back end `opencl`: the context gets its own queue on the device, and arrays and buffers
    ///   can be the same memory.
    /// - Back end `cuda`: the library creates its own driver context, and values are copied on the
    ///   device.
    ///
    /// The library's allocations, and copies made for it, do not count towards the device's limit.
    ///
    /// # Errors
    /// - As [`new`](Self::new).
    /// - [`Error::Usage`] for a library of another back end, a `cuda` library without `new_raw` in
    ///   its manifest, or a device of another driver.
    /// - [`Error::Device`] if the library has chosen another device.
    pub fn on_device(library: &Library, config: ContextConfig, device: &device::Context) -> Result<Context> {
        let backend = library.manifest().backend;
        let driver = device.info().driver;
        if backend.driver().is_some_and(|own| own != driver) {
            let (backend, name) = (backend.name(), &device.info().name);
            return Err(Error::Usage(format!("a library of the back end {backend} cannot share {name}, a device of {driver:?}")));
        }
        match backend {
            Backend::C | Backend::Multicore | Backend::Ispc | Backend::Hip => {
                Err(Error::Usage(format!("a library of the back end {} cannot share a device", backend.name())))
            }
            Backend::OpenCl => Self::make(library, config, Some(device)),
            Backend::Cuda => {
                let context = Self::make(library, config, Some(device))?;
                let foreign_context = context.find_foreign_context(device)?;
                _ = context.inner.shared.set(SharedDevice { device: device.clone(), foreign_context: Some(foreign_context) });
                Ok(context)
            }
        }
    }

    /// Finds the library's own driver context: that of its arrays.
    fn find_foreign_context(&self, device: &device::Context) -> Result<ForeignContext> {
        let element = self.library().shared_element();
        let element = element.ok_or_else(|| Error::Usage("the manifest names no new_raw of any array".to_owned()))?;
        let array = self.array_of_zero(element)?;
        // SAFETY: the array is live.
        unsafe { device.foreign_context(array.raw_memory()? as u64) }.map_err(Error::Device)
    }

    /// The library's own driver context on the shared device, if it has one.
    pub(crate) fn foreign_context(&self) -> Option<&ForeignContext> {
        self.inner.shared.get()?.foreign_context.as_ref()
    }

    /// Prepares a buffer of the shared device for [`array_from_buffer`](Self::array_from_buffer).
    ///
    /// Returns the buffer itself. Returns a copy instead, complete after the work queued on
    /// `queue`, in two cases:
    /// - The library's kernels cannot see the buffer's memory.
    /// - The library will overwrite it (`overwritten`).
    ///
    /// # Errors
    /// [`Error::Device`].
    pub fn prepare_buffer(&self, queue: &Queue, buffer: &Buffer, overwritten: bool) -> Result<Buffer> {
        let prepared = match self.foreign_context() {
            // SAFETY: the clone keeps this context alive, and with it the library's driver context.
            Some(foreign_context) => unsafe { queue.copy_to(foreign_context, buffer, Arc::new(self.clone())) },
            None if overwritten => queue.alloc(buffer.len()).and_then(|copy| {
                queue.copy(buffer, 0, &copy, 0, buffer.len())?;
                Ok(copy)
            }),
            None => Ok(buffer.clone()),
        };
        prepared.map_err(Error::Device)
    }

    /// A weak reference to the context.
    ///
    /// ```no_run
    /// # fn example(context: futhark::Context) {
    /// let weak = context.downgrade();
    /// drop(context);
    /// assert!(weak.upgrade().is_none());
    /// # }
    /// ```
    pub fn downgrade(&self) -> WeakContext {
        WeakContext { inner: Arc::downgrade(&self.inner) }
    }

    /// Whether [`ContextConfig::profiling`] is set.
    pub fn is_profiled(&self) -> bool {
        self.inner.profiling
    }

    /// The tuning parameters of [`ContextConfig::tuning`].
    pub fn tuning(&self) -> &[(String, usize)] {
        &self.inner.tuning
    }

    /// The shared device.
    pub fn device(&self) -> Option<&device::Context> {
        self.inner.shared.get().map(|shared| &shared.device)
    }

    fn make(library: &Library, config: ContextConfig, device: Option<&device::Context>) -> Result<Context> {
        let api = library.api();
        let (queue, ordinal) = match (device, api.backend) {
            (Some(device), BackendApi::OpenCl { config_set_command_queue }) => {
                let queue = device.library_queue(config.profiling).map_err(Error::Device)?;
                (Some((queue, config_set_command_queue)), None)
            }
            (Some(device), BackendApi::Cuda { config_set_device, config_set_unified_memory }) => {
                let ordinal = c_string(format!("#{}", device.info().ordinal).as_bytes())?;
                (None, Some((ordinal, config_set_device, config_set_unified_memory)))
            }
            (None, _) | (Some(_), BackendApi::Plain | BackendApi::Threads { .. }) => (None, None),
        };
        let cache_file = config.cache_file.as_ref().map(|path| c_string(path.as_os_str().as_bytes())).transpose()?;
        // SAFETY: as documented; freed by the drop of `ContextInner`.
        let raw_config = unsafe { (api.config_new)() };
        if raw_config.is_null() {
            return Err(Error::Setup("futhark_context_config_new failed".to_owned()));
        }
        // Freed by the drop of `inner` from here on.
        let pointers = RawContext { config: raw_config, context: std::ptr::null_mut() };
        let (library, pointers) = (library.clone(), ReentrantMutex::new(pointers));
        let shared = OnceLock::new();
        if let (Some(device), true) = (device, queue.is_some()) {
            _ = shared.set(SharedDevice { device: device.clone(), foreign_context: None });
        }
        let (dropped, profiling, tuning) = (Mutex::default(), config.profiling, config.tuning.clone());
        let mut inner = ContextInner { library, pointers, dropped, shared, profiling, tuning };
        // SAFETY: the configuration is live, without a context yet.
        unsafe { configure(&inner.library, raw_config, &config, cache_file.as_deref()) }?;
        if let Some((queue, set)) = &queue {
            // SAFETY: the configuration is live, and the queue is this context's alone.
            unsafe { set(raw_config, queue.raw().0 as Raw) };
        }
        if let Some((ordinal, set_device, set_unified_memory)) = &ordinal {
            if let Some(set_unified_memory) = set_unified_memory {
                // Unified memory would migrate to the host and back; the shared buffers stay on
                // the device. SAFETY: the configuration is live.
                unsafe { set_unified_memory(raw_config, 0) };
            }
            // SAFETY: the configuration is live; the library copies the name.
            unsafe { set_device(raw_config, ordinal.as_ptr()) };
        }
        // SAFETY: no other context uses the configuration.
        let context = unsafe { (api.new)(raw_config) };
        if context.is_null() {
            return Err(Error::Setup("futhark_context_new failed".to_owned()));
        }
        // Freeing the context releases the queue and its OpenCL context, which the library did not
        // retain.
        if let Some((queue, _)) = queue {
            _ = queue.into_raw();
        }
        inner.pointers.get_mut().context = context;
        // SAFETY: directly after the creation, as documented; the context is live.
        match unsafe { take_string((api.get_error)(context)) } {
            Some(problem) => Err(Error::Setup(problem)),
            None => Ok(Context { inner: Arc::new(inner) }),
        }
    }

    /// The library.
    pub fn library(&self) -> &Library {
        &self.inner.library
    }

    /// Runs several calls without calls of other threads between them.
    ///
    /// ```no_run
    /// # fn example(context: &futhark::Context) -> futhark::Result<()> {
    /// context.locked(|| {
    ///     let numbers = context.array(&[3], &[1i64, 2, 3])?;
    ///     context.call("sum", vec![numbers.into()]).map(|_| ())
    /// })
    /// # }
    /// ```
    pub fn locked<R>(&self, run: impl FnOnce() -> R) -> R {
        let _guard = self.inner.pointers.lock();
        run()
    }

    /// Waits for all started work. Every call of this crate already waits.
    ///
    /// # Errors
    /// The failure of that work.
    pub fn sync(&self) -> Result<()> {
        self.with(|context| self.sync_held(context, "futhark_context_sync"))
    }

    /// The library's measurements as JSON; filled with [`ContextConfig::profiling`].
    ///
    /// # Errors
    /// [`Error::Failed`] if there is no report, or it is not JSON.
    pub fn report(&self) -> Result<serde_json::Value> {
        let call = "futhark_context_report";
        // SAFETY: the context is live; the caller frees the string.
        let report = self.with(|context| unsafe { take_string((self.library().api().report)(context)) });
        let failed = |message: String| Error::Failed { call: call.to_owned(), code: 1, message };
        let report = report.ok_or_else(|| failed("there is no report".to_owned()))?;
        serde_json::from_str(&report).map_err(|error| failed(error.to_string()))
    }

    /// Frees memory that the library caches for later calls.
    ///
    /// # Errors
    /// The library's failure.
    pub fn clear_caches(&self) -> Result<()> {
        self.with(|context| {
            // SAFETY: the context is live.
            let status = unsafe { (self.library().api().clear_caches)(context) };
            self.check(context, "futhark_context_clear_caches", status)
        })
    }

    /// Stops measuring until [`unpause_profiling`](Self::unpause_profiling).
    pub fn pause_profiling(&self) {
        // SAFETY: the context is live.
        self.with(|context| unsafe { (self.library().api().pause_profiling)(context) });
    }

    /// Resumes measuring.
    pub fn unpause_profiling(&self) {
        // SAFETY: the context is live.
        self.with(|context| unsafe { (self.library().api().unpause_profiling)(context) });
    }

    /// Whether both are the same context.
    pub(crate) fn same(&self, other: &Context) -> bool {
        Arc::ptr_eq(&self.inner, &other.inner)
    }

    /// Runs a C call under the lock.
    pub(crate) fn with<R>(&self, call: impl FnOnce(Raw) -> R) -> R {
        let pointers = self.inner.pointers.lock();
        self.inner.free_dropped(pointers.context);
        call(pointers.context)
    }

    /// Frees a value now, or queues it for the lock's holder.
    pub(crate) fn discard(&self, value: Raw, free: FreeFn) {
        match self.inner.pointers.try_lock() {
            // SAFETY: the value is this context's, without other users. A failure is ignored.
            Some(pointers) => _ = unsafe { free(pointers.context, value) },
            None => self.inner.dropped.lock().push((SendRaw(value), free)),
        }
    }

    /// Converts a return code; call it under the lock.
    pub(crate) fn check(&self, context: Raw, call: &str, code: i32) -> Result<()> {
        if code == 0 {
            return Ok(());
        }
        Err(self.failure(context, call, code))
    }

    /// Waits for started work; call it under the lock.
    pub(crate) fn sync_held(&self, context: Raw, call: &str) -> Result<()> {
        // SAFETY: the context is live.
        self.check(context, call, unsafe { (self.library().api().sync)(context) })
    }

    /// The error of a return code, with the library's message.
    pub(crate) fn failure(&self, context: Raw, call: &str, code: i32) -> Error {
        // SAFETY: the context is live; the caller frees the string.
        let message = unsafe { take_string((self.library().api().get_error)(context)) };
        let message = message.unwrap_or_else(|| "the library gives no reason".to_owned());
        let call = call.to_owned();
        match code {
            2 => Error::Program { call, message },
            3 => Error::OutOfMemory { call, message },
            code => Error::Failed { call, code, message },
        }
    }
}

impl fmt::Debug for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Context").field("library", &self.inner.library).finish_non_exhaustive()
    }
}

impl ContextInner {
    fn free_dropped(&self, context: Raw) {
        let dropped = std::mem::take(&mut *self.dropped.lock());
        for (value, free) in dropped {
            // SAFETY: the value is this context's, without other users; the lock is held.
            unsafe { free(context, value.0) };
        }
    }
}

impl Drop for ContextInner {
    /// Waits only for frees, because every call has waited for its own work.
    fn drop(&mut self) {
        let RawContext { config, context } = *self.pointers.get_mut();
        let api = self.library.api();
        if !context.is_null() {
            self.free_dropped(context);
            // SAFETY: the last use of the context, whose values are all freed.
            unsafe {
                (api.sync)(context);
                (api.free)(context);
            }
        }
        // SAFETY: its context is freed.
        unsafe { (api.config_free)(config) };
    }
}

/// Applies the settings of a new context.
///
/// # Safety
/// `raw_config` is a live configuration of the library, without a context yet.
unsafe fn configure(library: &Library, raw_config: Raw, config: &ContextConfig, cache_file: Option<&CStr>) -> Result<()> {
    let api = library.api();
    // SAFETY: the configuration is live by this function's contract.
    unsafe {
        (api.config_set_debugging)(raw_config, config.debugging.into());
        (api.config_set_profiling)(raw_config, config.profiling.into());
        (api.config_set_logging)(raw_config, config.logging.into());
        if let Some(file) = cache_file {
            (api.config_set_cache_file)(raw_config, file.as_ptr());
        }
    }
    match (config.threads, api.backend) {
        (None, _) => {}
        (Some(threads), BackendApi::Threads { config_set_num_threads: Some(set) }) => {
            // SAFETY: as above.
            unsafe { set(raw_config, threads.max(1).into()) };
        }
        (
            Some(_),
            BackendApi::Threads { config_set_num_threads: None }
            | BackendApi::Plain
            | BackendApi::OpenCl { .. }
            | BackendApi::Cuda { .. },
        ) => {
            let backend = library.manifest().backend.name();
            return Err(Error::Usage(format!("a library of the back end {backend} has no thread count to set")));
        }
    }
    for (name, value) in &config.tuning {
        let c_name = c_string(name.as_bytes())?;
        // SAFETY: as above; the library copies the name.
        if unsafe { (api.config_set_tuning_param)(raw_config, c_name.as_ptr(), *value) } != 0 {
            let names: Vec<String> = library.tuning_params().into_iter().map(|param| param.name).collect();
            let problem = format!("the tuning parameter {name} cannot be set; there are {}", names.join(", "));
            return Err(Error::Usage(problem));
        }
    }
    Ok(())
}

/// Converts a string that the library has allocated, and frees it.
///
/// # Safety
/// `string` is NULL or a C string from `malloc`.
unsafe fn take_string(string: *mut c_char) -> Option<String> {
    if string.is_null() {
        return None;
    }
    // SAFETY: a C string by this function's contract.
    let owned = unsafe { CStr::from_ptr(string) }.to_string_lossy().trim_end().to_owned();
    // SAFETY: from `malloc`, as documented, and not used again.
    unsafe { libc::free(string.cast()) };
    Some(owned)
}

fn c_string(bytes: &[u8]) -> Result<CString> {
    CString::new(bytes).map_err(|_| Error::Usage(format!("'{}' has a NUL byte", String::from_utf8_lossy(bytes))))
}
