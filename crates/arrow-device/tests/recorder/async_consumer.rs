// SPDX-License-Identifier: Apache-2.0
//! Async streams of the recorder, read by this crate.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::thread;
use std::time::Duration;

use arrow::array::{AsArray, RecordBatch};
use arrow::datatypes::DataType;
use arrow_device::async_stream::{AsyncDeviceStream, AsyncHandler, AsyncStreamOptions};
use arrow_device::ffi::ArrowDeviceType;
use arrow_device::{Error, ImportedArray, Result, cpu};
use futures::executor::block_on;
use futures::{FutureExt, StreamExt};

use crate::data::{MALFORMED, MALFORMED_SCHEMA, ROWS, Random, batches, ints, rounds};
use crate::pull_consumer::{CODES, error_message};
use crate::session::Session;

/// A stream of this crate, and its handler for the recorder.
fn connect(in_flight: usize) -> (AsyncHandler, AsyncDeviceStream) {
    // SAFETY: the recorder follows the interface, except for its settings, which the stream checks.
    unsafe { AsyncDeviceStream::new(AsyncStreamOptions::default().with_in_flight(in_flight)) }
}

/// Starts the recorder's producer on a stream of this crate.
fn start(session: &Session, in_flight: usize) -> AsyncDeviceStream {
    let (handler, stream) = connect(in_flight);
    session.produce(handler.into_raw());
    stream
}

/// Reads a stream to its end or error.
fn read(stream: &mut AsyncDeviceStream) -> (Vec<RecordBatch>, Option<Error>) {
    let mut batches = Vec::new();
    while let Some(array) = block_on(stream.next()) {
        match array.and_then(cpu::import_batch) {
            Ok(batch) => batches.push(batch),
            Err(error) => {
                assert!(block_on(stream.next()).is_none(), "an error ends a stream");
                return (batches, Some(error));
            }
        }
    }
    (batches, None)
}

/// The columns, without the metadata of their schemas.
fn columns(batches: &[RecordBatch]) -> Vec<&[arrow::array::ArrayRef]> {
    batches.iter().map(RecordBatch::columns).collect()
}

#[test]
fn r63_r65_r66_r67_r68_r80_all_batches_come_in_order() {
    for n in [0, 1, 3, 8] {
        for in_flight in [1, 2, 5] {
            for (threads, inline, jitter) in [(2, 0, 0), (2, 1, 300), (0, 0, 300), (0, 1, 0)] {
                let settings = [("batches", n), ("threads", threads), ("start_inline", inline), ("jitter", jitter)];
                let session = Session::new(&settings);
                let mut stream = start(&session, in_flight);
                if n % 2 == 0 {
                    assert_eq!(block_on(stream.schema()).unwrap().fields().len(), 10);
                    assert_eq!(stream.device_type(), Some(ArrowDeviceType::CPU));
                }
                let (read, error) = read(&mut stream);
                assert!(error.is_none(), "{error:?}");
                assert_eq!(read, batches(n));
                drop(stream);
                // R75: no call comes later, and the batches outlive the stream.
                assert!(session.wait_for("done", 1));
                drop(read);
                session.end();
            }
        }
    }
}

#[test]
fn r84_requests_stay_within_the_limit() {
    for in_flight in [1, 3] {
        let session = Session::new(&[("batches", 9)]);
        let mut stream = start(&session, in_flight);
        assert!(block_on(stream.next()).unwrap().is_ok());
        thread::sleep(Duration::from_millis(20));
        // One batch was read.
        assert_eq!(session.get("requested"), in_flight as i64 + 1);
        assert!(session.get("delivered") <= in_flight as i64 + 1);
        drop(stream);
        session.end();
    }
}

#[test]
fn r66_nothing_is_requested_before_the_first_poll() {
    let session = Session::new(&[]);
    let mut stream = start(&session, 4);
    block_on(stream.schema()).unwrap();
    thread::sleep(Duration::from_millis(20));
    assert_eq!((session.get("requested"), session.get("delivered")), (0, 0));
    assert_eq!(read(&mut stream).0.len(), 3);
    drop(stream);
    session.end();
}

#[test]
fn r70_r71_r94_failures_at_every_step_are_reported_after_earlier_batches() {
    for fail_at in 0..=4 {
        for (code, kind) in CODES.into_iter().zip([1, 0, 2, 3, 4, 1]) {
            let metadata = kind % 3;
            let settings =
                [("fail_at", fail_at), ("fail_code", code), ("error_message", kind), ("metadata", metadata), ("jitter", 50)];
            let session = Session::new(&settings);
            let mut stream = start(&session, 2);
            let (read, error) = read(&mut stream);
            assert_eq!(columns(&read), columns(&batches((fail_at - 1).max(0))));
            let Some(Error::Foreign { code: reported, message, .. }) = &error else { panic!("{error:?}") };
            assert_eq!((i64::from(*reported), message), (code, &error_message(kind)));
            let pairs = stream.error_metadata();
            assert_eq!(pairs.len(), if metadata == 1 { 2 } else { 0 });
            assert_eq!(block_on(stream.schema()).is_err(), fail_at == 0);
            drop((stream, read));
            session.end();
        }
    }
}

