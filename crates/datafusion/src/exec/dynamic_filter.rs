// SPDX-License-Identifier: Apache-2.0
//! Dynamic filters: keys of a join's build side drop rows far below its probe side.

use std::fmt;
use std::sync::Arc;

use datafusion::common::{Result, Statistics};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_plan::execution_plan::EmissionType;
use datafusion::physical_plan::statistics::{ChildStats, StatisticsArgs};
use datafusion::physical_plan::{DisplayAs, DisplayFormatType, ExecutionPlan, ExecutionPlanProperties, PlanProperties};

use crate::exec::{OperatorMetrics, coalesced_equivalences, inner_methods, refuse_stream, refused_execution, single_partition};

/// Drops rows without a match in a join above, before an aggregation or another join works on them.
///
/// The filter probes, whichever fits the caches:
/// - the join's own table,
/// - its keys as a bitmap or Bloom filter (`kernels::ops::JoinBuild::add_bloom_filter`). EXPLAIN
///   ANALYZE shows its `filter_bytes`. The join drops rows that a Bloom filter passes by mistake.
///
/// If the build side has most values of its key range, the filter would drop few rows. It then
/// passes all rows, and EXPLAIN ANALYZE shows no `rows_removed`.
#[derive(Debug)]
pub struct DeviceDynamicFilterExec {
    input: Arc<dyn ExecutionPlan>,
    keys: Vec<Arc<dyn PhysicalExpr>>,
    number: usize,
    null_equals_null: bool,
    properties: Arc<PlanProperties>,
    pub(crate) metrics: OperatorMetrics,
}

impl DeviceDynamicFilterExec {
    /// Filters rows of all partitions by `keys`, compared with the keys of the join of this
    /// `number`.
    pub(crate) fn new(
        input: Arc<dyn ExecutionPlan>,
        keys: Vec<Arc<dyn PhysicalExpr>>,
        number: usize,
        null_equals_null: bool,
    ) -> Self {
        let properties = single_partition(coalesced_equivalences(&input), EmissionType::Incremental);
        DeviceDynamicFilterExec { input, keys, number, null_equals_null, properties, metrics: OperatorMetrics::new() }
    }

    /// The rows that are filtered.
    pub fn input(&self) -> &Arc<dyn ExecutionPlan> {
        &self.input
    }

    /// Columns of the input, in the order of the join's keys.
    pub(crate) fn keys(&self) -> &[Arc<dyn PhysicalExpr>] {
        &self.keys
    }

    /// The number of the join within the offloaded subplan.
    pub fn number(&self) -> usize {
        self.number
    }

    /// Whether NULL matches NULL.
    pub(crate) fn null_equals_null(&self) -> bool {
        self.null_equals_null
    }
}

impl DisplayAs for DeviceDynamicFilterExec {
    fn fmt_as(&self, format: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let keys = self.keys.iter().map(|key| key.to_string()).collect::<Vec<_>>().join(", ");
        match format {
            DisplayFormatType::TreeRender => write!(f, "keys={keys}\ndynamic_filter=#{}", self.number),
            _ => write!(f, "DeviceDynamicFilterExec: keys=[{keys}], dynamic_filter=#{}", self.number),
        }
    }
}

impl ExecutionPlan for DeviceDynamicFilterExec {
    inner_methods! {
        "DeviceDynamicFilterExec",
        inputs: [input],
        exprs: |node| &node.keys,
        over: |node| DeviceDynamicFilterExec::new(input, node.keys.clone(), node.number, node.null_equals_null),
    }

    refused_execution!(refuse_stream("DeviceDynamicFilterExec"));

    fn properties(&self) -> &Arc<PlanProperties> {
        &self.properties
    }

    fn maintains_input_order(&self) -> Vec<bool> {
        vec![self.input.output_partitioning().partition_count() == 1]
    }

    fn child_stats_requests(&self, _partition: Option<usize>) -> Vec<ChildStats> {
        vec![ChildStats::At(None)]
    }

    fn statistics_from_inputs(&self, input_stats: &[Arc<Statistics>], _args: &StatisticsArgs) -> Result<Arc<Statistics>> {
        match input_stats {
            [input] => Ok(Arc::new(input.as_ref().clone().to_inexact())),
            _ => Ok(Arc::new(Statistics::new_unknown(&self.schema()))),
        }
    }
}
