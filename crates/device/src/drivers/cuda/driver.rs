// SPDX-License-Identifier: Apache-2.0
//! The CUDA driver: [`Driver`] on the primary context of one GPU.
//!
//! Other libraries of the process (CUDA's runtime, PyTorch) use the primary context too, so memory
//! can be shared. Each method makes the context current on the calling thread. Queues are
//! non-blocking streams: they never wait for the legacy default stream.

use std::collections::HashMap;
use std::ffi::{CString, c_int, c_uint, c_void};
use std::fmt;
use std::ops::Range;
use std::ptr;
use std::time::{Duration, Instant};

use cudarc::driver::sys::{
    CUcontext, CUdevice, CUevent, CUevent_flags, CUfunction, CUjit_option, CUmodule, CUpointer_attribute, CUstream,
    CUstream_flags,
};
use parking_lot::Mutex;

use super::api::{
    Api, INVALID_IMAGE, INVALID_VALUE, NOT_FOUND, NOT_READY, OUT_OF_MEMORY, SUCCESS, driver_error, emulator_counts, is_sticky,
};
use super::clock::Clock;
use super::discovery::{CudaDevice, driver_version, unsupported};
use super::image::kernel_names;
use super::module::{Function, Module};
use super::nvrtc::{Nvrtc, OPTIONS};
use crate::driver::{
    Driver, DriverOptions, ForeignMemory, Grid, LogSink, Memory, NativeHandles, RawArg, RawEvent, RawKernel, RawProgram,
    RawQueue, Timer,
};
use crate::error::MEMORY_SETTING;
use crate::info::DeviceInfo;
use crate::{Error, Result, Traffic};

/// `CU_MEMHOSTALLOC_PORTABLE`: pinned for every context of the process.
const PORTABLE: c_uint = 1;

/// How long a thread asks for an event before it sleeps: many kernels take less than to be woken.
const SPIN: Duration = Duration::from_micros(200);

/// Event flag: the host sleeps while it waits, instead of spinning.
const BLOCKING: c_uint = CUevent_flags::CU_EVENT_BLOCKING_SYNC as c_uint;
const UNTIMED: c_uint = CUevent_flags::CU_EVENT_DISABLE_TIMING as c_uint;

/// The capacity for messages of the driver's PTX compiler.
const LOG_BYTES: usize = 8192;

/// An opened GPU.
pub(super) struct CudaDriver {
    info: DeviceInfo,
    api: &'static Api,
    context: PrimaryContext,
    nvrtc: Nvrtc,
    /// NVRTC's target architecture.
    target: String,
    log: Option<LogSink>,
    clock: Mutex<Clock>,
}

impl Drop for CudaDriver {
    fn drop(&mut self) {
        if let Some(base) = self.clock.get_mut().base()
            && self.make_current().is_ok()
        {
            self.drop_event(base);
        }
    }
}

impl CudaDriver {
    /// Retains the device's context and finds the compiler.
    pub fn open(api: &'static Api, found: CudaDevice, options: &DriverOptions) -> Result<Self> {
        let unusable = |reason: String| Error::Unusable { device: found.info.name.clone(), reason };
        if let Some(problem) = &found.problem {
            return Err(unusable(problem.clone()));
        }
        let nvrtc = Nvrtc::open_for(options.nvrtc_path.as_deref(), Some(driver_version(api)))?;
        let Some(target) = nvrtc.target(found.capability) else {
            return Err(unusable(unsupported(&nvrtc, &found).unwrap_or_default()));
        };
        let mut context = ptr::null_mut();
        // SAFETY: `context` is live, the device came from the driver.
        let status = unsafe { (api.cuDevicePrimaryCtxRetain)(&mut context, found.device) };
        check(api, &found.info, "cuDevicePrimaryCtxRetain", status)?;
        let context = PrimaryContext { api, device: found.device, context: context as usize };
        let clock = Mutex::default();
        let driver = Self { info: found.info, api, context, nvrtc, target, log: options.log.clone(), clock };
        driver.log_line(&format!("{} compiles for {} with {}", driver.info.name, driver.target, driver.nvrtc.path().display()));
        *driver.clock.lock() = Clock::new(driver.first_base()?);
        if let Some(queue) = options.application_queue {
            driver.check_primary_context(queue)?;
        }
        Ok(driver)
    }

