// SPDX-License-Identifier: Apache-2.0
//! The consumer with a well-behaved scripted producer.

use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use futures::executor::block_on;
use futures::stream::FusedStream;
use parking_lot::Mutex;

use super::scripted::{Scripted, ScriptedTask};
use super::support::*;
use crate::async_stream::{AsyncDeviceStream, AsyncStreamOptions};
use crate::ffi::ArrowDeviceType;
use crate::metadata::encode;
use crate::{ArrayExport, Error};

fn opened(in_flight: usize) -> (Scripted, AsyncDeviceStream) {
    let (handler, stream) = consumer(AsyncStreamOptions::default().with_in_flight(in_flight));
    (Scripted::opened(handler), stream)
}

fn read(stream: &mut AsyncDeviceStream) -> Option<Result<usize, String>> {
    match next(stream) {
        Poll::Ready(item) => outcome(item),
        Poll::Pending => panic!("no batch to read"),
    }
}

#[test]
fn r63_r65_schema_arrives_once_and_requests_nothing() {
    let (handler, mut stream) = consumer(AsyncStreamOptions::default());
    let mut peer = Scripted::new(handler);
    let flag = Flag::new();
    let waker = Waker::from(Arc::clone(&flag));
    assert!(stream.poll_field(&mut Context::from_waker(&waker)).is_pending());
    assert_eq!(stream.device_type(), None);
    assert_eq!(peer.schema(), 0);
    assert!(flag.take(), "a reader that waits for the schema is woken");
    for _ in 0..2 {
        assert_eq!(*block_on(stream.schema()).unwrap(), schema());
    }
    assert_eq!(stream.device_type(), Some(ArrowDeviceType::CPU));
    assert_eq!(peer.calls.take(), "");
}

#[test]
fn r66_requests_follow_the_reader() {
    let live = LiveCount::default();
    let (mut peer, mut stream) = opened(3);
    assert!(next(&mut stream).is_pending());
    assert_eq!(peer.calls.take(), "request(3)");
    assert!(next(&mut stream).is_pending());
    assert_eq!(peer.calls.take(), "", "one request for one room");
    assert_eq!([peer.batch(&live, 1), peer.batch(&live, 2)], [0, 0]);
    assert_eq!(peer.calls.take(), "");
    assert_eq!(read(&mut stream), Some(Ok(1)));
    assert_eq!(peer.calls.take(), "request(1)");
    assert_eq!(read(&mut stream), Some(Ok(2)));
    assert_eq!(peer.calls.take(), "request(1)");
    drop((stream, peer));
    assert_eq!(live.count(), 0);
}

#[test]
fn r66_a_reader_that_waits_requests_inside_on_schema() {
    let (handler, mut stream) = consumer(AsyncStreamOptions::default().with_in_flight(5));
    assert!(next(&mut stream).is_pending());
    let peer = Scripted::opened(handler);
    assert_eq!(peer.calls.take(), "request(5)");
}

#[test]
fn r67_r68_r69_batches_come_in_order_and_outlive_the_stream() {
    let live = LiveCount::default();
    let (mut peer, mut stream) = opened(2);
    for n in 1..=3 {
        assert_eq!(peer.batch(&live, n), 0);
    }
    assert_eq!(live.count(), 6, "tasks and their arrays");
    let arrays: Vec<_> = (0..3).map(|_| next(&mut stream)).collect();
    assert_eq!(live.count(), 3, "each task was extracted");
    assert_eq!(peer.end(), 0);
    peer.release();
    assert!(read(&mut stream).is_none());
    assert!(stream.is_terminated());
    assert!(read(&mut stream).is_none());
    drop(stream);
    for (n, array) in arrays.into_iter().enumerate() {
        let Poll::Ready(Some(Ok(array))) = array else { panic!("no array") };
        assert_eq!(array.len(), n + 1);
        assert_eq!(array.schema(), Some(schema()));
    }
    assert_eq!(live.count(), 0);
}

