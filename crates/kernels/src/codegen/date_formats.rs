// SPDX-License-Identifier: Apache-2.0
//! `to_date` and `to_timestamp` with chrono's formats, which must be constants.
//!
//! A format becomes a chain of steps; each step consumes a prefix of the string
//! (`prelude/parse_format.h`). Formats are part of the kernel, and the first that matches gives the
//! row's value.

use arrow::datatypes::{DataType, TimeUnit};
use chrono::format::{Fixed, Item, Numeric, StrftimeItems};

use super::call::refuse_call;
use super::overload::is_string;
use super::row::{RowWriter, unsupported};
use super::value::{CType, Value};
use crate::Result;
use crate::expr::{Expr, Literal, LiteralValue};
use crate::function::Function;
use crate::prelude::Section;

/// Steps of all formats of a call; the limit bounds compile time.
const MOST_STEPS: usize = 200;

impl RowWriter<'_> {
    /// NULL formats are skipped; a call without other formats is NULL.
    pub(super) fn format_call(&mut self, function: Function, arguments: &[Expr], data_type: &DataType) -> Result<Value> {
        let [string, formats @ ..] = arguments else { return refuse_call(function, &[]) };
        let string = self.eval(string)?;
        let (ctype, end) = match data_type {
            DataType::Date32 => (CType::I32, "parts_date"),
            DataType::Timestamp(TimeUnit::Nanosecond, None) => (CType::I64, "parts_nanos"),
            _ => return refuse_call(function, std::slice::from_ref(&string)),
        };
        if string.is_null() {
            return Ok(Value::null(data_type.clone(), ctype));
        }
        if !is_string(&string) {
            return refuse_call(function, std::slice::from_ref(&string));
        }
        self.params.need(Section::ParseFormat);
        self.costly();
        let (parts, ticks) = (self.fresh(), self.fresh());
        let (mut alternatives, mut count) = (Vec::new(), 0);
        for format in formats {
            let format = match format {
                Expr::Literal(Literal { value: LiteralValue::Null, .. }) => continue,
                Expr::Literal(Literal { value: LiteralValue::Bytes(format), .. }) => String::from_utf8_lossy(format),
                _ => {
                    return unsupported(format!(
                        "{} by a format that is no constant is not supported on the device",
                        function.name()
                    ));
                }
            };
            let Some(steps) = self.steps(&format, &parts)? else {
                return unsupported(format!("{} by the format '{format}' is not supported on the device", function.name()));
            };
            count += steps.len();
            let begin = format!("take_from(&{parts}, {})", string.code);
            let end = format!("{end}(&{parts}, &{ticks})");
            alternatives.push(format!("({})", [vec![begin], steps, vec![end]].concat().join(" && ")));
        }
        if count > MOST_STEPS {
            return unsupported(format!(
                "{} by formats of more than {MOST_STEPS} parts is not supported on the device",
                function.name()
            ));
        }
        if alternatives.is_empty() {
            return Ok(Value::null(data_type.clone(), ctype));
        }
        self.push(&format!("parts {parts};"));
        self.push(&format!("i64 {ticks} = 0;"));
        let fits = alternatives.join(" || ");
        let fits = self.flag(&match &string.valid {
            Some(valid) => format!("{valid} && ({fits})"),
            None => fits,
        });
        self.fail_where(&[&format!("!{fits}")], &string.valid);
        let code = self.local(ctype, &format!("({}){ticks}", ctype.name()));
        Ok(Value { data_type: data_type.clone(), ctype, code, valid: string.valid, bounds: None })
    }

    /// C of a format's steps; `None` for a format that is not supported on the device.
    fn steps(&mut self, format: &str, parts: &str) -> Result<Option<Vec<String>>> {
        let items: Vec<Item> = StrftimeItems::new(format).collect();
        // Not supported:
        // - a zone name, which DataFusion searches by itself wherever `%Z` occurs,
        // - seconds since 1970 beside a date: both would have to agree.
        let instant = items.iter().any(|item| matches!(item, Item::Numeric(Numeric::Timestamp, _)));
        if format.contains("%Z") || (instant && !items.iter().all(goes_with_instant)) {
            return Ok(None);
        }
        let mut steps = Vec::new();
        for item in &items {
            match item {
                Item::Literal(literal) => steps.push(match literal.as_bytes() {
                    [byte] => format!("take_byte(&{parts}, {byte})"),
                    bytes => format!("take_string(&{parts}, {})", self.params.string(bytes)?),
                }),
                // chrono relaxes RFC 3339 here.
                Item::Fixed(Fixed::RFC3339) => {
                    let date = self.steps("%Y -%m -%d", parts)?;
                    let time = self.steps("%H :%M :%S%.f", parts)?;
                    let [between, zone] = ["take_between", "take_utc_or_offset"].map(|step| vec![format!("{step}(&{parts})")]);
                    steps.extend([date.unwrap_or_default(), between, time.unwrap_or_default(), zone].concat());
                }
                item => match step(item) {
                    Some(step) => steps.push(step.replace('@', &format!("&{parts}"))),
                    None => return Ok(None),
                },
            }
        }
        Ok(Some(steps))
    }
}

