// SPDX-License-Identifier: Apache-2.0
//! Window functions on the device.

use std::sync::Arc;

use datafusion::common::{Result, internal_err};
use datafusion::physical_expr::window::WindowExpr;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::metrics::ExecutionPlanMetricsSet;

use crate::exec::{row_wise_operator, window_exprs};

/// Appends window functions of one partitioning and order to its rows, which come in that order and keep it.
///
/// It stands for a `WindowAggExec` or a `BoundedWindowAggExec`; here all rows of the input are kept until the last one came.
#[derive(Debug)]
pub struct DeviceWindowExec {
    pub(crate) host: Arc<dyn ExecutionPlan>,
    pub(crate) metrics: ExecutionPlanMetricsSet,
    functions: Vec<Arc<dyn WindowExpr>>,
}

impl DeviceWindowExec {
    /// The device form of a window operator, whose child runs on the device and has one partition.
    pub fn try_new(host: Arc<dyn ExecutionPlan>) -> Result<Self> {
        let Some(functions) = window_exprs(&host) else {
            return internal_err!("DeviceWindowExec stands for a window operator, not {}", host.name());
        };
        let functions = functions.to_vec();
        Ok(DeviceWindowExec { host, metrics: ExecutionPlanMetricsSet::new(), functions })
    }

    /// The functions.
    pub fn functions(&self) -> &[Arc<dyn WindowExpr>] {
        &self.functions
    }
}

row_wise_operator!(DeviceWindowExec, "DeviceWindowExec");
