// SPDX-License-Identifier: Apache-2.0
//! `ORDER BY` on the device.

use std::sync::Arc;

use datafusion::common::{Result, internal_err};
use datafusion::physical_expr::PhysicalSortExpr;
use datafusion::physical_plan::metrics::ExecutionPlanMetricsSet;
use datafusion::physical_plan::sorts::sort::SortExec;
use datafusion::physical_plan::{ExecutionPlan, PlanProperties};

use crate::exec::{coalesced_equivalences, row_wise_operator};

/// Sorts all partitions of its input to one, or finds the first rows without sorting the others.
///
/// It stands for a `SortExec` and for the merge of sorted partitions above it. Rows with equal keys keep their order.
#[derive(Debug)]
pub struct DeviceSortExec {
    pub(crate) host: Arc<dyn ExecutionPlan>,
    pub(crate) metrics: ExecutionPlanMetricsSet,
    keys: Vec<PhysicalSortExpr>,
    fetch: Option<usize>,
    properties: Arc<PlanProperties>,
}

impl DeviceSortExec {
    /// The device form of a `SortExec` of one output partition, whose child runs on the device.
    pub fn try_new(host: Arc<dyn ExecutionPlan>) -> Result<Self> {
        let Some(sort) = host.downcast_ref::<SortExec>() else {
            return internal_err!("DeviceSortExec stands for a SortExec, not {}", host.name());
        };
        let (keys, fetch) = (sort.expr().to_vec(), sort.fetch());
        let mut equivalences = coalesced_equivalences(sort.input());
        equivalences.reorder(sort.expr().clone())?;
        let properties = Arc::new(host.properties().as_ref().clone().with_eq_properties(equivalences));
        Ok(DeviceSortExec { host, metrics: ExecutionPlanMetricsSet::new(), keys, fetch, properties })
    }

    /// The keys, most significant first.
    pub fn keys(&self) -> &[PhysicalSortExpr] {
        &self.keys
    }

    /// Rows that are wanted; all where `None`.
    pub fn fetch_rows(&self) -> Option<usize> {
        self.fetch
    }
}

row_wise_operator!(DeviceSortExec, "DeviceSortExec", |node| &node.properties);
