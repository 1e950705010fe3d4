// SPDX-License-Identifier: Apache-2.0
//! What a driver must do: the one trait behind every device.
//!
//! Handles are plain integers that only the driver that made them understands. Everything that
//! enqueues returns at once; only [`Driver::wait`] and [`Driver::fetch`] block, and only threads made for waiting call them.
//! Ownership, lifetimes, pooling and counting are the business of the types above this trait.

use std::fmt::Debug;
use std::ops::Range;

use crate::{DeviceInfo, Error, Result};

/// Device memory as the driver knows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Memory {
    /// `CUdeviceptr` or `cl_mem`.
    pub handle: u64,
    /// Bytes that the handle spans.
    pub bytes: usize,
    /// The host's address of the same bytes, 0 where the host cannot reach them.
    pub host: usize,
}

/// Memory of somebody else, as a driver finds it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Foreign {
    /// The device can use it where it lies; the bytes reach to the end of the allocation.
    InPlace(Memory),
    /// Its contents must be copied through the host; the bytes of the allocation.
    Elsewhere(usize),
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
    /// Each of its events once.
    pub fn events(self) -> impl Iterator<Item = RawEvent> {
        std::iter::once(self.start).chain((self.end != self.start).then_some(self.end))
    }
}

/// One argument of a launch as the driver takes it.
#[derive(Debug, Clone, Copy)]
pub enum RawArg<'a> {
    /// A buffer: the kernel sees a pointer to its first byte.
    Memory(Memory),
    /// A scalar of 1, 2, 4, 8 or 16 bytes in native order.
    Value(&'a [u8]),
}

/// Groups and items of a launch, one-dimensional.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Grid {
    /// Number of groups, at least 1.
    pub groups: u32,
    /// Items in each group, at least 1.
    pub work_group_size: u32,
}

/// What a device is called in its driver's own interface, for code that calls that too. Good as long as the driver object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Native {
    /// `cl_context` and `cl_device_id`.
    OpenCl {
        /// `cl_context`.
        context: u64,
        /// `cl_device_id`.
        device: u64,
    },
    /// The device's primary `CUcontext`, and its `CUdevice`.
    Cuda {
        /// `CUcontext`.
        context: u64,
        /// `CUdevice`.
        device: i32,
    },
}

/// One opened device.
///
/// # Safety
/// The unsafe methods take handles that must come from this very driver object (but for memory and events of others, where
/// a method says so), must not have been freed, and must stay alive until the work that uses them has completed.
pub trait Driver: Debug + Send + Sync {
    /// What is known of the device.
    fn info(&self) -> &DeviceInfo;
    /// What the device is called in the driver's own interface.
    fn native(&self) -> Native;

    /// Allocates `bytes` (at least 1) of device memory, contents undefined. `OutOfMemory` where there is none.
    fn alloc(&self, bytes: usize) -> Result<Memory>;
    /// Makes host memory usable by kernels without a copy, or answers `None` where the device cannot.
    ///
    /// # Safety
    /// `host .. host + bytes` stays valid, and is not written by the host, until [`free`](Self::free).
    unsafe fn import_host(&self, host: usize, bytes: usize) -> Result<Option<Memory>>;
    /// The address by which kernels reach `memory`, as a number that other memory may hold. `None` where the driver
    /// promises none: a `cl_mem` outside of host memory.
    fn address(&self, memory: Memory) -> Option<u64>;
    /// What memory of somebody else is to this device: `handle` is a `CUdeviceptr` or `cl_mem`.
    ///
    /// # Safety
    /// The handle is live.
    unsafe fn adopt(&self, handle: u64) -> Result<Foreign>;
    /// Copies the first `bytes` of memory that [`adopt`](Self::adopt) found elsewhere to the host. Blocks.
    ///
    /// # Safety
    /// The handle is live, what writes the memory has completed, and `to .. to + bytes` is the caller's.
    unsafe fn fetch(&self, handle: u64, to: usize, bytes: usize) -> Result<()>;
    /// Whether [`wait_on`](Self::wait_on) takes an event of somebody else; [`wait`](Self::wait) always does. The failure of
    /// its work, if that is known.
    ///
    /// # Safety
    /// The event is live.
    unsafe fn takes_event(&self, event: RawEvent) -> Result<bool>;
    /// Gives memory back. Called once no queue uses it any more.
    ///
    /// # Safety
    /// See the trait.
    unsafe fn free(&self, memory: Memory);
    /// Allocates host memory that copies fast (pinned where the driver knows the notion); its address.
    fn alloc_pinned(&self, bytes: usize) -> Result<usize>;
    /// Frees what [`alloc_pinned`](Self::alloc_pinned) gave.
    ///
    /// # Safety
    /// See the trait; `host` and `bytes` are those of the allocation.
    unsafe fn free_pinned(&self, host: usize, bytes: usize);

