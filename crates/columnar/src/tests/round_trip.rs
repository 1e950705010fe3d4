// SPDX-License-Identifier: Apache-2.0
//! Exact round trips through device memory.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, Int64Array, RecordBatch, RecordBatchOptions, StringViewArray};
use arrow::compute::concat;
use arrow::datatypes::{DataType, Field, Int64Type, Schema};
use futures::executor::block_on;
use rand::Rng;

use super::data::{
    Nulls, array, dictionaries_of_plain_types, dictionary_types, generator, list_types, plain_types, random_chunks,
};
use super::*;
use crate::Error;
use crate::upload::transfer::all_valid;

const SLICES: [usize; 5] = [0, 1, 7, 8, 33];

fn every_type() -> Vec<DataType> {
    plain_types().into_iter().chain(dictionary_types()).chain(list_types()).collect()
}

#[test]
fn every_type_round_trips() {
    let mut rng = generator();
    for queue in [default_queue(), discrete_queue()] {
        for data_type in every_type() {
            for nulls in [Nulls::None, Nulls::Some, Nulls::All] {
                for (len, slice) in [0, 1, 31, 257].into_iter().flat_map(|len| SLICES.map(|slice| (len, slice))) {
                    let array = array(&data_type, len + slice, nulls, &mut rng).slice(slice, len);
                    let batch = up(&queue, std::slice::from_ref(&array)).unwrap();
                    let case = format!("{data_type}, {len} rows from {slice} on, {nulls:?}");
                    assert_eq!(batch.columns()[0].null_count(), Some(array.logical_null_count()), "{case}");
                    assert_same(&down(&queue, &batch).unwrap(), &array, case);
                }
            }
        }
    }
}

#[test]
fn dictionaries_of_every_type_round_trip() {
    let mut rng = generator();
    for queue in [default_queue(), discrete_queue()] {
        for data_type in dictionaries_of_plain_types() {
            for nulls in [Nulls::None, Nulls::Some, Nulls::All] {
                let array = array(&data_type, 300, nulls, &mut rng).slice(9, 290);
                for parts in [vec![Arc::clone(&array)], random_chunks(&array, &mut rng)] {
                    let batch = up(&queue, &parts).unwrap();
                    assert_same(&down(&queue, &batch).unwrap(), &array, format!("{data_type}, {nulls:?}"));
                }
            }
        }
    }
}

#[test]
fn every_type_round_trips_in_large_batches() {
    device::skip_unless_turn!(0);
    let mut rng = generator();
    let len = (1 << 17) + 1;
    let queues = [default_queue(), discrete_queue()];
    for data_type in every_type() {
        for nulls in [Nulls::None, Nulls::Some, Nulls::All] {
            // Copies of a smaller array are quicker to generate.
            let part = array(&data_type, 4099, nulls, &mut rng);
            let all = concat(&vec![&*part as &dyn Array; 33]).unwrap();
            for queue in &queues {
                let slice = SLICES[rng.random_range(0..SLICES.len())];
                let array = all.slice(slice, len);
                let batch = up(queue, std::slice::from_ref(&array)).unwrap();
                assert_same(&down(queue, &batch).unwrap(), &array, format!("{data_type} from {slice} on, {nulls:?}"));
            }
        }
    }
}

#[test]
fn several_host_batches_become_one() {
    let mut rng = generator();
    for queue in [default_queue(), discrete_queue()] {
        for data_type in every_type() {
            for nulls in [Nulls::None, Nulls::Some, Nulls::All] {
                let mut parts = vec![];
                for nulls in [nulls, Nulls::None, nulls] {
                    let array = array(&data_type, 300, nulls, &mut rng);
                    parts.extend(random_chunks(&array, &mut rng));
                }
                let expected = concat(&parts.iter().map(|part| &**part as &dyn Array).collect::<Vec<_>>());
                let expected = expected.unwrap_or_else(|error| panic!("{data_type}: {error}"));
                let batch = up(&queue, &parts).unwrap();
                assert_eq!(batch.num_rows(), 900);
                assert_same(&down(&queue, &batch).unwrap(), &expected, format!("{data_type}, {nulls:?}"));
            }
        }
    }
}

#[test]
fn slices_on_the_device_are_slices_on_the_host() {
    let mut rng = generator();
    for queue in [default_queue(), discrete_queue()] {
        for data_type in every_type() {
            for nulls in [Nulls::None, Nulls::Some, Nulls::All] {
                let array = array(&data_type, 257 + 3, nulls, &mut rng).slice(3, 257);
                let batch = up(&queue, std::slice::from_ref(&array)).unwrap();
                for (from, len) in [(0, 257), (0, 0), (257, 9), (1, 31), (8, 64), (33, 500)] {
                    let (slice, left) = (batch.slice(from, len).slice(1, 60), len.min(257 - from));
                    let expected = array.slice(from, left);
                    let expected = expected.slice(1.min(left), left.saturating_sub(1).min(60));
                    assert_same(&down(&queue, &slice).unwrap(), &expected, format!("{data_type} {from}+{len}, {nulls:?}"));
                    let known = slice.columns()[0].null_count();
                    assert!(known.is_none_or(|count| count == expected.logical_null_count()), "{data_type}: {known:?}");
                }
            }
        }
    }
}

