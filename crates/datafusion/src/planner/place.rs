// SPDX-License-Identifier: Apache-2.0
//! Moves operators to the device, bottom up, and puts offloaded subplans, uploads and what the host needs
//! restored around them.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::sync::Arc;

use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::TreeNode;
use datafusion::common::{Result, internal_err};
use datafusion::physical_expr::window::WindowExpr;
use datafusion::physical_expr::{AcrossPartitions, LexOrdering, PhysicalSortExpr};
use datafusion::physical_plan::aggregates::{AggregateExec, AggregateOutputMode};
use datafusion::physical_plan::coalesce_partitions::CoalescePartitionsExec;
use datafusion::physical_plan::coop::CooperativeExec;
use datafusion::physical_plan::filter::{FilterExec, FilterExecBuilder};
use datafusion::physical_plan::joins::{PiecewiseMergeJoinExec, SortMergeJoinExec};
use datafusion::physical_plan::limit::{GlobalLimitExec, LocalLimitExec};
use datafusion::physical_plan::projection::ProjectionExec;
use datafusion::physical_plan::recursive_query::RecursiveQueryExec;
use datafusion::physical_plan::repartition::RepartitionExec;
use datafusion::physical_plan::scalar_subquery::ScalarSubqueryExec;
use datafusion::physical_plan::sorts::partitioned_topk::PartitionedTopKExec;
use datafusion::physical_plan::sorts::sort::SortExec;
use datafusion::physical_plan::sorts::sort_preserving_merge::SortPreservingMergeExec;
use datafusion::physical_plan::union::UnionExec;
use datafusion::physical_plan::unnest::UnnestExec;
use datafusion::physical_plan::{
    ChildrenPropertiesMode, Distribution, ExecutionPlan, ExecutionPlanProperties, Partitioning, ReplaceChildrenOptions,
};
use kernels::ops::Options;

use crate::exec::{
    AggregateSpec, DeviceAggregateExec, DeviceFilterExec, DeviceFutharkExec, DeviceJoinExec, DeviceLimitExec,
    DeviceProjectionExec, DeviceSortExec, DeviceToHostExec, DeviceUnionExec, DeviceUnnestExec, DeviceWindowExec,
    HostToDeviceExec, computes, is_constant, is_device, is_limit, is_trivial, joins_other_lists, window_exprs,
};
use crate::expr::AggregateCall;
use crate::planner::columns::support_of_columns;
use crate::planner::dynamic_filters::with_dynamic_filters;
use crate::planner::grouping_sets::aggregate_of_sets;
use crate::planner::joins::{is_join, supported_join};
use crate::planner::ordered_aggregates::{all_name_their_order, has_ordered, ordered_calls};
use crate::planner::placement::origin;
use crate::planner::sharing::{shared_with_subqueries, with_current_subplans, with_shared_subplans};
use crate::planner::subqueries::with_values;
use crate::planner::support::{is_tiny, subplan_input, support_for_explain, support_of, supported_aggregation};
use crate::planner::top_k::partitioned_top_k;
use crate::session::DeviceOptions;

pub(crate) struct Placer<'a> {
    options: &'a DeviceOptions,
    config: &'a ConfigOptions,
    /// How kernels are shaped.
    kernels: Options,
    /// Subtrees and what became of them: an operator that stays on the host after all asks for its inputs again.
    placed: RefCell<HashMap<*const (), Placed>>,
    /// Whether parts of the plan run several times, with other rows each time.
    recursive: Cell<bool>,
    /// How many rows are kept by one offloaded subplan for another.
    kept: Cell<usize>,
    /// How many operators of scalar subqueries stand above.
    subqueries_above: Cell<usize>,
}

/// A subtree, which must stay where it is as long as its address stands for it, and its placement.
type Placed = (Arc<dyn ExecutionPlan>, Arc<dyn ExecutionPlan>);