    /// Makes the context current on this thread.
    fn make_current(&self) -> Result<()> {
        // SAFETY: the context is retained until this object is dropped.
        self.check("cuCtxSetCurrent", unsafe { (self.api.cuCtxSetCurrent)(self.context.context as CUcontext) })
    }

    /// Refuses a stream of a context other than the primary one.
    fn check_primary_context(&self, stream: RawQueue) -> Result<()> {
        self.make_current()?;
        let mut context = ptr::null_mut();
        // SAFETY: `context` is live, and so is the stream.
        self.check("cuStreamGetCtx", unsafe { (self.api.cuStreamGetCtx)(stream.0 as CUstream, &mut context) })?;
        if context as usize == self.context.context {
            return Ok(());
        }
        Err(self.refused("cuStreamGetCtx", INVALID_VALUE, "the program's stream is not one of the device's primary context"))
    }

    /// Refuses memory of another device.
    fn check_device_of(&self, handle: u64) -> Result<()> {
        let mut ordinal: c_int = -1;
        let attribute = CUpointer_attribute::CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL;
        // SAFETY: the integer is live. CUDA refuses a pointer that is not its own.
        let status = unsafe { (self.api.cuPointerGetAttribute)(ptr::from_mut(&mut ordinal).cast(), attribute, handle) };
        self.check("cuPointerGetAttribute", status)?;
        match usize::try_from(ordinal) == Ok(self.info.ordinal) {
            true => Ok(()),
            false => Err(self.refused("cuPointerGetAttribute", INVALID_VALUE, &format!("the memory is that of cuda:{ordinal}"))),
        }
    }

    fn check(&self, call: &'static str, status: i32) -> Result<()> {
        match status {
            SUCCESS => Ok(()),
            OUT_OF_MEMORY => Err(self.out_of_memory(call, 0)),
            status => check(self.api, &self.info, call, status),
        }
    }

    /// Logs the failure of a call that frees: no caller could handle it.
    fn log_failure(&self, call: &'static str, status: i32) {
        if status != SUCCESS {
            self.log_line(&format!("{call}: {}", self.api.status_name(status)));
        }
    }

    fn log_line(&self, line: &str) {
        if let Some(log) = &self.log {
            log(line);
        }
    }

    fn out_of_memory(&self, call: &'static str, requested: usize) -> Error {
        let (mut free, mut total) = (0, 0);
        // SAFETY: both integers are live. A failing call leaves zeros.
        unsafe { (self.api.cuMemGetInfo_v2)(&mut free, &mut total) };
        Error::OutOfMemory {
            pool: format!("{} ({call})", self.info.label()),
            requested,
            in_use: total.saturating_sub(free),
            limit: total,
            setting: MEMORY_SETTING,
            held: String::new(),
        }
    }

    fn refused(&self, call: &'static str, code: i32, reason: &str) -> Error {
        let name = format!("{}: {reason}", self.api.status_name(code));
        driver_error(self.info.label(), call, code, name)
    }

    fn create_event(&self, flags: c_uint) -> Result<RawEvent> {
        let mut event = ptr::null_mut();
        // SAFETY: `event` is live.
        self.check("cuEventCreate", unsafe { (self.api.cuEventCreate)(&mut event, flags) })?;
        Ok(RawEvent(event as u64))
    }

    /// A new event at the end of the queue.
    fn record_new(&self, queue: RawQueue, flags: c_uint) -> Result<RawEvent> {
        let event = self.create_event(flags)?;
        // SAFETY: the caller's queue and the new event are live.
        let status = unsafe { (self.api.cuEventRecord)(event.0 as CUevent, queue.0 as CUstream) };
        self.check("cuEventRecord", status).inspect_err(|_| self.drop_event(event))?;
        Ok(event)
    }

    /// A completed event, the first base of the clock.
    fn first_base(&self) -> Result<RawEvent> {
        let queue = self.create_queue()?;
        let base = self.record_new(queue, BLOCKING).and_then(|base| {
            // SAFETY: recorded above.
            let waited = unsafe { self.wait(base) };
            waited.map(|()| base).inspect_err(|_| self.drop_event(base))
        });
        // SAFETY: created above, and its work has completed.
        unsafe { self.destroy_queue(queue) };
        base
    }

