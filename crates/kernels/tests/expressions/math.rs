// SPDX-License-Identifier: Apache-2.0
//! Functions of numbers.

use arrow::datatypes::{DataType, i256};
use columnar::{Carrier, ColumnType, Layout};
use kernels::expr::{Expr, LiteralValue};
use kernels::function::Function;
use kernels::support::supports;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use crate::data::{self, array, pairs};
use crate::harness::{PROFILES, batch, check, check_in, lit, natural};
use crate::strings::call;

fn decimal_places(decimal_places: i64) -> Expr {
    lit(&DataType::Int64, LiteralValue::Int(decimal_places.into()))
}

fn unary(function: Function, data_type: &DataType) -> Expr {
    call(function, vec![Expr::Column(0)], data_type)
}

fn with(function: Function, to: i64, data_type: &DataType) -> Expr {
    call(function, vec![Expr::Column(0), decimal_places(to)], data_type)
}

/// Special values one by one, because a failing row hides those behind it; then others together.
#[track_caller]
fn check_values(data_type: &DataType, types: Option<ColumnType>, exprs: &[Expr], random: &mut StdRng) {
    let types = |rows: &arrow::array::RecordBatch| types.clone().map_or_else(|| natural(rows), |ty| vec![ty]);
    for value in data::special(data_type) {
        let rows = batch(vec![array(data_type, &[value, LiteralValue::Null])]);
        check_in(&rows, &natural(&rows), exprs, &[PROFILES[0]]);
    }
    let values: Vec<LiteralValue> = (0..257)
        .map(|_| match data_type {
            DataType::Float32 => LiteralValue::Float((random.random_range(-1e6..1e6) as f32 / 8.0).into()),
            DataType::Float64 => LiteralValue::Float(random.random_range(-1e6..1e6)),
            DataType::UInt8 | DataType::UInt16 | DataType::UInt32 | DataType::UInt64 => {
                LiteralValue::Int(random.random_range(0..240))
            }
            _ => LiteralValue::Int(random.random_range(-120..120)),
        })
        .collect();
    let rows = batch(vec![array(data_type, &values)]);
    check_in(&rows, &types(&rows), exprs, &PROFILES);
}

