// SPDX-License-Identifier: Apache-2.0
//! Metrics of an operator whose plan runs more than once.

use std::sync::Arc;

use datafusion::physical_plan::metrics::{ExecutionPlanMetricsSet, MetricsSet};
use parking_lot::Mutex;

/// The metrics of an operator, which its stage shares.
///
/// A kept plan clears them after each query. Unfinished runs write to the set that they began with.
#[derive(Debug, Clone, Default)]
pub(crate) struct OperatorMetrics(Arc<Mutex<ExecutionPlanMetricsSet>>);

impl OperatorMetrics {
    pub fn new() -> Self {
        Self::default()
    }

    /// The set that a run writes to.
    pub fn set(&self) -> ExecutionPlanMetricsSet {
        self.0.lock().clone()
    }

    /// The values by now.
    pub fn clone_inner(&self) -> MetricsSet {
        self.0.lock().clone_inner()
    }

    /// Forgets the values.
    pub fn clear(&self) {
        *self.0.lock() = ExecutionPlanMetricsSet::new();
    }
}
