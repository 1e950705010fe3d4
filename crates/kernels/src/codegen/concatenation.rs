// SPDX-License-Identifier: Apache-2.0
//! Concatenation of strings: `concat`, `concat_ws` and `||`.
//!
//! The result is a [`CType::ComposedString`]: a call that appends to an output, made once to
//! measure and once to write. Only outputs, `CASE`, `COALESCE` and other concatenations take one.
//! Comparisons, `LIKE` and lengths read the parts of a concatenation without materializing it.

use arrow::datatypes::DataType;

use super::call::refuse_call;
use super::compare::same_type;
use super::overload::is_string;
use super::row::RowWriter;
use super::value::{CType, Value};
use crate::Result;
use crate::expr::{Expr, value_type};
use crate::function::{Concatenation, Function, Generator};
use crate::prelude::Section;

/// Strings in turn that a concatenation appends by a call each. More are an array and one call:
/// each call has a loop, and compilers take superlinear time for loops that follow one another.
const MOST_CALLS: usize = 8;

impl RowWriter<'_> {
    pub(super) fn concatenation_call(
        &mut self,
        of: Concatenation,
        function: Function,
        arguments: &[Value],
        data_type: &DataType,
    ) -> Result<Value> {
        if let (true, [separator, ..]) = (of.has_separator(), arguments)
            && separator.is_null()
        {
            return Ok(Value::null(data_type.clone(), CType::Str));
        }
        let (parts, valid) = self.concatenation_parts(of, function, arguments)?;
        // A sequence, since compilers limit how deep calls nest.
        let end = self.fresh();
        self.declare(&format!("u64 {end} = 0;"));
        let mut code = format!("({end} = @, ");
        for run in parts.chunk_by(|left, right| left.is_string() && right.is_string()) {
            if run.len() > MOST_CALLS {
                let array = self.array_of(run);
                code.push_str(&format!("{end} = append_all(#, {end}, {array}, {}u), ", run.len()));
                continue;
            }
            for part in run {
                code.push_str(&match part {
                    StringPart::Composed(part) => format!("{end} = {}, ", part.replace('@', &end)),
                    StringPart::String(part) => format!("{end} = append_str(#, {end}, {part}), "),
                });
            }
        }
        code.push_str(&format!("{end})"));
        self.params.need(Section::Append);
        self.costly();
        Ok(Value { data_type: data_type.clone(), ctype: CType::ComposedString, code, valid, bounds: None })
    }

    /// A local array of strings.
    fn array_of(&mut self, parts: &[StringPart]) -> String {
        let array = self.fresh();
        self.declare(&format!("str {array}[{}];", parts.len()));
        for (index, part) in parts.iter().enumerate() {
            self.push(&format!("{array}[{index}] = {};", part.code()));
        }
        array
    }

    /// The parts of a concatenation, separators included, and its validity:
    /// - NULL parts are empty where the function skips NULLs, else the result is NULL,
    /// - a NULL separator gives NULL.
    fn concatenation_parts(
        &mut self,
        of: Concatenation,
        function: Function,
        arguments: &[Value],
    ) -> Result<(Vec<StringPart>, Option<String>)> {
        let (separator, parts) = match (of.has_separator(), arguments) {
            (true, [separator, parts @ ..]) => (Some(separator), parts),
            _ => (None, arguments),
        };
        let skips = of.skips_nulls();
        let parts: Vec<&Value> = parts.iter().filter(|part| !(skips && part.is_null())).collect();
        let nullable = |part: &Value| skips && part.valid.is_some();
        let is_composed = |value: &Value| value.ctype == CType::ComposedString;
        let fits = |part: &Value| is_string(part) && !(is_composed(part) && (nullable(part) || separator.is_some()));
        if !parts.iter().all(|part| fits(part))
            || separator.is_some_and(|separator| !is_string(separator) || is_composed(separator))
        {
            return refuse_call(function, arguments);
        }
        let valid = match (skips, separator) {
            (false, _) => self.all_valid(arguments),
            (true, Some(separator)) => separator.valid.clone(),
            (true, None) => None,
        };
        let empty = CType::Str.zero();
        let mut all = Vec::new();
        // C: whether a part other than NULL precedes.
        let mut begun = "0".to_string();
        for part in parts {
            let there = if skips { part.valid_code() } else { "1" };
            if let Some(separator) = separator {
                match (&begun[..], there) {
                    ("0", _) => {}
                    ("1", "1") => all.push(StringPart::String(separator.code.clone())),
                    (begun, there) => {
                        all.push(StringPart::String(format!("str_sel({begun} & {there}, {}, {empty})", separator.code)));
                    }
                }
                begun = match (&begun[..], there) {
                    ("1", _) | (_, "1") => "1".into(),
                    ("0", there) => there.into(),
                    (begun, there) => self.flag(&format!("{begun} | {there}")),
                };
            }
            all.push(match (part.ctype, there) {
                (CType::ComposedString, _) => StringPart::Composed(part.code.clone()),
                (_, "1") => StringPart::String(part.code.clone()),
                (_, there) => StringPart::String(format!("str_sel({there}, {}, {empty})", part.code)),
            });
        }
        Ok((all, valid))
    }

    /// Two strings, one or both a concatenation, as integers that compare as the strings do.
    pub(super) fn compare_concatenations(&mut self, left: &Expr, right: &Expr) -> Result<[Value; 2]> {
        let (left, left_type, left_valid) = self.parts_of(left)?;
        let (right, right_type, right_valid) = self.parts_of(right)?;
        same_type(&left_type, &right_type)?;
        self.params.need(Section::Concat);
        self.costly();
        let order = self.local(CType::I32, "0");
        let (l, r) = (self.fresh(), self.fresh());
        let valid: Vec<&str> = [&left_valid, &right_valid].into_iter().flatten().map(String::as_str).collect();
        let arrays = format!("str {l}[] = {{ {} }}, {r}[] = {{ {} }};", left.join(", "), right.join(", "));
        let call = format!("{order} = concat_cmp({l}, {}u, {r}, {}u);", left.len(), right.len());
        // The bytes of a NULL may be inaccessible.
        match valid.is_empty() {
            true => self.push(&format!("{{ {arrays} {call} }}")),
            false => self.push(&format!("if ({}) {{ {arrays} {call} }}", valid.join(" & "))),
        }
        let value =
            |code: &str, valid| Value { data_type: DataType::Int32, ctype: CType::I32, code: code.into(), valid, bounds: None };
        Ok([value(&order, left_valid), value("0", right_valid)])
    }

    /// `LIKE` of a concatenation.
    pub(super) fn like_concatenation(&mut self, string: &Expr, pattern: &Expr) -> Result<Value> {
        let (parts, data_type, valid) = self.parts_of(string)?;
        let least = self.least_characters(pattern)?;
        let pattern = self.eval(pattern)?;
        same_type(&data_type, &pattern.data_type)?;
        if valid.as_deref() == Some("0") || pattern.is_null() {
            return Ok(Value::null(DataType::Boolean, CType::Bool));
        }
        let string = Value { data_type: DataType::Boolean, ctype: CType::Bool, code: String::new(), valid, bounds: None };
        let valid = self.both_valid(&string, &pattern);
        let call = |array: &str, count| format!("concat_like({array}, {count}u, {}, {least})", pattern.code);
        let code = self.over_parts(&parts, CType::Bool, &valid, call);
        Ok(Value { code, valid, ..string })
    }

    /// A length of a concatenation; `length` is the C of the function's row.
    pub(super) fn measure_concatenation(
        &mut self,
        function: Function,
        length: &str,
        string: &Expr,
        data_type: &DataType,
    ) -> Result<Value> {
        let (parts, _, valid) = self.parts_of(string)?;
        let Some(ctype) = CType::native(data_type).filter(|ctype| ctype.is_integer()) else {
            return refuse_call(function, &[]);
        };
        let code = self.over_parts(&parts, ctype, &valid, |array, count| {
            format!("({})({})", ctype.name(), length.replace("$0", array).replace("$1", &format!("{count}u")))
        });
        Ok(Value { data_type: data_type.clone(), ctype, code, valid, bounds: None })
    }

    /// A local with the result of a call over an array of strings, computed for valid rows.
    fn over_parts(
        &mut self,
        parts: &[String],
        ctype: CType,
        valid: &Option<String>,
        call: impl Fn(&str, usize) -> String,
    ) -> String {
        self.params.need(Section::ConcatLike);
        self.costly();
        let (code, array) = (self.local(ctype, ctype.zero()), self.fresh());
        let call = call(&array, parts.len());
        self.push(&format!(
            "if ({}) {{ str {array}[] = {{ {} }}; {code} = {call}; }}",
            valid.as_deref().unwrap_or("1"),
            parts.join(", ")
        ));
        code
    }

    /// The parts of a concatenation, or the one string of another expression; type and validity.
    fn parts_of(&mut self, expr: &Expr) -> Result<(Vec<String>, DataType, Option<String>)> {
        let (of, function, arguments, data_type) = match expr {
            Expr::Call { function, arguments, data_type } if let Some(of) = concatenation(*function) => {
                (of, *function, arguments, data_type)
            }
            _ => {
                let value = self.eval(expr)?;
                // An untyped NULL has no string.
                let code = if value.ctype == CType::Str { value.code } else { CType::Str.zero().into() };
                return Ok((vec![code], value.data_type, value.valid));
            }
        };
        let values = arguments.iter().map(|argument| self.eval(argument)).collect::<Result<Vec<_>>>()?;
        let (parts, valid) = self.concatenation_parts(of, function, &values)?;
        let parts: Vec<String> = parts.iter().map(|part| part.code().to_string()).collect();
        // C has no empty arrays.
        let parts = if parts.is_empty() { vec![CType::Str.zero().to_string()] } else { parts };
        Ok((parts, value_type(data_type).clone(), valid))
    }
}

/// C of a part of a concatenation.
enum StringPart {
    /// A string.
    String(String),
    /// A call that appends a composed string.
    Composed(String),
}

impl StringPart {
    fn code(&self) -> &str {
        match self {
            StringPart::String(code) | StringPart::Composed(code) => code,
        }
    }

    fn is_string(&self) -> bool {
        matches!(self, StringPart::String(_))
    }
}

/// Whether an expression is a concatenation.
pub(super) fn is_concatenation(expr: &Expr) -> bool {
    matches!(expr, Expr::Call { function, .. } if concatenation(*function).is_some())
}

/// The concatenation that a function is.
fn concatenation(function: Function) -> Option<Concatenation> {
    if let Some(Generator::Concatenation(of)) = function.row().generator { Some(of) } else { None }
}
