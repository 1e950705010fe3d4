// SPDX-License-Identifier: Apache-2.0
//! The interface that a driver implements: [`DriverFactory`] finds and opens devices, [`Driver`]
//! is one opened device.
//!
//! Handles are plain integers that only their own driver understands. A call that enqueues returns
//! at once. Only [`Driver::wait`] and [`Driver::read_foreign`] block, and only threads made for
//! waiting call them. The types above this trait own, pool and count the handles.

use std::any::Any;
use std::fmt::Debug;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::info::{DeviceEntry, DeviceInfo};
use crate::{Error, Result, Traffic};

/// Device memory of a driver.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Memory {
    /// `CUdeviceptr` or `cl_mem`.
    pub handle: u64,
    /// Bytes that the handle spans.
    pub bytes: usize,
    /// The host's address of the same bytes, 0 where the host cannot reach them.
    pub host: usize,
}

/// Access that a device has to memory of another library.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ForeignMemory {
    /// Kernels can use the memory in place; its bytes reach to the end of the allocation.
    InPlace(Memory),
    /// The memory must be copied through the host: the bytes of the allocation.
    OtherContext(usize),
}

/// An in-order queue: `CUstream` or `cl_command_queue`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct RawQueue(pub u64);

/// A point in a queue: `CUevent` or `cl_event`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct RawEvent(pub u64);

/// A loaded program: `CUmodule` or `cl_program`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct RawProgram(pub u64);

/// A kernel of a loaded program: `CUfunction` or `cl_kernel`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct RawKernel(pub u64);

/// The two events around one launch; the same event twice where the driver times events itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Timer {
    /// Before the kernel.
    pub start: RawEvent,
    /// After the kernel.
    pub end: RawEvent,
}

impl Timer {
    /// Each distinct event once.
    pub fn events(self) -> impl Iterator<Item = RawEvent> {
        std::iter::once(self.start).chain((self.end != self.start).then_some(self.end))
    }
}

/// One argument of a launch, as the driver takes it.
#[derive(Debug, Clone, Copy)]
pub enum RawArg<'a> {
    /// A buffer: the kernel sees a pointer to its first byte.
    Memory(Memory),
    /// A scalar of 1, 2, 4, 8 or 16 bytes in native order.
    Value(&'a [u8]),
}

/// A parameter of a kernel, without a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Parameter {
    /// A pointer to device memory.
    Memory,
    /// A scalar of so many bytes.
    Value(usize),
}

/// The one-dimensional size of a launch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Grid {
    /// Number of work-groups (CUDA: blocks), at least 1.
    pub work_groups: u32,
    /// Work-items (CUDA: threads) in each work-group, at least 1.
    pub work_group_size: u32,
}

/// The driver's own handles of an opened device, valid as long as the driver object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NativeHandles {
    /// `cl_context`, or the device's primary `CUcontext`.
    pub context: u64,
    /// `cl_device_id`, or `CUdevice`.
    pub device: u64,
}

/// Takes lines that a context logs.
pub type LogSink = Arc<dyn Fn(&str) + Send + Sync>;

/// An owner of foreign memory, a queue or an event: it keeps them alive until dropped.
pub type KeepAlive = Arc<dyn Any + Send + Sync>;

/// The first tier of two in which a driver compiles.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FirstTier {
    /// Options against optimization.
    pub options: &'static [&'static str],
    /// The driver's folder for machine code between processes, if it has one.
    pub folder: Option<PathBuf>,
    /// The properties that machine code depends on, beside source and options.
    pub machine: String,
}

/// The settings of a context that concern its driver.
#[derive(Clone, Default)]
pub struct DriverOptions {
    /// Whether queues can time launches.
    pub profiling: bool,
    /// The setting `device.nvrtc_path`, for CUDA.
    pub nvrtc_path: Option<PathBuf>,
    /// A queue of the application, whose context the driver opens the device in.
    pub application_queue: Option<RawQueue>,
    /// Takes the driver's messages.
    pub log: Option<LogSink>,
}

