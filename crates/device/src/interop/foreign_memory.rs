// SPDX-License-Identifier: Apache-2.0
//! Device memory and events of other libraries in the process. Kernels use the memory in place
//! where the driver allows it; else it is copied.

use bytes::Bytes;
use futures::channel::oneshot;

use crate::driver::{ForeignMemory, KeepAlive, Memory, RawEvent};
use crate::exit::WorkGuard;
use crate::memory::Buffer;
use crate::queue::QUEUE_GONE;
use crate::{Error, Queue, Result};

impl Queue {
    /// Makes later work of this queue wait for an event of another library, a `CUevent` or
    /// `cl_event`.
    ///
    /// The device waits. Only for an event of another OpenCL context a thread of the host waits,
    /// and this future.
    ///
    /// # Errors
    /// The failure of the event's work, where it is known already; else later work of this queue
    /// reports it.
    ///
    /// # Safety
    /// `keep_alive` keeps the event alive.
    pub unsafe fn wait_for_foreign(
        &self,
        event: RawEvent,
        keep_alive: KeepAlive,
    ) -> impl Future<Output = Result<()>> + Send + use<> {
        let driver = self.driver();
        // SAFETY: the caller's promise.
        let on_device = unsafe { driver.can_wait_on(event) }.and_then(|can_wait| match can_wait {
            // SAFETY: the queue is this one's own; the driver keeps the event that it waits on.
            true => self.worker().enqueue(|raw| unsafe { driver.wait_on(raw, event) }).map(|_| true),
            false => Ok(false),
        });
        let driver = driver.clone();
        async move {
            if on_device? {
                return Ok(());
            }
            // SAFETY: the thread holds `keep_alive`.
            on_thread(move || unsafe { driver.wait(event) }, keep_alive).await
        }
    }

    /// Uses device memory of another library, a `CUdeviceptr` or `cl_mem`.
    ///
    /// - The buffer has `len` bytes; with `None`, all bytes to the end of the allocation.
    /// - The memory is used in place. Only memory of another OpenCL context is copied.
    /// - It does not count towards the limit.
    /// - Call [`wait_for_foreign`](Self::wait_for_foreign) first for work that writes the memory.
    ///
    /// # Errors
    /// `Range` if the allocation is shorter; the driver's refusal of another device's memory; for a
    /// copy as [`alloc`](Self::alloc).
    ///
    /// # Safety
    /// Until `keep_alive` is dropped, the memory stays allocated and is not written.
    pub unsafe fn adopt(
        &self,
        handle: u64,
        len: Option<usize>,
        keep_alive: KeepAlive,
    ) -> impl Future<Output = Result<Buffer>> + Send + use<> {
        // SAFETY: the caller's promise.
        let found = unsafe { self.driver().adopt(handle) };
        let queue = self.clone();
        async move {
            let found = found?;
            let (ForeignMemory::InPlace(Memory { bytes: all, .. }) | ForeignMemory::OtherContext(all)) = found;
            let bytes = len.unwrap_or(all);
            if bytes > all {
                return Err(Error::Range { call: "adopt", start: 0, end: bytes, len: all });
            }
            if let ForeignMemory::InPlace(memory) = found {
                return Ok(Buffer::foreign(memory, bytes, keep_alive, queue.worker()));
            }
            // The copy does not run in this queue, so it first waits for everything that the queue
            // waits for.
            queue.finish().await?;
            let driver = queue.driver().clone();
            let read = move || {
                let mut copy = vec![0u64; bytes.div_ceil(8)];
                // SAFETY: the thread holds `keep_alive`, the memory's writers have completed, and
                // the copy has as many bytes.
                unsafe { driver.read_foreign(handle, copy.as_mut_ptr() as usize, bytes) }?;
                Ok(copy)
            };
            let copy = on_thread(read, keep_alive).await?;
            queue.upload(Bytes::from_owner(AlignedBytes(copy)).slice(..bytes))
        }
    }
}

/// Bytes with the alignment of `u64`.
struct AlignedBytes(Vec<u64>);

impl AsRef<[u8]> for AlignedBytes {
    fn as_ref(&self) -> &[u8] {
        // SAFETY: a `u64` has no padding, and every byte is valid.
        unsafe { std::slice::from_raw_parts(self.0.as_ptr().cast(), self.0.len() * 8) }
    }
}

/// Runs blocking work on a new thread, with `keep_alive` held until the work is done.
async fn on_thread<T: Send + 'static>(work: impl FnOnce() -> Result<T> + Send + 'static, keep_alive: KeepAlive) -> Result<T> {
    let (sender, receiver) = oneshot::channel();
    let guard = WorkGuard::begin();
    let run = move || {
        let result = work();
        drop(keep_alive);
        // The send fails if the future was dropped.
        _ = sender.send(result);
        drop(guard);
    };
    std::thread::Builder::new().name("device-foreign".to_owned()).spawn(run).map_err(|_| QUEUE_GONE)?;
    receiver.await.map_err(|_| QUEUE_GONE)?
}
