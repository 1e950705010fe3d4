// SPDX-License-Identifier: Apache-2.0
//! DataFusion's own message for a row that failed in a kernel.

use std::sync::Arc;

use arrow::array::RecordBatch;
use columnar::DeviceBatch;
use datafusion::common::{DataFusionError, Result, internal_datafusion_err};
use datafusion::physical_expr::PhysicalExpr;
use device::Queue;

use crate::error::{columnar_error, op_error};
use crate::exec::panics;

/// The error of a failed kernel. For a failed row the host evaluates `checks` and gives its
/// message.
pub(super) async fn explain(
    error: kernels::Error,
    operator: &str,
    queue: &Queue,
    batch: &DeviceBatch,
    checks: &[Arc<dyn PhysicalExpr>],
) -> DataFusionError {
    let kernels::Error::Row { row } = error else { return op_error(operator, error) };
    match evaluated_on_host(row, operator, queue, batch, checks).await {
        Ok(row) => {
            let values: String = format!("{:?}", row.columns()).chars().take(200).collect();
            internal_datafusion_err!("{operator}: a row failed on the device and not on the host: {values}")
        }
        Err(error) => error,
    }
}

/// A row of a batch, after all `checks` have passed on the host.
async fn evaluated_on_host(
    row: u64,
    operator: &str,
    queue: &Queue,
    batch: &DeviceBatch,
    checks: &[Arc<dyn PhysicalExpr>],
) -> Result<RecordBatch> {
    let row = columnar::download(queue, &batch.slice(row as usize, 1)).await;
    let row = row.map_err(|error| columnar_error(operator, error))?;
    for check in checks {
        panics::evaluate(operator, check, &row)?;
    }
    Ok(row)
}
