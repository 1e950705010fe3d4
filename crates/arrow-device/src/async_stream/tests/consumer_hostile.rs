// SPDX-License-Identifier: Apache-2.0
//! The consumer with producers that break the interface, or deviate as real ones do (Y).

use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use arrow::ffi::FFI_ArrowSchema;
use futures::StreamExt;
use futures::executor::block_on;

use super::scripted::{HandlerPtr, Scripted, ScriptedTask};
use super::support::*;
use crate::async_stream::{AsyncDeviceStream, AsyncHandler, AsyncStreamOptions};
use crate::doubling::doubling;
use crate::schema::export_schema;

fn new() -> (Scripted, AsyncDeviceStream) {
    let (handler, stream) = consumer(AsyncStreamOptions::default());
    (Scripted::new(handler), stream)
}

fn opened() -> (Scripted, AsyncDeviceStream) {
    let (mut peer, stream) = new();
    assert_eq!(peer.schema(), 0);
    (peer, stream)
}

/// Reads all that the stream has.
fn rest(stream: &mut AsyncDeviceStream) -> Vec<Result<usize, String>> {
    let mut all = Vec::new();
    while let Poll::Ready(Some(item)) = next(stream) {
        all.extend(outcome(Some(item)));
    }
    assert!(matches!(next(stream), Poll::Ready(None)), "the stream has ended");
    all
}

/// Tries a schema that must be refused, and the later calls of Arrow C++ (Y2).
#[track_caller]
fn refused(peer: &mut Scripted, stream: &mut AsyncDeviceStream, code: i32) -> String {
    assert_eq!(code, libc::EINVAL);
    peer.error(libc::EIO, Some("your on_schema failed"));
    assert_eq!(peer.end(), 0);
    let live = LiveCount::default();
    assert_eq!(peer.batch(&live, 1), libc::EINVAL);
    assert_eq!(live.count(), 0, "a refused schema is freed by the producer alone");
    peer.release();
    assert_eq!(peer.calls.take(), "");
    let error = block_on(stream.schema()).unwrap_err().to_string();
    assert_eq!(rest(stream), [Err(error.clone())], "the first failure counts");
    error
}

#[test]
fn y2_a_schema_that_cannot_be_imported_is_refused_once() {
    let (mut peer, mut stream) = new();
    let code = peer.schema_of(std::ptr::null_mut());
    assert!(refused(&mut peer, &mut stream, code).contains("released"));

    let (mut peer, mut stream) = new();
    let code = peer.schema_of(&mut FFI_ArrowSchema::empty());
    assert!(refused(&mut peer, &mut stream, code).contains("released"));

    let mut schema = export_schema(&schema()).unwrap();
    schema.n_children = -1;
    let (mut peer, mut stream) = new();
    let code = peer.schema_of(&mut schema);
    assert!(refused(&mut peer, &mut stream, code).contains("cannot have -1 children"));
}

#[test]
fn a_schema_with_too_many_fields_is_refused() {
    let (mut peer, mut stream) = new();
    assert_eq!(peer.schema_of(&mut doubling()), libc::ENOSYS);
    peer.release();
    let error = block_on(stream.schema()).unwrap_err().to_string();
    assert!(error.contains("more than 100000 fields"), "{error}");
}

#[test]
fn r79_a_schema_without_a_usable_producer_is_refused() {
    let (mut peer, mut stream) = new();
    // SAFETY: the producer is null.
    let code = unsafe { peer.schema_without_producer(&mut export_schema(&schema()).unwrap()) };
    assert!(refused(&mut peer, &mut stream, code).contains("without a producer"));

    let (mut peer, mut stream) = new();
    peer.producer().cancel = None;
    let code = peer.schema();
    assert!(refused(&mut peer, &mut stream, code).contains("lacks request or cancel"));
}

#[test]
fn r80_a_second_schema_is_refused() {
    let (mut peer, mut stream) = opened();
    assert_eq!(peer.schema(), libc::EINVAL);
    peer.release();
    assert_eq!(rest(&mut stream), [Err("async stream: on_schema came twice".into())]);
    assert_eq!(peer.calls.take(), "", "no cancel after a refusal");
}

#[test]
fn r80_calls_before_the_schema_are_refused() {
    let live = LiveCount::default();
    let (mut peer, mut stream) = new();
    assert_eq!(peer.batch(&live, 1), libc::EINVAL);
    peer.release();
    assert_eq!(rest(&mut stream), [Err("async stream: a task came before the schema".into())]);

    let (mut peer, mut stream) = new();
    assert_eq!(peer.end(), 0);
    assert_eq!(peer.schema(), libc::EINVAL);
    peer.release();
    assert_eq!(rest(&mut stream), [Err("async stream: its end came before its schema".into())]);
    assert_eq!(live.count(), 0);
}

