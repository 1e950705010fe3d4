// SPDX-License-Identifier: Apache-2.0
//! Import of foreign arrays in host memory as arrow-rs arrays.

use std::ptr::NonNull;
use std::sync::Arc;

use arrow::array::{Array, ArrayData, ArrayDataBuilder, ArrayRef, RecordBatch, RecordBatchOptions, StructArray, make_array};
use arrow::buffer::{BooleanBuffer, Buffer, NullBuffer};
use arrow::datatypes::{DataType, Field, UnionMode};

use crate::array::path::Path;
use crate::callback::guard;
use crate::ffi::ArrowDeviceType;
use crate::layout::{BufferKind, MAX_BYTES, child_field};
use crate::{ArrayView, BufferView, Error, ImportedArray, Result};

/// Whether this device type is host memory: the CPU's, or pinned by CUDA or ROCm.
pub fn is_host(device_type: ArrowDeviceType) -> bool {
    matches!(device_type, ArrowDeviceType::CPU | ArrowDeviceType::CUDA_HOST | ArrowDeviceType::ROCM_HOST)
}

/// Builds an arrow-rs array from a foreign one in host memory, sharing its buffers; misaligned ones
/// are copied.
///
/// All values are validated. The foreign array is released when the last of the result's buffers
/// drops.
///
/// # Errors
/// - `Unsupported` if the array is not in host memory, or has an event (see
///   [`ImportedArray::assume_complete`]).
/// - `Invalid` if values do not fit the type.
///
/// # Examples
/// ```
/// use std::sync::Arc;
/// use arrow::array::{ArrayRef, StringArray};
/// use arrow_device::{ImportedArray, cpu};
///
/// let names: ArrayRef = Arc::new(StringArray::from(vec![Some("a"), None]));
/// let field = cpu::field_of(&names);
/// // SAFETY: the array comes from this crate's export.
/// let imported = unsafe { ImportedArray::import(cpu::export_array(&names)?, &field)? };
/// assert_eq!(&cpu::import_array(imported)?, &names);
/// # Ok::<(), arrow_device::Error>(())
/// ```
pub fn import_array(array: ImportedArray) -> Result<ArrayRef> {
    guard("import of an array", || Ok(make_array(import(array)?)))
}

/// Builds a record batch from a foreign struct array in host memory, as [`import_array`] does.
///
/// # Errors
/// As [`import_array`]; also `Invalid` if the array is not a struct, has null rows, or a column has
/// nulls against its field.
pub fn import_batch(array: ImportedArray) -> Result<RecordBatch> {
    guard("import of a record batch", || {
        let Some(schema) = array.schema() else {
            let what = Path::root(array.field()).invalid("expected a struct array for a record batch");
            return Err(what);
        };
        let field = Arc::clone(array.field());
        let path = Path::root(&field);
        let rows = StructArray::from(import(array)?);
        let num_rows = rows.len();
        let (_, columns, nulls) = rows.into_parts();
        if nulls.is_some_and(|nulls| nulls.null_count() > 0) {
            return Err(path.invalid("rows of a record batch must not be null"));
        }
        let options = RecordBatchOptions::new().with_row_count(Some(num_rows));
        let batch = RecordBatch::try_new_with_options(Arc::new(schema), columns, &options);
        batch.map_err(|error| path.invalid(error))
    })
}

fn import(array: ImportedArray) -> Result<ArrayData> {
    let path = Path::root(array.field());
    if !is_host(array.device_type()) {
        return Err(path.unsupported(format_args!("it is in memory of {}, not of the host", array.device_type())));
    }
    if !array.sync_event().is_null() {
        return Err(path.unsupported(format_args!("it has an event of {} to wait on first", array.device_type())));
    }
    let owner = Arc::new(array);
    Importer { owner: &owner }.data(&owner.view(), &Path::root(owner.field()))
}

struct Importer<'a> {
    owner: &'a Arc<ImportedArray>,
}

