// SPDX-License-Identifier: Apache-2.0
//! Keys of a join as C: digits, hashes, equality.

use crate::codegen::{CType, RowWriter, Value};
use crate::prelude::Section;

/// How one key is compared, the same on both sides.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum KeyForm {
    /// One word.
    Word,
    /// Several words, the highest first: what is such an integer on either side.
    Wide(CType),
    /// Bytes.
    Text,
}

impl KeyForm {
    /// The form for values of two C types.
    pub fn of(left: CType, right: CType) -> KeyForm {
        match (left, right) {
            (CType::Str, _) | (_, CType::Str) => KeyForm::Text,
            (CType::I256, _) | (_, CType::I256) => KeyForm::Wide(CType::I256),
            (CType::I128, _) | (_, CType::I128) => KeyForm::Wide(CType::I128),
            // DataFusion plans such a join where a UNION has another type than its first input.
            _ if left.is_integer() && right.is_integer() && left.is_signed() != right.is_signed() => KeyForm::Wide(CType::I128),
            _ => KeyForm::Word,
        }
    }

    /// Number of digits; of text there are none.
    pub fn digits(self) -> usize {
        match self {
            KeyForm::Word => 1,
            KeyForm::Wide(ctype) => ctype.width() / 8,
            KeyForm::Text => 0,
        }
    }

    /// The range of the one digit of an integer whose own range is proven.
    pub fn proven_range(self, value: &Value) -> Option<(u64, u64)> {
        let (least, greatest) = value.bounds.filter(|_| self == KeyForm::Word && value.ctype.is_integer())?;
        let digit = |value: i128, signed| if signed { value as u64 ^ 1 << 63 } else { value as u64 };
        let (lowest, highest) = if value.ctype.is_signed() { (i64::MIN.into(), i64::MAX.into()) } else { (0, u64::MAX.into()) };
        let fits = lowest <= least && least <= greatest && greatest <= highest;
        fits.then(|| (digit(least, value.ctype.is_signed()), digit(greatest, value.ctype.is_signed())))
    }

    /// C of the digits: equal where the values are, in the values' order but for floats.
    pub fn digits_of(self, writer: &mut RowWriter<'_>, value: &Value) -> Vec<String> {
        let code = &value.code;
        let words = match (self, value.ctype) {
            (KeyForm::Text, _) => vec![],
            (KeyForm::Wide(ctype), _) => {
                writer.params().need_type(ctype);
                let wide = value.to_ctype(ctype);
                let wide = writer.local(ctype, &wide);
                let words = match ctype {
                    CType::I256 => ["w[3]", "w[2]", "w[1]", "w[0]"].as_slice(),
                    _ => &["hi", "lo"],
                };
                let mut words: Vec<String> = words.iter().map(|word| format!("{wide}.{word}")).collect();
                if let Some(highest) = words.first_mut() {
                    *highest = format!("((u64){highest} ^ (u64)0x8000000000000000UL)");
                }
                words
            }
            (KeyForm::Word, CType::F64) => vec![format!("F64_BITS(f64_fold({code}))")],
            (KeyForm::Word, CType::F32) => vec![format!("(u64)F32_BITS(f32_fold({code}))")],
            (KeyForm::Word, ctype) if ctype.is_signed() => vec![format!("((u64)(i64){code} ^ (u64)0x8000000000000000UL)")],
            (KeyForm::Word, _) => vec![format!("(u64){code}")],
        };
        words.iter().map(|word| writer.local(CType::U64, word)).collect()
    }
}

/// C, 0 or 1: whether a row with these keys can have a match; `None`: always.
pub(super) fn known(values: &[Value], null_equals_null: bool) -> Option<String> {
    if null_equals_null {
        return None;
    }
    let valid: Vec<&str> = values.iter().filter_map(|value| value.valid.as_deref()).collect();
    (!valid.is_empty()).then(|| valid.join(" & "))
}

/// Appends the number of a row's keys: names of a flag, whether all digits lie in the table's ranges, and of the number.
/// `table` prefixes the table's arguments.
pub(super) fn number(
    writer: &mut RowWriter<'_>,
    forms: &[KeyForm],
    values: &[Value],
    null_equals_null: bool,
    table: &str,
) -> (String, String) {
    let inside = writer.flag("1");
    let number = writer.local(CType::U64, "0");
    let mut digit = 0;
    for (form, value) in forms.iter().zip(values) {
        for (place, word) in form.digits_of(writer, value).into_iter().enumerate() {
            let [least, most, stride] =
                ["least", "most", "stride"].map(|what| writer.params().named(&format!("{table}_{what}{digit}"), "u64"));
            let from_least = writer.local(CType::U64, &format!("{word} - {least}"));
            match (null_equals_null, &value.valid) {
                // NULL is one value more, before the others.
                (true, valid) => {
                    let valid = valid.as_deref().unwrap_or("1");
                    let more = if place == 0 { " + 1" } else { "" };
                    writer.push(&format!("{inside} &= !{valid} | ({from_least} <= {most});"));
                    writer.push(&format!("{number} += ({valid} ? {from_least}{more} : 0) * {stride};"));
                }
                (false, _) => {
                    writer.push(&format!("{inside} &= {from_least} <= {most};"));
                    writer.push(&format!("{number} += {from_least} * {stride};"));
                }
            }
            digit += 1;
        }
    }
    (inside, number)
}

/// Appends the hash of a row's keys; its name.
pub(super) fn hash(writer: &mut RowWriter<'_>, forms: &[KeyForm], values: &[Value]) -> String {
    writer.params().need(Section::Hash);
    let hash = writer.local(CType::U64, "0");
    for (form, value) in forms.iter().zip(values) {
        let mixed = match form {
            KeyForm::Text => format!("{hash} = hash_bytes({hash}, {});", value.code),
            _ => {
                let words = form.digits_of(writer, value);
                words.iter().map(|word| format!("{hash} = hash64({hash} ^ {word});")).collect::<Vec<_>>().join(" ")
            }
        };
        writer.push(&match &value.valid {
            None => mixed,
            Some(valid) => format!("if ({valid}) {{ {mixed} }} else {hash} = hash64({hash} + (u64)0x5bd1e995u);"),
        });
    }
    hash
}

/// Appends the digits of each key.
pub(super) fn digits(writer: &mut RowWriter<'_>, forms: &[KeyForm], values: &[Value]) -> Vec<Vec<String>> {
    forms.iter().zip(values).map(|(form, value)| form.digits_of(writer, value)).collect()
}

/// C, 0 or 1: whether two rows' keys are equal, each side's values with their digits. Without `null_equals_null` no key
/// is NULL.
pub(super) fn equal(
    forms: &[KeyForm],
    (left, left_digits): (&[Value], &[Vec<String>]),
    (right, right_digits): (&[Value], &[Vec<String>]),
    null_equals_null: bool,
) -> String {
    let mut parts = Vec::new();
    for (index, form) in forms.iter().enumerate() {
        let (left, right) = (&left[index], &right[index]);
        let same = match form {
            KeyForm::Text => format!("str_eq({}, {})", left.code, right.code),
            _ => {
                let pairs = left_digits[index].iter().zip(&right_digits[index]);
                pairs.map(|(a, b)| format!("{a} == {b}")).collect::<Vec<_>>().join(" && ")
            }
        };
        parts.push(match (null_equals_null, &left.valid, &right.valid) {
            (false, _, _) | (_, None, None) => format!("({same})"),
            _ => format!("({0} == {1} && (!{0} || ({same})))", left.valid_code(), right.valid_code()),
        });
    }
    parts.join(" && ")
}
