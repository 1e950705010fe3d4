// SPDX-License-Identifier: Apache-2.0
//! Round trips of every type, and hostile values in host memory.

use std::sync::Arc;

use arrow::array::*;
use arrow::buffer::{Buffer, ScalarBuffer};
use arrow::datatypes::{DataType, Field, Schema};

use super::*;
use crate::doubling::doubling_stream;
use crate::ffi::{ArrowDeviceType, FFI_ArrowDeviceArray};
use crate::testing::{Releases, misaligned, samples};
use crate::{Error, ImportedArray, Result, schema};

/// Imports an array exported in this module, as the type of `field`.
fn import_as(array: FFI_ArrowDeviceArray, field: &Field) -> Result<ArrayRef> {
    // SAFETY: exported by these tests, with buffers of the sizes that their types need.
    import_array(unsafe { ImportedArray::import(array, field)? })
}

#[track_caller]
fn round_trip(array: &ArrayRef) {
    let releases = Releases::default();
    let exported = releases.counted(export_array(array).unwrap());
    let back = import_as(exported, &field_of(array)).unwrap();
    assert_eq!(back.data_type(), array.data_type());
    assert_eq!(&back, array);
    back.to_data().validate_full().unwrap();
    // The result shares the memory, unless it needs none.
    assert_eq!(releases.count(), usize::from(back.is_empty() || back.data_type() == &DataType::Null), "{back:?}");
    drop(back);
    assert_eq!(releases.count(), 1);
}

#[test]
fn every_type_round_trips_whole_sliced_and_empty() {
    for array in samples() {
        assert!(array.len() >= 4);
        round_trip(&array);
        round_trip(&array.slice(1, array.len() - 2));
        round_trip(&array.slice(array.len() - 1, 1));
        round_trip(&array.slice(2, 0));
        round_trip(&new_empty_array(array.data_type()));
    }
}

#[test]
fn every_type_round_trips_all_null() {
    for array in samples() {
        if !matches!(array.data_type(), DataType::Union(_, _)) {
            round_trip(&new_null_array(array.data_type(), 5));
        }
    }
}

#[test]
fn r32_every_type_round_trips_through_its_c_schema() {
    for array in samples() {
        let field = Field::new("x", array.data_type().clone(), true);
        // SAFETY: exported here.
        assert_eq!(unsafe { schema::import_field(schema::export_field(&field).unwrap()) }.unwrap(), field);
    }
}

#[test]
fn a_host_stream_with_too_many_fields_is_refused() {
    // SAFETY: the stream follows the interface.
    let error = unsafe { reader_of_host_stream(doubling_stream()) }.unwrap_err();
    assert!(error.to_string().contains("more than 100000 fields"), "{error}");
}

#[test]
fn r33_a_batch_is_a_struct_without_offset_or_validity() {
    let columns: Vec<ArrayRef> = samples().iter().map(|array| array.slice(1, 3)).collect();
    let fields: Vec<Field> =
        columns.iter().enumerate().map(|(i, c)| Field::new(format!("c{i}"), c.data_type().clone(), true)).collect();
    let schema = Schema::new_with_metadata(fields, [("k".into(), "v".into())].into());
    let batch = RecordBatch::try_new(schema.into(), columns).unwrap().slice(1, 2);

    let exported = export_batch(&batch).unwrap();
    assert_eq!((exported.array.length, exported.array.offset, exported.array.null_count), (2, 0, 0));
    // SAFETY: exported here.
    let imported = unsafe { ImportedArray::import(exported, &schema::batch_field(&batch.schema())).unwrap() };
    assert!(imported.view().validity().is_none());
    // R34: real counts, in all nodes.
    assert!(imported.view().children().all(|column| column.null_count().is_some() && column.len() == 2));
    assert_eq!(import_batch(imported).unwrap(), batch);
}

#[test]
fn a_batch_without_columns_keeps_its_rows() {
    let options = RecordBatchOptions::new().with_row_count(Some(7));
    let batch = RecordBatch::try_new_with_options(Schema::empty().into(), vec![], &options).unwrap();
    // SAFETY: exported here.
    let imported =
        unsafe { ImportedArray::import(export_batch(&batch).unwrap(), &schema::batch_field(&batch.schema())).unwrap() };
    assert_eq!(import_batch(imported).unwrap().num_rows(), 7);
}

