// SPDX-License-Identifier: Apache-2.0
//! This crate's producer and consumer in every order of steps up to a length: nothing hangs, leaks,
//! or is lost.

use std::task::{Context, Poll, Waker};

use futures::{StreamExt, stream};

use super::support::*;
use crate::async_stream::{AsyncDeviceStream, AsyncStreamOptions, ProduceOptions, produce};
use crate::ffi::ArrowDeviceType;

#[derive(Clone, Copy, Debug, PartialEq)]
enum InterleavingStep {
    PollProducer,
    PollReader,
    PollSchema,
    Cancel,
    DropReader,
    DropProducer,
}

const STEPS: [InterleavingStep; 6] = [
    InterleavingStep::PollProducer,
    InterleavingStep::PollReader,
    InterleavingStep::PollSchema,
    InterleavingStep::Cancel,
    InterleavingStep::DropReader,
    InterleavingStep::DropProducer,
];

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
                    let steps: Vec<InterleavingStep> =
                        (0..length).map(|at| STEPS[number / STEPS.len().pow(at) % STEPS.len()]).collect();
                    if has_no_idle_step(&steps) {
                        check(Case { in_flight, look_ahead, fails }, &steps);
                    }
                }
            }
        }
    }
}

/// Whether every step has an effect; other orders repeat shorter ones.
fn has_no_idle_step(steps: &[InterleavingStep]) -> bool {
    steps.iter().enumerate().all(|(at, step)| {
        let before = &steps[..at];
        let reader = !before.contains(&InterleavingStep::DropReader);
        match step {
            InterleavingStep::PollProducer | InterleavingStep::DropProducer => !before.contains(&InterleavingStep::DropProducer),
            InterleavingStep::PollReader | InterleavingStep::DropReader => reader,
            InterleavingStep::PollSchema => reader && before.last() != Some(step),
            InterleavingStep::Cancel => reader && !before.contains(step),
        }
    })
}

#[track_caller]
fn check(case: Case, steps: &[InterleavingStep]) {
    let live = LiveCount::default();
    let (handler, reader) = consumer(AsyncStreamOptions::default().with_in_flight(case.in_flight));
    let end: Vec<_> = if case.fails { vec![Err(failure())] } else { vec![] };
    let options = ProduceOptions::default().with_look_ahead(case.look_ahead);
    let source = arrays(&live, BATCHES).chain(stream::iter(end));
    let mut producer = Some(produce(source, &field(), ArrowDeviceType::CPU, handler, options));
    let mut reader = Some(reader);
    let mut outcomes: Vec<Option<Result<usize, String>>> = Vec::new();
    // Set as the steps run: a producer that had ended before was not dropped midway.
    let (mut cancelled, mut cut) = (false, false);

    for step in steps {
        match step {
            InterleavingStep::PollProducer => {
                producer.take_if(|producer| poll(producer).is_ready());
            }
            InterleavingStep::PollReader => read(&mut reader, &mut outcomes),
            InterleavingStep::PollSchema => {
                if let Some(reader) = &mut reader {
                    let _ = reader.poll_field(&mut Context::from_waker(Waker::noop()));
                }
            }
            InterleavingStep::Cancel => {
                if let Some(reader) = &reader {
                    reader.cancel();
                    // A failure before the cancellation is still reported.
                    cancelled |= producer.is_some();
                }
            }
            InterleavingStep::DropReader => reader = None,
            InterleavingStep::DropProducer => cut |= producer.take().is_some(),
        }
    }

    // Both ends now run to completion.
    for round in 0.. {
        assert!(round < 100, "{case:?} {steps:?}: does not end, got {outcomes:?}");
        producer.take_if(drive);
        let before = outcomes.len();
        read(&mut reader, &mut outcomes);
        if outcomes.last() == Some(&None) || reader.is_none() {
            break;
        }
        assert!(outcomes.len() > before || producer.is_some(), "{case:?} {steps:?}: hangs, got {outcomes:?}");
    }
    let left = reader.is_none();
    drop(reader);
    if let Some(producer) = &mut producer {
        assert!(drive(producer), "{case:?} {steps:?}: the producer does not end");
    }

    assert_eq!(live.count(), 0, "{case:?} {steps:?}");
    let batches = outcomes.iter().take_while(|item| matches!(item, Some(Ok(_)))).count();
    for (at, item) in outcomes[..batches].iter().enumerate() {
        assert_eq!(*item, Some(Ok(at + 1)), "{case:?} {steps:?}");
    }
    if left {
        return;
    }
    let rest = &outcomes[batches..];
    match rest {
        [Some(Err(message)), None] => {
            assert!(!cancelled, "{case:?} {steps:?}: {message}");
            assert!(
                case.fails && message.contains("full") || cut && message.contains("dropped"),
                "{case:?} {steps:?}: {message}"
            );
        }
        [None] if cancelled => {}
        [None] => assert!(batches == BATCHES && !case.fails, "{case:?} {steps:?}: {batches} batches"),
        _ => panic!("{case:?} {steps:?}: {outcomes:?}"),
    }
}

fn read(reader: &mut Option<AsyncDeviceStream>, all: &mut Vec<Option<Result<usize, String>>>) {
    if let Some(reader) = reader
        && all.last() != Some(&None)
        && let Poll::Ready(item) = next(reader)
    {
        all.push(outcome(item));
    }
}
