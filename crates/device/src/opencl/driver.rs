// SPDX-License-Identifier: Apache-2.0
//! The driver trait over OpenCL.
//!
//! Every call is safe from any thread except those that set a kernel's arguments: they and the enqueueing
//! after them happen under that kernel's lock. A CPU device gets buffers over host memory of our own,
//! so host and kernels share them; the specification asks for mapping around host access, which CPU drivers
//! do not need.

use std::collections::HashMap;
use std::fmt;
use std::ops::Range;
use std::ptr;

use cl3::command_queue as queue;
use cl3::types::{CL_FALSE, CL_TRUE, cl_command_queue, cl_context, cl_device_id, cl_event, cl_mem};
use cl3::{context, event, kernel, memory};
use parking_lot::{Mutex, MutexGuard};

use super::launches::{Apart, must_not_overlap};
use super::program::{self, Kernel, Program};
use super::{check, host, is_pocl};
use crate::driver::{Driver, Foreign, Grid, Memory, Native, RawArg, RawEvent, RawKernel, RawProgram, RawQueue, Timer};
use crate::{DeviceInfo, DeviceKind, Error, Result};

/// One opened OpenCL device.
pub(super) struct OpenClDriver {
    info: DeviceInfo,
    label: String,
    device: cl_device_id,
    context: cl_context,
    /// Maps pinned memory; only for devices with memory of their own.
    service: cl_command_queue,
    profiling: bool,
    /// What every program is built with, see [`program::fixed_options`].
    options: &'static str,
    /// Held during every call of a driver that is not safe from several threads, whatever the specification says.
    one_at_a_time: Option<Mutex<()>>,
    /// Where the driver confuses launches of one kernel that overlap: what keeps them apart.
    apart: Option<Apart>,
    /// Address and bytes of the host memory under each buffer that was allocated here, by `cl_mem`.
    owned: Mutex<HashMap<u64, (usize, usize)>>,
    /// The buffer behind each pinned address.
    pinned: Mutex<HashMap<usize, u64>>,
    /// Programs that were compiled and not loaded yet, by image.
    built: Mutex<HashMap<Vec<u8>, Program>>,
}

// SAFETY: contexts, devices, queues and buffers may be used from any thread; kernels are behind locks.
unsafe impl Send for OpenClDriver {}
// SAFETY: as above.
unsafe impl Sync for OpenClDriver {}

