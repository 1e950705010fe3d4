// SPDX-License-Identifier: Apache-2.0
//! Calls of every function.

use std::collections::HashSet;

use arrow::datatypes::{DataType, TimeUnit};
use kernels::expr::{CompareOp, Expr, Literal, LiteralValue};
use kernels::function::{self, ArgumentType, DatePart, Function, Granularity, InexactFunction, ResultType};
use kernels::support::supports_output;

use super::inputs::*;

/// Calls of every function with arguments of this type, supported or not. Overloads of a row are
/// called as the row says; functions with a generator are listed here.
pub fn calls(value: &DataType, a: &Expr, b: &Expr) -> Vec<Expr> {
    let overloads =
        Function::PLAIN.iter().flat_map(|function| function.row().overloads.iter().map(|overload| (*function, overload)));
    let mut all: Vec<Expr> =
        overloads.filter_map(|(function, overload)| overload_call(function, overload.arguments, value, a, b)).collect();
    all.extend(generator_calls(value, a, b));
    for function in InexactFunction::ALL {
        all.push(call(Function::Inexact(*function), [a.clone(), b.clone()][..function.arity()].to_vec(), value));
    }
    for part in ["year", "isoyear", "week", "doy", "dow", "month", "hour", "second", "ms"] {
        let part = DatePart::parse(part).unwrap();
        all.push(call(Function::DatePart(part), vec![a.clone()], &DataType::Int32));
    }
    all.push(call(Function::DatePart(DatePart::Nanosecond), vec![a.clone()], &DataType::Int64));
    all.push(call(Function::DatePart(DatePart::Epoch), vec![a.clone()], &DataType::Float64));
    for granularity in ["second", "hour", "week", "month", "quarter", "year"] {
        all.push(call(Function::DateTrunc(Granularity::parse(granularity).unwrap()), vec![a.clone()], value));
    }
    all
}

pub fn call(function: Function, arguments: Vec<Expr>, data_type: &DataType) -> Expr {
    Expr::Call { function, arguments, data_type: data_type.clone() }
}

pub fn int(number: i128) -> Expr {
    Expr::Literal(Literal { data_type: DataType::Int64, value: LiteralValue::Int(number) })
}

/// A call of an overload: its first argument is a column of the type, others are columns or
/// integers. `None` if no argument has the type.
pub fn overload_call(function: Function, arguments: &[ArgumentType], value: &DataType, a: &Expr, b: &Expr) -> Option<Expr> {
    let takes = |argument: &ArgumentType| match argument {
        ArgumentType::String => value.is_string(),
        ArgumentType::Int64 => *value == DataType::Int64,
        ArgumentType::Float => value.is_floating(),
        ArgumentType::Float64 => *value == DataType::Float64,
        ArgumentType::WideNumber | ArgumentType::Number => value.is_numeric(),
    };
    let mut columns = [a, b].into_iter().cycle();
    let argument = |argument: &ArgumentType| match argument {
        ArgumentType::Int64 if *value != DataType::Int64 => Some(int(2)),
        other => takes(other).then(|| columns.next().cloned())?,
    };
    let values = arguments.iter().map(argument).collect::<Option<Vec<_>>>()?;
    let data_type = match function.row().result {
        ResultType::Boolean => DataType::Boolean,
        ResultType::Integer if *value == DataType::LargeUtf8 => DataType::Int64,
        ResultType::Integer => DataType::Int32,
        ResultType::ShortString => DataType::Utf8,
        ResultType::Slice | ResultType::NewString | ResultType::Argument | ResultType::Generated => value.clone(),
    };
    takes(arguments.first()?).then(|| call(function, values, &data_type))
}

