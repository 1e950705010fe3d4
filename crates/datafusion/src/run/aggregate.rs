// SPDX-License-Identifier: Apache-2.0
//! Aggregations whose groups may be more than device memory.
//!
//! Once further groups would not fit, the state is frozen. Rows of its groups are aggregated; the
//! others go to disk, in partitions by their groups. Each partition is aggregated after it in the
//! same way. So each group is whole in one of these rounds, whatever the aggregates are. Values of
//! DISTINCT go to disk before, see [`super::distinct`].

use std::sync::Arc;

use columnar::{DeviceBatch, StorageFormat};
use datafusion::common::{DataFusionError, Result, internal_err};
use device::Queue;
use futures::{StreamExt, TryStreamExt, stream};
use kernels::ops::{GroupBy, GroupByState};

use super::DeviceBatchStream;
use super::blocking::{self, Blocking};
use super::distinct::DistinctValues;
use super::errors::explain;
use super::memory::{free_bytes, slices};
use super::partitions::{Partition, PartitionWriter, Partitioning};
use super::state::Run;
use crate::error::op_error;
use crate::graph::{AggregateOp, Checks, ListOutput, Stage};

/// An aggregation of a stage.
pub(super) struct Aggregation {
    pub op: Arc<AggregateOp>,
    pub lists: Vec<ListOutput>,
    pub checks: Checks,
    pub stage: Arc<Stage>,
    pub run: Arc<Run>,
    pub queue: Queue,
}

/// An aggregation in rounds.
struct Rounds {
    aggregation: Aggregation,
    /// The input of the operator, before the first round.
    input: Option<DeviceBatchStream>,
    /// How rows are set aside, once some are.
    partitioning: Option<Partitioning>,
    /// The partitions that are left, with their levels.
    pending: Vec<(Partition, u32)>,
}

/// The rows of a round.
struct RoundRows {
    rows: DeviceBatchStream,
    /// Whether they are the input of the operator, not rows set aside before.
    are_input: bool,
    /// The level of partitions of rows that this round sets aside.
    level: u32,
}

impl Aggregation {
    /// Aggregates rows. Groups that do not fit memory spill, or values of DISTINCT.
    pub fn over(self, rows: DeviceBatchStream) -> DeviceBatchStream {
        let may_spill = self.run.may_spill() && self.lists.is_empty();
        if !may_spill || !(self.op.may_freeze() || self.op.has_distinct()) {
            let op = Blocking::Aggregate(self.op, self.lists);
            return blocking::run(rows, op, self.checks, self.stage, self.queue);
        }
        let rounds = Rounds { aggregation: self, input: Some(rows), partitioning: None, pending: vec![] };
        let rounds = stream::try_unfold(rounds, |mut rounds| async move {
            let Some(groups) = rounds.next().await? else { return Ok::<_, DataFusionError>(None) };
            Ok(Some((stream::iter(groups.into_iter().map(Ok)), rounds)))
        });
        rounds.try_flatten().try_filter(|batch| std::future::ready(batch.num_rows() > 0)).boxed()
    }

    /// How rows are set aside. `None` if they cannot be stored.
    fn partitioning(&self, op: &GroupBy) -> Result<Option<Partitioning>> {
        let failed = |error| op_error(&self.stage.operator, error);
        let (schema, types) = op.set_aside_types().map_err(failed)?;
        let Some(format) = StorageFormat::of(&schema, &types) else { return Ok(None) };
        let op = op.set_aside_partition().map_err(failed)?;
        Ok(Some(Partitioning::with_format(op, format, &[], &self.stage, &self.run, &self.queue)))
    }

    /// Whether the state can take the groups and values of a batch. Beside them there is room for a
    /// copy of its rows that is written or computed, and for two batches on their way. Values of
    /// DISTINCT are merged beside all groups, so as much is left as those last grew by.
    fn fits(&self, op: &GroupBy, state: &GroupByState, batch: &DeviceBatch) -> bool {
        let (rows, bytes) = (batch.num_rows(), batch.row_bytes());
        let merges = if op.distinct_count() > 0 { op.group_growth_bytes(state, rows, bytes) } else { 0 };
        op.growth_bytes(state, rows, bytes) + merges + 4 * bytes <= free_bytes(&self.queue)
    }

