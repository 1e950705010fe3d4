// SPDX-License-Identifier: Apache-2.0
//! Counted arrays, and polling by hand.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicIsize, Ordering::SeqCst};
use std::task::{Context, Poll, Wake, Waker};

use arrow::datatypes::{DataType, Field, Schema};
use futures::{Stream, StreamExt, stream};

use crate::async_stream::{AsyncDeviceStream, AsyncHandler, AsyncStreamOptions};
use crate::ffi::{ArrowDeviceType, FFI_ArrowDeviceArray};
use crate::schema::batch_field;
use crate::{ArrayExport, Error, ImportedArray, Result};

/// Counts live arrays, tasks and sources. Zero at the end of a test means that each was freed
/// exactly once.
#[derive(Clone, Default)]
pub struct LiveCount(Arc<AtomicIsize>);

impl LiveCount {
    pub fn token(&self) -> LiveToken {
        self.0.fetch_add(1, SeqCst);
        LiveToken(self.clone())
    }

    pub fn count(&self) -> isize {
        self.0.load(SeqCst)
    }
}

pub struct LiveToken(LiveCount);

impl Drop for LiveToken {
    fn drop(&mut self) {
        self.0.0.fetch_sub(1, SeqCst);
    }
}

pub fn schema() -> Schema {
    Schema::new_with_metadata(vec![Field::new("x", DataType::Int64, false)], [("of".into(), "schema".into())].into())
}

pub fn field() -> Field {
    batch_field(&schema())
}

pub fn consumer(options: AsyncStreamOptions) -> (AsyncHandler, AsyncDeviceStream) {
    // SAFETY: the producers of the tests break only rules that the consumer checks.
    unsafe { AsyncDeviceStream::new(options) }
}

/// An array with `n` rows, which identify it.
pub fn array(live: &LiveCount, n: usize) -> FFI_ArrowDeviceArray {
    array_on(ArrowDeviceType::CPU, live, n)
}

pub fn array_on(device_type: ArrowDeviceType, live: &LiveCount, n: usize) -> FFI_ArrowDeviceArray {
    let values = vec![7i64; n];
    let column = ArrayExport::new(n).buffers(vec![std::ptr::null(), values.as_ptr().cast()]);
    let batch = ArrayExport::batch(n, vec![column.owner(Box::new((live.token(), values)))]).unwrap();
    batch.export(device_type, -1, std::ptr::null_mut()).unwrap()
}

/// A source of arrays with `1..=n` rows; the source itself counts as live.
pub fn arrays(live: &LiveCount, n: usize) -> impl Stream<Item = Result<FFI_ArrowDeviceArray>> + Send + 'static {
    counted(
        live,
        stream::iter((1..=n).map({
            let live = live.clone();
            move |n| Ok(array(&live, n))
        })),
    )
}

/// A stream, counted as live until it drops.
pub fn counted<S: Stream<Item: Send> + Send + 'static>(
    live: &LiveCount,
    source: S,
) -> impl Stream<Item = S::Item> + Send + 'static {
    let token = live.token();
    source.inspect(move |_| {
        let _ = &token;
    })
}

pub fn failure() -> Error {
    Error::OutOfMemory("the device is full".into())
}

/// The number of rows of a stream's item, or its error message.
pub fn outcome(item: Option<Result<ImportedArray>>) -> Option<Result<usize, String>> {
    item.map(|array| array.map(|array| array.len()).map_err(|error| error.to_string()))
}

/// A waker that records a wake.
pub struct Flag(AtomicBool);

impl Wake for Flag {
    fn wake(self: Arc<Self>) {
        self.0.store(true, SeqCst);
    }
}

impl Flag {
    pub fn new() -> Arc<Self> {
        Arc::new(Self(AtomicBool::new(false)))
    }

    pub fn take(&self) -> bool {
        self.0.swap(false, SeqCst)
    }
}

/// A waker that runs a closure, like a hostile executor's.
pub struct OnWake<F>(pub F);

impl<F: Fn() + Send + Sync> Wake for OnWake<F> {
    fn wake(self: Arc<Self>) {
        (self.0)();
    }
}

/// Polls once.
pub fn poll<F: Future + Unpin>(future: &mut F) -> Poll<F::Output> {
    Pin::new(future).poll(&mut Context::from_waker(Waker::noop()))
}

/// Polls as long as the future wakes itself; returns whether it has ended.
pub fn drive<F: Future<Output = ()> + Unpin>(future: &mut F) -> bool {
    let flag = Flag::new();
    let waker = Waker::from(Arc::clone(&flag));
    loop {
        if Pin::new(&mut *future).poll(&mut Context::from_waker(&waker)).is_ready() {
            return true;
        }
        if !flag.take() {
            return false;
        }
    }
}

/// Polls a stream once.
pub fn next<S: Stream + Unpin>(stream: &mut S) -> Poll<Option<S::Item>> {
    stream.poll_next_unpin(&mut Context::from_waker(Waker::noop()))
}
