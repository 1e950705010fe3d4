// SPDX-License-Identifier: Apache-2.0
//! Functions of text whose result is a slice of it, a number or a truth.

use arrow::datatypes::DataType;

use super::call::refuse_call;
use super::cast::outside;
use super::row::RowWriter;
use super::value::{CType, Value};
use crate::Result;
use crate::function::Function;
use crate::prelude::Section;

impl RowWriter<'_> {
    pub(super) fn text_function(
        &mut self,
        function: Function,
        arguments: &[Value],
        constant: bool,
        data_type: &DataType,
    ) -> Result<Value> {
        let [text, others @ ..] = arguments else { return refuse_call(function, arguments) };
        let (texts, numbers) = match function {
            Function::Substring | Function::Left | Function::Right => (0, others.len()),
            Function::SplitPart => (1, 1),
            _ => (others.len(), 0),
        };
        let fits = others.len() == texts + numbers
            && is_text(text)
            && others.iter().take(texts).all(is_text)
            && others.iter().skip(texts).all(|number| number.data_type == DataType::Int64);
        if !fits {
            return refuse_call(function, arguments);
        }
        let valid = self.all_valid(arguments);
        let s = &text.code;
        let (section, call) = match (function, others) {
            (Function::Substring, [start]) => {
                self.fails_outside(start, (i64::MIN + 1, i64::MAX), &valid);
                // Before the first character is none.
                (Section::Slice, format!("str_substring({s}, {0} < 1 ? 1 : {0}, LAST_I64)", start.code))
            }
            (Function::Substring, [start, count]) => {
                self.fails_outside(start, (i64::MIN + 1, i64::MAX), &valid);
                self.fails_outside(count, (0, i64::MAX), &valid);
                (Section::Slice, format!("str_substring({s}, {}, {})", start.code, count.code))
            }
            (Function::Left, [n]) => (Section::Slice, format!("str_left({s}, {})", n.code)),
            (Function::Right, [n]) => (Section::Slice, format!("str_right({s}, {})", n.code)),
            (Function::Trim { start, end }, []) => {
                let space = self.params.text(b" ")?;
                (Section::Slice, format!("str_trim_of({s}, {space}, {}, {})", i32::from(start), i32::from(end)))
            }
            (Function::Trim { start, end }, [set]) => {
                (Section::Slice, format!("str_trim_of({s}, {}, {}, {})", set.code, i32::from(start), i32::from(end)))
            }
            (Function::SplitPart, [delimiter, n]) => {
                if n.bounds.is_none_or(|(least, most)| least <= 0 && most >= 0) {
                    self.fail_where(&[&format!("({} == 0)", n.code)], if constant { &None } else { &valid });
                }
                (Section::Slice, format!("str_part({s}, {}, {})", delimiter.code, n.code))
            }
            (Function::CharacterLength, []) => (Section::Characters, format!("str_characters({s})")),
            (Function::OctetLength, []) => (Section::Str, format!("{s}.len")),
            (Function::BitLength, []) => (Section::Str, format!("((u64){s}.len * 8)")),
            (Function::Position, [other]) => (Section::Slice, format!("str_position({s}, {})", other.code)),
            (Function::StartsWith, [other]) => (Section::Find, format!("str_starts({s}, {})", other.code)),
            (Function::EndsWith, [other]) => (Section::Find, format!("str_ends({s}, {})", other.code)),
            (Function::Contains, [other]) => (Section::Find, format!("str_contains({s}, {})", other.code)),
            (Function::Ascii, []) => (Section::Slice, format!("str_ascii({s})")),
            _ => return refuse_call(function, arguments),
        };
        let ctype = match data_type {
            DataType::Boolean => CType::Bool,
            DataType::Int32 => CType::I32,
            DataType::Int64 => CType::I64,
            DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View => CType::Str,
            _ => return refuse_call(function, arguments),
        };
        self.params.need(section);
        let call = if ctype.is_integer() { format!("({}){call}", ctype.name()) } else { call };
        let code = self.called(ctype, &valid, &call);
        Ok(Value { data_type: data_type.clone(), ctype, code, valid, bounds: None })
    }

    /// Fails where a number lies outside of limits.
    pub(super) fn fails_outside(&mut self, number: &Value, (least, most): (i64, i64), valid: &Option<String>) {
        let outside = outside(number, (least.into(), most.into()));
        let outside: Vec<&str> = outside.iter().map(String::as_str).collect();
        self.fail_where(&outside, valid);
    }
}

/// Text, computed or not.
pub(super) fn is_text(value: &Value) -> bool {
    matches!(value.data_type, DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View)
}
