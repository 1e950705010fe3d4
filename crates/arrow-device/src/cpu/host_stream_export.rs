// SPDX-License-Identifier: Apache-2.0
//! Record batches as a stream of host arrays (`ArrowArrayStream`).

use std::ffi::{CString, c_char, c_int};

use arrow::array::{Array, RecordBatch, StructArray};
use arrow::datatypes::Schema;
use arrow::ffi::{FFI_ArrowArray, FFI_ArrowSchema};
use arrow::ffi_stream::FFI_ArrowArrayStream;

use crate::callback::{c_string, guard};
use crate::{Error, Result, schema};

/// Exports record batches as a stream of host arrays, with this crate's messages and errnos.
///
/// - The iterator is dropped after its end or first error. Later calls repeat that end or error.
/// - A panic in the iterator is an error of the stream.
///
/// The stream of arrow-rs puts a prefix for its kind of error before each message.
///
/// # Errors
/// `Unsupported` if C cannot express the schema.
///
/// # Examples
/// ```
/// use std::sync::Arc;
/// use arrow::array::{ArrayRef, Int32Array, RecordBatch};
/// use arrow_device::cpu;
///
/// let column: ArrayRef = Arc::new(Int32Array::from(vec![1, 2, 3]));
/// let batch = RecordBatch::try_from_iter([("a", column)])?;
/// let stream = cpu::export_host_stream(&batch.schema(), [Ok(batch.clone())])?;
///
/// // SAFETY: the stream was just exported.
/// let reader = cpu::import_reader(unsafe { cpu::reader_of_host_stream(stream)? })?;
/// assert_eq!(reader.collect::<Result<Vec<_>, _>>()?, [batch]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn export_host_stream<I>(schema: &Schema, batches: I) -> Result<FFI_ArrowArrayStream>
where
    I: IntoIterator<Item = Result<RecordBatch>>,
    I::IntoIter: Send + 'static,
{
    // Fails here, at the caller, rather than at the consumer's first call.
    let first_schema = Some(schema::export_schema(schema)?);
    let source = Batches::Live(Box::new(batches.into_iter()));
    let exported = ExportedHostStream { schema: schema.clone(), first_schema, source, last_error: None };
    Ok(FFI_ArrowArrayStream {
        get_schema: Some(get_schema),
        get_next: Some(get_next),
        get_last_error: Some(get_last_error),
        release: Some(release),
        private_data: Box::into_raw(Box::new(exported)).cast(),
    })
}

struct ExportedHostStream {
    schema: Schema,
    /// For the first call that asks.
    first_schema: Option<FFI_ArrowSchema>,
    source: Batches,
    /// The message of the last call's error; valid until the next call.
    last_error: Option<CString>,
}

enum Batches {
    Live(Box<dyn Iterator<Item = Result<RecordBatch>> + Send>),
    Ended,
    Failed(Error),
}

impl ExportedHostStream {
    /// The next array; a released one at the end.
    fn next(&mut self) -> Result<FFI_ArrowArray> {
        let mut batches = match std::mem::replace(&mut self.source, Batches::Ended) {
            Batches::Live(batches) => batches,
            Batches::Ended => return Ok(FFI_ArrowArray::empty()),
            Batches::Failed(error) => {
                self.source = Batches::Failed(error.clone());
                return Err(error);
            }
        };
        let array = |batch| FFI_ArrowArray::new(&StructArray::from(batch).to_data());
        let next = guard("get_next", || Ok(batches.next().transpose()?.map(array)));
        if let Ok(Some(array)) = next {
            self.source = Batches::Live(batches);
            return Ok(array);
        }
        // Repeating the end or error needs no iterator; a panic in its drop changes nothing.
        let _ = guard("the end of the stream", || {
            drop(batches);
            Ok(())
        });
        next.map(|_| FFI_ArrowArray::empty()).inspect_err(|error| self.source = Batches::Failed(error.clone()))
    }

    /// The errno of a call, whose message stays for `get_last_error`.
    fn outcome(&mut self, result: Result<()>) -> c_int {
        match result {
            Ok(()) => 0,
            Err(error) => {
                self.last_error = Some(c_string(&error.to_string()));
                error.errno()
            }
        }
    }
}

/// # Safety
/// `stream` is a live stream of this module, which one thread uses at a time.
unsafe fn exported<'a>(stream: *mut FFI_ArrowArrayStream) -> &'a mut ExportedHostStream {
    // SAFETY: `export_host_stream` made the private data, and `release` alone frees it.
    unsafe { &mut *(*stream).private_data.cast::<ExportedHostStream>() }
}

/// # Safety
/// As [`exported`]; `out` can be written.
unsafe extern "C" fn get_schema(stream: *mut FFI_ArrowArrayStream, out: *mut FFI_ArrowSchema) -> c_int {
    // SAFETY: this function's own condition.
    let exported = unsafe { exported(stream) };
    let first = exported.first_schema.take();
    let schema = guard("get_schema", || first.map_or_else(|| schema::export_schema(&exported.schema), Ok));
    // SAFETY: as above; what C has there is not dropped.
    let result = schema.map(|schema| unsafe { out.write(schema) });
    exported.outcome(result)
}

/// # Safety
/// As [`exported`]; `out` can be written.
unsafe extern "C" fn get_next(stream: *mut FFI_ArrowArrayStream, out: *mut FFI_ArrowArray) -> c_int {
    // SAFETY: this function's own condition.
    let exported = unsafe { exported(stream) };
    // SAFETY: as above; what C has there is not dropped.
    let result = exported.next().map(|array| unsafe { out.write(array) });
    exported.outcome(result)
}

/// # Safety
/// As [`exported`].
unsafe extern "C" fn get_last_error(stream: *mut FFI_ArrowArrayStream) -> *const c_char {
    // SAFETY: this function's own condition.
    let exported = unsafe { exported(stream) };
    exported.last_error.as_ref().map_or(std::ptr::null(), |message| message.as_ptr())
}

/// Frees the stream; its arrays and schemas outlive it.
///
/// # Safety
/// As [`exported`]; the stream is not used afterwards.
unsafe extern "C" fn release(stream: *mut FFI_ArrowArrayStream) {
    // SAFETY: this function's own condition. The write drops nothing.
    let exported = unsafe {
        let exported = Box::from_raw((*stream).private_data.cast::<ExportedHostStream>());
        stream.write(FFI_ArrowArrayStream::empty());
        exported
    };
    // C takes no error from a release: a panic in the source's drop is swallowed.
    let _ = guard("release", || {
        drop(exported);
        Ok(())
    });
}
