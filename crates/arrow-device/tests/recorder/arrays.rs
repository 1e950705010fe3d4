// SPDX-License-Identifier: Apache-2.0
//! Single arrays: imports from C, and exports to C.

use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, AsArray, BinaryArray, FixedSizeListArray, Int16Array, Int32Array, LargeListArray, LargeStringArray,
    MapArray, RecordBatch, StringArray, StructArray, UnionArray,
};
use arrow::buffer::OffsetBuffer;
use arrow::compute::cast;
use arrow::datatypes::{DataType, Field, IntervalUnit, TimeUnit};
use arrow::ffi::FFI_ArrowArray;
use arrow_device::ffi::{ArrowDeviceType, FFI_ArrowDeviceArray};
use arrow_device::{Error, ImportedArray, Result, cpu, schema};

use crate::data::{LiveCount, MALFORMED, MALFORMED_SCHEMA, ROWS, batch, ints, schema as batch_schema};
use crate::session::Session;

/// Imports batch 0 of a session.
fn import(session: &Session) -> Result<ImportedArray> {
    // SAFETY: the recorder follows the interface, except for the test's settings.
    let field = unsafe { schema::import_field(session.make_schema())? };
    // SAFETY: as above.
    unsafe { ImportedArray::import(session.make_array(0), &field) }
}

#[test]
fn r28_r46_arrays_of_every_shape_are_imported() {
    for shape in 0..3 {
        for rows in [0, 1, 7, 65] {
            for (offset, top_offset, uncounted, misaligned) in
                [(0, 0, 0, 0), (3, 0, 0, 0), (9, 0, 1, 0), (0, 2, 0, 0), (5, 3, 1, 1), (0, 0, 0, 1)]
            {
                let session = Session::new(&[
                    ("shape", shape),
                    ("rows", rows),
                    ("offset", offset),
                    ("top_offset", top_offset),
                    ("uncounted", uncounted),
                    ("misaligned", misaligned),
                ]);
                let imported = import(&session).unwrap();
                assert_eq!((imported.device_type(), imported.device_id()), (ArrowDeviceType::CPU, -1));
                let case = format!("shape {shape}, {rows} rows, offsets {offset} {top_offset}, misaligned {misaligned}");
                let imported = cpu::import_batch(imported).expect(&case);
                assert_eq!(imported, batch(shape, 0, rows), "{case}");
                drop(imported);
                session.end();
            }
        }
    }
}

#[test]
fn r31_r46_an_array_other_than_a_batch_is_imported() {
    for rows in [0, 1, 65] {
        let session = Session::new(&[("shape", 3), ("rows", rows), ("offset", 4), ("metadata", 1)]);
        let imported = import(&session).unwrap();
        assert_eq!(imported.field().metadata()["note"], "café");
        let imported = cpu::import_array(imported).unwrap();
        assert_eq!(imported.as_primitive(), &ints(0, rows));
        drop(imported);
        session.end();
    }
}

#[test]
fn r39_r30_an_import_is_released_once_on_the_last_thread() {
    let session = Session::new(&[]);
    let imported = cpu::import_batch(import(&session).unwrap()).unwrap();
    // Columns outlive their batch, and each other.
    let column = Arc::clone(imported.column(3));
    drop(imported);
    assert_eq!(session.logged("release array"), 0);
    std::thread::spawn(move || drop(column)).join().unwrap();
    assert_eq!(session.logged("release array"), 1);
    session.end();
}

