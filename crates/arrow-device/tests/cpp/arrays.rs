// SPDX-License-Identifier: Apache-2.0
//! Arrays and record batches, both ways.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, FixedSizeBinaryArray, Int32Array, RecordBatch, RecordBatchOptions};
use arrow::datatypes::{DataType, Field, Schema};
use arrow_device::{ImportedArray, cpu, schema};

use crate::peer::{CppArray, CppBatch, status};
use crate::samples::{self, Sample, samples};
use crate::session::{Session, counted};

/// Offsets and lengths of slices of `len` elements.
fn slices(len: usize) -> Vec<(usize, usize)> {
    vec![(0, len), (0, 0), (1, len - 1), (2, 2), (len - 1, 1), (len, 0)]
}

/// The samples, and their empty versions.
fn all() -> impl Iterator<Item = Sample> {
    samples().into_iter().flat_map(|sample| [sample.empty(), sample])
}

#[test]
fn arrays_of_arrow_cpp_have_its_values_here() {
    device::skip_unless_turn!(5);
    Session::run(|_session| {
        for Sample { array: expected, json } in all() {
            let field = cpu::field_of(&expected);
            let built = CppArray::build(&field, &json).unwrap();
            let parts = if expected.is_empty() { vec![(0, 0)] } else { slices(expected.len()) };
            for (offset, len) in parts {
                let at = format!("{}[{offset}, {len}]", field.data_type());
                let (array, schema) = built.slice(offset, len).export().unwrap();
                // SAFETY: both were written by Arrow C++.
                let (field, array) = unsafe {
                    let field = schema::import_field(schema).unwrap();
                    (field.clone(), ImportedArray::import(array, &field).unwrap())
                };
                assert_eq!(field.data_type(), expected.data_type(), "{at}");
                assert_eq!((array.device_id(), array.sync_event()), (-1, std::ptr::null_mut()), "{at}");
                let part = expected.slice(offset, len);
                if let Some(count) = array.view().null_count() {
                    assert_eq!(count, if *field.data_type() == DataType::Null { len } else { part.null_count() }, "{at}");
                }
                let imported = cpu::import_array(array).unwrap_or_else(|error| panic!("{at}: {error}"));
                assert_eq!(&imported, &part, "{at}");
            }
        }
    });
}

#[test]
fn our_arrays_are_valid_in_arrow_cpp() {
    Session::run(|_session| {
        for Sample { array, json } in all() {
            let field = cpu::field_of(&array);
            let expected = CppArray::build(&field, &json).unwrap();
            let parts = if array.is_empty() { vec![(0, 0)] } else { slices(array.len()) };
            for (offset, len) in parts {
                let at = format!("{}[{offset}, {len}]", field.data_type());
                let part = array.slice(offset, len);
                let exported = counted(cpu::export_array(&part).unwrap());
                let imported = CppArray::import(exported, schema::export_field(&field).unwrap());
                imported.unwrap_or_else(|error| panic!("{at}: {error}")).assert_equals(&expected.slice(offset, len));
            }
        }
    });
}

/// R34: Arrow C++ counts the nulls that an export leaves out.
#[test]
fn missing_null_counts_are_accepted() {
    Session::run(|_session| {
        for Sample { array, json } in samples() {
            let field = cpu::field_of(&array);
            let mut exported = cpu::export_array(&array).unwrap();
            if array.nulls().is_none() {
                continue;
            }
            exported.array.null_count = -1;
            let imported = CppArray::import(counted(exported), schema::export_field(&field).unwrap()).unwrap();
            imported.assert_equals(&CppArray::build(&field, &json).unwrap());
        }
    });
}

/// Round trips: Arrow C++ imports what this crate imported from it.
#[test]
fn arrays_survive_a_round_trip_from_arrow_cpp() {
    device::skip_unless_turn!(6);
    Session::run(|_session| {
        for Sample { array, json } in samples() {
            let field = cpu::field_of(&array);
            let built = CppArray::build(&field, &json).unwrap().slice(1, 3);
            let (array, schema) = built.export().unwrap();
            // SAFETY: both were written by Arrow C++.
            let array = unsafe { ImportedArray::import(array, &schema::import_field(schema).unwrap()).unwrap() };
            // Unchanged, and through arrow-rs.
            let schema = schema::export_field(array.field()).unwrap();
            let back = CppArray::import(counted(array.into_ffi()), schema).unwrap();
            back.assert_equals(&built);
            let (array, schema) = back.export().unwrap();
            // SAFETY: as above.
            let array = unsafe { ImportedArray::import(array, &schema::import_field(schema).unwrap()).unwrap() };
            let array = cpu::import_array(array).unwrap();
            let exported = counted(cpu::export_array(&array).unwrap());
            CppArray::import(exported, schema::export_field(&field).unwrap()).unwrap().assert_equals(&built);
        }
    });
}

