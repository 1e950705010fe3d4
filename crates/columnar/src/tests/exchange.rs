// SPDX-License-Identifier: Apache-2.0
//! Round trips through device arrays: same memory, same values, everything released.

mod foreign;
mod host;

use std::thread;

use arrow::array::{Array, AsArray, Int32Array, StringViewBuilder, UInt64Array};
use arrow_device::ffi::{ArrowDeviceType, FFI_ArrowDeviceArray};
use arrow_device::{ArrayExport, ImportedArray, cpu, schema};
use device::DriverKind;
use rand::rngs::StdRng;

use super::data::{Nulls, array, dictionary_types, generator, plain_types};
use super::*;
use crate::exchange::{self, exported_device, has_arrow_layout};
use crate::{DeviceColumn, Error, Layout};

fn imported(array: FFI_ArrowDeviceArray, schema: &SchemaRef) -> ImportedArray {
    // SAFETY: this process exported the array.
    unsafe { ImportedArray::import(array, &schema::batch_field(schema)) }.unwrap()
}

fn import(queue: &Queue, array: FFI_ArrowDeviceArray, schema: &SchemaRef) -> Result<DeviceBatch> {
    let all: Vec<usize> = (0..schema.fields().len()).collect();
    block_on(exchange::import(queue, imported(array, schema), schema, &all))
}

/// Asserts that a column shares the memory of another, except for the bases of views.
#[track_caller]
fn assert_same_memory(actual: &DeviceColumn, expected: &DeviceColumn, case: &str) {
    let shared = if expected.ty().layout == Layout::Views { 2 } else { expected.buffers().len() };
    let handles = |column: &DeviceColumn| column.buffers().iter().map(|buffer| buffer.raw().handle).collect::<Vec<_>>();
    for index in (0..shared).filter(|index| !expected.buffers()[*index].is_empty()) {
        assert_eq!(handles(actual)[index], handles(expected)[index], "{case}");
    }
    if let Some((bits, _)) = expected.validity().filter(|_| expected.null_count() != Some(0)) {
        assert_eq!(actual.validity().unwrap().0.raw().handle, bits.raw().handle, "{case}");
    }
}

/// A random array, whose views have at most one variadic buffer.
fn random_array(data_type: &DataType, len: usize, nulls: Nulls, rng: &mut StdRng) -> ArrayRef {
    over_one_buffer(array(data_type, len, nulls, rng))
}

fn over_one_buffer(array: ArrayRef) -> ArrayRef {
    match array.data_type() {
        DataType::Utf8View => Arc::new(array.as_string_view().gc()),
        DataType::BinaryView => Arc::new(array.as_binary_view().gc()),
        DataType::Dictionary(_, _) => {
            let dictionary = array.as_any_dictionary();
            dictionary.with_values(over_one_buffer(Arc::clone(dictionary.values())))
        }
        _ => array,
    }
}

#[test]
fn every_plain_type_keeps_its_memory() {
    let mut rng = generator();
    for queue in [default_queue(), discrete_queue()] {
        let other = queue.context().queue().unwrap();
        for data_type in plain_types() {
            for nulls in [Nulls::None, Nulls::Some, Nulls::All] {
                for len in [1, 31, 257] {
                    let case = format!("{data_type}, {len} rows, {nulls:?}");
                    let array = random_array(&data_type, len, nulls, &mut rng);
                    let batch = up(&queue, std::slice::from_ref(&array)).unwrap();
                    assert!(has_arrow_layout(&batch.columns()[0]), "{case}");
                    let exported = exchange::export(&queue, &batch).unwrap();
                    assert_eq!((exported.device_type, exported.device_id), exported_device(queue.context().info()), "{case}");
                    assert_eq!((exported.array.offset, exported.array.null_count), (0, 0), "{case}");
                    let back = import(&other, exported, batch.schema()).unwrap();
                    assert_same_memory(&back.columns()[0], &batch.columns()[0], &case);
                    assert_eq!(back.columns()[0].null_count(), batch.columns()[0].null_count(), "{case}");
                    assert_same(&down(&other, &back).unwrap(), &array, case);
                }
            }
        }
    }
}

#[test]
fn slices_travel_by_their_offsets() {
    let mut rng = generator();
    let queue = default_queue();
    for data_type in plain_types() {
        let array = random_array(&data_type, 300, Nulls::None, &mut rng);
        let batch = up(&queue, std::slice::from_ref(&array)).unwrap().slice(77, 100);
        let exported = exchange::export(&queue, &batch).unwrap();
        let back = import(&queue, exported, batch.schema()).unwrap();
        assert_same(&down(&queue, &back).unwrap(), &array.slice(77, 100), format!("{data_type}"));
        let inner = back.slice(50, 50);
        let exported = exchange::export(&queue, &inner).unwrap();
        let back = import(&queue, exported, batch.schema()).unwrap();
        assert_same(&down(&queue, &back).unwrap(), &array.slice(127, 50), format!("{data_type} again"));
    }
}