/// Nested struct offsets, which arrow-rs alone would apply twice.
#[test]
fn r46_offsets_of_nested_types_count_once() {
    let ints: ArrayRef = Arc::new(Int32Array::from_iter((0..12).map(|i| (i % 4 != 1).then_some(i))));
    let inner = StructArray::try_from(vec![("x", ints.clone())]).unwrap();
    let outer: ArrayRef = Arc::new(StructArray::try_from(vec![("s", Arc::new(inner.clone()) as ArrayRef)]).unwrap());
    let item = Arc::new(Field::new("item", inner.data_type().clone(), true));
    let fixed: ArrayRef = Arc::new(FixedSizeListArray::new(item, 2, Arc::new(inner.clone()), None));
    let fields = [(1, Arc::new(Field::new("s", inner.data_type().clone(), true)))].into_iter().collect();
    let sparse: ArrayRef = Arc::new(UnionArray::try_new(fields, vec![1; 12].into(), None, vec![Arc::new(inner)]).unwrap());
    for array in [outer, fixed, sparse] {
        for (offset, len) in [(0, 6), (1, 3), (3, 2)] {
            let data = array.to_data().into_builder().offset(offset).len(len);
            let mut given = FFI_ArrowDeviceArray::empty();
            // SAFETY: a part of a valid array; only the offset and the length change.
            given.array = FFI_ArrowArray::new(&unsafe { data.build_unchecked() });
            (given.device_type, given.device_id) = (ArrowDeviceType::CPU, -1);
            // SAFETY: exported above.
            let imported = unsafe { ImportedArray::import(given, &cpu::field_of(&array)) }.unwrap();
            assert_eq!(&cpu::import_array(imported).unwrap(), &array.slice(offset, len));
        }
    }
}

#[test]
fn r40_an_import_can_be_passed_on() {
    let session = Session::new(&[("garbage", 0)]);
    let moved = import(&session).unwrap().into_ffi();
    let other = Session::new(&[]);
    other.check_schema(session.make_schema());
    other.check_array(moved);
    other.end();
    assert_eq!(session.logged("release array"), 1);
    session.end();
}

#[test]
fn r45_r47_malformed_arrays_are_refused_and_released() {
    for malformed in MALFORMED {
        let session = Session::new(&[("malformed", malformed)]);
        let imported = import(&session).and_then(cpu::import_batch);
        let error = imported.map(|_| ()).unwrap_err();
        assert!(matches!(error, Error::Invalid(_)), "{malformed}: {error:?}");
        assert_eq!(session.logged("release array"), 1, "{malformed}");
        session.end();
    }
}

#[test]
fn r45_r47_malformed_schemas_are_refused_and_released() {
    for malformed in MALFORMED_SCHEMA {
        let session = Session::new(&[("malformed_schema", malformed)]);
        // SAFETY: the recorder follows the interface, except for its settings, which the import
        // checks.
        let error = unsafe { schema::import_field(session.make_schema()) }.unwrap_err();
        assert!(matches!(error, Error::Invalid(_) | Error::Unsupported(_)), "{malformed}: {error:?}");
        session.end();
    }
}

#[test]
fn r47_a_type_that_does_not_fit_is_refused_and_released() {
    for field in [
        Field::new("", DataType::Int32, true),
        Field::new_struct("", vec![Field::new("a", DataType::Int64, true)], false),
        Field::new_struct("", Vec::<Field>::new(), false),
    ] {
        let session = Session::new(&[]);
        // SAFETY: the recorder follows the interface; counts reveal the type mismatch.
        let error = unsafe { ImportedArray::import(session.make_array(0), &field) }.unwrap_err();
        assert!(matches!(error, Error::Invalid(_)), "{error:?}");
        assert_eq!(session.logged("release array"), 1);
        session.end();
    }
}

#[test]
fn r8_an_unknown_device_is_kept_but_not_read() {
    for device_type in [0, 2, 5, 17, -1, i64::from(i32::MAX)] {
        let session = Session::new(&[("device_type", device_type), ("device_id", 7)]);
        let imported = import(&session).unwrap();
        assert_eq!((i64::from(imported.device_type().0), imported.device_id()), (device_type, 7));
        let error = cpu::import_batch(imported).unwrap_err();
        assert!(matches!(error, Error::Unsupported(_)), "{error:?}");
        session.end();
    }
}

#[test]
fn r37_r42_data_behind_an_event_is_read_only_after_the_wait() {
    // Pinned memory: host memory with events.
    let settings = [("device_type", 3), ("device_id", 0), ("event", 1)];
    let session = Session::new(&settings);
    let imported = import(&session).unwrap();
    let error = cpu::import_batch(imported).unwrap_err();
    assert!(matches!(error, Error::Unsupported(_)), "{error:?}");
    session.end();

    let session = Session::new(&settings);
    let imported = import(&session).unwrap();
    session.event_wait(imported.sync_event());
    // SAFETY: the wait has returned.
    let imported = unsafe { imported.assume_complete() };
    assert_eq!(cpu::import_batch(imported).unwrap(), batch(0, 0, ROWS));
    session.end();
}

