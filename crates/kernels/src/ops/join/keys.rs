// SPDX-License-Identifier: Apache-2.0
//! Keys of a join as C: key fields, packed keys, hashes, equality.
//!
//! A *key field* is a u64, equal where the values are. A key has one field, or several if its
//! values have more than 64 bits; strings have none. The *packed key* of a row is one u64 of all
//! fields: the sum of (field - least) * stride.

use crate::codegen::{CType, RowWriter, Value};
use crate::prelude::Section;

/// How both sides of a join represent one key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::ops) enum KeyEncoding {
    /// One field.
    Single,
    /// Several fields of an integer of this type, the highest first. Narrower values are widened.
    Multiple(CType),
    /// Bytes of a string.
    Bytes,
}

/// The keys of a join with the values of one row.
#[derive(Clone, Copy)]
pub(in crate::ops) struct RowKeys<'a> {
    pub encodings: &'a [KeyEncoding],
    pub values: &'a [Value],
    pub null_equals_null: bool,
}

impl KeyEncoding {
    /// The encoding of values of two C types.
    pub fn of(left: CType, right: CType) -> KeyEncoding {
        match (left, right) {
            (CType::Str, _) | (_, CType::Str) => KeyEncoding::Bytes,
            (CType::I256, _) | (_, CType::I256) => KeyEncoding::Multiple(CType::I256),
            (CType::I128, _) | (_, CType::I128) => KeyEncoding::Multiple(CType::I128),
            // DataFusion plans such joins if a UNION has another type than its first input.
            _ if left.is_integer() && right.is_integer() && left.is_signed() != right.is_signed() => {
                KeyEncoding::Multiple(CType::I128)
            }
            _ => KeyEncoding::Single,
        }
    }

    /// Number of fields; 0 for strings.
    pub fn fields(self) -> usize {
        match self {
            KeyEncoding::Single => 1,
            KeyEncoding::Multiple(ctype) => ctype.width() / 8,
            KeyEncoding::Bytes => 0,
        }
    }

    /// The range of the single field of an integer with proven bounds.
    pub fn proven_range(self, value: &Value) -> Option<(u64, u64)> {
        let (least, greatest) = value.bounds.filter(|_| self == KeyEncoding::Single && value.ctype.is_integer())?;
        let field = |value: i128, signed| if signed { value as u64 ^ 1 << 63 } else { value as u64 };
        let (lowest, highest) = if value.ctype.is_signed() { (i64::MIN.into(), i64::MAX.into()) } else { (0, u64::MAX.into()) };
        let fits = lowest <= least && least <= greatest && greatest <= highest;
        fits.then(|| (field(least, value.ctype.is_signed()), field(greatest, value.ctype.is_signed())))
    }

    /// C of the fields. They have the order of the values, except for floats.
    pub fn fields_of(self, writer: &mut RowWriter<'_>, value: &Value) -> Vec<String> {
        let code = &value.code;
        let fields = match (self, value.ctype) {
            (KeyEncoding::Bytes, _) => vec![],
            (KeyEncoding::Multiple(ctype), _) => {
                writer.params().need_type(ctype);
                let wide = value.to_ctype(ctype);
                let wide = writer.local(ctype, &wide);
                let words = match ctype {
                    CType::I256 => ["w[3]", "w[2]", "w[1]", "w[0]"].as_slice(),
                    _ => &["hi", "lo"],
                };
                let mut fields: Vec<String> = words.iter().map(|word| format!("{wide}.{word}")).collect();
                if let Some(highest) = fields.first_mut() {
                    *highest = format!("((u64){highest} ^ (u64)0x8000000000000000UL)");
                }
                fields
            }
            (KeyEncoding::Single, CType::F64) => vec![format!("F64_BITS(f64_fold({code}))")],
            (KeyEncoding::Single, CType::F32) => vec![format!("(u64)F32_BITS(f32_fold({code}))")],
            (KeyEncoding::Single, ctype) if ctype.is_signed() => {
                vec![format!("((u64)(i64){code} ^ (u64)0x8000000000000000UL)")]
            }
            (KeyEncoding::Single, _) => vec![format!("(u64){code}")],
        };
        fields.iter().map(|field| writer.local(CType::U64, field)).collect()
    }
}

