// SPDX-License-Identifier: Apache-2.0
//! Scalar functions that an [`Expr::Call`](crate::expr::Expr::Call) names, with DataFusion's
//! meaning.
//!
//! [`Function`] is one table: each variant is declared with its [`Row`]. A regular function is its
//! row, its C in the prelude and its tests. The rest derives from the row:
//! - the lookup by SQL name ([`Function::from_sql`]),
//! - argument checks and the generated C (`codegen/call.rs`),
//! - the choice of a new string's output path ([`Row::result`]),
//! - the sample that the gates compile (`tests/gates/sample.rs`).
//!
//! A variant's fields are part of the kernel; arguments may vary without a new kernel.

mod parameters;
mod row;

pub use parameters::{DatePart, Granularity, InexactFunction, IntervalField};
pub use row::{ArgumentType, Failure, Generator, NullHandling, Overload, ResultType, Row};

use crate::prelude::Section;
use ArgumentType::{Float, Float64, Int64, Number, String, WideNumber};
use Failure::{Outside, TooLong, Where, Zero};

macro_rules! functions {
    (
        plain { $($(#[$doc:meta])* $name:ident = $row:expr;)* }
        with_fields { $($(#[$field_doc:meta])* $field_name:ident $fields:tt = $field_row:expr;)* }
    ) => {
        /// A scalar function.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum Function {
            $($(#[$doc])* $name,)*
            $($(#[$field_doc])* $field_name $fields,)*
        }

        impl Function {
            /// All functions without fields.
            pub const PLAIN: &'static [Function] = &[$(Function::$name),*];

            /// The function's row of the table.
            pub fn row(self) -> &'static Row {
                match self {
                    $(Function::$name => {
                        const ROW: Row = $row;
                        &ROW
                    })*
                    $(Function::$field_name { .. } => {
                        const ROW: Row = $field_row;
                        &ROW
                    })*
                }
            }
        }
    };
}

/// Least `start` of `substr` whose distance to the first character fits 64 bits.
const LEAST_START: i64 = i64::MIN + 1;
/// Greatest length of a padded string.
const MOST_PADDED: i64 = i32::MAX as i64;
const CASES: Section = Section::AppendCase;

functions! {
    plain {
        /// `substr(string, start[, count])`; `start` counts characters from 1.
        Substring = Row::sql("substr", ResultType::Slice).overloads(&[
            // Characters before the first one are empty.
            Overload::guarded(&[String, Int64], Section::Slice, "str_substring($0, $1 < 1 ? 1 : $1, LAST_I64)")
                .fails(&[Outside { argument: 1, least: LEAST_START, most: i64::MAX }]),
            Overload::guarded(&[String, Int64, Int64], Section::Slice, "str_substring($0, $1, $2)").fails(&[
                Outside { argument: 1, least: LEAST_START, most: i64::MAX },
                Outside { argument: 2, least: 0, most: i64::MAX },
            ]),
        ]);
        /// `left(string, n)`: the first `n` characters, or all but the last `-n`.
        Left = Row::sql("left", ResultType::Slice)
            .overloads(&[Overload::guarded(&[String, Int64], Section::Slice, "str_left($0, $1)")]);
        /// `right(string, n)`: the last `n` characters, or all but the first `-n`.
        Right = Row::sql("right", ResultType::Slice)
            .overloads(&[Overload::guarded(&[String, Int64], Section::Slice, "str_right($0, $1)")]);
        /// `btrim(string[, characters])`; spaces by default, as in the next two.
        Btrim = Row::sql("btrim", ResultType::Slice).overloads(&[
            Overload::guarded(&[String], Section::Slice, "str_trim_of($0, $space, 1, 1)"),
            Overload::guarded(&[String, String], Section::Slice, "str_trim_of($0, $1, 1, 1)"),
        ]);
        /// `ltrim(string[, characters])`.
        Ltrim = Row::sql("ltrim", ResultType::Slice).overloads(&[
            Overload::guarded(&[String], Section::Slice, "str_trim_of($0, $space, 1, 0)"),
            Overload::guarded(&[String, String], Section::Slice, "str_trim_of($0, $1, 1, 0)"),
        ]);
        /// `rtrim(string[, characters])`.
        Rtrim = Row::sql("rtrim", ResultType::Slice).overloads(&[
            Overload::guarded(&[String], Section::Slice, "str_trim_of($0, $space, 0, 1)"),
            Overload::guarded(&[String, String], Section::Slice, "str_trim_of($0, $1, 0, 1)"),
        ]);
        /// `split_part(string, delimiter, n)`; a negative `n` counts from the end.
        SplitPart = Row::sql("split_part", ResultType::Slice).checks_constants().overloads(&[
            Overload::guarded(&[String, String, Int64], Section::Slice, "str_part($0, $1, $2)").fails(&[Zero(2)]),
        ]);
        /// `character_length(string)`.
        CharacterLength = Row::sql("character_length", ResultType::Integer)
            .over_concatenation("concat_characters($0, $1)")
            .overloads(&[Overload::guarded(&[String], Section::Characters, "($r)str_characters($0)")]);
        /// `octet_length(string)`.
        OctetLength = Row::sql("octet_length", ResultType::Integer)
            .over_concatenation("concat_len($0, $1)")
            .overloads(&[Overload::guarded(&[String], Section::Str, "($r)$0.len")]);
        /// `bit_length(string)`.
        BitLength = Row::sql("bit_length", ResultType::Integer)
            .over_concatenation("concat_len($0, $1) * 8")
            .overloads(&[Overload::guarded(&[String], Section::Str, "($r)((u64)$0.len * 8)")]);
        /// `strpos(string, substring)`: position in characters from 1; 0 without a match.
        Position = Row::sql("strpos", ResultType::Integer)
            .overloads(&[Overload::guarded(&[String, String], Section::Slice, "($r)str_position($0, $1)")]);
        /// `starts_with(string, prefix)`.
        StartsWith = Row::sql("starts_with", ResultType::Boolean)
            .overloads(&[Overload::guarded(&[String, String], Section::Find, "str_starts($0, $1)")]);
        /// `ends_with(string, suffix)`.
        EndsWith = Row::sql("ends_with", ResultType::Boolean)
            .overloads(&[Overload::guarded(&[String, String], Section::Find, "str_ends($0, $1)")]);
        /// `contains(string, substring)`.
        Contains = Row::sql("contains", ResultType::Boolean)
            .overloads(&[Overload::guarded(&[String, String], Section::Find, "str_contains($0, $1)")]);
        /// `ascii(string)`: code point of the first character.
        Ascii = Row::sql("ascii", ResultType::Integer)
            .overloads(&[Overload::guarded(&[String], Section::Slice, "($r)str_ascii($0)")]);
        /// `upper(string)`.
        Upper = Row::sql("upper", ResultType::NewString)
            .overloads(&[Overload::guarded(&[String], CASES, "append_upper(#, @, $0, $cases)")]);
        /// `lower(string)`.
        Lower = Row::sql("lower", ResultType::NewString)
            .overloads(&[Overload::guarded(&[String], CASES, "append_lower(#, @, $0, $cases)")]);
        /// `initcap(string)`.
        InitCap = Row::sql("initcap", ResultType::NewString)
            .overloads(&[Overload::guarded(&[String], CASES, "append_initcap(#, @, $0, $cases)")]);
        /// `concat(string, …)`, which skips NULLs.
        Concat = Row::sql("concat", ResultType::NewString).generator(Generator::Concatenation).generates_nulls();
        /// `string || string`, which is NULL where an operand is.
        ConcatOperator = Row::internal("||", ResultType::NewString).generator(Generator::Concatenation);
        /// `concat_ws(separator, string, …)`, which skips NULLs behind the separator.
        ConcatWs = Row::sql("concat_ws", ResultType::NewString).generator(Generator::Concatenation).generates_nulls();
        /// `replace(string, from, to)`.
        Replace = Row::sql("replace", ResultType::NewString)
            .overloads(&[Overload::guarded(&[String, String, String], Section::Append, "append_replaced(#, @, $0, $1, $2)")]);
        /// `repeat(string, n)`.
        Repeat = Row::sql("repeat", ResultType::NewString).overloads(&[
            Overload::guarded(&[String, Int64], Section::Append, "append_repeated(#, @, $0, $1)").fails(&[TooLong(
                "(($1 > 0) & ($0.len > 0) & ((u64)$1 > ((u64)2147483647 / ($0.len ? $0.len : 1))))",
            )]),
        ]);
        /// `lpad(string, n[, fill])`; a space by default, as in the next one.
        Lpad = Row::sql("lpad", ResultType::NewString).checks_constants().overloads(&[
            Overload::guarded(&[String, Int64], Section::Append, "append_padded(#, @, $0, $1, $space, 1)")
                .fails(&[Outside { argument: 1, least: i64::MIN, most: MOST_PADDED }]),
            Overload::guarded(&[String, Int64, String], Section::Append, "append_padded(#, @, $0, $1, $2, 1)")
                .fails(&[Outside { argument: 1, least: i64::MIN, most: MOST_PADDED }]),
        ]);
        /// `rpad(string, n[, fill])`.
        Rpad = Row::sql("rpad", ResultType::NewString).checks_constants().overloads(&[
            Overload::guarded(&[String, Int64], Section::Append, "append_padded(#, @, $0, $1, $space, 0)")
                .fails(&[Outside { argument: 1, least: i64::MIN, most: MOST_PADDED }]),
            Overload::guarded(&[String, Int64, String], Section::Append, "append_padded(#, @, $0, $1, $2, 0)")
                .fails(&[Outside { argument: 1, least: i64::MIN, most: MOST_PADDED }]),
        ]);
        /// `reverse(string)`.
        Reverse = Row::sql("reverse", ResultType::NewString)
            .overloads(&[Overload::guarded(&[String], Section::Append, "append_reversed(#, @, $0)")]);
        /// `chr(code_point)`.
        Chr = Row::sql("chr", ResultType::ShortString).overloads(&[
            Overload::guarded(&[Int64], Section::Append, "append_code_point($out, 0, (u32)$0 & 0x1fffff)").fails(&[
                Outside { argument: 0, least: 0, most: 0x10_ffff },
                Where("(($0 >= 0xd800) & ($0 < 0xe000))"),
            ]),
        ]);
        /// `overlay(string, replacement, start[, count])`.
        Overlay = Row::sql("overlay", ResultType::NewString).overloads(&[
            Overload::guarded(
                &[String, String, Int64],
                Section::Append,
                "append_overlay(#, @, $0, $1, $2, str_characters($1))",
            )
            .fails(&[Outside { argument: 2, least: 1, most: i64::MAX }]),
            Overload::guarded(&[String, String, Int64, Int64], Section::Append, "append_overlay(#, @, $0, $1, $2, $3)")
                .fails(&[Outside { argument: 2, least: 1, most: i64::MAX }]),
        ]);
        /// `translate(string, from, to)`.
        Translate = Row::sql("translate", ResultType::NewString)
            .overloads(&[Overload::guarded(&[String, String, String], Section::Append, "append_translated(#, @, $0, $1, $2)")]);
        /// `to_date(string, format, …)`; the formats must be constants.
        ToDate = Row::internal("to_date", ResultType::Generated).generator(Generator::Format);
        /// `to_timestamp(string, format, …)` in nanoseconds without a zone; the formats must be
        /// constants.
        ToTimestamp = Row::internal("to_timestamp", ResultType::Generated).generator(Generator::Format);
        /// `abs(number)`.
        Abs = Row::sql("abs", ResultType::Argument).generator(Generator::Number);
        /// `floor(number)`.
        Floor = Row::sql("floor", ResultType::Argument)
            .overloads(&[Overload::cheap(&[Float], Section::Math, "$t_floor($0)")])
            .generator(Generator::Number);
        /// `ceil(number)`.
        Ceil = Row::sql("ceil", ResultType::Argument)
            .overloads(&[Overload::cheap(&[Float], Section::Math, "$t_ceil($0)")])
            .generator(Generator::Number);
        /// `round(number[, digits])`, half away from zero.
        Round = Row::sql("round", ResultType::Generated).generator(Generator::Rounding);
        /// `trunc(number[, digits])`.
        Trunc = Row::sql("trunc", ResultType::Generated).generator(Generator::Rounding);
        /// `sqrt(number)`.
        Sqrt = Row::sql("sqrt", ResultType::Argument)
            .overloads(&[Overload::cheap(&[Float], Section::Math, "$t_sqrt($0)").fails(&[Where("($0 < 0)")])]);
        /// `exp(number)`. [`crate::libm`] says which hosts give the same bits for this one,
        /// logarithms and powers.
        Exp = Row::sql("exp", ResultType::Argument).overloads(&[Overload::guarded(&[Float], Section::Exp, "$t_exp($0)")]);
        /// `ln(number)`.
        Ln = Row::sql("ln", ResultType::Argument).overloads(&[Overload::guarded(&[Float], Section::Ln, "$t_ln($0)")]);
        /// `log(base, number)` of floats, or of a decimal to the base of a `Float64`.
        Log = Row::internal("log", ResultType::Argument)
            .overloads(&[Overload::guarded(&[Float, Float], Section::Ln, "$t_div($t_ln($1), $t_ln($0))")])
            .generator(Generator::Number);
        /// `log2(number)`.
        Log2 = Row::sql("log2", ResultType::Argument).overloads(&[Overload::guarded(&[Float], Section::Log2, "$t_log2($0)")]);
        /// `log10(number)`.
        Log10 = Row::sql("log10", ResultType::Argument).overloads(&[Overload::guarded(&[Float], Section::Log10, "$t_log10($0)")]);
        /// `power(base, exponent)`.
        Power = Row::sql("power", ResultType::Argument).overloads(&[
            Overload::guarded(&[Float64, Float64], Section::Power, "f64_power($0, $1)").fails(&[Where("($0 == 0 && $1 < 0)")]),
        ]);
        /// `signum(number)`.
        Signum = Row::sql("signum", ResultType::Argument)
            .overloads(&[Overload::cheap(&[Float], Section::Math, "$t_signum($0)")]);
        /// `degrees(number)`.
        Degrees = Row::sql("degrees", ResultType::Argument).generator(Generator::Number);
        /// `radians(number)`.
        Radians = Row::sql("radians", ResultType::Argument).generator(Generator::Number);
        /// `gcd(integer, integer)`.
        Gcd = Row::sql("gcd", ResultType::Argument).generator(Generator::Number);
        /// `lcm(integer, integer)`.
        Lcm = Row::sql("lcm", ResultType::Argument).generator(Generator::Number);
        /// `factorial(integer)`.
        Factorial = Row::sql("factorial", ResultType::Argument).overloads(&[
            Overload::guarded(&[Int64], Section::Integers, "i64_factorial($0)").fails(&[Outside { argument: 0, least: 0, most: 20 }]),
        ]);
        /// `isnan(number)`.
        IsNan = Row::sql("isnan", ResultType::Boolean).overloads(&[
            Overload::cheap(&[Float], Section::Float, "$0 != $0"),
            Overload::cheap(&[Number], Section::Base, "0"),
        ]);
        /// `iszero(number)`.
        IsZero = Row::sql("iszero", ResultType::Boolean).overloads(&[
            Overload::cheap(&[WideNumber], Section::I128, "$t_eq($0, $t_of(0))"),
            Overload::cheap(&[Number], Section::Base, "$0 == 0"),
        ]);
        /// `nanvl(number, number)`: the second argument where the first is NaN.
        Nanvl = Row::sql("nanvl", ResultType::Argument).generator(Generator::Selection).generates_nulls();
        /// `greatest(value, …)`, which skips NULLs.
        Greatest = Row::sql("greatest", ResultType::Argument).generator(Generator::Selection).generates_nulls();
        /// `least(value, …)`, which skips NULLs.
        Least = Row::sql("least", ResultType::Argument).generator(Generator::Selection).generates_nulls();
        /// `string_of_rows(column, rows)`: the concatenated strings of `rows` rows of a `LargeUtf8`
        /// column that a kernel wrote, from the current row on.
        StringOfRows = Row::internal("string_of_rows", ResultType::Slice).generator(Generator::Column).generates_nulls();
        /// `list_of_rows(column, rows)`: the values of `rows` rows of a column as a list, from the
        /// current row on.
        ListOfRows = Row::internal("list_of_rows", ResultType::Generated).generator(Generator::Column).generates_nulls();
        /// Number of a list's elements: `array_length(list)`, and `cardinality` of a list of
        /// scalars.
        ListLength = Row::internal("array_length", ResultType::Generated).generator(Generator::Column).generates_nulls();
        /// `list_view(column)`: a list's offset and length, packed in a `UInt64` as on the device.
        /// Only a batch that shares the column's elements gives it a meaning.
        ListView = Row::internal("list_view", ResultType::Generated).generator(Generator::Column).generates_nulls();
        /// `sketch_register(value)`: the HyperLogLog register of a value, 0 to 16383.
        SketchRegister = Row::internal("sketch_register", ResultType::Generated).generator(Generator::Sketch);
        /// `sketch_rank(value)`: the HyperLogLog rank of a value, 1 to 51.
        SketchRank = Row::internal("sketch_rank", ResultType::Generated).generator(Generator::Sketch);
    }
    with_fields {
        /// `date_part(part, timestamp)`; the timestamp is the argument.
        DatePart(DatePart) = Row::internal("date_part", ResultType::Generated).generator(Generator::DateTime);
        /// `date_trunc(granularity, timestamp)`; the timestamp is the argument.
        DateTrunc(Granularity) = Row::internal("date_trunc", ResultType::Generated).generator(Generator::DateTime);
        /// `date_bin` with the arguments `(timestamp, stride, origin)`. The origin is in
        /// nanoseconds, and so is the stride, unless it is in months.
        DateBin {
            /// The stride is in months.
            months: bool,
        } = Row::internal("date_bin", ResultType::Generated).generator(Generator::DateTime);
        /// A field of an interval column, an argument of [`AddInterval`](Function::AddInterval).
        IntervalField(IntervalField) = Row::internal("interval_field", ResultType::Generated).generator(Generator::DateTime);
        /// `timestamp + interval` with the arguments `(timestamp, months, days, nanoseconds)`.
        AddInterval {
            /// A result outside the calendar fails the row; else it is NULL.
            checked: bool,
        } = Row::internal("+ interval", ResultType::Generated).generator(Generator::DateTime);
        /// `sin(number)`, `atan2(number, number)` and the like.
        Inexact(InexactFunction) = Row::internal("an inexact function", ResultType::Argument).generator(Generator::Inexact);
        /// `list_key(column)`: bytes that are equal for equal lists and sort as the lists do.
        ListKey {
            /// NULL elements sort before all others, else behind them.
            nulls_first: bool,
        } = Row::internal("list_key", ResultType::NewString).generator(Generator::Column).generates_nulls();
    }
}

impl Function {
    /// Name in SQL, plans and messages.
    pub fn name(self) -> &'static str {
        match self {
            Function::Inexact(function) => function.name(),
            other => other.row().name,
        }
    }

    /// The function that DataFusion's function of this name lowers to with unchanged arguments.
    ///
    /// # Examples
    /// ```
    /// use kernels::function::Function;
    ///
    /// assert_eq!(Function::from_sql("substr"), Some(Function::Substring));
    /// // Its first argument must be a constant: the planner translates it.
    /// assert_eq!(Function::from_sql("date_part"), None);
    /// ```
    pub fn from_sql(name: &str) -> Option<Function> {
        let plain = Function::PLAIN.iter().copied();
        let named = plain.filter(|function| function.row().lowers_by_name).find(|function| function.row().name == name);
        named.or_else(|| InexactFunction::parse(name).map(Function::Inexact))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_rows_have_c() {
        for (index, function) in Function::PLAIN.iter().enumerate() {
            let row = function.row();
            let same = |other: &&Function| other.row().name == row.name;
            assert_eq!(Function::PLAIN.iter().position(|other| same(&other)), Some(index), "{}", row.name);
            assert!(!row.overloads.is_empty() || row.generator.is_some(), "{} has no C", row.name);
        }
    }
}
