// SPDX-License-Identifier: Apache-2.0
//! From a batch to a device array: one that shares its buffers, or one in host memory.

use std::ffi::c_void;
use std::ptr;

use arrow_device::ArrayExport;
use arrow_device::ffi::FFI_ArrowDeviceArray;
use device::{Buffer, Download, Event, Queue};

use super::{home, host_home};
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
        && !matches!(column.ty().layout, Layout::List(_))
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
    let root = root(batch, &mut |buffer| Ok(buffer.raw().handle as *const c_void))?;
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
    Ok(root.owner(Box::new(owner)).export(device_type, device_id, sync_event)?)
}

/// A batch as a struct array in host memory: pinned, as `CUDA_HOST`, under CUDA; as `CPU` under OpenCL, which has no type
/// for its pinned memory. It is complete, without an event.
///
/// The copies are enqueued before this returns; the future waits for them. Whole buffers are copied, also where the batch
/// is a slice of them; where the device shares the host's memory nothing is, and the array keeps the batch's buffers. The
/// memory is free again when the consumer has released the array: how much of it is pinned until then is up to the caller.
///
/// # Errors
/// `Malformed` for a column that does not [lie as Arrow does](lies_as_arrow); the failure of work before the copies;
/// `OutOfMemory` where no more host memory can be pinned.
///
/// # Examples
/// ```
/// use std::sync::Arc;
/// use arrow::array::{Int64Array, RecordBatch};
/// use arrow_device::{ImportedArray, cpu, schema};
/// use columnar::{exchange, natural_types, upload};
///
/// let host = RecordBatch::try_from_iter([("x", Arc::new(Int64Array::from(vec![1, 2, 3])) as _)])?;
/// let queue = device::Context::new(device::DeviceConfig::default())?.queue()?;
/// let batch = upload(&queue, &host.schema(), &natural_types(&host.schema())?, &[host.clone()])?;
///
/// let array = futures::executor::block_on(exchange::export_to_host(&queue, &batch.slice(1, 2)))?;
/// assert!(cpu::is_host(array.device_type) && array.sync_event.is_null());
/// // SAFETY: exported just now.
/// let array = unsafe { ImportedArray::import(array, &schema::batch_field(&host.schema()))? };
/// assert_eq!(cpu::import_batch(array)?, host.slice(1, 2));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn export_to_host(
    queue: &Queue,
    batch: &DeviceBatch,
) -> impl Future<Output = Result<FFI_ArrowDeviceArray>> + Send + 'static + use<> {
    let mut copies: Vec<Download> = Vec::new();
    let root = root(batch, &mut |buffer| {
        let copy = queue.download(buffer)?;
        let start = copy.as_ptr().cast();
        copies.push(copy);
        Ok(start)
    });
    let finished = queue.finish();
    let (device_type, device_id) = host_home(queue.context().info());
    async move {
        let root = root?;
        // Not behind an event, although CUDA_HOST may have one (R48) and CPU alone must not (R22): who takes host memory
        // reads it at once, and not everybody waits first.
        finished.await?;
        Ok(root.owner(Box::new(copies)).export(device_type, device_id, ptr::null_mut())?)
    }
}

/// What an exported array needs until it is released.
struct Exported {
    _buffers: Vec<Buffer>,
    /// Keeps the event in the cell alive.
    _event: Event,
    _cell: Option<Box<u64>>,
}

/// What a buffer becomes in C's tables.
type Pointer<'a> = &'a mut dyn FnMut(&Buffer) -> Result<*const c_void>;

/// The description of a batch; nothing is asked of `pointer` where a column cannot go.
fn root(batch: &DeviceBatch, pointer: Pointer<'_>) -> Result<ArrayExport> {
    if let Some((field, _)) = batch.schema().fields().iter().zip(batch.columns()).find(|(_, column)| !lies_as_arrow(column)) {
        let (name, data_type) = (field.name(), field.data_type());
        return Err(Error::Malformed(format!("export of column \"{name}\" ({data_type}): it does not lie as Arrow does")));
    }
    let columns = batch.columns().iter().map(|column| node(column, pointer)).collect::<Result<_>>()?;
    Ok(ArrayExport::batch(batch.num_rows(), columns)?)
}

fn node(column: &DeviceColumn, pointer: Pointer<'_>) -> Result<ArrayExport> {
    let export = ArrayExport::new(column.len()).offset(column.offset()).null_count(column.null_count());
    if column.ty().layout == Layout::Null {
        return Ok(export.offset(0));
    }
    let mut buffers = vec![match column.validity().filter(|_| column.null_count() != Some(0)) {
        Some((bits, _)) => pointer(bits)?,
        None => ptr::null(),
    }];
    let mut lengths = None;
    match (&column.ty().layout, column.buffers()) {
        (Layout::Views, [views, heap, _]) => {
            buffers.push(pointer(views)?);
            if !heap.is_empty() {
                buffers.push(pointer(heap)?);
            }
            // Peers read these on the host (R35).
            let sizes: Box<[i64]> = if heap.is_empty() { Box::new([]) } else { Box::new([heap.len() as i64]) };
            buffers.push(sizes.as_ptr().cast());
            lengths = Some(sizes);
        }
        (_, others) => others.iter().try_for_each(|buffer| pointer(buffer).map(|start| buffers.push(start)))?,
    }
    let mut export = export.buffers(buffers);
    if let Some(lengths) = lengths {
        export = export.owner(Box::new(lengths));
    }
    match column.dictionary() {
        Some(values) => Ok(export.dictionary(node(values, pointer)?)),
        None => Ok(export),
    }
}
