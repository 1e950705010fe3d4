// SPDX-License-Identifier: Apache-2.0
//! Downloads of rows that share elements of lists or strings of dictionaries.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, ListArray, RecordBatch, StringArray};
use arrow::buffer::{Buffer as HostBuffer, OffsetBuffer};
use arrow::compute::concat;
use arrow::datatypes::{DataType, Int64Type};
use bytes::Bytes;
use futures::TryStreamExt;
use rand::Rng;

use super::data::{Nulls, array, generator, list_types};
use super::*;
use crate::download::record_batch::parts_within;
use crate::host_arrays::copied_bytes;
use crate::upload::transfer::all_valid;
use crate::{Carrier, DeviceColumn, Layout};

/// Takes rows of a batch's only list column. The result shares the elements.
fn take_lists(queue: &Queue, batch: &DeviceBatch, rows: &[u32]) -> DeviceBatch {
    let lists = &batch.columns()[0];
    let pairs = block_on(queue.read(&lists.buffers()[0], 0..batch.num_rows() * 8)).unwrap();
    let pairs = HostBuffer::from_slice_ref(pairs);
    let pairs: Vec<u64> = rows.iter().map(|&row| pairs.typed_data::<u64>()[row as usize]).collect();
    let pairs = queue.upload(Bytes::copy_from_slice(&HostBuffer::from_vec(pairs))).unwrap();
    let validity = lists.validity().map(|_| (all_valid(queue, rows.len()).unwrap(), 0));
    let elements = lists.elements().cloned();
    let column = DeviceColumn::try_new(Arc::clone(lists.ty()), rows.len(), vec![pairs], validity, None, elements).unwrap();
    DeviceBatch::try_new(Arc::clone(batch.schema()), vec![column], rows.len()).unwrap()
}

fn parts(queue: &Queue, batch: &DeviceBatch, max_copied_bytes: usize) -> Result<Vec<ArrayRef>> {
    let parts: Vec<RecordBatch> = block_on(parts_within(queue, batch.clone(), max_copied_bytes).try_collect())?;
    Ok(parts.iter().map(|part| Arc::clone(part.column(0))).collect())
}

fn joined(parts: &[ArrayRef]) -> ArrayRef {
    concat(&parts.iter().map(|part| part.as_ref()).collect::<Vec<_>>()).unwrap()
}

#[test]
fn lists_that_share_elements_download_in_parts_of_bounded_bytes() {
    device::skip_unless_turn!(2);
    let mut rng = generator();
    for queue in [default_queue(), discrete_queue()] {
        for data_type in list_types() {
            let lists = array(&data_type, 50, Nulls::None, &mut rng);
            let rows: Vec<u32> = (0..400).map(|_| rng.random_range(0..50)).collect();
            let batch = take_lists(&queue, &up(&queue, &[Arc::clone(&lists)]).unwrap(), &rows);
            // Arrow's `take` loses the rows of lists without elements.
            let expected = joined(&rows.iter().map(|row| lists.slice(*row as usize, 1)).collect::<Vec<_>>());
            for max_copied_bytes in [0, 100, 1 << 20] {
                let case = format!("{data_type} in parts of {max_copied_bytes} bytes");
                let parts = parts(&queue, &batch, max_copied_bytes).unwrap();
                let copied = copied_bytes(&expected, 0..expected.len());
                // Rows that happen to be consecutive need no copies.
                if max_copied_bytes == 100 && copied > 10_000 {
                    assert!(parts.len() > copied / 1000, "{case}: {} parts of {copied} bytes", parts.len());
                }
                assert_same(&joined(&parts), &expected, &case);
            }
        }
    }
}

#[test]
fn one_row_is_never_too_large() {
    let queue = default_queue();
    let elements = array(&DataType::Int64, 1000, Nulls::None, &mut generator());
    let field = Arc::new(Field::new("item", DataType::Int64, true));
    let list: ArrayRef = Arc::new(ListArray::new(field, OffsetBuffer::from_lengths([1000]), Arc::clone(&elements), None));
    let batch = take_lists(&queue, &up(&queue, &[list]).unwrap(), &[0, 0, 0]);
    let parts = parts(&queue, &batch, 8).unwrap();
    assert_eq!(parts.len(), 3);
    for part in &parts {
        assert_eq!(part.as_list::<i32>().values().as_primitive::<Int64Type>(), elements.as_primitive::<Int64Type>());
    }
}

#[test]
fn strings_of_dictionaries_download_in_parts_of_bounded_bytes() {
    for queue in [default_queue(), discrete_queue()] {
        for data_type in [DataType::Utf8, DataType::LargeUtf8, DataType::Binary] {
            let strings = StringArray::from_iter((0..1000).map(|row| (row % 7 != 3).then(|| "term".repeat(row % 5))));
            let strings = cast(&strings, &data_type).unwrap();
            let schema = schema_of(&strings);
            let mut types = natural_types(&schema).unwrap();
            types[0].layout = Layout::Dictionary { codes: Carrier::I32, values: Box::new(types[0].layout.clone()) };
            let batch = upload(&queue, &schema, &types, &[batch_of(&strings)]).unwrap();
            let parts = parts(&queue, &batch, 100).unwrap();
            assert!(parts.len() > 60, "{} parts of {data_type}", parts.len());
            assert_same(&joined(&parts), &strings, &data_type);
        }
    }
}

#[test]
fn an_empty_batch_has_no_parts() {
    let queue = default_queue();
    let batch = up(&queue, &[array(&DataType::Int64, 3, Nulls::None, &mut generator())]).unwrap();
    assert!(parts(&queue, &batch.slice(1, 0), 8).unwrap().is_empty());
    assert_eq!(parts(&queue, &batch, 0).unwrap().len(), 1);
}
