// SPDX-License-Identifier: Apache-2.0
//! `LIKE` and `ILIKE`, with arrow-string's meaning: a backslash escapes the next character; at the
//! end of the pattern it is an ordinary character.
//!
//! A constant pattern of `LIKE` that is a prefix, a suffix or an infix gets a specialized search.
//! The kind of search is part of the kernel; the searched string is an argument.

use arrow::datatypes::DataType;

use super::concatenation::is_concatenation;
use super::row::{RowWriter, unsupported};
use super::value::{CType, Value};
use crate::Result;
use crate::expr::{Expr, Literal, LiteralValue};
use crate::prelude::Section;

impl RowWriter<'_> {
    pub(super) fn like(&mut self, string: &Expr, pattern: &Expr, ignores_case: bool) -> Result<Value> {
        if is_concatenation(string) && !ignores_case {
            return self.like_concatenation(string, pattern);
        }
        let (search, pattern) = match pattern {
            Expr::Literal(Literal { data_type, value: LiteralValue::Bytes(bytes) }) if !ignores_case => {
                let (search, rest) = search(bytes);
                let value = LiteralValue::Bytes(rest.to_vec());
                (search, Expr::Literal(Literal { data_type: data_type.clone(), value }))
            }
            other => ("str_like", other.clone()),
        };
        let least = self.least_characters(&pattern)?;
        let (string, pattern) = (self.eval(string)?, self.eval(&pattern)?);
        if string.is_null() || pattern.is_null() {
            return Ok(Value::null(DataType::Boolean, CType::Bool));
        }
        for value in [&string, &pattern] {
            if !matches!(value.data_type, DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View) {
                return unsupported(format!("LIKE of {} is not supported on the device", value.data_type));
            }
        }
        self.costly();
        let valid = self.both_valid(&string, &pattern);
        let call = if ignores_case {
            self.params.need(Section::Ilike);
            format!("str_ilike({}, {}, {least}, {})", string.code, pattern.code, self.params.cases())
        } else {
            self.params.need(Section::Like);
            let least = if search == "str_like" { format!(", {least}") } else { String::new() };
            format!("{search}({}, {}{least})", string.code, pattern.code)
        };
        // The bytes of a NULL may be inaccessible.
        let code = self.flag(&valid.as_ref().map_or(call.clone(), |valid| format!("{valid} ? {call} : 0")));
        Ok(Value { data_type: DataType::Boolean, ctype: CType::Bool, code, valid, bounds: None })
    }

    /// C of a number of characters that each match has: the least one of a constant pattern, else
    /// 0. As an argument, since kernels are independent of the pattern.
    pub(super) fn least_characters(&mut self, pattern: &Expr) -> Result<String> {
        let Expr::Literal(Literal { value: LiteralValue::Bytes(pattern), .. }) = pattern else { return Ok("0u".into()) };
        let value = LiteralValue::Int(least_characters(pattern).min(i32::MAX as usize) as i128);
        let least = self.eval(&Expr::Literal(Literal { data_type: DataType::Int32, value }))?;
        Ok(format!("(u32)({})", least.code))
    }
}

/// The number of characters of a pattern, without `%` and escapes.
fn least_characters(pattern: &[u8]) -> usize {
    let mut bytes = pattern.iter().peekable();
    let mut count = 0;
    while let Some(byte) = bytes.next() {
        let escaped = if *byte == b'\\' { bytes.next_if(|_| true) } else { None };
        let is_continuation = escaped.is_none() && byte & 0xc0 == 0x80;
        count += usize::from(escaped.is_some() || !(*byte == b'%' || is_continuation));
    }
    count
}

/// The C function of a pattern, and the string that it searches for.
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
    fn patterns_have_least_characters() {
        let counts = [("", 0), ("%", 0), ("a_%é", 3), (r"\%\_%", 2), (r"\é日", 2), ("\\", 1), (r"a\\%", 2), ("%😀%_%", 2)];
        for (pattern, count) in counts {
            assert_eq!(least_characters(pattern.as_bytes()), count, "{pattern}");
        }
    }

    #[test]
    fn constant_patterns_choose_the_search() {
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
