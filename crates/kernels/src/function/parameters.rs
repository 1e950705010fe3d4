// SPDX-License-Identifier: Apache-2.0
//! Parameters of functions that are part of a kernel: date parts, granularities, interval fields,
//! inexact functions.

use arrow::compute::kernels::cast_utils::IntervalUnit;

/// Part of a date, time or timestamp, as `date_part` names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[allow(missing_docs)]
pub enum DatePart {
    Year,
    /// ISO 8601 year of the week.
    IsoYear,
    Quarter,
    Month,
    /// ISO 8601 week.
    Week,
    Day,
    /// 0 (Sunday) to 6.
    DayOfWeek,
    /// 1 (Monday) to 7.
    IsoDayOfWeek,
    DayOfYear,
    Hour,
    Minute,
    Second,
    /// Seconds included, as in the next two.
    Millisecond,
    Microsecond,
    Nanosecond,
    /// Seconds since 1970-01-01, as a float.
    Epoch,
}

impl DatePart {
    /// Parses a name, quoted or not; `None` for a name that DataFusion rejects.
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

/// Field of an interval in Arrow's `MonthDayNano` layout.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum IntervalField {
    /// Months.
    Months {
        /// With the sign reversed.
        negated: bool,
    },
    /// Days.
    Days {
        /// With the sign reversed.
        negated: bool,
    },
    /// Nanoseconds; the reversal of the least `i64` fails.
    Nanos {
        /// With the sign reversed.
        negated: bool,
    },
    /// Sort key: a `Decimal128` that orders by months, then days, then nanoseconds.
    SortKey,
}

/// Unit that `date_trunc` rounds down to.
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
    /// Parses a name; `None` for a name that DataFusion rejects.
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
    ($($name:ident = $sql:literal of $arity:literal),* $(,)?) => {
        /// Floating-point function whose last digits depend on the math library: device and host
        /// may differ there.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[allow(missing_docs)]
        pub enum InexactFunction {
            $($name),*
        }

        impl InexactFunction {
            /// All functions.
            pub const ALL: &'static [InexactFunction] = &[$(InexactFunction::$name),*];

            /// SQL name.
            pub const fn name(self) -> &'static str {
                match self {
                    $(InexactFunction::$name => $sql),*
                }
            }

            /// Looks up a function by its SQL name.
            pub fn parse(name: &str) -> Option<InexactFunction> {
                Self::ALL.iter().copied().find(|function| function.name() == name)
            }

            /// Number of arguments.
            pub const fn arity(self) -> usize {
                match self {
                    $(InexactFunction::$name => $arity),*
                }
            }
        }
    };
}

inexact_functions! {
    Acos = "acos" of 1,
    Acosh = "acosh" of 1,
    Asin = "asin" of 1,
    Asinh = "asinh" of 1,
    Atan = "atan" of 1,
    Atan2 = "atan2" of 2,
    Atanh = "atanh" of 1,
    Cbrt = "cbrt" of 1,
    Cos = "cos" of 1,
    Cosh = "cosh" of 1,
    Cot = "cot" of 1,
    Sin = "sin" of 1,
    Sinh = "sinh" of 1,
    Tan = "tan" of 1,
    Tanh = "tanh" of 1,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn date_parts_parse_as_in_datafusion() {
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
