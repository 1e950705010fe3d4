// SPDX-License-Identifier: Apache-2.0
//! Pull streams of the recorder, read by this crate.

use arrow::array::RecordBatch;
use arrow_device::ffi::ArrowDeviceType;
use arrow_device::stream::ArrowDeviceArrayStreamReader;
use arrow_device::{Error, ImportedArray, Result, cpu};
use futures::executor::block_on;
use futures::{StreamExt, TryStreamExt};

use crate::data::{MALFORMED, MALFORMED_SCHEMA, batches};
use crate::session::Session;

fn reader(session: &Session) -> Result<ArrowDeviceArrayStreamReader> {
    // SAFETY: the recorder follows the interface, except for the test's settings.
    unsafe { ArrowDeviceArrayStreamReader::try_new(session.stream()) }
}

/// Reads a stream to its end or first failure.
fn read(arrays: impl Iterator<Item = Result<ImportedArray>>) -> (Vec<RecordBatch>, Option<Error>) {
    let mut batches = Vec::new();
    for array in arrays {
        match array.and_then(cpu::import_batch) {
            Ok(batch) => batches.push(batch),
            Err(error) => return (batches, Some(error)),
        }
    }
    (batches, None)
}

/// The error messages of the setting `error_message`.
pub fn error_message(kind: i64) -> Option<String> {
    match kind {
        0 => None,
        1 => Some("the recorder fails here: café".into()),
        2 => Some(String::new()),
        3 => Some("bad \u{fffd}\u{fffd} text".into()),
        _ => Some("x".repeat(100_000)),
    }
}

pub const CODES: [i64; 6] = [libc::EINVAL as i64, libc::ENOMEM as i64, libc::EIO as i64, libc::ENOSYS as i64, 12345, -1];

#[test]
fn r44_r52_r53_all_batches_come_despite_garbage_in_the_outputs() {
    for n in [0, 1, 3] {
        for garbage in [0, 1] {
            let session = Session::new(&[("batches", n), ("garbage", garbage), ("metadata", 1)]);
            let mut reader = reader(&session).unwrap();
            assert_eq!(reader.device_type(), ArrowDeviceType::CPU);
            assert_eq!(reader.schema().unwrap().metadata()["note"], "café");
            let (read, error) = read(&mut reader);
            assert!(error.is_none(), "{error:?}");
            // Arrays outlive their stream.
            drop(reader);
            assert_eq!(session.logged("release stream"), 1);
            let rows = |batches: &[RecordBatch]| batches.iter().map(|batch| batch.columns().to_vec()).collect::<Vec<_>>();
            assert_eq!(rows(&read), rows(&batches(n)));
            drop(read);
            session.end();
        }
    }
}

#[test]
fn r54_r55_r56_every_failing_call_is_reported_and_ends_the_stream() {
    for fail_at in 0..=4 {
        for fail_code in CODES {
            for kind in 0..5 {
                let session = Session::new(&[
                    ("fail_at", fail_at),
                    ("fail_code", fail_code),
                    ("error_message", kind),
                    ("sticky", kind % 2),
                ]);
                let result = reader(&session);
                let (read, error) = match result {
                    Ok(mut reader) => {
                        let read = read(&mut reader);
                        // The reader has ended, whatever the stream would return.
                        assert!(reader.next().is_none());
                        read
                    }
                    Err(error) => (Vec::new(), Some(error)),
                };
                assert_eq!(read, batches((fail_at - 1).max(0)));
                let Some(Error::Foreign { code, message, .. }) = error else { panic!("{fail_at}: {error:?}") };
                assert_eq!((i64::from(code), message), (fail_code, error_message(kind)));
                drop(read);
                session.end();
            }
        }
    }
}

#[test]
fn r57_a_stream_dropped_anywhere_is_released_once() {
    for taken in 0..=4 {
        let session = Session::new(&[]);
        let mut reader = reader(&session).unwrap();
        let held: Vec<_> = reader.by_ref().take(taken).collect();
        drop(reader);
        assert_eq!(session.logged("release stream"), 1);
        assert_eq!(session.get("live"), held.len() as i64);
        drop(held);
        session.end();
    }
}

#[test]
fn r58_r59_another_thread_pulls_and_one_call_runs_at_a_time() {
    for read_ahead in [0, 1, 5] {
        for taken in [0, 1, 2, 9] {
            let session = Session::new(&[("jitter", 300), ("batches", 4)]);
            let stream = reader(&session).unwrap().into_stream(read_ahead).unwrap();
            let read = block_on(stream.take(taken).try_collect::<Vec<_>>()).unwrap();
            assert_eq!(read.len(), taken.min(4));
            let read: Vec<_> = read.into_iter().map(|array| cpu::import_batch(array).unwrap()).collect();
            assert_eq!(read, batches(taken.min(4) as i64));
            drop(read);
            session.end();
        }
    }
}

#[test]
fn r55_failures_pass_the_other_thread() {
    for fail_at in 1..=4 {
        let session = Session::new(&[("fail_at", fail_at), ("jitter", 100)]);
        let mut stream = reader(&session).unwrap().into_stream(2).unwrap();
        let mut read = 0;
        let error = loop {
            match block_on(stream.next()) {
                Some(Ok(_)) => read += 1,
                Some(Err(error)) => break error,
                None => panic!("no error"),
            }
        };
        assert_eq!((read, error.errno()), (fail_at - 1, libc::EIO));
        assert!(block_on(stream.next()).is_none());
        drop(stream);
        session.end();
    }
}

#[test]
fn r49_an_array_of_another_device_type_is_refused_and_released() {
    let session = Session::new(&[("array_device_type", 2)]);
    let (read, error) = read(reader(&session).unwrap());
    assert!(read.is_empty() && matches!(error, Some(Error::Invalid(_))), "{error:?}");
    session.end();
}

#[test]
fn r45_r47_a_malformed_array_ends_the_stream_and_is_released() {
    for malformed in MALFORMED {
        let session = Session::new(&[("malformed", malformed)]);
        let mut reader = reader(&session).unwrap();
        let next = reader.next().unwrap();
        let refused = next.is_err();
        // Some malformations show only in the data.
        let error = next.and_then(cpu::import_batch).unwrap_err();
        assert!(matches!(error, Error::Invalid(_)), "{malformed}: {error:?}");
        assert_eq!(reader.next().is_none(), refused);
        drop(reader);
        session.end();
    }
}

#[test]
fn r45_r47_a_malformed_schema_is_refused_and_its_stream_released() {
    for malformed in MALFORMED_SCHEMA {
        let session = Session::new(&[("malformed_schema", malformed)]);
        let error = reader(&session).unwrap_err();
        assert!(matches!(error, Error::Invalid(_) | Error::Unsupported(_)), "{malformed}: {error:?}");
        assert_eq!(session.logged("release stream"), 1);
        session.end();
    }
}

#[test]
fn r37_arrays_with_events_keep_them() {
    let session = Session::new(&[("device_type", 3), ("device_id", 0), ("event", 1)]);
    let mut imported = Vec::new();
    for array in reader(&session).unwrap() {
        let array = array.unwrap();
        session.event_wait(array.sync_event());
        // SAFETY: the wait has returned.
        imported.push(cpu::import_batch(unsafe { array.assume_complete() }).unwrap());
    }
    assert_eq!(imported, batches(3));
    drop(imported);
    session.end();
}
