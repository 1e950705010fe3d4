// SPDX-License-Identifier: Apache-2.0
//! Calls of scalar functions: arguments, NULLs, and which family a function belongs to.

use arrow::datatypes::DataType;

use super::compose::is_concatenation;
use super::row::{RowWriter, unsupported};
use super::value::{CType, Value};
use crate::Result;
use crate::expr::{Expr, value_type};
use crate::function::Function;

impl RowWriter<'_> {
    pub(super) fn call(&mut self, function: Function, arguments: &[Expr], data_type: &DataType) -> Result<Value> {
        let data_type = value_type(data_type);
        let Some(ctype) = CType::native(data_type) else {
            return unsupported(format!("type {data_type} is not supported on the device"));
        };
        // Places are part of the kernel, or of a factor that is its argument.
        if let (Function::Round | Function::Trunc, [value, places @ ..]) = (function, arguments) {
            let value = self.eval(value)?;
            return match value.is_null() {
                true => Ok(Value::null(data_type.clone(), ctype)),
                false => self.rounded(function, &value, places.first(), data_type),
            };
        }
        // So are formats.
        if let (Function::ToDate | Function::ToTimestamp, [text, formats @ ..]) = (function, arguments) {
            let text = self.eval(text)?;
            return self.by_format(function, &text, formats, data_type);
        }
        if let (Function::TextOfRows, [Expr::Column(column), rows]) = (function, arguments) {
            let rows = self.eval(rows)?;
            return self.text_of_rows(*column, &rows);
        }
        match (function, arguments) {
            (Function::ListOfRows, [Expr::Column(column), rows]) => {
                let rows = self.eval(rows)?;
                return self.list_of_rows(*column, &rows, data_type);
            }
            (Function::ListWord, [Expr::Column(column)]) => return self.list_word(*column),
            (Function::ListKey { nulls_first }, [Expr::Column(column)]) => return self.list_key(*column, nulls_first, data_type),
            (Function::ListLength, [Expr::Column(column)]) => {
                let word = self.list_word(*column)?;
                let code = self.local(CType::U64, &format!("{} >> 32", word.code));
                return Ok(Value { code, ..word });
            }
            _ => {}
        }
        if let (Function::CharacterLength | Function::OctetLength | Function::BitLength, [text]) = (function, arguments)
            && is_concatenation(text)
        {
            return self.pieces_length(function, text, data_type);
        }
        let concatenates = matches!(function, Function::Concat { .. });
        let eval = |argument| if concatenates { self.result(argument) } else { self.eval(argument) };
        let values = arguments.iter().map(eval).collect::<Result<Vec<_>>>()?;
        if values.iter().any(|value| value.ctype == CType::List) {
            return refuse_call(function, &values);
        }
        match (function, &values[..]) {
            (Function::Nanvl, [left, right]) => return self.nanvl(left, right, data_type),
            (Function::Concat { skips_nulls: true }, _) => return self.concatenated(function, &values, data_type),
            (Function::ConcatWs, [separator, ..]) if !separator.is_null() => {
                return self.concatenated(function, &values, data_type);
            }
            (Function::Greatest | Function::Least, _) => return self.extreme(function, &values, data_type),
            _ => {}
        }
        // DataFusion looks at constants first, whatever the rows hold.
        let constant = arguments.iter().skip(1).all(|argument| matches!(argument, Expr::Literal(_)));
        // NULL where any argument is.
        if values.iter().any(Value::is_null) {
            return Ok(Value::null(data_type.clone(), ctype));
        }
        match (function, &values[..]) {
            (Function::DatePart(part), [moment]) => self.date_part(part, moment, data_type),
            (Function::IntervalField(field), [interval]) => self.interval_field(field, interval),
            (Function::DateTrunc(granularity), [moment]) => self.date_trunc(granularity, moment, data_type),
            (Function::DateBin { months }, [moment, stride, origin]) => self.date_bin(months, moment, stride, origin, data_type),
            (Function::Shift { checked }, [moment, months, days, nanos]) => {
                self.shift(moment, [months, days, nanos], data_type, checked)
            }
            (Function::Concat { .. }, _) => self.concatenated(function, &values, data_type),
            (Function::Pad { left }, _) => self.padded(left, &values, constant, data_type),
            (Function::Chr, [code]) => self.chr(code, data_type),
            (Function::SketchRegister | Function::SketchRank, [value]) => self.sketched(function, value, data_type),
            (
                Function::Upper
                | Function::Lower
                | Function::InitCap
                | Function::Replace
                | Function::Repeat
                | Function::Reverse
                | Function::Overlay
                | Function::Translate,
                _,
            ) => self.composed(function, &values, data_type),
            (_, [text, ..]) if text.ctype == CType::Str => self.text_function(function, &values, constant, data_type),
            _ => self.math_function(function, &values, data_type),
        }
    }

    /// NULL where any of the values is.
    pub(super) fn all_valid(&mut self, values: &[Value]) -> Option<String> {
        let all: Vec<&str> = values.iter().filter_map(|value| value.valid.as_deref()).collect();
        match all[..] {
            [] => None,
            [valid] => Some(valid.into()),
            _ => Some(self.flag(&all.join(" & "))),
        }
    }

    /// A local for what a call gives where there are values, which may be long work.
    pub(super) fn called(&mut self, ctype: CType, valid: &Option<String>, call: &str) -> String {
        self.costly();
        let Some(valid) = valid else { return self.local(ctype, call) };
        let name = self.local(ctype, ctype.zero());
        self.push(&format!("if ({valid}) {name} = {call};"));
        name
    }
}

/// A refusal of arguments that a function is not supported on the device for.
pub(super) fn refuse_call<T>(function: Function, arguments: &[Value]) -> Result<T> {
    let types: Vec<String> = arguments.iter().map(|argument| argument.data_type.to_string()).collect();
    unsupported(format!("{}({}) is not supported on the device", function.name(), types.join(", ")))
}
