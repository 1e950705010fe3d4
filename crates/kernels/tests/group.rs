// SPDX-License-Identifier: Apache-2.0
//! Aggregation by keys compared with plain Rust, in both profiles and all three modes of finding a
//! group.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod support;

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, AsArray, BooleanArray, Decimal128Array, DictionaryArray, Float64Array, Int16Array, Int32Array, Int64Array,
    RecordBatch, StringArray, StringViewArray,
};
use arrow::datatypes::{DataType, Field, Float64Type, Int32Type, Int64Type};
use arrow::util::display::{ArrayFormatter, FormatOptions};
use columnar::{Carrier, Layout, natural_types};
use futures::executor::block_on;
use kernels::Error;
use kernels::expr::AggregateFunction::*;
use kernels::expr::{ArithmeticOp, CompareOp, Expr};
use kernels::ops::{GroupBy, Input, Options};
use support::*;

fn null(i: usize, salt: u64) -> bool {
    random(i, salt).is_multiple_of(6)
}

/// Rows with `groups` distinct keys of every kind, and arguments.
fn data(n: usize, groups: u64, salt: u64) -> RecordBatch {
    let number = |i: usize| random(i, salt) % groups;
    let special = [i64::MIN, -1, 0, i64::MAX, 1];
    let key = |i: usize| match number(i) {
        g if g < 5 => special[g as usize],
        g => (g as i64).wrapping_mul(0x09e3_779b_97f4_a7c1) ^ 0x55,
    };
    let long = "ü".repeat(2500);
    let text = |i: usize| match number(i) {
        0 => String::new(),
        1 => long.clone(),
        2 => format!("{long}x"),
        g if g.is_multiple_of(3) => format!("k{g}"),
        g => format!("a longer key than a view holds {g}"),
    };
    let float = |i: usize| match number(i) {
        0 => 0.0,
        1 => -0.0,
        2 => f64::NAN,
        3 => f64::NEG_INFINITY,
        g => g as f64 / 8.0,
    };
    let terms: Vec<String> = (0..groups.min(30)).map(|g| format!("term {g}")).collect();
    let codes: DictionaryArray<Int32Type> =
        (0..n).map(|i| (!null(i, salt + 1)).then(|| terms[number(i) as usize % terms.len()].as_str())).collect();
    batch(vec![
        ("big", Arc::new((0..n).map(|i| (!null(i, salt + 2)).then(|| key(i))).collect::<Int64Array>()) as ArrayRef, true),
        ("sure", Arc::new(Int64Array::from_iter_values((0..n).map(key))), false),
        ("small", Arc::new((0..n).map(|i| (!null(i, salt + 3)).then(|| number(i) as i16)).collect::<Int16Array>()), true),
        ("text", Arc::new((0..n).map(|i| (!null(i, salt + 4)).then(|| text(i))).collect::<StringArray>()), true),
        ("view", Arc::new(StringViewArray::from_iter_values((0..n).map(text))), false),
        ("float", Arc::new((0..n).map(|i| (!null(i, salt + 5)).then(|| float(i))).collect::<Float64Array>()), true),
        ("term", Arc::new(codes), true),
        (
            "flag",
            Arc::new((0..n).map(|i| (!null(i, salt + 6)).then(|| number(i).is_multiple_of(2))).collect::<BooleanArray>()),
            true,
        ),
        (
            "wide",
            Arc::new(
                (0..n)
                    .map(|i| (!null(i, salt + 7)).then(|| i128::from(key(i)) << 30))
                    .collect::<Decimal128Array>()
                    .with_precision_and_scale(38, 3)
                    .unwrap(),
            ),
            true,
        ),
        (
            "x",
            Arc::new((0..n).map(|i| (!null(i, salt + 8)).then(|| random(i, salt + 9) as i64 >> 20)).collect::<Int64Array>()),
            true,
        ),
        (
            "y",
            Arc::new(
                (0..n)
                    .map(|i| (!null(i, salt + 10)).then(|| (random(i, salt + 11) % 1000) as f64 / 4.0))
                    .collect::<Float64Array>(),
            ),
            true,
        ),
        ("k", Arc::new(Int32Array::from_iter_values((0..n).map(|i| (random(i, salt + 12) % 100) as i32))), false),
    ])
}