    /// A batch, cut into slices unless its groups and values fit a new state. Several slices fit
    /// memory. A frozen state takes values alone.
    fn slices(&self, op: &GroupBy, batch: DeviceBatch, is_frozen: bool) -> Vec<DeviceBatch> {
        let (rows, bytes) = (batch.num_rows(), batch.row_bytes());
        let start = op.start();
        let of_groups = if is_frozen { op.group_growth_bytes(&start, rows, bytes) } else { 0 };
        let growth = op.growth_bytes(&start, rows, bytes) - of_groups;
        slices(batch, growth + 4 * bytes, free_bytes(&self.queue) / 4)
    }
}

impl Rounds {
    /// The groups of a round, as many as fit.
    async fn next(&mut self) -> Result<Option<Vec<DeviceBatch>>> {
        let op = Arc::clone(&self.aggregation.op);
        let Some(op) = op.group_by() else { return internal_err!("an aggregation without groups spills") };
        let Some(RoundRows { mut rows, are_input, level }) = self.rows(op)? else { return Ok(None) };
        let Aggregation { stage, queue, checks, .. } = &self.aggregation;
        let failed = |error| op_error(&stage.operator, error);
        let (mut state, mut writer, mut may_freeze) = (op.start(), None::<PartitionWriter>, op.may_freeze());
        let mut values = DistinctValues::default();
        while let Some(batch) = rows.try_next().await? {
            for slice in self.aggregation.slices(op, batch, writer.is_some()) {
                let of = &self.aggregation;
                if !of.fits(op, &state, &slice) {
                    values.spill(of, op, &mut state).await?;
                }
                if may_freeze && state.groups() > 0 && !of.fits(op, &state, &slice) {
                    may_freeze = false;
                    if self.partitioning.is_none() {
                        self.partitioning = of.partitioning(op)?;
                    }
                    writer = self.partitioning.as_ref().map(|partitioning| partitioning.writer(level));
                    if writer.is_some() {
                        op.freeze(&mut state).map_err(failed)?;
                    }
                }
                let rest = match are_input {
                    true => op.push_known(queue, &mut state, &slice).await,
                    false => op.push_set_aside(queue, &mut state, &slice).await,
                };
                match (rest, &mut writer) {
                    (Ok(Some(rest)), Some(writer)) => writer.write(&rest).await?,
                    (Ok(_), _) => {}
                    (Err(error), _) => return Err(explain(error, &stage.operator, queue, &slice, checks).await),
                }
            }
        }
        drop(rows);
        if let Some(writer) = writer {
            let partitions = writer.finish().await?.partitions.into_iter().filter(|partition| partition.rows > 0);
            self.pending.extend(partitions.map(|partition| (partition, level + 1)));
        }
        values.merge(&self.aggregation, op, &mut state).await?;
        op.finish(queue, state).await.map(Some).map_err(failed)
    }

    /// The rows of the next round: the input, then as many partitions as have groups that fit.
    fn rows(&mut self, op: &GroupBy) -> Result<Option<RoundRows>> {
        if let Some(rows) = self.input.take() {
            return Ok(Some(RoundRows { rows, are_input: true, level: 0 }));
        }
        let (Some((mut partition, mut level)), Some(partitioning)) = (self.pending.pop(), &self.partitioning) else {
            return Ok(None);
        };
        let most = free_bytes(&self.aggregation.queue) / 2;
        while let Some((next, level_of_next)) = self.pending.last() {
            let (rows, bytes) = (partition.rows + next.rows, partition.bytes + next.bytes);
            if op.growth_bytes(&op.start(), rows, bytes) > most {
                break;
            }
            level = level.max(*level_of_next);
            let Some((next, _)) = self.pending.pop() else { break };
            partition = partition.with(next);
        }
        Ok(Some(RoundRows { rows: partitioning.read(partition)?, are_input: false, level }))
    }
}