impl<'a> Placer<'a> {
    pub fn new(options: &'a DeviceOptions, config: &'a ConfigOptions, kernels: Options) -> Self {
        Placer {
            options,
            config,
            kernels,
            placed: RefCell::default(),
            recursive: Cell::default(),
            kept: Cell::default(),
            subqueries_above: Cell::default(),
        }
    }

    /// Places a whole plan: what comes back runs on the host, with offloaded subplans in it.
    pub fn place(&self, plan: Arc<dyn ExecutionPlan>) -> Result<Arc<dyn ExecutionPlan>> {
        self.recursive.set(plan.exists(|node| Ok(node.is::<RecursiveQueryExec>()))?);
        let placed = self.place_subtree(&plan)?;
        if !is_device(&placed) {
            return Ok(placed);
        }
        // An ORDER BY may have gone since the operators below gave that order anyway.
        let offload = |placed| self.offload(placed, "the result");
        let ordered = plan.output_partitioning().partition_count() == 1;
        match if ordered { in_order_of(&plan, Arc::clone(&placed))? } else { None } {
            Some(sorted) => offload(sorted),
            None if ordered => restore(&plan, offload(placed)?, "the result", None),
            None => offload(unsorted(placed)),
        }
    }

    /// Places a subtree; its top may be a device operator without an offloaded subplan yet.
    fn place_subtree(&self, plan: &Arc<dyn ExecutionPlan>) -> Result<Arc<dyn ExecutionPlan>> {
        let address = Arc::as_ptr(plan).cast::<()>();
        if let Some((_, placed)) = self.placed.borrow().get(&address) {
            return Ok(Arc::clone(placed));
        }
        let placed = self.place_anew(plan)?;
        self.placed.borrow_mut().insert(address, (Arc::clone(plan), Arc::clone(&placed)));
        Ok(placed)
    }

    fn place_anew(&self, plan: &Arc<dyn ExecutionPlan>) -> Result<Arc<dyn ExecutionPlan>> {
        if let Some(input) = subplan_input(plan) {
            return Ok(Arc::clone(input));
        }
        if plan.children().is_empty() {
            return Ok(Arc::clone(plan));
        }
        if self.options.enabled
            && let Some(aggregate) = plan.downcast_ref::<AggregateExec>()
            && let Ok(raw) = supported_aggregation(aggregate)
        {
            let input = self.place_subtree(&without_exchanges(raw.input()))?;
            if let Some(input) = self.device_input(input)? {
                // Rows come in the order of the input where a function asks for one and names none.
                let input = if all_name_their_order(raw) { unsorted(input) } else { input };
                let (spec, input) = aggregate_of_sets(raw, plan.schema(), input)?;
                let aggregate = if has_ordered(raw) { ordered(spec, input)? } else { aggregated(spec, input)? };
                if let Some(placed) = in_order_of(plan, Arc::new(aggregate))? {
                    return Ok(placed);
                }
            }
        }
        if self.options.enabled
            && let Some(placed) =
                self.join(plan)?.or(self.sort(plan)?).or(self.window(plan)?).or(self.union(plan)?).or(self.top_k(plan)?)
        {
            return Ok(placed);
        }
        let above = self.subqueries_above.get();
        self.subqueries_above.set(above + usize::from(plan.is::<ScalarSubqueryExec>()));
        let children = plan.children().into_iter().map(|child| self.place_subtree(child)).collect::<Result<Vec<_>>>()?;
        self.subqueries_above.set(above);
        if let Some(subqueries) = plan.downcast_ref::<ScalarSubqueryExec>() {
            return self.subqueries(subqueries, children);
        }
        if self.options.enabled
            && let [child] = children.as_slice()
            && let Some(merge) = plan.downcast_ref::<SortPreservingMergeExec>()
            && is_device(child)
            && let Some(sorted) = merged(merge, child)?
        {
            return Ok(sorted);
        }
        if self.options.enabled
            && let [child] = children.as_slice()
            && !plan.is::<AggregateExec>()
            && support_of(plan).is_ok()
            && let Some(placed) = self.row_wise(plan, child)?
        {
            return Ok(placed);
        }
        self.host(plan, children)
    }

