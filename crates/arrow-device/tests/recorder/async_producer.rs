// SPDX-License-Identifier: Apache-2.0
//! Async streams of this crate, read by the recorder.

use std::ptr::null_mut;
use std::task::{Context, Poll};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use arrow::datatypes::Field;
use arrow_device::async_stream::{AsyncBatch, AsyncHandler, ProduceOptions, produce, produce_on_thread};
use arrow_device::ffi::{ArrowDeviceType, FFI_ArrowDeviceArray};
use arrow_device::schema::batch_field;
use arrow_device::{Error, Result};
use futures::{FutureExt, StreamExt, stream};

use crate::data::{LiveCount, Random, rounds, schema};
use crate::pull_producer::{errors, holds, source};
use crate::session::Session;

const CPU: ArrowDeviceType = ArrowDeviceType::CPU;

fn field() -> Field {
    batch_field(&schema())
}

fn handler(session: &Session) -> AsyncHandler {
    // SAFETY: the recorder's handler lives until its release, and no other code calls it.
    unsafe { AsyncHandler::from_raw(session.handler()) }.unwrap()
}

/// Serves `n` batches on a thread, or fails at a given batch.
fn serve(session: &Session, live: &LiveCount, n: i64, fails: Option<(i64, Error)>) -> JoinHandle<()> {
    serve_with(session, source(live, n, fails), ProduceOptions::default())
}

fn serve_with<B: Into<AsyncBatch> + 'static>(
    session: &Session,
    batches: impl Iterator<Item = Result<B>> + Send + 'static,
    options: ProduceOptions,
) -> JoinHandle<()> {
    produce_on_thread(stream::iter(batches), &field(), CPU, handler(session), options).unwrap()
}

/// Checks that the source and the arrays are freed, and no rule was violated.
#[track_caller]
fn end(session: Session, thread: JoinHandle<()>, live: &LiveCount) {
    session.wait_for_release();
    thread.join().unwrap();
    session.end();
    assert_eq!(live.count(), 0);
}

#[test]
fn r79_r80_r84_r85_r91_r92_r93_r97_all_batches_arrive_in_order_however_they_are_extracted() {
    for n in [0, 1, 5] {
        for extract in 0..3 {
            for (request, each) in [(1, 1), (100, 0), (i64::MAX, i64::MAX), (2, 1)] {
                // Requests with extractions would stall the stream if extraction waits for the end.
                let each = if extract == 2 { 1 } else { each };
                let (session, live) =
                    (Session::new(&[("extract", extract), ("request", request), ("request_each", each)]), LiveCount::default());
                session.set("jitter", if n == 5 { 200 } else { 0 });
                let thread = serve(&session, &live, n, None);
                session.wait_for_release();
                assert_eq!((session.get("tasks"), session.get("ended"), session.get("errored")), (n, 1, 0));
                holds(&session, n);
                end(session, thread, &live);
            }
        }
    }
}

#[test]
fn r84_back_pressure_holds_until_more_is_requested() {
    for look_ahead in [false, true] {
        let (session, live) = (Session::new(&[("request", 2), ("request_each", 0)]), LiveCount::default());
        let options = ProduceOptions::default().with_look_ahead(look_ahead);
        let thread = serve_with(&session, source(&live, 5, None), options);
        assert!(session.wait_for("tasks", 2));
        thread::sleep(Duration::from_millis(30));
        assert_eq!((session.get("tasks"), session.get("ended")), (2, 0));
        session.request(1);
        assert!(session.wait_for("tasks", 3));
        session.request(i64::MAX);
        session.request(i64::MAX);
        session.wait_for_release();
        assert_eq!((session.get("tasks"), session.get("ended")), (5, 1));
        end(session, thread, &live);
    }
}

#[test]
fn r84_only_the_schema_flows_without_a_request() {
    let (session, live) = (Session::new(&[("request", 0)]), LiveCount::default());
    let thread = serve(&session, &live, 2, None);
    assert!(session.wait_for("schemas", 1));
    thread::sleep(Duration::from_millis(20));
    assert_eq!(session.get("callbacks"), 1);
    session.cancel();
    end(session, thread, &live);
}

