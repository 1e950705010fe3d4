// SPDX-License-Identifier: Apache-2.0
//! The OpenCL driver: [`Driver`] on one context with one device.
//!
//! - OpenCL's calls are safe from any thread, except those that set a kernel's arguments. These,
//!   and the enqueueing after them, happen under the kernel's lock.
//! - A CPU device gets buffers over host memory that this crate allocates, so host and kernels
//!   share them. The specification asks for mapping around host access; CPU drivers do not need it.

use std::collections::HashMap;
use std::ffi::c_void;
use std::fmt;
use std::ops::Range;
use std::ptr;

use parking_lot::{Mutex, MutexGuard};

use super::api::types::{CL_FALSE, CL_TRUE, cl_command_queue, cl_context, cl_device_id, cl_event, cl_mem};
use super::api::{check, command_queue as queue, context, driver_error, error_codes, event, is_pocl, kernel, memory};
use super::overlap::{OverlapGuard, needs_overlap_guard};
use super::program::{self, ClKernel, ClProgram};
use super::{host_memory, pocl_cache};
use crate::driver::{
    Driver, FirstTier, ForeignMemory, Grid, Memory, NativeHandles, Parameter, RawArg, RawEvent, RawKernel, RawProgram, RawQueue,
    Timer,
};
use crate::info::{DeviceInfo, DeviceKind};
use crate::{Error, Result};

/// Options of a compilation without optimization.
const AGAINST_OPTIMIZATION: &[&str] = &["-cl-opt-disable"];

/// The value of a scalar in a dry launch.
const ZEROS: [u64; 2] = [0; 2];

/// An opened OpenCL device.
pub(super) struct OpenClDriver {
    info: DeviceInfo,
    label: String,
    device: cl_device_id,
    context: cl_context,
    /// The queue that maps pinned memory, and that of dry launches.
    map_queue: cl_command_queue,
    profiling: bool,
    /// Options of every build, see [`program::fixed_options`].
    options: &'static str,
    /// Held during every call of a driver that, against the specification, is not thread-safe.
    call_lock: Option<Mutex<()>>,
    /// The workaround for drivers that confuse overlapping launches of one kernel.
    overlap_guard: Option<OverlapGuard>,
    /// Address and bytes of the host memory under each buffer allocated here, by `cl_mem`.
    host_memory: Mutex<HashMap<u64, (usize, usize)>>,
    /// The buffer behind each pinned address.
    pinned: Mutex<HashMap<usize, u64>>,
    /// Programs that are compiled but not loaded yet, by image.
    built: Mutex<HashMap<Vec<u8>, ClProgram>>,
}

// SAFETY: contexts, devices, queues and buffers may be used from any thread; kernels are behind
// locks.
unsafe impl Send for OpenClDriver {}
// SAFETY: as above.
unsafe impl Sync for OpenClDriver {}

impl Drop for OpenClDriver {
    fn drop(&mut self) {
        self.built.get_mut().clear();
        // SAFETY: both were created or retained here. All objects of this context are freed: each
        // of them holds the driver.
        unsafe {
            let _ = queue::release_command_queue(self.map_queue);
            let _ = context::release_context(self.context);
        }
    }
}

impl fmt::Debug for OpenClDriver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OpenClDriver").field("info", &self.info).finish_non_exhaustive()
    }
}

impl OpenClDriver {
    /// Opens a device, in the context `shared` or a new one. With `profiling`, queues time
    /// commands.
    pub(super) fn open(device: cl_device_id, info: DeviceInfo, profiling: bool, shared: Option<cl_context>) -> Result<Self> {
        let label = info.label();
        let context = match shared {
            // SAFETY: the application's queue keeps its context alive.
            Some(context) => check(&label, "clRetainContext", unsafe { context::retain_context(context) }.map(|()| context)),
            None => {
                let context = context::create_context(&[device], ptr::null(), None, ptr::null_mut());
                check(&label, "clCreateContext", context)
            }
        }?;
        // SAFETY: the device belongs to the context.
        let map_queue = unsafe { queue::create_command_queue(context, device, 0) };
        let map_queue = check(&label, "clCreateCommandQueue", map_queue).inspect_err(|_| {
            // SAFETY: created or retained above.
            let _ = unsafe { context::release_context(context) };
        })?;
        Ok(Self {
            // Oclgrind runs commands on any thread that flushes or waits, without a lock.
            call_lock: info.platform.contains("Oclgrind").then(Mutex::default),
            overlap_guard: needs_overlap_guard(&info).then(OverlapGuard::default),
            info,
            label,
            device,
            context,
            map_queue,
            profiling,
            options: program::fixed_options(device),
            host_memory: Mutex::default(),
            pinned: Mutex::default(),
            built: Mutex::default(),
        })
    }

