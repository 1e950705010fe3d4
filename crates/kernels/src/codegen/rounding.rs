// SPDX-License-Identifier: Apache-2.0
//! `round` and `trunc` to a number of decimal digits, constant or by row.
//!
//! The result has the type of the number, but for the precision of a decimal.

use arrow::datatypes::DataType;

use super::arithmetic::within;
use super::call::refuse_call;
use super::cast::outside;
use super::decimal::{constant_value, most_digits, native, power_of_ten, precision_scale};
use super::decimal_cast::DigitRounding;
use super::row::RowWriter;
use super::value::{CType, Value, literal};
use crate::Result;
use crate::expr::{Expr, Literal, LiteralValue};
use crate::function::{Function, Rounding};
use crate::prelude::Section;

impl RowWriter<'_> {
    pub(super) fn rounding_call(
        &mut self,
        of: Rounding,
        function: Function,
        arguments: &[Expr],
        data_type: &DataType,
    ) -> Result<Value> {
        let [value, digits @ ..] = arguments else { return refuse_call(function, &[]) };
        let value = self.eval(value)?;
        if value.is_null() {
            return Ok(Value::null(data_type.clone(), CType::native(data_type).unwrap_or(CType::Bool)));
        }
        let round = match of {
            Rounding::Round => true,
            Rounding::Trunc => false,
        };
        self.rounded(function, round, &value, digits.first(), data_type)
    }

    /// `round` and `trunc` to a constant number of decimal digits.
    fn rounded(
        &mut self,
        function: Function,
        round: bool,
        value: &Value,
        digits: Option<&Expr>,
        data_type: &DataType,
    ) -> Result<Value> {
        let to = match digits {
            None => 0,
            Some(Expr::Literal(Literal { value: LiteralValue::Int(digits), .. })) => *digits as i64,
            Some(Expr::Literal(Literal { value: LiteralValue::Null, .. })) => {
                return Ok(Value::null(data_type.clone(), CType::native(data_type).unwrap_or(CType::Bool)));
            }
            Some(digits) => return self.rounded_by_row(function, round, value, digits, data_type),
        };
        match value.ctype {
            CType::F32 | CType::F64 if value.data_type == *data_type => {
                if digits.is_none() && !round {
                    return Ok(self.exact("whole", value));
                }
                // DataFusion's factors: powers of ten as Rust computes them.
                let to = to as i32;
                let factor = match (value.ctype, round) {
                    (CType::F32, false) => f64::from(10f32.powi(to)),
                    (CType::F32, true) => f64::from(10f64.powi(to) as f32),
                    _ => 10f64.powi(to),
                };
                let factor =
                    self.params.literal(&Literal { data_type: data_type.clone(), value: LiteralValue::Float(factor) })?;
                let of = value.ctype.name();
                let scaled = Value {
                    code: self.local(value.ctype, &format!("{of}_mul({}, {})", value.code, factor.code)),
                    ..value.clone()
                };
                let whole = self.exact(if round { "round" } else { "trunc" }, &scaled);
                let code = self.local(value.ctype, &format!("{of}_div({}, {})", whole.code, factor.code));
                Ok(Value { code, ..value.clone() })
            }
            _ if data_type.is_decimal() && value.data_type.is_decimal() => self.rounded_decimal(round, value, to, data_type),
            _ if round && data_type.is_integer() && value.data_type == *data_type => self.rounded_integer(value, to),
            _ => refuse_call(function, std::slice::from_ref(value)),
        }
    }

    fn rounded_decimal(&mut self, round: bool, value: &Value, to: i64, data_type: &DataType) -> Result<Value> {
        let refuse = || refuse_call(if round { Function::Round } else { Function::Trunc }, std::slice::from_ref(value));
        let ((precision, scale), (out_precision, out_scale)) =
            (precision_scale(&value.data_type).unwrap_or_default(), precision_scale(data_type).unwrap_or_default());
        let most = most_digits(native(data_type)?);
        let dropped = i64::from(scale).saturating_sub(to);
        let retyped = |value: Value| Value { data_type: data_type.clone(), ..value };
        if native(data_type)? != native(&value.data_type)? || (dropped <= 0 && scale != out_scale) {
            return refuse();
        }
        if dropped <= 0 {
            return Ok(retyped(value.clone()));
        }
        // A number below 10^(precision - scale) has no digits beyond.
        let integer_digits = i64::from(precision) - i64::from(scale);
        let none = if round { to < 0 && (integer_digits <= 0 || -to > integer_digits) } else { dropped >= i64::from(most) };
        if none {
            let ctype = if most == 9 { CType::I32 } else { CType::I64 };
            return Ok(Value { valid: value.valid.clone(), ctype, ..constant_value(data_type, 0) });
        }
        let raised = i64::from(out_scale) - to;
        let raised = if round { raised } else { dropped };
        if dropped > i64::from(most) || !(0..=i64::from(most)).contains(&raised) {
            return refuse();
        }
        let own = native(data_type)?;
        let rounding = if round { DigitRounding::HalfUp } else { DigitRounding::Truncate };
        let widened = round && out_precision == most && scale == 0 && to < 0;
        if own == CType::I256 {
            let value = retyped(self.shifted_wide(value.clone(), (dropped as i32, raised as i32), rounding)?);
            return if widened { self.limited_wide(value, data_type, out_precision, true) } else { Ok(value) };
        }
        let value = self.rescale_in(value.clone(), -(dropped as i32), true, rounding, own)?;
        let value = retyped(self.rescale_in(value, raised as i32, true, rounding, own)?);
        match widened {
            true => self.limited(value, data_type, out_precision, true),
            false => Ok(value),
        }
    }

    /// `round` of an integer to tens, hundreds and so on; a result beyond the type fails the row.
    fn rounded_integer(&mut self, value: &Value, to: i64) -> Result<Value> {
        let Some(digits) = to.checked_neg().filter(|digits| *digits > 0) else { return Ok(value.clone()) };
        let ctype = value.ctype;
        let factor = i32::try_from(digits).ok().and_then(power_of_ten).filter(|factor| within((*factor, *factor), ctype));
        let Some(factor) = factor else {
            return Ok(Value { valid: value.valid.clone(), ctype, ..constant_value(&value.data_type, 0) });
        };
        self.costly();
        let (name, code, f, half) = (ctype.name(), &value.code, literal(ctype, factor), literal(ctype, factor / 2));
        let rest = self.local(ctype, &format!("({name})({code} % {f})"));
        let steps = match ctype.is_signed() {
            true => format!("({rest} >= {half}) - ({rest} <= -{half})"),
            false => format!("({rest} >= {half})"),
        };
        let quotient = self.local(ctype, &format!("({name})({code} / {f} + {steps})"));
        let (least, most) = ctype.range().unwrap_or_default();
        let quotient = Value { code: quotient, bounds: None, ..value.clone() };
        let outside = outside(&quotient, (least / factor, most / factor));
        let outside: Vec<&str> = outside.iter().map(String::as_str).collect();
        self.fail_where(&outside, &value.valid);
        let unsigned = if ctype.width() == 8 { "u64" } else { "u32" };
        let code = self.local(ctype, &format!("({name})(({unsigned}){} * ({unsigned}){f})", quotient.code));
        Ok(Value { code, ..quotient })
    }

    /// `round` and `trunc` to a number of decimal digits that each row has.
    fn rounded_by_row(
        &mut self,
        function: Function,
        round: bool,
        value: &Value,
        digits: &Expr,
        data_type: &DataType,
    ) -> Result<Value> {
        let digits = self.eval(digits)?;
        let refuse = || refuse_call(function, &[value.clone(), digits.clone()]);
        if digits.is_null() {
            return Ok(Value::null(data_type.clone(), native(data_type)?));
        }
        if !matches!(digits.data_type, DataType::Int32 | DataType::Int64) {
            return refuse();
        }
        let valid = self.both_valid(value, &digits);
        self.params.need(Section::RoundDigits);
        let value = Value { valid, bounds: None, ..value.clone() };
        match value.ctype {
            CType::F32 | CType::F64 if value.data_type == *data_type => {
                let (of, to) = (value.ctype.name(), format!("(i32){}", digits.code));
                // DataFusion rounds a `Float32` by a power computed in `f64`.
                let factor = match (value.ctype, round) {
                    (CType::F32, true) => format!("(f32)f64_ten_to({to})"),
                    _ => format!("{of}_ten_to({to})"),
                };
                self.costly();
                let factor = self.local(value.ctype, &factor);
                let scaled = self.local(value.ctype, &format!("{of}_mul({}, {factor})", value.code));
                let whole = self.exact(if round { "round" } else { "trunc" }, &Value { code: scaled, ..value });
                let code = self.local(whole.ctype, &format!("{of}_div({}, {factor})", whole.code));
                Ok(Value { code, ..whole })
            }
            _ if value.data_type.is_decimal() && native(data_type)? == native(&value.data_type)? => {
                let scales = (precision_scale(&value.data_type), precision_scale(data_type));
                let (Some((precision, scale)), Some((_, same))) = scales else { return refuse() };
                if scale != same {
                    refuse()
                } else {
                    self.decimal_rounded_by_row(round, value, (precision, scale), &digits, data_type)
                }
            }
            ctype if round && data_type.is_integer() && value.data_type == *data_type => {
                let Some((least, most)) = ctype.range() else { return refuse() };
                let (code, to) = (&value.code, &digits.code);
                let ok = self.flag("1");
                let call = match ctype.is_signed() {
                    true => {
                        let (least, most) = (literal(CType::I64, least), literal(CType::I64, most));
                        format!("i64_round_digits({code}, {to}, {least}, {most}, &{ok})")
                    }
                    false => format!("u64_round_digits({code}, {to}, {}, &{ok})", literal(CType::U64, most)),
                };
                let code = self.called(ctype, &value.valid, &format!("({}){call}", ctype.local()));
                self.fail_where(&[&format!("!{ok}")], &value.valid);
                Ok(Value { code, ..value })
            }
            _ => refuse(),
        }
    }

    fn decimal_rounded_by_row(
        &mut self,
        round: bool,
        value: Value,
        (precision, scale): (u8, i8),
        digits: &Value,
        data_type: &DataType,
    ) -> Result<Value> {
        let own = native(data_type)?;
        let most = most_digits(own);
        let (wide, section) = match own {
            CType::I256 => (CType::I256, Section::RoundDigitsI256),
            _ => (CType::I128, Section::RoundDigitsI128),
        };
        self.params.need(section);
        // Dropping more digits than these leaves 0.
        let droppable = if round { precision } else { most - 1 };
        let ok = self.flag("1");
        let dropped = format!("dropped_digits({scale}, {})", digits.code);
        let call = format!(
            "{}_round_digits({}, {dropped}, {droppable}, {}, &{ok})",
            wide.name(),
            value.to_ctype(wide),
            i32::from(round)
        );
        let code = self.called(wide, &value.valid, &call);
        let mut failing = vec![format!("!{ok}")];
        match own {
            CType::I32 => failing.push(format!("(!i128_fits({code}) | ((i64){code}.lo != (i32){code}.lo))")),
            CType::I64 => failing.push(format!("!i128_fits({code})")),
            _ => {}
        }
        let failing: Vec<&str> = failing.iter().map(String::as_str).collect();
        self.fail_where(&failing, &value.valid);
        let value = Value { data_type: data_type.clone(), ctype: wide, code, ..value };
        // DataFusion adds a digit for the carry, unless the type has all digits.
        if round && precision_scale(data_type).is_some_and(|(precision, _)| precision == most) {
            return match own {
                CType::I256 => self.limited_wide(value, data_type, most, true),
                _ => self.limited(value, data_type, most, true),
            };
        }
        let code = if own == wide { value.code.clone() } else { self.local(own, &value.to_ctype(own)) };
        Ok(Value { ctype: own, code, ..value })
    }
}