    /// A new in-order queue.
    fn create_queue(&self) -> Result<RawQueue>;
    /// A new in-order queue for somebody else, who will release it and its context once each: the context is retained for
    /// that. It times commands with `profiling`.
    fn lend_queue(&self, profiling: bool) -> Result<RawQueue> {
        let _ = profiling;
        let reason = "its driver has no queues that others can own".to_owned();
        Err(Error::Unusable { device: self.info().name.clone(), reason })
    }
    /// Releases what [`lend_queue`](Self::lend_queue) gave, as its new owner would have done.
    ///
    /// # Safety
    /// See the trait; nobody has become its owner.
    unsafe fn take_back_queue(&self, queue: RawQueue) {
        let _ = queue;
    }
    /// The context, a `CUcontext`, that memory of this device belongs to, ours or a neighbour's.
    ///
    /// # Safety
    /// The handle is live.
    unsafe fn neighbour_of(&self, handle: u64) -> Result<u64> {
        let _ = handle;
        Err(no_neighbours(self.info()))
    }
    /// Allocates `bytes` (at least 1) of device memory in a neighbour's context.
    ///
    /// # Safety
    /// The context is live.
    unsafe fn alloc_in(&self, context: u64, bytes: usize) -> Result<Memory> {
        let _ = (context, bytes);
        Err(no_neighbours(self.info()))
    }
    /// Gives back what [`alloc_in`](Self::alloc_in) gave.
    ///
    /// # Safety
    /// The context is live, and the memory is not used any more.
    unsafe fn free_in(&self, context: u64, memory: Memory) {
        let _ = (context, memory);
    }
    /// Enqueues a copy of `bytes` from the memory of one context to that of another.
    ///
    /// # Safety
    /// See the trait, of both handles; each has as many bytes.
    unsafe fn copy_between(&self, queue: RawQueue, from: u64, to: u64, bytes: usize) -> Result<()> {
        let _ = (queue, from, to, bytes);
        Err(no_neighbours(self.info()))
    }
    /// Ends a queue whose work has completed.
    ///
    /// # Safety
    /// See the trait.
    unsafe fn destroy_queue(&self, queue: RawQueue);
    /// Hands everything enqueued so far to the device.
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
    /// Enqueues a kernel. With `timed`, the events to read its times from.
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

    /// Marks the current end of the queue.
    ///
    /// # Safety
    /// See the trait.
    unsafe fn record(&self, queue: RawQueue) -> Result<RawEvent>;
    /// Makes later work on `queue` wait for `event`, without the host waiting.
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
    /// Start and end of a completed launch, in nanoseconds of one clock that all queues of the device share; its zero
    /// is the driver's choice. The timer is used up: its events are freed, unless the driver cannot be reached any more.
    ///
    /// # Safety
    /// See the trait.
    unsafe fn read_timer(&self, timer: Timer) -> Result<Range<u64>>;
    /// Frees an event, completed or not.
    ///
    /// # Safety
    /// See the trait.
    unsafe fn destroy_event(&self, event: RawEvent);

    /// Name and version of the compiler, as far as they are not those of the driver, and the options that it is
    /// always given: compiled programs are stored under it.
    fn compiler(&self) -> String {
        String::new()
    }
    /// Compiles text to something that [`load`](Self::load) takes. Blocks; any thread.
    /// `CompileFailed` carries text and log.
    fn compile(&self, text: &str, options: &[String]) -> Result<Vec<u8>>;
    /// Loads what [`compile`](Self::compile) gave, in this or an earlier process.
    fn load(&self, binary: &[u8]) -> Result<RawProgram>;
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

fn no_neighbours(info: &DeviceInfo) -> Error {
    let reason = "its driver has one context, whose memory all share".to_owned();
    Error::Unusable { device: info.name.clone(), reason }
}