    /// Nanoseconds from one completed event to another, negative where the other came first.
    fn between(&self, from: RawEvent, to: RawEvent) -> Result<i64> {
        let mut millis = 0f32;
        // SAFETY: the caller's events are live.
        let status = unsafe { (self.api.cuEventElapsedTime_v2)(&mut millis, from.0 as CUevent, to.0 as CUevent) };
        self.check("cuEventElapsedTime", status)?;
        // The cast takes NaN to 0.
        Ok((f64::from(millis) * 1e6) as i64)
    }

    fn drop_event(&self, event: RawEvent) {
        // SAFETY: the event is live, and this is its last use.
        self.log_failure("cuEventDestroy", unsafe { (self.api.cuEventDestroy_v2)(event.0 as CUevent) });
    }
}

impl fmt::Debug for CudaDriver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CudaDriver").field("name", &self.info.name).field("target", &self.target).finish_non_exhaustive()
    }
}

impl Driver for CudaDriver {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn native(&self) -> NativeHandles {
        NativeHandles { context: self.context.context as u64, device: u64::from(self.context.device.unsigned_abs()) }
    }

    fn address(&self, memory: Memory) -> Option<u64> {
        Some(memory.handle)
    }

    fn alloc(&self, bytes: usize) -> Result<Memory> {
        self.make_current()?;
        let mut handle = 0;
        // SAFETY: `handle` is live.
        match unsafe { (self.api.cuMemAlloc_v2)(&mut handle, bytes) } {
            OUT_OF_MEMORY => Err(self.out_of_memory("cuMemAlloc", bytes)),
            status => self.check("cuMemAlloc", status).map(|()| Memory { handle, bytes, host: 0 }),
        }
    }

    unsafe fn import_host(&self, _host: usize, _bytes: usize) -> Result<Option<Memory>> {
        Ok(None)
    }

    unsafe fn adopt(&self, handle: u64) -> Result<ForeignMemory> {
        self.make_current()?;
        self.check_device_of(handle)?;
        let (mut base, mut bytes) = (0, 0);
        // SAFETY: both integers are live.
        let status = unsafe { (self.api.cuMemGetAddressRange_v2)(&mut base, &mut bytes, handle) };
        self.check("cuMemGetAddressRange", status)?;
        let before = usize::try_from(handle.saturating_sub(base)).unwrap_or(bytes);
        Ok(ForeignMemory::InPlace(Memory { handle, bytes: bytes.saturating_sub(before), host: 0 }))
    }

    unsafe fn read_foreign(&self, _handle: u64, _to: usize, _bytes: usize) -> Result<()> {
        Err(self.refused("cuMemcpyDtoH", INVALID_VALUE, "no memory of CUDA's is copied through the host"))
    }

    unsafe fn can_wait_on(&self, _event: RawEvent) -> Result<bool> {
        // Streams wait for events of any device.
        Ok(true)
    }

    unsafe fn free(&self, memory: Memory) {
        if self.make_current().is_ok() {
            // SAFETY: the caller gives the allocation back.
            self.log_failure("cuMemFree", unsafe { (self.api.cuMemFree_v2)(memory.handle) });
        }
    }

    fn alloc_pinned(&self, bytes: usize) -> Result<usize> {
        self.make_current()?;
        let mut host = ptr::null_mut();
        // SAFETY: `host` is live.
        match unsafe { (self.api.cuMemHostAlloc)(&mut host, bytes, PORTABLE) } {
            OUT_OF_MEMORY => Err(self.out_of_memory("cuMemHostAlloc", bytes)),
            status => self.check("cuMemHostAlloc", status).map(|()| host as usize),
        }
    }

    unsafe fn free_pinned(&self, host: usize, _bytes: usize) {
        if self.make_current().is_ok() {
            // SAFETY: the caller gives the allocation back.
            self.log_failure("cuMemFreeHost", unsafe { (self.api.cuMemFreeHost)(host as *mut c_void) });
        }
    }

