// SPDX-License-Identifier: Apache-2.0
//! Streams of record batches in host memory: arrow-rs readers as device streams, and back.

use std::sync::Arc;

use arrow::array::{RecordBatch, RecordBatchReader};
use arrow::datatypes::SchemaRef;
use arrow::error::ArrowError;

use super::{export_batch, import_batch};
use crate::ffi::{ArrowDeviceType, FFI_ArrowDeviceArrayStream};
use crate::stream::{ArrowDeviceArrayStreamReader, export_iterator};
use crate::{Error, Result, schema};

/// Exports a reader as a CPU device stream.
///
/// # Errors
/// `Unsupported` if C cannot express the schema.
///
/// # Examples
/// ```
/// use std::sync::Arc;
/// use arrow::array::{ArrayRef, Int32Array, RecordBatch, RecordBatchIterator};
/// use arrow_device::cpu;
/// use arrow_device::stream::ArrowDeviceArrayStreamReader;
///
/// let column: ArrayRef = Arc::new(Int32Array::from(vec![1, 2, 3]));
/// let batch = RecordBatch::try_from_iter([("a", column)])?;
/// let reader = RecordBatchIterator::new([Ok(batch.clone())], batch.schema());
///
/// let stream = cpu::export_reader(reader)?; // C reads this
///
/// // SAFETY: the stream comes from this crate's export.
/// let reader = cpu::import_reader(unsafe { ArrowDeviceArrayStreamReader::try_new(stream)? })?;
/// assert_eq!(reader.collect::<Result<Vec<_>, _>>()?, [batch]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn export_reader(reader: impl RecordBatchReader + Send + 'static) -> Result<FFI_ArrowDeviceArrayStream> {
    let field = schema::batch_field(&reader.schema());
    export_iterator(&field, ArrowDeviceType::CPU, reader.map(|batch| export_batch(&batch?)))
}

/// Imports a device stream in host memory as record batches, which share the producer's buffers.
///
/// The reader's errors are those of [`import_batch`], as
/// `ArrowError::ExternalError`.
///
/// # Errors
/// `Invalid` if the arrays of the stream are not record batches.
pub fn import_reader(reader: ArrowDeviceArrayStreamReader) -> Result<impl RecordBatchReader + Send + 'static> {
    let schema = reader.schema().ok_or_else(|| {
        Error::Invalid(format!("import of a device stream: expected record batches, got {}", reader.data_type()))
    })?;
    Ok(HostReader { reader, schema })
}

struct HostReader {
    reader: ArrowDeviceArrayStreamReader,
    schema: SchemaRef,
}

impl Iterator for HostReader {
    type Item = Result<RecordBatch, ArrowError>;

    fn next(&mut self) -> Option<Self::Item> {
        let batch = self.reader.next()?.and_then(import_batch);
        Some(batch.map_err(|error| ArrowError::from_external_error(Box::new(error))))
    }
}

impl RecordBatchReader for HostReader {
    fn schema(&self) -> SchemaRef {
        Arc::clone(&self.schema)
    }
}

#[cfg(test)]
mod tests {
    use arrow::array::{ArrayRef, Int32Array, RecordBatchIterator};

    use super::*;
    use crate::cpu;

    #[test]
    fn r61_errors_of_a_reader_keep_their_kind() {
        let batch = RecordBatch::try_from_iter([("a", Arc::new(Int32Array::from(vec![1])) as ArrayRef)]).unwrap();
        let items = [Ok(batch.clone()), Err(ArrowError::MemoryError("full".into()))];
        let stream = export_reader(RecordBatchIterator::new(items, batch.schema())).unwrap();
        // SAFETY: exported here.
        let mut reader = import_reader(unsafe { ArrowDeviceArrayStreamReader::try_new(stream).unwrap() }).unwrap();
        assert_eq!((reader.schema(), reader.next().unwrap().unwrap()), (batch.schema(), batch));
        let error = reader.next().unwrap().unwrap_err().to_string();
        assert!(error.contains(&format!("get_next failed with {}: Memory error: full", libc::ENOMEM)), "{error}");
        assert!(reader.next().is_none());
    }

    #[test]
    fn streams_of_other_arrays_are_refused() {
        let numbers = Int32Array::from(vec![1]);
        let field = cpu::field_of(&numbers);
        let stream = export_iterator(&field, ArrowDeviceType::CPU, [cpu::export_array(&numbers)]).unwrap();
        // SAFETY: exported here.
        let error = import_reader(unsafe { ArrowDeviceArrayStreamReader::try_new(stream).unwrap() }).err().unwrap();
        assert_eq!(error.to_string(), "import of a device stream: expected record batches, got Int32");
    }
}
