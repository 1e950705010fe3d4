// SPDX-License-Identifier: Apache-2.0
//! Arithmetic of integers and floats, bit operations, negation.
//!
//! - Integer `+ - *` wrap.
//! - Division and modulo by zero fail the row, and so does MIN / -1; MIN % -1 is 0.
//! - Shifts take their amount modulo the width.
//! - Floats follow IEEE 754.

use arrow::datatypes::{DataType, i256};

use super::row::{RowWriter, unsupported};
use super::value::{CType, Value, literal, wide_literal};
use crate::expr::{ArithmeticOp, Expr};
use crate::prelude::Section;
use crate::{Error, Result};

/// Bounds of a value.
type Bounds = (i128, i128);

impl RowWriter<'_> {
    pub(super) fn arithmetic(&mut self, op: ArithmeticOp, left: &Expr, right: &Expr, data_type: &DataType) -> Result<Value> {
        let (left, right) = (self.eval(left)?, self.eval(right)?);
        let Some(ctype) = CType::native(data_type) else {
            return unsupported(format!("type {data_type} is not supported on the device"));
        };
        if left.is_null() || right.is_null() {
            return Ok(Value::null(data_type.clone(), ctype));
        }
        match (&left.data_type, &right.data_type) {
            (l, r) if l.is_decimal() && r.is_decimal() => self.decimal_arithmetic(op, &left, &right, data_type),
            (l, r) if l.is_temporal() || r.is_temporal() => self.temporal_arithmetic(op, &left, &right, data_type),
            (l, r) if l == r && l == data_type && l.is_integer() => self.integer_arithmetic(op, &left, &right),
            (l, r) if l == r && l == data_type && ctype.is_float() => self.float_arithmetic(op, &left, &right),
            (l, r) => unsupported(format!("{l} {} {r} is not supported on the device", symbol(op))),
        }
    }

    fn integer_arithmetic(&mut self, op: ArithmeticOp, left: &Value, right: &Value) -> Result<Value> {
        let ctype = left.ctype;
        let valid = self.both_valid(left, right);
        let bounds = integer_bounds(op, left, right).filter(|bounds| within(*bounds, ctype));
        let (name, l, r) = (ctype.local(), &left.code, &right.code);
        let (least, _) = ctype.range().unwrap_or((0, 0));
        // Signed overflow is undefined in C, hence unsigned operands.
        let unsigned = if ctype.width() == 8 { "u64" } else { "u32" };
        let mask = ctype.width() * 8 - 1;
        let code = match op {
            ArithmeticOp::Add | ArithmeticOp::Subtract | ArithmeticOp::Multiply => {
                format!("({name})(({unsigned}){l} {} ({unsigned}){r})", symbol(op))
            }
            ArithmeticOp::BitAnd | ArithmeticOp::BitOr | ArithmeticOp::BitXor => format!("({name})({l} {} {r})", symbol(op)),
            ArithmeticOp::ShiftLeft => format!("({name})(({unsigned}){l} << ({r} & {mask}))"),
            ArithmeticOp::ShiftRight => format!("({name})({l} >> ({r} & {mask}))"),
            ArithmeticOp::Divide | ArithmeticOp::Modulo => {
                let zero = format!("({r} == 0)");
                let overflow = format!("(({r} == -1) & ({l} == {}))", literal(ctype, least));
                let mut failing = Vec::new();
                if may_be(right.range(), 0) {
                    failing.push(zero.as_str());
                }
                if op == ArithmeticOp::Divide && ctype.is_signed() && may_be(right.range(), -1) && may_be(left.range(), least) {
                    failing.push(&overflow);
                }
                self.fail_where(&failing, &valid);
                // The division must not trap on any row, failing and NULL ones included.
                let mut trapping = Vec::new();
                if may_be(right.raw_range(), 0) {
                    trapping.push(zero.as_str());
                }
                if ctype.is_signed() && may_be(right.raw_range(), -1) && may_be(left.raw_range(), least) {
                    trapping.push(&overflow);
                }
                self.costly();
                match (trapping.is_empty(), op) {
                    (true, _) => format!("({name})({l} {} {r})", symbol(op)),
                    (false, _) => format!("({name})({l} {} (({}) ? ({name})1 : ({name}){r}))", symbol(op), trapping.join(" | ")),
                }
            }
        };
        let code = self.local(ctype, &code);
        Ok(Value { data_type: left.data_type.clone(), ctype, code, valid, bounds })
    }

    fn float_arithmetic(&mut self, op: ArithmeticOp, left: &Value, right: &Value) -> Result<Value> {
        self.params.need(Section::Float);
        let function = match op {
            ArithmeticOp::Add => "add",
            ArithmeticOp::Subtract => "sub",
            ArithmeticOp::Multiply => "mul",
            ArithmeticOp::Divide => "div",
            ArithmeticOp::Modulo => {
                self.params.need(Section::FloatRem);
                self.costly();
                "rem"
            }
            ArithmeticOp::BitAnd
            | ArithmeticOp::BitOr
            | ArithmeticOp::BitXor
            | ArithmeticOp::ShiftLeft
            | ArithmeticOp::ShiftRight => {
                return unsupported(format!("{} of {} is not supported on the device", symbol(op), left.data_type));
            }
        };
        let valid = self.both_valid(left, right);
        let code = self.local(left.ctype, &format!("{}_{function}({}, {})", left.ctype.name(), left.code, right.code));
        Ok(Value { data_type: left.data_type.clone(), ctype: left.ctype, code, valid, bounds: None })
    }

    pub(super) fn negate(&mut self, operand: &Expr) -> Result<Value> {
        let value = self.eval(operand)?;
        if value.is_null() {
            return Ok(value);
        }
        let (ctype, code) = (value.ctype, &value.code);
        let bounds = value.bounds.and_then(|(least, most)| Some((most.checked_neg()?, least.checked_neg()?)));
        let code = match (&value.data_type, ctype) {
            (_, CType::F32 | CType::F64) => format!("{}_neg({code})", ctype.name()),
            (data_type, _) if data_type.is_decimal() || matches!(data_type, DataType::Duration(_)) => {
                return self.negate_checked(&value);
            }
            (DataType::Interval(_), _) => return Ok(self.negate_interval(&value)),
            (data_type, CType::I8 | CType::I16 | CType::I32) if data_type.is_integer() => {
                format!("({})(0u - (u32){code})", ctype.local())
            }
            (data_type, CType::I64) if data_type.is_integer() => format!("(i64)((u64)0 - (u64){code})"),
            (data_type, _) => return unsupported(format!("unary minus of {data_type} is not supported on the device")),
        };
        let code = self.local(ctype, &code);
        Ok(Value { code, bounds: bounds.filter(|bounds| within(*bounds, ctype)), ..value })
    }

    /// Negation of decimals and durations; the least value fails the row.
    fn negate_checked(&mut self, value: &Value) -> Result<Value> {
        let native = CType::native(&value.data_type).ok_or_else(|| Error::Internal("negation of an unknown type".into()))?;
        let (least, most) = value.range().unwrap_or((i128::MIN, i128::MAX));
        let (native_least, _) = native.range().unwrap_or((i128::MIN, i128::MAX));
        // A decimal in a narrow integer widens if the negated least value exceeds it.
        let ctype = match value.ctype {
            CType::I32 if native != CType::I32 => CType::I64,
            CType::I64 if native.is_wide() && least == i64::MIN as i128 => CType::I128,
            CType::I128 if native == CType::I256 && least == i128::MIN => CType::I256,
            other => other,
        };
        self.params.need_type(ctype);
        let code = value.to_ctype(ctype);
        if least == native_least && (native != CType::I256 || value.ctype == native) {
            let failing = match ctype {
                CType::I256 => format!("i256_eq({code}, {})", wide_literal(i256::MIN)),
                CType::I128 => format!("i128_eq({code}, i128_make(0, (u64)1 << 63))"),
                _ => format!("({code} == {})", literal(ctype, native_least)),
            };
            self.fail_where(&[&failing], &value.valid);
        }
        let negated = match ctype {
            CType::I128 | CType::I256 => format!("{}_neg({code})", ctype.name()),
            CType::I64 => format!("(i64)((u64)0 - (u64){code})"),
            _ => format!("(i32)(0u - (u32){code})"),
        };
        let code = self.local(ctype, &negated);
        let bounds = most.checked_neg().and_then(|low| Some((low, least.checked_neg()?))).filter(|bounds| within(*bounds, ctype));
        Ok(Value { data_type: value.data_type.clone(), ctype, code, valid: value.valid.clone(), bounds })
    }

    /// Fails valid rows where one of the conditions holds.
    pub(super) fn fail_where(&mut self, conditions: &[&str], valid: &Option<String>) {
        if conditions.is_empty() {
            return;
        }
        match (valid, conditions) {
            (Some(valid), _) => self.fail_if(&format!("{valid} & ({})", conditions.join(" | "))),
            // Compilers warn about a comparison in double parentheses.
            (None, [condition]) => self.fail_if(unbracketed(condition)),
            (None, _) => self.fail_if(&conditions.join(" | ")),
        }
    }
}