#[test]
fn r87_a_request_that_is_not_positive_is_reported_later() {
    for bad in [0, -1, i64::MIN] {
        for at in 0..3 {
            let settings = [("bad_request_at", at), ("bad_request", bad), ("request", 5), ("request_each", 0), ("jitter", 50)];
            let (session, live) = (Session::new(&settings), LiveCount::default());
            let thread = serve(&session, &live, 4, None);
            session.wait_for_release();
            assert_eq!(session.async_error().unwrap().0, i64::from(libc::EINVAL));
            end(session, thread, &live);
        }
    }
    // From another thread, while the stream waits.
    let (session, live) = (Session::new(&[("request_each", 0)]), LiveCount::default());
    let thread = serve(&session, &live, 4, None);
    assert!(session.wait_for("tasks", 1));
    session.request(-5);
    session.wait_for_release();
    assert_eq!(session.async_error().unwrap().0, i64::from(libc::EINVAL));
    end(session, thread, &live);
}

#[test]
fn r81_only_release_follows_a_refused_schema() {
    for n in [0, 3] {
        for moves in [0, 1] {
            for code in [libc::EINVAL, libc::ECANCELED, 12345, -1] {
                let settings = [("refuse_schema", code.into()), ("refuse_moves", moves)];
                let (session, live) = (Session::new(&settings), LiveCount::default());
                let thread = serve(&session, &live, n, None);
                session.wait_for_release();
                assert_eq!(session.get("callbacks"), 2);
                end(session, thread, &live);
            }
        }
    }
}

#[test]
fn r82_only_release_follows_a_refused_task() {
    for at in 0..3 {
        for extracts in [0, 1] {
            let settings = [("refuse_task", at), ("refuse_extracts", extracts), ("request", 9), ("jitter", 50)];
            let (session, live) = (Session::new(&settings), LiveCount::default());
            let thread = serve(&session, &live, 3, None);
            session.wait_for_release();
            assert_eq!((session.get("tasks"), session.get("ended"), session.get("errored")), (at + 1, 0, 0));
            end(session, thread, &live);
        }
    }
}

#[test]
fn r83_r61_a_failure_of_the_source_is_reported_after_earlier_batches() {
    for at in 0..3 {
        for error in errors() {
            let (session, live) = (Session::new(&[("expect_error", 1)]), LiveCount::default());
            let thread = serve(&session, &live, 3, Some((at, error.clone())));
            session.wait_for_release();
            let code = if error.errno() == 0 { libc::EIO } else { error.errno() };
            let (code_seen, message) = session.async_error().unwrap();
            assert_eq!(code_seen, i64::from(code));
            assert_eq!(message.unwrap().chars().count(), error.to_string().chars().count());
            holds(&session, at);
            end(session, thread, &live);
        }
    }
}

#[test]
fn r30_r83_a_panic_of_the_source_is_reported() {
    let (session, live) = (Session::new(&[("expect_error", 1)]), LiveCount::default());
    let batches = source(&live, 1, None).chain(std::iter::from_fn(|| panic!("source panic")));
    let thread = serve_with(&session, batches, ProduceOptions::default());
    session.wait_for_release();
    let (code, message) = session.async_error().unwrap();
    assert_eq!(code, i64::from(libc::EIO));
    assert!(message.unwrap().contains("source panic"));
    end(session, thread, &live);
}

/// Batch `k`, made at its extraction.
fn late(live: &LiveCount, k: i64, fails: i64) -> AsyncBatch {
    let (live, token) = (live.clone(), live.token());
    AsyncBatch::deferred(move || {
        let _held = token;
        match k == fails {
            true if k % 2 == 1 => panic!("batch {k} panics"),
            true => Err(Error::OutOfMemory("no room".into())),
            false => live.export(k),
        }
    })
}