#[test]
fn null_rows_and_forbidden_nulls_are_refused_in_batches() {
    let numbers: ArrayRef = Arc::new(Int32Array::from(vec![Some(1), None]));
    let rows = |valid: Vec<bool>| {
        StructArray::new(vec![Field::new("a", DataType::Int32, true)].into(), vec![numbers.clone()], Some(valid.into()))
    };
    let batch_of = |rows: StructArray, nullable| {
        let schema = Schema::new(vec![Field::new("a", DataType::Int32, nullable)]);
        // SAFETY: exported here.
        import_batch(unsafe { ImportedArray::import(export_array(&rows).unwrap(), &schema::batch_field(&schema)).unwrap() })
    };
    assert!(batch_of(rows(vec![true, true]), true).is_ok());
    let error = batch_of(rows(vec![true, false]), true).unwrap_err();
    assert!(error.to_string().ends_with("rows of a record batch must not be null"), "{error}");
    let error = batch_of(rows(vec![true, true]), false).unwrap_err();
    assert_eq!(error.to_string(), "column 0 \"a\" (Int32): element 1 is null, but the field is not nullable");
}

#[test]
fn nulls_that_the_parent_hides_are_allowed() {
    let numbers: ArrayRef = Arc::new(Int32Array::from(vec![Some(1), None, None, Some(4)]));
    let list = FixedSizeListArray::new(Field::new("item", DataType::Int32, true).into(), 2, numbers, None);
    let strict = DataType::FixedSizeList(Field::new("item", DataType::Int32, false).into(), 2);
    // Lists 0 and 1 hold one null each, hidden where the list is null or sliced away.
    let error = import_as(export_array(&list).unwrap(), &Field::new("", strict.clone(), true)).unwrap_err();
    assert!(error.to_string().contains("element 1 is null"), "{error}");
    let hidden = list.to_data().into_builder().nulls(Some(vec![false, false].into())).build().unwrap();
    import_as(export_array(&make_array(hidden)).unwrap(), &Field::new("", strict, true)).unwrap();
}

#[test]
fn misaligned_buffers_are_copied() {
    for array in samples() {
        let data = array.to_data();
        if data.buffers().is_empty() || !data.child_data().is_empty() {
            continue;
        }
        let odd = data.buffers().iter().map(misaligned).collect();
        // SAFETY: the same values; only exported.
        let odd = unsafe { data.clone().into_builder().buffers(odd).build_unchecked() };
        let exported = super::export::export(&odd).unwrap();
        assert_eq!(&import_as(exported, &field_of(&array)).unwrap(), &array);
    }
}

#[test]
fn r46_a_null_count_that_was_not_counted_is_accepted() {
    let array: ArrayRef = Arc::new(Int32Array::from(vec![Some(1), None, Some(3)]));
    let mut exported = export_array(&array).unwrap();
    exported.array.null_count = -1;
    assert_eq!(&import_as(exported, &field_of(&array)).unwrap(), &array);
}

#[test]
fn a_wrong_null_count_is_refused() {
    let array: ArrayRef = Arc::new(Int32Array::from(vec![Some(1), None, Some(3)]));
    let mut exported = export_array(&array).unwrap();
    exported.array.null_count = 2;
    let error = import_as(exported, &field_of(&array)).unwrap_err();
    assert_eq!(error.to_string(), "array (Int32): null_count is 2, but the validity has 1 nulls");
}

