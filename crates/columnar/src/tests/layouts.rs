// SPDX-License-Identifier: Apache-2.0
//! Layouts other than the natural one, and the invariants of columns.

use std::sync::Arc;

use arrow::array::{
    Array, ArrayData, ArrayRef, AsArray, Decimal128Array, DictionaryArray, Int8Array, Int32Array, Int64Array, StringArray,
    StringViewArray, UInt64Array, make_array,
};
use arrow::buffer::{Buffer as HostBuffer, NullBuffer, ScalarBuffer};
use arrow::compute::{cast, concat};
use arrow::datatypes::{DataType, Field, Int8Type, Schema, i256};
use bytes::Bytes;
use device::Buffer;

use super::data::{Nulls, array, few_strings, generator, random_chunks};
use super::*;
use crate::{Carrier, ColumnType, DeviceColumn, Error, Layout};

/// Uploads arrays in a layout.
fn up_as(queue: &Queue, layout: &Layout, arrays: &[ArrayRef]) -> Result<DeviceBatch> {
    let schema = schema_of(&arrays[0]);
    let mut types = natural_types(&schema)?;
    types[0].layout = layout.clone();
    upload(queue, &schema, &types, &arrays.iter().map(batch_of).collect::<Vec<_>>())
}

fn read(queue: &Queue, buffer: &Buffer) -> Bytes {
    block_on(queue.read(buffer, 0..buffer.len())).unwrap()
}

fn values<T: arrow::datatypes::ArrowNativeType>(queue: &Queue, buffer: &Buffer) -> Vec<T> {
    let bytes = HostBuffer::from_slice_ref(read(queue, buffer));
    bytes.typed_data::<T>().to_vec()
}

fn dictionary(codes: Carrier, values: Layout) -> Layout {
    Layout::Dictionary { codes, values: Box::new(values) }
}

#[test]
fn strings_round_trip_from_every_layout() {
    use DataType::*;
    let mut rng = generator();
    let layouts = [
        Layout::Offsets32,
        Layout::Offsets64,
        Layout::Views,
        dictionary(Carrier::U16, Layout::Offsets32),
        dictionary(Carrier::I32, Layout::Offsets64),
        dictionary(Carrier::U64, Layout::Views),
    ];
    for queue in [default_queue(), discrete_queue()] {
        for data_type in [Utf8, LargeUtf8, Utf8View, Binary, LargeBinary, BinaryView] {
            for layout in &layouts {
                for nulls in [Nulls::None, Nulls::Some, Nulls::All] {
                    let array = array(&data_type, 300, nulls, &mut rng).slice(9, 290);
                    for parts in [vec![Arc::clone(&array)], random_chunks(&array, &mut rng)] {
                        let batch = up_as(&queue, layout, &parts).unwrap();
                        let case = format!("{data_type} as {layout:?}, {nulls:?}, {} chunks", parts.len());
                        assert_same(&down(&queue, &batch).unwrap(), &array, &case);
                        assert_same(&down(&queue, &batch.slice(33, 77)).unwrap(), &array.slice(33, 77), &case);
                    }
                }
            }
        }
    }
}

