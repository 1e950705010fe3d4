// SPDX-License-Identifier: Apache-2.0
//! Scalar functions that an [`Expr::Call`](crate::expr::Expr::Call) names, with DataFusion's
//! meaning.
//!
//! [`Function`] is one table: each variant is declared with its [`FunctionRow`]. A regular function
//! is its row, its C in the prelude and its tests. The rest derives from the row:
//! - the lookup by SQL name ([`Function::from_sql`]),
//! - argument checks and the generated C (`codegen/call.rs`),
//! - the choice of a new string's output path ([`FunctionRow::result`]),
//! - the sample that the gates compile (`tests/gates/sample.rs`).
//!
//! A variant's fields are part of the kernel; arguments may vary without a new kernel.

mod parameters;
mod row;

pub use parameters::{DatePart, Granularity, InexactFunction, IntervalField};
pub use row::{
    ArgumentType, ColumnFunction, Concatenation, DateTimeFunction, Failure, FunctionRow, Generator, LibmCall, NullHandling,
    NumberFunction, Overload, ResultType, Rounding, Selection, SketchFunction,
};

use crate::prelude::Section;
use ArgumentType::{Float, Float64, Int64, Number, String, WideNumber};
use Failure::{Outside, TooLong, Where, Zero};
use ResultType::{Argument, Boolean, Generated, Integer, NewString, ShortString, Slice};
use row::{cheap, guarded, internal, sql};

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

            /// The row's name of every function, with and without fields.
            pub const NAMES: &'static [&'static str] = &[$($row.name,)* $($field_row.name,)*];

            /// The function's row of the table.
            pub fn row(self) -> &'static FunctionRow {
                match self {
                    $(Function::$name => {
                        const ROW: FunctionRow = $row;
                        &ROW
                    })*
                    $(Function::$field_name { .. } => {
                        const ROW: FunctionRow = $field_row;
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
        Substring = sql("substr", Slice).overloads(&[
            // Characters before the first one are empty.
            guarded(&[String, Int64], Section::Slice, "str_substring($0, $1 < 1 ? 1 : $1, LAST_I64)")
                .fails(&[Outside { argument: 1, least: LEAST_START, most: i64::MAX }]),
            guarded(&[String, Int64, Int64], Section::Slice, "str_substring($0, $1, $2)").fails(&[
                Outside { argument: 1, least: LEAST_START, most: i64::MAX },
                Outside { argument: 2, least: 0, most: i64::MAX },
            ]),
        ]);
        /// `left(string, n)`: the first `n` characters, or all but the last `-n`.
        Left = sql("left", Slice)
            .overloads(&[guarded(&[String, Int64], Section::Slice, "str_left($0, $1)")]);
        /// `right(string, n)`: the last `n` characters, or all but the first `-n`.
        Right = sql("right", Slice)
            .overloads(&[guarded(&[String, Int64], Section::Slice, "str_right($0, $1)")]);
        /// `btrim(string[, characters])`; spaces by default, as in the next two.
        Btrim = sql("btrim", Slice).overloads(&[
            guarded(&[String], Section::Slice, "str_trim_of($0, $space, 1, 1)"),
            guarded(&[String, String], Section::Slice, "str_trim_of($0, $1, 1, 1)"),
        ]);
        /// `ltrim(string[, characters])`.
        Ltrim = sql("ltrim", Slice).overloads(&[
            guarded(&[String], Section::Slice, "str_trim_of($0, $space, 1, 0)"),
            guarded(&[String, String], Section::Slice, "str_trim_of($0, $1, 1, 0)"),
        ]);
        /// `rtrim(string[, characters])`.
        Rtrim = sql("rtrim", Slice).overloads(&[
            guarded(&[String], Section::Slice, "str_trim_of($0, $space, 0, 1)"),
            guarded(&[String, String], Section::Slice, "str_trim_of($0, $1, 0, 1)"),
        ]);
        /// `split_part(string, delimiter, n)`; a negative `n` counts from the end.
        SplitPart = sql("split_part", Slice).checks_constants().overloads(&[
            guarded(&[String, String, Int64], Section::Slice, "str_part($0, $1, $2)").fails(&[Zero(2)]),
        ]);
        /// `character_length(string)`.
        CharacterLength = sql("character_length", Integer)
            .over_concatenation("concat_characters($0, $1)")
            .overloads(&[guarded(&[String], Section::Characters, "($r)str_characters($0)")]);
        /// `octet_length(string)`.
        OctetLength = sql("octet_length", Integer)
            .over_concatenation("concat_len($0, $1)")
            .overloads(&[guarded(&[String], Section::Str, "($r)$0.len")]);
        /// `bit_length(string)`.
        BitLength = sql("bit_length", Integer)
            .over_concatenation("concat_len($0, $1) * 8")
            .overloads(&[guarded(&[String], Section::Str, "($r)((u64)$0.len * 8)")]);
        /// `strpos(string, substring)`: position in characters from 1; 0 without a match.
        Position = sql("strpos", Integer)
            .overloads(&[guarded(&[String, String], Section::Slice, "($r)str_position($0, $1)")]);
        /// `starts_with(string, prefix)`.
        StartsWith = sql("starts_with", Boolean)
            .overloads(&[guarded(&[String, String], Section::Find, "str_starts($0, $1)")]);
        /// `ends_with(string, suffix)`.
        EndsWith = sql("ends_with", Boolean)
            .overloads(&[guarded(&[String, String], Section::Find, "str_ends($0, $1)")]);
        /// `contains(string, substring)`.
        Contains = sql("contains", Boolean)
            .overloads(&[guarded(&[String, String], Section::Find, "str_contains($0, $1)")]);
        /// `ascii(string)`: code point of the first character.
        Ascii = sql("ascii", Integer)
            .overloads(&[guarded(&[String], Section::Slice, "($r)str_ascii($0)")]);
        /// `upper(string)`.
        Upper = sql("upper", NewString)
            .overloads(&[guarded(&[String], CASES, "append_upper(#, @, $0, $cases)")]);
        /// `lower(string)`.
        Lower = sql("lower", NewString)
            .overloads(&[guarded(&[String], CASES, "append_lower(#, @, $0, $cases)")]);
        /// `initcap(string)`.
        InitCap = sql("initcap", NewString)
            .overloads(&[guarded(&[String], CASES, "append_initcap(#, @, $0, $cases)")]);
        /// `concat(string, …)`, which skips NULLs.
        Concat = sql("concat", NewString)
            .generator(Generator::Concatenation(Concatenation::Concat)).generates_nulls();
        /// `string || string`, NULL where an operand is.
        ConcatOperator = internal("||", NewString)
            .generator(Generator::Concatenation(Concatenation::Operator));
        /// `concat_ws(separator, string, …)`, which skips NULLs behind the separator.
        ConcatWs = sql("concat_ws", NewString)
            .generator(Generator::Concatenation(Concatenation::WithSeparator)).generates_nulls();
        /// `replace(string, from, to)`.
        Replace = sql("replace", NewString)
            .overloads(&[guarded(&[String, String, String], Section::Append, "append_replaced(#, @, $0, $1, $2)")]);
        /// `repeat(string, n)`.
        Repeat = sql("repeat", NewString).overloads(&[
            guarded(&[String, Int64], Section::Append, "append_repeated(#, @, $0, $1)").fails(&[TooLong(
                "(($1 > 0) & ($0.len > 0) & ((u64)$1 > ((u64)2147483647 / ($0.len ? $0.len : 1))))",
            )]),
        ]);
        /// `lpad(string, n[, fill])`; a space by default, as in the next one.
        Lpad = sql("lpad", NewString).checks_constants().overloads(&[
            guarded(&[String, Int64], Section::Append, "append_padded(#, @, $0, $1, $space, 1)")
                .fails(&[Outside { argument: 1, least: i64::MIN, most: MOST_PADDED }]),
            guarded(&[String, Int64, String], Section::Append, "append_padded(#, @, $0, $1, $2, 1)")
                .fails(&[Outside { argument: 1, least: i64::MIN, most: MOST_PADDED }]),
        ]);
        /// `rpad(string, n[, fill])`.
        Rpad = sql("rpad", NewString).checks_constants().overloads(&[
            guarded(&[String, Int64], Section::Append, "append_padded(#, @, $0, $1, $space, 0)")
                .fails(&[Outside { argument: 1, least: i64::MIN, most: MOST_PADDED }]),
            guarded(&[String, Int64, String], Section::Append, "append_padded(#, @, $0, $1, $2, 0)")
                .fails(&[Outside { argument: 1, least: i64::MIN, most: MOST_PADDED }]),
        ]);
        /// `reverse(string)`.
        Reverse = sql("reverse", NewString)
            .overloads(&[guarded(&[String], Section::Append, "append_reversed(#, @, $0)")]);
        /// `chr(code_point)`.
        Chr = sql("chr", ShortString).overloads(&[
            guarded(&[Int64], Section::Append, "append_code_point($out, 0, (u32)$0 & 0x1fffff)").fails(&[
                Outside { argument: 0, least: 0, most: 0x10_ffff },
                Where("(($0 >= 0xd800) & ($0 < 0xe000))"),
            ]),
        ]);
        /// `overlay(string, replacement, start[, count])`.
        Overlay = sql("overlay", NewString).overloads(&[
            guarded(
                &[String, String, Int64],
                Section::Append,
                "append_overlay(#, @, $0, $1, $2, str_characters($1))",
            )
            .fails(&[Outside { argument: 2, least: 1, most: i64::MAX }]),
            guarded(&[String, String, Int64, Int64], Section::Append, "append_overlay(#, @, $0, $1, $2, $3)")
                .fails(&[Outside { argument: 2, least: 1, most: i64::MAX }]),
        ]);
        /// `translate(string, from, to)`.
        Translate = sql("translate", NewString)
            .overloads(&[guarded(&[String, String, String], Section::Append, "append_translated(#, @, $0, $1, $2)")]);
        /// `to_date(string, format, …)`; the formats must be constants.
        ToDate = internal("to_date", Generated).generator(Generator::Format);
        /// `to_timestamp(string, format, …)` in nanoseconds without a zone; the formats must be
        /// constants.
        ToTimestamp = internal("to_timestamp", Generated).generator(Generator::Format);
        /// `abs(number)`.
        Abs = sql("abs", Argument).generator(Generator::Number(NumberFunction::Abs));
        /// `floor(number)`.
        Floor = sql("floor", Argument)
            .overloads(&[cheap(&[Float], Section::Math, "$t_floor($0)")])
            .generator(Generator::Number(NumberFunction::Floor));
        /// `ceil(number)`.
        Ceil = sql("ceil", Argument)
            .overloads(&[cheap(&[Float], Section::Math, "$t_ceil($0)")])
            .generator(Generator::Number(NumberFunction::Ceil));
        /// `round(number[, digits])`, half away from zero.
        Round = sql("round", Generated).generator(Generator::Rounding(Rounding::Round));
        /// `trunc(number[, digits])`.
        Trunc = sql("trunc", Generated).generator(Generator::Rounding(Rounding::Trunc));
        /// `sqrt(number)`.
        Sqrt = sql("sqrt", Argument)
            .overloads(&[cheap(&[Float], Section::Math, "$t_sqrt($0)").fails(&[Where("($0 < 0)")])]);
        /// `exp(number)`. [`crate::libm`] says which hosts give the same bits for this one,
        /// logarithms and powers.
        Exp = sql("exp", Argument)
            .overloads(&[guarded(&[Float], Section::Exp, "$t_exp($0)")])
            .libm(LibmCall::Exp);
        /// `ln(number)`.
        Ln = sql("ln", Argument)
            .overloads(&[guarded(&[Float], Section::Ln, "$t_ln($0)")])
            .libm(LibmCall::Ln);
        /// `log(base, number)` of floats, or of a decimal to the base of a `Float64`.
        Log = internal("log", Argument)
            .overloads(&[guarded(&[Float, Float], Section::Ln, "$t_div($t_ln($1), $t_ln($0))")])
            .generator(Generator::Number(NumberFunction::Log))
            .libm(LibmCall::Log);
        /// `log2(number)`.
        Log2 = sql("log2", Argument)
            .overloads(&[guarded(&[Float], Section::Log2, "$t_log2($0)")])
            .libm(LibmCall::Log2);
        /// `log10(number)`.
        Log10 = sql("log10", Argument)
            .overloads(&[guarded(&[Float], Section::Log10, "$t_log10($0)")])
            .libm(LibmCall::Log10);
        /// `power(base, exponent)`.
        Power = sql("power", Argument)
            .overloads(&[
                guarded(&[Float64, Float64], Section::Power, "f64_power($0, $1)")
                    .fails(&[Where("($0 == 0 && $1 < 0)")]),
            ])
            .libm(LibmCall::Power);
        /// `signum(number)`.
        Signum = sql("signum", Argument)
            .overloads(&[cheap(&[Float], Section::Math, "$t_signum($0)")]);
        /// `degrees(number)`.
        Degrees = sql("degrees", Argument).generator(Generator::Number(NumberFunction::Degrees));
        /// `radians(number)`.
        Radians = sql("radians", Argument).generator(Generator::Number(NumberFunction::Radians));
        /// `gcd(integer, integer)`.
        Gcd = sql("gcd", Argument).generator(Generator::Number(NumberFunction::Gcd));
        /// `lcm(integer, integer)`.
        Lcm = sql("lcm", Argument).generator(Generator::Number(NumberFunction::Lcm));
        /// `factorial(integer)`.
        Factorial = sql("factorial", Argument).overloads(&[
            guarded(&[Int64], Section::Integers, "i64_factorial($0)").fails(&[Outside { argument: 0, least: 0, most: 20 }]),
        ]);
        /// `isnan(number)`.
        IsNan = sql("isnan", Boolean).overloads(&[
            cheap(&[Float], Section::Float, "$0 != $0"),
            cheap(&[Number], Section::Base, "0"),
        ]);
        /// `iszero(number)`.
        IsZero = sql("iszero", Boolean).overloads(&[
            cheap(&[WideNumber], Section::I128, "$t_eq($0, $t_of(0))"),
            cheap(&[Number], Section::Base, "$0 == 0"),
        ]);
        /// `nanvl(number, number)`: the second argument where the first is NaN.
        Nanvl = sql("nanvl", Argument).generator(Generator::Selection(Selection::Nanvl)).generates_nulls();
        /// `greatest(value, …)`, which skips NULLs.
        Greatest = sql("greatest", Argument)
            .generator(Generator::Selection(Selection::Greatest)).generates_nulls();
        /// `least(value, …)`, which skips NULLs.
        Least = sql("least", Argument).generator(Generator::Selection(Selection::Least)).generates_nulls();
        /// `string_of_rows(column, rows)`: the concatenated strings of `rows` rows of a `LargeUtf8`
        /// column that a kernel wrote, from the current row on.
        StringOfRows = internal("string_of_rows", Slice)
            .generator(Generator::Column(ColumnFunction::StringOfRows)).generates_nulls();
        /// `list_of_rows(column, rows)`: the values of `rows` rows of a column as a list, from the
        /// current row on.
        ListOfRows = internal("list_of_rows", Generated)
            .generator(Generator::Column(ColumnFunction::ListOfRows)).generates_nulls();
        /// Number of a list's elements: `array_length(list)`, and `cardinality` of a list of
        /// scalars.
        ListLength = internal("array_length", Generated)
            .generator(Generator::Column(ColumnFunction::ListLength)).generates_nulls();
        /// `list_view(column)`: a list's offset and length, packed in a `UInt64` as on the device.
        /// Only a batch that shares the column's elements gives it a meaning.
        ListView = internal("list_view", Generated)
            .generator(Generator::Column(ColumnFunction::ListView)).generates_nulls();
        /// `sketch_register(value)`: the HyperLogLog register of a value, 0 to 16383.
        SketchRegister = internal("sketch_register", Generated)
            .generator(Generator::Sketch(SketchFunction::Register));
        /// `sketch_rank(value)`: the HyperLogLog rank of a value, 1 to 51.
        SketchRank = internal("sketch_rank", Generated).generator(Generator::Sketch(SketchFunction::Rank));
    }
    with_fields {
        /// `date_part(part, timestamp)`; the timestamp is the argument.
        DatePart(DatePart) = internal("date_part", Generated).generator(Generator::DateTime(DateTimeFunction::DatePart));
        /// `date_trunc(granularity, timestamp)`; the timestamp is the argument.
        DateTrunc(Granularity) = internal("date_trunc", Generated).generator(Generator::DateTime(DateTimeFunction::DateTrunc));
        /// `date_bin` with the arguments `(timestamp, stride, origin)`. The origin is in
        /// nanoseconds, and so is the stride, unless it is in months.
        DateBin {
            /// The stride is in months.
            months: bool,
        } = internal("date_bin", Generated).generator(Generator::DateTime(DateTimeFunction::DateBin));
        /// A field of an interval column, an argument of [`AddInterval`](Function::AddInterval).
        IntervalField(IntervalField) = internal("interval_field", Generated)
            .generator(Generator::DateTime(DateTimeFunction::IntervalField));
        /// `timestamp + interval` with the arguments `(timestamp, months, days, nanoseconds)`.
        AddInterval {
            /// A result outside the calendar fails the row; else it is NULL.
            checked: bool,
        } = internal("+ interval", Generated).generator(Generator::DateTime(DateTimeFunction::AddInterval));
        /// `sin(number)`, `atan2(number, number)` and the like.
        Inexact(InexactFunction) = internal("an inexact function", Argument).generator(Generator::Inexact);
        /// `list_key(column)`: bytes that are equal for equal lists and sort as the lists do.
        ListKey {
            /// NULL elements sort before all others, else behind them.
            nulls_first: bool,
        } = internal("list_key", NewString)
            .generator(Generator::Column(ColumnFunction::ListKey)).generates_nulls();
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
    fn rows_are_consistent() {
        for (index, function) in Function::PLAIN.iter().enumerate() {
            let row = function.row();
            let same = |other: &&Function| other.row().name == row.name;
            assert_eq!(Function::PLAIN.iter().position(|other| same(&other)), Some(index), "{}", row.name);
            assert!(!row.overloads.is_empty() || row.generator.is_some(), "{} has no C", row.name);
            for overload in row.overloads {
                let missing = (overload.arguments.len()..10).find(|argument| overload.code.contains(&format!("${argument}")));
                assert_eq!(missing, None, "{}: {}", row.name, overload.code);
            }
        }
    }
}
