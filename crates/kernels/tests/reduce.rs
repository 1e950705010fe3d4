// SPDX-License-Identifier: Apache-2.0
//! Aggregation without keys compared with plain Rust, in both profiles.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod support;

use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, AsArray, BooleanArray, Decimal128Array, Float64Array, Int32Array, Int64Array, RecordBatch, UInt64Array,
};
use arrow::datatypes::{DataType, Decimal128Type, Float64Type, Int32Type, Int64Type, UInt64Type};
use columnar::{Carrier, ColumnType, Layout};
use kernels::expr::AggregateFunction::*;
use kernels::expr::{ArithmeticOp, CompareOp};
use kernels::ops::{Input, Reduce};
use kernels::{Error, expr::Expr};
use support::*;

fn data(n: usize) -> RecordBatch {
    let null = |i: usize, salt: u64| random(i, salt).is_multiple_of(4);
    batch(vec![
        ("key", Arc::new(Int32Array::from_iter_values((0..n).map(|i| (random(i, 4) % 100) as i32 - 50))) as ArrayRef, false),
        ("big", Arc::new((0..n).map(|i| (!null(i, 5)).then(|| random(i, 15) as i64)).collect::<Int64Array>()), true),
        (
            "float",
            Arc::new(
                (0..n).map(|i| (!null(i, 6)).then(|| (random(i, 16) as i64 >> 12) as f64 / 1024.0)).collect::<Float64Array>(),
            ),
            true,
        ),
        (
            "flag",
            Arc::new((0..n).map(|i| (!null(i, 8)).then(|| random(i, 18).is_multiple_of(3))).collect::<BooleanArray>()),
            true,
        ),
        (
            "price",
            Arc::new(
                (0..n)
                    .map(|i| (!null(i, 9)).then(|| i128::from(random(i, 11) as i64) * i128::from(random(i, 12) as i64 >> 4)))
                    .collect::<Decimal128Array>()
                    .with_precision_and_scale(20, 2)
                    .unwrap(),
            ),
            true,
        ),
        ("unsigned", Arc::new(UInt64Array::from_iter_values((0..n).map(|i| random(i, 13)))), false),
    ])
}

