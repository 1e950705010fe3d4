// SPDX-License-Identifier: Apache-2.0
//! What a consumer's handler and its reader share: the producer's callbacks fill it, the reader empties it.
//!
//! No lock is held while anything foreign runs: a producer's method, a task, a waker. Each of them may come back into this
//! module on the same thread, and the producer may be inside any of them on another.
//!
//! The one place that waits is at the end: a producer may be gone once `release` has returned, so `release`, and the end
//! marker before it, wait for a `request` or `cancel` that the reader is making on another thread just then (R75). A
//! producer that holds a lock of these methods while it calls `release` would wait for ever; without the wait it would free
//! that lock while the reader stands at it. `on_error` does not wait: `cancel` may call it (X6).

use std::collections::VecDeque;
use std::ffi::c_int;
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::task::{Context, Waker};
use std::thread::{self, ThreadId};

use arrow::datatypes::FieldRef;
use arrow::ffi::FFI_ArrowSchema;
use parking_lot::{Condvar, Mutex, MutexGuard};

use super::{AsyncStreamOptions, Metadata};
use crate::callback::guard;
use crate::ffi::{
    ArrowDeviceType, FFI_ArrowAsyncDeviceStreamHandler, FFI_ArrowAsyncProducer, FFI_ArrowAsyncTask, FFI_ArrowDeviceArray,
};
use crate::metadata::decode;
use crate::{Error, Result, schema};

/// How errors name the callback of a task.
const EXTRACT: &str = "extract_data";

/// The shared part of a consumer. It owns the handler's memory, so that this outlives `release` and the reader.
pub(super) struct Inbox {
    state: Mutex<State>,
    /// Told when the reader has returned from the producer.
    returned: Condvar,
    options: AsyncStreamOptions,
    handler: NonNull<FFI_ArrowAsyncDeviceStreamHandler>,
}

// SAFETY: `handler` is read by the callbacks, one at a time (R85), and freed by `Drop`; `Producer` below.
unsafe impl Send for Inbox {}
// SAFETY: the same; all else is behind the mutex.
unsafe impl Sync for Inbox {}

impl Drop for Inbox {
    fn drop(&mut self) {
        // What was queued after the reader left: nothing, by `on_next_task`. But a task must not be lost (R77).
        for arrival in self.state.get_mut().queue.drain(..) {
            arrival.discard(self.options.extract_unwanted);
        }
        // SAFETY: a box, by `new`; neither the reader nor the producer is left to look at it.
        drop(unsafe { Box::from_raw(self.handler.as_ptr()) });
    }
}

/// What `on_schema` told.
#[derive(Debug)]
pub(super) struct Opening {
    /// Of all arrays: for record batches a struct of their columns.
    pub field: FieldRef,
    pub device_type: ArrowDeviceType,
    pub metadata: Metadata,
}

/// A task that waits for the reader.
pub(super) struct Arrival {
    task: FFI_ArrowAsyncTask,
    pub metadata: Metadata,
}

/// What the reader finds.
pub(super) enum Next {
    Task(Arrival, Arc<Opening>),
    End(Result<()>),
    Wait,
}

struct State {
    opening: Option<Arc<Opening>>,
    producer: Option<Producer>,
    queue: VecDeque<Arrival>,
    /// Requested and not arrived.
    outstanding: usize,
    /// The reader has asked for a batch.
    wanted: bool,
    /// The reader has asked for the end.
    cancelled: bool,
    /// No reader will come.
    abandoned: bool,
    /// No method of the producer may be called any more: the stream ended, failed, was refused or released.
    closed: bool,
    end: Option<Result<()>>,
    error_metadata: Metadata,
    /// The threads that are inside a method of the producer.
    calls: Vec<ThreadId>,
    /// One of them is inside `request`, which only `cancel` may run beside.
    requesting: bool,
    waker: Option<Waker>,
}

/// The methods of the producer, as they were during `on_schema`.
#[derive(Clone, Copy)]
struct Producer {
    raw: *mut FFI_ArrowAsyncProducer,
    request: unsafe extern "C" fn(*mut FFI_ArrowAsyncProducer, i64),
    cancel: unsafe extern "C" fn(*mut FFI_ArrowAsyncProducer),
}

// SAFETY: the methods may be called from any thread (R86, R89); `raw` is only passed to them.
unsafe impl Send for Producer {}

