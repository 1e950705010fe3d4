// SPDX-License-Identifier: Apache-2.0
//! C of a function's overload: the row of the function table with its placeholders substituted.

use arrow::datatypes::DataType;

use super::call::refuse_call;
use super::cast::outside;
use super::params::SCRATCH_SLOT;
use super::row::RowWriter;
use super::value::{CType, Value};
use crate::Result;
use crate::function::{ArgumentType, Failure, Function, FunctionRow, Overload, ResultType};

impl FunctionRow {
    /// The first overload that takes the arguments.
    pub(super) fn overload_of(&self, arguments: &[Value], data_type: &DataType) -> Option<&'static Overload> {
        let same_type = self.result != ResultType::Argument || arguments.iter().all(|argument| argument.data_type == *data_type);
        let takes = |overload: &&Overload| {
            overload.arguments.len() == arguments.len()
                && overload.arguments.iter().zip(arguments).all(|(ty, value)| ty.takes(value))
        };
        self.overloads.iter().filter(|_| same_type).find(takes)
    }
}

impl ArgumentType {
    fn takes(self, value: &Value) -> bool {
        match self {
            ArgumentType::String => is_string(value) && value.ctype == CType::Str,
            ArgumentType::Int64 => value.data_type == DataType::Int64,
            ArgumentType::Float => value.ctype.is_float(),
            ArgumentType::Float64 => value.ctype == CType::F64,
            ArgumentType::WideNumber => value.data_type.is_numeric() && value.ctype.is_wide(),
            ArgumentType::Number => value.data_type.is_numeric(),
        }
    }
}

impl RowWriter<'_> {
    /// `constant`: the arguments are constants whose checks fail NULL rows as well.
    pub(super) fn overload_call(
        &mut self,
        function: Function,
        overload: &Overload,
        arguments: &[Value],
        constant: bool,
        data_type: &DataType,
    ) -> Result<Value> {
        let result = function.row().result;
        let Some(ctype) = result_ctype(result, arguments, data_type) else { return refuse_call(function, arguments) };
        let code = self.substituted(overload.code, ctype, arguments)?;
        let valid = self.all_valid(arguments);
        for failure in overload.failures {
            let valid = if constant { &None } else { &valid };
            self.fail_for(failure, ctype, arguments, valid, data_type)?;
        }
        self.params.need(overload.section);
        let code = match result {
            ResultType::NewString => {
                self.costly();
                code
            }
            ResultType::ShortString => {
                self.costly();
                let (slot, out) = (self.params.scratch(SCRATCH_SLOT), self.fresh());
                self.push(&format!("G u8 *{out} = {slot};"));
                self.local(ctype, &format!("str_make({out}, (u32){})", code.replace("$out", &out)))
            }
            _ if overload.is_cheap => self.local(ctype, &code),
            _ => self.called(ctype, &valid, &code),
        };
        Ok(Value { data_type: data_type.clone(), ctype, code, valid, bounds: None })
    }

    /// C with values for its placeholders, but for `$out`.
    fn substituted(&mut self, code: &str, result: CType, arguments: &[Value]) -> Result<String> {
        let mut code = code.replace("$r", result.name());
        if let Some(first) = arguments.first() {
            code = code.replace("$t", first.ctype.name());
        }
        if code.contains("$space") {
            code = code.replace("$space", &self.params.string(b" ")?);
        }
        if code.contains("$cases") {
            code = code.replace("$cases", &self.params.cases());
        }
        for (index, argument) in arguments.iter().enumerate() {
            code = code.replace(&format!("${index}"), &argument.code);
        }
        Ok(code)
    }

    fn fail_for(
        &mut self,
        failure: &Failure,
        ctype: CType,
        arguments: &[Value],
        valid: &Option<String>,
        data_type: &DataType,
    ) -> Result<()> {
        match failure {
            Failure::Outside { argument, least, most } => self.fails_outside(&arguments[*argument], (*least, *most), valid),
            Failure::Zero(argument) => {
                let number = &arguments[*argument];
                if number.bounds.is_none_or(|(least, most)| least <= 0 && most >= 0) {
                    self.fail_where(&[&format!("({} == 0)", number.code)], valid);
                }
            }
            Failure::TooLong(_) if *data_type == DataType::LargeUtf8 => {}
            Failure::Where(condition) | Failure::TooLong(condition) => {
                let condition = self.substituted(condition, ctype, arguments)?;
                self.fail_where(&[&condition], valid);
            }
        }
        Ok(())
    }

    /// Fails the row where an integer lies outside of limits.
    pub(super) fn fails_outside(&mut self, number: &Value, (least, most): (i64, i64), valid: &Option<String>) {
        let outside = outside(number, (least.into(), most.into()));
        let outside: Vec<&str> = outside.iter().map(String::as_str).collect();
        self.fail_where(&outside, valid);
    }
}

/// C type of a result; `None` where the function's row excludes DataFusion's type.
fn result_ctype(result: ResultType, arguments: &[Value], data_type: &DataType) -> Option<CType> {
    Some(match (result, data_type) {
        (ResultType::NewString, _) => CType::ComposedString,
        (ResultType::Slice | ResultType::ShortString, DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View) => CType::Str,
        (ResultType::Boolean, DataType::Boolean) => CType::Bool,
        (ResultType::Integer, DataType::Int32) => CType::I32,
        (ResultType::Integer, DataType::Int64) => CType::I64,
        (ResultType::Argument, _) => arguments.first()?.ctype,
        (ResultType::Slice | ResultType::ShortString | ResultType::Boolean | ResultType::Integer | ResultType::Generated, _) => {
            return None;
        }
    })
}

/// Whether a value is a string, composed or not.
pub(super) fn is_string(value: &Value) -> bool {
    matches!(value.data_type, DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View)
}
