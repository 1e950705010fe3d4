// SPDX-License-Identifier: Apache-2.0
//! Joins: the tables of the build sides first, then the rows that probe them.

mod aggregate;
mod blocks;
mod build_side;
mod collected;
mod failed;
mod partitioned;
mod probing;
mod scan_filter;
mod spilled;
mod tables;

use std::sync::Arc;

use datafusion::common::{DataFusionError, Result};
use device::Queue;
use futures::{StreamExt, TryStreamExt, stream};

use self::probing::Probing;
use self::spilled::SpilledJoins;
use self::tables::{BuiltSides, Tables};
use super::DeviceBatchStream;
use super::coalesce::coalesce_small;
use super::state::Run;
use crate::graph::{ChainPlan, Joins, Stage};

pub(super) use aggregate::aggregate;
pub(super) use build_side::build_side;

/// Builds the tables of a stage's joins, then probes them.
pub(super) fn join(joins: Arc<Joins>, stage: Arc<Stage>, run: Arc<Run>, queue: Queue) -> DeviceBatchStream {
    stream::once(async move {
        match BuiltSides::build(&joins.plan, &stage, &run, &queue).await?.into_tables() {
            Ok(tables) => written(&stage, &joins, &run, queue, &tables),
            Err(built) => spilled(built, &joins, &stage, &run, queue).await,
        }
    })
    .try_flatten()
    .boxed()
}

/// The joined rows, written to columns.
fn written(stage: &Arc<Stage>, joins: &Joins, run: &Arc<Run>, queue: Queue, tables: &Arc<Tables>) -> Result<DeviceBatchStream> {
    let rows = probed(&joins.plan, stage, run, &queue, tables, || run.merge(&joins.probe))?;
    Ok(coalesced(rows, joins, stage, run, queue))
}

/// The same where rows of build sides are on disk.
async fn spilled(
    built: BuiltSides,
    joins: &Joins,
    stage: &Arc<Stage>,
    run: &Arc<Run>,
    queue: Queue,
) -> Result<DeviceBatchStream> {
    let spilled = SpilledJoins { stage: Arc::clone(stage), run: Arc::clone(run), queue: queue.clone() };
    let rows = spilled.joined(built, &joins.plan, run.merge(&joins.probe)?).await?;
    Ok(coalesced(rows, joins, stage, run, queue))
}

/// Small batches as larger ones, for a launch-heavy parent.
fn coalesced(rows: DeviceBatchStream, joins: &Joins, stage: &Stage, run: &Run, queue: Queue) -> DeviceBatchStream {
    match joins.coalescer.clone() {
        Some(concat) => coalesce_small(rows, concat, run.rows_of_batch(&stage.types), queue, stage.operator.clone()),
        None => rows,
    }
}

/// The rows that the joins of a plan make of `input`. It stays closed if there can be none.
fn probed(
    plan: &Arc<ChainPlan>,
    stage: &Arc<Stage>,
    run: &Arc<Run>,
    queue: &Queue,
    tables: &Arc<Tables>,
    input: impl FnOnce() -> Result<DeviceBatchStream>,
) -> Result<DeviceBatchStream> {
    let chain = tables.chain(plan, &stage.operator)?;
    let input = if chain.is_empty() { stream::empty().boxed() } else { input()? };
    let probing = Probing::new(input, chain, plan, stage, tables, queue);
    let state = (probing, Arc::clone(run), false);
    let batches = stream::try_unfold(state, |(mut probing, run, mut all_probed)| async move {
        if !all_probed {
            if let Some(batch) = probing.next().await? {
                return Ok::<_, DataFusionError>(Some((batch, (probing, run, false))));
            }
            probing.count_removed(&run);
            all_probed = true;
        }
        Ok(probing.next_unmatched().await?.map(|batch| (batch, (probing, run, all_probed))))
    });
    Ok(batches.boxed())
}