impl RowKeys<'_> {
    fn each(&self) -> impl Iterator<Item = (&KeyEncoding, &Value)> {
        self.encodings.iter().zip(self.values)
    }

    /// C, 0 or 1: whether a row with these keys can have a match; `None`: always.
    pub fn matchable(&self) -> Option<String> {
        if self.null_equals_null { None } else { none_null(self.values) }
    }

    /// Appends the packed key. `table` prefixes the arguments of the table.
    pub fn packed(&self, writer: &mut RowWriter<'_>, table: &str) -> PackedKey {
        let in_range = writer.flag("1");
        let packed = writer.local(CType::U64, "0");
        let mut number = 0;
        for (encoding, value) in self.each() {
            for (position, field) in encoding.fields_of(writer, value).into_iter().enumerate() {
                let [least, span, stride] =
                    ["least", "span", "stride"].map(|what| writer.params().named(&format!("{table}_{what}{number}"), "u64"));
                let from_least = writer.local(CType::U64, &format!("{field} - {least}"));
                if self.null_equals_null {
                    // NULL is one more value, before the others.
                    let valid = value.valid.as_deref().unwrap_or("1");
                    let more = if position == 0 { " + 1" } else { "" };
                    writer.push(&format!("{in_range} &= !{valid} | ({from_least} <= {span});"));
                    writer.push(&format!("{packed} += ({valid} ? {from_least}{more} : 0) * {stride};"));
                } else {
                    writer.push(&format!("{in_range} &= {from_least} <= {span};"));
                    writer.push(&format!("{packed} += {from_least} * {stride};"));
                }
                number += 1;
            }
        }
        let condition = self.matchable().map_or(in_range.clone(), |matchable| format!("{in_range} & {matchable}"));
        PackedKey { condition, code: packed }
    }

    /// Appends the hash of the keys. Returns its name.
    pub fn hash(&self, writer: &mut RowWriter<'_>) -> String {
        writer.params().need(Section::Hash);
        let hash = writer.local(CType::U64, "0");
        for (encoding, value) in self.each() {
            let mixed = match encoding {
                KeyEncoding::Bytes => format!("{hash} = hash_bytes({hash}, {});", value.code),
                KeyEncoding::Single | KeyEncoding::Multiple(_) => {
                    let fields = encoding.fields_of(writer, value);
                    fields.iter().map(|field| format!("{hash} = hash64({hash} ^ {field});")).collect::<Vec<_>>().join(" ")
                }
            };
            writer.push(&match &value.valid {
                None => mixed,
                Some(valid) => format!("if ({valid}) {{ {mixed} }} else {hash} = hash64({hash} + (u64)0x5bd1e995u);"),
            });
        }
        hash
    }

    /// Appends the fields of each key.
    pub fn fields(&self, writer: &mut RowWriter<'_>) -> Vec<Vec<String>> {
        self.each().map(|(encoding, value)| encoding.fields_of(writer, value)).collect()
    }

    /// C, 0 or 1: whether the keys of another row are equal. Each side has values and fields.
    /// Unless NULLs are equal, no key is NULL.
    pub fn equal(&self, fields: &[Vec<String>], others: &[Value], other_fields: &[Vec<String>]) -> String {
        let mut parts = Vec::new();
        for (index, (encoding, value)) in self.each().enumerate() {
            let other = &others[index];
            let same = match encoding {
                KeyEncoding::Bytes => format!("str_eq({}, {})", value.code, other.code),
                KeyEncoding::Single | KeyEncoding::Multiple(_) => {
                    let pairs = fields[index].iter().zip(&other_fields[index]);
                    pairs.map(|(a, b)| format!("{a} == {b}")).collect::<Vec<_>>().join(" && ")
                }
            };
            parts.push(match (self.null_equals_null, &value.valid, &other.valid) {
                (false, _, _) | (_, None, None) => format!("({same})"),
                _ => format!("({0} == {1} && (!{0} || ({same})))", value.valid_code(), other.valid_code()),
            });
        }
        parts.join(" && ")
    }
}

/// C, 0 or 1: whether no value is NULL; `None`: always.
pub(super) fn none_null(values: &[Value]) -> Option<String> {
    let valid: Vec<&str> = values.iter().filter_map(|value| value.valid.as_deref()).collect();
    (!valid.is_empty()).then(|| valid.join(" & "))
}

/// The packed key of a row.
pub(in crate::ops) struct PackedKey {
    /// C, 0 or 1: whether all fields are in the ranges of the table, and the row can have a match.
    pub condition: String,
    /// C of the packed key.
    pub code: String,
}
