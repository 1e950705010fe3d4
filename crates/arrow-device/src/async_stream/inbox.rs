// SPDX-License-Identifier: Apache-2.0
//! The state that a consumer's handler and its reader share: callbacks of the producer fill it, the
//! reader empties it.
//!
//! No lock is held while foreign code runs: a method of the producer, a task, or a waker. Such code
//! may re-enter this module on the same thread, while the producer runs other calls on another.
//!
//! Only `release` and the end marker wait: a producer may be gone once `release` has returned. So
//! both wait for a `request` or `cancel` that the reader is making on another thread (R75).
//! - A producer that calls `release` under a lock of those methods deadlocks. Without the wait, it
//!   would free that lock under the reader.
//! - `on_error` does not wait, because `cancel` may call it (X6).

use std::collections::VecDeque;
use std::ffi::c_int;
use std::ptr::NonNull;
use std::sync::Arc;
use std::task::{Context, Waker};
use std::thread::{self, ThreadId};

use arrow::ffi::FFI_ArrowSchema;
use parking_lot::{Condvar, Mutex, MutexGuard};

use super::incoming::{EXTRACT, PendingTask, ProducerHandle, StreamInfo};
use super::{AsyncStreamOptions, Metadata};
use crate::callback::guard;
use crate::ffi::{FFI_ArrowAsyncDeviceStreamHandler, FFI_ArrowAsyncProducer, FFI_ArrowAsyncTask};
use crate::{Error, Result};

/// The shared part of a consumer. It owns the handler's memory, which therefore outlives `release`
/// and the reader.
pub(super) struct Inbox {
    state: Mutex<InboxState>,
    /// Signals that the reader has returned from the producer.
    returned: Condvar,
    options: AsyncStreamOptions,
    handler: NonNull<FFI_ArrowAsyncDeviceStreamHandler>,
}

// SAFETY: callbacks read `handler` one at a time (R85), and `Drop` frees it; see `ProducerHandle`.
unsafe impl Send for Inbox {}
// SAFETY: as above; the rest is behind the mutex.
unsafe impl Sync for Inbox {}

impl Drop for Inbox {
    fn drop(&mut self) {
        // Empty once the reader has left, by `on_next_task`; the loop makes sure that no task leaks
        // (R77).
        for task in self.state.get_mut().queue.drain(..) {
            task.discard(self.options.extract_unwanted);
        }
        // SAFETY: boxed in `new`; both the reader and the producer are gone.
        drop(unsafe { Box::from_raw(self.handler.as_ptr()) });
    }
}

/// The result of [`Inbox::next`].
pub(super) enum Next {
    Task(PendingTask, Arc<StreamInfo>),
    End(Result<()>),
    Wait,
}

/// Stage of the reader, which only advances.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum ReaderStage {
    /// The reader has not asked for a batch yet.
    Idle,
    Reading,
    /// The reader has cancelled, and may read the tasks that still come.
    Cancelled,
    /// The reader has cancelled and reads no more: tasks are dismissed.
    Gone,
}

/// A stream whose schema has come.
struct OpenedStream {
    info: Arc<StreamInfo>,
    /// `None` once the producer has called `release`.
    producer: Option<ProducerHandle>,
}

struct InboxState {
    /// Set by `on_schema`.
    stream: Option<OpenedStream>,
    queue: VecDeque<PendingTask>,
    /// Tasks requested and not yet received.
    outstanding: usize,
    reader: ReaderStage,
    /// Set once the stream ended, failed, was refused or released: no method of the producer may be
    /// called.
    end: Option<Result<()>>,
    error_metadata: Metadata,
    /// The threads within a method of the producer.
    calls: Vec<ThreadId>,
    /// Whether one of them is in `request`; only `cancel` may run beside it.
    requesting: bool,
    waker: Option<Waker>,
}

impl Inbox {
    pub fn new(options: AsyncStreamOptions, handler: FFI_ArrowAsyncDeviceStreamHandler) -> Arc<Self> {
        let handler = NonNull::from(Box::leak(Box::new(handler)));
        let state = InboxState {
            stream: None,
            queue: VecDeque::new(),
            outstanding: 0,
            reader: ReaderStage::Idle,
            end: None,
            error_metadata: Metadata::default(),
            calls: Vec::new(),
            requesting: false,
            waker: None,
        };
        Arc::new(Self { state: Mutex::new(state), returned: Condvar::new(), options, handler })
    }

    pub fn handler(&self) -> NonNull<FFI_ArrowAsyncDeviceStreamHandler> {
        self.handler
    }
}

/// The reader's methods.
impl Inbox {
    /// The stream's info, or the failure that came instead; `None` registers the waker.
    pub fn poll_info(&self, cx: &Context<'_>) -> Option<Result<Arc<StreamInfo>>> {
        let mut state = self.state.lock();
        let found = match (state.info(), &state.end) {
            (Some(info), _) => Some(Ok(info)),
            (None, Some(Err(error))) => Some(Err(error.clone())),
            (None, Some(Ok(()))) => Some(Err(Error::Other("async stream: it was cancelled before its schema came".into()))),
            (None, None) => None,
        };
        if found.is_none() {
            let old = state.wait(cx);
            drop(state);
            drop(old);
        }
        found
    }

