// SPDX-License-Identifier: Apache-2.0
//! `UNION ALL`.

use std::sync::Arc;

use datafusion::common::{Result, internal_err};
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::projection::ProjectionExec;
use datafusion::physical_plan::union::{InterleaveExec, UnionExec};

use crate::exec::{DeviceProjectionExec, OperatorMetrics, host_counterpart, is_device};

/// The partitions of its inputs, one after another.
///
/// Columns whose physical layouts differ between the inputs are rewritten to a common layout.
#[derive(Debug)]
pub struct DeviceUnionExec {
    pub(crate) host: Arc<dyn ExecutionPlan>,
    pub(crate) metrics: OperatorMetrics,
}

impl DeviceUnionExec {
    /// Offloads a `UnionExec` whose children run on the device.
    ///
    /// DataFusion puts projections above children whose schemas differ. These are offloaded too.
    pub fn try_new(host: Arc<dyn ExecutionPlan>) -> Result<Self> {
        if !host.is::<UnionExec>() {
            return internal_err!("DeviceUnionExec replaces a UnionExec, not {}", host.name());
        }
        let on_device = |child: &Arc<dyn ExecutionPlan>| -> Result<Arc<dyn ExecutionPlan>> {
            Ok(match child.is::<ProjectionExec>() && child.children().into_iter().all(is_device) {
                true => Arc::new(DeviceProjectionExec::try_new(Arc::clone(child))?),
                false => Arc::clone(child),
            })
        };
        let children = host.children().into_iter().map(on_device).collect::<Result<Vec<_>>>()?;
        let host = UnionExec::try_new(children)?;
        Ok(DeviceUnionExec { host, metrics: OperatorMetrics::new() })
    }

    /// Whether a host operator is a union.
    pub(crate) fn replaces(plan: &Arc<dyn ExecutionPlan>) -> bool {
        plan.is::<UnionExec>() || plan.is::<InterleaveExec>()
    }
}

host_counterpart!(DeviceUnionExec, "DeviceUnionExec");
