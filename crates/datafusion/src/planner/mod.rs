// SPDX-License-Identifier: Apache-2.0
//! Planning: which operators move to the device, and why the others stay.

mod arrays;
mod conditions;
mod dynamic_filters;
mod grouping_sets;
mod insert_types;
mod joins;
mod lift;
mod merging;
mod ordered;
mod place;
mod placement;
mod reasons;
mod rule;
mod sharing;
mod subqueries;
mod subquery_columns;
mod support;
mod top_k;
mod window_filters;
mod windows;

pub(crate) use insert_types::InsertTypes;
pub use lift::ProjectionKeeper;
pub use placement::{HostOperator, Placement, PlacementKind, placement};
pub use reasons::HostReasons;
pub use rule::DevicePlanner;
pub use subquery_columns::SubqueryColumns;
pub use window_filters::WindowFilters;
