// SPDX-License-Identifier: Apache-2.0
//! `date_part` of dates, times and timestamps.

use std::cmp::Ordering;

use arrow::datatypes::{DataType, TimeUnit};
use chrono::{DateTime, Datelike};

use super::call::refuse_call;
use super::cast::outside;
use super::row::RowWriter;
use super::temporal::per_second;
use super::temporal_cast::DAY_SECONDS;
use super::value::{CType, Value};
use crate::Result;
use crate::function::{DatePart, Function};
use crate::prelude::Section;

impl RowWriter<'_> {
    /// `date_part` in the local time of the zone; NULL outside of the calendar, or of a day.
    pub(super) fn date_part(&mut self, part: DatePart, timestamp: &Value, data_type: &DataType) -> Result<Value> {
        use DataType::*;
        let expected = match part {
            DatePart::Epoch => Float64,
            DatePart::Nanosecond => Int64,
            _ => Int32,
        };
        if let (Interval(_), true) = (&timestamp.data_type, *data_type == expected) {
            return self.interval_part(part, timestamp, data_type);
        }
        if let (Duration(unit), true) = (&timestamp.data_type, *data_type == expected) {
            return self.duration_part(part, timestamp, per_second(unit), data_type);
        }
        let Some(per) = ticks_per_second(&timestamp.data_type).filter(|_| *data_type == expected) else {
            return refuse_call(Function::DatePart(part), std::slice::from_ref(timestamp));
        };
        if part == DatePart::Epoch {
            return Ok(self.epoch(timestamp, per));
        }
        let made = |ctype, code, valid, bounds| Value { data_type: expected.clone(), ctype, code, valid, bounds };
        // A Date32 has no time; a Date64 may have hours, minutes and seconds.
        let fraction = matches!(part, DatePart::Millisecond | DatePart::Microsecond | DatePart::Nanosecond);
        let of_time = fraction || matches!(part, DatePart::Hour | DatePart::Minute | DatePart::Second);
        let ctype = CType::native(&expected).unwrap_or(CType::I32);
        if (timestamp.data_type == Date32 && of_time) || (timestamp.data_type == Date64 && fraction) {
            let code = self.local(ctype, "0");
            return Ok(made(ctype, code, timestamp.valid.clone(), Some((0, 0))));
        }
        if matches!(timestamp.data_type, Time32(_) | Time64(_)) && !of_time {
            return refuse_call(Function::DatePart(part), std::slice::from_ref(timestamp));
        }
        let LocalTime { day, ticks, valid, days } = self.local_time(timestamp, per)?;
        let Some((code, bounds)) = part_of(part, &day, &ticks, per, days.and_then(year_bounds)) else {
            return refuse_call(Function::DatePart(part), std::slice::from_ref(timestamp));
        };
        self.params.need(Section::DatePart);
        let code = self.local(ctype, &format!("({})({code})", ctype.name()));
        Ok(made(ctype, code, valid, bounds))
    }

    /// Seconds since 1970-01-01 as a float.
    fn epoch(&mut self, timestamp: &Value, per: i64) -> Value {
        self.params.need(Section::Float);
        let ticks = format!("(f64){}", timestamp.code);
        let code = match (&timestamp.data_type, per) {
            (DataType::Date32, _) => format!("f64_mul({ticks}, 86400.0)"),
            (_, 1) => ticks,
            (_, per) => format!("f64_div({ticks}, {per}.0)"),
        };
        let code = self.local(CType::F64, &code);
        Value { data_type: DataType::Float64, ctype: CType::F64, code, valid: timestamp.valid.clone(), bounds: None }
    }

    /// The day and the ticks of the day, in the local time of the zone.
    fn local_time(&mut self, timestamp: &Value, per: i64) -> Result<LocalTime> {
        use DataType::*;
        Ok(match &timestamp.data_type {
            Time32(_) | Time64(_) => {
                let most = DAY_SECONDS * per - 1;
                let outside = outside(timestamp, (0, most.into()));
                let valid = self.fail_or_null(timestamp.valid.clone(), &outside, false);
                LocalTime { day: "0".into(), ticks: timestamp.to_ctype(CType::I64), valid, days: None }
            }
            Date32 => {
                let day = Value { ctype: CType::I64, code: timestamp.to_ctype(CType::I64), ..timestamp.clone() };
                let seconds = Value { code: format!("({} * {DAY_SECONDS})", day.code), bounds: None, ..day.clone() };
                let valid = match timestamp.bounds {
                    Some(bounds) if year_bounds(bounds).is_some() => timestamp.valid.clone(),
                    _ => self.in_calendar(&seconds, &TimeUnit::Second, false).or(timestamp.valid.clone()),
                };
                LocalTime { day: day.code, ticks: "0".into(), valid, days: timestamp.bounds }
            }
            other => {
                let (unit, zone) = match other {
                    Timestamp(unit, zone) => (*unit, zone.as_deref()),
                    _ => (TimeUnit::Millisecond, None),
                };
                let valid = self.in_calendar(timestamp, &unit, false);
                let (day, ticks) = self.local_days(timestamp, &unit, zone)?;
                // Offsets from UTC are less than a day.
                let per_day = i128::from(DAY_SECONDS * per);
                let days = timestamp.bounds.map(|(low, high)| (low.div_euclid(per_day) - 1, high.div_euclid(per_day) + 1));
                LocalTime { day, ticks, valid, days }
            }
        })
    }
}

