// SPDX-License-Identifier: Apache-2.0
//! The producer with a consumer that checks the rules: schema, requests, tasks, metadata.

use std::task::{Context, Poll, Waker};

use futures::channel::mpsc;
use futures::{StreamExt, stream};

use super::recorder::Recorder;
use super::support::*;
use crate::async_stream::{AsyncBatch, ProduceOptions, produce};
use crate::ffi::{ArrowDeviceType, FFI_ArrowDeviceArray};
use crate::{Error, Result};

const CPU: ArrowDeviceType = ArrowDeviceType::CPU;

fn plain() -> ProduceOptions {
    ProduceOptions::default()
}

#[test]
fn r79_r80_nothing_is_called_before_the_first_poll_and_the_schema_then() {
    let live = LiveCount::default();
    let (handler, recorder) = Recorder::new(|_, _, _| 0);
    let mut producer = produce(arrays(&live, 3), &field(), CPU, handler, plain());
    assert_eq!(recorder.log(), "");
    assert!(!drive(&mut producer));
    assert_eq!(recorder.log(), "schema");
    assert_eq!(live.count(), 1, "no batch was made without a request");
    recorder.cancel();
    assert!(drive(&mut producer));
    assert_eq!(recorder.log(), "schema release");
    assert_eq!(live.count(), 0);
}

#[test]
fn r84_batches_follow_requests_and_the_end_needs_none() {
    let live = LiveCount::default();
    let (handler, recorder) = Recorder::new(|_, _, _| 0);
    let mut producer = produce(arrays(&live, 4), &field(), CPU, handler, plain());
    assert!(!drive(&mut producer));
    recorder.request(1);
    assert!(!drive(&mut producer));
    assert_eq!(recorder.log(), "schema task");
    recorder.request(2);
    assert!(!drive(&mut producer));
    assert_eq!(recorder.log(), "schema task task task");
    recorder.request(1);
    assert!(drive(&mut producer));
    assert_eq!(recorder.log(), "schema task task task task end release");
    for n in 1..=4 {
        assert_eq!(recorder.extract().unwrap().array.len(), n, "R92: in order");
    }
    drop(producer);
    assert_eq!(live.count(), 0);
}

#[test]
fn r84_without_look_ahead_the_source_is_polled_for_requested_batches_only() {
    for look_ahead in [true, false] {
        let live = LiveCount::default();
        let (handler, recorder) = Recorder::requests(2);
        let (send, receive) = mpsc::unbounded::<Result<FFI_ArrowDeviceArray>>();
        for n in 1..=3 {
            send.unbounded_send(Ok(array(&live, n))).unwrap();
        }
        drop(send);
        let options = plain().with_look_ahead(look_ahead);
        let mut left = 3;
        let source = receive.inspect(|_| left -= 1);
        let mut producer = produce(source, &field(), CPU, handler, options);
        assert!(!drive(&mut producer));
        assert_eq!(recorder.log(), "schema task task");
        recorder.cancel();
        assert!(drive(&mut producer));
        drop(producer);
        assert_eq!(left, if look_ahead { 0 } else { 1 });
        recorder.dismiss_all();
        assert_eq!(live.count(), 0);
    }
}

#[test]
fn r84_an_exact_request_without_look_ahead_ends_with_the_next() {
    let live = LiveCount::default();
    let (handler, recorder) = Recorder::requests(2);
    let mut producer = produce(arrays(&live, 2), &field(), CPU, handler, plain().with_look_ahead(false));
    assert!(!drive(&mut producer));
    recorder.request(1);
    assert!(drive(&mut producer));
    assert_eq!(recorder.log(), "schema task task end release");
    recorder.dismiss_all();
    assert_eq!(live.count(), 0);
}

#[test]
fn r86_request_inside_on_schema_and_on_next_task_does_not_reenter() {
    let live = LiveCount::default();
    // The recorder panics if a callback comes within another.
    let (handler, recorder) = Recorder::new(|this, call, _| {
        if matches!(call, "schema" | "task") {
            this.request(1);
        }
        0
    });
    assert!(drive(&mut produce(arrays(&live, 5), &field(), CPU, handler, plain())));
    assert_eq!(recorder.log(), "schema task task task task task end release");
    recorder.dismiss_all();
    assert_eq!(live.count(), 0);
}

