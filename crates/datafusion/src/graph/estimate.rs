// SPDX-License-Identifier: Apache-2.0
//! Estimates of rows, for tables that are sized before the rows come.

use std::sync::Arc;

use columnar::ColumnType;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::statistics::{StatisticsArgs, StatisticsContext};

use super::stage::{Stage, StageKind};
use crate::exec::{DeviceOperator, JoinColumns, JoinTypeFacts, device_inputs};

/// About how many rows a device subtree gives; `None` if there is nothing to go by. More rather
/// than less: filters count as if they dropped nothing.
pub(super) fn estimated_rows(plan: &Arc<dyn ExecutionPlan>) -> Option<usize> {
    use DeviceOperator::*;
    let inputs = || device_inputs(plan).into_iter().map(estimated_rows);
    match DeviceOperator::of(plan)? {
        Scan(scan) => Some(scan.snapshot().num_rows()),
        Upload(upload) => host_rows(upload.input()),
        Stream(_) | Unnest(_) | Futhark(_) => None,
        Join(join) => {
            let (left, right) = (estimated_rows(join.left()), estimated_rows(join.right()));
            match JoinTypeFacts::of(join.spec.join_type).columns {
                JoinColumns::Build | JoinColumns::BuildAndMark => left,
                JoinColumns::Probe | JoinColumns::ProbeAndMark => right,
                // Most joins are of a key and its references.
                JoinColumns::Both => Some(left?.max(right?)),
            }
        }
        Reuse(reuse) => estimated_rows(reuse.shared()),
        Union(_) => inputs().try_fold(0_usize, |rows, input| Some(rows.saturating_add(input?))),
        Aggregate(_) | DynamicFilter(_) | Expand(_) | Filter(_) | Limit(_) | Projection(_) | Shared(_) | Sort(_) | Window(_) => {
            inputs().next().flatten()
        }
    }
}

fn host_rows(plan: &Arc<dyn ExecutionPlan>) -> Option<usize> {
    let statistics = StatisticsContext::new().compute(plan.as_ref(), &StatisticsArgs::new());
    statistics.ok()?.num_rows.get_value().copied()
}

/// About the bytes of all rows read by a stage, also for its joins' tables; `None` if there is
/// nothing to go by. More rather than less, as for [`estimated_rows`].
///
/// Rows that are read again count nothing, and neither do scalar subqueries.
pub(crate) fn input_bytes(stage: &Stage) -> Option<usize> {
    let bytes_of = |rows: usize| rows.saturating_mul(stage.types.iter().map(ColumnType::value_bytes).sum());
    match &stage.kind {
        StageKind::Upload { input } => host_rows(input).map(bytes_of),
        StageKind::Scan { snapshot, .. } => Some(bytes_of(snapshot.num_rows())),
        StageKind::Stream { .. } | StageKind::Unnest { .. } => None,
        StageKind::Shared { is_reuse: true, .. } => Some(0),
        StageKind::Join(joins) => {
            let of_builds = joins.builds().filter(|build| build.scalar().is_none()).map(|build| build.input_bytes);
            of_builds.chain([input_bytes(&joins.probe)]).try_fold(0_usize, |sum, bytes| Some(sum.saturating_add(bytes?)))
        }
        StageKind::BuildSideJoin(join) => Some(join.build.input_bytes?.saturating_add(input_bytes(&join.probe)?)),
        StageKind::Columns { .. }
        | StageKind::Expand { .. }
        | StageKind::LibraryCalls { .. }
        | StageKind::LibraryAggregates { .. }
        | StageKind::Limit { .. }
        | StageKind::Select { .. }
        | StageKind::Aggregate { .. }
        | StageKind::Coalesce { .. }
        | StageKind::Sort { .. }
        | StageKind::Window { .. }
        | StageKind::Shared { is_reuse: false, .. }
        | StageKind::Union { .. } => {
            let inputs = stage.inputs().into_iter().map(|input| input_bytes(input));
            inputs.into_iter().try_fold(0_usize, |sum, bytes| Some(sum.saturating_add(bytes?)))
        }
    }
}
