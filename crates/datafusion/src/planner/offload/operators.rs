// SPDX-License-Identifier: Apache-2.0
//! Offloading of each kind of operator. A method gives `None` if the operator stays on the host.

use std::sync::Arc;

use datafusion::common::{Result, internal_err};
use datafusion::physical_expr::AcrossPartitions;
use datafusion::physical_plan::aggregates::{AggregateExec, AggregateOutputMode};
use datafusion::physical_plan::filter::FilterExec;
use datafusion::physical_plan::joins::{PiecewiseMergeJoinExec, SortMergeJoinExec};
use datafusion::physical_plan::limit::{GlobalLimitExec, LocalLimitExec};
use datafusion::physical_plan::projection::ProjectionExec;
use datafusion::physical_plan::scalar_subquery::ScalarSubqueryExec;
use datafusion::physical_plan::sorts::partitioned_topk::PartitionedTopKExec;
use datafusion::physical_plan::sorts::sort::SortExec;
use datafusion::physical_plan::union::UnionExec;
use datafusion::physical_plan::unnest::UnnestExec;
use datafusion::physical_plan::{ExecutionPlan, ExecutionPlanProperties};

use super::Offloader;
use super::build::{above, device_operator, order_of_window, windowed};
use super::exchanges::{subplan_below_exchanges, without_exchanges};
use super::order::{in_order_of, unsorted};
use crate::exec::{
    DeviceFilterExec, DeviceJoinExec, DeviceLimitExec, DeviceProjectionExec, DeviceSortExec, DeviceUnionExec, DeviceUnnestExec,
    is_constant, is_device, is_limit, is_trivial, joins_other_lists, window_exprs,
};
use crate::planner::columns::support_of_columns;
use crate::planner::join_conditions::with_conditions_above;
use crate::planner::joins::{is_join, supported_join};
use crate::planner::subqueries::with_values;
use crate::planner::support::{is_tiny, support_of};
use crate::planner::top_k::partitioned_top_k;