/// Key columns as strings that distinguish groups.
fn key_text(batch: &RecordBatch, keys: &[usize]) -> Vec<String> {
    let options = FormatOptions::default().with_null("NULL");
    let formatters: Vec<_> = keys.iter().map(|key| ArrayFormatter::try_new(batch.column(*key), &options).unwrap()).collect();
    (0..batch.num_rows())
        .map(|row| {
            let text = |(key, formatter): (&usize, &ArrayFormatter<'_>)| match formatter.value(row).to_string() {
                zero if zero == "-0.0" => "0.0'".to_string(),
                null if batch.column(*key).is_null(row) => null,
                text => format!("{text}'"),
            };
            keys.iter().zip(&formatters).map(text).collect::<Vec<_>>().join("|")
        })
        .collect()
}

#[derive(Default, Debug, PartialEq)]
struct Expected {
    rows: i64,
    count_x: i64,
    sum_x: Option<i64>,
    min_x: Option<i64>,
    max_x: Option<i64>,
    ys: Vec<f64>,
    min_text: Option<String>,
    max_wide: Option<i128>,
    sum_wide: Option<i128>,
    flagged: i64,
    distinct: std::collections::BTreeSet<i32>,
}

fn check(batches: &[RecordBatch], keys: &[usize], filter: Option<i128>, mode: &str, options: &Options) {
    let schema = batches[0].schema();
    let mut expected: BTreeMap<String, Expected> = BTreeMap::new();
    for batch in batches {
        let texts = key_text(batch, keys);
        for (row, text) in texts.into_iter().enumerate() {
            let k = batch.column(11).as_primitive::<Int32Type>().value(row);
            if filter.is_some_and(|bound| i128::from(k) >= bound) {
                continue;
            }
            let group = expected.entry(text).or_default();
            group.rows += 1;
            group.distinct.insert(k);
            if batch.column(9).is_valid(row) {
                let x = batch.column(9).as_primitive::<Int64Type>().value(row);
                group.count_x += 1;
                group.sum_x = Some(group.sum_x.unwrap_or(0).wrapping_add(x));
                group.min_x = Some(group.min_x.map_or(x, |min| min.min(x)));
                group.max_x = Some(group.max_x.map_or(x, |max| max.max(x)));
                group.flagged += i64::from(batch.column(7).is_valid(row) && batch.column(7).as_boolean().value(row));
            }
            if batch.column(10).is_valid(row) {
                group.ys.push(batch.column(10).as_primitive::<Float64Type>().value(row));
            }
            if batch.column(3).is_valid(row) {
                let text = batch.column(3).as_string::<i32>().value(row).to_string();
                group.min_text = Some(group.min_text.take().map_or(text.clone(), |min| min.min(text)));
            }
            if batch.column(8).is_valid(row) {
                let wide = batch.column(8).as_primitive::<arrow::datatypes::Decimal128Type>().value(row);
                group.max_wide = Some(group.max_wide.map_or(wide, |max| max.max(wide)));
                group.sum_wide = Some(group.sum_wide.unwrap_or(0).wrapping_add(wide));
            }
        }
    }
    let mut aggregates = vec![
        aggregate(Count, None, DataType::Int64),
        aggregate(Count, Some(col(9)), DataType::Int64),
        aggregate(Sum, Some(col(9)), DataType::Int64),
        aggregate(Min, Some(col(9)), DataType::Int64),
        aggregate(Max, Some(col(9)), DataType::Int64),
        aggregate(Avg, Some(col(10)), DataType::Float64),
        aggregate(VarPop, Some(col(10)), DataType::Float64),
        aggregate(Min, Some(col(3)), DataType::Utf8),
        aggregate(Max, Some(col(8)), DataType::Decimal128(38, 3)),
        aggregate(Sum, Some(col(8)), DataType::Decimal128(38, 3)),
        aggregate(Count, Some(col(9)), DataType::Int64),
        aggregate(Count, Some(col(11)), DataType::Int64),
        aggregate(Sum, Some(col(11)), DataType::Int64),
    ];
    aggregates[10].0.filter = Some(col(7));
    aggregates[11].0.distinct = true;
    aggregates[12].0.distinct = true;
    let key_fields: Vec<(Expr, Field)> = keys.iter().map(|key| (col(*key), schema.field(*key).clone())).collect();
    let filter = filter.map(|bound| compare(CompareOp::Lt, col(11), int(bound, DataType::Int32)));
    let group =
        GroupBy::try_new(input(&schema, filter.clone()), key_fields.clone(), aggregates.clone(), options.clone()).unwrap();
    let what = format!("{keys:?} {mode} {:?}", options.profile);
    assert_eq!(group.mode(), mode, "{what}");
    if batches.iter().all(|batch| batch.num_rows() == 0) {
        return;
    }
    let result = group_with(input(&schema, filter), batches, &key_fields, &aggregates, options).unwrap();
    let positions: Vec<usize> = (0..keys.len()).collect();
    let texts = key_text(&result, &positions);
    let values = rows(&result);
    assert_eq!(texts.len(), expected.len(), "{what}");
    let text = |value: Option<String>| value.unwrap_or("NULL".into());
    for (row, key) in texts.iter().enumerate() {
        let Some(group) = expected.get(key) else { panic!("{what}: no group {key}") };
        let skip = values[row].split('|').count() - aggregates.len();
        let actual: Vec<&str> = values[row].split('|').skip(skip).collect();
        let what = format!("{what} {}", &key.chars().take(60).collect::<String>());
        assert_eq!(actual[0], group.rows.to_string(), "{what}");
        assert_eq!(actual[1], group.count_x.to_string(), "{what}");
        assert_eq!(actual[2], text(group.sum_x.map(|v| v.to_string())), "{what}");
        assert_eq!(actual[3], text(group.min_x.map(|v| v.to_string())), "{what}");
        assert_eq!(actual[4], text(group.max_x.map(|v| v.to_string())), "{what}");
        let n = group.ys.len() as f64;
        let mean = group.ys.iter().sum::<f64>() / n;
        let variance = group.ys.iter().map(|y| (y - mean) * (y - mean)).sum::<f64>() / n;
        for (at, expected) in [(5, mean), (6, variance)] {
            if group.ys.is_empty() {
                assert_eq!(actual[at], "NULL", "{what}");
            } else {
                let value: f64 = actual[at].parse().unwrap();
                assert!((value - expected).abs() <= 1e-9 * expected.abs().max(1.0), "{what}: {value} for {expected}");
            }
        }
        assert_eq!(actual[7], text(group.min_text.clone()), "{what}");
        let wide = |column: usize| {
            let column = result.column(keys.len() + column).as_primitive::<arrow::datatypes::Decimal128Type>();
            column.is_valid(row).then(|| column.value(row))
        };
        assert_eq!(wide(8), group.max_wide, "{what}");
        assert_eq!(wide(9), group.sum_wide, "{what}");
        assert_eq!(actual[10], group.flagged.to_string(), "{what}");
        assert_eq!(actual[11], group.distinct.len().to_string(), "{what}");
        assert_eq!(actual[12], group.distinct.iter().map(|k| i64::from(*k)).sum::<i64>().to_string(), "{what}");
    }
}

