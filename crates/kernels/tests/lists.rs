// SPDX-License-Identifier: Apache-2.0
//! List columns in filters, sorts and windows, and lists of rows, in both profiles.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod support;

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, BooleanArray, Int64Array, RecordBatch, UInt32Array, UInt64Array};
use arrow::compute::{SortOptions, concat_batches, filter_record_batch, take_record_batch};
use arrow::datatypes::{DataType, Field, Int32Type, Int64Type, UInt64Type};
use arrow::row::{RowConverter, SortField};
use columnar::natural_types;
use futures::executor::block_on;
use kernels::expr::{Expr, Literal, LiteralValue};
use kernels::function::Function;
use kernels::ops::{Frame, Input, Sort, SortKey, Window, WindowCall, WindowFunction};
use kernels::support::{must_be_column, supports, supports_output};
use support::*;

fn everything(batch: &RecordBatch) -> Vec<(Expr, Field)> {
    batch.schema().fields().iter().enumerate().map(|(index, field)| (col(index), (**field).clone())).collect()
}

fn index(batch: &RecordBatch, name: &str) -> usize {
    batch.schema().index_of(name).unwrap()
}

#[test]
fn lists_survive_a_filter() {
    for n in SIZES {
        let whole = table_with_lists(0, n + 40);
        let batch = whole.slice(33, n);
        let flag = index(&batch, "flag");
        let flags = batch.column(flag).as_boolean();
        let mask: BooleanArray = (0..n).map(|row| Some(flags.is_valid(row) && flags.value(row))).collect();
        let expected = rows(&filter_record_batch(&batch, &mask).unwrap());
        for options in profiles() {
            let actual = select(&batch, Some(col(flag)), &everything(&batch), &options);
            assert_eq!(rows(&actual), expected, "{n} rows, {:?}", options.profile);
        }
    }
}

#[test]
fn list_is_null_filters() {
    let batch = table_with_lists(0, 1000);
    let list = index(&batch, "views");
    let known = Expr::Not(Arc::new(Expr::IsNull(Arc::new(col(list)))));
    let mask: BooleanArray = (0..1000).map(|row| Some(batch.column(list).is_valid(row))).collect();
    for options in profiles() {
        let actual = select(&batch, Some(known.clone()), &everything(&batch), &options);
        assert_eq!(rows(&actual), rows(&filter_record_batch(&batch, &mask).unwrap()), "{:?}", options.profile);
    }
}

#[test]
fn lists_follow_the_sort_order() {
    device::skip_unless_turn!(4);
    let queue = queue();
    for (n, sizes) in [(0, vec![0]), (1, vec![1]), (700, vec![31, 257, 0, 412]), (SIZES[4], vec![SIZES[4]])] {
        let whole = table_with_lists(0, n);
        let key = index(&whole, "i32");
        let keys = whole.column(key).as_primitive::<Int32Type>();
        let mut order: Vec<u32> = (0..n as u32).collect();
        order.sort_by_key(|row| keys.is_valid(*row as usize).then(|| keys.value(*row as usize)));
        let types = natural_types(&whole.schema()).unwrap();
        let batches = slices(&queue, &whole, &sizes, &types);
        for (options, fetch) in profiles().flat_map(|options| [(options.clone(), None), (options, Some(20))]) {
            let order: UInt32Array = order.iter().copied().take(fetch.unwrap_or(n)).collect();
            let expected = rows(&take_record_batch(&whole, &order).unwrap());
            let input = Input { schema: whole.schema(), types: types.clone(), filter: None };
            let by = vec![SortKey { expr: col(key), descending: false, nulls_first: true }];
            let sort = Sort::try_new(input, by, everything(&whole), fetch, options.clone()).unwrap();
            let sorted = block_on(async {
                let mut state = sort.start();
                for batch in &batches {
                    sort.push(&queue, &mut state, batch).await.unwrap();
                }
                sort.finish(&queue, state).await.unwrap()
            });
            let sorted: Vec<_> = sorted.iter().map(|batch| down(&queue, batch)).collect();
            assert_eq!(rows(&concat_batches(&whole.schema(), &sorted).unwrap()), expected, "{n} rows, {:?}", options.profile);
        }
    }
}