impl Importer<'_> {
    fn data(&self, view: &ArrayView<'_>, path: &Path<'_>) -> Result<ArrayData> {
        // An empty array has no values to read, and its buffers may be anything (R46).
        if view.len() == 0 {
            return Ok(ArrayData::new_empty(view.data_type()));
        }
        let mut buffers = Vec::with_capacity(view.num_buffers());
        for buffer in view.buffers() {
            match buffer.kind {
                BufferKind::Validity | BufferKind::VariadicLengths => {}
                BufferKind::Bytes => buffers.push(self.buffer(&buffer, last_offset(view, path)?, path)?),
                _ => buffers.push(self.buffer(&buffer, buffer.len_bytes.unwrap_or_default(), path)?),
            }
        }
        let builder = ArrayDataBuilder::new(view.data_type().clone())
            .len(view.len())
            .offset(view.offset())
            .nulls(self.nulls(view, path)?)
            .buffers(buffers)
            .child_data(self.children(view, path)?)
            .align_buffers(true);
        // SAFETY: unused until `validate` accepts it.
        let data = unsafe { builder.build_unchecked() };
        validate(data, path).map(|data| slice(&data, 0, data.len()))
    }

    /// A buffer of `len_bytes`, which shares the foreign array's memory.
    fn buffer(&self, buffer: &BufferView<'_>, len_bytes: usize, path: &Path<'_>) -> Result<Buffer> {
        // Empty buffers may be null or dangling.
        if len_bytes == 0 {
            return Ok(Buffer::default());
        }
        let Some(ptr) = NonNull::new(buffer.ptr.cast_mut().cast::<u8>()) else {
            return Err(path.invalid(format_args!("a buffer is null, expected {len_bytes} bytes")));
        };
        // SAFETY: readable by the import's contract; the owner lives until the last buffer drops.
        Ok(unsafe { Buffer::from_custom_allocation(ptr, len_bytes, Arc::clone(self.owner) as _) })
    }

    fn nulls(&self, view: &ArrayView<'_>, path: &Path<'_>) -> Result<Option<NullBuffer>> {
        let Some(validity) = view.validity() else { return Ok(None) };
        let bits = self.buffer(&validity, validity.len_bytes.unwrap_or_default(), path)?;
        let nulls = NullBuffer::new(BooleanBuffer::new(bits, view.offset(), view.len()));
        match view.null_count() {
            Some(count) if count != nulls.null_count() => {
                Err(path.invalid(format_args!("null_count is {count}, but the validity has {} nulls", nulls.null_count())))
            }
            _ => Ok(Some(nulls)),
        }
    }

    fn children(&self, view: &ArrayView<'_>, path: &Path<'_>) -> Result<Vec<ArrayData>> {
        let mut children = Vec::with_capacity(view.num_children());
        for (index, child) in view.children().enumerate() {
            let Some(field) = child_field(view.data_type(), index) else { continue };
            children.push(self.data(&child, &path.child(index, field))?);
        }
        if let Some(dictionary) = view.dictionary() {
            children.push(self.data(&dictionary, &path.dictionary(dictionary.data_type()))?);
        }
        // The format allows more values than runs; arrow-rs wants equal numbers.
        if let (DataType::RunEndEncoded(_, _), [ends, values]) = (view.data_type(), children.as_mut_slice()) {
            *values = values.slice(0, ends.len());
        }
        Ok(children)
    }
}

/// A slice of an array, without offsets in the nodes that slice their children.
///
/// arrow-rs applies such nested offsets twice:
/// - `ArrayData::slice` shifts the children of a struct as well as its own offset.
/// - The constructors of structs, fixed-size lists and sparse unions slice their children by that
///   offset.
fn slice(data: &ArrayData, offset: usize, len: usize) -> ArrayData {
    let start = data.offset() + offset;
    let (buffers, size) = match data.data_type() {
        DataType::Struct(_) => (vec![], 1),
        DataType::FixedSizeList(_, size) => (vec![], usize::try_from(*size).unwrap_or_default()),
        DataType::Union(_, UnionMode::Sparse) => {
            (data.buffers().iter().map(|ids| ids.slice_with_length(start, len)).collect(), 1)
        }
        _ => return data.slice(offset, len),
    };
    let children = data.child_data().iter().map(|child| slice(child, start * size, len * size)).collect();
    let nulls = data.nulls().map(|nulls| nulls.slice(offset, len));
    let builder = data.clone().into_builder().offset(0).len(len).nulls(nulls).buffers(buffers).child_data(children);
    // SAFETY: part of a validated array, whose children are long enough.
    unsafe { builder.build_unchecked() }
}

