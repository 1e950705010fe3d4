// SPDX-License-Identifier: Apache-2.0
//! Functions of dates, times and timestamps.

use arrow::datatypes::{DataType, TimeUnit};
use chrono::{DateTime, Datelike};

use super::call::refuse_call;
use super::cast::DAY_SECONDS;
use super::row::RowWriter;
use super::temporal::per_second;
use super::value::{CType, Value};
use crate::Result;
use crate::function::{DatePart, Function};
use crate::prelude::Section;

impl RowWriter<'_> {
    /// A part of a moment, in its zone. What lies outside of the calendar, or of a day, has none: NULL.
    pub(super) fn date_part(&mut self, part: DatePart, moment: &Value, data_type: &DataType) -> Result<Value> {
        use DataType::*;
        let expected = match part {
            DatePart::Epoch => Float64,
            DatePart::Nanosecond => Int64,
            _ => Int32,
        };
        if let (Interval(_), true) = (&moment.data_type, *data_type == expected) {
            return self.interval_part(part, moment, data_type);
        }
        if let (Duration(unit), true) = (&moment.data_type, *data_type == expected) {
            return self.duration_part(part, moment, per_second(unit), data_type);
        }
        let Some(moment_per_second) = ticks_per_second(&moment.data_type).filter(|_| *data_type == expected) else {
            return refuse_call(Function::DatePart(part), std::slice::from_ref(moment));
        };
        let made = |ctype, code, valid, bounds| Value { data_type: expected.clone(), ctype, code, valid, bounds };
        if part == DatePart::Epoch {
            self.params.need(Section::Float);
            let ticks = format!("(f64){}", moment.code);
            let code = match (&moment.data_type, moment_per_second) {
                (Date32, _) => format!("f64_mul({ticks}, 86400.0)"),
                (_, 1) => ticks,
                (_, per) => format!("f64_div({ticks}, {per}.0)"),
            };
            let code = self.local(CType::F64, &code);
            return Ok(made(CType::F64, code, moment.valid.clone(), None));
        }
        // Dates have no time, but for the hours, minutes and seconds that a Date64 may have.
        let fraction = matches!(part, DatePart::Millisecond | DatePart::Microsecond | DatePart::Nanosecond);
        let of_time = fraction || matches!(part, DatePart::Hour | DatePart::Minute | DatePart::Second);
        let ctype = CType::native(&expected).unwrap_or(CType::I32);
        if (moment.data_type == Date32 && of_time) || (moment.data_type == Date64 && fraction) {
            let code = self.local(ctype, "0");
            return Ok(made(ctype, code, moment.valid.clone(), Some((0, 0))));
        }
        let (day, ticks, valid, days) = match &moment.data_type {
            Time32(_) | Time64(_) if !of_time => return refuse_call(Function::DatePart(part), std::slice::from_ref(moment)),
            Time32(_) | Time64(_) => {
                let most = DAY_SECONDS * moment_per_second - 1;
                let outside = super::cast::outside(moment, (0, most.into()));
                let valid = self.fail_or_null(moment.valid.clone(), &outside, false);
                ("0".into(), moment.to_ctype(CType::I64), valid, None)
            }
            Date32 => {
                let day = Value { ctype: CType::I64, code: moment.to_ctype(CType::I64), ..moment.clone() };
                let seconds = Value { code: format!("({} * {DAY_SECONDS})", day.code), bounds: None, ..day.clone() };
                let valid = match moment.bounds {
                    Some(bounds) if year_bounds(bounds).is_some() => moment.valid.clone(),
                    _ => self.in_calendar(&seconds, &TimeUnit::Second, false).or(moment.valid.clone()),
                };
                (day.code, "0".into(), valid, moment.bounds)
            }
            other => {
                let (unit, zone) = match other {
                    Timestamp(unit, zone) => (*unit, zone.as_deref()),
                    _ => (TimeUnit::Millisecond, None),
                };
                let valid = self.in_calendar(moment, &unit, false);
                let (day, ticks) = self.local_days(moment, &unit, zone)?;
                // Local time is less than a day from UTC.
                let per_day = i128::from(DAY_SECONDS * moment_per_second);
                let days = moment.bounds.map(|(low, high)| (low.div_euclid(per_day) - 1, high.div_euclid(per_day) + 1));
                (day, ticks, valid, days)
            }
        };
        let seconds =
            |ticks: &str| if moment_per_second == 1 { ticks.into() } else { format!("({ticks} / {moment_per_second})") };
        let per = |part_per_second: i64, ticks: &str| -> String {
            let of_minute = format!("({ticks} % {})", 60 * moment_per_second);
            match part_per_second.cmp(&moment_per_second) {
                std::cmp::Ordering::Less => format!("({of_minute} / {})", moment_per_second / part_per_second),
                _ => format!("({of_minute} * {})", part_per_second / moment_per_second),
            }
        };
        let year_bounds = || days.and_then(year_bounds);
        let (code, bounds) = match part {
            DatePart::Year => (format!("date_year({day})"), year_bounds()),
            DatePart::IsoYear => (format!("date_isoyear({day})"), year_bounds().map(|(low, high)| (low - 1, high + 1))),
            DatePart::Quarter => (format!("date_quarter({day})"), Some((1, 4))),
            DatePart::Month => (format!("date_month({day})"), Some((1, 12))),
            DatePart::Week => (format!("date_week({day})"), Some((1, 53))),
            DatePart::Day => (format!("date_day({day})"), Some((1, 31))),
            DatePart::DayOfWeek => (format!("date_dow({day})"), Some((0, 6))),
            DatePart::IsoDayOfWeek => (format!("date_isodow({day})"), Some((1, 7))),
            DatePart::DayOfYear => (format!("date_doy({day})"), Some((1, 366))),
            DatePart::Hour => (format!("{} / 3600", seconds(&ticks)), Some((0, 23))),
            DatePart::Minute => (format!("{} / 60 % 60", seconds(&ticks)), Some((0, 59))),
            DatePart::Second => (format!("{} % 60", seconds(&ticks)), Some((0, 59))),
            DatePart::Millisecond => (per(1_000, &ticks), Some((0, 59_999))),
            DatePart::Microsecond => (per(1_000_000, &ticks), Some((0, 59_999_999))),
            DatePart::Nanosecond => (per(1_000_000_000, &ticks), Some((0, 59_999_999_999))),
            DatePart::Epoch => return refuse_call(Function::DatePart(part), std::slice::from_ref(moment)),
        };
        self.params.need(Section::DatePart);
        let code = self.local(ctype, &format!("({})({code})", ctype.name()));
        Ok(made(ctype, code, valid, bounds))
    }
}

/// Ticks of a type in a second; of days 0.
fn ticks_per_second(data_type: &DataType) -> Option<i64> {
    Some(match data_type {
        DataType::Date32 => 0,
        DataType::Date64 => 1_000,
        DataType::Timestamp(unit, _) | DataType::Time32(unit) | DataType::Time64(unit) => per_second(unit),
        _ => return None,
    })
}

/// Least and greatest year of days, where these lie in the calendar.
fn year_bounds((first, last): (i128, i128)) -> Option<(i128, i128)> {
    let year = |day: i128| {
        let second = i64::try_from(day.checked_mul(DAY_SECONDS.into())?).ok()?;
        Some(i128::from(DateTime::from_timestamp(second, 0)?.year()))
    };
    Some((year(first)?, year(last)?))
}
