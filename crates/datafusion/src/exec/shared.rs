// SPDX-License-Identifier: Apache-2.0
//! Rows that several operators of an island read, and that are computed once.

use std::fmt;
use std::sync::Arc;

use datafusion::common::{Result, Statistics};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_plan::metrics::ExecutionPlanMetricsSet;
use datafusion::physical_plan::statistics::{StatisticsArgs, StatisticsContext};
use datafusion::physical_plan::{DisplayAs, DisplayFormatType, ExecutionPlan, PlanProperties};

use crate::exec::{inner_methods, leaf_methods, statistics_of_the_input};

/// Keeps the batches of its input on the device until all who read them have come: this operator's parent, and each
/// [`DeviceReuseExec`] of its number.
#[derive(Debug)]
pub struct DeviceSharedExec {
    input: Arc<dyn ExecutionPlan>,
    number: usize,
    readers: usize,
    pub(crate) metrics: ExecutionPlanMetricsSet,
}

impl DeviceSharedExec {
    /// Shares the one partition of `input` between so many readers.
    pub(crate) fn new(input: Arc<dyn ExecutionPlan>, number: usize, readers: usize) -> Self {
        DeviceSharedExec { input, number, readers, metrics: ExecutionPlanMetricsSet::new() }
    }

    /// Whose rows are shared.
    pub fn input(&self) -> &Arc<dyn ExecutionPlan> {
        &self.input
    }

    /// Which of an island's shared rows these are.
    pub fn number(&self) -> usize {
        self.number
    }

    /// How many read them.
    pub fn readers(&self) -> usize {
        self.readers
    }
}

impl DisplayAs for DeviceSharedExec {
    fn fmt_as(&self, format: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match format {
            DisplayFormatType::TreeRender => write!(f, "rows=#{}\nreaders={}", self.number, self.readers),
            _ => write!(f, "DeviceSharedExec: rows=#{}, readers={}", self.number, self.readers),
        }
    }
}

impl ExecutionPlan for DeviceSharedExec {
    inner_methods! {
        "DeviceSharedExec",
        inputs: [input],
        exprs: |_node| std::iter::empty::<&Arc<dyn PhysicalExpr>>(),
        over: |node| DeviceSharedExec::new(input, node.number, node.readers),
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        self.input.properties()
    }

    fn maintains_input_order(&self) -> Vec<bool> {
        vec![true]
    }

    statistics_of_the_input!();
}

/// Reads the rows of a [`DeviceSharedExec`] once more.
#[derive(Debug)]
pub struct DeviceReuseExec {
    shared: Arc<dyn ExecutionPlan>,
    number: usize,
    readers: usize,
    properties: Arc<PlanProperties>,
    pub(crate) metrics: ExecutionPlanMetricsSet,
}

impl DeviceReuseExec {
    /// Reads the rows of `shared`, the input of the [`DeviceSharedExec`] of this number.
    pub(crate) fn new(shared: Arc<dyn ExecutionPlan>, number: usize, readers: usize) -> Self {
        let properties = Arc::clone(shared.properties());
        DeviceReuseExec { shared, number, readers, properties, metrics: ExecutionPlanMetricsSet::new() }
    }

    /// Whose rows these are.
    pub(crate) fn shared(&self) -> &Arc<dyn ExecutionPlan> {
        &self.shared
    }

    /// Which of an island's shared rows these are.
    pub fn number(&self) -> usize {
        self.number
    }

    pub(crate) fn readers(&self) -> usize {
        self.readers
    }
}

impl DisplayAs for DeviceReuseExec {
    fn fmt_as(&self, format: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match format {
            DisplayFormatType::TreeRender => write!(f, "rows=#{}", self.number),
            _ => write!(f, "DeviceReuseExec: rows=#{}", self.number),
        }
    }
}

impl ExecutionPlan for DeviceReuseExec {
    leaf_methods!("DeviceReuseExec", rows of "a shared subplan");

    fn statistics_from_inputs(&self, _input_stats: &[Arc<Statistics>], args: &StatisticsArgs) -> Result<Arc<Statistics>> {
        StatisticsContext::new().compute(self.shared.as_ref(), args)
    }
}