#[test]
fn r73_a_failed_extraction_is_reported_once_and_its_output_is_not_used() {
    for at in 0..3 {
        for in_flight in [1, 4] {
            for garbage in [0, 1] {
                let settings = [("fail_extract", at), ("fail_code", libc::ENOMEM.into()), ("garbage", garbage), ("jitter", 100)];
                let session = Session::new(&settings);
                let mut stream = start(&session, in_flight);
                let (read, error) = read(&mut stream);
                assert_eq!(read, batches(at));
                assert_eq!(error.unwrap().errno(), libc::ENOMEM);
                drop((stream, read));
                session.end();
            }
        }
    }
}

#[test]
fn r68_r72_r77_r78_a_stream_dropped_anywhere_cancels_and_drains() {
    for finish in [0, 1] {
        for taken in 0..=4 {
            for (schema, in_flight) in [(false, 1), (true, 3)] {
                let settings = [("finish_after_cancel", finish), ("end_after_cancel", finish), ("jitter", 100), ("batches", 4)];
                let session = Session::new(&settings);
                let mut stream = start(&session, in_flight);
                if schema {
                    block_on(stream.schema()).unwrap();
                }
                let held: Vec<_> = (0..taken).map(|_| block_on(stream.next()).unwrap().unwrap()).collect();
                drop(stream);
                assert!(session.wait_for("done", 1));
                drop(held);
                session.end();
            }
        }
    }
}

#[test]
fn r68_a_stream_dropped_before_its_producer_starts_refuses_the_schema() {
    for inline in [0, 1] {
        let session = Session::new(&[("start_inline", inline)]);
        let (handler, stream) = connect(2);
        drop(stream);
        session.produce(handler.into_raw());
        session.end();
    }
}

#[test]
fn r72_r75_r76_r89_a_cancel_at_any_point_ends_without_an_error() {
    for style in [0, 1] {
        for finish in [0, 1] {
            for end in [0, 1] {
                for taken in 0..=3 {
                    let settings = [
                        ("style", style),
                        ("finish_after_cancel", finish),
                        ("end_after_cancel", end),
                        ("batches", 6),
                        ("jitter", 50),
                    ];
                    let session = Session::new(&settings);
                    let mut stream = start(&session, 2);
                    block_on(stream.schema()).unwrap();
                    let mut held: Vec<_> = (0..taken).map(|_| block_on(stream.next()).unwrap().unwrap()).collect();
                    stream.cancel();
                    stream.cancel();
                    while let Some(array) = block_on(stream.next()) {
                        held.push(array.unwrap());
                    }
                    let held: Vec<_> = held.into_iter().map(|array| cpu::import_batch(array).unwrap()).collect();
                    assert_eq!(held, batches(held.len() as i64));
                    assert!(session.get("cancels") <= 1);
                    drop((held, stream));
                    session.end();
                }
            }
        }
    }
}

#[test]
fn r75_a_cancel_on_another_thread_never_calls_a_freed_producer() {
    for round in 0..rounds(40) {
        let session = Session::new(&[("batches", 3), ("jitter", 400)]);
        let mut stream = start(&session, 2);
        block_on(stream.schema()).unwrap();
        let taken = round % 4;
        for _ in 0..taken {
            block_on(stream.next()).unwrap().unwrap();
        }
        thread::scope(|scope| {
            scope.spawn(|| {
                thread::sleep(Duration::from_micros(round as u64 * 37));
                stream.cancel();
            });
        });
        drop(stream);
        session.end();
    }
}

/// A drop at an arbitrary point of the producer's work.
#[test]
fn r75_a_drop_at_any_moment_is_safe() {
    for round in 0..rounds(60) {
        let session = Session::new(&[("batches", 4), ("jitter", 200), ("fail_at", if round % 3 == 0 { 3 } else { -1 })]);
        let mut stream = start(&session, 2);
        // Starts the flow without waiting.
        stream.next().now_or_never();
        thread::sleep(Duration::from_micros(round as u64 * 41));
        drop(stream);
        session.end();
    }
}

#[test]
fn y2_y3_the_deviations_of_arrow_cpp_are_tolerated() {
    // It reports an error after a cancel and after a refusal.
    for n in [0, 3] {
        let session = Session::new(&[("style", 1), ("batches", n)]);
        let (handler, stream) = connect(2);
        drop(stream);
        session.produce(handler.into_raw());
        session.end();
    }
}