/// Options with small initial tables, so that they grow.
fn small_tables() -> impl Iterator<Item = Options> {
    profiles().map(|options| Options { initial_groups: 16, ..options })
}

#[test]
fn a_key_of_each_kind() {
    device::skip_unless_turn!(3);
    let batches = [data(3000, 40, 1), data(0, 40, 1), data(1, 40, 2), data(2000, 90, 3)];
    for options in small_tables() {
        for (key, mode) in [
            (0, "inline"),
            (1, "inline"),
            (2, "inline"),
            (3, "wide"),
            (4, "wide"),
            (5, "inline"),
            (6, "wide"),
            (7, "dense"),
            (8, "wide"),
        ] {
            check(&batches, &[key], None, mode, &options);
        }
    }
}

#[test]
fn several_keys_with_nulls_and_a_filter() {
    device::skip_unless_turn!(5);
    let batches = [data(2000, 20, 4), data(1500, 25, 5)];
    for options in small_tables() {
        for (keys, mode) in [
            (&[2, 7][..], "inline"),
            (&[0, 2], "wide"),
            (&[3, 7, 6], "wide"),
            (&[7, 3], "wide"),
            (&[11, 2], "inline"),
            (&[4, 8, 5, 1], "wide"),
        ] {
            check(&batches, keys, Some(60), mode, &options);
        }
    }
}

