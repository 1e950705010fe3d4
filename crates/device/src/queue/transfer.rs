// SPDX-License-Identifier: Apache-2.0
//! Allocations, uploads, copies and fills of a queue.

use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

use bytes::Bytes;

use super::handle::Queue;
use crate::memory::{Buffer, UPLOAD_CHUNK};
use crate::report::WorkKind;
use crate::{Error, Result};

/// The largest write or fill by the host itself where it can reach the memory: enqueueing costs
/// more.
const SMALL_FILL: usize = 256 << 10;

impl Queue {
    /// Allocates `bytes` of device memory, contents undefined. 0 bytes are allowed: kernels get a
    /// valid address.
    ///
    /// # Errors
    /// `OutOfMemory` at the limit of the pool or the device, `TooLarge` beyond the device's largest
    /// allocation.
    pub fn alloc(&self, bytes: usize) -> Result<Buffer> {
        self.allocate(bytes, false)
    }

    /// Like [`alloc`](Self::alloc), for memory that the host writes next. If the device shares the
    /// host's memory, [`write`](Self::write) need not wait for earlier uses of it.
    ///
    /// # Errors
    /// As [`alloc`](Self::alloc).
    pub fn alloc_for_writes(&self, bytes: usize) -> Result<Buffer> {
        self.allocate(bytes, self.context().info().unified_memory)
    }

    fn allocate(&self, bytes: usize, idle: bool) -> Result<Buffer> {
        let pool = self.context().pool();
        let (memory, uses) = pool.allocate(self.worker(), bytes, idle, self.claim.as_ref())?;
        let owner = (pool.clone(), self.claim.clone());
        let buffer = Buffer::pooled(memory, bytes, self.worker(), uses.clone(), owner, self.meters.clone());
        for (other, sequence) in &uses {
            self.order_after(other, *sequence)?;
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
    /// A device that shares the host's memory uses it in place:
    /// - The buffer keeps `bytes`, which must not be written; kernels are trusted not to.
    /// - The address must have the alignment of the elements that kernels read.
    /// - The memory counts towards the limit if [`Buffer::count_in_place`] says so.
    ///
    /// # Errors
    /// As [`alloc`](Self::alloc).
    pub fn upload(&self, bytes: Bytes) -> Result<Buffer> {
        if bytes.is_empty() {
            return self.alloc(0);
        }
        // SAFETY: the buffer keeps `bytes` until the driver has freed its handle.
        let imported = unsafe { self.driver().import_host(bytes.as_ptr() as usize, bytes.len()) };
        if let Some(memory) = imported.inspect_err(|error| self.worker().check_loss(error))? {
            self.count_up(bytes.len());
            return Ok(Buffer::imported(memory, bytes, self.worker(), self.driver()));
        }
        let buffer = self.alloc(bytes.len())?;
        self.write(&buffer, 0, &bytes)?;
        Ok(buffer)
    }

    /// A buffer of constant bytes, uploaded once for the context.
    ///
    /// # Errors
    /// As [`upload`](Self::upload).
    pub fn constant(&self, bytes: &'static [u8]) -> Result<Buffer> {
        let key = bytes.as_ptr() as usize;
        let known = self.context().constants().lock().get(&key).cloned();
        // After a failed upload the contents are undefined.
        if let Some(known) = known.filter(|known| known.len() == bytes.len() && known.home().outcome().is_ok()) {
            return Ok(known);
        }
        // Without the lock, since an upload may wait. Two concurrent uploads do no harm.
        let constant = self.upload(Bytes::from_static(bytes))?;
        self.context().constants().lock().insert(key, constant.clone());
        Ok(constant)
    }

    /// Writes `bytes` at `offset`; they are copied before this returns.
    ///
    /// Blocks while more than 128 MiB of uploads are in flight.
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
        self.write_uncounted(to, offset, bytes)
    }

    /// Writes into a range of a buffer, which is no upload of data.
    pub(super) fn write_uncounted(&self, to: &Buffer, offset: usize, bytes: &[u8]) -> Result<()> {
        let _copy = HostCopy { queue: self, bytes: bytes.len() as u64, start: Instant::now() };
        if let Some(host) = to.idle_host() {
            // SAFETY: the range lies in the buffer's memory, which no enqueued work uses.
            unsafe { copy_bytes(bytes.as_ptr() as usize, host + offset, bytes.len()) };
            return Ok(());
        }
        self.wait_for_uses(to)?;
        for (index, chunk) in bytes.chunks(UPLOAD_CHUNK).enumerate() {
            let pinned = self.context().pinned().for_upload(chunk.len())?;
            // SAFETY: the pinned block is at least as long as the chunk and belongs to this thread.
            unsafe { copy_bytes(chunk.as_ptr() as usize, pinned.host(), chunk.len()) };
            let offset = offset + index * UPLOAD_CHUNK;
            // SAFETY: the handles are alive; `pinned` and the buffer stay so until the copy has
            // completed.
            let upload = |raw| unsafe { self.driver().upload(raw, pinned.host(), to.raw(), offset, chunk.len()) };
            let sequence = self.worker().enqueue(upload)?;
            to.uses().add(self.worker(), sequence);
            self.worker().keep_alive(sequence, Box::new(pinned));
        }
        Ok(())
    }

    /// Copies between buffers, or between ranges of one buffer that do not overlap.
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
        self.wait_for_uses(from)?;
        self.wait_for_uses(to)?;
        // SAFETY: the handles are alive and stay so, the ranges were checked.
        let copy = |raw| unsafe { self.driver().copy(raw, from.raw(), from_offset, to.raw(), to_offset, bytes) };
        let sequence = self.worker().enqueue(copy)?;
        from.uses().add(self.worker(), sequence);
        to.uses().add(self.worker(), sequence);
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
            // SAFETY: the range lies in the buffer's memory, which no enqueued work uses.
            unsafe { std::ptr::write_bytes((host + offset) as *mut u8, value, bytes) };
            return Ok(());
        }
        self.wait_for_uses(to)?;
        // SAFETY: the handles are alive and stay so, the range was checked.
        let sequence = self.worker().enqueue(|raw| unsafe { self.driver().fill(raw, to.raw(), offset, bytes, value) })?;
        to.uses().add(self.worker(), sequence);
        self.context().live_counters().bytes_filled.fetch_add(bytes as u64, Relaxed);
        Ok(())
    }

    fn count_up(&self, bytes: usize) {
        self.context().live_counters().bytes_up.fetch_add(bytes as u64, Relaxed);
        self.meters.uploaded(bytes);
    }
}

/// Records a copy of the host's when this is dropped.
struct HostCopy<'a> {
    queue: &'a Queue,
    bytes: u64,
    start: Instant,
}

impl Drop for HostCopy<'_> {
    fn drop(&mut self) {
        self.queue.meters.record(WorkKind::Upload { bytes: self.bytes }, self.start);
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
