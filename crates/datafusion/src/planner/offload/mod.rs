// SPDX-License-Identifier: Apache-2.0
//! Offloading of operators, bottom up.

mod alternative;
mod build;
mod exchanges;
mod operators;
mod order;

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::sync::Arc;

use datafusion::common::Result;
use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::TreeNode;
use datafusion::physical_plan::aggregates::AggregateExec;
use datafusion::physical_plan::recursive_query::RecursiveQueryExec;
use datafusion::physical_plan::scalar_subquery::ScalarSubqueryExec;
use datafusion::physical_plan::sorts::sort_preserving_merge::SortPreservingMergeExec;
use datafusion::physical_plan::{ChildrenPropertiesMode, ExecutionPlan, ExecutionPlanProperties, ReplaceChildrenOptions};
use kernels::ops::Options;

use self::alternative::with_reason;
use self::build::{aggregated, ordered};
use self::exchanges::{subplan_below_exchanges, without_exchanges, without_round_robin};
use self::order::{by_hash, in_order_of, merged, restore, sorted_for_merge, unsorted};
use crate::exec::{DeviceToHostExec, HostAlternative, HostToDeviceExec, is_device, unites_inputs};
use crate::planner::dynamic_filters::with_dynamic_filters;
use crate::planner::grouping_sets::aggregate_of_sets;
use crate::planner::most_rows::RowBounds;
use crate::planner::ordered_aggregates::{all_name_their_order, has_ordered};
use crate::planner::placement::origin;
use crate::planner::rewrite::{has_ordered_partitions, in_one_partition};
use crate::planner::sharing::{shared_with_subqueries, with_current_subplans, with_shared_subplans};
use crate::planner::support::{is_tiny, subplan_input, support_of, supported_aggregation};
use crate::session::DeviceOptions;

/// Most partitions of an offloaded subplan for each target partition of the session.
///
/// Each partition has a run of its own, with batches on their way. One run over a union reads few
/// of its inputs at once.
const PARTITIONS_PER_TARGET: usize = 4;

/// Replaces host operators by device operators, for one plan.
pub(crate) struct Offloader<'a> {
    options: &'a DeviceOptions,
    config: &'a ConfigOptions,
    /// Shape of the kernels.
    kernels: Options,
    /// Results by subtree. An operator that stays on the host after all asks for its inputs again.
    known: RefCell<HashMap<*const (), KnownSubtree>>,
    /// Whether parts of the plan run several times, with other rows each time.
    is_recursive: Cell<bool>,
    /// Number of cached subplans.
    cached: Cell<usize>,
    /// Number of `ScalarSubqueryExec`s above the present subtree.
    subqueries_above: Cell<usize>,
    bounds: RowBounds,
    /// Operators that an earlier rule found to be supported.
    supported: Vec<Arc<dyn ExecutionPlan>>,
}

/// A subtree, which must live as long as its address is a key, and its replacement.
type KnownSubtree = (Arc<dyn ExecutionPlan>, Arc<dyn ExecutionPlan>);

impl<'a> Offloader<'a> {
    pub fn new(options: &'a DeviceOptions, config: &'a ConfigOptions, kernels: Options) -> Self {
        Offloader {
            options,
            config,
            kernels,
            known: RefCell::default(),
            is_recursive: Cell::default(),
            cached: Cell::default(),
            subqueries_above: Cell::default(),
            bounds: RowBounds::default(),
            supported: Vec::new(),
        }
    }

    /// Does not ask again whether these operators are supported.
    pub fn with_supported(self, supported: Vec<Arc<dyn ExecutionPlan>>) -> Self {
        Offloader { supported, ..self }
    }

    /// Offloads parts of a whole plan. The result is a host plan with offloaded subplans.
    pub fn offload(&self, plan: Arc<dyn ExecutionPlan>) -> Result<Arc<dyn ExecutionPlan>> {
        self.is_recursive.set(plan.exists(|node| Ok(node.is::<RecursiveQueryExec>()))?);
        let replacement = self.subtree(&plan)?;
        if !is_device(&replacement) {
            return Ok(replacement);
        }
        // DataFusion may have removed an ORDER BY because the operators below gave its order.
        let to_host = |replacement| self.to_host(replacement, "the result", self.alternative(&plan)?);
        let ordered = plan.output_partitioning().partition_count() == 1;
        match if ordered { in_order_of(&plan, Arc::clone(&replacement))? } else { None } {
            Some(sorted) => to_host(sorted),
            None if ordered => restore(&plan, to_host(replacement)?, "the result", None),
            None => to_host(self.in_few_partitions(unsorted(replacement))?),
        }
    }

    /// Offloads parts of a subtree. The result may be a device operator without a
    /// `DeviceToHostExec`.
    fn subtree(&self, plan: &Arc<dyn ExecutionPlan>) -> Result<Arc<dyn ExecutionPlan>> {
        let address = Arc::as_ptr(plan).cast::<()>();
        if let Some((_, replacement)) = self.known.borrow().get(&address) {
            return Ok(Arc::clone(replacement));
        }
        let above = self.subqueries_above.get();
        let replacement = self.replacement(plan).or_else(|error| {
            self.subqueries_above.set(above);
            self.kept(plan, error)
        })?;
        self.known.borrow_mut().insert(address, (Arc::clone(plan), Arc::clone(&replacement)));
        Ok(replacement)
    }