#[test]
fn every_size() {
    for n in SIZES {
        for options in profiles() {
            let batches = [data(n, 1000, 6)];
            check(&batches, &[0], None, "inline", &options);
            if n < 1000 {
                check(&batches, &[3], None, "wide", &options);
                check(&batches, &[7], None, "dense", &options);
            }
        }
    }
}

/// Sizes around the 128 rows of a lookup block of the cpu profile, in tables large enough for
/// prefetching.
#[test]
fn every_size_around_a_lookup_block() {
    for options in profiles() {
        for (n, initial_groups) in
            [126, 127, 128, 129, 254, 255, 256, 257, 258, 511, 513].into_iter().flat_map(|n| [(n, 16), (n, 1 << 17)])
        {
            let options = Options { initial_groups, ..options.clone() };
            let batches = [data(n, 100, 6), data(n + 1, 100, 7)];
            check(&batches, &[2], Some(60), "inline", &options);
            check(&batches, &[3], None, "wide", &options);
        }
    }
}

/// A full table ends a kernel early; the reported row is still the lowest failing one.
#[test]
fn the_lowest_failing_row_is_named_while_the_table_grows() {
    let n = 100_000;
    let text = |i: usize| if i == 3000 || i % 20_000 == 19_999 { format!("x{i}") } else { i.to_string() };
    let batch = batch(vec![("s", Arc::new(StringArray::from_iter_values((0..n).map(text))) as ArrayRef, false)]);
    let number = Expr::Cast { expr: Arc::new(col(0)), to: DataType::Int64, checked: true };
    let keys = [(number, Field::new("k", DataType::Int64, false))];
    let aggregates = [aggregate(Count, None, DataType::Int64)];
    for options in small_tables() {
        let result = group_with(input(&batch.schema(), None), std::slice::from_ref(&batch), &keys, &aggregates, &options);
        assert!(matches!(result, Err(Error::Row { row: 3000 })), "{result:?}");
    }
}

/// The value under a group's NULL does not affect other groups.
#[test]
fn least_and_greatest_booleans_beside_groups_of_nulls() {
    let n = 5000;
    let key = |i: usize| (random(i, 1) % 1000) as i64;
    let flag = |i: usize| (key(i) % 3 > 0).then(|| random(i, 2).is_multiple_of(4));
    let batch = batch(vec![
        ("k", Arc::new(Int64Array::from_iter_values((0..n).map(key))) as ArrayRef, false),
        ("flag", Arc::new((0..n).map(flag).collect::<BooleanArray>()), true),
    ]);
    let keys = [(col(0), Field::new("k", DataType::Int64, false))];
    let aggregates = [Min, Max, BoolAnd, BoolOr].map(|function| aggregate(function, Some(col(1)), DataType::Boolean));
    let mut expected: BTreeMap<i64, Option<(bool, bool)>> = BTreeMap::new();
    for i in 0..n {
        let group = expected.entry(key(i)).or_default();
        if let Some(flag) = flag(i) {
            let (least, greatest) = group.unwrap_or((flag, flag));
            *group = Some((least & flag, greatest | flag));
        }
    }
    for options in small_tables() {
        let result =
            group_with(input(&batch.schema(), None), std::slice::from_ref(&batch), &keys, &aggregates, &options).unwrap();
        assert_eq!(result.num_rows(), expected.len());
        for row in 0..result.num_rows() {
            let key = result.column(0).as_primitive::<Int64Type>().value(row);
            let flags = [1, 2, 3, 4].map(|column| {
                let flags = result.column(column).as_boolean();
                flags.is_valid(row).then(|| flags.value(row))
            });
            let (least, greatest) = expected[&key].unzip();
            assert_eq!(flags, [least, greatest, least, greatest], "group {key}, {:?}", options.profile);
        }
    }
}