#[test]
fn r73_r95_a_failed_deferred_batch_is_reported_next() {
    for extract in 0..3 {
        for fails in 0..3 {
            let settings = [("extract", extract), ("request", 9), ("request_each", 0), ("expect_error", 1), ("jitter", 100)];
            let (session, live) = (Session::new(&settings), LiveCount::default());
            let counted = live.clone();
            let batches = (0..3).map(move |k| Ok(late(&counted, k, fails)));
            let thread = serve_with(&session, batches, ProduceOptions::default());
            session.wait_for_release();
            let code = if fails % 2 == 1 { libc::EIO } else { libc::ENOMEM };
            // With later extraction the stream may have ended before.
            if extract == 0 {
                assert_eq!(session.async_error().unwrap().0, i64::from(code));
                assert_eq!(session.get("tasks"), fails + 1);
            }
            end(session, thread, &live);
        }
    }
}

#[test]
fn r97_r68_unwanted_batches_are_freed() {
    for extract in 0..3 {
        for null in [-2, 0, 2] {
            let settings = [("extract", extract), ("extract_null", null), ("request", 9)];
            let (session, live) = (Session::new(&settings), LiveCount::default());
            let counted = live.clone();
            // A failing batch is not made if it is unwanted.
            let batches = (0..3).map(move |k| {
                if k == 2 { Ok(late(&counted, k, if null == 0 { -1 } else { 2 })) } else { Ok(late(&counted, k, -1)) }
            });
            let thread = serve_with(&session, batches, ProduceOptions::default());
            session.wait_for_release();
            assert_eq!((session.get("ended"), session.get("errored")), (1, 0));
            end(session, thread, &live);
        }
    }
}

#[test]
fn r88_r89_a_cancel_at_any_point_ends_without_an_error() {
    for at in 0..=4 {
        for (times, elsewhere, request) in [(1, 0, 9), (2, 0, 1), (1, 1, 9), (3, 1, 1)] {
            let settings = [
                ("cancel_at", at),
                ("cancel_times", times),
                ("cancel_elsewhere", elsewhere),
                ("request", request),
                ("request_after_cancel", 7),
                ("jitter", 50),
            ];
            let (session, live) = (Session::new(&settings), LiveCount::default());
            let thread = serve(&session, &live, 4, None);
            session.wait_for_release();
            assert_eq!(session.get("errored"), 0);
            end(session, thread, &live);
        }
    }
}

#[test]
fn r88_a_bad_request_after_a_cancel_is_ignored() {
    for bad in [-1, i64::MIN] {
        let settings = [("cancel_at", 1), ("request", 9), ("request_after_cancel", bad)];
        let (session, live) = (Session::new(&settings), LiveCount::default());
        let thread = serve(&session, &live, 4, None);
        session.wait_for_release();
        assert_eq!(session.get("errored"), 0);
        end(session, thread, &live);
    }
}

#[test]
fn r89_cancels_from_other_threads_race_with_everything() {
    for round in 0..rounds(40) {
        let settings = [("jitter", 200), ("extract", round % 3), ("request", 2)];
        let (session, live) = (Session::new(&settings), LiveCount::default());
        let fails = (round % 5 == 0).then(|| (2, Error::Other("late".into())));
        session.set("expect_error", i64::from(fails.is_some()));
        let thread = serve(&session, &live, 4, fails);
        thread::scope(|scope| {
            for delay in [0, 150] {
                let session = &session;
                scope.spawn(move || {
                    thread::sleep(Duration::from_micros((round as u64) * 23 + delay));
                    session.cancel();
                });
            }
        });
        end(session, thread, &live);
    }
}

#[test]
fn r96_tasks_are_extracted_and_more_is_requested_after_release_as_arrow_cpp_does() {
    for extract in 1..=3 {
        for n in [1, 4] {
            let settings = [("style", 1), ("extract", extract), ("request", 9), ("jitter", 100)];
            let (session, live) = (Session::new(&settings), LiveCount::default());
            let thread = serve(&session, &live, n, None);
            session.wait_for_release();
            assert_eq!(session.get("arrays"), n);
            end(session, thread, &live);
        }
    }
}

