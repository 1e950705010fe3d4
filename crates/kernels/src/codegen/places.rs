// SPDX-License-Identifier: Apache-2.0
//! `round` and `trunc` to as many places as a row says. The type of the result is that of the number, but for a decimal's digits.

use arrow::datatypes::DataType;

use super::call::refuse_call;
use super::decimal::{native, precision_scale};
use super::row::RowWriter;
use super::value::{CType, Value, literal};
use crate::Result;
use crate::expr::Expr;
use crate::function::Function;
use crate::prelude::Section;

impl RowWriter<'_> {
    pub(super) fn rounded_to(&mut self, function: Function, value: &Value, places: &Expr, data_type: &DataType) -> Result<Value> {
        let places = self.eval(places)?;
        let refuse = || refuse_call(function, &[value.clone(), places.clone()]);
        if places.is_null() {
            return Ok(Value::null(data_type.clone(), native(data_type)?));
        }
        if !matches!(places.data_type, DataType::Int32 | DataType::Int64) {
            return refuse();
        }
        let round = function == Function::Round;
        let valid = self.both_valid(value, &places);
        self.params.need(Section::Places);
        let value = Value { valid, bounds: None, ..value.clone() };
        match value.ctype {
            CType::F32 | CType::F64 if value.data_type == *data_type => {
                let (of, to) = (value.ctype.name(), format!("(i32){}", places.code));
                // DataFusion rounds a single by a double's power.
                let factor = match (value.ctype, round) {
                    (CType::F32, true) => format!("(f32)f64_ten_to({to})"),
                    _ => format!("{of}_ten_to({to})"),
                };
                self.costly();
                let factor = self.local(value.ctype, &factor);
                let scaled = self.local(value.ctype, &format!("{of}_mul({}, {factor})", value.code));
                let whole = self.exact(if round { "round" } else { "trunc" }, &Value { code: scaled, ..value });
                let code = self.local(whole.ctype, &format!("{of}_div({}, {factor})", whole.code));
                Ok(Value { code, ..whole })
            }
            _ if value.data_type.is_decimal() && native(data_type)? == native(&value.data_type)? => {
                let scales = (precision_scale(&value.data_type), precision_scale(data_type));
                let (Some((precision, scale)), Some((_, same))) = scales else { return refuse() };
                if scale != same {
                    refuse()
                } else {
                    self.decimal_to_places(round, value, (precision, scale), &places, data_type)
                }
            }
            ctype if round && data_type.is_integer() && value.data_type == *data_type => {
                let Some((least, most)) = ctype.range() else { return refuse() };
                let (code, to) = (&value.code, &places.code);
                let ok = self.flag("1");
                let call = match ctype.is_signed() {
                    true => {
                        let (least, most) = (literal(CType::I64, least), literal(CType::I64, most));
                        format!("i64_to_places({code}, {to}, {least}, {most}, &{ok})")
                    }
                    false => format!("u64_to_places({code}, {to}, {}, &{ok})", literal(CType::U64, most)),
                };
                let code = self.called(ctype, &value.valid, &format!("({}){call}", ctype.local()));
                self.fail_where(&[&format!("!{ok}")], &value.valid);
                Ok(Value { code, ..value })
            }
            _ => refuse(),
        }
    }

    fn decimal_to_places(
        &mut self,
        round: bool,
        value: Value,
        (precision, scale): (u8, i8),
        places: &Value,
        data_type: &DataType,
    ) -> Result<Value> {
        let own = native(data_type)?;
        let most: u8 = match own {
            CType::I32 => 9,
            CType::I64 => 18,
            CType::I128 => 38,
            _ => 76,
        };
        let (wide, section) = match own {
            CType::I256 => (CType::I256, Section::PlacesI256),
            _ => (CType::I128, Section::PlacesI128),
        };
        self.params.need(section);
        // Of a number below 10^(precision - scale), places beyond that are 0.
        let digits = if round { precision } else { most - 1 };
        let ok = self.flag("1");
        let dropped = format!("dropped_digits({scale}, {})", places.code);
        let call =
            format!("{}_to_places({}, {dropped}, {digits}, {}, &{ok})", wide.name(), value.to_ctype(wide), i32::from(round));
        let code = self.called(wide, &value.valid, &call);
        let mut failing = vec![format!("!{ok}")];
        match own {
            CType::I32 => failing.push(format!("(!i128_fits({code}) | ((i64){code}.lo != (i32){code}.lo))")),
            CType::I64 => failing.push(format!("!i128_fits({code})")),
            _ => {}
        }
        let failing: Vec<&str> = failing.iter().map(String::as_str).collect();
        self.fail_where(&failing, &value.valid);
        let value = Value { data_type: data_type.clone(), ctype: wide, code, ..value };
        // A type with all digits is not widened by one.
        if round && precision_scale(data_type).is_some_and(|(precision, _)| precision == most) {
            return match own {
                CType::I256 => self.limited_wide(value, data_type, most, true),
                _ => self.limited(value, data_type, most, true),
            };
        }
        let code = if own == wide { value.code.clone() } else { self.local(own, &value.to_ctype(own)) };
        Ok(Value { ctype: own, code, ..value })
    }
}