#[test]
fn unique_keys_grow_the_table() {
    for options in small_tables() {
        let batches = [data(20_000, u64::MAX, 7), data(20_000, u64::MAX, 8)];
        check(&batches, &[1], None, "inline", &options);
        check(&batches, &[4], Some(20), "wide", &options);
    }
}

#[test]
fn one_group_only() {
    for options in profiles() {
        check(&[data(5000, 1, 9)], &[1], None, "inline", &options);
        check(&[data(5000, 1, 9)], &[4], None, "wide", &options);
    }
}

#[test]
fn slices() {
    let whole = data(1000, 30, 10);
    let batches: Vec<RecordBatch> =
        [(1, 300), (307, 33), (500, 1), (503, 400)].iter().map(|(offset, len)| whole.slice(*offset, *len)).collect();
    for options in profiles() {
        for (key, mode) in [(0, "inline"), (3, "wide"), (6, "wide"), (7, "dense")] {
            check(&batches, &[key], None, mode, &options);
        }
    }
}

#[test]
fn without_keys_strings_and_distinct_give_one_row() {
    for options in profiles() {
        for batches in [vec![], vec![data(0, 5, 1)], vec![data(3000, 50, 11), data(200, 50, 12)]] {
            let schema = data(0, 5, 1).schema();
            let mut aggregates = vec![
                aggregate(Min, Some(col(3)), DataType::Utf8),
                aggregate(Max, Some(col(4)), DataType::Utf8View),
                aggregate(Count, Some(col(2)), DataType::Int64),
                aggregate(Count, Some(col(3)), DataType::Int64),
                aggregate(Count, None, DataType::Int64),
                aggregate(Avg, Some(col(10)), DataType::Float64),
            ];
            for index in [2, 3, 5] {
                aggregates[index].0.distinct = true;
            }
            let result = try_reduce(&schema, &batches, None, &aggregates, &options).unwrap();
            let (mut texts, mut views, mut smalls, mut count, mut ys) = (vec![], vec![], vec![], 0, vec![]);
            for batch in &batches {
                count += batch.num_rows();
                texts.extend(batch.column(3).as_string::<i32>().iter().flatten().map(str::to_string));
                views.extend(batch.column(4).as_string_view().iter().flatten().map(str::to_string));
                smalls.extend(batch.column(2).as_primitive::<arrow::datatypes::Int16Type>().iter().flatten());
                ys.extend(batch.column(10).as_primitive::<Float64Type>().iter().flatten().map(|y| (y * 4.0) as i64));
            }
            texts.sort();
            views.sort();
            smalls.sort_unstable();
            smalls.dedup();
            ys.sort_unstable();
            ys.dedup();
            let text = |value: Option<&String>| value.cloned().unwrap_or("NULL".into());
            let row = rows(&result).remove(0);
            let actual: Vec<&str> = row.split('|').collect();
            assert_eq!(actual[0], text(texts.first()));
            assert_eq!(actual[1], text(views.last()));
            texts.dedup();
            assert_eq!(actual[2], smalls.len().to_string());
            assert_eq!(actual[3], texts.len().to_string());
            assert_eq!(actual[4], count.to_string());
            match ys.is_empty() {
                true => assert_eq!(actual[5], "NULL"),
                false => {
                    let average = ys.iter().sum::<i64>() as f64 / 4.0 / ys.len() as f64;
                    assert!((actual[5].parse::<f64>().unwrap() - average).abs() < 1e-9);
                }
            }
        }
    }
}

