// SPDX-License-Identifier: Apache-2.0
//! `GROUPING SETS`: each batch once for each set of keys.

use std::sync::Arc;

use columnar::{DeviceBatch, DeviceColumn};
use datafusion::common::{DataFusionError, Result};
use device::Queue;
use futures::{StreamExt, TryStreamExt, stream};

use super::DeviceBatchStream;
use crate::error::{columnar_error, device_error};
use crate::exec::GroupingSet;
use crate::graph::Stage;

/// Expands batches of at most `batch_rows` rows of the stage `from`.
///
/// Without rows, sets of no keys still have a group: they get one blank row, which
/// `DeviceExpandExec::REAL` flags.
pub(super) fn expand(
    input: DeviceBatchStream,
    from: &Arc<Stage>,
    sets: &[GroupingSet],
    stage: &Arc<Stage>,
    batch_rows: usize,
    queue: Queue,
) -> DeviceBatchStream {
    let (sets, stage, from) = (sets.to_vec(), Arc::clone(stage), Arc::clone(from));
    let chunks = input.map_ok(move |batch| stream::iter(batch.chunks(batch_rows).map(Ok::<_, DataFusionError>))).try_flatten();
    let batches = chunks.map_ok(Some).chain(stream::once(async { Ok(None) }));
    let mut any_rows = false;
    let expanded = batches.map(move |batch| {
        let (batch, is_real) = match batch? {
            Some(batch) => (batch, true),
            None => {
                let blank = DeviceBatch::blank(&queue, &from.schema, &from.types);
                (blank.map_err(|error| columnar_error(&stage.operator, error))?, false)
            }
        };
        any_rows |= is_real && batch.num_rows() > 0;
        let is_wanted = |set: &GroupingSet| if is_real { batch.num_rows() > 0 } else { !any_rows && set.is_total() };
        let wanted: Vec<_> = sets.iter().filter(|set| is_wanted(set)).cloned().collect();
        let (stage, queue) = (Arc::clone(&stage), queue.clone());
        Ok::<_, DataFusionError>(stream::iter(wanted).map(move |set| for_set(&batch, &set, is_real, &stage, &queue)))
    });
    expanded.try_flatten().boxed()
}

/// A batch whose keys outside of a set are NULL, with the set's `__grouping_id` behind them.
fn for_set(batch: &DeviceBatch, set: &GroupingSet, is_real: bool, stage: &Stage, queue: &Queue) -> Result<DeviceBatch> {
    let failed = |error| columnar_error(&stage.operator, error);
    let first_key = batch.columns().len().saturating_sub(set.masked.len());
    let (passed, keys) = batch.columns().split_at(first_key);
    let keys = keys.iter().zip(&set.masked).map(|(key, masked)| key.nullable(queue, *masked));
    let mut columns = passed.iter().cloned().map(Ok).chain(keys).collect::<columnar::Result<Vec<_>>>().map_err(failed)?;
    let rows = batch.num_rows();
    let constants = [(rows, set.id), (rows.div_ceil(32) * 4, if is_real { 0xff } else { 0 })];
    for (ty, (bytes, value)) in stage.types.iter().skip(columns.len()).zip(constants) {
        let values = queue.filled(bytes, value).map_err(|error| device_error(&stage.operator, error))?;
        columns.push(DeviceColumn::try_new(Arc::new(ty.clone()), rows, vec![values], None, None, None).map_err(failed)?);
    }
    DeviceBatch::try_new(Arc::clone(&stage.schema), columns, rows).map_err(failed)
}
