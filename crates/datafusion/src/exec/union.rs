// SPDX-License-Identifier: Apache-2.0
//! `UNION ALL` on the device.

use std::sync::Arc;

use datafusion::common::{Result, internal_err};
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::metrics::ExecutionPlanMetricsSet;
use datafusion::physical_plan::union::{InterleaveExec, UnionExec};

use crate::exec::row_wise_operator;

/// The partitions of its inputs, one after another; columns that lie otherwise in one input than in another are written anew.
#[derive(Debug)]
pub struct DeviceUnionExec {
    pub(crate) host: Arc<dyn ExecutionPlan>,
    pub(crate) metrics: ExecutionPlanMetricsSet,
}

impl DeviceUnionExec {
    /// The device form of a `UnionExec` whose children run on the device.
    pub fn try_new(host: Arc<dyn ExecutionPlan>) -> Result<Self> {
        match host.is::<UnionExec>() {
            true => Ok(DeviceUnionExec { host, metrics: ExecutionPlanMetricsSet::new() }),
            false => internal_err!("DeviceUnionExec stands for a UnionExec, not {}", host.name()),
        }
    }

    /// Whether an operator of the host is a union.
    pub(crate) fn stands_for(plan: &Arc<dyn ExecutionPlan>) -> bool {
        plan.is::<UnionExec>() || plan.is::<InterleaveExec>()
    }
}

row_wise_operator!(DeviceUnionExec, "DeviceUnionExec");