    fn replacement(&self, plan: &Arc<dyn ExecutionPlan>) -> Result<Arc<dyn ExecutionPlan>> {
        if let Some(input) = subplan_input(plan) {
            return Ok(Arc::clone(input));
        }
        if plan.children().is_empty() {
            return Ok(Arc::clone(plan));
        }
        #[cfg(test)]
        if self.options.enabled {
            crate::graph::failing::step(plan.name())?;
        }
        if self.options.enabled
            && let Some(aggregate) = plan.downcast_ref::<AggregateExec>()
            && let Ok(raw) = supported_aggregation(aggregate)
        {
            let input = self.subtree(&without_exchanges(raw.input()))?;
            if let Some(input) = self.device_input(input)? {
                // Some functions take rows in the order of the input.
                let input = if all_name_their_order(raw) { unsorted(input) } else { input };
                let (spec, input) = aggregate_of_sets(raw, plan.schema(), input)?;
                let aggregate = if has_ordered(raw) { ordered(spec, input)? } else { aggregated(spec, input)? };
                if let Some(replacement) = in_order_of(plan, Arc::new(aggregate))? {
                    return Ok(replacement);
                }
            }
        }
        if self.options.enabled
            && let Some(replacement) =
                self.join(plan)?.or(self.sort(plan)?).or(self.window(plan)?).or(self.union(plan)?).or(self.top_k(plan)?)
        {
            return Ok(replacement);
        }
        let above = self.subqueries_above.get();
        self.subqueries_above.set(above + usize::from(plan.is::<ScalarSubqueryExec>()));
        let children = plan.children().into_iter().map(|child| self.subtree(child)).collect::<Result<Vec<_>>>()?;
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
            && (self.supported.iter().any(|known| Arc::ptr_eq(known, plan)) || support_of(plan).is_ok())
            && let Some(replacement) = self.row_wise(plan, child)?
        {
            return Ok(replacement);
        }
        self.host(plan, children)
    }

    /// A child as the input of a device operator: as it is, or uploaded if this pays.
    fn device_input(&self, child: Arc<dyn ExecutionPlan>) -> Result<Option<Arc<dyn ExecutionPlan>>> {
        if is_device(&child) {
            return Ok(Some(child));
        }
        if let Some(inner) = subplan_below_exchanges(&child) {
            return Ok(Some(inner));
        }
        let input = without_round_robin(&child);
        if is_tiny(&input, self.options, &self.bounds).is_some() {
            return Ok(None);
        }
        Ok(Some(self.upload(input)))
    }

    fn upload(&self, input: Arc<dyn ExecutionPlan>) -> Arc<dyn ExecutionPlan> {
        let origin = origin(&input);
        Arc::new(HostToDeviceExec::new(input, origin))
    }

    /// A host operator over its children. Device children get a `DeviceToHostExec`, and the order
    /// and partitions that the operator relies on.
    fn host(&self, plan: &Arc<dyn ExecutionPlan>, children: Vec<Arc<dyn ExecutionPlan>>) -> Result<Arc<dyn ExecutionPlan>> {
        // The uppermost of several such operators caches rows for all of them.
        let shares = plan.is::<ScalarSubqueryExec>() && self.subqueries_above.get() == 0 && !self.is_recursive.get();
        let children = if shares {
            shared_with_subqueries(children, &self.cached, &|input, before| self.to_host_as(input, before))?
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
                // An operator of the host may have other partitions than before.
                let child = if by_hash(plan.name(), required) { restore(original, child, plan.name(), required)? } else { child };
                restored.push(child);
                continue;
            }
            let top = self.to_host(child, plan.name(), self.alternative(original)?)?;
            let input = restore(original, top, plan.name(), required)?;
            restored.push(match plan.downcast_ref::<SortPreservingMergeExec>() {
                Some(merge) => sorted_for_merge(merge, input)?,
                None => input,
            });
        }
        if !changed {
            return Ok(Arc::clone(plan));
        }
        Arc::clone(plan).replace_children(restored, ReplaceChildrenOptions::new(ChildrenPropertiesMode::Recompute))
    }

    /// Puts a `DeviceToHostExec` over device operators. On failure, the alternative takes their
    /// place.
    fn to_host(
        &self,
        input: Arc<dyn ExecutionPlan>,
        destination: impl Into<String>,
        alternative: Option<HostAlternative>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        match (self.lowered(input, destination.into()), alternative) {
            (Ok(top), alternative) => Ok(Arc::new(top.with_alternative(alternative))),
            (Err(error), Some(alternative)) => {
                with_reason(alternative.executable(self.options, self.config, self.kernels.clone())?, &error)
            }
            (Err(error), None) => Err(error),
        }
    }

    /// Puts a `DeviceToHostExec` like `before` over other device operators.
    fn to_host_as(&self, input: Arc<dyn ExecutionPlan>, before: &DeviceToHostExec) -> Result<Arc<dyn ExecutionPlan>> {
        self.to_host(input, before.destination(), before.alternative().cloned())
    }

    fn lowered(&self, input: Arc<dyn ExecutionPlan>, destination: String) -> Result<DeviceToHostExec> {
        let input = with_shared_subplans(&input)?;
        // In a recursive query, a scan's filter would be wrong in the next iteration.
        let input = with_dynamic_filters(&input, self.config, !self.is_recursive.get())?;
        let input = with_current_subplans(&input)?;
        let input = if has_ordered_partitions(&input) { input } else { self.in_few_partitions(input)? };
        DeviceToHostExec::try_new(input, destination, self.kernels.clone())
    }

    /// Merges the partitions of a union if there are more than the session wants by far.
    fn in_few_partitions(&self, input: Arc<dyn ExecutionPlan>) -> Result<Arc<dyn ExecutionPlan>> {
        let most = self.config.execution.target_partitions.saturating_mul(PARTITIONS_PER_TARGET).max(1);
        let are_many = input.output_partitioning().partition_count() > most;
        let has_union = || input.exists(|node| Ok(unites_inputs(node)));
        if are_many && has_union()? { in_one_partition(input) } else { Ok(input) }
    }
}
