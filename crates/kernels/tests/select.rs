// SPDX-License-Identifier: Apache-2.0
//! Filter and projection compared with plain Rust, in both profiles.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod support;

use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, AsArray, BooleanArray, Decimal128Array, DictionaryArray, FixedSizeBinaryArray, Float64Array, Int32Array,
    Int64Array, RecordBatch, StringArray, StringViewArray, UInt8Array,
};
use arrow::compute::{cast, filter_record_batch};
use arrow::datatypes::{DataType, Field, Int8Type, Int64Type};
use futures::executor::block_on;
use kernels::Error;
use kernels::codegen::Profile;
use kernels::expr::{ArithmeticOp, CompareOp, Expr};
use kernels::function::Function;
use kernels::ops::{Options, Select};
use support::*;

/// A batch of `n` rows: plain, nullable, strings in three layouts, a dictionary, bits.
fn data(n: usize) -> RecordBatch {
    let long = "x".repeat(5000);
    let text = |i: usize| match random(i, 7) % 50 {
        0 => long.clone(),
        1..10 => String::new(),
        other => format!("wörd {other} {}", "y".repeat((other % 20) as usize)),
    };
    let null = |i: usize, salt: u64| random(i, salt).is_multiple_of(5);
    let strings: Vec<Option<String>> = (0..n).map(|i| (!null(i, 1)).then(|| text(i))).collect();
    let terms = ["red", "green", "a longer colour than twelve bytes"];
    let dictionary: DictionaryArray<Int8Type> =
        (0..n).map(|i| (!null(i, 2)).then(|| terms[(random(i, 3) % 3) as usize])).collect();
    let fixed: Vec<Option<Vec<u8>>> = (0..n).map(|i| (!null(i, 9)).then(|| random(i, 10).to_le_bytes()[..5].to_vec())).collect();
    batch(vec![
        ("key", Arc::new(Int32Array::from_iter_values((0..n).map(|i| (random(i, 4) % 100) as i32))) as ArrayRef, false),
        ("big", Arc::new((0..n).map(|i| (!null(i, 5)).then(|| random(i, 5) as i64)).collect::<Int64Array>()), true),
        (
            "float",
            Arc::new(
                (0..n)
                    .map(|i| if i.is_multiple_of(17) { f64::NAN } else { random(i, 6) as f64 })
                    .map(Some)
                    .collect::<Float64Array>(),
            ),
            true,
        ),
        ("flag", Arc::new((0..n).map(|i| (!null(i, 8)).then(|| random(i, 8).is_multiple_of(3))).collect::<BooleanArray>()), true),
        ("text", Arc::new(StringArray::from(strings.clone())), true),
        ("view", Arc::new(StringViewArray::from_iter(strings)), true),
        ("colour", Arc::new(dictionary), true),
        (
            "price",
            Arc::new(
                Decimal128Array::from_iter_values((0..n).map(|i| i128::from(random(i, 11) as i64) << 40))
                    .with_precision_and_scale(38, 2)
                    .unwrap(),
            ),
            false,
        ),
        ("fixed", Arc::new(FixedSizeBinaryArray::try_from_sparse_iter_with_size(fixed.into_iter(), 5).unwrap()), true),
        ("byte", Arc::new(UInt8Array::from_iter_values((0..n).map(|i| random(i, 12) as u8))), false),
    ])
}

fn everything(batch: &RecordBatch) -> Vec<(Expr, Field)> {
    batch.schema().fields().iter().enumerate().map(|(index, field)| (col(index), (**field).clone())).collect()
}

#[track_caller]
fn check_filter(batch: &RecordBatch, filter: Expr, keep: impl Fn(usize) -> bool) {
    let mask: BooleanArray = (0..batch.num_rows()).map(|row| Some(keep(row))).collect();
    let expected = filter_record_batch(batch, &mask).unwrap();
    for options in profiles() {
        let actual = select(batch, Some(filter.clone()), &everything(batch), &options);
        assert_eq!(actual.num_rows(), expected.num_rows(), "{:?}", options.profile);
        assert_eq!(rows(&actual), rows(&expected), "{:?}", options.profile);
    }
}

fn keys(batch: &RecordBatch) -> Vec<i32> {
    batch.column(0).as_any().downcast_ref::<Int32Array>().unwrap().values().to_vec()
}

