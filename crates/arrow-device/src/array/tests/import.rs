// SPDX-License-Identifier: Apache-2.0
//! Imports of structs, broken in one way each, and of valid structs that look broken.

use std::ptr::null_mut;
use std::sync::Arc;
use std::thread;

use arrow::array::types::Int8Type;
use arrow::array::*;
use arrow::buffer::OffsetBuffer;
use arrow::datatypes::{DataType, Field, UnionFields, UnionMode};
use arrow::ffi::FFI_ArrowArray;

use crate::ffi::{ArrowDeviceType, FFI_ArrowDeviceArray};
use crate::testing::{Releases, samples};
use crate::{ArrayExport, Error, ImportedArray, Result, cpu};

/// Imports a struct with the host memory of this crate's export, except for the test's change.
fn import(array: FFI_ArrowDeviceArray, field: &Field) -> Result<ImportedArray> {
    // SAFETY: the tests break only what the import checks.
    unsafe { ImportedArray::import(array, field) }
}

fn named(array: &dyn Array) -> Field {
    Field::new("x", array.data_type().clone(), true)
}

/// The import's error after `break_it`; checks that the array was released once.
#[track_caller]
fn refused(array: &dyn Array, break_it: impl FnOnce(&mut FFI_ArrowArray)) -> String {
    refused_as(array, &named(array), break_it)
}

#[track_caller]
fn refused_as(array: &dyn Array, field: &Field, break_it: impl FnOnce(&mut FFI_ArrowArray)) -> String {
    let releases = Releases::default();
    let mut exported = releases.counted(cpu::export_array(array).unwrap());
    break_it(&mut exported.array);
    let error = import(exported, field).unwrap_err();
    assert_eq!(releases.count(), 1, "R47: {error}");
    assert!(matches!(error, Error::Invalid(_)), "{error:?}");
    error.to_string()
}

fn ints() -> Int32Array {
    Int32Array::from(vec![Some(1), None, Some(3)])
}

fn strings() -> StringArray {
    StringArray::from(vec!["a", "b", "c"])
}

fn rows() -> StructArray {
    let fields = vec![Field::new("i", DataType::Int32, true), Field::new("s", DataType::Utf8, true)];
    StructArray::new(fields.into(), vec![Arc::new(ints()), Arc::new(strings())], None)
}

/// The struct of child `index`.
fn child(array: &mut FFI_ArrowArray, index: usize) -> &mut FFI_ArrowArray {
    // SAFETY: exported by this crate, which gives every child a struct.
    unsafe { &mut **array.children.add(index) }
}

fn set_buffer(array: &mut FFI_ArrowArray, index: usize, buffer: *const std::ffi::c_void) {
    // SAFETY: exported by this crate with more buffers than `index`.
    unsafe { *array.buffers.add(index) = buffer };
}

#[test]
fn r45_wrong_n_buffers_is_refused() {
    assert_eq!(refused(&ints(), |array| array.n_buffers = 1), "array \"x\" (Int32): expected 2 buffers, got 1");
    assert_eq!(refused(&ints(), |array| array.n_buffers = -2), "array \"x\" (Int32): expected 2 buffers, got -2");
    assert_eq!(
        refused(&strings(), |array| array.n_buffers = i64::MAX),
        format!("array \"x\" (Utf8): expected 3 buffers, got {}", i64::MAX)
    );
    assert_eq!(refused(&NullArray::new(2), |array| array.n_buffers = 1), "array \"x\" (Null): expected 0 buffers, got 1");
    let views = StringViewArray::from(vec!["a"]);
    assert_eq!(refused(&views, |array| array.n_buffers = 2), "array \"x\" (Utf8View): expected at least 3 buffers, got 2");
    refused(&views, |array| array.n_buffers = i64::MAX);
}

#[test]
fn r45_an_array_of_another_type_is_refused() {
    let error = refused_as(&ints(), &Field::new("x", DataType::Utf8, true), |_| {});
    assert_eq!(error, "array \"x\" (Utf8): expected 3 buffers, got 2");
}