impl Inbox {
    pub fn new(options: AsyncStreamOptions, handler: FFI_ArrowAsyncDeviceStreamHandler) -> Arc<Self> {
        let handler = NonNull::from(Box::leak(Box::new(handler)));
        let state = State {
            opening: None,
            producer: None,
            queue: VecDeque::new(),
            outstanding: 0,
            wanted: false,
            cancelled: false,
            abandoned: false,
            closed: false,
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

/// For the reader.
impl Inbox {
    /// The schema, or the failure that came instead; else wakes the reader later.
    pub fn opening(&self, cx: &Context<'_>) -> Option<Result<Arc<Opening>>> {
        let mut state = self.state.lock();
        let found = match (&state.opening, &state.end) {
            (Some(opening), _) => Some(Ok(Arc::clone(opening))),
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

    /// What `on_schema` told, if it has been called.
    pub fn opened(&self) -> Option<Arc<Opening>> {
        self.state.lock().opening.clone()
    }

    /// The metadata of the producer's error.
    pub fn error_metadata(&self) -> Metadata {
        self.state.lock().error_metadata.clone()
    }

    /// The next task, or how the stream ended; else wakes the reader later.
    pub fn next(&self, cx: &Context<'_>) -> Next {
        let mut state = self.state.lock();
        state.wanted = true;
        if let Some(opening) = state.opening.clone()
            && let Some(arrival) = state.queue.pop_front()
        {
            return Next::Task(arrival, opening);
        }
        if let Some(end) = state.end.clone() {
            return Next::End(end);
        }
        let old = state.wait(cx);
        drop(state);
        drop(old);
        Next::Wait
    }

    /// Asks the producer for as many tasks as the reader has room for (R66).
    pub fn request(&self) {
        self.request_locked(self.state.lock());
    }

    fn request_locked(&self, mut state: MutexGuard<'_, State>) {
        // `request` need not be safe to call twice at once: who finds another thread in it leaves the rest to that one.
        while !state.requesting
            && let Some((producer, n)) = state.room(self.options.in_flight)
        {
            state.requesting = true;
            // SAFETY: the producer lives until `release` returns, which waits for this call (R75).
            self.call(&mut state, || unsafe { (producer.request)(producer.raw, n) });
            state.requesting = false;
        }
    }

    /// Asks the producer for the end, once. What it still sends can be read.
    pub fn cancel(&self) {
        self.cancel_locked(&mut self.state.lock());
    }

    fn cancel_locked(&self, state: &mut MutexGuard<'_, State>) {
        if std::mem::replace(&mut state.cancelled, true) || state.closed {
            return;
        }
        // Without a producer yet, `on_schema` refuses.
        if let Some(producer) = state.producer {
            // SAFETY: as in `request`.
            self.call(state, || unsafe { (producer.cancel)(producer.raw) });
        }
    }

    /// Cancels, and extracts nothing of what is queued or comes later (R77).
    pub fn abandon(&self) {
        let mut state = self.state.lock();
        state.abandoned = true;
        let waker = state.waker.take();
        let queue = std::mem::take(&mut state.queue);
        self.cancel_locked(&mut state);
        drop(state);
        drop(waker);
        for arrival in queue {
            arrival.discard(self.options.extract_unwanted);
        }
    }

    /// For a failed extraction the producer's own report, if it has come already: it says more (R73).
    pub fn reported(&self, error: Error) -> Error {
        match (&error, &self.state.lock().end) {
            (Error::Foreign { call: EXTRACT, .. }, Some(Err(reported @ Error::Foreign { .. }))) => reported.clone(),
            _ => error,
        }
    }

    /// Runs a method of the producer, without the lock, in a way that `release` can wait for.
    fn call(&self, state: &mut MutexGuard<'_, State>, method: impl FnOnce()) {
        let thread = thread::current().id();
        state.calls.push(thread);
        MutexGuard::unlocked(state, method);
        if let Some(at) = state.calls.iter().position(|other| *other == thread) {
            state.calls.swap_remove(at);
        }
        self.returned.notify_all();
    }
}

/// For the producer.
impl Inbox {
    pub fn on_schema(&self, schema: FFI_ArrowSchema, producer: *mut FFI_ArrowAsyncProducer) -> c_int {
        // SAFETY: `on_schema` comes with a valid schema and a valid producer, if with any (R79).
        let told = unsafe { Opening::read(schema, producer) };
        let mut state = self.state.lock();
        let (opening, producer) = match told {
            _ if state.closed => return libc::EINVAL,
            _ if state.cancelled || state.abandoned => {
                state.close(Ok(()));
                state.wake();
                return libc::ECANCELED;
            }
            _ if state.opening.is_some() => return state.refuse(Error::Invalid("async stream: on_schema came twice".into())),
            Err(error) => return state.refuse(error),
            Ok(told) => told,
        };
        state.opening = Some(Arc::new(opening));
        state.producer = Some(producer);
        let waker = state.waker.take();
        self.request_locked(state);
        wake(waker);
        0
    }

    pub fn on_next_task(&self, task: FFI_ArrowAsyncTask, metadata: Result<Metadata>) -> c_int {
        let mut state = self.state.lock();
        if state.closed {
            return libc::EINVAL;
        }
        let requested = state.outstanding > 0;
        state.outstanding = state.outstanding.saturating_sub(1);
        let metadata = match metadata {
            _ if task.extract_data.is_none() => {
                return state.refuse(Error::Invalid("async stream: a task without extract_data".into()));
            }
            _ if state.opening.is_none() => {
                return state.refuse(Error::Invalid("async stream: a task came before the schema".into()));
            }
            _ if !requested && state.queue.len() >= self.options.unrequested => {
                let text = format!(
                    "async stream: {} tasks wait and the producer sends more than requested; \
                     AsyncStreamOptions::with_unrequested allows {}",
                    state.queue.len(),
                    self.options.unrequested
                );
                return state.refuse(Error::Invalid(text));
            }
            Err(error) => return state.refuse(error),
            Ok(metadata) => metadata,
        };
        let arrival = Arrival { task, metadata };
        if state.abandoned {
            drop(state);
            arrival.discard(self.options.extract_unwanted);
        } else {
            state.queue.push_back(arrival);
            state.wake();
        }
        0
    }

    pub fn on_end(&self) {
        let mut state = self.state.lock();
        let opened = state.opening.is_some();
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
        if state.end.is_none() {
            state.error_metadata = metadata;
        }
        // An error must not look like success to whoever passes its number on.
        let code = if code == 0 { libc::EIO } else { code };
        state.close(Err(Error::Foreign { call: "async producer", code, message }));
        state.wake();
    }

    pub fn on_release(&self) {
        let mut state = self.state.lock();
        state.close(Err(Error::Invalid("async stream: released by its producer before its end".into())));
        self.wait_for_calls(&mut state);
        state.producer = None;
        state.wake();
    }

    /// Waits until no other thread is inside a method of the producer. None enters one: the state is closed.
    fn wait_for_calls(&self, state: &mut MutexGuard<'_, State>) {
        let this = thread::current().id();
        while state.calls.iter().any(|thread| *thread != this) {
            self.returned.wait(state);
        }
    }
}

impl State {
    /// Remembers whom to wake; the waker before that is dropped without the lock.
    fn wait(&mut self, cx: &Context<'_>) -> Option<Waker> {
        match &self.waker {
            Some(waker) if waker.will_wake(cx.waker()) => None,
            _ => self.waker.replace(cx.waker().clone()),
        }
    }

    /// How many more tasks the reader has room for.
    fn room(&mut self, in_flight: usize) -> Option<(Producer, i64)> {
        let open = self.wanted && !self.cancelled && !self.abandoned && !self.closed;
        let room = in_flight.saturating_sub(self.outstanding.saturating_add(self.queue.len()));
        let producer = self.producer.filter(|_| open && room > 0)?;
        self.outstanding += room;
        Some((producer, i64::try_from(room).unwrap_or(i64::MAX)))
    }

    /// Keeps the first end; whoever cancelled is told of no error (Y2).
    fn close(&mut self, end: Result<()>) {
        let ours = self.cancelled || self.abandoned;
        self.closed = true;
        self.end.get_or_insert(if ours { Ok(()) } else { end });
    }
}

/// What the guard of a state does last.
trait Unlock {
    /// Wakes the reader.
    fn wake(self);
    /// Ends the stream with an error that the producer gets as a number, and wakes the reader.
    fn refuse(self, error: Error) -> c_int;
}

impl Unlock for MutexGuard<'_, State> {
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

/// Wakes the reader; what a waker does is not the producer's business.
fn wake(waker: Option<Waker>) {
    guard("a waker", || Ok(waker.map(Waker::wake))).ok();
}

impl Opening {
    /// Copies what a producer tells with its schema.
    ///
    /// # Safety
    /// `schema` is empty or follows the interface, `producer` is null or valid.
    unsafe fn read(schema: FFI_ArrowSchema, producer: *mut FFI_ArrowAsyncProducer) -> Result<(Self, Producer)> {
        let invalid = |what: &str| Error::Invalid(format!("async stream: {what}"));
        let raw = producer;
        // SAFETY: valid, if not null.
        let producer = unsafe { raw.as_ref() }.ok_or_else(|| invalid("on_schema came without a producer"))?;
        let (Some(request), Some(cancel)) = (producer.request, producer.cancel) else {
            return Err(invalid("the producer lacks request or cancel"));
        };
        // SAFETY: a schema of the producer, or an empty one.
        let field = Arc::new(unsafe { schema::import_field(schema) }?);
        // SAFETY: null or encoded, by the interface (R90).
        let metadata = unsafe { decode(producer.additional_metadata) }?;
        let opening = Self { field, device_type: producer.device_type, metadata };
        Ok((opening, Producer { raw, request, cancel }))
    }
}

impl Arrival {
    /// Takes the array out: the one call of `extract_data` (R68).
    pub fn extract(mut self) -> Result<FFI_ArrowDeviceArray> {
        let mut array = FFI_ArrowDeviceArray::empty();
        let failed = |code| Error::Foreign { call: EXTRACT, code, message: None };
        let extract = self.task.extract_data.ok_or_else(|| failed(libc::EINVAL))?;
        // SAFETY: an accepted task, extracted once; the output is zero (R44).
        match unsafe { extract(&mut self.task, &mut array) } {
            0 if array.is_released() => Err(Error::Invalid("async stream: extract_data succeeded without an array".into())),
            0 => Ok(array),
            code => {
                // Whatever was written is not to be used, not even to release it (R73).
                std::mem::forget(array);
                Err(failed(code))
            }
        }
    }

    /// Lets the task clean up (R68, R77).
    fn discard(mut self, extract: bool) {
        if extract {
            drop(self.extract());
        } else if let Some(extract) = self.task.extract_data {
            // SAFETY: an accepted task, extracted once.
            unsafe { extract(&mut self.task, ptr::null_mut()) };
        }
    }
}
