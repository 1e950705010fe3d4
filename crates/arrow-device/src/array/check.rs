// SPDX-License-Identifier: Apache-2.0
//! Validation of a foreign array tree against its type (R45, R46), before any access through it.
//!
//! The checks read host memory only: the structs, their pointer tables, and the lengths of variadic
//! buffers (R11, R35). They never read the data buffers, which may not be written yet (R37).

use std::ffi::c_void;

use arrow::datatypes::DataType;
use arrow::ffi::FFI_ArrowArray;

use super::path::Path;
use crate::layout::{self, BufferKind, Layout, MAX_BYTES};
use crate::{Error, Result};

/// Limit of nesting, because validation and views recurse.
pub(crate) const MAX_DEPTH: usize = 64;

/// Limit of the values of a dictionary. NULLs and empty values take no memory, so an array may
/// claim any number of them, but readers have memory for each.
const MAX_DICTIONARY: i64 = u32::MAX as i64;

/// Checks `array`, its children and its dictionary against the type at `path`.
///
/// # Safety
/// The non-null pointers of the tree's structs are valid, as the C data interface specifies. Null
/// pointers, counts, lengths and offsets may have any value: this function checks them.
pub(crate) unsafe fn check(array: &FFI_ArrowArray, path: &Path<'_>) -> Result<()> {
    if path.depth >= MAX_DEPTH {
        return Err(path.unsupported(format_args!("nested deeper than {MAX_DEPTH} levels")));
    }
    if array.release.is_none() {
        return Err(path.invalid("the array is released"));
    }
    let layout = layout::layout(path.data_type).map_err(|why| path.unsupported(why))?;
    let end = check_lengths(array, path)?;
    // SAFETY: the caller upholds the contract.
    unsafe { check_buffers(array, &layout, end, path)? };
    // SAFETY: the caller upholds the contract.
    unsafe { check_children(array, end, path)? };
    // SAFETY: the caller upholds the contract.
    unsafe { check_dictionary(array, path) }
}

/// Returns the array's end: offset plus length, in elements.
fn check_lengths(array: &FFI_ArrowArray, path: &Path<'_>) -> Result<usize> {
    let FFI_ArrowArray { length, offset, null_count, .. } = *array;
    if length < 0 {
        return Err(path.invalid(format_args!("length must not be negative, got {length}")));
    }
    if offset < 0 {
        return Err(path.invalid(format_args!("offset must not be negative, got {offset}")));
    }
    if !(-1..=length).contains(&null_count) {
        return Err(path.invalid(format_args!("null_count must lie between -1 and the length {length}, got {null_count}")));
    }
    let end = length.checked_add(offset).and_then(|end| usize::try_from(end).ok());
    end.ok_or_else(|| path.invalid(format_args!("length {length} and offset {offset} overflow")))
}

/// # Safety
/// As [`check`].
unsafe fn check_buffers(array: &FFI_ArrowArray, layout: &Layout, end: usize, path: &Path<'_>) -> Result<()> {
    let kinds = layout.kinds();
    let fits = match layout.variadic {
        false => usize::try_from(array.n_buffers) == Ok(kinds.len()),
        // Bounds the pointer table, so that its addresses cannot overflow.
        true => array.n_buffers > kinds.len() as i64 && array.n_buffers <= i64::from(i32::MAX),
    };
    if !fits {
        let (at_least, expected) = if layout.variadic { ("at least ", kinds.len() + 1) } else { ("", kinds.len()) };
        return Err(path.invalid(format_args!("expected {at_least}{expected} buffers, got {}", array.n_buffers)));
    }
    if array.n_buffers > 0 && array.buffers.is_null() {
        return Err(path.invalid(format_args!("its {} buffers have no table: buffers is null", array.n_buffers)));
    }
    for (index, kind) in kinds.iter().enumerate() {
        // SAFETY: the table is not null and has `n_buffers` entries.
        let buffer = unsafe { buffer_at(array, index) };
        check_buffer(array, index, *kind, buffer, end, path)?;
    }
    // An empty array may even lack the lengths (R46).
    if layout.variadic && array.length > 0 {
        // SAFETY: the caller upholds the contract; the count was checked above.
        unsafe { check_variadic(array, kinds.len(), path)? };
    }
    Ok(())
}

fn check_buffer(
    array: &FFI_ArrowArray,
    index: usize,
    kind: BufferKind,
    buffer: *const c_void,
    end: usize,
    path: &Path<'_>,
) -> Result<()> {
    let bytes = kind
        .byte_len(end)
        .map_err(|_| path.invalid(format_args!("buffer {index} for {end} elements is larger than any memory")))?;
    // An empty array needs no memory (R46); otherwise the offset counts too (R28).
    if !buffer.is_null() || array.length == 0 {
        return Ok(());
    }
    match (kind, bytes) {
        (BufferKind::Validity, _) if array.null_count > 0 => {
            Err(path.invalid(format_args!("null_count is {}, but the validity is null", array.null_count)))
        }
        (BufferKind::Validity, _) | (_, None | Some(0)) => Ok(()),
        (_, Some(bytes)) => Err(path.invalid(format_args!("buffer {index} is null, expected {bytes} bytes"))),
    }
}