#[test]
fn r45_errors_name_the_column_and_the_child() {
    let error = refused(&rows(), |array| child(array, 1).n_buffers = 2);
    assert_eq!(error, "column 1 \"s\" (Utf8): expected 3 buffers, got 2");
    let list = ListArray::new(
        Field::new("item", DataType::Int32, true).into(),
        OffsetBuffer::from_lengths([1, 2]),
        Arc::new(ints()),
        None,
    );
    let outer = StructArray::new(vec![Field::new("l", list.data_type().clone(), true)].into(), vec![Arc::new(list)], None);
    let error = refused(&outer, |array| child(child(array, 0), 0).length = -3);
    assert_eq!(error, "column 0 \"l\" > child 0 \"item\" (Int32): length must not be negative, got -3");
}

#[test]
fn r45_negative_and_overflowing_lengths_are_refused() {
    assert_eq!(refused(&ints(), |array| array.length = -1), "array \"x\" (Int32): length must not be negative, got -1");
    assert_eq!(refused(&ints(), |array| array.offset = -1), "array \"x\" (Int32): offset must not be negative, got -1");
    let error = refused(&ints(), |array| (array.length, array.offset) = (i64::MAX, 1));
    assert_eq!(error, format!("array \"x\" (Int32): length {} and offset 1 overflow", i64::MAX));
    let error = refused(&ints(), |array| array.length = i64::MAX - 3);
    assert_eq!(error, format!("array \"x\" (Int32): buffer 0 for {} elements is larger than any memory", i64::MAX - 3));
    // A byte holds eight elements, so the size alone does not overflow.
    let bits = BooleanArray::from(vec![Some(true), None]);
    let error = refused(&bits, |array| (array.length, array.null_count) = (i64::MAX, -1));
    assert_eq!(error, format!("array \"x\" (Boolean): buffer 0 for {} elements is larger than any memory", i64::MAX));
}

#[test]
fn r45_impossible_null_counts_are_refused() {
    let says = |null_count| refused(&ints(), |array| array.null_count = null_count);
    assert_eq!(says(4), "array \"x\" (Int32): null_count must lie between -1 and the length 3, got 4");
    assert_eq!(says(-2), "array \"x\" (Int32): null_count must lie between -1 and the length 3, got -2");
}

#[test]
fn r45_null_tables_and_buffers_are_refused() {
    assert_eq!(
        refused(&ints(), |array| array.buffers = null_mut()),
        "array \"x\" (Int32): its 2 buffers have no table: buffers is null"
    );
    assert_eq!(
        refused(&ints(), |array| set_buffer(array, 1, null_mut())),
        "array \"x\" (Int32): buffer 1 is null, expected 12 bytes"
    );
    assert_eq!(
        refused(&ints(), |array| set_buffer(array, 0, null_mut())),
        "array \"x\" (Int32): null_count is 1, but the validity is null"
    );
    assert_eq!(
        refused(&strings(), |array| set_buffer(array, 1, null_mut())),
        "array \"x\" (Utf8): buffer 1 is null, expected 16 bytes"
    );
    let bits = BooleanArray::from(vec![true; 9]);
    assert_eq!(
        refused(&bits, |array| set_buffer(array, 1, null_mut())),
        "array \"x\" (Boolean): buffer 1 is null, expected 2 bytes"
    );
}

