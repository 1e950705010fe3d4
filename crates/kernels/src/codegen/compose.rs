// SPDX-License-Identifier: Apache-2.0
//! Functions whose result is new text, of any length.
//!
//! Nobody knows where such a text could lie before its length is known, so the value is a call that appends it: who writes a
//! column calls once to measure and once more to write. No operation takes such a value, but for concatenation, `CASE` and
//! `COALESCE`; and comparisons look at the pieces of a concatenation as they lie.

use arrow::datatypes::DataType;

use super::call::refuse_call;
use super::compare::same_type;
use super::params::SCRATCH_SLOT;
use super::row::RowWriter;
use super::text::is_text;
use super::value::{CType, Value};
use crate::Result;
use crate::expr::{Expr, value_type};
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

    /// One text after the other.
    pub(super) fn concatenated(&mut self, function: Function, arguments: &[Value], data_type: &DataType) -> Result<Value> {
        let (pieces, valid) = self.pieces(function, arguments)?;
        let call = pieces.into_iter().fold("@".to_string(), |call, piece| match piece {
            Piece::Text(code) => code.replace('@', &call),
            Piece::Str(code) => format!("text_of(#, {call}, {code})"),
        });
        self.appended(Section::Text, call, valid, data_type)
    }

    /// What a concatenation puts one after the other, and its validity. NULLs are nothing where they are skipped, else the result
    /// is NULL; so it is where the separator, which stands between what is not NULL, is NULL.
    fn pieces(&mut self, function: Function, arguments: &[Value]) -> Result<(Vec<Piece>, Option<String>)> {
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
        let mut pieces = Vec::new();
        // Whether a part that is there came before.
        let mut begun = "0".to_string();
        for part in parts {
            let there = if skips { part.valid_code() } else { "1" };
            if let Some(separator) = separator {
                match (&begun[..], there) {
                    ("0", _) => {}
                    ("1", "1") => pieces.push(Piece::Str(separator.code.clone())),
                    (begun, there) => {
                        pieces.push(Piece::Str(format!("str_sel({begun} & {there}, {}, {nothing})", separator.code)));
                    }
                }
                begun = match (&begun[..], there) {
                    ("1", _) | (_, "1") => "1".into(),
                    ("0", there) => there.into(),
                    (begun, there) => self.flag(&format!("{begun} | {there}")),
                };
            }
            pieces.push(match (part.ctype, there) {
                (CType::Text, _) => Piece::Text(part.code.clone()),
                (_, "1") => Piece::Str(part.code.clone()),
                (_, there) => Piece::Str(format!("str_sel({there}, {}, {nothing})", part.code)),
            });
        }
        Ok((pieces, valid))
    }

    /// Two texts, of which one or both are concatenations, as integers that compare as the texts do: nothing is written for that.
    pub(super) fn compared_pieces(&mut self, left: &Expr, right: &Expr) -> Result<[Value; 2]> {
        let (left, left_type, left_valid) = self.text_pieces(left)?;
        let (right, right_type, right_valid) = self.text_pieces(right)?;
        same_type(&left_type, &right_type)?;
        self.params.need(Section::Pieces);
        self.costly();
        let order = self.local(CType::I32, "0");
        let (l, r) = (self.fresh(), self.fresh());
        let valid: Vec<&str> = [&left_valid, &right_valid].into_iter().flatten().map(String::as_str).collect();
        let lists = format!("str {l}[] = {{ {} }}, {r}[] = {{ {} }};", left.join(", "), right.join(", "));
        let call = format!("{order} = pieces_cmp({l}, {}u, {r}, {}u);", left.len(), right.len());
        // Bytes of a NULL may not be there.
        match valid.is_empty() {
            true => self.push(&format!("{{ {lists} {call} }}")),
            false => self.push(&format!("if ({}) {{ {lists} {call} }}", valid.join(" & "))),
        }
        let value =
            |code: &str, valid| Value { data_type: DataType::Int32, ctype: CType::I32, code: code.into(), valid, bounds: None };
        Ok([value(&order, left_valid), value("0", right_valid)])
    }

    /// Whether a concatenation is LIKE a pattern: nothing is written for that either.
    pub(super) fn pieces_like(&mut self, text: &Expr, pattern: &Expr) -> Result<Value> {
        let (pieces, text_type, valid) = self.text_pieces(text)?;
        let pattern = self.eval(pattern)?;
        same_type(&text_type, &pattern.data_type)?;
        if valid.as_deref() == Some("0") || pattern.is_null() {
            return Ok(Value::null(DataType::Boolean, CType::Bool));
        }
        let text = Value { data_type: DataType::Boolean, ctype: CType::Bool, code: String::new(), valid, bounds: None };
        let valid = self.both_valid(&text, &pattern);
        let code = self
            .over_pieces(&pieces, CType::Bool, &valid, |list, count| format!("pieces_like({list}, {count}u, {})", pattern.code));
        Ok(Value { code, valid, ..text })
    }

    /// The length of a concatenation, in what the function counts.
    pub(super) fn pieces_length(&mut self, function: Function, text: &Expr, data_type: &DataType) -> Result<Value> {
        let (pieces, _, valid) = self.text_pieces(text)?;
        let Some(ctype) = CType::native(data_type).filter(|ctype| ctype.is_integer()) else {
            return refuse_call(function, &[]);
        };
        let code = self.over_pieces(&pieces, ctype, &valid, |list, count| {
            let length = match function {
                Function::CharacterLength => format!("pieces_characters({list}, {count}u)"),
                Function::BitLength => format!("pieces_len({list}, {count}u) * 8"),
                _ => format!("pieces_len({list}, {count}u)"),
            };
            format!("({})({length})", ctype.name())
        });
        Ok(Value { data_type: data_type.clone(), ctype, code, valid, bounds: None })
    }

    /// A local for what a call makes of texts one after the other, where there are all.
    fn over_pieces(
        &mut self,
        pieces: &[String],
        ctype: CType,
        valid: &Option<String>,
        call: impl Fn(&str, usize) -> String,
    ) -> String {
        self.params.need(Section::PiecesLike);
        self.costly();
        let (code, list) = (self.local(ctype, ctype.zero()), self.fresh());
        let call = call(&list, pieces.len());
        self.push(&format!(
            "if ({}) {{ str {list}[] = {{ {} }}; {code} = {call}; }}",
            valid.as_deref().unwrap_or("1"),
            pieces.join(", ")
        ));
        code
    }

    /// A text, or the texts that it is a concatenation of; its type and its validity.
    fn text_pieces(&mut self, expr: &Expr) -> Result<(Vec<String>, DataType, Option<String>)> {
        let (function, arguments, data_type) = match expr {
            Expr::Call { function, arguments, data_type } if is_concatenation(expr) => (function, arguments, data_type),
            _ => {
                let value = self.eval(expr)?;
                // An untyped NULL is no string.
                let code = if value.ctype == CType::Str { value.code } else { CType::Str.zero().into() };
                return Ok((vec![code], value.data_type, value.valid));
            }
        };
        let values = arguments.iter().map(|argument| self.eval(argument)).collect::<Result<Vec<_>>>()?;
        let (pieces, valid) = self.pieces(*function, &values)?;
        let code = |piece| match piece {
            Piece::Str(code) | Piece::Text(code) => code,
        };
        let pieces: Vec<String> = pieces.into_iter().map(code).collect();
        // C has no lists of nothing.
        let pieces = if pieces.is_empty() { vec![CType::Str.zero().to_string()] } else { pieces };
        Ok((pieces, value_type(data_type).clone(), valid))
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

/// A piece of a concatenation: C of a string, or of a call that appends.
enum Piece {
    Str(String),
    Text(String),
}

/// Whether an expression puts one text after the other.
pub(super) fn is_concatenation(expr: &Expr) -> bool {
    matches!(expr, Expr::Call { function: Function::Concat { .. } | Function::ConcatWs, .. })
}

/// Whether an expression gives text that the row computes, of any length.
pub(super) fn composes(expr: &Expr) -> bool {
    match expr {
        Expr::Call { function, .. } => matches!(
            function,
            Function::Upper
                | Function::Lower
                | Function::InitCap
                | Function::Concat { .. }
                | Function::ConcatWs
                | Function::Replace
                | Function::Repeat
                | Function::Pad { .. }
                | Function::Reverse
                | Function::Overlay
                | Function::Translate
                | Function::ListKey { .. }
        ),
        Expr::Case { branches, otherwise, .. } => {
            branches.iter().any(|(_, value)| composes(value)) || otherwise.as_deref().is_some_and(composes)
        }
        Expr::Coalesce(operands) => operands.iter().any(composes),
        _ => false,
    }
}
