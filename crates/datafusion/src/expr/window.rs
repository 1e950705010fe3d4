// SPDX-License-Identifier: Apache-2.0
//! Translation of DataFusion's window functions and frames to those of the kernels.

use std::fmt;
use std::sync::Arc;

use arrow::datatypes::{DataType, TimeUnit};
use datafusion::common::ScalarValue;
use datafusion::logical_expr::{Operator, WindowFrame, WindowFrameBound, WindowFrameUnits};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::aggregate::AggregateFunctionExpr;
use datafusion::physical_expr::expressions::{BinaryExpr, CastExpr, Literal, lit};
use datafusion::physical_expr::window::{PlainAggregateWindowExpr, SlidingAggregateWindowExpr, StandardWindowExpr, WindowExpr};
use datafusion::physical_plan::windows::WindowUDFExpr;
use kernels::expr::RankRule;
use kernels::ops::{self, Frame, FrameBound, FrameUnits, NullTreatment, Quantile, WindowCall, WindowFunction};

use super::aggregate::{AggregateCall, rank_rule};
use super::builtin::{is_builtin_window, skips_nulls};
use super::computed_strings::ComputedStrings;
use super::translate::scalar;
use crate::reason::Reason;

/// Lowers a window function over the columns of an input and of computed `strings`. `bounded`: the
/// operator is a `BoundedWindowAggExec`.
pub(crate) fn lower_window(
    expr: &Arc<dyn WindowExpr>,
    bounded: bool,
    strings: &mut ComputedStrings,
) -> Result<WindowCall, Reason> {
    let function = if let Some(aggregate) = aggregate_of(expr) {
        let (rule, quantile) = (rank_rule(aggregate), quantile(aggregate)?);
        let name = aggregate.fun().name();
        let sees_nulls = !skips_nulls(name) && rule != Some(RankRule::List);
        if aggregate.ignore_nulls() && sees_nulls || !aggregate.order_bys().is_empty() {
            return Err(format!("{} is not supported on the device", expr.name()));
        }
        // Only `Debug` shows the filter.
        if !format!("{expr:?}").ends_with("filter: None }") {
            return Err(format!("{name} with FILTER is not supported on the device as a window"));
        }
        let distinct = aggregate.is_distinct();
        match (rule, aggregate.expressions().as_slice()) {
            (_, [value, ..]) if let Some(quantile) = quantile => {
                WindowFunction::Quantile { quantile, value: strings.lower(value)?, distinct }
            }
            (Some(RankRule::List), [value]) => {
                WindowFunction::ArrayAgg { value: strings.lower(value)?, ignore_nulls: aggregate.ignore_nulls(), distinct }
            }
            // The first value that is not NULL.
            (Some(RankRule::Any), [value]) => WindowFunction::NthNonNull(strings.lower(value)?, 1),
            (Some(RankRule::Concatenation), [value, delimiter]) => string_agg(value, delimiter, distinct, strings)?,
            // With a rank this gives the reason for the refusal: DataFusion's `first_value` over a
            // window is a window function.
            (
                None
                | Some(
                    RankRule::Any
                    | RankRule::First
                    | RankRule::Last
                    | RankRule::Nth
                    | RankRule::Median
                    | RankRule::Percentile
                    | RankRule::Concatenation
                    | RankRule::List,
                ),
                _,
            ) => WindowFunction::Aggregate(strings.lower_aggregate(&AggregateCall::new(&Arc::new(aggregate.clone()), None))?),
        }
    } else {
        let Some(udf) = udf_of(expr) else {
            return Err(format!("the window function {} is not supported on the device", expr.name()));
        };
        ranking(udf, bounded, strings)?
    };
    let key = match expr.order_by() {
        [key] => key.expr.data_type(&strings.schema).ok().map(|data_type| (data_type, key.options.descending)),
        _ => None,
    };
    Ok(WindowCall { function, frame: frame(expr.get_window_frame(), key.as_ref())? })
}