#[test]
fn r90_metadata_of_the_stream_its_batches_and_its_error_is_encoded() {
    let pairs = |of: &str| vec![("of".to_string(), of.to_string()), ("ü".to_string(), String::new())];
    let (session, live) = (Session::new(&[("expect_error", 1)]), LiveCount::default());
    let counted = live.clone();
    let batches = (0..3).map(move |k| match k {
        2 => Err(Error::Other("at last".into())),
        _ => Ok(AsyncBatch::from(counted.export(k)?).with_metadata(pairs("batch"))),
    });
    let options = ProduceOptions::default().with_metadata(pairs("stream")).with_error_metadata(move |_| pairs("error"));
    let thread = serve_with(&session, batches, options);
    session.wait_for_release();
    assert_eq!(session.async_error().unwrap().1.unwrap(), "at last");
    end(session, thread, &live);
}

#[test]
fn r91_an_array_of_another_device_type_is_an_error() {
    let (session, live) = (Session::new(&[("expect_error", 1)]), LiveCount::default());
    let batches = source(&live, 2, None).map(|array| {
        let mut array: FFI_ArrowDeviceArray = array?;
        array.device_type = ArrowDeviceType::CUDA_HOST;
        Ok(array)
    });
    let thread = serve_with(&session, batches, ProduceOptions::default());
    session.wait_for_release();
    assert_eq!((session.get("tasks"), session.get("errored")), (0, 1));
    end(session, thread, &live);
}

#[test]
fn r83_r89_a_producer_dropped_at_any_poll_reports_it_and_releases() {
    for polls in 0..8 {
        for cancelled in [false, true] {
            let settings = [("expect_error", 1), ("request", 1), ("request_each", 1)];
            let (session, live) = (Session::new(&settings), LiveCount::default());
            // Each item is pending first.
            let mut pending = false;
            let mut batches = source(&live, 3, None);
            let slow = stream::poll_fn(move |_: &mut Context<'_>| {
                pending = !pending;
                if pending { Poll::Pending } else { Poll::Ready(batches.next()) }
            });
            let mut producer = produce(slow, &field(), CPU, handler(&session), ProduceOptions::default());
            let ended = (0..polls).any(|_| (&mut producer).now_or_never().is_some());
            if cancelled {
                session.cancel();
            }
            drop(producer);
            session.wait_for_release();
            // Without a poll there was no schema, and thus no producer to cancel.
            let silent = ended || (cancelled && polls > 0);
            assert_eq!(session.get("errored"), i64::from(!silent), "{polls} polls, cancelled: {cancelled}");
            session.end();
            assert_eq!(live.count(), 0);
        }
    }
}

#[test]
fn r63_an_incomplete_handler_is_refused_and_released() {
    // SAFETY: null is refused.
    assert!(matches!(unsafe { AsyncHandler::from_raw(null_mut()) }, Err(Error::Invalid(_))));
    let session = Session::new(&[("expect_error", 1)]);
    let raw = session.handler();
    // SAFETY: the handler is live and not shared yet.
    unsafe { (*raw).on_error = None };
    // SAFETY: as for `handler`.
    assert!(matches!(unsafe { AsyncHandler::from_raw(raw) }, Err(Error::Invalid(_))));
    session.wait_for_release();
    // The recorder flags a release without a preceding callback.
    session.end_with(&["R80"]);
}

#[test]
fn r94_a_pending_source_is_polled_only_after_a_request() {
    let (session, live) = (Session::new(&[("jitter", 100), ("threads", 0)]), LiveCount::default());
    let batches = stream::iter(source(&live, 4, None)).then(|array| async move {
        let (sender, receiver) = futures::channel::oneshot::channel();
        thread::spawn(move || {
            thread::sleep(Duration::from_micros(500));
            sender.send(()).ok();
        });
        receiver.await.unwrap();
        array
    });
    let thread = produce_on_thread(Box::pin(batches), &field(), CPU, handler(&session), ProduceOptions::default()).unwrap();
    session.wait_for_release();
    holds(&session, 4);
    end(session, thread, &live);
}

