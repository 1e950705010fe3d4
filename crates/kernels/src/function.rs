// SPDX-License-Identifier: Apache-2.0
//! The scalar functions that an [`Expr::Call`](crate::expr::Expr::Call) names, with DataFusion's meaning.
//!
//! A function is its name and whatever else the shape of a kernel depends on; what a query may vary are arguments.

use arrow::compute::kernels::cast_utils::IntervalUnit;

/// A scalar function.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Function {
    /// `substr(text, start[, count])`: characters from number `start`, where 1 is the first one.
    Substring,
    /// `left(text, n)`: the first characters, or all but the last `-n`.
    Left,
    /// `right(text, n)`: the last characters, or all but the first `-n`.
    Right,
    /// `btrim`, `ltrim`, `rtrim` of `(text[, characters])`, spaces where none are given.
    Trim {
        /// At the start.
        start: bool,
        /// At the end.
        end: bool,
    },
    /// `split_part(text, delimiter, n)`, from the end where `n` is negative.
    SplitPart,
    /// `character_length(text)`.
    CharacterLength,
    /// `octet_length(text)`.
    OctetLength,
    /// `bit_length(text)`.
    BitLength,
    /// `strpos(text, other)`, in characters from 1 on; 0 where the other is not in the text.
    Position,
    /// `starts_with(text, prefix)`.
    StartsWith,
    /// `ends_with(text, suffix)`.
    EndsWith,
    /// `contains(text, other)`.
    Contains,
    /// `ascii(text)`: the code of the first character.
    Ascii,
    /// `upper(text)`.
    Upper,
    /// `lower(text)`.
    Lower,
    /// `initcap(text)`.
    InitCap,
    /// `concat(text, …)`, which skips NULLs, and `||`, which does not.
    Concat {
        /// Whether a NULL is nothing.
        skips_nulls: bool,
    },
    /// `concat_ws(separator, text, …)`, NULLs left out.
    ConcatWs,
    /// `replace(text, from, to)`.
    Replace,
    /// `repeat(text, n)`.
    Repeat,
    /// `lpad`, `rpad` of `(text, n[, fill])`, spaces where there is no fill.
    Pad {
        /// At the start.
        left: bool,
    },
    /// `reverse(text)`.
    Reverse,
    /// `chr(code)`.
    Chr,
    /// `overlay(text, other, start[, count])`.
    Overlay,
    /// `translate(text, from, to)`.
    Translate,
    /// `date_part(part, moment)`, of which the part is here and the moment is the argument.
    DatePart(DatePart),
    /// `date_trunc(granularity, moment)`, of which the granularity is here.
    DateTrunc(Granularity),
    /// `date_bin(stride, moment, origin)` as `(moment, stride, origin)`: these are nanoseconds, but for a stride in months.
    DateBin {
        /// Whether the stride is one of months.
        months: bool,
    },
    /// A part of an interval that a row holds, for [`Shift`](Function::Shift).
    IntervalField(IntervalField),
    /// `moment + interval` as `(moment, months, days, nanoseconds)`.
    Shift {
        /// Whether it fails where there is no such moment; else that is NULL.
        checked: bool,
    },
    /// `to_date(text, format, …)`; the formats must be constants.
    ToDate,
    /// `to_timestamp(text, format, …)` in nanoseconds without a zone; the formats must be constants.
    ToTimestamp,
    /// `abs(number)`.
    Abs,
    /// `floor(number)`.
    Floor,
    /// `ceil(number)`.
    Ceil,
    /// `round(number[, places])`, half away from zero.
    Round,
    /// `trunc(number[, places])`.
    Trunc,
    /// `sqrt(number)`.
    Sqrt,
    /// `exp(number)`.
    Exp,
    /// `ln(number)`.
    Ln,
    /// `log(base, number)`, of floats or of a decimal to the base of a double.
    Log,
    /// `log2(number)`.
    Log2,
    /// `log10(number)`.
    Log10,
    /// `power(number, number)`.
    Power,
    /// `sin(number)`, `atan2(number, number)` and their like.
    Inexact(InexactFunction),
    /// `signum(number)`.
    Signum,
    /// `degrees(number)`.
    Degrees,
    /// `radians(number)`.
    Radians,
    /// `gcd(integer, integer)`.
    Gcd,
    /// `lcm(integer, integer)`.
    Lcm,
    /// `factorial(integer)`.
    Factorial,
    /// `isnan(number)`.
    IsNan,
    /// `iszero(number)`.
    IsZero,
    /// `nanvl(number, number)`: the second where the first is a NaN.
    Nanvl,
    /// `greatest(value, …)`, NULLs left out.
    Greatest,
    /// `least(value, …)`, NULLs left out.
    Least,
    /// `text_of_rows(column, rows)`: the texts of so many rows from the current one on, as one. The rows are there, of a
    /// `LargeUtf8` column that a kernel wrote.
    TextOfRows,
    /// `list_of_rows(column, rows)`: the list of the column's values in so many rows from the current one on. The rows are there.
    ListOfRows,
    /// `array_length(list)`, and `cardinality` of a list whose elements are none: the number of its elements.
    ListLength,
    /// `list_word(column)`: where a list's elements begin and how many they are, as a number that only the same column's batch
    /// gives a meaning.
    ListWord,
    /// `list_key(column)`: bytes that are the same where lists are, and order as they do; a NULL among the elements comes before
    /// what else could stand there, or behind.
    ListKey {
        /// Before.
        nulls_first: bool,
    },
    /// `sketch_register(value)`: which register of a HyperLogLog sketch takes the value, 0 to 16383.
    SketchRegister,
    /// `sketch_rank(value)`: the rank that the value gives to its register, 1 to 51.
    SketchRank,
}

