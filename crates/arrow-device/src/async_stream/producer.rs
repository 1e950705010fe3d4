// SPDX-License-Identifier: Apache-2.0
//! The producer of an async stream: a future that serves a stream of arrays to a handler.

use std::ffi::{CString, c_char, c_int};
use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::thread::{Builder, JoinHandle};

use arrow::datatypes::Field;
use arrow::ffi::FFI_ArrowSchema;
use futures::Stream;

use super::demand::{Action, Demand};
use super::task::Delivery;
use super::{AsyncBatch, AsyncHandler, Metadata, failure_code};
use crate::callback::{c_string, guard};
use crate::ffi::ArrowDeviceType;
use crate::metadata::encode;
use crate::schema::export_field;
use crate::{Error, Result};

/// Limit of batches in one poll. The executor then gets a turn, so an always-ready source starves
/// no other task.
const BATCHES_PER_POLL: usize = 32;

type ErrorMetadata = Arc<dyn Fn(&Error) -> Metadata + Send + Sync>;

/// The settings of [`produce`].
#[derive(Clone)]
pub struct ProduceOptions {
    metadata: Option<Metadata>,
    error_metadata: Option<ErrorMetadata>,
    look_ahead: bool,
}

impl Default for ProduceOptions {
    fn default() -> Self {
        Self { metadata: None, error_metadata: None, look_ahead: true }
    }
}

impl ProduceOptions {
    /// Sets metadata of the whole stream, beside the schema's own; by default none.
    pub fn with_metadata(mut self, metadata: Metadata) -> Self {
        self.metadata = Some(metadata);
        self
    }

    /// Sets a function for the metadata of errors, beside errno and message; by default none.
    pub fn with_error_metadata(mut self, metadata: impl Fn(&Error) -> Metadata + Send + Sync + 'static) -> Self {
        self.error_metadata = Some(Arc::new(metadata));
        self
    }

    /// Whether to poll the source for one batch more than requested; by default so.
    ///
    /// Then the consumer learns of the end with the last batch, even without another request.
    /// Without it, such a consumer may wait forever. It costs the memory of one waiting batch.
    pub fn with_look_ahead(mut self, look_ahead: bool) -> Self {
        self.look_ahead = look_ahead;
        self
    }
}

impl fmt::Debug for ProduceOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let error_metadata = self.error_metadata.as_ref().map(|_| "a function");
        f.debug_struct("ProduceOptions")
            .field("metadata", &self.metadata)
            .field("error_metadata", &error_metadata)
            .field("look_ahead", &self.look_ahead)
            .finish()
    }
}

/// Serves the arrays of `source` to a handler.
///
/// `field` describes every array ([`schema::batch_field`](crate::schema::batch_field) for record
/// batches), and each array must be of `device_type` (R91).
///
/// The returned future calls `on_schema`, then `on_next_task` for every requested batch. It polls
/// `source` only after the first request. It always ends with `release`:
/// - After the end of `source`, with the end marker before.
/// - After a failure, with `on_error` before. Failures are an error or panic (`EIO`) of `source`, a
///   batch on another device type, `request(n)` with `n <= 0`, and a failed extraction.
/// - Without a further call once the consumer has cancelled, or refused the schema or a batch (R81,
///   R82, R89).
/// - When the future drops early. Data is missing then, so `on_error` with `ECANCELED` comes
///   before, unless the consumer has cancelled.
///
/// `source` drops before `release`.
///
/// # Threads
/// The handler is called on the threads that poll or drop the future. An executor must not poll or
/// drop it within its own waker. Otherwise a consumer that requests would be called back within its
/// request (R86).
///
/// # Examples
/// Both ends on one thread:
/// ```
/// # use arrow::array::Int64Array;
/// # use arrow_device::async_stream::{AsyncDeviceStream, AsyncStreamOptions, ProduceOptions};
/// use arrow_device::async_stream::produce;
/// use arrow_device::cpu;
/// use arrow_device::ffi::ArrowDeviceType;
/// use futures::{StreamExt, executor::block_on, future, stream};
///
/// # let column = Int64Array::from(vec![3, 1, 4]);
/// # // SAFETY: the producer is that of this crate, and so are the arrays.
/// # let (handler, batches) = unsafe { AsyncDeviceStream::new(AsyncStreamOptions::default()) };
/// let source = stream::iter([cpu::export_array(&column), cpu::export_array(&column)]);
/// let options = ProduceOptions::default().with_metadata(vec![("rows".into(), "6".into())]);
/// let producer = produce(source, &cpu::field_of(&column), ArrowDeviceType::CPU, handler, options);
/// let ((), number) = block_on(future::join(producer, batches.count()));
/// assert_eq!(number, 2);
/// ```
pub fn produce<S, B>(
    source: S,
    field: &Field,
    device_type: ArrowDeviceType,
    mut handler: AsyncHandler,
    options: ProduceOptions,
) -> AsyncProducer<S>
where
    S: Stream<Item = Result<B>>,
    B: Into<AsyncBatch>,
{
    let metadata = options.metadata.map(encode).transpose();
    let (metadata, schema) = match metadata {
        Ok(metadata) => (metadata, export_field(field)),
        Err(error) => (None, Err(error)),
    };
    let demand = Demand::new(device_type, metadata);
    // SAFETY: `AsyncProducer` holds the demand longer than the handler.
    unsafe { handler.set_producer(demand.raw()) };
    AsyncProducer {
        source: Some(Box::pin(source)),
        ready: Ready::Schema(schema),
        handler: Some(handler),
        device_type,
        error_metadata: options.error_metadata,
        look_ahead: options.look_ahead,
        demand,
    }
}