/// The import's error for an array of `data_type` with these buffers and children.
#[track_caller]
fn refused(data_type: DataType, len: usize, buffers: Vec<Buffer>, children: Vec<ArrayRef>) -> String {
    let children = children.iter().map(|child| child.to_data()).collect();
    let builder = ArrayDataBuilder::new(data_type.clone()).len(len).buffers(buffers).child_data(children);
    // SAFETY: only exported, never read here.
    let data = unsafe { builder.build_unchecked() };
    let releases = Releases::default();
    let exported = releases.counted(super::export::export(&data).unwrap());
    let error = import_as(exported, &Field::new("", data_type, true)).unwrap_err();
    assert_eq!(releases.count(), 1, "R47: {error}");
    assert!(matches!(error, Error::Invalid(_)), "{error:?}");
    assert!(!error.to_string().contains("panicked"), "{error}");
    error.to_string()
}

fn int32s(numbers: &[i32]) -> Buffer {
    Buffer::from_slice_ref(numbers)
}

#[test]
fn hostile_string_offsets_are_refused() {
    let bytes = || Buffer::from(b"abc");
    let says = |offsets: &[i32]| refused(DataType::Utf8, offsets.len() - 1, vec![int32s(offsets), bytes()], vec![]);
    assert!(says(&[0, 2, -1]).contains("its last offset cannot be -1"));
    assert!(says(&[0, 3, 2, 3]).contains("non-monotonic"));
    assert!(says(&[-1, 3]).contains("offset"));
    assert!(says(&[0, i32::MAX, 3]).contains("out of bounds"));
    let wide = Buffer::from_slice_ref([0i64, i64::MIN]);
    assert!(refused(DataType::LargeBinary, 1, vec![wide, bytes()], vec![]).contains("its last offset"));
}

#[test]
fn invalid_utf8_is_refused() {
    let bytes = || Buffer::from(b"a\xff\xc3\xbc".as_slice());
    assert!(refused(DataType::Utf8, 1, vec![int32s(&[0, 4]), bytes()], vec![]).contains("Invalid UTF8"));
    // Cut within a character.
    let cut = refused(DataType::Utf8, 2, vec![int32s(&[2, 3, 4]), bytes()], vec![]);
    assert!(cut.contains("UTF8") || cut.contains("utf-8"), "{cut}");
}

#[test]
fn hostile_views_are_refused() {
    let view =
        |len: u32, buffer: u32, offset: u32| ByteView::new(len, b"abcd").with_buffer_index(buffer).with_offset(offset).as_u128();
    let says = |view: u128| {
        let bytes = Buffer::from(b"abcdefghijklmnop\xff");
        refused(DataType::Utf8View, 1, vec![Buffer::from_slice_ref([view]), bytes], vec![])
    };
    assert!(says(view(16, 1, 0)).contains("Invalid buffer index"));
    assert!(says(view(16, 0, 2)).contains("Invalid buffer slice"));
    assert!(says(view(u32::MAX, 0, u32::MAX)).contains("Invalid buffer slice"));
    assert!(says(view(17, 0, 0)).contains("UTF-8"));
    assert!(says(1 | 0xff << 32).contains("UTF-8"));
}

#[test]
fn views_of_nulls_may_be_invalid() {
    let garbage = ByteView::new(99, b"abcd").with_buffer_index(9).as_u128();
    let builder = ArrayDataBuilder::new(DataType::Utf8View).len(2).nulls(Some(vec![true, false].into()));
    // SAFETY: only exported, never read here.
    let data = unsafe { builder.buffers(vec![Buffer::from_slice_ref([0, garbage])]).build_unchecked() };
    let back = import_as(super::export::export(&data).unwrap(), &Field::new("", DataType::Utf8View, true)).unwrap();
    assert_eq!(back.as_string_view(), &StringViewArray::from(vec![Some(""), None]));
    back.to_data().validate_full().unwrap();
}

#[test]
fn hostile_dictionary_keys_are_refused_but_not_under_nulls() {
    let dictionary = DataType::Dictionary(Box::new(DataType::Int8), Box::new(DataType::Utf8));
    let values: ArrayRef = Arc::new(StringArray::from(vec!["a", "b"]));
    for keys in [[0i8, 2], [0, -1]] {
        let keys = Buffer::from_slice_ref(keys);
        assert!(refused(dictionary.clone(), 2, vec![keys], vec![values.clone()]).contains("out of bounds"));
    }
    let builder = ArrayDataBuilder::new(dictionary.clone()).len(2).nulls(Some(vec![true, false].into()));
    // SAFETY: only exported, never read here.
    let data =
        unsafe { builder.add_buffer(Buffer::from_slice_ref([1i8, 99])).add_child_data(values.to_data()).build_unchecked() };
    let back = import_as(super::export::export(&data).unwrap(), &Field::new("", dictionary, true)).unwrap();
    assert_eq!(back.null_count(), 1);
}

