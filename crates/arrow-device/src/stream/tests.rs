// SPDX-License-Identifier: Apache-2.0
//! Exported streams through C, readers of hostile streams, and `futures::Stream`s on both sides.

use std::ffi::{CStr, CString, c_char, c_int};
use std::mem::MaybeUninit;
use std::ptr::{null, null_mut};
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::Duration;

use arrow::array::{Array, ArrayRef, Int32Array};
use arrow::datatypes::{DataType, Field};
use arrow::ffi::FFI_ArrowSchema;
use futures::{Stream, StreamExt, TryStreamExt, stream};

use super::*;
use crate::ffi::{ArrowDeviceType, FFI_ArrowDeviceArray, FFI_ArrowDeviceArrayStream};
use crate::testing::{PanicOnDrop, Releases};
use crate::{Error, Result, cpu, schema};

fn field() -> Field {
    Field::new("x", DataType::Int32, true)
}

fn array(number: i32) -> Result<FFI_ArrowDeviceArray> {
    cpu::export_array(&Int32Array::from(vec![number]))
}

fn exported<I>(arrays: I) -> FFI_ArrowDeviceArrayStream
where
    I: IntoIterator<Item = Result<FFI_ArrowDeviceArray>>,
    I::IntoIter: Send + 'static,
{
    export_iterator(&field(), ArrowDeviceType::CPU, arrays).unwrap()
}

fn reader(stream: FFI_ArrowDeviceArrayStream) -> Result<ArrowDeviceArrayStreamReader> {
    // SAFETY: exported here, or by a producer of these tests.
    unsafe { ArrowDeviceArrayStreamReader::try_new(stream) }
}

fn numbers(arrays: impl Iterator<Item = Result<crate::ImportedArray>>) -> Result<Vec<i32>> {
    arrays.map(|array| Ok(cpu::import_array(array?)?.as_any().downcast_ref::<Int32Array>().unwrap().value(0))).collect()
}

/// The calls of a C consumer; outputs hold garbage before each call.
struct Consumer(FFI_ArrowDeviceArrayStream);

impl Consumer {
    fn next(&mut self) -> (c_int, FFI_ArrowDeviceArray) {
        let mut out = MaybeUninit::uninit();
        let code = self.next_into(&mut out);
        // SAFETY: an export writes its output in every case, even on errors.
        (code, unsafe { out.assume_init() })
    }

    fn next_into(&mut self, out: &mut MaybeUninit<FFI_ArrowDeviceArray>) -> c_int {
        // SAFETY: a local output; all its bytes are set.
        unsafe { out.as_mut_ptr().cast::<u8>().write_bytes(0xab, size_of::<FFI_ArrowDeviceArray>()) };
        // SAFETY: a live stream and an output.
        unsafe { self.0.get_next.unwrap()(&mut self.0, out.as_mut_ptr()) }
    }

    fn schema(&mut self) -> Field {
        let mut out = FFI_ArrowSchema::empty();
        // SAFETY: a live stream and an output.
        assert_eq!(unsafe { self.0.get_schema.unwrap()(&mut self.0, &mut out) }, 0);
        // SAFETY: exported here.
        unsafe { schema::import_field(out) }.unwrap()
    }

    fn last_error(&mut self) -> Option<String> {
        // SAFETY: a live stream.
        let message = unsafe { self.0.get_last_error.unwrap()(&mut self.0) };
        // SAFETY: null or a C string.
        (!message.is_null()).then(|| unsafe { CStr::from_ptr(message) }.to_str().unwrap().to_string())
    }
}

#[test]
fn r49_r52_arrays_come_in_order_then_the_end() {
    let stream = exported([array(1), array(2), array(3)]);
    assert_eq!(stream.device_type, ArrowDeviceType::CPU);
    let mut reader = reader(stream).unwrap();
    assert_eq!((reader.field().as_ref(), reader.schema(), reader.device_type()), (&field(), None, ArrowDeviceType::CPU));
    assert_eq!(numbers(&mut reader).unwrap(), [1, 2, 3]);
    assert!(reader.next().is_none());
}

