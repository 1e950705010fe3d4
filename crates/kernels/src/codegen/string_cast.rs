// SPDX-License-Identifier: Apache-2.0
//! Casts from and to strings.
//!
//! - Parsing follows arrow-cast's `parse.rs`, white space and leap seconds included.
//! - Formatting follows its `display.rs` with DataFusion's options.
//! - Floats are parsed as by lexical-core and formatted as by ryu.
//!
//! A formatted string lies in scratch memory until the work-item's next row.

use arrow::datatypes::{DataType, TimeUnit};

use super::cast::{outside, refuse};
use super::decimal::precision_scale;
use super::params::SCRATCH_SLOT;
use super::row::{RowWriter, unsupported};
use super::temporal::per_second;
use super::value::{CType, Value};
use super::zone::Zone;
use crate::Result;
use crate::prelude::Section;

impl RowWriter<'_> {
    /// Casts among strings and binary, which keep the bytes.
    pub(super) fn cast_bytes(&mut self, value: Value, to: &DataType, checked: bool) -> Result<Value> {
        use DataType::*;
        let is_string = |data_type: &DataType| matches!(data_type, Utf8 | LargeUtf8 | Utf8View);
        let mut valid = value.valid.clone();
        if !is_string(&value.data_type) && is_string(to) {
            self.params.need(Section::Utf8);
            self.costly();
            let is_utf8 = self.flag(&format!("{} && str_is_utf8({})", value.valid_code(), value.code));
            valid = self.fail_or_null(valid, &[format!("!{is_utf8}")], checked);
        }
        Ok(Value { data_type: to.clone(), valid, ..value })
    }

    /// Parses a string as a value of another type.
    pub(super) fn parse(&mut self, value: Value, to: &DataType, checked: bool) -> Result<Value> {
        use DataType::*;
        if matches!(value.data_type, Binary | LargeBinary | BinaryView | FixedSizeBinary(_)) {
            return refuse(&value.data_type, to);
        }
        let ctype = CType::native(to).unwrap_or(CType::I64);
        match to {
            Boolean => {
                let (ok, code) =
                    self.parsed(&value, Section::Parse, "i32", |string, out| format!("parse_bool({string}, &{out})"));
                let valid = self.fail_or_null(value.valid, &[format!("!{ok}")], checked);
                Ok(Value { data_type: to.clone(), ctype, code, valid, bounds: None })
            }
            to if to.is_integer() => self.parse_integer(value, to, ctype, checked),
            to if to.is_decimal() => {
                let (precision, scale) = precision_scale(to).unwrap_or_default();
                if scale < 0 {
                    return unsupported(format!("CAST from {} to {to} does not exist", value.data_type));
                }
                if ctype == CType::I256 {
                    let (ok, code) = self.parsed(&value, Section::ParseDecimal256, "i256", |string, out| {
                        format!("parse_decimal256({string}, {scale}u, &{out})")
                    });
                    let valid = self.fail_or_null(value.valid, &[format!("!{ok}")], checked);
                    let parsed = Value { data_type: to.clone(), ctype, code, valid, bounds: None };
                    return self.limited_wide(parsed, to, precision, checked);
                }
                let (ok, code) = self.parsed(&value, Section::ParseDecimal, "i128", |string, out| {
                    format!("parse_decimal({string}, {scale}u, &{out})")
                });
                let valid = self.fail_or_null(value.valid, &[format!("!{ok}")], checked);
                let parsed = Value { data_type: to.clone(), ctype: CType::I128, code, valid, bounds: None };
                self.limited(parsed, to, precision, checked)
            }
            Date32 => {
                let zones = self.params.zones();
                let (ok, code) = self
                    .parsed(&value, Section::ParseTime, "i64", |string, out| format!("parse_date({string}, {zones}, 1, &{out})"));
                let valid = self.fail_or_null(value.valid, &[format!("!{ok}")], checked);
                let code = self.local(ctype, &format!("(i32){code}"));
                Ok(Value { data_type: to.clone(), ctype, code, valid, bounds: None })
            }
            Date64 => self.parse_date64(value, to, checked),
            Timestamp(unit, zone) => self.parse_timestamp(value, to, unit, zone.as_deref(), checked),
            Time32(unit) | Time64(unit) => self.parse_time(value, to, unit, ctype, checked),
            Float32 | Float64 => {
                // Bits of the mantissa, and the greatest biased exponent.
                let (format, of_bits) = match ctype {
                    CType::F32 => ("23, 255", "BITS_F32((u32)"),
                    _ => ("52, 2047", "BITS_F64("),
                };
                let (ok, bits) = self
                    .parsed(&value, Section::ParseFloat, "u64", |string, out| format!("parse_float({string}, {format}, &{out})"));
                let valid = self.fail_or_null(value.valid, &[format!("!{ok}")], checked);
                let code = self.local(ctype, &format!("{of_bits}{bits})"));
                Ok(Value { data_type: to.clone(), ctype, code, valid, bounds: None })
            }
            _ => refuse(&value.data_type, to),
        }
    }

    /// Two locals: a parser's status (0 for NULL and failure), and its output.
    fn parsed(&mut self, value: &Value, section: Section, out: &str, call: impl Fn(&str, &str) -> String) -> (String, String) {
        self.params.need(section);
        self.costly();
        let name = self.fresh();
        let zero = match out {
            "i128" => CType::I128.zero(),
            "i256" => CType::I256.zero(),
            _ => "0",
        };
        self.push(&format!("{out} {name} = {zero};"));
        let call = call(&value.code, &name);
        let ok = self.flag(&match &value.valid {
            Some(valid) => format!("{valid} ? {call} : 0"),
            None => call,
        });
        (ok, name)
    }

    fn parse_integer(&mut self, value: Value, to: &DataType, ctype: CType, checked: bool) -> Result<Value> {
        let negative = self.fresh();
        self.push(&format!("i32 {negative} = 0;"));
        let (ok, magnitude) =
            self.parsed(&value, Section::Parse, "u64", |string, out| format!("parse_int({string}, &{out}, &{negative})"));
        let (least, most) = ctype.range().unwrap_or_default();
        let wrong =
            format!("({magnitude} > ({negative} ? (u64){:#x}UL : (u64){:#x}UL))", least.unsigned_abs() as u64, most as u64);
        let valid = self.fail_or_null(value.valid, &[format!("!{ok}"), wrong], checked);
        let code = self.local(ctype, &format!("({0})({negative} ? (u64)0 - {magnitude} : {magnitude})", ctype.name()));
        Ok(Value { data_type: to.clone(), ctype, code, valid, bounds: None })
    }

    /// Up to 10 bytes are a date, more are a timestamp.
    fn parse_date64(&mut self, value: Value, to: &DataType, checked: bool) -> Result<Value> {
        let nanos = self.fresh();
        self.push(&format!("u32 {nanos} = 0;"));
        let zones = self.params.zones();
        let (ok, code) = self.parsed(&value, Section::ParseTime, "i64", |string, out| {
            let [instant, day] = [format!("{zones}, &{out}, &{nanos}"), format!("{zones}, 0, &{out}")];
            format!("({string}.len > 10 ? parse_datetime({string}, {instant}) : parse_date({string}, {day}))")
        });
        let valid = self.fail_or_null(value.valid, &[format!("!{ok}")], checked);
        let string = &value.code;
        let code = self.local(CType::I64, &format!("{string}.len > 10 ? {code} * 1000 + {nanos} / 1000000 : {code} * 86400000"));
        Ok(Value { data_type: to.clone(), ctype: CType::I64, code, valid, bounds: None })
    }

    fn parse_timestamp(
        &mut self,
        value: Value,
        to: &DataType,
        unit: &TimeUnit,
        zone: Option<&str>,
        checked: bool,
    ) -> Result<Value> {
        let rules = Zone::of(zone)?;
        let nanos = self.fresh();
        self.push(&format!("u32 {nanos} = 0;"));
        let zones = self.params.zones();
        let (ok, mut seconds) = self.parsed(&value, Section::ParseTime, "i64", |string, out| {
            format!("parse_datetime({string}, {zones}, &{out}, &{nanos})")
        });
        let mut valid = self.fail_or_null(value.valid, &[format!("!{ok}")], checked);
        if !matches!(rules, Zone::Fixed(0)) {
            let (offset, none) = self.offset_of_local(&rules, &seconds)?;
            if let Some(none) = none {
                valid = self.fail_or_null(valid, &[format!("(({ok} == IS_LOCAL_TIME) & {none})")], checked);
            }
            seconds = self.local(CType::I64, &format!("{ok} == IS_LOCAL_TIME ? {seconds} - {offset} : {seconds}"));
        }
        let per = per_second(unit);
        // The nanoseconds of a leap second reach 2 * 10^9; units of seconds ignore them.
        let rest = if per == 1 { "0".into() } else { format!("(i64)({nanos} / {}u)", 1_000_000_000 / per) };
        let code = if *unit == TimeUnit::Nanosecond {
            // Years 0 to 9999 exceed 64 bits of nanoseconds.
            self.params.need(Section::I128);
            let wide = self.local(CType::I128, &format!("i128_add(i128_mul64({seconds}, {per}), i128_of({rest}))"));
            valid = self.fail_or_null(valid, &[format!("!i128_fits({wide})")], checked);
            self.local(CType::I64, &format!("(i64){wide}.lo"))
        } else {
            self.local(CType::I64, &format!("{seconds} * {per} + {rest}"))
        };
        Ok(Value { data_type: to.clone(), ctype: CType::I64, code, valid, bounds: None })
    }

    /// A time of day, or a number of ticks.
    fn parse_time(&mut self, value: Value, to: &DataType, unit: &TimeUnit, ctype: CType, checked: bool) -> Result<Value> {
        let (ok, nanos) = self.parsed(&value, Section::ParseTime, "i64", |string, out| format!("parse_time({string}, &{out})"));
        let negative = self.fresh();
        self.push(&format!("i32 {negative} = 0;"));
        let (number, magnitude) =
            self.parsed(&value, Section::Parse, "u64", |string, out| format!("parse_ticks({string}, &{out}, &{negative})"));
        let (least, most) = ctype.range().unwrap_or_default();
        let wrong =
            format!("({magnitude} > ({negative} ? (u64){:#x}UL : (u64){:#x}UL))", least.unsigned_abs() as u64, most as u64);
        let valid = self.fail_or_null(value.valid, &[format!("(!{ok} & (!{number} | {wrong}))")], checked);
        let divisor = 1_000_000_000 / per_second(unit);
        let code = self.local(
            ctype,
            &format!("({})({ok} ? {nanos} / {divisor} : (i64)({negative} ? (u64)0 - {magnitude} : {magnitude}))", ctype.name()),
        );
        Ok(Value { data_type: to.clone(), ctype, code, valid, bounds: None })
    }

    /// Formats a value as a string.
    pub(super) fn format(&mut self, value: Value, to: &DataType) -> Result<Value> {
        if !matches!(to, DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View) {
            return refuse(&value.data_type, to);
        }
        let Formatter { section, call, bytes } = self.formatter(&value, to)?;
        self.params.need(section);
        self.costly();
        let slot = self.params.scratch(bytes);
        let (out, len) = (self.fresh(), self.fresh());
        self.push(&format!("G u8 *{out} = {slot};"));
        self.push(&format!("u32 {len} = 0;"));
        let call = call.replace('#', &out);
        match &value.valid {
            Some(valid) => self.push(&format!("if ({valid}) {len} = {call};")),
            None => self.push(&format!("{len} = {call};")),
        }
        let mut code = self.local(CType::Str, &format!("str_make({out}, {len})"));
        // chrono's durations end at i64::MAX milliseconds; arrow-cast shows longer ones like this.
        if let DataType::Duration(unit @ (TimeUnit::Second | TimeUnit::Millisecond)) = &value.data_type {
            let most = i128::from(i64::MAX) / if *unit == TimeUnit::Second { 1000 } else { 1 };
            let beyond = outside(&value, (-most, most));
            if !beyond.is_empty() {
                let invalid = self.params.string(b"<invalid>")?;
                code = self.local(CType::Str, &format!("str_sel({}, {invalid}, {code})", beyond.join(" | ")));
            }
        }
        Ok(Value { data_type: to.clone(), ctype: CType::Str, code, valid: value.valid, bounds: None })
    }

    /// The C function that formats a value.
    fn formatter(&mut self, value: &Value, to: &DataType) -> Result<Formatter> {
        use DataType::*;
        let code = &value.code;
        let mut bytes = SCRATCH_SLOT;
        let (section, call) = match &value.data_type {
            Boolean => (Section::Format, format!("format_bool(#, {code})")),
            data_type if data_type.is_integer() => match value.ctype.is_signed() {
                true => (Section::Format, format!("format_i64(#, (i64){code})")),
                false => (Section::Format, format!("format_u64(#, (u64){code})")),
            },
            data_type if data_type.is_decimal() => {
                let (precision, scale) = precision_scale(data_type).unwrap_or_default();
                let (wide, section, name) = match CType::native(data_type) {
                    Some(CType::I256) => (CType::I256, Section::FormatDecimal256, "format_decimal256"),
                    _ => (CType::I128, Section::FormatDecimal, "format_decimal"),
                };
                // Sign, digits, a leading zero and the point, and zeros of a negative scale.
                let digits = if wide == CType::I256 { 77 } else { 39 };
                bytes = (digits + 3 + usize::from(scale.min(0).unsigned_abs())).next_multiple_of(SCRATCH_SLOT);
                self.params.need_type(wide);
                (section, format!("{name}(#, {}, {precision}u, {scale})", value.to_ctype(wide)))
            }
            Date32 => {
                let bounds = value.bounds.map(|(first, last)| (first * 86_400, last * 86_400));
                let ticks = format!("((i64){code} * 86400)");
                let seconds = Value { data_type: Int64, ctype: CType::I64, code: ticks, bounds, ..value.clone() };
                self.in_calendar(&seconds, &TimeUnit::Second, true);
                (Section::FormatTime, format!("format_date(#, (i64){code})"))
            }
            Date64 => {
                self.in_calendar(value, &TimeUnit::Millisecond, true);
                (Section::FormatTime, format!("format_timestamp(#, {code}, 1000, 0, 0)"))
            }
            Timestamp(unit, zone) => {
                let shown = i32::from(zone.is_some());
                let zone = Zone::of(zone.as_deref())?;
                self.in_calendar(value, unit, true);
                let per = per_second(unit);
                let offset = match zone {
                    Zone::Fixed(offset) => offset.to_string(),
                    Zone::Rules(_) => {
                        let seconds = self.floor_div(code, per);
                        self.offset_at(&zone, &seconds)?
                    }
                };
                (Section::FormatTime, format!("format_timestamp(#, {code}, {per}, {offset}, {shown})"))
            }
            Time32(unit) | Time64(unit) => {
                // arrow-cast truncates both parts to 32 bits for chrono.
                let per = per_second(unit);
                let seconds = self.local(CType::U32, &format!("(u32)({code} / {per})"));
                let nanos = self.local(CType::U32, &format!("(u32)((i64)({code} % {per}) * {})", 1_000_000_000 / per));
                self.fail_where(&[&format!("({seconds} >= 86400)"), &format!("({nanos} >= 1000000000)")], &value.valid);
                (Section::FormatTime, format!("format_time(#, {seconds}, {nanos})"))
            }
            Duration(unit) => {
                let digits = per_second(unit).ilog10();
                (Section::FormatTime, format!("format_duration(#, {code}, {}, {digits}u)", per_second(unit)))
            }
            Interval(_) => {
                self.params.need(Section::IntervalValue);
                // Five fields with signs and units.
                bytes = 2 * SCRATCH_SLOT;
                let parts = ["months", "days", "nanos"].map(|part| format!("interval_{part}({code})"));
                (Section::FormatTime, format!("format_interval(#, {})", parts.join(", ")))
            }
            Float32 => (Section::FormatFloat, format!("format_f32(#, {code})")),
            Float64 => (Section::FormatFloat, format!("format_f64(#, {code})")),
            other => return refuse(other, to),
        };
        Ok(Formatter { section, call, bytes })
    }
}

/// A C function that formats a value.
struct Formatter {
    section: Section,
    /// The call, with `#` for the output.
    call: String,
    /// Greatest length of the string.
    bytes: usize,
}