#[test]
fn hostile_lists_unions_and_runs_are_refused() {
    let values: ArrayRef = Arc::new(Int32Array::from(vec![1, 2, 3]));
    let item = || Arc::new(Field::new("item", DataType::Int32, true));
    let list = |offsets: &[i32]| refused(DataType::List(item()), 2, vec![int32s(offsets)], vec![values.clone()]);
    list(&[0, 2, 4]);
    list(&[0, -2, 3]);
    list(&[2, 1, 3]);
    let views = |offsets: &[i32], sizes: &[i32]| {
        refused(DataType::ListView(item()), 1, vec![int32s(offsets), int32s(sizes)], vec![values.clone()])
    };
    views(&[0], &[4]);
    views(&[i32::MAX], &[i32::MAX]);
    views(&[-1], &[1]);

    let members = || [(3, item())].into_iter().collect();
    let dense = |id: i8, value_offset: i32| {
        refused(
            DataType::Union(members(), arrow::datatypes::UnionMode::Dense),
            1,
            vec![Buffer::from_slice_ref([id]), int32s(&[value_offset])],
            vec![values.clone()],
        )
    };
    dense(3, 3);
    dense(3, -1);
    dense(0, 0);
    dense(-1, 0);

    let runs = DataType::RunEndEncoded(
        Field::new("run_ends", DataType::Int32, false).into(),
        Field::new("values", DataType::Int32, true).into(),
    );
    let ends = |ends: [i32; 3]| refused(runs.clone(), 4, vec![], vec![Arc::new(Int32Array::from(ends.to_vec())), values.clone()]);
    ends([1, 2, 3]);
    ends([0, 2, 4]);
    ends([2, 2, 4]);
    ends([-5, 2, 4]);
}

#[test]
fn more_values_than_runs_are_allowed() {
    let (ends, values) = (Int32Array::from(vec![2, 4]), Int32Array::from(vec![7, 8, 9]));
    let runs = DataType::RunEndEncoded(
        Field::new("run_ends", DataType::Int32, false).into(),
        Field::new("values", DataType::Int32, true).into(),
    );
    let builder = ArrayDataBuilder::new(runs.clone()).len(4).child_data(vec![ends.to_data(), values.to_data()]);
    // SAFETY: only exported, never read here.
    let exported = super::export::export(&unsafe { builder.build_unchecked() }).unwrap();
    let back = import_as(exported, &Field::new("", runs, true)).unwrap();
    assert_eq!(back.as_run::<types::Int32Type>().values().len(), 2);
}

#[test]
fn r37_memory_of_devices_and_unfinished_memory_is_refused() {
    let import_on = |device: ArrowDeviceType, event: *mut std::ffi::c_void| {
        let mut exported = export_array(&Int32Array::from(vec![1])).unwrap();
        (exported.device_type, exported.sync_event) = (device, event);
        // SAFETY: the memory is host memory, despite the struct's device type.
        unsafe { ImportedArray::import(exported, &Field::new("", DataType::Int32, true)).unwrap() }
    };
    let none = std::ptr::null_mut();
    let error = import_array(import_on(ArrowDeviceType::CUDA, none)).unwrap_err();
    assert_eq!(error.to_string(), "array (Int32): it is in memory of CUDA, not of the host");
    assert!(matches!(error, Error::Unsupported(_)));
    // R8
    let error = import_array(import_on(ArrowDeviceType(99), none)).unwrap_err();
    assert_eq!(error.to_string(), "array (Int32): it is in memory of device type 99, not of the host");

    let mut event = 1u64;
    let event = (&raw mut event).cast();
    let error = import_array(import_on(ArrowDeviceType::CUDA_HOST, event)).unwrap_err();
    assert_eq!(error.to_string(), "array (Int32): it has an event of CUDA_HOST to wait on first");
    import_array(import_on(ArrowDeviceType::CUDA_HOST, none)).unwrap();
    // SAFETY: the memory is complete.
    import_array(unsafe { import_on(ArrowDeviceType::CUDA_HOST, event).assume_complete() }).unwrap();
}

