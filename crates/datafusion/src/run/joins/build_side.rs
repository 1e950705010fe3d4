// SPDX-License-Identifier: Apache-2.0
//! Joins that give rows of their build side alone.

use std::sync::Arc;

use columnar::DeviceBatch;
use datafusion::common::Result;
use device::Queue;
use futures::{StreamExt, TryStreamExt, stream};
use kernels::ops::{JoinTable, ProbeSideFacts, VisitedBitmap};

use super::failed::failed_build_side;
use super::spilled::SpilledJoins;
use super::tables::{BuiltSide, build};
use crate::error::op_error;
use crate::graph::{BuildSideJoin, Stage};
use crate::run::DeviceBatchStream;
use crate::run::state::Run;

/// Runs the probe side over the build table's visited bitmap, then gives the build side's rows with
/// a mark.
pub(in crate::run) fn build_side(join: Arc<BuildSideJoin>, stage: Arc<Stage>, run: Arc<Run>, queue: Queue) -> DeviceBatchStream {
    stream::once(async move {
        let may_spill = run.may_spill() && join.plan().may_store();
        let table = match build(&join.build, may_spill, &stage, &run, &queue).await? {
            BuiltSide::Table(table) => table,
            BuiltSide::Spilled(side) => {
                let rows = run.merge(&join.probe)?;
                return SpilledJoins { stage, run, queue }.build_side(&join, *side, rows).await;
            }
        };
        let (probe, facts) = (|| run.merge(&join.probe), ProbeSideFacts::default());
        let batches = visited(&join, table, probe, facts, &stage.operator, &queue).await?;
        Ok(stream::iter(batches.into_iter().map(Ok)).boxed())
    })
    .try_flatten()
    .boxed()
}

/// The build side's rows with a mark. `probe` is not opened if no row can have a match. `facts`: of
/// the whole probe side, where `probe` is a part of it.
pub(super) async fn visited(
    join: &BuildSideJoin,
    table: Arc<JoinTable>,
    probe: impl FnOnce() -> Result<DeviceBatchStream>,
    facts: ProbeSideFacts,
    operator: &str,
    queue: &Queue,
) -> Result<Vec<DeviceBatch>> {
    // DataFusion reads the probe side of joins without keys in any case.
    let empty = table.gives_nothing(join.join.kind) && !join.join.keys.is_empty();
    let op = VisitedBitmap::try_new(join.input.clone(), &join.join, Some(Arc::clone(&table)), join.options.clone())
        .map_err(|error| op_error(operator, error))?;
    let mut state = op.start_part(facts);
    let mut input = if empty { stream::empty().boxed() } else { probe()? };
    while let Some(batch) = input.next().await {
        let batch = batch?;
        if let Err(error) = op.push(queue, &mut state, &batch).await {
            return Err(failed_build_side(error, operator, join, &table, queue, &batch).await);
        }
    }
    drop(input);
    op.finish(queue, state).await.map_err(|error| op_error(operator, error))
}
