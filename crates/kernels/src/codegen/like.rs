// SPDX-License-Identifier: Apache-2.0
//! `LIKE` and `ILIKE`, with arrow-string's meaning: a backslash makes the next character an ordinary one, at the end it is one
//! itself.
//!
//! A constant pattern of `LIKE` that is a prefix, a suffix or an infix gets a search of its own. Which of these it is, is part of the
//! kernel; the text is an argument.

use arrow::datatypes::DataType;

use super::compose::is_concatenation;
use super::row::{RowWriter, unsupported};
use super::value::{CType, Value};
use crate::Result;
use crate::expr::{Expr, Literal, LiteralValue};
use crate::prelude::Section;

impl RowWriter<'_> {
    pub(super) fn like(&mut self, text: &Expr, pattern: &Expr, ignores_case: bool) -> Result<Value> {
        if is_concatenation(text) && !ignores_case {
            return self.pieces_like(text, pattern);
        }
        let (search, pattern) = match pattern {
            Expr::Literal(Literal { data_type, value: LiteralValue::Bytes(bytes) }) if !ignores_case => {
                let (search, rest) = search(bytes);
                let value = LiteralValue::Bytes(rest.to_vec());
                (search, Expr::Literal(Literal { data_type: data_type.clone(), value }))
            }
            other => ("str_like", other.clone()),
        };
        let (text, pattern) = (self.eval(text)?, self.eval(&pattern)?);
        if text.is_null() || pattern.is_null() {
            return Ok(Value::null(DataType::Boolean, CType::Bool));
        }
        for value in [&text, &pattern] {
            if !matches!(value.data_type, DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View) {
                return unsupported(format!("LIKE of {} is not supported on the device", value.data_type));
            }
        }
        self.costly();
        let valid = self.both_valid(&text, &pattern);
        let call = if ignores_case {
            self.params.need(Section::Ilike);
            format!("str_ilike({}, {}, {})", text.code, pattern.code, self.params.cases())
        } else {
            self.params.need(Section::Like);
            format!("{search}({}, {})", text.code, pattern.code)
        };
        // Below a NULL there may be no bytes.
        let code = self.flag(&valid.as_ref().map_or(call.clone(), |valid| format!("{valid} ? {call} : 0")));
        Ok(Value { data_type: DataType::Boolean, ctype: CType::Bool, code, valid, bounds: None })
    }
}

/// The function that answers for a pattern, and what it looks for.
fn search(pattern: &[u8]) -> (&'static str, &[u8]) {
    let is_plain = |bytes: &[u8]| !bytes.iter().any(|byte| matches!(byte, b'%' | b'_' | b'\\'));
    match pattern {
        plain if is_plain(plain) => ("str_eq", plain),
        [b'%', infix @ .., b'%'] if is_plain(infix) => ("str_contains", infix),
        [prefix @ .., b'%'] if is_plain(prefix) => ("str_starts", prefix),
        [b'%', suffix @ ..] if is_plain(suffix) => ("str_ends", suffix),
        other => ("str_like", other),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_get_the_search_that_fits() {
        let searches = [
            ("", "str_eq", ""),
            ("a", "str_eq", "a"),
            ("%", "str_starts", ""),
            ("a%", "str_starts", "a"),
            ("%a", "str_ends", "a"),
            ("%%", "str_contains", ""),
            ("%a b%", "str_contains", "a b"),
            ("%a%b%", "str_like", "%a%b%"),
            ("a%b", "str_like", "a%b"),
            ("a_", "str_like", "a_"),
            (r"a\%", "str_like", r"a\%"),
        ];
        for (pattern, function, rest) in searches {
            assert_eq!(search(pattern.as_bytes()), (function, rest.as_bytes()), "{pattern}");
        }
    }
}
