// SPDX-License-Identifier: Apache-2.0
//! The safe owner of a consumer's handler.

use std::ffi::{CStr, c_char, c_int};
use std::ptr::NonNull;

use crate::ffi::{FFI_ArrowAsyncDeviceStreamHandler, FFI_ArrowAsyncProducer, FFI_ArrowAsyncTask};
use crate::{Error, Result};

use arrow::ffi::FFI_ArrowSchema;

/// A consumer's handler, with the duty to call its `release` last and once.
///
/// A consumer makes one ([`AsyncDeviceStream::new`](super::AsyncDeviceStream::new)) and gives it to
/// a producer:
/// - in C, with [`into_raw`](Self::into_raw)
/// - of this crate, with [`produce`](super::produce)
///
/// Dropping a handler calls `release` alone, which the interface allows at any time (R94).
///
/// # Examples
/// A function that C calls with a handler of its own:
/// ```
/// use std::ffi::c_int;
/// use arrow::datatypes::{DataType, Field};
/// use arrow_device::async_stream::{AsyncHandler, ProduceOptions, produce_on_thread};
/// use arrow_device::ffi::{ArrowDeviceType, FFI_ArrowAsyncDeviceStreamHandler, FFI_ArrowDeviceArray};
///
/// unsafe extern "C" fn read_nothing(handler: *mut FFI_ArrowAsyncDeviceStreamHandler) -> c_int {
///     let produced = || {
///         // SAFETY: the caller gives a handler that takes callbacks from any thread.
///         let handler = unsafe { AsyncHandler::from_raw(handler)? };
///         let source = futures::stream::empty::<arrow_device::Result<FFI_ArrowDeviceArray>>();
///         let field = Field::new("", DataType::Int64, false);
///         produce_on_thread(source, &field, ArrowDeviceType::CUDA, handler, ProduceOptions::default())
///     };
///     produced().map_or_else(|error| error.errno(), |_thread| 0)
/// }
/// # // SAFETY: null is an error.
/// # assert_eq!(unsafe { read_nothing(std::ptr::null_mut()) }, libc::EINVAL);
/// ```
#[derive(Debug)]
pub struct AsyncHandler {
    raw: NonNull<FFI_ArrowAsyncDeviceStreamHandler>,
}

// SAFETY: callbacks may come from any thread, one at a time (R85); only the owner of this makes
// them.
unsafe impl Send for AsyncHandler {}

impl Drop for AsyncHandler {
    fn drop(&mut self) {
        let raw = self.raw.as_ptr();
        // SAFETY: `raw` is a live handler, by the contract of `from_raw`; this is its last call.
        unsafe {
            if let Some(release) = (*raw).release {
                release(raw);
            }
        }
    }
}

impl AsyncHandler {
    /// Imports the handler of a C consumer.
    ///
    /// # Errors
    /// `Invalid` if `raw` is null, released, or lacks one of the mandatory callbacks. Its
    /// `release`, if present, is called.
    ///
    /// # Safety
    /// - `raw` is null, or points to a handler that does not move before its `release`, and takes
    ///   callbacks from any thread (R63).
    /// - No other code calls it.
    pub unsafe fn from_raw(raw: *mut FFI_ArrowAsyncDeviceStreamHandler) -> Result<Self> {
        let missing = |what: &str| Error::Invalid(format!("async stream handler: {what} is null"));
        let handler = Self { raw: NonNull::new(raw).ok_or_else(|| missing("the pointer"))? };
        // SAFETY: not null, so live by this function's contract.
        let callbacks = unsafe {
            [
                ("release", (*raw).release.is_none()),
                ("on_schema", (*raw).on_schema.is_none()),
                ("on_next_task", (*raw).on_next_task.is_none()),
                ("on_error", (*raw).on_error.is_none()),
            ]
        };
        match callbacks.iter().find(|(_, absent)| *absent) {
            Some((name, _)) => Err(missing(name)),
            None => Ok(handler),
        }
    }

    /// The pointer for a C producer, which takes over the duty to call `release`.
    ///
    /// It points to the consumer's memory. A consumer of this crate keeps it until `release` was
    /// called and the stream is dropped.
    pub fn into_raw(self) -> *mut FFI_ArrowAsyncDeviceStreamHandler {
        let raw = self.raw.as_ptr();
        std::mem::forget(self);
        raw
    }

    /// Wraps a handler of this crate.
    ///
    /// # Safety
    /// As for [`Self::from_raw`]; no callback is missing.
    pub(super) unsafe fn new(raw: NonNull<FFI_ArrowAsyncDeviceStreamHandler>) -> Self {
        Self { raw }
    }

    /// Sets the producer object, which must precede any callback but `release` (R79).
    ///
    /// # Safety
    /// `producer` stays valid until this drops.
    pub(super) unsafe fn set_producer(&mut self, producer: *mut FFI_ArrowAsyncProducer) {
        // SAFETY: the handler is live, and writable until the first callback.
        unsafe { (*self.raw.as_ptr()).producer = producer };
    }

    /// Calls `on_schema`, which moves the schema out.
    ///
    /// # Errors
    /// The returned code, if not zero.
    pub(super) fn on_schema(&mut self, schema: &mut FFI_ArrowSchema) -> Result<(), c_int> {
        let raw = self.raw.as_ptr();
        // SAFETY: the handler is live, its producer is set, and `&mut` makes calls one at a time.
        code(unsafe { (*raw).on_schema.map_or(0, |on_schema| on_schema(raw, schema)) })
    }

    /// Calls `on_next_task`.
    ///
    /// # Errors
    /// The returned code, if not zero.
    ///
    /// # Safety
    /// `task` is null or a task not yet extracted, `metadata` is null or encoded metadata.
    pub(super) unsafe fn on_next_task(&mut self, task: *mut FFI_ArrowAsyncTask, metadata: *const c_char) -> Result<(), c_int> {
        let raw = self.raw.as_ptr();
        // SAFETY: as for `on_schema`.
        code(unsafe { (*raw).on_next_task.map_or(0, |on_next_task| on_next_task(raw, task, metadata)) })
    }

    /// Calls `on_error`, then `release`.
    ///
    /// # Safety
    /// `metadata` is null or encoded metadata.
    pub(super) unsafe fn fail(self, code: c_int, message: &CStr, metadata: *const c_char) {
        let raw = self.raw.as_ptr();
        // SAFETY: as for `on_schema`; only `release` follows, by the drop (R83).
        unsafe {
            if let Some(on_error) = (*raw).on_error {
                on_error(raw, code, message.as_ptr(), metadata);
            }
        }
    }
}

fn code(returned: c_int) -> Result<(), c_int> {
    if returned == 0 { Ok(()) } else { Err(returned) }
}
