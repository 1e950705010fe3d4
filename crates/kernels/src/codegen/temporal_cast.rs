// SPDX-License-Identifier: Apache-2.0
//! Casts among dates, times, timestamps, durations and integers, by arrow-cast's rules.

use arrow::datatypes::{DataType, TimeUnit};

use super::arithmetic::within;
use super::cast::{outside, refuse};
use super::row::RowWriter;
use super::temporal::per_second;
use super::value::{CType, Value, literal};
use super::zone::Zone;
use crate::{Error, Result};

/// Seconds per day.
pub(super) const DAY_SECONDS: i64 = 86_400;
const DAY_MILLIS: i64 = 86_400_000;
/// First and last second of chrono's calendar, which arrow-rs uses: -262143-01-01T00:00:00 and
/// 262142-12-31T23:59:59.
const CALENDAR_SECONDS: (i64, i64) = (-8_334_601_228_800, 8_210_266_876_799);

impl RowWriter<'_> {
    pub(super) fn cast_temporal(&mut self, value: Value, to: &DataType, checked: bool) -> Result<Value> {
        use DataType::*;
        let from = value.data_type.clone();
        let same = |value: Value| Ok(Value { data_type: to.clone(), ..value });
        match (&from, to) {
            (Int32, Date32 | Time32(_))
            | (Date32 | Time32(_), Int32)
            | (Int64, Date64 | Time64(_))
            | (Date64 | Time64(_), Int64) => same(value),
            (Int32, Date64) => self.scaled_ticks(value, to, DAY_MILLIS, 1, Overflow::Never),
            (Date32 | Time32(_), Int64) | (Date64, Int32) => {
                let ctype = CType::native(to).unwrap_or(CType::I64);
                self.narrowed(value, to, ctype, checked)
            }
            (Int64, Date32) => self.narrowed(value, to, CType::I32, checked),
            (Date32, Date64) => self.scaled_ticks(value, to, DAY_MILLIS, 1, Overflow::Never),
            (Date64, Date32) => {
                let days = self.scaled_ticks(value, &Int64, 1, DAY_MILLIS, Overflow::Never)?;
                self.narrowed(days, to, CType::I32, checked)
            }
            (Time32(from), Time32(to_unit) | Time64(to_unit)) | (Time64(from), Time32(to_unit) | Time64(to_unit)) => {
                let overflow = if matches!(to, Time32(_)) { Overflow::of(checked) } else { Overflow::Wraps };
                self.scaled_ticks(value, to, per_second(to_unit), per_second(from), overflow)
            }
            (Timestamp(_, _) | Duration(_), _) if to.is_numeric() => {
                let value = Value { data_type: Int64, ..value };
                self.cast_value(value, to, checked)
            }
            (_, Timestamp(_, _) | Duration(_)) if from.is_numeric() => {
                let value = self.cast_value(value, &Int64, checked)?;
                Ok(Value { data_type: to.clone(), ..value })
            }
            (Duration(unit), Interval(_)) => self.duration_to_interval(value, to, unit, checked),
            (Interval(_), Duration(unit)) => Ok(self.interval_to_duration(value, to, unit, checked)),
            (Duration(from), Duration(unit)) => {
                self.scaled_ticks(value, to, per_second(unit), per_second(from), Overflow::of(checked))
            }
            (Timestamp(_, _), Timestamp(_, _) | Date32 | Date64 | Time32(_) | Time64(_)) => {
                self.cast_timestamp(value, to, checked)
            }
            (Date32, Timestamp(unit, zone)) => {
                let value = self.scaled_ticks(value, to, DAY_SECONDS * per_second(unit), 1, Overflow::of(checked))?;
                if zone.is_some() { self.local_to_instant(value, to, checked) } else { Ok(value) }
            }
            (Date64, Timestamp(unit, zone)) => {
                // arrow-cast wraps; DataFusion adds a check to CAST only.
                let overflow = if checked { Overflow::Fails } else { Overflow::Wraps };
                let value = self.scaled_ticks(value, to, per_second(unit), per_second(&TimeUnit::Millisecond), overflow)?;
                if zone.is_some() { self.local_to_instant(value, to, checked) } else { Ok(value) }
            }
            _ => refuse(&from, to),
        }
    }

    /// Casts a timestamp to a timestamp, date or time.
    fn cast_timestamp(&mut self, value: Value, to: &DataType, checked: bool) -> Result<Value> {
        use DataType::*;
        let from = value.data_type.clone();
        match (&from, to) {
            (Timestamp(from, zone), Timestamp(unit, to_zone)) => {
                let value = self.scaled_ticks(value, to, per_second(unit), per_second(from), Overflow::of(checked))?;
                match (zone, to_zone) {
                    (None, Some(_)) => self.local_to_instant(value, to, checked),
                    _ => Ok(value),
                }
            }
            (Timestamp(unit, zone), Date32) => {
                self.in_calendar(&value, unit, true);
                let (days, _) = self.local_days(&value, unit, zone.as_deref())?;
                let code = self.local(CType::I32, &format!("(i32){days}"));
                Ok(Value { data_type: to.clone(), ctype: CType::I32, code, valid: value.valid, bounds: None })
            }
            (Timestamp(unit, _), Date64) => {
                let overflow = if *unit == TimeUnit::Second { Overflow::of(checked) } else { Overflow::Never };
                self.scaled_ticks(value, to, per_second(&TimeUnit::Millisecond), per_second(unit), overflow)
            }
            (Timestamp(unit, zone), Time32(to_unit) | Time64(to_unit)) => {
                self.in_calendar(&value, unit, true);
                let (_, ticks) = self.local_days(&value, unit, zone.as_deref())?;
                let day = i128::from(DAY_SECONDS * per_second(unit));
                let ticks =
                    Value { data_type: Int64, code: ticks, ctype: CType::I64, valid: value.valid, bounds: Some((0, day - 1)) };
                self.scaled_ticks(ticks, to, per_second(to_unit), per_second(unit), Overflow::Never)
            }
            _ => refuse(&from, to),
        }
    }

    /// Ticks converted from `per` to `to_per` ticks per second: a truncating division or a product.
    fn scaled_ticks(&mut self, value: Value, to: &DataType, to_per: i64, per: i64, overflow: Overflow) -> Result<Value> {
        let ctype = CType::native(to).unwrap_or(CType::I64);
        let wide = Value { code: value.to_ctype(CType::I64), ctype: CType::I64, bounds: value.range(), ..value };
        let (code, valid, bounds) = if to_per == per {
            (wide.code.clone(), wide.valid, wide.bounds)
        } else if to_per < per {
            let divisor = i128::from(per / to_per);
            let bounds = wide.range().map(|(low, high)| (low / divisor, high / divisor));
            (format!("{} / {}", wide.code, literal(CType::I64, divisor)), wide.valid, bounds)
        } else {
            let factor = i128::from(to_per / per);
            let (least, most) = ctype.range().unwrap_or_default();
            let valid = match overflow {
                Overflow::Fails | Overflow::Null => {
                    let outside = outside(&wide, (least / factor, most / factor));
                    self.fail_or_null(wide.valid.clone(), &outside, overflow == Overflow::Fails)
                }
                Overflow::Never | Overflow::Wraps => wide.valid.clone(),
            };
            let bounds = wide.range().and_then(|(low, high)| Some((low.checked_mul(factor)?, high.checked_mul(factor)?)));
            (format!("(i64)((u64){} * (u64){factor})", wide.code), valid, bounds)
        };
        let code = self.local(ctype, &format!("({})({code})", ctype.name()));
        let bounds = bounds.filter(|bounds| within(*bounds, ctype));
        Ok(Value { data_type: to.clone(), ctype, code, valid, bounds })
    }

    /// Two locals: the day of a timestamp in local time, and the ticks since midnight.
    pub(super) fn local_days(&mut self, value: &Value, unit: &TimeUnit, zone: Option<&str>) -> Result<(String, String)> {
        let zone = Zone::of(zone)?;
        let per = per_second(unit);
        let (code, ticks_per_day) = (&value.code, DAY_SECONDS * per);
        if matches!(zone, Zone::Fixed(0)) {
            let days = self.floor_div(code, ticks_per_day);
            let ticks = self.local(CType::I64, &format!("{code} - {days} * {}", literal(CType::I64, ticks_per_day.into())));
            return Ok((days, ticks));
        }
        // In seconds, because local ticks may exceed 64 bits.
        let seconds = self.floor_div(code, per);
        let offset = self.offset_at(&zone, &seconds)?;
        let local = self.local(CType::I64, &format!("{seconds} + {offset}"));
        let days = self.floor_div(&local, DAY_SECONDS);
        let ticks = self.local(CType::I64, &format!("({local} - {days} * {DAY_SECONDS}) * {per} + ({code} - {seconds} * {per})"));
        Ok((days, ticks))
    }

    /// A local time as an instant of the target's zone. A skipped or repeated local time fails the
    /// row or is NULL.
    fn local_to_instant(&mut self, value: Value, to: &DataType, checked: bool) -> Result<Value> {
        let DataType::Timestamp(unit, Some(zone)) = to else {
            return Err(Error::Internal("a local time without a zone".into()));
        };
        let zone = Zone::of(Some(zone))?;
        let valid = match self.in_calendar(&value, unit, checked) {
            Some(valid) => Some(valid),
            None => value.valid.clone(),
        };
        if matches!(zone, Zone::Fixed(0)) {
            return Ok(Value { valid, ..value });
        }
        let per = per_second(unit);
        let seconds = self.floor_div(&value.code, per);
        let (offset, none) = self.offset_of_local(&zone, &seconds)?;
        let ticks = self.local(CType::I64, &format!("(i64){offset} * {}", literal(CType::I64, per.into())));
        let local = &value.code;
        let code = self.local(CType::I64, &format!("(i64)((u64){local} - (u64){ticks})"));
        let overflow = format!("((({local} ^ {ticks}) & ({local} ^ {code})) < 0)");
        let failures: Vec<String> = none.into_iter().chain([overflow]).collect();
        let valid = self.fail_or_null(valid, &failures, checked);
        Ok(Value { code, valid, bounds: None, ..value })
    }

    /// Fails rows outside the calendar, or makes them NULL; the validity.
    pub(super) fn in_calendar(&mut self, value: &Value, unit: &TimeUnit, checked: bool) -> Option<String> {
        let per = i128::from(per_second(unit));
        let (first, last) = (i128::from(CALENDAR_SECONDS.0) * per, (i128::from(CALENDAR_SECONDS.1) + 1) * per - 1);
        let outside = outside(value, (first, last));
        self.fail_or_null(value.valid.clone(), &outside, checked)
    }

    /// A local: ticks divided by a positive constant, rounded down.
    pub(super) fn floor_div(&mut self, code: &str, divisor: i64) -> String {
        if divisor == 1 {
            return code.into();
        }
        let d = literal(CType::I64, divisor.into());
        self.local(CType::I64, &format!("{code} / {d} - ({code} % {d} < 0)"))
    }
}

/// Result of a multiplication of ticks that exceeds the type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Overflow {
    /// It cannot happen.
    Never,
    /// It wraps.
    Wraps,
    /// It fails the row.
    Fails,
    /// It is NULL.
    Null,
}

impl Overflow {
    fn of(checked: bool) -> Overflow {
        if checked { Overflow::Fails } else { Overflow::Null }
    }
}