#[test]
fn lists_pass_windows() {
    let queue = queue();
    let whole = table_with_lists(0, 600);
    let types = natural_types(&whole.schema()).unwrap();
    for options in profiles() {
        let input = Input { schema: whole.schema(), types: types.clone(), filter: None };
        let number = WindowCall { function: WindowFunction::RowNumber, frame: Frame::RUNNING };
        let functions = vec![(number, Field::new("number", DataType::UInt64, false))];
        let window = Window::try_new(input, vec![], vec![], everything(&whole), functions, options.clone()).unwrap();
        let numbered = block_on(async {
            let mut state = window.start();
            for batch in slices(&queue, &whole, &[31, 257, 312], &types) {
                window.push(&queue, &mut state, &batch).await.unwrap();
            }
            window.finish(&queue, state).await.unwrap()
        });
        let numbered = down(&queue, &numbered[0]);
        let last = whole.num_columns();
        assert_eq!(rows(&numbered.project(&(0..last).collect::<Vec<_>>()).unwrap()), rows(&whole));
        assert_eq!(numbered.column(last).as_primitive::<UInt64Type>().value(599), 600);
    }
}

/// Each row gets the list of up to three rows from itself on, for every column, over survivors and
/// all rows.
#[test]
fn lists_of_rows() {
    for n in SIZES {
        let source = table_with_lists(0, n);
        let counts: Int64Array = (0..n).map(|row| random(row, 50) as i64 & 3).map(Some).collect();
        let counts: Int64Array = counts.iter().enumerate().map(|(row, count)| count.map(|c| c.min((n - row) as i64))).collect();
        let columns = source.schema_ref().fields().iter().zip(source.columns());
        let columns = columns.map(|(field, column)| (field.name().as_str(), Arc::clone(column), field.is_nullable()));
        let batch = batch(columns.chain([("count", Arc::new(counts.clone()) as ArrayRef, true)]).collect());
        let (flag, count) = (index(&batch, "flag"), index(&batch, "count"));
        let kept = ["i64", "flag", "text", "view", "term", "nothing", "numbers", "nested"];
        let outputs: Vec<(Expr, Field)> = kept
            .iter()
            .map(|name| {
                let item = Arc::new(Field::new("item", batch.column(index(&batch, name)).data_type().clone(), true));
                let data_type = DataType::List(item);
                let arguments = vec![col(index(&batch, name)), col(count)];
                (
                    Expr::Call { function: Function::ListOfRows, arguments, data_type: data_type.clone() },
                    Field::new(*name, data_type, true),
                )
            })
            .collect();
        for filter in [None, Some(col(flag))] {
            let flags = batch.column(flag).as_boolean();
            let rows_kept: Vec<usize> =
                (0..n).filter(|row| filter.is_none() || flags.is_valid(*row) && flags.value(*row)).collect();
            for options in profiles() {
                let actual = select(&batch, filter.clone(), &outputs, &options);
                assert_eq!(actual.num_rows(), rows_kept.len());
                for (at, row) in rows_kept.iter().enumerate().step_by(1 + n / 300) {
                    for (column, name) in actual.columns().iter().zip(kept) {
                        let expected = batch.column(index(&batch, name)).slice(*row, counts.value(*row) as usize);
                        assert_eq!(&column.as_list::<i32>().value(at), &expected, "{name} of row {row}, {:?}", options.profile);
                    }
                }
            }
        }
    }
}

/// A constant list in each row: of every type, empty and NULL, over survivors and all rows.
#[test]
fn literal_lists() {
    let names = ["i64", "flag", "text", "view", "term", "nothing", "numbers", "nested"];
    let elements = table_with_lists(7, 5);
    for n in SIZES {
        let batch = table_with_lists(0, n);
        let flag = index(&batch, "flag");
        let flags = batch.column(flag).as_boolean();
        let mut expected: Vec<Option<ArrayRef>> = Vec::new();
        let mut outputs = Vec::new();
        for name in names {
            let all = elements.column(index(&elements, name));
            let data_type = DataType::List(Arc::new(Field::new("item", all.data_type().clone(), true)));
            for own in [Some(all.slice(1, 4)), Some(all.slice(0, 0)), None] {
                let value = own.clone().map_or(LiteralValue::Null, LiteralValue::List);
                outputs.push((
                    Expr::Literal(Literal { data_type: data_type.clone(), value }),
                    Field::new(name, data_type.clone(), true),
                ));
                expected.push(own);
            }
        }
        for filter in [None, Some(col(flag))] {
            let kept = (0..n).filter(|row| filter.is_none() || flags.is_valid(*row) && flags.value(*row)).count();
            for options in profiles() {
                let actual = select(&batch, filter.clone(), &outputs, &options);
                assert_eq!(actual.num_rows(), kept);
                for (column, own) in actual.columns().iter().zip(&expected) {
                    for row in (0..kept).step_by(1 + kept / 5).chain(kept.checked_sub(1)) {
                        let list = column.is_valid(row).then(|| column.as_list::<i32>().value(row));
                        assert_eq!(&list, own, "row {row} of {}, {:?}", column.data_type(), options.profile);
                    }
                }
            }
        }
    }
}

