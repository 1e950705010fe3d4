// SPDX-License-Identifier: Apache-2.0
//! The oracle of scalar functions: DataFusion's result for one row without NULL arguments.

use std::sync::Arc;

use arrow::array::timezone::Tz;
use arrow::array::{ArrayRef, IntervalMonthDayNanoArray};
use arrow::compute;
use arrow::compute::kernels::{cmp, numeric};
use arrow::datatypes::*;
use chrono::format::{Parsed, StrftimeItems, parse};
use chrono::{
    DateTime, Datelike, MappedLocalTime, Months, NaiveDate, NaiveTime, Offset, TimeDelta, TimeZone, Timelike, Utc, Weekday,
};
use kernels::codegen::CType;
use kernels::expr::LiteralValue;
use kernels::function::{DatePart, Function, Granularity};

use crate::data::{self, precision_scale};
use crate::harness::values;

/// The result; `None` if the function fails.
pub fn call(function: Function, arguments: &[ArrayRef], data_type: &DataType) -> Option<ArrayRef> {
    let row: Vec<LiteralValue> = arguments.iter().map(|argument| values(argument).remove(0)).collect();
    let array = |value: LiteralValue| data::array(data_type, &[value]);
    let texts = |at: usize| match &row[at] {
        LiteralValue::Bytes(bytes) => String::from_utf8(bytes.clone()).unwrap(),
        other => panic!("{other:?} is no text"),
    };
    let number = |at: usize| match row[at] {
        LiteralValue::Int(value) => value,
        ref other => panic!("{other:?} is no integer"),
    };
    let wide = match row.first() {
        Some(LiteralValue::Wide(value)) => Some(**value),
        Some(LiteralValue::Int(value)) if matches!(arguments[0].data_type(), DataType::Decimal256(..)) => {
            Some(i256::from_i128(*value))
        }
        _ => None,
    };
    match (function, wide) {
        (Function::Abs, Some(value)) => return Some(array(data::number(value.wrapping_abs()))),
        (Function::IsZero, Some(value)) => return Some(array(LiteralValue::Bool(value == i256::ZERO))),
        (Function::Floor | Function::Ceil | Function::Round | Function::Trunc, Some(value)) => {
            let to = if row.len() > 1 { number(1) as i64 } else { 0 };
            return wide_rounded(function, value, to, arguments[0].data_type(), data_type)
                .map(|value| array(data::number(value)));
        }
        (Function::IsNan, Some(_)) => return Some(array(LiteralValue::Bool(false))),
        _ => {}
    }
    let text = |text: String| Some(array(LiteralValue::Bytes(text.into_bytes())));
    let count = |count: usize| Some(array(LiteralValue::Int(count as i128)));
    let truth = |truth: bool| Some(array(LiteralValue::Bool(truth)));
    let characters = |at: usize| texts(at).chars().collect::<Vec<char>>();
    match (function, row.len()) {
        (Function::DatePart(part), _) => Some(date_part(part, &arguments[0])),
        (Function::DateTrunc(granularity), _) => Some(array(LiteralValue::Int(date_trunc(granularity, &arguments[0])?.into()))),
        (Function::DateBin { months }, _) => {
            let [stride, origin] = [number(1), number(2)].map(|number| number as i64);
            let bin = date_bin(months, &arguments[0], stride, origin);
            Some(array(bin.map_or(LiteralValue::Null, |ticks| LiteralValue::Int(ticks.into()))))
        }
        (Function::ToDate | Function::ToTimestamp, n) => {
            let timestamp = (1..n).find_map(|format| by_format(function, &texts(0), &texts(format)))?;
            Some(array(LiteralValue::Int(timestamp.into())))
        }
        (Function::AddInterval { checked: true }, _) => {
            shift(&arguments[0], number(1) as i32, number(2) as i32, number(3) as i64)
        }
        (Function::Substring, n) => {
            // Without a count, the slice ends with the string.
            let (start, count) = (number(1), if n == 3 { number(2) } else { i128::from(u64::MAX) });
            if start == i64::MIN.into() || count < 0 {
                return None;
            }
            let numbered = (1i128..).zip(characters(0));
            text(numbered.filter(|(position, _)| (start..start + count).contains(position)).map(|(_, c)| c).collect())
        }
        (Function::Left | Function::Right, _) => {
            let (all, n) = (characters(0), number(1));
            let len = all.len() as i128;
            let kept = if n < 0 { (len + n).max(0) } else { n.min(len) } as usize;
            text(match function {
                Function::Left => all[..kept].iter().collect(),
                _ if n == i64::MIN.into() => String::new(),
                _ => all[all.len() - kept..].iter().collect(),
            })
        }
        (Function::Btrim | Function::Ltrim | Function::Rtrim, n) => {
            let (start, end) = (function != Function::Rtrim, function != Function::Ltrim);
            let set = if n == 2 { characters(1) } else { vec![' '] };
            let mut slice = &texts(0)[..];
            if start {
                slice = slice.trim_start_matches(&set[..]);
            }
            if end {
                slice = slice.trim_end_matches(&set[..]);
            }
            text(slice.into())
        }
        (Function::SplitPart, _) => {
            let (whole, delimiter, n) = (texts(0), texts(1), number(2));
            let position = n.unsigned_abs().checked_sub(1)? as usize;
            let part = match (delimiter.is_empty(), n < 0) {
                (true, _) => (position == 0).then_some(&whole[..]),
                (false, false) => whole.split(&delimiter[..]).nth(position),
                (false, true) => whole.rsplit(&delimiter[..]).nth(position),
            };
            text(part.unwrap_or_default().into())
        }
        (Function::Greatest | Function::Least, _) => Some(extreme(function, arguments)),
        (Function::Upper, _) => text(texts(0).to_uppercase()),
        (Function::Lower, _) => text(texts(0).to_lowercase()),
        (Function::InitCap, _) => {
            let (mut result, mut inside) = (String::new(), false);
            for c in characters(0) {
                if inside {
                    result.extend(c.to_lowercase())
                } else {
                    result.extend(c.to_uppercase())
                }
                inside = c.is_alphanumeric();
            }
            text(result)
        }
        (Function::Concat | Function::ConcatOperator, _) => text((0..row.len()).map(texts).collect()),
        (Function::ConcatWs, _) => text((1..row.len()).map(texts).collect::<Vec<String>>().join(&texts(0))),
        (Function::Replace, _) => text(if texts(1).is_empty() { texts(0) } else { texts(0).replace(&texts(1), &texts(2)) }),
        (Function::Repeat, _) => {
            let count = number(1).max(0);
            if count * texts(0).len() as i128 > i32::MAX.into() {
                return None;
            }
            text(texts(0).repeat(if texts(0).is_empty() { 0 } else { count as usize }))
        }
        (Function::Lpad | Function::Rpad, n) => {
            if number(1) > i32::MAX.into() {
                return None;
            }
            let (own, wanted) = (characters(0), number(1).max(0) as usize);
            let fill = if n == 3 { characters(2) } else { vec![' '] };
            let missing = wanted.saturating_sub(own.len());
            let padding: String = fill.iter().cycle().take(missing).collect();
            let own: String = own.iter().take(wanted).collect();
            text(if function == Function::Lpad { padding + &own } else { own + &padding })
        }
        (Function::Reverse, _) => text(texts(0).chars().rev().collect()),
        (Function::Chr, _) => text(char::from_u32(u32::try_from(number(0)).ok()?)?.to_string()),
        (Function::Overlay, n) => {
            let (own, other, start) = (characters(0), characters(1), number(2));
            let count = if n == 4 { number(3) } else { other.len() as i128 };
            if start < 1 {
                return None;
            }
            let position = |position: i128| position.clamp(0, own.len() as i128) as usize;
            let rest = &own[position(start - 1 + count)..];
            text(own[..position(start - 1)].iter().chain(&other).chain(rest).collect())
        }
        (Function::Translate, _) => {
            let (from, to) = (characters(1), characters(2));
            let other = |c: char| match from.iter().position(|known| *known == c) {
                Some(position) => to.get(position).copied(),
                None => Some(c),
            };
            text(characters(0).into_iter().filter_map(other).collect())
        }
        (function, _) if arguments[0].data_type().is_numeric() => Some(array(number_function(function, arguments, data_type)?)),
        (Function::CharacterLength, _) => count(characters(0).len()),
        (Function::OctetLength, _) => count(texts(0).len()),
        (Function::BitLength, _) => count(texts(0).len() * 8),
        (Function::Position, _) => {
            let whole = texts(0);
            count(whole.find(&texts(1)).map_or(0, |at| whole[..at].chars().count() + 1))
        }
        (Function::StartsWith, _) => truth(texts(0).starts_with(&texts(1))),
        (Function::EndsWith, _) => truth(texts(0).ends_with(&texts(1))),
        (Function::Contains, _) => truth(texts(0).contains(&texts(1))),
        (Function::Ascii, _) => count(characters(0).first().map_or(0, |c| *c as usize)),
        (function, _) => panic!("{function:?} of {}", arguments[0].data_type()),
    }
}

