// SPDX-License-Identifier: Apache-2.0
//! Views of arrays of each type.

use arrow::array::*;
use arrow::datatypes::{DataType, Field};

use crate::testing::samples;
use crate::{BufferKind, ImportedArray, cpu};

fn imported(array: &dyn Array) -> ImportedArray {
    let field = Field::new("", array.data_type().clone(), true);
    // SAFETY: exported here.
    unsafe { ImportedArray::import(cpu::export_array(array).unwrap(), &field).unwrap() }
}

#[test]
fn every_type_shows_its_tree() {
    for array in samples() {
        let array = array.slice(1, 3);
        let imported = imported(&array);
        let (view, data) = (imported.view(), array.to_data());
        assert_eq!((view.data_type(), view.len()), (array.data_type(), 3));
        assert_eq!(view.offset(), data.offset());
        let nulls = if array.data_type() == &DataType::Null { 3 } else { array.null_count() };
        assert_eq!(view.null_count(), Some(nulls));
        let children = view.children().count() + usize::from(view.dictionary().is_some());
        assert_eq!(children, data.child_data().len());
        assert!(view.children().zip(data.child_data()).all(|(view, data)| view.len() == data.len()));
        assert_eq!(view.buffers().len(), view.num_buffers());
        assert!(view.buffer(view.num_buffers()).is_none() && view.child(view.num_children()).is_none());
    }
}

#[test]
fn sizes_follow_length_and_offset() {
    let says = |array: &dyn Array| {
        let imported = imported(array);
        imported.view().buffers().map(|buffer| (buffer.kind, buffer.len_bytes)).collect::<Vec<_>>()
    };
    use BufferKind::*;
    let strings = StringArray::from(vec![Some("a"), None, Some("b")]);
    assert_eq!(says(&strings), [(Validity, Some(1)), (Offsets(4), Some(16)), (Bytes, None)]);
    assert_eq!(says(&strings.slice(0, 0)), [(Validity, Some(0)), (Offsets(4), Some(0)), (Bytes, Some(0))]);
    let bits = BooleanArray::from(vec![true; 20]).slice(9, 8);
    // No validity.
    assert_eq!(says(&bits), [(Validity, Some(0)), (Bits, Some(3))]);
    assert_eq!(says(&Decimal256Array::from(vec![None; 2])), [(Validity, Some(1)), (Fixed(32), Some(64))]);
    let views = StringViewArray::from(vec!["short", "this one is longer than a view"]);
    assert_eq!(says(&views), [(Validity, Some(0)), (Views, Some(32)), (Variadic, Some(30)), (VariadicLengths, Some(8))]);
    let short = StringViewArray::from(vec!["short"]);
    assert_eq!(says(&short), [(Validity, Some(0)), (Views, Some(16)), (VariadicLengths, Some(0))]);
}

#[test]
fn a_batch_has_its_schema() {
    let columns: ArrayRef = std::sync::Arc::new(Int32Array::from(vec![1]));
    let batch = RecordBatch::try_from_iter([("a", columns)]).unwrap();
    let field = crate::schema::batch_field(&batch.schema());
    // SAFETY: exported here.
    let imported = unsafe { ImportedArray::import(cpu::export_batch(&batch).unwrap(), &field).unwrap() };
    assert_eq!(imported.schema().as_ref(), Some(&*batch.schema()));
    assert_eq!((imported.field().as_ref(), imported.len()), (&field, 1));
}
