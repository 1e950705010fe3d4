// SPDX-License-Identifier: Apache-2.0
//! Dynamic filters: what a join's build side tells the operators below its probe side.

use std::fmt;
use std::sync::Arc;

use datafusion::common::{Result, Statistics};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_plan::execution_plan::{Boundedness, EmissionType, SchedulingType};
use datafusion::physical_plan::metrics::ExecutionPlanMetricsSet;
use datafusion::physical_plan::statistics::{ChildStats, StatisticsArgs};
use datafusion::physical_plan::{
    DisplayAs, DisplayFormatType, ExecutionPlan, ExecutionPlanProperties, Partitioning, PlanProperties,
};

use crate::exec::inner_methods;

/// Drops rows that a join above would drop for want of a match, before an aggregation or another join has worked on them.
///
/// The join's own table is asked, or where the caches do not hold that, its keys as bits (`kernels::ops::JoinBuild::add_bloom_filter`),
/// of which EXPLAIN ANALYZE shows the `filter_bytes`: where these are a Bloom filter, some rows pass that the join drops then. A
/// table that has most of the values between its least and its greatest is of no use; then the filter steps aside, and EXPLAIN
/// ANALYZE shows no `rows_removed`.
#[derive(Debug)]
pub struct DeviceDynamicFilterExec {
    input: Arc<dyn ExecutionPlan>,
    keys: Vec<Arc<dyn PhysicalExpr>>,
    number: usize,
    null_equals_null: bool,
    properties: Arc<PlanProperties>,
    pub(crate) metrics: ExecutionPlanMetricsSet,
}

impl DeviceDynamicFilterExec {
    /// Filters rows of all partitions by `keys`, which are compared with those of the join that bears the `number`.
    pub(crate) fn new(
        input: Arc<dyn ExecutionPlan>,
        keys: Vec<Arc<dyn PhysicalExpr>>,
        number: usize,
        null_equals_null: bool,
    ) -> Self {
        let mut equivalences = input.equivalence_properties().clone();
        if input.output_partitioning().partition_count() != 1 {
            equivalences.clear_orderings();
            equivalences.clear_per_partition_constants();
        }
        let one = Partitioning::UnknownPartitioning(1);
        let properties = PlanProperties::new(equivalences, one, EmissionType::Incremental, Boundedness::Bounded);
        let properties = Arc::new(properties.with_scheduling_type(SchedulingType::Cooperative));
        DeviceDynamicFilterExec { input, keys, number, null_equals_null, properties, metrics: ExecutionPlanMetricsSet::new() }
    }

    /// The rows that are filtered.
    pub fn input(&self) -> &Arc<dyn ExecutionPlan> {
        &self.input
    }

    /// The input's columns that are looked up, in the order of the join's keys.
    pub(crate) fn keys(&self) -> &[Arc<dyn PhysicalExpr>] {
        &self.keys
    }

    /// The number of the join, within the offloaded subplan.
    pub fn number(&self) -> usize {
        self.number
    }

    /// Whether NULL has a match where the build side has NULL.
    pub(crate) fn null_equals_null(&self) -> bool {
        self.null_equals_null
    }
}

impl DisplayAs for DeviceDynamicFilterExec {
    fn fmt_as(&self, format: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let keys = self.keys.iter().map(|key| key.to_string()).collect::<Vec<_>>().join(", ");
        match format {
            DisplayFormatType::TreeRender => write!(f, "keys={keys}\nof join #{}", self.number),
            _ => write!(f, "DeviceDynamicFilterExec: keys=[{keys}], of_join=#{}", self.number),
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
