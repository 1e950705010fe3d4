// SPDX-License-Identifier: Apache-2.0
//! Arguments and results of external functions, with NULL rows stripped, in both profiles.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod support;

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, Float64Array, Int64Array, RecordBatch};
use arrow::datatypes::{DataType, Field, Float64Type, Int64Type};
use columnar::{Carrier, ColumnType, DeviceBatch, Layout, natural_types};
use futures::executor::block_on;
use kernels::expr::ArithmeticOp;
use kernels::ops::{Arguments, NullStripping, Options};
use support::*;

fn numbers(n: usize, null: impl Fn(usize) -> bool) -> ArrayRef {
    Arc::new((0..n).map(|i| (!null(i)).then(|| (random(i, 7) % 100) as i64)).collect::<Int64Array>())
}

fn floats(n: usize, null: impl Fn(usize) -> bool) -> ArrayRef {
    Arc::new((0..n).map(|i| (!null(i)).then_some(i as f64 / 2.0)).collect::<Float64Array>())
}

fn table(n: usize) -> RecordBatch {
    batch(vec![
        ("x", numbers(n, |i| random(i, 1).is_multiple_of(3)), true),
        ("y", floats(n, |i| random(i, 2).is_multiple_of(4)), true),
        ("z", numbers(n, |_| false), false),
        ("none", numbers(n, |_| true), true),
    ])
}

fn stripping(
    host: &RecordBatch,
    types: &[ColumnType],
    exprs: &[(kernels::expr::Expr, DataType)],
    options: &Options,
) -> NullStripping {
    let arguments = exprs.iter().map(|(expr, data_type)| (expr.clone(), Field::new("a", data_type.clone(), true))).collect();
    NullStripping::try_new(host.schema(), types.to_vec(), arguments, options.clone()).unwrap()
}

fn i64_type(stripping: &NullStripping) -> Arc<ColumnType> {
    Arc::new(ColumnType::of(&DataType::Int64, stripping.is_nullable()).unwrap())
}

/// The first argument as the result.
fn back(stripping: &NullStripping, arguments: &Arguments) -> Int64Array {
    let queue = queue();
    let values = arguments.buffers.first().cloned().map(|values| (values, None));
    let column = block_on(stripping.column(&queue, arguments, values, i64_type(stripping))).unwrap();
    let schema = arrow::datatypes::Schema::new(vec![Field::new("r", DataType::Int64, stripping.is_nullable())]);
    let rows = column.len();
    let result = down(&queue, &DeviceBatch::try_new(Arc::new(schema), vec![column], rows).unwrap());
    result.column(0).as_primitive::<Int64Type>().clone()
}

#[test]
fn rows_with_a_null_argument_are_stripped() {
    for options in profiles() {
        for n in SIZES {
            let whole = table(n + 40);
            let types = natural_types(&whole.schema()).unwrap();
            let device = up(&queue(), &whole, &types);
            for (device, host) in [(device.clone(), whole.clone()), (device.slice(37, n), whole.slice(37, n))] {
                let sum = arithmetic(ArithmeticOp::Add, col(0), col(2), DataType::Int64);
                let stripping = stripping(&host, &types, &[(sum, DataType::Int64), (col(1), DataType::Float64)], &options);
                let arguments = block_on(stripping.arguments(&queue(), &device)).unwrap();
                let (x, y) = (host.column(0).as_primitive::<Int64Type>(), host.column(1).as_primitive::<Float64Type>());
                let z = host.column(2).as_primitive::<Int64Type>();
                let expected: Int64Array =
                    (0..host.num_rows()).map(|i| (x.is_valid(i) && y.is_valid(i)).then(|| x.value(i) + z.value(i))).collect();
                assert_eq!(arguments.count, expected.len() - expected.null_count(), "{:?}", options.profile);
                assert_eq!(back(&stripping, &arguments), expected, "{n} rows, {:?}", options.profile);
            }
        }
    }
}

#[test]
fn plain_columns_without_nulls_are_not_copied() {
    for options in profiles() {
        let host = table(300);
        let types = natural_types(&host.schema()).unwrap();
        let queue = queue();
        let device = up(&queue, &host, &types);
        let plain = stripping(&host, &types, &[(col(2), DataType::Int64)], &options);
        let arguments = block_on(plain.arguments(&queue, &device)).unwrap();
        assert!(arguments.buffers[0].same(&device.columns()[2].buffers()[0]));
        assert!(!plain.is_nullable() && plain.kernel_source().is_empty());
        assert_eq!(back(&plain, &arguments), *host.column(2).as_primitive::<Int64Type>());
        // A slice from the middle is copied, because functions do not support offsets.
        let arguments = block_on(plain.arguments(&queue, &device.slice(8, 100))).unwrap();
        assert!(!arguments.buffers[0].same(&device.columns()[2].buffers()[0]));
        assert_eq!(back(&plain, &arguments), *host.slice(8, 100).column(2).as_primitive::<Int64Type>());
    }
}

