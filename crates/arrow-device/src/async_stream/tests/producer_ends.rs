// SPDX-License-Identifier: Apache-2.0
//! All endings of a producer, at every step: errors, refusals, cancellations, drops, panics.

use futures::{Stream, StreamExt, stream};

use super::recorder::Recorder;
use super::support::*;
use crate::async_stream::{AsyncBatch, AsyncHandler, AsyncProducer, ProduceOptions, produce};
use crate::ffi::ArrowDeviceType;
use crate::testing::PanicOnDrop;
use crate::{Error, Result};

fn start<S, B>(source: S, handler: AsyncHandler) -> AsyncProducer<S>
where
    S: Stream<Item = Result<B>>,
    B: Into<AsyncBatch>,
{
    produce(source, &field(), ArrowDeviceType::CPU, handler, ProduceOptions::default())
}

/// " task", `n` times.
fn tasks(n: usize) -> String {
    " task".repeat(n)
}

#[test]
fn r83_an_error_of_the_source_at_every_batch() {
    for at in 0..4 {
        for code in [libc::ENOMEM, 0] {
            let live = LiveCount::default();
            let (handler, recorder) = Recorder::requests(9);
            let error = Error::Foreign { call: "the disk", code, message: None };
            let source = arrays(&live, at).chain(stream::iter([Err(error)])).chain(arrays(&live, 5));
            assert!(drive(&mut start(source, handler)));
            // A failure never has errno 0.
            let number = if code == 0 { libc::EIO } else { code };
            let message = format!("error({number}, the disk failed with {code})");
            assert_eq!(recorder.log(), format!("schema{} {message} release", tasks(at)));
            assert_eq!(recorder.waiting(), at);
            for n in 1..=at {
                assert_eq!(recorder.extract().unwrap().array.len(), n, "tasks outlive the error");
            }
            assert_eq!(live.count(), 0);
        }
    }
}

#[test]
fn r81_only_release_follows_a_refused_schema() {
    for calls in 0..4 {
        let live = LiveCount::default();
        let (handler, recorder) = Recorder::new(move |this, call, _| {
            match calls {
                _ if call != "schema" => return 0,
                1 => this.request(5),
                2 => this.request(0),
                3 => this.cancel(),
                _ => {}
            }
            libc::ENOTSUP
        });
        assert!(drive(&mut start(arrays(&live, 3), handler)));
        assert_eq!(recorder.log(), "schema release");
        assert_eq!(live.count(), 0);
    }
}

#[test]
fn r82_only_release_follows_a_refused_task() {
    for at in 0..3 {
        for extracted in [false, true] {
            let live = LiveCount::default();
            let (handler, recorder) = Recorder::new(move |this, call, before| {
                match call {
                    "schema" => this.request(9),
                    "task" if before == at => {
                        if extracted {
                            this.dismiss_all();
                        }
                        this.request(-1);
                        return libc::ENOBUFS;
                    }
                    _ => {}
                }
                0
            });
            assert!(drive(&mut start(arrays(&live, 5), handler)));
            assert_eq!(recorder.log(), format!("schema{} release", tasks(at + 1)));
            assert_eq!(recorder.waiting(), if extracted { 0 } else { at });
            recorder.dismiss_all();
            assert_eq!(live.count(), 0, "the refused batch is freed, once");
        }
    }
}

#[test]
fn r82_a_refused_end_changes_nothing() {
    let live = LiveCount::default();
    let (handler, recorder) = Recorder::new(|this, call, _| {
        if call == "schema" {
            this.request(1);
        }
        if call == "end" {
            this.cancel();
            this.request(0);
            return libc::EIO;
        }
        0
    });
    assert!(drive(&mut start(arrays(&live, 1), handler)));
    assert_eq!(recorder.log(), "schema task end release");
    recorder.dismiss_all();
    assert_eq!(live.count(), 0);
}

