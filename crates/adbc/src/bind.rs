// SPDX-License-Identifier: Apache-2.0
//! Bound Arrow data, which is validated. A client in any language may hand over arrays with wrong
//! offsets, views, codes or texts.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use adbc_core::error::{Error, Result, Status};
use arrow::array::{Array, RecordBatch, RecordBatchIterator, RecordBatchReader, StructArray};
use arrow::datatypes::SchemaRef;
use arrow::error::ArrowError;
use arrow::ffi::{FFI_ArrowArray, FFI_ArrowSchema, to_ffi};
use arrow::ffi_stream::FFI_ArrowArrayStream;
use arrow_device::stream::ArrowDeviceArrayStreamReader;
use arrow_device::{ImportedArray, cpu};
use datafusion::common::DataFusionError;
use datafusion::execution::SendableRecordBatchStream;
use datafusion::physical_plan::stream::RecordBatchReceiverStream;
use futures::TryStreamExt;

use crate::error::{error, from_datafusion};
use crate::reader::BoxedReader;

/// Number of batches of a stream that wait for the engine.
const READ_AHEAD: usize = 2;

/// The rows of a bound batch, which are valid.
pub(crate) fn validated_batch(bound: arrow_device::Result<ImportedArray>) -> Result<(FFI_ArrowArray, FFI_ArrowSchema)> {
    let batch = bound.and_then(cpu::import_batch).map_err(|failure| refusal(&failure))?;
    let schema = FFI_ArrowSchema::try_from(batch.schema().as_ref())?;
    let (values, _) = to_ffi(&StructArray::from(batch).to_data())?;
    Ok((values, schema))
}

/// A stream of bound rows that fails at the first invalid batch.
pub(crate) fn validated_stream(bound: arrow_device::Result<ArrowDeviceArrayStreamReader>) -> Result<FFI_ArrowArrayStream> {
    let reader = bound.and_then(cpu::import_reader).map_err(|failure| refusal(&failure))?;
    Ok(FFI_ArrowArrayStream::new(Box::new(reader)))
}

/// The rows that a client has bound.
pub(crate) enum Bound {
    Batch(RecordBatch),
    /// Batches that nothing has read yet.
    Stream(BoxedReader),
}

impl Bound {
    pub fn schema(&self) -> SchemaRef {
        match self {
            Bound::Batch(batch) => batch.schema(),
            Bound::Stream(reader) => reader.schema(),
        }
    }

    /// All rows, in memory. A stream is read as [`into_stream`](Self::into_stream) does.
    pub async fn collect(self) -> Result<Vec<RecordBatch>> {
        match self {
            Bound::Batch(batch) => Ok(vec![batch]),
            stream @ Bound::Stream(_) => stream.into_stream(Arc::default()).try_collect().await.map_err(from_datafusion),
        }
    }

    /// The rows as they come. A blocking thread of the present tokio runtime reads a stream, up to
    /// two batches ahead. `rows` counts them.
    pub fn into_stream(self, rows: Arc<AtomicU64>) -> SendableRecordBatchStream {
        let mut stream = RecordBatchReceiverStream::builder(self.schema(), READ_AHEAD);
        let sender = stream.tx();
        stream.spawn_blocking(move || {
            let batches: BoxedReader = match self {
                Bound::Batch(batch) => Box::new(RecordBatchIterator::new([Ok(batch.clone())], batch.schema())),
                Bound::Stream(reader) => reader,
            };
            for batch in batches {
                let batch = batch.map_err(|failure| DataFusionError::External(Box::new(unreadable(failure))));
                rows.fetch_add(batch.as_ref().map_or(0, |batch| batch.num_rows() as u64), Ordering::Relaxed);
                // The receiver is gone when the statement has failed or is cancelled.
                if sender.blocking_send(batch).is_err() {
                    break;
                }
            }
            Ok(())
        });
        stream.build()
    }
}

fn unreadable(failure: ArrowError) -> Error {
    match failure {
        ArrowError::CDataInterface(message) => refusal(&message.trim_start_matches("External error: ")),
        other => other.into(),
    }
}

fn refusal(reason: &dyn std::fmt::Display) -> Error {
    error(Status::InvalidArguments, format!("the Arrow data cannot be used: {reason}"))
}