/// Calls of functions with a hand-written generator, and of functions within others.
pub fn generator_calls(value: &DataType, a: &Expr, b: &Expr) -> Vec<Expr> {
    use Function::*;
    let text = |text: &str| Expr::Literal(Literal { data_type: value.clone(), value: LiteralValue::Bytes(text.into()) });
    let (a, b) = (|| a.clone(), || b.clone());
    let number = if *value == DataType::LargeUtf8 { DataType::Int64 } else { DataType::Int32 };
    let digits = || Expr::Cast { expr: Expr::IsNull(b().into()).into(), to: DataType::Int64, checked: true };
    let both = || call(ConcatOperator, vec![a(), b()], value);
    let mut all = vec![
        call(SplitPart, vec![a(), text(","), int(-2)], value),
        call(Concat, vec![a(), text("-"), b()], value),
        call(ConcatOperator, vec![call(Upper, vec![a()], value), b()], value),
        Expr::Compare { op: CompareOp::Lt, left: both().into(), right: call(ConcatWs, vec![text("-"), b(), a()], value).into() },
        Expr::Case {
            branches: vec![(Expr::IsNull(a().into()), call(Repeat, vec![b(), int(3)], value))],
            otherwise: Some(call(Upper, vec![a()], value).into()),
            data_type: value.clone(),
        },
        call(ConcatWs, vec![text(","), a(), b()], value),
        call(Round, vec![a(), int(-1)], value),
        call(Round, vec![a(), int(1)], value),
        call(Trunc, vec![a(), int(1)], value),
        call(Round, vec![a(), digits()], value),
        call(Trunc, vec![a(), digits()], value),
        call(
            Log,
            vec![Expr::Literal(Literal { data_type: DataType::Float64, value: LiteralValue::Float(2.0) }), a()],
            &DataType::Float64,
        ),
        call(IntervalField(function::IntervalField::Nanos { negated: true }), vec![a()], &DataType::Int64),
        Expr::Like { ignores_case: false, expr: both().into(), pattern: text("a%_b").into() },
        call(Gcd, vec![a(), b()], value),
        call(Lcm, vec![a(), b()], value),
        call(Nanvl, vec![a(), b()], value),
        call(Greatest, vec![a(), b()], value),
        call(Least, vec![a(), b(), a()], value),
        call(SketchRegister, vec![a()], &DataType::UInt16),
        call(SketchRank, vec![a()], &DataType::UInt8),
        call(DateBin { months: false }, vec![a(), int(900_000_000_000), int(0)], value),
        call(DateBin { months: true }, vec![a(), int(3), int(0)], value),
        call(ToDate, vec![a(), text("%d/%m/%Y"), text("%A, %d %b %G-W%V-%u (%j %q) %C%y %U %W %g")], &DataType::Date32),
        call(
            ToTimestamp,
            vec![a(), text("%F %T%.f%z"), text("%m/%d/%Y %I:%M %p"), text("%+"), text("%s%.3f %z"), text("%F %9f %#z")],
            &DataType::Timestamp(TimeUnit::Nanosecond, None),
        ),
        call(AddInterval { checked: true }, vec![a(), int(1), int(-2), int(3)], value),
        call(StringOfRows, vec![a(), int(2)], value),
        call(ListOfRows, vec![a(), int(2)], &DataType::new_list(value.clone(), true)),
    ];
    all.extend([CharacterLength, OctetLength, BitLength].map(|function| call(function, vec![both()], &number)));
    all.extend([Abs, Floor, Ceil, Round, Trunc, Degrees, Radians].map(|function| call(function, vec![a()], value)));
    all
}

/// Every function is supported with arguments of one of the types, so that the gates compile it.
#[test]
fn every_function_is_sampled() {
    let mut missing: HashSet<&str> = Function::NAMES.iter().copied().collect();
    // `rows` samples the functions of lists.
    let of_lists = [Function::ListLength, Function::ListView, Function::ListKey { nulls_first: false }];
    for function in of_lists {
        missing.remove(function.row().name);
    }
    for data_type in types() {
        let input = input(&data_type);
        for expr in calls(value_type(&data_type), &Expr::Column(0), &Expr::Column(1)) {
            if let Expr::Call { function, .. } = &expr
                && supports_output(&expr, &input.schema).is_ok()
            {
                missing.remove(function.row().name);
            }
        }
    }
    assert!(missing.is_empty(), "{missing:?}");
}