/// A queue of the application, as its driver recognises it.
pub struct AdoptedQueue {
    /// The queue's device, as in [`DeviceInfo::ordinal`].
    pub ordinal: usize,
    /// A reference to the queue, where the driver counts references.
    pub keep_alive: Option<KeepAlive>,
}

/// One installed driver: discovers devices and opens them.
pub trait DriverFactory: Sync {
    /// The driver's devices, each with its problem if it has one. One entry with the reason where
    /// there is no device. Never fails.
    fn devices(&self, nvrtc_path: Option<&Path>) -> Vec<DeviceEntry>;
    /// Opens one of [`devices`](Self::devices).
    ///
    /// # Errors
    /// `Unusable` with the reason; `Config` without a compiler; the driver's refusal.
    fn open(&self, info: &DeviceInfo, options: &DriverOptions) -> Result<Arc<dyn Driver>>;
    /// The error message for an application's queue that is NULL.
    fn null_queue(&self) -> &'static str;
    /// Finds the device of an application's queue; `None` for a device that is not listed.
    ///
    /// # Errors
    /// The driver's refusal.
    ///
    /// # Safety
    /// The queue is live.
    unsafe fn adopt_queue(&self, queue: RawQueue) -> Result<Option<AdoptedQueue>>;
}

/// One opened device.
///
/// # Safety
/// A caller of an unsafe method guarantees for each handle:
/// - The handle comes from this driver object, unless the method says otherwise.
/// - It has not been freed.
/// - It stays alive until all its uses have completed.
pub trait Driver: Debug + Send + Sync {
    /// Properties of the device.
    fn info(&self) -> &DeviceInfo;
    /// The driver's own handles of the device.
    fn native(&self) -> NativeHandles;

    /// Allocates `bytes` (at least 1) of device memory, contents undefined.
    /// `OutOfMemory` where there is none.
    fn alloc(&self, bytes: usize) -> Result<Memory>;
    /// Makes host memory usable by kernels without a copy; `None` where the device cannot.
    ///
    /// # Safety
    /// `host .. host + bytes` stays valid until [`free`](Self::free), and the host does not write
    /// it.
    unsafe fn import_host(&self, host: usize, bytes: usize) -> Result<Option<Memory>>;
    /// The device address of `memory`, which a kernel can read out of other memory. `None` if the
    /// driver guarantees no address: a `cl_mem` outside of host memory.
    fn address(&self, memory: Memory) -> Option<u64>;
    /// Finds out how this device can access foreign memory: a `CUdeviceptr` or `cl_mem`.
    ///
    /// # Safety
    /// The handle is live; it need not come from this driver object.
    unsafe fn adopt(&self, handle: u64) -> Result<ForeignMemory>;
    /// Copies the first `bytes` of [`ForeignMemory::OtherContext`] to the host. Blocks.
    ///
    /// # Safety
    /// - The handle is live, and the work that writes the memory has completed.
    /// - `to .. to + bytes` belongs to the caller.
    unsafe fn read_foreign(&self, handle: u64, to: usize, bytes: usize) -> Result<()>;
    /// Whether [`wait_on`](Self::wait_on) takes a foreign event; [`wait`](Self::wait) always does.
    /// Fails if the event's work is known to have failed.
    ///
    /// # Safety
    /// The event is live; it need not come from this driver object.
    unsafe fn can_wait_on(&self, event: RawEvent) -> Result<bool>;
    /// Frees memory that no queue uses any more.
    ///
    /// # Safety
    /// See the trait.
    unsafe fn free(&self, memory: Memory);
    /// Allocates host memory for fast copies (pinned, where the driver can pin): its address.
    fn alloc_pinned(&self, bytes: usize) -> Result<usize>;
    /// Frees memory of [`alloc_pinned`](Self::alloc_pinned).
    ///
    /// # Safety
    /// See the trait; `host` and `bytes` are those of the allocation.
    unsafe fn free_pinned(&self, host: usize, bytes: usize);