#[test]
fn r70_r90_metadata_and_messages_are_copied() {
    let live = LiveCount::default();
    let (handler, mut stream) = consumer(AsyncStreamOptions::default());
    let mut peer = Scripted::new(handler);
    let mut whole = encode([("rows", "9")]).unwrap();
    peer.producer().additional_metadata = whole.as_ptr().cast();
    assert_eq!(peer.schema(), 0);
    whole.fill(0xff);
    assert_eq!(stream.producer_metadata(), [("rows".to_string(), "9".to_string())]);

    assert_eq!(peer.task_with(ScriptedTask::good(&live, 1), Some(encode([("file", "a"), ("file", "b")]).unwrap())), 0);
    assert_eq!(peer.batch(&live, 2), 0);
    peer.error(libc::ENODEV, Some("it was unplugged"));
    peer.release();
    assert_eq!(read(&mut stream), Some(Ok(1)));
    assert_eq!(stream.batch_metadata(), &[("file".to_string(), "a".to_string()), ("file".to_string(), "b".to_string())]);
    assert_eq!(read(&mut stream), Some(Ok(2)));
    assert!(stream.batch_metadata().is_empty());
    assert_eq!(read(&mut stream), Some(Err("async producer failed with 19: it was unplugged".into())));
    assert_eq!(stream.error_metadata(), [("code".to_string(), "19".to_string())]);
    assert!(read(&mut stream).is_none());
    drop((stream, peer));
    assert_eq!(live.count(), 0);
}

#[test]
fn r71_a_reader_that_polls_inside_on_error_or_release_calls_no_producer() {
    for fail in [true, false] {
        let live = LiveCount::default();
        let (mut peer, stream) = opened(4);
        let stream = Arc::new(Mutex::new(stream));
        let shared = Arc::clone(&stream);
        let waker = Waker::from(Arc::new(OnWake(move || while let Poll::Ready(Some(_)) = next(&mut *shared.lock()) {})));
        assert!(pin!(futures::StreamExt::next(&mut *stream.lock())).poll(&mut Context::from_waker(&waker)).is_pending());
        assert_eq!(peer.calls.take(), "request(4)");
        if fail {
            peer.error(libc::EIO, None);
        }
        peer.release();
        assert_eq!(peer.calls.take(), "");
        assert!(stream.lock().is_terminated());
        assert_eq!(live.count(), 0);
    }
}

#[test]
fn r66_a_reader_that_polls_inside_on_next_task_requests_there() {
    let live = LiveCount::default();
    let (mut peer, stream) = opened(1);
    let stream = Arc::new(Mutex::new(stream));
    let shared = Arc::clone(&stream);
    let waker = Waker::from(Arc::new(OnWake(move || drop(next(&mut *shared.lock())))));
    assert!(pin!(futures::StreamExt::next(&mut *stream.lock())).poll(&mut Context::from_waker(&waker)).is_pending());
    assert_eq!(peer.calls.take(), "request(1)");
    assert_eq!(peer.batch(&live, 1), 0);
    assert_eq!(peer.calls.take(), "request(1)");
    assert_eq!(live.count(), 0);
}

#[test]
fn r72_r77_waiting_and_late_batches_are_dismissed_after_a_drop() {
    for extract in [false, true] {
        let live = LiveCount::default();
        let options = AsyncStreamOptions::default().with_extract_unwanted(extract);
        let (handler, mut stream) = consumer(options);
        let mut peer = Scripted::opened(handler);
        assert!(next(&mut stream).is_pending());
        assert_eq!(peer.batch(&live, 1), 0);
        drop(stream);
        assert_eq!(peer.calls.take(), "request(2) cancel");
        assert_eq!(live.count(), 0);
        assert_eq!(peer.batch(&live, 2), 0);
        assert_eq!(live.count(), 0);
        peer.error(libc::EIO, Some("too late"));
        peer.release();
        assert_eq!(live.count(), 0);
    }
}