fn per_second(data_type: &DataType) -> i64 {
    match data_type {
        DataType::Timestamp(unit, _) | DataType::Time32(unit) | DataType::Time64(unit) => match unit {
            TimeUnit::Second => 1,
            TimeUnit::Millisecond => 1_000,
            TimeUnit::Microsecond => 1_000_000,
            TimeUnit::Nanosecond => 1_000_000_000,
        },
        other => panic!("{other} has no unit"),
    }
}

fn ticks(timestamp: &ArrayRef) -> i64 {
    match values(timestamp).remove(0) {
        LiteralValue::Int(ticks) => ticks as i64,
        other => panic!("{other:?} is no date or time"),
    }
}

/// Ticks of the truncated timestamp, by chrono for zones with offset changes.
fn date_trunc(granularity: Granularity, timestamp: &ArrayRef) -> Option<i64> {
    let (ticks, per) = (ticks(timestamp), per_second(timestamp.data_type()));
    let seconds = match granularity {
        Granularity::Microsecond | Granularity::Millisecond => 0,
        Granularity::Second => 1,
        Granularity::Minute => 60,
        Granularity::Hour => 3_600,
        _ => 86_400,
    };
    let unit = match granularity {
        Granularity::Microsecond => per / 1_000_000,
        Granularity::Millisecond => per / 1_000,
        _ => seconds * per,
    };
    let zone = match timestamp.data_type() {
        DataType::Timestamp(_, zone) => zone.clone(),
        _ => return Some(if unit > 1 { ticks - ticks % unit } else { ticks }),
    };
    if granularity < Granularity::Hour || (zone.is_none() && granularity <= Granularity::Day) {
        return Some(if unit > 1 { ticks.wrapping_sub(ticks.rem_euclid(unit)) } else { ticks });
    }
    let nanos = ticks.checked_mul(1_000_000_000 / per)?;
    let zone: Tz = zone.as_deref().unwrap_or("+00:00").parse().unwrap();
    let instant = DateTime::from_timestamp_nanos(nanos).with_timezone(&zone);
    let local = instant.naive_local();
    let day = local.date();
    let first = match granularity {
        Granularity::Hour => day.and_hms_opt(local.hour(), 0, 0),
        Granularity::Day => day.and_hms_opt(0, 0, 0),
        Granularity::Week => day.week(Weekday::Mon).first_day().and_hms_opt(0, 0, 0),
        Granularity::Month => day.with_day(1)?.and_hms_opt(0, 0, 0),
        Granularity::Quarter => day.with_day(1)?.with_month0(day.month0() / 3 * 3)?.and_hms_opt(0, 0, 0),
        _ => day.with_ordinal(1)?.and_hms_opt(0, 0, 0),
    }?;
    let truncated = match zone.from_local_datetime(&first) {
        MappedLocalTime::Single(only) => only,
        MappedLocalTime::Ambiguous(one, _) if one.offset().fix() == instant.offset().fix() => one,
        MappedLocalTime::Ambiguous(_, other) => other,
        MappedLocalTime::None => zone.from_local_datetime(&(first - TimeDelta::hours(3))).single()? + TimeDelta::hours(3),
    };
    Some(truncated.timestamp_nanos_opt()? / (1_000_000_000 / per))
}