    /// The device form of a join whose sides are on the device, or worth the way there.
    fn join(&self, plan: &Arc<dyn ExecutionPlan>) -> Result<Option<Arc<dyn ExecutionPlan>>> {
        if !is_join(plan) {
            return Ok(None);
        }
        let children = plan.children();
        let (Ok(mut spec), [left, right]) = (supported_join(plan), children.as_slice()) else { return Ok(None) };
        let sorted = plan.is::<SortMergeJoinExec>() || plan.is::<PiecewiseMergeJoinExec>();
        let place = |side: &Arc<dyn ExecutionPlan>| {
            let side = without_exchanges(side);
            match side.downcast_ref::<SortExec>() {
                // Rows are looked up, in any order.
                Some(sort) if sorted && sort.fetch().is_none() => self.place_subtree(&without_exchanges(sort.input())),
                _ => self.place_subtree(&side),
            }
        };
        let (left, right) = (place(left)?, place(right)?);
        let inputs = match (self.device_input(Arc::clone(&left))?, self.device_input(Arc::clone(&right))?) {
            (Some(left), Some(right)) => (left, right),
            // One side of few rows goes where the other one is.
            (None, Some(other)) => (self.upload(left), other),
            (Some(other), None) => (other, self.upload(right)),
            (None, None) => return Ok(None),
        };
        let (left, right) = (unsorted(inputs.0), inputs.1);
        spec.equivalences.clear_orderings();
        if let Some(ordering) = spec.order_of_probe(&left, &right)? {
            spec.equivalences.add_ordering(ordering);
        }
        let join: Arc<dyn ExecutionPlan> = Arc::new(DeviceJoinExec::new(spec, left, right));
        match plan.fetch() {
            None => Ok(Some(join)),
            fetch => Ok(Some(Arc::new(DeviceLimitExec::try_new(Arc::new(GlobalLimitExec::new(join, 0, fetch)))?))),
        }
    }

    /// The device form of a sort.
    fn sort(&self, plan: &Arc<dyn ExecutionPlan>) -> Result<Option<Arc<dyn ExecutionPlan>>> {
        let Some(sort) = plan.downcast_ref::<SortExec>().filter(|_| support_of(plan).is_ok()) else { return Ok(None) };
        let input = without_exchanges(sort.input());
        // Groups that the host aggregates in two steps have no reason to leave it between them.
        if input
            .downcast_ref::<AggregateExec>()
            .is_some_and(|partial| partial.mode().output_mode() == AggregateOutputMode::Partial)
        {
            return Ok(None);
        }
        let Some(input) = self.device_input(self.place_subtree(&input)?)? else { return Ok(None) };
        // The first rows of each partition are not the first of all by keys that leave out what is constant in
        // each partition only. The merge above, which has all keys, limits them.
        let constants = input.equivalence_properties().constants();
        let per_partition = constants.iter().any(|constant| constant.across_partitions == AcrossPartitions::Heterogeneous);
        let fetch = sort.fetch().filter(|_| !(sort.preserve_partitioning() && per_partition));
        let host = SortExec::new(sort.expr().clone(), input).with_fetch(fetch);
        Ok(Some(Arc::new(DeviceSortExec::try_new(Arc::new(host))?)))
    }

    /// The device form of the first rows of each partition.
    fn top_k(&self, plan: &Arc<dyn ExecutionPlan>) -> Result<Option<Arc<dyn ExecutionPlan>>> {
        let Some(top) = plan.downcast_ref::<PartitionedTopKExec>().filter(|_| support_of(plan).is_ok()) else { return Ok(None) };
        let input = self.place_subtree(&without_exchanges(top.input()))?;
        let Some(input) = self.device_input(input)? else { return Ok(None) };
        partitioned_top_k(top, input, &device_operator).map(Some)
    }

