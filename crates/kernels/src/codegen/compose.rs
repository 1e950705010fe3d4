// SPDX-License-Identifier: Apache-2.0
//! Functions whose result is new text, of any length.
//!
//! Nobody knows where such a text could lie before its length is known, so the value is a call that appends it: who writes a
//! column calls once to measure and once more to write. No operation takes such a value, but for concatenation.

use arrow::datatypes::DataType;

use super::call::refuse_call;
use super::params::SCRATCH_SLOT;
use super::row::RowWriter;
use super::text::is_text;
use super::value::{CType, Value};
use crate::Result;
use crate::function::Function;
use crate::prelude::Section;

impl RowWriter<'_> {
    /// New text of texts and numbers, none of which is NULL for certain.
    pub(super) fn composed(&mut self, function: Function, arguments: &[Value], data_type: &DataType) -> Result<Value> {
        let refuse = || refuse_call(function, arguments);
        let codes: Vec<&str> = arguments.iter().map(|argument| argument.code.as_str()).collect();
        let texts = arguments.iter().take_while(|argument| is_text(argument)).count();
        let numbers = arguments.iter().skip(texts).take_while(|argument| argument.data_type == DataType::Int64).count();
        if texts + numbers != arguments.len() || arguments.iter().any(|argument| argument.ctype == CType::Text) {
            return refuse();
        }
        let valid = self.all_valid(arguments);
        let most = i64::from(i32::MAX);
        let (section, call) = match (function, &codes[..], numbers) {
            (Function::Upper, [s], 0) => (Section::TextCase, format!("text_upper(#, @, {s}, {})", self.params.cases())),
            (Function::Lower, [s], 0) => (Section::TextCase, format!("text_lower(#, @, {s}, {})", self.params.cases())),
            (Function::InitCap, [s], 0) => (Section::TextCase, format!("text_initcap(#, @, {s}, {})", self.params.cases())),
            (Function::Replace, [s, from, to], 0) => (Section::Text, format!("text_replace(#, @, {s}, {from}, {to})")),
            (Function::Translate, [s, from, to], 0) => (Section::Text, format!("text_translate(#, @, {s}, {from}, {to})")),
            (Function::Reverse, [s], 0) => (Section::Text, format!("text_reverse(#, @, {s})")),
            (Function::Repeat, [s, count], 1) => {
                // No text is as long as the largest type allows.
                if *data_type != DataType::LargeUtf8 {
                    let room = format!("((u64){most} / ({s}.len ? {s}.len : 1))");
                    self.fail_where(&[&format!("(({count} > 0) & ({s}.len > 0) & ((u64){count} > {room}))")], &valid);
                }
                (Section::Text, format!("text_repeat(#, @, {s}, {count})"))
            }
            (Function::Overlay, [s, other, start], 1) => {
                self.fails_outside(&arguments[2], (1, i64::MAX), &valid);
                (Section::Text, format!("text_overlay(#, @, {s}, {other}, {start}, str_characters({other}))"))
            }
            (Function::Overlay, [s, other, start, count], 2) => {
                self.fails_outside(&arguments[2], (1, i64::MAX), &valid);
                (Section::Text, format!("text_overlay(#, @, {s}, {other}, {start}, {count})"))
            }
            _ => return refuse(),
        };
        self.appended(section, call, valid, data_type)
    }

    /// `lpad` and `rpad`; a constant length that is too long fails for NULLs, too.
    pub(super) fn padded(&mut self, left: bool, arguments: &[Value], constant: bool, data_type: &DataType) -> Result<Value> {
        let (text, count, fill) = match arguments {
            [text, count] => (text, count, self.params.text(b" ")?),
            [text, count, fill] if is_text(fill) => (text, count, fill.code.clone()),
            _ => return refuse_call(Function::Pad { left }, arguments),
        };
        if !is_text(text) || count.data_type != DataType::Int64 {
            return refuse_call(Function::Pad { left }, arguments);
        }
        let valid = self.all_valid(arguments);
        self.fails_outside(count, (i64::MIN, i32::MAX.into()), if constant { &None } else { &valid });
        let call = format!("text_pad(#, @, {}, {}, {fill}, {})", text.code, count.code, i32::from(left));
        self.appended(Section::Text, call, valid, data_type)
    }

    /// One text after the other. NULLs are nothing where they are skipped, else the result is NULL; so it is where the
    /// separator, which stands between what is not NULL, is NULL.
    pub(super) fn concatenated(&mut self, function: Function, arguments: &[Value], data_type: &DataType) -> Result<Value> {
        let (separator, parts) = match (function, arguments) {
            (Function::ConcatWs, [separator, parts @ ..]) => (Some(separator), parts),
            _ => (None, arguments),
        };
        let skips = !matches!(function, Function::Concat { skips_nulls: false });
        let parts: Vec<&Value> = parts.iter().filter(|part| !(skips && part.is_null())).collect();
        let nullable = |part: &Value| skips && part.valid.is_some();
        let fits = |part: &Value| is_text(part) && !(part.ctype == CType::Text && (nullable(part) || separator.is_some()));
        if !parts.iter().all(|part| fits(part))
            || separator.is_some_and(|separator| !is_text(separator) || separator.ctype == CType::Text)
        {
            return refuse_call(function, arguments);
        }
        let valid = match (skips, separator) {
            (false, _) => self.all_valid(arguments),
            (true, Some(separator)) => separator.valid.clone(),
            (true, None) => None,
        };
        let nothing = CType::Str.zero();
        let mut call = "@".to_string();
        // Whether a part that is there came before.
        let mut begun = "0".to_string();
        for part in parts {
            let there = if skips { part.valid_code() } else { "1" };
            if let Some(separator) = separator {
                let between = match (&begun[..], there) {
                    ("0", _) => None,
                    ("1", "1") => Some(separator.code.clone()),
                    (begun, there) => Some(format!("str_sel({begun} & {there}, {}, {nothing})", separator.code)),
                };
                if let Some(between) = between {
                    call = format!("text_of(#, {call}, {between})");
                }
                begun = match (&begun[..], there) {
                    ("1", _) | (_, "1") => "1".into(),
                    ("0", there) => there.into(),
                    (begun, there) => self.flag(&format!("{begun} | {there}")),
                };
            }
            call = match (part.ctype, there) {
                (CType::Text, _) => part.code.replace('@', &call),
                (_, "1") => format!("text_of(#, {call}, {})", part.code),
                (_, there) => format!("text_of(#, {call}, str_sel({there}, {}, {nothing}))", part.code),
            };
        }
        self.appended(Section::Text, call, valid, data_type)
    }

    /// The character of a code.
    pub(super) fn chr(&mut self, code: &Value, data_type: &DataType) -> Result<Value> {
        if code.data_type != DataType::Int64 {
            return refuse_call(Function::Chr, std::slice::from_ref(code));
        }
        self.fails_outside(code, (0, 0x10_ffff), &code.valid);
        self.fail_where(&[&format!("(({0} >= 0xd800) & ({0} < 0xe000))", code.code)], &code.valid);
        self.params.need(Section::Text);
        self.costly();
        let (slot, place) = (self.params.scratch(SCRATCH_SLOT), self.fresh());
        self.push(&format!("G u8 *{place} = {slot};"));
        let len = format!("(u32)text_code({place}, 0, (u32){} & 0x1fffff)", code.code);
        let text = self.local(CType::Str, &format!("str_make({place}, {len})"));
        Ok(Value { data_type: data_type.clone(), ctype: CType::Str, code: text, valid: code.valid.clone(), bounds: None })
    }

    fn appended(&mut self, section: Section, call: String, valid: Option<String>, data_type: &DataType) -> Result<Value> {
        self.params.need(section);
        self.costly();
        Ok(Value { data_type: data_type.clone(), ctype: CType::Text, code: call, valid, bounds: None })
    }
}