/// The size of a string array's bytes: its last offset.
fn last_offset(view: &ArrayView<'_>, path: &Path<'_>) -> Result<usize> {
    let end = view.offset() + view.len();
    let last = match view.buffer(1) {
        Some(BufferView { kind: BufferKind::Offsets(4), ptr, .. }) => {
            // SAFETY: the check saw a buffer for this many offsets; the read may be unaligned.
            i64::from(unsafe { ptr.cast::<i32>().add(end).read_unaligned() })
        }
        Some(BufferView { kind: BufferKind::Offsets(8), ptr, .. }) => {
            // SAFETY: as above.
            unsafe { ptr.cast::<i64>().add(end).read_unaligned() }
        }
        _ => 0,
    };
    let bytes = usize::try_from(last).ok().filter(|bytes| *bytes <= MAX_BYTES);
    bytes.ok_or_else(|| path.invalid(format_args!("its last offset cannot be {last}")))
}

/// Validates the values of one node, whose children are already validated.
fn validate(data: ArrayData, path: &Path<'_>) -> Result<ArrayData> {
    data.validate().map_err(|error| path.invalid(error))?;
    check_nulls(&data, path)?;
    let Err(error) = data.validate_values() else { return Ok(data) };
    // The format leaves the views of nulls open; arrow-rs validates them.
    let cleared = match data.data_type() {
        DataType::Utf8View | DataType::BinaryView => clear_null_views(&data),
        _ => None,
    };
    let cleared = cleared.ok_or_else(|| path.invalid(&error))?;
    cleared.validate_values().map_err(|error| path.invalid(error))?;
    Ok(cleared)
}

/// A copy of an array of views with empty strings as nulls; `None` if it has no nulls.
fn clear_null_views(data: &ArrayData) -> Option<ArrayData> {
    let nulls = data.nulls()?;
    let (views, rest) = data.buffers().split_first()?;
    let mut views = views.typed_data::<u128>().to_vec();
    for (view, valid) in views.iter_mut().skip(data.offset()).zip(nulls.iter()) {
        if !valid {
            *view = 0;
        }
    }
    let buffers = std::iter::once(Buffer::from_vec(views)).chain(rest.iter().cloned()).collect();
    // SAFETY: unused until its values are validated; all else is unchanged.
    Some(unsafe { data.clone().into_builder().buffers(buffers).build_unchecked() })
}

/// Refuses nulls in non-nullable children, unless the parent is null there.
///
/// arrow-rs has the same check, but it expands the parent's bitmap to the child's length, which is
/// foreign.
fn check_nulls(data: &ArrayData, path: &Path<'_>) -> Result<()> {
    let per_parent = match data.data_type() {
        DataType::Struct(_) => Some(1),
        DataType::FixedSizeList(_, len) => usize::try_from(*len).ok(),
        DataType::List(_) | DataType::LargeList(_) | DataType::Map(_, _) => None,
        _ => return Ok(()),
    };
    for (index, child) in data.child_data().iter().enumerate() {
        let Some(field) = child_field(data.data_type(), index) else { continue };
        let Some(nulls) = child.nulls().filter(|_| !field.is_nullable()) else { continue };
        // Elements of the child outside of the parent's slice are ignored.
        let hidden = |element: usize| match per_parent {
            Some(size) => match (element / size.max(1)).checked_sub(data.offset()) {
                Some(parent) => parent >= data.len() || data.is_null(parent),
                None => true,
            },
            None => false,
        };
        let visible = nulls.iter().enumerate().find(|(element, valid)| !valid && !hidden(*element));
        if let Some((element, _)) = visible {
            return Err(null_element(path, index, field, element));
        }
    }
    Ok(())
}

fn null_element(path: &Path<'_>, index: usize, field: &Field, element: usize) -> Error {
    path.child(index, field).invalid(format_args!("element {element} is null, but the field is not nullable"))
}