/// Imports a batch of Arrow C++.
fn take(batch: &CppBatch) -> RecordBatch {
    let (array, schema) = batch.export().unwrap();
    // SAFETY: both were written by Arrow C++.
    let array = unsafe {
        let schema = schema::import_schema(schema).unwrap();
        ImportedArray::import(array, &schema::batch_field(&schema)).unwrap()
    };
    cpu::import_batch(array).unwrap()
}

fn give(batch: &RecordBatch) -> CppBatch {
    let array = counted(cpu::export_batch(batch).unwrap());
    CppBatch::import(array, schema::export_schema(&batch.schema()).unwrap()).unwrap()
}

#[test]
fn record_batches_keep_rows_and_metadata_both_ways() {
    Session::run(|_session| {
        let (ours, theirs) = (samples::batch(7), CppBatch::build(&samples::schema(), &samples::batch_json(7)).unwrap());
        for (offset, len) in [(0, 3), (1, 2), (1, 1), (2, 0), (0, 0)] {
            assert_eq!(take(&theirs.slice(offset, len)), ours.slice(offset, len));
            give(&ours.slice(offset, len)).assert_equals(&theirs.slice(offset, len));
        }
    });
}

#[test]
fn record_batches_of_all_types_go_both_ways() {
    Session::run(|_session| {
        let samples: Vec<_> = samples().into_iter().map(|sample| sample.array.slice(0, 5)).collect();
        let fields: Vec<_> = samples
            .iter()
            .enumerate()
            .map(|(index, array)| Field::new(format!("c{index}"), array.data_type().clone(), true))
            .collect();
        let ours = RecordBatch::try_new(Arc::new(Schema::new(fields)), samples).unwrap();
        for (offset, len) in [(0, 5), (1, 3), (5, 0)] {
            let part = ours.slice(offset, len);
            assert_eq!(take(&give(&part)), part);
        }
    });
}

#[test]
fn rows_without_columns_are_counted() {
    Session::run(|_session| {
        let options = RecordBatchOptions::new().with_row_count(Some(3));
        let ours = RecordBatch::try_new_with_options(Arc::new(Schema::empty()), vec![], &options).unwrap();
        let theirs = give(&ours);
        assert_eq!(theirs.num_rows(), 3);
        assert_eq!(take(&theirs), ours);
    });
}

/// Arrow C++ knows this extension type; this crate keeps its name and storage.
#[test]
fn extension_types_pass_as_metadata() {
    Session::run(|_session| {
        let metadata =
            [("ARROW:extension:name".to_string(), "arrow.uuid".to_string()), ("ARROW:extension:metadata".into(), String::new())];
        let field = Field::new("id", DataType::FixedSizeBinary(16), true).with_metadata(metadata.into());
        let schema = Schema::new(vec![field]);
        let theirs = CppBatch::build(&schema, r#"[{"id": "0123456789abcdef"}, {"id": null}]"#).unwrap();
        let ids =
            FixedSizeBinaryArray::try_from_sparse_iter_with_size([Some(*b"0123456789abcdef"), None].into_iter(), 16).unwrap();
        let ours = RecordBatch::try_new(Arc::new(schema), vec![Arc::new(ids)]).unwrap();
        assert_eq!(take(&theirs), ours);
        give(&ours).assert_equals(&theirs);
    });
}

#[test]
fn arrow_cpp_releases_refused_arrays() {
    Session::run(|_session| {
        let rows: ArrayRef = Arc::new(Int32Array::from(vec![1, 2, 3]));
        let batch = RecordBatch::try_from_iter([("a", rows)]).unwrap();
        // A struct with an offset, which the export of batches never makes (R33).
        let with_offset = arrow_device::ArrayExport::new(2).offset(1).buffers(vec![std::ptr::null()]);
        let exported = with_offset.children(vec![
            arrow_device::ArrayExport::new(3)
                .buffers(vec![std::ptr::null(), batch.column(0).to_data().buffers()[0].as_ptr().cast()]),
        ]);
        let exported =
            exported.owner(Box::new(batch.clone())).export(arrow_device::ffi::ArrowDeviceType::CPU, -1, std::ptr::null_mut());
        let refused = CppBatch::import(counted(exported.unwrap()), schema::export_schema(&batch.schema()).unwrap()).unwrap_err();
        assert_eq!(refused.code, status::INVALID);
        assert!(refused.message.contains("non-zero offset"), "{refused}");
        // The schema of another type.
        let other = schema::export_schema(&samples::schema()).unwrap();
        let refused = CppBatch::import(counted(cpu::export_batch(&batch).unwrap()), other).unwrap_err();
        assert!(refused.message.contains("children"), "{refused}");
    });
}