    /// The device form of a union of which an input is on the device, and no other one is worth staying on the host.
    fn union(&self, plan: &Arc<dyn ExecutionPlan>) -> Result<Option<Arc<dyn ExecutionPlan>>> {
        if !DeviceUnionExec::replaces(plan) || support_of_columns(plan).is_err() || joins_other_lists(plan) {
            return Ok(None);
        }
        let children = plan.children();
        let placed = children.iter().map(|child| self.place_subtree(&without_exchanges(child))).collect::<Result<Vec<_>>>()?;
        let moves =
            |child: &Arc<dyn ExecutionPlan>| is_device(child) || self.options.always() || is_tiny(child, self.options).is_some();
        if !placed.iter().any(is_device) || !placed.iter().all(moves) {
            return Ok(None);
        }
        let inputs = placed.into_iter().map(|child| if is_device(&child) { child } else { self.upload(child) });
        let union = UnionExec::try_new(inputs.collect())?;
        // Inputs whose fields have other metadata get projections of the host's.
        let fits = union.schema() == plan.schema() && union.children().into_iter().all(is_device);
        Ok(if fits { Some(Arc::new(DeviceUnionExec::try_new(union)?)) } else { None })
    }

    /// A main query and its scalar subqueries, the values of which stay on the device where it asks for them.
    fn subqueries(
        &self,
        subqueries: &ScalarSubqueryExec,
        children: Vec<Arc<dyn ExecutionPlan>>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let mut placed = children.into_iter();
        let Some(main) = placed.next() else { return internal_err!("scalar subqueries of no query") };
        let placed = placed.map(|plan| exchange_over_subplan(&plan).unwrap_or(plan)).map(unsorted).collect();
        let (main, left) = match self.recursive.get() {
            true => (main, subqueries.subqueries().iter().cloned().zip(placed).collect()),
            false => with_values(subqueries, main, placed, &|input, reason| self.offload(input, reason))?,
        };
        if left.is_empty() {
            return Ok(main);
        }
        let (links, placed): (Vec<_>, Vec<_>) = left.into_iter().unzip();
        let rest = ScalarSubqueryExec::new(Arc::clone(subqueries.input()), links, subqueries.results().clone());
        self.host(&(Arc::new(rest) as _), [vec![main], placed].concat())
    }

    /// The device form of window functions; their input is sorted anew where it comes in several partitions.
    fn window(&self, plan: &Arc<dyn ExecutionPlan>) -> Result<Option<Arc<dyn ExecutionPlan>>> {
        let (Some([first, ..]), true) = (window_exprs(plan), support_of(plan).is_ok()) else { return Ok(None) };
        let Some(child) = plan.children().first().copied().cloned() else { return Ok(None) };
        let placed = self.place_subtree(&without_exchanges(&child))?;
        let Some(input) = self.device_input(placed)? else { return Ok(None) };
        let required = match child.output_ordering() {
            Some(ordering) => Some(ordering.clone()),
            None => order_of_window(first.as_ref()),
        };
        Ok(Some(windowed(plan, required, input)?))
    }

