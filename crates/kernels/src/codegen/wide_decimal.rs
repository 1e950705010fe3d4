// SPDX-License-Identifier: Apache-2.0
//! Casts from and to decimals of 256 bits, by arrow-cast's rules.
//!
//! They compute in 256 bits, unless precision and scale prove the value to stay the same.

use arrow::datatypes::{DataType, i256};

use super::decimal::{constant_value, most_digits, native, precision_scale, wide_power_of_ten};
use super::decimal_cast::DigitRounding;
use super::row::{RowWriter, unsupported};
use super::value::{CType, Value, wide_literal};
use crate::prelude::Section;
use crate::{Error, Result};

impl RowWriter<'_> {
    /// The value in 256 bits.
    fn wide(&mut self, value: Value) -> Value {
        self.params.need(Section::I256);
        let code = match value.ctype {
            CType::I256 => value.code.clone(),
            _ => self.local(CType::I256, &value.to_ctype(CType::I256)),
        };
        Value { ctype: CType::I256, code, bounds: None, ..value }
    }

    pub(super) fn integer_to_wide(&mut self, value: Value, to: &DataType, checked: bool) -> Result<Value> {
        let (precision, scale) = precision_scale(to).unwrap_or_default();
        let value = self.wide(value);
        let value = self.rescale_wide(value, i32::from(scale), true, checked, DigitRounding::Truncate)?;
        self.limited_wide(value, to, precision, checked)
    }

    /// A cast between decimals, one of which has 256 bits.
    pub(super) fn decimal_to_wide(&mut self, value: Value, to: &DataType, checked: bool) -> Result<Value> {
        let ((p1, s1), (p2, s2)) =
            (precision_scale(&value.data_type).unwrap_or_default(), precision_scale(to).unwrap_or_default());
        let up = i32::from(s2) - i32::from(s1);
        // arrow-cast skips the check where the precision suffices for every value.
        let safe = match up >= 0 {
            true => i32::from(p1) + up <= i32::from(p2),
            false => i32::from(p1) + up < i32::from(p2),
        };
        if safe && up == 0 {
            return self.in_decimal(value, to);
        }
        let most = i32::from(most_digits(native(if up >= 0 { to } else { &value.data_type })?));
        if up > most {
            return unsupported(format!("CAST from {} to {to} fails for every value", value.data_type));
        }
        if -up > most {
            // Every value rounds to 0.
            return Ok(Value { valid: value.valid, ..constant_value(to, 0) });
        }
        let value = self.wide(value);
        let value = self.rescale_wide(value, up, !safe, checked, DigitRounding::HalfUp)?;
        match safe {
            true => self.in_decimal(value, to),
            // A value beyond a narrower integer exceeds its precision as well.
            false => self.limited_wide(value, to, p2, checked),
        }
    }

    /// The integer part.
    pub(super) fn wide_to_integer(&mut self, value: Value, to: &DataType, ctype: CType, checked: bool) -> Result<Value> {
        let (_, scale) = precision_scale(&value.data_type).unwrap_or_default();
        let (least, most) = ctype.range().ok_or_else(|| Error::Internal(format!("{to} is no integer")))?;
        let value = self.wide(value);
        let value = self.rescale_wide(value, -i32::from(scale), true, checked, DigitRounding::Truncate)?;
        if !ctype.is_signed() {
            let valid = self.inside(&value, i256::from_i128(least), i256::from_i128(most), checked);
            let code = self.local(ctype, &value.to_ctype(ctype));
            return Ok(Value { data_type: to.clone(), ctype, code, valid, bounds: None });
        }
        // arrow-rs takes the low word where both words of 128 bits have the same sign.
        let lost = format!("!i256_fits({0}) | (i32)(({0}.w[0] ^ {0}.w[1]) >> 63)", value.code);
        let valid = self.fail_or_null(value.valid.clone(), &[lost], checked);
        let code = self.local(CType::I64, &value.to_ctype(CType::I64));
        self.narrowed(Value { ctype: CType::I64, code, valid, bounds: None, ..value }, to, ctype, checked)
    }

    /// The integer of a decimal as a float: its top 64 bits, as in arrow-rs.
    pub(super) fn wide_float(&mut self, value: &Value) -> String {
        self.params.need(Section::I256Float);
        format!("i256_to_f64({})", value.to_ctype(CType::I256))
    }

    /// The value in its decimal type; a value beyond the precision fails the row or is NULL.
    pub(super) fn limited_wide(&mut self, value: Value, to: &DataType, precision: u8, checked: bool) -> Result<Value> {
        let Some(limit) = wide_power_of_ten(i32::from(precision)) else {
            return Err(Error::Internal(format!("{to} has more digits than 256 bits")));
        };
        let most = limit.wrapping_sub(i256::ONE);
        let valid = self.inside(&value, most.wrapping_neg(), most, checked);
        self.in_decimal(Value { valid, ..value }, to)
    }

    /// Fails rows outside of limits, or makes them NULL; the validity.
    fn inside(&mut self, value: &Value, least: i256, most: i256, checked: bool) -> Option<String> {
        let outside = [
            format!("i256_lt({}, {})", value.code, wide_literal(least)),
            format!("i256_lt({}, {})", wide_literal(most), value.code),
        ];
        self.fail_or_null(value.valid.clone(), &outside, checked)
    }

    /// `floor` and `ceil` of a decimal of scale 1 or more; a result beyond the precision fails the
    /// row.
    pub(super) fn whole_wide(&mut self, up: bool, value: Value, (precision, scale): (u8, i8)) -> Result<Value> {
        let Some(factor) = wide_power_of_ten(i32::from(scale)) else {
            return unsupported(format!("10^{scale} exceeds 256 bits"));
        };
        self.params.need(Section::I256Div);
        self.costly();
        let value = self.wide(value);
        let (code, zero) = (&value.code, CType::I256.zero());
        let rest = self.local(CType::I256, &format!("i256_rem({code}, {})", wide_literal(factor)));
        let (steps, step) = match up {
            true => (format!("i256_lt({zero}, {rest})"), factor),
            false => (format!("i256_is_neg({rest})"), factor.wrapping_neg()),
        };
        let step = format!("i256_sel({steps}, {}, {zero})", wide_literal(step));
        let code = self.local(CType::I256, &format!("i256_add(i256_sub({code}, {rest}), {step})"));
        let to = value.data_type.clone();
        self.limited_wide(Value { code, ..value }, &to, precision, true)
    }

    /// A value with its last digits dropped, then raised by zeros.
    pub(super) fn shifted_wide(&mut self, value: Value, (dropped, raised): (i32, i32), rounding: DigitRounding) -> Result<Value> {
        let value = self.wide(value);
        let value = self.rescale_wide(value, -dropped, true, true, rounding)?;
        self.rescale_wide(value, raised, true, true, rounding)
    }

    /// A value of 256 bits times 10^`up`, checked where `limited`, or divided by 10^-`up`.
    fn rescale_wide(&mut self, value: Value, up: i32, limited: bool, checked: bool, rounding: DigitRounding) -> Result<Value> {
        if up == 0 {
            return Ok(value);
        }
        let Some(factor) = wide_power_of_ten(up.abs()) else {
            return unsupported(format!("10^{} exceeds 256 bits", up.abs()));
        };
        let (code, factor) = (&value.code, wide_literal(factor));
        let (valid, scaled) = match (up > 0, rounding) {
            (true, _) => {
                let over = limited.then(|| format!("i256_mul_over({code}, {factor})"));
                let over: Vec<String> = over.into_iter().collect();
                (self.fail_or_null(value.valid.clone(), &over, checked), format!("i256_mul({code}, {factor})"))
            }
            (false, rounding) => {
                self.params.need(Section::I256Div);
                self.costly();
                let name = match rounding {
                    DigitRounding::Truncate => "i256_div",
                    DigitRounding::HalfUp => "i256_div_half_up",
                };
                (value.valid.clone(), format!("{name}({code}, {factor})"))
            }
        };
        let code = self.local(CType::I256, &scaled);
        Ok(Value { code, valid, ..value })
    }

    /// The value in a decimal type that holds it, in at most the type's native integer.
    fn in_decimal(&mut self, value: Value, to: &DataType) -> Result<Value> {
        let native = native(to)?;
        if value.ctype.width() <= native.width() {
            return Ok(Value { data_type: to.clone(), ..value });
        }
        self.params.need_type(native);
        let code = self.local(native, &value.to_ctype(native));
        Ok(Value { data_type: to.clone(), ctype: native, code, valid: value.valid, bounds: None })
    }
}
