// SPDX-License-Identifier: Apache-2.0
//! Sort keys as bit fields of u64 words, whose order is that of the keys.
//!
//! - A nullable key has a bit that tells NULL from values.
//! - A value is an unsigned number of as many bits as its bounds need.
//! - Integers are counted from their least value, floats are in IEEE 754's totalOrder, strings are
//!   their rank.
//! - Integers of more than 64 bits have several fields.
//! - A descending key inverts the bits of its value.
//! - Fields have the order of the keys, most significant first, with as many in a word as fit.

use arrow::compute::SortOptions;
use arrow::datatypes::DataType;
use columnar::{ColumnType, Layout};

use super::SortKey;
use crate::Result;
use crate::codegen::{CType, Params, Profile, RowWriter, Value};
use crate::expr::Expr;

/// A key, as a column of the sorted batch.
#[derive(Debug, Clone)]
pub(super) struct PackedSortKey {
    pub column: usize,
    pub ctype: CType,
    nullable: bool,
    /// Bounds of integers.
    range: Option<(i128, i128)>,
    pub order: SortOptions,
    /// Whether the strings are codes of a dictionary. Then its values are ranked.
    coded: bool,
}

/// A bit field of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct SortField {
    /// Position among the keys.
    key: usize,
    part: SortFieldPart,
    bits: u32,
    /// Number of the lowest bits of the part that are left out.
    dropped: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SortFieldPart {
    /// Whether the key is not NULL.
    Validity,
    Value,
    /// A word of an integer of several, 0 the lowest.
    Word(u8),
    /// The first bytes of a string.
    Prefix,
}

impl SortField {
    /// The key whose string prefix the field is.
    pub fn prefix_of(&self) -> Option<usize> {
        (self.part == SortFieldPart::Prefix).then_some(self.key)
    }
}

impl PackedSortKey {
    /// The key `of`, in column `column`.
    pub fn plan(column: usize, types: &[ColumnType], of: &SortKey, profile: Profile) -> Result<PackedSortKey> {
        let mut params = Params::new();
        let value = RowWriter::new(types, profile, &mut params).eval(&Expr::Column(column))?;
        let coded = types.get(column).is_some_and(|ty| matches!(ty.layout, Layout::Dictionary { .. }));
        // A key that is always NULL orders nothing.
        let (ctype, nullable) = if value.is_null() { (CType::Bool, false) } else { (value.ctype, value.valid.is_some()) };
        let range = match value.ctype {
            _ if value.is_null() => Some((0, 0)),
            _ if matches!(value.data_type, DataType::Interval(_)) => None,
            CType::Bool => Some((0, 1)),
            _ => value.range(),
        };
        let order = SortOptions { descending: of.descending, nulls_first: of.nulls_first };
        Ok(PackedSortKey { column, ctype, nullable, range, order, coded })
    }

    /// Whether the key is a string, ordered by rank.
    pub fn is_str(&self) -> bool {
        self.ctype == CType::Str
    }

    /// Bits of the value, at most 256.
    fn bits(&self) -> u32 {
        match (self.ctype, self.range) {
            (CType::Str, _) => u32::BITS,
            (CType::F32 | CType::F64, _) | (_, None) => self.ctype.width() as u32 * 8,
            (_, Some((least, most))) => i128::BITS - (most.wrapping_sub(least) as u128).leading_zeros(),
        }
    }

    /// Appends the key's fields, most significant first.
    fn fields(&self, key: usize, fields: &mut Vec<SortField>) {
        let mut add = |part, bits| fields.push(SortField { key, part, bits, dropped: 0 });
        if self.nullable {
            add(SortFieldPart::Validity, 1);
        }
        match self.bits() {
            0 => {}
            bits @ 1..=64 => add(SortFieldPart::Value, bits),
            _ => (0..self.ctype.width() as u8 / 8).rev().for_each(|word| add(SortFieldPart::Word(word), u64::BITS)),
        }
    }