#[test]
fn r66_a_request_wakes_the_producer() {
    let live = LiveCount::default();
    let (handler, recorder) = Recorder::new(|_, _, _| 0);
    let mut producer = produce(arrays(&live, 1), &field(), CPU, handler, plain());
    let flag = Flag::new();
    let waker = Waker::from(std::sync::Arc::clone(&flag));
    let mut cx = Context::from_waker(&waker);
    let mut step = || std::pin::Pin::new(&mut producer).poll(&mut cx);
    assert!(step().is_pending() && !flag.take());
    recorder.request(1);
    assert!(flag.take());
    assert_eq!(recorder.log(), "schema", "R86: not from inside request");
    assert!(step().is_ready());
    recorder.dismiss_all();
    assert_eq!(live.count(), 0);
}

#[test]
fn r87_the_sum_of_requests_saturates() {
    let live = LiveCount::default();
    let (handler, recorder) = Recorder::new(|this, call, before| {
        match (call, before) {
            ("schema", _) => {
                this.request(i64::MAX);
                this.request(i64::MAX);
            }
            ("task", 1) => this.request(1),
            _ => {}
        }
        0
    });
    assert!(drive(&mut produce(arrays(&live, 3), &field(), CPU, handler, plain())));
    assert_eq!(recorder.log(), "schema task task task end release");
    recorder.dismiss_all();
    assert_eq!(live.count(), 0);
}

#[test]
fn r94_an_empty_source_ends_with_the_first_request() {
    let live = LiveCount::default();
    let (handler, recorder) = Recorder::requests(1);
    assert!(drive(&mut produce(arrays(&live, 0), &field(), CPU, handler, plain())));
    assert_eq!(recorder.log(), "schema end release");
    assert_eq!(live.count(), 0);
}

#[test]
fn r90_metadata_of_stream_batch_and_error() {
    let live = LiveCount::default();
    let pairs = |key: &str| vec![(key.to_string(), "ü".to_string())];
    let metadata = pairs("stream");
    let (handler, recorder) = Recorder::new(move |this, call, _| {
        assert_eq!(this.producer_metadata(), metadata, "valid as long as the producer");
        if call == "schema" {
            this.request(9);
        }
        0
    });
    let batches =
        [Ok(AsyncBatch::from(array(&live, 1)).with_metadata(pairs("batch"))), Ok(array(&live, 2).into()), Err(failure())];
    let options =
        plain().with_metadata(pairs("stream")).with_error_metadata(move |error| vec![("e".into(), error.errno().to_string())]);
    assert!(drive(&mut produce(stream::iter(batches), &field(), CPU, handler, options)));
    assert_eq!(recorder.log(), "schema task(batch=ü) task error(12, the device is full)(e=12) release");
    assert_eq!(recorder.producer_metadata(), pairs("stream"), "R96: tasks keep the producer alive");
    recorder.dismiss_all();
    assert_eq!(live.count(), 0);
}

#[test]
#[cfg_attr(miri, ignore = "64 MiB are slow there")]
fn r90_metadata_that_cannot_be_encoded_is_an_error() {
    let large = || vec![("key".to_string(), "x".repeat(crate::metadata::MAX_METADATA_BYTES))];
    let live = LiveCount::default();
    let (handler, recorder) = Recorder::requests(2);
    let batch = AsyncBatch::from(array(&live, 1)).with_metadata(large());
    assert!(drive(&mut produce(stream::iter([Ok(batch)]), &field(), CPU, handler, plain())));
    assert!(recorder.log().starts_with("schema error(22, metadata is larger"), "{}", recorder.log());

    let (handler, recorder) = Recorder::requests(2);
    let options = plain().with_metadata(large());
    assert!(drive(&mut produce(arrays(&live, 1), &field(), CPU, handler, options)));
    assert!(recorder.log().starts_with("error(22, metadata is larger"), "{}", recorder.log());
    assert_eq!(live.count(), 0);
}