impl Function {
    /// What SQL calls it.
    pub const fn name(self) -> &'static str {
        match self {
            Function::Substring => "substr",
            Function::Left => "left",
            Function::Right => "right",
            Function::Trim { start: true, end: true } => "btrim",
            Function::Trim { start: true, .. } => "ltrim",
            Function::Trim { .. } => "rtrim",
            Function::SplitPart => "split_part",
            Function::CharacterLength => "character_length",
            Function::OctetLength => "octet_length",
            Function::BitLength => "bit_length",
            Function::Position => "strpos",
            Function::StartsWith => "starts_with",
            Function::EndsWith => "ends_with",
            Function::Contains => "contains",
            Function::Ascii => "ascii",
            Function::Upper => "upper",
            Function::Lower => "lower",
            Function::InitCap => "initcap",
            Function::Concat { skips_nulls: true } => "concat",
            Function::Concat { .. } => "||",
            Function::ConcatWs => "concat_ws",
            Function::Replace => "replace",
            Function::Repeat => "repeat",
            Function::Pad { left: true } => "lpad",
            Function::Pad { .. } => "rpad",
            Function::Reverse => "reverse",
            Function::Chr => "chr",
            Function::Overlay => "overlay",
            Function::Translate => "translate",
            Function::DatePart(_) => "date_part",
            Function::DateTrunc(_) => "date_trunc",
            Function::DateBin { .. } => "date_bin",
            Function::IntervalField(_) => "interval_field",
            Function::Shift { .. } => "+ interval",
            Function::ToDate => "to_date",
            Function::ToTimestamp => "to_timestamp",
            Function::Abs => "abs",
            Function::Floor => "floor",
            Function::Ceil => "ceil",
            Function::Round => "round",
            Function::Trunc => "trunc",
            Function::Sqrt => "sqrt",
            Function::Exp => "exp",
            Function::Ln => "ln",
            Function::Log => "log",
            Function::Log2 => "log2",
            Function::Log10 => "log10",
            Function::Power => "power",
            Function::Inexact(function) => function.name(),
            Function::Signum => "signum",
            Function::Degrees => "degrees",
            Function::Radians => "radians",
            Function::Gcd => "gcd",
            Function::Lcm => "lcm",
            Function::Factorial => "factorial",
            Function::IsNan => "isnan",
            Function::IsZero => "iszero",
            Function::Nanvl => "nanvl",
            Function::Greatest => "greatest",
            Function::Least => "least",
            Function::TextOfRows => "text_of_rows",
            Function::ListOfRows => "list_of_rows",
            Function::ListLength => "array_length",
            Function::ListWord => "list_word",
            Function::ListKey { .. } => "list_key",
            Function::SketchRegister => "sketch_register",
            Function::SketchRank => "sketch_rank",
        }
    }
}

/// A part of a moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[allow(missing_docs)]
pub enum DatePart {
    Year,
    /// The year that the week belongs to, by ISO 8601.
    IsoYear,
    Quarter,
    Month,
    /// By ISO 8601.
    Week,
    Day,
    /// From 0, Sunday, to 6.
    DayOfWeek,
    /// From 1, Monday, to 7.
    IsoDayOfWeek,
    DayOfYear,
    Hour,
    Minute,
    Second,
    /// With the seconds, as the two below.
    Millisecond,
    Microsecond,
    Nanosecond,
    /// Seconds since 1970-01-01, a float.
    Epoch,
}