#[test]
fn r31_arrays_other_than_batches_flow_too() {
    let session = Session::new(&[("shape", 3)]);
    let mut stream = start(&session, 2);
    assert!(matches!(block_on(stream.schema()), Err(Error::Invalid(_))));
    assert_eq!(block_on(stream.field()).unwrap().data_type(), &DataType::Int32);
    for k in 0..3 {
        let array = cpu::import_array(block_on(stream.next()).unwrap().unwrap()).unwrap();
        assert_eq!(array.as_primitive(), &ints(k * ROWS, ROWS));
    }
    assert!(block_on(stream.next()).is_none());
    drop(stream);
    session.end();
}

#[test]
fn r90_r70_metadata_of_all_kinds_is_copied() {
    let pairs = [("rows".to_string(), "15".to_string()), ("note".to_string(), "café".to_string())];
    for metadata in 0..3 {
        let session = Session::new(&[("metadata", metadata)]);
        let mut stream = start(&session, 2);
        let schema = block_on(stream.schema()).unwrap();
        let expected: &[_] = if metadata == 1 { &pairs } else { &[] };
        assert_eq!(schema.metadata().len(), expected.len());
        while let Some(array) = block_on(stream.next()) {
            array.unwrap();
            assert_eq!(*stream.batch_metadata(), expected);
        }
        assert!(session.wait_for("done", 1));
        // The producer and its copy of the metadata are freed.
        assert_eq!(stream.producer_metadata(), expected);
        drop(stream);
        session.end();
    }
    // Metadata that is not UTF-8: one error.
    let session = Session::new(&[("metadata", 3)]);
    let mut stream = start(&session, 2);
    let (read, error) = read(&mut stream);
    assert!(read.is_empty() && matches!(error, Some(Error::Invalid(_))), "{error:?}");
    drop(stream);
    session.end();
}

#[test]
fn r91_an_array_of_another_device_type_is_refused() {
    let session = Session::new(&[("array_device_type", 2)]);
    let mut stream = start(&session, 2);
    let (read, error) = read(&mut stream);
    assert!(read.is_empty() && matches!(error, Some(Error::Invalid(_))), "{error:?}");
    drop(stream);
    session.end();
}

#[test]
fn r45_r47_a_malformed_array_ends_the_stream_and_is_released() {
    for malformed in MALFORMED {
        let session = Session::new(&[("malformed", malformed)]);
        let mut stream = start(&session, 2);
        let next: Result<ImportedArray> = block_on(stream.next()).unwrap();
        let refused = next.is_err();
        let error = next.and_then(cpu::import_batch).unwrap_err();
        assert!(matches!(error, Error::Invalid(_)), "{malformed}: {error:?}");
        if refused {
            assert!(block_on(stream.next()).is_none());
        }
        drop(stream);
        session.end();
    }
}

#[test]
fn r45_r47_r81_a_malformed_schema_is_refused() {
    for malformed in MALFORMED_SCHEMA {
        for style in [0, 1] {
            let session = Session::new(&[("malformed_schema", malformed), ("style", style)]);
            let mut stream = start(&session, 2);
            let (read, error) = read(&mut stream);
            let error = error.unwrap();
            assert!(read.is_empty() && matches!(error, Error::Invalid(_) | Error::Unsupported(_)), "{malformed}: {error:?}");
            assert!(block_on(stream.field()).is_err());
            drop(stream);
            session.end();
        }
    }
}

/// A reader without a thread: each wake polls it inline, within the waking callback.
struct InlineReader {
    stream: Mutex<Option<AsyncDeviceStream>>,
    woken: AtomicBool,
    rows: AtomicUsize,
    // The number of batches after which it drops its stream inline.
    leaves_after: usize,
    failed: AtomicBool,
}

impl InlineReader {
    fn run(self: &Arc<Self>) {
        let waker = Waker::from(Arc::clone(self));
        let mut context = Context::from_waker(&waker);
        while self.woken.load(SeqCst) {
            // The holder of the lock sees `woken` later.
            let Ok(mut stream) = self.stream.try_lock() else { return };
            self.woken.store(false, SeqCst);
            while let Some(reader) = stream.as_mut() {
                match reader.poll_next_unpin(&mut context) {
                    Poll::Pending => break,
                    Poll::Ready(Some(Ok(array))) => {
                        let rows = self.rows.fetch_add(array.len(), SeqCst) + array.len();
                        if rows >= self.leaves_after * ROWS as usize {
                            *stream = None;
                        }
                    }
                    Poll::Ready(Some(Err(_))) => self.failed.store(true, SeqCst),
                    Poll::Ready(None) => *stream = None,
                }
            }
        }
    }
}

