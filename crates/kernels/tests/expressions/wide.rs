// SPDX-License-Identifier: Apache-2.0
//! 128-bit integers of the prelude against Rust's.

use arrow::datatypes::DataType;
use kernels::expr::{ArithmeticOp, Expr, LiteralValue};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use crate::data;
use crate::harness::{batch, check};
use crate::operators::{COMPARISONS, column};

/// An integer of 1 to 128 random bits, either sign.
pub fn any(random: &mut StdRng) -> i128 {
    let bits = random.random_range(1..=128);
    let value = (random.random::<u128>() >> (128 - bits)) as i128;
    match random.random_range(0..4) {
        0 => value.wrapping_neg(),
        1 => !value,
        // Long runs of ones and zeros are where carries and estimates go wrong.
        2 => (i128::MIN >> random.random_range(0..127)) ^ (1i128 << random.random_range(0..127)),
        _ => value,
    }
}

#[test]
fn random_words_calculate() {
    let seed = rand::random();
    println!("seed {seed}");
    let mut random = StdRng::seed_from_u64(seed);
    let integer = DataType::Decimal128(38, 0);
    let fit = |op: ArithmeticOp, l: i128, r: i128| match op {
        ArithmeticOp::Add => l.checked_add(r).is_some(),
        ArithmeticOp::Subtract => l.checked_sub(r).is_some(),
        ArithmeticOp::Multiply => l.checked_mul(r).is_some(),
        ArithmeticOp::Divide => l.checked_mul(10_000).is_some_and(|l| l.checked_div(r).is_some()),
        _ => l.checked_rem(r).is_some(),
    };
    for op in [ArithmeticOp::Add, ArithmeticOp::Subtract, ArithmeticOp::Multiply, ArithmeticOp::Divide, ArithmeticOp::Modulo] {
        let data_type = crate::host::arithmetic_type(op, &integer, &integer).unwrap();
        let mut rows = Vec::new();
        while rows.len() < 4000 {
            let (l, r) = (any(&mut random), any(&mut random));
            if fit(op, l, r) {
                rows.push((l, r));
            }
        }
        let (l, r): (Vec<_>, Vec<_>) = rows.into_iter().map(|(l, r)| (LiteralValue::Int(l), LiteralValue::Int(r))).unzip();
        let sound = batch(vec![data::array(&integer, &l), data::array(&integer, &r)]);
        check(&sound, &[Expr::Arithmetic { op, left: column(0), right: column(1), data_type: data_type.clone() }]);
    }
    // Each row of these fails or not on its own: one expression over slices.
    let (mut l, mut r) = (Vec::new(), Vec::new());
    for _ in 0..2000 {
        l.push(LiteralValue::Int(any(&mut random)));
        r.push(LiteralValue::Int(any(&mut random)));
    }
    let all = batch(vec![data::array(&integer, &l), data::array(&integer, &r)]);
    let compare: Vec<Expr> = COMPARISONS.into_iter().map(|op| Expr::Compare { op, left: column(0), right: column(1) }).collect();
    check(&all, &compare);
}

/// Overflow is detected exactly: as CASE WHEN … the error word of one row tells nothing of the others,
/// TRY_CAST to a shorter precision does.
#[test]
fn rescaling_stays_in_range() {
    let seed = rand::random();
    println!("seed {seed}");
    let mut random = StdRng::seed_from_u64(seed);
    for (from, to) in [
        (DataType::Decimal128(38, 0), DataType::Decimal128(38, 7)),
        (DataType::Decimal128(38, 20), DataType::Decimal128(38, 1)),
        (DataType::Decimal128(38, 38), DataType::Decimal128(38, 0)),
        (DataType::Decimal128(38, 19), DataType::Decimal128(30, 0)),
        (DataType::Decimal128(38, 25), DataType::Decimal64(18, 5)),
        (DataType::Decimal128(20, 3), DataType::Decimal32(9, 0)),
        (DataType::Decimal128(38, 5), DataType::Int64),
        (DataType::Decimal128(38, 24), DataType::UInt8),
        (DataType::Decimal128(38, 5), DataType::Float64),
        (DataType::Decimal128(38, 0), DataType::Float32),
        (DataType::Float64, DataType::Decimal128(38, 3)),
        (DataType::Float64, DataType::Decimal64(18, 3)),
        (DataType::Float64, DataType::Decimal32(9, 3)),
    ] {
        let values: Vec<LiteralValue> = (0..2000)
            .map(|_| match from {
                DataType::Float64 => LiteralValue::Float(match random.random_range(0..3) {
                    0 => f64::from_bits(random.random()),
                    1 => any(&mut random) as f64,
                    _ => any(&mut random) as f64 / 10f64.powi(random.random_range(0..40)),
                }),
                _ => LiteralValue::Int(any(&mut random)),
            })
            .collect();
        let column = data::array(&from, &values);
        check(&batch(vec![column]), &[Expr::Cast { expr: crate::operators::column(0), to, checked: false }]);
    }
}
