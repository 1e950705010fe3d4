// SPDX-License-Identifier: Apache-2.0
//! Async streams, both ways: Arrow C++ pushes to this crate, and this crate to Arrow C++.

use std::ffi::CStr;
use std::sync::mpsc;
use std::task::{Context, Waker};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use arrow::array::RecordBatch;
use arrow::datatypes::{DataType, Field, Schema};
use arrow_device::async_stream::{
    AsyncBatch, AsyncDeviceStream, AsyncHandler, AsyncStreamOptions, ProduceOptions, produce, produce_on_thread,
};
use arrow_device::ffi::ArrowDeviceType;
use arrow_device::{Error, Result, cpu, schema};
use futures::executor::block_on;
use futures::{FutureExt, Stream, StreamExt, stream};

use crate::peer::{CppBatch, CppConsumer, CppProducer, CppResult, End, status};
use crate::pulled::{cpp_batch, cpp_batches};
use crate::samples;
use crate::session::{Session, counted, eventually};
use crate::tap::{Call, Tap};

const CPU: ArrowDeviceType = ArrowDeviceType::CPU;

// ---- Arrow C++ pushes to this crate

/// A producer of Arrow C++ behind a tap.
pub struct CppPush {
    producer: CppProducer,
    pub tap: Tap,
}

impl CppPush {
    pub fn start(handler: AsyncHandler, count: i64, end: End, delay_us: i64) -> Self {
        Self::start_with(handler, &samples::schema(), cpp_batches(count), CPU, end, delay_us)
    }

    pub fn start_with(
        handler: AsyncHandler,
        schema: &Schema,
        batches: Vec<CppBatch>,
        device_type: ArrowDeviceType,
        end: End,
        delay_us: i64,
    ) -> Self {
        let tap = Tap::new(handler.into_raw());
        // SAFETY: the tap lives until the producer is joined. The handler behind it lives until its
        // release.
        let producer = unsafe { CppProducer::start(schema, batches, device_type, end, delay_us, tap.handler()) };
        Self { producer, tap }
    }

    /// Waits for the end of the producer, and checks the calls.
    #[track_caller]
    pub fn join(self) -> (CppResult, Vec<Call>) {
        let outcome = self.producer.join();
        self.tap.check();
        (outcome, self.tap.calls())
    }

    /// As [`Self::join`], for calls that violate rules.
    pub fn join_unchecked(self) -> (CppResult, Vec<Call>) {
        (self.producer.join(), self.tap.calls())
    }
}

pub fn our_consumer(in_flight: usize) -> (AsyncHandler, AsyncDeviceStream) {
    // SAFETY: its producer is that of Arrow C++, the subject of these tests.
    unsafe { AsyncDeviceStream::new(AsyncStreamOptions::default().with_in_flight(in_flight)) }
}

pub fn pushed(count: i64, in_flight: usize, end: End, delay_us: i64) -> (CppPush, AsyncDeviceStream) {
    let (handler, stream) = our_consumer(in_flight);
    (CppPush::start(handler, count, end, delay_us), stream)
}

fn next(stream: &mut AsyncDeviceStream) -> Option<Result<RecordBatch>> {
    block_on(stream.next()).map(|array| cpu::import_batch(array?))
}

fn ours(from: i64, to: i64) -> Vec<RecordBatch> {
    (from..to).map(samples::batch).collect()
}

#[test]
fn batches_of_arrow_cpp_arrive_here() {
    Session::run(|_session| {
        for (count, in_flight) in [(0, 1), (0, 8), (1, 1), (1, 8), (100, 1), (100, 2), (100, 8)] {
            let (push, mut stream) = pushed(count, in_flight, End::PLAIN, 0);
            assert_eq!(block_on(stream.schema()).unwrap().as_ref(), &samples::schema());
            assert_eq!(stream.device_type(), Some(CPU));
            let batches: Vec<_> = std::iter::from_fn(|| next(&mut stream)).map(Result::unwrap).collect();
            assert_eq!(batches, ours(0, count));
            assert!(push.tap.most_outstanding() <= in_flight as i64);
            let (outcome, calls) = push.join();
            outcome.unwrap();
            assert!(calls.contains(&Call::End(0)));
        }
    });
}

