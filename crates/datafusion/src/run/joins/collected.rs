// SPDX-License-Identifier: Apache-2.0
//! The rows of a build side before their table is built.

use std::sync::Arc;

use columnar::DeviceBatch;
use datafusion::common::Result;
use device::{Queue, SoftReservation};
use futures::{StreamExt, TryStreamExt, stream};
use kernels::ops::HashPartition;

use crate::error::op_error;
use crate::graph::{BuildSide, Stage};
use crate::run::DeviceBatchStream;
use crate::run::memory::unused_bytes;
use crate::run::partitions::{Partition, Partitioning};
use crate::run::state::Run;

/// Share of the limit that a build side leaves free, for its probe rows.
const LEFT_FREE: usize = 4;

/// The rows of a build side.
pub(super) enum CollectedSide {
    /// With the memory that the table will take.
    Rows(Vec<DeviceBatch>, SoftReservation),
    Spilled(Box<PartitionedSide>),
}

/// A side in partitions.
pub(super) struct PartitionedSide {
    pub partitioning: Partitioning,
    pub partitions: Vec<Partition>,
}

/// Collects the rows of a build side, in partitions on disk if `can_spill` and they do not fit
/// memory with their table.
pub(super) async fn collect_build_side(
    mut rows: DeviceBatchStream,
    side: &BuildSide,
    mut can_spill: bool,
    stage: &Stage,
    run: &Run,
    queue: &Queue,
) -> Result<CollectedSide> {
    let (mut batches, mut total, mut bytes) = (Vec::<DeviceBatch>::new(), 0, 0);
    let reservation = queue.context().pool().reserve_softly();
    while let Some(batch) = rows.try_next().await? {
        (total, bytes) = (total + batch.num_rows(), bytes + batch.row_bytes());
        batches.push(batch);
        // Several batches are concatenated.
        let copied = if batches.len() > 1 { bytes } else { 0 };
        let left_free = (queue.context().pool().limit() / LEFT_FREE).min(unused_bytes(queue) / 2);
        if !can_spill || reservation.try_grow(copied + side.build.table_bytes(total), left_free) {
            continue;
        }
        let op = HashPartition::of_build_side(&side.build, Arc::clone(&side.stage.schema), side.stage.types.clone());
        let op = op.map_err(|error| op_error(&side.operator, error))?;
        let Some(partitioning) = Partitioning::of(op, &side.checks, stage, run, queue) else {
            can_spill = false;
            continue;
        };
        drop(reservation);
        let rows = stream::iter(batches.into_iter().map(Ok)).chain(rows).boxed();
        let partitions = partitioning.partitioned(rows, 0).await?.partitions;
        let side = PartitionedSide { partitioning, partitions };
        return Ok(CollectedSide::Spilled(Box::new(side)));
    }
    Ok(CollectedSide::Rows(batches, reservation))
}
