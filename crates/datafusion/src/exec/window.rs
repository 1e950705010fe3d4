// SPDX-License-Identifier: Apache-2.0
//! Window functions.

use std::fmt;
use std::sync::Arc;

use datafusion::common::{Result, internal_err};
use datafusion::physical_expr::window::WindowExpr;
use datafusion::physical_plan::{DisplayAs, DisplayFormatType, ExecutionPlan};

use crate::exec::{OperatorMetrics, host_counterpart, window_exprs};
use crate::expr::describe_window;

/// Appends window functions of one partitioning and order to rows in that order.
///
/// Replaces a `WindowAggExec` or a `BoundedWindowAggExec`. It holds all rows up to the input's end,
/// or those of the partitions that fit device memory.
#[derive(Debug)]
pub struct DeviceWindowExec {
    pub(crate) host: Arc<dyn ExecutionPlan>,
    pub(crate) metrics: OperatorMetrics,
    functions: Vec<Arc<dyn WindowExpr>>,
}

impl DeviceWindowExec {
    /// Offloads a window operator whose child runs on the device in one partition.
    pub fn try_new(host: Arc<dyn ExecutionPlan>) -> Result<Self> {
        let Some(functions) = window_exprs(&host) else {
            return internal_err!("DeviceWindowExec replaces a window operator, not {}", host.name());
        };
        let functions = functions.to_vec();
        Ok(DeviceWindowExec { host, metrics: OperatorMetrics::new(), functions })
    }

    /// The functions.
    pub fn functions(&self) -> &[Arc<dyn WindowExpr>] {
        &self.functions
    }
}

impl DisplayAs for DeviceWindowExec {
    fn fmt_as(&self, format: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if format == DisplayFormatType::TreeRender {
            // The names of the functions.
            return self.host.fmt_as(format, f);
        }
        // DataFusion's text has types and frames in Rust's notation.
        let functions: Vec<String> = self.functions.iter().map(describe_window).collect();
        write!(f, "DeviceWindowExec: wdw=[{}]", functions.join(", "))
    }
}

host_counterpart!(plan of DeviceWindowExec, "DeviceWindowExec", |node| node.host.properties());