#[test]
fn r36_r60_the_end_is_a_full_struct_and_repeats() {
    let mut consumer = Consumer(exported([array(1)]));
    assert_eq!(consumer.next().1.array.length, 1);
    for _ in 0..2 {
        let (code, end) = consumer.next();
        assert_eq!((code, end.is_released(), end.reserved, end.array.private_data), (0, true, [0; 3], null_mut()));
        assert!(end.sync_event.is_null() && end.array.n_buffers == 0 && end.array.buffers.is_null());
    }
}

#[test]
fn r51_r60_get_schema_works_at_any_time() {
    let mut consumer = Consumer(exported([array(1)]));
    assert_eq!(consumer.schema(), field());
    assert_eq!(consumer.schema(), field());
    while !consumer.next().1.is_released() {}
    assert_eq!(consumer.schema(), field());
}

#[test]
fn r55_r60_an_error_repeats() {
    let failure = Error::OutOfMemory("pool \"cuda:0\" is full\0".into());
    let mut consumer = Consumer(exported([array(1), Err(failure), array(2)]));
    assert_eq!((consumer.next().0, consumer.last_error()), (0, None));
    for _ in 0..2 {
        let (code, out) = consumer.next();
        assert_eq!((code, out.is_released()), (libc::ENOMEM, true));
        assert_eq!(consumer.last_error().unwrap(), "pool \"cuda:0\" is full\u{fffd}");
        // R56: a second call changes nothing.
        assert_eq!(consumer.last_error().unwrap(), "pool \"cuda:0\" is full\u{fffd}");
    }
    // A successful call clears the message.
    consumer.schema();
    assert_eq!(consumer.last_error(), None);
}

#[test]
fn r61_errors_have_their_codes() {
    let foreign = |code| Error::Foreign { call: "get_next", code, message: None };
    let cases = [
        (Error::Invalid("a".into()), libc::EINVAL),
        (Error::Unsupported("a".into()), libc::ENOSYS),
        (Error::OutOfMemory("a".into()), libc::ENOMEM),
        (Error::Other("a".into()), libc::EIO),
        (foreign(71), 71),
        (foreign(0), libc::EIO),
    ];
    for (error, code) in cases {
        assert_eq!(Consumer(exported([Err(error)])).next().0, code);
    }
}

#[test]
fn null_outputs_and_streams_are_einval() {
    let mut consumer = Consumer(exported([array(1)]));
    let (get_schema, get_next) = (consumer.0.get_schema.unwrap(), consumer.0.get_next.unwrap());
    // SAFETY: null is allowed.
    unsafe {
        assert_eq!(get_next(&mut consumer.0, null_mut()), libc::EINVAL);
        assert_eq!(consumer.last_error().unwrap(), "get_next: the output is null");
        assert_eq!(get_schema(&mut consumer.0, null_mut()), libc::EINVAL);
        assert_eq!(consumer.last_error().unwrap(), "get_schema: the output is null");
        assert_eq!(get_next(null_mut(), null_mut()), libc::EINVAL);
        assert_eq!(get_schema(null_mut(), null_mut()), libc::EINVAL);
        assert!(consumer.0.get_last_error.unwrap()(null_mut()).is_null());
        consumer.0.release.unwrap()(null_mut());
    }
    // No array was lost.
    assert_eq!(consumer.next().1.array.length, 1);
}

#[test]
fn r54_a_released_stream_is_einval() {
    let mut consumer = Consumer(exported([array(1)]));
    let release = consumer.0.release.unwrap();
    // SAFETY: a repeated release does nothing.
    unsafe {
        release(&mut consumer.0);
        release(&mut consumer.0);
    }
    assert!(consumer.0.release.is_none() && consumer.0.private_data.is_null());
    assert_eq!(consumer.next_into(&mut MaybeUninit::uninit()), libc::EINVAL);
    assert_eq!(consumer.last_error(), None);
}