    fn create_queue(&self) -> Result<RawQueue> {
        self.make_current()?;
        let mut stream = ptr::null_mut();
        // SAFETY: `stream` is live.
        let status = unsafe { (self.api.cuStreamCreate)(&mut stream, CUstream_flags::CU_STREAM_NON_BLOCKING as c_uint) };
        self.check("cuStreamCreate", status)?;
        Ok(RawQueue(stream as u64))
    }

    unsafe fn context_of(&self, handle: u64) -> Result<u64> {
        self.make_current()?;
        self.check_device_of(handle)?;
        let mut context: CUcontext = ptr::null_mut();
        let attribute = CUpointer_attribute::CU_POINTER_ATTRIBUTE_CONTEXT;
        // SAFETY: `context` is live, and the rest is the caller's promise.
        let status = unsafe { (self.api.cuPointerGetAttribute)(ptr::from_mut(&mut context).cast(), attribute, handle) };
        self.check("cuPointerGetAttribute", status)?;
        match context.is_null() {
            // For example memory of a CUDA memory pool.
            true => Err(self.refused("cuPointerGetAttribute", INVALID_VALUE, "the memory is that of no context")),
            false => Ok(context as u64),
        }
    }

    unsafe fn alloc_in(&self, context: u64, bytes: usize) -> Result<Memory> {
        // SAFETY: the caller's promise. Each other method makes the primary context current again.
        self.check("cuCtxSetCurrent", unsafe { (self.api.cuCtxSetCurrent)(context as CUcontext) })?;
        let mut handle = 0;
        // SAFETY: `handle` is live.
        let status = unsafe { (self.api.cuMemAlloc_v2)(&mut handle, bytes) };
        self.make_current()?;
        match status {
            OUT_OF_MEMORY => Err(self.out_of_memory("cuMemAlloc", bytes)),
            status => self.check("cuMemAlloc", status).map(|()| Memory { handle, bytes, host: 0 }),
        }
    }

    unsafe fn free_in(&self, context: u64, memory: Memory) {
        // SAFETY: the caller's promise.
        if unsafe { (self.api.cuCtxSetCurrent)(context as CUcontext) } == SUCCESS {
            // SAFETY: the caller gives the allocation back.
            self.log_failure("cuMemFree", unsafe { (self.api.cuMemFree_v2)(memory.handle) });
            // The library's context must not stay current on this thread.
            _ = self.make_current();
        }
    }

    unsafe fn copy_between_contexts(&self, queue: RawQueue, from: u64, to: u64, bytes: usize) -> Result<()> {
        // SAFETY: the caller's promise.
        let (source, target) = unsafe { (self.context_of(from)?, self.context_of(to)?) };
        let (source, target) = (source as CUcontext, target as CUcontext);
        // SAFETY: the caller keeps both ranges valid until the copy has completed.
        let status = unsafe { (self.api.cuMemcpyPeerAsync)(to, target, from, source, bytes, queue.0 as CUstream) };
        self.check("cuMemcpyPeerAsync", status)
    }

    unsafe fn destroy_queue(&self, queue: RawQueue) {
        if self.make_current().is_ok() {
            // SAFETY: the caller gives the queue back.
            self.log_failure("cuStreamDestroy", unsafe { (self.api.cuStreamDestroy_v2)(queue.0 as CUstream) });
        }
    }

    unsafe fn flush(&self, _queue: RawQueue) -> Result<()> {
        // CUDA submits work as it is enqueued.
        Ok(())
    }

    unsafe fn upload(&self, queue: RawQueue, from: usize, to: Memory, offset: usize, bytes: usize) -> Result<()> {
        self.make_current()?;
        let to = to.handle + offset as u64;
        // SAFETY: the caller keeps both ranges valid until the copy has completed.
        let status = unsafe { (self.api.cuMemcpyHtoDAsync_v2)(to, from as *const c_void, bytes, queue.0 as CUstream) };
        self.check("cuMemcpyHtoDAsync", status)
    }

    unsafe fn download(&self, queue: RawQueue, from: Memory, offset: usize, to: usize, bytes: usize) -> Result<()> {
        self.make_current()?;
        let from = from.handle + offset as u64;
        // SAFETY: the caller keeps both ranges valid until the copy has completed.
        let status = unsafe { (self.api.cuMemcpyDtoHAsync_v2)(to as *mut c_void, from, bytes, queue.0 as CUstream) };
        self.check("cuMemcpyDtoHAsync", status)
    }