impl DatePart {
    /// The part of that name, which may stand between quotes; `None` where DataFusion knows none.
    pub fn parse(name: &str) -> Option<DatePart> {
        let quote = ['\'', '"'];
        let name = name.strip_prefix(quote).and_then(|name| name.strip_suffix(quote)).unwrap_or(name);
        if let Ok(unit) = name.parse() {
            return Some(match unit {
                IntervalUnit::Year => DatePart::Year,
                IntervalUnit::Month => DatePart::Month,
                IntervalUnit::Week => DatePart::Week,
                IntervalUnit::Day => DatePart::Day,
                IntervalUnit::Hour => DatePart::Hour,
                IntervalUnit::Minute => DatePart::Minute,
                IntervalUnit::Second => DatePart::Second,
                IntervalUnit::Millisecond => DatePart::Millisecond,
                IntervalUnit::Microsecond => DatePart::Microsecond,
                IntervalUnit::Nanosecond => DatePart::Nanosecond,
                _ => return None,
            });
        }
        Some(match name.to_lowercase().as_str() {
            "isoyear" => DatePart::IsoYear,
            "qtr" | "quarter" => DatePart::Quarter,
            "doy" => DatePart::DayOfYear,
            "dow" => DatePart::DayOfWeek,
            "isodow" => DatePart::IsoDayOfWeek,
            "epoch" => DatePart::Epoch,
            _ => return None,
        })
    }
}

/// A part of an interval, as Arrow keeps it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum IntervalField {
    /// Its months.
    Months {
        /// With the other sign.
        negated: bool,
    },
    /// Its days.
    Days {
        /// With the other sign.
        negated: bool,
    },
    /// Its nanoseconds; fails where 64 bits do not hold the number with the other sign.
    Nanos {
        /// With the other sign.
        negated: bool,
    },
    /// All of it, as a `Decimal128` that orders as intervals do: by months, then days, then nanoseconds.
    InOrder,
}

/// What `date_trunc` rounds down to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[allow(missing_docs)]
pub enum Granularity {
    Microsecond,
    Millisecond,
    Second,
    Minute,
    Hour,
    Day,
    Week,
    Month,
    Quarter,
    Year,
}

impl Granularity {
    /// The granularity of that name; `None` where DataFusion knows none.
    pub fn parse(name: &str) -> Option<Granularity> {
        Some(match name.to_lowercase().as_str() {
            "microsecond" => Granularity::Microsecond,
            "millisecond" => Granularity::Millisecond,
            "second" => Granularity::Second,
            "minute" => Granularity::Minute,
            "hour" => Granularity::Hour,
            "day" => Granularity::Day,
            "week" => Granularity::Week,
            "month" => Granularity::Month,
            "quarter" => Granularity::Quarter,
            "year" => Granularity::Year,
            _ => return None,
        })
    }
}

macro_rules! inexact_functions {
    ($($name:ident = $text:literal),* $(,)?) => {
        /// A function of floats whose last digits each library rounds in its own way, so that a device and its host may differ there.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[allow(missing_docs)]
        pub enum InexactFunction {
            $($name),*
        }

        impl InexactFunction {
            /// Every one.
            pub const ALL: &'static [InexactFunction] = &[$(InexactFunction::$name),*];

            /// What SQL calls it.
            pub const fn name(self) -> &'static str {
                match self {
                    $(InexactFunction::$name => $text),*
                }
            }

            /// The function of that name; `None` where it is none of these.
            pub fn parse(name: &str) -> Option<InexactFunction> {
                Self::ALL.iter().copied().find(|function| function.name() == name)
            }

            /// How many arguments it takes.
            pub const fn arity(self) -> usize {
                match self {
                    InexactFunction::Atan2 => 2,
                    _ => 1,
                }
            }
        }
    };
}

inexact_functions! {
    Acos = "acos",
    Acosh = "acosh",
    Asin = "asin",
    Asinh = "asinh",
    Atan = "atan",
    Atan2 = "atan2",
    Atanh = "atanh",
    Cbrt = "cbrt",
    Cos = "cos",
    Cosh = "cosh",
    Cot = "cot",
    Sin = "sin",
    Sinh = "sinh",
    Tan = "tan",
    Tanh = "tanh",
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_have_the_names_that_datafusion_knows() {
        let names = [
            ("year", Some(DatePart::Year)),
            ("YEAR", Some(DatePart::Year)),
            ("'years'", Some(DatePart::Year)),
            ("\"mon\"", Some(DatePart::Month)),
            ("msec", Some(DatePart::Millisecond)),
            ("Qtr", Some(DatePart::Quarter)),
            ("isodow", Some(DatePart::IsoDayOfWeek)),
            ("epoch", Some(DatePart::Epoch)),
            ("quarters", None),
            ("century", None),
            ("'", None),
            ("", None),
        ];
        for (name, part) in names {
            assert_eq!(DatePart::parse(name), part, "{name}");
        }
    }
}