    /// Locks out other threads, for a driver that is not thread-safe.
    fn lock_calls(&self) -> Option<MutexGuard<'_, ()>> {
        self.call_lock.as_ref().map(Mutex::lock)
    }

    fn check<T>(&self, call: &'static str, result: std::result::Result<T, i32>) -> Result<T> {
        check(&self.label, call, result)
    }

    /// Checks a call whose event is not needed.
    fn enqueued(&self, call: &'static str, result: std::result::Result<cl_event, i32>) -> Result<()> {
        let event = self.check(call, result)?;
        // SAFETY: the call has just returned the event. The work is valid without it.
        let _ = unsafe { event::release_event(event) };
        Ok(())
    }

    /// Creates a buffer. Missing memory is `OutOfMemory` or `TooLarge`.
    fn buffer(&self, flags: u64, bytes: usize, host: usize) -> Result<cl_mem> {
        // SAFETY: with CL_MEM_USE_HOST_PTR the callers give `bytes` of host memory, else a null
        // pointer.
        let buffer = unsafe { memory::create_buffer(self.context, flags, bytes, host as *mut _) };
        buffer.map_err(|code| match code {
            error_codes::CL_MEM_OBJECT_ALLOCATION_FAILURE
            | error_codes::CL_OUT_OF_RESOURCES
            | error_codes::CL_OUT_OF_HOST_MEMORY => Error::driver_out_of_memory(&self.label, bytes),
            error_codes::CL_INVALID_BUFFER_SIZE => self.too_large(bytes),
            code => driver_error(&self.label, "clCreateBuffer", code),
        })
    }

    fn too_large(&self, requested: usize) -> Error {
        let limit = usize::try_from(self.info.max_alloc_bytes).unwrap_or(usize::MAX);
        Error::TooLarge { device: self.label.clone(), requested, limit }
    }

    fn build(&self, source: &str, options: &[String]) -> Result<ClProgram> {
        let standard = if options.iter().any(|option| option.contains("-cl-std=")) { "" } else { program::STANDARD };
        let distinct = self.overlap_guard.as_ref().map_or("", |guard| guard.option());
        let options = format!("{standard} {} {distinct} {}", self.options, options.join(" "));
        if is_pocl(&self.info) && source.contains(program::DECLARES_BUILTINS) {
            let without_header = format!("{options} {}", program::without_header());
            let built = ClProgram::build(&self.label, self.context, self.device, source, &without_header);
            // On failure the release has another header, or the source has an error, which the
            // usual build then reports.
            if built.is_ok() {
                return built;
            }
        }
        ClProgram::build(&self.label, self.context, self.device, source, &options)
    }

    /// The address of a buffer in PoCL's memory, where it stays. 0 for one that the host may not
    /// access.
    fn mapped_address(&self, buffer: cl_mem, bytes: usize) -> usize {
        let mut address = ptr::null_mut();
        // SAFETY: buffer, context and device are alive. The mapping blocks, so the address is
        // written when it returns. The queue is finished before its release.
        unsafe {
            // Dry launches on the queue of this driver may take long.
            let Ok(queue) = queue::create_command_queue(self.context, self.device, 0) else { return 0 };
            let flags = memory::CL_MAP_READ;
            let mapped = queue::enqueue_map_buffer(queue, buffer, CL_TRUE, flags, 0, bytes, &mut address, 0, ptr::null());
            if self.enqueued("clEnqueueMapBuffer", mapped).is_ok() {
                let unmapped = queue::enqueue_unmap_mem_object(queue, buffer, address, 0, ptr::null());
                let _ = self.enqueued("clEnqueueUnmapMemObject", unmapped);
            }
            let _ = queue::finish(queue);
            let _ = queue::release_command_queue(queue);
        }
        address as usize
    }

    /// Sets the arguments of a kernel, each by size and address, and enqueues it. The caller
    /// releases the event.
    ///
    /// # Safety
    /// Queue and kernel are this driver's; the arguments are the kernel's, in order.
    unsafe fn enqueue_kernel(
        &self,
        queue: cl_command_queue,
        kernel: &ClKernel,
        args: impl Iterator<Item = (usize, *const c_void)>,
        work_items: [usize; 2],
        work_group_size: usize,
    ) -> Result<cl_event> {
        let mut launches = kernel.launches.lock();
        for (index, (bytes, value)) in args.enumerate() {
            // SAFETY: the caller's promise; the call copies the value.
            self.check("clSetKernelArg", unsafe { kernel::set_kernel_arg(kernel.raw, index as u32, bytes, value) })?;
        }
        let dimensions = if work_items[1] > 1 { 2 } else { 1 };
        // PoCL takes the largest dimension for the width.
        let width = work_items[0].max(work_items[1]);
        let before = launches.before(queue, work_group_size, width);
        let list = if before.is_empty() { ptr::null() } else { before.as_ptr() };
        let (local, count) = ([work_group_size, 1], before.len() as u32);
        // SAFETY: all arguments are set. The call reads sizes and list before it returns.
        // `launches` keeps the events alive.
        unsafe {
            let (global, local) = (work_items.as_ptr(), local.as_ptr());
            let event = queue::enqueue_nd_range_kernel(queue, kernel.raw, dimensions, ptr::null(), global, local, count, list);
            let event = self.check("clEnqueueNDRangeKernel", event)?;
            launches.launched(queue, work_group_size, width, event);
            Ok(event)
        }
    }

    /// The status of an event: 0 when complete, above 0 before that, below 0 after a failure.
    fn status(&self, call: &'static str, event: RawEvent) -> Result<i32> {
        let bytes = event::get_event_data(event.0 as cl_event, event::CL_EVENT_COMMAND_EXECUTION_STATUS);
        let bytes = self.check("clGetEventInfo", bytes)?;
        let status = bytes.try_into().map_or(0, i32::from_ne_bytes);
        if status < 0 { self.check(call, Err(status)) } else { Ok(status) }
    }

    fn profiled(&self, event: RawEvent, what: u32) -> Result<u64> {
        let bytes = event::get_event_profiling_data(event.0 as cl_event, what);
        let bytes = self.check("clGetEventProfilingInfo", bytes)?;
        Ok(bytes.try_into().map_or(0, u64::from_ne_bytes))
    }
}