/// R34: an unknown null count is not exported.
#[test]
fn slices_with_uncounted_nulls_do_not_have_arrow_layout() {
    let mut rng = generator();
    let queue = default_queue();
    let array = array(&DataType::Int64, 300, Nulls::Some, &mut rng);
    let batch = up(&queue, &[array]).unwrap().slice(1, 200);
    assert!(!has_arrow_layout(&batch.columns()[0]));
    let error = exchange::export(&queue, &batch).unwrap_err();
    assert_eq!(error.to_string(), "export of column \"x\" (Int64): it does not have Arrow's layout");
}

#[test]
fn dictionaries_keep_their_memory() {
    let mut rng = generator();
    for queue in [default_queue(), discrete_queue()] {
        for data_type in dictionary_types() {
            for (nulls, start, len) in [(Nulls::Some, 0, 100), (Nulls::None, 7, 80)] {
                let case = format!("{data_type}, {nulls:?}");
                let array = random_array(&data_type, 100, nulls, &mut rng);
                let batch = up(&queue, std::slice::from_ref(&array)).unwrap().slice(start, len);
                let exported = exchange::export(&queue, &batch).unwrap();
                let back = import(&queue, exported, batch.schema()).unwrap();
                let (actual, expected) = (&back.columns()[0], &batch.columns()[0]);
                assert_same_memory(actual, expected, &case);
                let values = |column: &DeviceColumn| Arc::clone(column.dictionary().unwrap());
                assert_same_memory(&values(actual), &values(expected), &case);
                assert_same(&down(&queue, &back).unwrap(), &array.slice(start, len), case);
            }
        }
        assert_eq!(queue.context().pool().in_use(), 0);
    }
}

#[test]
fn another_context_gets_a_copy() {
    let (queue, other) = (default_queue(), default_queue());
    if queue.context().info().driver == DriverKind::Cuda {
        println!("skipped: contexts of one GPU share its memory");
        return;
    }
    let mut rng = generator();
    for data_type in plain_types() {
        let array = random_array(&data_type, 5000, Nulls::Some, &mut rng);
        let batch = up(&queue, std::slice::from_ref(&array)).unwrap();
        let exported = exchange::export(&queue, &batch).unwrap();
        let back = import(&other, exported, batch.schema()).unwrap();
        drop(batch);
        assert_same(&down(&other, &back).unwrap(), &array, format!("{data_type}"));
    }
}

#[test]
fn arrays_of_the_host_are_uploaded() {
    let mut rng = generator();
    for queue in [default_queue(), discrete_queue()] {
        for data_type in plain_types().into_iter().chain(dictionary_types()) {
            let array = array(&data_type, 300, Nulls::Some, &mut rng).slice(3, 290);
            let exported = cpu::export_batch(&batch_of(&array)).unwrap();
            let back = import(&queue, exported, &schema_of(&array)).unwrap();
            assert_same(&down(&queue, &back).unwrap(), &array, format!("{data_type}"));
        }
    }
}

#[test]
fn no_rows_arrive_as_no_rows() {
    let queue = default_queue();
    for data_type in plain_types().into_iter().chain(dictionary_types()) {
        let none = arrow::array::new_empty_array(&data_type);
        let batch = up(&queue, std::slice::from_ref(&none)).unwrap();
        let exported = exchange::export(&queue, &batch).unwrap();
        let back = import(&queue, exported, batch.schema()).unwrap();
        assert_eq!(down(&queue, &back).unwrap().len(), 0, "{data_type}");
    }
}

#[test]
fn views_over_several_buffers_are_concatenated_on_the_device() {
    let queue = default_queue();
    let mut builder = StringViewBuilder::new().with_fixed_block_size(64);
    (0..200).for_each(|i| builder.append_value(format!("a string that is long enough for a heap, number {i}")));
    let array: ArrayRef = Arc::new(builder.finish());
    let parts = cpu::export_batch(&batch_of(&array)).unwrap();
    // The same array with each host buffer in a separate device buffer.
    let host = imported(parts, &schema_of(&array));
    let view = host.view().child(0).unwrap();
    let mut owners = Vec::new();
    let buffers = view.buffers().map(|buffer| match buffer.kind {
        arrow_device::BufferKind::VariadicLengths => buffer.ptr,
        _ if buffer.ptr.is_null() => buffer.ptr,
        _ => {
            let len = buffer.len_bytes.unwrap();
            let device = queue.alloc(len).unwrap();
            // SAFETY: the host array is alive and has these bytes.
            queue.write(&device, 0, unsafe { std::slice::from_raw_parts(buffer.ptr.cast(), len) }).unwrap();
            owners.push(device.clone());
            device.raw().handle as *const _
        }
    });
    let column = ArrayExport::new(view.len()).buffers(buffers.collect());
    assert!(owners.len() > 3);
    let (device_type, id) = exported_device(queue.context().info());
    let root = ArrayExport::batch(view.len(), vec![column]).unwrap().owner(Box::new((owners, host)));
    let exported = root.export(device_type, id, std::ptr::null_mut()).unwrap();
    let downloads = queue.context().counters().bytes_down;
    let back = import(&queue, exported, &schema_of(&array)).unwrap();
    assert_eq!(queue.context().counters().bytes_down, downloads);
    assert_same(&down(&queue, &back).unwrap(), &array, "views");
}