    /// The device form of a row-wise operator or limit over a placed child, if it pays.
    fn row_wise(&self, plan: &Arc<dyn ExecutionPlan>, child: &Arc<dyn ExecutionPlan>) -> Result<Option<Arc<dyn ExecutionPlan>>> {
        let inside = is_device(child) || exchange_over_subplan(child).is_some();
        let unnests_constants = plan.is::<UnnestExec>() && is_constant(plan);
        if (is_trivial(plan) || unnests_constants) && !inside {
            return Ok(None);
        }
        let Some(mut input) = self.device_input(Arc::clone(child))? else { return Ok(None) };
        if let (true, [original]) = (is_limit(plan) || plan.fetch().is_some(), plan.children().as_slice()) {
            // Which rows are the first depends on their order.
            let Some(sorted) = in_order_of(original, input)? else { return Ok(None) };
            input = sorted;
        }
        if let Some(filter) = plan.downcast_ref::<FilterExec>()
            && let Some(fetch) = filter.fetch()
        {
            // A filter that stops after some rows is a filter below a limit of each partition.
            let Some(unlimited) = plan.with_fetch(None) else { return Ok(None) };
            let filter = Arc::new(DeviceFilterExec::try_new(above(&unlimited, input)?)?);
            return Ok(Some(Arc::new(DeviceLimitExec::try_new(Arc::new(LocalLimitExec::new(filter, fetch)))?)));
        }
        let host = above(plan, input)?;
        Ok(if plan.is::<UnnestExec>() {
            Some(Arc::new(DeviceUnnestExec::try_new(host)?))
        } else if plan.is::<FilterExec>() {
            Some(Arc::new(DeviceFilterExec::try_new(host)?))
        } else if plan.is::<ProjectionExec>() {
            Some(Arc::new(DeviceProjectionExec::try_new(host)?))
        } else if plan.is::<GlobalLimitExec>() || plan.is::<LocalLimitExec>() {
            Some(Arc::new(DeviceLimitExec::try_new(host)?))
        } else {
            None
        })
    }

    /// A placed child as the input of a device operator: as it is, or uploaded where that pays.
    fn device_input(&self, child: Arc<dyn ExecutionPlan>) -> Result<Option<Arc<dyn ExecutionPlan>>> {
        if is_device(&child) {
            return Ok(Some(child));
        }
        if let Some(inner) = exchange_over_subplan(&child) {
            return Ok(Some(inner));
        }
        let input = without_round_robin(&child);
        if is_tiny(&input, self.options).is_some() {
            return Ok(None);
        }
        Ok(Some(self.upload(input)))
    }

    fn upload(&self, input: Arc<dyn ExecutionPlan>) -> Arc<dyn ExecutionPlan> {
        let reason = origin(&input, self.options);
        Arc::new(HostToDeviceExec::new(input, reason))
    }

    /// A host operator over placed children: device children become offloaded subplans, and get back what the
    /// operator requires of them.
    fn host(&self, plan: &Arc<dyn ExecutionPlan>, children: Vec<Arc<dyn ExecutionPlan>>) -> Result<Arc<dyn ExecutionPlan>> {
        // The uppermost of several such operators shares for all of them.
        let shares = plan.is::<ScalarSubqueryExec>() && self.subqueries_above.get() == 0 && !self.recursive.get();
        let children = if shares {
            shared_with_subqueries(children, &self.kept, &|input, reason| self.offload(input, reason))?
        } else {
            children
        };
        let required = plan.input_distribution_requirements();
        let mut changed = false;
        let mut restored = Vec::with_capacity(children.len());
        for (index, (original, child)) in plan.children().into_iter().zip(children).enumerate() {
            changed |= is_device(&child) || !Arc::ptr_eq(original, &child);
            let required = required.child_distribution(index);
            if !is_device(&child) {
                // Below an operator of the host rows may lie in other partitions than before.
                let child = if by_hash(plan.name(), required) { restore(original, child, plan.name(), required)? } else { child };
                restored.push(child);
                continue;
            }
            let reason = match support_for_explain(plan) {
                Err(reason) if computes(plan) => format!("{}: {reason}", plan.name()),
                _ => plan.name().to_string(),
            };
            let top = self.offload(child, reason)?;
            restored.push(restore(original, top, plan.name(), required)?);
        }
        if !changed {
            return Ok(Arc::clone(plan));
        }
        Arc::clone(plan).replace_children(restored, ReplaceChildrenOptions::new(ChildrenPropertiesMode::Recompute))
    }

