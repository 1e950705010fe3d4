// SPDX-License-Identifier: Apache-2.0
//! `LIMIT` and `OFFSET`.

use std::sync::Arc;

use datafusion::common::{Result, internal_err};
use datafusion::physical_plan::limit::{GlobalLimitExec, LocalLimitExec};
use datafusion::physical_plan::{ExecutionPlan, PlanProperties};

use crate::exec::{OperatorMetrics, coalesced_equivalences, host_counterpart};

/// Skips rows of a partition, then passes on at most `fetch`.
///
/// Batches are sliced, nothing is copied. The last row drops the input, which stops its work.
#[derive(Debug)]
pub struct DeviceLimitExec {
    pub(crate) host: Arc<dyn ExecutionPlan>,
    pub(crate) metrics: OperatorMetrics,
    skip: usize,
    fetch: Option<usize>,
    properties: Arc<PlanProperties>,
}

impl DeviceLimitExec {
    /// Offloads a `GlobalLimitExec` or `LocalLimitExec` whose child runs on the device.
    pub fn try_new(host: Arc<dyn ExecutionPlan>) -> Result<Self> {
        let (skip, fetch) = if let Some(limit) = host.downcast_ref::<GlobalLimitExec>() {
            (limit.skip(), limit.fetch())
        } else if let Some(limit) = host.downcast_ref::<LocalLimitExec>() {
            (0, Some(limit.fetch()))
        } else {
            return internal_err!("DeviceLimitExec replaces a limit, not {}", host.name());
        };
        let mut properties = Arc::clone(host.properties());
        if properties.output_partitioning().partition_count() == 1
            && let [input] = host.children().as_slice()
        {
            properties = Arc::new(properties.as_ref().clone().with_eq_properties(coalesced_equivalences(input)));
        }
        Ok(DeviceLimitExec { host, metrics: OperatorMetrics::new(), skip, fetch, properties })
    }

    /// Number of rows to skip.
    pub fn skip(&self) -> usize {
        self.skip
    }

    /// Most rows to pass on; all if `None`.
    pub fn fetch_rows(&self) -> Option<usize> {
        self.fetch
    }
}

host_counterpart!(DeviceLimitExec, "DeviceLimitExec", |node| &node.properties);
