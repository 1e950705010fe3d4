// SPDX-License-Identifier: Apache-2.0
//! Lists as keys: a row format whose bytes compare as the lists do, so that strings' comparisons,
//! hashes and sorts work on lists.
//!
//! - A byte before each element says whether it is NULL; a zero ends the list.
//! - Integers are big-endian.
//! - Strings are escaped and end with a terminator that no string contains.

use std::hash::{DefaultHasher, Hash, Hasher};

use arrow::datatypes::DataType;
use columnar::Layout;

use super::params::Params;
use super::row::{RowWriter, unsupported};
use super::value::{CType, Value};
use crate::expr::Expr;
use crate::prelude::Section;
use crate::{Error, Result};

impl RowWriter<'_> {
    /// The key of a column's list; `nulls_first`: NULL elements sort before all others.
    pub(super) fn list_key(&mut self, column: usize, nulls_first: bool, data_type: &DataType) -> Result<Value> {
        let view = self.list_view(column)?;
        let types = match self.types.get(column).map(|ty| &ty.layout) {
            Some(Layout::List(elements)) if self.is_at_its_row(column) => [elements.as_ref().clone()],
            _ => return unsupported("a key of such a column of lists is not supported on the device"),
        };
        let mut params = Params::new();
        let mut writer = RowWriter::new(&types, self.profile(), &mut params).with_names("at", "e");
        let (known, valid) = if writer.is_list(0) {
            let list = writer.list_key(0, nulls_first, data_type)?;
            (Some(list.code.replace('#', "to").replace('@', "n")), list.valid)
        } else {
            let element = writer.eval(&Expr::Column(0))?;
            let known = if element.is_null() { None } else { Some(writer.element_key(&element)?) };
            (known, element.valid)
        };
        let (loads, valid) = (writer.statements(), valid.as_deref().unwrap_or("1"));
        let known = known.map(|known| format!("    if ({valid}) n = {known};\n")).unwrap_or_default();
        let null = if nulls_first { 1 } else { 3 };
        let declared: String = params.declaration();
        let comma = if declared.is_empty() { "" } else { ", " };
        let function = format!(
            "(G u8 *to, u64 n, u64 view{comma}{declared}) {{
  u64 at = view & 0xffffffffu, end = at + (view >> 32);
  for (; at < end; ++at) {{
{loads}    n = append_byte(to, n, {valid} ? 2 : {null});
{known}  }}
  return append_byte(to, n, 0);
}}
"
        );
        // The name is a hash of the source, so that equal functions are declared once.
        let mut hasher = DefaultHasher::new();
        function.hash(&mut hasher);
        let name = format!("list_key_{:016x}", hasher.finish());
        let arguments: String = self.params.of_elements(column, &params).iter().map(|name| format!(", {name}")).collect();
        self.params.function(format!("COLD_FN u64 {name}{function}"));
        self.params.need(Section::ListKey);
        self.costly();
        let code = format!("{name}(#, @, {}{arguments})", view.code);
        Ok(Value { data_type: data_type.clone(), ctype: CType::ComposedString, code, valid: view.valid, bounds: None })
    }

    /// C that appends a valid element; its value is the new length.
    fn element_key(&mut self, element: &Value) -> Result<String> {
        let element = match element.data_type {
            DataType::Interval(_) => self.interval_sort_key(element),
            _ => element.clone(),
        };
        let Some(ctype) = CType::native(&element.data_type) else {
            return Err(Error::Internal(format!("a list of {}", element.data_type)));
        };
        let code = self.local(ctype, &element.to_ctype(ctype));
        let bytes = ctype.width();
        let sign = |word: String, bytes: usize| match ctype.is_signed() || matches!(ctype, CType::F32 | CType::F64) {
            true => format!("{word} ^ (u64)1 << {}", 8 * bytes - 1),
            false => word,
        };
        // Big-endian words; the sign is in the first one.
        let words = |words: Vec<String>| {
            let mut words = words.into_iter().rev();
            let first = words.next().map(|word| sign(word, 8)).into_iter();
            first.chain(words).fold("n".to_string(), |n, word| format!("key_integer(to, {n}, {word}, 8)"))
        };
        Ok(match ctype {
            CType::Str => format!("key_string(to, n, {code})"),
            CType::I128 => words(vec![format!("{code}.lo"), format!("{code}.hi")]),
            CType::I256 => words((0..4).map(|word| format!("{code}.w[{word}]")).collect()),
            CType::F64 => format!("key_integer(to, n, {}, 8)", sign(format!("(u64)f64_key({code})"), 8)),
            CType::F32 => format!("key_integer(to, n, {}, 4)", sign(format!("(u64)(i64)f32_key({code})"), 4)),
            _ => format!("key_integer(to, n, {}, {bytes})", sign(format!("(u64)(i64){code}"), bytes)),
        })
    }
}