/// Runs [`produce`] on a new thread.
///
/// The thread ends after `release`; joining it is optional.
///
/// # Errors
/// `Other` if the thread cannot be spawned; the handler has then got `on_error` and `release`.
///
/// # Examples
/// See [the module](super).
pub fn produce_on_thread<S, B>(
    source: S,
    field: &Field,
    device_type: ArrowDeviceType,
    handler: AsyncHandler,
    options: ProduceOptions,
) -> Result<JoinHandle<()>>
where
    S: Stream<Item = Result<B>> + Send + 'static,
    B: Into<AsyncBatch>,
{
    let producer = produce(source, field, device_type, handler, options);
    Builder::new()
        .name("async-producer".into())
        .spawn(move || futures::executor::block_on(producer))
        .map_err(|error| Error::Other(format!("async stream: cannot spawn a thread for its producer: {error}")))
}

/// The future of [`produce`].
#[must_use = "a producer does nothing unless it is polled"]
pub struct AsyncProducer<S> {
    source: Option<Pin<Box<S>>>,
    ready: Ready,
    /// `None` once released.
    handler: Option<AsyncHandler>,
    device_type: ArrowDeviceType,
    error_metadata: Option<ErrorMetadata>,
    look_ahead: bool,
    demand: Arc<Demand>,
}

/// The argument of the next callback, if there is one.
#[derive(Debug)]
enum Ready {
    Schema(Result<FFI_ArrowSchema>),
    /// A batch ahead of its request.
    Batch(AsyncBatch),
    Nothing,
}

impl<S> Drop for AsyncProducer<S> {
    fn drop(&mut self) {
        self.finish(Some(ErrorReport::dropped()));
    }
}

impl<S, B> Future for AsyncProducer<S>
where
    S: Stream<Item = Result<B>>,
    B: Into<AsyncBatch>,
{
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let this = self.get_mut();
        for _ in 0..BATCHES_PER_POLL {
            // Registered before the state is read, so that no request is missed.
            this.demand.waker.register(cx.waker());
            match this.step(cx) {
                Step::Again => {}
                Step::Wait => return Poll::Pending,
                Step::End(report) => {
                    this.finish(report);
                    return Poll::Ready(());
                }
            }
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }
}

enum Step {
    Again,
    Wait,
    End(Option<ErrorReport>),
}

/// The arguments of `on_error`.
struct ErrorReport {
    code: c_int,
    message: CString,
    metadata: Option<Vec<u8>>,
}

impl ErrorReport {
    fn dropped() -> Self {
        let message = c"async stream: its producer was dropped before its end".into();
        Self { code: libc::ECANCELED, message, metadata: None }
    }
}