impl Offloader<'_> {
    /// Offloads a join whose sides are on the device, or worth an upload.
    pub(super) fn join(&self, plan: &Arc<dyn ExecutionPlan>) -> Result<Option<Arc<dyn ExecutionPlan>>> {
        if !is_join(plan) {
            return Ok(None);
        }
        let Ok(mut spec) = supported_join(plan) else {
            let Some(rewritten) = with_conditions_above(plan)? else { return Ok(None) };
            // On the host the join would give all pairs.
            let is_offloaded = is_device(&self.subtree(&rewritten.join)?);
            return if is_offloaded { self.subtree(&rewritten.whole).map(Some) } else { Ok(None) };
        };
        let children = plan.children();
        let [left, right] = children.as_slice() else { return Ok(None) };
        let sorted = plan.is::<SortMergeJoinExec>() || plan.is::<PiecewiseMergeJoinExec>();
        let replace = |side: &Arc<dyn ExecutionPlan>| {
            let side = without_exchanges(side);
            match side.downcast_ref::<SortExec>() {
                // Probes need no order.
                Some(sort) if sorted && sort.fetch().is_none() => self.subtree(&without_exchanges(sort.input())),
                _ => self.subtree(&side),
            }
        };
        let (left, right) = (replace(left)?, replace(right)?);
        let inputs = match (self.device_input(Arc::clone(&left))?, self.device_input(Arc::clone(&right))?) {
            (Some(left), Some(right)) => (left, right),
            // A side of few rows follows the other side.
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

    /// Offloads a sort.
    pub(super) fn sort(&self, plan: &Arc<dyn ExecutionPlan>) -> Result<Option<Arc<dyn ExecutionPlan>>> {
        let Some(sort) = plan.downcast_ref::<SortExec>().filter(|_| support_of(plan).is_ok()) else { return Ok(None) };
        let input = without_exchanges(sort.input());
        // Partial groups that the host aggregates stay on the host.
        if input
            .downcast_ref::<AggregateExec>()
            .is_some_and(|partial| partial.mode().output_mode() == AggregateOutputMode::Partial)
        {
            return Ok(None);
        }
        let Some(input) = self.device_input(self.subtree(&input)?)? else { return Ok(None) };
        // Keys may lack a column that is constant in each partition of the host's input only. The
        // top-k by such keys is not the top-k of all rows; the merge above has all keys and the
        // limit.
        let has_partition_constants = |plan: &Arc<dyn ExecutionPlan>| {
            let constants = plan.equivalence_properties().constants();
            constants.iter().any(|constant| constant.across_partitions == AcrossPartitions::Heterogeneous)
        };
        let per_partition = has_partition_constants(sort.input()) || has_partition_constants(&input);
        let fetch = sort.fetch().filter(|_| !(sort.preserve_partitioning() && per_partition));
        let host = SortExec::new(sort.expr().clone(), input).with_fetch(fetch);
        Ok(Some(Arc::new(DeviceSortExec::try_new(Arc::new(host))?)))
    }

    /// Offloads the top-k rows of each partition.
    pub(super) fn top_k(&self, plan: &Arc<dyn ExecutionPlan>) -> Result<Option<Arc<dyn ExecutionPlan>>> {
        let Some(top) = plan.downcast_ref::<PartitionedTopKExec>().filter(|_| support_of(plan).is_ok()) else { return Ok(None) };
        let input = self.subtree(&without_exchanges(top.input()))?;
        let Some(input) = self.device_input(input)? else { return Ok(None) };
        partitioned_top_k(top, input, &device_operator).map(Some)
    }

    /// Offloads a union with an input on the device, if no other input should stay on the host.
    pub(super) fn union(&self, plan: &Arc<dyn ExecutionPlan>) -> Result<Option<Arc<dyn ExecutionPlan>>> {
        if !DeviceUnionExec::replaces(plan) || support_of_columns(plan).is_err() || joins_other_lists(plan) {
            return Ok(None);
        }
        let children = plan.children();
        let replaced = children.iter().map(|child| self.subtree(&without_exchanges(child))).collect::<Result<Vec<_>>>()?;
        let moves = |child: &Arc<dyn ExecutionPlan>| {
            is_device(child) || self.options.always() || is_tiny(child, self.options, &self.bounds).is_some()
        };
        if !replaced.iter().any(is_device) || !replaced.iter().all(moves) {
            return Ok(None);
        }
        let inputs = replaced.into_iter().map(|child| if is_device(&child) { child } else { self.upload(child) });
        let union = UnionExec::try_new(inputs.collect())?;
        // DataFusion puts host projections over inputs with other metadata.
        let fits = union.schema() == plan.schema() && union.children().into_iter().all(is_device);
        Ok(if fits { Some(Arc::new(DeviceUnionExec::try_new(union)?)) } else { None })
    }

    /// A main query with its scalar subqueries. Values that the main query reads on the device stay
    /// there.
    pub(super) fn subqueries(
        &self,
        subqueries: &ScalarSubqueryExec,
        children: Vec<Arc<dyn ExecutionPlan>>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let mut children = children.into_iter();
        let Some(main) = children.next() else { return internal_err!("scalar subqueries of no query") };
        let subplans = children.map(|plan| subplan_below_exchanges(&plan).unwrap_or(plan)).map(unsorted).collect();
        let (main, left) = match self.is_recursive.get() {
            true => (main, subqueries.subqueries().iter().cloned().zip(subplans).collect()),
            false => with_values(subqueries, main, subplans, &|input, before| {
                // The host needs the values of all subqueries.
                let with_values = before.alternative().map(|alternative| with_input(subqueries, alternative.plan()));
                let alternative = with_values.map(|original| self.alternative(&original)).transpose()?.flatten();
                self.to_host(input, before.destination(), alternative)
            })?,
        };
        if left.is_empty() {
            return Ok(main);
        }
        let original = match left.len() == subqueries.subqueries().len() {
            true => Arc::clone(subqueries.input()),
            // An alternative of the main query needs the values that moved into it.
            false => with_input(subqueries, subqueries.input()),
        };
        let (links, plans): (Vec<_>, Vec<_>) = left.into_iter().unzip();
        let rest = ScalarSubqueryExec::new(original, links, subqueries.results().clone());
        self.host(&(Arc::new(rest) as _), [vec![main], plans].concat())
    }

    /// Offloads window functions. An input of several partitions is sorted again.
    pub(super) fn window(&self, plan: &Arc<dyn ExecutionPlan>) -> Result<Option<Arc<dyn ExecutionPlan>>> {
        let Some([first, ..]) = window_exprs(plan).filter(|_| support_of(plan).is_ok()) else { return Ok(None) };
        let Some(child) = plan.children().first().copied().cloned() else { return Ok(None) };
        let input = self.subtree(&without_exchanges(&child))?;
        let Some(input) = self.device_input(input)? else { return Ok(None) };
        let required = match child.output_ordering() {
            Some(ordering) => Some(ordering.clone()),
            None => order_of_window(first.as_ref()),
        };
        Ok(Some(windowed(plan, required, input)?))
    }

    /// Offloads a row-wise operator or limit over its child, if it pays.
    pub(super) fn row_wise(
        &self,
        plan: &Arc<dyn ExecutionPlan>,
        child: &Arc<dyn ExecutionPlan>,
    ) -> Result<Option<Arc<dyn ExecutionPlan>>> {
        let inside = is_device(child) || subplan_below_exchanges(child).is_some();
        let unnests_constants = plan.is::<UnnestExec>() && is_constant(plan);
        if (is_trivial(plan) || unnests_constants) && !inside {
            return Ok(None);
        }
        let Some(mut input) = self.device_input(Arc::clone(child))? else { return Ok(None) };
        if let (true, [original]) = (is_limit(plan) || plan.fetch().is_some(), plan.children().as_slice()) {
            // A limit needs the order of its input.
            let Some(sorted) = in_order_of(original, input)? else { return Ok(None) };
            input = sorted;
        }
        if let Some(filter) = plan.downcast_ref::<FilterExec>()
            && let Some(fetch) = filter.fetch()
        {
            // A filter with a limit becomes a filter below a limit of each partition.
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
        } else if is_limit(plan) {
            Some(Arc::new(DeviceLimitExec::try_new(host)?))
        } else {
            None
        })
    }
}

/// Scalar subqueries above another main query.
fn with_input(subqueries: &ScalarSubqueryExec, input: &Arc<dyn ExecutionPlan>) -> Arc<dyn ExecutionPlan> {
    let (links, results) = (subqueries.subqueries().to_vec(), subqueries.results().clone());
    Arc::new(ScalarSubqueryExec::new(Arc::clone(input), links, results))
}