impl Driver for OpenClDriver {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn native(&self) -> NativeHandles {
        NativeHandles { context: self.context as u64, device: self.device as u64 }
    }

    fn alloc(&self, bytes: usize) -> Result<Memory> {
        let _lock = self.lock_calls();
        if bytes as u64 > self.info.max_alloc_bytes {
            return Err(self.too_large(bytes));
        }
        if !self.info.unified_memory {
            let handle = self.buffer(memory::CL_MEM_READ_WRITE, bytes, 0)? as u64;
            return Ok(Memory { handle, bytes, host: 0 });
        }
        let host = host_memory::allocate(bytes).ok_or_else(|| Error::driver_out_of_memory(&self.label, bytes))?;
        match self.buffer(memory::CL_MEM_READ_WRITE | memory::CL_MEM_USE_HOST_PTR, bytes, host) {
            Ok(handle) => {
                self.host_memory.lock().insert(handle as u64, (host, bytes));
                Ok(Memory { handle: handle as u64, bytes, host })
            }
            Err(error) => {
                // SAFETY: allocated above, and no buffer was made over it.
                unsafe { host_memory::release(host, bytes) };
                Err(error)
            }
        }
    }

    fn address(&self, memory: Memory) -> Option<u64> {
        // Kernels of a CPU device access a buffer over host memory by the host's address.
        match memory.host {
            0 => self.host_memory.lock().get(&memory.handle).map(|(host, _)| *host as u64),
            host => Some(host as u64),
        }
    }

    unsafe fn import_host(&self, host: usize, bytes: usize) -> Result<Option<Memory>> {
        let _lock = self.lock_calls();
        if !self.info.unified_memory || bytes as u64 > self.info.max_alloc_bytes {
            return Ok(None);
        }
        let handle = self.buffer(memory::CL_MEM_READ_ONLY | memory::CL_MEM_USE_HOST_PTR, bytes, host)? as u64;
        Ok(Some(Memory { handle, bytes, host }))
    }

