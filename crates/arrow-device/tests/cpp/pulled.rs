// SPDX-License-Identifier: Apache-2.0
//! Pull streams, both ways.

use std::ffi::CStr;

use arrow::array::{Array, ArrayRef, RecordBatch};
use arrow_device::ffi::{ArrowDeviceType, FFI_ArrowDeviceArray, FFI_ArrowDeviceArrayStream as Stream};
use arrow_device::stream::{ArrowDeviceArrayStreamReader, export_iterator, export_stream};
use arrow_device::{Error, Result, cpu, schema};
use futures::{StreamExt, TryStreamExt};

use crate::peer::{CppArray, CppBatch, CppReader, End, status};
use crate::samples;
use crate::session::{Session, counted};

const CPU: ArrowDeviceType = ArrowDeviceType::CPU;

/// `count` batches of Arrow C++.
pub fn cpp_batches(count: i64) -> Vec<CppBatch> {
    (0..count).map(cpp_batch).collect()
}

/// The batch of [`samples::batch`] in Arrow C++.
pub fn cpp_batch(start: i64) -> CppBatch {
    CppBatch::build(&samples::schema(), &samples::batch_json(start)).unwrap()
}

fn their_stream(count: i64, end: End) -> Stream {
    CppReader::new(&samples::schema(), cpp_batches(count), CPU, end).export().unwrap()
}

fn reader(stream: Stream) -> ArrowDeviceArrayStreamReader {
    // SAFETY: exported by Arrow C++.
    unsafe { ArrowDeviceArrayStreamReader::try_new(stream) }.unwrap()
}

fn ours(count: i64) -> impl Iterator<Item = Result<FFI_ArrowDeviceArray>> + Send {
    (0..count).map(|start| cpu::export_batch(&samples::batch(start)).map(counted))
}

fn our_stream(arrays: impl Iterator<Item = Result<FFI_ArrowDeviceArray>> + Send + 'static) -> Stream {
    export_iterator(&schema::batch_field(&samples::schema()), CPU, arrays).unwrap()
}

#[test]
fn streams_of_arrow_cpp_are_read_here() {
    Session::run(|_session| {
        for count in [0, 1, 100] {
            let reader = reader(their_stream(count, End::PLAIN));
            assert_eq!(reader.schema().unwrap().as_ref(), &samples::schema());
            assert_eq!(reader.device_type(), CPU);
            let batches: Vec<_> = cpu::import_reader(reader).unwrap().collect::<Result<_, _>>().unwrap();
            assert_eq!(batches, (0..count).map(samples::batch).collect::<Vec<_>>());
        }
    });
}

#[test]
fn streams_of_arrow_cpp_are_read_on_another_thread() {
    Session::run(|_session| {
        for read_ahead in [0, 1, 8] {
            let stream = reader(their_stream(20, End::PLAIN)).into_stream(read_ahead).unwrap();
            let batches = stream.map(|array| cpu::import_batch(array?)).try_collect::<Vec<RecordBatch>>();
            let batches = futures::executor::block_on(batches).unwrap();
            assert_eq!(batches, (0..20).map(samples::batch).collect::<Vec<_>>());
            // Dropped while it reads ahead.
            let mut stream = reader(their_stream(20, End::PLAIN)).into_stream(read_ahead).unwrap();
            drop(futures::executor::block_on(stream.next()).unwrap().unwrap());
            drop(stream);
        }
    });
}

#[test]
fn errors_of_arrow_cpp_keep_their_code_and_message_here() {
    Session::run(|_session| {
        let cases: [(i32, &CStr, i32); 4] = [
            (status::INVALID, c"a bad page", libc::EINVAL),
            (status::IO_ERROR, c"a lost disk", libc::EIO),
            (status::OUT_OF_MEMORY, c"a full house", libc::ENOMEM),
            (status::NOT_IMPLEMENTED, c"a new codec", libc::ENOSYS),
        ];
        for (code, message, errno) in cases {
            let mut reader = reader(their_stream(2, End(code, message)));
            assert_eq!(reader.by_ref().take(2).filter(Result::is_ok).count(), 2);
            let error = reader.next().unwrap().unwrap_err();
            assert_eq!(error.errno(), errno);
            assert!(matches!(&error, Error::Foreign { call: "get_next", .. }), "{error:?}");
            assert!(error.to_string().ends_with(message.to_str().unwrap()), "{error}");
            assert!(reader.next().is_none());
        }
    });
}