#[test]
fn dense_keys_with_bounds() {
    let batch = data(5000, 40, 13);
    let mut types = natural_types(&batch.schema()).unwrap();
    types[2].bounds = Some((-8, 63));
    types[11].bounds = Some((0, 127));
    for options in profiles() {
        let input = Input { schema: batch.schema(), types: types.clone(), filter: None };
        let keys = [(col(2), batch.schema().field(2).clone()), (col(11), batch.schema().field(11).clone())];
        let aggregates = [aggregate(Count, None, DataType::Int64), aggregate(Sum, Some(col(9)), DataType::Int64)];
        let group = GroupBy::try_new(input.clone(), keys.to_vec(), aggregates.to_vec(), options.clone()).unwrap();
        assert_eq!(group.mode(), "dense");
        let result = group_with(input, &[batch.clone(), batch.clone()], &keys, &aggregates, &options).unwrap();
        let mut expected: BTreeMap<String, (i64, Option<i64>)> = BTreeMap::new();
        for (row, key) in key_text(&batch, &[2, 11]).into_iter().enumerate() {
            let group = expected.entry(key).or_default();
            group.0 += 2;
            let x = batch.column(9).as_primitive::<Int64Type>();
            if x.is_valid(row) {
                group.1 = Some(group.1.unwrap_or(0) + 2 * x.value(row));
            }
        }
        let actual: BTreeMap<String, (i64, Option<i64>)> = key_text(&result, &[0, 1])
            .into_iter()
            .enumerate()
            .map(|(row, key)| {
                let sum = result.column(3).as_primitive::<Int64Type>();
                (key, (result.column(2).as_primitive::<Int64Type>().value(row), sum.is_valid(row).then(|| sum.value(row))))
            })
            .collect();
        assert_eq!(actual, expected);
    }
}

#[test]
fn computed_keys_and_arguments() {
    let batch = data(4000, 50, 14);
    let schema = batch.schema();
    let tens = arithmetic(ArithmeticOp::Divide, col(11), int(10, DataType::Int32), DataType::Int32);
    let name = Expr::Coalesce(vec![col(3), col(3)]);
    let keys = [(tens, Field::new("tens", DataType::Int32, true)), (name, Field::new("name", DataType::Utf8, true))];
    let mut aggregates = vec![
        aggregate(Sum, Some(arithmetic(ArithmeticOp::Add, col(9), col(9), DataType::Int64)), DataType::Int64),
        aggregate(Count, Some(col(9)), DataType::Int64),
    ];
    aggregates[1].0.filter = Some(col(7));
    let mut expected: BTreeMap<String, (Option<i64>, i64)> = BTreeMap::new();
    for row in 0..batch.num_rows() {
        let k = batch.column(11).as_primitive::<Int32Type>().value(row);
        let text = batch.column(3).as_string::<i32>();
        let key = if text.is_valid(row) { format!("{}'|{}'", k / 10, text.value(row)) } else { format!("{}'|NULL", k / 10) };
        let group = expected.entry(key).or_default();
        let (x, flag) = (batch.column(9).as_primitive::<Int64Type>(), batch.column(7).as_boolean());
        if x.is_valid(row) {
            group.0 = Some(group.0.unwrap_or(0) + 2 * x.value(row));
            group.1 += i64::from(flag.is_valid(row) && flag.value(row));
        }
    }
    for options in profiles() {
        let result = group_with(input(&schema, None), std::slice::from_ref(&batch), &keys, &aggregates, &options).unwrap();
        let actual: BTreeMap<String, (Option<i64>, i64)> = key_text(&result, &[0, 1])
            .into_iter()
            .enumerate()
            .map(|(row, key)| {
                let sum = result.column(2).as_primitive::<Int64Type>();
                (key, (sum.is_valid(row).then(|| sum.value(row)), result.column(3).as_primitive::<Int64Type>().value(row)))
            })
            .collect();
        assert_eq!(actual, expected);
    }
}

