// SPDX-License-Identifier: Apache-2.0
//! `WHERE`.

use std::sync::Arc;

use datafusion::common::{Result, internal_err};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::filter::FilterExec;

use crate::exec::{OperatorMetrics, host_counterpart};

/// Keeps the rows for which a predicate is true, in their order.
///
/// Fused into the kernels of the operator above. Partitioning, ordering and statistics are those of
/// the `FilterExec` that it replaces.
#[derive(Debug)]
pub struct DeviceFilterExec {
    pub(crate) host: Arc<dyn ExecutionPlan>,
    pub(crate) metrics: OperatorMetrics,
    predicate: Arc<dyn PhysicalExpr>,
    projection: Option<Vec<usize>>,
}

impl DeviceFilterExec {
    /// Offloads a `FilterExec` without `fetch`, whose child runs on the device.
    pub fn try_new(host: Arc<dyn ExecutionPlan>) -> Result<Self> {
        let Some(filter) = host.downcast_ref::<FilterExec>() else {
            return internal_err!("DeviceFilterExec replaces a FilterExec, not {}", host.name());
        };
        let predicate = Arc::clone(filter.predicate());
        let projection = filter.projection().as_ref().map(|projection| projection.to_vec());
        Ok(DeviceFilterExec { host, metrics: OperatorMetrics::new(), predicate, projection })
    }

    /// The predicate, over the child's columns.
    pub fn predicate(&self) -> &Arc<dyn PhysicalExpr> {
        &self.predicate
    }

    /// Passed-on columns of the child; all if `None`.
    pub fn projection(&self) -> Option<&[usize]> {
        self.projection.as_deref()
    }
}

host_counterpart!(DeviceFilterExec, "DeviceFilterExec");
