// SPDX-License-Identifier: Apache-2.0
//! The physical operators, one per file.
//!
//! [`DeviceToHostExec`] is the only operator that executes. It runs the subtree below it as fused
//! pipelines. Leaves of the subtree are [`HostToDeviceExec`], [`DeviceScanExec`] and
//! [`DeviceStreamExec`]. The other operators exist for EXPLAIN, metrics and rewriting. Executing
//! one of them is an internal error, never a quiet download.
//!
//! `docs/explain.md` lists the annotations that the operators write into EXPLAIN.

mod adaptive_start;
mod aggregate;
mod alternative;
mod cache;
mod device_to_host;
mod dynamic_filter;
mod expand;
mod filter;
mod futhark;
mod host;
mod host_plan;
mod host_to_device;
mod join;
mod join_strings;
mod join_type;
mod limit;
mod methods;
mod metrics;
mod operator;
pub(crate) mod panics;
mod projection;
mod properties;
mod retry;
mod scan;
mod shared;
mod sort;
mod stream;
mod union;
mod unnest;
mod window;

pub(crate) use aggregate::AggregateSpec;
pub use aggregate::DeviceAggregateExec;
pub(crate) use alternative::{Downloads, HostAlternative, SubplanRun};
pub(crate) use cache::{CrossSubplanCache, ReadableRows, SharedRows};
pub use device_to_host::DeviceToHostExec;
pub use dynamic_filter::DeviceDynamicFilterExec;
pub use expand::DeviceExpandExec;
pub(crate) use expand::GroupingSet;
pub use filter::DeviceFilterExec;
pub use futhark::DeviceFutharkExec;
pub use host::HostExec;
pub(crate) use host_plan::{
    computes, is_bounded, is_constant, is_limit, is_trivial, joins_other_lists, reads_catalog, reads_files, scan_projection,
    window_exprs,
};
pub use host_to_device::HostToDeviceExec;
pub use join::DeviceJoinExec;
pub(crate) use join::{DynamicFilters, JoinSpec, ScalarSubquery};
pub(crate) use join_strings::JoinStrings;
pub(crate) use join_type::{JoinColumns, JoinTypeFacts};
pub use limit::DeviceLimitExec;
pub(crate) use methods::{
    common_methods, host_counterpart, inner_methods, leaf_methods, pass_through_methods, refuse_stream, refused_execution,
};
pub(crate) use metrics::OperatorMetrics;
pub(crate) use operator::{
    DeviceOperator, can_run_again, device_inputs, drops_rows, forget_run, fused_below, is_device, is_repeatable, reads_device,
    scanned_snapshots, unites_inputs,
};
pub use panics::panic_text;
pub use projection::DeviceProjectionExec;
pub(crate) use properties::{coalesced_equivalences, column_names, leaf_properties, single_partition};
pub use scan::DeviceScanExec;
pub(crate) use shared::Sharing;
pub use shared::{DeviceReuseExec, DeviceSharedExec};
pub use sort::DeviceSortExec;
pub use stream::DeviceStreamExec;
pub use union::DeviceUnionExec;
pub use unnest::DeviceUnnestExec;
pub use window::DeviceWindowExec;