    unsafe fn copy(
        &self,
        queue: RawQueue,
        from: Memory,
        from_offset: usize,
        to: Memory,
        to_offset: usize,
        bytes: usize,
    ) -> Result<()> {
        self.make_current()?;
        let (from, to) = (from.handle + from_offset as u64, to.handle + to_offset as u64);
        // SAFETY: the caller keeps both ranges valid until the copy has completed.
        let status = unsafe { (self.api.cuMemcpyDtoDAsync_v2)(to, from, bytes, queue.0 as CUstream) };
        self.check("cuMemcpyDtoDAsync", status)
    }

    unsafe fn fill(&self, queue: RawQueue, to: Memory, offset: usize, bytes: usize, value: u8) -> Result<()> {
        self.make_current()?;
        let to = to.handle + offset as u64;
        // SAFETY: the caller keeps the range valid until the work has completed.
        let status = unsafe { (self.api.cuMemsetD8Async)(to, value, bytes, queue.0 as CUstream) };
        self.check("cuMemsetD8Async", status)
    }

    unsafe fn launch(
        &self,
        queue: RawQueue,
        kernel: RawKernel,
        grid: Grid,
        args: &[RawArg<'_>],
        timed: bool,
    ) -> Result<Option<Timer>> {
        self.make_current()?;
        // SAFETY: a handle of `kernel`, and the caller keeps the program loaded.
        let function = unsafe { &*(kernel.0 as *const Function) };
        if let Some(mismatch) = function.mismatch(args) {
            return Err(self.refused("cuLaunchKernel", INVALID_VALUE, &mismatch));
        }
        let handles: Vec<u64> = args.iter().map(|arg| if let RawArg::Memory(memory) = arg { memory.handle } else { 0 }).collect();
        let mut pointers: Vec<*mut c_void> = args
            .iter()
            .zip(&handles)
            .map(|(arg, handle)| match arg {
                RawArg::Memory(_) => ptr::from_ref(handle).cast_mut().cast(),
                RawArg::Value(bytes) => bytes.as_ptr().cast_mut().cast(),
            })
            .collect();

        let start = if timed { Some(self.record_new(queue, BLOCKING)?) } else { None };
        // SAFETY: one pointer for each parameter, to as many bytes as it has. CUDA copies them
        // before it returns. The caller keeps the memory behind the handles alive.
        let status = unsafe {
            (self.api.cuLaunchKernel)(
                function.handle as CUfunction,
                grid.work_groups,
                1,
                1,
                grid.work_group_size,
                1,
                1,
                0,
                queue.0 as CUstream,
                pointers.as_mut_ptr(),
                ptr::null_mut(),
            )
        };
        let launched = self.check("cuLaunchKernel", status);
        let Some(start) = start else { return launched.map(|()| None) };
        launched.inspect_err(|_| self.drop_event(start))?;
        // The launch is valid without a timer: the memory that it uses must count as used.
        match self.record_new(queue, BLOCKING) {
            Ok(end) => Ok(Some(Timer { start, end })),
            Err(_) => {
                self.drop_event(start);
                Ok(None)
            }
        }
    }

    unsafe fn record(&self, queue: RawQueue) -> Result<RawEvent> {
        self.make_current()?;
        self.record_new(queue, BLOCKING | UNTIMED)
    }

    unsafe fn wait_on(&self, queue: RawQueue, event: RawEvent) -> Result<()> {
        self.make_current()?;
        // SAFETY: the caller's handles are live; the flags must be 0.
        let status = unsafe { (self.api.cuStreamWaitEvent)(queue.0 as CUstream, event.0 as CUevent, 0) };
        self.check("cuStreamWaitEvent", status)
    }

    unsafe fn is_done(&self, event: RawEvent) -> Result<bool> {
        self.make_current()?;
        // SAFETY: the caller's event is live.
        match unsafe { (self.api.cuEventQuery)(event.0 as CUevent) } {
            NOT_READY => Ok(false),
            status => self.check("cuEventQuery", status).map(|()| true),
        }
    }

    unsafe fn wait(&self, event: RawEvent) -> Result<()> {
        self.make_current()?;
        let begin = Instant::now();
        while begin.elapsed() < SPIN {
            // SAFETY: the caller's event is live.
            match unsafe { (self.api.cuEventQuery)(event.0 as CUevent) } {
                NOT_READY => std::hint::spin_loop(),
                status => return self.check("cuEventQuery", status),
            }
        }
        // SAFETY: the caller's event is live.
        self.check("cuEventSynchronize", unsafe { (self.api.cuEventSynchronize)(event.0 as CUevent) })
    }

    unsafe fn read_timer(&self, timer: Timer) -> Result<Range<u64>> {
        self.make_current()?;
        let mut clock = self.clock.lock();
        let before = clock.base();
        let times = clock.times(timer, |from, to| self.between(from, to));
        let after = clock.base();
        before.into_iter().filter(|_| before != after).for_each(|event| self.drop_event(event));
        timer.events().filter(|event| after != Some(*event)).for_each(|event| self.drop_event(event));
        times
    }

    unsafe fn read_traffic(&self, timer: Timer) -> Option<Traffic> {
        let mut traffic = Traffic::default();
        // SAFETY: the caller's event and the struct are live; only the emulator has the function.
        let status = unsafe { emulator_counts()?(timer.end.0 as CUevent, &mut traffic) };
        (status == SUCCESS).then_some(traffic)
    }

    unsafe fn destroy_event(&self, event: RawEvent) {
        if self.make_current().is_ok() {
            self.drop_event(event);
        }
    }

    fn compiler(&self) -> String {
        let (major, minor) = self.nvrtc.version();
        format!("NVRTC {major}.{minor} for {} with {}", self.target, OPTIONS.join(" "))
    }

    fn options_against_optimization(&self) -> &'static [&'static str] {
        self.nvrtc.options_against_optimization()
    }