/// Ticks of the start of the bin.
fn date_bin(months: bool, timestamp: &ArrayRef, stride: i64, origin: i64) -> Option<i64> {
    let scale = 1_000_000_000 / per_second(timestamp.data_type());
    let nanos = ticks(timestamp).checked_mul(scale)?;
    let distance = |difference: i64| {
        let floor = difference.checked_sub(difference.checked_rem(stride)?)?;
        if difference < 0 && stride > 1 && floor != difference { floor.checked_sub(stride) } else { Some(floor) }
    };
    let bin = if months {
        let (timestamp, origin) = (DateTime::from_timestamp_nanos(nanos), DateTime::from_timestamp_nanos(origin));
        let number = |date: &DateTime<Utc>| i64::from(date.year()) * 12 + i64::from(date.month());
        let shifted = |months: i64| match months < 0 {
            true => origin.checked_sub_months(Months::new(months.unsigned_abs() as u32)),
            false => origin.checked_add_months(Months::new(months as u32)),
        };
        let months = distance(number(&timestamp) - number(&origin))?;
        let bin = shifted(months)?;
        if bin > timestamp { shifted(months - stride)? } else { bin }.timestamp_nanos_opt()?
    } else {
        origin.checked_add(distance(nanos.checked_sub(origin)?)?)?
    };
    match timestamp.data_type() {
        DataType::Timestamp(_, _) => Some(bin / scale),
        _ => Some(bin % 86_400_000_000_000 / scale),
    }
}

