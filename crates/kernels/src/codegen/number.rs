// SPDX-License-Identifier: Apache-2.0
//! Functions of numbers that overloads cannot express. Exact ones give the host's bits.

use arrow::datatypes::DataType;

use super::arithmetic::within;
use super::call::refuse_call;
use super::cast::outside;
use super::decimal::{native, power_of_ten, precision_scale};
use super::row::RowWriter;
use super::value::{CType, Value, literal};
use crate::Result;
use crate::function::{Function, NumberFunction};
use crate::prelude::Section;

impl RowWriter<'_> {
    pub(super) fn number_call(
        &mut self,
        of: NumberFunction,
        function: Function,
        arguments: &[Value],
        data_type: &DataType,
    ) -> Result<Value> {
        use NumberFunction::{Abs, Ceil, Degrees, Floor, Gcd, Lcm, Log, Radians};
        match (of, arguments) {
            (Abs, [value]) if value.data_type == *data_type => self.abs(value),
            (Floor | Ceil, [value]) if data_type.is_decimal() && value.data_type == *data_type => {
                self.whole_decimal(of == Ceil, value)
            }
            (Gcd, [left, right]) if [left, right].iter().all(|value| value.data_type == DataType::Int64) => {
                Ok(self.magnitude("u64_gcd", left, right, data_type))
            }
            (Lcm, [left, right]) if [left, right].iter().all(|value| value.data_type == DataType::Int64) => {
                Ok(self.magnitude("u64_lcm", left, right, data_type))
            }
            (Degrees, [value]) if value.ctype.is_float() && value.data_type == *data_type => {
                Ok(self.times_constant(value, 1f32.to_degrees(), 1f64.to_degrees()))
            }
            (Radians, [value]) if value.ctype.is_float() && value.data_type == *data_type => {
                Ok(self.times_constant(value, 1f32.to_radians(), 1f64.to_radians()))
            }
            (Log, [base, number]) if base.data_type == DataType::Float64 && number.data_type.is_decimal() => {
                self.decimal_log(base, number)
            }
            (Abs | Floor | Ceil | Gcd | Lcm | Degrees | Radians | Log, _) => refuse_call(function, arguments),
        }
    }

    /// A C function of two magnitudes; a result of 2^63 or more fails the row.
    fn magnitude(&mut self, name: &str, left: &Value, right: &Value, data_type: &DataType) -> Value {
        self.params.need(Section::Integers);
        let valid = self.both_valid(left, right);
        let magnitude = self.called(CType::U64, &valid, &format!("{name}(u64_abs({}), u64_abs({}))", left.code, right.code));
        self.fail_where(&[&format!("({magnitude} >> 63)")], &valid);
        let code = self.local(CType::I64, &format!("(i64){magnitude}"));
        Value { data_type: data_type.clone(), ctype: CType::I64, code, valid, bounds: None }
    }

    /// A float times a factor that Rust computes in the float's own type.
    fn times_constant(&mut self, value: &Value, single: f32, double: f64) -> Value {
        let factor = match value.ctype {
            CType::F32 => format!("BITS_F32({:#x}u)", single.to_bits()),
            _ => format!("BITS_F64((u64){:#x}UL)", double.to_bits()),
        };
        let code = self.local(value.ctype, &format!("{}_mul({}, {factor})", value.ctype.name(), value.code));
        Value { code, ..value.clone() }
    }

    /// `log` of a decimal: exact where an integer is a power of an integer base. Decimals convert
    /// to floats as Rust's integers do.
    fn decimal_log(&mut self, base: &Value, number: &Value) -> Result<Value> {
        let (_, scale) = precision_scale(&number.data_type).unwrap_or_default();
        let float = |writer: &mut Self, number: &Value, data_type| {
            let number = Value { data_type, ..number.clone() };
            writer.decimal_to_float(number, &DataType::Float64, CType::F64)
        };
        // 128 bits round correctly; arrow-rs drops digits of 256 bits.
        let narrow = match number.ctype {
            CType::I256 => {
                Value { ctype: CType::I128, code: self.local(CType::I128, &number.to_ctype(CType::I128)), ..number.clone() }
            }
            _ => number.clone(),
        };
        let mut x = float(self, &narrow, DataType::Decimal128(38, scale))?.code;
        let mut is_narrow = "1".to_string();
        if number.ctype == CType::I256 {
            let wide = float(self, number, number.data_type.clone())?.code;
            is_narrow = self.flag(&format!("i256_fits({})", number.code));
            x = self.local(CType::F64, &format!("{is_narrow} ? {x} : {wide}"));
        }
        let valid = self.both_valid(base, number);
        self.params.need(Section::ExactLog);
        let ln = format!("f64_div(f64_ln({x}), f64_ln({}))", base.code);
        if scale != 0 {
            let code = self.called(CType::F64, &valid, &ln);
            return Ok(Value { code, valid, bounds: None, ..base.clone() });
        }
        let call = format!("exact_log({}, {})", narrow.to_ctype(CType::I128), base.code);
        let exponent = self.called(CType::I32, &valid, &call);
        let code = self.called(CType::F64, &valid, &format!("{is_narrow} && {exponent} >= 0 ? (f64){exponent} : {ln}"));
        Ok(Value { code, valid, bounds: None, ..base.clone() })
    }

    pub(super) fn inexact_call(&mut self, function: Function, values: &[Value], data_type: &DataType) -> Result<Value> {
        let (Function::Inexact(inexact), [first, ..]) = (function, values) else { return refuse_call(function, values) };
        let fits = values.iter().all(|value| value.ctype.is_float() && value.data_type == *data_type);
        if !fits || values.len() != inexact.arity() {
            return refuse_call(function, values);
        }
        self.params.need(Section::Inexact);
        let valid = self.all_valid(values);
        self.costly();
        let codes: Vec<&str> = values.iter().map(|value| value.code.as_str()).collect();
        let call = format!("{}_{}({})", first.ctype.name(), inexact.name(), codes.join(", "));
        let code = self.local(first.ctype, &call);
        Ok(Value { code, valid, bounds: None, ..first.clone() })
    }

    /// A function of the prelude section `Math`.
    pub(super) fn exact(&mut self, name: &str, value: &Value) -> Value {
        self.params.need(Section::Math);
        let code = self.local(value.ctype, &format!("{}_{name}({})", value.ctype.name(), value.code));
        Value { code, ..value.clone() }
    }

    /// `abs`; the least integer fails, the least decimal wraps.
    fn abs(&mut self, value: &Value) -> Result<Value> {
        let (data_type, ctype, code) = (&value.data_type, value.ctype, &value.code);
        let (least, most) = match (value.range(), data_type.is_numeric()) {
            (_, false) => return refuse_call(Function::Abs, std::slice::from_ref(value)),
            (None, _) if value.ctype == CType::I256 => {
                let code = self.local(CType::I256, &format!("i256_abs({})", value.code));
                return Ok(Value { code, ..value.clone() });
            }
            (None, _) => return Ok(self.exact("abs", value)),
            (Some(range), _) => range,
        };
        if least >= 0 {
            return Ok(value.clone());
        }
        let native = CType::native(data_type).unwrap_or(ctype);
        if !data_type.is_decimal() {
            let outside = outside(value, (ctype.range().map_or(least, |(least, _)| least + 1), most));
            let outside: Vec<&str> = outside.iter().map(String::as_str).collect();
            self.fail_where(&outside, &value.valid);
        }
        // A decimal in a narrow integer widens where its own type would not wrap.
        let wide = match ctype {
            CType::I32 if native != CType::I32 => CType::I64,
            CType::I64 if native.is_wide() && least == i64::MIN.into() => CType::I128,
            CType::I128 if native == CType::I256 && least == i128::MIN => CType::I256,
            other => other,
        };
        self.params.need_type(wide);
        let code = match wide {
            CType::I128 | CType::I256 => format!("{}_abs({})", wide.name(), value.to_ctype(wide)),
            CType::I64 => {
                let code = if ctype == wide { code.clone() } else { self.local(wide, &value.to_ctype(wide)) };
                format!("(i64)({code} < 0 ? (u64)0 - (u64){code} : (u64){code})")
            }
            _ => format!("({})({code} < 0 ? 0u - (u32){code} : (u32){code})", wide.name()),
        };
        let code = self.local(wide, &code);
        // The least decimal is its own absolute value.
        let wraps = data_type.is_decimal() && wide.range().is_some_and(|(limit, _)| least <= limit);
        let bounds = Some((0, most.max(least.saturating_neg()))).filter(|bounds| !wraps && within(*bounds, wide));
        Ok(Value { ctype: wide, code, bounds, ..value.clone() })
    }

    /// `floor` and `ceil` of decimals; a result beyond the precision fails the row.
    fn whole_decimal(&mut self, up: bool, value: &Value) -> Result<Value> {
        let (precision, scale) = precision_scale(&value.data_type).unwrap_or_default();
        if native(&value.data_type)? == CType::I256 && scale > 0 {
            return self.whole_wide(up, value.clone(), (precision, scale));
        }
        let Some(factor) = power_of_ten(i32::from(scale))
            .filter(|factor| native(&value.data_type).is_ok_and(|native| within((*factor, *factor), native)))
        else {
            return match scale <= 0 {
                true => Ok(value.clone()),
                false => refuse_call(if up { Function::Ceil } else { Function::Floor }, std::slice::from_ref(value)),
            };
        };
        if scale <= 0 {
            return Ok(value.clone());
        }
        self.costly();
        let bounds = value.raw_range().and_then(|(low, high)| Some((low.checked_sub(factor)?, high.checked_add(factor)?)));
        let bounds = bounds.filter(|bounds| within(*bounds, CType::I64));
        let (ctype, code) = match bounds {
            Some(_) => {
                let v = self.local(CType::I64, &value.to_ctype(CType::I64));
                let f = literal(CType::I64, factor);
                let rest = self.local(CType::I64, &format!("{v} % {f}"));
                let step = if up { format!("({rest} > 0 ? {f} : 0)") } else { format!("({rest} < 0 ? -{f} : 0)") };
                (CType::I64, format!("{v} - {rest} + {step}"))
            }
            None => {
                self.params.need(Section::I128Div);
                let v = self.local(CType::I128, &value.to_ctype(CType::I128));
                let f = literal(CType::I128, factor);
                let rest = self.local(CType::I128, &format!("i128_rem({v}, {f})"));
                let zero = CType::I128.zero();
                let (condition, step) = match up {
                    true => (format!("i128_lt({zero}, {rest})"), f),
                    false => (format!("i128_is_neg({rest})"), format!("i128_neg({f})")),
                };
                (CType::I128, format!("i128_add(i128_sub({v}, {rest}), i128_sel({condition}, {step}, {zero}))"))
            }
        };
        let code = self.local(ctype, &code);
        let whole = Value { ctype, code, bounds, ..value.clone() };
        self.limited(whole, &value.data_type, precision, true)
    }
}