#[test]
fn integers_round_trip_from_narrow_carriers() {
    use Carrier::*;
    let mut rng = generator();
    let types = [
        (DataType::Decimal128(15, 2), [I64, I32, I16, I8]),
        (DataType::Decimal256(40, 2), [I256, I128, I64, I8]),
        (DataType::Decimal64(15, 2), [I64, I32, I16, I8]),
        (DataType::Int64, [I64, I32, I16, I8]),
        (DataType::UInt64, [U64, U32, U16, U8]),
        (DataType::Date32, [I32, I32, I16, I8]),
        (DataType::Date64, [I64, I128, U64, U8]),
    ];
    for queue in [default_queue(), discrete_queue()] {
        for (data_type, carriers) in &types {
            for nulls in [Nulls::None, Nulls::Some] {
                // Values from 0 to 127 fit every carrier. Values below the NULLs do not.
                let garbage = array(data_type, 200, Nulls::None, &mut rng);
                let width = data_type.primitive_width().unwrap();
                let bytes: Vec<u8> = (0..128).flat_map(|value| i256::from_i128(value).to_le_bytes()[..width].to_vec()).collect();
                let small = ArrayData::builder(data_type.clone()).len(128).add_buffer(HostBuffer::from_vec(bytes));
                let small = make_array(small.align_buffers(true).build().unwrap());
                let all = concat(&[&small, &garbage]).unwrap();
                let array = match nulls {
                    Nulls::None => small,
                    _ => super::data::with_nulls(
                        &all,
                        Some(NullBuffer::from_iter((0..all.len()).map(|row| row < small.len() && row % 7 != 0))),
                    ),
                };
                for carrier in carriers {
                    let parts = [array.slice(0, 1), array.slice(1, array.len() - 1)];
                    let batch = up_as(&queue, &Layout::Fixed(*carrier), &parts).unwrap();
                    let column = &batch.columns()[0];
                    assert_eq!(column.buffers()[0].len(), array.len() * carrier.width());
                    assert_same(&down(&queue, &batch).unwrap(), &array, format!("{data_type} as {carrier:?}, {nulls:?}"));
                }
            }
        }
    }
}

/// Kernels compute plain values for a dictionary type.
#[test]
fn plain_values_round_trip_as_dictionaries() {
    let mut rng = generator();
    let queue = default_queue();
    for data_type in super::data::plain_types() {
        // arrow-rs loses the rows of a dictionary of empty values.
        if data_type == DataType::FixedSizeBinary(0) {
            continue;
        }
        for nulls in [Nulls::None, Nulls::Some, Nulls::All] {
            let array = array(&data_type, 100, nulls, &mut rng);
            let plain = up(&queue, std::slice::from_ref(&array)).unwrap();
            let column = &plain.columns()[0];
            let packed = DataType::Dictionary(Box::new(DataType::Int16), Box::new(data_type.clone()));
            let ty = ColumnType { data_type: packed.clone(), ..column.ty().as_ref().clone() };
            let validity = column.validity().map(|(bits, offset)| (bits.clone(), offset));
            let computed = DeviceColumn::try_new(Arc::new(ty), 100, column.buffers().to_vec(), validity, None, None).unwrap();
            let schema = Arc::new(Schema::new(vec![Field::new("x", packed.clone(), true)]));
            let batch = DeviceBatch::try_new(schema, vec![computed], 100).unwrap();
            let down = down(&queue, &batch.slice(7, 80)).unwrap();
            assert_eq!(down.data_type(), &packed);
            assert_same(&cast(&down, &data_type).unwrap(), &array.slice(7, 80), packed.to_string());
        }
    }
}

#[test]
fn values_outside_their_carrier_are_named() {
    let queue = default_queue();
    let array: ArrayRef = Arc::new(Decimal128Array::from(vec![1, -1, 1 << 31]));
    let error = up_as(&queue, &Layout::Fixed(Carrier::I32), &[array]).unwrap_err();
    assert_eq!(error.to_string(), "column \"x\" (Decimal128(38, 10)): 2147483648 does not fit i32");
    let array: ArrayRef = Arc::new(Int64Array::from(vec![Some(1), None, Some(-1)]));
    let error = up_as(&queue, &Layout::Fixed(Carrier::U64), &[array]).unwrap_err();
    assert_eq!(error.to_string(), "column \"x\" (Int64): -1 does not fit u64");
    let array: ArrayRef = Arc::new(UInt64Array::from(vec![u64::MAX]));
    assert!(matches!(up_as(&queue, &Layout::Fixed(Carrier::I64), &[array]).unwrap_err(), Error::Range { .. }));
}

