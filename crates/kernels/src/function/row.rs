// SPDX-License-Identifier: Apache-2.0
//! Row of the function table: the facts about one scalar function that planner, generator and tests
//! derive from.

use crate::prelude::Section;

/// Facts about a scalar function.
#[derive(Debug)]
pub struct FunctionRow {
    /// SQL name, or the name in plans and messages of a function that SQL lacks.
    pub name: &'static str,
    /// Whether DataFusion's function of this name lowers to it with unchanged arguments.
    pub lowers_by_name: bool,
    /// Type of the result.
    pub result: ResultType,
    /// NULL arguments.
    pub nulls: NullHandling,
    /// Whether a failing check of constant arguments fails NULL rows as well, as in DataFusion.
    pub checks_constants: bool,
    /// C by argument types; the first overload that fits is taken.
    pub overloads: &'static [Overload],
    /// Generator of all other argument types.
    pub generator: Option<Generator>,
    /// C of the result over a concatenation that stays unmaterialized: `$0` is its array of
    /// strings, `$1` their number.
    pub over_concatenation: Option<&'static str>,
    /// DataFusion's call of the host's C library, whose bits the C repeats.
    pub libm: Option<LibmCall>,
}

/// Type of a function's result.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ResultType {
    /// A string that is a slice of an argument.
    Slice,
    /// A new string of any length, composed by a call that appends it to an output.
    NewString,
    /// A new string of at most 64 bytes, written to scratch memory at `$out`.
    ShortString,
    /// `Boolean`.
    Boolean,
    /// `Int32` or `Int64`, as DataFusion derives it.
    Integer,
    /// The type of the arguments, which all have the same.
    Argument,
    /// The generator decides.
    Generated,
}

/// Meaning of NULL arguments.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NullHandling {
    /// The result is NULL where an argument is NULL.
    Propagate,
    /// The generator decides.
    Generated,
}

/// C of a function for given argument types.
#[derive(Debug)]
pub struct Overload {
    /// Types of the arguments.
    pub arguments: &'static [ArgumentType],
    /// Section of the prelude that the C calls.
    pub section: Section,
    /// C expression with placeholders:
    /// - `$0` to `$9`: the arguments,
    /// - `$t`: the C type of the first argument, `$r`: that of the result,
    /// - `$cases`: the case table, `$space`: a string of one space,
    /// - `$out`: the output of a [`ResultType::ShortString`],
    /// - `#` and `@`: output and length of a [`ResultType::NewString`].
    pub code: &'static str,
    /// Conditions that fail the row.
    pub failures: &'static [Failure],
    /// Whether it is computed for NULL rows as well, instead of behind a branch.
    pub is_cheap: bool,
}

/// Type of an argument.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ArgumentType {
    /// `Utf8`, `LargeUtf8` or `Utf8View`.
    String,
    /// `Int64`.
    Int64,
    /// `Float32` or `Float64`.
    Float,
    /// `Float64`.
    Float64,
    /// An integer or decimal of more than 64 bits.
    WideNumber,
    /// Any integer, float or decimal.
    Number,
}

/// Condition that fails the row.
#[derive(Debug, Clone, Copy)]
pub enum Failure {
    /// The integer argument at this position lies outside `least..=most`.
    Outside {
        /// Position of the argument.
        argument: usize,
        /// Least valid value.
        least: i64,
        /// Greatest valid value.
        most: i64,
    },
    /// The integer argument at this position is 0.
    Zero(usize),
    /// The C condition holds.
    Where(&'static str),
    /// The C condition holds and the result's type has offsets of 32 bits.
    TooLong(&'static str),
}

/// Hand-written generators of C, for functions that overloads cannot express.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Generator {
    /// Concatenations, which comparisons read without materializing them.
    Concatenation(Concatenation),
    /// One of the arguments is the result.
    Selection(Selection),
    /// Parts, truncation and shifts of dates, times and timestamps. Each function has fields.
    DateTime(DateTimeFunction),
    /// Dates and timestamps parsed by constant formats.
    Format,
    /// Rounding to a constant or variable number of digits.
    Rounding(Rounding),
    /// Other functions of numbers.
    Number(NumberFunction),
    /// Floating-point functions whose last digits are implementation-defined.
    Inexact,
    /// Functions that read other rows of a column, or lists of a column.
    Column(ColumnFunction),
    /// HyperLogLog sketches.
    Sketch(SketchFunction),
}

/// Functions of [`Generator::Concatenation`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Concatenation {
    /// `concat`.
    Concat,
    /// `||`.
    Operator,
    /// `concat_ws`.
    WithSeparator,
}

impl Concatenation {
    /// Whether the first argument separates the others.
    pub fn has_separator(self) -> bool {
        match self {
            Concatenation::WithSeparator => true,
            Concatenation::Concat | Concatenation::Operator => false,
        }
    }

    /// Whether NULL parts are empty.
    pub fn skips_nulls(self) -> bool {
        match self {
            Concatenation::Concat | Concatenation::WithSeparator => true,
            Concatenation::Operator => false,
        }
    }
}

