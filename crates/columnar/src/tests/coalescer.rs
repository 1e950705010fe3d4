// SPDX-License-Identifier: Apache-2.0
//! Coalescing of host batches.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, Decimal128Array, DictionaryArray, Int64Array, RecordBatchOptions, StringArray};
use arrow::compute::concat;
use arrow::datatypes::{DataType, Field, Int8Type, Schema, i256};

use super::data::{Nulls, array, dictionary_types, generator, plain_types, random_chunks};
use super::*;
use crate::{BatchCoalescer, Carrier, Error, Layout, file_types};

/// Coalesces arrays as one column of the natural type.
fn coalesce(queue: &Queue, arrays: &[ArrayRef], capacity: usize) -> Result<Vec<DeviceBatch>> {
    let schema = schema_of(&arrays[0]);
    let mut coalescer = BatchCoalescer::new(queue, &schema, &natural_types(&schema)?, capacity);
    arrays.iter().try_for_each(|array| coalescer.push(batch_of(array)))?;
    coalescer.finish()
}

fn down_all(queue: &Queue, batches: &[DeviceBatch]) -> ArrayRef {
    let arrays: Vec<_> = batches.iter().map(|batch| down(queue, batch).unwrap()).collect();
    concat(&arrays.iter().map(AsRef::as_ref).collect::<Vec<_>>()).unwrap()
}

fn decimals(values: impl IntoIterator<Item = Option<i128>>, digits: u8) -> ArrayRef {
    Arc::new(values.into_iter().collect::<Decimal128Array>().with_precision_and_scale(digits, 1).unwrap())
}

#[test]
fn every_type_round_trips_from_chunks() {
    let mut rng = generator();
    for queue in [default_queue(), discrete_queue()] {
        for data_type in plain_types().into_iter().chain(dictionary_types()) {
            for nulls in [Nulls::None, Nulls::Some, Nulls::All] {
                for len in [0, 1, 31, 257] {
                    let array = array(&data_type, len + 7, nulls, &mut rng).slice(7, len);
                    let parts = random_chunks(&array, &mut rng);
                    let batches = coalesce(&queue, &parts, len + 5).unwrap();
                    let case = format!("{data_type}, {len} rows in {} chunks, {nulls:?}", parts.len());
                    if len == 0 {
                        assert!(batches.is_empty(), "{case}");
                        continue;
                    }
                    let [batch] = &batches[..] else { panic!("{case}: {} batches", batches.len()) };
                    assert_eq!(batch.columns()[0].null_count(), Some(array.logical_null_count()), "{case}");
                    assert_same(&down(&queue, batch).unwrap(), &array, &case);
                    assert_same(&down(&queue, &batch.slice(len / 3, len / 2)).unwrap(), &array.slice(len / 3, len / 2), &case);
                }
            }
        }
    }
}

#[test]
fn a_batch_without_columns_has_rows() {
    let schema = Arc::new(Schema::empty());
    let rows = |rows| {
        let options = RecordBatchOptions::new().with_row_count(Some(rows));
        RecordBatch::try_new_with_options(Arc::clone(&schema), vec![], &options).unwrap()
    };
    let mut coalescer = BatchCoalescer::new(&default_queue(), &schema, &[], 10);
    coalescer.push(rows(4)).unwrap();
    coalescer.push(rows(6)).unwrap();
    assert_eq!(coalescer.remaining_rows(), 0);
    assert_eq!(coalescer.finish().unwrap()[0].num_rows(), 10);
}

#[test]
fn the_first_batch_may_have_any_size_and_is_not_copied() {
    let Some(queue) = unified_queue() else { return };
    let array: ArrayRef = Arc::new(Int64Array::from_iter_values(0..1000));
    let before = queue.context().pool().in_use();
    let batches = coalesce(&queue, &[Arc::clone(&array)], 10).unwrap();
    // Only the allocations of any upload.
    let alone = up(&queue, &[Arc::clone(&array)]).unwrap();
    assert_eq!(queue.context().pool().in_use() - before, 0, "the values are where they were");
    assert_same(&down(&queue, &batches[0]).unwrap(), &down(&queue, &alone).unwrap(), "the first");

    // Batches without rows are ignored.
    let parts = [array.slice(0, 0), Arc::clone(&array), array.slice(0, 0)];
    assert_same(&down_all(&queue, &coalesce(&queue, &parts, 10).unwrap()), &array, "among empty ones");
    assert!(coalesce(&queue, &[array.slice(0, 0)], 10).unwrap().is_empty());

    let error = coalesce(&queue, &[array.slice(0, 4), array.slice(4, 7)], 10).unwrap_err();
    assert_eq!(error.to_string(), Error::Malformed("7 rows where there is room for 6".into()).to_string());
}

#[test]
fn capacity_beyond_the_rows_takes_no_memory() {
    for queue in [default_queue(), discrete_queue()] {
        let rows = 1 << 16;
        let parts: Vec<ArrayRef> =
            (0..5).map(|part| Arc::new(Int64Array::from_iter_values(part * rows..(part + 1) * rows)) as ArrayRef).collect();
        let expected: ArrayRef = Arc::new(Int64Array::from_iter_values(0..5 * rows));
        let schema = schema_of(&expected);
        for hint in [0, 1 << 17, 1 << 20] {
            let coalescer = BatchCoalescer::new(&queue, &schema, &natural_types(&schema).unwrap(), 1 << 40);
            let mut coalescer = coalescer.with_expected_rows(hint);
            parts.iter().for_each(|part| coalescer.push(batch_of(part)).unwrap());
            assert_same(&down_all(&queue, &coalescer.finish().unwrap()), &expected, "grown buffers");
        }
    }
}

