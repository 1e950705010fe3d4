// SPDX-License-Identifier: Apache-2.0
//! Import of a foreign device array as a batch on the same memory.
//!
//! The only file with `unsafe` outside the crates `arrow-device` and `device` and the C interfaces.
//! The caller of [`ImportedArray`]'s import guarantees the validity of its pointers; this file
//! passes that guarantee on to the driver.

use std::ffi::c_void;
use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::datatypes::{DataType, Field, FieldRef, Schema, SchemaRef};
use arrow_device::ffi::ArrowDeviceType;
use arrow_device::{ArrayView, BufferKind, ImportedArray, cpu};
use device::driver::RawEvent;
use device::{Buffer, KeepAlive, MemoryHandle, Queue};
use futures::FutureExt;
use futures::future::BoxFuture;

use crate::exchange::device_id::exported_device;
use crate::upload::transfer::{all_valid, upload_buffer};
use crate::{ColumnType, DeviceBatch, DeviceColumn, Error, Layout, Result, natural_types, upload};

/// Required alignment of device pointers: the widest load of a kernel.
const ALIGN: u64 = 16;

/// Imports the columns `columns`, in that order, of a struct array with the fields of `schema`.
///
/// The columns have their natural types; other columns stay untouched. Copies:
///
/// - Memory of this device is used in place.
/// - Views over several variadic buffers: the buffers are concatenated on the device.
/// - CUDA pointers that are not aligned for a kernel's loads are copied on the device.
/// - Memory of another OpenCL context is copied through the host.
/// - Host memory is uploaded; unified memory needs no copy.
///
/// `queue` waits for the array's event. The array is released after the last enqueued use.
///
/// Dictionaries are not checked: values may be repeated, NULL or missing, and codes of NULL rows
/// may be out of range. Run `kernels::ops::Decode` before other kernels.
///
/// # Errors
/// - `Exchange` for memory that this device cannot use, or an array unlike `schema`.
/// - Errors of the device.
pub async fn import(queue: &Queue, array: ImportedArray, schema: &SchemaRef, columns: &[usize]) -> Result<DeviceBatch> {
    let projected: SchemaRef = Arc::new(schema.project(columns)?);
    let types = natural_types(&projected)?;
    check_device(queue, &array)?;
    let array = Arc::new(array);
    let event = event_of(&array)?;
    if let Some(event) = event {
        // SAFETY: the array keeps its event alive (R16), and the guardian keeps the array alive.
        unsafe { queue.wait_for_foreign(event, Arc::clone(&array) as KeepAlive) }.await?;
    }
    if cpu::is_host(array.device_type()) {
        if event.is_some() {
            queue.finish().await?;
        }
        let Ok(array) = Arc::try_unwrap(array) else { return invalid("it is still being waited for".into()) };
        // SAFETY: the queue has waited for the event, if there is one.
        let batch = cpu::import_batch(unsafe { array.assume_complete() })?;
        let batch = batch.with_schema(Arc::clone(schema))?.project(columns)?;
        return upload(queue, &projected, &types, &[batch]);
    }
    if array.len() == 0 {
        return upload(queue, &projected, &types, &[RecordBatch::new_empty(projected.clone())]);
    }
    let view = array.view();
    if view.null_count() != Some(0) && view.validity().is_some() {
        return invalid("rows of a record batch must not be null, and their validity has nulls or is not counted".into());
    }
    if view.num_children() != schema.fields().len() {
        return invalid(column_mismatch(schema, array.data_type()));
    }
    let importer = Importer { queue, array: &array };
    let mut imported = Vec::with_capacity(types.len());
    for ((index, field), ty) in columns.iter().zip(projected.fields()).zip(types) {
        let Some(child) = view.child(*index) else { return invalid(format!("there is no column {index}")) };
        if child.data_type() != field.data_type() {
            let (expected, actual) = (field.data_type().clone(), child.data_type().clone());
            return Err(Error::Type { column: field.name().clone(), expected, actual });
        }
        imported.push(importer.column(&child, field, ty, view.offset(), view.len()).await?);
    }
    DeviceBatch::try_new(projected, imported, view.len())
}