#[test]
fn nullable_columns_with_a_null_count_of_0_are_not_copied() {
    let host = batch(vec![("x", numbers(100, |_| false), true)]);
    let types = natural_types(&host.schema()).unwrap();
    for options in profiles() {
        let queue = queue();
        let device = up(&queue, &host, &types);
        assert_eq!(device.columns()[0].null_count(), Some(0));
        let stripping = stripping(&host, &types, &[(col(0), DataType::Int64)], &options);
        let arguments = block_on(stripping.arguments(&queue, &device)).unwrap();
        assert!(arguments.buffers[0].same(&device.columns()[0].buffers()[0]));
        assert_eq!(back(&stripping, &arguments), *host.column(0).as_primitive::<Int64Type>());
    }
}

#[test]
fn narrow_columns_are_widened() {
    for options in profiles() {
        // Rows without a NULL are selected first, which widens them too.
        for (nullable, count) in [(false, 300), (true, 200)] {
            let host = batch(vec![("z", numbers(300, |row| nullable && row % 3 == 0), nullable)]);
            let mut types = natural_types(&host.schema()).unwrap();
            types[0].layout = Layout::Fixed(Carrier::I8);
            let queue = queue();
            let stripping = stripping(&host, &types, &[(col(0), DataType::Int64)], &options);
            let arguments = block_on(stripping.arguments(&queue, &up(&queue, &host, &types))).unwrap();
            assert!(arguments.buffers[0].len() >= count * 8);
            assert_eq!(back(&stripping, &arguments), *host.column(0).as_primitive::<Int64Type>());
        }
    }
}

#[test]
fn byte_booleans_become_bits() {
    for options in profiles() {
        let host = table(300);
        let types = natural_types(&host.schema()).unwrap();
        let queue = queue();
        let is_odd = |index| {
            let odd = arithmetic(ArithmeticOp::BitAnd, col(index), int(1, DataType::Int64), DataType::Int64);
            let byte = odd.cast(&DataType::Int64, &DataType::UInt8, true).unwrap();
            stripping(&host, &types, &[(byte, DataType::UInt8)], &options)
        };
        for column in [0, 2] {
            let stripping = is_odd(column);
            let arguments = block_on(stripping.arguments(&queue, &up(&queue, &host, &types))).unwrap();
            let ty = Arc::new(ColumnType::of(&DataType::Boolean, stripping.is_nullable()).unwrap());
            let odd = block_on(stripping.column(
                &queue,
                &arguments,
                arguments.buffers.first().cloned().map(|values| (values, None)),
                ty,
            ))
            .unwrap();
            let schema = arrow::datatypes::Schema::new(vec![Field::new("r", DataType::Boolean, stripping.is_nullable())]);
            let odd = down(&queue, &DeviceBatch::try_new(Arc::new(schema), vec![odd], 300).unwrap());
            let numbers = host.column(column).as_primitive::<Int64Type>();
            let expected: Vec<Option<bool>> = numbers.iter().map(|number| number.map(|number| number % 2 == 1)).collect();
            assert_eq!(odd.column(0).as_boolean().iter().collect::<Vec<_>>(), expected, "{:?}", options.profile);
        }
    }
}

#[test]
fn result_masks_become_validity() {
    for options in profiles() {
        let host = table(300);
        let types = natural_types(&host.schema()).unwrap();
        let queue = queue();
        let odd = arithmetic(ArithmeticOp::BitAnd, col(0), int(1, DataType::Int64), DataType::Int64);
        let odd = odd.cast(&DataType::Int64, &DataType::UInt8, true).unwrap();
        let stripping = stripping(&host, &types, &[(col(0), DataType::Int64), (odd, DataType::UInt8)], &options);
        let arguments = block_on(stripping.arguments(&queue, &up(&queue, &host, &types))).unwrap();
        let [values, mask] = arguments.buffers.as_slice() else { panic!("two arguments") };
        let ty = Arc::new(ColumnType::of(&DataType::Int64, true).unwrap());
        let values = Some((values.clone(), Some(mask.clone())));
        let column = block_on(stripping.column(&queue, &arguments, values, ty)).unwrap();
        let schema = arrow::datatypes::Schema::new(vec![Field::new("r", DataType::Int64, true)]);
        let result = down(&queue, &DeviceBatch::try_new(Arc::new(schema), vec![column], 300).unwrap());
        let numbers = host.column(0).as_primitive::<Int64Type>();
        let expected: Int64Array = numbers.iter().map(|number| number.filter(|number| number % 2 == 1)).collect();
        assert_eq!(*result.column(0).as_primitive::<Int64Type>(), expected, "{:?}", options.profile);
    }
}

#[test]
fn calls_without_rows_are_skipped() {
    for options in profiles() {
        let host = table(70);
        let types = natural_types(&host.schema()).unwrap();
        let queue = queue();
        let stripping = stripping(&host, &types, &[(col(3), DataType::Int64)], &options);
        let arguments = block_on(stripping.arguments(&queue, &up(&queue, &host, &types))).unwrap();
        assert_eq!((arguments.count, arguments.buffers.len()), (0, 0));
        assert_eq!(back(&stripping, &arguments).null_count(), 70);
        let values = queue.alloc(8).unwrap();
        let narrow = Arc::new(ColumnType::of(&DataType::Utf8, true).unwrap());
        assert!(block_on(stripping.column(&queue, &arguments, Some((values, None)), narrow)).is_err());
    }
}
