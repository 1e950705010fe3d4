// SPDX-License-Identifier: Apache-2.0
//! Rows that several operators read, and that are computed once: operators of one offloaded subplan, or of the offloaded subplans of scalar subqueries
//! and of the main query, which runs after them.

use std::fmt;
use std::sync::Arc;

use datafusion::common::{Result, Statistics};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_plan::metrics::ExecutionPlanMetricsSet;
use datafusion::physical_plan::statistics::{StatisticsArgs, StatisticsContext};
use datafusion::physical_plan::{DisplayAs, DisplayFormatType, ExecutionPlan, PlanProperties};

use crate::exec::{CrossSubplanCache, inner_methods, leaf_methods, statistics_of_the_input};

/// Who reads shared rows, and where they are.
#[derive(Debug, Clone)]
pub(crate) struct Sharing {
    /// Which of the shared rows of an offloaded subplan, or of those that offloaded subplans of a plan keep for each other, these are.
    pub number: usize,
    /// How many read them.
    pub readers: usize,
    /// `None` where all readers are of one offloaded subplan: its run has the rows.
    pub cache: Option<Arc<CrossSubplanCache>>,
    /// Whether nobody comes after this reader: it is of the main query.
    pub is_last: bool,
}

impl fmt::Display for Sharing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = if self.cache.is_some() { "kept" } else { "rows" };
        write!(f, "{what}=#{}", self.number)
    }
}

/// Keeps the batches of its input on the device until all who read them have come: this operator's parent, and each
/// [`DeviceReuseExec`] of its number.
#[derive(Debug)]
pub struct DeviceSharedExec {
    input: Arc<dyn ExecutionPlan>,
    sharing: Sharing,
    pub(crate) metrics: ExecutionPlanMetricsSet,
}

impl DeviceSharedExec {
    /// Shares the one partition of `input`.
    pub(crate) fn new(input: Arc<dyn ExecutionPlan>, sharing: Sharing) -> Self {
        DeviceSharedExec { input, sharing, metrics: ExecutionPlanMetricsSet::new() }
    }

    pub(crate) fn sharing(&self) -> &Sharing {
        &self.sharing
    }

    /// Whose rows are shared.
    pub fn input(&self) -> &Arc<dyn ExecutionPlan> {
        &self.input
    }

    /// Which of an offloaded subplan's shared rows these are, or of those that offloaded subplans share.
    pub fn number(&self) -> usize {
        self.sharing.number
    }

    /// How many read them.
    pub fn readers(&self) -> usize {
        self.sharing.readers
    }
}

impl DisplayAs for DeviceSharedExec {
    fn fmt_as(&self, format: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (sharing, readers) = (&self.sharing, self.readers());
        match format {
            DisplayFormatType::TreeRender => write!(f, "{sharing}\nreaders={readers}"),
            _ => write!(f, "DeviceSharedExec: {sharing}, readers={readers}"),
        }
    }
}

impl ExecutionPlan for DeviceSharedExec {
    inner_methods! {
        "DeviceSharedExec",
        inputs: [input],
        exprs: |_node| std::iter::empty::<&Arc<dyn PhysicalExpr>>(),
        over: |node| DeviceSharedExec::new(input, node.sharing.clone()),
    }

    /// A plan that runs again must not meet the rows of the time before.
    fn reset_state(self: Arc<Self>) -> Result<Arc<dyn ExecutionPlan>> {
        if let Some(cache) = &self.sharing.cache {
            cache.clear();
        }
        Ok(Arc::new(DeviceSharedExec::new(Arc::clone(&self.input), self.sharing.clone())))
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
    sharing: Sharing,
    properties: Arc<PlanProperties>,
    pub(crate) metrics: ExecutionPlanMetricsSet,
}

impl DeviceReuseExec {
    /// Reads the rows of `shared`, which is the input of the [`DeviceSharedExec`] of this number, or gives the same rows.
    pub(crate) fn new(shared: Arc<dyn ExecutionPlan>, sharing: Sharing) -> Self {
        let properties = Arc::clone(shared.properties());
        DeviceReuseExec { shared, sharing, properties, metrics: ExecutionPlanMetricsSet::new() }
    }

    /// Whose rows these are.
    pub(crate) fn shared(&self) -> &Arc<dyn ExecutionPlan> {
        &self.shared
    }

    /// Which of the shared rows these are.
    pub fn number(&self) -> usize {
        self.sharing.number
    }

    pub(crate) fn sharing(&self) -> &Sharing {
        &self.sharing
    }
}

impl DisplayAs for DeviceReuseExec {
    fn fmt_as(&self, format: DisplayFormatType, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match format {
            DisplayFormatType::TreeRender => write!(f, "{}", self.sharing),
            _ => write!(f, "DeviceReuseExec: {}", self.sharing),
        }
    }
}

impl ExecutionPlan for DeviceReuseExec {
    leaf_methods!("DeviceReuseExec", rows of "a shared subplan");

    fn statistics_from_inputs(&self, _input_stats: &[Arc<Statistics>], args: &StatisticsArgs) -> Result<Arc<Statistics>> {
        StatisticsContext::new().compute(self.shared.as_ref(), args)
    }
}
