// SPDX-License-Identifier: Apache-2.0
//! `UNION ALL` on the device.

use std::sync::Arc;

use datafusion::common::{Result, internal_err};
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::metrics::ExecutionPlanMetricsSet;
use datafusion::physical_plan::projection::ProjectionExec;
use datafusion::physical_plan::union::{InterleaveExec, UnionExec};

use crate::exec::{DeviceProjectionExec, is_device, row_wise_operator};

/// The partitions of its inputs, one after another; columns that lie otherwise in one input than in another are written anew.
#[derive(Debug)]
pub struct DeviceUnionExec {
    pub(crate) host: Arc<dyn ExecutionPlan>,
    pub(crate) metrics: ExecutionPlanMetricsSet,
}

impl DeviceUnionExec {
    /// The device form of a `UnionExec` whose children run on the device, but for projections that DataFusion has put there to
    /// give all of them one schema.
    pub fn try_new(host: Arc<dyn ExecutionPlan>) -> Result<Self> {
        if !host.is::<UnionExec>() {
            return internal_err!("DeviceUnionExec stands for a UnionExec, not {}", host.name());
        }
        let on_device = |child: &Arc<dyn ExecutionPlan>| -> Result<Arc<dyn ExecutionPlan>> {
            Ok(match child.is::<ProjectionExec>() && child.children().into_iter().all(is_device) {
                true => Arc::new(DeviceProjectionExec::try_new(Arc::clone(child))?),
                false => Arc::clone(child),
            })
        };
        let children = host.children().into_iter().map(on_device).collect::<Result<Vec<_>>>()?;
        let host = UnionExec::try_new(children)?;
        Ok(DeviceUnionExec { host, metrics: ExecutionPlanMetricsSet::new() })
    }

    /// Whether an operator of the host is a union.
    pub(crate) fn stands_for(plan: &Arc<dyn ExecutionPlan>) -> bool {
        plan.is::<UnionExec>() || plan.is::<InterleaveExec>()
    }
}

row_wise_operator!(DeviceUnionExec, "DeviceUnionExec");