#[test]
fn slow_readers_and_slow_producers_lose_nothing() {
    Session::run(|_session| {
        for (in_flight, producer_us, reader_us) in [(1, 0, 300), (8, 0, 300), (2, 300, 0), (8, 300, 0)] {
            let (push, mut stream) = pushed(50, in_flight, End::PLAIN, producer_us);
            let mut batches = Vec::new();
            while let Some(batch) = next(&mut stream) {
                thread::sleep(Duration::from_micros(reader_us));
                batches.push(batch.unwrap());
            }
            assert_eq!(batches, ours(0, 50));
            push.join().0.unwrap();
        }
    });
}

#[test]
fn arrow_cpp_sends_no_more_than_we_request() {
    Session::run(|_session| {
        for in_flight in [1, 2, 8] {
            let (push, mut stream) = pushed(100, in_flight, End::PLAIN, 0);
            let in_flight = in_flight as i64;
            // The schema alone requests no batches.
            block_on(stream.schema()).unwrap();
            assert_eq!(push.tap.requested(), 0);
            for read in 1..=3 {
                next(&mut stream).unwrap().unwrap();
                assert!(eventually(|| push.tap.delivered() == read + in_flight));
                thread::sleep(Duration::from_millis(5));
                assert_eq!((push.tap.requested(), push.tap.delivered()), (read + in_flight, read + in_flight));
                // It pulls one from its source before it checks for a request.
                assert!(push.producer.pulled() <= read + in_flight + 1);
            }
            drop(stream);
            push.join().0.unwrap_err();
        }
    });
}

#[test]
fn errors_of_arrow_cpp_come_after_the_batches_before_them() {
    Session::run(|_session| {
        let cases: [(i32, &CStr); 3] =
            [(status::INVALID, c"a bad page"), (status::IO_ERROR, c"a lost disk"), (status::OUT_OF_MEMORY, c"a full house")];
        for (code, message) in cases {
            for count in [0, 3] {
                let (push, mut stream) = pushed(count, 8, End(code, message), 0);
                let batches: Vec<_> = std::iter::from_fn(|| next(&mut stream)).collect();
                let (last, batches) = batches.split_last().unwrap();
                assert_eq!(batches.iter().map(|batch| batch.as_ref().unwrap().clone()).collect::<Vec<_>>(), ours(0, count));
                let error = last.as_ref().unwrap_err();
                assert!(matches!(error, Error::Foreign { call: "async producer", .. }), "{error:?}");
                assert!(error.to_string().ends_with(message.to_str().unwrap()), "{error}");
                assert_eq!(push.join().0.unwrap_err().code, code);
            }
        }
    });
}

/// Arrow C++ reports such an end as an error (Y2), which the dropped stream ignores.
#[test]
fn our_streams_can_be_dropped_at_any_point() {
    Session::run(|_session| {
        for in_flight in [1, 8] {
            for read in [0, 1, 5] {
                let (push, mut stream) = pushed(20, in_flight, End::PLAIN, 0);
                for expected in 0..read {
                    assert_eq!(next(&mut stream).unwrap().unwrap(), samples::batch(expected));
                }
                drop(stream);
                push.join().0.unwrap_err();
            }
            // With requested batches waiting.
            let (push, mut stream) = pushed(20, in_flight, End::PLAIN, 0);
            next(&mut stream).unwrap().unwrap();
            assert!(eventually(|| push.tap.delivered() == 1 + in_flight as i64));
            drop(stream);
            let calls = push.join().1;
            assert!(calls.contains(&Call::Extract(false, 0)), "R77: {calls:?}");
            // With a batch that outlives the stream.
            let (push, mut stream) = pushed(20, in_flight, End::PLAIN, 0);
            let kept = block_on(stream.next()).unwrap().unwrap();
            drop(stream);
            push.join().0.unwrap_err();
            assert_eq!(cpu::import_batch(kept).unwrap(), samples::batch(0));
        }
    });
}

