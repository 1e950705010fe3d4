// SPDX-License-Identifier: Apache-2.0
//! Subplans that run once for several operators.
//!
//! - Within an offloaded subplan: a CTE that is used twice.
//! - Across offloaded subplans: subplans of scalar subqueries that also stand in other subqueries
//!   or in the main query. Scalar subqueries run first.
//!
//! DataFusion copies a CTE's plan to each use. Its optimizer may then change each copy. Copies that
//! are still the same give the same rows. Copies that differ only in their columns become the same
//! (`merging`).

use std::cell::Cell;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::common::{Result, internal_datafusion_err};
use datafusion::physical_plan::ExecutionPlanProperties;

use crate::exec::{DeviceOperator, DeviceReuseExec, DeviceSharedExec, DeviceToHostExec, Sharing, device_inputs, is_device};
use crate::expr::awaits_subquery;
use crate::planner::dynamic_filters::without_dynamic_filters;
use crate::planner::merging::with_merged_subplans;
use crate::planner::repeated::{RepeatedSubplans, is_worth_sharing};
use crate::planner::rewrite::{Plan, has_ordered_partitions, in_one_partition, map_device_inputs, with_children};
use crate::planner::same::{is_cached, reads_rows_of, same_rows};

/// An offloaded subplan whose repeated operators share their rows.
pub(crate) fn with_shared_subplans(plan: &Plan) -> Result<Plan> {
    let plan = without_sharing(plan)?;
    let has_partitions = plan.output_partitioning().partition_count() > 1;
    // Partitions run separately for the reader that merges them.
    if has_ordered_partitions(&plan) {
        return Ok(plan);
    }
    let merged = with_merged_subplans(vec![plan], &is_worth_sharing)?;
    let [plan] =
        <[_; 1]>::try_from(merged).map_err(|plans| internal_datafusion_err!("{} offloaded subplans of one", plans.len()))?;
    let mut repeated = RepeatedSubplans::of(std::slice::from_ref(&plan));
    if !repeated.any() {
        return Ok(plan);
    }
    let shared = share(&plan, &mut repeated)?;
    if has_partitions { in_one_partition(shared) } else { Ok(shared) }
}

/// An offloaded subplan of a query with scalar subqueries.
struct OffloadedSubplan {
    /// The `DeviceToHostExec`, or the device operators if they have none yet.
    top: Plan,
    /// The operators without sharing and dynamic filters.
    plan: Plan,
    /// Whether it belongs to the main query, run after all subqueries.
    is_main: bool,
}

/// Caches rows of subplans that several of `inputs` have in common: the main query first, then the
/// scalar subqueries of one operator.
///
/// - `count` numbers the cached rows.
/// - `offload` puts a `DeviceToHostExec` like the present one over changed operators.
/// - Only rows held anyway by an aggregation or a top-k are cached, since the cache holds all of
///   them at once. Two runs of a join need less memory than its cached rows.
pub(crate) fn shared_with_subqueries(
    inputs: Vec<Plan>,
    count: &Cell<usize>,
    offload: &dyn Fn(Plan, &DeviceToHostExec) -> Result<Plan>,
) -> Result<Vec<Plan>> {
    let subplans = offloaded_subplans(&inputs)?;
    let may_cache = |plan: &Plan| is_held(plan) && !awaits_subqueries(plan);
    let mut plans = with_merged_subplans(subplans.iter().map(|subplan| Arc::clone(&subplan.plan)).collect(), &may_cache)?;
    while let Some((subplan, readers)) = uppermost_of_several(&plans, &may_cache) {
        count.set(count.get() + 1);
        let sharing = Sharing { number: count.get(), readers, cache: Some(Arc::default()), is_last: false };
        cache(&mut plans, &subplans, &subplan, sharing)?;
    }
    let mut cached = Vec::new();
    plans.iter().for_each(|plan| find_shared(plan, true, &mut cached));
    let plans = plans.iter().map(|plan| renew(plan, true, &cached)).collect::<Result<Vec<_>>>()?;
    let mut as_before = true;
    let mut current = |top: &Plan| {
        let found = subplans.iter().zip(&plans).find(|(subplan, _)| Arc::ptr_eq(&subplan.top, top));
        let Some((_, plan)) = found.filter(|(subplan, plan)| !Arc::ptr_eq(&subplan.plan, plan)) else {
            return Ok(Arc::clone(top));
        };
        let Some(before) = top.downcast_ref::<DeviceToHostExec>() else { return Ok(Arc::clone(plan)) };
        let after = offload(Arc::clone(plan), before)?;
        // Operators of the host above rely on order and partitions.
        let in_order = match top.output_ordering() {
            Some(ordering) => after.equivalence_properties().ordering_satisfy(ordering.clone())?,
            None => true,
        };
        let partitions = |plan: &Plan| plan.output_partitioning().partition_count();
        as_before &= in_order && partitions(&after) == partitions(top);
        Ok(after)
    };
    let sharing = inputs.iter().map(|input| map_subplans(input, &mut current)).collect::<Result<Vec<_>>>()?;
    // A reader less would leave rows in the cache, so all inputs change or none.
    Ok(if as_before { sharing } else { inputs })
}