    /// Creates an in-order queue.
    fn create_queue(&self) -> Result<RawQueue>;
    /// Creates an in-order queue for another library, and retains the context for it. The library
    /// releases both, once each. The queue times commands with `profiling`.
    fn create_library_queue(&self, profiling: bool) -> Result<RawQueue> {
        let _ = profiling;
        let reason = "its driver has no queues that others can own".to_owned();
        Err(Error::Unusable { device: self.info().name.clone(), reason })
    }
    /// Releases a queue of [`create_library_queue`](Self::create_library_queue) and its context.
    ///
    /// # Safety
    /// See the trait; no library has become the owner.
    unsafe fn release_library_queue(&self, queue: RawQueue) {
        let _ = queue;
    }
    /// The context (`CUcontext`) of device memory: this driver's or a foreign one.
    ///
    /// # Safety
    /// The handle is live.
    unsafe fn context_of(&self, handle: u64) -> Result<u64> {
        let _ = handle;
        Err(no_foreign_contexts(self.info()))
    }
    /// Allocates `bytes` (at least 1) of device memory in a foreign context.
    ///
    /// # Safety
    /// The context is live.
    unsafe fn alloc_in(&self, context: u64, bytes: usize) -> Result<Memory> {
        let _ = (context, bytes);
        Err(no_foreign_contexts(self.info()))
    }
    /// Frees memory of [`alloc_in`](Self::alloc_in).
    ///
    /// # Safety
    /// The context is live, and the memory is not used any more.
    unsafe fn free_in(&self, context: u64, memory: Memory) {
        let _ = (context, memory);
    }
    /// Enqueues a copy of `bytes` from the memory of one context to that of another.
    ///
    /// # Safety
    /// See the trait, for both handles; each has as many bytes.
    unsafe fn copy_between_contexts(&self, queue: RawQueue, from: u64, to: u64, bytes: usize) -> Result<()> {
        let _ = (queue, from, to, bytes);
        Err(no_foreign_contexts(self.info()))
    }
    /// Destroys a queue whose work has completed.
    ///
    /// # Safety
    /// See the trait.
    unsafe fn destroy_queue(&self, queue: RawQueue);
    /// Submits everything enqueued so far to the device.
    ///
    /// # Safety
    /// See the trait.
    unsafe fn flush(&self, queue: RawQueue) -> Result<()>;