/// R30: a consumer may release on any thread. The release frees the memory.
#[test]
fn release_on_another_thread_gives_the_memory_back() {
    let queue = discrete_queue();
    let pool = queue.context().pool().clone();
    let array: ArrayRef = Arc::new(UInt64Array::from_iter_values(0..100_000));
    let batch = up(&queue, &[array]).unwrap();
    let exported = exchange::export(&queue, &batch).unwrap();
    drop(batch);
    block_on(queue.finish()).unwrap();
    assert!(pool.in_use() >= 800_000);
    thread::spawn(move || drop(exported)).join().unwrap();
    assert_eq!(pool.in_use(), 0);
}

#[test]
fn mismatched_arrays_are_refused_and_released() {
    let queue = default_queue();
    let schema: SchemaRef = Arc::new(Schema::new(vec![Field::new("x", DataType::Int32, false)]));
    let (device_type, id) = exported_device(queue.context().info());
    let small = queue.alloc(100).unwrap();
    let column = |len: usize| {
        let values = small.raw().handle as *const _;
        ArrayExport::new(len).buffers(vec![std::ptr::null(), values]).owner(Box::new(small.clone()))
    };
    let export = |root: ArrayExport, device_type| root.export(device_type, id, std::ptr::null_mut()).unwrap();
    let batch = |column: ArrayExport, len| ArrayExport::batch(len, vec![column]).unwrap();

    let error = import(&queue, export(batch(column(1000), 1000), device_type), &schema).unwrap_err().to_string();
    assert!(error.contains("buffer 1 of column \"x\" (Int32) needs 4000 bytes, got"), "{error}");

    let error = import(&queue, export(batch(column(10), 10), ArrowDeviceType::METAL), &schema).unwrap_err().to_string();
    let label = queue.context().info().label();
    assert!(error.contains("its memory is that of METAL") && error.contains(&label), "{error}");

    let bits = queue.filled(8, 0x55).unwrap();
    let nulls = column(10).null_count(Some(5)).buffers(vec![bits.raw().handle as *const _, small.raw().handle as *const _]);
    let refused = import(&queue, export(batch(nulls, 10), device_type), &schema);
    assert!(matches!(refused, Err(Error::Nulls { null_count: 5, rows: 10, .. })), "{refused:?}");

    drop(bits);
    block_on(queue.finish()).unwrap();
    assert_eq!(queue.context().pool().in_use(), small.raw().bytes);
    let fits = import(&queue, export(batch(column(25), 25), device_type), &schema).unwrap();
    assert_eq!(fits.num_rows(), 25);
}

#[test]
fn nullable_columns_without_validity_have_one_for_kernels() {
    let queue = default_queue();
    let host: ArrayRef = Arc::new(Int32Array::from_iter_values(0..70));
    let batch = up(&queue, std::slice::from_ref(&host)).unwrap();
    let exported = exchange::export(&queue, &batch).unwrap();
    let view = imported(exported, batch.schema());
    assert!(view.view().child(0).unwrap().validity().is_none());
    let back = block_on(exchange::import(&queue, view, batch.schema(), &[0])).unwrap();
    assert!(back.columns()[0].validity().is_some());
    assert_eq!(back.columns()[0].null_count(), Some(0));
    assert_same(&down(&queue, &back).unwrap(), &host, "no nulls");
}

/// The struct array has an offset, at any bit of the columns' bitmaps.
#[test]
fn offset_of_the_whole_batch_counts() {
    let mut rng = generator();
    let queue = default_queue();
    for data_type in plain_types() {
        for (offset, len) in [(0, 300), (1, 299), (77, 100), (299, 1), (300, 0)] {
            let array = random_array(&data_type, 300, Nulls::Some, &mut rng);
            let batch = up(&queue, std::slice::from_ref(&array)).unwrap();
            let mut exported = exchange::export(&queue, &batch).unwrap();
            (exported.array.offset, exported.array.length) = (offset as i64, len as i64);
            let back = import(&queue, exported, batch.schema()).unwrap();
            assert_same(&down(&queue, &back).unwrap(), &array.slice(offset, len), format!("{data_type} from {offset} on, {len}"));
        }
    }
}

#[test]
fn event_of_a_device_type_without_events_is_refused() {
    let queue = default_queue();
    let array: ArrayRef = Arc::new(Int32Array::from_iter_values(0..7));
    let mut exported = cpu::export_batch(&batch_of(&array)).unwrap();
    let mut cell = 0u64;
    exported.sync_event = (&raw mut cell).cast();
    let error = import(&queue, exported, &schema_of(&array)).unwrap_err().to_string();
    assert!(error.contains("it has an event, and CPU has none (R22)"), "{error}");
}
