// SPDX-License-Identifier: Apache-2.0
//! The physical operators, one per file.
//!
//! [`DeviceToHostExec`] is the only one that executes: it owns the subtree below it, down to the
//! [`HostToDeviceExec`]s, [`DeviceScanExec`]s and [`DeviceStreamExec`]s, and runs it as fused pipelines. The operators in
//! between exist for EXPLAIN, metrics and rewriting; executing one of them is an internal error,
//! never a quiet download.

mod aggregate;
mod device_to_host;
mod dynamic_filter;
mod expand;
mod filter;
mod futhark;
mod host;
mod host_to_device;
mod join;
mod limit;
mod methods;
mod projection;
mod scan;
mod shared;
mod sort;
mod stream;
mod union;
mod unnest;
mod window;

pub(crate) use aggregate::AggregateSpec;
pub use aggregate::DeviceAggregateExec;
pub use device_to_host::DeviceToHostExec;
pub use dynamic_filter::DeviceDynamicFilterExec;
pub use expand::DeviceExpandExec;
pub(crate) use expand::GroupingSet;
pub use filter::DeviceFilterExec;
pub use futhark::DeviceFutharkExec;
pub use host::HostExec;
pub use host_to_device::HostToDeviceExec;
pub use join::DeviceJoinExec;
pub(crate) use join::{JoinSpec, ScalarSubquery};
pub use limit::DeviceLimitExec;
pub(crate) use methods::{device_methods, inner_methods, leaf_methods, row_wise_operator, statistics_of_the_input};
pub use projection::DeviceProjectionExec;
pub use scan::DeviceScanExec;
pub(crate) use shared::Sharing;
pub use shared::{DeviceReuseExec, DeviceSharedExec};
pub use sort::DeviceSortExec;
pub use stream::DeviceStreamExec;
pub use union::DeviceUnionExec;
pub use unnest::DeviceUnnestExec;
pub use window::DeviceWindowExec;

use std::sync::Arc;

use arrow::datatypes::{Schema, SchemaRef};
use datafusion::common::{Result, internal_err};
use datafusion::execution::SendableRecordBatchStream;
use datafusion::physical_expr::EquivalenceProperties;
use datafusion::physical_plan::execution_plan::{Boundedness, EmissionType, SchedulingType};
use datafusion::physical_plan::{ExecutionPlan, ExecutionPlanProperties, Partitioning, PlanProperties};

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

/// The properties of a leaf: one partition of rows in no order.
pub(crate) fn leaf_properties(schema: SchemaRef) -> Arc<PlanProperties> {
    let properties = PlanProperties::new(
        EquivalenceProperties::new(schema),
        Partitioning::UnknownPartitioning(1),
        EmissionType::Incremental,
        Boundedness::Bounded,
    );
    Arc::new(properties.with_scheduling_type(SchedulingType::Cooperative))
}

/// What holds for the rows of all partitions of `input` together, in any order.
///
/// An order or a constant of one partition, such as a literal of one input of a `UNION`, does not.
pub(crate) fn coalesced_equivalences(input: &Arc<dyn ExecutionPlan>) -> EquivalenceProperties {
    let mut equivalences = input.equivalence_properties().clone();
    if input.output_partitioning().partition_count() > 1 {
        equivalences.clear_orderings();
        equivalences.clear_per_partition_constants();
    }
    equivalences
}

/// The names of a scan's columns, as EXPLAIN lists them.
pub(crate) fn column_names(schema: &Schema) -> String {
    schema.fields().iter().map(|field| field.name().as_str()).collect::<Vec<_>>().join(", ")
}

pub(crate) fn refuse<T>(name: &str) -> Result<T> {
    internal_err!("{name} runs inside a DeviceToHostExec and has no rows of its own for the host")
}

pub(crate) fn refuse_stream(name: &str) -> Result<SendableRecordBatchStream> {
    refuse(name)
}