#[test]
fn r87_a_request_that_is_not_positive_is_reported_later() {
    for n in [0, -1, i64::MIN] {
        for at in ["schema", "task", "between"] {
            let live = LiveCount::default();
            let (handler, recorder) = Recorder::new(move |this, call, before| {
                if call == "schema" {
                    this.request(2);
                }
                if call == at && before == 0 {
                    this.request(n);
                }
                0
            });
            let mut producer = start(arrays(&live, 5), handler);
            let ended = drive(&mut producer);
            assert_eq!(ended, at != "between");
            if !ended {
                recorder.request(n);
                recorder.request(3);
                assert_eq!(recorder.log(), "schema task task", "R86: not from inside request");
                assert!(drive(&mut producer));
            }
            let before = ["schema", "task", "between"].iter().position(|name| *name == at).unwrap();
            let message = format!("error(22, async stream: request({n}): the number of batches must be positive (R87))");
            assert_eq!(recorder.log(), format!("schema{} {message} release", tasks(before)));
            recorder.dismiss_all();
            assert_eq!(live.count(), 0);
        }
    }
}

/// Cancels at each callback, or between them for `at` = 4; twice, with later requests that do
/// nothing.
#[test]
fn r88_r89_cancel_at_every_point_ends_without_an_error() {
    for at in 0..5 {
        for failing in [false, true] {
            let live = LiveCount::default();
            let cancel = |this: &Recorder| {
                this.cancel();
                this.cancel();
                this.request(3);
                this.request(0);
            };
            let (handler, recorder) = Recorder::new(move |this, call, before| {
                if call == "schema" {
                    this.request(3);
                }
                if (call == "schema" && at == 0) || (call == "task" && at == before + 1) {
                    cancel(this);
                }
                0
            });
            // Items behind the cancellation are not polled.
            let more: Vec<Result<_>> = if failing { vec![Err(failure())] } else { vec![] };
            let source = arrays(&live, if failing { at.min(3) } else { 9 }).chain(stream::iter(more));
            let mut producer = start(source, handler);
            let ended = drive(&mut producer);
            if !ended {
                assert_eq!(at, 4);
                cancel(&recorder);
                assert!(drive(&mut producer));
            }
            let expected = match (at, failing) {
                // Three requested, three delivered; the error came before the cancellation.
                (4, true) => format!("schema{} error(12, the device is full) release", tasks(3)),
                _ => format!("schema{} release", tasks(at.min(3))),
            };
            assert_eq!(recorder.log(), expected, "at {at}, failing {failing}");
            recorder.dismiss_all();
            assert_eq!(live.count(), 0, "the source is dropped, too");
        }
    }
}

#[test]
fn r89_a_cancel_drops_a_source_that_is_pending() {
    let live = LiveCount::default();
    let (handler, recorder) = Recorder::requests(1);
    let source = counted(&live, stream::pending::<Result<AsyncBatch>>());
    let mut producer = start(source, handler);
    assert!(!drive(&mut producer));
    recorder.cancel();
    assert_eq!((recorder.log().as_str(), live.count()), ("schema", 1));
    assert!(drive(&mut producer));
    assert_eq!((recorder.log().as_str(), live.count()), ("schema release", 0));
}

#[test]
fn r89_a_cancel_wins_over_an_error_that_was_not_reported_yet() {
    let live = LiveCount::default();
    let (handler, recorder) = Recorder::requests(1);
    let mut producer = start(arrays(&live, 3), handler);
    assert!(!drive(&mut producer));
    recorder.request(0);
    recorder.cancel();
    assert!(drive(&mut producer));
    assert_eq!(recorder.log(), "schema task release");
    recorder.dismiss_all();
    assert_eq!(live.count(), 0);
}

/// Dropping the future is no end of the data: its consumer gets an error, unless it has cancelled.
#[test]
fn a_producer_dropped_at_every_step_reports_and_releases() {
    for polls in 0..4 {
        for cancel in [false, true] {
            let live = LiveCount::default();
            let (handler, recorder) = Recorder::new(|this, call, before| {
                if call == "schema" || (call == "task" && before == 0) {
                    this.request(1);
                }
                0
            });
            let mut producer = start(arrays(&live, 9), handler);
            for _ in 0..polls {
                assert!(!drive(&mut producer));
                recorder.request(1);
            }
            let log = recorder.log();
            if cancel && polls > 0 {
                recorder.cancel();
            }
            drop(producer);
            let error = match cancel && polls > 0 {
                true => String::new(),
                false => format!("error({}, async stream: its producer was dropped before its end) ", libc::ECANCELED),
            };
            let expected = format!("{log} {error}release");
            assert_eq!(recorder.log(), expected.trim());
            recorder.dismiss_all();
            assert_eq!(live.count(), 0);
        }
    }
}