#[test]
fn r57_release_frees_the_source_and_leaves_the_arrays() {
    let (source, released) = (Releases::default(), Releases::default());
    let (token, array) = (source.token(), released.counted(array(1).unwrap()));
    let mut arrays = vec![array].into_iter();
    let mut consumer = Consumer(exported(std::iter::from_fn(move || {
        let _held = &token;
        arrays.next().map(Ok)
    })));
    let (_, out) = consumer.next();
    let schema = consumer.schema();
    drop(consumer);
    assert_eq!((source.count(), released.count()), (1, 0));
    assert_eq!(schema, field());
    drop(out);
    assert_eq!(released.count(), 1);
}

#[test]
fn r30_a_panic_of_the_source_is_a_lasting_error() {
    let mut calls = 0;
    let mut consumer = Consumer(exported(std::iter::from_fn(move || -> Option<Result<FFI_ArrowDeviceArray>> {
        calls += 1;
        panic!("call {calls}")
    })));
    for _ in 0..2 {
        assert_eq!(consumer.next().0, libc::EIO);
        assert_eq!(consumer.last_error().unwrap(), "get_next panicked: call 1");
    }
}

#[test]
fn r30_a_source_that_panics_on_drop_does_not_unwind_into_c() {
    let panicking = || {
        let guard = PanicOnDrop;
        exported(std::iter::from_fn(move || {
            let _held = &guard;
            None
        }))
    };
    drop(panicking());
    let mut consumer = Consumer(panicking());
    assert_eq!(consumer.next().0, 0);
}

#[test]
fn r49_arrays_of_another_device_are_errors_on_both_sides() {
    let foreign = || {
        let mut array = array(1).unwrap();
        array.device_type = ArrowDeviceType::CUDA;
        array
    };
    let releases = Releases::default();
    let mut consumer = Consumer(exported([Ok(releases.counted(foreign()))]));
    assert_eq!(consumer.next().0, libc::EIO);
    assert_eq!(consumer.last_error().unwrap(), "the stream's source gave an array of CUDA, expected CPU");
    assert_eq!(releases.count(), 1);

    let mut stream = exported([array(1)]);
    stream.device_type = ArrowDeviceType::OPENCL;
    let mut reader = reader(stream).unwrap();
    let error = reader.next().unwrap().unwrap_err();
    assert_eq!(error.to_string(), "get_next of the stream: expected an array of OPENCL, got CPU");
    assert!(reader.next().is_none());
}

#[test]
fn a_released_array_of_the_source_is_an_error_rather_than_the_end() {
    let mut consumer = Consumer(exported([Ok(FFI_ArrowDeviceArray::empty())]));
    assert_eq!(consumer.next().0, libc::EIO);
    assert_eq!(consumer.last_error().unwrap(), "the stream's source gave a released array");
}

#[test]
fn a_field_that_c_cannot_express_is_refused_at_the_export() {
    let field = Field::new("a\0b", DataType::Int32, true);
    assert!(matches!(export_iterator(&field, ArrowDeviceType::CPU, []), Err(Error::Unsupported(_))));
}

/// A hand-written C producer.
struct HostileProducer {
    code: c_int,
    message: Option<CString>,
    schema_code: c_int,
    /// The array for `get_next` to write, if any.
    array: Option<FFI_ArrowDeviceArray>,
    log: Vec<&'static str>,
    released: Releases,
}

impl HostileProducer {
    fn new() -> Self {
        Self { code: 0, message: None, schema_code: 0, array: None, log: vec![], released: Releases::default() }
    }

    fn stream(self) -> FFI_ArrowDeviceArrayStream {
        FFI_ArrowDeviceArrayStream {
            device_type: ArrowDeviceType::CPU,
            get_schema: Some(hostile_schema),
            get_next: Some(hostile_next),
            get_last_error: Some(hostile_error),
            release: Some(hostile_release),
            private_data: Box::into_raw(Box::new(self)).cast(),
        }
    }

    unsafe fn of<'a>(stream: *mut FFI_ArrowDeviceArrayStream) -> &'a mut Self {
        // SAFETY: made by `stream`.
        unsafe { &mut *(*stream).private_data.cast() }
    }
}

