// SPDX-License-Identifier: Apache-2.0
//! Window functions of the host: what they compute, or why they are not supported on the device.

use std::sync::Arc;

use arrow::datatypes::{DataType, TimeUnit};
use datafusion::common::{DataFusionError, ScalarValue};
use datafusion::logical_expr::{Operator, WindowFrame, WindowFrameBound, WindowFrameUnits};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::aggregate::AggregateFunctionExpr;
use datafusion::physical_expr::expressions::{BinaryExpr, CastExpr, Literal, lit};
use datafusion::physical_expr::window::{PlainAggregateWindowExpr, SlidingAggregateWindowExpr, StandardWindowExpr, WindowExpr};
use datafusion::physical_plan::statistics::{StatisticsArgs, StatisticsContext};
use datafusion::physical_plan::windows::{BoundedWindowAggExec, WindowAggExec, WindowUDFExpr};
use datafusion::physical_plan::{ExecutionPlan, InputOrderMode};
use kernels::ops::{self, Frame, FrameBound, FrameUnits, NullTreatment, Quantile, WindowCall, WindowFunction};
use kernels::support::supports_window;

use crate::aggregate::AggregateCall;
use crate::expr::{Reason, scalar};
use crate::list_key::{as_key, as_sort_key};
use crate::own::{is_own_aggregate, is_own_window};
use crate::planner::support::{columns_have_device_form, reason_of};
use crate::planner::window_filters::skips_nulls;
use crate::texts::Texts;