/// Refuses memory that the queue's device cannot access.
fn check_device(queue: &Queue, array: &ImportedArray) -> Result<()> {
    let info = queue.context().info();
    let (own, id) = exported_device(info);
    let given = array.device_type();
    let types = info.driver.arrow_device_types();
    let on_device = given == own || types.managed == Some(given.0);
    let on_host = given == ArrowDeviceType::CPU || types.pinned == Some(given.0);
    // `Queue::adopt` detects objects of other contexts and devices, and copies them. An address
    // must be one of this device.
    let same_device = info.driver.memory_handle() == MemoryHandle::Object || array.device_id() == id;
    if on_host || (on_device && same_device) {
        return Ok(());
    }
    let id = array.device_id();
    Err(arrow_device::Error::Unsupported(format!(
        "import of a device array: its memory is that of {given} {id}, which {} ({}) cannot use; copy it to that device or \
         the host",
        info.label(),
        info.name
    ))
    .into())
}

/// Message about a missing or superfluous column.
fn column_mismatch(schema: &Schema, given: &DataType) -> String {
    let given: &[FieldRef] = if let DataType::Struct(fields) = given { fields } else { &[] };
    let (expected, actual) = (schema.fields().len(), given.len());
    let what = match (schema.fields().get(actual), given.get(expected)) {
        (Some(missing), _) => format!(": \"{}\" is missing", missing.name()),
        (_, Some(other)) => format!(": \"{}\" is not in the schema", other.name()),
        _ => String::new(),
    };
    format!("expected {expected} columns, got {actual}{what}")
}

fn event_of(array: &ImportedArray) -> Result<Option<RawEvent>> {
    let cell = array.sync_event().cast::<*mut c_void>();
    if cell.is_null() {
        return Ok(None);
    }
    if !array.device_type().has_events() {
        return invalid(format!("it has an event, and {} has none (R22)", array.device_type()));
    }
    // SAFETY: the caller of the array's import guarantees a pointer to the native event (R24, R48).
    // The native event is a pointer for CUDA and OpenCL, the only device types with events that
    // pass `check_device`.
    Ok(Some(RawEvent(unsafe { cell.read_unaligned() } as u64)))
}

fn invalid<T>(what: String) -> Result<T> {
    Err(arrow_device::Error::Invalid(format!("import of a device array: {what}")).into())
}

struct Importer<'a> {
    queue: &'a Queue,
    array: &'a Arc<ImportedArray>,
}

