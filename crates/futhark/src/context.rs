// SPDX-License-Identifier: Apache-2.0
//! A context: what values belong to, and the order in which all of it goes.
//!
//! One lock for each context: the C API may be called from one thread at a time. It may be taken again by the
//! thread that holds it, so that a call and the copies around it can be one. Values hold on to their context and go
//! before it. Dropping a value waits for nobody: where another thread holds the lock, the next one to take it frees.

use std::ffi::{CStr, CString, c_char};
use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock, Weak};

use device::{Buffer, DriverKind, ForeignContext, Queue};
use parking_lot::{Mutex, ReentrantMutex};

use crate::library::{FreeFn, Raw};
use crate::{Error, Library, Result};

/// Settings of a context, which is made once.
#[derive(Debug, Clone, Default)]
pub struct ContextConfig {
    /// Tuning parameters by name; [`Library::tuning_params`] lists them.
    pub tuning: Vec<(String, usize)>,
    /// Whether the library checks more, prints to standard error and runs slower.
    pub debugging: bool,
    /// Whether times are measured, for [`Context::report`].
    pub profiling: bool,
    /// Whether the library tells standard error what it does.
    pub logging: bool,
    /// Threads that a library of the back end `multicore` or `ispc` works on, at least one; without, as many as there are cores.
    pub threads: Option<u16>,
    /// A file in which the library may keep what it compiles; none without.
    pub cache_file: Option<PathBuf>,
}

/// What values belong to. Clones are the same context.
#[derive(Clone)]
pub struct Context {
    inner: Arc<Inner>,
}

/// A context that may be gone.
#[derive(Clone)]
pub struct WeakContext {
    inner: Weak<Inner>,
}

impl WeakContext {
    /// The context, if it is still there.
    pub fn upgrade(&self) -> Option<Context> {
        self.inner.upgrade().map(|inner| Context { inner })
    }
}

struct Inner {
    library: Library,
    pointers: ReentrantMutex<Pointers>,
    /// Values that were dropped while another thread held the lock.
    dropped: Mutex<Vec<(SendRaw, FreeFn)>>,
    /// The device that it works on together with others.
    shared: OnceLock<Shared>,
    profiling: bool,
    tuning: Vec<(String, usize)>,
}

/// A device that others use too.
struct Shared {
    device: device::Context,
    /// The library's own context there, where its kernels do not see our memory.
    foreign: Option<ForeignContext>,
}

struct Pointers {
    config: Raw,
    context: Raw,
}

// SAFETY: used under the lock only, and the API is bound to no thread.
unsafe impl Send for Pointers {}

struct SendRaw(Raw);

// SAFETY: as above.
unsafe impl Send for SendRaw {}

impl Context {
    /// Makes a context.
    ///
    /// # Errors
    /// [`Error::Usage`] for a tuning parameter that the library has not, or threads where it has none of its own;
    /// [`Error::Setup`] with what the library says.
    pub fn new(library: &Library, config: ContextConfig) -> Result<Context> {
        Self::make(library, config, None)
    }

    /// Makes a context that shares a device, so that values need not go through the host
    /// ([`place`](Self::place), [`array_over`](Self::array_over), [`Array::into_buffer`](crate::Array::into_buffer)).
    ///
    /// Of the back end `opencl` it gets a queue of its own there, and arrays and buffers can be the same memory. Those of `cuda`
    /// set up a context of their own beside ours: what goes in and comes out is copied on the device.
    ///
    /// What the library allocates, and copies for it, do not count towards the device's limit.
    ///
    /// # Errors
    /// As [`new`](Self::new); [`Error::Usage`] for a library of another back end, one of `cuda` whose manifest names no
    /// `new_raw`, or a device of another driver; [`Error::Device`] where the library has chosen another device.
    pub fn on_device(library: &Library, config: ContextConfig, device: &device::Context) -> Result<Context> {
        let backend = library.manifest().backend;
        let driver = device.info().driver;
        match backend.driver() {
            None => Err(Error::Usage(format!("a library of the back end {} cannot share a device", backend.name()))),
            Some(own) if own != driver => {
                let (backend, name) = (backend.name(), &device.info().name);
                Err(Error::Usage(format!("a library of the back end {backend} cannot share {name}, a device of {driver:?}")))
            }
            Some(DriverKind::OpenCl) => Self::make(library, config, Some(device)),
            Some(DriverKind::Cuda) => {
                let context = Self::make(library, config, Some(device))?;
                let foreign = context.find_foreign_context(device)?;
                _ = context.inner.shared.set(Shared { device: device.clone(), foreign: Some(foreign) });
                Ok(context)
            }
        }
    }