    /// The stream's info, once `on_schema` was called.
    pub fn info(&self) -> Option<Arc<StreamInfo>> {
        self.state.lock().info()
    }

    /// The metadata of the producer's error.
    pub fn error_metadata(&self) -> Metadata {
        self.state.lock().error_metadata.clone()
    }

    /// The next task, or the end of the stream; `Wait` registers the waker.
    pub fn next(&self, cx: &Context<'_>) -> Next {
        let mut state = self.state.lock();
        state.advance(ReaderStage::Reading);
        if let Some(info) = state.info()
            && let Some(task) = state.queue.pop_front()
        {
            return Next::Task(task, info);
        }
        if let Some(end) = state.end.clone() {
            return Next::End(end);
        }
        let old = state.wait(cx);
        drop(state);
        drop(old);
        Next::Wait
    }

    /// Requests as many tasks as fit the reader's limit (R66).
    pub fn request(&self) {
        self.request_locked(self.state.lock());
    }

    fn request_locked(&self, mut state: MutexGuard<'_, InboxState>) {
        // `request` need not be reentrant: a second thread leaves the rest to the first.
        while !state.requesting
            && let Some((producer, n)) = state.room(self.options.in_flight)
        {
            state.requesting = true;
            // SAFETY: the producer lives until `release` returns; `release` waits for this call
            // (R75).
            self.call(&mut state, || unsafe { (producer.request)(producer.raw, n) });
            state.requesting = false;
        }
    }

    /// Asks the producer to end early, once. Tasks that it still sends can be read.
    pub fn cancel(&self) {
        self.leave(&mut self.state.lock(), ReaderStage::Cancelled);
    }

    /// Advances the reader to `Cancelled` or `Gone`. The first of the two cancels the producer.
    fn leave(&self, state: &mut MutexGuard<'_, InboxState>, stage: ReaderStage) {
        if state.advance(stage) >= ReaderStage::Cancelled || state.is_closed() {
            return;
        }
        // Without a producer yet, `on_schema` will refuse.
        if let Some(producer) = state.producer() {
            // SAFETY: as in `request`.
            self.call(state, || unsafe { (producer.cancel)(producer.raw) });
        }
    }

    /// Cancels, and dismisses queued and later tasks (R77).
    pub fn abandon(&self) {
        let mut state = self.state.lock();
        let waker = state.waker.take();
        let queue = std::mem::take(&mut state.queue);
        self.leave(&mut state, ReaderStage::Gone);
        drop(state);
        drop(waker);
        for task in queue {
            task.discard(self.options.extract_unwanted);
        }
    }

    /// Replaces the error of a failed extraction by the producer's own report, if it has come: it
    /// says more (R73).
    pub fn prefer_reported(&self, error: Error) -> Error {
        match (&error, &self.state.lock().end) {
            (Error::Foreign { call: EXTRACT, .. }, Some(Err(reported @ Error::Foreign { .. }))) => reported.clone(),
            _ => error,
        }
    }

    /// Runs a method of the producer without the lock, recorded so that `release` can wait for it.
    fn call(&self, state: &mut MutexGuard<'_, InboxState>, method: impl FnOnce()) {
        let thread = thread::current().id();
        state.calls.push(thread);
        MutexGuard::unlocked(state, method);
        if let Some(position) = state.calls.iter().position(|other| *other == thread) {
            state.calls.swap_remove(position);
        }
        self.returned.notify_all();
    }
}

/// The producer's callbacks.
impl Inbox {
    pub fn on_schema(&self, schema: FFI_ArrowSchema, producer: *mut FFI_ArrowAsyncProducer) -> c_int {
        // SAFETY: `on_schema` comes with a valid schema and producer, or null (R79).
        let read = unsafe { StreamInfo::read(schema, producer) };
        let mut state = self.state.lock();
        let (info, producer) = match read {
            _ if state.is_closed() => return libc::EINVAL,
            _ if state.has_cancelled() => {
                state.close(Ok(()));
                state.wake();
                return libc::ECANCELED;
            }
            _ if state.stream.is_some() => return state.refuse(Error::Invalid("async stream: on_schema came twice".into())),
            Err(error) => return state.refuse(error),
            Ok(read) => read,
        };
        state.stream = Some(OpenedStream { info: Arc::new(info), producer: Some(producer) });
        let waker = state.waker.take();
        self.request_locked(state);
        wake(waker);
        0
    }