#[test]
fn batches_without_columns_keep_their_rows() {
    let queue = default_queue();
    let schema = Arc::new(Schema::empty());
    let options = RecordBatchOptions::new().with_row_count(Some(7));
    let host = RecordBatch::try_new_with_options(Arc::clone(&schema), vec![], &options).unwrap();
    let batch = upload(&queue, &schema, &[], &[host.clone(), host]).unwrap();
    assert_eq!(block_on(download(&queue, &batch)).unwrap().num_rows(), 14);
    assert_eq!(upload(&queue, &schema, &[], &[]).unwrap().num_rows(), 0);
}

#[test]
fn projections_share_and_reorder_columns() {
    let queue = default_queue();
    let schema = Arc::new(Schema::new(vec![Field::new("a", DataType::Int64, false), Field::new("b", DataType::Utf8View, true)]));
    let columns: Vec<ArrayRef> = vec![
        Arc::new(Int64Array::from(vec![1, 2, 3])),
        Arc::new(StringViewArray::from(vec![Some("a string longer than a view"), None, Some("c")])),
    ];
    let host = RecordBatch::try_new(Arc::clone(&schema), columns).unwrap();
    let batch = upload(&queue, &schema, &natural_types(&schema).unwrap(), std::slice::from_ref(&host)).unwrap();
    let projected = batch.project(&[1, 0, 1]).unwrap();
    assert_eq!(block_on(download(&queue, &projected)).unwrap(), host.project(&[1, 0, 1]).unwrap());
    assert_eq!(projected.memory_bytes(), batch.memory_bytes());
    assert_eq!(batch.project(&[0]).unwrap().memory_bytes(), 24);
    assert!(batch.project(&[2]).is_err());
}

#[test]
fn a_single_batch_is_not_copied_with_unified_memory() {
    let Some(queue) = unified_queue() else { return };
    let array: ArrayRef = Arc::new(Int64Array::from_iter_values(0..1000));
    let batch = up(&queue, &[array.slice(5, 900)]).unwrap();
    let address = array.as_primitive::<Int64Type>().values()[5..].as_ptr() as usize;
    assert_eq!(batch.columns()[0].buffers()[0].raw().host, address);
    let back = down(&queue, &batch).unwrap();
    assert_eq!(back.as_primitive::<Int64Type>().values().as_ptr() as usize, address);
}

#[test]
fn columns_without_nulls_share_one_validity_bitmap() {
    if let Some(queue) = unified_queue() {
        let array: ArrayRef = Arc::new(Int64Array::from_iter_values(0..1000));
        let (one, other) = (up(&queue, &[array.slice(0, 300)]).unwrap(), up(&queue, &[array.slice(7, 200)]).unwrap());
        let host = |batch: &DeviceBatch| batch.columns()[0].validity().unwrap().0.raw().host;
        assert_eq!(host(&one), host(&other));
    }
    for queue in [default_queue(), discrete_queue()] {
        let bits = all_valid(&queue, 1001).unwrap();
        assert!(bits.len() >= 126);
        let bytes = block_on(queue.read(&bits, 0..126)).unwrap();
        assert!(bytes.iter().all(|&byte| byte == 0xff));
    }
}

#[test]
fn nulls_in_a_non_nullable_column_are_refused_by_name() {
    let queue = default_queue();
    let schema = Arc::new(Schema::new(vec![Field::new("x", DataType::Int64, true)]));
    let mut types = natural_types(&schema).unwrap();
    types[0].nullable = false;
    let host = batch_of(&(Arc::new(Int64Array::from(vec![Some(1), None])) as ArrayRef));
    let error = upload(&queue, &schema, &types, &[host.slice(0, 1), host.clone()]).unwrap_err();
    assert_eq!(error.to_string(), "column \"x\" is declared non-nullable but 1 of 3 rows are NULL");
    let batch = upload(&queue, &schema, &types, &[host.slice(0, 1)]).unwrap();
    assert!(batch.columns()[0].validity().is_none());
    assert_same(&down(&queue, &batch).unwrap(), &host.column(0).slice(0, 1), "a batch without NULLs");
}

#[test]
fn unsupported_types_are_named() {
    let item = Arc::new(Field::new("item", DataType::Int32, true));
    let structs = DataType::Struct(vec![Arc::clone(&item)].into());
    let list = DataType::List(Arc::new(Field::new("item", structs.clone(), true)));
    for other in [structs, list, DataType::ListView(item)] {
        let schema = Schema::new(vec![Field::new("a", DataType::Int32, true), Field::new("b", other, true)]);
        let error = natural_types(&schema).unwrap_err();
        assert!(matches!(&error, Error::Unsupported { column, .. } if column == "b"), "{error}");
    }
}

#[test]
fn batches_of_another_type_are_refused() {
    let queue = default_queue();
    let (ints, strings) = (array(&DataType::Int32, 3, Nulls::None, &mut generator()), StringViewArray::from(vec!["a"]));
    let schema = schema_of(&ints);
    let strings: ArrayRef = Arc::new(strings);
    let error = upload(&queue, &schema, &natural_types(&schema).unwrap(), &[batch_of(&strings)]).unwrap_err();
    assert_eq!(error.to_string(), "column \"x\": expected Int32, got Utf8View");
}