    unsafe fn adopt(&self, handle: u64) -> Result<ForeignMemory> {
        let _lock = self.lock_calls();
        let number = |property| {
            let bytes = self.check("clGetMemObjectInfo", memory::get_mem_object_data(handle as cl_mem, property))?;
            Ok(bytes.try_into().map_or(0, usize::from_ne_bytes))
        };
        let bytes = number(memory::CL_MEM_SIZE)?;
        if number(memory::CL_MEM_CONTEXT)? != self.context as usize {
            return Ok(ForeignMemory::OtherContext(bytes));
        }
        // Only buffers over host memory have an address. Kernels of a CPU device write directly
        // there.
        let host = match self.info.unified_memory {
            true => match number(memory::CL_MEM_HOST_PTR)? {
                0 if is_pocl(&self.info) => self.mapped_address(handle as cl_mem, bytes),
                host => host,
            },
            false => 0,
        };
        Ok(ForeignMemory::InPlace(Memory { handle, bytes, host }))
    }

    unsafe fn read_foreign(&self, handle: u64, to: usize, bytes: usize) -> Result<()> {
        let _lock = self.lock_calls();
        let context = memory::get_mem_object_data(handle as cl_mem, memory::CL_MEM_CONTEXT);
        let context = self.check("clGetMemObjectInfo", context)?.try_into().map_or(0, usize::from_ne_bytes) as cl_context;
        let devices = self.check("clGetContextInfo", context::get_context_data(context, context::CL_CONTEXT_DEVICES))?;
        let device = devices.first_chunk().map_or(0, |bytes| usize::from_ne_bytes(*bytes)) as cl_device_id;
        // SAFETY: context and device are those of the caller's live buffer.
        let queue = unsafe { queue::create_command_queue(context, device, 0) };
        let queue = self.check("clCreateCommandQueue", queue)?;
        // SAFETY: the caller promises a live buffer and its own host memory. The call blocks until
        // the memory is written.
        let read =
            unsafe { queue::enqueue_read_buffer(queue, handle as cl_mem, CL_TRUE, 0, bytes, to as *mut _, 0, ptr::null()) };
        let read = self.enqueued("clEnqueueReadBuffer", read);
        // SAFETY: created above, and its only command has completed.
        let _ = unsafe { queue::release_command_queue(queue) };
        read
    }

    unsafe fn can_wait_on(&self, event: RawEvent) -> Result<bool> {
        let _lock = self.lock_calls();
        // PoCL never runs commands that wait for an already failed event.
        self.status("clGetEventInfo", event)?;
        let context = event::get_event_data(event.0 as cl_event, event::CL_EVENT_CONTEXT);
        let context: usize = self.check("clGetEventInfo", context)?.try_into().map_or(0, usize::from_ne_bytes);
        Ok(context == self.context as usize)
    }

    unsafe fn free(&self, memory: Memory) {
        let _lock = self.lock_calls();
        let allocated = self.host_memory.lock().remove(&memory.handle);
        // SAFETY: as the caller promises, the buffer is this driver's and no queue uses it.
        let _ = unsafe { memory::release_mem_object(memory.handle as cl_mem) };
        if let Some((host, bytes)) = allocated {
            // SAFETY: the map has address and bytes of memory that was allocated here.
            unsafe { host_memory::release(host, bytes) };
        }
    }

    fn alloc_pinned(&self, bytes: usize) -> Result<usize> {
        let _lock = self.lock_calls();
        if self.info.kind == DeviceKind::Cpu {
            return host_memory::allocate(bytes).ok_or_else(|| Error::driver_out_of_memory(&self.label, bytes));
        }
        let buffer = self.buffer(memory::CL_MEM_READ_WRITE | memory::CL_MEM_ALLOC_HOST_PTR, bytes, 0)?;
        let mut address = ptr::null_mut();
        // SAFETY: the buffer has `bytes` bytes; the call blocks until the address is valid.
        let mapped = unsafe {
            let flags = memory::CL_MAP_READ | memory::CL_MAP_WRITE;
            queue::enqueue_map_buffer(self.map_queue, buffer, CL_TRUE, flags, 0, bytes, &mut address, 0, ptr::null())
        };
        if let Err(error) = self.enqueued("clEnqueueMapBuffer", mapped) {
            // SAFETY: created above, and not shared yet.
            let _ = unsafe { memory::release_mem_object(buffer) };
            return Err(error);
        }
        self.pinned.lock().insert(address as usize, buffer as u64);
        Ok(address as usize)
    }