/// C without enclosing parentheses.
fn unbracketed(code: &str) -> &str {
    let Some(inner) = code.strip_prefix('(').and_then(|code| code.strip_suffix(')')) else { return code };
    let mut depth = 0;
    for c in inner.chars() {
        match c {
            '(' => depth += 1,
            ')' if depth == 0 => return code,
            ')' => depth -= 1,
            _ => {}
        }
    }
    inner
}

/// The operator in SQL.
pub(super) fn symbol(op: ArithmeticOp) -> &'static str {
    match op {
        ArithmeticOp::Add => "+",
        ArithmeticOp::Subtract => "-",
        ArithmeticOp::Multiply => "*",
        ArithmeticOp::Divide => "/",
        ArithmeticOp::Modulo => "%",
        ArithmeticOp::BitAnd => "&",
        ArithmeticOp::BitOr => "|",
        ArithmeticOp::BitXor => "^",
        ArithmeticOp::ShiftLeft => "<<",
        ArithmeticOp::ShiftRight => ">>",
    }
}

/// Whether a type holds all values between bounds.
pub(super) fn within(bounds: Bounds, ctype: CType) -> bool {
    ctype.range().is_some_and(|(least, most)| least <= bounds.0 && bounds.1 <= most)
}

/// Whether bounds include a value.
pub(super) fn may_be(bounds: Option<Bounds>, value: i128) -> bool {
    bounds.is_none_or(|(least, most)| least <= value && value <= most)
}