#[test]
fn all_types_survive_a_filter() {
    for n in SIZES {
        let batch = data(n);
        let keys = keys(&batch);
        for bound in [0, 1, 15, 60, 100] {
            if n > 1000 && bound != 15 {
                continue;
            }
            check_filter(&batch, compare(CompareOp::Lt, col(0), int(bound, DataType::Int32)), |row| {
                i128::from(keys[row]) < bound
            });
        }
    }
}

#[test]
fn slices_with_odd_offsets() {
    let whole = data(400);
    for (offset, len) in [(1, 300), (7, 33), (31, 100), (33, 0), (64, 1)] {
        let batch = whole.slice(offset, len);
        let keys = keys(&whole);
        check_filter(&batch, compare(CompareOp::GtEq, col(0), int(50, DataType::Int32)), |row| keys[row + offset] >= 50);
    }
}

#[test]
fn filters_keep_true_only() {
    let batch = data(1000);
    let flags = batch.column(3).as_any().downcast_ref::<BooleanArray>().unwrap().clone();
    check_filter(&batch, col(3), |row| flags.is_valid(row) && flags.value(row));
}

#[test]
fn alternating_rows_survive() {
    let n = 40_000;
    let batch = batch(vec![("i", Arc::new(Int64Array::from_iter_values(0..n)) as ArrayRef, false)]);
    let odd = arithmetic(ArithmeticOp::BitAnd, col(0), int(1, DataType::Int64), DataType::Int64);
    check_filter(&batch, compare(CompareOp::Eq, odd, int(1, DataType::Int64)), |row| row % 2 == 1);
}

#[test]
fn projections_without_a_filter() {
    for n in SIZES {
        let batch = data(n);
        for options in profiles() {
            let mut outputs = everything(&batch);
            outputs.push((
                arithmetic(ArithmeticOp::Add, col(1), col(1), DataType::Int64),
                Field::new("twice", DataType::Int64, true),
            ));
            outputs.push((compare(CompareOp::Lt, col(4), col(5)), Field::new("never", DataType::Boolean, true)));
            let coalesced =
                Expr::Coalesce(vec![col(5), Expr::Cast { expr: Arc::new(col(6)), to: DataType::Utf8View, checked: true }]);
            outputs.push((coalesced, Field::new("text", DataType::Utf8View, true)));
            let actual = select(&batch, None, &outputs, &options);
            assert_eq!(rows(&actual.project(&(0..10).collect::<Vec<_>>()).unwrap()), rows(&batch));
            let big = batch.column(1).as_any().downcast_ref::<Int64Array>().unwrap();
            let twice: Int64Array = big.iter().map(|value| value.map(|value| value.wrapping_add(value))).collect();
            assert_eq!(actual.column(10).as_ref(), &twice as &dyn Array);
            let view = batch.column(5).as_any().downcast_ref::<StringViewArray>().unwrap();
            let never: BooleanArray = (0..n).map(|row| view.is_valid(row).then_some(false)).collect();
            assert_eq!(actual.column(11).as_ref(), &never as &dyn Array);
            let colour = arrow::compute::cast(batch.column(6), &DataType::Utf8View).unwrap();
            let colour = colour.as_any().downcast_ref::<StringViewArray>().unwrap();
            let text: StringViewArray = (0..n)
                .map(
                    |row| {
                        if view.is_valid(row) { Some(view.value(row)) } else { colour.is_valid(row).then(|| colour.value(row)) }
                    },
                )
                .collect();
            assert_eq!(actual.column(12).as_ref(), &text as &dyn Array);
        }
    }
}

#[test]
fn the_lowest_failing_row_is_reported() {
    let batch = batch(vec![
        ("a", Arc::new(Int64Array::from_iter_values(0..100_000)) as ArrayRef, false),
        ("b", Arc::new(Int64Array::from_iter_values((0..100_000).map(|i| i64::from(i < 50_000 || i % 1000 != 7)))), false),
    ]);
    let quotient = (arithmetic(ArithmeticOp::Divide, col(0), col(1), DataType::Int64), Field::new("q", DataType::Int64, false));
    for options in profiles() {
        let outputs = [quotient.clone()];
        assert!(matches!(try_select(&batch, None, &outputs, &options), Err(Error::Row { row: 50_007 })));
        let below = |bound| Some(compare(CompareOp::Lt, col(0), int(bound, DataType::Int64)));
        assert_eq!(try_select(&batch, below(50_007), &outputs, &options).unwrap().num_rows(), 50_007);
        assert!(matches!(try_select(&batch, below(60_000), &outputs, &options), Err(Error::Row { row: 50_007 })));
        let failing = compare(CompareOp::Gt, quotient.0.clone(), int(1, DataType::Int64));
        assert!(matches!(try_select(&batch, Some(failing), &[], &options), Err(Error::Row { row: 50_007 })));
    }
}