/// A timestamp plus an interval by arrow-rs, and a time by hand.
fn shift(timestamp: &ArrayRef, months: i32, days: i32, nanos: i64) -> Option<ArrayRef> {
    if let DataType::Time32(_) | DataType::Time64(_) = timestamp.data_type() {
        let per = per_second(timestamp.data_type());
        let delta = (nanos % 86_400_000_000_000).div_euclid(1_000_000_000 / per);
        let ticks = (ticks(timestamp) + delta).rem_euclid(86_400 * per);
        return Some(data::array(timestamp.data_type(), &[LiteralValue::Int(ticks.into())]));
    }
    let interval = IntervalMonthDayNanoArray::from(vec![IntervalMonthDayNanoType::make_value(months, days, nanos)]);
    numeric::add(timestamp, &interval).ok()
}

/// [`call`] with a NULL argument.
pub fn call_with_null(function: Function, arguments: &[ArrayRef], data_type: &DataType) -> ArrayRef {
    let is_null = |argument: &ArrayRef| values(argument) == [LiteralValue::Null];
    let nan = |argument: &ArrayRef| matches!(values(argument)[..], [LiteralValue::Float(value)] if value.is_nan());
    match function {
        Function::Greatest | Function::Least => {
            let some: Vec<ArrayRef> = arguments.iter().filter(|argument| !is_null(argument)).cloned().collect();
            if some.is_empty() { Arc::clone(&arguments[0]) } else { extreme(function, &some) }
        }
        Function::Concat | Function::ConcatWs => {
            if function == Function::ConcatWs && is_null(&arguments[0]) {
                return data::array(data_type, &[LiteralValue::Null]);
            }
            let some: Vec<ArrayRef> = arguments.iter().filter(|argument| !is_null(argument)).cloned().collect();
            call(function, &some, data_type).unwrap()
        }
        Function::Nanvl if !nan(&arguments[0]) => Arc::clone(&arguments[0]),
        _ => data::array(data_type, &[LiteralValue::Null]),
    }
}

/// Days or nanoseconds of a string by a format: an instant, else a local time, else a date.
fn by_format(function: Function, text: &str, format: &str) -> Option<i64> {
    let mut parsed = Parsed::new();
    parse(&mut parsed, text, StrftimeItems::new(format)).ok()?;
    let midnight = |date: NaiveDate| date.and_time(NaiveTime::MIN);
    let timestamp = match parsed.to_datetime() {
        Ok(instant) => instant.to_utc(),
        Err(_) => parsed.to_naive_datetime_with_offset(0).or_else(|_| parsed.to_naive_date().map(midnight)).ok()?.and_utc(),
    };
    match function {
        Function::ToDate => Some(timestamp.timestamp_millis().div_euclid(86_400_000)),
        _ => timestamp.timestamp_nanos_opt(),
    }
}