#[test]
fn a_stream_can_be_dropped_before_its_producer_starts() {
    Session::run(|_session| {
        for count in [0, 5] {
            let (handler, stream) = our_consumer(2);
            drop(stream);
            let (_, calls) = CppPush::start(handler, count, End::PLAIN, 0).join();
            assert_eq!(calls[0], Call::Schema(libc::ECANCELED));
        }
        // It ends or fails after the drop.
        let (push, stream) = pushed(0, 2, End::PLAIN, 0);
        drop(stream);
        push.join().0.ok();
        let (push, stream) = pushed(0, 2, End(status::INVALID, c"late"), 0);
        drop(stream);
        push.join().0.unwrap_err();
    });
}

#[test]
fn our_streams_can_be_cancelled_at_any_point() {
    Session::run(|_session| {
        for in_flight in [1, 8] {
            for read in [0, 1, 5] {
                let (push, mut stream) = pushed(20, in_flight, End::PLAIN, 0);
                block_on(stream.schema()).unwrap();
                for _ in 0..read {
                    next(&mut stream).unwrap().unwrap();
                }
                stream.cancel();
                stream.cancel();
                // Sent batches can be read, in order; then comes a plain end.
                let rest: Vec<_> = std::iter::from_fn(|| next(&mut stream)).map(Result::unwrap).collect();
                assert_eq!(rest, ours(read, read + rest.len() as i64));
                assert!(rest.len() <= in_flight);
                let (outcome, calls) = push.join();
                assert_eq!(outcome.unwrap_err().code, status::CANCELLED);
                assert_eq!(calls.iter().filter(|call| **call == Call::Cancel).count(), 1, "{calls:?}");
            }
        }
    });
}

#[test]
fn streams_of_arrow_cpp_end_while_they_are_dropped() {
    Session::run(|_session| {
        // A race: both sides run freely.
        for round in 0..200 {
            let (push, mut stream) = pushed(round % 7, 1 + round as usize % 3, End::PLAIN, 0);
            for _ in 0..round % 5 {
                drop(next(&mut stream));
            }
            drop(stream);
            push.join().0.ok();
        }
    });
}

// ---- This crate pushes to Arrow C++

/// A consumer of Arrow C++ behind a tap.
pub struct CppPull {
    pub consumer: CppConsumer,
    pub tap: Tap,
}

impl CppPull {
    pub fn new(queue_size: u64) -> Self {
        let consumer = CppConsumer::new(queue_size);
        let tap = Tap::new(consumer.handler());
        Self { consumer, tap }
    }

    pub fn handler(&self) -> AsyncHandler {
        // SAFETY: the tap, and the handler behind it, live until `end`.
        unsafe { AsyncHandler::from_raw(self.tap.handler()) }.unwrap()
    }

    /// Reads all batches from the first on; returns their number, and how the stream ended.
    pub fn read_all(&mut self) -> (usize, CppResult) {
        self.read_from(0)
    }

    /// As [`Self::read_all`], with the batch `first` as the next.
    pub fn read_from(&mut self, first: usize) -> (usize, CppResult) {
        for count in 0.. {
            match self.consumer.read() {
                Ok(Some((batch, _))) => batch.assert_equals(&cpp_batch((first + count) as i64)),
                Ok(None) => return (count, Ok(())),
                Err(failure) => return (count, Err(failure)),
            }
        }
        unreachable!()
    }

    /// Joins the producer, checks the calls, and frees all.
    #[track_caller]
    pub fn end(self, thread: JoinHandle<()>) -> Vec<Call> {
        thread.join().unwrap();
        self.tap.check();
        self.free()
    }

    /// Frees all, after `release`.
    pub fn free(self) -> Vec<Call> {
        assert!(self.tap.released());
        // SAFETY: the producer has released the handler.
        unsafe { self.consumer.free() };
        self.tap.calls()
    }
}

pub fn arrays(count: i64) -> impl Stream<Item = Result<AsyncBatch>> + Send {
    stream::iter((0..count).map(array))
}

fn array(start: i64) -> Result<AsyncBatch> {
    Ok(counted(cpu::export_batch(&samples::batch(start))?).into())
}

pub fn serve(source: impl Stream<Item = Result<AsyncBatch>> + Send + 'static, handler: AsyncHandler) -> JoinHandle<()> {
    let field = schema::batch_field(&samples::schema());
    produce_on_thread(source, &field, CPU, handler, ProduceOptions::default()).unwrap()
}

