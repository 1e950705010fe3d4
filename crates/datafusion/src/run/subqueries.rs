// SPDX-License-Identifier: Apache-2.0
//! Scalar subqueries: each runs once, before the rows of its offloaded subplan.

use std::sync::Arc;
use std::time::Instant;

use columnar::DeviceBatch;
use datafusion::common::{DataFusionError, Result, ScalarValue, exec_err, internal_err};
use datafusion::physical_plan::metrics::MetricBuilder;
use futures::future::{BoxFuture, Shared, try_join_all};
use futures::{FutureExt, TryStreamExt};

use super::state::{RUN_ENDED, Run};
use crate::error::columnar_error;
use crate::graph::{ScalarSide, Stage};

/// The row of a subquery, computed when the first reader polls it.
pub(super) type ScalarRows = Shared<BoxFuture<'static, Result<Arc<Vec<DeviceBatch>>, Arc<DataFusionError>>>>;

/// Runs the subqueries of a stage and of the stages below, each after the subqueries nested in it.
pub(super) fn run_all<'a>(stage: &'a Stage, run: &'a Arc<Run>) -> BoxFuture<'a, Result<()>> {
    let each = stage.scalar_subqueries().into_iter().map(move |(side, rows)| async move {
        run_all(rows, run).await?;
        rows_of(side, rows, run).await.map(drop)
    });
    let each: Vec<_> = each.collect();
    async move { try_join_all(each).await.map(drop) }.boxed()
}

/// The row of a subquery; empty without one.
pub(super) async fn rows_of(side: &ScalarSide, stage: &Arc<Stage>, run: &Arc<Run>) -> Result<Vec<DeviceBatch>> {
    let subquery = &side.subquery;
    let rows = {
        let mut scalars = run.scalars.lock();
        match scalars.iter().find(|(known, _)| known.is(subquery)) {
            Some((_, rows)) => rows.clone(),
            None => {
                let rows = compute(side.clone(), Arc::clone(stage), run);
                scalars.push((subquery.clone(), rows.clone()));
                rows
            }
        }
    };
    rows.await.map(|rows| rows.as_ref().clone()).map_err(DataFusionError::Shared)
}

fn compute(side: ScalarSide, stage: Arc<Stage>, run: &Arc<Run>) -> ScalarRows {
    // A weak reference: the run holds the rows.
    let run = Arc::downgrade(run);
    let rows = async move {
        let started = Instant::now();
        let ScalarSide { subquery, metrics } = side;
        let Some(run) = run.upgrade() else { return internal_err!("{RUN_ENDED}") };
        let mut batches = run.merge(&stage)?;
        let mut rows: Vec<DeviceBatch> = Vec::new();
        while let Some(batch) = batches.try_next().await? {
            if batch.num_rows() + rows.len() > 1 {
                // DataFusion's own message.
                return exec_err!("Scalar subquery returned more than one row");
            }
            rows.extend((batch.num_rows() > 0).then_some(batch));
        }
        if subquery.publishes {
            subquery.publish(value(rows.first(), &stage, &run).await?)?;
        }
        MetricBuilder::new(&metrics.set()).counter("subquery_rows", 0).add(rows.len());
        MetricBuilder::new(&metrics.set()).subset_time("subquery_time", 0).add_elapsed(started);
        Ok(rows)
    };
    rows.map(|rows| rows.map(Arc::new).map_err(Arc::new)).boxed().shared()
}

/// The value of a row; NULL without one.
async fn value(row: Option<&DeviceBatch>, stage: &Stage, run: &Run) -> Result<ScalarValue> {
    let Some(row) = row else { return ScalarValue::try_from(stage.schema.field(0).data_type()) };
    let row = columnar::download(&run.queue, row).await.map_err(|error| columnar_error(&stage.operator, error))?;
    ScalarValue::try_from_array(row.column(0), 0)
}