#[test]
fn packed_list_views_are_numbers() {
    let batch = table_with_lists(0, 300);
    let list = index(&batch, "numbers");
    let word = Expr::Call { function: Function::ListView, arguments: vec![col(list)], data_type: DataType::UInt64 };
    let lists = batch.column(list).as_list::<i32>();
    for options in profiles() {
        let words = select(&batch, None, &[(word.clone(), Field::new("word", DataType::UInt64, true))], &options);
        let words = words.column(0).as_primitive::<UInt64Type>();
        for row in 0..300 {
            assert_eq!(words.is_valid(row), lists.is_valid(row));
            if words.is_valid(row) {
                let elements = lists.value(row);
                assert_eq!(words.value(row) >> 32, elements.as_primitive::<Int64Type>().len() as u64);
            }
        }
    }
}

#[test]
fn lengths_of_lists() {
    for n in SIZES {
        let batch = table_with_lists(0, n);
        for name in ["numbers", "sure_lists", "nested", "pairs"] {
            let list = index(&batch, name);
            let length = Expr::Call { function: Function::ListLength, arguments: vec![col(list)], data_type: DataType::UInt64 };
            let column = batch.column(list);
            let length_of = |row: usize| match column.data_type() {
                DataType::List(_) => column.as_list::<i32>().value_length(row) as u64,
                DataType::LargeList(_) => column.as_list::<i64>().value_length(row) as u64,
                _ => 2,
            };
            let expected: UInt64Array = (0..n).map(|row| column.is_valid(row).then(|| length_of(row))).collect();
            for options in profiles() {
                let lengths = select(&batch, None, &[(length.clone(), Field::new("n", DataType::UInt64, true))], &options);
                assert_eq!(lengths.column(0).as_primitive::<UInt64Type>(), &expected, "{name}, {:?}", options.profile);
            }
        }
    }
}

/// Arrow's row format places NULL elements as NULLs of the column.
#[test]
fn list_keys_sort_as_lists() {
    for n in [1, 600] {
        let batch = table_with_lists(0, n);
        for name in ["numbers", "flags", "views", "terms", "decimals", "sure_lists", "texts", "nested", "pairs"] {
            let (list, column) = (index(&batch, name), batch.column_by_name(name).unwrap());
            for nulls_first in [false, true] {
                let order = SortOptions { descending: false, nulls_first };
                let of_column = SortField::new_with_options(column.data_type().clone(), order);
                let converter = RowConverter::new(vec![of_column]).unwrap();
                let rows = converter.convert_columns(&[Arc::clone(column)]).unwrap();
                let (function, arguments) = (Function::ListKey { nulls_first }, vec![col(list)]);
                let key = Expr::Call { function, arguments, data_type: DataType::LargeBinary };
                for options in profiles() {
                    let keys = select(&batch, None, &[(key.clone(), Field::new("key", DataType::LargeBinary, true))], &options);
                    let keys = keys.column(0).as_binary::<i64>();
                    for row in 0..n {
                        assert_eq!(keys.is_valid(row), column.is_valid(row));
                        for other in (0..n).filter(|other| column.is_valid(row) && column.is_valid(*other)) {
                            let (own, theirs) = (keys.value(row), keys.value(other));
                            let expected = rows.row(row).cmp(&rows.row(other));
                            assert_eq!(own.cmp(theirs), expected, "{name}, rows {row} and {other}, {:?}", options.profile);
                        }
                    }
                }
            }
        }
    }
}

#[test]
fn lists_are_outputs_only() {
    let schema = table_with_lists(0, 1).schema();
    let list = schema.index_of("numbers").unwrap();
    assert!(supports_output(&col(list), &schema).is_ok() && !must_be_column(&col(list), &schema));
    let reason = supports(&col(list), &schema).unwrap_err();
    assert!(reason.contains("List(Int64) within another operation"), "{reason}");
    for expr in [Expr::Coalesce(vec![col(list), col(list)]), compare(kernels::expr::CompareOp::Eq, col(list), col(list))] {
        assert!(supports_output(&expr, &schema).is_err(), "{expr:?}");
    }
    let data_type = schema.field(list).data_type().clone();
    let all = Expr::Call { function: Function::ListOfRows, arguments: vec![col(0), col(0)], data_type };
    assert!(must_be_column(&all, &schema));
}
