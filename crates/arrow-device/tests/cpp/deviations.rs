// SPDX-License-Identifier: Apache-2.0
//! Deviations of Arrow C++ from the interface; the conformance checklist lists them under these
//! numbers.
//!
//! Each test detects a deviation, and shows that this crate tolerates it. It fails once the
//! deviation is gone: then review the tolerance and remove the entry.

use std::mem::ManuallyDrop;
use std::sync::Arc;

use arrow::array::{ArrayRef, StringArray};
use arrow::datatypes::Schema;
use arrow::ffi::FFI_ArrowSchema;
use arrow_device::async_stream::{AsyncBatch, ProduceOptions, produce_on_thread};
use arrow_device::ffi::{ArrowDeviceType, FFI_ArrowDeviceArray};
use arrow_device::stream::export_iterator;
use arrow_device::{Error, ImportedArray, Result, cpu, schema};
use futures::executor::block_on;
use futures::{StreamExt, stream};

use crate::handles::{Event, has_offsets_of_bytes, upload, wait};
use crate::peer::{CppArray, CppReader, End, status};
use crate::pulled::cpp_batches;
use crate::pushed::{CppPull, CppPush, arrays, our_consumer, pushed, serve};
use crate::samples;
use crate::session::{DeviceCount, Session, count, counted, eventually};
use crate::tap::{Call, of_the_handler};

const CPU: ArrowDeviceType = ArrowDeviceType::CPU;

/// A known deviation: its number and description.
struct Deviation(&'static str, &'static str);

const Y1_RESERVED: Deviation = Deviation("Y1", "leaves `reserved` of an exported array unset");
const Y1_STALE: Deviation = Deviation("Y1", "writes only `release` at the end of a stream");
const Y2_AFTER_SCHEMA: Deviation = Deviation("Y2", "calls on_error after a refused schema");
const Y2_END_AFTER_SCHEMA: Deviation = Deviation("Y2", "calls on_next_task(NULL) after a refused schema of an empty stream");
const Y2_AFTER_TASK: Deviation = Deviation("Y2", "calls on_error after a refused task");
const Y2_AFTER_CANCEL: Deviation = Deviation("Y2", "calls on_error after a plain cancel");
const Y2_ERRNO: Deviation = Deviation("Y2", "reports 1 instead of the errno of a refusal");
const Y3_UNLIMITED: Deviation = Deviation("Y3", "takes request(-1) as unlimited");
const Y3_RELEASE: Deviation = Deviation("Y3", "does not null the release of its handler");
const Y3_LATE_REQUEST: Deviation = Deviation("Y3", "calls request after its handler was released");
const Y4_EXTRACT: Deviation = Deviation("Y4", "extract_data returns 0 without an array if the export failed");
const Y6_OFFSET: Deviation = Deviation("Y6", "reads the last offset of strings before the event");
const Y8_METADATA: Deviation = Deviation("Y8", "reads the metadata of an error as a string: one byte arrives");
const Y9_LOST: Deviation = Deviation("Y9", "never extracts the tasks that wait when an error comes");
const Y10_DROPPED: Deviation = Deviation("Y10", "a dropped reader neither cancels nor extracts the tasks that wait");
const Y11_UNKNOWN_DEVICE: Deviation = Deviation("Y11", "leaks an array of a stream with an unknown device type");

impl Deviation {
    #[track_caller]
    fn seen(&self, seen: bool) {
        let Self(number, what) = self;
        assert!(seen, "Arrow C++ no longer deviates: {what} ({number}); remove it here and in the conformance checklist");
    }
}

/// A fill value for uncleared structs.
const STALE: i64 = i64::from_ne_bytes([0xAB; 8]);

fn stale() -> ManuallyDrop<FFI_ArrowDeviceArray> {
    let mut array = ManuallyDrop::new(FFI_ArrowDeviceArray::empty());
    array.array.length = STALE;
    array.device_id = STALE;
    array.sync_event = std::ptr::without_provenance_mut(STALE as usize);
    array.reserved = [STALE; 3];
    array
}

#[test]
fn y1_reserved_is_not_cleared() {
    Session::run(|_session| {
        let mut array = stale();
        let mut schema = FFI_ArrowSchema::empty();
        cpp_batches(1)[0].export_to(&mut array, &mut schema).unwrap();
        Y1_RESERVED.seen(array.reserved == [STALE; 3]);
        // This crate ignores it.
        let array = ManuallyDrop::into_inner(array);
        // SAFETY: both were written by Arrow C++.
        let array = unsafe { ImportedArray::import(array, &schema::import_field(schema).unwrap()).unwrap() };
        assert_eq!(cpu::import_batch(array).unwrap(), samples::batch(0));
    });
}

