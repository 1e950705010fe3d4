// SPDX-License-Identifier: Apache-2.0
//! Pull streams of this crate, read by the recorder.

use std::iter;
use std::time::Duration;

use arrow_device::ffi::{ArrowDeviceType, FFI_ArrowDeviceArray, FFI_ArrowDeviceArrayStream};
use arrow_device::stream::{export_iterator, export_stream};
use arrow_device::{Error, ImportedArray, Result, cpu, schema};
use futures::{StreamExt, stream};

use crate::data::{self, LiveCount, batches};
use crate::session::Session;

pub fn errors() -> Vec<Error> {
    let foreign = |code| Error::Foreign { call: "get_next", code, message: Some("ä\0b".into()) };
    vec![
        Error::Invalid("the rows".into()),
        Error::Unsupported(String::new()),
        Error::OutOfMemory("nul \0 within".into()),
        Error::Other("é".repeat(50_000)),
        foreign(12345),
        foreign(0),
    ]
}

/// Batches of [`batches`], or a failure at a given batch.
pub fn source(
    live: &LiveCount,
    n: i64,
    fails: Option<(i64, Error)>,
) -> impl Iterator<Item = Result<FFI_ArrowDeviceArray>> + Send + use<> {
    let (live, token) = (live.clone(), live.token());
    (0..n).map(move |k| {
        let _held = &token;
        match &fails {
            Some((at, error)) if *at == k => Err(error.clone()),
            _ => live.export(k),
        }
    })
}

fn from_iterator(arrays: impl Iterator<Item = Result<FFI_ArrowDeviceArray>> + Send + 'static) -> FFI_ArrowDeviceArrayStream {
    export_iterator(&schema::batch_field(&data::schema()), ArrowDeviceType::CPU, arrays).unwrap()
}

/// The same behind a `futures::Stream` whose items are pending first, with wakes from another
/// thread.
fn from_stream(arrays: impl Iterator<Item = Result<FFI_ArrowDeviceArray>> + Send + 'static) -> FFI_ArrowDeviceArrayStream {
    let later = |array| async move {
        let (sender, receiver) = futures::channel::oneshot::channel();
        std::thread::spawn(move || {
            std::thread::sleep(Duration::from_micros(300));
            sender.send(()).ok();
        });
        receiver.await.unwrap();
        array
    };
    export_stream(&schema::batch_field(&data::schema()), ArrowDeviceType::CPU, stream::iter(arrays).then(later)).unwrap()
}

/// Compares the arrays that the recorder holds.
#[track_caller]
pub fn holds(session: &Session, n: i64) {
    assert_eq!(session.get("arrays"), n);
    let field = schema::batch_field(&data::schema());
    for (k, expected) in batches(n).into_iter().enumerate() {
        // SAFETY: exported here.
        let array = unsafe { ImportedArray::import(session.take(k as i64).unwrap(), &field) }.unwrap();
        assert_eq!(cpu::import_batch(array).unwrap(), expected, "batch {k}");
    }
}

#[test]
fn r36_r51_r52_r57_r60_a_stream_gives_its_arrays_then_ends_for_good() {
    for futures in [false, true] {
        for n in [0, 1, 4] {
            let (session, live) = (Session::new(&[]), LiveCount::default());
            let arrays = source(&live, n, None);
            session.open(if futures { from_stream(arrays) } else { from_iterator(arrays) });
            for _ in 0..n {
                assert_eq!((session.schema(), session.next()), (0, 0));
            }
            for _ in 0..2 {
                assert_eq!((session.next(), session.schema()), (1, 0));
            }
            session.release();
            // The arrays outlive their stream, and nothing else does.
            assert_eq!(live.count() as i64, n);
            holds(&session, n);
            session.end();
            assert_eq!(live.count(), 0);
        }
    }
}

#[test]
fn r55_r56_r60_r61_failures_keep_their_errno_and_message() {
    for futures in [false, true] {
        for at in 0..3 {
            for error in errors() {
                let foreign = matches!(error, Error::Foreign { code, .. } if code != 0);
                let (session, live) = (Session::new(&[("foreign_codes", i64::from(foreign))]), LiveCount::default());
                let arrays = source(&live, 3, Some((at, error.clone())));
                session.open(if futures { from_stream(arrays) } else { from_iterator(arrays) });
                for _ in 0..at {
                    assert_eq!(session.next(), 0);
                }
                let code = if error.errno() == 0 { libc::EIO } else { error.errno() };
                let message = error.to_string().replace('\0', "\u{fffd}");
                for _ in 0..2 {
                    assert_eq!(session.next(), -code);
                    assert_eq!(session.error().as_ref(), Some(&message));
                    // The same message, and the same schema.
                    assert_eq!(session.error().as_ref(), Some(&message));
                    assert_eq!(session.schema(), 0);
                }
                holds(&session, at);
                session.end();
                assert_eq!(live.count(), 0);
            }
        }
    }
}

#[test]
fn r57_a_stream_released_anywhere_frees_its_source() {
    for futures in [false, true] {
        for taken in 0..=4 {
            let (session, live) = (Session::new(&[]), LiveCount::default());
            let arrays = source(&live, 3, None);
            session.open(if futures { from_stream(arrays) } else { from_iterator(arrays) });
            if taken % 2 == 0 {
                assert_eq!(session.schema(), 0);
            }
            for _ in 0..taken {
                session.next();
            }
            session.release();
            assert_eq!(live.count() as i64, taken.min(3));
            session.end();
            assert_eq!(live.count(), 0);
        }
    }
}

#[test]
fn r30_r60_a_panic_of_the_source_is_an_error_for_good() {
    for futures in [false, true] {
        let (session, live) = (Session::new(&[]), LiveCount::default());
        let arrays = source(&live, 1, None).chain(iter::from_fn(|| panic!("source panic")));
        session.open(if futures { from_stream(arrays) } else { from_iterator(arrays) });
        assert_eq!(session.next(), 0);
        for _ in 0..2 {
            assert_eq!(session.next(), -libc::EIO);
            assert!(session.error().unwrap().contains("panicked"));
        }
        session.end();
        assert_eq!(live.count(), 0);
    }
}

#[test]
fn r49_an_array_of_another_device_type_is_an_error() {
    let (session, live) = (Session::new(&[]), LiveCount::default());
    let arrays = source(&live, 2, None).map(|array| {
        let mut array = array?;
        array.device_type = ArrowDeviceType::CUDA_HOST;
        Ok(array)
    });
    session.open(from_iterator(arrays));
    assert_eq!(session.next(), -libc::EIO);
    assert!(session.error().unwrap().contains("CUDA_HOST"));
    session.end();
    assert_eq!(live.count(), 0);
}