#[test]
fn r83_calls_after_the_end_are_refused() {
    for end in 0..2 {
        let live = LiveCount::default();
        let (mut peer, mut stream) = opened();
        assert_eq!(peer.batch(&live, 1), 0);
        if end == 0 {
            assert_eq!(peer.end(), 0);
        } else {
            peer.error(libc::EIO, Some("first"));
        }
        assert_eq!(peer.batch(&live, 2), libc::EINVAL);
        peer.error(libc::EIO, Some("second"));
        assert_eq!(peer.end(), 0);
        peer.release();
        let all = rest(&mut stream);
        assert_eq!(all[0], Ok(1));
        match end {
            0 => assert_eq!(all.len(), 1),
            _ => assert_eq!(all[1..], [Err("async producer failed with 5: first".into())]),
        }
        assert_eq!(live.count(), 0);
    }
}

#[test]
fn r84_unrequested_batches_are_taken_up_to_a_bound() {
    let live = LiveCount::default();
    let options = AsyncStreamOptions::default().with_in_flight(1).with_unrequested(3);
    let (handler, mut stream) = consumer(options);
    let mut peer = Scripted::opened(handler);
    for n in 1..=3 {
        assert_eq!(peer.batch(&live, n), 0);
    }
    assert_eq!(peer.batch(&live, 4), libc::EINVAL);
    assert_eq!(peer.batch(&live, 5), libc::EINVAL);
    peer.error(libc::EIO, Some("on_next_task failed (Y2)"));
    peer.release();
    let all = rest(&mut stream);
    assert_eq!(all[..3], [Ok(1), Ok(2), Ok(3)]);
    assert!(matches!(&all[3..], [Err(message)] if message.contains("with_unrequested allows 3")));
    assert_eq!(peer.calls.take(), "");
    assert_eq!(live.count(), 0);
}

#[test]
fn r84_a_flood_lowers_later_requests() {
    let live = LiveCount::default();
    let (mut peer, mut stream) = opened();
    for n in 1..=4 {
        assert_eq!(peer.batch(&live, n), 0);
    }
    let mut calls = Vec::new();
    for n in 1..=4 {
        assert_eq!(outcome(block_on(stream.next())), Some(Ok(n)));
        calls.push(peer.calls.take());
    }
    assert_eq!(calls, ["", "", "request(1)", "request(1)"]);
}

#[test]
fn r68_a_task_without_extract_data_is_refused() {
    let live = LiveCount::default();
    let (mut peer, mut stream) = opened();
    assert_eq!(peer.batch(&live, 1), 0);
    let task = crate::ffi::FFI_ArrowAsyncTask { extract_data: None, private_data: std::ptr::null_mut() };
    assert_eq!(peer.task(task), libc::EINVAL);
    peer.release();
    assert_eq!(rest(&mut stream), [Ok(1), Err("async stream: a task without extract_data".into())]);
    assert_eq!(live.count(), 0);
}

#[test]
fn y4_an_extraction_that_succeeds_without_an_array_is_an_error() {
    let live = LiveCount::default();
    let (mut peer, mut stream) = opened();
    assert_eq!(peer.task(ScriptedTask::Nothing.into_ffi(&live)), 0);
    assert_eq!(peer.batch(&live, 2), 0);
    assert_eq!(rest(&mut stream), [Err("async stream: extract_data succeeded without an array".into())]);
    assert_eq!(peer.calls.take(), "cancel");
    assert_eq!(live.count(), 0);
}

#[test]
fn r90_metadata_that_cannot_be_read_refuses_the_task() {
    let live = LiveCount::default();
    let (mut peer, mut stream) = opened();
    let metadata = (-1i32).to_ne_bytes().to_vec();
    assert_eq!(peer.task_with(ScriptedTask::good(&live, 1), Some(metadata)), libc::EINVAL);
    peer.release();
    assert!(matches!(&rest(&mut stream)[..], [Err(message)] if message.starts_with("metadata: ")));
    assert_eq!(live.count(), 0);
}

#[test]
fn x6_cancel_may_call_on_error_before_it_returns() {
    let (peer, stream) = opened();
    let handle = HandlerPtr(peer.handler);
    peer.calls.on_next_call(move || handle.fail(libc::EIO, "cannot cancel"));
    drop(stream);
    assert_eq!(peer.calls.take(), "cancel");

    let (peer, mut stream) = opened();
    let handle = HandlerPtr(peer.handler);
    peer.calls.on_next_call(move || handle.fail(libc::EIO, "cannot cancel"));
    stream.cancel();
    assert_eq!(rest(&mut stream), [], "a reader that cancels gets no error");
}