fn seeded() -> StdRng {
    let seed = std::env::var("DEVICEFUSION_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or_else(rand::random);
    println!("DEVICEFUSION_SEED={seed}");
    StdRng::seed_from_u64(seed)
}

#[test]
fn floats() {
    let mut random = seeded();
    for data_type in data::floats() {
        let mut exprs: Vec<Expr> = [
            Function::Abs,
            Function::Floor,
            Function::Ceil,
            Function::Trunc,
            Function::Round,
            Function::Sqrt,
            Function::Signum,
            Function::Degrees,
            Function::Radians,
        ]
        .map(|function| unary(function, &data_type))
        .to_vec();
        exprs.extend([unary(Function::IsNan, &DataType::Boolean), unary(Function::IsZero, &DataType::Boolean)]);
        for to in [-3, -1, 0, 1, 2, 5, 40, 400, -400] {
            exprs.extend([with(Function::Round, to, &data_type), with(Function::Trunc, to, &data_type)]);
        }
        let null = lit(&DataType::Int64, LiteralValue::Null);
        exprs.push(call(Function::Round, vec![Expr::Column(0), null], &data_type));
        check_values(&data_type, None, &exprs, &mut random);
    }
}

#[test]
fn integers() {
    let mut random = seeded();
    for data_type in data::integers() {
        let mut exprs = vec![
            unary(Function::Abs, &data_type),
            unary(Function::Round, &data_type),
            unary(Function::IsNan, &DataType::Boolean),
            unary(Function::IsZero, &DataType::Boolean),
        ];
        exprs.extend([2, 0, -1, -2, -3, -9, -18, -19, -20, -50].map(|to| with(Function::Round, to, &data_type)));
        if data_type == DataType::Int64 {
            exprs.push(unary(Function::Factorial, &data_type));
        }
        check_values(&data_type, None, &exprs, &mut random);
    }
}

/// DataFusion's type of a rounded decimal.
fn rounded_type(data_type: &DataType, to: i64) -> DataType {
    let (precision, scale) = data::precision_scale(data_type);
    let most = match data_type {
        DataType::Decimal32(..) => 9,
        DataType::Decimal64(..) => 18,
        DataType::Decimal128(..) => 38,
        _ => 76,
    };
    let scale_out = if scale < 0 { to.clamp(-i64::from(precision), scale.into()) as i8 } else { to.clamp(0, scale.into()) as i8 };
    let widens = scale == 0 && to < 0 && -to <= i64::from(precision);
    let precision = if widens { (precision + 1).min(most) } else { precision };
    match data_type {
        DataType::Decimal32(..) => DataType::Decimal32(precision, scale_out),
        DataType::Decimal64(..) => DataType::Decimal64(precision, scale_out),
        DataType::Decimal128(..) => DataType::Decimal128(precision, scale_out),
        _ => DataType::Decimal256(precision, scale_out),
    }
}

/// DataFusion's type of a decimal that is rounded to a number of digits by row.
fn widened(data_type: &DataType) -> DataType {
    match data_type {
        DataType::Decimal32(precision, scale) => DataType::Decimal32((precision + 1).min(9), *scale),
        DataType::Decimal64(precision, scale) => DataType::Decimal64((precision + 1).min(18), *scale),
        DataType::Decimal128(precision, scale) => DataType::Decimal128((precision + 1).min(38), *scale),
        DataType::Decimal256(precision, scale) => DataType::Decimal256((precision + 1).min(76), *scale),
        other => other.clone(),
    }
}

#[test]
fn digits_by_row() {
    device::skip_unless_turn!(6);
    let decimal_places = [-400, -40, -20, -19, -18, -10, -9, -3, -2, -1, 0, 1, 2, 5, 9, 20, 40, 400];
    let decimal_places: Vec<LiteralValue> =
        decimal_places.into_iter().map(LiteralValue::Int).chain([LiteralValue::Null]).collect();
    for data_type in [data::floats(), data::integers(), data::decimals()].concat() {
        let by_row = |function, data_type: &DataType| call(function, vec![Expr::Column(0), Expr::Column(1)], data_type);
        let mut exprs = vec![by_row(Function::Round, &widened(&data_type))];
        if !data_type.is_integer() {
            exprs.push(by_row(Function::Trunc, &data_type));
        }
        let mut values = data::special(&data_type);
        if !data_type.is_floating() {
            let least = if data_type.is_unsigned_integer() { 0 } else { -115 };
            let more = [-115, -5, 0, 5, 14, 15, 16, 95, 105].into_iter().filter(|value| *value >= least);
            values.extend(more.map(LiteralValue::Int));
        }
        if data_type.is_decimal() {
            // Values beyond their precision fail or not, depending on constant or variable digits.
            let most = i256::from_i128(10).wrapping_pow(data::precision_scale(&data_type).0.into());
            let fits = |value: i256| most.wrapping_neg() < value && value < most;
            values.retain(|value| match value {
                LiteralValue::Int(value) => fits(i256::from_i128(*value)),
                LiteralValue::Wide(value) => fits(**value),
                _ => false,
            });
        }
        let null = LiteralValue::Null;
        let (all, to): (Vec<_>, Vec<_>) =
            values.iter().chain([&null]).flat_map(|value| decimal_places.iter().map(|to| (value.clone(), to.clone()))).unzip();
        // A failing row hides those behind it.
        let (rows, profiles) = if data_type.is_floating() { (all.len(), &PROFILES[..]) } else { (1, &PROFILES[..1]) };
        for (all, to) in all.chunks(rows).zip(to.chunks(rows)) {
            let rows = batch(vec![array(&data_type, all), array(&DataType::Int64, to)]);
            check_in(&rows, &natural(&rows), &exprs, profiles);
        }
    }
}

#[test]
fn decimals() {
    let mut random = seeded();
    for data_type in data::decimals() {
        let mut exprs: Vec<Expr> = [Function::Abs, Function::Floor, Function::Ceil, Function::Trunc]
            .map(|function| unary(function, &data_type))
            .to_vec();
        exprs.extend([unary(Function::IsNan, &DataType::Boolean), unary(Function::IsZero, &DataType::Boolean)]);
        exprs.push(unary(Function::Round, &rounded_type(&data_type, 0)));
        for to in [-40, -20, -5, -2, -1, 0, 1, 2, 3, 9, 20] {
            exprs.extend([with(Function::Trunc, to, &data_type), with(Function::Round, to, &rounded_type(&data_type, to))]);
        }
        let schema = batch(vec![array(&data_type, &[])]).schema();
        let all = exprs.len();
        exprs.retain(|expr| supports(expr, &schema).is_ok());
        println!("{} of {all} for {data_type}", exprs.len());
        check_values(&data_type, None, &exprs, &mut random);
        // In a narrower carrier, as in resident tables.
        if let DataType::Decimal128(..) | DataType::Decimal256(..) = data_type {
            let ty = ColumnType {
                data_type: data_type.clone(),
                nullable: true,
                layout: Layout::Fixed(Carrier::I32),
                bounds: Some((-120, 119)),
            };
            check_values(&data_type, Some(ty), &exprs, &mut random);
        }
    }
}

#[test]
fn gcd_and_lcm() {
    let int = DataType::Int64;
    let (left, right) = pairs(&int, &int);
    let exprs = [Function::Gcd, Function::Lcm].map(|function| call(function, vec![Expr::Column(0), Expr::Column(1)], &int));
    for row in 0..left.len() {
        let rows = batch(vec![left.slice(row, 1), right.slice(row, 1)]);
        if row % 7 == 0 {
            check(&rows, &exprs);
        }
    }
    let mut random = seeded();
    let mut column = || array(&int, &(0..300).map(|_| LiteralValue::Int(random.random_range(-5000..5000))).collect::<Vec<_>>());
    check(&batch(vec![column(), column()]), &exprs);
}

#[test]
fn greatest_and_least_of_every_type() {
    device::skip_unless_turn!(0);
    for data_type in data::all() {
        let (left, right) = pairs(&data_type, &data_type);
        let columns = vec![Expr::Column(0), Expr::Column(1)];
        let some = lit(&data_type, data::special(&data_type)[0].clone());
        let exprs: Vec<Expr> = [Function::Greatest, Function::Least]
            .into_iter()
            .flat_map(|function| {
                [
                    call(function, columns.clone(), &data_type),
                    call(function, vec![Expr::Column(0)], &data_type),
                    call(
                        function,
                        vec![some.clone(), Expr::Column(1), lit(&data_type, LiteralValue::Null), Expr::Column(0)],
                        &data_type,
                    ),
                ]
            })
            .collect();
        check(&batch(vec![left, right]), &exprs);
    }
}

#[test]
fn nanvl_replaces_nans() {
    for data_type in data::floats() {
        let (left, right) = pairs(&data_type, &data_type);
        let null = lit(&data_type, LiteralValue::Null);
        check(
            &batch(vec![left, right]),
            &[
                call(Function::Nanvl, vec![Expr::Column(0), Expr::Column(1)], &data_type),
                call(Function::Nanvl, vec![Expr::Column(0), null.clone()], &data_type),
                call(Function::Nanvl, vec![null, Expr::Column(0)], &data_type),
            ],
        );
    }
}
