// SPDX-License-Identifier: Apache-2.0
//! Lists as keys: bytes that differ where the lists do and order as they do, for those who compare, hash and sort text.
//!
//! Before each element stands a byte that tells whether it is NULL, behind the last one a zero. An element's own bytes are its
//! integers with the highest byte first, or its text with an end that no text has.

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
    /// The bytes of a column's list; `nulls_first`: whether a NULL among its elements comes before what else could stand there.
    pub(super) fn list_key(&mut self, column: usize, nulls_first: bool, data_type: &DataType) -> Result<Value> {
        let word = self.list_word(column)?;
        let types = match self.types.get(column).map(|ty| &ty.layout) {
            Some(Layout::List(elements)) if self.is_at_its_row(column) => [elements.as_ref().clone()],
            _ => return unsupported("a key of such a column of lists is not supported on the device"),
        };
        let mut params = Params::new();
        let mut writer = RowWriter::new(&types, self.profile(), &mut params).with_names("at", "e");
        let (known, valid) = if writer.is_list(0) {
            let list = writer.list_key(0, nulls_first, data_type)?;
            (list.code.replace('#', "to").replace('@', "n"), list.valid)
        } else {
            let element = writer.eval(&Expr::Column(0))?;
            (if element.is_null() { "n".into() } else { writer.element_key(&element)? }, element.valid)
        };
        let (loads, valid) = (writer.statements(), valid.as_deref().unwrap_or("1"));
        let null = if nulls_first { 1 } else { 3 };
        let declared: String = params.declaration();
        let comma = if declared.is_empty() { "" } else { ", " };
        let function = format!(
            "(G u8 *to, u64 n, u64 word{comma}{declared}) {{
  u64 at = word & 0xffffffffu, end = at + (word >> 32);
  for (; at < end; ++at) {{
{loads}    n = text_byte(to, n, {valid} ? 2 : {null});
    if ({valid}) n = {known};
  }}
  return text_byte(to, n, 0);
}}
"
        );
        // Two of one name are the same.
        let mut hasher = DefaultHasher::new();
        function.hash(&mut hasher);
        let name = format!("list_key_{:016x}", hasher.finish());
        let arguments: String = self.params.of_elements(column, &params).iter().map(|name| format!(", {name}")).collect();
        self.params.function(format!("COLD_FN u64 {name}{function}"));
        self.params.need(Section::ListKey);
        self.costly();
        let code = format!("{name}(#, @, {}{arguments})", word.code);
        Ok(Value { data_type: data_type.clone(), ctype: CType::Text, code, valid: word.valid, bounds: None })
    }

    /// C that appends an element, which is not NULL, and gives the bytes' number.
    fn element_key(&mut self, element: &Value) -> Result<String> {
        let element = match element.data_type {
            DataType::Interval(_) => self.in_order(element),
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
        // Of several words the highest is first, and has the sign.
        let words = |words: Vec<String>| {
            let mut words = words.into_iter().rev();
            let first = words.next().map(|word| sign(word, 8)).into_iter();
            first.chain(words).fold("n".to_string(), |n, word| format!("key_word(to, {n}, {word}, 8)"))
        };
        Ok(match ctype {
            CType::Str => format!("key_text(to, n, {code})"),
            CType::I128 => words(vec![format!("{code}.lo"), format!("{code}.hi")]),
            CType::I256 => words((0..4).map(|word| format!("{code}.w[{word}]")).collect()),
            CType::F64 => format!("key_word(to, n, {}, 8)", sign(format!("(u64)f64_key({code})"), 8)),
            CType::F32 => format!("key_word(to, n, {}, 4)", sign(format!("(u64)(i64)f32_key({code})"), 4)),
            _ => format!("key_word(to, n, {}, {bytes})", sign(format!("(u64)(i64){code}"), bytes)),
        })
    }
}
