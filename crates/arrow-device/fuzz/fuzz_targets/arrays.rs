// SPDX-License-Identifier: Apache-2.0
//! Array structs with arbitrary counts and tables: an import accepts or refuses them, and releases
//! them.
//!
//! Lengths become smaller, negative or absurd, but never slightly larger. No check can tell whether
//! a buffer is as long as its array requires: the producer guarantees it.
#![no_main]

use std::ptr::null_mut;
use std::sync::Arc;

use arrow::array::types::Int32Type;
use arrow::array::{
    ArrayRef, BooleanArray, Decimal128Array, DictionaryArray, FixedSizeListArray, Int32Array, Int64Array, ListArray, NullArray,
    RunArray, StringArray, StringViewArray, StructArray,
};
use arrow::datatypes::Field;
use arrow::ffi::FFI_ArrowArray;
use arrow_device::{ImportedArray, cpu};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let mut bytes = data.iter().copied();
    let Some(kind) = bytes.next() else { return };
    let array = sample(kind);
    let field = Field::new("x", array.data_type().clone(), true);
    let Ok(mut exported) = cpu::export_array(&array) else { return };
    for _ in 0..bytes.next().unwrap_or(0) % 8 {
        corrupt(&mut exported.array, &mut bytes);
    }
    // SAFETY: only fields that the import checks were corrupted.
    if let Ok(imported) = unsafe { ImportedArray::import(exported, &field) } {
        let _ = cpu::import_array(imported);
    }
});

/// A small array of one of several shapes.
fn sample(kind: u8) -> ArrayRef {
    let ints = || Arc::new(Int32Array::from(vec![Some(1), None, Some(3), Some(4)])) as ArrayRef;
    match kind % 12 {
        0 => Arc::new(NullArray::new(4)),
        1 => Arc::new(BooleanArray::from(vec![Some(true), None, Some(false), Some(true)])),
        2 => ints(),
        3 => Arc::new(StringArray::from(vec![Some("a"), None, Some("ccc"), Some("")])),
        4 => Arc::new(StringViewArray::from(vec![Some("short"), None, Some("one that is longer than twelve bytes"), Some("")])),
        5 => Arc::new(Decimal128Array::from(vec![Some(1), None, Some(-3), Some(4)])),
        6 => Arc::new(["a", "b", "a", "c"].into_iter().collect::<DictionaryArray<Int32Type>>()),
        7 => Arc::new(ListArray::from_iter_primitive::<Int32Type, _, _>([Some(vec![Some(1)]), None, Some(vec![]), Some(vec![None])])),
        8 => Arc::new(StructArray::from(vec![(Arc::new(Field::new("i", arrow::datatypes::DataType::Int32, true)), ints())])),
        9 => Arc::new(FixedSizeListArray::from_iter_primitive::<Int32Type, _, _>([Some(vec![Some(1), None]), None], 2)),
        10 => Arc::new([1i64, 1, 2, 2].into_iter().map(|i| if i == 1 { "x" } else { "y" }).collect::<RunArray<Int32Type>>()),
        _ => Arc::new(Int64Array::from(Vec::<i64>::new())),
    }
}

/// Changes one field in one node of the tree.
fn corrupt(root: &mut FFI_ArrowArray, bytes: &mut impl Iterator<Item = u8>) {
    let mut byte = || bytes.next().unwrap_or(0);
    let mut node = root;
    while byte() % 2 == 1 && node.n_children == 1 && !node.children.is_null() {
        // SAFETY: as exported, or null.
        let Some(child) = (unsafe { (*node.children).as_mut() }) else { break };
        node = child;
    }
    let number = [-1, 0, 1, i64::MIN, i64::MAX, i64::MAX / 2, -2, 1 << 62][usize::from(byte() % 8)];
    match byte() % 9 {
        0 => node.length = number.min(node.length).max(if number > 1 << 60 { number } else { i64::MIN }),
        1 => node.null_count = number,
        2 if number <= 0 || number > 1 << 60 => node.offset = number,
        3 => node.n_buffers = number,
        4 => node.n_children = number,
        5 => node.buffers = null_mut(),
        6 => node.children = null_mut(),
        7 => node.dictionary = null_mut(),
        _ if !node.buffers.is_null() && node.n_buffers > 0 && node.n_buffers < 8 => {
            let index = usize::from(byte()) % node.n_buffers as usize;
            // SAFETY: an export has as many entries as a small count says; corruption only lowers
            // the count.
            unsafe { *node.buffers.add(index.min(1)) = std::ptr::null() };
        }
        _ => {}
    }
}
