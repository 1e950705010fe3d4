// SPDX-License-Identifier: Apache-2.0
//! Upload of host batches.

use std::collections::VecDeque;
use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::compute::{CastOptions, cast_with_options};
use arrow::datatypes::SchemaRef;
use columnar::{BatchCoalescer, ColumnType, DeviceBatch};
use datafusion::common::{DataFusionError, Result, internal_err};
use datafusion::execution::SendableRecordBatchStream;
use device::Queue;
use futures::{StreamExt, TryStreamExt, stream};
use kernels::expr::value_type;

use super::DeviceBatchStream;
use super::state::Run;
use crate::error::columnar_error;
use crate::graph::Stage;

/// The columns of an upload.
#[derive(Clone)]
pub(super) struct UploadedColumns {
    pub schema: SchemaRef,
    pub types: Vec<ColumnType>,
    /// Number of the rows, if known: buffers are no larger.
    pub rows: Option<usize>,
    /// The operator that errors name.
    pub operator: String,
}

impl UploadedColumns {
    /// All columns of a stage.
    pub fn of(stage: &Stage) -> UploadedColumns {
        let (types, operator) = (stage.types.clone(), stage.operator.clone());
        UploadedColumns { schema: Arc::clone(&stage.schema), types, rows: None, operator }
    }
}

/// Coalesces host batches to a batch of the run and uploads them, a few ahead of the kernels.
///
/// Kernels may never wait for an answer of the device, so the throttle alone bounds the memory.
pub(super) fn upload(
    input: SendableRecordBatchStream,
    columns: &UploadedColumns,
    run: &Arc<Run>,
    queue: Queue,
) -> DeviceBatchStream {
    let (columns, run) = (Arc::new(columns.clone()), Arc::clone(run));
    let start = (input, VecDeque::new(), None, columns.rows);
    stream::try_unfold(start, move |(mut input, mut consumed, mut rest, left)| {
        let (columns, run, queue) = (Arc::clone(&columns), Arc::clone(&run), queue.clone());
        async move {
            run.throttle(&mut consumed, &columns.operator).await?;
            let failed = |error| columnar_error(&columns.operator, error);
            // After a full batch the next one is most often full too.
            let batch_rows = run.rows_of_batch(&columns.types);
            let expected = left.unwrap_or(if consumed.len() > 1 { batch_rows } else { 0 });
            // Without a copy, a batch of the host has any size.
            let whole_rows = if queue.context().info().unified_memory { usize::MAX } else { run.rows_of_bytes(&columns.types) };
            let coalescer = BatchCoalescer::new(&queue, &columns.schema, &columns.types, batch_rows);
            let mut coalescer = coalescer.with_expected_rows(expected);
            let mut bytes = 0;
            while coalescer.remaining_rows() > 0 {
                let batch: RecordBatch = match rest.take() {
                    Some(rest) => rest,
                    None => match input.next().await {
                        Some(batch) => batch?,
                        None => break,
                    },
                };
                if batch.num_rows() == 0 {
                    continue;
                }
                let batch = cast_to_schema(batch, &columns.schema)?;
                // Strings and lists may be long.
                bytes += slice_bytes(&batch);
                if bytes > run.batch_bytes && !coalescer.is_empty() {
                    rest = Some(batch);
                    break;
                }
                let remaining = coalescer.remaining_rows();
                if batch.num_rows() <= remaining || (coalescer.is_empty() && batch.num_rows() <= whole_rows) {
                    coalescer.push(batch).map_err(failed)?;
                } else {
                    rest = Some(batch.slice(remaining, batch.num_rows() - remaining));
                    coalescer.push(batch.slice(0, remaining)).map_err(failed)?;
                }
            }
            let uploaded = coalescer.finish().map_err(failed)?;
            let rows: usize = uploaded.iter().map(DeviceBatch::num_rows).sum();
            let state = (input, consumed, rest, left.map(|left| left.saturating_sub(rows)));
            let next = (rows > 0).then(|| (stream::iter(uploaded.into_iter().map(Ok)), state));
            Ok::<_, DataFusionError>(next)
        }
    })
    .try_flatten()
    .boxed()
}

/// Bytes of a batch's rows on the host.
fn slice_bytes(batch: &RecordBatch) -> usize {
    batch.columns().iter().filter_map(|column| column.to_data().get_slice_memory_size().ok()).sum()
}

/// Casts columns to the types of the schema. Some of DataFusion's plans give a column's values for
/// the dictionary that the schema promises.
fn cast_to_schema(batch: RecordBatch, schema: &SchemaRef) -> Result<RecordBatch> {
    if schema.fields().is_empty() {
        return Ok(batch.project(&[])?);
    }
    let pairs = || batch.columns().iter().zip(schema.fields());
    if pairs().all(|(column, field)| column.data_type() == field.data_type()) {
        return Ok(batch);
    }
    let options = CastOptions { safe: false, ..CastOptions::default() };
    let columns = pairs().map(|(column, field)| {
        let (actual, expected) = (column.data_type(), field.data_type());
        if value_type(actual) != value_type(expected) {
            return internal_err!("column {} is of type {actual}, its schema says {expected}", field.name());
        }
        Ok(cast_with_options(column, expected, &options)?)
    });
    Ok(RecordBatch::try_new(Arc::clone(schema), columns.collect::<Result<_>>()?)?)
}
