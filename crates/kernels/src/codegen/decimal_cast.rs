// SPDX-License-Identifier: Apache-2.0
//! Casts from and to decimals of at most 128 bits, by arrow-cast's rules.

use arrow::datatypes::DataType;

use super::arithmetic::within;
use super::cast::outside;
use super::decimal::{constant_value, most_digits, native, power_of_ten, precision_scale};
use super::row::{RowWriter, unsupported};
use super::value::{CType, Value, literal};
use crate::prelude::Section;
use crate::{Error, Result};

impl RowWriter<'_> {
    pub(super) fn integer_to_decimal(&mut self, value: Value, to: &DataType, checked: bool) -> Result<Value> {
        let native = native(to)?;
        let (precision, scale) = precision_scale(to).unwrap_or_default();
        // arrow-cast converts the integer to the decimal's with `as`, which wraps.
        let value = match value.range() {
            Some(range) if within(range, native) => value,
            _ => {
                let code = value.to_ctype(native);
                let code = self.local(native, &code);
                Value { ctype: native, code, bounds: None, ..value }
            }
        };
        // Decimals have signed integers.
        let (ctype, code) = match value.ctype {
            CType::U64 => (CType::I128, value.to_ctype(CType::I128)),
            CType::I128 => (CType::I128, value.code.clone()),
            CType::I64 => (CType::I64, value.code.clone()),
            _ => (CType::I64, value.to_ctype(CType::I64)),
        };
        self.params.need_type(ctype);
        let bounds = value.range();
        let value = Value { data_type: to.clone(), ctype, code, bounds, ..value };
        let value = self.rescale(value, i32::from(scale), checked, DigitRounding::Truncate)?;
        self.limited(value, to, precision, checked)
    }

    pub(super) fn decimal_to_decimal(&mut self, value: Value, to: &DataType, checked: bool) -> Result<Value> {
        let ((p1, s1), (p2, s2)) =
            (precision_scale(&value.data_type).unwrap_or_default(), precision_scale(to).unwrap_or_default());
        let same = CType::native(&value.data_type) == CType::native(to);
        let up = i32::from(s2) - i32::from(s1);
        let retyped = |value: Value| Value { data_type: to.clone(), ..value };
        if same && up == 0 && p1 <= p2 {
            return Ok(retyped(value));
        }
        // arrow-cast skips the check where the precision suffices for every value.
        let safe = match up >= 0 {
            true => i32::from(p1) + up <= i32::from(p2),
            false => i32::from(p1) + up < i32::from(p2),
        };
        let most = i32::from(most_digits(native(if up >= 0 { to } else { &value.data_type })?));
        if up > most {
            return unsupported(format!("CAST from {} to {to} fails for every value", value.data_type));
        }
        if -up > most {
            // Every value rounds to 0.
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
                // arrow-cast checks the conversion to the new integer, then the multiplication.
                let outside = outside(&value, native(to)?.range().unwrap_or_default());
                let valid = self.fail_or_null(value.valid.clone(), &outside, checked);
                self.rescale(Value { valid, data_type: to.clone(), ..value }, up, checked, DigitRounding::HalfUp)?
            }
            false => self.rescale_in(value, up, checked, DigitRounding::HalfUp, source)?,
        };
        self.limited(value, to, p2, checked)
    }

    /// The value in its decimal type; a value beyond the precision fails the row or is NULL.
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

    /// The value in its decimal type's integer, or in 64 bits where bounds allow.
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

    /// Times 10^`up`, checked in the type's integer, or divided by 10^-`up`.
    fn rescale(&mut self, value: Value, up: i32, checked: bool, rounding: DigitRounding) -> Result<Value> {
        let native = native(&value.data_type)?;
        self.rescale_in(value, up, checked, rounding, native)
    }

    /// [`rescale`](Self::rescale), checked in a given integer type.
    pub(super) fn rescale_in(
        &mut self,
        value: Value,
        up: i32,
        checked: bool,
        rounding: DigitRounding,
        native: CType,
    ) -> Result<Value> {
        if up == 0 {
            return Ok(value);
        }
        let Some(factor) = power_of_ten(up.abs()).filter(|factor| within((*factor, *factor), native)) else {
            return unsupported(format!("10^{} exceeds {}", up.abs(), value.data_type));
        };
        if up < 0 {
            return Ok(self.divided_by(&value, factor, rounding));
        }
        // The product overflows outside of the range divided by the factor.
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
            (_, Some(factor)) => Ok(self.divided_by(&value, factor, DigitRounding::HalfUp)),
        }
    }

    /// A wrapping product, in 64 bits where bounds allow.
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
    fn divided_by(&mut self, value: &Value, divisor: i128, rounding: DigitRounding) -> Value {
        self.costly();
        let narrow = value.ctype != CType::I128;
        let bounds = value.range().map(|(low, high)| match rounding {
            DigitRounding::Truncate => (low / divisor, high / divisor),
            DigitRounding::HalfUp => ((low / divisor).saturating_sub(1), (high / divisor).saturating_add(1)),
        });
        if narrow && !within((divisor, divisor), CType::I64) {
            // |value| < 2^63 < divisor: the quotient is 0 or rounds to ±1. It rounds to 0 for a divisor
            // above 2^64, hence for powers of ten from 10^20.
            let mut zero = constant_value(&value.data_type, 0);
            zero.valid = value.valid.clone();
            if divisor / 2 > i128::from(i64::MAX) || rounding == DigitRounding::Truncate {
                return zero;
            }
        }
        let ctype = if narrow && within((divisor, divisor), CType::I64) { CType::I64 } else { CType::I128 };
        let code = value.to_ctype(ctype);
        let (divisor_code, half) = (literal(ctype, divisor), literal(ctype, divisor / 2));
        let quotient = match (ctype, rounding) {
            (CType::I64, DigitRounding::Truncate) => format!("{code} / {divisor_code}"),
            (CType::I64, DigitRounding::HalfUp) => {
                let q = self.local(ctype, &format!("{code} / {divisor_code}"));
                let r = self.local(ctype, &format!("{code} - {q} * {divisor_code}"));
                format!("{q} + ({r} >= {half}) - ({r} <= -{half})")
            }
            (_, rounding) => {
                self.params.need(Section::I128Div);
                let q = match rounding {
                    DigitRounding::Truncate => "i128_div",
                    DigitRounding::HalfUp => "i128_div_half_up",
                };
                format!("{q}({code}, {divisor_code})")
            }
        };
        let code = self.local(ctype, &quotient);
        Value { data_type: value.data_type.clone(), ctype, code, valid: value.valid.clone(), bounds }
    }

    /// The integer part of a decimal, in the decimal's integer type.
    pub(super) fn decimal_to_whole(&mut self, value: Value, checked: bool) -> Result<Value> {
        let (_, scale) = precision_scale(&value.data_type).unwrap_or_default();
        self.rescale(value, -i32::from(scale), checked, DigitRounding::Truncate)
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
        // The divisor as arrow-cast computes it.
        let divisor = 10f64.powi(i32::from(scale)).to_bits();
        let quotient = self.local(CType::F64, &format!("f64_div({wide}, BITS_F64((u64){divisor:#x}UL))"));
        let code = if ctype == CType::F32 { self.local(ctype, &format!("(f32){quotient}")) } else { quotient };
        Ok(Value { data_type: to.clone(), ctype, code, valid: value.valid, bounds: None })
    }

    pub(super) fn float_to_decimal(&mut self, value: Value, to: &DataType, checked: bool) -> Result<Value> {
        let native = native(to)?;
        let (precision, scale) = precision_scale(to).unwrap_or_default();
        self.params.need(if native == CType::I256 { Section::I256Float } else { Section::I128Float });
        self.params.need(Section::Float);
        let factor = 10f64.powi(i32::from(scale)).to_bits();
        let product = self.local(CType::F64, &format!("round(f64_mul(BITS_F64((u64){factor:#x}UL), (f64){}))", value.code));
        let (least, most) = native.range().unwrap_or_default();
        // 2^255, 2^127 or the limit of the integer.
        let limit = match native {
            CType::I256 => "BITS_F64((u64)0x4fe0000000000000UL)".to_string(),
            CType::I128 => "BITS_F64((u64)0x47e0000000000000UL)".to_string(),
            _ => format!("{:.1}", (most + 1) as f64),
        };
        // The product is an integer, so that none lies between least - 1 and least.
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
}

/// Rounding of dropped digits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum DigitRounding {
    Truncate,
    HalfUp,
}
