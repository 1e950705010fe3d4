// SPDX-License-Identifier: Apache-2.0
//! Reads and downloads of a queue: device memory to the host.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use bytes::Bytes;

use super::handle::Queue;
use crate::Result;
use crate::memory::{Buffer, HostView, PinnedBlock};
use crate::report::WorkKind;

/// Bytes of zeros that a download of an empty buffer gives: the widest value.
const EMPTY_BYTES: usize = 16;

/// Bytes of a range that is always viewed in place.
const VIEWED_BYTES: usize = 4096;

impl Queue {
    /// Reads a range of a buffer after everything enqueued so far.
    ///
    /// If the device shares the host's memory, nothing is copied: the bytes keep the buffer. It
    /// must not be written again. Where more than a quarter of the limit is in use, long ranges are
    /// copied all the same: the host may keep them.
    ///
    /// # Errors
    /// `Range` for a range outside the buffer; as [`finish`](Self::finish).
    pub fn read(&self, from: &Buffer, range: Range<usize>) -> impl Future<Output = Result<Bytes>> + Send + use<> {
        let bytes = range.len();
        let pinned = self.context().pinned();
        let target = || {
            let block = pinned.for_download(bytes);
            Ok(block.map_or_else(|| DownloadTarget::heap(bytes), |block| DownloadTarget::pinned(block, bytes)))
        };
        let started = match bytes {
            0 => from.check("read", range.start, 0).map(|()| None),
            _ => self.start_read(from, range, target).and_then(|result| Ok(Some((self.worker().finished()?, result)))),
        };
        let (worker, meters) = (Arc::clone(self.worker()), self.meters.clone());
        async move {
            let Some((finished, result)) = started? else { return Ok(Bytes::new()) };
            worker.wait(finished, meters, WorkKind::Read { bytes: bytes as u64 }).await?;
            Ok(result.into_bytes())
        }
    }

    /// Copies a buffer, after everything enqueued so far, to host memory: pinned where the driver
    /// can pin. Other libraries may keep it. It holds the bytes once [`finish`](Self::finish) has
    /// completed.
    ///
    /// If the device shares the host's memory, nothing is copied: the result keeps the buffer. It
    /// must not be written again.
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
        let target = |bytes| Ok(DownloadTarget::pinned(self.context().pinned().for_export(bytes)?, bytes));
        if bytes > 0 {
            return self.start_read(from, 0..bytes, || target(bytes)).map(Download);
        }
        let zeros = target(EMPTY_BYTES)?;
        // SAFETY: the memory has these bytes and belongs to this thread alone.
        unsafe { std::ptr::write_bytes(zeros.host as *mut u8, 0, EMPTY_BYTES) };
        Ok(Download(ReadResult::Copy(Arc::new(zeros))))
    }

    /// Whether too much memory is in use for views of it.
    fn is_crowded(&self) -> bool {
        let pool = self.context().pool();
        pool.limit() - pool.available() > pool.limit() / 4
    }

    /// Enqueues a copy of at least one byte to the host memory of `target`.
    fn start_read(
        &self,
        from: &Buffer,
        range: Range<usize>,
        target: impl FnOnce() -> Result<DownloadTarget>,
    ) -> Result<ReadResult> {
        let bytes = range.len();
        from.check("read", range.start, bytes)?;
        self.context().live_counters().bytes_down.fetch_add(bytes as u64, Relaxed);
        self.meters.downloaded(bytes);
        self.wait_for_uses(from)?;
        if from.raw().host != 0 && (bytes <= VIEWED_BYTES || !self.is_crowded()) {
            return Ok(ReadResult::View(HostView { buffer: from.clone(), range }));
        }
        let target = Arc::new(target()?);
        // SAFETY: the handles are alive; target and buffer stay so until the copy has completed.
        let download = |raw| unsafe { self.driver().download(raw, from.raw(), range.start, target.host, bytes) };
        let sequence = self.worker().enqueue(download)?;
        from.uses().add(self.worker(), sequence);
        self.worker().keep_alive(sequence, Box::new(Arc::clone(&target)));
        Ok(ReadResult::Copy(target))
    }
}

/// A buffer's bytes in host memory, valid once the queue has reached the copy. The drop frees the
/// memory.
pub struct Download(ReadResult);

impl fmt::Debug for Download {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Download").field(&self.as_ptr()).finish()
    }
}

impl Download {
    /// The address of the bytes. An empty buffer gives the address of 16 zero bytes, enough for a
    /// first offset or value.
    pub fn as_ptr(&self) -> *const u8 {
        let address = match &self.0 {
            ReadResult::View(view) => view.address(),
            ReadResult::Copy(target) => target.host,
        };
        address as *const u8
    }
}

/// The result of a read, valid once the queue has reached it.
enum ReadResult {
    View(HostView),
    Copy(Arc<DownloadTarget>),
}

impl ReadResult {
    fn into_bytes(self) -> Bytes {
        match self {
            Self::View(view) => Bytes::from_owner(view),
            Self::Copy(target) => Bytes::from_owner(Downloaded(target)),
        }
    }
}

/// Host memory that a download is copied to.
struct DownloadTarget {
    host: usize,
    bytes: usize,
    /// `None` for heap memory.
    pinned: Option<PinnedBlock>,
}

impl Drop for DownloadTarget {
    fn drop(&mut self) {
        if self.pinned.is_none() {
            let bytes = std::ptr::slice_from_raw_parts_mut(self.host as *mut u8, self.bytes);
            // SAFETY: `heap` leaked this boxed slice.
            drop(unsafe { Box::from_raw(bytes) });
        }
    }
}

impl DownloadTarget {
    fn pinned(block: PinnedBlock, bytes: usize) -> Self {
        Self { host: block.host(), bytes, pinned: Some(block) }
    }

    fn heap(bytes: usize) -> Self {
        // No reference may exist while the device writes.
        let host = Box::into_raw(vec![0u8; bytes].into_boxed_slice()) as *mut u8 as usize;
        Self { host, bytes, pinned: None }
    }
}

/// Host memory with a completed download.
struct Downloaded(Arc<DownloadTarget>);

impl AsRef<[u8]> for Downloaded {
    fn as_ref(&self) -> &[u8] {
        // SAFETY: the memory has these bytes and lives as long as `self`. The download has
        // completed, and nothing else writes the memory.
        unsafe { std::slice::from_raw_parts(self.0.host as *const u8, self.0.bytes) }
    }
}