unsafe extern "C" fn hostile_schema(stream: *mut FFI_ArrowDeviceArrayStream, out: *mut FFI_ArrowSchema) -> c_int {
    // SAFETY: called with a stream of `HostileProducer`.
    let this = unsafe { HostileProducer::of(stream) };
    this.log.push("schema");
    if this.schema_code == 0 {
        // SAFETY: an output.
        unsafe { out.write(schema::export_field(&field()).unwrap()) };
    }
    this.schema_code
}

unsafe extern "C" fn hostile_next(stream: *mut FFI_ArrowDeviceArrayStream, out: *mut FFI_ArrowDeviceArray) -> c_int {
    // SAFETY: called with a stream of `HostileProducer`.
    let this = unsafe { HostileProducer::of(stream) };
    this.log.push("next");
    // SAFETY: an output.
    let out = unsafe { &mut *out };
    // R44: fields that an end leaves unwritten must not be garbage of an earlier call.
    assert_eq!((out.device_type.0, out.array.length, out.is_released()), (0, 0, true));
    if let Some(array) = this.array.take() {
        *out = array;
    }
    this.code
}

unsafe extern "C" fn hostile_error(stream: *mut FFI_ArrowDeviceArrayStream) -> *const c_char {
    // SAFETY: called with a stream of `HostileProducer`.
    let this = unsafe { HostileProducer::of(stream) };
    this.log.push("error");
    this.message.as_ref().map_or(null(), |message| message.as_ptr())
}

unsafe extern "C" fn hostile_release(stream: *mut FFI_ArrowDeviceArrayStream) {
    // SAFETY: called with a stream of `HostileProducer`, once.
    let this = unsafe {
        (*stream).release = None;
        Box::from_raw((*stream).private_data.cast::<HostileProducer>())
    };
    drop(this.released.token());
}

#[test]
fn r44_an_end_that_sets_only_release_is_the_end() {
    let hostile = HostileProducer::new();
    let released = hostile.released.clone();
    let mut reader = reader(hostile.stream()).unwrap();
    assert!(reader.next().is_none() && reader.next().is_none());
    assert_eq!(released.count(), 0);
    drop(reader);
    assert_eq!(released.count(), 1);
}

#[test]
fn r55_r60_get_last_error_is_the_only_and_last_call_after_a_failure() {
    let hostile = HostileProducer { code: 7, message: Some(c"no \xff left".into()), ..HostileProducer::new() };
    let mut stream = hostile.stream();
    let private = stream.private_data.cast::<HostileProducer>();
    // The reader's release would free the state that the test inspects.
    let release = stream.release.replace(keep);
    let mut reader = reader(stream).unwrap();
    let error = reader.next().unwrap().unwrap_err();
    assert_eq!(error.to_string(), "get_next failed with 7: no \u{fffd} left");
    assert_eq!(error.errno(), 7);
    assert!(reader.next().is_none());
    drop(reader);
    assert!(release.is_some());
    // SAFETY: boxed by `stream`, not released.
    let hostile = unsafe { Box::from_raw(private) };
    assert_eq!(hostile.log, ["schema", "next", "error"]);
}

unsafe extern "C" fn keep(stream: *mut FFI_ArrowDeviceArrayStream) {
    // SAFETY: called with the stream to be released.
    unsafe { (*stream).release = None };
}

#[test]
fn r55_a_missing_message_is_allowed() {
    let hostile = HostileProducer { code: -3, ..HostileProducer::new() };
    let error = reader(hostile.stream()).unwrap().next().unwrap().unwrap_err();
    assert_eq!(error.to_string(), "get_next failed with -3");
}

#[test]
fn the_output_of_a_failed_call_is_not_released() {
    // It may be anything, even an array that its producer still holds.
    let releases = Releases::default();
    let array = releases.counted(array(1).unwrap());
    // SAFETY: the reader must never release the copy, which this test checks.
    let copy = unsafe { std::ptr::read(&array) };
    let hostile = HostileProducer { code: 5, array: Some(copy), ..HostileProducer::new() };
    reader(hostile.stream()).unwrap().next().unwrap().unwrap_err();
    assert_eq!(releases.count(), 0);
    drop(array);
    assert_eq!(releases.count(), 1);
}

