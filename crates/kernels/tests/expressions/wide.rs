// SPDX-License-Identifier: Apache-2.0
//! Integers of 128 and 256 bits in the prelude, compared with Rust's and arrow-rs'.

use arrow::datatypes::{DataType, i256};
use kernels::expr::{ArithmeticOp, Expr, LiteralValue};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use crate::data;
use crate::harness::{batch, check};
use crate::operators::{COMPARISONS, column};

/// A random number generator with a new seed, which is printed.
fn seeded() -> StdRng {
    let seed = rand::random();
    println!("seed {seed}");
    StdRng::seed_from_u64(seed)
}

const OPERATIONS: [ArithmeticOp; 5] =
    [ArithmeticOp::Add, ArithmeticOp::Subtract, ArithmeticOp::Multiply, ArithmeticOp::Divide, ArithmeticOp::Modulo];

/// An operation on two columns of a type.
fn calculated(op: ArithmeticOp, of: &DataType) -> Expr {
    let data_type = crate::host::arithmetic_type(op, of, of).unwrap();
    Expr::Arithmetic { op, left: column(0), right: column(1), data_type }
}

/// All comparisons of two columns.
fn compared() -> impl Iterator<Item = Expr> {
    COMPARISONS.into_iter().map(|op| Expr::Compare { op, left: column(0), right: column(1) })
}

/// Checks casts of values that may exceed the type. `TRY_CAST` reports each row.
fn check_rescaled(from: &DataType, to: DataType, values: &[LiteralValue]) {
    check(&batch(vec![data::array(from, values)]), &[Expr::Cast { expr: column(0), to, checked: false }]);
}

/// An integer of 1 to 128 random bits, either sign.
pub fn any(random: &mut StdRng) -> i128 {
    let bits = random.random_range(1..=128);
    let value = (random.random::<u128>() >> (128 - bits)) as i128;
    match random.random_range(0..4) {
        0 => value.wrapping_neg(),
        1 => !value,
        // Long runs of ones and zeros exercise carries and estimates.
        2 => (i128::MIN >> random.random_range(0..127)) ^ (1i128 << random.random_range(0..127)),
        _ => value,
    }
}

#[test]
fn random_128_bit_integers_compute() {
    let mut random = seeded();
    let integer = DataType::Decimal128(38, 0);
    let fit = |op: ArithmeticOp, l: i128, r: i128| match op {
        ArithmeticOp::Add => l.checked_add(r).is_some(),
        ArithmeticOp::Subtract => l.checked_sub(r).is_some(),
        ArithmeticOp::Multiply => l.checked_mul(r).is_some(),
        ArithmeticOp::Divide => l.checked_mul(10_000).is_some_and(|l| l.checked_div(r).is_some()),
        _ => l.checked_rem(r).is_some(),
    };
    for op in OPERATIONS {
        let mut rows = Vec::new();
        while rows.len() < 4000 {
            let (l, r) = (any(&mut random), any(&mut random));
            if fit(op, l, r) {
                rows.push((l, r));
            }
        }
        let (l, r): (Vec<_>, Vec<_>) = rows.into_iter().map(|(l, r)| (LiteralValue::Int(l), LiteralValue::Int(r))).unzip();
        let sound = batch(vec![data::array(&integer, &l), data::array(&integer, &r)]);
        check(&sound, &[calculated(op, &integer)]);
    }
    // Each row may fail, hence one expression over slices.
    let (mut l, mut r) = (Vec::new(), Vec::new());
    for _ in 0..2000 {
        l.push(LiteralValue::Int(any(&mut random)));
        r.push(LiteralValue::Int(any(&mut random)));
    }
    let all = batch(vec![data::array(&integer, &l), data::array(&integer, &r)]);
    check(&all, &compared().collect::<Vec<_>>());
}

/// Overflow is detected exactly. `TRY_CAST` to a lower precision reports each row; an error reports
/// only the first.
#[test]
fn rescaling_stays_in_range() {
    let mut random = seeded();
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
        check_rescaled(&from, to, &values);
    }
}

/// An integer of 1 to 256 random bits, either sign.
fn any_256(random: &mut StdRng) -> i256 {
    let words = i256::from_parts(random.random(), random.random());
    let value = words >> random.random_range(0..=255u8);
    match random.random_range(0..4) {
        0 => value.wrapping_neg(),
        1 => !value,
        2 => (i256::MIN >> random.random_range(0..=254u8)) ^ (i256::ONE << random.random_range(0..=254u8)),
        _ => value,
    }
}

/// The exact result, if 256 bits hold it and all intermediate results.
fn exact(op: ArithmeticOp, l: i256, r: i256) -> Option<i256> {
    match op {
        ArithmeticOp::Add => l.checked_add(r),
        ArithmeticOp::Subtract => l.checked_sub(r),
        ArithmeticOp::Multiply => l.checked_mul(r),
        ArithmeticOp::Divide => l.checked_mul(i256::from_i128(10_000))?.checked_div(r),
        _ => l.checked_rem(r),
    }
}

/// A right operand that gives a result near the limit.
fn near_limit(op: ArithmeticOp, l: i256, random: &mut StdRng) -> i256 {
    let limit = if random.random() { i256::MAX } else { i256::MIN };
    let r = match op {
        ArithmeticOp::Add => limit.wrapping_sub(l),
        ArithmeticOp::Subtract => l.wrapping_sub(limit),
        ArithmeticOp::Multiply => limit.checked_div(l).unwrap_or(limit),
        _ => i256::from_i128(random.random_range(-2..2)),
    };
    r.wrapping_add(i256::from_i128(random.random_range(-1..=1)))
}