fn check(sizes: &[usize], filter: Option<i32>) {
    let batches: Vec<RecordBatch> = sizes.iter().map(|n| data(*n)).collect();
    let schema = data(0).schema();
    let filtered = filter.map(|bound| compare(CompareOp::Lt, col(0), int(bound.into(), DataType::Int32)));
    let decimal = |precision, scale| DataType::Decimal128(precision, scale);
    let mut aggregates = vec![
        aggregate(Count, None, DataType::Int64),
        aggregate(Count, Some(col(1)), DataType::Int64),
        aggregate(Sum, Some(col(1)), DataType::Int64),
        aggregate(Min, Some(col(1)), DataType::Int64),
        aggregate(Max, Some(col(1)), DataType::Int64),
        aggregate(Sum, Some(col(2)), DataType::Float64),
        aggregate(Min, Some(col(2)), DataType::Float64),
        aggregate(Max, Some(col(2)), DataType::Float64),
        aggregate(Avg, Some(col(2)), DataType::Float64),
        aggregate(VarSamp, Some(col(2)), DataType::Float64),
        aggregate(StddevPop, Some(col(2)), DataType::Float64),
        aggregate(BoolAnd, Some(col(3)), DataType::Boolean),
        aggregate(BoolOr, Some(col(3)), DataType::Boolean),
        aggregate(Sum, Some(col(4)), decimal(30, 2)),
        aggregate(Min, Some(col(4)), decimal(20, 2)),
        aggregate(Max, Some(col(4)), decimal(20, 2)),
        aggregate(BitAnd, Some(col(5)), DataType::UInt64),
        aggregate(BitOr, Some(col(5)), DataType::UInt64),
        aggregate(BitXor, Some(col(5)), DataType::UInt64),
        aggregate(Sum, Some(col(5)), DataType::UInt64),
        aggregate(Min, Some(col(0)), DataType::Int32),
        aggregate(Max, Some(col(0)), DataType::Int32),
        aggregate(Count, Some(col(1)), DataType::Int64),
    ];
    // The last one has a filter.
    if let Some((last, _)) = aggregates.last_mut() {
        last.filter = Some(col(3));
    }

    let (mut keys, mut big, mut float, mut flag, mut price, mut unsigned, mut count, mut own) =
        (vec![], vec![], vec![], vec![], vec![], vec![], 0, 0);
    for batch in &batches {
        for row in 0..batch.num_rows() {
            let key = batch.column(0).as_primitive::<Int32Type>().value(row);
            if filter.is_some_and(|bound| key >= bound) {
                continue;
            }
            count += 1;
            keys.push(key);
            unsigned.push(batch.column(5).as_primitive::<UInt64Type>().value(row));
            let valid = |column: usize| batch.column(column).is_valid(row);
            big.extend(valid(1).then(|| batch.column(1).as_primitive::<Int64Type>().value(row)));
            float.extend(valid(2).then(|| batch.column(2).as_primitive::<Float64Type>().value(row)));
            flag.extend(valid(3).then(|| batch.column(3).as_boolean().value(row)));
            price.extend(valid(4).then(|| batch.column(4).as_primitive::<Decimal128Type>().value(row)));
            own += i64::from(valid(1) && valid(3) && batch.column(3).as_boolean().value(row));
        }
    }
    let sum_float: f64 = float.iter().sum();
    let mean = sum_float / float.len() as f64;
    let distances: f64 = float.iter().map(|x| (x - mean) * (x - mean)).sum();
    let text = |value: Option<String>| value.unwrap_or("NULL".into());
    for options in profiles() {
        let result = try_reduce(&schema, &batches, filtered.clone(), &aggregates, &options).unwrap();
        assert_eq!(result.num_rows(), 1);
        let row = rows(&result).remove(0);
        let actual: Vec<&str> = row.split('|').collect();
        let what = format!("{:?} {sizes:?} {filter:?}", options.profile);
        assert_eq!(actual[0], count.to_string(), "{what}");
        assert_eq!(actual[1], big.len().to_string(), "{what}");
        assert_eq!(actual[2], text(big.iter().copied().reduce(i64::wrapping_add).map(|v| v.to_string())), "{what}");
        assert_eq!(actual[3], text(big.iter().min().map(|v| v.to_string())), "{what}");
        assert_eq!(actual[4], text(big.iter().max().map(|v| v.to_string())), "{what}");
        let close = |at: usize, expected: Option<f64>| match expected {
            None => assert_eq!(actual[at], "NULL", "{what} {at}"),
            Some(expected) => {
                let value: f64 = actual[at].parse().unwrap();
                assert!((value - expected).abs() <= expected.abs().max(1.0) * 1e-9, "{what} {at}: {value} for {expected}");
            }
        };
        let some = !float.is_empty();
        close(5, some.then_some(sum_float));
        close(6, float.iter().copied().reduce(f64::min));
        close(7, float.iter().copied().reduce(f64::max));
        close(8, some.then_some(mean));
        close(9, (float.len() > 1).then(|| distances / (float.len() - 1) as f64));
        close(10, some.then(|| (distances / float.len() as f64).sqrt()));
        assert_eq!(actual[11], text((!flag.is_empty()).then(|| flag.iter().all(|v| *v).to_string())), "{what}");
        assert_eq!(actual[12], text((!flag.is_empty()).then(|| flag.iter().any(|v| *v).to_string())), "{what}");
        let prices = |column: usize| {
            result.column(column).as_primitive_opt::<Decimal128Type>().and_then(|array| array.is_valid(0).then(|| array.value(0)))
        };
        assert_eq!(prices(13), price.iter().copied().reduce(i128::wrapping_add), "{what}");
        assert_eq!(prices(14), price.iter().copied().min(), "{what}");
        assert_eq!(prices(15), price.iter().copied().max(), "{what}");
        assert_eq!(actual[16], text(unsigned.iter().copied().reduce(|a, b| a & b).map(|v| v.to_string())), "{what}");
        assert_eq!(actual[17], text(unsigned.iter().copied().reduce(|a, b| a | b).map(|v| v.to_string())), "{what}");
        assert_eq!(actual[18], text(unsigned.iter().copied().reduce(|a, b| a ^ b).map(|v| v.to_string())), "{what}");
        assert_eq!(actual[19], text(unsigned.iter().copied().reduce(u64::wrapping_add).map(|v| v.to_string())), "{what}");
        assert_eq!(actual[20], text(keys.iter().min().map(|v| v.to_string())), "{what}");
        assert_eq!(actual[21], text(keys.iter().max().map(|v| v.to_string())), "{what}");
        assert_eq!(actual[22], own.to_string(), "{what}");
    }
}

