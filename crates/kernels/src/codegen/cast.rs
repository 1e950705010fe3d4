// SPDX-License-Identifier: Apache-2.0
//! Casts by arrow-cast's rules: the choice of a cast, and casts among integers, floats and
//! Booleans.
//!
//! `CAST` records an error where `TRY_CAST` gives NULL. Timestamps outside the calendar fail both,
//! as in arrow-cast.

use arrow::compute::can_cast_types;
use arrow::datatypes::DataType;

use super::arithmetic::within;
use super::row::{RowWriter, unsupported};
use super::value::{CType, Value, literal};
use crate::Result;
use crate::expr::Expr;

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
        match (TypeClass::of(&from), TypeClass::of(to)) {
            // Every value of the type is NULL.
            _ if *to == DataType::Null => Ok(Value::null(DataType::Null, ctype)),
            (TypeClass::Integer, TypeClass::String) if matches!(to, DataType::Binary | DataType::LargeBinary) => {
                Ok(self.integer_bytes(value, to))
            }
            (TypeClass::String, TypeClass::String) if let DataType::FixedSizeBinary(width) = to => {
                Ok(self.of_width(value, to, *width, checked))
            }
            (TypeClass::String, TypeClass::String) => self.cast_bytes(value, to, checked),
            (TypeClass::String, _) => self.parse(value, to, checked),
            (_, TypeClass::String) => self.format(value, to),
            (TypeClass::Integer | TypeClass::Float, TypeClass::Bool) => {
                let code = self.flag(&format!("{} != 0", value.code));
                Ok(Value { data_type: to.clone(), ctype, code, valid: value.valid, bounds: None })
            }
            (TypeClass::Bool, TypeClass::Integer | TypeClass::Float) => {
                let code = self.local(ctype, &value.code);
                let bounds = ctype.is_integer().then_some((0, 1));
                Ok(Value { data_type: to.clone(), ctype, code, valid: value.valid, bounds })
            }
            (TypeClass::Integer, TypeClass::Integer) => self.narrowed(value, to, ctype, checked),
            (TypeClass::Integer, TypeClass::Float) => {
                let code = self.local(ctype, &format!("({}){}", ctype.name(), value.code));
                Ok(Value { data_type: to.clone(), ctype, code, valid: value.valid, bounds: None })
            }
            (TypeClass::Float, TypeClass::Integer) => self.float_to_integer(value, to, ctype, checked),
            (TypeClass::Float, TypeClass::Float) => {
                let code = self.local(ctype, &format!("({}){}", ctype.name(), value.code));
                Ok(Value { data_type: to.clone(), ctype, code, valid: value.valid, bounds: None })
            }
            (TypeClass::Integer, TypeClass::Decimal) if wide => self.integer_to_wide(value, to, checked),
            (TypeClass::Decimal, TypeClass::Decimal) if wide => self.decimal_to_wide(value, to, checked),
            (TypeClass::Decimal, TypeClass::Integer) if wide => self.wide_to_integer(value, to, ctype, checked),
            (TypeClass::Integer, TypeClass::Decimal) => self.integer_to_decimal(value, to, checked),
            (TypeClass::Float, TypeClass::Decimal) => self.float_to_decimal(value, to, checked),
            (TypeClass::Decimal, TypeClass::Decimal) => self.decimal_to_decimal(value, to, checked),
            (TypeClass::Decimal, TypeClass::Integer) => {
                let value = self.decimal_to_whole(value, checked)?;
                self.narrowed(value, to, ctype, checked)
            }
            (TypeClass::Decimal, TypeClass::Float) => self.decimal_to_float(value, to, ctype),
            _ => self.cast_temporal(value, to, checked),
        }
    }

    /// Fails rows where a condition holds (`CAST`), or makes them NULL (`TRY_CAST`); the validity.
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

    /// An integer, also of a decimal, in another integer type; a value beyond it fails the row or
    /// is NULL.
    pub(super) fn narrowed(&mut self, value: Value, to: &DataType, ctype: CType, checked: bool) -> Result<Value> {
        let outside = outside(&value, ctype.range().unwrap_or_default());
        let valid = self.fail_or_null(value.valid.clone(), &outside, checked);
        let code = value.to_ctype(ctype);
        let code = if value.ctype == ctype { code } else { self.local(ctype, &code) };
        let bounds = value.range().map(|range| intersect(range, ctype));
        Ok(Value { data_type: to.clone(), ctype, code, valid, bounds })
    }

    /// Truncates; NaN and values beyond the type fail the row or are NULL.
    fn float_to_integer(&mut self, value: Value, to: &DataType, ctype: CType, checked: bool) -> Result<Value> {
        let (least, most) = ctype.range().unwrap_or_default();
        // The limits are powers of two, or one beyond, which both float types represent.
        let of = value.ctype.name();
        let above = (most + 1) as f64;
        let inside = match ctype.is_signed() {
            true if value.ctype == CType::F64 && ctype.width() < 8 => {
                format!("({0} > {1:.1}) & ({0} < {2:.1})", value.code, least as f64 - 1.0, above)
            }
            // least - 1 has no float: every float from least up truncates into the type.
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
}

/// Class of types that casts treat alike.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum TypeClass {
    Bool,
    Integer,
    Float,
    Decimal,
    /// Strings and binary.
    String,
    Temporal,
}

impl TypeClass {
    fn of(data_type: &DataType) -> TypeClass {
        match data_type {
            DataType::Boolean | DataType::Null => TypeClass::Bool,
            data_type if data_type.is_integer() => TypeClass::Integer,
            data_type if data_type.is_floating() => TypeClass::Float,
            data_type if data_type.is_decimal() => TypeClass::Decimal,
            data_type if data_type.is_temporal() => TypeClass::Temporal,
            _ => TypeClass::String,
        }
    }
}

/// Conditions under which an integer lies outside of limits, without those excluded by bounds.
pub(super) fn outside(value: &Value, (least, most): (i128, i128)) -> Vec<String> {
    let (low, high) = value.range().unwrap_or((i128::MIN, i128::MAX));
    let mut conditions = Vec::new();
    let code = &value.code;
    if low < least {
        conditions.push(match value.ctype {
            CType::I128 => format!("i128_lt({code}, {})", literal(CType::I128, least)),
            // The type does not hold the limit: no value of it lies inside.
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