#[test]
fn random_256_bit_integers_compute() {
    let mut random = seeded();
    let integer = DataType::Decimal256(76, 0);
    for op in OPERATIONS {
        let expr = calculated(op, &integer);
        let pair = |(l, r): (i256, i256)| {
            batch(vec![data::array(&integer, &[data::number(l)]), data::array(&integer, &[data::number(r)])])
        };
        let mut sound = Vec::new();
        let mut unsound = Vec::new();
        while sound.len() < 4000 || unsound.len() < 100 {
            let l = any_256(&mut random);
            let r = if random.random() { any_256(&mut random) } else { near_limit(op, l, &mut random) };
            if exact(op, l, r).is_some() { sound.push((l, r)) } else { unsound.push((l, r)) }
        }
        let (l, r): (Vec<_>, Vec<_>) = sound.into_iter().map(|(l, r)| (data::number(l), data::number(r))).unzip();
        check(&batch(vec![data::array(&integer, &l), data::array(&integer, &r)]), std::slice::from_ref(&expr));
        // A failing row hides those behind it.
        for rows in unsound.into_iter().take(100) {
            check(&pair(rows), std::slice::from_ref(&expr));
        }
    }
    let mut random_column = || data::array(&integer, &(0..2000).map(|_| data::number(any_256(&mut random))).collect::<Vec<_>>());
    let all = batch(vec![random_column(), random_column()]);
    check(&all, &compared().collect::<Vec<_>>());
}

/// Decimals of 256 bits in narrower carriers, as in resident tables, give the same results.
#[test]
fn narrow_decimals_of_256_bits_compute() {
    use columnar::{Carrier, ColumnType, Layout};
    let mut random = StdRng::seed_from_u64(7);
    for (carrier, bits) in [(Carrier::I32, 31), (Carrier::I64, 40), (Carrier::I64, 63), (Carrier::I128, 127)] {
        let decimal = DataType::Decimal256(60, 3);
        let (least, most) = (i128::MIN >> (127 - bits), i128::MAX >> (127 - bits));
        let mut integers = || -> Vec<LiteralValue> {
            let own = [least, most, 0, 1, -1, least + 1].map(LiteralValue::Int);
            own.into_iter().chain((0..300).map(|_| LiteralValue::Int(any(&mut random) >> (127 - bits)))).collect()
        };
        let (l, mut r) = (integers(), integers());
        r.iter_mut().filter(|value| **value == LiteralValue::Int(0)).for_each(|value| *value = LiteralValue::Int(3));
        let rows = batch(vec![data::array(&decimal, &l), data::array(&decimal, &r)]);
        let bounds = Some((least, most));
        let ty = ColumnType { data_type: decimal.clone(), nullable: true, layout: Layout::Fixed(carrier), bounds };
        let mut exprs: Vec<Expr> = OPERATIONS.into_iter().map(|op| calculated(op, &decimal)).collect();
        exprs.push(Expr::Negate(column(0)));
        exprs.extend(compared());
        for to in [DataType::Decimal256(70, 12), DataType::Decimal128(38, 1), DataType::Int64, DataType::Float64] {
            exprs.push(Expr::Cast { expr: column(0), to, checked: false });
        }
        crate::harness::check_in(&rows, &[ty.clone(), ty], &exprs, &crate::harness::PROFILES);
    }
}

/// [`rescaling_stays_in_range`] for 256 bits.
#[test]
fn rescaling_256_bits_stays_in_range() {
    let mut random = seeded();
    for (from, to) in [
        (DataType::Decimal256(76, 0), DataType::Decimal256(76, 7)),
        (DataType::Decimal256(76, 0), DataType::Decimal256(76, 70)),
        (DataType::Decimal256(76, 40), DataType::Decimal256(76, 1)),
        (DataType::Decimal256(76, 76), DataType::Decimal256(76, 0)),
        (DataType::Decimal256(76, 38), DataType::Decimal128(30, 0)),
        (DataType::Decimal256(76, 50), DataType::Decimal64(18, 5)),
        (DataType::Decimal256(50, 3), DataType::Decimal32(9, 0)),
        (DataType::Decimal128(38, 0), DataType::Decimal256(76, 30)),
        (DataType::Decimal128(38, 0), DataType::Decimal256(50, 30)),
        (DataType::Decimal256(76, 5), DataType::Int64),
        (DataType::Decimal256(76, -3), DataType::UInt64),
        (DataType::Decimal256(76, 60), DataType::UInt8),
        (DataType::Decimal256(76, 5), DataType::Float64),
        (DataType::Decimal256(76, 0), DataType::Float32),
        (DataType::Float64, DataType::Decimal256(76, 3)),
        (DataType::Float64, DataType::Decimal256(76, 40)),
        (DataType::UInt64, DataType::Decimal256(20, 4)),
        (DataType::Int64, DataType::Decimal256(76, -2)),
    ] {
        let values: Vec<LiteralValue> = (0..2000)
            .map(|_| match from {
                DataType::Float64 => LiteralValue::Float(match random.random_range(0..3) {
                    0 => f64::from_bits(random.random()),
                    1 => any(&mut random) as f64 * 2f64.powi(random.random_range(0..130)),
                    _ => any(&mut random) as f64 / 10f64.powi(random.random_range(0..40)),
                }),
                DataType::Decimal256(..) => data::number(any_256(&mut random)),
                DataType::Decimal128(..) => LiteralValue::Int(any(&mut random)),
                DataType::UInt64 => LiteralValue::Int(random.random::<u64>().into()),
                _ => LiteralValue::Int(random.random::<i64>().into()),
            })
            .collect();
        check_rescaled(&from, to, &values);
    }
}
