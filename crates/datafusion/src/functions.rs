// SPDX-License-Identifier: Apache-2.0
//! DataFusion's scalar functions, by their names, as those of the kernels.

use std::sync::Arc;

use arrow::datatypes::{DataType, TimeUnit};
use datafusion::common::ScalarValue;
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::expressions::Literal as Constant;
use kernels::expr::{Expr, Literal, LiteralValue};
use kernels::function::{DatePart, Function, Granularity, IntervalField};

use crate::expr::Reason;

const DAY_NANOS: i64 = 86_400_000_000_000;

/// A function of the kernels, and those of the arguments that it takes, with numbers behind them.
pub(crate) struct Found<'a> {
    pub function: Function,
    pub arguments: &'a [Arc<dyn PhysicalExpr>],
    pub numbers: Vec<i64>,
}

/// The kernels' function of a name. Functions with irregular arguments are translated here, the others
/// by their row in the kernels' table ([`Function::from_sql`]). `types`: those of the arguments.
pub(crate) fn find<'a>(name: &str, arguments: &'a [Arc<dyn PhysicalExpr>], types: &[DataType]) -> Result<Found<'a>, Reason> {
    let found = |function, arguments| Ok(Found { function, arguments, numbers: vec![] });
    let function = match name {
        "array_length" | "cardinality" if let [DataType::List(element) | DataType::LargeList(element)] = types => {
            if name == "cardinality" && element.data_type().is_nested() {
                return Err("cardinality of lists of lists is not supported on the device".to_string());
            }
            Function::ListLength
        }
        "date_part" => {
            let (part, moment) = constant_text(name, arguments)?;
            let part = DatePart::parse(part).ok_or_else(|| format!("date_part of {part} does not exist"))?;
            return found(Function::DatePart(part), moment);
        }
        "date_trunc" => {
            let (granularity, moment) = constant_text(name, arguments)?;
            let granularity =
                Granularity::parse(granularity).ok_or_else(|| format!("date_trunc to {granularity} does not exist"))?;
            return found(Function::DateTrunc(granularity), moment);
        }
        "date_bin" => return date_bin(arguments, types),
        _ => Function::from_sql(name).ok_or_else(|| format!("the function {name} is not supported on the device"))?,
    };
    found(function, arguments)
}

/// The casts that a function of one argument stands for, one after the other; `None` where it stands for none. Formats behind the
/// argument say something of text alone.
pub(crate) fn casts(name: &str, types: &[DataType], to: &DataType) -> Option<Vec<DataType>> {
    let [from, formats @ ..] = types else { return None };
    let text = is_text(from);
    let steps = match (name, to) {
        _ if !formats.is_empty() && (text || !formats.iter().all(is_text)) => return None,
        ("to_date", _) if text => vec![],
        // Text is read in nanoseconds, whatever the unit.
        (
            "to_timestamp" | "to_timestamp_seconds" | "to_timestamp_millis" | "to_timestamp_micros" | "to_timestamp_nanos",
            DataType::Timestamp(_, zone),
        ) if text => {
            vec![DataType::Timestamp(TimeUnit::Nanosecond, zone.clone())]
        }
        _ => numbers_cast(name, from)?,
    };
    Some(steps.into_iter().chain([to.clone()]).collect())
}

/// The function that reads text of a type by the formats behind it, and the type that it gives; `None` where the name is not of
/// such a function, or other things come.
pub(crate) fn by_format(name: &str, types: &[DataType]) -> Option<(Function, DataType)> {
    match name {
        _ if types.len() < 2 || !types.iter().all(is_text) => None,
        "to_date" => Some((Function::ToDate, DataType::Date32)),
        "to_timestamp" | "to_timestamp_seconds" | "to_timestamp_millis" | "to_timestamp_micros" | "to_timestamp_nanos" => {
            Some((Function::ToTimestamp, DataType::Timestamp(TimeUnit::Nanosecond, None)))
        }
        _ => None,
    }
}

fn is_text(data_type: &DataType) -> bool {
    matches!(data_type, DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View)
}

/// The casts of numbers and moments before the last one.
fn numbers_cast(name: &str, from: &DataType) -> Option<Vec<DataType>> {
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
        "to_timestamp_seconds" | "to_timestamp_millis" | "to_timestamp_micros" | "to_timestamp_nanos" => match from {
            _ if from.is_floating() => vec![DataType::Int64],
            DataType::Timestamp(_, _) => vec![],
            _ if integer || from.is_decimal() => vec![],
            _ => return None,
        },
        _ => return None,
    })
}

/// `moment + interval`, or `-`, where the interval is a constant.
pub(crate) fn shift(moment: Expr, interval: &ScalarValue, subtract: bool, data_type: DataType) -> Result<Expr, Reason> {
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
    let arguments = [moment].into_iter().chain(parts.map(number)).collect();
    Ok(Expr::Call { function: Function::AddInterval { checked: true }, arguments, data_type })
}

/// The same where rows hold the interval.
pub(crate) fn shift_by(moment: Expr, interval: &Expr, negated: bool, data_type: DataType) -> Expr {
    let fields =
        [IntervalField::Months { negated }, IntervalField::Days { negated }, IntervalField::Nanos { negated }].map(|field| {
            Expr::Call { function: Function::IntervalField(field), arguments: vec![interval.clone()], data_type: DataType::Int64 }
        });
    Expr::Call {
        function: Function::AddInterval { checked: true },
        arguments: [moment].into_iter().chain(fields).collect(),
        data_type,
    }
}

/// A constant interval.
pub(crate) fn interval(expr: &Arc<dyn PhysicalExpr>) -> Option<&ScalarValue> {
    let value = expr.downcast_ref::<Constant>()?.value();
    matches!(value.data_type(), DataType::Interval(_)).then_some(value)
}

/// An integer as a constant of a kernel.
pub(crate) fn number(value: i64) -> Expr {
    Expr::Literal(Literal { data_type: DataType::Int64, value: LiteralValue::Int(value.into()) })
}

/// What an argument names, and the other arguments.
type Part<'a> = (&'a str, &'a [Arc<dyn PhysicalExpr>]);

/// The first argument, which is part of the kernel and must be a constant, and the others.
fn constant_text<'a>(name: &str, arguments: &'a [Arc<dyn PhysicalExpr>]) -> Result<Part<'a>, Reason> {
    let constant = arguments.split_first().and_then(|(first, others)| {
        let text = first.downcast_ref::<Constant>()?.value().try_as_str().flatten()?;
        Some((text, others))
    });
    constant.ok_or_else(|| format!("{name} whose first argument is no constant is not supported on the device"))
}

/// `date_bin(stride, moment[, origin])`; stride and origin must be constants.
fn date_bin<'a>(arguments: &'a [Arc<dyn PhysicalExpr>], types: &[DataType]) -> Result<Found<'a>, Reason> {
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
    // What is left DataFusion fails for.
    let valid = stride != 0 && !(is_time && (months || stride >= DAY_NANOS));
    let origin = origin.filter(|_| valid).ok_or_else(refused)?;
    Ok(Found { function: Function::DateBin { months }, arguments: &arguments[1..2], numbers: vec![stride, origin] })
}
