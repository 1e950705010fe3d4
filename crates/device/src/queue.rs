// SPDX-License-Identifier: Apache-2.0
//! Queues: everything that happens on a device is enqueued through one.

use std::any::{Any, TypeId};
use std::collections::HashMap;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use bytes::Bytes;
use futures::channel::oneshot;
use parking_lot::Mutex;

use crate::buffer::HostView;
use crate::context::Context;
use crate::driver::{Driver, Grid, RawArg, RawEvent};
use crate::lane::{Lane, Mark, QUEUE_GONE};
use crate::meter::{Meter, Meters};
use crate::pinned::{PIECE, Piece};
use crate::pool::{Reservation, SharedClaim};
use crate::program::{Kernel, Program, ProgramSource};
use crate::{Buffer, Error, Result};

/// Bytes of the zeros that stand for an empty buffer: as many as the widest value has.
const NOTHING: usize = 16;

/// Writes and fills up to this size are done by the host where it can reach the memory: enqueueing costs more.
const SMALL_FILL: usize = 256 << 10;

/// An in-order queue of a device. A handle: clones share one queue, from any thread.
///
/// What is enqueued returns at once and runs in order. Queues among each other are not ordered, except that
/// whatever uses a buffer waits for what the queue that allocated the buffer has done to it before. For
/// other orders there are [`record`](Self::record) and [`wait_for`](Self::wait_for).
///
/// Futures begin their work when they are made, not when they are polled, and may be dropped.
#[derive(Clone)]
pub struct Queue {
    lease: Arc<Lease>,
    meters: Meters,
    claim: Option<SharedClaim>,
}

/// A lane out of the context's idle ones, given back when dropped.
struct Lease {
    context: Context,
    lane: Arc<Lane>,
    kept: Mutex<HashMap<TypeId, Arc<dyn Any + Send + Sync>>>,
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.lane.settle_later();
        self.context.give_back(&self.lane);
    }
}

impl fmt::Debug for Queue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Queue").field("lane", &self.lease.lane).finish_non_exhaustive()
    }
}

/// An argument of a launch.
///
/// # Examples
/// ```
/// let args = [device::Arg::from(7u32), 2.5f64.into()];
/// assert!(matches!(args, [device::Arg::U32(7), device::Arg::F64(_)]));
/// ```
#[derive(Debug, Clone, Copy)]
#[allow(missing_docs)]
pub enum Arg<'a> {
    Buffer(&'a Buffer),
    U8(u8),
    I8(i8),
    U16(u16),
    I16(i16),
    U32(u32),
    I32(i32),
    U64(u64),
    I64(i64),
    F32(f32),
    F64(f64),
}

impl<'a> From<&'a Buffer> for Arg<'a> {
    fn from(buffer: &'a Buffer) -> Self {
        Self::Buffer(buffer)
    }
}

/// Lists the scalars once: conversions into arguments, and their bytes.
macro_rules! scalars {
    ($($variant:ident: $type:ty),*) => {
        $(impl From<$type> for Arg<'_> {
            fn from(value: $type) -> Self {
                Self::$variant(value)
            }
        })*

        impl Arg<'_> {
            /// Width in bytes, and the bytes in native order.
            fn bytes(&self) -> (usize, [u8; 8]) {
                let mut bytes = [0; 8];
                let width = match self {
                    Self::Buffer(_) => 8,
                    $(Self::$variant(value) => {
                        let value = value.to_ne_bytes();
                        bytes[..value.len()].copy_from_slice(&value);
                        value.len()
                    })*
                };
                (width, bytes)
            }
        }
    };
}
scalars!(U8: u8, I8: i8, U16: u16, I16: i16, U32: u32, I32: i32, U64: u64, I64: i64, F32: f32, F64: f64);

impl<'a> Arg<'a> {
    fn buffer(&self) -> Option<&'a Buffer> {
        if let Self::Buffer(buffer) = self { Some(buffer) } else { None }
    }
}

/// The arguments of one launch that its kernel reads from memory.
struct ArgTable {
    words: Buffer,
    /// Stand for buffers without an address.
    copies: Vec<Buffer>,
}

/// A point in a queue that others can wait for.
#[derive(Clone)]
pub struct Event {
    lane: Arc<Lane>,
    mark: Arc<Mark>,
}