    fn compile(&self, source: &str, options: &[String]) -> Result<Vec<u8>> {
        let compiled = self.nvrtc.compile(source, &self.target, options).map_err(|error| match error {
            Error::CompileFailed { operator, kernel_source, options, log, .. } => {
                Error::CompileFailed { device: self.info.label(), operator, kernel_source, options, log }
            }
            other => other,
        })?;
        if !compiled.log.is_empty() {
            self.log_line(&compiled.log);
        }
        Ok(compiled.binary)
    }

    fn load(&self, image: &[u8]) -> Result<RawProgram> {
        self.make_current()?;
        let invalid = || self.refused("cuModuleLoadDataEx", INVALID_IMAGE, "neither a cubin nor PTX");
        let names = kernel_names(image).ok_or_else(invalid)?;
        // PTX must end in NUL, and a cubin must be aligned as u64: the copy has both.
        let mut aligned = vec![0u64; image.len() / 8 + 1];
        for (word, bytes) in aligned.iter_mut().zip(image.chunks(8)) {
            let mut padded = [0; 8];
            padded[..bytes.len()].copy_from_slice(bytes);
            *word = u64::from_ne_bytes(padded);
        }
        let mut log = vec![0u8; LOG_BYTES];
        let mut options = [CUjit_option::CU_JIT_ERROR_LOG_BUFFER, CUjit_option::CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES];
        let mut values = [log.as_mut_ptr().cast::<c_void>(), LOG_BYTES as *mut c_void];
        let mut handle = ptr::null_mut();
        // SAFETY: the image is complete (its tables were just read) and ends in NUL. Each option
        // has its value: the log's address and, in place of a pointer, its size.
        let status = unsafe {
            (self.api.cuModuleLoadDataEx)(&mut handle, aligned.as_ptr().cast(), 2, options.as_mut_ptr(), values.as_mut_ptr())
        };
        log.truncate(log.iter().position(|byte| *byte == 0).unwrap_or(0));
        if status != SUCCESS && status != OUT_OF_MEMORY && !log.is_empty() {
            return Err(self.refused("cuModuleLoadDataEx", status, String::from_utf8_lossy(&log).trim()));
        }
        self.check("cuModuleLoadDataEx", status)?;
        let mut module = Module { api: self.api, handle: handle as usize, functions: HashMap::new() };
        for name in names {
            let function = self.function(handle, &name)?;
            module.functions.insert(name, Box::new(function));
        }
        Ok(RawProgram(Box::into_raw(Box::new(module)) as u64))
    }

