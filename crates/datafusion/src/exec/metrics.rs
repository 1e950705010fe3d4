// SPDX-License-Identifier: Apache-2.0
//! Metrics of an operator whose plan runs more than once.

use std::sync::Arc;

use datafusion::physical_plan::metrics::{ExecutionPlanMetricsSet, MetricsSet};
use parking_lot::Mutex;

/// The metrics of an operator, which its stage shares.
///
/// A kept plan clears them after each query. Unfinished runs write to the set that they began with.
#[derive(Debug, Clone, Default)]
pub(crate) struct OperatorMetrics {
    set: Arc<Mutex<ExecutionPlanMetricsSet>>,
    /// Those of the operators that run in this one's kernels.
    fused: Vec<OperatorMetrics>,
    /// Those of the fused operators that give as many rows as this one.
    of_same_rows: Vec<OperatorMetrics>,
}

impl OperatorMetrics {
    pub fn new() -> Self {
        Self::default()
    }

    /// The same, where the operators with metrics `fused` run in this one's kernels.
    pub fn with_fused(mut self, fused: impl IntoIterator<Item = OperatorMetrics>) -> Self {
        self.fused.extend(fused);
        self
    }

    /// The same, where the operators with metrics `fused` give as many rows as this one.
    pub fn with_fused_of_same_rows(mut self, fused: impl IntoIterator<Item = OperatorMetrics>) -> Self {
        self.of_same_rows.extend(fused);
        self
    }

    /// The set that a run writes to.
    pub fn set(&self) -> ExecutionPlanMetricsSet {
        self.set.lock().clone()
    }

    /// The sets of all fused operators.
    pub fn of_fused(&self) -> Vec<ExecutionPlanMetricsSet> {
        self.fused.iter().flat_map(|fused| [fused.set()].into_iter().chain(fused.of_fused())).collect()
    }

    /// The sets of fused operators that give as many rows as this one.
    pub fn of_same_rows(&self) -> impl Iterator<Item = ExecutionPlanMetricsSet> {
        self.of_same_rows.iter().map(OperatorMetrics::set)
    }

    /// The values by now.
    pub fn clone_inner(&self) -> MetricsSet {
        self.set.lock().clone_inner()
    }

    /// Forgets the values.
    pub fn clear(&self) {
        *self.set.lock() = ExecutionPlanMetricsSet::new();
    }
}