    fn offload(&self, input: Arc<dyn ExecutionPlan>, reason: impl Into<String>) -> Result<Arc<dyn ExecutionPlan>> {
        let input = with_shared_subplans(&input)?;
        // What a scan learnt of the rows of one time is wrong the next.
        let input = with_dynamic_filters(&input, self.config, !self.recursive.get())?;
        let input = with_current_subplans(&input)?;
        Ok(Arc::new(DeviceToHostExec::try_new(input, reason, self.kernels.clone())?))
    }
}

/// The order in which a window function wants its rows.
fn order_of_window(function: &dyn WindowExpr) -> Option<LexOrdering> {
    let partitioned = function.partition_by().iter().map(|key| PhysicalSortExpr::new_default(Arc::clone(key)));
    LexOrdering::new(partitioned.chain(function.order_by().iter().cloned()))
}

/// The device form of window functions over a device input, which is brought in order and into one partition.
fn windowed(
    plan: &Arc<dyn ExecutionPlan>,
    required: Option<LexOrdering>,
    mut input: Arc<dyn ExecutionPlan>,
) -> Result<Arc<dyn ExecutionPlan>> {
    if let Some(required) = required
        && (input.output_partitioning().partition_count() != 1
            || !input.equivalence_properties().ordering_satisfy(required.clone())?)
    {
        input = Arc::new(DeviceSortExec::try_new(Arc::new(SortExec::new(required, input)))?);
    }
    if input.output_partitioning().partition_count() != 1 {
        input = Arc::new(DeviceLimitExec::try_new(Arc::new(GlobalLimitExec::new(input, 0, None)))?);
    }
    Ok(Arc::new(DeviceWindowExec::try_new(with_child(plan, input)?)?))
}

/// The device form of an operator over a device input.
fn device_operator(plan: Arc<dyn ExecutionPlan>) -> Result<Arc<dyn ExecutionPlan>> {
    let input = plan.children().first().copied().cloned();
    match (window_exprs(&plan), input) {
        (Some([first, ..]), Some(input)) => windowed(&plan, order_of_window(first.as_ref()), input),
        _ if plan.is::<FilterExec>() => Ok(Arc::new(DeviceFilterExec::try_new(plan)?)),
        _ if plan.is::<ProjectionExec>() => Ok(Arc::new(DeviceProjectionExec::try_new(plan)?)),
        _ => internal_err!("{} is not supported on the device of its own", plan.name()),
    }
}

/// An aggregation over a device input, with the calls of libraries that its expressions make in an operator between them.
fn aggregated(mut spec: AggregateSpec, input: Arc<dyn ExecutionPlan>) -> Result<DeviceAggregateExec> {
    let exprs = spec.keys.iter().map(|(key, _)| key).chain(spec.calls.iter().flat_map(AggregateCall::exprs));
    let Some((calls, lifted)) = DeviceFutharkExec::lift(&exprs.cloned().collect::<Vec<_>>(), &input)? else {
        return Ok(DeviceAggregateExec::new(spec, input));
    };
    let mut lifted = lifted.into_iter();
    for ((key, _), lifted) in spec.keys.iter_mut().zip(lifted.by_ref()) {
        *key = lifted;
    }
    for call in &mut spec.calls {
        let exprs: Vec<_> = lifted.by_ref().take(call.exprs().count()).collect();
        *call = call.with_exprs(&exprs);
    }
    Ok(DeviceAggregateExec::new(spec, calls))
}

/// An aggregation of rows at some places of an order, above window functions that number them.
fn ordered(spec: AggregateSpec, input: Arc<dyn ExecutionPlan>) -> Result<DeviceAggregateExec> {
    let (calls, input) = ordered_calls(&spec, input, &device_operator)?;
    Ok(DeviceAggregateExec::new(AggregateSpec { calls, ..spec }, input))
}

/// Whether a parent counts on which rows lie in which partition.
fn by_hash(parent: &str, required: Option<&Distribution>) -> bool {
    matches!(required, Some(Distribution::KeyPartitioned(_))) || parent == "InterleaveExec"
}

