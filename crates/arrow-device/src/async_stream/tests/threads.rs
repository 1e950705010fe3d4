// SPDX-License-Identifier: Apache-2.0
//! Concurrent calls. No test asserts a duration; sleeps only give a wrong call time to happen.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Barrier, mpsc};
use std::thread;
use std::time::Duration;

use futures::executor::block_on;
use futures::{StreamExt, stream};

use super::recorder::Recorder;
use super::scripted::{HandlerPtr, Scripted, ScriptedTask};
use super::support::*;
use crate::async_stream::{AsyncStreamOptions, ProduceOptions, produce_on_thread};
use crate::ffi::ArrowDeviceType;

const CPU: ArrowDeviceType = ArrowDeviceType::CPU;

/// Repetitions of a race.
const TRIES: usize = if cfg!(miri) { 3 } else { 300 };

/// Small pseudo-random numbers, the same in every run.
fn numbers(seed: usize) -> impl Iterator<Item = usize> {
    let mut state = seed as u64 + 1;
    std::iter::repeat_with(move || {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 33) as usize
    })
}

fn dawdle(n: usize) {
    for _ in 0..n % 8 {
        thread::yield_now();
    }
}

/// A reader within the producer's method while the producer ends.
fn ends_while_inside(cancels: bool, end: fn(&mut Scripted)) -> bool {
    let (handler, mut stream) = consumer(AsyncStreamOptions::default());
    let mut peer = Scripted::opened(handler);
    let (entered, inside) = mpsc::channel();
    let (leave, left) = mpsc::channel::<()>();
    let returned = Arc::new(AtomicBool::new(false));
    let ended = Arc::new(AtomicBool::new(false));
    peer.calls.on_next_call({
        let returned = Arc::clone(&returned);
        move || {
            entered.send(()).unwrap();
            left.recv().unwrap();
            returned.store(true, SeqCst);
        }
    });
    let reader = thread::spawn(move || {
        match cancels {
            true => stream.cancel(),
            false => drop(next(&mut stream)),
        }
        stream
    });
    inside.recv().unwrap();
    let producer = thread::spawn({
        let ended = Arc::clone(&ended);
        move || {
            end(&mut peer);
            ended.store(true, SeqCst);
            (peer, returned.load(SeqCst))
        }
    });
    // Long enough for an end that does not wait.
    thread::sleep(Duration::from_millis(if cfg!(miri) { 1000 } else { 50 }));
    let waited = !ended.load(SeqCst);
    leave.send(()).unwrap();
    let (peer, after) = producer.join().unwrap();
    assert_eq!(waited, after, "the end came after the call had returned, or it did not wait");
    drop(reader.join().unwrap());
    drop(peer);
    waited
}

#[test]
fn r75_release_and_the_end_marker_wait_for_a_call_on_another_thread() {
    for cancels in [false, true] {
        assert!(ends_while_inside(cancels, Scripted::release));
        assert!(ends_while_inside(cancels, |peer| assert_eq!(peer.end(), 0)));
    }
}

#[test]
fn x6_on_error_does_not_wait() {
    for cancels in [false, true] {
        assert!(!ends_while_inside(cancels, |peer| peer.error(libc::EIO, None)));
    }
}

#[test]
fn r66_requests_are_made_one_at_a_time() {
    let live = LiveCount::default();
    let (handler, mut stream) = consumer(AsyncStreamOptions::default());
    let mut peer = Scripted::new(handler);
    assert!(next(&mut stream).is_pending());
    let (entered, inside) = mpsc::channel();
    let (leave, left) = mpsc::channel::<()>();
    peer.calls.on_next_call(move || {
        entered.send(()).unwrap();
        left.recv().unwrap();
    });
    let (calls, handle) = (Arc::clone(&peer.calls), HandlerPtr(peer.handler));
    let producer = thread::spawn(move || {
        assert_eq!(peer.schema(), 0);
        peer
    });
    inside.recv().unwrap();
    // An early batch makes room for a request while `on_schema` is within `request`.
    assert_eq!(handle.give(ScriptedTask::good(&live, 1)), 0);
    assert!(next(&mut stream).is_ready());
    assert_eq!(calls.take(), "request(2)");
    leave.send(()).unwrap();
    let peer = producer.join().unwrap();
    assert_eq!(calls.take(), "request(1)", "made by the thread within `request`");
    drop((stream, peer));
    assert_eq!(live.count(), 0);
}

#[test]
fn r75_no_call_comes_after_release_however_they_race() {
    for seed in 0..TRIES {
        let live = LiveCount::default();
        let (handler, mut stream) = consumer(AsyncStreamOptions::default().with_in_flight(3));
        let mut peer = Scripted::opened(handler);
        let start = Arc::new(Barrier::new(2));
        let producer = thread::spawn({
            let (start, live) = (Arc::clone(&start), live.clone());
            move || {
                start.wait();
                for (n, wait) in (1..=3).zip(numbers(seed)) {
                    dawdle(wait);
                    peer.batch(&live, n);
                }
                // `Scripted` panics, and so aborts, at any later call.
                peer.release();
                peer
            }
        });
        start.wait();
        for wait in numbers(seed + 7).take(4) {
            dawdle(wait);
            drop(next(&mut stream));
        }
        drop(stream);
        drop(producer.join().unwrap());
        assert_eq!(live.count(), 0);
    }
}