/// Exports an array, lets the recorder check it, and imports it again.
#[track_caller]
fn round_trip(array: &ArrayRef, record_batch: i64) {
    let session = Session::new(&[("record_batch", record_batch)]);
    let field = cpu::field_of(array);
    session.check_schema(schema::export_field(&field).unwrap());
    session.check_array(cpu::export_array(array).unwrap());
    // SAFETY: exported above, and moved twice since.
    let imported = unsafe { ImportedArray::import(session.take(0).unwrap(), &field) }.unwrap();
    assert_eq!(&cpu::import_array(imported).unwrap(), array);
    session.end();
}

/// Arrays of many types, with and without nulls.
fn samples() -> Vec<ArrayRef> {
    let ints: ArrayRef =
        Arc::new(Int32Array::from(vec![Some(5), None, Some(-7), Some(0), Some(100), None, Some(3), Some(4), Some(9)]));
    let longs = cast(&ints, &DataType::Int64).unwrap();
    let texts = ["", "a", "né", "a string of more than twelve bytes", "d", "e", "f", "g", "h"];
    let strings: ArrayRef =
        Arc::new(texts.iter().enumerate().map(|(i, string)| (i != 4).then_some(*string)).collect::<StringArray>());
    let mut samples = vec![ints.clone(), longs.clone(), strings.clone()];
    for to in [
        DataType::Int8,
        DataType::UInt8,
        DataType::UInt16,
        DataType::UInt32,
        DataType::UInt64,
        DataType::Float16,
        DataType::Float32,
        DataType::Float64,
        DataType::Boolean,
        DataType::Decimal128(20, 3),
        DataType::Decimal256(40, 3),
        DataType::Decimal32(9, 1),
        DataType::Decimal64(15, 1),
        DataType::Date32,
        DataType::Time32(TimeUnit::Second),
        DataType::Time32(TimeUnit::Millisecond),
        DataType::Utf8,
    ] {
        samples.push(cast(&ints, &to).unwrap());
    }
    for to in [
        DataType::Date64,
        DataType::Time64(TimeUnit::Microsecond),
        DataType::Time64(TimeUnit::Nanosecond),
        DataType::Timestamp(TimeUnit::Second, None),
        DataType::Timestamp(TimeUnit::Nanosecond, Some("+01:00".into())),
        DataType::Duration(TimeUnit::Millisecond),
    ] {
        samples.push(cast(&longs, &to).unwrap());
    }
    samples.push(cast(&ints, &DataType::Interval(IntervalUnit::YearMonth)).unwrap());
    for to in [
        DataType::LargeUtf8,
        DataType::Utf8View,
        DataType::Binary,
        DataType::LargeBinary,
        DataType::BinaryView,
        DataType::Dictionary(Box::new(DataType::UInt16), Box::new(DataType::Utf8)),
        DataType::Dictionary(Box::new(DataType::Int64), Box::new(DataType::LargeUtf8)),
    ] {
        samples.push(cast(&strings, &to).unwrap());
    }
    let lengths = || OffsetBuffer::<i32>::from_lengths([2, 0, 3, 4]);
    let item = |of: &ArrayRef| Arc::new(Field::new("item", of.data_type().clone(), true));
    let lists: ArrayRef = Arc::new(arrow::array::ListArray::new(item(&strings), lengths(), strings.clone(), None));
    samples.push(Arc::new(LargeListArray::new(item(&ints), OffsetBuffer::from_lengths([1, 3, 0, 5]), ints.clone(), None)));
    samples.push(Arc::new(FixedSizeListArray::new(item(&ints), 3, ints.clone(), None)));
    samples.push(Arc::new(StructArray::try_from(vec![("i", ints.clone()), ("t", strings.clone())]).unwrap()));
    let keys: ArrayRef = Arc::new(LargeStringArray::from(texts.to_vec()));
    let fields = vec![Field::new("keys", DataType::LargeUtf8, false), Field::new("values", DataType::Int32, true)];
    let entries = StructArray::new(fields.into(), vec![keys, ints.clone()], None);
    let entry = Arc::new(Field::new("entries", entries.data_type().clone(), false));
    samples.push(Arc::new(MapArray::new(entry, lengths(), entries, None, false)));
    samples.push(lists);
    samples.push(Arc::new(BinaryArray::from_vec(vec![b"", b"x", b"\0"])));
    samples.push(Arc::new(Int16Array::from(Vec::<i16>::new())));
    samples.push(Arc::new(StringArray::from(Vec::<&str>::new())));
    samples
}