impl Importer<'_> {
    /// Imports `len` rows of a column from `offset`. Boxed because dictionaries recurse.
    fn column<'b>(
        &'b self,
        view: &'b ArrayView<'_>,
        field: &'b Field,
        ty: ColumnType,
        offset: usize,
        len: usize,
    ) -> BoxFuture<'b, Result<DeviceColumn>> {
        self.column_of(view, field, ty, offset, len).boxed()
    }

    async fn column_of(
        &self,
        view: &ArrayView<'_>,
        field: &Field,
        ty: ColumnType,
        offset: usize,
        len: usize,
    ) -> Result<DeviceColumn> {
        let first = view.offset() + offset;
        let null_count = match view.null_count() {
            Some(0) => Some(0),
            Some(count) if view.len() == len => Some(count),
            _ => None,
        };
        if let Some(null_count) = null_count.filter(|count| *count > 0 && !ty.nullable) {
            return Err(Error::Nulls { column: field.name().clone(), null_count, rows: len });
        }
        let mut buffers = Vec::new();
        let mut dictionary = None;
        match &ty.layout {
            Layout::Null => {}
            Layout::List(_) => {
                return Err(Error::Unsupported { column: field.name().clone(), data_type: field.data_type().clone() });
            }
            Layout::Dictionary { .. } => {
                buffers.push(self.buffer(view, 1, field).await?);
                dictionary = Some(Arc::new(self.dictionary(view, field).await?));
            }
            Layout::Views => buffers = self.views(view, field).await?,
            _ => {
                for index in 1..view.num_buffers() {
                    buffers.push(self.buffer(view, index, field).await?);
                }
            }
        }
        let validity = match (ty.nullable && ty.layout != Layout::Null, view.validity()) {
            (false, _) => None,
            (true, Some(_)) => Some((self.buffer(view, 0, field).await?, first)),
            (true, None) => Some((all_valid(self.queue, len)?, 0)),
        };
        DeviceColumn::try_new(Arc::new(ty), len, buffers, validity, null_count, dictionary)?.with_offset(first)
    }

    /// Imports the values of a dictionary.
    async fn dictionary(&self, view: &ArrayView<'_>, field: &Field) -> Result<DeviceColumn> {
        let Some(values) = view.dictionary() else { return invalid(format!("column \"{}\" has no dictionary", field.name())) };
        let nullable = values.validity().is_some() && values.null_count() != Some(0);
        let unsupported = || Error::Unsupported { column: field.name().clone(), data_type: field.data_type().clone() };
        let ty = ColumnType::of(values.data_type(), nullable).ok_or_else(unsupported)?;
        self.column(&values, field, ty, 0, values.len()).await
    }

    async fn buffer(&self, view: &ArrayView<'_>, index: usize, field: &Field) -> Result<Buffer> {
        // The import checked the number of buffers. The pointer of an empty buffer may be invalid
        // (R46).
        let buffer = view.buffer(index).filter(|buffer| !buffer.ptr.is_null() && buffer.len_bytes != Some(0));
        let Some(buffer) = buffer else { return Ok(self.queue.alloc(0)?) };
        let handle = buffer.ptr as u64;
        // SAFETY: the caller of the array's import guarantees memory of this device, alive
        // and unwritten until the release. The guardian holds the array.
        let adopted = unsafe { self.queue.adopt(handle, buffer.len_bytes, Arc::clone(self.array) as KeepAlive) }.await;
        let adopted = adopted.or_else(|error| match error {
            device::Error::Range { end, len, .. } => invalid(format!(
                "buffer {index} of column \"{}\" ({}) needs {end} bytes, got {len}",
                field.name(),
                field.data_type()
            )),
            error => Err(error.into()),
        })?;
        // Kernels load strings without alignment, so heaps need none.
        let is_heap = matches!(buffer.kind, BufferKind::Bytes | BufferKind::Variadic);
        let is_address = self.queue.context().info().driver.memory_handle() == MemoryHandle::Address;
        if !is_address || is_heap || handle.is_multiple_of(ALIGN) {
            return Ok(adopted);
        }
        let aligned = self.queue.alloc(adopted.len())?;
        self.queue.copy(&adopted, 0, &aligned, 0, adopted.len())?;
        Ok(aligned)
    }

    /// Imports views, heap and bases.
    async fn views(&self, view: &ArrayView<'_>, field: &Field) -> Result<Vec<Buffer>> {
        let mut heaps = Vec::new();
        let mut bases = Vec::new();
        let mut bytes = 0;
        for (index, buffer) in view.buffers().enumerate().filter(|(_, buffer)| buffer.kind == BufferKind::Variadic) {
            let len = buffer.len_bytes.unwrap_or(0);
            heaps.push((self.buffer(view, index, field).await?, len));
            bases.push(bytes as u64);
            bytes += len;
        }
        let heap = match heaps.as_slice() {
            [] => self.queue.alloc(0)?,
            [(heap, _)] => heap.clone(),
            heaps => {
                let all = self.queue.alloc(bytes)?;
                for ((heap, len), base) in heaps.iter().zip(&bases) {
                    self.queue.copy(heap, 0, &all, *base as usize, *len)?;
                }
                all
            }
        };
        if bases.is_empty() {
            bases.push(0);
        }
        let bases = upload_buffer(self.queue, arrow::buffer::Buffer::from_vec(bases))?;
        Ok(vec![self.buffer(view, 1, field).await?, heap, bases])
    }
}