/// The greatest or least argument in arrow-rs' sort order.
fn extreme(function: Function, arguments: &[ArrayRef]) -> ArrayRef {
    let mut kept = Arc::clone(&arguments[0]);
    for other in &arguments[1..] {
        let keeps = if function == Function::Greatest { cmp::gt_eq(&kept, other) } else { cmp::lt_eq(&kept, other) };
        if !keeps.unwrap().value(0) {
            kept = Arc::clone(other);
        }
    }
    kept
}

/// Functions of numbers; integers of any width compute in 128 bits.
fn number_function(function: Function, arguments: &[ArrayRef], data_type: &DataType) -> Option<LiteralValue> {
    let row: Vec<LiteralValue> = arguments.iter().map(|argument| values(argument).remove(0)).collect();
    let decimal_places = match row.get(1) {
        Some(LiteralValue::Int(decimal_places)) => Some(*decimal_places as i64),
        _ => None,
    };
    let to = decimal_places.unwrap_or(0);
    match (&row[0], arguments[0].data_type()) {
        (LiteralValue::Float(value), DataType::Float32) => {
            let value = *value as f32;
            let result = match (function, decimal_places) {
                (Function::Abs, _) => value.abs(),
                (Function::Floor, _) => value.floor(),
                (Function::Ceil, _) => value.ceil(),
                (Function::Trunc, None) => {
                    if value == 0.0 {
                        0.0
                    } else {
                        value.trunc()
                    }
                }
                (Function::Trunc, Some(_)) => (value * 10f32.powi(to as i32)).trunc() / 10f32.powi(to as i32),
                (Function::Round, _) => (value * 10f64.powi(to as i32) as f32).round() / 10f64.powi(to as i32) as f32,
                (Function::Sqrt, _) if value < 0.0 => return None,
                (Function::Sqrt, _) => value.sqrt(),
                (Function::Signum, _) => {
                    if value == 0.0 {
                        0.0
                    } else {
                        value.signum()
                    }
                }
                (Function::Degrees, _) => value.to_degrees(),
                (Function::Radians, _) => value.to_radians(),
                (Function::IsNan, _) => return Some(LiteralValue::Bool(value.is_nan())),
                (Function::IsZero, _) => return Some(LiteralValue::Bool(value == 0.0)),
                (Function::Nanvl, _) => return Some(row[usize::from(value.is_nan())].clone()),
                other => panic!("{other:?} of a float"),
            };
            Some(LiteralValue::Float(result.into()))
        }
        (LiteralValue::Float(value), _) => {
            let value = *value;
            let result = match (function, decimal_places) {
                (Function::Abs, _) => value.abs(),
                (Function::Floor, _) => value.floor(),
                (Function::Ceil, _) => value.ceil(),
                (Function::Trunc, None) => {
                    if value == 0.0 {
                        0.0
                    } else {
                        value.trunc()
                    }
                }
                (Function::Trunc, Some(_)) => (value * 10f64.powi(to as i32)).trunc() / 10f64.powi(to as i32),
                (Function::Round, _) => (value * 10f64.powi(to as i32)).round() / 10f64.powi(to as i32),
                (Function::Sqrt, _) if value < 0.0 => return None,
                (Function::Sqrt, _) => value.sqrt(),
                (Function::Signum, _) => {
                    if value == 0.0 {
                        0.0
                    } else {
                        value.signum()
                    }
                }
                (Function::Degrees, _) => value.to_degrees(),
                (Function::Radians, _) => value.to_radians(),
                (Function::IsNan, _) => return Some(LiteralValue::Bool(value.is_nan())),
                (Function::IsZero, _) => return Some(LiteralValue::Bool(value == 0.0)),
                (Function::Nanvl, _) => return Some(row[usize::from(value.is_nan())].clone()),
                other => panic!("{other:?} of a float"),
            };
            Some(LiteralValue::Float(result))
        }
        (LiteralValue::Int(value), from) => integer_function(function, *value, row.get(1), from, data_type),
        other => panic!("{other:?} is no number"),
    }
}

