// SPDX-License-Identifier: Apache-2.0
//! Functions whose last digits depend on the math library: close to Rust's results, and equal to
//! exact ones.

use arrow::datatypes::DataType;
use kernels::expr::{Expr, LiteralValue};
use kernels::function::{Function, InexactFunction};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use crate::data::{self, array};
use crate::harness::{PROFILES, batch, evaluate, natural, upload};
use crate::strings::call;

fn of(function: InexactFunction, a: f64, b: f64) -> f64 {
    use InexactFunction::*;
    match function {
        Acos => a.acos(),
        Acosh => a.acosh(),
        Asin => a.asin(),
        Asinh => a.asinh(),
        Atan => a.atan(),
        Atan2 => a.atan2(b),
        Atanh => a.atanh(),
        Cbrt => a.cbrt(),
        Cos => a.cos(),
        Cosh => a.cosh(),
        Cot => 1.0 / a.tan(),
        Sin => a.sin(),
        Sinh => a.sinh(),
        Tan => a.tan(),
        Tanh => a.tanh(),
    }
}

/// Whether two results differ by at most the errors allowed by OpenCL.
fn near(left: f64, right: f64, data_type: &DataType) -> bool {
    // Rust's inverse hyperbolic functions have larger errors near 0.
    let (relative, absolute) = if *data_type == DataType::Float32 { (2e-6, 1e-30) } else { (4e-15, 1e-15) };
    left == right || (left.is_nan() && right.is_nan()) || (left - right).abs() <= relative * right.abs() + absolute
}

#[track_caller]
fn check(function: InexactFunction, data_type: &DataType, pairs: &[(f64, f64)]) {
    let column = |values: Vec<f64>| {
        let values: Vec<LiteralValue> = values.into_iter().map(LiteralValue::Float).chain([LiteralValue::Null]).collect();
        array(data_type, &values)
    };
    let (left, right) = pairs.iter().copied().unzip();
    let rows = batch(vec![column(left), column(right)]);
    let arguments = (0..function.arity()).map(Expr::Column).collect();
    let exprs = [call(Function::Inexact(function), arguments, data_type)];
    let types = natural(&rows);
    let device = upload(&rows, &types);
    for profile in PROFILES {
        let computed = &evaluate(&device, &types, &exprs, 0, profile)[0];
        assert_eq!(computed.failed, None, "{} of {pairs:?}", function.name());
        for ((a, b), value) in pairs.iter().zip(&computed.values) {
            let LiteralValue::Float(value) = value else { panic!("{} of {a}, {b} is {value:?}", function.name()) };
            let expected = of(function, *a, *b);
            let expected = if *data_type == DataType::Float32 { f64::from(expected as f32) } else { expected };
            assert!(
                near(*value, expected, data_type),
                "{}({a:e}, {b:e}) of {data_type}: {value:e}, not {expected:e}",
                function.name()
            );
        }
        assert_eq!(computed.values.last(), Some(&LiteralValue::Null));
    }
}

/// The special values of a type, as `f64`.
fn special(data_type: &DataType) -> Vec<f64> {
    let value = |value| if let LiteralValue::Float(value) = value { value } else { panic!("{value:?} is no float") };
    data::special(data_type).into_iter().map(value).collect()
}

#[test]
fn results_are_close_to_the_hosts() {
    device::skip_unless_turn!(3);
    let seed = std::env::var("DEVICEFUSION_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or_else(rand::random);
    println!("DEVICEFUSION_SEED={seed}");
    let mut random = StdRng::seed_from_u64(seed);
    for data_type in data::floats() {
        for function in InexactFunction::ALL {
            let mut value = || {
                let value: f64 = match *function {
                    // Arguments for which Rust's formulas are precise.
                    InexactFunction::Acosh => random.random_range(1.5..1e3),
                    InexactFunction::Atanh => [-1.0, 1.0][random.random_range(0..2)] * random.random_range(0.1..0.9),
                    _ => random.random_range(-20.0..20.0),
                };
                if data_type == DataType::Float32 { f64::from(value as f32) } else { value }
            };
            let pairs: Vec<(f64, f64)> = (0..257).map(|_| (value(), value())).collect();
            check(*function, &data_type, &pairs);
        }
    }
}

#[test]
fn edge_cases_follow_ieee() {
    device::skip_unless_turn!(1);
    for data_type in data::floats() {
        let special = special(&data_type);
        for function in InexactFunction::ALL {
            // Results for angles beyond the precision of a float are unspecified.
            let periodic = matches!(function, InexactFunction::Cot);
            for a in special.iter().filter(|a| !periodic || a.abs() < 1e6 || !a.is_finite()) {
                for b in if function.arity() == 2 { &special[..] } else { &special[..1] } {
                    check(*function, &data_type, &[(*a, *b)]);
                }
            }
        }
    }
}