impl Drop for OpenClDriver {
    fn drop(&mut self) {
        self.built.get_mut().clear();
        // SAFETY: both were created or retained here, and whoever made objects of this context has freed them: each
        // of them holds the driver.
        unsafe {
            let _ = queue::release_command_queue(self.service);
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
    /// Opens a device, in `shared` or else a context of its own; queues measure times with `profiling`.
    pub(super) fn open(device: cl_device_id, info: DeviceInfo, profiling: bool, shared: Option<cl_context>) -> Result<Self> {
        let label = info.label();
        let context = match shared {
            // SAFETY: the configuration's queue keeps its context alive.
            Some(context) => check(&label, "clRetainContext", unsafe { context::retain_context(context) }.map(|()| context)),
            None => {
                let context = context::create_context(&[device], ptr::null(), None, ptr::null_mut());
                check(&label, "clCreateContext", context)
            }
        }?;
        // SAFETY: the device belongs to the context.
        let service = unsafe { queue::create_command_queue(context, device, 0) };
        let service = check(&label, "clCreateCommandQueue", service).inspect_err(|_| {
            // SAFETY: created or retained above.
            let _ = unsafe { context::release_context(context) };
        })?;
        Ok(Self {
            // Oclgrind runs commands on whichever thread flushes or waits, without a lock.
            one_at_a_time: info.platform.contains("Oclgrind").then(Mutex::default),
            apart: must_not_overlap(&info).then(Apart::default),
            info,
            label,
            device,
            context,
            service,
            profiling,
            options: program::fixed_options(device),
            owned: Mutex::default(),
            pinned: Mutex::default(),
            built: Mutex::default(),
        })
    }

    /// Keeps other threads out of a driver that needs that.
    fn alone(&self) -> Option<MutexGuard<'_, ()>> {
        self.one_at_a_time.as_ref().map(Mutex::lock)
    }

    fn check<T>(&self, call: &'static str, result: std::result::Result<T, i32>) -> Result<T> {
        check(&self.label, call, result)
    }

    /// Checks a call that gives an event that nobody needs.
    fn enqueued(&self, call: &'static str, result: std::result::Result<cl_event, i32>) -> Result<()> {
        let event = self.check(call, result)?;
        // SAFETY: the event came from the call just now. The work stands, whatever becomes of its event.
        let _ = unsafe { event::release_event(event) };
        Ok(())
    }

    /// Makes a buffer; refusals for want of memory are an error of their own.
    fn buffer(&self, flags: u64, bytes: usize, host: usize) -> Result<cl_mem> {
        // SAFETY: with CL_MEM_USE_HOST_PTR the callers give `bytes` of host memory, else a null pointer.
        let buffer = unsafe { memory::create_buffer(self.context, flags, bytes, host as *mut _) };
        buffer.map_err(|code| match code {
            cl3::error_codes::CL_MEM_OBJECT_ALLOCATION_FAILURE
            | cl3::error_codes::CL_OUT_OF_RESOURCES
            | cl3::error_codes::CL_OUT_OF_HOST_MEMORY => Error::driver_out_of_memory(&self.label, bytes),
            cl3::error_codes::CL_INVALID_BUFFER_SIZE => self.too_large(bytes),
            code => Error::driver(&self.label, "clCreateBuffer", code, cl3::error_codes::error_text(code)),
        })
    }

    fn too_large(&self, requested: usize) -> Error {
        let limit = usize::try_from(self.info.max_alloc_bytes).unwrap_or(usize::MAX);
        Error::TooLarge { device: self.label.clone(), requested, limit }
    }

    fn build(&self, text: &str, options: &[String]) -> Result<Program> {
        let standard = if options.iter().any(|option| option.contains("-cl-std=")) { "" } else { program::STANDARD };
        let apart = self.apart.as_ref().map_or("", |apart| apart.option());
        let options = format!("{standard} {} {apart} {}", self.options, options.join(" "));
        if is_pocl(&self.info) && text.contains(program::DECLARES_BUILTINS) {
            let without_header = format!("{options} {}", program::without_header());
            let built = Program::build(&self.label, self.context, self.device, text, &without_header);
            // Otherwise it is a release with another header, or the text is at fault, whose error then is that of the usual build.
            if built.is_ok() {
                return built;
            }
        }
        Program::build(&self.label, self.context, self.device, text, &options)
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

    fn native(&self) -> Native {
        Native::OpenCl { context: self.context as u64, device: self.device as u64 }
    }

    fn alloc(&self, bytes: usize) -> Result<Memory> {
        let _alone = self.alone();
        if bytes as u64 > self.info.max_alloc_bytes {
            return Err(self.too_large(bytes));
        }
        if !self.info.unified_memory {
            let handle = self.buffer(memory::CL_MEM_READ_WRITE, bytes, 0)? as u64;
            return Ok(Memory { handle, bytes, host: 0 });
        }
        let host = host::allocate(bytes).ok_or_else(|| Error::driver_out_of_memory(&self.label, bytes))?;
        match self.buffer(memory::CL_MEM_READ_WRITE | memory::CL_MEM_USE_HOST_PTR, bytes, host) {
            Ok(handle) => {
                self.owned.lock().insert(handle as u64, (host, bytes));
                Ok(Memory { handle: handle as u64, bytes, host })
            }
            Err(error) => {
                // SAFETY: allocated above, and no buffer was made over it.
                unsafe { host::release(host, bytes) };
                Err(error)
            }
        }
    }

    fn address(&self, memory: Memory) -> Option<u64> {
        // Kernels of a CPU device reach a buffer over host memory by the host's address.
        match memory.host {
            0 => self.owned.lock().get(&memory.handle).map(|(host, _)| *host as u64),
            host => Some(host as u64),
        }
    }

    unsafe fn import_host(&self, host: usize, bytes: usize) -> Result<Option<Memory>> {
        let _alone = self.alone();
        if !self.info.unified_memory || bytes as u64 > self.info.max_alloc_bytes {
            return Ok(None);
        }
        let handle = self.buffer(memory::CL_MEM_READ_ONLY | memory::CL_MEM_USE_HOST_PTR, bytes, host)? as u64;
        Ok(Some(Memory { handle, bytes, host }))
    }

    unsafe fn adopt(&self, handle: u64) -> Result<Foreign> {
        let _alone = self.alone();
        let number = |property| {
            let bytes = self.check("clGetMemObjectInfo", memory::get_mem_object_data(handle as cl_mem, property))?;
            Ok(bytes.try_into().map_or(0, usize::from_ne_bytes))
        };
        let bytes = number(memory::CL_MEM_SIZE)?;
        if number(memory::CL_MEM_CONTEXT)? != self.context as usize {
            return Ok(Foreign::Elsewhere(bytes));
        }
        // Only buffers over host memory have an address; a CPU device's kernels write right there.
        let host = if self.info.unified_memory { number(memory::CL_MEM_HOST_PTR)? } else { 0 };
        Ok(Foreign::InPlace(Memory { handle, bytes, host }))
    }

    unsafe fn fetch(&self, handle: u64, to: usize, bytes: usize) -> Result<()> {
        let _alone = self.alone();
        let context = memory::get_mem_object_data(handle as cl_mem, memory::CL_MEM_CONTEXT);
        let context = self.check("clGetMemObjectInfo", context)?.try_into().map_or(0, usize::from_ne_bytes) as cl_context;
        let devices = self.check("clGetContextInfo", context::get_context_data(context, context::CL_CONTEXT_DEVICES))?;
        let device = devices.first_chunk().map_or(0, |bytes| usize::from_ne_bytes(*bytes)) as cl_device_id;
        // SAFETY: context and device are those of the caller's live buffer.
        let queue = unsafe { queue::create_command_queue(context, device, 0) };
        let queue = self.check("clCreateCommandQueue", queue)?;
        // SAFETY: the caller promises a live buffer and its own host memory; the call blocks until it is written.
        let read =
            unsafe { queue::enqueue_read_buffer(queue, handle as cl_mem, CL_TRUE, 0, bytes, to as *mut _, 0, ptr::null()) };
        let read = self.enqueued("clEnqueueReadBuffer", read);
        // SAFETY: made above, and its only command has completed.
        let _ = unsafe { queue::release_command_queue(queue) };
        read
    }

    unsafe fn takes_event(&self, event: RawEvent) -> Result<bool> {
        let _alone = self.alone();
        // PoCL never runs what waits for an event that has failed before.
        self.status("clGetEventInfo", event)?;
        let context = event::get_event_data(event.0 as cl_event, event::CL_EVENT_CONTEXT);
        let context: usize = self.check("clGetEventInfo", context)?.try_into().map_or(0, usize::from_ne_bytes);
        Ok(context == self.context as usize)
    }

    unsafe fn free(&self, memory: Memory) {
        let _alone = self.alone();
        let owned = self.owned.lock().remove(&memory.handle);
        // SAFETY: the caller promises that the buffer is ours and that no queue uses it.
        let _ = unsafe { memory::release_mem_object(memory.handle as cl_mem) };
        if let Some((host, bytes)) = owned {
            // SAFETY: the map says that this memory was allocated here with these bytes.
            unsafe { host::release(host, bytes) };
        }
    }

    fn alloc_pinned(&self, bytes: usize) -> Result<usize> {
        let _alone = self.alone();
        if self.info.kind == DeviceKind::Cpu {
            return host::allocate(bytes).ok_or_else(|| Error::driver_out_of_memory(&self.label, bytes));
        }
        let buffer = self.buffer(memory::CL_MEM_READ_WRITE | memory::CL_MEM_ALLOC_HOST_PTR, bytes, 0)?;
        let mut address = ptr::null_mut();
        // SAFETY: the buffer has `bytes` bytes; the call blocks until the address is valid.
        let mapped = unsafe {
            let flags = memory::CL_MAP_READ | memory::CL_MAP_WRITE;
            queue::enqueue_map_buffer(self.service, buffer, CL_TRUE, flags, 0, bytes, &mut address, 0, ptr::null())
        };
        if let Err(error) = self.enqueued("clEnqueueMapBuffer", mapped) {
            // SAFETY: made above; nobody else knows it.
            let _ = unsafe { memory::release_mem_object(buffer) };
            return Err(error);
        }
        self.pinned.lock().insert(address as usize, buffer as u64);
        Ok(address as usize)
    }

    unsafe fn free_pinned(&self, host: usize, bytes: usize) {
        let _alone = self.alone();
        if self.info.kind == DeviceKind::Cpu {
            // SAFETY: the caller promises that the memory came from `alloc_pinned` with these bytes.
            return unsafe { host::release(host, bytes) };
        }
        if let Some(buffer) = self.pinned.lock().remove(&host) {
            // SAFETY: the map says that this address is that buffer's. Releasing waits for the unmapping.
            unsafe {
                let unmapped = queue::enqueue_unmap_mem_object(self.service, buffer as cl_mem, host as *mut _, 0, ptr::null());
                let _ = self.enqueued("clEnqueueUnmapMemObject", unmapped);
                let _ = queue::flush(self.service);
                let _ = memory::release_mem_object(buffer as cl_mem);
            }
        }
    }

    fn create_queue(&self) -> Result<RawQueue> {
        let _alone = self.alone();
        let properties = if self.profiling { queue::CL_QUEUE_PROFILING_ENABLE } else { 0 };
        // SAFETY: the device belongs to the context.
        let queue = unsafe { queue::create_command_queue(self.context, self.device, properties) };
        self.check("clCreateCommandQueue", queue).map(|queue| RawQueue(queue as u64))
    }

    fn lend_queue(&self, profiling: bool) -> Result<RawQueue> {
        let _alone = self.alone();
        let properties = if profiling { queue::CL_QUEUE_PROFILING_ENABLE } else { 0 };
        // SAFETY: the device belongs to the context.
        let queue = unsafe { queue::create_command_queue(self.context, self.device, properties) };
        let queue = self.check("clCreateCommandQueue", queue)?;
        // SAFETY: the context is this driver's own and alive.
        if let Err(error) = self.check("clRetainContext", unsafe { context::retain_context(self.context) }) {
            // SAFETY: made above, and nobody else knows it.
            let _ = unsafe { queue::release_command_queue(queue) };
            return Err(error);
        }
        Ok(RawQueue(queue as u64))
    }

    unsafe fn take_back_queue(&self, queue: RawQueue) {
        let _alone = self.alone();
        // SAFETY: the caller promises that both references are still those of `lend_queue`.
        unsafe {
            let _ = queue::release_command_queue(queue.0 as cl_command_queue);
            let _ = context::release_context(self.context);
        }
    }

    unsafe fn destroy_queue(&self, queue: RawQueue) {
        let _alone = self.alone();
        // SAFETY: the caller promises that the queue is ours and that its work has completed.
        let _ = unsafe { queue::release_command_queue(queue.0 as cl_command_queue) };
    }

    unsafe fn flush(&self, queue: RawQueue) -> Result<()> {
        let _alone = self.alone();
        self.check("clFlush", queue::flush(queue.0 as cl_command_queue))
    }

    unsafe fn upload(&self, queue: RawQueue, from: usize, to: Memory, offset: usize, bytes: usize) -> Result<()> {
        let _alone = self.alone();
        // SAFETY: the caller promises handles of ours and host memory that outlives the copy.
        let event = unsafe {
            let (queue, buffer) = (queue.0 as cl_command_queue, to.handle as cl_mem);
            queue::enqueue_write_buffer(queue, buffer, CL_FALSE, offset, bytes, from as *const _, 0, ptr::null())
        };
        self.enqueued("clEnqueueWriteBuffer", event)
    }

    unsafe fn download(&self, queue: RawQueue, from: Memory, offset: usize, to: usize, bytes: usize) -> Result<()> {
        let _alone = self.alone();
        // SAFETY: the caller promises handles of ours and host memory that outlives the copy.
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
        let _alone = self.alone();
        // SAFETY: the caller promises handles of ours and ranges inside the buffers.
        let event = unsafe {
            let (from, to) = (from.handle as cl_mem, to.handle as cl_mem);
            let queue = queue.0 as cl_command_queue;
            queue::enqueue_copy_buffer(queue, from, to, from_offset, to_offset, bytes, 0, ptr::null())
        };
        self.enqueued("clEnqueueCopyBuffer", event)
    }

    unsafe fn fill(&self, queue: RawQueue, to: Memory, offset: usize, bytes: usize, value: u8) -> Result<()> {
        let _alone = self.alone();
        // Drivers loop over the pattern: a wide one is many times faster. It must divide both numbers.
        let pattern = [value; 16];
        let width = if (offset | bytes).is_multiple_of(16) { 16 } else { 1 };
        // SAFETY: the caller promises handles of ours and a range inside the buffer; the call copies the pattern.
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
        let _alone = self.alone();
        // SAFETY: the caller promises a handle that `kernel` gave and whose program is loaded.
        let kernel = unsafe { &*(kernel.0 as *const Kernel) };
        if args.len() != kernel.parameters {
            let name = format!("{} arguments given, the kernel has {}", args.len(), kernel.parameters);
            return Err(Error::driver(&self.label, "clSetKernelArg", cl3::error_codes::CL_INVALID_KERNEL_ARGS, name));
        }
        let mut launches = kernel.launches.lock();
        for (index, arg) in args.iter().enumerate() {
            let buffer;
            let (bytes, value) = match arg {
                RawArg::Memory(memory) => {
                    buffer = memory.handle as cl_mem;
                    (size_of::<cl_mem>(), ptr::from_ref(&buffer).cast())
                }
                RawArg::Value(value) => (value.len(), value.as_ptr().cast()),
            };
            // SAFETY: the caller promises arguments that match the kernel's; the call copies the value.
            self.check("clSetKernelArg", unsafe { kernel::set_kernel_arg(kernel.raw, index as u32, bytes, value) })?;
        }
        let items = grid.groups as usize * grid.work_group_size as usize;
        let group = grid.work_group_size as usize;
        let queue = queue.0 as cl_command_queue;
        let before = launches.before(queue, group, items);
        let list = if before.is_empty() { ptr::null() } else { before.as_ptr() };
        // SAFETY: all arguments are set; sizes and list are read before the call returns; `launches` holds the events.
        let event = unsafe {
            queue::enqueue_nd_range_kernel(queue, kernel.raw, 1, ptr::null(), &items, &group, before.len() as u32, list)
        };
        if let Ok(event) = event {
            // SAFETY: the event came from the call just now.
            unsafe { launches.launched(queue, group, items, event) };
        }
        if !timed || !self.profiling {
            return self.enqueued("clEnqueueNDRangeKernel", event).map(|()| None);
        }
        let event = RawEvent(self.check("clEnqueueNDRangeKernel", event)? as u64);
        Ok(Some(Timer { start: event, end: event }))
    }

    unsafe fn record(&self, queue: RawQueue) -> Result<RawEvent> {
        let _alone = self.alone();
        // SAFETY: the caller promises a queue of ours.
        let event = unsafe { queue::enqueue_marker_with_wait_list(queue.0 as cl_command_queue, 0, ptr::null()) };
        self.check("clEnqueueMarkerWithWaitList", event).map(|event| RawEvent(event as u64))
    }

    unsafe fn wait_on(&self, queue: RawQueue, event: RawEvent) -> Result<()> {
        let _alone = self.alone();
        let event = event.0 as cl_event;
        // SAFETY: the caller promises a queue and an event of ours; the driver keeps the event.
        let barrier = unsafe { queue::enqueue_barrier_with_wait_list(queue.0 as cl_command_queue, 1, &event) };
        self.enqueued("clEnqueueBarrierWithWaitList", barrier)
    }

    unsafe fn is_done(&self, event: RawEvent) -> Result<bool> {
        let _alone = self.alone();
        self.status("clGetEventInfo", event).map(|status| status == 0)
    }

    unsafe fn wait(&self, event: RawEvent) -> Result<()> {
        let _alone = self.alone();
        let waited = event::wait_for_events(&[event.0 as cl_event]);
        // After a failure the event's own status says more than the waiting call.
        self.status("clWaitForEvents", event)?;
        self.check("clWaitForEvents", waited)
    }

    unsafe fn read_timer(&self, timer: Timer) -> Result<Range<u64>> {
        let _alone = self.alone();
        let start = self.profiled(timer.start, event::CL_PROFILING_COMMAND_START);
        let end = self.profiled(timer.end, event::CL_PROFILING_COMMAND_END);
        for event in timer.events() {
            // SAFETY: the caller promises an event of ours that it does not use again.
            let _ = unsafe { event::release_event(event.0 as cl_event) };
        }
        Ok(start?..end?)
    }

    unsafe fn destroy_event(&self, event: RawEvent) {
        let _alone = self.alone();
        // SAFETY: the caller promises an event of ours that it does not use again.
        let _ = unsafe { event::release_event(event.0 as cl_event) };
    }

    fn compiler(&self) -> String {
        format!("{} {}", program::STANDARD, self.options)
    }

    fn compile(&self, text: &str, options: &[String]) -> Result<Vec<u8>> {
        let _alone = self.alone();
        let program = self.build(text, options)?;
        // CPU drivers specialise kernels for the group size at the first launch, which a stored binary
        // would lose, and they keep a cache of their own: there the text is the image.
        let image = match self.info.kind {
            DeviceKind::Cpu => program::source_image(text, options),
            _ => program.binary(&self.label)?,
        };
        self.built.lock().insert(image.clone(), program);
        Ok(image)
    }

    fn load(&self, binary: &[u8]) -> Result<RawProgram> {
        let _alone = self.alone();
        let built = self.built.lock().remove(binary);
        let program = match (built, program::read_source_image(binary)) {
            (Some(program), _) => program,
            (None, Some((text, options))) => self.build(text, &options)?,
            (None, None) => Program::from_binary(&self.label, self.context, self.device, binary)?,
        };
        Ok(RawProgram(Box::into_raw(Box::new(program)) as u64))
    }

    unsafe fn unload(&self, program: RawProgram) {
        let _alone = self.alone();
        // SAFETY: the caller promises a handle that `load` gave, unused from now on.
        drop(unsafe { Box::from_raw(program.0 as *mut Program) });
    }

    unsafe fn kernel(&self, program: RawProgram, name: &str) -> Result<RawKernel> {
        let _alone = self.alone();
        // SAFETY: the caller promises a handle that `load` gave and that is still loaded.
        let program = unsafe { &*(program.0 as *const Program) };
        program.kernel(&self.label, name, self.apart.as_ref()).map(|kernel| RawKernel(kernel as u64))
    }
}