fn integer_function(
    function: Function,
    value: i128,
    other: Option<&LiteralValue>,
    from: &DataType,
    data_type: &DataType,
) -> Option<LiteralValue> {
    let native = CType::native(data_type)?.range().filter(|_| *data_type != DataType::Boolean);
    let held =
        |result: i128| native.is_none_or(|(least, most)| least <= result && result <= most).then_some(LiteralValue::Int(result));
    let other = match other {
        Some(LiteralValue::Int(other)) => *other,
        _ => 0,
    };
    let ten = |power: i64| 10i128.checked_pow(u32::try_from(power).unwrap());
    let gcd = |mut a: i128, mut b: i128| {
        while b != 0 {
            (a, b) = (b, a % b);
        }
        a.abs()
    };
    // Half away from zero.
    let round = |value: i128, factor: i128| {
        let (quotient, rest) = (value / factor, value % factor);
        quotient + i128::from(rest >= factor / 2) - i128::from(rest <= -(factor / 2))
    };
    if !from.is_decimal() {
        return match function {
            Function::Abs => held(value.abs()),
            Function::Round if other >= 0 => Some(LiteralValue::Int(value)),
            Function::Round => match ten(-other as i64).filter(|factor| held(*factor).is_some()) {
                Some(factor) => held(round(value, factor) * factor),
                None => Some(LiteralValue::Int(0)),
            },
            Function::Gcd => held(gcd(value, other)),
            Function::Lcm if value == 0 || other == 0 => held(0),
            Function::Lcm => held((value / gcd(value, other)).checked_mul(other)?.abs()),
            Function::Factorial => (0..=20).contains(&value).then(|| LiteralValue::Int((1..=value).product())),
            Function::IsNan => Some(LiteralValue::Bool(false)),
            Function::IsZero => Some(LiteralValue::Bool(value == 0)),
            other => panic!("{other:?} of an integer"),
        };
    }
    let (precision, scale) = precision_scale(from);
    let (out_precision, out_scale) = if data_type.is_decimal() { precision_scale(data_type) } else { (precision, scale) };
    let most = if CType::native(from) == Some(CType::I256) {
        76
    } else if CType::native(from) == Some(CType::I128) {
        38
    } else if CType::native(from) == Some(CType::I64) {
        18
    } else {
        9
    };
    let valid =
        |result: i128, precision: u8| (result.unsigned_abs() < 10u128.pow(precision.into())).then_some(LiteralValue::Int(result));
    let dropped = i64::from(scale) - other as i64;
    match function {
        Function::Abs => Some(LiteralValue::Int(if held(value.wrapping_abs()).is_some() { value.wrapping_abs() } else { value })),
        Function::IsNan => Some(LiteralValue::Bool(false)),
        Function::IsZero => Some(LiteralValue::Bool(value == 0)),
        Function::Floor | Function::Ceil if scale <= 0 => Some(LiteralValue::Int(value)),
        Function::Floor => valid(value.div_euclid(ten(scale.into())?).checked_mul(ten(scale.into())?)?, precision),
        Function::Ceil => {
            let factor = ten(scale.into())?;
            let rest = value % factor;
            valid(if rest > 0 { (value - rest).checked_add(factor)? } else { value - rest }, precision)
        }
        Function::Trunc if dropped <= 0 => Some(LiteralValue::Int(value)),
        Function::Trunc if dropped >= most => Some(LiteralValue::Int(0)),
        Function::Trunc => Some(LiteralValue::Int(value / ten(dropped)? * ten(dropped)?)),
        Function::Round if dropped <= 0 => Some(LiteralValue::Int(value)),
        Function::Round if other < 0 && -other > i128::from(precision) - i128::from(scale) => Some(LiteralValue::Int(0)),
        Function::Round => {
            let rounded = round(value, ten(dropped)?).checked_mul(ten(i64::from(out_scale) - other as i64)?)?;
            held(rounded)?;
            // A constant number of digits lowers the scale.
            let checks = i64::from(out_precision) == most && out_scale == scale;
            if checks { valid(rounded, out_precision) } else { Some(LiteralValue::Int(rounded)) }
        }
        other => panic!("{other:?} of a decimal"),
    }
}

