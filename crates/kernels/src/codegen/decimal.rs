// SPDX-License-Identifier: Apache-2.0
//! Arithmetic of decimals, by arrow-arith's rules (`decimal_op` in its `numeric.rs`).
//!
//! - `+ - %` bring both operands to the larger scale. `/` raises the dividend by
//!   10^(result scale - s1 + s2).
//! - Every multiplication and the operation itself fail where they exceed the type's integer (i32,
//!   i64, i128, i256). The precision is not checked.
//! - Bounds that exclude an overflow save its check.
//! - The computation takes 64, 128 or 256 bits: the least that bounds prove sufficient.

use arrow::datatypes::{DataType, i256};

use super::arithmetic::{integer_bounds, may_be, symbol, within};
use super::row::{RowWriter, unsupported};
use super::value::{CType, Value, literal, wide_literal};
use crate::expr::ArithmeticOp;
use crate::prelude::Section;
use crate::{Error, Result};

impl RowWriter<'_> {
    pub(super) fn decimal_arithmetic(
        &mut self,
        op: ArithmeticOp,
        left: &Value,
        right: &Value,
        data_type: &DataType,
    ) -> Result<Value> {
        let refuse =
            || unsupported(format!("{} {} {} is not supported on the device", left.data_type, symbol(op), right.data_type));
        let (Some(native), Some((_, s1)), Some((_, s2)), Some((_, scale))) = (
            CType::native(data_type),
            precision_scale(&left.data_type),
            precision_scale(&right.data_type),
            precision_scale(data_type),
        ) else {
            return refuse();
        };
        if CType::native(&left.data_type) != Some(native) || CType::native(&right.data_type) != Some(native) {
            return refuse();
        }
        let (s1, s2, scale) = (i32::from(s1), i32::from(s2), i32::from(scale));
        // Powers of ten that scale the operands.
        let (expected, up_left, up_right) = match op {
            ArithmeticOp::Add | ArithmeticOp::Subtract | ArithmeticOp::Modulo => {
                let scale = s1.max(s2);
                (scale, scale - s1, scale - s2)
            }
            ArithmeticOp::Multiply => (s1 + s2, 0, 0),
            ArithmeticOp::Divide => {
                let most = i32::from(most_digits(native));
                let scale = (s1 + 4).min(most);
                let up = scale - s1 + s2;
                (scale, up.max(0), (-up).max(0))
            }
            ArithmeticOp::BitAnd
            | ArithmeticOp::BitOr
            | ArithmeticOp::BitXor
            | ArithmeticOp::ShiftLeft
            | ArithmeticOp::ShiftRight => return refuse(),
        };
        if expected != scale {
            return refuse();
        }
        // A NULL operand excludes overflow.
        let valid = self.both_valid(left, right);
        let [left, right] = [left, right].map(|value| Value { valid: valid.clone(), ..value.clone() });
        let left = self.scaled_up(&left, up_left, native)?;
        let right = self.scaled_up(&right, up_right, native)?;
        let value = match op {
            ArithmeticOp::Divide | ArithmeticOp::Modulo => self.divided(op, &left, &right, native),
            _ => self.checked(op, &left, &right, native),
        };
        Ok(Value { data_type: data_type.clone(), ..value })
    }

    /// A decimal's integer times a power of ten, checked.
    fn scaled_up(&mut self, value: &Value, power: i32, native: CType) -> Result<Value> {
        if power == 0 {
            return Ok(value.clone());
        }
        let factor = match (power_of_ten(power), wide_power_of_ten(power)) {
            (Some(factor), _) if within((factor, factor), native) => constant_value(&value.data_type, factor),
            (_, Some(factor)) if native == CType::I256 => wide_constant(&value.data_type, factor),
            _ => {
                return unsupported(format!("10^{power}, the factor that scales {}, exceeds the type", value.data_type));
            }
        };
        Ok(self.checked(ArithmeticOp::Multiply, value, &factor, native))
    }

    /// `+ - *`; a result beyond the native type fails the row.
    pub(super) fn checked(&mut self, op: ArithmeticOp, left: &Value, right: &Value, native: CType) -> Value {
        let valid = self.both_valid(left, right);
        let bounds = integer_bounds(op, left, right);
        let name = match op {
            ArithmeticOp::Add => "add",
            ArithmeticOp::Subtract => "sub",
            _ => "mul",
        };
        let small = !left.ctype.is_wide() && !right.ctype.is_wide();
        let widest = left.ctype == CType::I256 || right.ctype == CType::I256 || native == CType::I256 && bounds.is_none();
        let (ctype, code) = if small && bounds.is_some_and(|bounds| within(bounds, CType::I64)) {
            let code = format!("{} {} {}", left.to_ctype(CType::I64), symbol(op), right.to_ctype(CType::I64));
            (CType::I64, self.local(CType::I64, &code))
        } else if widest {
            self.params.need(Section::I256);
            let (l, r) = (left.to_ctype(CType::I256), right.to_ctype(CType::I256));
            self.fail_where(&[&format!("i256_{name}_over({l}, {r})")], &valid);
            (CType::I256, self.local(CType::I256, &format!("i256_{name}({l}, {r})")))
        } else {
            self.params.need(Section::I128);
            let code = match (op, small) {
                (ArithmeticOp::Multiply, true) => {
                    format!("i128_mul64({}, {})", left.to_ctype(CType::I64), right.to_ctype(CType::I64))
                }
                _ => {
                    let (l, r) = (left.to_ctype(CType::I128), right.to_ctype(CType::I128));
                    if native == CType::I128 && bounds.is_none() {
                        self.fail_where(&[&format!("i128_{name}_over({l}, {r})")], &valid);
                    }
                    format!("i128_{name}({l}, {r})")
                }
            };
            (CType::I128, self.local(CType::I128, &code))
        };
        self.in_native(Value { data_type: left.data_type.clone(), ctype, code, valid, bounds }, native)
    }

    /// Truncating `/` and `%`; a divisor of 0 and the least value by -1 fail the row.
    fn divided(&mut self, op: ArithmeticOp, left: &Value, right: &Value, native: CType) -> Value {
        let valid = self.both_valid(left, right);
        let small = !left.ctype.is_wide() && !right.ctype.is_wide();
        let ctype = match native {
            _ if small => CType::I64,
            CType::I256 => CType::I256,
            _ => CType::I128,
        };
        let (l, r) = (left.to_ctype(ctype), right.to_ctype(ctype));
        let is = |code: &str, value: i128| match small {
            true => format!("({code} == {})", literal(ctype, value)),
            false => format!("{}_eq({code}, {})", ctype.name(), literal(ctype, value)),
        };
        let least = native.range().map_or(i128::MIN, |(least, _)| least);
        let zero = is(&r, 0);
        let overflow = |least| match native {
            CType::I256 if !small => format!("({} & i256_eq({l}, {}))", is(&r, -1), wide_literal(i256::MIN)),
            _ => format!("({} & {})", is(&r, -1), is(&l, least)),
        };
        let mut failing = Vec::new();
        if may_be(right.range(), 0) {
            failing.push(zero.clone());
        }
        if may_be(right.range(), -1) && may_be(left.range(), least) {
            failing.push(overflow(least));
        }
        let failing: Vec<&str> = failing.iter().map(String::as_str).collect();
        self.fail_where(&failing, &valid);
        // The division must not trap on any row, failing and NULL ones included.
        let mut trapping = Vec::new();
        if may_be(right.raw_range(), 0) {
            trapping.push(zero);
        }
        if may_be(right.raw_range(), -1) && small && may_be(left.raw_range(), i64::MIN as i128) {
            trapping.push(overflow(i64::MIN as i128));
        }
        self.costly();
        let divisor = match trapping.is_empty() {
            true => r,
            false => {
                let one = literal(ctype, 1);
                let code = self.select(ctype, &format!("({})", trapping.join(" | ")), &one, &r);
                self.local(ctype, &code)
            }
        };
        let code = match (small, op) {
            (true, _) => format!("{l} {} {divisor}", symbol(op)),
            (false, ArithmeticOp::Divide) => format!("{}_div({l}, {divisor})", ctype.name()),
            (false, _) => format!("{}_rem({l}, {divisor})", ctype.name()),
        };
        if !small {
            self.params.need(if ctype == CType::I256 { Section::I256Div } else { Section::I128Div });
        }
        let code = self.local(ctype, &code);
        let bounds = integer_bounds(op, left, right).filter(|bounds| within(*bounds, ctype));
        let value = Value { data_type: left.data_type.clone(), ctype, code, valid, bounds };
        match native {
            CType::I32 => Value { code: value.to_ctype(CType::I32), ctype: CType::I32, ..value },
            _ => value,
        }
    }

    /// Fails rows outside the native type, and converts the value to a type that holds the rest.
    fn in_native(&mut self, value: Value, native: CType) -> Value {
        let proven = value.bounds.is_some_and(|bounds| within(bounds, native));
        let ctype = match native {
            // Results of 64 bits stay in 64 bits.
            CType::I128 | CType::I256 => value.ctype,
            narrow => narrow,
        };
        if !proven && !native.is_wide() {
            let outside = match (value.ctype, native) {
                (CType::I128, CType::I64) => format!("!i128_fits({})", value.code),
                (CType::I128, _) => format!("(!i128_fits({0}) | ((i64){0}.lo != (i32){0}.lo))", value.code),
                _ => format!("({0} != (i32){0})", value.code),
            };
            self.fail_where(&[&outside], &value.valid);
        }
        let bounds = value.bounds.filter(|bounds| within(*bounds, ctype));
        match value.ctype == ctype {
            true => Value { bounds, ..value },
            false => {
                let code = value.to_ctype(ctype);
                let code = self.local(ctype, &code);
                Value { ctype, code, bounds, ..value }
            }
        }
    }
}

