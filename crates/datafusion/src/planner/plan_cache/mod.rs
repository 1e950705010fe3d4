// SPDX-License-Identifier: Apache-2.0
//! The plan cache: a query that runs again is neither optimized nor planned again.
//!
//! 1. [`PlanCacheRule`], the first rule of the analyzer, wraps a query in a [`PlanCacheNode`]. For
//!    a query in the cache, the node is a leaf, which DataFusion's other rules pass over.
//! 2. [`PlanCacheQueryPlanner`] finds the node at the root. It lends the kept plan, or plans the
//!    query and keeps the plan.
//!
//! Kept are plans that run on the device alone, over resident tables ([`CachedQuery`]). A plan is
//! dropped with the snapshots that it scans: by INSERT, by DROP, and with a lost device.

mod cache;
mod node;
mod query;
mod query_planner;
mod rule;

pub(crate) use cache::PlanCache;
use node::{PlanCacheNode, Progress};
use query::CachedQuery;
pub(crate) use query_planner::PlanCacheQueryPlanner;
pub(crate) use rule::PlanCacheRule;
