// SPDX-License-Identifier: Apache-2.0
//! Scan of a resident table.

use std::fmt;
use std::sync::Arc;

use datafusion::common::{Result, Statistics};
use datafusion::physical_plan::statistics::StatisticsArgs;
use datafusion::physical_plan::{DisplayAs, DisplayFormatType, ExecutionPlan, PlanProperties};

use crate::exec::{OperatorMetrics, column_names, leaf_methods, leaf_properties};
use crate::table::Snapshot;

/// Columns of a resident table, in the snapshot current when the query was planned.
#[derive(Debug)]
pub struct DeviceScanExec {
    snapshot: Arc<Snapshot>,
    columns: Vec<usize>,
    properties: Arc<PlanProperties>,
    pub(crate) metrics: OperatorMetrics,
}

impl DeviceScanExec {
    /// A scan of `columns`, by their positions in the table.
    pub(crate) fn try_new(snapshot: Arc<Snapshot>, columns: Vec<usize>) -> Result<Self> {
        let properties = leaf_properties(Arc::new(snapshot.schema().project(&columns)?));
        Ok(DeviceScanExec { snapshot, columns, properties, metrics: OperatorMetrics::new() })
    }

    /// The snapshot of the table.
    pub(crate) fn snapshot(&self) -> &Arc<Snapshot> {
        &self.snapshot
    }

    /// Positions of the scanned columns in the table.
    pub fn columns(&self) -> &[usize] {
        &self.columns
    }
}

impl DisplayAs for DeviceScanExec {
    fn fmt_as(&self, format: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = column_names(&self.schema());
        let (rows, batches) = (self.snapshot.num_rows(), self.snapshot.batches().len());
        match format {
            DisplayFormatType::TreeRender => write!(f, "rows={rows}\nbatches={batches}\nprojection={names}"),
            _ => write!(f, "DeviceScanExec: rows={rows}, batches={batches}, projection=[{names}]"),
        }
    }
}

impl ExecutionPlan for DeviceScanExec {
    leaf_methods!("DeviceScanExec", rows of "a resident table");

    fn statistics_from_inputs(&self, _input_stats: &[Arc<Statistics>], _args: &StatisticsArgs) -> Result<Arc<Statistics>> {
        Ok(Arc::new(self.snapshot.statistics().clone().project(Some(&self.columns))))
    }
}
