// SPDX-License-Identifier: Apache-2.0
//! The consumer's side of a device stream.

use std::ffi::{CStr, c_int};
use std::sync::Arc;

use arrow::datatypes::{DataType, FieldRef, SchemaRef};
use arrow::ffi::FFI_ArrowSchema;

use crate::ffi::{ArrowDeviceType, FFI_ArrowDeviceArray, FFI_ArrowDeviceArrayStream};
use crate::{Error, ImportedArray, Result, schema};

/// A foreign device stream as an iterator of validated arrays.
///
/// - `next` calls the producer, and blocks as long as the producer does.
/// - After the end, and after an error, it returns `None` (R60).
/// - Dropping it releases the stream; arrays outlive the stream (R57).
///
/// # Examples
/// See [the module](crate::stream).
#[derive(Debug)]
pub struct ArrowDeviceArrayStreamReader {
    stream: FFI_ArrowDeviceArrayStream,
    field: FieldRef,
    done: bool,
}

impl ArrowDeviceArrayStreamReader {
    /// Imports `stream` and reads its schema.
    ///
    /// # Errors
    /// `Invalid` if the stream is released, lacks a callback, or has a broken schema; `Foreign` for
    /// a failure of `get_schema`. The stream is then released.
    ///
    /// # Safety
    /// - `stream` follows the C Device stream interface in all that cannot be checked.
    /// - Its arrays meet the conditions of [`ImportedArray::import`].
    pub unsafe fn try_new(mut stream: FFI_ArrowDeviceArrayStream) -> Result<Self> {
        if stream.release.is_none() {
            return Err(Error::Invalid("import of a device stream: it is released".into()));
        }
        let (Some(get_schema), Some(_), Some(_)) = (stream.get_schema, stream.get_next, stream.get_last_error) else {
            return Err(Error::Invalid("import of a device stream: a callback is null".into()));
        };
        let mut schema = FFI_ArrowSchema::empty();
        // SAFETY: the stream is not released (R54); the output is a local.
        match unsafe { get_schema(&mut stream, &mut schema) } {
            0 => {}
            code => {
                // The output of a failed call must not be used, nor released.
                std::mem::forget(schema);
                return Err(last_error("get_schema", code, &mut stream));
            }
        }
        // SAFETY: a stream's schema follows the C data interface, by this function's contract.
        let field = unsafe { schema::import_field(schema)? };
        Ok(Self { stream, field: Arc::new(field), done: false })
    }

    /// Moves the stream out of C memory and imports it as [`try_new`](Self::try_new) does.
    ///
    /// # Errors
    /// As [`try_new`](Self::try_new); also if `stream` is null.
    ///
    /// # Safety
    /// - `stream` is null, or points to an initialised, readable and writable struct.
    /// - The conditions of [`try_new`](Self::try_new) hold.
    pub unsafe fn from_raw(stream: *mut FFI_ArrowDeviceArrayStream) -> Result<Self> {
        if stream.is_null() {
            return Err(Error::Invalid("import of a device stream: the pointer to it is null".into()));
        }
        // SAFETY: not null, so initialised and writable by this function's contract.
        let stream = unsafe { FFI_ArrowDeviceArrayStream::from_raw(stream) };
        // SAFETY: the caller upholds the contract.
        unsafe { Self::try_new(stream) }
    }

    /// The field of all arrays.
    pub fn field(&self) -> &FieldRef {
        &self.field
    }

    /// The schema of the record batches; `None` if the arrays are not structs.
    pub fn schema(&self) -> Option<SchemaRef> {
        schema::schema_of(&self.field).map(Arc::new)
    }

    /// The type of all arrays.
    pub fn data_type(&self) -> &DataType {
        self.field.data_type()
    }

    /// The device type of all arrays; their device ids may differ (R49).
    pub fn device_type(&self) -> ArrowDeviceType {
        self.stream.device_type
    }

    /// The next array; `None` at the end.
    fn pull(&mut self) -> Result<Option<ImportedArray>> {
        let Some(get_next) = self.stream.get_next else {
            return Err(Error::Invalid("get_next of the stream has become null".into()));
        };
        // Some producers fill only `release` (R44).
        let mut array = FFI_ArrowDeviceArray::empty();
        // SAFETY: the stream lives until this drops, `&mut self` excludes other calls (R54, R59),
        // and the output is a local.
        match unsafe { get_next(&mut self.stream, &mut array) } {
            0 => {}
            code => {
                // The output of a failed call must not be used, nor released.
                std::mem::forget(array);
                return Err(last_error("get_next", code, &mut self.stream));
            }
        }
        if array.is_released() {
            return Ok(None);
        }
        if array.device_type != self.stream.device_type {
            return Err(Error::Invalid(format!(
                "get_next of the stream: expected an array of {}, got {}",
                self.stream.device_type, array.device_type
            )));
        }
        // SAFETY: the stream's arrays are importable, by the contract of `try_new`.
        unsafe { ImportedArray::import_ref(array, &self.field) }.map(Some)
    }
}

impl Iterator for ArrowDeviceArrayStreamReader {
    type Item = Result<ImportedArray>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.done {
            return None;
        }
        let next = self.pull();
        self.done = !matches!(next, Ok(Some(_)));
        next.transpose()
    }
}

impl std::iter::FusedIterator for ArrowDeviceArrayStreamReader {}

/// The error of a failed call. No other call may come between the failure and this (R55).
fn last_error(call: &'static str, code: c_int, stream: &mut FFI_ArrowDeviceArrayStream) -> Error {
    let message = stream.get_last_error.and_then(|get_last_error| {
        // SAFETY: the last call failed, and the stream is not released.
        let string = unsafe { get_last_error(stream) };
        // SAFETY: null or a C string, valid until the next call; copied here (R56).
        (!string.is_null()).then(|| unsafe { CStr::from_ptr(string) }.to_string_lossy().into_owned())
    });
    Error::Foreign { call, code, message }
}
