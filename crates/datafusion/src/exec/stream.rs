// SPDX-License-Identifier: Apache-2.0
//! Scan of a stream of device arrays that another library produces.

use std::fmt;
use std::sync::Arc;

use datafusion::common::Result;
use datafusion::physical_plan::{DisplayAs, DisplayFormatType, ExecutionPlan, PlanProperties};

use crate::exchange::Source;
use crate::exec::{OperatorMetrics, column_names, leaf_methods, leaf_properties};

/// Columns of a stream table, read in place if they are memory of the session's device.
#[derive(Debug)]
pub struct DeviceStreamExec {
    source: Arc<Source>,
    columns: Vec<usize>,
    properties: Arc<PlanProperties>,
    pub(crate) metrics: OperatorMetrics,
}

impl DeviceStreamExec {
    /// A scan of `columns`, by their positions in the arrays.
    pub(crate) fn try_new(source: Arc<Source>, columns: Vec<usize>) -> Result<Self> {
        let properties = leaf_properties(Arc::new(source.schema().project(&columns)?));
        Ok(DeviceStreamExec { source, columns, properties, metrics: OperatorMetrics::new() })
    }

    /// The source of the arrays.
    pub(crate) fn source(&self) -> &Arc<Source> {
        &self.source
    }

    /// Positions of the scanned columns in the arrays.
    pub fn columns(&self) -> &[usize] {
        &self.columns
    }
}

impl DisplayAs for DeviceStreamExec {
    fn fmt_as(&self, format: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (source, names) = (self.source.name(), column_names(&self.schema()));
        match format {
            DisplayFormatType::TreeRender => write!(f, "source={source}\nprojection={names}"),
            _ => write!(f, "DeviceStreamExec: source={source}, projection=[{names}]"),
        }
    }
}

impl ExecutionPlan for DeviceStreamExec {
    leaf_methods!("DeviceStreamExec", rows of "a device stream");
}