#[test]
fn r85_r86_r89_requests_and_cancels_from_many_threads() {
    for seed in 0..TRIES {
        let live = LiveCount::default();
        // Requests within callbacks too. The recorder checks that callbacks do not overlap or
        // exceed requests.
        let (handler, recorder) = Recorder::new(|this, call, _| {
            if matches!(call, "schema" | "task") {
                this.request(1);
            }
            0
        });
        let batches = stream::iter(0..).map({
            let live = live.clone();
            move |n: usize| Ok(array(&live, n % 5))
        });
        let source = counted(&live, batches);
        let thread = produce_on_thread(source, &field(), CPU, handler, ProduceOptions::default()).unwrap();
        while recorder.waiting() == 0 {
            thread::yield_now();
        }
        // Waiting tasks keep the producer alive (R96).
        thread::scope(|scope| {
            for at in 0..4 {
                let recorder = &recorder;
                scope.spawn(move || {
                    for (step, wait) in numbers(seed * 4 + at).take(20).enumerate() {
                        dawdle(wait);
                        recorder.request((wait % 3 + 1) as i64);
                        if step >= wait % 20 {
                            recorder.cancel();
                        }
                    }
                });
            }
        });
        recorder.cancel();
        thread.join().unwrap();
        let log = recorder.log();
        assert!(log.starts_with("schema task") && log.ends_with(" release") && !log.contains("error"), "{log}");
        while recorder.waiting() > 0 {
            recorder.request(1);
            drop(recorder.extract().unwrap());
        }
        assert_eq!(live.count(), 0);
    }
}

#[test]
fn r87_an_invalid_request_among_others_ends_with_one_error() {
    for seed in 0..TRIES / 3 {
        let live = LiveCount::default();
        let (handler, recorder) = Recorder::requests(1);
        let source = arrays(&live, 5).chain(stream::pending());
        let thread = produce_on_thread(source, &field(), CPU, handler, ProduceOptions::default()).unwrap();
        while recorder.waiting() == 0 {
            thread::yield_now();
        }
        thread::scope(|scope| {
            for at in 0..3 {
                let recorder = &recorder;
                scope.spawn(move || {
                    for wait in numbers(seed * 3 + at).take(5) {
                        dawdle(wait);
                        recorder.request(if wait % 2 == 0 { 1 } else { -1 });
                    }
                    recorder.request(0);
                });
            }
        });
        thread.join().unwrap();
        let log = recorder.log();
        assert!(log.matches("error(22").count() == 1 && log.ends_with(" release"), "{log}");
        recorder.dismiss_all();
        assert_eq!(live.count(), 0);
    }
}

#[test]
fn a_pair_with_delays_reads_all_or_leaves_or_cancels() {
    for seed in 0..TRIES {
        let live = LiveCount::default();
        let mut random = numbers(seed);
        let batches = random.next().unwrap() % 20;
        let leave = random.next().unwrap() % 25;
        let cancel = seed % 2 == 0;
        let in_flight = seed % 4;
        let (handler, mut stream) = consumer(AsyncStreamOptions::default().with_in_flight(in_flight));
        let mut waits = numbers(seed + 99);
        let source = arrays(&live, batches).inspect(move |_| dawdle(waits.next().unwrap_or(0)));
        let thread = produce_on_thread(source, &field(), CPU, handler, ProduceOptions::default()).unwrap();

        let mut read = 0;
        while read < leave
            && let Some(item) = block_on(stream.next())
        {
            read += 1;
            assert_eq!(item.unwrap().len(), read);
            dawdle(random.next().unwrap());
        }
        if cancel {
            stream.cancel();
            while let Some(item) = block_on(stream.next()) {
                read += 1;
                assert_eq!(item.unwrap().len(), read);
            }
        } else if leave > batches {
            assert_eq!(read, batches);
        }
        drop(stream);
        thread.join().unwrap();
        assert_eq!(live.count(), 0, "seed {seed}");
    }
}

#[test]
fn r89_cancels_from_many_threads_reach_the_producer_once() {
    for _ in 0..TRIES / 3 {
        let (handler, stream) = consumer(AsyncStreamOptions::default());
        let peer = Scripted::opened(handler);
        let start = Barrier::new(4);
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    start.wait();
                    stream.cancel();
                });
            }
        });
        assert_eq!(peer.calls.take(), "cancel");
    }
}

#[test]
fn r93_tasks_are_extracted_on_any_thread_at_the_same_time() {
    let live = LiveCount::default();
    let (handler, recorder) = Recorder::requests(64);
    let thread = produce_on_thread(arrays(&live, 64), &field(), CPU, handler, ProduceOptions::default()).unwrap();
    thread.join().unwrap();
    let extracted = AtomicUsize::new(0);
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for at in 0..16 {
                    recorder.request(1);
                    match at % 4 {
                        0 => recorder.dismiss(),
                        _ => drop(recorder.extract().unwrap()),
                    }
                    extracted.fetch_add(1, SeqCst);
                }
            });
        }
    });
    assert_eq!((extracted.into_inner(), live.count()), (64, 0));
}