/// The offloaded subplans of `inputs` that may share rows, in the order of their runs.
fn offloaded_subplans(inputs: &[Plan]) -> Result<Vec<OffloadedSubplan>> {
    let mut subplans = Vec::new();
    // The main query is the first input, and runs last.
    for index in (1..inputs.len()).chain([0]) {
        map_subplans(&inputs[index], &mut |top| {
            let operators = top.downcast_ref::<DeviceToHostExec>().map_or(top, DeviceToHostExec::input);
            let plan = without_sharing(&without_dynamic_filters(operators)?)?;
            if may_share(&plan) {
                subplans.push(OffloadedSubplan { top: Arc::clone(top), plan, is_main: index == 0 });
            }
            Ok(Arc::clone(top))
        })?;
    }
    Ok(subplans)
}

/// Caches the rows of `subplan`: the first plan that has it computes them, the others reuse them.
fn cache(plans: &mut [Plan], subplans: &[OffloadedSubplan], subplan: &Plan, mut sharing: Sharing) -> Result<()> {
    let mut is_placed = false;
    let in_main = plans.iter().zip(subplans).filter(|(plan, of)| of.is_main && runs_with(plan, subplan) > 0).count();
    for (plan, of) in plans.iter_mut().zip(subplans) {
        if runs_with(plan, subplan) == 0 {
            continue;
        }
        sharing.is_last = of.is_main && in_main == 1;
        let by = |found: &Plan| -> Plan {
            match is_placed {
                true => Arc::new(DeviceReuseExec::new(Arc::clone(found), sharing.clone())),
                false => Arc::new(DeviceSharedExec::new(Arc::clone(found), sharing.clone())),
            }
        };
        *plan = replaced(plan, subplan, &by)?;
        is_placed = true;
    }
    Ok(())
}

/// A plan over `f` of its offloaded subplans. Offloaded subplans below others stay.
fn map_subplans(plan: &Plan, f: &mut dyn FnMut(&Plan) -> Result<Plan>) -> Result<Plan> {
    if is_device(plan) || plan.is::<DeviceToHostExec>() {
        return f(plan);
    }
    let children = plan.children().into_iter().map(|child| map_subplans(child, f)).collect::<Result<Vec<_>>>()?;
    with_children(plan, children)
}

/// Whether a subplan runs once: ordered partitions run separately for a merging reader.
fn may_share(input: &Plan) -> bool {
    input.output_partitioning().partition_count() == 1 || input.output_ordering().is_none()
}

/// An uppermost subplan of several runs, with the number of these runs.
fn uppermost_of_several(plans: &[Plan], may_cache: &dyn Fn(&Plan) -> bool) -> Option<(Plan, usize)> {
    let RepeatedSubplans { mut classes, mut found, .. } = RepeatedSubplans::of(plans);
    let mut runs: HashMap<usize, usize> = HashMap::new();
    for run in plans.iter().flat_map(runs_of) {
        let extent = classes.extent(&run);
        extent.tops.union(&extent.below).for_each(|class| *runs.entry(*class).or_default() += 1);
    }
    let several = |class: &usize| runs.get(class).copied().filter(|runs| *runs > 1);
    found.retain(|(class, subplan)| several(class).is_some() && may_cache(subplan));
    let below: HashSet<usize> = found.iter().flat_map(|(_, subplan)| classes.extent(subplan).below).collect();
    let (class, uppermost) = found.into_iter().find(|(class, _)| !below.contains(class))?;
    Some((uppermost, several(&class)?))
}

