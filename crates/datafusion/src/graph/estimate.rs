// SPDX-License-Identifier: Apache-2.0
//! Estimates of rows, for tables that are sized before the rows come.

use std::sync::Arc;

use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::statistics::{StatisticsArgs, StatisticsContext};

use crate::exec::{DeviceOperator, JoinColumns, JoinTypeFacts, device_inputs};

/// About how many rows a device subtree gives; `None` if there is nothing to go by. More rather
/// than less: filters count as if they dropped nothing.
pub(super) fn estimated_rows(plan: &Arc<dyn ExecutionPlan>) -> Option<usize> {
    use DeviceOperator::*;
    let inputs = || device_inputs(plan).into_iter().map(estimated_rows);
    match DeviceOperator::of(plan)? {
        Scan(scan) => Some(scan.snapshot().num_rows()),
        Upload(upload) => {
            let statistics = StatisticsContext::new().compute(upload.input().as_ref(), &StatisticsArgs::new());
            statistics.ok()?.num_rows.get_value().copied()
        }
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