#[test]
fn r14_r19_r22_r28_r34_r36_exports_of_every_type_are_well_formed() {
    for array in samples() {
        let structs = matches!(array.data_type(), DataType::Struct(_));
        round_trip(&array, i64::from(structs && array.null_count() == 0));
        // Slices: offsets, unaligned bitmaps, and empty arrays.
        for (from, rows) in [(1, 2), (2, 1), (3, 0)] {
            if from + rows <= array.len() {
                round_trip(&array.slice(from, rows), 0);
            }
        }
    }
}

#[test]
fn r33_sliced_batches_have_no_offset_of_their_own() {
    for (from, rows) in [(0, 9), (1, 7), (8, 1), (3, 0)] {
        let session = Session::new(&[]);
        let sliced = batch(0, 0, 9).slice(from, rows);
        session.check_schema(schema::export_schema(&sliced.schema()).unwrap());
        session.check_array(cpu::export_batch(&sliced).unwrap());
        let field = schema::batch_field(&sliced.schema());
        // SAFETY: exported above.
        let imported = unsafe { ImportedArray::import(session.take(0).unwrap(), &field) }.unwrap();
        assert_eq!(cpu::import_batch(imported).unwrap(), sliced);
        session.end();
    }
}

#[test]
fn r16_r29_r39_exported_memory_lives_until_the_release_elsewhere() {
    let live = LiveCount::default();
    let session = Session::new(&[]);
    session.check_schema(schema::export_schema(&batch_schema()).unwrap());
    for k in 0..4 {
        session.check_array(live.export(k).unwrap());
    }
    assert_eq!(live.count(), 4);
    drop(session.take(1));
    assert_eq!(live.count(), 3);
    session.end();
    assert_eq!(live.count(), 0);
}

#[test]
fn r31_metadata_of_a_schema_survives_a_round_trip() {
    let session = Session::new(&[]);
    let metadata = [("rows".to_string(), "15".to_string()), ("note".into(), "café".into())];
    let schema = batch(0, 0, 0).schema().as_ref().clone().with_metadata(metadata.into());
    session.check_schema(schema::export_schema(&schema).unwrap());
    // SAFETY: exported above.
    let field = unsafe { schema::import_field(session.take_schema().unwrap()) }.unwrap();
    assert_eq!(schema::schema_of(&field), Some(schema));
    session.end();

    // The other direction: pairs, no pairs, and pairs that are not UTF-8.
    for metadata in 0..3 {
        let session = Session::new(&[("metadata", metadata)]);
        // SAFETY: the recorder follows the interface.
        let field = unsafe { schema::import_field(session.make_schema()) }.unwrap();
        assert_eq!(field.metadata().len(), if metadata == 1 { 2 } else { 0 });
        session.end();
    }
    let session = Session::new(&[("metadata", 3)]);
    // SAFETY: as above.
    let error = unsafe { schema::import_field(session.make_schema()) }.unwrap_err();
    assert!(matches!(error, Error::Invalid(_)), "{error:?}");
    session.end();
}

#[test]
fn empty_batches_without_columns_are_passed() {
    let options = arrow::array::RecordBatchOptions::new().with_row_count(Some(3));
    let schema = Arc::new(arrow::datatypes::Schema::empty());
    let rows = RecordBatch::try_new_with_options(schema, vec![], &options).unwrap();
    let session = Session::new(&[]);
    session.check_schema(schema::export_schema(&rows.schema()).unwrap());
    session.check_array(cpu::export_batch(&rows).unwrap());
    let field = schema::batch_field(&rows.schema());
    // SAFETY: exported above.
    let imported = unsafe { ImportedArray::import(session.take(0).unwrap(), &field) }.unwrap();
    assert_eq!(cpu::import_batch(imported).unwrap(), rows);
    session.end();
}
