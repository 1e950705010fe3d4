// SPDX-License-Identifier: Apache-2.0
//! A blocking reader as a non-blocking [`futures::Stream`]: another thread pulls.

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

/// The arrays of a device stream, pulled by another thread.
///
/// Made by [`ArrowDeviceArrayStreamReader::into_stream`]. Dropping it never waits. The thread ends,
/// and releases the stream, once its current call of the producer returns.
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
        // Releasing arrays calls their producer, so this happens outside of the lock.
        drop(unread);
    }
}

impl ArrowDeviceArrayStreamReader {
    /// Pulls on a new thread, at most `read_ahead` arrays before a poll asks for them; with 0 only
    /// while a poll waits.
    ///
    /// A larger `read_ahead` hides more of the producer's latency, and holds more device memory.
    ///
    /// # Errors
    /// `Other` if the thread cannot be spawned; the stream is then released.
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
        spawned.map_err(|error| Error::Other(format!("cannot spawn a thread to pull a device stream: {error}")))?;
        Ok(stream)
    }

    /// Like [`into_stream`](Self::into_stream), on a thread that `spawn` provides.
    ///
    /// `spawn` gets a closure to run once. The closure blocks until the stream ends or is dropped.
    /// With tokio: `|pull| { tokio::task::spawn_blocking(pull); }`.
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
    /// The field of all arrays.
    pub fn field(&self) -> &FieldRef {
        &self.field
    }

    /// The device type of all arrays.
    pub fn device_type(&self) -> ArrowDeviceType {
        self.device_type
    }
}

impl Stream for DeviceArrayStream {
    type Item = Result<ImportedArray>;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        // Wakers are foreign code, so they are cloned and dropped outside of the lock.
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
    state: Mutex<PullState>,
    /// Signals room, demand or the drop to the pulling thread.
    changed: Condvar,
}

impl Shared {
    /// Locks the state, ignoring poison: nothing panics under the lock.
    // The standard library's lock, because Miri cannot follow parking_lot's waiting.
    fn lock(&self) -> MutexGuard<'_, PullState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[derive(Default)]
struct PullState {
    queue: VecDeque<Result<ImportedArray>>,
    /// Set while a poll waits for an array.
    waker: Option<Waker>,
    /// No more arrays will be queued.
    ended: bool,
    cancelled: bool,
}

/// The pulling thread's half.
struct Puller {
    shared: Arc<Shared>,
    reader: Option<ArrowDeviceArrayStreamReader>,
}

impl Drop for Puller {
    /// Ends the stream for its reader, however the pulling ended.
    fn drop(&mut self) {
        let never_ran = self.reader.is_some();
        let mut state = self.shared.lock();
        if never_ran && !state.ended {
            state.queue.push_back(Err(Error::Other("the device stream's thread ended before the stream".into())));
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
            // A panic here would leave the reader waiting forever.
            let Some(next) = guard("get_next", || Ok(reader.next())).unwrap_or_else(|panic| Some(Err(panic))) else { break };
            let mut state = self.shared.lock();
            if state.cancelled {
                // `next` is released outside of the lock.
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
        // Releases the stream before `drop` signals the end.
        self.reader = None;
    }

    /// Waits until another array may be pulled; returns false once the stream is dropped.
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