#[test]
fn r30_error_metadata_that_panics_does_not_hide_the_error() {
    let (handler, recorder) = Recorder::requests(2);
    let options = plain().with_error_metadata(|_| panic!("no metadata"));
    let source = stream::iter([Err::<AsyncBatch, _>(failure())]);
    assert!(drive(&mut produce(source, &field(), CPU, handler, options)));
    assert_eq!(recorder.log(), "schema error(12, the device is full) release");
}

#[test]
fn r96_request_before_each_extraction_also_after_release() {
    let live = LiveCount::default();
    let (handler, recorder) = Recorder::requests(3);
    let mut producer = produce(arrays(&live, 3), &field(), CPU, handler, plain());
    assert!(drive(&mut producer));
    drop(producer);
    for n in 1..=3 {
        recorder.request(1);
        recorder.cancel();
        assert_eq!(recorder.extract().unwrap().array.len(), n);
    }
    assert_eq!(recorder.log(), "schema task task task end release");
    assert_eq!(live.count(), 0);
}

#[test]
fn r97_a_deferred_batch_is_made_at_its_extraction_if_wanted() {
    let live = LiveCount::default();
    let deferred = |n| {
        let live = live.clone();
        let token = live.token();
        Ok(AsyncBatch::deferred(move || {
            drop(token);
            let mut array = array(&live, n);
            array.reserved = [9; 3];
            Ok(array)
        }))
    };
    let (handler, recorder) = Recorder::requests(3);
    assert!(drive(&mut produce(stream::iter((1..=2).map(deferred)), &field(), CPU, handler, plain())));
    assert_eq!(live.count(), 2);
    // R19: `extract` checks that `reserved` is zero.
    assert_eq!(recorder.extract().unwrap().array.len(), 1);
    recorder.dismiss();
    assert_eq!(live.count(), 0);
}

#[test]
fn r91_arrays_on_another_device_type_are_refused() {
    let live = LiveCount::default();
    let (handler, recorder) = Recorder::requests(3);
    let batches = [Ok(array(&live, 1)), Ok(array_on(ArrowDeviceType::CUDA, &live, 2))];
    assert!(drive(&mut produce(stream::iter(batches), &field(), CPU, handler, plain())));
    let error = "error(22, async stream: its source gave an array on CUDA, but CPU is announced)";
    assert_eq!(recorder.log(), format!("schema task {error} release"));
    recorder.dismiss_all();

    let (handler, recorder) = Recorder::requests(3);
    let batches = [Ok(FFI_ArrowDeviceArray::empty())];
    assert!(drive(&mut produce(stream::iter(batches), &field(), CPU, handler, plain())));
    assert_eq!(recorder.log(), "schema error(22, async stream: its source gave a released array) release");
    assert_eq!(live.count(), 0);
}

#[test]
fn a_source_that_is_always_ready_yields_to_other_tasks() {
    let live = LiveCount::default();
    let (handler, recorder) = Recorder::requests(i64::MAX);
    let mut producer = produce(arrays(&live, 100), &field(), CPU, handler, plain());
    assert_eq!(poll(&mut producer), Poll::Pending);
    let waiting = recorder.waiting();
    assert!(waiting > 0 && waiting < 100, "{waiting} in one poll");
    assert!(drive(&mut producer));
    assert_eq!(recorder.waiting(), 100);
    recorder.dismiss_all();
    assert_eq!(live.count(), 0);
}

#[test]
fn the_future_can_be_sent_and_polled_after_its_end() {
    fn sendable<T: Send + Unpin>(value: T) -> T {
        value
    }
    let live = LiveCount::default();
    let (handler, recorder) = Recorder::requests(1);
    let mut producer = sendable(produce(arrays(&live, 0), &field(), CPU, handler, plain()));
    assert!(drive(&mut producer) && drive(&mut producer));
    assert_eq!(recorder.log(), "schema end release");
    assert!(format!("{producer:?}").contains("ended: true"));
}

#[test]
fn c_strings_keep_the_part_after_a_nul() {
    let (handler, recorder) = Recorder::requests(1);
    let source = stream::iter([Err::<AsyncBatch, _>(Error::Other("a\0b".into()))]);
    assert!(drive(&mut produce(source, &field(), CPU, handler, plain())));
    assert_eq!(recorder.log(), "schema error(5, a\u{fffd}b) release");
}