/// Precision and scale of a decimal.
pub(super) fn precision_scale(data_type: &DataType) -> Option<(u8, i8)> {
    match data_type {
        DataType::Decimal32(precision, scale)
        | DataType::Decimal64(precision, scale)
        | DataType::Decimal128(precision, scale)
        | DataType::Decimal256(precision, scale) => Some((*precision, *scale)),
        _ => None,
    }
}

/// Greatest precision of a decimal with this integer type.
pub(super) const fn most_digits(native: CType) -> u8 {
    match native {
        CType::I32 => 9,
        CType::I64 => 18,
        CType::I128 => 38,
        _ => 76,
    }
}

/// 10 to the power, if i128 holds it.
pub(super) fn power_of_ten(power: i32) -> Option<i128> {
    10i128.checked_pow(u32::try_from(power).ok()?)
}

/// 10 to the power, if i256 holds it.
pub(super) fn wide_power_of_ten(power: i32) -> Option<i256> {
    i256::from_i128(10).checked_pow(u32::try_from(power).ok()?)
}

/// A constant of 256 bits in the kernel source.
fn wide_constant(data_type: &DataType, value: i256) -> Value {
    Value { data_type: data_type.clone(), ctype: CType::I256, code: wide_literal(value), valid: None, bounds: None }
}

/// A constant in the kernel source.
pub(super) fn constant_value(data_type: &DataType, value: i128) -> Value {
    let ctype = if within((value, value), CType::I64) { CType::I64 } else { CType::I128 };
    Value { data_type: data_type.clone(), ctype, code: literal(ctype, value), valid: None, bounds: Some((value, value)) }
}

/// Integer type of a decimal.
pub(super) fn native(data_type: &DataType) -> Result<CType> {
    CType::native(data_type).ok_or_else(|| Error::Internal(format!("{data_type} has no C type")))
}
