// SPDX-License-Identifier: Apache-2.0
//! Raw values: where the columns of a result lie, and columns that lie in memory of the program's own.

use std::ffi::{c_char, c_int, c_void};
use std::ptr;

use arrow::datatypes::{DataType, Field, Schema};
use arrow::ffi::{FFI_ArrowArray, FFI_ArrowSchema};
use arrow_device::ffi::{ArrowDeviceType, FFI_ArrowDeviceArray};
use arrow_device::stream::{ArrowDeviceArrayStreamReader, export_iterator};
use arrow_device::{ArrayExport, cpu, schema};
use device::driver::RawEvent;
use device::{DeviceInfo, DriverKind};

use crate::boundary::{code, text, wanted, with_context};
use crate::context::{Context, devicefusion_context};
use crate::error::{Failure, Result};
use crate::table::{Arrays, DEVICEFUSION_TABLE_DEVICE, DEVICEFUSION_TABLE_HOST, register};

/// Where the values of a column lie, for devicefusion_array_values_raw.
#[repr(C)]
#[derive(Debug)]
pub struct devicefusion_raw_values {
    /// The memory of the values, one behind the other: a cl_mem, a CUdeviceptr, or an address of the host, as the array's
    /// `device_type` says.
    pub memory: *mut c_void,
    /// Bytes of that memory before the first value.
    pub offset: usize,
    /// Bytes of all values.
    pub bytes: usize,
    /// How many values there are.
    pub length: i64,
    /// Memory of the same kind with a bit for each value, the least significant first: 0 for NULL. NULL where no value is.
    pub validity: *mut c_void,
    /// Bits of that memory before the first value's.
    pub validity_offset: usize,
}

/// A column in memory of the program's own, for devicefusion_register_raw.
#[repr(C)]
#[derive(Debug)]
pub struct devicefusion_raw_column {
    /// Its name.
    pub name: *const c_char,
    /// Its type, of fixed width, as a format string of Arrow's C data interface: "l" for 64-bit integers, "g" for doubles, and
    /// so on.
    pub format: *const c_char,
    /// The memory of the values, from its begin on: a cl_mem or a CUdeviceptr of the context's device, or an address of the
    /// host where the context has no device.
    pub memory: *mut c_void,
    /// Memory of the same kind with a bit for each value, the least significant first: 0 for NULL. NULL where no value is.
    pub validity: *mut c_void,
}

/// The device type and id of arrays in the context's memory.
fn home(info: Option<&DeviceInfo>) -> (ArrowDeviceType, i64) {
    match info.map(|info| (info.driver, info.ordinal as i64)) {
        Some((DriverKind::OpenCl, ordinal)) => (ArrowDeviceType::OPENCL, ordinal),
        Some((DriverKind::Cuda, ordinal)) => (ArrowDeviceType::CUDA, ordinal),
        None => (ArrowDeviceType::CPU, -1),
    }
}

/// Tells where the values of a column lie: column `column`, counted from zero, of a record batch such as
/// devicefusion_query_device_stream gives, with its schema. Its type must be one of fixed width, other than a boolean.
///
/// Array and schema stay as they are: the memory is that of the array, good until the array is released and not to be written.
/// The values are there once the array's `sync_event` has completed; what the program enqueues from now on in the queue that it
/// shares with the context (see devicefusion_context_get_command_queue) waits for that by itself. Release the array once work that
/// reads it has completed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn devicefusion_array_values_raw(
    context: *mut devicefusion_context,
    array: *const FFI_ArrowDeviceArray,
    schema: *const FFI_ArrowSchema,
    column: i64,
    out: *mut devicefusion_raw_values,
) -> c_int {
    code(with_context(context, |context| {
        wanted("raw values", out)?;
        // SAFETY: NULL, or initialised structs that nobody changes meanwhile, as the header asks.
        let (array, schema) = unsafe { (array.as_ref(), schema.as_ref()) };
        let array = array.ok_or_else(|| Failure::program("the array is NULL"))?;
        let schema = schema.ok_or_else(|| Failure::program("the schema is NULL"))?;
        if array.is_released() || schema.release.is_none() {
            return Err(Failure::program("array or schema has been released, or moved away"));
        }
        // SAFETY: array and schema are live and follow the interface, as the header asks.
        let values = unsafe { values(&array.array, schema, column) }?;
        // SAFETY: as above.
        unsafe { order(context, array) }?;
        // SAFETY: not null, and writable as the header asks.
        unsafe { out.write(values) };
        Ok(())
    }))
}

/// # Safety
/// Array and schema are live and follow the interface.
unsafe fn values(rows: &FFI_ArrowArray, schema: &FFI_ArrowSchema, column: i64) -> Result<devicefusion_raw_values> {
    let DataType::Struct(fields) = DataType::try_from(schema)? else {
        return Err(Failure::program("the schema is none of a record batch, which is an array of structs"));
    };
    let index = usize::try_from(column).ok().filter(|index| *index < fields.len());
    let Some(index) = index.filter(|_| fields.len() == rows.num_children()) else {
        let (columns, children) = (fields.len(), rows.num_children());
        return Err(Failure::program(format!("there is no column {column}: the schema has {columns}, the array {children}")));
    };
    let amiss = || Failure::program(format!("the array does not have column {column}: a pointer of its tables is NULL"));
    // SAFETY: where there is a table of children it has that many pointers, to live structs.
    let child = unsafe { rows.children.as_ref().and_then(|_| (*rows.children.add(index)).as_ref()) };
    let (field, child) = (&fields[index], child.filter(|child| !child.buffers.is_null()).ok_or_else(amiss)?);
    let Some(width) = field.data_type().primitive_width().filter(|_| child.num_buffers() == 2) else {
        let (name, ty) = (field.name(), field.data_type());
        return Err(Failure::program(format!("column {column} \"{name}\" is {ty}, whose values are not of a fixed width")));
    };
    let offset = rows.offset() + child.offset();
    // SAFETY: the array follows the interface: its table has two buffers.
    let (validity, memory) = unsafe { (*child.buffers, *child.buffers.add(1)) };
    let bytes = |values: usize| values.checked_mul(width).ok_or_else(|| Failure::program("the array's length cannot be"));
    Ok(devicefusion_raw_values {
        memory: memory.cast_mut(),
        offset: bytes(offset)?,
        bytes: bytes(rows.len())?,
        length: rows.length,
        validity: if child.null_count_opt() == Some(0) { ptr::null_mut() } else { validity.cast_mut() },
        validity_offset: offset,
    })
}