/// A window function for EXPLAIN.
///
/// A function of the query has its SQL as its name. A function added by the planner has the name of
/// its column, which stands behind its call here.
pub(crate) fn describe_window(expr: &Arc<dyn WindowExpr>) -> String {
    let aggregate = aggregate_of(expr).map(|aggregate| aggregate.fun().name());
    let function = aggregate.or_else(|| udf_of(expr).map(|udf| udf.fun().name()));
    let Some(function) = function.filter(|function| !expr.name().starts_with(&format!("{function}("))) else {
        return expr.name().to_string();
    };
    let clause = |keyword: &str, exprs: String| if exprs.is_empty() { exprs } else { format!(" {keyword} BY [{exprs}]") };
    let partition = clause("PARTITION", joined(expr.partition_by()));
    let order = clause("ORDER", joined(expr.order_by()));
    format!("{function}({}){partition}{order} {} as {}", joined(&expr.expressions()), expr.get_window_frame(), expr.name())
}

fn joined(exprs: &[impl fmt::Display]) -> String {
    exprs.iter().map(|expr| expr.to_string()).collect::<Vec<_>>().join(", ")
}

fn aggregate_of(expr: &Arc<dyn WindowExpr>) -> Option<&AggregateFunctionExpr> {
    let any = expr.as_any();
    any.downcast_ref::<PlainAggregateWindowExpr>()
        .map(PlainAggregateWindowExpr::get_aggregate_expr)
        .or_else(|| any.downcast_ref::<SlidingAggregateWindowExpr>().map(SlidingAggregateWindowExpr::get_aggregate_expr))
}

fn udf_of(expr: &Arc<dyn WindowExpr>) -> Option<&WindowUDFExpr> {
    expr.as_any().downcast_ref::<StandardWindowExpr>()?.get_standard_func_expr().as_any().downcast_ref()
}