#[test]
fn layouts_that_cannot_hold_a_type_are_refused() {
    let queue = default_queue();
    let array: ArrayRef = Arc::new(Int64Array::from(vec![1]));
    for layout in [Layout::Bits, Layout::Views, Layout::Bytes(8), Layout::Null, Layout::Fixed(Carrier::F64)] {
        assert!(matches!(up_as(&queue, &layout, std::slice::from_ref(&array)).unwrap_err(), Error::Malformed(_)), "{layout:?}");
    }
}

#[test]
fn dictionaries_are_unified() {
    let mut rng = generator();
    for queue in [default_queue(), discrete_queue()] {
        // Repeated and NULL values, and a key out of range below a NULL.
        let repeated: ArrayRef = Arc::new(StringArray::from(vec![Some("b"), None, Some("a"), Some("b"), Some("unused")]));
        let keys = Int8Array::new(vec![3, 0, 1, 2, 99].into(), Some(vec![true, true, true, true, false].into()));
        let one: ArrayRef = Arc::new(DictionaryArray::<Int8Type>::new(keys, repeated));
        let other: ArrayRef = Arc::new(vec![Some("a"), Some("c"), None].into_iter().collect::<DictionaryArray<Int8Type>>());
        let batch = up(&queue, &[one, other]).unwrap();
        let column = &batch.columns()[0];
        assert_eq!(column.null_count(), Some(3));
        assert_eq!(values_of(&queue, column), ["b", "a", "unused", "c"]);
        assert_eq!(values::<i8>(&queue, &column.buffers()[0]), [0, 0, 0, 1, 0, 1, 3, 0]);
        let expected: DictionaryArray<Int8Type> =
            [Some("b"), Some("b"), None, Some("a"), None, Some("a"), Some("c"), None].into_iter().collect();
        assert_same(&down(&queue, &batch).unwrap(), &(Arc::new(expected) as ArrayRef), "unified");

        // All chunks share one dictionary.
        let array = few_strings(&DataType::Dictionary(Box::new(DataType::Int32), Box::new(DataType::Utf8View)), 9, 500, &mut rng);
        let batch = up(&queue, &random_chunks(&array, &mut rng)).unwrap();
        assert_eq!(batch.columns()[0].dictionary().unwrap().len(), array.as_any_dictionary().values().len());
        assert_same(&down(&queue, &batch).unwrap(), &array, "shared");
    }
}

fn values_of(queue: &Queue, column: &DeviceColumn) -> Vec<String> {
    let dictionary = column.dictionary().unwrap();
    assert!(!dictionary.ty().nullable);
    let schema = Arc::new(Schema::new(vec![Field::new("x", dictionary.ty().data_type.clone(), false)]));
    let batch = DeviceBatch::try_new(schema, vec![(**dictionary).clone()], dictionary.len()).unwrap();
    let values = down(queue, &batch).unwrap();
    values.as_string::<i32>().iter().map(|value| value.unwrap().to_owned()).collect()
}

#[test]
fn a_dictionary_that_meets_the_invariants_is_not_copied() {
    let Some(queue) = unified_queue() else { return };
    let array: ArrayRef = Arc::new(vec![Some("a"), None, Some("b")].into_iter().collect::<DictionaryArray<Int8Type>>());
    let batch = up(&queue, std::slice::from_ref(&array)).unwrap();
    let keys = array.as_dictionary::<Int8Type>().keys().values().as_ptr() as usize;
    assert_eq!(batch.columns()[0].buffers()[0].raw().host, keys);
}

#[test]
fn empty_dictionaries_have_a_value_to_read() {
    for queue in [default_queue(), discrete_queue()] {
        let keys = Int8Array::new(vec![5, -1].into(), Some(NullBuffer::new_null(2)));
        for value in [DataType::Utf8, DataType::Utf8View, DataType::Boolean, DataType::Int64, DataType::FixedSizeBinary(3)] {
            let nothing = arrow::array::new_empty_array(&value);
            let array: ArrayRef = Arc::new(DictionaryArray::<Int8Type>::new(keys.clone(), nothing));
            let batch = up(&queue, std::slice::from_ref(&array)).unwrap();
            let column = &batch.columns()[0];
            assert_eq!(column.dictionary().unwrap().len(), 1);
            assert_eq!(values::<i8>(&queue, &column.buffers()[0]), [0, 0]);
            assert_same(&down(&queue, &batch).unwrap(), &array, "all NULL");
        }
    }
}

