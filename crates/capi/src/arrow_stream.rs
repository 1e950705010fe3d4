// SPDX-License-Identifier: Apache-2.0
//! Arrow structs from C: moved out of C's memory, and turned into readers of device arrays.

use std::ffi::{CStr, c_int};

use arrow::ffi::{FFI_ArrowArray, FFI_ArrowSchema};
use arrow::ffi_stream::FFI_ArrowArrayStream;
use arrow_device::ffi::{ArrowDeviceType, FFI_ArrowDeviceArray, FFI_ArrowDeviceArrayStream};
use arrow_device::stream::{ArrowDeviceArrayStreamReader, export_iterator};
use arrow_device::{Error, schema};

use crate::error::{Failure, Result};

/// A struct of the Arrow C interfaces.
pub(crate) trait ArrowStruct: Sized {
    /// Moves the struct out of C's memory and marks the source as released.
    ///
    /// # Safety
    /// `raw` points to an initialised struct that can be read and written.
    unsafe fn take(raw: *mut Self) -> Self;

    /// Whether the struct has not been released.
    fn is_live(&self) -> bool;
}

macro_rules! arrow_struct {
    ($($name:ident),*) => {$(
        impl ArrowStruct for $name {
            unsafe fn take(raw: *mut Self) -> Self {
                // SAFETY: this function's own condition.
                unsafe { Self::from_raw(raw) }
            }

            fn is_live(&self) -> bool {
                self.release.is_some()
            }
        }
    )*};
}
arrow_struct!(FFI_ArrowArray, FFI_ArrowSchema, FFI_ArrowArrayStream, FFI_ArrowDeviceArrayStream);

impl ArrowStruct for FFI_ArrowDeviceArray {
    unsafe fn take(raw: *mut Self) -> Self {
        // SAFETY: this function's own condition.
        unsafe { Self::from_raw(raw) }
    }

    fn is_live(&self) -> bool {
        !self.is_released()
    }
}

/// Moves a struct out of C's memory. The struct is released here even if the call fails later.
///
/// # Safety
/// `raw` is NULL, or points to an initialised struct that can be read and written.
pub(crate) unsafe fn take_struct<T: ArrowStruct>(what: &str, raw: *mut T) -> Result<T> {
    if raw.is_null() {
        return Err(Failure::program(format!("the {what} is NULL")));
    }
    // SAFETY: not null, and the rest is this function's own condition.
    let taken = unsafe { T::take(raw) };
    match taken.is_live() {
        true => Ok(taken),
        false => Err(Failure::program(format!("the {what} has been released, or moved away"))),
    }
}

/// A reader of a host stream, whose arrays become device arrays of the device type CPU.
///
/// # Safety
/// The stream is live and follows the interface, and so do its arrays.
pub(crate) unsafe fn reader_of_host_stream(stream: FFI_ArrowArrayStream) -> Result<ArrowDeviceArrayStreamReader> {
    let mut stream = HostStream(stream);
    let field = schema::batch_field(&stream.schema()?);
    let exported = export_iterator(&field, ArrowDeviceType::CPU, stream)?;
    // SAFETY: arrow-device exported the stream; its arrays follow the interface by this function's
    // own condition.
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
    // SAFETY: this function's own condition.
    let field = unsafe { schema::import_field(schema)? };
    let exported = export_iterator(&field, array.device_type, [Ok(array)])?;
    // SAFETY: arrow-device exported the stream; its array follows the interface by this function's
    // own condition.
    Ok(unsafe { ArrowDeviceArrayStreamReader::try_new(exported)? })
}

/// Iterator over the arrays of a stream that C produces.
struct HostStream(FFI_ArrowArrayStream);

impl HostStream {
    fn schema(&mut self) -> arrow_device::Result<arrow::datatypes::Schema> {
        let Some(get_schema) = self.0.get_schema else {
            return Err(Error::Invalid("get_schema of the stream is NULL".into()));
        };
        let mut schema = FFI_ArrowSchema::empty();
        // SAFETY: the stream is live, this is its only caller, and the output is a local.
        match unsafe { get_schema(&raw mut self.0, &raw mut schema) } {
            // SAFETY: a producer that succeeds has written a schema.
            0 => unsafe { schema::import_schema(schema) },
            code => {
                // A failing call leaves its output undefined, so it must not be released.
                std::mem::forget(schema);
                Err(self.failed("get_schema", code))
            }
        }
    }

    fn failed(&mut self, call: &'static str, code: c_int) -> Error {
        // SAFETY: the stream is live, and its last call has failed, as `get_last_error` requires.
        let message = self.0.get_last_error.map(|get| unsafe { get(&raw mut self.0) }).filter(|message| !message.is_null());
        // SAFETY: a C string until the next call.
        let message = message.map(|message| unsafe { CStr::from_ptr(message) }.to_string_lossy().into_owned());
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
        // SAFETY: the stream is live, this is its only caller, and the output is a local.
        let code = unsafe { get_next(&raw mut self.0, &raw mut array) };
        if code != 0 {
            // A failing call leaves its output undefined, so it must not be released.
            std::mem::forget(array);
            return Some(Err(self.failed("get_next", code)));
        }
        array.is_live().then(|| Ok(as_cpu_array(array)))
    }
}

/// A host array as a device array of the device type CPU.
pub(crate) fn as_cpu_array(array: FFI_ArrowArray) -> FFI_ArrowDeviceArray {
    FFI_ArrowDeviceArray {
        array,
        device_id: -1,
        device_type: ArrowDeviceType::CPU,
        sync_event: std::ptr::null_mut(),
        reserved: [0; 3],
    }
}