fn ranking(udf: &WindowUDFExpr, bounded: bool, strings: &mut ComputedStrings) -> Result<WindowFunction, Reason> {
    let name = udf.fun().name().to_string();
    if !is_builtin_window(udf.fun()) {
        return Err(format!("the window function {name} is not supported on the device"));
    }
    // Only `Debug` shows these flags. A reversed FIRST_VALUE is called LAST_VALUE, others keep
    // their names. Ranks are never reversed.
    let described = format!("{udf:?}");
    let ignores_nulls = !described.contains("ignore_nulls: false");
    let is_reversed = !described.contains("is_reversed: false");
    let value = |index: usize, strings: &mut ComputedStrings| match udf.args().get(index) {
        Some(argument) => strings.lower(argument),
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
    let lag = |sign: i64, strings: &mut ComputedStrings| -> Result<WindowFunction, Reason> {
        let default = match udf.args().get(2) {
            None => None,
            Some(argument) if is_null(argument) => None,
            Some(argument) => {
                let data_type = udf.args()[0].data_type(&strings.schema).map_err(|error| error.to_string())?;
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
            // The current row, NULL or not.
            (true, false) if offset == 0 => NullTreatment::Respect,
            (true, false) => NullTreatment::Ignore,
        };
        Ok(WindowFunction::Lag { value: value(0, strings)?, offset, default, nulls })
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
        "lag" => lag(1, strings)?,
        "lead" => lag(-1, strings)?,
        "first_value" => nth(value(0, strings)?, 1),
        "last_value" => nth(value(0, strings)?, -1),
        "nth_value" => match number(1, 0)? {
            // Counted from the other end of the frame.
            n if is_reversed => {
                nth(value(0, strings)?, n.checked_neg().ok_or("nth_value of no such row is not supported on the device")?)
            }
            n => nth(value(0, strings)?, n),
        },
        _ => return Err(format!("the window function {name} is not supported on the device")),
    })
}

/// The quantile of an aggregate; `None` for other aggregates. Quantiles skip NULLs.
fn quantile(aggregate: &AggregateFunctionExpr) -> Result<Option<Quantile>, Reason> {
    match rank_rule(aggregate) {
        Some(RankRule::Median) => Ok(Some(Quantile::Median)),
        Some(RankRule::Percentile) => match aggregate.expressions().get(1).and_then(constant) {
            Some(ScalarValue::Float64(Some(fraction))) => Ok(Some(Quantile::Percentile(fraction))),
            _ => Err("percentile_cont of a fraction that is not constant is not supported on the device".to_string()),
        },
        Some(RankRule::Any | RankRule::First | RankRule::Last | RankRule::Nth | RankRule::Concatenation | RankRule::List)
        | None => Ok(None),
    }
}

/// `string_agg` over frames. The string of each row starts with the delimiter; the first delimiter
/// of a frame is skipped.
fn string_agg(
    value: &Arc<dyn PhysicalExpr>,
    delimiter: &Arc<dyn PhysicalExpr>,
    distinct: bool,
    strings: &mut ComputedStrings,
) -> Result<WindowFunction, Reason> {
    let Some(delimiter) = delimiter.downcast_ref::<Literal>() else {
        return Err("string_agg with a delimiter that is not constant is not supported on the device".to_string());
    };
    let delimiter = delimiter.value().try_as_str().flatten().unwrap_or_default().to_string();
    let skipped = u32::try_from(delimiter.len()).map_err(|_| "a delimiter of 4 GiB is not supported on the device")?;
    let cast: Arc<dyn PhysicalExpr> = Arc::new(CastExpr::new(Arc::clone(value), DataType::LargeUtf8, None));
    let part = BinaryExpr::new(lit(ScalarValue::LargeUtf8(Some(delimiter))), Operator::StringConcat, cast);
    let part: Arc<dyn PhysicalExpr> = Arc::new(part);
    Ok(WindowFunction::StringAgg { strings: strings.lower(&part)?, skipped, distinct })
}

fn is_null(expr: &Arc<dyn PhysicalExpr>) -> bool {
    expr.downcast_ref::<Literal>().is_some_and(|literal| literal.value().is_null())
}

fn constant(expr: &Arc<dyn PhysicalExpr>) -> Option<ScalarValue> {
    expr.downcast_ref::<Literal>().map(|literal| literal.value().clone()).filter(|value| !value.is_null())
}

/// The kernels' frame. `key`: type and direction of the order's key, `None` unless there is exactly
/// one. The direction is true if descending.
fn frame(frame: &WindowFrame, key: Option<&(DataType, bool)>) -> Result<Frame, Reason> {
    let descending = key.is_some_and(|(_, descending)| *descending);
    let units = match frame.units {
        WindowFrameUnits::Rows => FrameUnits::Rows,
        WindowFrameUnits::Range => match key.map(|(data_type, _)| data_type) {
            Some(data_type) if data_type.is_floating() => FrameUnits::FloatRange { descending },
            Some(data_type) if is_time(data_type) && !is_uniform(frame, data_type) => FrameUnits::IntervalRange { descending },
            Some(data_type) if !data_type.is_numeric() && !is_time(data_type) => FrameUnits::NonArithmeticRange,
            // Decimals of more than 18 digits may not fit 64 bits.
            Some(DataType::Decimal128(19.., _)) => FrameUnits::Range128 { descending },
            Some(DataType::Decimal256(_, _)) => FrameUnits::Range256 { descending },
            _ => FrameUnits::Range { descending },
        },
        WindowFrameUnits::Groups => FrameUnits::Groups,
    };
    let offset = |value: &ScalarValue| match value {
        value if frame.units == WindowFrameUnits::Range => key
            .and_then(|(key, _)| match units {
                FrameUnits::IntervalRange { .. } => interval_offset(value),
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
            // Before the first row and behind the last row the frame is empty.
            (FrameBound::UnboundedFollowing, true) => FrameBound::Following(i64::MAX as u128),
            (FrameBound::UnboundedPreceding, false) => FrameBound::Preceding(i64::MAX as u128),
            (bound, _) => bound,
        })
    };
    Ok(Frame { units, start: bound(&frame.start_bound, true)?, end: bound(&frame.end_bound, false)? })
}

/// Dates and timestamps.
fn is_time(data_type: &DataType) -> bool {
    matches!(data_type, DataType::Date32 | DataType::Date64 | DataType::Timestamp(_, _))
}

/// Whether the offsets of a frame are a fixed number of units of the order key.
fn is_uniform(frame: &WindowFrame, key: &DataType) -> bool {
    [&frame.start_bound, &frame.end_bound].into_iter().all(|bound| match bound {
        WindowFrameBound::Preceding(value) | WindowFrameBound::Following(value) => {
            value.is_null() || range_offset(value, key).is_some()
        }
        WindowFrameBound::CurrentRow => true,
    })
}

/// An offset of [`FrameUnits::IntervalRange`].
fn interval_offset(value: &ScalarValue) -> Option<u128> {
    match value {
        ScalarValue::IntervalMonthDayNano(Some(interval)) => {
            Some(ops::interval(interval.months, interval.days, interval.nanoseconds))
        }
        _ => None,
    }
}

/// An offset in units of the order key: days of a `Date32`, hundredths of a `Decimal128(15, 2)`,
/// the bits of a float.
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
        // Days of time zones differ in length.
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
