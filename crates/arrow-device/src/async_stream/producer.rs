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

use super::demand::{Demand, Wish};
use super::task::Delivery;
use super::{AsyncBatch, AsyncHandler, Metadata, failure_code};
use crate::callback::{c_text, guard};
use crate::ffi::ArrowDeviceType;
use crate::metadata::encode;
use crate::schema::export_field;
use crate::{Error, Result};

/// After so many batches in one poll the executor gets a turn, so that a source that is always ready starves nobody.
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
    /// What to tell the consumer about the whole stream, beside the schema's own metadata; by default nothing.
    pub fn with_metadata(mut self, metadata: Metadata) -> Self {
        self.metadata = Some(metadata);
        self
    }

    /// What to tell with an error, beside its number and text; by default nothing.
    pub fn with_error_metadata(mut self, metadata: impl Fn(&Error) -> Metadata + Send + Sync + 'static) -> Self {
        self.error_metadata = Some(Arc::new(metadata));
        self
    }

    /// Whether to ask the source for one batch more than the consumer has requested; by default so.
    ///
    /// Then the consumer learns of the end as soon as it has the last batch, also if it has requested no other; it might
    /// wait for ever if not. It costs the memory of the batch that waits.
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
/// `field` is that of every array ([`schema::batch_field`](crate::schema::batch_field) for record batches), and each must be
/// of `device_type` (R91).
///
/// Nothing happens until the returned future is polled, by whatever executor. Then `on_schema` is called, and with every
/// batch that the consumer has requested `on_next_task`; `source` is first polled after the first request. The future ends
/// when it has called `release`, which it always does:
/// - after the end of `source` and the end marker;
/// - after an error of `source`, a batch on another device type, `request(n)` with `n <= 0`, a batch that could not be
///   extracted, or a panic of `source` (`EIO`), each told by `on_error`;
/// - without another word, once the consumer has cancelled or refused the schema or a batch (R81, R82, R89);
/// - when the future is dropped before its end: with `on_error` and `ECANCELED`, as the data is not complete, or without,
///   if the consumer has cancelled.
///
/// `source` is dropped before `release`.
///
/// # Threads
/// The handler is called on the threads that poll or drop the future. An executor must not poll or drop it from inside
/// its own waker: a consumer that requests would be called back from that very call (R86).
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
    // SAFETY: `AsyncProducer` holds the demand for longer than the handler.
    unsafe { handler.set_producer(demand.raw()) };
    AsyncProducer {
        source: Some(Box::pin(source)),
        schema: Some(schema),
        held: None,
        handler: Some(handler),
        device_type,
        error_metadata: options.error_metadata,
        look_ahead: options.look_ahead,
        demand,
    }
}

/// Runs [`produce`] on a thread of its own.
///
/// The thread ends after it has called `release`; joining it is not needed.
///
/// # Errors
/// `Other` if the system has no thread; the handler has got `on_error` and `release` then.
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
        .map_err(|error| Error::Other(format!("async stream: no thread for its producer: {error}")))
}

/// The future of [`produce`].
#[must_use = "a producer does nothing unless it is polled"]
pub struct AsyncProducer<S> {
    source: Option<Pin<Box<S>>>,
    /// Until it was told.
    schema: Option<Result<FFI_ArrowSchema>>,
    /// A batch without a request.
    held: Option<AsyncBatch>,
    /// Until it was released.
    handler: Option<AsyncHandler>,
    device_type: ArrowDeviceType,
    error_metadata: Option<ErrorMetadata>,
    look_ahead: bool,
    demand: Arc<Demand>,
}

impl<S> Drop for AsyncProducer<S> {
    fn drop(&mut self) {
        self.finish(Some(Report::dropped()));
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
            // First, so that no wish is missed.
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
    End(Option<Report>),
}

/// What `on_error` is told.
struct Report {
    code: c_int,
    message: CString,
    metadata: Option<Vec<u8>>,
}

impl Report {
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
    /// Does what is to be done next, with one callback at most.
    fn step(&mut self, cx: &mut Context<'_>) -> Step {
        let Some(handler) = &mut self.handler else { return Step::End(None) };
        let credit = match self.demand.wish() {
            Wish::Cancel => return Step::End(None),
            Wish::Fail(error) => return self.report(&error),
            Wish::Idle => None,
            Wish::Batches(credit) => Some(credit),
        };
        match self.schema.take() {
            Some(Err(error)) => return self.report(&error),
            Some(Ok(mut schema)) => {
                return match handler.on_schema(&mut schema) {
                    Ok(()) => Step::Again,
                    Err(_) => Step::End(None),
                };
            }
            None => {}
        }
        let Some(credit) = credit else { return Step::Wait };
        if credit > 0
            && let Some(batch) = self.held.take()
        {
            return self.deliver(batch);
        }
        if credit == 0 && (self.held.is_some() || !self.look_ahead) {
            return Step::Wait;
        }
        match self.poll_source(cx) {
            Poll::Pending => Step::Wait,
            // Asked again for the credit: the source may have taken long.
            Poll::Ready(Some(Ok(batch))) => {
                self.held = Some(batch);
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
        // SAFETY: a new task, and metadata that lives until the call has returned (R90).
        match unsafe { handler.on_next_task(&mut task, pointer(&metadata)) } {
            Ok(()) => Step::Again,
            Err(_) => {
                delivery.refused();
                Step::End(None)
            }
        }
    }

    fn end(&mut self) -> Step {
        // Whatever still computes for this stream ends before its consumer is told.
        self.drop_source();
        if let Some(handler) = &mut self.handler {
            // SAFETY: null is the end marker. That it is refused changes nothing: only `release` follows.
            unsafe { handler.on_next_task(std::ptr::null_mut(), std::ptr::null()) }.ok();
        }
        Step::End(None)
    }

    fn report(&self, error: &Error) -> Step {
        // Metadata that fails must not hide the error.
        let metadata = self.error_metadata.as_ref().and_then(|tell| guard("error metadata", || encode(tell(error))).ok());
        Step::End(Some(Report { code: failure_code(error), message: c_text(&error.to_string()), metadata }))
    }
}

impl<S> AsyncProducer<S> {
    /// Drops the source and releases the handler, once, with a report before if there is one and nobody has cancelled.
    fn finish(&mut self, report: Option<Report>) {
        let Some(handler) = self.handler.take() else { return };
        self.drop_source();
        let cancelled = self.demand.close();
        match report {
            // SAFETY: the metadata is encoded and lives until the call has returned.
            Some(report) if !cancelled => unsafe { handler.fail(report.code, &report.message, pointer(&report.metadata)) },
            _ => drop(handler),
        }
    }

    fn drop_source(&mut self) {
        let source = (self.source.take(), self.held.take());
        // Whatever it was doing is over; its panic would only hide how the stream ended.
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
            .field("held", &self.held)
            .field("ended", &self.handler.is_none())
            .finish_non_exhaustive()
    }
}

fn pointer(metadata: &Option<Vec<u8>>) -> *const c_char {
    metadata.as_ref().map_or(std::ptr::null(), |bytes| bytes.as_ptr().cast())
}
