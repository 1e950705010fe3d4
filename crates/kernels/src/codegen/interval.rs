// SPDX-License-Identifier: Apache-2.0
//! Intervals as column values, with arrow-arith's meaning.
//!
//! An interval is 128 bits in Arrow's `MonthDayNano` layout. Equal intervals have equal bits, but
//! the bits do not sort as intervals do.

use arrow::datatypes::{DataType, TimeUnit};

use super::call::refuse_call;
use super::row::{RowWriter, unsupported};
use super::temporal::per_second;
use super::value::{CType, Value};
use crate::Result;
use crate::expr::ArithmeticOp;
use crate::function::{DatePart, Function, IntervalField};
use crate::prelude::Section;

/// Nanoseconds per second.
const NANOS: i64 = 1_000_000_000;

impl RowWriter<'_> {
    /// An integer that sorts as the interval does.
    pub(crate) fn interval_sort_key(&mut self, interval: &Value) -> Value {
        self.params.need(Section::IntervalValue);
        let code = self.local(CType::I128, &format!("interval_sort_key({})", interval.code));
        Value { data_type: DataType::Decimal128(38, 0), code, ..interval.clone() }
    }

    /// The inverse of [`interval_sort_key`](Self::interval_sort_key).
    pub(crate) fn interval_of_sort_key(&mut self, key: Value, data_type: &DataType) -> Value {
        self.params.need(Section::IntervalValue);
        let code = self.local(CType::I128, &format!("interval_of_sort_key({})", key.code));
        Value { data_type: data_type.clone(), code, ..key }
    }

    /// `+` or `-`, field by field.
    pub(super) fn interval_sum(&mut self, op: ArithmeticOp, left: &Value, right: &Value) -> Value {
        let valid = self.both_valid(left, right);
        self.interval_call(op, &left.code, &right.code, Value { valid, ..left.clone() })
    }

    pub(super) fn negate_interval(&mut self, interval: &Value) -> Value {
        self.interval_call(ArithmeticOp::Subtract, CType::I128.zero(), &interval.code, interval.clone())
    }

    fn interval_call(&mut self, op: ArithmeticOp, left: &str, right: &str, like: Value) -> Value {
        self.params.need(Section::IntervalValue);
        let name = if op == ArithmeticOp::Add { "interval_add" } else { "interval_sub" };
        let ok = self.flag("0");
        let code = self.local(CType::I128, &format!("{name}({left}, {right}, &{ok})"));
        self.fail_where(&[&format!("!{ok}")], &like.valid);
        Value { code, bounds: None, ..like }
    }

    /// A field as an argument of [`Function::AddInterval`] and of aggregates.
    pub(super) fn interval_field(&mut self, field: IntervalField, interval: &Value) -> Result<Value> {
        if CType::native(&interval.data_type) != Some(CType::I128) || !matches!(interval.data_type, DataType::Interval(_)) {
            return refuse_call(Function::IntervalField(field), std::slice::from_ref(interval));
        }
        self.params.need(Section::IntervalValue);
        let (name, negated) = match field {
            IntervalField::SortKey => return Ok(self.interval_sort_key(interval)),
            IntervalField::Months { negated } => ("months", negated),
            IntervalField::Days { negated } => ("days", negated),
            IntervalField::Nanos { negated } => ("nanos", negated),
        };
        let code = self.local(CType::I64, &format!("interval_{name}({})", interval.code));
        let code = if negated {
            if let IntervalField::Nanos { .. } = field {
                self.fail_where(&[&format!("((u64){code} == (u64)1 << 63)")], &interval.valid);
            }
            self.local(CType::I64, &format!("(i64)((u64)0 - (u64){code})"))
        } else {
            code
        };
        Ok(Value { data_type: DataType::Int64, ctype: CType::I64, code, valid: interval.valid.clone(), bounds: None })
    }

    /// `date_part` of an interval. Each part but the epoch comes from one field.
    pub(super) fn interval_part(&mut self, part: DatePart, interval: &Value, data_type: &DataType) -> Result<Value> {
        let v = &interval.code;
        let (nanos, second) = (format!("interval_nanos({v})"), format!("(interval_nanos({v}) / {NANOS} % 60)"));
        let fraction = |per: i64| format!("{second} * {per} + interval_fraction({v}) % {NANOS} / {}", NANOS / per);
        let code = match part {
            DatePart::Year => format!("interval_months({v}) / 12"),
            DatePart::Month => format!("interval_months({v}) % 12"),
            DatePart::Week => format!("interval_days({v}) / 7"),
            DatePart::Day => format!("interval_days({v})"),
            DatePart::Hour => format!("{nanos} / {}", 3_600 * NANOS),
            DatePart::Minute => format!("{nanos} / {} % 60", 60 * NANOS),
            DatePart::Second => second,
            DatePart::Millisecond => fraction(1_000),
            DatePart::Microsecond => fraction(1_000_000),
            DatePart::Nanosecond => format!("{second} * {NANOS} + interval_fraction({v})"),
            DatePart::Epoch => format!("interval_seconds({v})"),
            DatePart::IsoYear | DatePart::Quarter | DatePart::DayOfWeek | DatePart::IsoDayOfWeek | DatePart::DayOfYear => {
                return refuse_call(Function::DatePart(part), std::slice::from_ref(interval));
            }
        };
        self.params.need(Section::IntervalValue);
        let ctype = CType::native(data_type).unwrap_or(CType::I32);
        let code = self.local(ctype, &format!("({})({code})", ctype.name()));
        Ok(Value { data_type: data_type.clone(), ctype, code, valid: interval.valid.clone(), bounds: None })
    }

    /// `date_part` of a duration: its whole weeks, days, hours, minutes or seconds. As in
    /// DataFusion, a result beyond 32 bits is NULL, and nanoseconds beyond 32 bits count as 0.
    pub(super) fn duration_part(&mut self, part: DatePart, value: &Value, per: i64, data_type: &DataType) -> Result<Value> {
        let seconds = match part {
            DatePart::Week => 7 * 86_400,
            DatePart::Day => 86_400,
            DatePart::Hour => 3_600,
            DatePart::Minute => 60,
            DatePart::Second | DatePart::Nanosecond | DatePart::Epoch => 1,
            DatePart::Year
            | DatePart::IsoYear
            | DatePart::Quarter
            | DatePart::Month
            | DatePart::DayOfWeek
            | DatePart::IsoDayOfWeek
            | DatePart::DayOfYear
            | DatePart::Millisecond
            | DatePart::Microsecond => return refuse_call(Function::DatePart(part), std::slice::from_ref(value)),
        };
        let whole = self.local(CType::I64, &format!("{} / {}", value.code, seconds * per));
        let valid = self.fail_or_null(value.valid.clone(), &[format!("({whole} != (i32){whole})")], false);
        let ctype = CType::native(data_type).unwrap_or(CType::I32);
        let code = if matches!(part, DatePart::Nanosecond | DatePart::Epoch) {
            let (ticks, tick) = (&value.code, NANOS / per);
            // Range of 32-bit nanoseconds.
            let most = i64::from(i32::MAX) / tick;
            let least = i64::from(i32::MIN) / tick;
            let nanos = self.local(CType::I64, &format!("({ticks} >= {least} && {ticks} <= {most}) ? {ticks} * {tick} : 0"));
            self.params.need(Section::Float);
            match part {
                DatePart::Nanosecond => format!("{whole} * {NANOS} + {nanos}"),
                _ => format!("f64_add((f64){whole}, f64_div((f64)({nanos} % {NANOS}), {NANOS}.0))"),
            }
        } else {
            format!("({}){whole}", ctype.name())
        };
        let code = self.local(ctype, &code);
        Ok(Value { data_type: data_type.clone(), ctype, code, valid, bounds: None })
    }

    /// An interval of nanoseconds, without months and days.
    pub(super) fn duration_to_interval(&mut self, value: Value, to: &DataType, unit: &TimeUnit, checked: bool) -> Result<Value> {
        if CType::native(to) != Some(CType::I128) {
            return unsupported(format!("CAST from {} to {to} is not supported on the device", value.data_type));
        }
        self.params.need(Section::IntervalValue);
        let nanos = self.local(CType::I128, &format!("i128_mul64({}, {})", value.code, NANOS / per_second(unit)));
        let valid = self.fail_or_null(value.valid, &[format!("!i128_fits({nanos})")], checked);
        let code = self.local(CType::I128, &format!("i128_make(0, {nanos}.lo)"));
        Ok(Value { data_type: to.clone(), ctype: CType::I128, code, valid, bounds: None })
    }

    /// Months or days fail the row.
    pub(super) fn interval_to_duration(&mut self, value: Value, to: &DataType, unit: &TimeUnit, checked: bool) -> Value {
        self.params.need(Section::IntervalValue);
        let valid = self.fail_or_null(value.valid, &[format!("({}.lo != 0)", value.code)], checked);
        let code = self.local(CType::I64, &format!("interval_nanos({}) / {}", value.code, NANOS / per_second(unit)));
        Value { data_type: to.clone(), ctype: CType::I64, code, valid, bounds: None }
    }
}