    unsafe fn free_pinned(&self, host: usize, bytes: usize) {
        let _lock = self.lock_calls();
        if self.info.kind == DeviceKind::Cpu {
            // SAFETY: the caller promises that the memory came from `alloc_pinned` with these
            // bytes.
            return unsafe { host_memory::release(host, bytes) };
        }
        if let Some(buffer) = self.pinned.lock().remove(&host) {
            // SAFETY: the map has the buffer of this address. The release waits for the unmapping.
            unsafe {
                let unmapped = queue::enqueue_unmap_mem_object(self.map_queue, buffer as cl_mem, host as *mut _, 0, ptr::null());
                let _ = self.enqueued("clEnqueueUnmapMemObject", unmapped);
                let _ = queue::flush(self.map_queue);
                let _ = memory::release_mem_object(buffer as cl_mem);
            }
        }
    }

    fn create_queue(&self) -> Result<RawQueue> {
        let _lock = self.lock_calls();
        let properties = if self.profiling { queue::CL_QUEUE_PROFILING_ENABLE } else { 0 };
        // SAFETY: the device belongs to the context.
        let queue = unsafe { queue::create_command_queue(self.context, self.device, properties) };
        self.check("clCreateCommandQueue", queue).map(|queue| RawQueue(queue as u64))
    }

    fn create_library_queue(&self, profiling: bool) -> Result<RawQueue> {
        let _lock = self.lock_calls();
        let properties = if profiling { queue::CL_QUEUE_PROFILING_ENABLE } else { 0 };
        // SAFETY: the device belongs to the context.
        let queue = unsafe { queue::create_command_queue(self.context, self.device, properties) };
        let queue = self.check("clCreateCommandQueue", queue)?;
        // SAFETY: the context is this driver's own and alive.
        if let Err(error) = self.check("clRetainContext", unsafe { context::retain_context(self.context) }) {
            // SAFETY: created above, and not shared yet.
            let _ = unsafe { queue::release_command_queue(queue) };
            return Err(error);
        }
        Ok(RawQueue(queue as u64))
    }

    unsafe fn release_library_queue(&self, queue: RawQueue) {
        let _lock = self.lock_calls();
        // SAFETY: the caller promises that both references are still those of
        // `create_library_queue`.
        unsafe {
            let _ = queue::release_command_queue(queue.0 as cl_command_queue);
            let _ = context::release_context(self.context);
        }
    }

    unsafe fn destroy_queue(&self, queue: RawQueue) {
        let _lock = self.lock_calls();
        // SAFETY: as the caller promises, the queue is this driver's and its work has completed.
        let _ = unsafe { queue::release_command_queue(queue.0 as cl_command_queue) };
    }

    unsafe fn flush(&self, queue: RawQueue) -> Result<()> {
        let _lock = self.lock_calls();
        self.check("clFlush", queue::flush(queue.0 as cl_command_queue))
    }

    unsafe fn upload(&self, queue: RawQueue, from: usize, to: Memory, offset: usize, bytes: usize) -> Result<()> {
        let _lock = self.lock_calls();
        // SAFETY: the caller promises handles of this driver and host memory that outlives the
        // copy.
        let event = unsafe {
            let (queue, buffer) = (queue.0 as cl_command_queue, to.handle as cl_mem);
            queue::enqueue_write_buffer(queue, buffer, CL_FALSE, offset, bytes, from as *const _, 0, ptr::null())
        };
        self.enqueued("clEnqueueWriteBuffer", event)
    }

    unsafe fn download(&self, queue: RawQueue, from: Memory, offset: usize, to: usize, bytes: usize) -> Result<()> {
        let _lock = self.lock_calls();
        // SAFETY: the caller promises handles of this driver and host memory that outlives the
        // copy.
        let event = unsafe {
            let (queue, buffer) = (queue.0 as cl_command_queue, from.handle as cl_mem);
            queue::enqueue_read_buffer(queue, buffer, CL_FALSE, offset, bytes, to as *mut _, 0, ptr::null())
        };
        self.enqueued("clEnqueueReadBuffer", event)
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
        let _lock = self.lock_calls();
        // SAFETY: the caller promises handles of this driver and ranges inside the buffers.
        let event = unsafe {
            let (from, to) = (from.handle as cl_mem, to.handle as cl_mem);
            let queue = queue.0 as cl_command_queue;
            queue::enqueue_copy_buffer(queue, from, to, from_offset, to_offset, bytes, 0, ptr::null())
        };
        self.enqueued("clEnqueueCopyBuffer", event)
    }

