// SPDX-License-Identifier: Apache-2.0
//! Computed columns.

use std::sync::Arc;

use datafusion::common::{Result, internal_err};
use datafusion::physical_expr::projection::ProjectionExpr;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::projection::ProjectionExec;

use crate::exec::{OperatorMetrics, host_counterpart};

/// Computes columns of each row.
///
/// Fused into the kernels of the operator above. Partitioning, ordering and statistics are those of
/// the `ProjectionExec` that it replaces.
#[derive(Debug)]
pub struct DeviceProjectionExec {
    pub(crate) host: Arc<dyn ExecutionPlan>,
    pub(crate) metrics: OperatorMetrics,
    expressions: Vec<ProjectionExpr>,
}

impl DeviceProjectionExec {
    /// Offloads a `ProjectionExec` whose child runs on the device.
    pub fn try_new(host: Arc<dyn ExecutionPlan>) -> Result<Self> {
        let Some(projection) = host.downcast_ref::<ProjectionExec>() else {
            return internal_err!("DeviceProjectionExec replaces a ProjectionExec, not {}", host.name());
        };
        let expressions = projection.expr().to_vec();
        Ok(DeviceProjectionExec { host, metrics: OperatorMetrics::new(), expressions })
    }

    /// The expressions, over the child's columns.
    pub fn expressions(&self) -> &[ProjectionExpr] {
        &self.expressions
    }
}

host_counterpart!(DeviceProjectionExec, "DeviceProjectionExec");
