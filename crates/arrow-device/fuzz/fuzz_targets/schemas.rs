// SPDX-License-Identifier: Apache-2.0
//! Schemas of any format strings, names, flags and metadata: an import takes them or refuses them. What it takes can be
//! exported, and comes back the same.
#![no_main]

use std::ffi::CString;
use std::ptr::null_mut;

use arrow::ffi::FFI_ArrowSchema;
use arrow_device::{metadata, schema};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let _ = metadata::decode_slice(data);
    let mut parts = data.split(|byte| *byte == b'\n');
    let mut made = Vec::new();
    let root = node(&mut parts, &mut made, 0);
    // SAFETY: all pointers are to what `made` keeps; nothing has a release callback but the root, which does nothing.
    if let Ok(field) = unsafe { schema::import_field(root) } {
        let Ok(exported) = schema::export_field(&field) else { return };
        // SAFETY: exported above.
        let back = unsafe { schema::import_field(exported) };
        assert_eq!(back.unwrap(), field);
    }
});

/// What schemas point to.
enum Made {
    Text(#[allow(dead_code)] CString),
    Node(*mut FFI_ArrowSchema),
    Table(*mut [*mut FFI_ArrowSchema]),
}

impl Drop for Made {
    fn drop(&mut self) {
        match self {
            Made::Text(_) => {}
            // SAFETY: boxed in `node`, and nobody uses them any more.
            Made::Node(node) => drop(unsafe { Box::from_raw(*node) }),
            // SAFETY: as above.
            Made::Table(table) => drop(unsafe { Box::from_raw(*table) }),
        }
    }
}

unsafe extern "C" fn release(schema: *mut FFI_ArrowSchema) {
    // SAFETY: the caller owns the struct. Its layout is C's, `release` the last but one word.
    unsafe { *schema.cast::<[*mut (); 9]>() = { let mut words = *schema.cast::<[*mut (); 9]>(); words[7] = null_mut(); words } };
}

/// A node whose line is `FORMAT NAME CHILDREN DICTIONARY FLAGS`, each as it comes.
fn node<'a>(lines: &mut impl Iterator<Item = &'a [u8]>, made: &mut Vec<Made>, depth: usize) -> FFI_ArrowSchema {
    let line = lines.next().unwrap_or_default();
    let mut words = line.split(|byte| *byte == b' ');
    let mut text = |made: &mut Vec<Made>| {
        let word: Vec<u8> = words.next().unwrap_or_default().iter().copied().filter(|byte| *byte != 0).collect();
        let text = CString::new(word).unwrap_or_default();
        let pointer = text.as_ptr();
        made.push(Made::Text(text));
        pointer
    };
    let (format, name) = (text(made), text(made));
    let number = |word: Option<&[u8]>| word.and_then(|word| word.first()).map_or(0, |byte| i64::from(byte % 4));
    let (children, dictionary, flags) = (number(words.next()), number(words.next()), number(words.next()));
    let below: Vec<*mut FFI_ArrowSchema> = match depth {
        0..6 => (0..children).map(|_| Box::into_raw(Box::new(node(lines, made, depth + 1)))).collect(),
        _ => Vec::new(),
    };
    let values = if dictionary == 1 && depth < 6 { Box::into_raw(Box::new(node(lines, made, depth + 1))) } else { null_mut() };
    let count = below.len();
    let table = Box::into_raw(below.into_boxed_slice());
    // SAFETY: the words of struct ArrowSchema in C's order.
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
    // SAFETY: made above.
    made.extend(unsafe { &*table }.iter().map(|node| Made::Node(*node)));
    made.push(Made::Table(table));
    if !values.is_null() {
        made.push(Made::Node(values));
    }
    schema
}
