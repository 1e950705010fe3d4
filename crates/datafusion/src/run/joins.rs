// SPDX-License-Identifier: Apache-2.0
//! Runs joins: first the tables of the build sides, then the rows that probe them.

use std::sync::Arc;

use columnar::DeviceBatch;
use datafusion::common::{DataFusionError, Result, internal_err};
use device::Queue;
use futures::{StreamExt, TryStreamExt, stream};
use kernels::ops::{ChainState, JoinChain, JoinTable, Mark};

use super::{DeviceBatchStream, Run, explain, merge, op_error};
use crate::graph::{BuildSide, Joins, Stage, StageKind};

/// Rows that probe the tables of one join after another.
pub(super) fn join(stage: Arc<Stage>, run: Arc<Run>, queue: Queue) -> DeviceBatchStream {
    stream::once(async move {
        let StageKind::Join(joins) = &stage.kind else { return internal_err!("a join stage") };
        let chain = chain(&stage, joins, &run, &queue).await?;
        // Where a build side has no rows, the probe side need not be read.
        let probing = if chain.is_empty() { stream::empty().boxed() } else { merge(&joins.probe, &run)? };
        let state = Probing { state: Some(chain.start()), chain, input: probing };
        let batches = stream::try_unfold((state, stage, queue), |(mut probing, stage, queue)| async move {
            let batches = probing.next(&stage, &queue).await?;
            Ok::<_, DataFusionError>(batches.map(|batches| (stream::iter(batches.into_iter().map(Ok)), (probing, stage, queue))))
        });
        Ok(batches.try_flatten())
    })
    .try_flatten()
    .boxed()
}

struct Probing {
    input: DeviceBatchStream,
    chain: JoinChain,
    /// `None` once everything is said.
    state: Option<ChainState>,
}

impl Probing {
    async fn next(&mut self, stage: &Stage, queue: &Queue) -> Result<Option<Vec<DeviceBatch>>> {
        let Some(state) = &mut self.state else { return Ok(None) };
        if let Some(batch) = self.input.next().await {
            let batch = batch?;
            let pushed = self.chain.push(queue, state, &batch).await;
            return Ok(Some(pushed.map_err(|error| failed_row(error, &stage.operator))?));
        }
        let Some(state) = self.state.take() else { return Ok(None) };
        let rest = self.chain.finish(queue, state).await;
        Ok(Some(rest.map_err(|error| failed_row(error, &stage.operator))?))
    }
}

/// The joins with their tables.
async fn chain(stage: &Stage, joins: &Joins, run: &Arc<Run>, queue: &Queue) -> Result<JoinChain> {
    let mut tables = Vec::with_capacity(joins.builds.len());
    for side in &joins.builds {
        tables.push(build(side, &stage.operator, run, queue).await?);
    }
    let (input, outputs, options) = (joins.input.clone(), joins.outputs.clone(), joins.options.clone());
    let chain = JoinChain::try_new(input, &joins.joins, Some(&tables), outputs, options)
        .map_err(|error| op_error(&stage.operator, error))?;
    let same =
        chain.output_types().iter().zip(&stage.types).all(|(is, planned)| {
            (&is.layout, is.nullable, &is.data_type) == (&planned.layout, planned.nullable, &planned.data_type)
        });
    if !same {
        return internal_err!("{}: {:?} instead of {:?}", stage.operator, chain.output_types(), stage.types);
    }
    Ok(chain)
}

/// The table of a build side.
async fn build(side: &BuildSide, operator: &str, run: &Arc<Run>, queue: &Queue) -> Result<Arc<JoinTable>> {
    let batches: Vec<DeviceBatch> = merge(&side.stage, run)?.try_collect().await?;
    let batch = side.concat.run(queue, batches).await.map_err(|error| op_error(operator, error))?;
    match side.build.build(queue, batch.clone()).await {
        Ok(table) => Ok(Arc::new(table)),
        Err(error) => Err(match &batch {
            Some(batch) => explain(error, operator, queue, batch, &side.checks).await,
            None => op_error(operator, error),
        }),
    }
}

/// Rows of a build side, marked where the probe side matches them.
pub(super) fn mark(stage: Arc<Stage>, run: Arc<Run>, queue: Queue) -> DeviceBatchStream {
    stream::once(async move {
        let StageKind::Mark(marks) = &stage.kind else { return internal_err!("a mark stage") };
        let table = build(&marks.build, &stage.operator, &run, &queue).await?;
        let empty = table.num_rows() == 0;
        let op = Mark::try_new(marks.input.clone(), &marks.join, Some(table), marks.options.clone())
            .map_err(|error| op_error(&stage.operator, error))?;
        let mut state = op.start();
        let mut input = if empty { stream::empty().boxed() } else { merge(&marks.probe, &run)? };
        while let Some(batch) = input.next().await {
            let batch = batch?;
            if let Err(error) = op.push(&queue, &mut state, &batch).await {
                return Err(explain(error, &stage.operator, &queue, &batch, &marks.checks).await);
            }
        }
        drop(input);
        let batches = op.finish(&queue, state).await.map_err(|error| op_error(&stage.operator, error))?;
        Ok(stream::iter(batches.into_iter().map(Ok)))
    })
    .try_flatten()
    .boxed()
}

/// The error of a row of several sides.
fn failed_row(error: kernels::Error, operator: &str) -> DataFusionError {
    match error {
        kernels::Error::Row { .. } => {
            let what = "an expression over joined rows failed (overflow, division by zero or a cast)";
            op_error(operator, kernels::Error::Unsupported(what.into()))
        }
        error => op_error(operator, error),
    }
}
