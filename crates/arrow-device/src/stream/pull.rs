// SPDX-License-Identifier: Apache-2.0
//! A reader, whose calls block, as a future stream, whose polls do not: somebody else's thread pulls.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::thread;

use arrow::datatypes::FieldRef;
use futures::Stream;

use super::ArrowDeviceArrayStreamReader;
use crate::callback::guard;
use crate::ffi::ArrowDeviceType;
use crate::{Error, ImportedArray, Result};

/// Arrays of a device stream that another thread pulls.
///
/// Made by [`ArrowDeviceArrayStreamReader::into_stream`]. Dropping it never waits: the thread ends, and releases the
/// stream, once the call of the producer that it is in returns.
pub struct DeviceArrayStream {
    shared: Arc<Shared>,
    field: FieldRef,
    device_type: ArrowDeviceType,
}

impl Drop for DeviceArrayStream {
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        state.cancelled = true;
        let unread = (std::mem::take(&mut state.queue), state.waker.take());
        drop(state);
        self.shared.changed.notify_one();
        // Releases arrays, which calls their producer: not under the lock.
        drop(unread);
    }
}

impl ArrowDeviceArrayStreamReader {
    /// Pulls on a thread of its own, at most `read_ahead` arrays before they are asked for; 0 pulls only while somebody
    /// polls. More hides more of the producer's time, and holds more device memory.
    ///
    /// # Errors
    /// `Other` if the system gives no thread; the stream is then released.
    ///
    /// # Examples
    /// ```
    /// use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
    /// use arrow::array::{ArrayRef, Int32Array};
    /// use arrow_device::ffi::ArrowDeviceType;
    /// use arrow_device::stream::{ArrowDeviceArrayStreamReader, export_iterator};
    /// use arrow_device::cpu;
    /// use futures::TryStreamExt;
    ///
    /// let column: ArrayRef = Arc::new(Int32Array::from(vec![1, 2, 3]));
    /// let field = cpu::field_of(&column);
    /// let exported = export_iterator(&field, ArrowDeviceType::CPU, [cpu::export_array(&column)])?;
    /// // SAFETY: the stream comes from this crate's export.
    /// let reader = unsafe { ArrowDeviceArrayStreamReader::try_new(exported)? };
    ///
    /// let arrays = reader.into_stream(1)?.try_collect::<Vec<_>>();
    /// assert_eq!(futures::executor::block_on(arrays)?.len(), 1);
    /// # Ok::<(), arrow_device::Error>(())
    /// ```
    pub fn into_stream(self, read_ahead: usize) -> Result<DeviceArrayStream> {
        let mut spawned = Ok(());
        let stream = self.into_stream_on(read_ahead, |pull| {
            spawned = thread::Builder::new().name("device-stream".into()).spawn(pull).map(|_| ());
        });
        spawned.map_err(|error| Error::Other(format!("a thread to pull a device stream: {error}")))?;
        Ok(stream)
    }

    /// Like [`into_stream`](Self::into_stream), on a thread that `spawn` provides: it is given what to run, once, which
    /// blocks until the stream ends or is dropped. With tokio: `|pull| { tokio::task::spawn_blocking(pull); }`.
    pub fn into_stream_on(self, read_ahead: usize, spawn: impl FnOnce(Box<dyn FnOnce() + Send>)) -> DeviceArrayStream {
        let shared = Arc::new(Shared::default());
        let stream =
            DeviceArrayStream { shared: Arc::clone(&shared), field: Arc::clone(self.field()), device_type: self.device_type() };
        let mut puller = Puller { shared, reader: Some(self) };
        spawn(Box::new(move || puller.run(read_ahead)));
        stream
    }
}

impl DeviceArrayStream {
    /// The field of every array.
    pub fn field(&self) -> &FieldRef {
        &self.field
    }

    /// The device type of every array.
    pub fn device_type(&self) -> ArrowDeviceType {
        self.device_type
    }
}

impl Stream for DeviceArrayStream {
    type Item = Result<ImportedArray>;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        // Wakers are foreign code: cloned and dropped outside of the lock.
        let mut waker = Some(context.waker().clone());
        let mut state = self.shared.lock();
        let next = match state.queue.pop_front() {
            Some(next) => Poll::Ready(Some(next)),
            None if state.ended => Poll::Ready(None),
            None => {
                std::mem::swap(&mut state.waker, &mut waker);
                Poll::Pending
            }
        };
        drop(state);
        self.shared.changed.notify_one();
        next
    }
}

impl std::fmt::Debug for DeviceArrayStream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DeviceArrayStream").field("field", &self.field).field("device_type", &self.device_type).finish()
    }
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    /// Tells the pulling thread of room, of demand, and of the drop.
    changed: Condvar,
}

impl Shared {
    /// Nothing panics under the lock, so what it guards is whole.
    // The standard library's lock rather than parking_lot's, whose waiting Miri cannot follow.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[derive(Default)]
struct State {
    queue: VecDeque<Result<ImportedArray>>,
    /// Set while somebody waits for an array.
    waker: Option<Waker>,
    /// Nothing will be added to the queue.
    ended: bool,
    cancelled: bool,
}

/// The side of the pulling thread.
struct Puller {
    shared: Arc<Shared>,
    reader: Option<ArrowDeviceArrayStreamReader>,
}

impl Drop for Puller {
    /// However the pulling ended, whoever polls must learn of it.
    fn drop(&mut self) {
        let never_ran = self.reader.is_some();
        let mut state = self.shared.lock();
        if never_ran && !state.ended {
            state.queue.push_back(Err(Error::Other("the device stream's thread ended before the stream did".into())));
        }
        state.ended = true;
        let waker = state.waker.take();
        drop(state);
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

impl Puller {
    fn run(&mut self, read_ahead: usize) {
        while self.wait_for_room(read_ahead) {
            let Some(reader) = &mut self.reader else { break };
            // Nothing in there should panic, but if it did, nobody would be told of the end.
            let Some(next) = guard("get_next", || Ok(reader.next())).unwrap_or_else(|panic| Some(Err(panic))) else { break };
            let mut state = self.shared.lock();
            if state.cancelled {
                // `next` is released after the lock is.
                drop(state);
                break;
            }
            state.queue.push_back(next);
            let waker = state.waker.take();
            drop(state);
            if let Some(waker) = waker {
                waker.wake();
            }
        }
        // Released here rather than with the job, so that the end is not told before.
        self.reader = None;
    }

    /// Waits until another array may be pulled; false once nobody wants any.
    fn wait_for_room(&self, read_ahead: usize) -> bool {
        let mut state = self.shared.lock();
        loop {
            if state.cancelled {
                return false;
            }
            let demand = state.queue.is_empty() && state.waker.is_some();
            if demand || state.queue.len() < read_ahead {
                return true;
            }
            state = self.shared.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }
}
