// SPDX-License-Identifier: Apache-2.0
//! Schemas with arbitrary formats, names, flags and metadata: an import accepts or refuses them. An
//! accepted schema survives an export and import unchanged.
#![no_main]

use std::ffi::CString;
use std::ptr::null_mut;

use arrow::ffi::FFI_ArrowSchema;
use arrow_device::{metadata, schema};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let _ = metadata::decode_slice(data);
    let mut parts = data.split(|byte| *byte == b'\n');
    let mut allocations = Vec::new();
    let root = node(&mut parts, &mut allocations, 0);
    // SAFETY: all pointers are to memory in `allocations`, and the release callbacks free nothing.
    if let Ok(field) = unsafe { schema::import_field(root) } {
        let Ok(exported) = schema::export_field(&field) else { return };
        // SAFETY: exported above.
        let back = unsafe { schema::import_field(exported) };
        assert_eq!(back.unwrap(), field);
    }
});

/// Allocations that the schemas point to.
enum Allocation {
    String(#[allow(dead_code)] CString),
    Node(*mut FFI_ArrowSchema),
    Table(*mut [*mut FFI_ArrowSchema]),
}

impl Drop for Allocation {
    fn drop(&mut self) {
        match self {
            Allocation::String(_) => {}
            // SAFETY: boxed in `node`, and no longer used.
            Allocation::Node(node) => drop(unsafe { Box::from_raw(*node) }),
            // SAFETY: as above.
            Allocation::Table(table) => drop(unsafe { Box::from_raw(*table) }),
        }
    }
}

unsafe extern "C" fn release(schema: *mut FFI_ArrowSchema) {
    // SAFETY: the caller owns the struct. In C's layout `release` is the last but one pointer.
    unsafe { *schema.cast::<[*mut (); 9]>() = { let mut words = *schema.cast::<[*mut (); 9]>(); words[7] = null_mut(); words } };
}

/// A node from a line `FORMAT NAME CHILDREN DICTIONARY FLAGS` of arbitrary bytes.
fn node<'a>(lines: &mut impl Iterator<Item = &'a [u8]>, allocations: &mut Vec<Allocation>, depth: usize) -> FFI_ArrowSchema {
    let line = lines.next().unwrap_or_default();
    let mut words = line.split(|byte| *byte == b' ');
    let mut string = |allocations: &mut Vec<Allocation>| {
        let word: Vec<u8> = words.next().unwrap_or_default().iter().copied().filter(|byte| *byte != 0).collect();
        let string = CString::new(word).unwrap_or_default();
        let pointer = string.as_ptr();
        allocations.push(Allocation::String(string));
        pointer
    };
    let (format, name) = (string(allocations), string(allocations));
    let number = |word: Option<&[u8]>| word.and_then(|word| word.first()).map_or(0, |byte| i64::from(byte % 4));
    let (num_children, dictionary, flags) = (number(words.next()), number(words.next()), number(words.next()));
    let children: Vec<*mut FFI_ArrowSchema> = match depth {
        0..6 => (0..num_children).map(|_| Box::into_raw(Box::new(node(lines, allocations, depth + 1)))).collect(),
        _ => Vec::new(),
    };
    let values = if dictionary == 1 && depth < 6 { Box::into_raw(Box::new(node(lines, allocations, depth + 1))) } else { null_mut() };
    let count = children.len();
    let table = Box::into_raw(children.into_boxed_slice());
    // SAFETY: the fields of struct ArrowSchema in C's order.
    let schema = unsafe {
        std::mem::transmute::<[usize; 9], FFI_ArrowSchema>([
            format as usize,
            name as usize,
            0,
            flags as usize,
            count,
            table.cast::<*mut FFI_ArrowSchema>() as usize,
            values as usize,
            release as *const () as usize,
            0,
        ])
    };
    // SAFETY: boxed above.
    allocations.extend(unsafe { &*table }.iter().map(|node| Allocation::Node(*node)));
    allocations.push(Allocation::Table(table));
    if !values.is_null() {
        allocations.push(Allocation::Node(values));
    }
    schema
}
