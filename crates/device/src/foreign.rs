// SPDX-License-Identifier: Apache-2.0
//! Device memory and events of others in the same process: used in place where the driver can, else copied.

use bytes::Bytes;
use futures::channel::oneshot;

use crate::buffer::Guardian;
use crate::driver::{Foreign, Memory, RawEvent};
use crate::exit::AtWork;
use crate::lane::QUEUE_GONE;
use crate::{Buffer, Error, Queue, Result};

impl Queue {
    /// Makes whatever is enqueued from now on wait for an event of somebody else, a `CUevent` or `cl_event`.
    /// The device waits; only for an event of another OpenCL context a thread of the host does, and this future.
    ///
    /// # Errors
    /// The failure of what the event stands for, where it is known already; else later work of this queue has it.
    ///
    /// # Safety
    /// The event is live until `guardian` is dropped.
    pub unsafe fn wait_for_foreign(
        &self,
        event: RawEvent,
        guardian: Guardian,
    ) -> impl Future<Output = Result<()>> + Send + use<> {
        let driver = self.driver();
        // SAFETY: the caller's promise.
        let on_device = unsafe { driver.takes_event(event) }.and_then(|takes| match takes {
            // SAFETY: the queue is this one's own; the driver holds on to the event.
            true => self.lane().enqueue(|raw| unsafe { driver.wait_on(raw, event) }).map(|_| true),
            false => Ok(false),
        });
        let driver = driver.clone();
        async move {
            if on_device? {
                return Ok(());
            }
            // SAFETY: the guardian comes along.
            off_thread(move || unsafe { driver.wait(event) }, guardian).await
        }
    }

    /// Uses device memory of somebody else, a `CUdeviceptr` or `cl_mem`: `len` bytes of it, or where that is not known
    /// all to the end of its allocation; nobody may write it. In place, except for memory of another OpenCL context, which
    /// is copied.
    ///
    /// What writes the memory is waited for with [`wait_for_foreign`](Self::wait_for_foreign) before. Foreign memory
    /// does not count towards the limit.
    ///
    /// # Errors
    /// `Range` where the allocation is shorter; the driver's, for memory of another device; as [`alloc`](Self::alloc) for a
    /// copy.
    ///
    /// # Safety
    /// Until `guardian` is dropped, the memory stays allocated and unwritten.
    pub unsafe fn adopt(
        &self,
        handle: u64,
        len: Option<usize>,
        guardian: Guardian,
    ) -> impl Future<Output = Result<Buffer>> + Send + use<> {
        // SAFETY: the caller's promise.
        let found = unsafe { self.driver().adopt(handle) };
        let queue = self.clone();
        async move {
            let found = found?;
            let (Foreign::InPlace(Memory { bytes: all, .. }) | Foreign::Elsewhere(all)) = found;
            let bytes = len.unwrap_or(all);
            if bytes > all {
                return Err(Error::Range { call: "adopt", start: 0, end: bytes, len: all });
            }
            if let Foreign::InPlace(memory) = found {
                return Ok(Buffer::foreign(memory, bytes, guardian, queue.lane()));
            }
            // The copy is made beside the queue: what the queue was told to wait for comes first.
            queue.finish().await?;
            let driver = queue.driver().clone();
            let fetch = move || {
                let mut copy = vec![0u64; bytes.div_ceil(8)];
                // SAFETY: the guardian comes along, what writes the memory was waited for, and the copy has as many bytes.
                unsafe { driver.fetch(handle, copy.as_mut_ptr() as usize, bytes) }?;
                Ok(copy)
            };
            let copy = off_thread(fetch, guardian).await?;
            queue.upload(Bytes::from_owner(Words(copy)).slice(..bytes))
        }
    }
}

/// Bytes aligned as words.
struct Words(Vec<u64>);

impl AsRef<[u8]> for Words {
    fn as_ref(&self) -> &[u8] {
        // SAFETY: words have no padding, and any byte is one.
        unsafe { std::slice::from_raw_parts(self.0.as_ptr().cast(), self.0.len() * 8) }
    }
}

/// What blocking work gives, done by a thread of its own, which also keeps `guardian` until then.
async fn off_thread<T: Send + 'static>(work: impl FnOnce() -> Result<T> + Send + 'static, guardian: Guardian) -> Result<T> {
    let (sender, receiver) = oneshot::channel();
    let at_work = AtWork::begin();
    let run = move || {
        let result = work();
        drop(guardian);
        // The receiver may be gone: nobody waits any more.
        _ = sender.send(result);
        drop(at_work);
    };
    std::thread::Builder::new().name("device-foreign".to_owned()).spawn(run).map_err(|_| QUEUE_GONE)?;
    receiver.await.map_err(|_| QUEUE_GONE)?
}