/// Gives what stands for an operator its partitioning and ordering, where its parent counts on them.
fn restore(
    original: &Arc<dyn ExecutionPlan>,
    placed: Arc<dyn ExecutionPlan>,
    parent: &str,
    required: Option<&Distribution>,
) -> Result<Arc<dyn ExecutionPlan>> {
    let partitions = original.output_partitioning().partition_count();
    let mut restored = placed;
    if let Some(ordering) = original.output_ordering()
        && !restored.equivalence_properties().ordering_satisfy(ordering.clone())?
    {
        restored = Arc::new(SortExec::new(ordering.clone(), restored).with_preserve_partitioning(true));
    }
    match original.output_partitioning() {
        Partitioning::Hash(..)
            if by_hash(parent, required) && restored.output_partitioning() != original.output_partitioning() =>
        {
            let repartition = RepartitionExec::try_new(restored, original.output_partitioning().clone())?;
            restored =
                Arc::new(if original.output_ordering().is_some() { repartition.with_preserve_order() } else { repartition });
        }
        _ if partitions == 1 && restored.output_partitioning().partition_count() > 1 => {
            restored = match original.output_ordering() {
                Some(ordering) => Arc::new(SortPreservingMergeExec::new(ordering.clone(), restored)),
                None => Arc::new(CoalescePartitionsExec::new(restored)),
            };
        }
        _ => {}
    }
    Ok(restored)
}

/// An operator's device form, sorted where the operator itself gives all of its rows in an order that is not that of its device
/// form. `None` where that sort is not supported on the device.
fn in_order_of(plan: &Arc<dyn ExecutionPlan>, placed: Arc<dyn ExecutionPlan>) -> Result<Option<Arc<dyn ExecutionPlan>>> {
    match plan.output_ordering() {
        Some(ordering) if !placed.equivalence_properties().ordering_satisfy(ordering.clone())? => {
            device_sort(SortExec::new(ordering.clone(), placed))
        }
        _ => Ok(Some(placed)),
    }
}

/// The rows of a sort in any order, for those who do not ask for one.
fn unsorted(input: Arc<dyn ExecutionPlan>) -> Arc<dyn ExecutionPlan> {
    match input.downcast_ref::<DeviceSortExec>() {
        Some(sort) if sort.fetch_rows().is_none() => sort.children().into_iter().next().cloned().unwrap_or(input),
        _ => input,
    }
}

/// What a merge of sorted partitions becomes above a device operator: that operator where it gives one partition in the
/// merge's order, else a sort by the merge's keys. `None` where the host merges: partitions that are sorted already, and keys
/// that are not supported on the device.
fn merged(merge: &SortPreservingMergeExec, child: &Arc<dyn ExecutionPlan>) -> Result<Option<Arc<dyn ExecutionPlan>>> {
    let keys = merge.expr().clone();
    if !child.equivalence_properties().ordering_satisfy(keys.clone())? {
        return device_sort(SortExec::new(keys, unsorted(Arc::clone(child))).with_fetch(merge.fetch()));
    }
    if child.output_partitioning().partition_count() != 1 {
        return Ok(None);
    }
    match merge.fetch() {
        Some(fetch) if fetches(child) != Some(fetch) => {
            let limit = GlobalLimitExec::new(Arc::clone(child), 0, Some(fetch));
            Ok(Some(Arc::new(DeviceLimitExec::try_new(Arc::new(limit))?)))
        }
        _ => Ok(Some(Arc::clone(child))),
    }
}

/// A sort of a device operator's rows on the device; `None` where its keys are not supported there.
fn device_sort(sort: SortExec) -> Result<Option<Arc<dyn ExecutionPlan>>> {
    let sort: Arc<dyn ExecutionPlan> = Arc::new(sort);
    match support_of(&sort) {
        Ok(()) => Ok(Some(Arc::new(DeviceSortExec::try_new(sort)?))),
        Err(_) => Ok(None),
    }
}