/// Columns of two types, with NULLs and without, and strings: from 64 outputs on, those that are
/// alike share a kernel.
#[test]
fn many_outputs_are_split_over_kernels() {
    let n = 3000;
    for width in [60, 64, 65, 130] {
        let column = |c: usize| -> ArrayRef {
            let present = |i: usize| c.is_multiple_of(3) || !random(i, c as u64).is_multiple_of(4);
            let value = |i: usize| present(i).then(|| random(i, c as u64) as i64);
            match c % 13 {
                12 => Arc::new((0..n).map(|i| value(i).map(|value| value.to_string())).collect::<StringArray>()),
                5 => Arc::new((0..n).map(|i| value(i).map(|value| value as i32)).collect::<Int32Array>()),
                _ => Arc::new((0..n).map(value).collect::<Int64Array>()),
            }
        };
        let columns: Vec<(String, ArrayRef)> = (0..width).map(|c| (format!("c{c}"), column(c))).collect();
        let batch = batch(columns.iter().map(|(name, array)| (name.as_str(), array.clone(), true)).collect());
        let first = batch.column(0).as_primitive::<Int64Type>().clone();
        check_filter(&batch, compare(CompareOp::Gt, col(0), int(0, DataType::Int64)), |row| first.value(row) > 0);

        let filter = compare(CompareOp::Gt, col(0), int(0, DataType::Int64));
        let select =
            Select::try_new(input(&batch.schema(), Some(filter)), everything(&batch), Options::new(Profile::Gpu)).unwrap();
        let writes = select.kernel_source().iter().filter(|(name, _)| name.contains("_write")).count();
        // One for each of Int64, Int32 and Utf8, with a bitmap of validity.
        assert!(width <= 64 || writes == 3, "{width}: {writes}");
    }
}

/// Each column keeps its own constants where kernels are shared.
#[test]
fn outputs_that_share_a_kernel_have_their_own_constants() {
    let batch = batch(vec![("n", Arc::new(Int64Array::from_iter_values(0..1000)), false)]);
    let plus = |index: usize| arithmetic(ArithmeticOp::Add, col(0), int(index as i128, DataType::Int64), DataType::Int64);
    let outputs: Vec<_> = (0..100).map(|index| (plus(index), Field::new(format!("c{index}"), DataType::Int64, false))).collect();
    for options in profiles() {
        for filter in [None, Some(compare(CompareOp::Lt, col(0), int(700, DataType::Int64)))] {
            let actual = select(&batch, filter, &outputs, &options);
            for (index, column) in actual.columns().iter().enumerate() {
                let column = column.as_primitive::<Int64Type>();
                assert!((0..column.len()).all(|row| column.value(row) == (row + index) as i64), "{index}");
            }
        }
    }
}

/// Composed strings are measured, then written, for survivors and for all rows.
#[test]
fn new_strings_of_any_length() {
    let batch = data(1500);
    let call = |function, arguments: Vec<Expr>| Expr::Call { function, arguments, data_type: DataType::Utf8 };
    let outputs = || {
        vec![
            (call(Function::Upper, vec![col(4)]), Field::new("upper", DataType::Utf8, true)),
            (call(Function::Concat, vec![col(4), col(5)]), Field::new("twice", DataType::Utf8, false)),
            (call(Function::Reverse, vec![col(6)]), Field::new("reversed", DataType::Utf8, true)),
            (col(0), Field::new("key", DataType::Int32, false)),
        ]
    };
    let text =
        |row: usize| batch.column(4).as_string::<i32>().is_valid(row).then(|| batch.column(4).as_string::<i32>().value(row));
    let colours = cast(batch.column(6), &DataType::Utf8).unwrap();
    let colour = |row: usize| colours.is_valid(row).then(|| colours.as_string::<i32>().value(row));
    for filter in [None, Some(Expr::Column(3))] {
        let kept: Vec<usize> = match &filter {
            None => (0..batch.num_rows()).collect(),
            Some(_) => {
                let flags = batch.column(3).as_boolean();
                (0..batch.num_rows()).filter(|row| flags.is_valid(*row) && flags.value(*row)).collect()
            }
        };
        for options in profiles() {
            let actual = select(&batch, filter.clone(), &outputs(), &options);
            assert_eq!(actual.num_rows(), kept.len());
            let column = |index: usize| actual.column(index).as_string::<i32>();
            for (position, row) in kept.iter().enumerate() {
                let upper = column(0).is_valid(position).then(|| column(0).value(position).to_owned());
                assert_eq!(upper, text(*row).map(str::to_uppercase), "{:?} {row}", options.profile);
                assert_eq!(column(1).value(position), text(*row).unwrap_or_default().repeat(2));
                let reversed = column(2).is_valid(position).then(|| column(2).value(position).to_owned());
                assert_eq!(reversed, colour(*row).map(|colour| colour.chars().rev().collect()));
            }
        }
    }
}