#[test]
fn a_handler_dropped_without_a_producer_is_released() {
    let (handler, recorder) = Recorder::new(|_, _, _| 0);
    drop(handler);
    assert_eq!(recorder.log(), "release");
}

#[test]
fn r30_a_source_that_panics_is_an_error() {
    for at in 0..3 {
        let live = LiveCount::default();
        let (handler, recorder) = Recorder::requests(9);
        let bad = stream::poll_fn(|_| -> std::task::Poll<Option<Result<_>>> { panic!("row {}", 7) });
        assert!(drive(&mut start(arrays(&live, at).chain(bad), handler)));
        let message = "error(5, the source of an async stream panicked: row 7)";
        assert_eq!(recorder.log(), format!("schema{} {message} release", tasks(at)));
        recorder.dismiss_all();
        assert_eq!(live.count(), 0);
    }
}

#[test]
fn r30_a_source_that_panics_on_drop_does_not_hide_the_end() {
    let live = LiveCount::default();
    let (handler, recorder) = Recorder::requests(9);
    let guard = PanicOnDrop;
    let source = arrays(&live, 1).inspect(move |_| {
        let _ = &guard;
    });
    assert!(drive(&mut start(source, handler)));
    assert_eq!(recorder.log(), "schema task end release");
    recorder.dismiss_all();
    assert_eq!(live.count(), 0);
}

#[test]
fn r95_on_error_and_release_follow_a_failed_extraction() {
    for bad in 0..3 {
        let live = LiveCount::default();
        let (handler, recorder) = Recorder::requests(2);
        let token = live.token();
        let on_cuda = array_on(ArrowDeviceType::CUDA, &live, 2);
        let batch = AsyncBatch::deferred(move || {
            let _ = &token;
            match bad {
                0 => Err(failure()),
                1 => panic!("decoder"),
                _ => Ok(on_cuda),
            }
        });
        let more = live.clone();
        let after = (3..9).map(move |n| Ok(array(&more, n).into()));
        let source = stream::iter([Ok(AsyncBatch::from(array(&live, 1))), Ok(batch)].into_iter().chain(after));
        let mut producer = start(source, handler);
        assert!(!drive(&mut producer));
        assert_eq!(recorder.extract().unwrap().array.len(), 1);
        let (code, message) = match bad {
            0 => (libc::ENOMEM, "the device is full"),
            1 => (libc::EIO, "a batch panicked: decoder"),
            _ => (libc::EINVAL, "async stream: its source gave an array on CUDA, but CPU is announced"),
        };
        assert_eq!(recorder.extract().unwrap_err(), code);
        assert_eq!(recorder.log(), "schema task task", "not from inside extract_data");
        recorder.request(5);
        assert!(drive(&mut producer));
        assert_eq!(recorder.log(), format!("schema task task error({code}, {message}) release"));
        drop(producer);
        assert_eq!(live.count(), 0);
    }
}

#[test]
fn r95_a_failed_extraction_after_release_only_returns_its_errno() {
    let (handler, recorder) = Recorder::requests(2);
    assert!(drive(&mut start(stream::iter([Ok(AsyncBatch::deferred(|| Err(failure())))]), handler)));
    assert_eq!(recorder.extract().unwrap_err(), libc::ENOMEM);
    assert_eq!(recorder.log(), "schema task end release");
}

#[test]
fn r68_a_task_dismissed_inside_on_next_task_is_freed() {
    let live = LiveCount::default();
    let (handler, recorder) = Recorder::new(|this, call, before| {
        match call {
            "schema" => this.request(4),
            "task" if before % 2 == 0 => this.dismiss(),
            "task" => drop(this.extract().unwrap()),
            _ => {}
        }
        0
    });
    assert!(drive(&mut start(arrays(&live, 4), handler)));
    assert_eq!(recorder.log(), "schema task task task task end release");
    assert_eq!(live.count(), 0);
}
