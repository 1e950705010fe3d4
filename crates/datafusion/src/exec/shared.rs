// SPDX-License-Identifier: Apache-2.0
//! Rows that several operators read, computed once.
//!
//! The readers are operators of one offloaded subplan, or of several: of scalar subqueries, and of
//! the main query, which runs after them.

use std::fmt;
use std::sync::Arc;

use datafusion::common::{Result, Statistics};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_plan::statistics::{StatisticsArgs, StatisticsContext};
use datafusion::physical_plan::{DisplayAs, DisplayFormatType, ExecutionPlan, PlanProperties};

use crate::exec::{
    CrossSubplanCache, OperatorMetrics, inner_methods, leaf_methods, pass_through_methods, refuse_stream, refused_execution,
};

/// Readers of shared rows, and where the rows are kept.
#[derive(Debug, Clone)]
pub(crate) struct Sharing {
    /// Number of the rows: within an offloaded subplan, or among the cached rows of a plan.
    pub number: usize,
    /// Number of readers.
    pub readers: usize,
    /// `None` if all readers are of one offloaded subplan. Its run keeps the rows.
    pub cache: Option<Arc<CrossSubplanCache>>,
    /// Whether this is the last reader: it belongs to the main query.
    pub is_last: bool,
}

impl fmt::Display for Sharing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let keeper = if self.cache.is_some() { "cached" } else { "shared" };
        write!(f, "{keeper}=#{}", self.number)
    }
}

/// Keeps the batches of its input on the device until the last reader has come.
///
/// Readers are this operator's parent, and each [`DeviceReuseExec`] of its number.
#[derive(Debug)]
pub struct DeviceSharedExec {
    input: Arc<dyn ExecutionPlan>,
    sharing: Sharing,
    pub(crate) metrics: OperatorMetrics,
}

impl DeviceSharedExec {
    /// Shares the one partition of `input`.
    pub(crate) fn new(input: Arc<dyn ExecutionPlan>, sharing: Sharing) -> Self {
        DeviceSharedExec { input, sharing, metrics: OperatorMetrics::new() }
    }

    pub(crate) fn sharing(&self) -> &Sharing {
        &self.sharing
    }

    /// The operator whose rows are shared.
    pub fn input(&self) -> &Arc<dyn ExecutionPlan> {
        &self.input
    }

    /// Drops rows that readers of the last run left in the cache.
    pub(crate) fn clear(&self) {
        if let Some(cache) = &self.sharing.cache {
            cache.clear();
        }
    }

    /// Number of the shared rows.
    pub fn number(&self) -> usize {
        self.sharing.number
    }

    /// Number of readers.
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

    /// Clears the cache: another run of the plan must not read rows of the one before.
    fn reset_state(self: Arc<Self>) -> Result<Arc<dyn ExecutionPlan>> {
        self.clear();
        Ok(Arc::new(DeviceSharedExec::new(Arc::clone(&self.input), self.sharing.clone())))
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        self.input.properties()
    }

    refused_execution!(refuse_stream("DeviceSharedExec"));
    pass_through_methods!();
}

/// Reads the rows of a [`DeviceSharedExec`] again.
#[derive(Debug)]
pub struct DeviceReuseExec {
    shared: Arc<dyn ExecutionPlan>,
    sharing: Sharing,
    properties: Arc<PlanProperties>,
    pub(crate) metrics: OperatorMetrics,
}

impl DeviceReuseExec {
    /// Reads the rows of `shared`: the input of the [`DeviceSharedExec`] of this number, or an
    /// equal subplan.
    pub(crate) fn new(shared: Arc<dyn ExecutionPlan>, sharing: Sharing) -> Self {
        let properties = Arc::clone(shared.properties());
        DeviceReuseExec { shared, sharing, properties, metrics: OperatorMetrics::new() }
    }

    /// The operator whose rows are read.
    pub(crate) fn shared(&self) -> &Arc<dyn ExecutionPlan> {
        &self.shared
    }

    /// Number of the shared rows.
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