    unsafe fn unload(&self, program: RawProgram) {
        // SAFETY: a handle of `load`, and this is its last use.
        let module = unsafe { Box::from_raw(program.0 as *mut Module) };
        match self.make_current() {
            Ok(()) => drop(module),
            // Without the context the module cannot be unloaded.
            Err(_) => std::mem::forget(module),
        }
    }

    unsafe fn kernel(&self, program: RawProgram, name: &str) -> Result<RawKernel> {
        // SAFETY: a handle of `load`, and the caller keeps the program loaded.
        let module = unsafe { &*(program.0 as *const Module) };
        match module.functions.get(name) {
            Some(function) => Ok(RawKernel(ptr::from_ref(&**function) as u64)),
            None => Err(self.refused("cuModuleGetFunction", NOT_FOUND, &format!("no kernel {name} in the program"))),
        }
    }
}

impl CudaDriver {
    /// Gets a function and loads its code. Otherwise the first launch would load it, and might wait
    /// for running kernels.
    fn function(&self, module: CUmodule, name: &str) -> Result<Function> {
        let c_name = CString::new(name).map_err(|_| self.refused("cuModuleGetFunction", NOT_FOUND, name))?;
        let mut handle = ptr::null_mut();
        // SAFETY: `handle` is live, the module too, and the name ends in NUL.
        let status = unsafe { (self.api.cuModuleGetFunction)(&mut handle, module, c_name.as_ptr()) };
        self.check("cuModuleGetFunction", status)?;
        if let Some(load) = self.api.cuFuncLoad {
            // SAFETY: the function is live.
            self.check("cuFuncLoad", unsafe { load(handle) })?;
        }
        Ok(Function { handle: handle as usize, parameters: self.parameters(handle) })
    }

    /// Bytes of each parameter of a kernel; empty where the driver has no such function.
    fn parameters(&self, function: CUfunction) -> Vec<usize> {
        let mut sizes = Vec::new();
        let Some(info) = self.api.cuFuncGetParamInfo else { return sizes };
        let (mut offset, mut size) = (0, 0);
        // SAFETY: the function and both integers are live. CUDA refuses an index past the end.
        while unsafe { info(function, sizes.len(), &mut offset, &mut size) } == SUCCESS {
            sizes.push(size);
        }
        sizes
    }
}

/// A reference to a device's primary context.
struct PrimaryContext {
    api: &'static Api,
    device: CUdevice,
    /// `CUcontext`, as an integer because any thread may use it.
    context: usize,
}

impl Drop for PrimaryContext {
    fn drop(&mut self) {
        // SAFETY: retained once, released once. After a failure the process keeps the context.
        unsafe { (self.api.cuDevicePrimaryCtxRelease_v2)(self.device) };
    }
}

/// The device of a stream, or the failed call. Makes the stream's context current on this thread.
///
/// # Safety
/// The stream is live.
pub(super) unsafe fn device_of(api: &Api, stream: RawQueue) -> std::result::Result<CUdevice, (&'static str, i32)> {
    let (mut context, mut device) = (ptr::null_mut(), 0);
    let succeeds = |call, status| if status == SUCCESS { Ok(()) } else { Err((call, status)) };
    // SAFETY: `context` is live, and the rest is the caller's promise.
    succeeds("cuStreamGetCtx", unsafe { (api.cuStreamGetCtx)(stream.0 as CUstream, &mut context) })?;
    // SAFETY: a live stream's context is live.
    succeeds("cuCtxSetCurrent", unsafe { (api.cuCtxSetCurrent)(context) })?;
    // SAFETY: `device` is live.
    succeeds("cuCtxGetDevice", unsafe { (api.cuCtxGetDevice)(&mut device) })?;
    Ok(device)
}

fn check(api: &Api, info: &DeviceInfo, call: &'static str, code: i32) -> Result<()> {
    if code == SUCCESS {
        return Ok(());
    }
    let mut name = api.status_name(code);
    if is_sticky(code) {
        name.push_str(", the context is lost: only a new process can use the device again");
    }
    Err(driver_error(info.label(), call, code, name))
}
