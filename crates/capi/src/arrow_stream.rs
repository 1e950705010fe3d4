// SPDX-License-Identifier: Apache-2.0
//! Arrow's structs as C hands them over: moved here, and brought into the one form that tables are made from.

use std::ffi::{CStr, c_int};

use arrow::ffi::{FFI_ArrowArray, FFI_ArrowSchema};
use arrow::ffi_stream::FFI_ArrowArrayStream;
use arrow_device::ffi::{ArrowDeviceType, FFI_ArrowDeviceArray, FFI_ArrowDeviceArrayStream};
use arrow_device::stream::{ArrowDeviceArrayStreamReader, export_iterator};
use arrow_device::{Error, schema};

use crate::error::{Failure, Result};

/// A struct of Arrow's interfaces that C gives away.
pub(crate) trait Given: Sized {
    /// Moves the struct out of C's memory, which is marked as released.
    ///
    /// # Safety
    /// `raw` points to an initialised struct that can be read and written.
    unsafe fn moved(raw: *mut Self) -> Self;

    /// Whether there is anything in it.
    fn is_live(&self) -> bool;
}

macro_rules! given {
    ($($name:ident),*) => {$(
        impl Given for $name {
            unsafe fn moved(raw: *mut Self) -> Self {
                // SAFETY: as this function's own condition.
                unsafe { Self::from_raw(raw) }
            }

            fn is_live(&self) -> bool {
                self.release.is_some()
            }
        }
    )*};
}
given!(FFI_ArrowArray, FFI_ArrowSchema, FFI_ArrowArrayStream, FFI_ArrowDeviceArrayStream);

impl Given for FFI_ArrowDeviceArray {
    unsafe fn moved(raw: *mut Self) -> Self {
        // SAFETY: as this function's own condition.
        unsafe { Self::from_raw(raw) }
    }

    fn is_live(&self) -> bool {
        !self.is_released()
    }
}

/// Moves a struct out of C's memory. What it holds is released here in any case, also where the call fails later on.
///
/// # Safety
/// `raw` is NULL, or points to an initialised struct that can be read and written.
pub(crate) unsafe fn taken<T: Given>(what: &str, raw: *mut T) -> Result<T> {
    if raw.is_null() {
        return Err(Failure::program(format!("the {what} is NULL")));
    }
    // SAFETY: not null, and the rest is this function's own condition.
    let given = unsafe { T::moved(raw) };
    match given.is_live() {
        true => Ok(given),
        false => Err(Failure::program(format!("the {what} has been released, or moved away"))),
    }
}

/// A reader of a stream of host arrays, which are device arrays of the device CPU.
///
/// # Safety
/// The stream is live and follows the interface, and so do its arrays.
pub(crate) unsafe fn reader_of_host_stream(stream: FFI_ArrowArrayStream) -> Result<ArrowDeviceArrayStreamReader> {
    let mut stream = HostStream(stream);
    let field = schema::batch_field(&stream.schema()?);
    let exported = export_iterator(&field, ArrowDeviceType::CPU, stream)?;
    // SAFETY: the stream comes from arrow-device's export, its arrays follow the interface as this function was promised.
    Ok(unsafe { ArrowDeviceArrayStreamReader::try_new(exported)? })
}

/// A reader of one device array.
///
/// # Safety
/// Array and schema are live and follow the interface.
pub(crate) unsafe fn reader_of_array(
    array: FFI_ArrowDeviceArray,
    schema: FFI_ArrowSchema,
) -> Result<ArrowDeviceArrayStreamReader> {
    // SAFETY: as this function's own condition.
    let field = unsafe { schema::import_field(schema)? };
    let exported = export_iterator(&field, array.device_type, [Ok(array)])?;
    // SAFETY: the stream comes from arrow-device's export, its array follows the interface as this function was promised.
    Ok(unsafe { ArrowDeviceArrayStreamReader::try_new(exported)? })
}

/// The arrays of a stream that C produces.
struct HostStream(FFI_ArrowArrayStream);

impl HostStream {
    fn schema(&mut self) -> arrow_device::Result<arrow::datatypes::Schema> {
        let Some(get_schema) = self.0.get_schema else {
            return Err(Error::Invalid("get_schema of the stream is NULL".into()));
        };
        let mut schema = FFI_ArrowSchema::empty();
        // SAFETY: the stream is live, nobody else calls it meanwhile, and the output is ours.
        match unsafe { get_schema(&raw mut self.0, &raw mut schema) } {
            // SAFETY: a producer that succeeds has written a schema.
            0 => unsafe { schema::import_schema(schema) },
            code => {
                // What a failing call leaves in its output is nobody's.
                std::mem::forget(schema);
                Err(self.failed("get_schema", code))
            }
        }
    }

    fn failed(&mut self, call: &'static str, code: c_int) -> Error {
        // SAFETY: the stream is live, and its last call has failed, which is when a text may be asked for.
        let text = self.0.get_last_error.map(|get| unsafe { get(&raw mut self.0) }).filter(|text| !text.is_null());
        // SAFETY: a C string until the next call.
        let message = text.map(|text| unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned());
        Error::Foreign { call, code, message }
    }
}

impl Iterator for HostStream {
    type Item = arrow_device::Result<FFI_ArrowDeviceArray>;

    fn next(&mut self) -> Option<Self::Item> {
        let Some(get_next) = self.0.get_next else {
            return Some(Err(Error::Invalid("get_next of the stream is NULL".into())));
        };
        let mut array = FFI_ArrowArray::empty();
        // SAFETY: the stream is live, nobody else calls it meanwhile, and the output is ours.
        let code = unsafe { get_next(&raw mut self.0, &raw mut array) };
        if code != 0 {
            // What a failing call leaves in its output is nobody's.
            std::mem::forget(array);
            return Some(Err(self.failed("get_next", code)));
        }
        array.is_live().then(|| Ok(on_host(array)))
    }
}

/// A host array as a device array of the device CPU.
pub(crate) fn on_host(array: FFI_ArrowArray) -> FFI_ArrowDeviceArray {
    FFI_ArrowDeviceArray {
        array,
        device_id: -1,
        device_type: ArrowDeviceType::CPU,
        sync_event: std::ptr::null_mut(),
        reserved: [0; 3],
    }
}