#[test]
fn r89_a_cancel_ends_a_source_that_is_always_pending() {
    for at in 0..2 {
        let settings = [("cancel_at", at), ("cancel_elsewhere", at)];
        let (session, live) = (Session::new(&settings), LiveCount::default());
        let batches = stream::iter(source(&live, 1, None)).chain(stream::pending());
        let thread = produce_on_thread(batches, &field(), CPU, handler(&session), ProduceOptions::default()).unwrap();
        end(session, thread, &live);
    }
    // From another thread, while it waits.
    let (session, live) = (Session::new(&[]), LiveCount::default());
    let batches = stream::iter(source(&live, 1, None)).chain(stream::pending());
    let thread = produce_on_thread(batches, &field(), CPU, handler(&session), ProduceOptions::default()).unwrap();
    assert!(session.wait_for("tasks", 1));
    session.cancel();
    end(session, thread, &live);
}

#[test]
fn r85_the_producer_may_be_polled_on_another_thread_each_time() {
    let (session, live) = (Session::new(&[("extract", 1), ("jitter", 100)]), LiveCount::default());
    let batches = stream::iter(source(&live, 5, None));
    let mut producer = produce(batches, &field(), CPU, handler(&session), ProduceOptions::default());
    let mut ended = false;
    while !ended {
        ended = thread::scope(|scope| scope.spawn(|| (&mut producer).now_or_never().is_some()).join().unwrap());
    }
    session.wait_for_release();
    holds(&session, 5);
    drop(producer);
    session.end();
    assert_eq!(live.count(), 0);
}

#[test]
fn r84_many_batches_flow_one_by_one() {
    let (session, live) = (Session::new(&[("request", 1)]), LiveCount::default());
    let n = rounds(300);
    let thread = serve(&session, &live, n, None);
    session.wait_for_release();
    holds(&session, n);
    end(session, thread, &live);
}

/// Random settings, and a source that fails, panics or waits at random, without any violation.
#[test]
fn random_conversations_keep_the_rules() {
    let mut random = Random(0x5eed);
    for _ in 0..rounds(200) {
        let fails = random.below(12) - 6;
        let late_fails = random.below(12) - 6;
        // Without a late request the stream would wait forever.
        let (request, each) = if random.below(2) == 0 { (1 + random.below(4), 1) } else { (20, 0) };
        let settings = [
            ("style", random.below(2)),
            ("jitter", 150 * random.below(2)),
            ("extract", random.below(4)),
            ("extract_null", random.below(8) - 4),
            ("request", request),
            ("request_each", each),
            ("cancel_at", random.below(16) - 9),
            ("cancel_times", 1 + random.below(2)),
            ("cancel_elsewhere", random.below(2)),
            ("request_after_cancel", random.below(3) - 1),
            ("refuse_schema", 22 * i64::from(random.below(10) == 0)),
            ("refuse_moves", random.below(2)),
            ("refuse_task", random.below(24) - 16),
            ("refuse_extracts", random.below(2)),
            ("bad_request_at", random.below(24) - 16),
            ("bad_request", -random.below(2)),
            ("expect_error", i64::from(fails >= 0 || late_fails >= 0)),
        ];
        let (session, live) = (Session::new(&settings), LiveCount::default());
        let counted = live.clone();
        let n = random.below(7);
        let slow = random.below(2) == 0;
        let batches = stream::iter(0..n).then(move |k| {
            let counted = counted.clone();
            async move {
                if slow {
                    let (sender, receiver) = futures::channel::oneshot::channel();
                    thread::spawn(move || sender.send(()));
                    receiver.await.ok();
                }
                if k == fails { Err(Error::Invalid("at random".into())) } else { Ok(late(&counted, k, 2 * late_fails)) }
            }
        });
        let options = ProduceOptions::default().with_look_ahead(random.below(2) == 0);
        let thread = produce_on_thread(batches, &field(), CPU, handler(&session), options).unwrap();
        end(session, thread, &live);
    }
}