#[test]
fn dictionaries_that_grow_beyond_their_keys_say_so() {
    let queue = default_queue();
    let part = |from: usize| -> ArrayRef {
        let strings: Vec<String> = (from..from + 100).map(|n| n.to_string()).collect();
        Arc::new(strings.iter().map(|s| Some(s.as_str())).collect::<DictionaryArray<Int8Type>>())
    };
    assert!(up(&queue, &[part(0), part(20)]).is_ok());
    let error = up(&queue, &[part(0), part(100)]).unwrap_err();
    assert_eq!(
        error.to_string(),
        "column \"x\" (Dictionary(Int8, Utf8)): 200 distinct values in the dictionary, limit 128; lower device.batch_rows"
    );
}

/// Views of 1000 strings of 100 bytes, consecutive in the heaps.
fn long_views() -> StringViewArray {
    let strings: Vec<String> = (0..1000).map(|n| format!("{n:0100}")).collect();
    StringViewArray::from_iter_values(strings)
}

#[test]
fn a_heap_that_batches_share_is_uploaded_once() {
    for queue in [default_queue(), discrete_queue()] {
        let all: ArrayRef = Arc::new(long_views());
        let parts: Vec<_> = (0..10).map(|part| all.slice(part * 100, 100)).collect();
        let batch = up(&queue, &parts).unwrap();
        let heaps: usize = all.as_string_view().data_buffers().iter().map(|heap| heap.len()).sum();
        assert_eq!(batch.columns()[0].buffers()[1].len(), heaps);
        assert_same(&down(&queue, &batch).unwrap(), &all, "concatenated");
    }
}

#[test]
fn sparse_heaps_are_compacted_before_the_upload() {
    let queue = discrete_queue();
    let all: ArrayRef = Arc::new(long_views());
    let few = all.slice(500, 10);
    let few = super::data::with_nulls(&few, Some(vec![true, false].into_iter().cycle().take(10).collect::<Vec<_>>().into()));
    let batch = up(&queue, std::slice::from_ref(&few)).unwrap();
    assert_eq!(batch.columns()[0].buffers()[1].len(), 5 * 100);
    assert_same(&down(&queue, &batch).unwrap(), &few, "compacted");
}

#[test]
fn a_slice_of_large_strings_downloads_only_its_bytes() {
    for data_type in [DataType::Utf8, DataType::LargeUtf8, DataType::Utf8View] {
        let queue = discrete_queue();
        let strings: Vec<String> = (0..50_000).map(|n| format!("{n:060}")).collect();
        let array: ArrayRef = Arc::new(StringArray::from(strings));
        let array = arrow::compute::cast(&array, &data_type).unwrap();
        let batch = up(&queue, std::slice::from_ref(&array)).unwrap();
        let before = queue.context().counters().bytes_down;
        let slice = batch.slice(20_000, 100);
        assert_same(&down(&queue, &slice).unwrap(), &array.slice(20_000, 100), &data_type);
        let read = queue.context().counters().bytes_down - before;
        assert!(read < 60_000, "{data_type}: {read} bytes");
        assert_same(&down(&queue, &batch).unwrap(), &array, &data_type);
    }
}

