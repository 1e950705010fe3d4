// SPDX-License-Identifier: Apache-2.0
//! Calls of scalar functions: arguments, NULLs, and the choice between overloads and generators.

use arrow::datatypes::DataType;

use super::concatenation::is_concatenation;
use super::row::{RowWriter, unsupported};
use super::value::{CType, Value};
use crate::Result;
use crate::expr::{Expr, value_type};
use crate::function::{ColumnFunction, Function, Generator, NullHandling, ResultType};

impl RowWriter<'_> {
    pub(super) fn call(&mut self, function: Function, arguments: &[Expr], data_type: &DataType) -> Result<Value> {
        let data_type = value_type(data_type);
        let Some(ctype) = CType::native(data_type) else {
            return unsupported(format!("type {data_type} is not supported on the device"));
        };
        let row = function.row();
        if let (Some(code), [string]) = (row.over_concatenation, arguments)
            && is_concatenation(string)
        {
            return self.measure_concatenation(function, code, string, data_type);
        }
        let takes_new_strings = match row.generator {
            // These generators evaluate their arguments themselves.
            Some(Generator::Rounding(of)) => return self.rounding_call(of, function, arguments, data_type),
            Some(Generator::Format) => return self.format_call(function, arguments, data_type),
            Some(Generator::Column(of)) => return self.column_call(of, function, arguments, data_type),
            Some(Generator::Concatenation(of)) => !of.has_separator(),
            Some(
                Generator::Selection(_)
                | Generator::DateTime(_)
                | Generator::Number(_)
                | Generator::Inexact
                | Generator::Sketch(_),
            )
            | None => false,
        };
        let eval = |argument| if takes_new_strings { self.eval_output(argument) } else { self.eval(argument) };
        let values = arguments.iter().map(eval).collect::<Result<Vec<_>>>()?;
        if values.iter().any(|value| value.ctype == CType::List) {
            return refuse_call(function, &values);
        }
        if row.nulls == NullHandling::Propagate && values.iter().any(Value::is_null) {
            return Ok(Value::null(data_type.clone(), ctype));
        }
        if let Some(overload) = row.overload_of(&values, data_type) {
            // DataFusion evaluates constant arguments before any row.
            let constant = arguments.iter().skip(1).all(|argument| matches!(argument, Expr::Literal(_)));
            return self.overload_call(function, overload, &values, row.checks_constants && constant, data_type);
        }
        match row.generator {
            Some(Generator::Concatenation(of)) => self.concatenation_call(of, function, &values, data_type),
            Some(Generator::Selection(of)) => self.selection_call(of, function, &values, data_type),
            Some(Generator::DateTime(of)) => self.date_time_call(of, function, &values, data_type),
            Some(Generator::Number(of)) => self.number_call(of, function, &values, data_type),
            Some(Generator::Inexact) => self.inexact_call(function, &values, data_type),
            Some(Generator::Sketch(of)) => self.sketch_call(of, function, &values, data_type),
            Some(Generator::Rounding(_) | Generator::Format | Generator::Column(_)) | None => refuse_call(function, &values),
        }
    }

    /// Functions of a column: its next rows as one value, and lists.
    fn column_call(&mut self, of: ColumnFunction, function: Function, arguments: &[Expr], data_type: &DataType) -> Result<Value> {
        use ColumnFunction::{ListKey, ListLength, ListOfRows, ListView, StringOfRows};
        match (of, arguments) {
            (StringOfRows, [Expr::Column(column), rows]) => {
                let rows = self.eval(rows)?;
                self.string_of_rows(*column, &rows)
            }
            (ListOfRows, [Expr::Column(column), rows]) => {
                let rows = self.eval(rows)?;
                self.list_of_rows(*column, &rows, data_type)
            }
            (ListView, [Expr::Column(column)]) => self.list_view(*column),
            (ListKey, [Expr::Column(column)]) if let Function::ListKey { nulls_first } = function => {
                self.list_key(*column, nulls_first, data_type)
            }
            (ListLength, [Expr::Column(column)]) => {
                let view = self.list_view(*column)?;
                let code = self.local(CType::U64, &format!("{} >> 32", view.code));
                Ok(Value { code, ..view })
            }
            (StringOfRows | ListOfRows | ListView | ListKey | ListLength, _) => {
                let values = arguments.iter().map(|argument| self.eval(argument)).collect::<Result<Vec<_>>>()?;
                refuse_call(function, &values)
            }
        }
    }

    /// Conjunction of the values' validities.
    pub(super) fn all_valid(&mut self, values: &[Value]) -> Option<String> {
        let all: Vec<&str> = values.iter().filter_map(|value| value.valid.as_deref()).collect();
        match all[..] {
            [] => None,
            [valid] => Some(valid.into()),
            _ => Some(self.flag(&all.join(" & "))),
        }
    }

    /// A local with the result of a call that may be long: valid rows only compute it.
    pub(super) fn called(&mut self, ctype: CType, valid: &Option<String>, call: &str) -> String {
        self.costly();
        let Some(valid) = valid else { return self.local(ctype, call) };
        let name = self.local(ctype, ctype.zero());
        self.push(&format!("if ({valid}) {name} = {call};"));
        name
    }
}

/// Whether an expression composes a new string of any length.
pub(super) fn composes(expr: &Expr) -> bool {
    match expr {
        Expr::Call { function, .. } => function.row().result == ResultType::NewString,
        Expr::Case { branches, otherwise, .. } => {
            branches.iter().any(|(_, value)| composes(value)) || otherwise.as_deref().is_some_and(composes)
        }
        Expr::Coalesce(operands) => operands.iter().any(composes),
        Expr::Column(_)
        | Expr::Literal(_)
        | Expr::Not(_)
        | Expr::And(_)
        | Expr::Or(_)
        | Expr::IsNull(_)
        | Expr::IsTruth(..)
        | Expr::Arithmetic { .. }
        | Expr::Negate(_)
        | Expr::TotalOrder(_)
        | Expr::Compare { .. }
        | Expr::InList { .. }
        | Expr::Like { .. }
        | Expr::Cast { .. } => false,
    }
}

/// Refusal of a call with arguments of these types.
pub(super) fn refuse_call<T>(function: Function, arguments: &[Value]) -> Result<T> {
    let types: Vec<String> = arguments.iter().map(|argument| argument.data_type.to_string()).collect();
    unsupported(format!("{}({}) is not supported on the device", function.name(), types.join(", ")))
}
