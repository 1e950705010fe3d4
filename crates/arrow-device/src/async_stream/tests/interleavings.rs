// SPDX-License-Identifier: Apache-2.0
//! Our producer with our consumer in every order of steps, up to a length: nothing hangs, leaks, or is lost.

use std::task::{Context, Poll, Waker};

use futures::{StreamExt, stream};

use super::support::*;
use crate::async_stream::{AsyncDeviceStream, AsyncStreamOptions, ProduceOptions, produce};
use crate::ffi::ArrowDeviceType;

#[derive(Clone, Copy, Debug, PartialEq)]
enum Step {
    PollProducer,
    PollReader,
    PollSchema,
    Cancel,
    DropReader,
    DropProducer,
}

const STEPS: [Step; 6] =
    [Step::PollProducer, Step::PollReader, Step::PollSchema, Step::Cancel, Step::DropReader, Step::DropProducer];

const BATCHES: usize = 3;

#[derive(Clone, Copy, Debug)]
struct Case {
    in_flight: usize,
    look_ahead: bool,
    fails: bool,
}

#[test]
fn every_order_of_steps_ends_well() {
    let longest = if cfg!(miri) { 3 } else { 6 };
    for fails in [false, true] {
        for (in_flight, look_ahead) in [(1, true), (1, false), (2, true), (2, false)] {
            for length in 1..=longest {
                for number in 0..STEPS.len().pow(length) {
                    let steps: Vec<Step> = (0..length).map(|at| STEPS[number / STEPS.len().pow(at) % STEPS.len()]).collect();
                    if says_something(&steps) {
                        check(Case { in_flight, look_ahead, fails }, &steps);
                    }
                }
            }
        }
    }
}

/// Whether no step is without effect: as much is tried by fewer.
fn says_something(steps: &[Step]) -> bool {
    steps.iter().enumerate().all(|(at, step)| {
        let before = &steps[..at];
        let reader = !before.contains(&Step::DropReader);
        match step {
            Step::PollProducer | Step::DropProducer => !before.contains(&Step::DropProducer),
            Step::PollReader | Step::DropReader => reader,
            Step::PollSchema => reader && before.last() != Some(step),
            Step::Cancel => reader && !before.contains(step),
        }
    })
}

#[track_caller]
fn check(case: Case, steps: &[Step]) {
    let live = Live::default();
    let (handler, reader) = consumer(AsyncStreamOptions::default().with_in_flight(case.in_flight));
    let end: Vec<_> = if case.fails { vec![Err(failure())] } else { vec![] };
    let options = ProduceOptions::default().with_look_ahead(case.look_ahead);
    let source = arrays(&live, BATCHES).chain(stream::iter(end));
    let mut producer = Some(produce(source, &field(), ArrowDeviceType::CPU, handler, options));
    let mut reader = Some(reader);
    let mut told: Vec<Option<Result<usize, String>>> = Vec::new();
    // As the steps went, not as they were written: a producer that had ended before was not dropped midway.
    let (mut cancelled, mut cut) = (false, false);

    for step in steps {
        match step {
            Step::PollProducer => {
                producer.take_if(|producer| poll(producer).is_ready());
            }
            Step::PollReader => read(&mut reader, &mut told),
            Step::PollSchema => {
                if let Some(reader) = &mut reader {
                    let _ = reader.poll_field(&mut Context::from_waker(Waker::noop()));
                }
            }
            Step::Cancel => {
                if let Some(reader) = &reader {
                    reader.cancel();
                    // What the producer had said before is still told.
                    cancelled |= producer.is_some();
                }
            }
            Step::DropReader => reader = None,
            Step::DropProducer => cut |= producer.take().is_some(),
        }
    }

    // Now both go on for as long as they want.
    for round in 0.. {
        assert!(round < 100, "{case:?} {steps:?}: does not end, told {told:?}");
        producer.take_if(drive);
        let before = told.len();
        read(&mut reader, &mut told);
        if told.last() == Some(&None) || reader.is_none() {
            break;
        }
        assert!(told.len() > before || producer.is_some(), "{case:?} {steps:?}: hangs, told {told:?}");
    }
    let left = reader.is_none();
    drop(reader);
    if let Some(producer) = &mut producer {
        assert!(drive(producer), "{case:?} {steps:?}: the producer does not end");
    }

    assert_eq!(live.count(), 0, "{case:?} {steps:?}");
    let batches = told.iter().take_while(|item| matches!(item, Some(Ok(_)))).count();
    for (at, item) in told[..batches].iter().enumerate() {
        assert_eq!(*item, Some(Ok(at + 1)), "{case:?} {steps:?}");
    }
    if left {
        return;
    }
    let rest = &told[batches..];
    match rest {
        [Some(Err(text)), None] => {
            assert!(!cancelled, "{case:?} {steps:?}: {text}");
            assert!(case.fails && text.contains("full") || cut && text.contains("dropped"), "{case:?} {steps:?}: {text}");
        }
        [None] if cancelled => {}
        [None] => assert!(batches == BATCHES && !case.fails, "{case:?} {steps:?}: {batches} batches"),
        _ => panic!("{case:?} {steps:?}: {told:?}"),
    }
}

fn read(reader: &mut Option<AsyncDeviceStream>, all: &mut Vec<Option<Result<usize, String>>>) {
    if let Some(reader) = reader
        && all.last() != Some(&None)
        && let Poll::Ready(item) = next(reader)
    {
        all.push(told(item));
    }
}