    pub fn on_next_task(&self, task: FFI_ArrowAsyncTask, metadata: Result<Metadata>) -> c_int {
        let mut state = self.state.lock();
        if state.is_closed() {
            return libc::EINVAL;
        }
        let requested = state.outstanding > 0;
        state.outstanding = state.outstanding.saturating_sub(1);
        let metadata = match metadata {
            _ if task.extract_data.is_none() => {
                return state.refuse(Error::Invalid("async stream: a task without extract_data".into()));
            }
            _ if state.stream.is_none() => {
                return state.refuse(Error::Invalid("async stream: a task came before the schema".into()));
            }
            _ if !requested && state.queue.len() >= self.options.unrequested => {
                let message = format!(
                    "async stream: {} tasks wait and the producer sends more than requested; \
                     AsyncStreamOptions::with_unrequested allows {}",
                    state.queue.len(),
                    self.options.unrequested
                );
                return state.refuse(Error::Invalid(message));
            }
            Err(error) => return state.refuse(error),
            Ok(metadata) => metadata,
        };
        let task = PendingTask { task, metadata };
        if state.reader == ReaderStage::Gone {
            drop(state);
            task.discard(self.options.extract_unwanted);
        } else {
            state.queue.push_back(task);
            state.wake();
        }
        0
    }

    pub fn on_end(&self) {
        let mut state = self.state.lock();
        let opened = state.stream.is_some();
        state.close(match opened {
            true => Ok(()),
            false => Err(Error::Invalid("async stream: its end came before its schema".into())),
        });
        // A producer may be gone before `release` (X5, Y5).
        self.wait_for_calls(&mut state);
        state.wake();
    }

    pub fn on_error(&self, code: c_int, message: Option<String>, metadata: Metadata) {
        let mut state = self.state.lock();
        if !state.is_closed() {
            state.error_metadata = metadata;
        }
        // Code 0 would look like success to callers that pass it on.
        let code = if code == 0 { libc::EIO } else { code };
        state.close(Err(Error::Foreign { call: "async producer", code, message }));
        state.wake();
    }

    pub fn on_release(&self) {
        let mut state = self.state.lock();
        state.close(Err(Error::Invalid("async stream: released by its producer before its end".into())));
        self.wait_for_calls(&mut state);
        if let Some(stream) = &mut state.stream {
            stream.producer = None;
        }
        state.wake();
    }

    /// Waits until no other thread is within a method of the producer. None enters one: the state
    /// is closed.
    fn wait_for_calls(&self, state: &mut MutexGuard<'_, InboxState>) {
        let this = thread::current().id();
        while state.calls.iter().any(|thread| *thread != this) {
            self.returned.wait(state);
        }
    }
}

impl InboxState {
    fn info(&self) -> Option<Arc<StreamInfo>> {
        self.stream.as_ref().map(|stream| Arc::clone(&stream.info))
    }

    /// The producer, from `on_schema` until its `release`.
    fn producer(&self) -> Option<ProducerHandle> {
        self.stream.as_ref().and_then(|stream| stream.producer)
    }

    /// Advances the reader to `stage`, unless it is further already. Returns the stage before.
    fn advance(&mut self, stage: ReaderStage) -> ReaderStage {
        let next = self.reader.max(stage);
        std::mem::replace(&mut self.reader, next)
    }

    fn has_cancelled(&self) -> bool {
        self.reader >= ReaderStage::Cancelled
    }

    fn is_closed(&self) -> bool {
        self.end.is_some()
    }

    /// Registers the waker; returns the previous one, to be dropped outside of the lock.
    fn wait(&mut self, cx: &Context<'_>) -> Option<Waker> {
        match &self.waker {
            Some(waker) if waker.will_wake(cx.waker()) => None,
            _ => self.waker.replace(cx.waker().clone()),
        }
    }

    /// The producer, and the number of further tasks that fit the reader's limit.
    fn room(&mut self, in_flight: usize) -> Option<(ProducerHandle, i64)> {
        let open = self.reader == ReaderStage::Reading && !self.is_closed();
        let room = in_flight.saturating_sub(self.outstanding.saturating_add(self.queue.len()));
        let producer = self.producer().filter(|_| open && room > 0)?;
        self.outstanding += room;
        Some((producer, i64::try_from(room).unwrap_or(i64::MAX)))
    }

    /// Keeps the first end. A reader that cancelled gets no error (Y2).
    fn close(&mut self, end: Result<()>) {
        let cancelled = self.has_cancelled();
        self.end.get_or_insert(if cancelled { Ok(()) } else { end });
    }
}

/// The last operation on a locked state, which unlocks it.
trait Unlock {
    /// Wakes the reader.
    fn wake(self);
    /// Ends the stream with an error, wakes the reader, and returns the errno for the producer.
    fn refuse(self, error: Error) -> c_int;
}

impl Unlock for MutexGuard<'_, InboxState> {
    fn wake(mut self) {
        let waker = self.waker.take();
        drop(self);
        wake(waker);
    }

    fn refuse(mut self, error: Error) -> c_int {
        let code = error.errno();
        self.close(Err(error));
        self.wake();
        code
    }
}

/// Wakes the reader; a panic in its waker does not reach the producer.
fn wake(waker: Option<Waker>) {
    guard("a waker", || Ok(waker.map(Waker::wake))).ok();
}