#[test]
fn our_batches_arrive_in_arrow_cpp() {
    Session::run(|session| {
        let mut given = 0;
        for (count, queue) in [(0, 1), (0, 8), (1, 1), (1, 8), (100, 1), (100, 2), (100, 8)] {
            let mut pull = CppPull::new(queue);
            let thread = serve(arrays(count), pull.handler());
            assert_eq!(pull.consumer.schema().unwrap(), (samples::schema(), CPU));
            assert_eq!(pull.read_all(), (count as usize, Ok(())));
            // It requests one more before each extraction.
            assert!(pull.tap.most_outstanding() <= queue as i64 + 1);
            pull.end(thread);
            given += count;
        }
        assert_eq!(session.given(), given);
    });
}

#[test]
fn many_batches_and_slow_sides_lose_nothing() {
    Session::run(|_session| {
        for (count, queue, source_us, reader_us) in [(3000, 8, 0, 0), (50, 1, 0, 300), (50, 8, 0, 300), (50, 2, 300, 0)] {
            let mut pull = CppPull::new(queue);
            let source = arrays(count).map(move |array| {
                thread::sleep(Duration::from_micros(source_us));
                array
            });
            let thread = serve(source, pull.handler());
            pull.consumer.schema().unwrap();
            let mut rows = 0;
            while let Some((batch, _)) = pull.consumer.read().unwrap() {
                thread::sleep(Duration::from_micros(reader_us));
                rows += batch.num_rows();
            }
            assert_eq!(rows, 3 * count);
            pull.end(thread);
        }
    });
}

#[test]
fn deferred_batches_and_their_metadata_arrive_in_arrow_cpp() {
    Session::run(|_session| {
        let mut pull = CppPull::new(2);
        let source = stream::iter((0..5).map(|start| {
            let late = AsyncBatch::deferred(move || Ok(counted(cpu::export_batch(&samples::batch(start))?)));
            Ok(late.with_metadata(vec![("file".into(), format!("{start}.parquet"))]))
        }));
        let thread = serve(source, pull.handler());
        pull.consumer.schema().unwrap();
        for start in 0..5 {
            let (batch, metadata) = pull.consumer.read().unwrap().unwrap();
            assert!(metadata.contains(&format!("file: {start}.parquet")), "{metadata}");
            assert_eq!(batch.num_rows(), 3);
        }
        assert!(pull.consumer.read().unwrap().is_none());
        pull.end(thread);
    });
}

/// Batches, then an error once the test sends a signal: an earlier error makes Arrow C++ lose
/// waiting tasks (see `deviations`).
fn gated(count: i64, error: Error) -> (impl Stream<Item = Result<AsyncBatch>> + Send, mpsc::Sender<()>) {
    let (gate, open) = mpsc::channel::<()>();
    let end = stream::once(async move {
        open.recv().ok();
        Err(error)
    });
    (arrays(count).chain(end), gate)
}

#[test]
fn our_errors_arrive_in_arrow_cpp() {
    Session::run(|_session| {
        let errors = [
            Error::Invalid("a bad page".into()),
            Error::Unsupported("a new codec".into()),
            Error::OutOfMemory("a full device".into()),
            Error::Other("a lost disk".into()),
        ];
        for (error, queue) in errors.into_iter().zip([1, 2, 8, 1]) {
            let mut pull = CppPull::new(queue);
            let (source, gate) = gated(2, error.clone());
            let thread = serve(source, pull.handler());
            pull.consumer.schema().unwrap();
            pull.consumer.read().unwrap().unwrap();
            pull.consumer.read().unwrap().unwrap();
            gate.send(()).unwrap();
            let failure = pull.consumer.read().unwrap_err();
            assert_eq!((failure.code, failure.errno), (status::UNKNOWN, error.errno()));
            assert!(failure.message.contains(&error.to_string()), "{failure}");
            let calls = pull.end(thread);
            assert!(calls.contains(&Call::Error(error.errno(), error.to_string())), "{calls:?}");
        }
    });
}

#[test]
fn a_failed_deferred_batch_fails_the_stream_of_arrow_cpp() {
    Session::run(|_session| {
        let mut pull = CppPull::new(1);
        let late = AsyncBatch::deferred(|| Err(Error::OutOfMemory("no room to decode".into())));
        let thread = serve(stream::iter([Ok(late)]).chain(stream::pending()), pull.handler());
        pull.consumer.schema().unwrap();
        let failure = pull.consumer.read().unwrap_err();
        assert_eq!(failure.errno, libc::ENOMEM);
        assert!(failure.message.contains("no room to decode"), "{failure}");
        pull.end(thread);
    });
}

