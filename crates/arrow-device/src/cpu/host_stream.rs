// SPDX-License-Identifier: Apache-2.0
//! Streams of host arrays (`ArrowArrayStream`) as device streams.

use std::ffi::{CStr, c_int};

use arrow::datatypes::Field;
use arrow::ffi::{FFI_ArrowArray, FFI_ArrowSchema};
use arrow::ffi_stream::FFI_ArrowArrayStream;

use crate::ffi::{ArrowDeviceType, FFI_ArrowDeviceArray};
use crate::stream::{ArrowDeviceArrayStreamReader, export_iterator};
use crate::{Error, Result, schema};

/// A reader of a host stream, whose arrays become device arrays of the device type CPU. They may be
/// record batches or arrays of another type.
///
/// [`import_reader`](super::import_reader) makes validated record batches of them.
///
/// # Errors
/// `Invalid` for a schema outside of the interface; `Foreign` if the producer fails.
///
/// # Safety
/// The stream is live and follows the interface, and so do its arrays.
///
/// # Examples
/// ```
/// use std::sync::Arc;
/// use arrow::array::{ArrayRef, Int32Array, RecordBatch, RecordBatchIterator};
/// use arrow::ffi_stream::FFI_ArrowArrayStream;
/// use arrow_device::cpu;
///
/// let column: ArrayRef = Arc::new(Int32Array::from(vec![1, 2, 3]));
/// let batch = RecordBatch::try_from_iter([("a", column)])?;
/// let reader = RecordBatchIterator::new([Ok(batch.clone())], batch.schema());
/// let stream = FFI_ArrowArrayStream::new(Box::new(reader));
///
/// // SAFETY: the stream comes from arrow-rs.
/// let reader = cpu::import_reader(unsafe { cpu::reader_of_host_stream(stream)? })?;
/// assert_eq!(reader.collect::<Result<Vec<_>, _>>()?, [batch]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub unsafe fn reader_of_host_stream(stream: FFI_ArrowArrayStream) -> Result<ArrowDeviceArrayStreamReader> {
    let mut stream = HostStream(stream);
    let field = stream.field()?;
    let exported = export_iterator(&field, ArrowDeviceType::CPU, stream)?;
    // SAFETY: arrow-device exported the stream; its arrays follow the interface by this function's
    // own condition.
    Ok(unsafe { ArrowDeviceArrayStreamReader::try_new(exported)? })
}

/// Iterator over the arrays of a stream that C produces.
struct HostStream(FFI_ArrowArrayStream);

impl HostStream {
    /// The field of all arrays; that of record batches has their schema.
    fn field(&mut self) -> Result<Field> {
        let Some(get_schema) = self.0.get_schema else {
            return Err(Error::Invalid("get_schema of the stream is NULL".into()));
        };
        let mut schema = FFI_ArrowSchema::empty();
        // SAFETY: the stream is live, this is its only caller, and the output is a local.
        match unsafe { get_schema(&raw mut self.0, &raw mut schema) } {
            // SAFETY: a producer that succeeds has written a schema.
            0 => unsafe { schema::import_field(schema) },
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
    type Item = Result<FFI_ArrowDeviceArray>;

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
        array.release.is_some().then(|| Ok(as_cpu_array(array)))
    }
}

/// A host array as a device array of the device type CPU.
///
/// # Examples
/// ```
/// use arrow::ffi::FFI_ArrowArray;
/// use arrow_device::cpu;
/// use arrow_device::ffi::ArrowDeviceType;
///
/// let array = cpu::as_cpu_array(FFI_ArrowArray::empty());
/// assert_eq!(array.device_type, ArrowDeviceType::CPU);
/// ```
pub fn as_cpu_array(array: FFI_ArrowArray) -> FFI_ArrowDeviceArray {
    FFI_ArrowDeviceArray {
        array,
        device_id: -1,
        device_type: ArrowDeviceType::CPU,
        sync_event: std::ptr::null_mut(),
        reserved: [0; 3],
    }
}
