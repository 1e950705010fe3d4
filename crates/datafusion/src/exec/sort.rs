// SPDX-License-Identifier: Apache-2.0
//! `ORDER BY`.

use std::sync::Arc;

use datafusion::common::{Result, internal_err};
use datafusion::physical_expr::PhysicalSortExpr;
use datafusion::physical_plan::sorts::sort::SortExec;
use datafusion::physical_plan::{ExecutionPlan, PlanProperties};

use crate::exec::{OperatorMetrics, coalesced_equivalences, host_counterpart};

/// Sorts all partitions of its input to one, or finds the top-k rows without sorting the others.
///
/// Replaces a `SortExec` and the merge of sorted partitions above it. The sort is stable.
#[derive(Debug)]
pub struct DeviceSortExec {
    pub(crate) host: Arc<dyn ExecutionPlan>,
    pub(crate) metrics: OperatorMetrics,
    keys: Vec<PhysicalSortExpr>,
    fetch: Option<usize>,
    properties: Arc<PlanProperties>,
}

impl DeviceSortExec {
    /// Offloads a `SortExec` of one output partition, whose child runs on the device.
    pub fn try_new(host: Arc<dyn ExecutionPlan>) -> Result<Self> {
        let Some(sort) = host.downcast_ref::<SortExec>() else {
            return internal_err!("DeviceSortExec replaces a SortExec, not {}", host.name());
        };
        let (keys, fetch) = (sort.expr().to_vec(), sort.fetch());
        let mut equivalences = coalesced_equivalences(sort.input());
        equivalences.reorder(sort.expr().clone())?;
        let properties = Arc::new(host.properties().as_ref().clone().with_eq_properties(equivalences));
        Ok(DeviceSortExec { host, metrics: OperatorMetrics::new(), keys, fetch, properties })
    }

    /// The keys, most significant first.
    pub fn keys(&self) -> &[PhysicalSortExpr] {
        &self.keys
    }

    /// Number of rows of a top-k; all if `None`.
    pub fn fetch_rows(&self) -> Option<usize> {
        self.fetch
    }
}

host_counterpart!(DeviceSortExec, "DeviceSortExec", |node| &node.properties);