#[test]
fn r45_r47_an_array_that_does_not_fit_ends_the_reader() {
    let releases = Releases::default();
    let mut array = releases.counted(array(1).unwrap());
    array.array.n_buffers = 1;
    let mut reader = reader(HostileProducer { array: Some(array), ..HostileProducer::new() }.stream()).unwrap();
    assert_eq!(reader.next().unwrap().unwrap_err().to_string(), "array \"x\" (Int32): expected 2 buffers, got 1");
    assert!(reader.next().is_none());
    assert_eq!(releases.count(), 1);
}

#[test]
fn broken_streams_are_refused_and_released() {
    let refused = |break_it: fn(&mut FFI_ArrowDeviceArrayStream)| {
        let hostile = HostileProducer::new();
        let released = hostile.released.clone();
        let mut stream = hostile.stream();
        break_it(&mut stream);
        (reader(stream).unwrap_err().to_string(), released.count())
    };
    let null = ("import of a device stream: a callback is null".to_string(), 1);
    assert_eq!(refused(|stream| stream.get_schema = None), null);
    assert_eq!(refused(|stream| stream.get_next = None), null);
    assert_eq!(refused(|stream| stream.get_last_error = None), null);
    let error = reader(FFI_ArrowDeviceArrayStream::empty()).unwrap_err();
    assert_eq!(error.to_string(), "import of a device stream: it is released");
    // SAFETY: null is allowed.
    unsafe { ArrowDeviceArrayStreamReader::from_raw(null_mut()) }.unwrap_err();
}

#[test]
fn r51_a_failed_get_schema_is_a_foreign_error() {
    let hostile = HostileProducer { schema_code: 12, message: Some(c"later".into()), ..HostileProducer::new() };
    let released = hostile.released.clone();
    assert_eq!(reader(hostile.stream()).unwrap_err().to_string(), "get_schema failed with 12: later");
    assert_eq!(released.count(), 1);
}

#[test]
fn a_stream_moves_out_of_c() {
    let mut source = exported([array(1)]);
    // SAFETY: the struct is live and local.
    let reader = unsafe { ArrowDeviceArrayStreamReader::from_raw(&mut source) }.unwrap();
    assert!(source.release.is_none());
    drop(source);
    assert_eq!(numbers(reader).unwrap(), [1]);
}

#[test]
fn r59_a_reader_moves_between_threads() {
    let mut reader = reader(exported((0..4).map(array))).unwrap();
    assert!(reader.next().is_some());
    thread::spawn(move || assert_eq!(numbers(reader).unwrap(), [1, 2, 3])).join().unwrap();
}

#[test]
fn r62_a_future_stream_is_pulled_without_a_runtime() {
    // Wakes from another thread, late and sometimes twice.
    let (send, receive) = futures::channel::mpsc::channel(0);
    let feeder = thread::spawn(move || {
        let mut send = send;
        for number in 0..20 {
            futures::executor::block_on(futures::SinkExt::send(&mut send, array(number))).unwrap();
            thread::yield_now();
        }
    });
    let exported = export_stream(&field(), ArrowDeviceType::CPU, receive).unwrap();
    // Within another executor, where a nested one would panic.
    let pulled = futures::executor::block_on(async { numbers(reader(exported).unwrap()) });
    assert_eq!(pulled.unwrap(), (0..20).collect::<Vec<_>>());
    feeder.join().unwrap();
}

#[test]
fn r30_a_panicking_future_stream_is_an_error() {
    let panics = stream::once(async { panic!("in a poll") });
    let exported = export_stream(&field(), ArrowDeviceType::CPU, panics).unwrap();
    let error = reader(exported).unwrap().next().unwrap().unwrap_err();
    assert_eq!(error.to_string(), "get_next failed with 5: get_next panicked: in a poll");
}

