// SPDX-License-Identifier: Apache-2.0
//! From a batch to a device array that shares its buffers.

use std::ffi::c_void;
use std::ptr;

use arrow_device::ArrayExport;
use arrow_device::ffi::FFI_ArrowDeviceArray;
use device::{Buffer, Event, Queue};

use super::home;
use crate::{ColumnType, DeviceBatch, DeviceColumn, Error, Layout, Result};

/// Bytes of the bases of views over one heap.
const ONE_BASE: usize = size_of::<u64>();

/// Whether a column can be exported without a kernel: its layout is Arrow's own for its type, values and validity begin at the
/// same element, and its NULLs are counted.
pub fn lies_as_arrow(column: &DeviceColumn) -> bool {
    let layout = ColumnType::of(&column.ty().data_type, true).map(|natural| natural.layout);
    let validity = match column.validity() {
        Some((_, first)) => column.null_count() == Some(0) || (column.null_count().is_some() && first == column.offset()),
        None => true,
    };
    let one_heap = match (&column.ty().layout, column.buffers()) {
        (Layout::Views, [_, heap, bases]) => heap.is_empty() || bases.len() == ONE_BASE,
        _ => true,
    };
    layout.as_ref() == Some(&column.ty().layout)
        && validity
        && one_heap
        && column.dictionary().is_none_or(|values| lies_as_arrow(values))
}

/// A batch as a struct array, on the same memory. Returns once queued: the array's event completes when whatever `queue` was
/// given before has, and with it what wrote the batch. The memory is free again when the consumer has released the array.
///
/// # Errors
/// `Malformed` for a column that does not [lie as Arrow does](lies_as_arrow); the device's refusal of an event, or the failure
/// of work before it, where that is known already.
///
/// # Examples
/// ```
/// use std::sync::Arc;
/// use arrow::array::{Int64Array, RecordBatch};
/// use columnar::{exchange, natural_types, upload};
///
/// let host = RecordBatch::try_from_iter([("x", Arc::new(Int64Array::from(vec![1, 2, 3])) as _)])?;
/// let queue = device::Context::new(device::DeviceConfig::default())?.queue()?;
/// let batch = upload(&queue, &host.schema(), &natural_types(&host.schema())?, &[host])?;
/// let array = exchange::export(&queue, &batch)?;
/// assert_eq!(array.array.length, 3);
/// assert_eq!((array.device_type, array.device_id), exchange::home(queue.context().info()));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn export(queue: &Queue, batch: &DeviceBatch) -> Result<FFI_ArrowDeviceArray> {
    let columns = batch.schema().fields().iter().zip(batch.columns());
    let columns = columns.map(|(field, column)| node(field.name(), column)).collect::<Result<Vec<_>>>()?;
    let mut buffers = Vec::new();
    batch.columns().iter().for_each(|column| column.for_each_buffer(&mut |buffer| buffers.push(buffer.clone())));
    let event = queue.record_after(&buffers)?;
    let cell = event.raw().map(|raw| Box::new(raw.0));
    if cell.is_none() {
        // Without an event the data is complete (R21): not after a failure.
        event.is_done()?;
    }
    // The device type's event is a pointer: the cell has its width.
    let sync_event = cell.as_deref().map_or(ptr::null_mut(), |cell| ptr::from_ref(cell).cast_mut().cast());
    let owner = Exported { _buffers: buffers, _event: event, _cell: cell };
    let (device_type, device_id) = home(queue.context().info());
    let export = ArrayExport::batch(batch.num_rows(), columns)?.owner(Box::new(owner));
    Ok(export.export(device_type, device_id, sync_event)?)
}

/// What an exported array needs until it is released.
struct Exported {
    _buffers: Vec<Buffer>,
    /// Keeps the event in the cell alive.
    _event: Event,
    _cell: Option<Box<u64>>,
}

fn node(name: &str, column: &DeviceColumn) -> Result<ArrayExport> {
    if !lies_as_arrow(column) {
        let data_type = &column.ty().data_type;
        return Err(Error::Malformed(format!("export of column \"{name}\" ({data_type}): it does not lie as Arrow does")));
    }
    let export = ArrayExport::new(column.len()).offset(column.offset()).null_count(column.null_count());
    if column.ty().layout == Layout::Null {
        return Ok(export.offset(0));
    }
    let validity = column.validity().filter(|_| column.null_count() != Some(0)).map_or(ptr::null(), |(bits, _)| handle(bits));
    let mut buffers = vec![validity];
    let mut lengths = None;
    match (&column.ty().layout, column.buffers()) {
        (Layout::Views, [views, heap, _]) => {
            buffers.push(handle(views));
            buffers.extend((!heap.is_empty()).then(|| handle(heap)));
            // Peers read these on the host (R35).
            let sizes: Box<[i64]> = if heap.is_empty() { Box::new([]) } else { Box::new([heap.len() as i64]) };
            buffers.push(sizes.as_ptr().cast());
            lengths = Some(sizes);
        }
        (_, others) => buffers.extend(others.iter().map(handle)),
    }
    let mut export = export.buffers(buffers);
    if let Some(lengths) = lengths {
        export = export.owner(Box::new(lengths));
    }
    match column.dictionary() {
        Some(values) => Ok(export.dictionary(node(name, values)?)),
        None => Ok(export),
    }
}

fn handle(buffer: &Buffer) -> *const c_void {
    buffer.raw().handle as *const c_void
}
