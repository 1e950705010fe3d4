// SPDX-License-Identifier: Apache-2.0
//! Kinds of states: slots, initial values, and the state of a single value.

use crate::codegen::{CType, Params, Value};
use crate::prelude::Section;

/// Content of a state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(in crate::ops) enum StateKind {
    /// Number of values.
    Count,
    /// Wrapping sum of 64 bits.
    Sum64,
    /// Wrapping sum of 128 bits, low slot first.
    Sum128,
    /// Sum of 192 bits.
    Sum192,
    /// Wrapping sum of 256 bits.
    Sum256,
    /// Sum of floats.
    SumF64,
    /// Least value, mapped to a u64 of the same order.
    Min,
    /// Greatest value, mapped to a u64 of the same order.
    Max,
    /// Least 128-bit integer; not atomic, as the next three.
    Min128,
    Max128,
    Min256,
    Max256,
    And,
    Or,
    Xor,
    /// Number, mean and sum of squared distances, as DataFusion computes them; not atomic.
    Welford,
    /// Sums of x and x², each as an unevaluated sum of two floats.
    PowerSums,
    /// Sums of y, x, y², x² and x·y, each as an unevaluated sum of two floats.
    CrossSums,
    /// Numbers of a sketch's registers by rank: rank r in slot r / 4, 16 bits each.
    RankCounts,
    /// Reference to a row or to the store of earlier winners, without slots of its own; see
    /// `VarWidthMinMax`. For strings, and for atomic states of wide integers.
    VarWidthMin,
    VarWidthMax,
}

/// The content of a state's slots, for the code that depends on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Content {
    Sum(Sum),
    /// The least or the greatest value, in one slot.
    Least,
    Greatest,
    /// The least or the greatest value of 128 or 256 bits.
    WideExtreme,
    /// A reference to a row instead of a value.
    RowReference,
    /// Number, mean and sum of squared distances.
    Welford,
    /// Sums of x and x².
    PowerSums,
    /// Numbers of a sketch's registers by rank.
    RankCounts,
    /// One of the others, whose updates and results have no variants.
    Other,
}

/// Entry of a value into a state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Entry {
    /// Merges with the state of the value alone.
    Merge,
    /// By Welford's recurrence.
    Welford,
    /// Counts the rank of a sketch's register.
    Rank,
}

impl Content {
    pub(super) fn entry(self) -> Entry {
        match self {
            Content::Welford => Entry::Welford,
            Content::RankCounts => Entry::Rank,
            Content::Sum(_) | Content::Least | Content::Greatest | Content::WideExtreme => Entry::Merge,
            Content::RowReference | Content::PowerSums | Content::Other => Entry::Merge,
        }
    }
}

/// A sum, by its width.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sum {
    Int64,
    Int128,
    Int192,
    Int256,
    Float64,
}

impl StateKind {
    /// The content of the state's slots.
    pub fn content(self) -> Content {
        match self {
            StateKind::Sum64 => Content::Sum(Sum::Int64),
            StateKind::Sum128 => Content::Sum(Sum::Int128),
            StateKind::Sum192 => Content::Sum(Sum::Int192),
            StateKind::Sum256 => Content::Sum(Sum::Int256),
            StateKind::SumF64 => Content::Sum(Sum::Float64),
            StateKind::Min => Content::Least,
            StateKind::Max => Content::Greatest,
            StateKind::Min128 | StateKind::Max128 | StateKind::Min256 | StateKind::Max256 => Content::WideExtreme,
            StateKind::VarWidthMin | StateKind::VarWidthMax => Content::RowReference,
            StateKind::Welford => Content::Welford,
            StateKind::PowerSums => Content::PowerSums,
            StateKind::RankCounts => Content::RankCounts,
            StateKind::Count | StateKind::And | StateKind::Or | StateKind::Xor | StateKind::CrossSums => Content::Other,
        }
    }

