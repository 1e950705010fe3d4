// SPDX-License-Identifier: Apache-2.0
//! Exchanges: moves of rows between partitions, which device operators do not need.

use std::sync::Arc;

use datafusion::physical_plan::coalesce_partitions::CoalescePartitionsExec;
use datafusion::physical_plan::coop::CooperativeExec;
use datafusion::physical_plan::limit::GlobalLimitExec;
use datafusion::physical_plan::repartition::RepartitionExec;
use datafusion::physical_plan::sorts::sort::SortExec;
use datafusion::physical_plan::{ExecutionPlan, Partitioning};

use crate::exec::DeviceLimitExec;
use crate::planner::support::subplan_input;

/// The device operators of an offloaded subplan below exchanges. An exchange with a limit leaves
/// the limit.
pub(super) fn subplan_below_exchanges(plan: &Arc<dyn ExecutionPlan>) -> Option<Arc<dyn ExecutionPlan>> {
    if let Some(input) = subplan_input(plan) {
        return Some(Arc::clone(input));
    }
    let children = plan.children();
    let [child] = children.as_slice() else { return None };
    if is_round_robin(plan) || is_plain_coalesce(plan) {
        // Operators above that rely on the order of a sort restore it.
        let sorted = child.downcast_ref::<SortExec>().filter(|sort| sort.fetch().is_none());
        return subplan_below_exchanges(sorted.map_or(*child, SortExec::input));
    }
    let fetch = plan.downcast_ref::<CoalescePartitionsExec>()?.fetch();
    let limit = GlobalLimitExec::new(subplan_below_exchanges(child)?, 0, fetch);
    DeviceLimitExec::try_new(Arc::new(limit)).ok().map(|limit| Arc::new(limit) as _)
}

/// The plan below all exchanges, for an operator that takes rows of any partition in any order.
pub(super) fn without_exchanges(plan: &Arc<dyn ExecutionPlan>) -> Arc<dyn ExecutionPlan> {
    match plan.children().as_slice() {
        [child] if plan.is::<RepartitionExec>() || is_plain_coalesce(plan) || plan.is::<CooperativeExec>() => {
            without_exchanges(child)
        }
        _ => Arc::clone(plan),
    }
}

pub(super) fn without_round_robin(plan: &Arc<dyn ExecutionPlan>) -> Arc<dyn ExecutionPlan> {
    match plan.children().as_slice() {
        [child] if is_round_robin(plan) => without_round_robin(child),
        _ => Arc::clone(plan),
    }
}

fn is_round_robin(plan: &Arc<dyn ExecutionPlan>) -> bool {
    plan.downcast_ref::<RepartitionExec>()
        .is_some_and(|repartition| matches!(repartition.partitioning(), Partitioning::RoundRobinBatch(_)))
}

fn is_plain_coalesce(plan: &Arc<dyn ExecutionPlan>) -> bool {
    plan.is::<CoalescePartitionsExec>() && plan.fetch().is_none()
}
