// SPDX-License-Identifier: Apache-2.0
//! The text before every kernel: one C dialect for OpenCL C and CUDA.
//!
//! It comes in sections, and a kernel gets those that it needs: compile time counts.

use std::collections::BTreeSet;

macro_rules! sections {
    ($($(#[$doc:meta])* $name:ident = $file:literal needs [$($need:ident),*];)*) => {
        /// A piece of the prelude, in the order in which pieces stand in a text.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Section {
            $($(#[$doc])* $name,)*
        }

        impl Section {
            /// Every section, in order.
            pub const ALL: &'static [Section] = &[$(Section::$name),*];

            /// The C text.
            pub const fn text(self) -> &'static str {
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
    /// Functions of floats that are exact.
    Math = "math" needs [Float];
    /// Functions of floats whose last digits differ between libraries.
    Inexact = "inexact" needs [Float];
    /// Rounded steps of the functions below.
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
    /// Numbers with as many places as a row says.
    Places = "places" needs [Float];
    /// The same for integers of several words.
    PlacesWide = "places_wide" needs [Places];
    /// The same for 128-bit integers.
    PlacesI128 = "places_i128" needs [I128Div, PlacesWide];
    /// The same for 256-bit integers.
    PlacesI256 = "places_i256" needs [I256Div, PlacesWide];
    /// Logarithms of powers.
    ExactLog = "exact_log" needs [I128, Ln];
    /// Strings.
    Str = "str" needs [Base];
    /// Strings one after the other.
    Pieces = "pieces" needs [Str];
    /// HyperLogLog sketches.
    Sketch = "sketch" needs [Str];
    /// Dates.
    Date = "date" needs [Base];
    /// Parts of dates.
    DatePart = "date_part" needs [Date];
    /// First days of weeks, months, quarters and years.
    Truncate = "truncate" needs [DatePart];
    /// Moments and intervals.
    Interval = "interval" needs [Date];
    /// Intervals that rows hold.
    IntervalValue = "interval_value" needs [I128, Float];
    /// Time zones with rules.
    Zone = "zone" needs [Base];
    /// Local times as instants.
    ZoneLocal = "zone_local" needs [Zone];
    /// Integers and Booleans as text.
    Format = "format" needs [Str];
    /// Decimals as text.
    FormatDecimal = "format_decimal" needs [Format, I128Div];
    /// Decimals of 256 bits as text.
    FormatDecimal256 = "format_decimal256" needs [FormatDecimal, I256Div];
    /// Dates, times and durations as text.
    FormatTime = "format_time" needs [Format, Date];
    /// 128 bits of powers of ten.
    Pow10 = "pow10" needs [Base];
    /// Floats as text.
    FormatFloat = "format_float" needs [Format, Pow10];
    /// Text as integers and Booleans.
    Parse = "parse" needs [Str];
    /// Text as decimals.
    ParseDecimal = "parse_decimal" needs [Parse, I128];
    /// Text as decimals of 256 bits.
    ParseDecimal256 = "parse_decimal256" needs [ParseDecimal, I256Div];
    /// Text as floats.
    ParseFloat = "parse_float" needs [Parse, Pow10];
    /// Text as dates and times.
    ParseTime = "parse_time" needs [Parse, Date, Zone];
    /// Text as moments by formats.
    ParseFormat = "parse_format" needs [Parse, DatePart];
    /// Whether bytes are text.
    Utf8 = "utf8" needs [Str];
    /// Characters of text.
    Characters = "characters" needs [Str];
    /// Strings one after the other as one text.
    PiecesLike = "pieces_like" needs [Pieces, Characters];
    /// Strings within strings.
    Find = "find" needs [Str];
    /// `LIKE`.
    Like = "like" needs [Characters, Find];
    /// Characters by their codes, and their cases.
    Cases = "cases" needs [Characters];
    /// `ILIKE`.
    Ilike = "ilike" needs [Cases];
    /// Slices of text.
    Slice = "slice" needs [Characters, Find];
    /// Text that a row computes.
    Text = "text" needs [Slice];
    /// Text in another case.
    TextCase = "text_case" needs [Text, Cases];
    /// Lists as keys.
    ListKey = "list_key" needs [Text];
    /// Strings in Arrow's views.
    View = "view" needs [Str];
    /// Arrow's views of strings.
    ViewOf = "view_of" needs [Str, I128];
    /// Membership in sorted lists of integers.
    List = "list" needs [Base];
    /// Membership in sorted lists of integers of several words.
    ListWide = "list_wide" needs [Base];
    /// Membership in sorted lists of 128-bit integers.
    ListI128 = "list_i128" needs [I128, ListWide];
    /// Membership in sorted lists of 256-bit integers.
    ListI256 = "list_i256" needs [I256, ListWide];
    /// Membership in sorted lists of strings.
    ListStr = "list_str" needs [Str];
}

/// The sections that a text needs.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Sections(BTreeSet<Section>);

impl Sections {
    /// Adds a section and what it needs.
    pub fn need(&mut self, section: Section) {
        if self.0.insert(section) {
            for other in section.needs() {
                self.need(*other);
            }
        }
    }

    /// Adds what another text needs.
    pub fn extend(&mut self, other: &Sections) {
        self.0.extend(&other.0);
    }

    /// The text of all of them; the first two are always there.
    pub fn text(&self) -> String {
        let always = [Section::Base, Section::Builtins];
        always.iter().chain(self.0.difference(&BTreeSet::from(always))).map(|section| section.text()).collect()
    }
}