#[test]
fn r45_broken_children_are_refused() {
    let rows = rows();
    let says = |break_it: fn(&mut FFI_ArrowArray)| {
        let error = refused(&rows, break_it);
        error.split_once("): ").map(|(_, what)| what.to_string()).unwrap_or(error)
    };
    assert_eq!(says(|array| array.n_children = 1), "expected 2 children, got 1");
    assert_eq!(says(|array| array.n_children = -1), "expected 2 children, got -1");
    assert_eq!(says(|array| array.children = null_mut()), "its 2 children have no table: children is null");
    assert_eq!(says(|array| array.length = 4), "its parent needs 4 elements, got 3");
    assert_eq!(says(|array| array.offset = 2), "its parent needs 5 elements, got 3");
    assert_eq!(refused(&ints(), |array| array.n_children = 1), "array \"x\" (Int32): expected 0 children, got 1");

    // Null and misaligned children.
    for (index, address, what) in [(0, 0, "the child is null"), (1, 9, "the child lies at a misaligned address")] {
        let exported = cpu::export_array(&rows).unwrap();
        let table = exported.array.children;
        // SAFETY: the table has two entries.
        let kept = unsafe { table.add(index).replace(std::ptr::without_provenance_mut(address)) };
        let error = import(borrowed(&exported), &named(&rows)).unwrap_err();
        assert!(error.to_string().ends_with(what), "{error}");
        // The export frees its children through this table.
        // SAFETY: as above.
        unsafe { *table.add(index) = kept };
    }
}

#[test]
fn an_array_within_itself_ends_where_its_type_does() {
    let item = |data_type| Arc::new(Field::new("item", data_type, true));
    let list = ListArray::new(item(DataType::Int32), OffsetBuffer::from_lengths([1, 2]), Arc::new(ints()), None);
    let mut exported = cpu::export_array(&list).unwrap();
    let (own, table) = (&raw mut exported.array, exported.array.children);
    // SAFETY: the table has one entry.
    let kept = unsafe { table.replace(own) };
    let nested = (0..3).fold(DataType::Int32, |inner, _| DataType::List(item(inner)));
    let error = import(borrowed(&exported), &Field::new("x", nested, true)).unwrap_err();
    assert!(error.to_string().ends_with("(Int32): expected 0 children, got 1"), "{error}");
    // The export frees its children through this table.
    // SAFETY: as above.
    unsafe { *table = kept };
}

/// The same array in a struct that owns nothing.
fn borrowed(array: &FFI_ArrowDeviceArray) -> FFI_ArrowDeviceArray {
    // SAFETY: with another release callback the copy owns nothing, so nothing is freed twice.
    let mut copy = unsafe { std::ptr::read(array) };
    copy.array.release = Some(forget);
    copy
}

unsafe extern "C" fn forget(array: *mut FFI_ArrowArray) {
    // SAFETY: called with the struct to be released.
    unsafe { (*array).release = None };
}

#[test]
fn r45_released_arrays_and_children_are_refused() {
    let error = import(FFI_ArrowDeviceArray::empty(), &named(&ints())).unwrap_err();
    assert_eq!(error.to_string(), "array \"x\" (Int32): the array is released");
    let mut moved = None;
    let error = refused(&rows(), |array| {
        // A consumer that moved the child out.
        // SAFETY: exported by this crate.
        moved = Some(unsafe { FFI_ArrowArray::from_raw(child(array, 0)) });
    });
    assert_eq!(error, "column 0 \"i\" (Int32): the array is released");
    assert_eq!(moved.unwrap().length, 3);
}

#[test]
fn r45_missing_and_unexpected_dictionaries_are_refused() {
    let dictionary = DictionaryArray::<Int8Type>::from_iter(["a", "b"]);
    let mut values = null_mut();
    let error = refused(&dictionary, |array| values = std::mem::replace(&mut array.dictionary, null_mut()));
    assert_eq!(error, "array \"x\" > dictionary (Utf8): the dictionary is null");
    let error = refused_as(&dictionary, &Field::new("x", DataType::Int8, true), |_| {});
    assert_eq!(error, "array \"x\" (Int8): the array has a dictionary, its type has none");
    let error = refused(&dictionary, |array| {
        // SAFETY: exported by this crate.
        unsafe { (*array.dictionary).n_buffers = 7 };
    });
    assert_eq!(error, "array \"x\" > dictionary (Utf8): expected 3 buffers, got 7");
}

