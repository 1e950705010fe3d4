// SPDX-License-Identifier: Apache-2.0
//! Moments rounded down, and moved by intervals, with the meaning of DataFusion's functions and of arrow-arith.

use arrow::datatypes::{DataType, TimeUnit};

use super::call::refuse_call;
use super::cast::{DAY_SECONDS, outside};
use super::row::RowWriter;
use super::temporal::per_second;
use super::value::{CType, Value};
use super::zone::Zone;
use crate::Result;
use crate::function::{Function, Granularity};
use crate::prelude::Section;

const NANOS: i64 = 1_000_000_000;

impl RowWriter<'_> {
    /// The first moment of what a moment lies in, by the clocks of its zone.
    pub(super) fn date_trunc(&mut self, granularity: Granularity, moment: &Value, data_type: &DataType) -> Result<Value> {
        use DataType::{Time32, Time64, Timestamp};
        let refuse = || refuse_call(Function::DateTrunc(granularity), std::slice::from_ref(moment));
        let (unit, zone, is_time) = match &moment.data_type {
            Timestamp(unit, zone) => (unit, zone, false),
            Time32(unit) | Time64(unit) => (unit, &None, true),
            _ => return refuse(),
        };
        if moment.data_type != *data_type || (is_time && granularity >= Granularity::Day) {
            return refuse();
        }
        let per = per_second(unit);
        let uniform = granularity < Granularity::Hour || (zone.is_none() && granularity <= Granularity::Day);
        let code = &moment.code;
        if uniform {
            let ticks = match granularity {
                Granularity::Microsecond => per / 1_000_000,
                Granularity::Millisecond => per / 1_000,
                Granularity::Second => per,
                Granularity::Minute => 60 * per,
                Granularity::Hour => 3_600 * per,
                _ => DAY_SECONDS * per,
            };
            if ticks <= 1 {
                return Ok(moment.clone());
            }
            let rest = self.local(CType::I64, &format!("(i64){code} % {ticks}"));
            // Times before the day began, which none should be, round up.
            let rest = if is_time { rest } else { format!("({rest} + ({rest} < 0 ? {ticks} : 0))") };
            let code = self.local(moment.ctype, &format!("({})((u64){code} - (u64){rest})", moment.ctype.name()));
            return Ok(Value { code, bounds: None, ..moment.clone() });
        }
        // DataFusion computes in nanoseconds.
        let nanos = NANOS / per;
        self.fails_outside(moment, (i64::MIN / nanos, i64::MAX / nanos), &moment.valid);
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
                _ => "first_of_day",
            };
            format!("{first}({day}) * {DAY_SECONDS}")
        };
        let first = self.local(CType::I64, &first);
        let (instant, none) = self.instant_of_local(&zone, &first, &offset)?;
        let last = i64::MAX / NANOS;
        let beyond = format!("(({instant} < {}) | ({instant} > {last}))", -last);
        let failing: Vec<&str> = none.as_deref().into_iter().chain([beyond.as_str()]).collect();
        self.fail_where(&failing, &moment.valid);
        let code = self.local(CType::I64, &format!("(i64)((u64){instant} * (u64){per})"));
        Ok(Value { code, bounds: None, ..moment.clone() })
    }

    /// The bin that a moment lies in. NULL where its nanoseconds, or those of the bin, are more than 64 bits hold.
    pub(super) fn date_bin(
        &mut self,
        months: bool,
        moment: &Value,
        stride: &Value,
        origin: &Value,
        data_type: &DataType,
    ) -> Result<Value> {
        use DataType::{Int64, Time32, Time64, Timestamp};
        let arguments = || [moment.clone(), stride.clone(), origin.clone()];
        let (unit, is_time) = match &moment.data_type {
            Timestamp(unit, _) => (unit, false),
            Time32(unit) | Time64(unit) => (unit, true),
            _ => return refuse_call(Function::DateBin { months }, &arguments()),
        };
        if moment.data_type != *data_type || stride.data_type != Int64 || origin.data_type != Int64 {
            return refuse_call(Function::DateBin { months }, &arguments());
        }
        let valid = self.all_valid(&arguments());
        self.params.need(Section::Interval);
        self.costly();
        let scale = NANOS / per_second(unit);
        let outside = outside(moment, ((i64::MIN / scale).into(), (i64::MAX / scale).into()));
        let ok = self.flag("0");
        let function = if months { "date_bin_months" } else { "date_bin" };
        let nanos = format!("(i64)((u64)(i64){} * (u64){scale})", moment.code);
        let bin = self.local(CType::I64, &format!("{function}({nanos}, {}, {}, &{ok})", stride.code, origin.code));
        let code = match is_time {
            true => format!("({})(({bin} % DAY_NANOS) / {scale})", moment.ctype.name()),
            false => format!("{bin} / {scale}"),
        };
        let code = self.local(moment.ctype, &code);
        let valid = self.fail_or_null(valid, &[vec![format!("!{ok}")], outside].concat(), false);
        Ok(Value { code, valid, bounds: None, ..moment.clone() })
    }

    /// A moment, months, days and nanoseconds later, one after the other. Months and days are those of the moment's clocks.
    pub(super) fn shift(&mut self, moment: &Value, interval: [&Value; 3], data_type: &DataType, checked: bool) -> Result<Value> {
        use DataType::{Date32, Date64, Int64, Time32, Time64, Timestamp};
        let arguments: Vec<Value> = [moment].into_iter().chain(interval).cloned().collect();
        let [months, days, nanos] = interval.map(|part| part.code.as_str());
        if moment.data_type != *data_type || interval.iter().any(|part| part.data_type != Int64) {
            return refuse_call(Function::Shift { checked }, &arguments);
        }
        let valid = self.all_valid(&arguments);
        self.params.need(Section::Interval);
        self.costly();
        let (ctype, code) = (moment.ctype, &moment.code);
        let made = |code, valid| Value { code, valid, bounds: None, ..moment.clone() };
        let (unit, zone) = match &moment.data_type {
            Timestamp(unit, zone) => (unit, Zone::of(zone.as_deref())?),
            Date32 | Date64 => {
                let ticks = if moment.data_type == Date32 { 1 } else { 1_000 * DAY_SECONDS };
                let ok = self.flag("0");
                let call = format!("shift_day((i64){code} / {ticks}, {months}, {days}, {nanos}, &{ok})");
                let day = self.local(CType::I64, &call);
                let valid = self.fail_or_null(valid, &[format!("!{ok}")], checked);
                let code = self.local(ctype, &format!("({})({day} * {ticks})", ctype.name()));
                return Ok(made(code, valid));
            }
            Time32(unit) | Time64(unit) => {
                let call = format!("({})shift_time({code}, {nanos}, {})", ctype.name(), NANOS / per_second(unit));
                let code = self.local(ctype, &call);
                return Ok(made(code, valid));
            }
            _ => return refuse_call(Function::Shift { checked }, &arguments),
        };
        let per = per_second(unit);
        let seconds = self.floor_div(code, per);
        let ok = self.flag(&format!("is_second({seconds})"));
        let offset = self.offset_at(&zone, &seconds)?;
        let local = self.local(CType::I64, &format!("{seconds} + {offset}"));
        let month = self.local(CType::I64, &format!("shift_months({local}, {months}, &{ok})"));
        let day = self.local(CType::I64, &format!("{month} + {days} * {DAY_SECONDS}"));
        self.push(&format!("{ok} &= ({days} == 0) | is_second({day});"));
        let shifted = match zone {
            Zone::Fixed(_) => format!("{day} - {offset}"),
            // Each step must meet a time that the clocks show once.
            Zone::Rules(_) => {
                let (of_month, none_of_month) = self.offset_of_local(&zone, &month)?;
                let (of_day, none_of_day) = self.offset_of_local(&zone, &day)?;
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
        // Whole seconds, and nanoseconds from 0 on.
        let whole = self.floor_div(nanos, NANOS);
        let rest = format!("({code} - {seconds} * {per}) * {} + ({nanos} - {whole} * {NANOS})", NANOS / per);
        let rest = self.local(CType::I64, &rest);
        let carry = self.flag(&format!("{rest} >= {NANOS}"));
        let second = self.local(CType::I64, &format!("{shifted} + {whole} + {carry}"));
        self.push(&format!("{ok} &= is_second({second});"));
        let rest = self.local(CType::I64, &format!("({rest} - {carry} * (i64){NANOS}) / {}", NANOS / per));
        if *unit == TimeUnit::Nanosecond {
            // The calendar is longer than 64 bits of nanoseconds.
            self.params.need(Section::I128);
            let wide = self.local(CType::I128, &format!("i128_add(i128_mul64({second}, {per}), i128_of({rest}))"));
            self.push(&format!("{ok} &= i128_fits({wide});"));
        }
        let valid = self.fail_or_null(valid, &[format!("!{ok}")], checked);
        let code = self.local(CType::I64, &format!("(i64)((u64){second} * (u64){per} + (u64){rest})"));
        Ok(made(code, valid))
    }
}