    /// The library's own context on the device: that of its arrays.
    fn find_foreign_context(&self, device: &device::Context) -> Result<ForeignContext> {
        let element = self.library().shared_element();
        let element = element.ok_or_else(|| Error::Usage("the manifest names no new_raw of any array".to_owned()))?;
        let array = self.array_of_zero(element)?;
        // SAFETY: the array is live.
        unsafe { device.foreign_context(array.raw_memory()? as u64) }.map_err(Error::Device)
    }

    /// The library's own context on the device that it shares, where there is one.
    pub(crate) fn foreign_context(&self) -> Option<&ForeignContext> {
        self.inner.shared.get()?.foreign.as_ref()
    }

    /// A buffer of the shared device as [`array_over`](Self::array_over) takes it: itself, or where its memory is not what the library's
    /// kernels see, or the library will overwrite it, a copy. It is there once `queue` has come so far.
    ///
    /// # Errors
    /// [`Error::Device`].
    pub fn place(&self, queue: &Queue, buffer: &Buffer, overwritten: bool) -> Result<Buffer> {
        let placed = match self.foreign_context() {
            // SAFETY: the clone keeps the library's context, which ends with this one.
            Some(foreign) => unsafe { queue.copy_to(foreign, buffer, Arc::new(self.clone())) },
            None if overwritten => queue.alloc(buffer.len()).and_then(|copy| {
                queue.copy(buffer, 0, &copy, 0, buffer.len())?;
                Ok(copy)
            }),
            None => Ok(buffer.clone()),
        };
        placed.map_err(Error::Device)
    }

    /// The same context, which this does not keep.
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

    /// Whether [`ContextConfig::profiling`] asked it to measure.
    pub fn is_profiled(&self) -> bool {
        self.inner.profiling
    }

    /// The tuning parameters that [`ContextConfig::tuning`] set.
    pub fn tuning(&self) -> &[(String, usize)] {
        &self.inner.tuning
    }

    /// The device that it shares.
    pub fn device(&self) -> Option<&device::Context> {
        self.inner.shared.get().map(|shared| &shared.device)
    }

