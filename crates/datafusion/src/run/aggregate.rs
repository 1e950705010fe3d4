// SPDX-License-Identifier: Apache-2.0
//! Aggregations whose groups may be more than device memory.
//!
//! Once further groups would not fit, the state is frozen. Rows of its groups are aggregated; the
//! others go to disk. They are aggregated after it, again by as many groups as fit. So each group
//! is whole in one of these rounds, whatever the aggregates are.

use std::sync::Arc;

use columnar::{DeviceBatch, StorageFormat};
use datafusion::common::{DataFusionError, Result, internal_err};
use device::Queue;
use futures::{StreamExt, TryStreamExt, stream};
use kernels::ops::{GroupBy, GroupByState};

use super::DeviceBatchStream;
use super::blocking::{self, Blocking};
use super::errors::explain;
use super::memory::{free_bytes, pieces};
use super::spill::{Spill, SpillWriter, SpilledBatches};
use super::state::Run;
use crate::error::op_error;
use crate::graph::{AggregateOp, Checks, ListOutput, Stage};

/// Rows of a piece of input under any limit.
const FEWEST_ROWS: usize = 1 << 8;

/// An aggregation of a stage.
pub(super) struct Aggregation {
    pub op: Arc<AggregateOp>,
    pub lists: Vec<ListOutput>,
    pub checks: Checks,
    pub stage: Arc<Stage>,
    pub run: Arc<Run>,
    pub queue: Queue,
}

/// The rows of a round.
enum Rows {
    /// The input of the operator.
    Input(DeviceBatchStream),
    /// What the round before has set aside.
    SetAside(Spill, SpilledBatches),
}

impl Aggregation {
    /// Aggregates rows. Groups that do not fit memory spill, where the aggregates allow that.
    pub fn over(self, rows: DeviceBatchStream) -> DeviceBatchStream {
        if !self.run.may_spill() || !self.op.may_freeze() || !self.lists.is_empty() {
            let op = Blocking::Aggregate(self.op, self.lists);
            return blocking::run(rows, op, self.checks, self.stage, self.queue);
        }
        let rounds = stream::try_unfold((self, Some(Rows::Input(rows))), |(aggregation, rows)| async move {
            let Some(rows) = rows else { return Ok::<_, DataFusionError>(None) };
            let (groups, rest) = aggregation.round(rows).await?;
            Ok(Some((stream::iter(groups.into_iter().map(Ok)), (aggregation, rest))))
        });
        rounds.try_flatten().try_filter(|batch| std::future::ready(batch.num_rows() > 0)).boxed()
    }

    /// The groups that fit, and the rows of the others.
    async fn round(&self, rows: Rows) -> Result<(Vec<DeviceBatch>, Option<Rows>)> {
        let Some(op) = self.op.group_by() else { return internal_err!("an aggregation without keys spills") };
        let (is_input, mut rows) = match rows {
            Rows::Input(rows) => (true, rows),
            Rows::SetAside(spill, batches) => (false, spill.read(&self.queue, batches)?),
        };
        let (mut state, mut files, mut may_spill) = (op.start(), None, true);
        while let Some(batch) = rows.try_next().await? {
            for piece in self.pieces(op, batch, files.is_some()) {
                if may_spill && files.is_none() && state.groups() > 0 && !self.fits(op, &state, &piece) {
                    files = self.freeze(op, &mut state)?;
                    may_spill = files.is_some();
                }
                let rest = match is_input {
                    true => op.push_known(&self.queue, &mut state, &piece).await,
                    false => op.push_set_aside(&self.queue, &mut state, &piece).await,
                };
                match (rest, &mut files) {
                    (Ok(Some(rest)), Some((_, writer))) => writer.write(&rest).await?,
                    (Ok(_), _) => {}
                    (Err(error), _) => {
                        return Err(explain(error, &self.stage.operator, &self.queue, &piece, &self.checks).await);
                    }
                }
            }
        }
        drop(rows);
        let rest = match files {
            Some((spill, writer)) => writer.finish().await?.map(|batches| Rows::SetAside(spill, batches)),
            None => None,
        };
        let groups = op.finish(&self.queue, state).await.map_err(|error| op_error(&self.stage.operator, error))?;
        Ok((groups, rest))
    }

    /// Makes the state take no further groups. `None` if rows cannot be stored.
    fn freeze(&self, op: &GroupBy, state: &mut GroupByState) -> Result<Option<(Spill, SpillWriter)>> {
        let (schema, types) = op.set_aside_types().map_err(|error| op_error(&self.stage.operator, error))?;
        let Some(format) = StorageFormat::of(&schema, &types) else { return Ok(None) };
        op.freeze(state).map_err(|error| op_error(&self.stage.operator, error))?;
        let spill = Spill::new(format, &self.stage, &self.run.task);
        let writer = spill.writer(&self.queue)?;
        Ok(Some((spill, writer)))
    }

    /// Whether the state can take the groups of a batch, beside a copy of its rows that is written
    /// and two batches on their way.
    fn fits(&self, op: &GroupBy, state: &GroupByState, batch: &DeviceBatch) -> bool {
        let bytes = batch.row_bytes();
        op.growth_bytes(state, batch.num_rows(), bytes) + 4 * bytes <= free_bytes(&self.queue)
    }

    /// A batch as it is where its groups fit a new state, else in pieces that several fit memory. A
    /// frozen state takes none.
    fn pieces(&self, op: &GroupBy, batch: DeviceBatch, is_frozen: bool) -> Vec<DeviceBatch> {
        let (rows, bytes) = (batch.num_rows(), batch.row_bytes());
        let growth = if is_frozen { 0 } else { op.growth_bytes(&op.start(), rows, bytes) };
        pieces(batch, growth + 4 * bytes, free_bytes(&self.queue) / 4, FEWEST_ROWS)
    }
}