#[test]
fn every_size() {
    for n in SIZES {
        check(&[n], None);
    }
}

#[test]
fn several_batches_with_a_filter() {
    check(&[1000, 0, 1, 5000, 33], Some(-20));
}

/// Sizes around the 32 rows of a filter mask, the 64 rows of a work-group's share and the 4096 of a
/// block.
#[test]
fn every_size_with_a_filter() {
    for n in [31, 32, 33, 64, 65, 129, 4095, 4096, 4097, 8193, (1 << 17) + 1] {
        check(&[n], Some(13));
    }
}

#[test]
fn the_lowest_failing_row_is_reported() {
    let batch = batch(vec![
        ("a", Arc::new(Int64Array::from_iter_values(0..100_000)) as ArrayRef, false),
        ("b", Arc::new(Int64Array::from_iter_values((0..100_000).map(|i| i64::from(i < 50_000 || i % 1000 != 7)))), false),
        ("x", Arc::new(Float64Array::from_iter_values((0..100_000).map(|i| f64::from(i) / 8.0))), false),
    ]);
    let quotient = arithmetic(ArithmeticOp::Divide, col(0), col(1), DataType::Int64);
    let below = |bound| Some(compare(CompareOp::Lt, col(0), int(bound, DataType::Int64)));
    // The float forces row-by-row code; without it the code vectorizes.
    let float = aggregate(Sum, Some(col(2)), DataType::Float64);
    for more in [vec![], vec![float]] {
        let aggregates: Vec<_> =
            [aggregate(Sum, Some(quotient.clone()), DataType::Int64)].into_iter().chain(more.iter().cloned()).collect();
        for options in profiles() {
            let reduce = |filter| try_reduce(&batch.schema(), std::slice::from_ref(&batch), filter, &aggregates, &options);
            assert!(matches!(reduce(None), Err(Error::Row { row: 50_007 })));
            assert!(matches!(reduce(below(60_000)), Err(Error::Row { row: 50_007 })));
            let sum = reduce(below(50_007)).unwrap();
            assert_eq!(sum.column(0).as_primitive::<Int64Type>().value(0), (0..50_007).sum::<i64>());
            let failing = compare(CompareOp::Gt, quotient.clone(), int(1, DataType::Int64));
            assert!(matches!(reduce(Some(failing)), Err(Error::Row { row: 50_007 })));
        }
    }
}

#[test]
fn a_filter_that_keeps_nothing_gives_nulls() {
    check(&[1000], Some(-100));
}

#[test]
fn no_batch_gives_one_row() {
    check(&[], None);
}

/// Decimals in carriers of 64 bits, with and without bounds, sum to 128 bits.
#[test]
fn narrow_decimals_sum_exactly() {
    let n = 50_000;
    let value = |i: usize| if i.is_multiple_of(2) { i64::MAX - i as i64 } else { random(i, 3) as i64 };
    let small = |i: usize| (random(i, 5) % (1 << 20)) as i64 - (1 << 19);
    for (bounds, value) in [(None, &value as &dyn Fn(usize) -> i64), (Some((-(1i128 << 19), 1i128 << 19)), &small)] {
        let array = Decimal128Array::from_iter_values((0..n).map(|i| value(i).into())).with_precision_and_scale(25, 2).unwrap();
        let batch = batch(vec![("price", Arc::new(array) as ArrayRef, false)]);
        let types = vec![ColumnType {
            data_type: DataType::Decimal128(25, 2),
            nullable: false,
            layout: Layout::Fixed(Carrier::I64),
            bounds,
        }];
        let most = 1 << 18;
        for (options, filtered) in profiles().flat_map(|options| [(options.clone(), false), (options, true)]) {
            let kept = || (0..n).map(value).filter(|value| !filtered || *value < most).map(i128::from);
            let (sum, count) = (kept().sum::<i128>(), kept().count() as i128);
            let queue = queue();
            let filter = compare(CompareOp::Lt, col(0), int(most.into(), DataType::Decimal128(25, 2)));
            let input = Input { schema: batch.schema(), types: types.clone(), filter: filtered.then_some(filter) };
            let aggregates = vec![
                aggregate(Sum, Some(col(0)), DataType::Decimal128(35, 2)),
                aggregate(Avg, Some(col(0)), DataType::Decimal128(29, 6)),
                aggregate(Min, Some(col(0)), DataType::Decimal128(25, 2)),
            ];
            let reduce = Reduce::try_new(input, aggregates, options).unwrap();
            let result = futures::executor::block_on(async {
                let mut state = reduce.start();
                reduce.push(&queue, &mut state, &up(&queue, &batch, &types)).await?;
                reduce.push(&queue, &mut state, &up(&queue, &batch, &types)).await?;
                reduce.finish(&queue, state).await
            });
            let result = down(&queue, &result.unwrap());
            let number = |column: usize| result.column(column).as_primitive::<Decimal128Type>().value(0);
            assert_eq!(number(0), sum * 2, "{bounds:?} {:?}", reduce.kernel_source());
            assert_eq!(number(1), sum * 2 * 10_000 / (2 * count));
            assert_eq!(number(2), kept().min().unwrap());
        }
    }
}

