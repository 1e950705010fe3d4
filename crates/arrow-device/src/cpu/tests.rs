// SPDX-License-Identifier: Apache-2.0
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, Int32Array, StringArray};

use super::*;
use crate::ImportedArray;

#[track_caller]
fn round_trip(array: &ArrayRef) {
    let field = field_of(array);
    // SAFETY: exported here.
    let imported = unsafe { ImportedArray::import(export_array(array).unwrap(), &field).unwrap() };
    let back = import_array(imported).unwrap();
    assert_eq!(&back, array);
    back.to_data().validate_full().unwrap();
}

#[test]
fn integers_and_strings_round_trip() {
    let ints: ArrayRef = Arc::new(Int32Array::from(vec![Some(1), None, Some(3)]));
    round_trip(&ints);
    round_trip(&ints.slice(1, 2));
    let strings: ArrayRef = Arc::new(StringArray::from(vec![Some("a"), None, Some("ccc")]));
    round_trip(&strings);
    round_trip(&strings.slice(1, 1));
    round_trip(&strings.slice(1, 0));
}