    unsafe fn fill(&self, queue: RawQueue, to: Memory, offset: usize, bytes: usize, value: u8) -> Result<()> {
        let _lock = self.lock_calls();
        // Drivers loop over the pattern: a wide one is many times faster. Its width must divide
        // offset and bytes.
        let pattern = [value; 16];
        let width = if (offset | bytes).is_multiple_of(16) { 16 } else { 1 };
        // SAFETY: the caller promises handles of this driver and a range inside the buffer; the
        // call copies the pattern.
        let event = unsafe {
            let (queue, buffer) = (queue.0 as cl_command_queue, to.handle as cl_mem);
            queue::enqueue_fill_buffer(queue, buffer, pattern.as_ptr().cast(), width, offset, bytes, 0, ptr::null())
        };
        self.enqueued("clEnqueueFillBuffer", event)
    }

    unsafe fn launch(
        &self,
        queue: RawQueue,
        kernel: RawKernel,
        grid: Grid,
        args: &[RawArg<'_>],
        timed: bool,
    ) -> Result<Option<Timer>> {
        let _lock = self.lock_calls();
        // SAFETY: the caller promises a handle of `kernel` whose program is loaded.
        let kernel = unsafe { &*(kernel.0 as *const ClKernel) };
        if args.len() != kernel.parameters {
            let name = format!("{} arguments given, the kernel has {}", args.len(), kernel.parameters);
            return Err(Error::driver(&self.label, "clSetKernelArg", error_codes::CL_INVALID_KERNEL_ARGS, name));
        }
        let args = args.iter().map(|arg| match arg {
            // The handle is a `cl_mem`.
            RawArg::Memory(memory) => (size_of::<cl_mem>(), ptr::from_ref(&memory.handle).cast()),
            RawArg::Value(value) => (value.len(), value.as_ptr().cast()),
        });
        let (queue, size) = (queue.0 as cl_command_queue, grid.work_group_size as usize);
        // SAFETY: the caller promises arguments that match the kernel's.
        let event = unsafe { self.enqueue_kernel(queue, kernel, args, [grid.work_groups as usize * size, 1], size) }?;
        if !timed || !self.profiling {
            return self.enqueued("clEnqueueNDRangeKernel", Ok(event)).map(|()| None);
        }
        let event = RawEvent(event as u64);
        Ok(Some(Timer { start: event, end: event }))
    }

    unsafe fn dry_launch(&self, kernel: RawKernel, parameters: &[Parameter]) -> Result<()> {
        if self.info.kind != DeviceKind::Cpu {
            return Ok(());
        }
        let event = {
            let _lock = self.lock_calls();
            // SAFETY: the caller promises a handle of `kernel` whose program is loaded.
            let kernel = unsafe { &*(kernel.0 as *const ClKernel) };
            let args = parameters.iter().map(|parameter| match parameter {
                // A buffer without memory.
                Parameter::Memory => (size_of::<cl_mem>(), ptr::null()),
                Parameter::Value(bytes) => ((*bytes).min(size_of_val(&ZEROS)), ZEROS.as_ptr().cast()),
            });
            // SAFETY: the caller promises the kernel's parameters, and that it returns at once. A
            // scalar has at most as many bytes as `ZEROS`.
            let event = unsafe { self.enqueue_kernel(self.map_queue, kernel, args, [1, 2], 1) }?;
            self.check("clFlush", queue::flush(self.map_queue))?;
            event
        };
        let event = RawEvent(event as u64);
        // SAFETY: the event is that of the launch, and released once.
        unsafe {
            let waited = self.wait(event);
            self.destroy_event(event);
            waited
        }
    }

    unsafe fn record(&self, queue: RawQueue) -> Result<RawEvent> {
        let _lock = self.lock_calls();
        // SAFETY: the caller promises a queue of this driver.
        let event = unsafe { queue::enqueue_marker_with_wait_list(queue.0 as cl_command_queue, 0, ptr::null()) };
        self.check("clEnqueueMarkerWithWaitList", event).map(|event| RawEvent(event as u64))
    }

    unsafe fn wait_on(&self, queue: RawQueue, event: RawEvent) -> Result<()> {
        let _lock = self.lock_calls();
        let event = event.0 as cl_event;
        // SAFETY: the caller promises a queue and an event of this driver; the driver keeps the
        // event.
        let barrier = unsafe { queue::enqueue_barrier_with_wait_list(queue.0 as cl_command_queue, 1, &event) };
        self.enqueued("clEnqueueBarrierWithWaitList", barrier)
    }

    unsafe fn is_done(&self, event: RawEvent) -> Result<bool> {
        let _lock = self.lock_calls();
        self.status("clGetEventInfo", event).map(|status| status == 0)
    }

    unsafe fn wait(&self, event: RawEvent) -> Result<()> {
        let _lock = self.lock_calls();
        let waited = event::wait_for_events(&[event.0 as cl_event]);
        // After a failure the event's own status is more specific than the waiting call's.
        self.status("clWaitForEvents", event)?;
        self.check("clWaitForEvents", waited)
    }

    unsafe fn read_timer(&self, timer: Timer) -> Result<Range<u64>> {
        let _lock = self.lock_calls();
        let start = self.profiled(timer.start, event::CL_PROFILING_COMMAND_START);
        let end = self.profiled(timer.end, event::CL_PROFILING_COMMAND_END);
        for event in timer.events() {
            // SAFETY: the caller promises an event of this driver that it does not use again.
            let _ = unsafe { event::release_event(event.0 as cl_event) };
        }
        Ok(start?..end?)
    }

    unsafe fn destroy_event(&self, event: RawEvent) {
        let _lock = self.lock_calls();
        // SAFETY: the caller promises an event of this driver that it does not use again.
        let _ = unsafe { event::release_event(event.0 as cl_event) };
    }

    fn compiler(&self) -> String {
        format!("{} {}", program::STANDARD, self.options)
    }

    fn options_against_optimization(&self) -> &'static [&'static str] {
        AGAINST_OPTIMIZATION
    }