#[test]
fn dictionaries_of_more_values_than_memory_are_unsupported() {
    let dictionary = DictionaryArray::new(Int8Array::from(vec![0, 1]), Arc::new(NullArray::new(2)));
    let releases = Releases::default();
    let exported = releases.counted(cpu::export_array(&dictionary).unwrap());
    // SAFETY: exported by this crate.
    unsafe { ((*exported.array.dictionary).length, (*exported.array.dictionary).null_count) = (1 << 62, -1) };
    let error = import(exported, &named(&dictionary)).unwrap_err();
    assert!(matches!(error, Error::Unsupported(_)) && releases.count() == 1, "{error:?}");
    assert_eq!(
        error.to_string(),
        "array \"x\" > dictionary (Null): a dictionary of 4611686018427387904 values, limit 4294967295"
    );
}

#[test]
fn r45_lists_of_fixed_size_need_their_elements() {
    let list = FixedSizeListArray::new(Field::new("item", DataType::Int32, true).into(), 3, Arc::new(ints()), None);
    let error = refused(&list, |array| array.length = 2);
    assert_eq!(error, "array \"x\" > child 0 \"item\" (Int32): its parent needs 6 elements, got 3");
    let items = Arc::new(Int32Array::from(vec![7; 100]));
    let long = FixedSizeListArray::new(Field::new("item", DataType::Int32, true).into(), 100, items, None);
    let error = refused(&long, |array| array.length = 1 << 57);
    assert!(error.ends_with("lists of it have more elements than any memory"), "{error}");
}

#[test]
fn r45_broken_runs_are_refused() {
    let runs = RunArray::<types::Int32Type>::try_new(&Int32Array::from(vec![2, 4]), &strings().slice(0, 2)).unwrap();
    let error = refused(&runs, |array| child(array, 1).length = 1);
    assert_eq!(error, "array \"x\" > child 1 \"values\" (Utf8): 2 run ends need as many values, got 1");
    let error = refused(&runs, |array| child(array, 0).null_count = 1);
    assert_eq!(error, "array \"x\" > child 0 \"run_ends\" (Int32): null_count is 1, but the validity is null");
}

#[test]
fn r45_sparse_unions_need_their_elements() {
    let members: UnionFields = [(0, Arc::new(Field::new("i", DataType::Int32, true)))].into_iter().collect();
    let union = UnionArray::try_new(members, vec![0i8; 3].into(), None, vec![Arc::new(ints())]).unwrap();
    let error = refused(&union, |array| array.offset = 1);
    assert_eq!(error, "array \"x\" > child 0 \"i\" (Int32): its parent needs 4 elements, got 3");
}

#[test]
fn r35_broken_lengths_of_variadic_buffers_are_refused() {
    let views = StringViewArray::from(vec!["a name that is longer than a view"]);
    assert_eq!(
        refused(&views, |array| set_buffer(array, 3, null_mut())),
        "array \"x\" (Utf8View): the lengths of its 1 variadic buffers are null"
    );
    assert_eq!(
        refused(&views, |array| set_buffer(array, 2, null_mut())),
        "array \"x\" (Utf8View): variadic buffer 2 is null, expected 33 bytes"
    );
    let length = -1i64;
    let error = refused(&views, |array| set_buffer(array, 3, (&raw const length).cast()));
    assert_eq!(error, "array \"x\" (Utf8View): variadic buffer 2 cannot have -1 bytes");
    // The lengths may be misaligned.
    let bytes = [[0u8; 1].as_slice(), &33i64.to_ne_bytes()].concat();
    let mut exported = cpu::export_array(&views).unwrap();
    set_buffer(&mut exported.array, 3, bytes[1..].as_ptr().cast());
    let imported = import(exported, &named(&views)).unwrap();
    assert_eq!(imported.view().variadic_buffers().next().unwrap().len_bytes, Some(33));
}

#[test]
fn nesting_without_end_is_unsupported() {
    let mut data_type = DataType::Int8;
    let mut export = ArrayExport::new(0).buffers(vec![std::ptr::null(); 2]);
    for _ in 0..100 {
        data_type = DataType::List(Field::new("item", data_type, true).into());
        export = ArrayExport::new(0).buffers(vec![std::ptr::null(); 2]).children(vec![export]);
    }
    let error =
        import(export.export(ArrowDeviceType::CUDA, 0, null_mut()).unwrap(), &Field::new("x", data_type, true)).unwrap_err();
    assert!(matches!(error, Error::Unsupported(_)));
    assert!(error.to_string().ends_with("nested deeper than 64 levels"), "{error}");
}

