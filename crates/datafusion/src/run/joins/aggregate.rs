// SPDX-License-Identifier: Apache-2.0
//! Aggregations that take their rows through the last joins themselves.

use std::sync::Arc;

use columnar::DeviceBatch;
use datafusion::common::DataFusionError;
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_plan::metrics::MetricBuilder;
use device::Queue;
use futures::{StreamExt, TryStreamExt, stream};
use kernels::ops::{FusedJoins, JoinChain, Throttle};

use super::probing::{CurrentBatch, Probing, count};
use super::tables::{Tables, has_planned_types};
use super::written;
use crate::error::op_error;
use crate::graph::{Checks, OverJoins, Stage};
use crate::run::DeviceBatchStream;
use crate::run::blocking::{self, Blocking};
use crate::run::errors::explain;
use crate::run::state::Run;

/// Runs an aggregation whose kernels probe the last joins themselves, if the tables allow that.
/// Else the joins of the stage `below` write their rows, and `over_rows` aggregates them.
pub(in crate::run) fn aggregate(
    over: Arc<OverJoins>,
    over_rows: Blocking,
    checks: Checks,
    stage: Arc<Stage>,
    below: Arc<Stage>,
    run: Arc<Run>,
    queue: Queue,
) -> DeviceBatchStream {
    stream::once(async move {
        let joins = &over.joins;
        let of_joins = run.metered(&run.queue, &below.metrics.set(), 0);
        let joined_rows = MetricBuilder::new(&below.metrics.set()).output_rows(0);
        let tables = Arc::new(Tables::build(joins, &run, &of_joins).await?);
        let (input, outputs) = (joins.input.clone(), joins.outputs.clone());
        let chain = JoinChain::before_aggregation(input, &tables.joins, Some(&tables.tables), outputs, &joins.options);
        let (chain, joined) = chain.map_err(|error| op_error(&below.operator, error))?;
        let op = joined.as_ref().map(|joined| over.aggregate(joined)).transpose();
        let op = op.map_err(|error| op_error(&stage.operator, error))?.flatten();
        let (Some(op), Some(joined)) = (op.filter(|op| has_planned_types(op.output_types(), &stage)), joined) else {
            let rows =
                written(&below, joins, &run, of_joins, &tables)?.inspect_ok(move |batch| joined_rows.add(batch.num_rows()));
            return Ok(blocking::run(rows.boxed(), over_rows, checks, Arc::clone(&stage), queue));
        };
        let nothing = chain.is_empty() || joined.is_empty();
        let mut probing = Probing::new(nothing, chain, joins, &below, &tables, &run, &of_joins)?;
        let failed = |error| op_error(&stage.operator, error);
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