#[test]
fn r72_after_a_cancel_the_rest_can_be_read_without_an_error() {
    for end in ["marker", "release", "error (Y2)"] {
        let live = LiveCount::default();
        let (mut peer, mut stream) = opened(3);
        assert!(next(&mut stream).is_pending());
        assert_eq!(peer.batch(&live, 1), 0);
        stream.cancel();
        stream.cancel();
        assert_eq!(peer.calls.take(), "request(3) cancel", "R89: one call suffices");
        assert_eq!(peer.batch(&live, 2), 0);
        assert_eq!([read(&mut stream), read(&mut stream)], [Some(Ok(1)), Some(Ok(2))]);
        assert!(next(&mut stream).is_pending());
        assert_eq!(peer.calls.take(), "", "R88");
        match end {
            "marker" => assert_eq!(peer.end(), 0),
            "release" => peer.release(),
            _ => peer.error(libc::ECANCELED, Some("cancelled")),
        }
        assert_eq!(read(&mut stream), None, "{end}");
        drop((stream, peer));
        assert_eq!(live.count(), 0);
    }
}

#[test]
fn r73_a_failed_extraction_ends_the_stream_at_every_batch() {
    for at in 1..=3 {
        let live = LiveCount::default();
        let (mut peer, mut stream) = opened(3);
        assert!(next(&mut stream).is_pending());
        for n in 1..=3 {
            let task = if n == at { ScriptedTask::Error(libc::ENOSPC).into_ffi(&live) } else { ScriptedTask::good(&live, n) };
            assert_eq!(peer.task(task), 0);
        }
        for n in 1..at {
            assert_eq!(read(&mut stream), Some(Ok(n)));
        }
        assert_eq!(read(&mut stream), Some(Err(format!("extract_data failed with {}", libc::ENOSPC))));
        assert_eq!(live.count(), 0, "later batches are dismissed");
        assert!(peer.calls.take().ends_with("cancel"));
        peer.error(libc::ENOSPC, Some("disk full"));
        assert_eq!(read(&mut stream), None);
    }
}

#[test]
fn r73_a_failed_extraction_has_the_message_of_on_error_if_that_came_first() {
    let live = LiveCount::default();
    let (mut peer, mut stream) = opened(3);
    assert_eq!(peer.task(ScriptedTask::Error(libc::ENOSPC).into_ffi(&live)), 0);
    peer.error(libc::ENOSPC, Some("disk full"));
    assert_eq!(read(&mut stream), Some(Err("async producer failed with 28: disk full".into())));
    assert_eq!(read(&mut stream), None);
    assert_eq!(peer.calls.take(), "", "R75: no cancel after on_error");
    assert_eq!(live.count(), 0);
}

#[test]
fn r75_nothing_is_called_after_the_end() {
    let live = LiveCount::default();
    for end in 0..3 {
        let (mut peer, mut stream) = opened(1);
        assert_eq!(peer.batch(&live, 1), 0);
        match end {
            0 => assert_eq!(peer.end(), 0),
            1 => peer.error(libc::EIO, None),
            _ => peer.release(),
        }
        assert_eq!(read(&mut stream), Some(Ok(1)));
        stream.cancel();
        drop(stream);
        assert_eq!(peer.calls.take(), "");
    }
    assert_eq!(live.count(), 0);
}

#[test]
fn r76_a_release_alone_is_an_error_after_the_batches() {
    let live = LiveCount::default();
    let (mut peer, mut stream) = opened(2);
    assert_eq!(peer.batch(&live, 1), 0);
    peer.release();
    assert_eq!(read(&mut stream), Some(Ok(1)));
    assert_eq!(read(&mut stream), Some(Err("async stream: released by its producer before its end".into())));
    assert_eq!(read(&mut stream), None);

    let (handler, mut stream) = consumer(AsyncStreamOptions::default());
    drop(handler);
    assert!(block_on(stream.schema()).is_err());
    assert!(matches!(next(&mut stream), Poll::Ready(Some(Err(Error::Invalid(_))))));
    assert_eq!(live.count(), 0);
}

