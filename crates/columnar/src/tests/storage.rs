// SPDX-License-Identifier: Apache-2.0
//! Batches come back from storage in the layouts that they had.

use std::sync::Arc;

use arrow::array::{ArrayRef, RecordBatch};
use arrow::compute::concat_batches;
use arrow::datatypes::DataType;
use futures::executor::block_on;

use super::data::{Nulls, array, dictionaries_of_plain_types, dictionary_types, generator, list_types, plain_types};
use super::*;
use crate::{ColumnType, StorageFormat};

/// Stores a batch in parts, and compares what comes back.
#[track_caller]
fn check(queue: &Queue, batch: &DeviceBatch, rows: usize, case: &str) {
    let types =
        |batch: &DeviceBatch| -> Vec<ColumnType> { batch.columns().iter().map(|column| column.ty().as_ref().clone()).collect() };
    let format = StorageFormat::of(batch.schema(), &types(batch)).unwrap();
    let columns = format.columns(batch);
    let parts = batch.chunks(rows).map(|part| {
        let stored = block_on(format.store(queue, &part)).unwrap();
        assert_eq!(stored.schema(), *format.stored_schema(), "{case}");
        let restored = format.restore(queue, &stored, &columns).unwrap();
        assert_eq!(types(&restored), types(&part), "{case}");
        block_on(download(queue, &restored)).unwrap()
    });
    let parts: Vec<RecordBatch> = parts.collect();
    let expected = block_on(download(queue, batch)).unwrap();
    assert_eq!(concat_batches(batch.schema(), &parts).unwrap(), expected, "{case}");
}

#[test]
fn every_layout_comes_back() {
    let mut rng = generator();
    for queue in [default_queue(), discrete_queue()] {
        for data_type in plain_types().into_iter().chain(dictionary_types()).chain(dictionaries_of_plain_types()) {
            for nulls in [Nulls::None, Nulls::Some, Nulls::All] {
                for len in [1, 31, 257] {
                    let array = array(&data_type, len + 5, nulls, &mut rng).slice(5, len);
                    let batch = up(&queue, std::slice::from_ref(&array)).unwrap();
                    check(&queue, &batch, 100, &format!("{data_type}, {len} rows, {nulls:?}"));
                }
            }
        }
    }
}

/// Columns of resident tables are narrower than their type, and strings are codes.
#[test]
fn narrow_columns_come_back() {
    let queue = default_queue();
    let columns: Vec<(String, ArrayRef)> = vec![
        ("narrow".into(), Arc::new(arrow::array::Int64Array::from_iter((0..300).map(|i| (i % 7 > 0).then_some(i))))),
        ("coded".into(), Arc::new(arrow::array::StringArray::from_iter_values((0..300).map(|i| format!("term {}", i % 5))))),
        (
            "decimal".into(),
            Arc::new(arrow::array::Decimal128Array::from_iter_values(0..300).with_precision_and_scale(15, 2).unwrap()),
        ),
    ];
    let host = RecordBatch::try_from_iter(columns).unwrap();
    let mut builder = crate::ResidentBuilder::try_new(&queue, &host.schema()).unwrap();
    builder.push(host).unwrap();
    let table = block_on(builder.finish()).unwrap();
    for batch in &table.batches {
        check(&queue, batch, 64, "a resident table");
    }
}

#[test]
fn lists_are_not_stored() {
    for data_type in list_types() {
        let field = arrow::datatypes::Field::new("lists", data_type.clone(), true);
        let schema = Arc::new(arrow::datatypes::Schema::new(vec![field]));
        let types = crate::natural_types(&schema).unwrap();
        assert!(StorageFormat::of(&schema, &types).is_none(), "{data_type}");
    }
    assert!(matches!(list_types().first(), Some(DataType::List(_))));
}
