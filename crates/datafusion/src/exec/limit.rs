// SPDX-License-Identifier: Apache-2.0
//! `LIMIT` and `OFFSET` on the device.

use std::sync::Arc;

use datafusion::common::{Result, internal_err};
use datafusion::physical_plan::limit::{GlobalLimitExec, LocalLimitExec};
use datafusion::physical_plan::metrics::ExecutionPlanMetricsSet;
use datafusion::physical_plan::{ExecutionPlan, PlanProperties};

use crate::exec::{coalesced_equivalences, row_wise_operator};

/// Skips rows of a partition, then hands on at most so many; batches are sliced, nothing is copied,
/// and the input is dropped as soon as the last row has passed.
#[derive(Debug)]
pub struct DeviceLimitExec {
    pub(crate) host: Arc<dyn ExecutionPlan>,
    pub(crate) metrics: ExecutionPlanMetricsSet,
    skip: usize,
    fetch: Option<usize>,
    properties: Arc<PlanProperties>,
}

impl DeviceLimitExec {
    /// The device form of a `GlobalLimitExec` or `LocalLimitExec` whose child runs on the device.
    pub fn try_new(host: Arc<dyn ExecutionPlan>) -> Result<Self> {
        let (skip, fetch) = if let Some(limit) = host.downcast_ref::<GlobalLimitExec>() {
            (limit.skip(), limit.fetch())
        } else if let Some(limit) = host.downcast_ref::<LocalLimitExec>() {
            (0, Some(limit.fetch()))
        } else {
            return internal_err!("DeviceLimitExec stands for a limit, not {}", host.name());
        };
        let mut properties = Arc::clone(host.properties());
        if properties.output_partitioning().partition_count() == 1
            && let [input] = host.children().as_slice()
        {
            properties = Arc::new(properties.as_ref().clone().with_eq_properties(coalesced_equivalences(input)));
        }
        Ok(DeviceLimitExec { host, metrics: ExecutionPlanMetricsSet::new(), skip, fetch, properties })
    }

    /// Rows to skip first.
    pub fn skip(&self) -> usize {
        self.skip
    }

    /// Rows to hand on at most; all where `None`.
    pub fn fetch_rows(&self) -> Option<usize> {
        self.fetch
    }
}

row_wise_operator!(DeviceLimitExec, "DeviceLimitExec", |node| &node.properties);
