// SPDX-License-Identifier: Apache-2.0
//! Export of a batch as a device array that shares its buffers, or as an array in host memory.

use std::ffi::c_void;
use std::ptr;

use arrow_device::ArrayExport;
use arrow_device::ffi::FFI_ArrowDeviceArray;
use device::{Buffer, Download, Event, Queue};

use crate::exchange::device_id::{exported_device, exported_host_device};
use crate::{ColumnType, DeviceBatch, DeviceColumn, Error, Layout, Result};

/// Bytes of the bases of views over one variadic buffer.
const ONE_BASE_BYTES: usize = size_of::<u64>();

/// Whether a column can be exported without a kernel.
///
/// - Its layout is Arrow's own for its type; lists never are.
/// - Values and validity start at the same element.
/// - Its NULLs are counted.
/// - Views have at most one variadic buffer.
pub fn has_arrow_layout(column: &DeviceColumn) -> bool {
    let layout = ColumnType::of(&column.ty().data_type, true).map(|natural| natural.layout);
    let validity = match column.validity() {
        Some((_, first)) => column.null_count() == Some(0) || (column.null_count().is_some() && first == column.offset()),
        None => true,
    };
    let one_heap = match (&column.ty().layout, column.buffers()) {
        (Layout::Views, [_, heap, bases]) => heap.is_empty() || bases.len() == ONE_BASE_BYTES,
        _ => true,
    };
    layout.as_ref() == Some(&column.ty().layout)
        && !matches!(column.ty().layout, Layout::List(_))
        && validity
        && one_heap
        && column.dictionary().is_none_or(|values| has_arrow_layout(values))
}

/// Exports a batch as a struct array that shares its memory.
///
/// Returns once queued. The array's event completes after all earlier work of `queue`, and so after
/// the work that writes the batch. The consumer's release frees the memory.
///
/// # Errors
/// - `Malformed` for a column without [Arrow's layout](has_arrow_layout).
/// - Failure of the device to create an event.
/// - Failure of earlier work, if it is known already.
///
/// # Examples
/// ```
/// use std::sync::Arc;
/// use arrow::array::{Int64Array, RecordBatch};
/// use columnar::{exchange, natural_types, upload};
///
/// let host = RecordBatch::try_from_iter([("x", Arc::new(Int64Array::from(vec![1, 2, 3])) as _)])?;
/// let queue = device::Context::new(device::DeviceConfig::default())?.queue()?; let batch =
/// upload(&queue, &host.schema(), &natural_types(&host.schema())?, &[host])?; let array =
/// exchange::export(&queue, &batch)?; assert_eq!(array.array.length, 3);
/// assert_eq!((array.device_type, array.device_id),
/// exchange::exported_device(queue.context().info()));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn export(queue: &Queue, batch: &DeviceBatch) -> Result<FFI_ArrowDeviceArray> {
    let root = root(batch, &mut |buffer| Ok(buffer.raw().handle as *const c_void))?;
    let mut buffers = Vec::new();
    batch.columns().iter().for_each(|column| column.for_each_buffer(&mut |buffer| buffers.push(buffer.clone())));
    let event = queue.record_after(&buffers)?;
    let cell = event.raw().map(|raw| Box::new(raw.0));
    if cell.is_none() {
        // An array without an event must be complete (R21), which failed work is not.
        event.is_done()?;
    }
    // `sync_event` points to the native event, which is a pointer: `cell` has its width.
    let sync_event = cell.as_deref().map_or(ptr::null_mut(), |cell| ptr::from_ref(cell).cast_mut().cast());
    let owner = ExportOwner { _buffers: buffers, _event: event, _cell: cell };
    let (device_type, device_id) = exported_device(queue.context().info());
    Ok(root.owner(Box::new(owner)).export(device_type, device_id, sync_event)?)
}

/// Exports a batch as a struct array in host memory. The array is complete, without an event.
///
/// - CUDA: pinned memory, as `CUDA_HOST`.
/// - OpenCL: as `CPU`, because there is no device type for OpenCL's pinned memory.
///
/// The copies are enqueued before this returns; the future waits for them. They copy whole buffers,
/// also for a slice. With unified memory nothing is copied and the array keeps the batch's buffers.
///
/// The consumer's release frees the memory. The caller bounds the memory pinned until then.
///
/// # Errors
/// - `Malformed` for a column without [Arrow's layout](has_arrow_layout).
/// - Failure of work before the copies.
/// - `OutOfMemory` if no more host memory can be pinned.
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
/// // SAFETY: the array was just exported.
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
    let (device_type, device_id) = exported_host_device(queue.context().info());
    async move {
        let root = root?;
        // `CUDA_HOST` may have an event (R48), `CPU` must not (R22). Some consumers of host memory
        // read it without a wait, so both go without.
        finished.await?;
        Ok(root.owner(Box::new(copies)).export(device_type, device_id, ptr::null_mut())?)
    }
}

/// Resources of an exported array, held until its release.
struct ExportOwner {
    _buffers: Vec<Buffer>,
    /// Keeps the native event in `_cell` alive.
    _event: Event,
    _cell: Option<Box<u64>>,
}

/// Maps a buffer to its entry in the C structure's `buffers`.
type BufferPointer<'a> = &'a mut dyn FnMut(&Buffer) -> Result<*const c_void>;

/// The export of a batch. Checks all columns before the first call of `pointer`.
fn root(batch: &DeviceBatch, pointer: BufferPointer<'_>) -> Result<ArrayExport> {
    if let Some((field, _)) = batch.schema().fields().iter().zip(batch.columns()).find(|(_, column)| !has_arrow_layout(column)) {
        let (name, data_type) = (field.name(), field.data_type());
        return Err(Error::Malformed(format!("export of column \"{name}\" ({data_type}): it does not have Arrow's layout")));
    }
    let columns = batch.columns().iter().map(|column| node(column, pointer)).collect::<Result<_>>()?;
    Ok(ArrayExport::batch(batch.num_rows(), columns)?)
}

fn node(column: &DeviceColumn, pointer: BufferPointer<'_>) -> Result<ArrayExport> {
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
            // Consumers read the lengths on the host (R35).
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
