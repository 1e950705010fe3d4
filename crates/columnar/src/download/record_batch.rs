// SPDX-License-Identifier: Apache-2.0
//! Download of a batch, at once or in parts of bounded size.

use std::future::Future;
use std::sync::Arc;

use arrow::array::{RecordBatch, RecordBatchOptions};
use device::Queue;
use futures::future::try_join_all;
use futures::{Stream, stream};

use crate::download::column::download_column_within;
use crate::{DeviceBatch, Error, Result};

/// Limit of copied bytes in a part of several rows.
const MAX_COPIED_BYTES: usize = 1 << 28;

/// Downloads a batch as a host batch of exactly `batch.schema()`'s types.
///
/// The reads are enqueued before this returns; the future waits for them. With unified memory the
/// host batch shares the device's buffers.
///
/// # Errors
/// `TooLarge` if strings exceed the offsets of their type; errors of the device.
pub fn download(queue: &Queue, batch: &DeviceBatch) -> impl Future<Output = Result<RecordBatch>> + Send + 'static + use<> {
    download_within(queue, batch, usize::MAX)
}

/// Downloads a batch in parts. Each is read when the stream is polled for it.
///
/// On the device, rows may share elements of lists or strings of a dictionary. The host needs a
/// copy for each row, so a part of several rows has two limits:
///
/// - at most 256 MiB of such copies,
/// - no more string bytes than an array of the type can address.
///
/// # Errors
/// `TooLarge` if the string of one row exceeds the offsets of its type; errors of the device.
pub fn download_parts(queue: &Queue, batch: DeviceBatch) -> impl Stream<Item = Result<RecordBatch>> + Send + 'static + use<> {
    parts_within(queue, batch, MAX_COPIED_BYTES)
}

/// As [`download_parts`], with at most `max_copied_bytes` of copies in a part of several rows.
pub(crate) fn parts_within(
    queue: &Queue,
    batch: DeviceBatch,
    max_copied_bytes: usize,
) -> impl Stream<Item = Result<RecordBatch>> + Send + 'static + use<> {
    let state = (queue.clone(), 0, batch.num_rows().max(1), batch);
    stream::try_unfold(state, move |(queue, start, mut part_rows, batch)| async move {
        let remaining = batch.num_rows() - start;
        if remaining == 0 {
            return Ok(None);
        }
        loop {
            let rows = part_rows.min(remaining);
            let limit = if rows == 1 { usize::MAX } else { max_copied_bytes };
            match download_within(&queue, &batch.slice(start, rows), limit).await {
                Err(Error::TooLarge { actual, limit, .. }) if rows > 1 => {
                    part_rows = (rows as u128 * limit as u128 / actual.max(1) as u128).clamp(1, rows as u128 / 2) as usize;
                }
                // Later rows may share less, so parts grow again.
                part => return Ok(Some((part?, (queue, start + rows, part_rows.saturating_mul(2), batch)))),
            }
        }
    })
}

fn download_within(
    queue: &Queue,
    batch: &DeviceBatch,
    max_copied_bytes: usize,
) -> impl Future<Output = Result<RecordBatch>> + Send + 'static + use<> {
    let (schema, rows) = (Arc::clone(batch.schema()), batch.num_rows());
    let columns = schema.fields().iter().zip(batch.columns());
    let columns = columns.map(|(field, column)| download_column_within(queue, field.name(), column, max_copied_bytes));
    let columns: Vec<_> = columns.collect();
    async move {
        let columns = try_join_all(columns).await?;
        let options = RecordBatchOptions::new().with_row_count(Some(rows));
        Ok(RecordBatch::try_new_with_options(schema, columns, &options)?)
    }
}