#[test]
fn views_below_nulls_may_be_anything() {
    // A kernel may leave a long view with a buffer index out of range.
    for queue in [default_queue(), discrete_queue()] {
        let array: ArrayRef = Arc::new(long_views().slice(0, 8));
        let batch = up(&queue, std::slice::from_ref(&array)).unwrap();
        let column = &batch.columns()[0];
        let mut views = array.as_string_view().views().to_vec();
        views[3] = u128::MAX;
        let views = queue.upload(Bytes::copy_from_slice(ScalarBuffer::from(views).inner())).unwrap();
        let validity = queue.upload(Bytes::from_static(&[0b1111_0111])).unwrap();
        let buffers = vec![views, column.buffers()[1].clone(), column.buffers()[2].clone()];
        let column = DeviceColumn::try_new(Arc::clone(column.ty()), 8, buffers, Some((validity, 0)), None, None).unwrap();
        let batch = DeviceBatch::try_new(Arc::clone(batch.schema()), vec![column], 8).unwrap();
        let expected = super::data::with_nulls(&array, Some((0..8).map(|row| row != 3).collect::<Vec<_>>().into()));
        assert_same(&down(&queue, &batch).unwrap(), &expected, "garbage");
    }
}

#[test]
fn inconsistent_columns_are_refused() {
    let queue = default_queue();
    let ty = |data_type: DataType, nullable| Arc::new(ColumnType::of(&data_type, nullable).unwrap());
    let bytes = |len| queue.alloc(len).unwrap();
    let long = || ty(DataType::Int64, false);
    assert!(DeviceColumn::try_new(long(), 10, vec![bytes(80)], None, None, None).is_ok());
    let refused = [
        DeviceColumn::try_new(long(), 10, vec![bytes(79)], None, None, None),
        DeviceColumn::try_new(long(), 10, vec![], None, None, None),
        DeviceColumn::try_new(long(), 10, vec![bytes(80), bytes(1)], None, None, None),
        DeviceColumn::try_new(long(), 10, vec![bytes(80)], Some((bytes(2), 0)), None, None),
        DeviceColumn::try_new(long(), 10, vec![bytes(80)], None, None, None).unwrap().with_offset(1),
        DeviceColumn::try_new(ty(DataType::Int64, true), 10, vec![bytes(80)], None, None, None),
        DeviceColumn::try_new(ty(DataType::Int64, true), 10, vec![bytes(80)], Some((bytes(1), 0)), None, None),
        DeviceColumn::try_new(ty(DataType::Int64, true), 10, vec![bytes(80)], Some((bytes(2), 7)), None, None),
        DeviceColumn::try_new(ty(DataType::Utf8, false), 10, vec![bytes(40), bytes(0)], None, None, None),
        DeviceColumn::try_new(ty(DataType::Utf8View, false), 10, vec![bytes(160), bytes(0)], None, None, None),
    ];
    for (case, column) in refused.into_iter().enumerate() {
        assert!(matches!(column, Err(Error::Malformed(_))), "case {case}");
    }
    let codes: ArrayRef = Arc::new(vec!["a"].into_iter().collect::<DictionaryArray<Int8Type>>());
    let column = up(&queue, &[codes]).unwrap().columns()[0].clone();
    assert!(DeviceColumn::try_new(Arc::clone(column.ty()), 1, vec![bytes(1)], Some((bytes(1), 0)), None, None).is_err());
    let schema = schema_of(&(Arc::new(Int32Array::from(vec![1])) as ArrayRef));
    assert!(DeviceBatch::try_new(schema, vec![column], 1).is_err());
}

#[test]
fn offsets_out_of_the_heap_are_an_error() {
    let queue = default_queue();
    let schema = schema_of(&(Arc::new(StringArray::from(vec!["a"])) as ArrayRef));
    let mut types = natural_types(&schema).unwrap();
    types[0].nullable = false;
    let ty = Arc::new(types.remove(0));
    for offsets in [[0i32, 9], [3, 2], [-1, 2]] {
        let offsets = queue.upload(Bytes::from_owner(offsets.map(i32::to_ne_bytes).concat())).unwrap();
        let heap = queue.upload(Bytes::from_static(b"abcd")).unwrap();
        let column = DeviceColumn::try_new(Arc::clone(&ty), 1, vec![offsets, heap], None, None, None).unwrap();
        let batch = DeviceBatch::try_new(Arc::clone(&schema), vec![column], 1).unwrap();
        assert!(down(&queue, &batch).is_err());
    }
}