/// Refuses texts of frames that grow row by row where statistics say that there are too many rows in the one partition.
fn check_growing_texts(call: &WindowCall, input: &Arc<dyn ExecutionPlan>) -> Result<(), Reason> {
    let grows = (call.frame.start == FrameBound::UnboundedPreceding) != (call.frame.end == FrameBound::UnboundedFollowing);
    if !grows || !matches!(call.function, WindowFunction::StringAgg { distinct: false, .. }) {
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

/// The functions of a window operator, all of one partitioning and order.
pub(crate) fn window_exprs(plan: &Arc<dyn ExecutionPlan>) -> Option<&[Arc<dyn WindowExpr>]> {
    let exact = plan.downcast_ref::<WindowAggExec>().map(WindowAggExec::window_expr);
    exact.or_else(|| plan.downcast_ref::<BoundedWindowAggExec>().map(BoundedWindowAggExec::window_expr))
}

/// Whether a window operator is the one of bounded memory, which reads ahead no further than it must.
pub(crate) fn is_bounded(plan: &Arc<dyn ExecutionPlan>) -> bool {
    plan.downcast_ref::<BoundedWindowAggExec>().is_some()
}

/// The most texts that each hold those before them: together they are as long as half the square of their number.
const MOST_GROWING_TEXTS: usize = 1 << 15;

/// Whether a window operator is supported on the device.
pub(crate) fn window_form(plan: &Arc<dyn ExecutionPlan>) -> Result<(), Reason> {
    let children = plan.children();
    let (Some(exprs), [input]) = (window_exprs(plan), children.as_slice()) else {
        return Err(format!("{} is not supported on the device", plan.name()));
    };
    if let Some(bounded) = plan.downcast_ref::<BoundedWindowAggExec>()
        && bounded.input_order_mode != InputOrderMode::Sorted
    {
        return Err("windows over an input that is sorted in part only are not supported on the device".to_string());
    }
    columns_have_device_form(input)?;
    let schema = input.schema();
    let mut texts = Texts::behind(&schema);
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
    columns_have_device_form(plan)
}

/// A window function over the columns of an input and those of the `texts` behind them, of an operator that [`is_bounded`] or
/// not.
pub(crate) fn lower_window(expr: &Arc<dyn WindowExpr>, bounded: bool, texts: &mut Texts) -> Result<WindowCall, Reason> {
    let of = expr.as_any();
    let aggregate = of
        .downcast_ref::<PlainAggregateWindowExpr>()
        .map(PlainAggregateWindowExpr::get_aggregate_expr)
        .or_else(|| of.downcast_ref::<SlidingAggregateWindowExpr>().map(SlidingAggregateWindowExpr::get_aggregate_expr));
    let function = if let Some(aggregate) = aggregate {
        let quantile = quantile(aggregate)?;
        let name = aggregate.fun().name();
        let tells_nulls = !skips_nulls(name) && name != "array_agg";
        if aggregate.ignore_nulls() && tells_nulls || !aggregate.order_bys().is_empty() {
            return Err(format!("{} is not supported on the device", expr.name()));
        }
        // A filter is told to nobody, but for those who print.
        if !format!("{expr:?}").ends_with("filter: None }") {
            return Err(format!("{name} with FILTER is not supported on the device as a window"));
        }
        let distinct = aggregate.is_distinct();
        match aggregate.expressions().as_slice() {
            [value, ..] if let Some(quantile) = quantile => {
                WindowFunction::Quantile { quantile, value: texts.lower(value)?, distinct }
            }
            [value] if name == "array_agg" && is_own_aggregate(aggregate.fun()) => {
                WindowFunction::ArrayAgg { value: texts.lower(value)?, ignore_nulls: aggregate.ignore_nulls(), distinct }
            }
            // The first one there is.
            [value] if name == "any_value" && is_own_aggregate(aggregate.fun()) => {
                WindowFunction::NthNonNull(texts.lower_value(value)?, 1)
            }
            [value, delimiter] if name == "string_agg" && is_own_aggregate(aggregate.fun()) => {
                joined(value, delimiter, distinct, texts)?
            }
            _ => WindowFunction::Aggregate(texts.lower_aggregate(&AggregateCall::new(&Arc::new(aggregate.clone()), None))?),
        }
    } else {
        let standard = of.downcast_ref::<StandardWindowExpr>().map(StandardWindowExpr::get_standard_func_expr);
        let Some(udf) = standard.and_then(|standard| standard.as_any().downcast_ref::<WindowUDFExpr>()) else {
            return Err(format!("the window function {} is not supported on the device", expr.name()));
        };
        ranking(udf, bounded, texts)?
    };
    let key = match expr.order_by() {
        [key] => key.expr.data_type(&texts.schema).ok().map(|data_type| (data_type, key.options.descending)),
        _ => None,
    };
    Ok(WindowCall { function, frame: frame(expr.get_window_frame(), key.as_ref())? })
}

fn ranking(udf: &WindowUDFExpr, bounded: bool, texts: &mut Texts) -> Result<WindowFunction, Reason> {
    let name = udf.fun().name().to_string();
    if !is_own_window(udf.fun()) {
        return Err(format!("the window function {name} is not supported on the device"));
    }
    // It tells nobody else. A reversed FIRST_VALUE is called LAST_VALUE, others keep their names; ranks are never reversed.
    let described = format!("{udf:?}");
    let ignores_nulls = !described.contains("ignore_nulls: false");
    let is_reversed = !described.contains("is_reversed: false");
    let value = |index: usize, texts: &mut Texts| match udf.args().get(index) {
        Some(argument) => texts.lower_value(argument),
        None => Err(format!("{name} without its argument")),
    };
    let number = |index: usize, otherwise: i64| match udf.args().get(index) {
        None => Ok(otherwise),
        Some(argument) => constant(argument)
            .and_then(|value| value.cast_to(&DataType::Int64).ok())
            .and_then(|value| match value {
                ScalarValue::Int64(value) => value,
                _ => None,
            })
            .ok_or_else(|| format!("{name} of a number that is not constant is not supported on the device")),
    };
    let lag = |sign: i64, texts: &mut Texts| -> Result<WindowFunction, Reason> {
        let default = match udf.args().get(2) {
            None => None,
            Some(argument) if is_null(argument) => None,
            Some(argument) => {
                let data_type = udf.args()[0].data_type(&texts.schema).map_err(|error| error.to_string())?;
                let value = constant(argument).and_then(|value| value.cast_to(&data_type).ok());
                let value =
                    value.ok_or_else(|| format!("{name} with a default that is not constant is not supported on the device"))?;
                Some(scalar(&value)?)
            }
        };
        let sign = if is_reversed { -sign } else { sign };
        let rows = match udf.args().get(1) {
            Some(rows) if is_null(rows) => 0,
            _ => number(1, 1)?,
        };
        let offset = sign.checked_mul(rows).ok_or_else(|| format!("{name} of so many rows is not supported on the device"))?;
        let nulls = match (ignores_nulls, bounded) {
            (false, _) => NullTreatment::Respect,
            (true, true) => NullTreatment::IgnoreBounded,
            // The row itself, NULL or not.
            (true, false) if offset == 0 => NullTreatment::Respect,
            (true, false) => NullTreatment::Ignore,
        };
        Ok(WindowFunction::Lag { value: value(0, texts)?, offset, default, nulls })
    };
    let nth = if ignores_nulls { WindowFunction::NthNonNull } else { WindowFunction::NthValue };
    Ok(match name.as_str() {
        "row_number" => WindowFunction::RowNumber,
        "rank" => WindowFunction::Rank,
        "dense_rank" => WindowFunction::DenseRank,
        "percent_rank" => WindowFunction::PercentRank,
        "cume_dist" => WindowFunction::CumeDist,
        "ntile" => match u64::try_from(number(0, 0)?) {
            Ok(buckets) if buckets > 0 => WindowFunction::Ntile(buckets),
            _ => return Err("ntile of no buckets is not supported on the device".to_string()),
        },
        "lag" => lag(1, texts)?,
        "lead" => lag(-1, texts)?,
        "first_value" => nth(value(0, texts)?, 1),
        "last_value" => nth(value(0, texts)?, -1),
        "nth_value" => match number(1, 0)? {
            // From the other end of the frame.
            n if is_reversed => {
                nth(value(0, texts)?, n.checked_neg().ok_or("nth_value of no such row is not supported on the device")?)
            }
            n => nth(value(0, texts)?, n),
        },
        _ => return Err(format!("the window function {name} is not supported on the device")),
    })
}

/// The quantile that an aggregate asks for, if it does. None of them counts NULLs.
fn quantile(aggregate: &AggregateFunctionExpr) -> Result<Option<Quantile>, Reason> {
    if !is_own_aggregate(aggregate.fun()) {
        return Ok(None);
    }
    match aggregate.fun().name() {
        "median" => Ok(Some(Quantile::Median)),
        "percentile_cont" => match aggregate.expressions().get(1).and_then(constant) {
            Some(ScalarValue::Float64(Some(share))) => Ok(Some(Quantile::Percentile(share))),
            _ => Err("percentile_cont of a share that is not constant is not supported on the device".to_string()),
        },
        _ => Ok(None),
    }
}

/// The texts of frames with a delimiter between them: each row has it before its own, and the first one of a frame is not shown.
fn joined(
    value: &Arc<dyn PhysicalExpr>,
    delimiter: &Arc<dyn PhysicalExpr>,
    distinct: bool,
    texts: &mut Texts,
) -> Result<WindowFunction, Reason> {
    let Some(delimiter) = delimiter.downcast_ref::<Literal>() else {
        return Err("string_agg with a delimiter that is not constant is not supported on the device".to_string());
    };
    let delimiter = delimiter.value().try_as_str().flatten().unwrap_or_default().to_string();
    let skipped = u32::try_from(delimiter.len()).map_err(|_| "a delimiter of 4 GiB is not supported on the device")?;
    let cast: Arc<dyn PhysicalExpr> = Arc::new(CastExpr::new(Arc::clone(value), DataType::LargeUtf8, None));
    let part = BinaryExpr::new(lit(ScalarValue::LargeUtf8(Some(delimiter))), Operator::StringConcat, cast);
    let part: Arc<dyn PhysicalExpr> = Arc::new(part);
    Ok(WindowFunction::StringAgg { strings: texts.lower(&part)?, skipped, distinct })
}

fn is_null(expr: &Arc<dyn PhysicalExpr>) -> bool {
    expr.downcast_ref::<Literal>().is_some_and(|literal| literal.value().is_null())
}

fn constant(expr: &Arc<dyn PhysicalExpr>) -> Option<ScalarValue> {
    expr.downcast_ref::<Literal>().map(|literal| literal.value().clone()).filter(|value| !value.is_null())
}

/// A frame over rows in the order of one key, with its type and whether it falls, or of none or several.
fn frame(frame: &WindowFrame, key: Option<&(DataType, bool)>) -> Result<Frame, Reason> {
    let descending = key.is_some_and(|(_, descending)| *descending);
    let units = match frame.units {
        WindowFrameUnits::Rows => FrameUnits::Rows,
        WindowFrameUnits::Range => match key.map(|(data_type, _)| data_type) {
            Some(data_type) if data_type.is_floating() => FrameUnits::FloatRange { descending },
            Some(data_type) if is_moment(data_type) && !is_uniform(frame, data_type) => FrameUnits::IntervalRange { descending },
            Some(data_type) if !data_type.is_numeric() && !is_moment(data_type) => FrameUnits::NonArithmeticRange,
            // What more digits take may not fit 64 bits.
            Some(DataType::Decimal128(19.., _)) => FrameUnits::Range128 { descending },
            Some(DataType::Decimal256(_, _)) => FrameUnits::Range256 { descending },
            _ => FrameUnits::Range { descending },
        },
        WindowFrameUnits::Groups => FrameUnits::Groups,
    };
    let offset = |value: &ScalarValue| match value {
        value if frame.units == WindowFrameUnits::Range => key
            .and_then(|(key, _)| match units {
                FrameUnits::IntervalRange { .. } => moment_offset(value),
                FrameUnits::NonArithmeticRange => Some(1),
                _ => range_offset(value, key),
            })
            .ok_or_else(|| format!("RANGE with an offset of {value} {} is not supported on the device", value.data_type())),
        ScalarValue::UInt64(Some(offset)) => Ok(u128::from(*offset)),
        other => Err(format!("a frame of {other} rows is not supported on the device")),
    };
    let bound = |bound: &WindowFrameBound, start: bool| {
        Ok::<_, Reason>(match bound {
            WindowFrameBound::Preceding(value) if value.is_null() => FrameBound::UnboundedPreceding,
            WindowFrameBound::Following(value) if value.is_null() => FrameBound::UnboundedFollowing,
            WindowFrameBound::CurrentRow => FrameBound::CurrentRow,
            WindowFrameBound::Preceding(value) => FrameBound::Preceding(offset(value)?),
            WindowFrameBound::Following(value) => FrameBound::Following(offset(value)?),
        })
        .map(|bound| match (bound, start) {
            // Nothing lies before the first row or behind the last.
            (FrameBound::UnboundedFollowing, true) => FrameBound::Following(i64::MAX as u128),
            (FrameBound::UnboundedPreceding, false) => FrameBound::Preceding(i64::MAX as u128),
            (bound, _) => bound,
        })
    };
    Ok(Frame { units, start: bound(&frame.start_bound, true)?, end: bound(&frame.end_bound, false)? })
}

/// Dates and timestamps.
fn is_moment(data_type: &DataType) -> bool {
    matches!(data_type, DataType::Date32 | DataType::Date64 | DataType::Timestamp(_, _))
}

/// Whether the offsets of a frame are so many units of the order key's integers, whatever the key.
fn is_uniform(frame: &WindowFrame, key: &DataType) -> bool {
    [&frame.start_bound, &frame.end_bound].into_iter().all(|bound| match bound {
        WindowFrameBound::Preceding(value) | WindowFrameBound::Following(value) => {
            value.is_null() || range_offset(value, key).is_some()
        }
        WindowFrameBound::CurrentRow => true,
    })
}

/// An offset of [`FrameUnits::IntervalRange`].
fn moment_offset(value: &ScalarValue) -> Option<u128> {
    match value {
        ScalarValue::IntervalMonthDayNano(Some(of)) => Some(ops::interval(of.months, of.days, of.nanoseconds)),
        _ => None,
    }
}

/// An offset in units of the order key's integers: days of a `Date32`, hundredths of a `Decimal128(15, 2)`; the bits of a float.
fn range_offset(value: &ScalarValue, key: &DataType) -> Option<u128> {
    match (value, key) {
        (ScalarValue::Float64(Some(value)), DataType::Float64) => {
            return (value.is_finite() && value.is_sign_positive()).then(|| value.to_bits().into());
        }
        (ScalarValue::Float32(Some(value)), DataType::Float32) => {
            return (value.is_finite() && value.is_sign_positive()).then(|| value.to_bits().into());
        }
        (ScalarValue::Decimal128(Some(value), _, scale), DataType::Decimal128(_, other)) => {
            return (scale == other).then(|| u128::try_from(*value).ok())?;
        }
        (ScalarValue::Decimal256(Some(value), _, scale), DataType::Decimal256(_, other)) => {
            return (scale == other).then(|| u128::try_from(value.to_i128()?).ok())?;
        }
        _ => {}
    }
    const DAY_NANOS: i64 = 86_400_000_000_000;
    let units = match (value, key) {
        (ScalarValue::IntervalMonthDayNano(Some(interval)), DataType::Date32) => {
            (interval.months == 0 && interval.nanoseconds == 0).then_some(i64::from(interval.days))?
        }
        // Days of other zones have other lengths.
        (ScalarValue::IntervalMonthDayNano(Some(interval)), DataType::Timestamp(unit, zone))
            if interval.months == 0 && (interval.days == 0 || zone.is_none()) =>
        {
            let nanos = i64::from(interval.days).checked_mul(DAY_NANOS)?.checked_add(interval.nanoseconds)?;
            let unit = match unit {
                TimeUnit::Second => 1_000_000_000,
                TimeUnit::Millisecond => 1_000_000,
                TimeUnit::Microsecond => 1_000,
                TimeUnit::Nanosecond => 1,
            };
            (nanos % unit == 0).then_some(nanos / unit)?
        }
        (ScalarValue::Decimal32(Some(value), _, scale), DataType::Decimal32(_, other)) if scale == other => i64::from(*value),
        (ScalarValue::Decimal64(Some(value), _, scale), DataType::Decimal64(_, other)) if scale == other => *value,
        (ScalarValue::UInt64(Some(value)), DataType::UInt64) => i64::try_from(*value).ok()?,
        (value, key) if key.is_integer() && value.data_type() == *key => match value.cast_to(&DataType::Int64).ok()? {
            ScalarValue::Int64(value) => value?,
            _ => return None,
        },
        _ => return None,
    };
    u128::try_from(units).ok()
}
