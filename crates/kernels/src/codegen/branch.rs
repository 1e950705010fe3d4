// SPDX-License-Identifier: Apache-2.0
//! `CASE` and `COALESCE`.

use arrow::datatypes::DataType;

use super::call::composes;
use super::row::{RowWriter, Scope, unsupported};
use super::value::{CType, Value};
use crate::expr::{Expr, value_type};
use crate::{Error, Result};

impl RowWriter<'_> {
    #[recursive::recursive]
    pub(super) fn case(&mut self, branches: &[(Expr, Expr)], otherwise: Option<&Expr>, data_type: &DataType) -> Result<Value> {
        if branches.iter().any(|(_, value)| composes(value)) || otherwise.is_some_and(composes) {
            let data_type = Some(value_type(data_type).clone());
            self.read_shared_columns(branches.iter().map(|(_, value)| value).chain(otherwise))?;
            return self.composed_choice(data_type, |writer, choice| writer.composed_case(branches, otherwise, choice));
        }
        let data_type = value_type(data_type);
        let Some(((condition, value), rest)) = branches.split_first() else {
            return self.otherwise(otherwise, data_type);
        };
        let condition = self.boolean(condition)?.is_true();
        let then = self.detached(|writer| {
            let value = writer.eval(value)?;
            retype(value, data_type)
        })?;
        let other = self.detached(|writer| writer.case(rest, otherwise, data_type))?;
        Ok(self.choose(&condition, then, other))
    }

    pub(super) fn otherwise(&mut self, otherwise: Option<&Expr>, data_type: &DataType) -> Result<Value> {
        match otherwise {
            Some(otherwise) => {
                let value = self.branch(otherwise)?;
                retype(value, data_type)
            }
            None => null(data_type),
        }
    }

    /// The value of a branch, which may be a composed string.
    pub(super) fn branch(&mut self, expr: &Expr) -> Result<Value> {
        if composes(expr) { self.eval_output(expr) } else { self.eval(expr) }
    }

    #[recursive::recursive]
    pub(super) fn coalesce(&mut self, operands: &[Expr]) -> Result<Value> {
        let Some((first, rest)) = operands.split_first() else {
            return Err(Error::Internal("COALESCE of nothing".into()));
        };
        if operands.iter().any(composes) {
            self.read_shared_columns(operands)?;
            return self.composed_choice(None, |writer, choice| writer.composed_coalesce(first, rest, choice));
        }
        let first = self.eval(first)?;
        match &first.valid {
            Some(valid) if !rest.is_empty() => {
                let valid = valid.clone();
                let other = self.detached(|writer| writer.coalesce(rest))?;
                let data_type =
                    if first.data_type == DataType::Null { other.1.data_type.clone() } else { first.data_type.clone() };
                let first = retype(first, &data_type)?;
                let other = (other.0, retype(other.1, &data_type)?);
                let first = (Scope::default(), Value { valid: None, ..first });
                Ok(self.choose(&valid, first, other))
            }
            _ => Ok(first),
        }
    }

    /// The first value where the condition holds, else the other: a branch, or a select of two
    /// cheap blocks.
    fn choose(&mut self, condition: &str, then: (Scope, Value), other: (Scope, Value)) -> Value {
        let ((then_scope, then), (other_scope, other)) = (then, other);
        let ctype = wider(then.ctype, other.ctype);
        let data_type = then.data_type.clone();
        let bounds = match (then.is_null(), other.is_null(), then.range(), other.range()) {
            (false, false, Some(a), Some(b)) => Some((a.0.min(b.0), a.1.max(b.1))),
            (true, _, _, bounds) | (_, true, bounds, _) => bounds,
            _ => None,
        };
        let nullable = then.valid.is_some() || other.valid.is_some();
        let (then_code, other_code) = (widened(&then, ctype), widened(&other, ctype));
        if then_scope.is_cheap() && other_scope.is_cheap() {
            self.splice(then_scope);
            self.splice(other_scope);
            let code = self.select(ctype, condition, &then_code, &other_code);
            let code = self.local(ctype, &code);
            let valid = nullable.then(|| self.flag(&format!("{condition} ? {} : {}", then.valid_code(), other.valid_code())));
            return Value { data_type, ctype, code, valid, bounds };
        }
        let code = self.local(ctype, ctype.zero());
        let valid = nullable.then(|| self.flag("0"));
        let assign = |value: &Value, from: &str| match &valid {
            Some(valid) => format!("{code} = {from};\n{valid} = {};", value.valid_code()),
            None => format!("{code} = {from};"),
        };
        self.costly();
        self.push(&format!("if ({condition}) {{"));
        self.append(&then_scope);
        self.push_inner(&assign(&then, &then_code));
        self.push("} else {");
        self.append(&other_scope);
        self.push_inner(&assign(&other, &other_code));
        self.push("}");
        Value { data_type, ctype, code, valid, bounds }
    }
}

fn widened(value: &Value, ctype: CType) -> String {
    if value.is_null() { ctype.zero().into() } else { value.to_ctype(ctype) }
}

/// The C type that holds values of both; decimals of one type differ in width.
fn wider(left: CType, right: CType) -> CType {
    if left.width() >= right.width() { left } else { right }
}

fn null(data_type: &DataType) -> Result<Value> {
    match CType::native(data_type) {
        Some(ctype) => Ok(Value::null(data_type.clone(), ctype)),
        None => unsupported(format!("type {data_type} is not supported on the device")),
    }
}

/// The value in the type of the `CASE`: untyped NULLs are retyped, other types are refused.
pub(super) fn retype(value: Value, data_type: &DataType) -> Result<Value> {
    if value.data_type == DataType::Null {
        return null(data_type);
    }
    let string = CType::native(data_type) == Some(CType::Str) && matches!(value.ctype, CType::Str | CType::ComposedString);
    if value.data_type == *data_type || string {
        return Ok(Value { data_type: data_type.clone(), ..value });
    }
    unsupported(format!("a branch of type {} in a CASE of type {data_type} is not supported on the device", value.data_type))
}
