// SPDX-License-Identifier: Apache-2.0
//! From a device array of somebody else to a batch on the same memory.
//!
//! The one file above `device` with `unsafe`: it brings together what the import of an array has promised of its pointers and
//! what the driver needs promised.

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

use super::home;
use crate::gather::place;
use crate::{ColumnType, DeviceBatch, DeviceColumn, Error, Layout, Result, natural_types, ones, upload};

/// What device pointers must be multiples of: the widest load of a kernel.
const ALIGN: u64 = 16;

/// The columns at `columns`, in that order, of a record batch: a struct array of the columns of `schema`. They come in their
/// natural types; the others are not touched.
///
/// Memory of this device is used in place, except views over several buffers, which are gathered on the device, and memory of
/// another OpenCL context, which goes through the host. Memory of the host is uploaded, which devices that share it do in
/// place too. What writes the array is waited for by `queue`; the array is released once nothing enqueued needs it.
///
/// Dictionaries come as the producer made them: one may repeat values, hold NULLs or have no values, and codes of NULL rows may
/// be anything. Kernels rely on more: `kernels::ops::Decode` brings such columns into a form that all of them can read.
///
/// # Errors
/// `Exchange` for memory that this device cannot use and for an array that does not fit; the device's.
pub async fn import(queue: &Queue, array: ImportedArray, schema: &SchemaRef, columns: &[usize]) -> Result<DeviceBatch> {
    let projected: SchemaRef = Arc::new(schema.project(columns)?);
    let types = natural_types(&projected)?;
    check_home(queue, &array)?;
    let array = Arc::new(array);
    let event = event_of(&array)?;
    if let Some(event) = event {
        // SAFETY: the array holds its event (R16), and the guardian the array.
        unsafe { queue.wait_for_foreign(event, Arc::clone(&array) as KeepAlive) }.await?;
    }
    if cpu::is_host(array.device_type()) {
        if event.is_some() {
            queue.finish().await?;
        }
        let Ok(array) = Arc::try_unwrap(array) else { return invalid("it is still being waited for".into()) };
        // SAFETY: just waited for.
        let batch = cpu::import_batch(unsafe { array.assume_complete() })?;
        let batch = batch.with_schema(Arc::clone(schema))?.project(columns)?;
        return upload(queue, &projected, &types, &[batch]);
    }
    if array.len() == 0 {
        return upload(queue, &projected, &types, &[RecordBatch::new_empty(projected.clone())]);
    }
    let view = array.view();
    if view.null_count() != Some(0) && view.validity().is_some() {
        return invalid(
            "rows of a record batch must not be null, and these have a validity that says so or is not counted".into(),
        );
    }
    if view.num_children() != schema.fields().len() {
        return invalid(other_columns(schema, array.data_type()));
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

/// Refuses memory that the queue's device cannot reach.
fn check_home(queue: &Queue, array: &ImportedArray) -> Result<()> {
    let info = queue.context().info();
    let (own, id) = home(info);
    let given = array.device_type();
    let types = info.driver.arrow_device_types();
    let on_device = given == own || types.managed == Some(given.0);
    let on_host = given == ArrowDeviceType::CPU || types.pinned == Some(given.0);
    // The context of an object tells its device; memory of another one is copied. An address fits its own device only.
    let same_device = info.driver.memory_handle() == MemoryHandle::Object || array.device_id() == id;
    if on_host || (on_device && same_device) {
        return Ok(());
    }
    let id = array.device_id();
    Err(arrow_device::Error::Unsupported(format!(
        "import of a device array: its memory is that of {given} {id}, which {} ({}) cannot use; copy it to that device or to \
         the host first",
        info.label(),
        info.name
    ))
    .into())
}

/// Which column of a schema is missing, or superfluous.
fn other_columns(schema: &Schema, given: &DataType) -> String {
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
    // SAFETY: the import's caller promised that the pointer points to the native event (R24, R48), which is itself a pointer
    // for CUDA and OpenCL, the only types with events that `check_home` lets pass.
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
    /// The rows from `offset` on, `len` of them, of a column. The future is an object since dictionaries have columns too.
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
            (true, None) => Some((ones(self.queue, len)?, 0)),
        };
        DeviceColumn::try_new(Arc::new(ty), len, buffers, validity, null_count, dictionary)?.with_offset(first)
    }

    /// The values of a dictionary.
    async fn dictionary(&self, view: &ArrayView<'_>, field: &Field) -> Result<DeviceColumn> {
        let Some(values) = view.dictionary() else { return invalid(format!("column \"{}\" has no dictionary", field.name())) };
        let nullable = values.validity().is_some() && values.null_count() != Some(0);
        let unsupported = || Error::Unsupported { column: field.name().clone(), data_type: field.data_type().clone() };
        let ty = ColumnType::of(values.data_type(), nullable).ok_or_else(unsupported)?;
        self.column(&values, field, ty, 0, values.len()).await
    }

    async fn buffer(&self, view: &ArrayView<'_>, index: usize, field: &Field) -> Result<Buffer> {
        // The check saw as many buffers as the type has. One without bytes may point anywhere (R46).
        let buffer = view.buffer(index).filter(|buffer| !buffer.ptr.is_null() && buffer.len_bytes != Some(0));
        let Some(buffer) = buffer else { return Ok(self.queue.alloc(0)?) };
        let handle = buffer.ptr as u64;
        // SAFETY: the import's caller promised memory of this device, alive and unwritten until the array is released.
        let adopted = unsafe { self.queue.adopt(handle, buffer.len_bytes, Arc::clone(self.array) as KeepAlive) }.await;
        let adopted = adopted.or_else(|error| match error {
            device::Error::Range { end, len, .. } => invalid(format!(
                "buffer {index} of column \"{}\" ({}) needs {end} bytes, got {len}",
                field.name(),
                field.data_type()
            )),
            error => Err(error.into()),
        })?;
        // Strings begin anywhere in their heap: kernels ask no alignment of it.
        let is_heap = matches!(buffer.kind, BufferKind::Bytes | BufferKind::Variadic);
        let is_address = self.queue.context().info().driver.memory_handle() == MemoryHandle::Address;
        if !is_address || is_heap || handle.is_multiple_of(ALIGN) {
            return Ok(adopted);
        }
        let aligned = self.queue.alloc(adopted.len())?;
        self.queue.copy(&adopted, 0, &aligned, 0, adopted.len())?;
        Ok(aligned)
    }

    /// Views, heap and bases.
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
        let bases = place(self.queue, arrow::buffer::Buffer::from_vec(bases))?;
        Ok(vec![self.buffer(view, 1, field).await?, heap, bases])
    }
}