impl fmt::Debug for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Event").field("lane", &self.lane).field("number", &self.mark.number()).finish()
    }
}

impl Event {
    /// Whether everything before it has completed.
    ///
    /// # Errors
    /// The failure of the work before it.
    pub fn is_done(&self) -> Result<bool> {
        if self.lane.is_complete(self.mark.number()) {
            return self.lane.outcome().map(|()| true);
        }
        self.mark.is_done().inspect_err(|error| self.lane.heed(error))
    }

    /// The driver's own event, for handing it to others; `None` where everything before it is known to have
    /// completed. Alive as long as this.
    pub fn raw(&self) -> Option<RawEvent> {
        (!self.lane.is_complete(self.mark.number())).then(|| self.mark.raw())
    }

    /// Completes with everything before it.
    ///
    /// # Errors
    /// The failure of the work before it.
    pub fn wait(&self) -> impl Future<Output = Result<()>> + Send + use<> {
        let (sender, receiver) = oneshot::channel();
        let lane = Arc::clone(&self.lane);
        self.lane.when_marked(&self.mark, Box::new(move || _ = sender.send(lane.outcome())));
        async move { receiver.await.map_err(|_| QUEUE_GONE)? }
    }
}

impl Queue {
    pub(crate) fn new(context: Context, lane: Arc<Lane>) -> Self {
        Self { lease: Arc::new(Lease { context, lane, kept: Mutex::default() }), meters: Meters::default(), claim: None }
    }

    pub(crate) fn lane(&self) -> &Arc<Lane> {
        &self.lease.lane
    }

    pub(crate) fn driver(&self) -> &Arc<dyn Driver> {
        self.context().driver()
    }

    /// The context that it belongs to.
    pub fn context(&self) -> &Context {
        &self.lease.context
    }

    /// Its number in the context, counted from 1: that of its records in [`Context::timeline`]. Whoever gets the queue next
    /// finds it under the same number.
    pub fn number(&self) -> u32 {
        self.lane().number()
    }