#[test]
fn y1_the_end_of_a_stream_leaves_stale_fields() {
    Session::run(|_session| {
        let mut stream = CppReader::new(&samples::schema(), vec![], CPU, End::PLAIN).export().unwrap();
        let mut array = stale();
        let get_next = stream.get_next.unwrap();
        // SAFETY: a live stream and an output.
        assert_eq!(unsafe { get_next(&mut stream, &mut *array) }, 0);
        assert!(array.is_released());
        Y1_STALE.seen(array.sync_event.addr() == STALE as usize && array.device_id == STALE && array.array.length == STALE);
    });
}

#[test]
fn y2_a_refused_schema_is_followed_by_an_error() {
    Session::run(|_session| {
        let (handler, stream) = our_consumer(2);
        drop(stream);
        let (outcome, calls) = CppPush::start(handler, 3, End::PLAIN, 0).join_unchecked();
        Y2_AFTER_SCHEMA.seen(matches!(calls.as_slice(), [Call::Schema(libc::ECANCELED), Call::Error(..), Call::Release]));
        let outcome = outcome.unwrap_err();
        assert_eq!(outcome.code, status::UNKNOWN);
        Y2_ERRNO.seen(outcome.message.ends_with("on_schema 1") && matches!(&calls[1], Call::Error(libc::EINVAL, _)));
    });
}

#[test]
fn y2_a_refused_schema_of_an_empty_stream_is_followed_by_its_end() {
    Session::run(|_session| {
        let (handler, stream) = our_consumer(2);
        drop(stream);
        let (_, calls) = CppPush::start(handler, 0, End::PLAIN, 0).join_unchecked();
        Y2_END_AFTER_SCHEMA.seen(matches!(calls.as_slice(), [Call::Schema(libc::ECANCELED), Call::End(_), Call::Release]));
    });
}

#[test]
fn y2_a_refused_task_is_followed_by_an_error() {
    Session::run(|_session| {
        let (handler, mut stream) = our_consumer(2);
        let push = CppPush::start(handler, 3, End::PLAIN, 100);
        push.tap.refuse_tasks(libc::EMSGSIZE);
        let error = block_on(stream.next()).unwrap().unwrap_err();
        assert!(block_on(stream.next()).is_none());
        let (_, calls) = push.join_unchecked();
        let handler = of_the_handler(&calls);
        Y2_AFTER_TASK
            .seen(matches!(handler.as_slice(), [Call::Schema(0), Call::Task(libc::EMSGSIZE), Call::Error(..), Call::Release]));
        Y2_ERRNO.seen(error.to_string().ends_with("on_next_task 1") && error.errno() == libc::EINVAL);
    });
}

#[test]
fn y2_a_plain_cancel_is_followed_by_an_error() {
    Session::run(|_session| {
        let (push, mut stream) = pushed(20, 1, End::PLAIN, 0);
        block_on(stream.next()).unwrap().unwrap();
        stream.cancel();
        // Its report is no error of the cancelled stream.
        while let Some(array) = block_on(stream.next()) {
            array.unwrap();
        }
        let (_, calls) = push.join();
        Y2_AFTER_CANCEL.seen(matches!(of_the_handler(&calls).as_slice(), [.., Call::Error(libc::EINVAL, _), Call::Release]));
    });
}

#[test]
fn y3_a_negative_request_is_unlimited() {
    Session::run(|_session| {
        let (push, mut stream) = pushed(20, 1, End::PLAIN, 0);
        block_on(stream.schema()).unwrap();
        push.tap.request(-1);
        assert!(eventually(|| push.tap.released()));
        let calls = push.tap.calls();
        Y3_UNLIMITED.seen(push.tap.delivered() == 20 && !calls.iter().any(|call| matches!(call, Call::Error(..))));
        // This crate accepts unrequested batches, up to its limit.
        assert_eq!(block_on(stream.map(Result::unwrap).count()), 20);
        push.join_unchecked().0.unwrap();
    });
}

#[test]
fn y3_the_consumer_requests_after_its_release() {
    Session::run(|_session| {
        let mut pull = CppPull::new(8);
        let thread = serve(arrays(3), pull.handler());
        pull.consumer.schema().unwrap();
        thread.join().unwrap();
        let handler = pull.consumer.handler();
        // SAFETY: memory of the consumer, which is live.
        Y3_RELEASE.seen(unsafe { (*handler).release.is_some() });
        // This crate's producer object lives until the last task is extracted (R96).
        assert_eq!(pull.read_all(), (3, Ok(())));
        let calls = pull.free();
        let released = calls.iter().position(|call| *call == Call::Release).unwrap();
        Y3_LATE_REQUEST.seen(calls[released..].iter().any(|call| matches!(call, Call::Request(1))));
    });
}