    fn make(library: &Library, config: ContextConfig, device: Option<&device::Context>) -> Result<Context> {
        let api = library.api();
        let queue = match (device, api.config_set_command_queue) {
            (Some(device), Some(set)) => Some((device.library_queue(config.profiling).map_err(Error::Device)?, set)),
            _ => None,
        };
        let ordinal = match (device, api.config_set_device) {
            (Some(device), Some(set)) => Some((c_string(format!("#{}", device.info().ordinal).as_bytes())?, set)),
            _ => None,
        };
        let cache_file = config.cache_file.as_ref().map(|path| c_string(path.as_os_str().as_bytes())).transpose()?;
        // SAFETY: as documented; freed by the drop of `Inner`, or below.
        let raw_config = unsafe { (api.config_new)() };
        if raw_config.is_null() {
            return Err(Error::Setup("no configuration can be made".to_owned()));
        }
        // From here on everything is freed by its drop.
        let pointers = Pointers { config: raw_config, context: std::ptr::null_mut() };
        let (library, pointers) = (library.clone(), ReentrantMutex::new(pointers));
        let shared = OnceLock::new();
        if let (Some(device), true) = (device, queue.is_some()) {
            _ = shared.set(Shared { device: device.clone(), foreign: None });
        }
        let (dropped, profiling, tuning) = (Mutex::default(), config.profiling, config.tuning.clone());
        let mut inner = Inner { library, pointers, dropped, shared, profiling, tuning };
        // SAFETY: the configuration is live and not in use by a context yet.
        unsafe {
            (api.config_set_debugging)(raw_config, config.debugging.into());
            (api.config_set_profiling)(raw_config, config.profiling.into());
            (api.config_set_logging)(raw_config, config.logging.into());
            if let Some(file) = &cache_file {
                (api.config_set_cache_file)(raw_config, file.as_ptr());
            }
        }
        match (config.threads, api.config_set_num_threads) {
            (None, _) => {}
            // SAFETY: as above.
            (Some(threads), Some(set)) => unsafe { set(raw_config, threads.max(1).into()) },
            (Some(_), None) => {
                let backend = inner.library.manifest().backend.name();
                return Err(Error::Usage(format!("a library of the back end {backend} has no threads of its own to set")));
            }
        }
        for (name, value) in &config.tuning {
            let c_name = c_string(name.as_bytes())?;
            // SAFETY: as above; the name is copied.
            if unsafe { (api.config_set_tuning_param)(raw_config, c_name.as_ptr(), *value) } != 0 {
                let names: Vec<String> = inner.library.tuning_params().into_iter().map(|param| param.name).collect();
                let problem = format!("the tuning parameter {name} cannot be set; there are {}", names.join(", "));
                return Err(Error::Usage(problem));
            }
        }
        if let Some((queue, set)) = &queue {
            // SAFETY: the configuration is live, and the queue is for this context alone.
            unsafe { set(raw_config, queue.raw().0 as Raw) };
        }
        if let (Some(_), Some(set)) = (device, api.config_set_unified_memory) {
            // Memory that the host reaches too moves to it and back; ours is the device's.
            // SAFETY: the configuration is live.
            unsafe { set(raw_config, 0) };
        }
        if let Some((ordinal, set)) = &ordinal {
            // SAFETY: the configuration is live; the name is copied.
            unsafe { set(raw_config, ordinal.as_ptr()) };
        }
        // SAFETY: the configuration is of no other context.
        let context = unsafe { (api.new)(raw_config) };
        if context.is_null() {
            return Err(Error::Setup("no context can be made".to_owned()));
        }
        // Freeing the context releases the queue and its context, which the library has not retained.
        if let Some((queue, _)) = queue {
            _ = queue.into_raw();
        }
        inner.pointers.get_mut().context = context;
        // SAFETY: asked at once, as documented; the context is live.
        match unsafe { take_text((api.get_error)(context)) } {
            Some(problem) => Err(Error::Setup(problem)),
            None => Ok(Context { inner: Arc::new(inner) }),
        }
    }

    /// The library.
    pub fn library(&self) -> &Library {
        &self.inner.library
    }

    /// Runs several calls with no other thread's between them.
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

    /// Waits until all that was started has ended. Every call of this crate does so by itself.
    ///
    /// # Errors
    /// What of it has failed.
    pub fn sync(&self) -> Result<()> {
        self.with(|context| self.sync_held(context, "futhark_context_sync"))
    }

    /// What the library has measured, as its JSON. With [`ContextConfig::profiling`] there is something in it.
    ///
    /// # Errors
    /// If there is no report, or it is no JSON.
    pub fn report(&self) -> Result<serde_json::Value> {
        let call = "futhark_context_report";
        // SAFETY: the context is live; the text is ours to free.
        let text = self.with(|context| unsafe { take_text((self.library().api().report)(context)) });
        let failed = |message: String| Error::Failed { call: call.to_owned(), code: 1, message };
        let text = text.ok_or_else(|| failed("there is none".to_owned()))?;
        serde_json::from_str(&text).map_err(|error| failed(error.to_string()))
    }