    fn first_tier(&self) -> Option<FirstTier> {
        // PoCL optimizes for a second where it translates in a third of that.
        let is_kept = std::env::var_os("POCL_KERNEL_CACHE").is_none_or(|value| value != "0");
        let folder = pocl_cache::folder_of(&self.info).filter(|_| self.info.kind == DeviceKind::Cpu)?;
        let own = self.overlap_guard.as_ref().map_or("", OverlapGuard::option);
        let machine = [&self.info.name, &self.info.version, &self.info.driver_version, own].join("\n");
        Some(FirstTier { options: AGAINST_OPTIMIZATION, folder: Some(folder).filter(|_| is_kept), machine })
    }

    fn compile(&self, source: &str, options: &[String]) -> Result<Vec<u8>> {
        let _lock = self.lock_calls();
        let program = self.build(source, options)?;
        // The image for a CPU is the source. CPU drivers specialise kernels for the work-group size
        // at the first launch. A stored binary would lose that, and these drivers have a cache of
        // their own.
        let image = match self.info.kind {
            DeviceKind::Cpu => program::source_image(source, options),
            _ => program.binary(&self.label)?,
        };
        self.built.lock().insert(image.clone(), program);
        Ok(image)
    }

    fn load(&self, image: &[u8]) -> Result<RawProgram> {
        let _lock = self.lock_calls();
        let built = self.built.lock().remove(image);
        let program = match (built, program::read_source_image(image)) {
            (Some(program), _) => program,
            (None, Some((source, options))) => self.build(source, &options)?,
            (None, None) => ClProgram::from_binary(&self.label, self.context, self.device, image)?,
        };
        Ok(RawProgram(Box::into_raw(Box::new(program)) as u64))
    }

    unsafe fn unload(&self, program: RawProgram) {
        let _lock = self.lock_calls();
        // SAFETY: the caller promises a handle of `load`, unused from now on.
        drop(unsafe { Box::from_raw(program.0 as *mut ClProgram) });
    }

    unsafe fn kernel(&self, program: RawProgram, name: &str) -> Result<RawKernel> {
        let _lock = self.lock_calls();
        // SAFETY: the caller promises a handle of `load` that is still loaded.
        let program = unsafe { &*(program.0 as *const ClProgram) };
        program.kernel(&self.label, name, self.overlap_guard.as_ref()).map(|kernel| RawKernel(kernel as u64))
    }
}