/// Local time of a timestamp, as C.
struct LocalTime {
    /// Days since 1970-01-01.
    day: String,
    /// Ticks since midnight.
    ticks: String,
    valid: Option<String>,
    /// Bounds of `day`.
    days: Option<(i128, i128)>,
}

/// C of an integer part of a local time, and its bounds; `None` for the epoch.
fn part_of(
    part: DatePart,
    day: &str,
    ticks: &str,
    per_second: i64,
    years: Option<(i128, i128)>,
) -> Option<(String, Option<(i128, i128)>)> {
    let seconds = || if per_second == 1 { ticks.into() } else { format!("({ticks} / {per_second})") };
    let fraction = |part_per_second: i64| -> String {
        let of_minute = format!("({ticks} % {})", 60 * per_second);
        match part_per_second.cmp(&per_second) {
            Ordering::Less => format!("({of_minute} / {})", per_second / part_per_second),
            Ordering::Equal | Ordering::Greater => format!("({of_minute} * {})", part_per_second / per_second),
        }
    };
    Some(match part {
        DatePart::Year => (format!("date_year({day})"), years),
        DatePart::IsoYear => (format!("date_isoyear({day})"), years.map(|(low, high)| (low - 1, high + 1))),
        DatePart::Quarter => (format!("date_quarter({day})"), Some((1, 4))),
        DatePart::Month => (format!("date_month({day})"), Some((1, 12))),
        DatePart::Week => (format!("date_week({day})"), Some((1, 53))),
        DatePart::Day => (format!("date_day({day})"), Some((1, 31))),
        DatePart::DayOfWeek => (format!("date_dow({day})"), Some((0, 6))),
        DatePart::IsoDayOfWeek => (format!("date_isodow({day})"), Some((1, 7))),
        DatePart::DayOfYear => (format!("date_doy({day})"), Some((1, 366))),
        DatePart::Hour => (format!("{} / 3600", seconds()), Some((0, 23))),
        DatePart::Minute => (format!("{} / 60 % 60", seconds()), Some((0, 59))),
        DatePart::Second => (format!("{} % 60", seconds()), Some((0, 59))),
        DatePart::Millisecond => (fraction(1_000), Some((0, 59_999))),
        DatePart::Microsecond => (fraction(1_000_000), Some((0, 59_999_999))),
        DatePart::Nanosecond => (fraction(1_000_000_000), Some((0, 59_999_999_999))),
        DatePart::Epoch => return None,
    })
}

/// Ticks per second of a type; 0 for days.
fn ticks_per_second(data_type: &DataType) -> Option<i64> {
    Some(match data_type {
        DataType::Date32 => 0,
        DataType::Date64 => 1_000,
        DataType::Timestamp(unit, _) | DataType::Time32(unit) | DataType::Time64(unit) => per_second(unit),
        _ => return None,
    })
}

/// Least and greatest year of days, if the calendar has them.
fn year_bounds((first, last): (i128, i128)) -> Option<(i128, i128)> {
    let year = |day: i128| {
        let second = i64::try_from(day.checked_mul(DAY_SECONDS.into())?).ok()?;
        Some(i128::from(DateTime::from_timestamp(second, 0)?.year()))
    };
    Some((year(first)?, year(last)?))
}