#[test]
fn y4_a_failed_extraction_is_reported_as_success() {
    Session::run(|_session| {
        let host = cpp_batches(1).remove(0);
        let device = host.to_device(0, false);
        let mixed = host.mix(&device);
        let field = samples::schema().field(0).clone();
        let schema = Schema::new(vec![field.clone(), field]);
        let (handler, mut stream) = our_consumer(1);
        let push = CppPush::start_with(handler, &schema, vec![mixed], CPU, End::PLAIN, 0);
        // This crate detects the missing array.
        let error = block_on(stream.next()).unwrap().unwrap_err();
        assert_eq!(error.to_string(), "async stream: extract_data succeeded without an array");
        assert!(block_on(stream.next()).is_none());
        let (_, calls) = push.join();
        Y4_EXTRACT.seen(calls.contains(&Call::Extract(true, 0)));
    });
}

#[test]
fn y6_strings_are_read_before_their_event() {
    Session::run(|_session| {
        let strings: ArrayRef = Arc::new(StringArray::from(vec!["a", "b"]));
        let field = cpu::field_of(&strings);
        assert!(has_offsets_of_bytes(field.data_type()));
        // The last offset that it reads is not written yet.
        drop(CppArray::import(upload(&strings, Some(Event::new())), schema::export_field(&field).unwrap()));
        Y6_OFFSET.seen(count(DeviceCount::Early) == 1);
        // The workaround: complete the array before its export.
        let event = Event::new();
        let cell = event.cell();
        let array = upload(&strings, Some(event));
        wait(cell);
        let imported = CppArray::import(array, schema::export_field(&field).unwrap()).unwrap();
        imported.to_host().unwrap().assert_equals(&CppArray::build(&field, r#"["a", "b"]"#).unwrap());
        assert_eq!(count(DeviceCount::Early), 1);
    });
}

#[test]
fn y8_the_metadata_of_an_error_is_cut() {
    Session::run(|_session| {
        let mut pull = CppPull::new(1);
        let field = schema::batch_field(&samples::schema());
        let options = ProduceOptions::default();
        let options = options.with_error_metadata(|_| vec![("page".into(), "7".into())]);
        let source = stream::iter([Err::<AsyncBatch, _>(Error::Other("a lost disk".into()))]);
        let thread = produce_on_thread(source, &field, CPU, pull.handler(), options).unwrap();
        pull.consumer.schema().unwrap();
        // The count of pairs, up to its first zero byte.
        Y8_METADATA.seen(pull.consumer.error_metadata_len() == 1);
        pull.end(thread);
    });
}

#[test]
fn y9_tasks_that_wait_at_an_error_are_lost() {
    Session::run(|session| {
        let mut pull = CppPull::new(8);
        let source = arrays(3).chain(stream::iter([Err(Error::Other("a lost disk".into()))]));
        let thread = serve(source, pull.handler());
        pull.consumer.schema().unwrap();
        thread.join().unwrap();
        let failure = pull.consumer.read().unwrap_err();
        assert_eq!(failure.errno, libc::EIO);
        let calls = pull.free();
        Y9_LOST.seen(session.live() == 3 && !calls.iter().any(|call| matches!(call, Call::Extract(..))));
        session.leaks(3);
    });
}

#[test]
fn y10_a_dropped_reader_does_not_cancel() {
    Session::run(|session| {
        let mut pull = CppPull::new(2);
        let thread = serve(arrays(2).chain(stream::pending::<Result<AsyncBatch>>()), pull.handler());
        pull.consumer.schema().unwrap();
        assert!(eventually(|| pull.tap.delivered() == 2));
        pull.consumer.drop_reader();
        let cancelled = pull.tap.calls().contains(&Call::Cancel);
        // Only the test's cancel ends it.
        pull.tap.cancel();
        thread.join().unwrap();
        let calls = pull.free();
        Y10_DROPPED.seen(!cancelled && session.live() == 2 && !calls.iter().any(|call| matches!(call, Call::Extract(..))));
        session.leaks(2);
    });
}

/// This crate releases an array on such a device when it drops.
#[test]
fn y11_arrays_on_unknown_devices_are_lost() {
    Session::run(|session| {
        let field = schema::batch_field(&samples::schema());
        let array = || -> Result<FFI_ArrowDeviceArray> {
            let mut array = cpu::export_batch(&samples::batch(0))?;
            array.device_type = ArrowDeviceType::VULKAN;
            Ok(counted(array))
        };
        let stream = export_iterator(&field, ArrowDeviceType::VULKAN, [array()]).unwrap();
        let failure = CppReader::import(stream).unwrap().read().unwrap_err();
        assert!(failure.message.contains("not registered"), "{failure}");
        Y11_UNKNOWN_DEVICE.seen(session.live() == 1);

        let mut pull = CppPull::new(1);
        let source = stream::iter([array().map(AsyncBatch::from)]);
        let options = ProduceOptions::default();
        let thread = produce_on_thread(source, &field, ArrowDeviceType::VULKAN, pull.handler(), options).unwrap();
        pull.consumer.schema().unwrap();
        let failure = pull.consumer.read().unwrap_err();
        assert!(failure.message.contains("not registered"), "{failure}");
        pull.end(thread);
        Y11_UNKNOWN_DEVICE.seen(session.live() == 2);
        session.leaks(2);
    });
}
