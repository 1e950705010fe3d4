// SPDX-License-Identifier: Apache-2.0
//! Functions of numbers. Those that are exact give what the host gives to the last bit.

use arrow::datatypes::DataType;

use super::arithmetic::within;
use super::call::refuse_call;
use super::cast::{Rounding, outside};
use super::decimal::{constant_value, native, power_of_ten, precision_scale};
use super::row::RowWriter;
use super::value::{CType, Value, literal};
use crate::Result;
use crate::expr::{CompareOp, Expr, Literal, LiteralValue};
use crate::function::{Function, InexactFunction};
use crate::prelude::Section;

impl RowWriter<'_> {
    pub(super) fn math_function(&mut self, function: Function, arguments: &[Value], data_type: &DataType) -> Result<Value> {
        match (function, arguments) {
            (Function::Abs, [value]) if value.data_type == *data_type => self.abs(value),
            (Function::Floor | Function::Ceil, [value]) if data_type.is_decimal() && value.data_type == *data_type => {
                self.whole_decimal(function == Function::Ceil, value)
            }
            (Function::Gcd | Function::Lcm, [left, right])
                if [left, right].iter().all(|value| value.data_type == DataType::Int64) =>
            {
                self.params.need(Section::Integers);
                let valid = self.both_valid(left, right);
                let name = if function == Function::Gcd { "u64_gcd" } else { "u64_lcm" };
                let magnitude =
                    self.called(CType::U64, &valid, &format!("{name}(u64_abs({}), u64_abs({}))", left.code, right.code));
                self.fail_where(&[&format!("({magnitude} >> 63)")], &valid);
                let code = self.local(CType::I64, &format!("(i64){magnitude}"));
                Ok(Value { data_type: data_type.clone(), ctype: CType::I64, code, valid, bounds: None })
            }
            (Function::Factorial, [n]) if n.data_type == DataType::Int64 => {
                self.params.need(Section::Integers);
                self.fails_outside(n, (0, 20), &n.valid);
                let code = self.called(CType::I64, &n.valid, &format!("i64_factorial({})", n.code));
                Ok(Value { code, bounds: None, ..n.clone() })
            }
            (Function::IsNan | Function::IsZero, [value]) if value.data_type.is_numeric() => {
                let code = &value.code;
                let code = match (function, value.ctype) {
                    (Function::IsNan, CType::F32 | CType::F64) => format!("{code} != {code}"),
                    (Function::IsNan, _) => "0".into(),
                    (_, CType::I128 | CType::I256) => format!("{0}_eq({code}, {0}_of(0))", value.ctype.name()),
                    _ => format!("{code} == 0"),
                };
                let code = self.flag(&code);
                let valid = value.valid.clone();
                Ok(Value { data_type: DataType::Boolean, ctype: CType::Bool, code, valid, bounds: None })
            }
            (Function::Degrees | Function::Radians, [value]) if value.ctype.is_float() && value.data_type == *data_type => {
                // Rust's factors: what it makes of 1.
                let (degrees, of) = (function == Function::Degrees, value.ctype.name());
                let factor = match value.ctype {
                    CType::F32 => {
                        let factor = if degrees { 1f32.to_degrees() } else { 1f32.to_radians() };
                        format!("BITS_F32({:#x}u)", factor.to_bits())
                    }
                    _ => {
                        let factor = if degrees { 1f64.to_degrees() } else { 1f64.to_radians() };
                        format!("BITS_F64((u64){:#x}UL)", factor.to_bits())
                    }
                };
                let code = self.local(value.ctype, &format!("{of}_mul({}, {factor})", value.code));
                Ok(Value { code, ..value.clone() })
            }
            (Function::Log, [base, number]) if base.data_type == DataType::Float64 && number.data_type.is_decimal() => {
                self.decimal_log(base, number)
            }
            (Function::Exp | Function::Ln | Function::Log | Function::Log2 | Function::Log10 | Function::Power, values)
                if values.iter().all(|value| value.ctype.is_float() && value.data_type == *data_type) =>
            {
                self.exponential(function, values)
            }
            (Function::Inexact(inexact), values)
                if values.len() == inexact.arity()
                    && values.iter().all(|value| value.ctype.is_float() && value.data_type == *data_type) =>
            {
                self.inexact(inexact, values)
            }
            (_, [value]) if value.ctype.is_float() && value.data_type == *data_type => {
                let name = match function {
                    Function::Floor => "floor",
                    Function::Ceil => "ceil",
                    Function::Signum => "signum",
                    Function::Sqrt => "sqrt",
                    _ => return refuse_call(function, arguments),
                };
                if function == Function::Sqrt {
                    self.fail_where(&[&format!("({} < 0)", value.code)], &value.valid);
                }
                Ok(self.exact(name, value))
            }
            _ => refuse_call(function, arguments),
        }
    }

    /// `exp`, logarithms and powers. Which hosts give the same bits: [`crate::libm`].
    fn exponential(&mut self, function: Function, values: &[Value]) -> Result<Value> {
        let Some(first) = values.first() else { return refuse_call(function, values) };
        let of = first.ctype.name();
        let valid = self.all_valid(values);
        let (section, call) = match (function, values) {
            (Function::Exp, [x]) => (Section::Exp, format!("{of}_exp({})", x.code)),
            (Function::Ln, [x]) => (Section::Ln, format!("{of}_ln({})", x.code)),
            (Function::Log2, [x]) => (Section::Log2, format!("{of}_log2({})", x.code)),
            (Function::Log10, [x]) => (Section::Log10, format!("{of}_log10({})", x.code)),
            (Function::Log, [base, x]) => (Section::Ln, format!("{of}_div({of}_ln({}), {of}_ln({}))", x.code, base.code)),
            (Function::Power, [base, exponent]) if first.ctype == CType::F64 => {
                self.fail_where(&[&format!("({} == 0 && {} < 0)", base.code, exponent.code)], &valid);
                (Section::Power, format!("f64_power({}, {})", base.code, exponent.code))
            }
            _ => return refuse_call(function, values),
        };
        self.params.need(section);
        let code = self.called(first.ctype, &valid, &call);
        Ok(Value { code, valid, bounds: None, ..first.clone() })
    }

    /// A logarithm, exact where an integer is a power of an integer. A decimal becomes a float as Rust's integers do.
    fn decimal_log(&mut self, base: &Value, number: &Value) -> Result<Value> {
        let (_, scale) = precision_scale(&number.data_type).unwrap_or_default();
        let float = |writer: &mut Self, number: &Value, data_type| {
            let number = Value { data_type, ..number.clone() };
            writer.decimal_to_float(number, &DataType::Float64, CType::F64)
        };
        // 128 bits round as they should, more of them drop digits.
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

    /// A function of the section `Inexact`.
    fn inexact(&mut self, function: InexactFunction, values: &[Value]) -> Result<Value> {
        let Some(first) = values.first() else { return refuse_call(Function::Inexact(function), values) };
        self.params.need(Section::Inexact);
        let valid = self.all_valid(values);
        self.costly();
        let codes: Vec<&str> = values.iter().map(|value| value.code.as_str()).collect();
        let call = format!("{}_{}({})", first.ctype.name(), function.name(), codes.join(", "));
        let code = self.local(first.ctype, &call);
        Ok(Value { code, valid, bounds: None, ..first.clone() })
    }

    /// A function of the section `Math`.
    pub(super) fn exact(&mut self, name: &str, value: &Value) -> Value {
        self.params.need(Section::Math);
        let code = self.local(value.ctype, &format!("{}_{name}({})", value.ctype.name(), value.code));
        Value { code, ..value.clone() }
    }

    /// Fails for the least integer; of decimals it wraps.
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
        // A narrow decimal must not wrap where its own type does not.
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
        // The least decimal stays itself.
        let wraps = data_type.is_decimal() && wide.range().is_some_and(|(limit, _)| least <= limit);
        let bounds = Some((0, most.max(least.saturating_neg()))).filter(|bounds| !wraps && within(*bounds, wide));
        Ok(Value { ctype: wide, code, bounds, ..value.clone() })
    }

    /// `floor` and `ceil` of decimals; fail where the result has more digits than the type.
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

    /// `round` and `trunc`, here to a constant number of places.
    pub(super) fn rounded(
        &mut self,
        function: Function,
        value: &Value,
        places: Option<&Expr>,
        data_type: &DataType,
    ) -> Result<Value> {
        let round = function == Function::Round;
        let to = match places {
            None => 0,
            Some(Expr::Literal(Literal { value: LiteralValue::Int(places), .. })) => *places as i64,
            Some(Expr::Literal(Literal { value: LiteralValue::Null, .. })) => {
                return Ok(Value::null(data_type.clone(), CType::native(data_type).unwrap_or(CType::Bool)));
            }
            Some(places) => return self.rounded_to(function, value, places, data_type),
        };
        match value.ctype {
            CType::F32 | CType::F64 if value.data_type == *data_type => {
                if places.is_none() && !round {
                    return Ok(self.exact("whole", value));
                }
                // DataFusion's factors, powers that Rust computes.
                let to = to as i32;
                let factor = match (value.ctype, round) {
                    (CType::F32, false) => f64::from(10f32.powi(to)),
                    (CType::F32, true) => f64::from(10f64.powi(to) as f32),
                    _ => 10f64.powi(to),
                };
                let factor =
                    self.params.literal(&Literal { data_type: data_type.clone(), value: LiteralValue::Float(factor) })?;
                let of = value.ctype.name();
                let scaled = Value {
                    code: self.local(value.ctype, &format!("{of}_mul({}, {})", value.code, factor.code)),
                    ..value.clone()
                };
                let whole = self.exact(if round { "round" } else { "trunc" }, &scaled);
                let code = self.local(value.ctype, &format!("{of}_div({}, {})", whole.code, factor.code));
                Ok(Value { code, ..value.clone() })
            }
            _ if data_type.is_decimal() && value.data_type.is_decimal() => self.rounded_decimal(round, value, to, data_type),
            _ if round && data_type.is_integer() && value.data_type == *data_type => self.rounded_integer(value, to),
            _ => refuse_call(function, std::slice::from_ref(value)),
        }
    }

    fn rounded_decimal(&mut self, round: bool, value: &Value, to: i64, data_type: &DataType) -> Result<Value> {
        let refuse = || refuse_call(if round { Function::Round } else { Function::Trunc }, std::slice::from_ref(value));
        let ((precision, scale), (out_precision, out_scale)) =
            (precision_scale(&value.data_type).unwrap_or_default(), precision_scale(data_type).unwrap_or_default());
        let most = match native(data_type)? {
            CType::I32 => 9,
            CType::I64 => 18,
            CType::I128 => 38,
            _ => 76,
        };
        let dropped = i64::from(scale).saturating_sub(to);
        let retyped = |value: Value| Value { data_type: data_type.clone(), ..value };
        if native(data_type)? != native(&value.data_type)? || (dropped <= 0 && scale != out_scale) {
            return refuse();
        }
        if dropped <= 0 {
            return Ok(retyped(value.clone()));
        }
        // Of a number below 10^(precision - scale), places beyond that are 0.
        let integer_digits = i64::from(precision) - i64::from(scale);
        let none = if round { to < 0 && (integer_digits <= 0 || -to > integer_digits) } else { dropped >= i64::from(most) };
        if none {
            let ctype = if most == 9 { CType::I32 } else { CType::I64 };
            return Ok(Value { valid: value.valid.clone(), ctype, ..constant_value(data_type, 0) });
        }
        let raised = i64::from(out_scale) - to;
        let raised = if round { raised } else { dropped };
        if dropped > i64::from(most) || !(0..=i64::from(most)).contains(&raised) {
            return refuse();
        }
        let own = native(data_type)?;
        let rounding = if round { Rounding::HalfUp } else { Rounding::Truncate };
        let widened = round && out_precision == most && scale == 0 && to < 0;
        if own == CType::I256 {
            let value = retyped(self.shifted_wide(value.clone(), (dropped as i32, raised as i32), rounding)?);
            return if widened { self.limited_wide(value, data_type, out_precision, true) } else { Ok(value) };
        }
        let value = self.rescale_in(value.clone(), -(dropped as i32), true, rounding, own)?;
        let value = retyped(self.rescale_in(value, raised as i32, true, rounding, own)?);
        match widened {
            true => self.limited(value, data_type, out_precision, true),
            false => Ok(value),
        }
    }

    /// To tens, hundreds, …; fails where the type does not hold what is rounded up.
    fn rounded_integer(&mut self, value: &Value, to: i64) -> Result<Value> {
        let Some(places) = to.checked_neg().filter(|places| *places > 0) else { return Ok(value.clone()) };
        let ctype = value.ctype;
        let factor = i32::try_from(places).ok().and_then(power_of_ten).filter(|factor| within((*factor, *factor), ctype));
        let Some(factor) = factor else {
            return Ok(Value { valid: value.valid.clone(), ctype, ..constant_value(&value.data_type, 0) });
        };
        self.costly();
        let (name, code, f, half) = (ctype.name(), &value.code, literal(ctype, factor), literal(ctype, factor / 2));
        let rest = self.local(ctype, &format!("({name})({code} % {f})"));
        let steps = match ctype.is_signed() {
            true => format!("({rest} >= {half}) - ({rest} <= -{half})"),
            false => format!("({rest} >= {half})"),
        };
        let quotient = self.local(ctype, &format!("({name})({code} / {f} + {steps})"));
        let (least, most) = ctype.range().unwrap_or_default();
        let quotient = Value { code: quotient, bounds: None, ..value.clone() };
        let outside = outside(&quotient, (least / factor, most / factor));
        let outside: Vec<&str> = outside.iter().map(String::as_str).collect();
        self.fail_where(&outside, &value.valid);
        let unsigned = if ctype.width() == 8 { "u64" } else { "u32" };
        let code = self.local(ctype, &format!("({name})(({unsigned}){} * ({unsigned}){f})", quotient.code));
        Ok(Value { code, ..quotient })
    }

    /// `nanvl`: the second where the first is a NaN.
    pub(super) fn nanvl(&mut self, left: &Value, right: &Value, data_type: &DataType) -> Result<Value> {
        if !left.ctype.is_float() || left.data_type != *data_type || (right.data_type != *data_type && !right.is_null()) {
            return refuse_call(Function::Nanvl, &[left.clone(), right.clone()]);
        }
        if left.is_null() {
            return Ok(left.clone());
        }
        let nan = self.flag(&format!("{0} != {0}", left.code));
        let code = self.local(left.ctype, &format!("{nan} ? {} : {}", right.code, left.code));
        let valid = match (&left.valid, &right.valid) {
            (None, None) => None,
            _ => Some(self.flag(&format!("{} & (!{nan} | {})", left.valid_code(), right.valid_code()))),
        };
        Ok(Value { code, valid, ..left.clone() })
    }

    /// The greatest or least of values, of those that are not NULL.
    pub(super) fn extreme(&mut self, function: Function, values: &[Value], data_type: &DataType) -> Result<Value> {
        let op = if function == Function::Greatest { CompareOp::GtEq } else { CompareOp::LtEq };
        let mut all = values.iter().filter(|value| !value.is_null());
        let Some(mut kept) = all.next().cloned() else {
            return Ok(Value::null(data_type.clone(), CType::native(data_type).unwrap_or(CType::Bool)));
        };
        for value in all {
            let (left, right) = (self.ordered(&kept), self.ordered(value));
            let keeps = self.compare_values(op, &left, &right)?.code;
            let keeps = match (&kept.valid, &value.valid) {
                (None, None) => keeps,
                _ => self.flag(&format!("{} & (!{} | {keeps})", kept.valid_code(), value.valid_code())),
            };
            let ctype = if kept.ctype.width() >= value.ctype.width() { kept.ctype } else { value.ctype };
            self.params.need_type(ctype);
            let code = self.select(ctype, &keeps, &kept.to_ctype(ctype), &value.to_ctype(ctype));
            let code = self.local(ctype, &code);
            let valid = match (&kept.valid, &value.valid) {
                (Some(left), Some(right)) => Some(self.flag(&format!("{left} | {right}"))),
                _ => None,
            };
            let bounds = kept.range().zip(value.range()).map(|((a, b), (c, d))| (a.min(c), b.max(d)));
            kept = Value { ctype, code, valid, bounds, ..kept };
        }
        Ok(kept)
    }

    /// Floats as integers in the order that Arrow sorts them by.
    fn ordered(&mut self, value: &Value) -> Value {
        let (data_type, ctype) = match value.ctype {
            CType::F32 => (DataType::Int32, CType::I32),
            CType::F64 => (DataType::Int64, CType::I64),
            _ => return value.clone(),
        };
        let code = self.local(ctype, &format!("{}_key({})", value.ctype.name(), value.code));
        Value { data_type, ctype, code, valid: value.valid.clone(), bounds: None }
    }
}
