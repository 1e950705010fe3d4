// SPDX-License-Identifier: Apache-2.0
//! Export of arrow-rs arrays as CPU device arrays.

use arrow::array::{Array, ArrayData, RecordBatch, StructArray};
use arrow::buffer::{BooleanBuffer, Buffer, NullBuffer};
use arrow::datatypes::{DataType, Field};

use crate::ffi::{ArrowDeviceType, FFI_ArrowDeviceArray};
use crate::layout::{BufferKind, layout};
use crate::{ArrayExport, Error, Result};

/// The offsets of an empty array: it may have no buffer for them, but C requires the first offset.
static NO_OFFSETS: [i64; 1] = [0];

/// Exports a host array, sharing its buffers.
///
/// # Errors
/// `Unsupported` for types that the interface does not have.
///
/// # Examples
/// ```
/// use arrow::array::StringArray;
/// use arrow_device::cpu;
///
/// let names = StringArray::from(vec![Some("a"), None]);
/// let exported = cpu::export_array(&names)?;
/// assert_eq!((exported.device_id, exported.array.null_count), (-1, 1));
/// # Ok::<(), arrow_device::Error>(())
/// ```
pub fn export_array(array: &dyn Array) -> Result<FFI_ArrowDeviceArray> {
    export(&array.to_data())
}

/// Exports a record batch as a struct array, sharing its buffers.
///
/// Its columns are sliced; the struct has neither offset nor validity (R33).
///
/// # Errors
/// As [`export_array`].
pub fn export_batch(batch: &RecordBatch) -> Result<FFI_ArrowDeviceArray> {
    export(&StructArray::from(batch.clone()).to_data())
}

/// The unnamed, nullable field of an array's type, for the schema that accompanies it.
pub fn field_of(array: &dyn Array) -> Field {
    Field::new("", array.data_type().clone(), true)
}

pub(super) fn export(data: &ArrayData) -> Result<FFI_ArrowDeviceArray> {
    node(data)?.export(ArrowDeviceType::CPU, -1, std::ptr::null_mut())
}

fn node(data: &ArrayData) -> Result<ArrayExport> {
    let data_type = data.data_type();
    let layout = layout(data_type).map_err(|why| Error::Unsupported(format!("export of {data_type}: {why}")))?;

    // The buffers behind the pointers below. Each node owns only its own, so a column that its
    // consumer moved out keeps no other column alive.
    let mut owner: Vec<Buffer> = data.buffers().to_vec();
    let mut pointers = Vec::with_capacity(layout.kinds().len());
    if layout.has_validity() {
        let validity = data.nulls().map(|nulls| validity(nulls, data.offset()));
        pointers.push(validity.as_ref().map_or(std::ptr::null(), |validity| validity.as_ptr().cast()));
        owner.extend(validity);
    }
    let values = layout.kinds().iter().skip(usize::from(layout.has_validity()));
    for (kind, buffer) in values.zip(data.buffers()) {
        let no_offsets = matches!(kind, BufferKind::Offsets(_)) && buffer.is_empty();
        pointers.push(if no_offsets { NO_OFFSETS.as_ptr().cast() } else { buffer.as_ptr().cast() });
    }
    if layout.variadic {
        let variadic = data.buffers().get(1..).unwrap_or_default();
        let lengths: Buffer = variadic.iter().map(|buffer| buffer.len() as i64).collect();
        pointers.extend(variadic.iter().map(|buffer| buffer.as_ptr().cast()));
        pointers.push(lengths.as_ptr().cast());
        owner.push(lengths);
    }

    let null_count = if *data_type == DataType::Null { data.len() } else { data.null_count() };
    let children = data.child_data().iter().map(node).collect::<Result<Vec<_>>>()?;
    let export =
        ArrayExport::new(data.len()).offset(data.offset()).null_count(Some(null_count)).buffers(pointers).owner(Box::new(owner));
    Ok(match data_type {
        DataType::Dictionary(_, _) => children.into_iter().fold(export, ArrayExport::dictionary),
        _ => export.children(children),
    })
}

/// The validity bitmap from element 0 of the buffers on: arrow-rs keeps a separate offset for it, C
/// has one offset for all buffers.
fn validity(nulls: &NullBuffer, offset: usize) -> Buffer {
    if nulls.offset() == offset {
        return nulls.buffer().clone();
    }
    let bits = nulls.inner();
    BooleanBuffer::collect_bool(offset + bits.len(), |index| index.checked_sub(offset).is_some_and(|index| bits.value(index)))
        .into_inner()
}