    /// What users of this queue keep for each other under its type, empty when first asked for. It goes with the queue's last
    /// handle, so it must hold none.
    ///
    /// # Examples
    /// ```
    /// # use parking_lot::Mutex;
    /// #[derive(Default)]
    /// struct Asked(Mutex<u32>);
    ///
    /// # let context = device::Context::new(device::testing::config()?)?;
    /// let queue = context.queue()?;
    /// *queue.kept::<Asked>().0.lock() += 1;
    /// assert_eq!(*queue.clone().kept::<Asked>().0.lock(), 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn kept<T: Any + Default + Send + Sync>(&self) -> Arc<T> {
        let mut kept = self.lease.kept.lock();
        let known = kept.get(&TypeId::of::<T>()).and_then(|known| Arc::clone(known).downcast().ok());
        known.unwrap_or_else(|| {
            let new = Arc::<T>::default();
            kept.insert(TypeId::of::<T>(), Arc::clone(&new) as Arc<dyn Any + Send + Sync>);
            new
        })
    }

    /// A handle of the same queue whose costs are charged to `meter` too, beside those of this handle.
    pub fn metered(&self, meter: &Arc<Meter>) -> Queue {
        Queue { meters: self.meters.with(meter), ..self.clone() }
    }

    /// A handle of the same queue whose allocations draw on `reservation` first; one of another context's pool
    /// is not drawn on.
    pub fn reserved(&self, reservation: &Reservation) -> Queue {
        Queue { claim: reservation.claim_on(self.context().pool()), ..self.clone() }
    }

    /// Allocates `bytes` of device memory, contents undefined. 0 bytes are fine: kernels get a valid address.
    ///
    /// # Errors
    /// `OutOfMemory` at the pool's limit or the device's, `TooLarge` beyond what one allocation may have.
    pub fn alloc(&self, bytes: usize) -> Result<Buffer> {
        self.allocate(bytes, false)
    }

    /// As [`alloc`](Self::alloc), for memory that the host writes next: where the device shares the host's
    /// memory, [`write`](Self::write) need not wait for work that still uses it.
    ///
    /// # Errors
    /// As [`alloc`](Self::alloc).
    pub fn alloc_for_writes(&self, bytes: usize) -> Result<Buffer> {
        self.allocate(bytes, self.context().info().unified_memory)
    }

    fn allocate(&self, bytes: usize, idle: bool) -> Result<Buffer> {
        let pool = self.context().pool();
        let (memory, uses) = pool.allocate(self.lane(), bytes, idle, self.claim.as_ref())?;
        let owner = (pool.clone(), self.claim.clone());
        let buffer = Buffer::pooled(memory, bytes, self.lane(), uses.clone(), owner, self.meters.clone());
        for (lane, number) in &uses {
            self.order_after(lane, *number)?;
        }
        Ok(buffer)
    }

    /// Allocates `bytes` that are all 0.
    ///
    /// # Errors
    /// As [`alloc`](Self::alloc).
    pub fn zeroed(&self, bytes: usize) -> Result<Buffer> {
        self.filled(bytes, 0)
    }

    /// Allocates `bytes` that are all `value`.
    ///
    /// # Errors
    /// As [`alloc`](Self::alloc).
    pub fn filled(&self, bytes: usize, value: u8) -> Result<Buffer> {
        let buffer = self.alloc(bytes)?;
        self.fill(&buffer, 0, bytes, value)?;
        Ok(buffer)
    }

    /// Puts host memory onto the device.
    ///
    /// Where the device shares the host's memory nothing is copied: the buffer keeps `bytes`, and nobody
    /// may write it; kernels are trusted not to. The address must be aligned as the elements that kernels read there.
    ///
    /// # Errors
    /// As [`alloc`](Self::alloc); shared memory does not count towards the limit.
    pub fn upload(&self, bytes: Bytes) -> Result<Buffer> {
        if bytes.is_empty() {
            return self.alloc(0);
        }
        // SAFETY: the buffer keeps `bytes` until the driver has let go of the memory.
        let imported = unsafe { self.driver().import_host(bytes.as_ptr() as usize, bytes.len()) };
        if let Some(memory) = imported.inspect_err(|error| self.lane().heed(error))? {
            self.count_up(bytes.len());
            return Ok(Buffer::imported(memory, bytes, self.lane(), self.driver()));
        }
        let buffer = self.alloc(bytes.len())?;
        self.write(&buffer, 0, &bytes)?;
        Ok(buffer)
    }

    /// Bytes that never change: on the device once for the context, however often they are asked for.
    ///
    /// # Errors
    /// As [`upload`](Self::upload).
    pub fn constant(&self, bytes: &'static [u8]) -> Result<Buffer> {
        let key = bytes.as_ptr() as usize;
        let known = self.context().constants().lock().get(&key).cloned();
        // One whose upload has failed since holds anything.
        if let Some(known) = known.filter(|known| known.len() == bytes.len() && known.home().outcome().is_ok()) {
            return Ok(known);
        }
        // Without the lock: an upload may wait. Two at once do no harm.
        let constant = self.upload(Bytes::from_static(bytes))?;
        self.context().constants().lock().insert(key, constant.clone());
        Ok(constant)
    }

    /// Writes `bytes` at `offset`; they are copied before this returns.
    ///
    /// Waits for earlier uploads where more than 128 MiB of them are on their way.
    ///
    /// # Errors
    /// `Range` if they do not fit; the driver's refusal.
    pub fn write(&self, to: &Buffer, offset: usize, bytes: &[u8]) -> Result<()> {
        to.check("write", offset, bytes.len())?;
        to.check_writable("write")?;
        if bytes.is_empty() {
            return Ok(());
        }
        self.count_up(bytes.len());
        if let Some(host) = to.idle_host() {
            // SAFETY: the range lies in the buffer's memory, which nothing enqueued uses.
            unsafe { copy_bytes(bytes.as_ptr() as usize, host + offset, bytes.len()) };
            return Ok(());
        }
        self.follow(to)?;
        for (index, piece) in bytes.chunks(PIECE).enumerate() {
            let pinned = self.context().pinned().for_upload(piece.len())?;
            // SAFETY: the pinned memory is at least as long as the piece and belongs to this thread alone.
            unsafe { copy_bytes(piece.as_ptr() as usize, pinned.host(), piece.len()) };
            let offset = offset + index * PIECE;
            // SAFETY: the handles are alive; `pinned` and the buffer stay so until the copy has completed.
            let number =
                self.lane().enqueue(|raw| unsafe { self.driver().upload(raw, pinned.host(), to.raw(), offset, piece.len()) })?;
            to.uses().note(self.lane(), number);
            self.lane().keep(number, Box::new(pinned));
        }
        Ok(())
    }

    /// Copies between buffers, which may be the same one if the ranges do not overlap.
    ///
    /// # Errors
    /// `Range` if a range leaves its buffer; the driver's refusal.
    pub fn copy(&self, from: &Buffer, from_offset: usize, to: &Buffer, to_offset: usize, bytes: usize) -> Result<()> {
        from.check("copy", from_offset, bytes)?;
        to.check("copy", to_offset, bytes)?;
        to.check_writable("copy")?;
        if from.same(to) && from_offset.abs_diff(to_offset) < bytes {
            let (start, end) = (from_offset, from_offset + bytes);
            return Err(Error::Range { call: "overlapping copy", start, end, len: from.len() });
        }
        if bytes == 0 {
            return Ok(());
        }
        self.follow(from)?;
        self.follow(to)?;
        // SAFETY: the handles are alive and stay so, the ranges were checked.
        let number =
            self.lane().enqueue(|raw| unsafe { self.driver().copy(raw, from.raw(), from_offset, to.raw(), to_offset, bytes) })?;
        from.uses().note(self.lane(), number);
        to.uses().note(self.lane(), number);
        Ok(())
    }

    /// Sets `bytes` at `offset` to `value`.
    ///
    /// # Errors
    /// `Range` if they leave the buffer; the driver's refusal.
    pub fn fill(&self, to: &Buffer, offset: usize, bytes: usize, value: u8) -> Result<()> {
        to.check("fill", offset, bytes)?;
        to.check_writable("fill")?;
        if bytes == 0 {
            return Ok(());
        }
        if bytes <= SMALL_FILL
            && let Some(host) = to.idle_host()
        {
            // SAFETY: the range lies in the buffer's memory, which nothing enqueued uses.
            unsafe { std::ptr::write_bytes((host + offset) as *mut u8, value, bytes) };
            return Ok(());
        }
        self.follow(to)?;
        // SAFETY: the handles are alive and stay so, the range was checked.
        let number = self.lane().enqueue(|raw| unsafe { self.driver().fill(raw, to.raw(), offset, bytes, value) })?;
        to.uses().note(self.lane(), number);
        Ok(())
    }

    /// Reads a range of a buffer, as it is after everything enqueued so far.
    ///
    /// Where the device shares the host's memory nothing is copied: the bytes keep the buffer, which must
    /// not be written again.
    ///
    /// # Errors
    /// `Range` if it leaves the buffer; as [`finish`](Self::finish).
    pub fn read(&self, from: &Buffer, range: Range<usize>) -> impl Future<Output = Result<Bytes>> + Send + use<> {
        let bytes = range.len();
        let pinned = self.context().pinned();
        let landing =
            || Ok(pinned.for_download(bytes).map_or_else(|| Landing::heap(bytes), |piece| Landing::pinned(piece, bytes)));
        let started = match bytes {
            0 => from.check("read", range.start, 0).map(|()| None),
            _ => self.start_read(from, range, landing).and_then(|target| Ok(Some((self.lane().finished()?, target)))),
        };
        let (lane, meters) = (Arc::clone(self.lane()), self.meters.clone());
        async move {
            let Some((finished, target)) = started? else { return Ok(Bytes::new()) };
            lane.wait(finished, meters).await?;
            Ok(target.into_bytes())
        }
    }

    /// Copies a buffer, as it is after everything enqueued so far, to host memory that others may keep: pinned where the
    /// driver knows the notion, however much of that there is already. It holds the bytes once
    /// [`finish`](Self::finish) has completed.
    ///
    /// Where the device shares the host's memory nothing is copied: the result keeps the buffer, which must not be
    /// written again.
    ///
    /// # Errors
    /// `OutOfMemory` where the host has no such memory; the driver's refusal.
    ///
    /// # Examples
    /// ```
    /// # use device::{Context, DeviceConfig};
    /// # let Ok(context) = Context::new(DeviceConfig::default()) else { return Ok(()) };
    /// let queue = context.queue()?;
    /// let copy = queue.download(&queue.filled(4, 7)?)?;
    /// futures::executor::block_on(queue.finish())?;
    /// // SAFETY: four bytes, which have arrived.
    /// assert_eq!(unsafe { copy.as_ptr().cast::<[u8; 4]>().read() }, [7; 4]);
    /// # Ok::<(), device::Error>(())
    /// ```
    pub fn download(&self, from: &Buffer) -> Result<Download> {
        let bytes = from.len();
        let landing = |bytes| Ok(Landing::pinned(self.context().pinned().to_lend(bytes)?, bytes));
        if bytes > 0 {
            return self.start_read(from, 0..bytes, || landing(bytes)).map(Download);
        }
        let nothing = landing(NOTHING)?;
        // SAFETY: the memory has these bytes and belongs to this thread alone.
        unsafe { std::ptr::write_bytes(nothing.host as *mut u8, 0, NOTHING) };
        Ok(Download(ReadTarget::Copy(Arc::new(nothing))))
    }

    /// Enqueues a copy of at least one byte to host memory that `landing` gives.
    fn start_read(&self, from: &Buffer, range: Range<usize>, landing: impl FnOnce() -> Result<Landing>) -> Result<ReadTarget> {
        let bytes = range.len();
        from.check("read", range.start, bytes)?;
        let totals = self.context().totals();
        totals.bytes_down.fetch_add(bytes as u64, Relaxed);
        self.meters.down(bytes);
        self.follow(from)?;
        if from.raw().host != 0 {
            return Ok(ReadTarget::View(HostView { buffer: from.clone(), range }));
        }
        let target = Arc::new(landing()?);
        // SAFETY: the handles are alive; target and buffer stay so until the copy has completed.
        let number =
            self.lane().enqueue(|raw| unsafe { self.driver().download(raw, from.raw(), range.start, target.host, bytes) })?;
        from.uses().note(self.lane(), number);
        self.lane().keep(number, Box::new(Arc::clone(&target)));
        Ok(ReadTarget::Copy(target))
    }

    /// Launches a kernel.
    ///
    /// # Errors
    /// `Launch` for a grid or arguments that the device cannot take; the driver's refusal.
    pub fn launch(&self, kernel: &Kernel, grid: Grid, args: &[Arg<'_>]) -> Result<()> {
        self.launch_with_table(kernel, grid, &[], args)
    }

    /// As [`launch`](Self::launch), for kernels with more arguments than the device passes: unless `table` is empty,
    /// the first parameter is an array of 64-bit words, which hold the values and addresses in `table`.
    ///
    /// # Errors
    /// As [`launch`](Self::launch), and where the device gives buffers no addresses.
    pub fn launch_with_table(&self, kernel: &Kernel, grid: Grid, table: &[Arg<'_>], args: &[Arg<'_>]) -> Result<()> {
        let buffers = || table.iter().chain(args).filter_map(Arg::buffer);
        buffers().try_for_each(|buffer| self.follow(buffer))?;
        let table = self.arg_table(kernel, table)?;
        let args: Vec<Arg<'_>> = table.iter().map(|table| Arg::Buffer(&table.words)).chain(args.iter().copied()).collect();
        let values: Vec<(usize, [u8; 8])> = args.iter().map(Arg::bytes).collect();
        self.check_launch(kernel, grid, values.iter().map(|(width, _)| width).sum())?;
        let raw_args: Vec<RawArg<'_>> = args
            .iter()
            .zip(&values)
            .map(|(arg, (width, bytes))| match arg {
                Arg::Buffer(buffer) => RawArg::Memory(buffer.raw()),
                _ => RawArg::Value(&bytes[..*width]),
            })
            .collect();
        let timed = self.context().times_launches();
        // SAFETY: the handles are alive, and their uses are noted below, which keeps them so. That the
        // arguments match the kernel's is what the caller generated the kernel for.
        let number = self.lane().launch(timed, kernel.totals(), &self.meters, |raw, timed| unsafe {
            self.driver().launch(raw, kernel.raw(), grid, &raw_args, timed)
        })?;
        let own = table.iter().flat_map(|table| table.copies.iter().chain([&table.words]));
        buffers().chain(own).for_each(|buffer| buffer.uses().note(self.lane(), number));
        kernel.used(self.lane(), number);
        let totals = self.context().totals();
        totals.launches.fetch_add(1, Relaxed);
        totals.first_launches.fetch_add(u64::from(kernel.is_first_launch()), Relaxed);
        kernel.totals().launches.fetch_add(1, Relaxed);
        self.meters.launched();
        Ok(())
    }

    /// Uploads the values and addresses of arguments; `None` for none.
    fn arg_table(&self, kernel: &Kernel, args: &[Arg<'_>]) -> Result<Option<ArgTable>> {
        if args.is_empty() {
            return Ok(None);
        }
        let mut copies = Vec::new();
        let mut words = Vec::with_capacity(args.len() * 8);
        for arg in args {
            let Some(buffer) = arg.buffer() else {
                words.extend(arg.bytes().1);
                continue;
            };
            let address = match self.driver().address(buffer.raw()) {
                Some(address) => address,
                // A buffer of another library, at an address that its driver keeps to itself.
                None => {
                    let copy = self.alloc(buffer.len())?;
                    self.copy(buffer, 0, &copy, 0, buffer.len())?;
                    let address = self.driver().address(copy.raw()).ok_or_else(|| self.no_addresses(kernel))?;
                    copies.push(copy);
                    address
                }
            };
            words.extend(address.to_ne_bytes());
        }
        let table = self.alloc_for_writes(words.len())?;
        self.write(&table, 0, &words)?;
        Ok(Some(ArgTable { words: table, copies }))
    }

    fn no_addresses(&self, kernel: &Kernel) -> Error {
        let info = self.context().info();
        let reason = format!("arguments exceed the limit of {} bytes, and buffers have no addresses", info.max_arg_bytes);
        Error::Launch { device: info.label(), kernel: kernel.name().to_owned(), reason }
    }

    fn check_launch(&self, kernel: &Kernel, grid: Grid, arg_bytes: usize) -> Result<()> {
        let info = self.context().info();
        let refuse = |reason: String| Err(Error::Launch { device: info.label(), kernel: kernel.name().to_owned(), reason });
        if !kernel.is_of(self.driver()) {
            return Err(self.foreign("launch", "kernel"));
        }
        if grid.groups == 0 || grid.work_group_size == 0 {
            return refuse(format!("a grid of {} groups of {} items is empty", grid.groups, grid.work_group_size));
        }
        if grid.work_group_size > info.max_group_size {
            return refuse(format!("groups of {} items exceed the limit of {}", grid.work_group_size, info.max_group_size));
        }
        if arg_bytes > info.max_arg_bytes as usize {
            return refuse(format!("arguments of {arg_bytes} bytes exceed the limit of {}", info.max_arg_bytes));
        }
        Ok(())
    }

    /// Compiles a program, or finds it in a cache. Off the calling thread; callers that ask for the same
    /// program at the same time share one compilation.
    ///
    /// # Errors
    /// `CompileFailed` with text and log.
    pub fn compile(&self, source: ProgramSource) -> impl Future<Output = Result<Arc<Program>>> + Send + use<> {
        self.context().compiler().get(source, self.meters.clone())
    }

    /// Marks the current end of the queue.
    ///
    /// # Errors
    /// The driver's refusal.
    pub fn record(&self) -> Result<Event> {
        Ok(Event { lane: Arc::clone(self.lane()), mark: self.lane().mark()? })
    }

    /// As [`record`](Self::record), also after what has been done to `buffers` in the queues that made them.
    ///
    /// # Errors
    /// The driver's refusal; `Foreign` for a buffer of another context.
    pub fn record_after<'a>(&self, buffers: impl IntoIterator<Item = &'a Buffer>) -> Result<Event> {
        buffers.into_iter().try_for_each(|buffer| self.follow(buffer))?;
        self.record()
    }

    /// Makes whatever is enqueued from now on wait for `event`, on the device.
    ///
    /// # Errors
    /// The driver's refusal.
    pub fn wait_for(&self, event: &Event) -> Result<()> {
        if !event.lane.is_of(self.driver()) {
            return Err(self.foreign("wait", "event"));
        }
        if Arc::ptr_eq(&event.lane, self.lane()) || event.lane.is_complete(event.mark.number()) {
            return Ok(());
        }
        self.lane().wait_on(&event.mark)
    }

    /// Completes with everything enqueued so far.
    ///
    /// # Errors
    /// The first failure of work in this queue. It stays: no later result of the queue can be trusted.
    pub fn finish(&self) -> impl Future<Output = Result<()>> + Send + use<> {
        let (lane, finished, meters) = (Arc::clone(self.lane()), self.lane().finished(), self.meters.clone());
        async move { lane.wait(finished?, meters).await }
    }

    /// Makes this queue wait for what the buffer's own queue has done to it.
    pub(crate) fn follow(&self, buffer: &Buffer) -> Result<()> {
        if Arc::ptr_eq(buffer.home(), self.lane()) {
            return Ok(());
        }
        if !buffer.home().is_of(self.driver()) {
            return Err(self.foreign("use", "buffer"));
        }
        match buffer.uses().pending_in(buffer.home()) {
            Some(number) => self.order_after(buffer.home(), number),
            None => Ok(()),
        }
    }

    /// Makes this queue wait for the work of `number` in `lane`.
    fn order_after(&self, lane: &Arc<Lane>, number: u64) -> Result<()> {
        if Arc::ptr_eq(lane, self.lane()) {
            return Ok(());
        }
        match lane.mark_of(number)? {
            Some(mark) => self.lane().wait_on(&mark),
            None => Ok(()),
        }
    }

    fn foreign(&self, call: &'static str, what: &'static str) -> Error {
        Error::Foreign { device: self.context().info().label(), call, what }
    }

    fn count_up(&self, bytes: usize) {
        self.context().totals().bytes_up.fetch_add(bytes as u64, Relaxed);
        self.meters.up(bytes);
    }
}