/// Batches of one type with distinct dictionaries, some in another order.
#[test]
fn codes_of_several_dictionaries_group_by_value() {
    use arrow::array::{DictionaryArray, Int8Array};
    use columnar::{Carrier, ColumnType, Layout};
    let terms: [&[&str]; 4] = [&["red", "green"], &["red", "green", "blue"], &["blue", "red"], &["white", "green", "red"]];
    let logical = DataType::Dictionary(Box::new(DataType::Int8), Box::new(DataType::Utf8));
    let types = vec![ColumnType {
        data_type: logical.clone(),
        nullable: true,
        layout: Layout::Dictionary { codes: Carrier::I8, values: Box::new(Layout::Offsets32) },
        bounds: Some((0, 7)),
    }];
    let mut expected: BTreeMap<String, i64> = BTreeMap::new();
    let batches: Vec<RecordBatch> = terms
        .iter()
        .enumerate()
        .map(|(b, terms)| {
            let codes: Int8Array =
                (0..100).map(|i| (!null(i, b as u64)).then(|| (random(i, b as u64) % terms.len() as u64) as i8)).collect();
            for code in &codes {
                *expected.entry(code.map_or("NULL".into(), |code| format!("{}'", terms[code as usize]))).or_default() += 1;
            }
            batch(vec![(
                "term",
                Arc::new(DictionaryArray::new(codes, Arc::new(StringArray::from(terms.to_vec())))) as ArrayRef,
                true,
            )])
        })
        .collect();
    for options in profiles() {
        let input = Input { schema: batches[0].schema(), types: types.clone(), filter: None };
        let keys = [(col(0), Field::new("term", logical.clone(), true))];
        let result = group_with(input, &batches, &keys, &[aggregate(Count, None, DataType::Int64)], &options).unwrap();
        let counts = result.column(1).as_primitive::<Int64Type>();
        let actual: BTreeMap<String, i64> =
            key_text(&result, &[0]).into_iter().enumerate().map(|(row, key)| (key, counts.value(row))).collect();
        assert_eq!(actual, expected);
    }
}

/// A frozen state, and another one for the rows that it sets aside, give the groups of one state.
#[test]
fn a_frozen_state_sets_rows_of_other_groups_aside() {
    let batches = [data(300, 40, 1), data(5000, 3000, 1), data(1, 3000, 3), data(700, 3000, 2)];
    let schema = batches[0].schema();
    let mut types = natural_types(&schema).unwrap();
    // As a resident table has it.
    types[11].layout = Layout::Fixed(Carrier::I8);
    let queue = queue();
    for options in profiles() {
        for keys in [&[0][..], &[1], &[3], &[4, 5], &[2, 6, 8], &[7, 8]] {
            let input = Input { schema: schema.clone(), types: types.clone(), filter: None };
            let fields: Vec<(Expr, Field)> = keys.iter().map(|key| (col(*key), schema.field(*key).clone())).collect();
            let mut aggregates = vec![
                aggregate(Count, None, DataType::Int64),
                aggregate(Sum, Some(col(9)), DataType::Int64),
                aggregate(Max, Some(col(3)), DataType::Utf8),
            ];
            if [&[1][..], &[4, 5]].contains(&keys) {
                aggregates.push(aggregate(Sum, Some(col(11)), DataType::Int64));
                aggregates.push(aggregate(Count, Some(col(3)), DataType::Int64));
                aggregates[3..].iter_mut().for_each(|(aggregate, _)| aggregate.distinct = true);
            }
            let group = GroupBy::try_new(input, fields, aggregates, options.clone()).unwrap();
            assert!(group.may_freeze(), "{keys:?}");
            let lines = |results: Vec<columnar::DeviceBatch>| -> Vec<String> {
                let downloaded = results.iter().map(|result| block_on(columnar::download(&queue, result)).unwrap());
                downloaded.flat_map(|batch| rows(&batch)).collect()
            };
            let device: Vec<_> = batches.iter().map(|batch| up(&queue, batch, &types)).collect();
            let mut whole = group.start();
            device.iter().for_each(|batch| block_on(group.push(&queue, &mut whole, batch)).unwrap());
            let mut expected = lines(block_on(group.finish(&queue, whole)).unwrap());

            let (mut frozen, mut rest) = (group.start(), group.start());
            block_on(group.push(&queue, &mut frozen, &device[0])).unwrap();
            let known = frozen.groups();
            group.freeze(&mut frozen).unwrap();
            let (stored, stored_types) = group.set_aside_types().unwrap();
            let format = columnar::StorageFormat::of(&stored, &stored_types).unwrap();
            let mut set_aside = 0;
            for batch in &device[1..] {
                let Some(rows) = block_on(group.push_known(&queue, &mut frozen, batch)).unwrap() else { continue };
                set_aside += rows.num_rows();
                let host = block_on(format.store(&queue, &rows)).unwrap();
                let rows = format.restore(&queue, &host, &format.columns(&rows)).unwrap();
                assert!(block_on(group.push_set_aside(&queue, &mut rest, &rows)).unwrap().is_none());
            }
            assert!(known > 0 && frozen.groups() == known && set_aside > 0, "{keys:?}");
            let mut actual = lines(block_on(group.finish(&queue, frozen)).unwrap());
            assert_eq!(actual.len(), known);
            actual.extend(lines(block_on(group.finish(&queue, rest)).unwrap()));
            actual.sort();
            expected.sort();
            assert_eq!(actual, expected, "{:?}, {keys:?}", options.profile);
        }
    }
}

