// SPDX-License-Identifier: Apache-2.0
//! Window functions of the host: what they compute, or why they are not supported on the device.

use std::sync::Arc;

use datafusion::common::DataFusionError;
use datafusion::physical_plan::statistics::{StatisticsArgs, StatisticsContext};
use datafusion::physical_plan::windows::BoundedWindowAggExec;
use datafusion::physical_plan::{ExecutionPlan, InputOrderMode};
use kernels::ops::{FrameBound, WindowCall, WindowFunction};
use kernels::support::supports_window;

use crate::exec::{is_bounded, window_exprs};
use crate::expr::{ComputedStrings, as_key, as_sort_key, lower_window};
use crate::planner::support::{reason_of, support_of_columns};
use crate::reason::Reason;

/// Refuses texts of frames that grow row by row where statistics say that there are too many rows in the one partition.
fn check_growing_texts(call: &WindowCall, input: &Arc<dyn ExecutionPlan>) -> Result<(), Reason> {
    let grows = (call.frame.start == FrameBound::UnboundedPreceding) != (call.frame.end == FrameBound::UnboundedFollowing);
    if !grows || !matches!(call.function, WindowFunction::Texts { distinct: false, .. }) {
        return Ok(());
    }
    let statistics = StatisticsContext::new().compute(input.as_ref(), &StatisticsArgs::new()).ok();
    match statistics.and_then(|statistics| statistics.num_rows.get_value().copied()) {
        Some(rows) if rows > MOST_GROWING_TEXTS => Err(format!(
            "string_agg over frames that grow with each of {rows} rows is not supported on the device: all texts would lie in memory at once"
        )),
        _ => Ok(()),
    }
}

/// The most texts that each hold those before them: together they are as long as half the square of their number.
const MOST_GROWING_TEXTS: usize = 1 << 15;

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
    let mut texts = ComputedStrings::new(&schema);
    for (expr, field) in exprs.iter().zip(plan.schema().fields().iter().skip(schema.fields().len())) {
        let mut lower = |key: Result<_, DataFusionError>| texts.lower(&key.map_err(reason_of)?);
        let partition = expr.partition_by().iter().map(|key| lower(as_key(key, &schema))).collect::<Result<_, _>>()?;
        let order = expr.order_by().iter().map(|key| lower(as_sort_key(key, &schema))).collect::<Result<_, _>>()?;
        let call = lower_window(expr, is_bounded(plan), &mut texts)?;
        if expr.partition_by().is_empty() {
            check_growing_texts(&call, input)?;
        }
        supports_window(partition, order, (call, field.as_ref().clone()), &texts.schema)?;
    }
    texts.check()?;
    support_of_columns(plan)
}
