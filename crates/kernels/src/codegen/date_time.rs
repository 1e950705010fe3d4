// SPDX-License-Identifier: Apache-2.0
//! `date_trunc`, `date_bin` and the addition of intervals, with the meaning of DataFusion and
//! arrow-arith.

use arrow::datatypes::{DataType, TimeUnit};

use super::call::refuse_call;
use super::cast::outside;
use super::row::RowWriter;
use super::temporal::per_second;
use super::temporal_cast::DAY_SECONDS;
use super::value::{CType, Value};
use super::zone::Zone;
use crate::Result;
use crate::function::{DateTimeFunction, Function, Granularity};
use crate::prelude::Section;

const NANOS: i64 = 1_000_000_000;

impl RowWriter<'_> {
    pub(super) fn date_time_call(
        &mut self,
        of: DateTimeFunction,
        function: Function,
        arguments: &[Value],
        data_type: &DataType,
    ) -> Result<Value> {
        use DateTimeFunction::{AddInterval, DateBin, DatePart, DateTrunc, IntervalField};
        match (of, function, arguments) {
            (DatePart, Function::DatePart(part), [timestamp]) => self.date_part(part, timestamp, data_type),
            (IntervalField, Function::IntervalField(field), [interval]) => self.interval_field(field, interval),
            (DateTrunc, Function::DateTrunc(granularity), [timestamp]) => self.date_trunc(granularity, timestamp, data_type),
            (DateBin, Function::DateBin { months }, [timestamp, stride, origin]) => {
                self.date_bin(months, timestamp, stride, origin, data_type)
            }
            (AddInterval, Function::AddInterval { checked }, [timestamp, months, days, nanos]) => {
                self.add_interval(timestamp, [months, days, nanos], data_type, checked)
            }
            (DatePart | DateTrunc | DateBin | IntervalField | AddInterval, _, _) => refuse_call(function, arguments),
        }
    }

    /// `date_trunc` in the local time of the timestamp's zone.
    fn date_trunc(&mut self, granularity: Granularity, timestamp: &Value, data_type: &DataType) -> Result<Value> {
        use DataType::{Time32, Time64, Timestamp};
        let refuse = || refuse_call(Function::DateTrunc(granularity), std::slice::from_ref(timestamp));
        let (unit, zone, is_time) = match &timestamp.data_type {
            Timestamp(unit, zone) => (unit, zone, false),
            Time32(unit) | Time64(unit) => (unit, &None, true),
            _ => return refuse(),
        };
        if timestamp.data_type != *data_type || (is_time && granularity >= Granularity::Day) {
            return refuse();
        }
        let per = per_second(unit);
        let uniform = granularity < Granularity::Hour || (zone.is_none() && granularity <= Granularity::Day);
        let code = &timestamp.code;
        if uniform {
            let unit_ticks = match granularity {
                Granularity::Microsecond => per / 1_000_000,
                Granularity::Millisecond => per / 1_000,
                Granularity::Second => per,
                Granularity::Minute => 60 * per,
                Granularity::Hour => 3_600 * per,
                Granularity::Day | Granularity::Week | Granularity::Month | Granularity::Quarter | Granularity::Year => {
                    DAY_SECONDS * per
                }
            };
            return Ok(self.truncated_ticks(timestamp, unit_ticks, is_time));
        }
        // DataFusion computes in nanoseconds, so that values beyond their range fail.
        let nanos = NANOS / per;
        self.fails_outside(timestamp, (i64::MIN / nanos, i64::MAX / nanos), &timestamp.valid);
        let seconds = self.floor_div(code, per);
        let zone = Zone::of(zone.as_deref())?;
        let offset = self.offset_at(&zone, &seconds)?;
        let local = self.local(CType::I64, &format!("{seconds} + {offset}"));
        let first = if granularity == Granularity::Hour {
            let hours = self.floor_div(&local, 3_600);
            format!("{hours} * 3600")
        } else {
            self.params.need(Section::Truncate);
            let day = self.floor_div(&local, DAY_SECONDS);
            let first = match granularity {
                Granularity::Week => "first_of_week",
                Granularity::Month => "first_of_month",
                Granularity::Quarter => "first_of_quarter",
                Granularity::Year => "first_of_year",
                Granularity::Microsecond
                | Granularity::Millisecond
                | Granularity::Second
                | Granularity::Minute
                | Granularity::Hour
                | Granularity::Day => "first_of_day",
            };
            format!("{first}({day}) * {DAY_SECONDS}")
        };
        let first = self.local(CType::I64, &first);
        let (instant, none) = self.instant_of_local(&zone, &first, &offset)?;
        let last = i64::MAX / NANOS;
        let beyond = format!("(({instant} < {}) | ({instant} > {last}))", -last);
        let failing: Vec<&str> = none.as_deref().into_iter().chain([beyond.as_str()]).collect();
        self.fail_where(&failing, &timestamp.valid);
        let code = self.local(CType::I64, &format!("(i64)((u64){instant} * (u64){per})"));
        Ok(Value { code, bounds: None, ..timestamp.clone() })
    }

    /// Ticks rounded down to a multiple of `unit` ticks.
    fn truncated_ticks(&mut self, timestamp: &Value, unit: i64, is_time: bool) -> Value {
        if unit <= 1 {
            return timestamp.clone();
        }
        let code = &timestamp.code;
        let rest = self.local(CType::I64, &format!("(i64){code} % {unit}"));
        // As in DataFusion, an invalid negative time of day rounds up.
        let rest = if is_time { rest } else { format!("({rest} + ({rest} < 0 ? {unit} : 0))") };
        let code = self.local(timestamp.ctype, &format!("({})((u64){code} - (u64){rest})", timestamp.ctype.name()));
        Value { code, bounds: None, ..timestamp.clone() }
    }

    /// `date_bin`; NULL where the nanoseconds of the timestamp or of the bin exceed 64 bits.
    fn date_bin(
        &mut self,
        months: bool,
        timestamp: &Value,
        stride: &Value,
        origin: &Value,
        data_type: &DataType,
    ) -> Result<Value> {
        use DataType::{Int64, Time32, Time64, Timestamp};
        let arguments = || [timestamp.clone(), stride.clone(), origin.clone()];
        let (unit, is_time) = match &timestamp.data_type {
            Timestamp(unit, _) => (unit, false),
            Time32(unit) | Time64(unit) => (unit, true),
            _ => return refuse_call(Function::DateBin { months }, &arguments()),
        };
        if timestamp.data_type != *data_type || stride.data_type != Int64 || origin.data_type != Int64 {
            return refuse_call(Function::DateBin { months }, &arguments());
        }
        let valid = self.all_valid(&arguments());
        self.params.need(Section::Interval);
        self.costly();
        let scale = NANOS / per_second(unit);
        let outside = outside(timestamp, ((i64::MIN / scale).into(), (i64::MAX / scale).into()));
        let ok = self.flag("0");
        let function = if months { "date_bin_months" } else { "date_bin" };
        let nanos = format!("(i64)((u64)(i64){} * (u64){scale})", timestamp.code);
        let bin = self.local(CType::I64, &format!("{function}({nanos}, {}, {}, &{ok})", stride.code, origin.code));
        let code = match is_time {
            true => format!("({})(({bin} % DAY_NANOS) / {scale})", timestamp.ctype.name()),
            false => format!("{bin} / {scale}"),
        };
        let code = self.local(timestamp.ctype, &code);
        let valid = self.fail_or_null(valid, &[vec![format!("!{ok}")], outside].concat(), false);
        Ok(Value { code, valid, bounds: None, ..timestamp.clone() })
    }

    /// The timestamp plus months, then days, then nanoseconds. Months and days count in local time.
    fn add_interval(&mut self, timestamp: &Value, interval: [&Value; 3], data_type: &DataType, checked: bool) -> Result<Value> {
        use DataType::{Date32, Date64, Int64, Time32, Time64, Timestamp};
        let arguments: Vec<Value> = [timestamp].into_iter().chain(interval).cloned().collect();
        let [months, days, nanos] = interval.map(|field| field.code.as_str());
        if timestamp.data_type != *data_type || interval.iter().any(|field| field.data_type != Int64) {
            return refuse_call(Function::AddInterval { checked }, &arguments);
        }
        let valid = self.all_valid(&arguments);
        self.params.need(Section::Interval);
        self.costly();
        let (ctype, code) = (timestamp.ctype, &timestamp.code);
        let made = |code, valid| Value { code, valid, bounds: None, ..timestamp.clone() };
        match &timestamp.data_type {
            Timestamp(unit, zone) => {
                let (ticks, ok) = self.add_to_timestamp(code, unit, &Zone::of(zone.as_deref())?, [months, days, nanos])?;
                let valid = self.fail_or_null(valid, &[format!("!{ok}")], checked);
                Ok(made(self.local(CType::I64, &ticks), valid))
            }
            Date32 | Date64 => {
                let ticks = if timestamp.data_type == Date32 { 1 } else { 1_000 * DAY_SECONDS };
                let ok = self.flag("0");
                let call = format!("add_to_day((i64){code} / {ticks}, {months}, {days}, {nanos}, &{ok})");
                let day = self.local(CType::I64, &call);
                let valid = self.fail_or_null(valid, &[format!("!{ok}")], checked);
                let code = self.local(ctype, &format!("({})({day} * {ticks})", ctype.name()));
                Ok(made(code, valid))
            }
            Time32(unit) | Time64(unit) => {
                let call = format!("({})add_to_time({code}, {nanos}, {})", ctype.name(), NANOS / per_second(unit));
                let code = self.local(ctype, &call);
                Ok(made(code, valid))
            }
            _ => refuse_call(Function::AddInterval { checked }, &arguments),
        }
    }

    /// C of the ticks of a timestamp plus an interval, and a flag: whether the calendar has them.
    fn add_to_timestamp(
        &mut self,
        code: &str,
        unit: &TimeUnit,
        zone: &Zone,
        [months, days, nanos]: [&str; 3],
    ) -> Result<(String, String)> {
        let per = per_second(unit);
        let seconds = self.floor_div(code, per);
        let ok = self.flag(&format!("is_second({seconds})"));
        let offset = self.offset_at(zone, &seconds)?;
        let local = self.local(CType::I64, &format!("{seconds} + {offset}"));
        let month = self.local(CType::I64, &format!("add_months_to_second({local}, {months}, &{ok})"));
        let day = self.local(CType::I64, &format!("{month} + {days} * {DAY_SECONDS}"));
        self.push(&format!("{ok} &= ({days} == 0) | is_second({day});"));
        let shifted = match zone {
            Zone::Fixed(_) => format!("{day} - {offset}"),
            // Each step must give a local time that is neither skipped nor repeated.
            Zone::Rules(_) => {
                let (of_month, none_of_month) = self.offset_of_local(zone, &month)?;
                let (of_day, none_of_day) = self.offset_of_local(zone, &day)?;
                for (amount, none) in [(months, none_of_month), (days, none_of_day)] {
                    if let Some(none) = none {
                        self.push(&format!("{ok} &= ({amount} == 0) | !{none};"));
                    }
                }
                format!("{days} ? {day} - {of_day} : {months} ? {month} - {of_month} : {seconds}")
            }
        };
        let shifted = self.local(CType::I64, &shifted);
        self.push(&format!("{ok} &= is_second({shifted});"));
        // Whole seconds, and nanoseconds of 0 or more.
        let whole = self.floor_div(nanos, NANOS);
        let rest = format!("({code} - {seconds} * {per}) * {} + ({nanos} - {whole} * {NANOS})", NANOS / per);
        let rest = self.local(CType::I64, &rest);
        let carry = self.flag(&format!("{rest} >= {NANOS}"));
        let second = self.local(CType::I64, &format!("{shifted} + {whole} + {carry}"));
        self.push(&format!("{ok} &= is_second({second});"));
        let rest = self.local(CType::I64, &format!("({rest} - {carry} * (i64){NANOS}) / {}", NANOS / per));
        if *unit == TimeUnit::Nanosecond {
            // The calendar exceeds 64 bits of nanoseconds.
            self.params.need(Section::I128);
            let wide = self.local(CType::I128, &format!("i128_add(i128_mul64({second}, {per}), i128_of({rest}))"));
            self.push(&format!("{ok} &= i128_fits({wide});"));
        }
        let ticks = format!("(i64)((u64){second} * (u64){per} + (u64){rest})");
        Ok((ticks, ok))
    }
}