#[test]
fn decimals_of_files_are_narrow() {
    for queue in [default_queue(), discrete_queue()] {
        for (digits, carrier) in
            [(1, Carrier::I32), (9, Carrier::I32), (10, Carrier::I64), (18, Carrier::I64), (19, Carrier::I128)]
        {
            let greatest = 10i128.pow(digits.into()) - 1;
            let array = decimals((0..40).map(|i| (i % 5 > 0).then_some(if i % 2 == 0 { greatest } else { -greatest })), digits);
            let schema = schema_of(&array);
            let types = file_types(&schema).unwrap();
            assert_eq!(types[0].layout, Layout::Fixed(carrier), "{digits} digits");
            for cuts in [vec![40], vec![10, 30], vec![1, 1, 38]] {
                let mut coalescer = BatchCoalescer::new(&queue, &schema, &types, 40);
                let mut first = 0;
                for rows in &cuts {
                    coalescer.push(batch_of(&array.slice(first, *rows))).unwrap();
                    first += rows;
                }
                let batches = coalescer.finish().unwrap();
                assert_same(&down_all(&queue, &batches), &array, format!("{digits} digits in {cuts:?}"));
            }
        }
        // A value out of the carrier's range is refused, in the only batch and in a later one.
        let longer = decimals([Some(3), Some(1 << 63)], 15);
        let schema = schema_of(&longer);
        let types = file_types(&schema).unwrap();
        for cut in [0, 1] {
            let mut coalescer = BatchCoalescer::new(&queue, &schema, &types, 100);
            let result = coalescer.push(batch_of(&longer.slice(0, cut)));
            let result =
                result.and_then(|()| coalescer.push(batch_of(&longer.slice(cut, 2 - cut)))).and_then(|()| coalescer.finish());
            let error = result.unwrap_err();
            assert!(matches!(error, Error::Range { value, .. } if value == i256::from_i128(1 << 63)), "{error}");
        }
        // A value below a NULL may be out of range.
        let below = Arc::new(
            Decimal128Array::try_new(vec![3, i128::MAX].into(), Some(vec![true, false].into()))
                .unwrap()
                .with_precision_and_scale(15, 1)
                .unwrap(),
        ) as ArrayRef;
        let mut coalescer = BatchCoalescer::new(&queue, &schema, &types, 100);
        coalescer.push(batch_of(&below)).unwrap();
        coalescer.push(batch_of(&below)).unwrap();
        let back = down_all(&queue, &coalescer.finish().unwrap());
        assert_same(&back, &decimals([Some(3), None, Some(3), None], 15), "below NULL");
    }
}

#[test]
fn too_many_distinct_values_give_several_batches() {
    let queue = default_queue();
    let batch = |from: i8| {
        let keys = arrow::array::Int8Array::from_iter_values((0..100).map(|i| i as i8));
        let values = StringArray::from_iter_values((0..100).map(|i| format!("{from}/{i}")));
        let codes = Arc::new(DictionaryArray::<Int8Type>::try_new(keys, Arc::new(values)).unwrap()) as ArrayRef;
        let numbers =
            Arc::new(Int64Array::from_iter((0..100).map(|i| (i % 3 > 0).then_some(i64::from(from) * 1000 + i)))) as ArrayRef;
        let fields = vec![Field::new("d", codes.data_type().clone(), true), Field::new("n", DataType::Int64, true)];
        RecordBatch::try_new(Arc::new(Schema::new(fields)), vec![codes, numbers]).unwrap()
    };
    let host = [batch(1), batch(2), batch(3)];
    let schema = host[0].schema();
    let mut coalescer = BatchCoalescer::new(&queue, &schema, &natural_types(&schema).unwrap(), 1000);
    host.iter().for_each(|batch| coalescer.push(batch.clone()).unwrap());
    let batches = coalescer.finish().unwrap();
    assert_eq!(batches.len(), 3);
    for (batch, host) in batches.iter().zip(&host) {
        let back = block_on(download(&queue, batch)).unwrap();
        assert_same(back.column(0), host.column(0), "codes");
        assert_same(back.column(1), host.column(1), "numbers");
    }
}

#[test]
fn nulls_in_a_non_nullable_column_are_refused() {
    let queue = default_queue();
    let schema = Arc::new(Schema::new(vec![Field::new("x", DataType::Int64, false)]));
    let types = natural_types(&schema).unwrap();
    let nullable: [ArrayRef; 2] = [Arc::new(Int64Array::from(vec![Some(1)])), Arc::new(Int64Array::from(vec![None::<i64>]))];
    let mut coalescer = BatchCoalescer::new(&queue, &schema, &types, 10);
    nullable.iter().for_each(|array| coalescer.push(batch_of(array)).unwrap());
    assert!(matches!(coalescer.finish(), Err(Error::Nulls { null_count: 1, rows: 2, .. })));
}