#[test]
fn invalid_schemas_are_errors_in_arrow_cpp() {
    Session::run(|_session| {
        // A schema that cannot be exported.
        let mut pull = CppPull::new(2);
        let field = Field::new("a\0b", DataType::Int8, true);
        let thread = produce_on_thread(arrays(1), &field, CPU, pull.handler(), ProduceOptions::default()).unwrap();
        let failure = pull.consumer.schema().unwrap_err();
        assert_eq!(failure.errno, libc::ENOSYS);
        thread.join().unwrap();
        pull.free();
        // Arrays other than record batches: it refuses the schema, and gets no more calls (R81).
        let mut pull = CppPull::new(2);
        let field = Field::new("a", DataType::Int8, true);
        let thread = produce_on_thread(arrays(1), &field, CPU, pull.handler(), ProduceOptions::default()).unwrap();
        pull.consumer.schema().unwrap_err();
        assert_eq!(pull.end(thread), [Call::Schema(libc::EINVAL), Call::Release]);
    });
}

#[test]
fn our_producer_can_be_cancelled_at_any_point() {
    Session::run(|_session| {
        for queue in [1, 8] {
            for read in [0, 1, 5] {
                let mut pull = CppPull::new(queue);
                // Arrow C++ does not take a plain release as the end, and would wait forever.
                pull.tap.end_before_release();
                let thread = serve(arrays(50).chain(stream::pending()), pull.handler());
                pull.consumer.schema().unwrap();
                for _ in 0..read {
                    pull.consumer.read().unwrap().unwrap();
                }
                pull.tap.cancel();
                pull.tap.cancel();
                let (_, outcome) = pull.read_from(read);
                assert_eq!(outcome, Ok(()));
                let calls = pull.end(thread);
                assert!(!calls.iter().any(|call| matches!(call, Call::Error(..))), "R89: {calls:?}");
            }
        }
    });
}

#[test]
fn our_producer_can_be_dropped_at_any_point() {
    Session::run(|_session| {
        for polls in [0, 1, 3] {
            let mut pull = CppPull::new(4);
            let field = schema::batch_field(&samples::schema());
            // Only the schema comes before the drop, so no batch can be lost.
            let mut producer =
                produce(stream::pending::<Result<AsyncBatch>>(), &field, CPU, pull.handler(), ProduceOptions::default());
            for _ in 0..polls {
                assert!(producer.poll_unpin(&mut Context::from_waker(Waker::noop())).is_pending());
            }
            drop(producer);
            let failure = match polls {
                0 => pull.consumer.schema().unwrap_err(),
                _ => {
                    pull.consumer.schema().unwrap();
                    pull.consumer.read().unwrap_err()
                }
            };
            assert_eq!(failure.errno, libc::ECANCELED);
            pull.free();
        }
    });
}

#[test]
fn a_request_of_zero_is_an_error_in_arrow_cpp() {
    Session::run(|_session| {
        // Its queue of no batches requests none.
        let mut pull = CppPull::new(0);
        let thread = serve(arrays(1), pull.handler());
        let failure = pull.consumer.schema().and_then(|_| pull.consumer.read().map(drop)).unwrap_err();
        assert_eq!(failure.errno, libc::EINVAL);
        assert!(failure.message.contains("request(0)"), "{failure}");
        pull.end(thread);
    });
}

/// From Arrow C++ through both sides of this crate back to Arrow C++.
#[test]
fn a_stream_passes_through_both_sides() {
    Session::run(|_session| {
        let (push, stream) = pushed(30, 2, End::PLAIN, 0);
        let mut pull = CppPull::new(3);
        let source = stream.map(|array| Ok(AsyncBatch::from(counted(array?.into_ffi()))));
        let thread = serve(source, pull.handler());
        pull.consumer.schema().unwrap();
        assert_eq!(pull.read_all(), (30, Ok(())));
        pull.end(thread);
        push.join().0.unwrap();
    });
}