    /// Gives back memory that the library keeps for later calls.
    ///
    /// # Errors
    /// What the library says.
    pub fn clear_caches(&self) -> Result<()> {
        self.with(|context| {
            // SAFETY: the context is live.
            let status = unsafe { (self.library().api().clear_caches)(context) };
            self.check(context, "futhark_context_clear_caches", status)
        })
    }

    /// Measures nothing until [`unpause_profiling`](Self::unpause_profiling).
    pub fn pause_profiling(&self) {
        // SAFETY: the context is live.
        self.with(|context| unsafe { (self.library().api().pause_profiling)(context) });
    }

    /// Measures again.
    pub fn unpause_profiling(&self) {
        // SAFETY: the context is live.
        self.with(|context| unsafe { (self.library().api().unpause_profiling)(context) });
    }

    /// Whether two are one.
    pub(crate) fn is(&self, other: &Context) -> bool {
        Arc::ptr_eq(&self.inner, &other.inner)
    }

    /// Calls something under the lock.
    pub(crate) fn with<R>(&self, call: impl FnOnce(Raw) -> R) -> R {
        let pointers = self.inner.pointers.lock();
        self.inner.free_dropped(pointers.context);
        call(pointers.context)
    }

    /// Frees a value now, or leaves that to whoever holds the lock.
    pub(crate) fn discard(&self, value: Raw, free: FreeFn) {
        match self.inner.pointers.try_lock() {
            // SAFETY: the value is this context's, and nobody else's any more. A failure leaves nothing to do.
            Some(pointers) => _ = unsafe { free(pointers.context, value) },
            None => self.inner.dropped.lock().push((SendRaw(value), free)),
        }
    }

    /// What a return code means. Under the lock.
    pub(crate) fn check(&self, context: Raw, call: &str, code: i32) -> Result<()> {
        if code == 0 {
            return Ok(());
        }
        Err(self.failure(context, call, code))
    }

    /// Waits under the lock.
    pub(crate) fn sync_held(&self, context: Raw, call: &str) -> Result<()> {
        // SAFETY: the context is live.
        self.check(context, call, unsafe { (self.library().api().sync)(context) })
    }

    /// The failure that a code and the library's words make.
    pub(crate) fn failure(&self, context: Raw, call: &str, code: i32) -> Error {
        // SAFETY: the context is live; the text is ours to free.
        let message = unsafe { take_text((self.library().api().get_error)(context)) };
        let message = message.unwrap_or_else(|| "the library does not say why".to_owned());
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

impl Inner {
    fn free_dropped(&self, context: Raw) {
        let dropped = std::mem::take(&mut *self.dropped.lock());
        for (value, free) in dropped {
            // SAFETY: the value is this context's, and nobody else's any more; the lock is held.
            unsafe { free(context, value.0) };
        }
    }
}

impl Drop for Inner {
    /// Waits only for frees: every call has waited for its own work.
    fn drop(&mut self) {
        let Pointers { config, context } = *self.pointers.get_mut();
        let api = self.library.api();
        if !context.is_null() {
            self.free_dropped(context);
            // SAFETY: the last use of the context: all values are gone.
            unsafe {
                (api.sync)(context);
                (api.free)(context);
            }
        }
        // SAFETY: its context is gone.
        unsafe { (api.config_free)(config) };
    }
}

/// A text that the library has allocated, which is freed here.
///
/// # Safety
/// `text` is NULL or a string of C from `malloc`.
unsafe fn take_text(text: *mut c_char) -> Option<String> {
    if text.is_null() {
        return None;
    }
    // SAFETY: the caller's promise.
    let owned = unsafe { CStr::from_ptr(text) }.to_string_lossy().trim_end().to_owned();
    // SAFETY: ours to free, as documented, and not used again.
    unsafe { libc::free(text.cast()) };
    Some(owned)
}

fn c_string(bytes: &[u8]) -> Result<CString> {
    CString::new(bytes).map_err(|_| Error::Usage(format!("'{}' has a NUL byte", String::from_utf8_lossy(bytes))))
}
