// SPDX-License-Identifier: Apache-2.0
//! The physical operators, one per file.
//!
//! [`DeviceToHostExec`] is the only one that executes: it owns the subtree below it, down to the
//! [`HostToDeviceExec`]s, [`DeviceScanExec`]s and [`DeviceStreamExec`]s, and runs it as fused pipelines. The operators in
//! between exist for EXPLAIN, metrics and rewriting; executing one of them is an internal error,
//! never a quiet download.

mod aggregate;
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
mod limit;
mod methods;
mod operator;
mod projection;
mod properties;
mod scan;
mod shared;
mod sort;
mod stream;
mod union;
mod unnest;
mod window;

pub(crate) use aggregate::AggregateSpec;
pub use aggregate::DeviceAggregateExec;
pub(crate) use cache::{CrossSubplanCache, SharedRows};
pub use device_to_host::DeviceToHostExec;
pub use dynamic_filter::DeviceDynamicFilterExec;
pub use expand::DeviceExpandExec;
pub(crate) use expand::GroupingSet;
pub use filter::DeviceFilterExec;
pub use futhark::DeviceFutharkExec;
pub use host::HostExec;
pub(crate) use host_plan::{
    computes, is_bounded, is_constant, is_limit, is_trivial, joins_other_lists, reads_files, scan_projection, window_exprs,
};
pub use host_to_device::HostToDeviceExec;
pub use join::DeviceJoinExec;
pub(crate) use join::{JoinSpec, ScalarSubquery};
pub(crate) use join_strings::JoinTexts;
pub use limit::DeviceLimitExec;
pub(crate) use methods::{
    device_methods, inner_methods, leaf_methods, refuse_stream, row_wise_operator, statistics_of_the_input,
};
pub(crate) use operator::{fused_below, is_device, lacks_rows};
pub use projection::DeviceProjectionExec;
pub(crate) use properties::{coalesced_equivalences, column_names, leaf_properties};
pub use scan::DeviceScanExec;
pub(crate) use shared::Sharing;
pub use shared::{DeviceReuseExec, DeviceSharedExec};
pub use sort::DeviceSortExec;
pub use stream::DeviceStreamExec;
pub use union::DeviceUnionExec;
pub use unnest::DeviceUnnestExec;
pub use window::DeviceWindowExec;