#[test]
fn invalid_types_are_unsupported() {
    for data_type in [
        DataType::FixedSizeBinary(-1),
        DataType::Decimal64(19, 0),
        DataType::Dictionary(DataType::Utf8.into(), DataType::Utf8.into()),
    ] {
        let releases = Releases::default();
        let exported = releases.counted(cpu::export_array(&ints()).unwrap());
        let error = import(exported, &Field::new("x", data_type, true)).unwrap_err();
        assert!(matches!(error, Error::Unsupported(_)), "{error:?}");
        assert_eq!(releases.count(), 1);
    }
}

#[test]
fn r46_valid_arrays_that_look_broken_are_accepted() {
    // A null validity without nulls, or without a count of them.
    for null_count in [0, -1] {
        let mut exported = cpu::export_array(&strings().slice(1, 2)).unwrap();
        exported.array.null_count = null_count;
        let imported = import(exported, &named(&strings())).unwrap();
        assert_eq!((imported.view().null_count(), imported.len()), (Some(0), 2));
    }
    // A missing count, and an offset.
    let mut exported = cpu::export_array(&ints()).unwrap();
    (exported.array.null_count, exported.array.offset, exported.array.length) = (-1, 1, 2);
    let imported = import(exported, &named(&ints())).unwrap();
    assert_eq!((imported.view().null_count(), imported.view().offset()), (None, 1));
    // An empty array, with and without an offset.
    for offset in [0, 5] {
        let empty = ArrayExport::new(0).offset(offset).buffers(vec![std::ptr::null(); 3]);
        let exported = empty.export(ArrowDeviceType::CUDA, 0, null_mut()).unwrap();
        let imported = import(exported, &named(&strings())).unwrap();
        assert!(imported.view().buffers().all(|buffer| buffer.len_bytes == Some(0)));
        // Variadic buffers without lengths.
        let empty = ArrayExport::new(0).offset(offset).buffers(vec![std::ptr::null(); 5]);
        let exported = empty.export(ArrowDeviceType::CUDA, 0, null_mut()).unwrap();
        let imported = import(exported, &Field::new("x", DataType::BinaryView, true)).unwrap();
        assert_eq!(imported.view().variadic_buffers().map(|buffer| buffer.len_bytes).collect::<Vec<_>>(), [Some(0); 2]);
    }
}

#[test]
fn r46_a_struct_with_offset_and_longer_children_is_accepted() {
    let mut exported = cpu::export_array(&rows()).unwrap();
    (exported.array.offset, exported.array.length) = (1, 1);
    let imported = import(exported, &named(&rows())).unwrap();
    let back = cpu::import_array(imported).unwrap();
    assert_eq!(back.as_struct(), &rows().slice(1, 1));
}

#[test]
fn r44_reserved_bytes_are_ignored() {
    let mut exported = cpu::export_array(&ints()).unwrap();
    exported.reserved = [-1, 7, i64::MIN];
    import(exported, &named(&ints())).unwrap();
}

#[test]
fn r8_unknown_device_types_are_kept() {
    let mut exported = cpu::export_array(&ints()).unwrap();
    (exported.device_type, exported.device_id) = (ArrowDeviceType(17), 3);
    let imported = import(exported, &named(&ints())).unwrap();
    assert_eq!((imported.device_type(), imported.device_id()), (ArrowDeviceType(17), 3));
}