#[test]
fn streams_of_arrow_cpp_can_be_released_early() {
    Session::run(|_session| {
        drop(their_stream(3, End::PLAIN));
        drop(reader(their_stream(3, End::PLAIN)));
        let mut reader = reader(their_stream(3, End::PLAIN));
        let kept = reader.next().unwrap().unwrap();
        drop(reader);
        // An array outlives its stream (R57).
        assert_eq!(cpu::import_batch(kept).unwrap(), samples::batch(0));
    });
}

#[test]
fn our_streams_are_read_in_arrow_cpp() {
    Session::run(|session| {
        for count in [0, 1, 100] {
            let expected = cpp_batches(count);
            let field = schema::batch_field(&samples::schema());
            let future = futures::stream::iter(ours(count).collect::<Vec<_>>());
            for stream in [our_stream(ours(count)), export_stream(&field, CPU, future).unwrap()] {
                let mut reader = CppReader::import(stream).unwrap();
                assert_eq!(reader.schema(), samples::schema());
                for expected in &expected {
                    reader.read().unwrap().unwrap().assert_equals(expected);
                }
                assert!(reader.read().unwrap().is_none());
                // The end repeats (R60).
                assert!(reader.read().unwrap().is_none());
            }
        }
        assert_eq!(session.given(), 2 * 101);
    });
}

#[test]
fn our_errors_keep_their_code_and_message_in_arrow_cpp() {
    Session::run(|_session| {
        let cases = [
            (Error::Invalid("a bad page".into()), status::INVALID, "a bad page"),
            (Error::Unsupported("a new codec".into()), status::NOT_IMPLEMENTED, "a new codec"),
            (Error::OutOfMemory("a full device".into()), status::OUT_OF_MEMORY, "a full device"),
            (Error::Other("a lost disk".into()), status::IO_ERROR, "a lost disk"),
        ];
        for (error, code, message) in cases {
            let mut reader = CppReader::import(our_stream(ours(1).chain([Err(error)]))).unwrap();
            drop(reader.read().unwrap().unwrap());
            // The error repeats (R60).
            for _ in 0..2 {
                let failure = reader.read().unwrap_err();
                assert_eq!(failure.code, code);
                assert!(failure.message.ends_with(message), "{failure}");
            }
        }
        let panicking = std::iter::once_with(|| panic!("page {}", 7));
        let failure = CppReader::import(our_stream(panicking)).unwrap().read().unwrap_err();
        assert!(failure.message.ends_with("get_next panicked: page 7"), "{failure}");
    });
}

#[test]
fn our_streams_can_be_released_early() {
    Session::run(|session| {
        drop(CppReader::import(our_stream(ours(3))).unwrap());
        let mut reader = CppReader::import(our_stream(ours(3))).unwrap();
        let kept = reader.read().unwrap().unwrap();
        drop(reader);
        assert_eq!((session.given(), session.live()), (1, 1));
        kept.assert_equals(&cpp_batches(1)[0]);
        drop(kept);
    });
}

#[test]
fn arrays_other_than_record_batches_are_streamed_both_ways() {
    Session::run(|_session| {
        for sample in samples::samples() {
            let field = cpu::field_of(&sample.array);
            let theirs = CppArray::build(&field, &sample.json).unwrap();
            let reader = reader(theirs.export_chunks().unwrap());
            assert_eq!(reader.data_type(), sample.array.data_type());
            let chunks: Vec<ArrayRef> = reader.map(|chunk| cpu::import_array(chunk.unwrap()).unwrap()).collect();
            let half = sample.array.len() / 2;
            let expected = [sample.array.slice(0, half), sample.array.slice(half, sample.array.len() - half)];
            assert_eq!(chunks, expected);
            let exported: Vec<_> = chunks.iter().map(|chunk| cpu::export_array(chunk).map(counted)).collect();
            CppArray::import_chunks(export_iterator(&field, CPU, exported).unwrap()).unwrap().assert_equals(&theirs);
        }
    });
}

/// A stream through both: exported by Arrow C++, imported and exported by this crate, imported by
/// Arrow C++.
#[test]
fn a_stream_passes_through_both_sides() {
    Session::run(|_session| {
        let reader = reader(their_stream(10, End::PLAIN));
        let field = reader.field().as_ref().clone();
        let passed = export_iterator(&field, CPU, reader.map(|array| Ok(counted(array?.into_ffi())))).unwrap();
        let mut back = CppReader::import(passed).unwrap();
        for expected in cpp_batches(10) {
            back.read().unwrap().unwrap().assert_equals(&expected);
        }
        assert!(back.read().unwrap().is_none());
    });
}