/// How many rows a sort gives, below projections.
fn fetches(plan: &Arc<dyn ExecutionPlan>) -> Option<usize> {
    if let Some(sort) = plan.downcast_ref::<DeviceSortExec>() {
        return sort.fetch_rows();
    }
    let projection = plan.is::<DeviceProjectionExec>();
    plan.children().first().filter(|_| projection).and_then(|child| fetches(child))
}

fn with_child(plan: &Arc<dyn ExecutionPlan>, child: Arc<dyn ExecutionPlan>) -> Result<Arc<dyn ExecutionPlan>> {
    Arc::clone(plan).replace_children(vec![child], ReplaceChildrenOptions::new(ChildrenPropertiesMode::Recompute))
}

/// An operator over a device input, with the calls of libraries that its expressions make in an operator between them.
fn above(plan: &Arc<dyn ExecutionPlan>, input: Arc<dyn ExecutionPlan>) -> Result<Arc<dyn ExecutionPlan>> {
    if let Some(projection) = plan.downcast_ref::<ProjectionExec>() {
        let exprs: Vec<_> = projection.expr().iter().map(|output| Arc::clone(&output.expr)).collect();
        if let Some((calls, exprs)) = DeviceFutharkExec::lift(&exprs, &input)? {
            let outputs = exprs.into_iter().zip(projection.expr()).map(|(expr, output)| (expr, output.alias.clone()));
            let outputs = outputs.collect::<Vec<_>>();
            return Ok(Arc::new(ProjectionExec::try_new_with_schema_metadata(outputs, calls, &plan.schema())?));
        }
    }
    if let Some(filter) = plan.downcast_ref::<FilterExec>()
        && let Some((calls, exprs)) = DeviceFutharkExec::lift(&[Arc::clone(filter.predicate())], &input)?
        && let [predicate] = exprs.as_slice()
    {
        let own = || (0..input.schema().fields().len()).collect();
        let columns = filter.projection().as_ref().map_or_else(own, |projection| projection.to_vec());
        let filter = FilterExecBuilder::new(Arc::clone(predicate), calls).apply_projection(Some(columns))?;
        return Ok(Arc::new(filter.build()?));
    }
    with_child(plan, input)
}

/// The device operators of an offloaded subplan below exchanges that mean nothing between device operators; an
/// exchange that stops after some rows leaves a limit.
fn exchange_over_subplan(plan: &Arc<dyn ExecutionPlan>) -> Option<Arc<dyn ExecutionPlan>> {
    if let Some(input) = subplan_input(plan) {
        return Some(Arc::clone(input));
    }
    let children = plan.children();
    let [child] = children.as_slice() else { return None };
    if is_round_robin(plan) || is_plain_coalesce(plan) {
        // An order that the offloaded subplan does not have is made again by those above who count on it.
        let sorted = child.downcast_ref::<SortExec>().filter(|sort| sort.fetch().is_none());
        return exchange_over_subplan(sorted.map_or(*child, SortExec::input));
    }
    let fetch = plan.downcast_ref::<CoalescePartitionsExec>()?.fetch();
    let limit = GlobalLimitExec::new(exchange_over_subplan(child)?, 0, fetch);
    DeviceLimitExec::try_new(Arc::new(limit)).ok().map(|limit| Arc::new(limit) as _)
}

/// What lies below all exchanges: an aggregation takes its rows from anywhere, in any order.
fn without_exchanges(plan: &Arc<dyn ExecutionPlan>) -> Arc<dyn ExecutionPlan> {
    match plan.children().as_slice() {
        [child] if plan.is::<RepartitionExec>() || is_plain_coalesce(plan) || plan.is::<CooperativeExec>() => {
            without_exchanges(child)
        }
        _ => Arc::clone(plan),
    }
}

fn without_round_robin(plan: &Arc<dyn ExecutionPlan>) -> Arc<dyn ExecutionPlan> {
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