impl<S, B> AsyncProducer<S>
where
    S: Stream<Item = Result<B>>,
    B: Into<AsyncBatch>,
{
    /// Does the next action, with one callback at most.
    fn step(&mut self, cx: &mut Context<'_>) -> Step {
        let Some(handler) = &mut self.handler else { return Step::End(None) };
        let credit = match self.demand.next_action() {
            Action::Cancel => return Step::End(None),
            Action::Fail(error) => return self.report(&error),
            Action::Idle => None,
            Action::Batches(credit) => Some(credit),
        };
        match (std::mem::replace(&mut self.ready, Ready::Nothing), credit) {
            (Ready::Schema(Err(error)), _) => return self.report(&error),
            (Ready::Schema(Ok(mut schema)), _) => {
                return match handler.on_schema(&mut schema) {
                    Ok(()) => Step::Again,
                    Err(_) => Step::End(None),
                };
            }
            (Ready::Batch(batch), Some(1..)) => return self.deliver(batch),
            (Ready::Batch(batch), _) => {
                self.ready = Ready::Batch(batch);
                return Step::Wait;
            }
            (Ready::Nothing, None) => return Step::Wait,
            (Ready::Nothing, Some(0)) if !self.look_ahead => return Step::Wait,
            (Ready::Nothing, Some(_)) => {}
        }
        match self.poll_source(cx) {
            Poll::Pending => Step::Wait,
            // The next step reads the credit again, which may have changed during the poll.
            Poll::Ready(Some(Ok(batch))) => {
                self.ready = Ready::Batch(batch);
                Step::Again
            }
            Poll::Ready(Some(Err(error))) => self.report(&error),
            Poll::Ready(None) => self.end(),
        }
    }

    fn poll_source(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<AsyncBatch>>> {
        let Some(source) = &mut self.source else { return Poll::Ready(None) };
        let polled = guard("the source of an async stream", || Ok(source.as_mut().poll_next(cx).map_ok(Into::into)));
        match polled {
            Ok(Poll::Ready(Some(Ok(batch)))) => {
                let batch: AsyncBatch = batch;
                Poll::Ready(Some(batch.check(self.device_type).map(|()| batch)))
            }
            Ok(polled) => polled,
            Err(panic) => Poll::Ready(Some(Err(panic))),
        }
    }

    fn deliver(&mut self, mut batch: AsyncBatch) -> Step {
        let Some(handler) = &mut self.handler else { return Step::End(None) };
        let metadata = match batch.metadata.take().map(encode).transpose() {
            Ok(metadata) => metadata,
            Err(error) => return self.report(&error),
        };
        let (delivery, mut task) = Delivery::new(batch, self.device_type, &self.demand);
        self.demand.spend();
        // SAFETY: a new task, and metadata that outlives the call (R90).
        match unsafe { handler.on_next_task(&mut task, pointer(&metadata)) } {
            Ok(()) => Step::Again,
            Err(_) => {
                delivery.refused();
                Step::End(None)
            }
        }
    }

    fn end(&mut self) -> Step {
        // Work for this stream ends before its consumer learns of the end.
        self.drop_source();
        if let Some(handler) = &mut self.handler {
            // SAFETY: null is the end marker. A refusal is ignored, because only `release` follows.
            unsafe { handler.on_next_task(std::ptr::null_mut(), std::ptr::null()) }.ok();
        }
        Step::End(None)
    }

    fn report(&self, error: &Error) -> Step {
        // A failure of the metadata function must not hide the error.
        let metadata = self.error_metadata.as_ref().and_then(|metadata| guard("error metadata", || encode(metadata(error))).ok());
        Step::End(Some(ErrorReport { code: failure_code(error), message: c_string(&error.to_string()), metadata }))
    }
}

impl<S> AsyncProducer<S> {
    /// Drops the source and releases the handler, once. Reports the error first, unless the
    /// consumer has cancelled.
    fn finish(&mut self, report: Option<ErrorReport>) {
        let Some(handler) = self.handler.take() else { return };
        self.drop_source();
        let cancelled = self.demand.close();
        match report {
            // SAFETY: the metadata is encoded and outlives the call.
            Some(report) if !cancelled => unsafe { handler.fail(report.code, &report.message, pointer(&report.metadata)) },
            _ => drop(handler),
        }
    }

    fn drop_source(&mut self) {
        let source = (self.source.take(), std::mem::replace(&mut self.ready, Ready::Nothing));
        // A panic in the source's drop would only hide how the stream ended.
        let _ = guard("the source of an async stream", || {
            drop(source);
            Ok(())
        });
    }
}

impl<S> fmt::Debug for AsyncProducer<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AsyncProducer")
            .field("device_type", &self.device_type)
            .field("ready", &self.ready)
            .field("ended", &self.handler.is_none())
            .finish_non_exhaustive()
    }
}

fn pointer(metadata: &Option<Vec<u8>>) -> *const c_char {
    metadata.as_ref().map_or(std::ptr::null(), |bytes| bytes.as_ptr().cast())
}