/// Bounds of a result before wrapping.
pub(super) fn integer_bounds(op: ArithmeticOp, left: &Value, right: &Value) -> Option<Bounds> {
    let (l, r) = (left.range()?, right.range()?);
    match op {
        ArithmeticOp::Add => Some((l.0.checked_add(r.0)?, l.1.checked_add(r.1)?)),
        ArithmeticOp::Subtract => Some((l.0.checked_sub(r.1)?, l.1.checked_sub(r.0)?)),
        ArithmeticOp::Multiply => {
            let products = [l.0.checked_mul(r.0)?, l.0.checked_mul(r.1)?, l.1.checked_mul(r.0)?, l.1.checked_mul(r.1)?];
            Some((*products.iter().min()?, *products.iter().max()?))
        }
        // Neither exceeds the left operand; a remainder is below its divisor.
        ArithmeticOp::Divide | ArithmeticOp::Modulo => {
            let most = l.0.checked_abs()?.max(l.1.checked_abs()?);
            let most = match op {
                ArithmeticOp::Modulo => most.min(r.0.checked_abs()?.max(r.1.checked_abs()?).checked_sub(1)?.max(0)),
                _ => most,
            };
            let signless = l.0 >= 0 && (op == ArithmeticOp::Modulo || r.0 >= 0);
            Some((if signless { 0 } else { -most }, if op == ArithmeticOp::Modulo && l.1 <= 0 { 0 } else { most }))
        }
        ArithmeticOp::BitAnd
        | ArithmeticOp::BitOr
        | ArithmeticOp::BitXor
        | ArithmeticOp::ShiftLeft
        | ArithmeticOp::ShiftRight => None,
    }
}