#[test]
fn r78_release_flags_the_handler_and_leaves_its_memory_to_the_reader() {
    let (mut peer, stream) = opened(2);
    let handler = peer.handler;
    peer.release();
    // SAFETY: the stream is alive.
    unsafe { assert!((*handler).release.is_none() && (*handler).private_data.is_null()) };
    drop(stream);
}

#[test]
fn r65_a_schema_after_the_reader_left_or_cancelled_is_refused() {
    for cancel in [false, true] {
        let (handler, stream) = consumer(AsyncStreamOptions::default());
        let mut peer = Scripted::new(handler);
        let mut stream = Some(stream);
        match cancel {
            true => stream.as_ref().unwrap().cancel(),
            false => stream = None,
        }
        assert_eq!(peer.schema(), libc::ECANCELED);
        peer.release();
        assert_eq!(peer.calls.take(), "");
        if let Some(mut stream) = stream {
            assert!(block_on(stream.schema()).is_err());
            assert_eq!(read(&mut stream), None);
        }
    }
}

#[test]
fn r91_an_array_on_another_device_type_is_refused_and_released() {
    let live = LiveCount::default();
    let (mut peer, mut stream) = opened(2);
    assert_eq!(peer.task(ScriptedTask::Array(array_on(ArrowDeviceType::CUDA, &live, 1)).into_ffi(&live)), 0);
    let error = "async stream: an array on CUDA from a producer that announced CPU (R91)";
    assert_eq!(read(&mut stream), Some(Err(error.into())));
    assert_eq!(read(&mut stream), None);
    assert_eq!((live.count(), peer.calls.take().as_str()), (0, "cancel"));
}

#[test]
fn r45_r47_an_array_that_does_not_fit_the_schema_is_refused_and_released() {
    let live = LiveCount::default();
    let (mut peer, mut stream) = opened(2);
    let array = ArrayExport::batch(1, vec![]).unwrap().owner(Box::new(live.token()));
    let array = array.export(ArrowDeviceType::CPU, -1, std::ptr::null_mut()).unwrap();
    assert_eq!(peer.task(ScriptedTask::Array(array).into_ffi(&live)), 0);
    assert!(matches!(read(&mut stream), Some(Err(_))));
    assert_eq!(read(&mut stream), None);
    assert_eq!((live.count(), peer.calls.take().as_str()), (0, "cancel"));
}

#[test]
fn r94_an_error_may_come_first() {
    let (handler, mut stream) = consumer(AsyncStreamOptions::default());
    let mut peer = Scripted::new(handler);
    peer.error(libc::EACCES, Some("not yours"));
    let error = block_on(stream.schema()).unwrap_err();
    assert_eq!((error.errno(), error.to_string().as_str()), (libc::EACCES, "async producer failed with 13: not yours"));
    assert_eq!(read(&mut stream), Some(Err("async producer failed with 13: not yours".into())));
    assert_eq!(read(&mut stream), None);
}

/// A producer's calls, step by step, against a reader that leaves after each step.
#[test]
fn r77_the_reader_may_leave_at_every_step() {
    for leave in 0..8 {
        for cancel in [false, true] {
            for polls in [false, true] {
                let live = LiveCount::default();
                let (handler, stream) = consumer(AsyncStreamOptions::default());
                let mut peer = Scripted::new(handler);
                let mut stream = Some(stream);
                for step in 0..8 {
                    if step == leave {
                        if let (true, Some(stream)) = (cancel, &stream) {
                            stream.cancel();
                        }
                        stream = None;
                    }
                    let refused = match step {
                        0 => false,
                        1 => peer.schema() != 0,
                        5 => peer.end() != 0,
                        6 => {
                            peer.release();
                            false
                        }
                        7 => false,
                        _ => peer.batch(&live, step) != 0,
                    };
                    if refused {
                        break;
                    }
                    if let (true, Some(stream)) = (polls, &mut stream) {
                        drop(next(stream));
                    }
                }
                drop(stream);
                drop(peer);
                assert_eq!(live.count(), 0, "left at {leave}, cancelled {cancel}, polling {polls}");
            }
        }
    }
}
