// SPDX-License-Identifier: Apache-2.0
//! Orders and partitions that operators of the host rely on.

use std::sync::Arc;

use datafusion::common::Result;
use datafusion::physical_plan::coalesce_partitions::CoalescePartitionsExec;
use datafusion::physical_plan::limit::GlobalLimitExec;
use datafusion::physical_plan::repartition::RepartitionExec;
use datafusion::physical_plan::sorts::sort::SortExec;
use datafusion::physical_plan::sorts::sort_preserving_merge::SortPreservingMergeExec;
use datafusion::physical_plan::{Distribution, ExecutionPlan, ExecutionPlanProperties, Partitioning};

use crate::exec::{DeviceLimitExec, DeviceOperator, DeviceSortExec};
use crate::planner::support::support_of;

/// Whether a parent relies on hash partitions.
pub(super) fn by_hash(parent: &str, required: Option<&Distribution>) -> bool {
    matches!(required, Some(Distribution::KeyPartitioned(_))) || parent == "InterleaveExec"
}

/// Restores the partitioning and ordering of `original` on its replacement, if `parent` relies on
/// them.
pub(super) fn restore(
    original: &Arc<dyn ExecutionPlan>,
    replacement: Arc<dyn ExecutionPlan>,
    parent: &str,
    required: Option<&Distribution>,
) -> Result<Arc<dyn ExecutionPlan>> {
    let partitions = original.output_partitioning().partition_count();
    let mut restored = replacement;
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

/// Sorts the replaced input of a merge that lacks the merge's order. Keys may be constant in each
/// partition of the original input only.
pub(super) fn sorted_for_merge(merge: &SortPreservingMergeExec, input: Arc<dyn ExecutionPlan>) -> Result<Arc<dyn ExecutionPlan>> {
    let keys = merge.expr().clone();
    if input.equivalence_properties().ordering_satisfy(keys.clone())? {
        return Ok(input);
    }
    Ok(Arc::new(SortExec::new(keys, input).with_preserve_partitioning(true)))
}

/// Sorts the device operator replacing `plan`, if its rows lack the plan's order. `None` if the
/// sort is not supported on the device.
pub(super) fn in_order_of(
    plan: &Arc<dyn ExecutionPlan>,
    replacement: Arc<dyn ExecutionPlan>,
) -> Result<Option<Arc<dyn ExecutionPlan>>> {
    match plan.output_ordering() {
        Some(ordering) if !replacement.equivalence_properties().ordering_satisfy(ordering.clone())? => {
            device_sort(SortExec::new(ordering.clone(), replacement))
        }
        _ => Ok(Some(replacement)),
    }
}

/// Removes a sort, for a reader that needs no order.
pub(super) fn unsorted(input: Arc<dyn ExecutionPlan>) -> Arc<dyn ExecutionPlan> {
    match input.downcast_ref::<DeviceSortExec>() {
        Some(sort) if sort.fetch_rows().is_none() => sort.children().into_iter().next().cloned().unwrap_or(input),
        _ => input,
    }
}

/// Replaces a merge of sorted partitions above the device operator `child`:
/// - by `child` if it gives one partition in the merge's order,
/// - by a sort by the merge's keys if `child` lacks their order.
///
/// `None` leaves the merge to the host: of sorted partitions, and by keys that are not supported on
/// the device.
pub(super) fn merged(merge: &SortPreservingMergeExec, child: &Arc<dyn ExecutionPlan>) -> Result<Option<Arc<dyn ExecutionPlan>>> {
    let keys = merge.expr().clone();
    if !child.equivalence_properties().ordering_satisfy(keys.clone())? {
        return device_sort(SortExec::new(keys, unsorted(Arc::clone(child))).with_fetch(merge.fetch()));
    }
    if child.output_partitioning().partition_count() != 1 {
        return Ok(None);
    }
    match merge.fetch() {
        Some(fetch) if fetch_of(child) != Some(fetch) => {
            let limit = GlobalLimitExec::new(Arc::clone(child), 0, Some(fetch));
            Ok(Some(Arc::new(DeviceLimitExec::try_new(Arc::new(limit))?)))
        }
        _ => Ok(Some(Arc::clone(child))),
    }
}

/// A sort on the device; `None` if its keys are not supported there.
fn device_sort(sort: SortExec) -> Result<Option<Arc<dyn ExecutionPlan>>> {
    let sort: Arc<dyn ExecutionPlan> = Arc::new(sort);
    match support_of(&sort) {
        Ok(()) => Ok(Some(Arc::new(DeviceSortExec::try_new(sort)?))),
        Err(_) => Ok(None),
    }
}

/// The `fetch` of a sort below projections.
fn fetch_of(plan: &Arc<dyn ExecutionPlan>) -> Option<usize> {
    use DeviceOperator::*;
    match DeviceOperator::of(plan)? {
        Sort(sort) => sort.fetch_rows(),
        Projection(_) => plan.children().first().and_then(|child| fetch_of(child)),
        Aggregate(_) | DynamicFilter(_) | Expand(_) | Filter(_) | Futhark(_) | Join(_) | Limit(_) | Reuse(_) | Scan(_)
        | Shared(_) | Stream(_) | Union(_) | Unnest(_) | Upload(_) | Window(_) => None,
    }
}
