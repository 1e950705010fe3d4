// SPDX-License-Identifier: Apache-2.0
//! Aggregations that take their rows through the last joins themselves.

use std::sync::Arc;

use columnar::DeviceBatch;
use datafusion::common::DataFusionError;
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_plan::metrics::Count;
use device::Queue;
use futures::{StreamExt, TryStreamExt, stream};
use kernels::ops::{FusedJoins, JoinChain, Throttle};

use super::probing::{CurrentBatch, Probing, count};
use super::tables::{BuiltSides, same_types};
use super::{spilled, written};
use crate::error::op_error;
use crate::graph::{OverJoins, Stage};
use crate::run::DeviceBatchStream;
use crate::run::aggregate::Aggregation;
use crate::run::errors::explain;
use crate::run::metrics::output_rows;

/// Runs an aggregation over joins. Its kernels probe the last joins themselves, if the tables allow
/// it. Else the joins of the stage `below` write their rows, and `aggregation` reads them.
pub(in crate::run) fn aggregate(over: Arc<OverJoins>, aggregation: Aggregation, below: Arc<Stage>) -> DeviceBatchStream {
    stream::once(async move {
        let (joins, plan) = (&over.joins, &over.joins.plan);
        let (run, stage) = (Arc::clone(&aggregation.run), Arc::clone(&aggregation.stage));
        let (queue, checks) = (aggregation.queue.clone(), Arc::clone(&aggregation.checks));
        let of_joins = run.metered(&run.queue, &below.operator, &below.metrics.set(), 0);
        let joined_rows = output_rows(&below.metrics.set(), 0);
        let over_written = |rows: DeviceBatchStream, joined_rows: Count| {
            aggregation.over(rows.inspect_ok(move |batch| joined_rows.add(batch.num_rows())).boxed())
        };
        let tables = match BuiltSides::build(plan, &below, &run, &of_joins).await?.into_tables() {
            Ok(tables) => tables,
            Err(built) => {
                let rows = spilled(built, joins, &below, &run, of_joins).await?;
                return Ok(over_written(rows, joined_rows));
            }
        };
        let (input, outputs) = (plan.part.input.clone(), plan.part.outputs.clone());
        let chain = JoinChain::before_aggregation(input, &tables.joins, Some(&tables.tables), outputs, &plan.options);
        let (chain, joined) = chain.map_err(|error| op_error(&below.operator, error))?;
        let op = joined.as_ref().map(|joined| over.aggregate(joined)).transpose();
        let op = op.map_err(|error| op_error(&stage.operator, error))?.flatten();
        let (Some(op), Some(joined)) = (op.filter(|op| same_types(op.output_types(), &stage.types)), joined) else {
            let rows = written(&below, joins, &run, of_joins, &tables)?;
            return Ok(over_written(rows, joined_rows));
        };
        let nothing = chain.is_empty() || joined.is_empty();
        let input = if nothing { stream::empty().boxed() } else { run.merge(&joins.probe)? };
        let mut probing = Probing::new(input, chain, plan, &below, &tables, &of_joins);
        let failed = |error| op_error(&stage.operator, error);
        let queue = joined.metered(&queue);
        let mut state = op.start();
        let mut throttle = Throttle::default();
        while let Some(batch) = probing.next().await? {
            for slice in joined.slices(&queue, &batch) {
                joined.throttle(&queue, &mut throttle, &slice).await.map_err(failed)?;
                if let Err(error) = op.push(&queue, &mut state, &slice).await {
                    return Err(failed_joined(error, &stage.operator, &joined, &probing.current, &queue, &slice, &checks).await);
                }
            }
        }
        let (before, within) = (probing.removed(), op.joined_rows(&queue, &state));
        let (removed, operator) = (tables.removed.clone(), stage.operator.clone());
        run.at_end(async move {
            let (before, within) = futures::try_join!(before, within).map_err(|error| op_error(&operator, error))?;
            joined_rows.add(within.kept as usize);
            count(&removed, before.into_iter().chain(within.removed));
            Ok(())
        });
        let batches = op.finish(&queue, state).await.map_err(failed)?;
        let batches = batches.into_iter().filter(|batch| batch.num_rows() > 0);
        Ok(stream::iter(batches.map(Ok).collect::<Vec<_>>()).boxed())
    })
    .try_flatten()
    .boxed()
}

/// The error of a row of the probe side: DataFusion's message for the joined rows.
async fn failed_joined(
    error: kernels::Error,
    operator: &str,
    joined: &FusedJoins,
    current: &CurrentBatch,
    queue: &Queue,
    batch: &DeviceBatch,
    checks: &[Arc<dyn PhysicalExpr>],
) -> DataFusionError {
    let kernels::Error::Row { row } = error else { return op_error(operator, error) };
    match joined.write_row(queue, &batch.slice(row as usize, 1)).await {
        Ok(Some(written)) => explain(kernels::Error::Row { row: 0 }, operator, queue, &written, checks).await,
        Ok(None) => current.failed(kernels::Error::JoinedRow, queue).await,
        Err(error) => current.failed(error, queue).await,
    }
}