/// Whether an item may accompany `%s`, being independent of it.
fn goes_with_instant(item: &Item) -> bool {
    let fraction = matches!(
        item,
        Item::Numeric(Numeric::Nanosecond, _)
            | Item::Fixed(Fixed::Nanosecond | Fixed::Nanosecond3 | Fixed::Nanosecond6 | Fixed::Nanosecond9)
    );
    let offset = matches!(item, Item::Fixed(Fixed::TimezoneOffset | Fixed::TimezoneOffsetColon));
    fraction || offset || matches!(item, Item::Literal(_) | Item::Space(_) | Item::Numeric(Numeric::Timestamp, _))
}

/// C of an item's step, with `@` for the parsed parts; `None` if it is not supported on the device.
fn step(item: &Item) -> Option<String> {
    let number = |part: &str, digits: u32, least: u32, greatest: u32| {
        format!("take_number(@, PART_{part}, {digits}u, {least}, {greatest})")
    };
    // Items without a public name in chrono.
    for (format, step) in [
        ("%3f", "take_fraction(@, 3u)"),
        ("%6f", "take_fraction(@, 6u)"),
        ("%9f", "take_fraction(@, 9u)"),
        ("%#z", "take_offset(@, 1, 1)"),
    ] {
        if StrftimeItems::new(format).eq([item.clone()]) {
            return Some(step.into());
        }
    }
    Some(match item {
        Item::Space(_) => "take_space(@)".into(),
        Item::Numeric(kind, _) => match kind {
            Numeric::Year => "take_year(@, PART_YEAR)".into(),
            Numeric::YearDiv100 => number("CENTURY", 2, 0, 99),
            Numeric::YearMod100 => number("YEAR2", 2, 0, 99),
            Numeric::IsoYear => "take_year(@, PART_ISO_YEAR)".into(),
            Numeric::IsoYearMod100 => number("ISO_YEAR2", 2, 0, 99),
            Numeric::Quarter => number("QUARTER", 1, 1, 4),
            Numeric::Month => number("MONTH", 2, 1, 12),
            Numeric::Day => number("DAY", 2, 1, 31),
            Numeric::WeekFromSun => number("WEEK_SUNDAY", 2, 0, 53),
            Numeric::WeekFromMon => number("WEEK_MONDAY", 2, 0, 53),
            Numeric::IsoWeek => number("ISO_WEEK", 2, 1, 53),
            Numeric::NumDaysFromSun => "take_weekday(@, 0)".into(),
            Numeric::WeekdayFromMon => "take_weekday(@, 1)".into(),
            Numeric::Ordinal => number("ORDINAL", 3, 1, 366),
            Numeric::Hour => "take_hour(@)".into(),
            Numeric::Hour12 => "take_hour12(@)".into(),
            Numeric::Minute => number("MINUTE", 2, 0, 59),
            Numeric::Second => number("SECOND", 2, 0, 60),
            Numeric::Nanosecond => number("NANOS", 9, 0, 999_999_999),
            Numeric::Timestamp => "take_instant(@)".into(),
            _ => return None,
        },
        Item::Fixed(kind) => match kind {
            Fixed::ShortMonthName => "take_name(@, 0u, 12u, 0, PART_MONTH, 1)".into(),
            Fixed::LongMonthName => "take_name(@, 0u, 12u, 1, PART_MONTH, 1)".into(),
            Fixed::ShortWeekdayName => "take_name(@, 12u, 7u, 0, PART_WEEKDAY, 0)".into(),
            Fixed::LongWeekdayName => "take_name(@, 12u, 7u, 1, PART_WEEKDAY, 0)".into(),
            Fixed::LowerAmPm | Fixed::UpperAmPm => "take_half_day(@)".into(),
            Fixed::Nanosecond => "take_point(@, 0u)".into(),
            Fixed::Nanosecond3 => "take_point(@, 3u)".into(),
            Fixed::Nanosecond6 => "take_point(@, 6u)".into(),
            Fixed::Nanosecond9 => "take_point(@, 9u)".into(),
            Fixed::TimezoneOffset
            | Fixed::TimezoneOffsetColon
            | Fixed::TimezoneOffsetDoubleColon
            | Fixed::TimezoneOffsetTripleColon => "take_offset(@, 0, 0)".into(),
            _ => return None,
        },
        _ => return None,
    })
}
