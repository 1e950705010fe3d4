// SPDX-License-Identifier: Apache-2.0
//! Planning: which operators are offloaded, and why the others stay on the host.
//!
//! [`DevicePlanner`] calls, in this order:
//! 1. `projection_keeper` and `unnest_arrays` prepare the host plan.
//! 2. `offload` replaces operators bottom up. It asks `support`, `joins` and `windows` for each
//!    operator. `join_conditions` rewrites joins that are not supported.
//! 3. For each offloaded subplan: `sharing` (with `merging`), then `dynamic_filters`.
//! 4. `subqueries` and `sharing` connect the subplans of scalar subqueries with the main query.
//!
//! [`HostReasons`] runs last and writes reasons into the plan. `window_filters`, `subquery_columns`
//! and `insert_types` are rules on logical plans. `plan_cache` surrounds all of them.

mod columns;
mod dynamic_filters;
mod early_drivers;
mod grouping_sets;
#[cfg(test)]
mod growth;
mod insert_types;
mod join_conditions;
mod joins;
mod merging;
mod most_rows;
mod offload;
mod ordered_aggregates;
mod placement;
mod plan_cache;
mod projection_keeper;
mod reasons;
mod repeated;
mod rewrite;
mod row_classes;
mod rule;
mod same;
mod sharing;
mod subqueries;
mod subquery_columns;
mod support;
#[cfg(test)]
mod testing;
mod top_k;
mod unnest_arrays;
mod window_filters;
mod windows;

pub(crate) use early_drivers::EarlyDrivers;
pub(crate) use insert_types::InsertTypes;
pub use placement::{HostOperator, Placement, PlacementKind, placement};
pub(crate) use plan_cache::{PlanCache, PlanCacheQueryPlanner, PlanCacheRule};
pub use projection_keeper::ProjectionKeeper;
pub use reasons::HostReasons;
pub use rule::DevicePlanner;
pub use subquery_columns::SubqueryColumns;
pub use window_filters::WindowFilters;
