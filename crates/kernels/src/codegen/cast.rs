// SPDX-License-Identifier: Apache-2.0
//! Casts, by arrow-cast's rules. `CAST` records an error where `TRY_CAST` gives NULL, except where
//! arrow-cast fails either way (timestamps outside the calendar).

use arrow::compute::can_cast_types;
use arrow::datatypes::{DataType, TimeUnit};

use super::arithmetic::within;
use super::decimal::{constant_value, native, power_of_ten, precision_scale};
use super::row::{RowWriter, unsupported};
use super::temporal::per_second;
use super::value::{CType, Value, literal};
use super::zone::Zone;
use crate::expr::Expr;
use crate::prelude::Section;
use crate::{Error, Result};

/// Seconds of a day.
pub(super) const DAY_SECONDS: i64 = 86_400;
const DAY_MILLIS: i64 = 86_400_000;
/// Seconds of the first and last moment of the calendar that arrow-rs computes with (chrono's):
/// -262143-01-01T00:00:00 and 262142-12-31T23:59:59.
const CALENDAR_SECONDS: (i64, i64) = (-8_334_601_228_800, 8_210_266_876_799);

impl RowWriter<'_> {
    pub(super) fn cast(&mut self, expr: &Expr, to: &DataType, checked: bool) -> Result<Value> {
        let value = self.eval(expr)?;
        self.cast_value(value, to, checked)
    }

    /// Casts a value; `checked` is `CAST`, else `TRY_CAST`.
    pub(super) fn cast_value(&mut self, value: Value, to: &DataType, checked: bool) -> Result<Value> {
        let from = value.data_type.clone();
        if from == *to {
            return Ok(value);
        }
        let Some(ctype) = CType::native(to).filter(|_| !matches!(to, DataType::Dictionary(_, _))) else {
            return refuse(&from, to);
        };
        if value.is_null() {
            return Ok(Value::null(to.clone(), ctype));
        }
        if !can_cast_types(&from, to) {
            return unsupported(format!("CAST from {from} to {to} does not exist"));
        }
        let wide = ctype == CType::I256 || CType::native(&from) == Some(CType::I256);
        match (kind(&from), kind(to)) {
            // Nothing but NULLs, whatever the operand.
            _ if *to == DataType::Null => Ok(Value::null(DataType::Null, ctype)),
            (Kind::Integer, Kind::Str) if matches!(to, DataType::Binary | DataType::LargeBinary) => {
                Ok(self.integer_bytes(value, to))
            }
            (Kind::Str, Kind::Str) if let DataType::FixedSizeBinary(width) = to => Ok(self.of_width(value, to, *width, checked)),
            (Kind::Str, Kind::Str) => self.strings(value, to, checked),
            (Kind::Str, _) => self.parse(value, to, checked),
            (_, Kind::Str) => self.format(value, to),
            (Kind::Integer | Kind::Float, Kind::Bool) => {
                let code = self.flag(&format!("{} != 0", value.code));
                Ok(Value { data_type: to.clone(), ctype, code, valid: value.valid, bounds: None })
            }
            (Kind::Bool, Kind::Integer | Kind::Float) => {
                let code = self.local(ctype, &value.code);
                let bounds = ctype.is_integer().then_some((0, 1));
                Ok(Value { data_type: to.clone(), ctype, code, valid: value.valid, bounds })
            }
            (Kind::Integer, Kind::Integer) => self.narrowed(value, to, ctype, checked),
            (Kind::Integer, Kind::Float) => {
                let code = self.local(ctype, &format!("({}){}", ctype.name(), value.code));
                Ok(Value { data_type: to.clone(), ctype, code, valid: value.valid, bounds: None })
            }
            (Kind::Float, Kind::Integer) => self.float_to_integer(value, to, ctype, checked),
            (Kind::Float, Kind::Float) => {
                let code = self.local(ctype, &format!("({}){}", ctype.name(), value.code));
                Ok(Value { data_type: to.clone(), ctype, code, valid: value.valid, bounds: None })
            }
            (Kind::Integer, Kind::Decimal) if wide => self.integer_to_wide(value, to, checked),
            (Kind::Decimal, Kind::Decimal) if wide => self.decimal_to_wide(value, to, checked),
            (Kind::Decimal, Kind::Integer) if wide => self.wide_to_integer(value, to, ctype, checked),
            (Kind::Integer, Kind::Decimal) => self.integer_to_decimal(value, to, checked),
            (Kind::Float, Kind::Decimal) => self.float_to_decimal(value, to, checked),
            (Kind::Decimal, Kind::Decimal) => self.decimal_to_decimal(value, to, checked),
            (Kind::Decimal, Kind::Integer) => {
                let value = self.decimal_to_whole(value, checked)?;
                self.narrowed(value, to, ctype, checked)
            }
            (Kind::Decimal, Kind::Float) => self.decimal_to_float(value, to, ctype),
            _ => self.cast_temporal(value, to, checked),
        }
    }

    /// NULL (`TRY_CAST`) or an error (`CAST`) where a condition holds; the validity left.
    pub(super) fn fail_or_null(&mut self, valid: Option<String>, conditions: &[String], checked: bool) -> Option<String> {
        if conditions.is_empty() {
            return valid;
        }
        let conditions: Vec<&str> = conditions.iter().map(String::as_str).collect();
        if checked {
            self.fail_where(&conditions, &valid);
            return valid;
        }
        let fine = format!("!({})", conditions.join(" | "));
        Some(match valid {
            Some(valid) => self.flag(&format!("{valid} & {fine}")),
            None => self.flag(&fine),
        })
    }

    /// An integer (of a decimal, too) in another integer type that must hold it.
    pub(super) fn narrowed(&mut self, value: Value, to: &DataType, ctype: CType, checked: bool) -> Result<Value> {
        let outside = outside(&value, ctype.range().unwrap_or_default());
        let valid = self.fail_or_null(value.valid.clone(), &outside, checked);
        let code = value.to_ctype(ctype);
        let code = if value.ctype == ctype { code } else { self.local(ctype, &code) };
        let bounds = value.range().map(|range| intersect(range, ctype));
        Ok(Value { data_type: to.clone(), ctype, code, valid, bounds })
    }

    /// Truncates; fails for NaN and what the type does not hold.
    fn float_to_integer(&mut self, value: Value, to: &DataType, ctype: CType, checked: bool) -> Result<Value> {
        let (least, most) = ctype.range().unwrap_or_default();
        // Powers of two, or one beyond, are exact in both widths of floats.
        let of = value.ctype.name();
        let above = (most + 1) as f64;
        let inside = match ctype.is_signed() {
            true if value.ctype == CType::F64 && ctype.width() < 8 => {
                format!("({0} > {1:.1}) & ({0} < {2:.1})", value.code, least as f64 - 1.0, above)
            }
            // least - 1 has no float of its own: everything from least up truncates into the type.
            true if value.ctype == CType::F32 && ctype.width() < 4 => {
                format!("({0} > ({3}){1:.1}) & ({0} < ({3}){2:.1})", value.code, least as f64 - 1.0, above, of)
            }
            true => format!("({0} >= ({3}){1:.1}) & ({0} < ({3}){2:.1})", value.code, least as f64, above, of),
            false => format!("({0} > ({2})-1.0) & ({0} < ({2}){1:.1})", value.code, above, of),
        };
        let inside = self.flag(&inside);
        let valid = self.fail_or_null(value.valid.clone(), &[format!("!{inside}")], checked);
        let code = self.local(ctype, &format!("({})({inside} ? {} : ({of})0)", ctype.name(), value.code));
        Ok(Value { data_type: to.clone(), ctype, code, valid, bounds: None })
    }

    fn integer_to_decimal(&mut self, value: Value, to: &DataType, checked: bool) -> Result<Value> {
        let native = native(to)?;
        let (precision, scale) = precision_scale(to).unwrap_or_default();
        // arrow-cast takes the integer into the decimal's own with `as`: it wraps.
        let value = match value.range() {
            Some(range) if within(range, native) => value,
            _ => {
                let code = value.to_ctype(native);
                let code = self.local(native, &code);
                Value { ctype: native, code, bounds: None, ..value }
            }
        };
        // Unsigned words become signed ones, decimals' own.
        let (ctype, code) = match value.ctype {
            CType::U64 => (CType::I128, value.to_ctype(CType::I128)),
            CType::I128 => (CType::I128, value.code.clone()),
            CType::I64 => (CType::I64, value.code.clone()),
            _ => (CType::I64, value.to_ctype(CType::I64)),
        };
        self.params.need_type(ctype);
        let bounds = value.range();
        let value = Value { data_type: to.clone(), ctype, code, bounds, ..value };
        let value = self.rescale(value, i32::from(scale), checked, Rounding::Truncate)?;
        self.limited(value, to, precision, checked)
    }

    fn decimal_to_decimal(&mut self, value: Value, to: &DataType, checked: bool) -> Result<Value> {
        let ((p1, s1), (p2, s2)) =
            (precision_scale(&value.data_type).unwrap_or_default(), precision_scale(to).unwrap_or_default());
        let same = CType::native(&value.data_type) == CType::native(to);
        let up = i32::from(s2) - i32::from(s1);
        let retyped = |value: Value| Value { data_type: to.clone(), ..value };
        if same && up == 0 && p1 <= p2 {
            return Ok(retyped(value));
        }
        // arrow-cast does not look where the digits are enough, whatever the value.
        let safe = match up >= 0 {
            true => i32::from(p1) + up <= i32::from(p2),
            false => i32::from(p1) + up < i32::from(p2),
        };
        let most = match CType::native(if up >= 0 { to } else { &value.data_type }) {
            Some(CType::I32) => 9,
            Some(CType::I64) => 18,
            _ => 38,
        };
        if up > most {
            return unsupported(format!("CAST from {} to {to} fails for every value", value.data_type));
        }
        if -up > most {
            // Everything rounds to 0.
            let zero = constant_value(to, 0);
            return Ok(Value { valid: value.valid, ..zero });
        }
        if safe {
            let value = self.rescale_unchecked(value, up)?;
            return self.sized(retyped(value), to);
        }
        let source = native(&value.data_type)?;
        let value = match up >= 0 {
            true => {
                // Into the new integer first, then the multiplication, each checked.
                let outside = outside(&value, native(to)?.range().unwrap_or_default());
                let valid = self.fail_or_null(value.valid.clone(), &outside, checked);
                self.rescale(Value { valid, data_type: to.clone(), ..value }, up, checked, Rounding::HalfUp)?
            }
            false => self.rescale_in(value, up, checked, Rounding::HalfUp, source)?,
        };
        self.limited(value, to, p2, checked)
    }

    /// Fails where the value has more digits than the precision; in the type's integer after.
    pub(super) fn limited(&mut self, value: Value, to: &DataType, precision: u8, checked: bool) -> Result<Value> {
        let most = power_of_ten(i32::from(precision)).map_or(i128::MAX, |power| power - 1);
        let outside = outside(&value, (-most, most));
        let valid = self.fail_or_null(value.valid.clone(), &outside, checked);
        let bounds = value
            .range()
            .map(|(least, greatest)| (least.max(-most), greatest.min(most)))
            .filter(|(least, greatest)| least <= greatest);
        self.sized(Value { data_type: to.clone(), valid, bounds, ..value }, to)
    }

    /// The value in an integer of its decimal type: its own, or 64 bits where bounds allow.
    fn sized(&mut self, value: Value, to: &DataType) -> Result<Value> {
        let ctype = match (native(to)?, value.bounds) {
            (CType::I128, Some(bounds)) if within(bounds, CType::I64) => CType::I64,
            (native, _) => native,
        };
        if value.ctype == ctype || (ctype == CType::I128 && value.ctype == CType::I64) {
            return Ok(value);
        }
        let code = value.to_ctype(ctype);
        let code = self.local(ctype, &code);
        let bounds = value.bounds.filter(|bounds| within(*bounds, ctype));
        Ok(Value { ctype, code, bounds, ..value })
    }

    /// Times 10^up (checked in the type's integer) or divided by 10^-up.
    fn rescale(&mut self, value: Value, up: i32, checked: bool, rounding: Rounding) -> Result<Value> {
        let native = native(&value.data_type)?;
        self.rescale_in(value, up, checked, rounding, native)
    }

    /// As a decimal of another scale, `up` digits more, checked in an integer type.
    pub(super) fn rescale_in(
        &mut self,
        value: Value,
        up: i32,
        checked: bool,
        rounding: Rounding,
        native: CType,
    ) -> Result<Value> {
        if up == 0 {
            return Ok(value);
        }
        let Some(factor) = power_of_ten(up.abs()).filter(|factor| within((*factor, *factor), native)) else {
            return unsupported(format!("10^{} has no place in {}", up.abs(), value.data_type));
        };
        if up < 0 {
            return Ok(self.divided_by(&value, factor, rounding));
        }
        // Where it leaves the integer: value outside ±(range / factor).
        let (least, most) = native.range().unwrap_or((i128::MIN, i128::MAX));
        let outside = outside(&value, (least / factor, most / factor));
        let valid = self.fail_or_null(value.valid.clone(), &outside, checked);
        let bounds =
            value.range().map(|(low, high)| (low.max(least / factor), high.min(most / factor))).filter(|(low, high)| low <= high);
        let value = Value { valid, bounds, ..value };
        Ok(self.times(&value, factor))
    }

    fn rescale_unchecked(&mut self, value: Value, up: i32) -> Result<Value> {
        match (up, power_of_ten(up.abs())) {
            (0, _) => Ok(value),
            (_, None) => Err(Error::Internal("a power of ten of more than 128 bits".into())),
            (1.., Some(factor)) => Ok(self.times(&value, factor)),
            (_, Some(factor)) => Ok(self.divided_by(&value, factor, Rounding::HalfUp)),
        }
    }

    /// A product that wraps, in 64 bits where bounds allow.
    fn times(&mut self, value: &Value, factor: i128) -> Value {
        let bounds = value.range().and_then(|(low, high)| Some((low.checked_mul(factor)?, high.checked_mul(factor)?)));
        let narrow = value.ctype != CType::I128 && bounds.is_some_and(|bounds| within(bounds, CType::I64));
        let (ctype, code) = if narrow {
            (CType::I64, format!("{} * {}", value.to_ctype(CType::I64), literal(CType::I64, factor)))
        } else if value.ctype != CType::I128 && within((factor, factor), CType::I64) {
            self.params.need(Section::I128);
            (CType::I128, format!("i128_mul64({}, {})", value.to_ctype(CType::I64), literal(CType::I64, factor)))
        } else {
            self.params.need(Section::I128);
            (CType::I128, format!("i128_mul({}, {})", value.to_ctype(CType::I128), literal(CType::I128, factor)))
        };
        let code = self.local(ctype, &code);
        Value { data_type: value.data_type.clone(), ctype, code, valid: value.valid.clone(), bounds }
    }

    /// A quotient by a positive constant, truncated or rounded half away from zero.
    fn divided_by(&mut self, value: &Value, divisor: i128, rounding: Rounding) -> Value {
        self.costly();
        let narrow = value.ctype != CType::I128;
        let bounds = value.range().map(|(low, high)| match rounding {
            Rounding::Truncate => (low / divisor, high / divisor),
            Rounding::HalfUp => ((low / divisor).saturating_sub(1), (high / divisor).saturating_add(1)),
        });
        if narrow && !within((divisor, divisor), CType::I64) {
            // |value| < 2^63 < divisor: only rounding may leave something, never for a power of ten
            // of 20 digits and more; 10^19 is above 2 * 2^62 too.
            let mut zero = constant_value(&value.data_type, 0);
            zero.valid = value.valid.clone();
            if divisor / 2 > i128::from(i64::MAX) || rounding == Rounding::Truncate {
                return zero;
            }
        }
        let ctype = if narrow && within((divisor, divisor), CType::I64) { CType::I64 } else { CType::I128 };
        let code = value.to_ctype(ctype);
        let (divisor_code, half) = (literal(ctype, divisor), literal(ctype, divisor / 2));
        let quotient = match (ctype, rounding) {
            (CType::I64, Rounding::Truncate) => format!("{code} / {divisor_code}"),
            (CType::I64, Rounding::HalfUp) => {
                let q = self.local(ctype, &format!("{code} / {divisor_code}"));
                let r = self.local(ctype, &format!("{code} - {q} * {divisor_code}"));
                format!("{q} + ({r} >= {half}) - ({r} <= -{half})")
            }
            (_, rounding) => {
                self.params.need(Section::I128Div);
                let q = match rounding {
                    Rounding::Truncate => "i128_div",
                    Rounding::HalfUp => "i128_div_half_up",
                };
                format!("{q}({code}, {divisor_code})")
            }
        };
        let code = self.local(ctype, &quotient);
        Value { data_type: value.data_type.clone(), ctype, code, valid: value.valid.clone(), bounds }
    }

    /// The whole part of a decimal, as an integer of the decimal's width.
    fn decimal_to_whole(&mut self, value: Value, checked: bool) -> Result<Value> {
        let (_, scale) = precision_scale(&value.data_type).unwrap_or_default();
        self.rescale(value, -i32::from(scale), checked, Rounding::Truncate)
    }

    pub(super) fn decimal_to_float(&mut self, value: Value, to: &DataType, ctype: CType) -> Result<Value> {
        let (_, scale) = precision_scale(&value.data_type).unwrap_or_default();
        let wide = match value.ctype {
            _ if native(&value.data_type)? == CType::I256 && value.ctype.is_wide() => self.wide_float(&value),
            CType::I128 => {
                self.params.need(Section::I128Float);
                format!("i128_to_f64({})", value.code)
            }
            _ => format!("(f64){}", value.code),
        };
        self.params.need(Section::Float);
        // The very divisor that arrow-cast computes.
        let divisor = 10f64.powi(i32::from(scale)).to_bits();
        let quotient = self.local(CType::F64, &format!("f64_div({wide}, BITS_F64((u64){divisor:#x}UL))"));
        let code = if ctype == CType::F32 { self.local(ctype, &format!("(f32){quotient}")) } else { quotient };
        Ok(Value { data_type: to.clone(), ctype, code, valid: value.valid, bounds: None })
    }

    fn float_to_decimal(&mut self, value: Value, to: &DataType, checked: bool) -> Result<Value> {
        let native = native(to)?;
        let (precision, scale) = precision_scale(to).unwrap_or_default();
        self.params.need(if native == CType::I256 { Section::I256Float } else { Section::I128Float });
        self.params.need(Section::Float);
        let factor = 10f64.powi(i32::from(scale)).to_bits();
        let product = self.local(CType::F64, &format!("round(f64_mul(BITS_F64((u64){factor:#x}UL), (f64){}))", value.code));
        let (least, most) = native.range().unwrap_or_default();
        // 2^255 and 2^127.
        let limit = match native {
            CType::I256 => "BITS_F64((u64)0x4fe0000000000000UL)".to_string(),
            CType::I128 => "BITS_F64((u64)0x47e0000000000000UL)".to_string(),
            _ => format!("{:.1}", (most + 1) as f64),
        };
        // Rounded already, so that least - 1 and above is not between.
        let inside = self.flag(&format!("({product} >= -{limit}) & ({product} < {limit})"));
        let valid = self.fail_or_null(value.valid, &[format!("!{inside}")], checked);
        let (ctype, code) = match native {
            CType::I128 | CType::I256 => (native, format!("f64_to_{}({inside} ? {product} : 0.0)", native.name())),
            _ => (CType::I64, format!("(i64)({inside} ? {product} : 0.0)")),
        };
        let code = self.local(ctype, &code);
        let bounds = (!native.is_wide()).then_some((least, most));
        let value = Value { data_type: to.clone(), ctype, code, valid, bounds };
        if native == CType::I256 {
            return self.limited_wide(value, to, precision, checked);
        }
        self.limited(value, to, precision, checked)
    }

    fn cast_temporal(&mut self, value: Value, to: &DataType, checked: bool) -> Result<Value> {
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
            (Date32, Timestamp(unit, zone)) => {
                let value = self.scaled_ticks(value, to, DAY_SECONDS * per_second(unit), 1, Overflow::of(checked))?;
                if zone.is_some() { self.local_to_instant(value, to, checked) } else { Ok(value) }
            }
            (Date64, Timestamp(unit, zone)) => {
                // DataFusion checks what arrow-cast lets wrap, but for CAST only.
                let overflow = if checked { Overflow::Fails } else { Overflow::Wraps };
                let value = self.scaled_ticks(value, to, per_second(unit), per_second(&TimeUnit::Millisecond), overflow)?;
                if zone.is_some() { self.local_to_instant(value, to, checked) } else { Ok(value) }
            }
            _ => refuse(&from, to),
        }
    }

    /// Ticks of `per` in a second as ticks of `to_per`: a truncating division or a multiplication.
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

    /// Two locals: the day of a timestamp in its zone, and the ticks since that day began.
    pub(super) fn local_days(&mut self, value: &Value, unit: &TimeUnit, zone: Option<&str>) -> Result<(String, String)> {
        let zone = Zone::of(zone)?;
        let per = per_second(unit);
        let (code, ticks_per_day) = (&value.code, DAY_SECONDS * per);
        if matches!(zone, Zone::Fixed(0)) {
            let days = self.floor_div(code, ticks_per_day);
            let ticks = self.local(CType::I64, &format!("{code} - {days} * {}", literal(CType::I64, ticks_per_day.into())));
            return Ok((days, ticks));
        }
        // By seconds: ticks near the ends of 64 bits have no local ticks.
        let seconds = self.floor_div(code, per);
        let offset = self.offset_at(&zone, &seconds)?;
        let local = self.local(CType::I64, &format!("{seconds} + {offset}"));
        let days = self.floor_div(&local, DAY_SECONDS);
        let ticks = self.local(CType::I64, &format!("({local} - {days} * {DAY_SECONDS}) * {per} + ({code} - {seconds} * {per})"));
        Ok((days, ticks))
    }

    /// A local time that becomes an instant of the target's zone. Fails where the zone's clocks never
    /// showed that time, or did twice.
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

    /// Fails, or gives the validity left, where ticks lie outside the calendar.
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