/// `date_part` by arrow-rs, combined as in DataFusion.
fn date_part(part: DatePart, timestamp: &ArrayRef) -> ArrayRef {
    use compute::DatePart as Part;
    let dates = matches!(timestamp.data_type(), DataType::Date32 | DataType::Date64);
    let of = |part| compute::date_part(timestamp, part).unwrap();
    let seconds_with = |per_second: i64| -> ArrayRef {
        let data_type = if per_second == 1_000_000_000 { DataType::Int64 } else { DataType::Int32 };
        if dates {
            return data::array(&data_type, &[LiteralValue::Int(0)]);
        }
        let (seconds, nanos) = (values(&of(Part::Second)).remove(0), values(&of(Part::Nanosecond)).remove(0));
        let value = match (seconds, nanos) {
            (LiteralValue::Int(seconds), LiteralValue::Int(nanos)) => {
                LiteralValue::Int(seconds * i128::from(per_second) + nanos / i128::from(1_000_000_000 / per_second))
            }
            _ => LiteralValue::Null,
        };
        data::array(&data_type, &[value])
    };
    match part {
        DatePart::Year => of(Part::Year),
        DatePart::IsoYear => of(Part::YearISO),
        DatePart::Quarter => of(Part::Quarter),
        DatePart::Month => of(Part::Month),
        DatePart::Week => of(Part::Week),
        DatePart::Day => of(Part::Day),
        DatePart::DayOfWeek => of(Part::DayOfWeekSunday0),
        DatePart::IsoDayOfWeek => of(Part::DayOfWeekMonday1),
        DatePart::DayOfYear => of(Part::DayOfYear),
        DatePart::Hour => of(Part::Hour),
        DatePart::Minute => of(Part::Minute),
        DatePart::Second => of(Part::Second),
        DatePart::Millisecond => seconds_with(1_000),
        DatePart::Microsecond => seconds_with(1_000_000),
        DatePart::Nanosecond => seconds_with(1_000_000_000),
        DatePart::Epoch => {
            let ticks = match values(timestamp).remove(0) {
                LiteralValue::Int(ticks) => ticks as i64 as f64,
                other => panic!("{other:?} is no date or time"),
            };
            let value = match timestamp.data_type() {
                DataType::Date32 => ticks * 86_400.0,
                DataType::Date64 => ticks / 1_000.0,
                DataType::Timestamp(unit, _) | DataType::Time32(unit) | DataType::Time64(unit) => match unit {
                    TimeUnit::Second => ticks,
                    TimeUnit::Millisecond => ticks / 1e3,
                    TimeUnit::Microsecond => ticks / 1e6,
                    TimeUnit::Nanosecond => ticks / 1e9,
                },
                other => panic!("{other} is no date or time"),
            };
            data::array(&DataType::Float64, &[LiteralValue::Float(value)])
        }
    }
}

/// Decimals of 256 bits rounded to a lower scale.
fn wide_rounded(function: Function, value: i256, to: i64, data_type: &DataType, out: &DataType) -> Option<i256> {
    let ((precision, scale), (out_precision, out_scale)) = (data::precision_scale(data_type), data::precision_scale(out));
    let ten = |power: i64| i256::from_i128(10).checked_pow(u32::try_from(power).ok()?);
    let valid = |value: i256, precision: u8| Some(value).filter(|value| value.wrapping_abs() < ten(precision.into()).unwrap());
    let floor = |value: i256, unit: i256| {
        let below = if value % unit < i256::ZERO { i256::ONE } else { i256::ZERO };
        (value / unit).wrapping_sub(below).wrapping_mul(unit)
    };
    let dropped = i64::from(scale) - to;
    match function {
        Function::Floor | Function::Ceil if scale <= 0 => Some(value),
        Function::Floor => valid(floor(value, ten(scale.into())?), precision),
        Function::Ceil => valid(floor(value.wrapping_neg(), ten(scale.into())?).wrapping_neg(), precision),
        _ if dropped <= 0 => Some(value),
        Function::Trunc => Some(if dropped >= 76 { i256::ZERO } else { value / ten(dropped)? * ten(dropped)? }),
        _ if to < 0 && -to > i64::from(precision) - i64::from(scale) => Some(i256::ZERO),
        _ => {
            let unit = ten(dropped)?;
            let (half, rest) = (unit / i256::from_i128(2), value % unit);
            let away = i256::from_i128(i128::from(rest >= half) - i128::from(rest <= half.wrapping_neg()));
            let rounded = (value / unit).checked_add(away)?.checked_mul(ten(i64::from(out_scale) - to)?)?;
            if out_precision == 76 && out_scale == scale { valid(rounded, 76) } else { Some(rounded) }
        }
    }
}