#[test]
fn into_stream_gives_all_arrays_and_the_error() {
    for read_ahead in [0, 1, 3, 100] {
        let arrays = (0..5).map(array).chain([Err(Error::Other("broken".into()))]);
        let stream = reader(exported(arrays)).unwrap().into_stream(read_ahead).unwrap();
        let all: Vec<_> = futures::executor::block_on(stream.collect());
        assert_eq!(all.len(), 6);
        let error = all.last().unwrap().as_ref().unwrap_err();
        assert_eq!(error.to_string(), "get_next failed with 5: broken");
        assert_eq!(numbers(all.into_iter().take(5)).unwrap(), [0, 1, 2, 3, 4]);
    }
}

#[test]
fn into_stream_polls_do_not_block_and_read_ahead_is_bounded() {
    let (let_go, gate) = channel::<()>();
    let (tell, pulled) = channel();
    let source = (0..).map(move |number| {
        tell.send(number).unwrap();
        gate.recv().map_err(|_| Error::Other("closed".into()))?;
        array(number)
    });
    let mut stream = reader(exported(source)).unwrap().into_stream(2).unwrap();
    let mut poll = || std::pin::Pin::new(&mut stream).poll_next(&mut Context::from_waker(Waker::noop()));
    let wait = Duration::from_secs(10);
    assert_eq!(pulled.recv_timeout(wait), Ok(0));
    // The producer blocks; the poll does not.
    assert!(poll().is_pending());
    let_go.send(()).unwrap();
    assert_eq!(pulled.recv_timeout(wait), Ok(1));
    let_go.send(()).unwrap();
    // Two wait; the third is pulled once one of them is taken.
    assert!(pulled.recv_timeout(Duration::from_millis(50)).is_err());
    let Poll::Ready(first) = poll() else { panic!("array 0 must be ready before array 1 is pulled") };
    assert_eq!(numbers(first.into_iter()).unwrap(), [0]);
    assert_eq!(pulled.recv_timeout(wait), Ok(2));
    drop(let_go);
    drop(stream);
}

#[test]
fn dropping_into_stream_releases_everything_without_waiting() {
    let (source, arrays) = (Releases::default(), Releases::default());
    let (token, counter) = (source.token(), arrays.clone());
    let (let_go, gate) = channel::<()>();
    let (tell, pulled) = channel();
    let source_iter = (0..).map(move |number| {
        let _held = &token;
        tell.send(number).unwrap();
        if number == 1 {
            let _ = gate.recv();
        }
        array(number).map(|array| counter.counted(array))
    });
    let stream = reader(exported(source_iter)).unwrap().into_stream(4).unwrap();
    assert_eq!((pulled.recv(), pulled.recv()), (Ok(0), Ok(1)));
    // The producer is blocked in its second call meanwhile.
    drop(stream);
    assert_eq!(source.count(), 0);
    let_go.send(()).unwrap();
    // The source, with its sender, drops on the other thread.
    assert!(pulled.recv().is_err());
    while source.count() == 0 {
        thread::yield_now();
    }
    assert_eq!(arrays.count(), 2);
}

#[test]
fn into_stream_with_a_spawner_that_runs_nothing_is_an_error() {
    let source = Releases::default();
    let token = source.token();
    let arrays = std::iter::from_fn(move || {
        let _held = &token;
        Some(array(1))
    });
    let stream = reader(exported(arrays)).unwrap().into_stream_on(1, drop);
    assert_eq!((stream.device_type(), stream.field().as_ref()), (ArrowDeviceType::CPU, &field()));
    let error = futures::executor::block_on(stream.try_collect::<Vec<_>>()).unwrap_err();
    assert_eq!(error.to_string(), "the device stream's thread ended before the stream");
    assert_eq!(source.count(), 1);
}

#[test]
fn streams_nest_both_ways() {
    let column: ArrayRef = Arc::new(Int32Array::from(vec![5]));
    let inner = export_stream(&field(), ArrowDeviceType::CPU, stream::iter([cpu::export_array(&column)])).unwrap();
    let again = reader(inner).unwrap().into_stream(1).unwrap().map_ok(crate::ImportedArray::into_ffi);
    let outer = export_stream(&field(), ArrowDeviceType::CPU, again).unwrap();
    assert_eq!(numbers(reader(outer).unwrap()).unwrap(), [5]);
}
