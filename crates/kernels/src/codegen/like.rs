// SPDX-License-Identifier: Apache-2.0
//! `LIKE` and `ILIKE`, with arrow-string's meaning: a backslash escapes the next character; at the
//! end of the pattern it is an ordinary character.
//!
//! A constant pattern of `LIKE` that is a prefix, a suffix or an infix gets a specialized search.
//! Other constant patterns are compiled for the cpu profile. The kind of search is part of the
//! kernel; the searched string or the compiled pattern is an argument.

use arrow::datatypes::DataType;

use super::Profile;
use super::concatenation::is_concatenation;
use super::pattern::compile;
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
        if let Expr::Literal(Literal { data_type, value: LiteralValue::Bytes(bytes) }) = pattern
            && self.profile() == Profile::Cpu
            && (ignores_case || search(bytes).0 == "str_like")
            && let Some(compiled) = compile(bytes, ignores_case)
        {
            return self.like_compiled(string, data_type, &compiled);
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
        check_types([&string.data_type, &pattern.data_type])?;
        let valid = self.both_valid(&string, &pattern);
        let call = if ignores_case {
            self.params.need(Section::Ilike);
            format!("str_ilike({}, {}, {least}, {})", string.code, pattern.code, self.params.cases())
        } else {
            self.params.need(Section::Like);
            let least = if search == "str_like" { format!(", {least}") } else { String::new() };
            format!("{search}({}, {}{least})", string.code, pattern.code)
        };
        Ok(self.matched(&call, valid))
    }

    /// `LIKE` or `ILIKE` of a compiled pattern of this type.
    fn like_compiled(&mut self, string: &Expr, data_type: &DataType, pattern: &[u8]) -> Result<Value> {
        let string = self.eval(string)?;
        if string.is_null() {
            return Ok(Value::null(DataType::Boolean, CType::Bool));
        }
        check_types([&string.data_type, data_type])?;
        self.params.need(Section::Pattern);
        let call = format!("pattern_matches({}, {})", string.code, self.params.block(pattern)?);
        Ok(self.matched(&call, string.valid))
    }

    /// The result of a call, which only valid rows make: the bytes of a NULL may be inaccessible.
    fn matched(&mut self, call: &str, valid: Option<String>) -> Value {
        let code = self.called(CType::Bool, &valid, call);
        Value { data_type: DataType::Boolean, ctype: CType::Bool, code, valid, bounds: None }
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

/// Refuses operands that are no text.
fn check_types(types: [&DataType; 2]) -> Result<()> {
    let is_text = |data_type: &DataType| matches!(data_type, DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View);
    match types.into_iter().find(|data_type| !is_text(data_type)) {
        Some(other) => unsupported(format!("LIKE of {other} is not supported on the device")),
        None => Ok(()),
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