    /// Whether the state has the number of values, so that the result needs no other count.
    pub fn has_count(self) -> bool {
        match self.content() {
            Content::Welford | Content::RankCounts => true,
            Content::Sum(_)
            | Content::Least
            | Content::Greatest
            | Content::WideExtreme
            | Content::RowReference
            | Content::PowerSums
            | Content::Other => false,
        }
    }

    /// Whether the state refers to a row instead of holding a value.
    pub fn refers_to_row(self) -> bool {
        match self.content() {
            Content::RowReference => true,
            Content::Sum(_)
            | Content::Least
            | Content::Greatest
            | Content::WideExtreme
            | Content::Welford
            | Content::PowerSums
            | Content::RankCounts
            | Content::Other => false,
        }
    }

    /// Whether the state is the greatest value. Other states of extremes are the least one.
    pub fn is_greatest(self) -> bool {
        match self {
            StateKind::Max | StateKind::Max128 | StateKind::Max256 | StateKind::VarWidthMax => true,
            StateKind::Min
            | StateKind::Min128
            | StateKind::Min256
            | StateKind::VarWidthMin
            | StateKind::Count
            | StateKind::Sum64
            | StateKind::Sum128
            | StateKind::Sum192
            | StateKind::Sum256
            | StateKind::SumF64
            | StateKind::And
            | StateKind::Or
            | StateKind::Xor
            | StateKind::Welford
            | StateKind::PowerSums
            | StateKind::CrossSums
            | StateKind::RankCounts => false,
        }
    }

    /// Slots of the state.
    pub fn slots(self) -> usize {
        match self {
            StateKind::VarWidthMin | StateKind::VarWidthMax => 0,
            StateKind::Count
            | StateKind::Sum64
            | StateKind::SumF64
            | StateKind::Min
            | StateKind::Max
            | StateKind::And
            | StateKind::Or
            | StateKind::Xor => 1,
            StateKind::Sum128 | StateKind::Min128 | StateKind::Max128 => 2,
            StateKind::Sum192 | StateKind::Welford => 3,
            StateKind::PowerSums | StateKind::Sum256 | StateKind::Min256 | StateKind::Max256 => 4,
            StateKind::CrossSums => 10,
            StateKind::RankCounts => 13,
        }
    }

