// SPDX-License-Identifier: Apache-2.0
//! The device operators as one type.

use std::sync::Arc;

use datafusion::physical_plan::ExecutionPlan;

use crate::exec::{
    DeviceAggregateExec, DeviceDynamicFilterExec, DeviceExpandExec, DeviceFilterExec, DeviceFutharkExec, DeviceJoinExec,
    DeviceLimitExec, DeviceProjectionExec, DeviceReuseExec, DeviceScanExec, DeviceSharedExec, DeviceSortExec, DeviceStreamExec,
    DeviceUnionExec, DeviceUnnestExec, DeviceWindowExec, HostToDeviceExec,
};

/// Whether a plan node computes on the device (below an offloaded subplan's top).
pub(crate) fn is_device(plan: &Arc<dyn ExecutionPlan>) -> bool {
    plan.is::<DeviceFilterExec>()
        || plan.is::<DeviceProjectionExec>()
        || plan.is::<DeviceAggregateExec>()
        || plan.is::<DeviceDynamicFilterExec>()
        || plan.is::<DeviceExpandExec>()
        || plan.is::<DeviceFutharkExec>()
        || plan.is::<DeviceJoinExec>()
        || plan.is::<DeviceLimitExec>()
        || plan.is::<DeviceReuseExec>()
        || plan.is::<DeviceScanExec>()
        || plan.is::<DeviceSharedExec>()
        || plan.is::<DeviceSortExec>()
        || plan.is::<DeviceStreamExec>()
        || plan.is::<DeviceUnionExec>()
        || plan.is::<DeviceUnnestExec>()
        || plan.is::<HostToDeviceExec>()
        || plan.is::<DeviceWindowExec>()
}

/// Names of the row-wise operators that run inside the kernels of the operator above them.
pub(crate) fn fused_below(input: &Arc<dyn ExecutionPlan>) -> Vec<&'static str> {
    let mut names = Vec::new();
    let mut plan = input;
    loop {
        if plan.is::<DeviceFilterExec>() {
            names.push("DeviceFilterExec");
        } else if plan.is::<DeviceProjectionExec>() {
            names.push("DeviceProjectionExec");
        } else {
            return names;
        }
        match plan.children().first() {
            Some(child) => plan = child,
            None => return names,
        }
    }
}

/// Whether something below leaves rows out.
pub(crate) fn lacks_rows(plan: &Arc<dyn ExecutionPlan>) -> bool {
    if let Some(reuse) = plan.downcast_ref::<DeviceReuseExec>() {
        return lacks_rows(reuse.shared());
    }
    let drops = plan.is::<DeviceFilterExec>()
        || plan.is::<DeviceDynamicFilterExec>()
        || plan.is::<DeviceLimitExec>()
        || plan.downcast_ref::<DeviceSortExec>().is_some_and(|sort| sort.fetch_rows().is_some());
    drops || is_device(plan) && !plan.is::<HostToDeviceExec>() && plan.children().into_iter().any(lacks_rows)
}