/// A dictionary predicate is computed once per value and run, and agrees with the strings.
#[test]
fn dictionary_predicates_run_once_per_value() {
    use kernels::expr::{Literal, LiteralValue};
    let text = |text: &str| Literal { data_type: DataType::Utf8, value: LiteralValue::Bytes(text.into()) };
    let null = || Literal { data_type: DataType::Utf8, value: LiteralValue::Null };
    let is = |other: &str| compare(CompareOp::Eq, col(0), Expr::Literal(text(other)));
    let like = |pattern: &str| Expr::Like {
        ignores_case: false,
        expr: Arc::new(col(0)),
        pattern: Arc::new(Expr::Literal(text(pattern))),
    };
    let rest =
        Expr::Call { function: Function::Substring, arguments: vec![col(0), int(2, DataType::Int64)], data_type: DataType::Utf8 };
    let starts = Expr::Call {
        function: Function::StartsWith,
        arguments: vec![col(0), Expr::Literal(text("gr"))],
        data_type: DataType::Boolean,
    };
    let among = |list, negated| Expr::InList { expr: Arc::new(col(0)), list, negated };
    let predicates = [
        is("red"),
        like("%r%e%"),
        starts,
        among(vec![text("red"), null()], false),
        among(vec![text("red"), null()], true),
        Expr::Not(Arc::new(is("red"))),
        Expr::Or(vec![is("red"), like("gr%")]),
        compare(CompareOp::LtEq, col(0), rest),
    ];
    for n in [0, 1, 257, 5000] {
        let colours = data(n).column(6).clone();
        let coded = batch(vec![("colour", colours.clone(), true)]);
        let plain = batch(vec![("colour", cast(&colours, &DataType::Utf8).unwrap(), true)]);
        let field = || Field::new("said", DataType::Boolean, true);
        let outputs: Vec<_> = predicates.iter().map(|predicate| (predicate.clone(), field())).collect();
        for (filter, options) in [None, Some(3), Some(6)].into_iter().flat_map(|filter| profiles().map(move |all| (filter, all)))
        {
            let filter = filter.map(|index: usize| predicates[index].clone());
            let expected = select(&plain, filter.clone(), &outputs, &options);
            assert_eq!(select(&coded, filter, &outputs, &options), expected, "{n} {:?}", options.profile);
        }
    }
    let coded = batch(vec![("colour", data(1000).column(6).clone(), true)]);
    for options in profiles() {
        let input = input(&coded.schema(), Some(like("%r%e%")));
        let types = input.types.clone();
        let select =
            Select::try_new(input, vec![(col(0), Field::new("colour", coded.column(0).data_type().clone(), true))], options)
                .unwrap();
        let names: Vec<String> = select.kernel_source().into_iter().map(|(name, _)| name).collect();
        assert_eq!(names.iter().filter(|name| name.starts_with("dictionary_predicate_")).count(), 1, "{names:?}");
        let queue = queue();
        let whole = up(&queue, &coded, &types);
        let launches = |queue: &device::Queue, from: usize| {
            let meter = Arc::default();
            block_on(select.run(&queue.metered(&meter), &whole.slice(from, 500))).unwrap();
            meter.launches()
        };
        let (first, second) = (launches(&queue, 0), launches(&queue, 500));
        assert_eq!(first, second + 1);
        assert_eq!(launches(&support::queue(), 0), first, "another run asks again");
    }
}