/// A frozen state collects values of DISTINCT of its groups only. If one fails, the error has its
/// row's number in the batch.
#[test]
fn a_failing_value_of_a_frozen_state_has_its_row() {
    let batch_of = |keys: Vec<i64>, divisors: Vec<i64>| {
        batch(vec![
            ("key", Arc::new(Int64Array::from(keys)) as ArrayRef, false),
            ("divisor", Arc::new(Int64Array::from(divisors)), false),
        ])
    };
    let first = batch_of(vec![7, 8], vec![1, 1]);
    // Rows 0, 3 and 5 are of further groups.
    let later = |failing: usize| {
        let divisors = (0..6).map(|row| i64::from(row != failing));
        batch_of(vec![70, 7, 8, 80, 8, 90], divisors.collect())
    };
    let (schema, queue) = (first.schema(), queue());
    let types = natural_types(&schema).unwrap();
    let quotient = arithmetic(ArithmeticOp::Divide, int(100, DataType::Int64), col(1), DataType::Int64);
    for options in profiles() {
        let input = Input { schema: schema.clone(), types: types.clone(), filter: None };
        let mut sum = aggregate(Sum, Some(quotient.clone()), DataType::Int64);
        sum.0.distinct = true;
        let key = (col(0), Field::new("key", DataType::Int64, false));
        let group = GroupBy::try_new(input, vec![key], vec![sum], options.clone()).unwrap();
        for failing in [1, 4] {
            let mut state = group.start();
            block_on(group.push(&queue, &mut state, &up(&queue, &first, &types))).unwrap();
            group.freeze(&mut state).unwrap();
            let pushed = block_on(group.push_known(&queue, &mut state, &up(&queue, &later(failing), &types)));
            assert!(matches!(pushed, Err(Error::Row { row }) if row == failing as u64), "{pushed:?}");
        }
        let mut state = group.start();
        block_on(group.push(&queue, &mut state, &up(&queue, &first, &types))).unwrap();
        group.freeze(&mut state).unwrap();
        let others = block_on(group.push_known(&queue, &mut state, &up(&queue, &later(3), &types))).unwrap();
        assert_eq!(others.map(|others| others.num_rows()), Some(3));
    }
}

/// Fifty averages have 100 words of state a group.
#[test]
fn first_states_fit_little_memory() {
    let rows = batch(vec![
        ("k", Arc::new(Int64Array::from_iter_values((0..1000).map(|row| row % 7 * 1_000_000_007))) as ArrayRef, false),
        ("x", Arc::new(Float64Array::from_iter_values((0..1000).map(f64::from))), false),
    ]);
    // Equal ones would be one.
    let add = |sum: &Expr| arithmetic(ArithmeticOp::Add, sum.clone(), col(1), DataType::Float64);
    let arguments = std::iter::successors(Some(col(1)), |sum| Some(add(sum))).take(50);
    let averages: Vec<_> = arguments.map(|sum| aggregate(Avg, Some(sum), DataType::Float64)).collect();
    let keys = vec![(col(0), rows.schema().field(0).clone())];
    for options in profiles() {
        let queue = queue_of_bytes(1 << 20);
        let op = GroupBy::try_new(input(&rows.schema(), None), keys.clone(), averages.clone(), options).unwrap();
        block_on(async {
            let mut state = op.start();
            op.push(&queue, &mut state, &up(&queue, &rows, &natural_types(&rows.schema()).unwrap())).await.unwrap();
            let groups: usize = op.finish(&queue, state).await.unwrap().iter().map(|batch| batch.num_rows()).sum();
            assert_eq!(groups, 7);
        });
    }
}
