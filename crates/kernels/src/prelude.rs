// SPDX-License-Identifier: Apache-2.0
//! Prelude of kernel sources: C functions in a dialect common to OpenCL C and CUDA.
//!
//! A kernel source includes only the sections that it needs, to save compile time.

use std::collections::BTreeSet;

macro_rules! sections {
    ($($(#[$doc:meta])* $name:ident = $file:literal needs [$($need:ident),*];)*) => {
        /// A section of the prelude, in the order of kernel sources.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Section {
            $($(#[$doc])* $name,)*
        }

        impl Section {
            /// All sections, in order.
            pub const ALL: &'static [Section] = &[$(Section::$name),*];

            /// The C source.
            pub const fn source(self) -> &'static str {
                match self {
                    $(Section::$name => include_str!(concat!("../prelude/", $file, ".h")),)*
                }
            }

            const fn needs(self) -> &'static [Section] {
                match self {
                    $(Section::$name => &[$(Section::$need),*],)*
                }
            }
        }
    };
}

sections! {
    /// Types, address spaces, atomics.
    Base = "base" needs [];
    /// OpenCL's functions, see [`device::DECLARES_BUILTINS`].
    Builtins = "builtins" needs [];
    /// `hash64`.
    Hash = "hash" needs [Base];
    /// IEEE arithmetic, total order.
    Float = "float" needs [Base];
    /// Remainder of floats.
    FloatRem = "float_rem" needs [Float];
    /// Exact functions of floats.
    Math = "math" needs [Float];
    /// Functions of floats whose last digits depend on the math library.
    Inexact = "inexact" needs [Float];
    /// Correctly rounded operations, for the functions below.
    Steps = "steps" needs [Float];
    /// `exp`.
    Exp = "exp" needs [Steps];
    /// `ln`.
    Ln = "ln" needs [Steps];
    /// `log2`.
    Log2 = "log2" needs [Steps];
    /// `log10`.
    Log10 = "log10" needs [Ln];
    /// `power`.
    Power = "power" needs [Exp];
    /// Functions of integers.
    Integers = "integers" needs [Base];
    /// 128-bit integers without division.
    I128 = "i128" needs [Base];
    /// 128-bit division.
    I128Div = "i128_div" needs [I128];
    /// 128-bit integers from and to floats.
    I128Float = "i128_float" needs [I128];
    /// 256-bit integers without division.
    I256 = "i256" needs [I128];
    /// 256-bit division.
    I256Div = "i256_div" needs [I128Div, I256];
    /// 256-bit integers from and to floats.
    I256Float = "i256_float" needs [I256];
    /// `round` and `trunc` to a number of digits by row.
    RoundDigits = "round_digits" needs [Float];
    /// The same for integers of more than 64 bits.
    RoundDigitsWide = "round_digits_wide" needs [RoundDigits];
    /// The same for 128-bit integers.
    RoundDigitsI128 = "round_digits_i128" needs [I128Div, RoundDigitsWide];
    /// The same for 256-bit integers.
    RoundDigitsI256 = "round_digits_i256" needs [I256Div, RoundDigitsWide];
    /// Exact logarithms of integer powers.
    ExactLog = "exact_log" needs [I128, Ln];
    /// Strings.
    Str = "str" needs [Base];
    /// Comparison of unmaterialized concatenations.
    Concat = "concat" needs [Str];
    /// HyperLogLog sketches.
    Sketch = "sketch" needs [Str];
    /// Dates.
    Date = "date" needs [Base];
    /// Parts of dates.
    DatePart = "date_part" needs [Date];
    /// First days of weeks, months, quarters and years.
    Truncate = "truncate" needs [DatePart];
    /// Timestamps plus intervals, and bins.
    Interval = "interval" needs [Date];
    /// Intervals as column values.
    IntervalValue = "interval_value" needs [I128, Float];
    /// Offsets of time zones with rules.
    Zone = "zone" needs [Base];
    /// Local times as instants.
    ZoneLocal = "zone_local" needs [Zone];
    /// Integers and Booleans as strings.
    Format = "format" needs [Str];
    /// Decimals as strings.
    FormatDecimal = "format_decimal" needs [Format, I128Div];
    /// Decimals of 256 bits as strings.
    FormatDecimal256 = "format_decimal256" needs [FormatDecimal, I256Div];
    /// Dates, times and durations as strings.
    FormatTime = "format_time" needs [Format, Date];
    /// Powers of ten with 128 bits of precision.
    Pow10 = "pow10" needs [Base];
    /// Floats as strings.
    FormatFloat = "format_float" needs [Format, Pow10];
    /// Strings as integers and Booleans.
    Parse = "parse" needs [Str];
    /// Strings as decimals.
    ParseDecimal = "parse_decimal" needs [Parse, I128];
    /// Strings as decimals of 256 bits.
    ParseDecimal256 = "parse_decimal256" needs [ParseDecimal, I256Div];
    /// Strings as floats.
    ParseFloat = "parse_float" needs [Parse, Pow10];
    /// Strings as dates and times.
    ParseTime = "parse_time" needs [Parse, Date, Zone];
    /// Strings as dates and timestamps, by chrono's formats.
    ParseFormat = "parse_format" needs [Parse, DatePart];
    /// UTF-8 validation.
    Utf8 = "utf8" needs [Str];
    /// Characters of strings.
    Characters = "characters" needs [Str];
    /// Substring search.
    Find = "find" needs [Str];
    /// Code points and the case table.
    Cases = "cases" needs [Characters];
    /// Segments of `LIKE` patterns.
    Segment = "segment" needs [Cases, Find];
    /// `LIKE`.
    Like = "like" needs [Segment];
    /// `ILIKE`.
    Ilike = "ilike" needs [Segment];
    /// `LIKE` and `ILIKE` of compiled patterns.
    Pattern = "pattern" needs [Cases, Find];
    /// Lengths and `LIKE` of unmaterialized concatenations.
    ConcatLike = "concat_like" needs [Concat, Segment];
    /// Slices of strings.
    Slice = "slice" needs [Characters, Find];
    /// Functions that append a new string to an output.
    Append = "append" needs [Slice];
    /// Functions that append a string in another case.
    AppendCase = "append_case" needs [Append, Cases];
    /// Lists as keys.
    ListKey = "list_key" needs [Append];
    /// Strings of Arrow views.
    View = "view" needs [Str];
    /// Arrow views of strings.
    ViewOf = "view_of" needs [Str, I128];
    /// Search in sorted lists of integers.
    List = "list" needs [Base];
    /// Search in sorted lists of integers of more than 64 bits.
    ListWide = "list_wide" needs [Base];
    /// Search in sorted lists of 128-bit integers.
    ListI128 = "list_i128" needs [I128, ListWide];
    /// Search in sorted lists of 256-bit integers.
    ListI256 = "list_i256" needs [I256, ListWide];
    /// Search in sorted lists of strings.
    ListStr = "list_str" needs [Str];
}

/// Sections of a kernel source.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Sections(BTreeSet<Section>);

impl Sections {
    /// Adds a section and its dependencies.
    pub fn need(&mut self, section: Section) {
        if self.0.insert(section) {
            for other in section.needs() {
                self.need(*other);
            }
        }
    }

    /// Adds the sections of another source.
    pub fn extend(&mut self, other: &Sections) {
        self.0.extend(&other.0);
    }

    /// The C source of all sections; the first two are always included.
    pub fn source(&self) -> String {
        self.sources().map(|(_, source)| source).collect()
    }

    /// The C source of each section with its number, in order.
    pub(crate) fn sources(&self) -> impl Iterator<Item = (u32, &'static str)> {
        let always = [Section::Base, Section::Builtins];
        let others = self.0.iter().filter(move |section| !always.contains(section));
        always.into_iter().chain(others.copied()).map(|section| (section as u32, section.source()))
    }
}