    /// The state of no values.
    pub fn init(self) -> &'static [u64] {
        const ONES: u64 = u64::MAX;
        match self {
            StateKind::Min | StateKind::And => &[ONES],
            StateKind::Min128 => &[ONES, ONES >> 1],
            StateKind::Max128 => &[0, 1 << 63],
            StateKind::Min256 => &[ONES, ONES, ONES, ONES >> 1],
            StateKind::Max256 => &[0, 0, 0, 1 << 63],
            StateKind::Count
            | StateKind::Sum64
            | StateKind::Sum128
            | StateKind::Sum192
            | StateKind::Sum256
            | StateKind::SumF64
            | StateKind::Max
            | StateKind::Or
            | StateKind::Xor
            | StateKind::Welford
            | StateKind::PowerSums
            | StateKind::CrossSums
            | StateKind::RankCounts
            | StateKind::VarWidthMin
            | StateKind::VarWidthMax => &[0; 13][..self.slots()],
        }
    }

    /// C of the state of one value, or of one value of each argument.
    pub(super) fn lift(self, values: &[Value]) -> Vec<String> {
        let Some(value) = values.first() else { return vec!["(u64)1".into()] };
        let code = &value.code;
        let float = format!("(f64){code}");
        // A product and its rounding error.
        let product = |x: &str, y: &str| [format!("F64_BITS({x} * {y})"), format!("F64_BITS(fma({x}, {y}, -({x} * {y})))")];
        match self {
            StateKind::Count => vec!["(u64)1".into()],
            StateKind::Sum64
            | StateKind::And
            | StateKind::Or
            | StateKind::Xor
            | StateKind::Sum128
            | StateKind::Min128
            | StateKind::Max128
            | StateKind::Sum192
            | StateKind::Sum256
            | StateKind::Min256
            | StateKind::Max256 => words(value, self.slots()),
            StateKind::SumF64 => vec![format!("F64_BITS({float})")],
            StateKind::Min | StateKind::Max => vec![ordered(value)],
            StateKind::Welford => vec!["(u64)1".into(), format!("F64_BITS({float})"), "(u64)0".into()],
            StateKind::PowerSums => {
                let [square, error] = product(&float, &float);
                vec![format!("F64_BITS({float})"), "(u64)0".into(), square, error]
            }
            StateKind::CrossSums => {
                let floats: Vec<String> = values.iter().map(|value| format!("(f64){}", value.code)).collect();
                let sums = floats.iter().flat_map(|float| [format!("F64_BITS({float})"), "(u64)0".into()]);
                let pairs = [(0, 0), (floats.len() - 1, floats.len() - 1), (0, floats.len() - 1)];
                sums.chain(pairs.into_iter().flat_map(|(a, b)| product(&floats[a], &floats[b]))).collect()
            }
            // Their updates change few slots, or none.
            StateKind::RankCounts | StateKind::VarWidthMin | StateKind::VarWidthMax => vec![],
        }
    }

    /// Flags the sections of the prelude that the statements need.
    pub fn need(self, params: &mut Params) {
        params.need(match self {
            StateKind::Sum128 | StateKind::Min128 | StateKind::Max128 => Section::I128,
            StateKind::Sum192 => Section::I128Div,
            StateKind::RankCounts => Section::Sketch,
            StateKind::Sum256 | StateKind::Min256 | StateKind::Max256 => Section::I256,
            StateKind::SumF64
            | StateKind::Welford
            | StateKind::PowerSums
            | StateKind::CrossSums
            | StateKind::Min
            | StateKind::Max => Section::Float,
            StateKind::Count
            | StateKind::Sum64
            | StateKind::And
            | StateKind::Or
            | StateKind::Xor
            | StateKind::VarWidthMin
            | StateKind::VarWidthMax => Section::Base,
        });
    }
}

/// A value as 64-bit words, the lowest first.
fn words(value: &Value, count: usize) -> Vec<String> {
    let code = &value.code;
    let mut words: Vec<String> = match value.ctype {
        CType::I256 => (0..4).map(|word| format!("{code}.w[{word}]")).collect(),
        CType::I128 => vec![format!("{code}.lo"), format!("{code}.hi")],
        CType::U64 => vec![code.clone()],
        _ => vec![format!("(u64)(i64){code}")],
    };
    let sign = match words.last() {
        Some(highest) if value.ctype.is_signed() => format!("(u64)((i64){highest} >> 63)"),
        _ => "(u64)0".into(),
    };
    words.resize(count, sign);
    words
}

/// A value as a u64 of the same order.
fn ordered(value: &Value) -> String {
    const SIGN: &str = "(u64)0x8000000000000000UL";
    let code = &value.code;
    match value.ctype {
        CType::F64 => format!("((u64)f64_key({code}) ^ {SIGN})"),
        CType::F32 => format!("((u64)(i64)f32_key({code}) ^ {SIGN})"),
        ctype if ctype.is_signed() => format!("((u64)(i64){code} ^ {SIGN})"),
        _ => format!("(u64){code}"),
    }
}

/// The inverse of [`ordered`].
pub(super) fn unordered(slot: &str, ctype: CType) -> String {
    let signed = format!("(i64)({slot} ^ (u64)0x8000000000000000UL)");
    match ctype {
        CType::F64 => format!("f64_unkey({signed})"),
        CType::F32 => format!("f32_unkey((i32){signed})"),
        // The state of no values has all bits set.
        CType::Bool => format!("(i32)({slot} & 1)"),
        ctype if ctype.is_signed() => format!("({}){signed}", ctype.local()),
        ctype => format!("({}){slot}", ctype.local()),
    }
}