#[test]
fn r37_no_device_memory_is_read() {
    // Addresses that would fault.
    let nowhere = std::ptr::without_provenance::<std::ffi::c_void>(0x10);
    let device = |buffers| ArrayExport::new(3).null_count(None).buffers(vec![nowhere; buffers]);
    let import = |export: ArrayExport, data_type| {
        let exported = export.export(ArrowDeviceType::CUDA, 0, null_mut()).unwrap();
        import(exported, &Field::new("x", data_type, true)).unwrap()
    };
    let item = || Field::new("item", DataType::LargeBinary, true).into();
    let strings = import(device(3), DataType::Utf8);
    assert_eq!(strings.view().buffer(2).map(|buffer| (buffer.ptr, buffer.len_bytes)), Some((nowhere, None)));
    import(device(2).children(vec![device(3)]), DataType::List(item()));
    import(device(3).children(vec![device(3)]), DataType::ListView(item()));
    import(device(2).dictionary(device(3)), DataType::Dictionary(DataType::Int8.into(), DataType::Utf8.into()));
    let members = [(0, item())].into_iter().collect();
    import(device(2).null_count(Some(0)).children(vec![device(3)]), DataType::Union(members, UnionMode::Dense));
    let lengths = [5i64];
    let views = vec![nowhere, nowhere, nowhere, lengths.as_ptr().cast()];
    import(ArrayExport::new(3).null_count(None).buffers(views), DataType::Utf8View);
}

#[test]
fn r39_an_array_is_released_once_on_any_thread() {
    let releases = Releases::default();
    let imported = import(releases.counted(cpu::export_array(&ints()).unwrap()), &named(&ints())).unwrap();
    let shared = Arc::new(imported);
    let other = Arc::clone(&shared);
    thread::spawn(move || assert_eq!(other.view().len(), 3)).join().unwrap();
    assert_eq!(releases.count(), 0);
    thread::spawn(move || drop(shared)).join().unwrap();
    assert_eq!(releases.count(), 1);
}

#[test]
fn r40_a_move_out_of_c_flags_the_source_released() {
    let releases = Releases::default();
    let mut source = releases.counted(cpu::export_array(&ints()).unwrap());
    let mut event = 7u64;
    (source.device_type, source.device_id, source.sync_event) = (ArrowDeviceType::CUDA, 3, (&raw mut event).cast());
    // SAFETY: the struct is live and local.
    let imported = unsafe { ImportedArray::import_from_raw(&mut source, &named(&ints())).unwrap() };
    assert!(source.is_released());
    drop(source);
    assert_eq!(releases.count(), 0);

    let back = imported.into_ffi();
    assert_eq!((back.device_type, back.device_id, back.sync_event), (ArrowDeviceType::CUDA, 3, (&raw mut event).cast()));
    assert_eq!(releases.count(), 0);
    drop(back);
    assert_eq!(releases.count(), 1);
}

#[test]
fn r47_a_failed_move_out_of_c_releases_too() {
    let releases = Releases::default();
    let mut source = releases.counted(cpu::export_array(&ints()).unwrap());
    // SAFETY: the struct is live and local.
    unsafe { ImportedArray::import_from_raw(&mut source, &named(&strings())) }.unwrap_err();
    assert!(source.is_released());
    assert_eq!(releases.count(), 1);
    // SAFETY: null is allowed.
    let error = unsafe { ImportedArray::import_from_raw(null_mut(), &named(&ints())) }.unwrap_err();
    assert_eq!(error.to_string(), "import of a device array: the pointer to it is null");
}

#[test]
fn r45_arrays_of_every_type_with_one_count_wrong_are_refused() {
    for array in samples() {
        refused(&array, |array| array.n_buffers += if array.n_buffers > 3 { -array.n_buffers } else { -1 });
        refused(&array, |array| array.n_children += 1);
        refused(&array, |array| array.length = i64::MIN);
        refused(&array, |array| array.offset = i64::MAX);
        refused(&array, |array| array.null_count = array.length + 1);
    }
}

#[test]
fn imported_arrays_are_shared_between_threads() {
    fn shared<T: Send + Sync>() {}
    shared::<ImportedArray>();
    shared::<ArrayExport>();
    shared::<crate::ArrayView<'_>>();
    shared::<crate::BufferView<'_>>();
}