/// What a multiplication of ticks does where it leaves the type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Overflow {
    Never,
    Wraps,
    Fails,
    Null,
}

impl Overflow {
    fn of(checked: bool) -> Overflow {
        if checked { Overflow::Fails } else { Overflow::Null }
    }
}

/// What becomes of digits that are dropped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Rounding {
    Truncate,
    HalfUp,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Bool,
    Integer,
    Float,
    Decimal,
    Str,
    Temporal,
}

fn kind(data_type: &DataType) -> Kind {
    match data_type {
        DataType::Boolean | DataType::Null => Kind::Bool,
        data_type if data_type.is_integer() => Kind::Integer,
        data_type if data_type.is_floating() => Kind::Float,
        data_type if data_type.is_decimal() => Kind::Decimal,
        data_type if data_type.is_temporal() => Kind::Temporal,
        _ => Kind::Str,
    }
}

/// Conditions, of which none or some hold, under which an integer lies outside of limits.
pub(super) fn outside(value: &Value, (least, most): (i128, i128)) -> Vec<String> {
    let (low, high) = value.range().unwrap_or((i128::MIN, i128::MAX));
    let mut conditions = Vec::new();
    let code = &value.code;
    if low < least {
        conditions.push(match value.ctype {
            CType::I128 => format!("i128_lt({code}, {})", literal(CType::I128, least)),
            // Values of a type cannot be compared with a limit that it does not hold.
            ctype if !within((least, least), ctype) => "1".into(),
            ctype => format!("({code} < {})", literal(ctype, least)),
        });
    }
    if high > most {
        conditions.push(match value.ctype {
            CType::I128 => format!("i128_lt({}, {code})", literal(CType::I128, most)),
            ctype if !within((most, most), ctype) => "1".into(),
            ctype => format!("({code} > {})", literal(ctype, most)),
        });
    }
    conditions
}

fn intersect((least, most): (i128, i128), ctype: CType) -> (i128, i128) {
    let (low, high) = ctype.range().unwrap_or((i128::MIN, i128::MAX));
    (least.clamp(low, high), most.clamp(low, high))
}

pub(super) fn refuse<T>(from: &DataType, to: &DataType) -> Result<T> {
    unsupported(format!("CAST from {} to {to} is not supported on the device", from))
}