impl Wake for InlineReader {
    fn wake(self: Arc<Self>) {
        self.woken.store(true, SeqCst);
        self.run();
    }
}

#[test]
fn r66_r71_r86_a_reader_may_run_inside_callbacks() {
    for leaves_after in [1, 2, 99] {
        for (fail_at, inline, style) in [(-1, 0, 0), (-1, 1, 1), (0, 0, 0), (2, 0, 0), (3, 1, 1)] {
            for threads in [0, 2] {
                let settings =
                    [("batches", 4), ("fail_at", fail_at), ("start_inline", inline), ("threads", threads), ("style", style)];
                let session = Session::new(&settings);
                let (handler, stream) = connect(2);
                let inside = Arc::new(InlineReader {
                    stream: Mutex::new(Some(stream)),
                    woken: AtomicBool::new(true),
                    rows: AtomicUsize::new(0),
                    leaves_after,
                    failed: AtomicBool::new(false),
                });
                inside.run();
                session.produce(handler.into_raw());
                assert!(session.wait_for("done", 1));
                let before = if fail_at < 0 { 4 } else { (fail_at - 1).max(0) as usize };
                let expected = before.min(leaves_after);
                assert_eq!(inside.rows.load(SeqCst), expected * ROWS as usize);
                assert_eq!(inside.failed.load(SeqCst), fail_at >= 0 && expected < leaves_after);
                assert!(inside.stream.lock().unwrap().is_none());
                session.end();
            }
        }
    }
}

#[test]
fn y5_a_producer_freed_right_after_its_end_is_not_called() {
    for round in 0..rounds(60) {
        let settings = [("early_free", 1), ("end_after_cancel", round % 2), ("jitter", 200), ("metadata", 1)];
        let session = Session::new(&settings);
        let mut stream = start(&session, 1 + (round % 3) as usize);
        match round % 4 {
            0 => assert!(read(&mut stream).1.is_none()),
            1 => {
                stream.next().now_or_never();
                thread::sleep(Duration::from_micros(round as u64 * 31));
                stream.cancel();
                assert!(read(&mut stream).1.is_none());
            }
            _ => {
                stream.next().now_or_never();
                thread::sleep(Duration::from_micros(round as u64 * 31));
            }
        }
        drop(stream);
        session.end();
    }
}

/// Random settings, and a reader that leaves, cancels or stays at random, without any violation.
#[test]
fn random_conversations_keep_the_rules() {
    let mut random = Random(0x5eed);
    for round in 0..rounds(200) {
        let settings = [
            ("batches", random.below(6)),
            ("threads", 2 * random.below(2)),
            ("start_inline", random.below(2)),
            ("style", random.below(2)),
            ("jitter", 150 * random.below(2)),
            ("metadata", random.below(3)),
            ("fail_at", random.below(12) - 5),
            ("fail_extract", random.below(12) - 8),
            ("finish_after_cancel", random.below(2)),
            ("end_after_cancel", random.below(2)),
            ("early_free", random.below(2)),
            ("garbage", random.below(2)),
        ];
        let session = Session::new(&settings);
        let mut stream = start(&session, 1 + random.below(4) as usize);
        let (leaves, cancels) = (random.below(12), random.below(12));
        let mut held = Vec::new();
        for step in 0.. {
            if step == cancels {
                stream.cancel();
            }
            if step == leaves {
                break;
            }
            match block_on(stream.next()) {
                Some(Ok(array)) => held.push(cpu::import_batch(array).unwrap()),
                Some(Err(_)) => {}
                None => break,
            }
        }
        drop(stream);
        assert_eq!(columns(&held), columns(&batches(held.len() as i64)), "round {round}: {settings:?}");
        drop(held);
        session.end();
    }
}

#[test]
fn r37_arrays_with_events_keep_them() {
    let session = Session::new(&[("device_type", 3), ("device_id", 0), ("event", 1)]);
    let mut stream = start(&session, 2);
    let mut imported = Vec::new();
    while let Some(array) = block_on(stream.next()) {
        let array = array.unwrap();
        session.event_wait(array.sync_event());
        // SAFETY: the wait has returned.
        imported.push(cpu::import_batch(unsafe { array.assume_complete() }).unwrap());
    }
    assert_eq!(imported, batches(3));
    drop((imported, stream));
    session.end();
}

#[test]
fn r63_a_handler_without_a_producer_ends_its_stream() {
    let (handler, mut stream) = connect(2);
    drop(handler);
    assert!(block_on(stream.next()).unwrap().is_err());
    assert!(block_on(stream.next()).is_none());
}