/// A buffer's bytes in host memory, there once the queue has got so far; the memory is given back when this is dropped.
pub struct Download(ReadTarget);

impl fmt::Debug for Download {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Download").field(&self.as_ptr()).finish()
    }
}

impl Download {
    /// Where the bytes are; zeros for a first offset or value where the buffer has none.
    pub fn as_ptr(&self) -> *const u8 {
        let address = match &self.0 {
            ReadTarget::View(view) => view.address(),
            ReadTarget::Copy(landing) => landing.host,
        };
        address as *const u8
    }
}

/// What a read gives once the queue has got there.
enum ReadTarget {
    View(HostView),
    Copy(Arc<Landing>),
}

impl ReadTarget {
    fn into_bytes(self) -> Bytes {
        match self {
            Self::View(view) => Bytes::from_owner(view),
            Self::Copy(landing) => Bytes::from_owner(Landed(landing)),
        }
    }
}

/// Host memory that a download goes to.
struct Landing {
    host: usize,
    bytes: usize,
    /// `None` for memory of the heap.
    pinned: Option<Piece>,
}

impl Drop for Landing {
    fn drop(&mut self) {
        if self.pinned.is_none() {
            let bytes = std::ptr::slice_from_raw_parts_mut(self.host as *mut u8, self.bytes);
            // SAFETY: `heap` took this slice out of a box.
            drop(unsafe { Box::from_raw(bytes) });
        }
    }
}

impl Landing {
    fn pinned(piece: Piece, bytes: usize) -> Self {
        Self { host: piece.host(), bytes, pinned: Some(piece) }
    }

    fn heap(bytes: usize) -> Self {
        // A raw pointer from the start: the device writes behind the back of any reference.
        let host = Box::into_raw(vec![0u8; bytes].into_boxed_slice()) as *mut u8 as usize;
        Self { host, bytes, pinned: None }
    }
}

/// Memory that a download has arrived in.
struct Landed(Arc<Landing>);

impl AsRef<[u8]> for Landed {
    fn as_ref(&self) -> &[u8] {
        // SAFETY: the memory has these bytes and lives as long as `self`; the download has completed, and
        // nobody writes it any more.
        unsafe { std::slice::from_raw_parts(self.0.host as *const u8, self.0.bytes) }
    }
}

/// Copies host memory.
///
/// # Safety
/// Both ranges are valid and do not overlap.
unsafe fn copy_bytes(from: usize, to: usize, bytes: usize) {
    // SAFETY: the caller's promise.
    unsafe { std::ptr::copy_nonoverlapping(from as *const u8, to as *mut u8, bytes) };
}
