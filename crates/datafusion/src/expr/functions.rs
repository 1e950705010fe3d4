// SPDX-License-Identifier: Apache-2.0
//! Translation of DataFusion's scalar functions by their names.

use std::sync::Arc;

use arrow::datatypes::{DataType, TimeUnit};
use datafusion::common::ScalarValue;
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::expressions::Literal as Constant;
use kernels::expr::{Expr, Literal, LiteralValue};
use kernels::function::{DatePart, Function, Granularity, IntervalField};

use crate::reason::Reason;

const DAY_NANOS: i64 = 86_400_000_000_000;

/// A function of the kernels with its arguments: some of the call's, then constant numbers.
pub(super) struct KernelFunction<'a> {
    pub function: Function,
    pub arguments: &'a [Arc<dyn PhysicalExpr>],
    pub numbers: Vec<i64>,
}

/// The kernels' function of a name. Functions with irregular arguments are translated here, others
/// by the kernels' table ([`Function::from_sql`]). `types`: those of the arguments.
pub(super) fn find<'a>(
    name: &str,
    arguments: &'a [Arc<dyn PhysicalExpr>],
    types: &[DataType],
) -> Result<KernelFunction<'a>, Reason> {
    let found = |function, arguments| Ok(KernelFunction { function, arguments, numbers: vec![] });
    let function = match name {
        "array_length" | "cardinality" if let [DataType::List(element) | DataType::LargeList(element)] = types => {
            if name == "cardinality" && element.data_type().is_nested() {
                return Err("cardinality of lists of lists is not supported on the device".to_string());
            }
            Function::ListLength
        }
        "date_part" => {
            let (part, time) = constant_string(name, arguments)?;
            let part = DatePart::parse(part).ok_or_else(|| format!("date_part of {part} does not exist"))?;
            return found(Function::DatePart(part), time);
        }
        "date_trunc" => {
            let (granularity, time) = constant_string(name, arguments)?;
            let granularity =
                Granularity::parse(granularity).ok_or_else(|| format!("date_trunc to {granularity} does not exist"))?;
            return found(Function::DateTrunc(granularity), time);
        }
        "date_bin" => return date_bin(arguments, types),
        _ => Function::from_sql(name).ok_or_else(|| format!("the function {name} is not supported on the device"))?,
    };
    found(function, arguments)
}

/// The casts of a function of one argument, in their order; `None` if the function is no cast.
///
/// Formats behind the argument have an effect on strings only.
pub(super) fn casts(name: &str, types: &[DataType], to: &DataType) -> Option<Vec<DataType>> {
    let [from, formats @ ..] = types else { return None };
    let of_string = is_string(from);
    let steps = match (name, to) {
        _ if !formats.is_empty() && (of_string || !formats.iter().all(is_string)) => return None,
        ("to_date", _) if of_string => vec![],
        // Strings are parsed to nanoseconds, whatever the unit.
        (_, DataType::Timestamp(_, zone)) if of_string && is_to_timestamp(name) => {
            vec![DataType::Timestamp(TimeUnit::Nanosecond, zone.clone())]
        }
        _ => casts_of_numbers(name, from)?,
    };
    Some(steps.into_iter().chain([to.clone()]).collect())
}

/// The function that parses strings by formats, and its result type; `None` for other functions or
/// argument types.
pub(super) fn by_format(name: &str, types: &[DataType]) -> Option<(Function, DataType)> {
    match name {
        _ if types.len() < 2 || !types.iter().all(is_string) => None,
        "to_date" => Some((Function::ToDate, DataType::Date32)),
        name if is_to_timestamp(name) => Some((Function::ToTimestamp, DataType::Timestamp(TimeUnit::Nanosecond, None))),
        _ => None,
    }
}

/// Whether a function is `to_timestamp`, or one of those with a unit in their names.
fn is_to_timestamp(name: &str) -> bool {
    ["to_timestamp", "to_timestamp_seconds", "to_timestamp_millis", "to_timestamp_micros", "to_timestamp_nanos"].contains(&name)
}

fn is_string(data_type: &DataType) -> bool {
    matches!(data_type, DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View)
}

/// The casts of numbers and times before the last one.
fn casts_of_numbers(name: &str, from: &DataType) -> Option<Vec<DataType>> {
    let integer = from.is_integer();
    Some(match name {
        "to_date" if matches!(from, DataType::Int8 | DataType::Int16) || from.is_unsigned_integer() => vec![DataType::Int32],
        "to_date" if from.is_floating() || from.is_decimal() => vec![DataType::Int64],
        "to_date" if integer || matches!(from, DataType::Date32 | DataType::Date64 | DataType::Timestamp(_, _)) => vec![],
        "to_unixtime" if integer || from.is_floating() => vec![],
        "to_unixtime" => match from {
            DataType::Date32 | DataType::Date64 => vec![DataType::Timestamp(TimeUnit::Second, None)],
            DataType::Timestamp(_, zone) => vec![DataType::Timestamp(TimeUnit::Second, zone.clone())],
            _ => return None,
        },
        "from_unixtime" if *from == DataType::Int64 => vec![],
        "to_local_time" if matches!(from, DataType::Timestamp(_, None)) => vec![],
        "to_timestamp" if integer => vec![DataType::Timestamp(TimeUnit::Second, None)],
        "to_timestamp" if matches!(from, DataType::Timestamp(_, _)) => vec![],
        "to_timestamp" => return None,
        name if is_to_timestamp(name) => match from {
            _ if from.is_floating() => vec![DataType::Int64],
            DataType::Timestamp(_, _) => vec![],
            _ if integer || from.is_decimal() => vec![],
            _ => return None,
        },
        _ => return None,
    })
}