    /// C for a field of the writer's row, `index`. The field of a NULL value is 0, so that NULLs
    /// are equal.
    fn field(&self, writer: &mut RowWriter<'_>, field: &SortField, index: &str) -> Result<String> {
        let mut value = writer.eval(&Expr::Column(self.column))?;
        if matches!(value.data_type, DataType::Interval(_)) {
            value = writer.interval_sort_key(&value);
        }
        let valid = value.valid_code().to_owned();
        if field.part == SortFieldPart::Validity {
            return Ok(if self.order.nulls_first { format!("(u64){valid}") } else { format!("(u64)!{valid}") });
        }
        let code = match self.ctype {
            CType::Str if field.part == SortFieldPart::Prefix => format!("str_chunk({0}.p, {0}.len, 0)", value.code),
            CType::Str => {
                let ranks = writer.params().named(&ranks(field.key), "const G u32 *RESTRICT");
                match self.coded {
                    true => format!("(u64){ranks}[{}]", writer.code(self.column)?.code),
                    false => format!("(u64){ranks}[{index}]"),
                }
            }
            _ => self.number(&value, field.part),
        };
        let code = match (self.order.descending, field.bits + field.dropped) {
            (false, _) => format!("({code})"),
            (true, u64::BITS) => format!("~({code})"),
            (true, bits) => format!("({:#x}UL - ({code}))", (1u64 << bits) - 1),
        };
        let code = if field.dropped == 0 { code } else { format!("({code} >> {})", field.dropped) };
        Ok(if valid == "1" { code } else { format!("({valid} ? {code} : (u64)0)") })
    }

    /// C for the bits of a value other than a string.
    fn number(&self, value: &Value, part: SortFieldPart) -> String {
        let code = &value.code;
        let sign = "(u64)0x8000000000000000UL";
        let least = self.range.map_or(0, |(least, _)| least) as u64;
        match (self.ctype, part) {
            (CType::F64, _) => format!("(u64)f64_key({code}) ^ {sign}"),
            (CType::F32, _) => format!("(u64)((u32)f32_key({code}) ^ 0x80000000u)"),
            (CType::I128, SortFieldPart::Word(0)) => format!("{code}.lo"),
            (CType::I128, SortFieldPart::Word(_)) => format!("{code}.hi ^ {sign}"),
            (CType::I256, SortFieldPart::Word(3)) => format!("{code}.w[3] ^ {sign}"),
            (CType::I256, SortFieldPart::Word(word)) => format!("{code}.w[{word}]"),
            (CType::I256, _) => format!("{code}.w[0] - (u64){least:#x}UL"),
            (CType::I128, _) => format!("{code}.lo - (u64){least:#x}UL"),
            (CType::Bool | CType::U8 | CType::U16 | CType::U32 | CType::U64, _) => format!("(u64){code} - (u64){least:#x}UL"),
            _ => format!("(u64)(i64){code} - (u64){least:#x}UL"),
        }
    }
}

/// The words of the keys, most significant first; none if no key orders anything.
pub(super) fn words(keys: &[PackedSortKey]) -> Vec<Vec<SortField>> {
    let mut fields = vec![];
    for (index, key) in keys.iter().enumerate() {
        key.fields(index, &mut fields);
    }
    let mut words: Vec<Vec<SortField>> = vec![];
    let mut room = 0;
    for field in fields {
        match words.last_mut() {
            Some(word) if field.bits <= room => word.push(field),
            _ => {
                room = u64::BITS;
                words.push(vec![field]);
            }
        }
        room -= field.bits;
    }
    words
}

/// A comparison of two rows by a part of the keys.
pub(super) enum Comparison<'a> {
    /// Words without strings: the lesser word is first.
    Word(Vec<SortField>),
    /// The bytes of strings. Those of NULL are equal: a word before tells NULL from values.
    String(&'a PackedSortKey),
}

/// The comparisons of two rows by all keys, most significant first.
pub(super) fn comparisons(keys: &[PackedSortKey]) -> Vec<Comparison<'_>> {
    let mut comparisons = vec![];
    let mut room = 0;
    for (index, key) in keys.iter().enumerate() {
        let mut fields = vec![];
        key.fields(index, &mut fields);
        for field in fields {
            if key.is_str() && field.part == SortFieldPart::Value {
                comparisons.push(Comparison::String(key));
                continue;
            }
            match comparisons.last_mut() {
                Some(Comparison::Word(word)) if field.bits <= room => word.push(field),
                _ => {
                    room = u64::BITS;
                    comparisons.push(Comparison::Word(vec![field]));
                }
            }
            room -= field.bits;
        }
    }
    comparisons
}