/// Puts what the program enqueues from now on behind the work that writes an array.
///
/// # Safety
/// The array is live and follows the interface.
unsafe fn order(context: &Context, array: &FFI_ArrowDeviceArray) -> Result<()> {
    let device = context.device()?;
    let own = home(device.as_ref().map(|device| device.info())).0;
    if array.device_type != own && !cpu::is_host(array.device_type) {
        return Err(Failure::program(format!(
            "the array lies in memory of {}, the context's in that of {own}",
            array.device_type
        )));
    }
    let (Some(device), false) = (device, array.sync_event.is_null()) else { return Ok(()) };
    // SAFETY: for CUDA and OpenCL it points to the native event, which is a pointer, as long as the array lives.
    let event = unsafe { array.sync_event.cast::<*mut c_void>().read_unaligned() };
    // SAFETY: as above.
    Ok(unsafe { device.shared_queue_waits_for(RawEvent(event.addr() as u64)) }?)
}

/// What the program wants to be told once its memory is no longer used.
struct Lent {
    release: Option<unsafe extern "C" fn(data: *mut c_void)>,
    data: *mut c_void,
}

// SAFETY: the program lets its release be called on any thread, as the header asks; nothing else touches the pointer.
unsafe impl Send for Lent {}
// SAFETY: as above.
unsafe impl Sync for Lent {}

impl Drop for Lent {
    fn drop(&mut self) {
        if let Some(release) = self.release {
            // SAFETY: the program's function with its own data, called once.
            unsafe { release(self.data) };
        }
    }
}

/// Makes a table of `length` rows that lies in memory of the program's own: `count` columns of types of fixed width, which are
/// used in place.
///
/// The values must be there already, or be written by what the program has enqueued before in the queue that it shares with the
/// context: see devicefusion_context_get_command_queue. From now on nobody may write them. `release`, unless NULL, is called with
/// `data` once the memory is no longer used: after the table was dropped and the queries that read it have ended, or where this
/// function fails; on any thread, once.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn devicefusion_register_raw(
    context: *mut devicefusion_context,
    name: *const c_char,
    columns: *const devicefusion_raw_column,
    count: usize,
    length: i64,
    release: Option<unsafe extern "C" fn(data: *mut c_void)>,
    data: *mut c_void,
) -> c_int {
    let lent = Lent { release, data };
    code(with_context(context, |context| {
        if columns.is_null() || count == 0 {
            return Err(Failure::program("a table has columns, and there are none"));
        }
        let length = usize::try_from(length).map_err(|_| Failure::program(format!("a table cannot have {length} rows")))?;
        // SAFETY: not null, and as many as the header asks for.
        let columns = unsafe { std::slice::from_raw_parts(columns, count) };
        let device = context.device()?;
        let (device_type, id) = home(device.as_ref().map(|device| device.info()));
        // SAFETY: the texts are as the header asks.
        let fields = columns.iter().map(|column| unsafe { field(column, length) }).collect::<Result<Vec<_>>>()?;
        let column = |column: &devicefusion_raw_column| {
            let nulls = if column.validity.is_null() { Some(0) } else { None };
            ArrayExport::new(length).null_count(nulls).buffers(vec![column.validity, column.memory])
        };
        let rows = ArrayExport::batch(length, columns.iter().map(column).collect())?.owner(Box::new(lent));
        let rows = rows.export(device_type, id, ptr::null_mut())?;
        let stream = export_iterator(&schema::batch_field(&Schema::new(fields)), device_type, [Ok(rows)])?;
        // SAFETY: the stream comes from arrow-device's export, and the memory is what the program says.
        let reader = unsafe { ArrowDeviceArrayStreamReader::try_new(stream)? };
        let kind = if device.is_some() { DEVICEFUSION_TABLE_DEVICE } else { DEVICEFUSION_TABLE_HOST };
        // SAFETY: the name is as the header asks.
        register(context, unsafe { text("name of the table", name) }, Ok(Arrays::Pulled(reader)), kind)
    }))
}

/// # Safety
/// The column's texts are NULL, or C strings.
unsafe fn field(column: &devicefusion_raw_column, length: usize) -> Result<Field> {
    // SAFETY: as this function's own condition.
    let (name, format) = unsafe { (text("name of a column", column.name)?, text("format of a column", column.format)?) };
    let ty = DataType::try_from(&FFI_ArrowSchema::try_new(format, vec![], None)?)?;
    if ty.primitive_width().is_none() {
        return Err(Failure::program(format!(
            "column \"{name}\" is {ty}, whose values are not of a fixed width: devicefusion_register_device_array takes every type"
        )));
    }
    if column.memory.is_null() && length > 0 {
        return Err(Failure::program(format!("the memory of column \"{name}\" is NULL")));
    }
    Ok(Field::new(name, ty, !column.validity.is_null()))
}