#[test]
fn r86_a_producer_may_call_back_inside_request() {
    let live = LiveCount::default();
    let (peer, mut stream) = opened();
    let handle = HandlerPtr(peer.handler);
    let tasks = [1, 2].map(|n| (HandlerPtr(peer.handler), ScriptedTask::good(&live, n)));
    peer.calls.on_next_call(move || {
        for (handle, task) in tasks {
            assert_eq!(handle.give(task), 0);
        }
    });
    assert!(next(&mut stream).is_pending(), "woken by then");
    peer.calls.on_next_call(move || handle.fail(libc::EIO, "inside"));
    let error = "async producer failed with 5: inside".to_string();
    assert_eq!(rest(&mut stream), [Ok(1), Ok(2), Err(error)]);
    assert_eq!(peer.calls.take(), "request(2) request(1)");
    assert_eq!(live.count(), 0);
}

#[test]
fn r85_a_release_inside_request_or_cancel_does_not_hang() {
    let (mut peer, mut stream) = opened();
    let handle = HandlerPtr(peer.handler);
    peer.calls.on_next_call(move || handle.release());
    drop(next(&mut stream));
    peer.handler = std::ptr::null_mut();
    assert!(matches!(&rest(&mut stream)[..], [Err(_)]));

    let (mut peer, stream) = opened();
    let handle = HandlerPtr(peer.handler);
    peer.calls.on_next_call(move || handle.release());
    drop(stream);
    peer.handler = std::ptr::null_mut();
}

#[test]
fn r70_odd_errors_are_still_errors() {
    let (mut peer, mut stream) = opened();
    peer.error(0, None);
    let Poll::Ready(Some(Err(error))) = next(&mut stream) else { panic!("no error") };
    assert_eq!((error.errno(), error.to_string().as_str()), (libc::EIO, "async producer failed with 5"));

    let (peer, mut stream) = opened();
    // SAFETY: the handler is live; the message is not UTF-8, the metadata corrupt.
    unsafe {
        let metadata = (-1i32).to_ne_bytes();
        let on_error = (*peer.handler).on_error.unwrap();
        on_error(peer.handler, libc::EINTR, c"a\xffb".as_ptr(), metadata.as_ptr().cast());
    }
    assert_eq!(rest(&mut stream), [Err("async producer failed with 4: a\u{fffd}b".into())]);
    assert!(stream.error_metadata().is_empty());
}

#[test]
fn r78_calls_after_release_or_with_a_null_handler_do_nothing() {
    let (mut peer, mut stream) = opened();
    let handler = peer.handler;
    // SAFETY: null is allowed.
    unsafe {
        assert_eq!((*handler).on_schema.unwrap()(std::ptr::null_mut(), std::ptr::null_mut()), libc::EINVAL);
        (*handler).release.unwrap()(std::ptr::null_mut());
    }
    peer.release();
    // SAFETY: the stream keeps the memory alive.
    unsafe {
        let (on_next_task, on_error) = ((*handler).on_next_task.unwrap(), (*handler).on_error.unwrap());
        assert_eq!(on_next_task(handler, std::ptr::null_mut(), std::ptr::null()), libc::EINVAL);
        on_error(handler, libc::EIO, std::ptr::null(), std::ptr::null());
    }
    assert!(matches!(&rest(&mut stream)[..], [Err(message)] if message.contains("released by its producer")));
}

#[test]
fn r30_a_waker_that_panics_does_not_unwind_into_the_producer() {
    let live = LiveCount::default();
    let (mut peer, mut stream) = opened();
    let waker = Waker::from(Arc::new(OnWake(|| panic!("a bad waker"))));
    assert!(stream.poll_next_unpin(&mut Context::from_waker(&waker)).is_pending());
    assert_eq!(peer.batch(&live, 1), 0, "accepted nevertheless");
    assert_eq!(peer.end(), 0);
    assert_eq!(rest(&mut stream), [Ok(1)]);
    assert_eq!(live.count(), 0);
}

#[test]
fn r63_an_incomplete_handler_is_refused_and_released() {
    // SAFETY: null is an error.
    let error = unsafe { AsyncHandler::from_raw(std::ptr::null_mut()) }.unwrap_err();
    assert_eq!(error.to_string(), "async stream handler: the pointer is null");
    for (missing, says) in [(0, "on_schema"), (1, "on_next_task"), (2, "on_error"), (3, "release")] {
        let (handler, mut stream) = consumer(AsyncStreamOptions::default());
        let raw = handler.into_raw();
        // SAFETY: the handler is live, and only the code below accesses it.
        let error = unsafe {
            let release = (*raw).release;
            match missing {
                0 => (*raw).on_schema = None,
                1 => (*raw).on_next_task = None,
                2 => (*raw).on_error = None,
                _ => (*raw).release = None,
            }
            let error = AsyncHandler::from_raw(raw).unwrap_err();
            if missing == 3 {
                release.unwrap()(raw);
            }
            error
        };
        assert_eq!(error.to_string(), format!("async stream handler: {says} is null"));
        assert!(matches!(&rest(&mut stream)[..], [Err(_)]), "released");
    }
}