/// Functions of [`Generator::Selection`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Selection {
    Nanvl,
    Greatest,
    Least,
}

/// Functions of [`Generator::DateTime`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum DateTimeFunction {
    DatePart,
    DateTrunc,
    DateBin,
    IntervalField,
    AddInterval,
}

/// Functions of [`Generator::Rounding`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Rounding {
    Round,
    Trunc,
}

/// Functions of [`Generator::Number`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum NumberFunction {
    Abs,
    Floor,
    Ceil,
    Log,
    Degrees,
    Radians,
    Gcd,
    Lcm,
}

/// Functions of [`Generator::Column`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum ColumnFunction {
    StringOfRows,
    ListOfRows,
    ListLength,
    ListView,
    ListKey,
}

impl ColumnFunction {
    /// Most bytes of strings in a column of results; `None` without such a limit.
    pub(crate) fn most_bytes(self) -> Option<usize> {
        match self {
            // Their lengths have 32 bits.
            ColumnFunction::ListKey => Some(u32::MAX as usize),
            ColumnFunction::StringOfRows | ColumnFunction::ListOfRows | ColumnFunction::ListLength | ColumnFunction::ListView => {
                None
            }
        }
    }
}

/// Functions of [`Generator::Sketch`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum SketchFunction {
    Register,
    Rank,
}

/// A function of the host's C library. [`crate::libm`] says which hosts give the kernels' bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum LibmCall {
    Exp,
    Ln,
    /// Logarithm to the base of the first argument: a quotient of two `Ln`.
    Log,
    Log2,
    Log10,
    Power,
}

impl FunctionRow {
    /// The function of a column or its lists; `None` for others.
    pub fn column_function(&self) -> Option<ColumnFunction> {
        match self.generator {
            Some(Generator::Column(of)) => Some(of),
            Some(
                Generator::Concatenation(_)
                | Generator::Selection(_)
                | Generator::DateTime(_)
                | Generator::Format
                | Generator::Rounding(_)
                | Generator::Number(_)
                | Generator::Inexact
                | Generator::Sketch(_),
            )
            | None => None,
        }
    }

    /// Whether the last digits are implementation-defined.
    pub fn is_inexact(&self) -> bool {
        match self.generator {
            Some(Generator::Inexact) => true,
            Some(
                Generator::Concatenation(_)
                | Generator::Selection(_)
                | Generator::DateTime(_)
                | Generator::Format
                | Generator::Rounding(_)
                | Generator::Number(_)
                | Generator::Column(_)
                | Generator::Sketch(_),
            )
            | None => false,
        }
    }

    /// With C by argument types.
    pub const fn overloads(self, overloads: &'static [Overload]) -> FunctionRow {
        FunctionRow { overloads, ..self }
    }

    /// With a hand-written generator.
    pub const fn generator(self, generator: Generator) -> FunctionRow {
        FunctionRow { generator: Some(generator), ..self }
    }

    /// With a meaning of NULL arguments that the generator decides.
    pub const fn generates_nulls(self) -> FunctionRow {
        FunctionRow { nulls: NullHandling::Generated, ..self }
    }

    /// With checks of constant arguments for NULL rows as well.
    pub const fn checks_constants(self) -> FunctionRow {
        FunctionRow { checks_constants: true, ..self }
    }

    /// With C over an unmaterialized concatenation.
    pub const fn over_concatenation(self, code: &'static str) -> FunctionRow {
        FunctionRow { over_concatenation: Some(code), ..self }
    }

    /// With C that repeats a call of the host's C library.
    pub const fn libm(self, call: LibmCall) -> FunctionRow {
        FunctionRow { libm: Some(call), ..self }
    }
}

impl Overload {
    /// With conditions that fail the row.
    pub const fn fails(self, failures: &'static [Failure]) -> Overload {
        Overload { failures, ..self }
    }
}

/// A function of DataFusion's with unchanged arguments.
pub(super) const fn sql(name: &'static str, result: ResultType) -> FunctionRow {
    FunctionRow {
        name,
        lowers_by_name: true,
        result,
        nulls: NullHandling::Propagate,
        checks_constants: false,
        overloads: &[],
        generator: None,
        over_concatenation: None,
        libm: None,
    }
}

/// A function of DataFusion's with a translation of its own, or one that SQL lacks.
pub(super) const fn internal(name: &'static str, result: ResultType) -> FunctionRow {
    FunctionRow { lowers_by_name: false, ..sql(name, result) }
}

/// C of a loop or a call, computed only where all arguments are valid.
pub(super) const fn guarded(arguments: &'static [ArgumentType], section: Section, code: &'static str) -> Overload {
    Overload { arguments, section, code, failures: &[], is_cheap: false }
}

/// C of a few instructions, computed for every row.
pub(super) const fn cheap(arguments: &'static [ArgumentType], section: Section, code: &'static str) -> Overload {
    Overload { is_cheap: true, ..guarded(arguments, section, code) }
}