/// AVG of wide decimals sums in more than 128 bits, and fails if the result exceeds its type.
#[test]
fn averages_of_wide_decimals() {
    let big = 10i128.pow(33) * 3 + 7;
    for (values, expected) in [
        (vec![big; 400_000], Some(big * 10_000)),
        (vec![-big, -big - 1, -big], Some((-big * 3 - 1) * 10_000 / 3)),
        (vec![10i128.pow(37); 3], None),
    ] {
        let array = Decimal128Array::from_iter_values(values).with_precision_and_scale(38, 0).unwrap();
        let batch = batch(vec![("v", Arc::new(array) as ArrayRef, false)]);
        for options in profiles() {
            let aggregates = [aggregate(Avg, Some(col(0)), DataType::Decimal128(38, 4))];
            let result = try_reduce(&batch.schema(), std::slice::from_ref(&batch), None, &aggregates, &options);
            match expected {
                Some(expected) => assert_eq!(result.unwrap().column(0).as_primitive::<Decimal128Type>().value(0), expected),
                None => assert!(matches!(result, Err(Error::AverageOverflow))),
            }
        }
    }
}

#[test]
fn extremes_of_floats_follow_total_order() {
    let values = [0.0, -0.0, f64::INFINITY, f64::NEG_INFINITY, 1.5];
    let check = |values: &[f64], expected: [f64; 2]| {
        let batch = batch(vec![("v", Arc::new(Float64Array::from(values.to_vec())) as ArrayRef, false)]);
        for options in profiles() {
            let aggregates = [aggregate(Min, Some(col(0)), DataType::Float64), aggregate(Max, Some(col(0)), DataType::Float64)];
            let result = try_reduce(&batch.schema(), std::slice::from_ref(&batch), None, &aggregates, &options).unwrap();
            let bits = [0, 1].map(|column| result.column(column).as_primitive::<Float64Type>().value(0).to_bits());
            assert_eq!(bits, expected.map(f64::to_bits), "{:?} {values:?}", options.profile);
        }
    };
    check(&values, [f64::NEG_INFINITY, f64::INFINITY]);
    check(&values[..2], [-0.0, 0.0]);
    check(&[1.0, f64::NAN], [1.0, f64::NAN]);
}

#[test]
fn aggregates_over_many_columns_are_split_over_kernels() {
    let n = 2000;
    let columns: Vec<(String, ArrayRef)> = (0..60)
        .map(|c| {
            (
                format!("c{c}"),
                Arc::new((0..n).map(|i| (!random(i, c).is_multiple_of(4)).then(|| random(i, c) as i64)).collect::<Int64Array>())
                    as ArrayRef,
            )
        })
        .collect();
    let batch = batch(columns.iter().map(|(name, array)| (name.as_str(), array.clone(), true)).collect());
    let aggregates: Vec<_> = (0..60).map(|c| aggregate(Sum, Some(col(c)), DataType::Int64)).collect();
    for options in profiles() {
        let filter: Option<Expr> = Some(compare(CompareOp::Lt, col(0), int(0, DataType::Int64)));
        let result = try_reduce(&batch.schema(), std::slice::from_ref(&batch), filter, &aggregates, &options).unwrap();
        let first = batch.column(0).as_primitive::<Int64Type>();
        for c in 0..60 {
            let column = batch.column(c).as_primitive::<Int64Type>();
            let sum = (0..n)
                .filter(|i| first.is_valid(*i) && first.value(*i) < 0 && column.is_valid(*i))
                .map(|i| column.value(i))
                .fold(0, i64::wrapping_add);
            assert_eq!(result.column(c).as_primitive::<Int64Type>().value(0), sum);
        }
    }
}