/// The same tree with random bytes in its buffers, except for sizes that an import cannot check.
fn scrambled(data: &ArrayData, random: &mut impl FnMut() -> u8) -> ArrayData {
    let offsets = match data.data_type() {
        DataType::Utf8 | DataType::Binary => 4,
        DataType::LargeUtf8 | DataType::LargeBinary => 8,
        _ => 0,
    };
    let mut scramble = |(index, buffer): (usize, &Buffer)| {
        let mut bytes = buffer.to_vec();
        // The last offset is the size of the next buffer.
        let kept = if index == 0 && offsets > 0 { (data.len() + data.offset()) * offsets } else { bytes.len() };
        for byte in &mut bytes[..kept] {
            // Mostly unchanged, so that some inputs pass the first check; small numbers are more
            // often nearly valid.
            match random() {
                0..32 => *byte = random(),
                32..64 => *byte = random() % 4,
                _ => {}
            }
        }
        Buffer::from_vec(bytes)
    };
    let buffers = data.buffers().iter().enumerate().map(&mut scramble).collect();
    let children = data.child_data().iter().map(|child| scrambled(child, random)).collect();
    let builder = data.clone().into_builder().buffers(buffers).child_data(children);
    // SAFETY: only exported, never read here.
    unsafe { builder.build_unchecked() }
}

#[test]
fn scrambled_values_of_every_type_are_arrays_or_errors() {
    let mut seed = 0x2545_f491_4f6c_dd1du64;
    let mut random = || {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        (seed >> 32) as u8
    };
    let (mut good, mut bad) = (0, 0);
    let rounds = if cfg!(miri) { 2 } else { 300 };
    for round in 0..rounds {
        for array in samples() {
            let data = scrambled(&array.to_data(), &mut random);
            match import_as(super::export::export(&data).unwrap(), &field_of(&array)) {
                Ok(back) => {
                    back.to_data().validate_full().unwrap();
                    // Reads all values; an unchecked one would panic or fault.
                    let _ = format!("{back:?}");
                    good += 1;
                }
                Err(error) => {
                    assert!(!error.to_string().contains("panicked"), "round {round}: {array:?}: {error}");
                    bad += 1;
                }
            }
        }
    }
    assert!(good > 3 * rounds && bad > 3 * rounds, "{good} {bad}");
}

#[test]
fn huge_lengths_without_memory_do_no_harm() {
    // A list of 2^40 lists of 2^20 nulls: the import must not expand the bitmaps of the parents.
    let none = NullArray::new(1 << 60);
    let data_type = DataType::FixedSizeList(Field::new("item", DataType::Null, false).into(), 1 << 20);
    let builder = ArrayDataBuilder::new(data_type.clone()).len(1 << 40).add_child_data(none.to_data());
    // SAFETY: only exported, never read here.
    let exported = super::export::export(&unsafe { builder.build_unchecked() }).unwrap();
    assert_eq!(import_as(exported, &Field::new("", data_type, true)).unwrap().len(), 1 << 40);
}

#[test]
fn the_scalar_buffers_of_a_slice_begin_at_its_offset() {
    let array: ArrayRef = Arc::new(BooleanArray::from(vec![true, false, true, true]).slice(1, 3));
    let exported = export_array(&array).unwrap();
    // SAFETY: exported here.
    let imported = unsafe { ImportedArray::import(exported, &field_of(&array)).unwrap() };
    assert_eq!((imported.view().offset(), imported.view().len()), (1, 3));
    let numbers = ScalarBuffer::from(vec![1, 2, 3]).slice(1, 2);
    round_trip(&(Arc::new(Int32Array::new(numbers, None)) as ArrayRef));
}