    /// Enqueues a copy of `bytes` from host memory to `to + offset`.
    ///
    /// # Safety
    /// See the trait; the host memory stays valid until the copy has completed.
    unsafe fn upload(&self, queue: RawQueue, from: usize, to: Memory, offset: usize, bytes: usize) -> Result<()>;
    /// Enqueues a copy of `bytes` from `from + offset` to host memory.
    ///
    /// # Safety
    /// See the trait; the host memory stays valid and unread until the copy has completed.
    unsafe fn download(&self, queue: RawQueue, from: Memory, offset: usize, to: usize, bytes: usize) -> Result<()>;
    /// Enqueues a copy between buffers of this device.
    ///
    /// # Safety
    /// See the trait; the ranges lie inside the buffers and do not overlap.
    unsafe fn copy(
        &self,
        queue: RawQueue,
        from: Memory,
        from_offset: usize,
        to: Memory,
        to_offset: usize,
        bytes: usize,
    ) -> Result<()>;
    /// Enqueues setting `bytes` at `offset` to the byte `value`.
    ///
    /// # Safety
    /// See the trait.
    unsafe fn fill(&self, queue: RawQueue, to: Memory, offset: usize, bytes: usize, value: u8) -> Result<()>;
    /// Enqueues a kernel. With `timed`, returns the events to read its times from.
    ///
    /// # Safety
    /// See the trait; `args` match the kernel's parameters in number, order and width.
    unsafe fn launch(
        &self,
        queue: RawQueue,
        kernel: RawKernel,
        grid: Grid,
        args: &[RawArg<'_>],
        timed: bool,
    ) -> Result<Option<Timer>>;

    /// Makes the machine code that a driver else makes at the first launch of a kernel, in
    /// work-groups of one work-item. Blocks until it is made.
    ///
    /// # Safety
    /// See the trait; `parameters` are the kernel's, in order. The kernel returns at once where its
    /// grid has a second dimension.
    unsafe fn dry_launch(&self, kernel: RawKernel, parameters: &[Parameter]) -> Result<()> {
        let _ = (kernel, parameters);
        Ok(())
    }

    /// Records an event at the current end of the queue.
    ///
    /// # Safety
    /// See the trait.
    unsafe fn record(&self, queue: RawQueue) -> Result<RawEvent>;
    /// Makes later work on `queue` wait for `event` on the device.
    ///
    /// # Safety
    /// See the trait.
    unsafe fn wait_on(&self, queue: RawQueue, event: RawEvent) -> Result<()>;
    /// Whether the event has completed; errors of the work before it surface here.
    ///
    /// # Safety
    /// See the trait.
    unsafe fn is_done(&self, event: RawEvent) -> Result<bool>;
    /// Blocks until the event has completed; errors of the work before it surface here.
    ///
    /// # Safety
    /// See the trait.
    unsafe fn wait(&self, event: RawEvent) -> Result<()>;
    /// Start and end of a completed launch in nanoseconds. All queues of the device share the
    /// clock; its zero is the driver's choice. Frees the timer's events, unless the driver cannot
    /// be reached any more.
    ///
    /// # Safety
    /// See the trait.
    unsafe fn read_timer(&self, timer: Timer) -> Result<Range<u64>>;
    /// Memory traffic of a completed launch, before [`read_timer`](Self::read_timer); `None` where
    /// the device does not count it.
    ///
    /// # Safety
    /// See the trait.
    unsafe fn read_traffic(&self, _timer: Timer) -> Option<Traffic> {
        None
    }
    /// Frees an event, completed or not.
    ///
    /// # Safety
    /// See the trait.
    unsafe fn destroy_event(&self, event: RawEvent);

    /// Name and version of a compiler outside of the driver, and the options of every compilation.
    /// Part of the key of stored programs.
    fn compiler(&self) -> String {
        String::new()
    }
    /// Options of a compilation that shall not take long, whatever its kernels cost then. Empty
    /// for compilers that have none.
    fn options_against_optimization(&self) -> &'static [&'static str] {
        &[]
    }
    /// The first tier of a program, for a compiler whose optimization takes longer than most
    /// queries. `None` where one compilation does.
    fn first_tier(&self) -> Option<FirstTier> {
        None
    }
    /// Compiles kernel source to an image for [`load`](Self::load). Blocks; any thread may call
    /// it. `CompileFailed` carries source and log.
    fn compile(&self, source: &str, options: &[String]) -> Result<Vec<u8>>;
    /// Loads an image of [`compile`](Self::compile), from this or an earlier process.
    fn load(&self, image: &[u8]) -> Result<RawProgram>;
    /// Unloads a program none of whose kernels is running.
    ///
    /// # Safety
    /// See the trait.
    unsafe fn unload(&self, program: RawProgram);
    /// A kernel of a program by name. The program owns it.
    ///
    /// # Safety
    /// See the trait.
    unsafe fn kernel(&self, program: RawProgram, name: &str) -> Result<RawKernel>;
}

fn no_foreign_contexts(info: &DeviceInfo) -> Error {
    let reason = "its driver has one context, whose memory all share".to_owned();
    Error::Unusable { device: info.name.clone(), reason }
}
