// SPDX-License-Identifier: Apache-2.0
//! The physical operators, one per file.
//!
//! [`DeviceToHostExec`] is the only operator that executes. It runs the subtree below it as fused
//! pipelines. Leaves of the subtree are [`HostToDeviceExec`], [`DeviceScanExec`] and
//! [`DeviceStreamExec`]. The other operators exist for EXPLAIN, metrics and rewriting. Executing
//! one of them is an internal error, never a quiet download.
//!
//! # Words of EXPLAIN
//!
//! | word | operator | meaning |
//! |---|---|---|
//! | `to=[…]` | `DeviceToHostExec` | the reader of the downloaded rows |
//! | `from=[…]` | `HostToDeviceExec` | the origin of the uploaded rows |
//! | `host=[…]` | host operators | the reason why the operator is not offloaded |
//! | `ran_on_host=[…]` | `DeviceToHostExec` | why the host has run the replaced operators (EXPLAIN ANALYZE) |
//! | `pipelines=N` | `DeviceToHostExec` | number of pipelines that launch kernels |
//! | `profile=…` | `DeviceToHostExec` | shape of the kernels (EXPLAIN VERBOSE, which also prints their sources) |
//! | `columns=N` | `HostToDeviceExec` | number of uploaded columns |
//! | `fused=[…]` | `DeviceAggregateExec` | operators below that run inside its kernels |
//! | `libraries=[…]` | `DeviceAggregateExec`, `DeviceFutharkExec` | Futhark libraries that are called |
//! | `calls=[…]` | `DeviceFutharkExec` | calls of these libraries |
//! | `dynamic_filter=#1` | `DeviceJoinExec` | number of the dynamic filter that the build side feeds |
//! | `dynamic_filter=#1` | `DeviceDynamicFilterExec` | number of the join whose keys it probes |
//! | `scalar_subquery=v@2` | `DeviceJoinExec` | the column into which the join brings a subquery's value |
//! | `shared=#1` | `DeviceSharedExec`, `DeviceReuseExec` | identifies rows that one offloaded subplan shares |
//! | `cached=#1` | `DeviceSharedExec`, `DeviceReuseExec` | identifies rows that several offloaded subplans share |
//! | `readers=N` | `DeviceSharedExec` | number of readers of shared or cached rows |
//! | `sets=[…]` | `DeviceExpandExec` | the grouping sets |
//! | `source=…` | `DeviceStreamExec` | the kind of stream |
//!
//! Other words are those of the DataFusion operator that is replaced.

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
pub(crate) use alternative::{Downloads, HostAlternative};
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
pub(crate) use join::{DynamicFilters, JoinSpec, ScalarSubquery};
pub(crate) use join_strings::JoinStrings;
pub(crate) use join_type::{JoinColumns, JoinTypeFacts};
pub use limit::DeviceLimitExec;
pub(crate) use methods::{
    common_methods, host_counterpart, inner_methods, leaf_methods, pass_through_methods, refuse_stream, refused_execution,
};
pub(crate) use operator::{DeviceOperator, device_inputs, drops_rows, fused_below, is_device, reads_device};
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