/// `time + interval`, or `-`, with a constant interval.
pub(super) fn add_interval(time: Expr, interval: &ScalarValue, subtract: bool, data_type: DataType) -> Result<Expr, Reason> {
    let (months, days, nanos) = match interval {
        ScalarValue::IntervalYearMonth(Some(months)) => (*months, 0, 0),
        ScalarValue::IntervalDayTime(Some(interval)) => (0, interval.days, i64::from(interval.milliseconds) * 1_000_000),
        ScalarValue::IntervalMonthDayNano(Some(interval)) => (interval.months, interval.days, interval.nanoseconds),
        _ => return Ok(Expr::Literal(Literal { data_type, value: LiteralValue::Null })),
    };
    let (months, days) = (i64::from(months), i64::from(days));
    let parts = if subtract {
        let negated = months.checked_neg().zip(days.checked_neg()).zip(nanos.checked_neg());
        let ((months, days), nanos) = negated.ok_or("an interval without a negative is not supported on the device")?;
        [months, days, nanos]
    } else {
        [months, days, nanos]
    };
    let arguments = [time].into_iter().chain(parts.map(number)).collect();
    Ok(Expr::Call { function: Function::AddInterval { checked: true }, arguments, data_type })
}

/// As [`add_interval`] with a column of intervals.
pub(super) fn add_interval_column(time: Expr, interval: &Expr, negated: bool, data_type: DataType) -> Expr {
    let fields =
        [IntervalField::Months { negated }, IntervalField::Days { negated }, IntervalField::Nanos { negated }].map(|field| {
            Expr::Call { function: Function::IntervalField(field), arguments: vec![interval.clone()], data_type: DataType::Int64 }
        });
    Expr::Call {
        function: Function::AddInterval { checked: true },
        arguments: [time].into_iter().chain(fields).collect(),
        data_type,
    }
}

/// A constant interval.
pub(super) fn interval(expr: &Arc<dyn PhysicalExpr>) -> Option<&ScalarValue> {
    let value = expr.downcast_ref::<Constant>()?.value();
    matches!(value.data_type(), DataType::Interval(_)).then_some(value)
}

/// A constant integer.
pub(super) fn number(value: i64) -> Expr {
    Expr::Literal(Literal { data_type: DataType::Int64, value: LiteralValue::Int(value.into()) })
}

/// A constant string, and the other arguments.
type ConstantString<'a> = (&'a str, &'a [Arc<dyn PhysicalExpr>]);

/// The first argument, which becomes part of the kernel and must be constant, and the others.
fn constant_string<'a>(name: &str, arguments: &'a [Arc<dyn PhysicalExpr>]) -> Result<ConstantString<'a>, Reason> {
    let constant = arguments.split_first().and_then(|(first, others)| {
        let string = first.downcast_ref::<Constant>()?.value().try_as_str().flatten()?;
        Some((string, others))
    });
    constant.ok_or_else(|| format!("{name} whose first argument is no constant is not supported on the device"))
}

/// `date_bin(stride, time[, origin])` with a constant stride and origin.
fn date_bin<'a>(arguments: &'a [Arc<dyn PhysicalExpr>], types: &[DataType]) -> Result<KernelFunction<'a>, Reason> {
    let refused = || "date_bin is not supported on the device for this stride and origin".to_string();
    let [stride, _, origin @ ..] = arguments else { return Err(refused()) };
    let is_time = matches!(types.get(1), Some(DataType::Time32(_) | DataType::Time64(_)));
    let (months, stride) = match interval(stride) {
        Some(ScalarValue::IntervalDayTime(Some(stride))) => {
            let days = i64::from(stride.days).checked_mul(DAY_NANOS);
            let nanos = i64::from(stride.milliseconds) * 1_000_000;
            (false, days.and_then(|days| days.checked_add(nanos)).ok_or_else(refused)?)
        }
        Some(ScalarValue::IntervalMonthDayNano(Some(stride))) if stride.months == 0 => {
            let days = i64::from(stride.days).checked_mul(DAY_NANOS);
            (false, days.and_then(|days| days.checked_add(stride.nanoseconds)).ok_or_else(refused)?)
        }
        Some(ScalarValue::IntervalMonthDayNano(Some(stride))) if stride.days == 0 && stride.nanoseconds == 0 => {
            (true, i64::from(stride.months))
        }
        _ => return Err(refused()),
    };
    let origin = match origin {
        [] => Some(0),
        [origin] => match (origin.downcast_ref::<Constant>().map(|origin| origin.value()), is_time) {
            (Some(ScalarValue::TimestampNanosecond(Some(origin), _)), false) => Some(*origin),
            (Some(ScalarValue::Time32Second(Some(origin))), true) => i64::from(*origin).checked_mul(1_000_000_000),
            (Some(ScalarValue::Time32Millisecond(Some(origin))), true) => i64::from(*origin).checked_mul(1_000_000),
            (Some(ScalarValue::Time64Microsecond(Some(origin))), true) => origin.checked_mul(1_000),
            (Some(ScalarValue::Time64Nanosecond(Some(origin))), true) => Some(*origin),
            _ => None,
        },
        _ => None,
    };
    // DataFusion fails for other strides.
    let valid = stride != 0 && !(is_time && (months || stride >= DAY_NANOS));
    let origin = origin.filter(|_| valid).ok_or_else(refused)?;
    Ok(KernelFunction { function: Function::DateBin { months }, arguments: &arguments[1..2], numbers: vec![stride, origin] })
}