/// One word to compare rows of different batches, and whether it is exact: otherwise rows with
/// equal words may have different keys.
pub(super) fn threshold_word(keys: &[PackedSortKey]) -> (Vec<SortField>, bool) {
    let mut fields = vec![];
    for (index, key) in keys.iter().enumerate() {
        key.fields(index, &mut fields);
    }
    let (mut word, mut room, mut exact) = (vec![], u64::BITS, true);
    for mut field in fields {
        if keys.get(field.key).is_some_and(PackedSortKey::is_str) && field.part == SortFieldPart::Value {
            (field.part, field.bits, exact) = (SortFieldPart::Prefix, u64::BITS, false);
        }
        if room == 0 {
            return (word, false);
        }
        field.dropped = field.bits.saturating_sub(room);
        field.bits -= field.dropped;
        room -= field.bits;
        exact &= field.dropped == 0;
        word.push(field);
        if !exact {
            break;
        }
    }
    (word, exact)
}

/// Appends the statements for a word of the writer's row `index`. Returns its C.
pub(super) fn word(writer: &mut RowWriter<'_>, keys: &[PackedSortKey], fields: &[SortField], index: &str) -> Result<String> {
    let mut shift: u32 = fields.iter().map(|field| field.bits).sum();
    let mut parts = Vec::with_capacity(fields.len());
    for field in fields {
        shift -= field.bits;
        let Some(key) = keys.get(field.key) else { continue };
        let code = key.field(writer, field, index)?;
        parts.push(if shift == 0 { code } else { format!("{code} << {shift}") });
    }
    Ok(if parts.is_empty() { "0".into() } else { parts.join(" | ") })
}

/// Parameter of the ranks of a key's strings.
pub(super) fn ranks(key: usize) -> String {
    format!("ranks{key}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(ctype: CType, nullable: bool, range: Option<(i128, i128)>) -> PackedSortKey {
        let order = SortOptions { descending: false, nulls_first: false };
        PackedSortKey { column: 0, ctype, nullable, range, order, coded: false }
    }

    #[test]
    fn fields_share_words_where_they_fit() {
        let bits = |keys: &[PackedSortKey]| {
            words(keys).iter().map(|word| word.iter().map(|field| field.bits).collect()).collect::<Vec<Vec<_>>>()
        };
        let small = || key(CType::I32, false, Some((-8, 7)));
        let whole = key(CType::I64, true, Some((i64::MIN.into(), i64::MAX.into())));
        assert_eq!(bits(&[small(), small(), key(CType::Str, true, None)]), [[4, 4, 1, 32]]);
        assert_eq!(bits(&[whole, small()]), [vec![1], vec![64], vec![4]]);
        assert_eq!(bits(&[key(CType::I128, false, None), small()]), [vec![64], vec![64], vec![4]]);
        assert_eq!(bits(&[key(CType::I128, true, Some((0, 1 << 40)))]), [[1, 41]]);
        assert_eq!(bits(&[key(CType::Bool, false, Some((0, 0)))]), Vec::<Vec<u32>>::new());
        assert_eq!(bits(&[]), Vec::<Vec<u32>>::new());
    }

    #[test]
    fn a_threshold_word_has_the_first_bits() {
        let bits = |keys: &[PackedSortKey]| {
            let (fields, exact) = threshold_word(keys);
            (fields.iter().map(|field| (field.bits, field.dropped)).collect::<Vec<_>>(), exact)
        };
        let small = || key(CType::I32, false, Some((-8, 7)));
        let whole = || key(CType::I64, true, Some((i64::MIN.into(), i64::MAX.into())));
        assert_eq!(bits(&[small(), small()]), (vec![(4, 0), (4, 0)], true));
        assert_eq!(bits(&[whole()]), (vec![(1, 0), (63, 1)], false));
        assert_eq!(bits(&[small(), key(CType::Str, true, None), small()]), (vec![(4, 0), (1, 0), (59, 5)], false));
        assert_eq!(bits(&[key(CType::I64, false, None), small()]), (vec![(64, 0)], false));
        assert_eq!(bits(&[key(CType::I128, false, None)]), (vec![(64, 0)], false));
        assert_eq!(bits(&[]), (vec![], true));
    }
}
