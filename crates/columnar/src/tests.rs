// SPDX-License-Identifier: Apache-2.0
//! Tests on a real device: OpenCL on the CPU, or the choice of `DEVICEFUSION_TEST_DEVICE`.
//!
//! Most tests run twice: with the device's own memory model and without unified memory.

mod coalescer;
mod data;
mod exchange;
mod faults;
mod fuzz;
mod layouts;
mod parts;
mod resident;
mod round_trip;
mod storage;

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, RecordBatch};
use arrow::compute::cast;
use arrow::datatypes::{DataType, Field, FieldRef, Schema, SchemaRef};
use device::testing::{self, FaultPlan};
use device::{Context, DeviceConfig, Queue};
use futures::executor::block_on;

use crate::{DeviceBatch, Result, download, natural_types, upload};

fn config() -> DeviceConfig {
    testing::config().unwrap()
}

/// A queue of the device, which on a CPU has unified memory.
fn default_queue() -> Queue {
    let context = Context::new(config()).expect("the tests need a device; for OpenCL on a CPU install pocl-opencl-icd");
    context.queue().unwrap()
}

/// A queue of the device if it has unified memory.
fn unified_queue() -> Option<Queue> {
    let queue = default_queue();
    if !queue.context().info().unified_memory {
        println!("skipped: {} has memory of its own", queue.context().info().label());
        return None;
    }
    Some(queue)
}

/// A queue of the device, which reports no unified memory.
fn discrete_queue() -> Queue {
    let plan = FaultPlan::masking(|info| info.unified_memory = false);
    Context::new(config().with_wrap(plan.wrap())).unwrap().queue().unwrap()
}

fn schema_of(array: &ArrayRef) -> SchemaRef {
    Arc::new(Schema::new(vec![Field::new("x", array.data_type().clone(), true)]))
}

fn batch_of(array: &ArrayRef) -> RecordBatch {
    RecordBatch::try_new(schema_of(array), vec![Arc::clone(array)]).unwrap()
}

/// Uploads arrays as one column of the natural type.
fn up(queue: &Queue, arrays: &[ArrayRef]) -> Result<DeviceBatch> {
    let schema = schema_of(&arrays[0]);
    let batches: Vec<_> = arrays.iter().map(batch_of).collect();
    upload(queue, &schema, &natural_types(&schema)?, &batches)
}

/// Downloads a batch's only column.
fn down(queue: &Queue, batch: &DeviceBatch) -> Result<ArrayRef> {
    let batch = block_on(download(queue, batch))?;
    assert_eq!(batch.num_columns(), 1);
    Ok(Arc::clone(batch.column(0)))
}

/// Asserts that two arrays have the same type and values. Dictionary codes may differ.
#[track_caller]
fn assert_same(actual: &ArrayRef, expected: &ArrayRef, case: impl std::fmt::Display) {
    assert_eq!(actual.data_type(), expected.data_type(), "{case}");
    assert_eq!(actual.len(), expected.len(), "{case}");
    let plain = |array: &ArrayRef| match without_dictionaries(array.data_type()) {
        plain if plain == *array.data_type() => Arc::clone(array),
        plain => cast(array, &plain).unwrap_or_else(|error| panic!("{case}: {error}")),
    };
    let (actual, expected) = (plain(actual), plain(expected));
    if actual.to_data() == expected.to_data() {
        return;
    }
    let row = (0..actual.len()).find(|&row| actual.slice(row, 1).to_data() != expected.slice(row, 1).to_data());
    let row = row.unwrap();
    panic!("{case}: row {row} is {:?}, expected {:?}", actual.slice(row, 1), expected.slice(row, 1));
}

/// The type with the values of dictionaries, also within lists.
fn without_dictionaries(data_type: &DataType) -> DataType {
    let item = |item: &FieldRef| Arc::new(item.as_ref().clone().with_data_type(without_dictionaries(item.data_type())));
    match data_type {
        DataType::Dictionary(_, value) => without_dictionaries(value),
        DataType::List(element) => DataType::List(item(element)),
        DataType::LargeList(element) => DataType::LargeList(item(element)),
        DataType::FixedSizeList(element, size) => DataType::FixedSizeList(item(element), *size),
        other => other.clone(),
    }
}
