// SPDX-License-Identifier: Apache-2.0
//! Support of window operators.

use std::sync::Arc;

use datafusion::common::DataFusionError;
use datafusion::physical_plan::statistics::{StatisticsArgs, StatisticsContext};
use datafusion::physical_plan::windows::BoundedWindowAggExec;
use datafusion::physical_plan::{ExecutionPlan, InputOrderMode};
use kernels::ops::{FrameBound, WindowCall};
use kernels::support::supports_window;

use crate::exec::{is_bounded, window_exprs};
use crate::expr::{ComputedStrings, as_key, as_sort_key, lower_window};
use crate::planner::columns::{reason_of, support_of_columns};
use crate::reason::Reason;

/// Refuses `string_agg` over growing frames if statistics show too many rows in the one partition.
fn check_growing_strings(call: &WindowCall, input: &Arc<dyn ExecutionPlan>) -> Result<(), Reason> {
    let grows = (call.frame.start == FrameBound::UnboundedPreceding) != (call.frame.end == FrameBound::UnboundedFollowing);
    if !grows || !call.function.repeats_strings() {
        return Ok(());
    }
    let statistics = StatisticsContext::new().compute(input.as_ref(), &StatisticsArgs::new()).ok();
    match statistics.and_then(|statistics| statistics.num_rows.get_value().copied()) {
        Some(rows) if rows > MOST_GROWING_STRINGS => Err(format!(
            "string_agg over frames that grow with each of {rows} rows is not supported on the device: all strings would be in memory at once"
        )),
        _ => Ok(()),
    }
}

/// Limit of strings that each contain the ones before: their total length grows with the square of
/// their number.
const MOST_GROWING_STRINGS: usize = 1 << 15;

/// Whether a window operator is supported on the device.
pub(crate) fn support_of_window(plan: &Arc<dyn ExecutionPlan>) -> Result<(), Reason> {
    let children = plan.children();
    let (Some(exprs), [input]) = (window_exprs(plan), children.as_slice()) else {
        return Err(format!("{} is not supported on the device", plan.name()));
    };
    if let Some(bounded) = plan.downcast_ref::<BoundedWindowAggExec>()
        && bounded.input_order_mode != InputOrderMode::Sorted
    {
        return Err("windows over an input that is sorted in part only are not supported on the device".to_string());
    }
    support_of_columns(input)?;
    let schema = input.schema();
    let mut strings = ComputedStrings::new(&schema);
    for (expr, field) in exprs.iter().zip(plan.schema().fields().iter().skip(schema.fields().len())) {
        let mut lower = |key: Result<_, DataFusionError>| strings.lower(&key.map_err(reason_of)?);
        let partition = expr.partition_by().iter().map(|key| lower(as_key(key, &schema))).collect::<Result<_, _>>()?;
        let order = expr.order_by().iter().map(|key| lower(as_sort_key(key, &schema))).collect::<Result<_, _>>()?;
        let call = lower_window(expr, is_bounded(plan), &mut strings)?;
        if expr.partition_by().is_empty() {
            check_growing_strings(&call, input)?;
        }
        supports_window(partition, order, (call, field.as_ref().clone()), &strings.schema)?;
    }
    strings.check()?;
    support_of_columns(plan)
}