/// # Safety
/// As [`check`]; `n_buffers` is larger than `fixed`.
unsafe fn check_variadic(array: &FFI_ArrowArray, fixed: usize, path: &Path<'_>) -> Result<()> {
    let last = array.num_buffers() - 1;
    // SAFETY: the table is not null and has `n_buffers` entries.
    let lengths = unsafe { buffer_at(array, last) };
    if last > fixed && lengths.is_null() {
        return Err(path.invalid(format_args!("the lengths of its {} variadic buffers are null", last - fixed)));
    }
    for index in fixed..last {
        // SAFETY: the lengths are one integer per variadic buffer, in host memory (R35).
        let length = unsafe { lengths.cast::<i64>().add(index - fixed).read_unaligned() };
        let Some(bytes) = usize::try_from(length).ok().filter(|bytes| *bytes <= MAX_BYTES) else {
            return Err(path.invalid(format_args!("variadic buffer {index} cannot have {length} bytes")));
        };
        // SAFETY: the table is not null and has `n_buffers` entries.
        if bytes > 0 && unsafe { buffer_at(array, index) }.is_null() {
            return Err(path.invalid(format_args!("variadic buffer {index} is null, expected {bytes} bytes")));
        }
    }
    Ok(())
}

/// # Safety
/// As [`check`].
unsafe fn check_children(array: &FFI_ArrowArray, end: usize, path: &Path<'_>) -> Result<()> {
    let expected = layout::num_children(path.data_type);
    if usize::try_from(array.n_children) != Ok(expected) {
        return Err(path.invalid(format_args!("expected {expected} children, got {}", array.n_children)));
    }
    if expected > 0 && array.children.is_null() {
        return Err(path.invalid(format_args!("its {expected} children have no table: children is null")));
    }
    let needed = layout::min_child_len(path.data_type, end)
        .map_err(|_| path.invalid(format_args!("{end} lists of it have more elements than any memory")))?;
    let runs = matches!(path.data_type, DataType::RunEndEncoded(_, _));
    // The run ends, once their child was checked.
    let mut ends: Option<&FFI_ArrowArray> = None;
    for index in 0..expected {
        let Some(field) = layout::child_field(path.data_type, index) else { continue };
        let path = path.child(index, field);
        // SAFETY: the table is not null and has `n_children` entries.
        let child = unsafe { array.children.add(index).read_unaligned() };
        // SAFETY: an entry of the table is null or points to the child's struct.
        let child = unsafe { follow(child, "child", &path)? };
        // SAFETY: the caller upholds the contract.
        unsafe { check(child, &path)? };
        if let Some(needed) = needed.filter(|needed| *needed > child.len()) {
            return Err(path.invalid(format_args!("its parent needs {needed} elements, got {}", child.length)));
        }
        if runs && child.null_count > 0 && index == 0 {
            return Err(path.invalid("run ends must not be null"));
        }
        if let Some(ends) = ends.filter(|ends| ends.length > child.length) {
            return Err(path.invalid(format_args!("{} run ends need as many values, got {}", ends.length, child.length)));
        }
        ends = runs.then_some(child);
    }
    Ok(())
}

/// # Safety
/// As [`check`].
unsafe fn check_dictionary(array: &FFI_ArrowArray, path: &Path<'_>) -> Result<()> {
    match path.data_type {
        DataType::Dictionary(_, values) => {
            let path = path.dictionary(values);
            // SAFETY: the pointer is null or points to the dictionary's struct.
            let dictionary = unsafe { follow(array.dictionary, "dictionary", &path)? };
            if dictionary.length > MAX_DICTIONARY {
                let length = dictionary.length;
                return Err(path.unsupported(format_args!("a dictionary of {length} values, limit {MAX_DICTIONARY}")));
            }
            // SAFETY: the caller upholds the contract.
            unsafe { check(dictionary, &path) }
        }
        _ if array.dictionary.is_null() => Ok(()),
        _ => Err(path.invalid("the array has a dictionary, its type has none")),
    }
}

/// # Safety
/// An aligned pointer other than null points to an array that lives for `'a`.
unsafe fn follow<'a>(array: *mut FFI_ArrowArray, what: &str, path: &Path<'_>) -> Result<&'a FFI_ArrowArray, Error> {
    if !array.is_aligned() {
        return Err(path.invalid(format_args!("the {what} lies at a misaligned address")));
    }
    // SAFETY: aligned, and valid unless null. `as_ref` tests for null.
    unsafe { array.as_ref() }.ok_or_else(|| path.invalid(format_args!("the {what} is null")))
}

/// The pointer at `index` of the array's buffer table.
///
/// # Safety
/// The table is not null and has more than `index` entries.
pub(crate) unsafe fn buffer_at(array: &FFI_ArrowArray, index: usize) -> *const c_void {
    // SAFETY: within the table by this function's contract; a foreign table may be misaligned.
    unsafe { array.buffers.add(index).read_unaligned() }
}
