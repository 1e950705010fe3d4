// SPDX-License-Identifier: Apache-2.0
//! The consumer's side of a device stream.

use std::ffi::{CStr, c_int};
use std::sync::Arc;

use arrow::datatypes::{DataType, FieldRef, SchemaRef};
use arrow::ffi::FFI_ArrowSchema;

use crate::ffi::{ArrowDeviceType, FFI_ArrowDeviceArray, FFI_ArrowDeviceArrayStream};
use crate::{Error, ImportedArray, Result, schema};

/// Somebody's device stream as an iterator of validated arrays.
///
/// `next` calls the producer and blocks for as long as it does. After the end, and after an error, there is nothing more
/// (R60). The stream is released when this drops; arrays live on by themselves (R57).
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
    /// Takes over `stream` and asks it for its schema.
    ///
    /// # Errors
    /// `Invalid` if it is released or lacks a callback, or its schema is broken; `Foreign` if it cannot tell its schema. It
    /// is then released.
    ///
    /// # Safety
    /// - `stream` follows the C Device stream interface, as far as that cannot be checked.
    /// - Its arrays are such that [`ImportedArray::import`] may take them.
    pub unsafe fn try_new(mut stream: FFI_ArrowDeviceArrayStream) -> Result<Self> {
        if stream.release.is_none() {
            return Err(Error::Invalid("import of a device stream: it is released".into()));
        }
        let (Some(get_schema), Some(_), Some(_)) = (stream.get_schema, stream.get_next, stream.get_last_error) else {
            return Err(Error::Invalid("import of a device stream: a callback is null".into()));
        };
        let mut schema = FFI_ArrowSchema::empty();
        // SAFETY: the stream is not released (R54); the output is ours.
        match unsafe { get_schema(&mut stream, &mut schema) } {
            0 => {}
            code => {
                // What a failing call leaves in its output is nobody's.
                std::mem::forget(schema);
                return Err(foreign("get_schema", code, &mut stream));
            }
        }
        // SAFETY: a stream's schema follows the C data interface, by this function's own condition.
        let field = unsafe { schema::import_field(schema)? };
        Ok(Self { stream, field: Arc::new(field), done: false })
    }

    /// Moves the stream at `stream` out of C and takes it over as [`try_new`](Self::try_new) does.
    ///
    /// # Errors
    /// As [`try_new`](Self::try_new); also if `stream` is null.
    ///
    /// # Safety
    /// - `stream` is null, or points to an initialised struct that can be read and written.
    /// - What [`try_new`](Self::try_new) asks for.
    pub unsafe fn from_raw(stream: *mut FFI_ArrowDeviceArrayStream) -> Result<Self> {
        if stream.is_null() {
            return Err(Error::Invalid("import of a device stream: the pointer to it is null".into()));
        }
        // SAFETY: not null, so initialised and writable by this function's own condition.
        let stream = unsafe { FFI_ArrowDeviceArrayStream::from_raw(stream) };
        // SAFETY: as this function's own condition.
        unsafe { Self::try_new(stream) }
    }

    /// The field of every array.
    pub fn field(&self) -> &FieldRef {
        &self.field
    }

    /// The schema of the record batches; `None` if the arrays are not structs.
    pub fn schema(&self) -> Option<SchemaRef> {
        schema::schema_of(&self.field).map(Arc::new)
    }

    /// The type of every array.
    pub fn data_type(&self) -> &DataType {
        self.field.data_type()
    }

    /// The device type of every array; their device ids may differ (R49).
    pub fn device_type(&self) -> ArrowDeviceType {
        self.stream.device_type
    }

    /// The next array, nothing at the end.
    fn pull(&mut self) -> Result<Option<ImportedArray>> {
        let Some(get_next) = self.stream.get_next else {
            return Err(Error::Invalid("get_next of the stream has become null".into()));
        };
        // Some producers fill only `release` (R44).
        let mut array = FFI_ArrowDeviceArray::empty();
        // SAFETY: the stream lives until this drops, and nobody else calls it meanwhile (R54, R59); the output is ours.
        match unsafe { get_next(&mut self.stream, &mut array) } {
            0 => {}
            code => {
                // What a failing call leaves in its output is nobody's.
                std::mem::forget(array);
                return Err(foreign("get_next", code, &mut self.stream));
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
        // SAFETY: the caller of `try_new` promised this of the stream's arrays.
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

/// The error of a call that has just failed: nothing may be called between that and this (R55).
fn foreign(call: &'static str, code: c_int, stream: &mut FFI_ArrowDeviceArrayStream) -> Error {
    let message = stream.get_last_error.and_then(|get_last_error| {
        // SAFETY: the last call failed, and the stream is not released.
        let text = unsafe { get_last_error(stream) };
        // SAFETY: null or a C string, valid until the next call; copied here (R56).
        (!text.is_null()).then(|| unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned())
    });
    Error::Foreign { call, code, message }
}