/// The runs of a plan: its own, and one of each subplan that it caches.
fn runs_of(plan: &Plan) -> Vec<Plan> {
    let mut cached = Vec::new();
    find_shared(plan, true, &mut cached);
    // A cached subplan may stand at several positions.
    cached.sort_by_key(|(number, _)| *number);
    cached.dedup_by_key(|(number, _)| *number);
    std::iter::once(Arc::clone(plan)).chain(cached.into_iter().map(|(_, input)| input)).collect()
}

/// Number of runs of a plan that read `subplan`.
fn runs_with(plan: &Plan, subplan: &Plan) -> usize {
    runs_of(plan).iter().filter(|run| reads_rows_of(run, subplan)).count()
}

/// Whether an operator below holds as many rows anyway. Projections stay with the readers, so that
/// readers of other columns share the rows.
fn is_held(plan: &Plan) -> bool {
    let Some(operator) = DeviceOperator::of(plan) else { return false };
    operator.holds_result() || (operator.repeats_over_held_rows() && plan.children().into_iter().all(is_held))
}

fn replaced(plan: &Plan, subplan: &Plan, by: &dyn Fn(&Plan) -> Plan) -> Result<Plan> {
    if same_rows(plan, subplan) { Ok(by(plan)) } else { map_device_inputs(plan, |child| replaced(child, subplan, by)) }
}

fn awaits_subqueries(plan: &Plan) -> bool {
    let mut awaits = false;
    let visited = plan.apply_expressions(&mut |expr| {
        awaits |= awaits_subquery(expr);
        Ok(TreeNodeRecursion::Continue)
    });
    visited.is_err() || awaits || device_inputs(plan).into_iter().any(awaits_subqueries)
}

/// The operators without sharing within the offloaded subplan. Cached rows stay.
pub(super) fn without_sharing(plan: &Plan) -> Result<Plan> {
    if !is_cached(plan) {
        if let Some(shared) = plan.downcast_ref::<DeviceSharedExec>() {
            return without_sharing(shared.input());
        }
        if let Some(reuse) = plan.downcast_ref::<DeviceReuseExec>() {
            return without_sharing(reuse.shared());
        }
    }
    map_device_inputs(plan, without_sharing)
}

/// Updates each `DeviceReuseExec` to the present input of its `DeviceSharedExec`.
pub(crate) fn with_current_subplans(plan: &Plan) -> Result<Plan> {
    let mut shared = Vec::new();
    find_shared(plan, false, &mut shared);
    if shared.is_empty() { Ok(Arc::clone(plan)) } else { renew(plan, false, &shared) }
}

/// Puts a `DeviceSharedExec` over the first use of each repeated subplan, and a `DeviceReuseExec`
/// over the others.
fn share(plan: &Plan, repeated: &mut RepeatedSubplans) -> Result<Plan> {
    let Some((sharing, is_first)) = repeated.sharing_of(plan) else {
        return map_device_inputs(plan, |child| share(child, repeated));
    };
    if !is_first {
        return Ok(Arc::new(DeviceReuseExec::new(Arc::clone(plan), sharing)));
    }
    let input = map_device_inputs(plan, |child| share(child, repeated))?;
    Ok(Arc::new(DeviceSharedExec::new(input, sharing)))
}

/// Collects inputs of `DeviceSharedExec`s by number. `cached`: those of the cross-subplan cache, or
/// the others.
fn find_shared(plan: &Plan, cached: bool, shared: &mut Vec<(usize, Plan)>) {
    if let Some(node) = plan.downcast_ref::<DeviceSharedExec>()
        && node.sharing().cache.is_some() == cached
    {
        shared.push((node.number(), Arc::clone(node.input())));
    }
    device_inputs(plan).into_iter().for_each(|child| find_shared(child, cached, shared));
}

/// Updates the `DeviceReuseExec`s of `shared`.
fn renew(plan: &Plan, cached: bool, shared: &[(usize, Plan)]) -> Result<Plan> {
    if let Some(reuse) = plan.downcast_ref::<DeviceReuseExec>()
        && reuse.sharing().cache.is_some() == cached
    {
        let current = shared.iter().find(|(number, _)| *number == reuse.number());
        return Ok(match current {
            Some((_, input)) => Arc::new(DeviceReuseExec::new(renew(input, cached, shared)?, reuse.sharing().clone())),
            None => Arc::clone(plan),
        });
    }
    map_device_inputs(plan, |child| renew(child, cached, shared))
}
