// SPDX-License-Identifier: Apache-2.0
//! Raw values: addresses of a result's columns, and tables over columns in the program's memory.

use std::ffi::{c_char, c_int, c_void};
use std::fmt::Display;
use std::ptr;
use std::sync::Arc;

use arrow::array::timezone::Tz;
use arrow::datatypes::{
    DataType, Decimal32Type, Decimal64Type, Decimal128Type, Decimal256Type, Field, Fields, Schema,
    validate_decimal_precision_and_scale,
};
use arrow::error::ArrowError;
use arrow::ffi::{FFI_ArrowArray, FFI_ArrowSchema};
use arrow_device::ffi::{ArrowDeviceType, FFI_ArrowDeviceArray};
use arrow_device::stream::{ArrowDeviceArrayStreamReader, export_iterator};
use arrow_device::{ArrayExport, cpu, schema};
use device::DeviceInfo;
use device::driver::RawEvent;

use crate::boundary::{check_out, code, string};
use crate::context::{Context, devicefusion_context, with_context};
use crate::error::{Failure, Result};
use crate::table::{ArraySource, DEVICEFUSION_TABLE_DEVICE, DEVICEFUSION_TABLE_HOST, register};

/// The memory of a column's values, for devicefusion_array_values_raw.
#[repr(C)]
#[derive(Debug)]
pub struct devicefusion_raw_values {
    /// Memory of the values, one after another: a cl_mem, a CUdeviceptr or a host address, by the
    /// array's `device_type`.
    ///
    /// - Booleans: bits. Dictionaries: codes.
    /// - Lists, strings and binary: offsets, one more than there are values.
    /// - String views and binary views: views of 16 bytes.
    pub memory: *mut c_void,
    /// Offset of the first value in bytes. Of booleans, offset of the byte with the first bit.
    pub offset: usize,
    /// Length of all values in bytes.
    pub bytes: usize,
    /// Number of values.
    pub length: i64,
    /// Validity bitmap in memory of the same kind: a bit for each value, least significant first, 0
    /// for NULL. The pointer is NULL if no value is NULL.
    pub validity: *mut c_void,
    /// Offset of the first value's bit in `validity`, in bits.
    pub validity_offset: usize,
    /// Of booleans, the first value's bit in its byte; 0 is the least significant.
    pub bit: usize,
    /// Memory of the same kind with the bytes of strings or binary values, which offsets or views
    /// point into. NULL for other types, and if no value needs it.
    pub data: *mut c_void,
    /// Length of `data` in bytes; 0 if the last offset tells it.
    pub data_bytes: usize,
}

/// A column in the program's memory, for devicefusion_register_raw.
#[repr(C)]
#[derive(Debug)]
pub struct devicefusion_raw_column {
    /// Name of the column.
    pub name: *const c_char,
    /// Format string of Arrow's C data interface, such as "l" for 64-bit integers, "b" for booleans
    /// or "u" for strings with 32-bit offsets. Of a dictionary, that of its codes.
    pub format: *const c_char,
    /// Memory of the values: a cl_mem or a CUdeviceptr of the context's device, or a host address
    /// if the context has no device. The layout is that of devicefusion_raw_values, from its start.
    pub memory: *mut c_void,
    /// Validity bitmap in memory of the same kind: a bit for each value, least significant first, 0
    /// for NULL. The pointer is NULL if no value is NULL.
    pub validity: *mut c_void,
    /// Memory of the same kind with the bytes of strings or binary values, which offsets or views
    /// point into. NULL for other types.
    pub data: *mut c_void,
    /// Length of `data` in bytes. With offsets it may be 0, because the last offset tells it.
    pub data_bytes: usize,
    /// The values of a dictionary, or the elements of lists; their name is ignored. NULL for other
    /// types.
    pub elements: *const devicefusion_raw_column,
    /// Number of elements.
    pub element_count: i64,
}

/// The device type and id of arrays in the context's memory.
fn device_of_context(info: Option<&DeviceInfo>) -> (ArrowDeviceType, i64) {
    let on_device = |info: &DeviceInfo| (ArrowDeviceType(info.driver.arrow_device_types().device), info.ordinal as i64);
    info.map_or((ArrowDeviceType::CPU, -1), on_device)
}

/// The memory of a column's values: column `column`, from zero, of a record batch with its schema,
/// such as a batch of devicefusion_query_device_stream.
///
/// - Array and schema are not moved. The memory belongs to the array: it is valid until the array's
///   release, and must not be written.
/// - The values are complete once the array's `sync_event` is. Later work of the program in the
///   queue of devicefusion_context_get_command_queue waits for it automatically.
/// - Release the array once the work that reads it has completed.
/// - Structs and unions have no values, only fields, which are arrays of the batch.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn devicefusion_array_values_raw(
    context: *mut devicefusion_context,
    array: *const FFI_ArrowDeviceArray,
    schema: *const FFI_ArrowSchema,
    column: i64,
    out: *mut devicefusion_raw_values,
) -> c_int {
    // SAFETY: all is as the header asks.
    unsafe { write_raw_values(context, array, schema, column, out, |column| column.values()) }
}

/// devicefusion_array_values_raw for the values of a dictionary, or for the elements of lists.
/// Lists of fixed size have no offsets: their elements follow one another.
///
/// Elements that are lists or dictionaries themselves are refused.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn devicefusion_array_elements_raw(
    context: *mut devicefusion_context,
    array: *const FFI_ArrowDeviceArray,
    schema: *const FFI_ArrowSchema,
    column: i64,
    out: *mut devicefusion_raw_values,
) -> c_int {
    // SAFETY: all is as the header asks.
    unsafe { write_raw_values(context, array, schema, column, out, |column| column.elements()?.values()) }
}

/// Writes the address of `values`, taken from a column of a batch.
///
/// # Safety
/// That of the C functions that call it.
unsafe fn write_raw_values(
    context: *mut devicefusion_context,
    array: *const FFI_ArrowDeviceArray,
    schema: *const FFI_ArrowSchema,
    column: i64,
    out: *mut devicefusion_raw_values,
    values: impl FnOnce(Column<'_>) -> Result<devicefusion_raw_values>,
) -> c_int {
    code(with_context(context, |context| {
        check_out("raw values", out)?;
        // SAFETY: NULL, or initialised structs that stay unchanged meanwhile, as the header asks.
        let (array, schema) = unsafe { (array.as_ref(), schema.as_ref()) };
        let array = array.ok_or_else(|| Failure::program("the array is NULL"))?;
        let schema = schema.ok_or_else(|| Failure::program("the schema is NULL"))?;
        if array.is_released() || schema.release.is_none() {
            return Err(Failure::program("array or schema has been released, or moved away"));
        }
        // SAFETY: see above. The schema follows the C data interface, or is refused.
        let DataType::Struct(fields) = unsafe { schema::field(schema) }?.data_type().clone() else {
            return Err(Failure::program("the schema is not that of a record batch, which is an array of structs"));
        };
        // SAFETY: the array is live and follows the interface, as the header asks.
        let values = values(unsafe { Column::in_batch(&array.array, &fields, column) }?)?;
        // SAFETY: see above.
        unsafe { order_after_writes(context, array) }?;
        // SAFETY: not null, and writable as the header asks.
        unsafe { out.write(values) };
        Ok(())
    }))
}

/// A column of a batch: a live array that follows the interface, with its type and range of rows.
struct Column<'a> {
    array: &'a FFI_ArrowArray,
    ty: DataType,
    /// For messages.
    label: String,
    /// Position of the first row in the buffers.
    first: usize,
    length: usize,
}

impl<'a> Column<'a> {
    /// # Safety
    /// The batch is live and follows the interface.
    unsafe fn in_batch(rows: &'a FFI_ArrowArray, fields: &Fields, column: i64) -> Result<Self> {
        let index = usize::try_from(column).ok().filter(|index| *index < fields.len());
        let Some(index) = index.filter(|_| fields.len() == rows.num_children()) else {
            let (columns, children) = (fields.len(), rows.num_children());
            return Err(Failure::program(format!("there is no column {column}: the schema has {columns}, the array {children}")));
        };
        let (name, ty) = (fields[index].name(), fields[index].data_type().clone());
        let label = format!("column {column} \"{name}\" is {ty}");
        // SAFETY: a table of children has that many pointers, to live structs.
        let child = unsafe { rows.children.as_ref().and_then(|_| (*rows.children.add(index)).as_ref()) };
        let array = child.ok_or_else(|| missing_column(column))?;
        if array.is_released() {
            return Err(Failure::program(format!("{label}, whose array has been released, or moved away")));
        }
        if [rows.length, rows.offset, array.length, array.offset].iter().any(|number| *number < 0) {
            return Err(Failure::program(format!("{label}, and a length or offset of its array is negative")));
        }
        if rows.offset().checked_add(rows.len()).is_none_or(|needed| array.len() < needed) {
            let (rows, first, values) = (rows.len(), rows.offset(), array.len());
            return Err(Failure::program(format!(
                "{label}, which has {values} values; the batch has {rows} rows from value {first} on"
            )));
        }
        if array.buffers.is_null() && array.num_buffers() > 0 {
            return Err(missing_column(column));
        }
        Ok(Self { array, ty, label, first: rows.offset() + array.offset(), length: rows.len() })
    }

    /// The values of a dictionary, or the elements of lists.
    fn elements(self) -> Result<Self> {
        let refuse = |reason: &str| Err(Failure::program(format!("{}{reason}", self.label)));
        let (inner, ty) = match &self.ty {
            DataType::Dictionary(_, values) => (self.array.dictionary, values.as_ref().clone()),
            DataType::List(field) | DataType::LargeList(field) | DataType::FixedSizeList(field, _) | DataType::Map(field, _) => {
                // SAFETY: the array follows the interface: a list has one child.
                let child = unsafe { self.array.children.as_ref() }.map_or(ptr::null_mut(), |child| *child);
                (child, field.data_type().clone())
            }
            _ => return refuse(", which has neither a dictionary nor elements"),
        };
        use DataType::{Dictionary, FixedSizeList, LargeList, List, Map};
        if matches!(ty, List(_) | LargeList(_) | FixedSizeList(..) | Map(..) | Dictionary(..)) {
            return refuse(&format!(", whose elements are {ty}: read those from the Arrow struct"));
        }
        // SAFETY: NULL, or live as long as the array.
        let Some(array) = (unsafe { inner.as_ref() }).filter(|array| !array.buffers.is_null()) else {
            return refuse(", whose elements are missing: a pointer in its tables is NULL");
        };
        let (first, length) = match &self.ty {
            DataType::FixedSizeList(_, size) => {
                let size = usize::try_from(*size).unwrap_or(0);
                match (self.first.checked_mul(size), self.length.checked_mul(size)) {
                    (Some(first), Some(length)) => (array.offset() + first, length),
                    _ => return refuse(", whose length is too large"),
                }
            }
            _ => (array.offset(), array.len()),
        };
        let label = format!("{}, whose elements are {ty}", self.label);
        Ok(Self { array, ty, label, first, length })
    }

    /// The address of the values.
    fn values(&self) -> Result<devicefusion_raw_values> {
        let refuse = |reason: &str| Err(Failure::program(format!("{}{reason}", self.label)));
        // Bits of a value, extra values after the last row's, number of buffers.
        let (width, extra, buffers) = match &self.ty {
            DataType::Boolean => (1, 0, 2),
            DataType::Utf8 | DataType::Binary => (32, 1, 3),
            DataType::LargeUtf8 | DataType::LargeBinary => (64, 1, 3),
            DataType::Utf8View | DataType::BinaryView => (128, 0, self.array.num_buffers().clamp(3, 4)),
            DataType::List(_) | DataType::Map(..) => (32, 1, 2),
            DataType::LargeList(_) => (64, 1, 2),
            DataType::FixedSizeBinary(width) => (8 * usize::try_from(*width).unwrap_or(0), 0, 2),
            DataType::Dictionary(codes, _) => (8 * codes.primitive_width().unwrap_or(0), 0, 2),
            DataType::FixedSizeList(..) => {
                return refuse(", which has elements only: use devicefusion_array_elements_raw");
            }
            ty => match ty.primitive_width() {
                Some(width) => (8 * width, 0, 2),
                None => return refuse(", which has no values, only fields"),
            },
        };
        if self.array.num_buffers() != buffers {
            let given = self.array.num_buffers();
            return refuse(&match &self.ty {
                DataType::Utf8View | DataType::BinaryView if self.array.n_buffers > 4 => {
                    format!(", whose bytes are in {} buffers, not in one", given - 3)
                }
                _ => format!(", which has {buffers} buffers, but the array has {given}"),
            });
        }
        // SAFETY: the array follows the interface, so its table has that many buffers.
        let buffer = |index: usize| unsafe { *self.array.buffers.add(index) }.cast_mut();
        let (data, data_bytes) = match (&self.ty, buffers) {
            (DataType::Utf8View | DataType::BinaryView, 4) => {
                // SAFETY: NULL, or the sizes of the buffers, which are in host memory.
                let size = unsafe { buffer(3).cast::<i64>().as_ref() }.copied();
                (buffer(2), size.and_then(|size| usize::try_from(size).ok()).unwrap_or(0))
            }
            (DataType::Utf8 | DataType::Binary | DataType::LargeUtf8 | DataType::LargeBinary, _) => (buffer(2), 0),
            _ => (ptr::null_mut(), 0),
        };
        let bits = |values: usize| values.checked_mul(width).ok_or_else(|| Failure::program("the array's length is too large"));
        let (before, bit) = (bits(self.first)? / 8, bits(self.first)? % 8);
        Ok(devicefusion_raw_values {
            memory: buffer(1),
            offset: before,
            bytes: (bit + bits(self.length + extra)?).div_ceil(8),
            length: self.length as i64,
            validity: if self.array.null_count_opt() == Some(0) { ptr::null_mut() } else { buffer(0) },
            validity_offset: self.first,
            bit,
            data,
            data_bytes,
        })
    }
}

fn missing_column(column: i64) -> Failure {
    Failure::program(format!("the array does not have column {column}: a pointer in its tables is NULL"))
}

/// Makes the program's later work in the shared queue wait for the work that writes an array.
///
/// # Safety
/// The array is live and follows the interface.
unsafe fn order_after_writes(context: &Context, array: &FFI_ArrowDeviceArray) -> Result<()> {
    let device = context.device()?;
    let expected = device_of_context(device.as_ref().map(|device| device.info())).0;
    if array.device_type != expected && !cpu::is_host(array.device_type) {
        return Err(Failure::program(format!(
            "the array is in memory of {}, the context uses memory of {expected}",
            array.device_type
        )));
    }
    let (Some(device), false) = (device, array.sync_event.is_null()) else { return Ok(()) };
    // SAFETY: for CUDA and OpenCL it points to the native event, a pointer, while the array lives.
    let event = unsafe { array.sync_event.cast::<*mut c_void>().read_unaligned() };
    // SAFETY: see above.
    Ok(unsafe { device.shared_queue_waits_for(RawEvent(event.addr() as u64)) }?)
}

/// The program's memory behind a table. Its drop calls the program's `release`.
struct BorrowedMemory {
    release: Option<unsafe extern "C" fn(data: *mut c_void)>,
    data: *mut c_void,
}

// SAFETY: `release` may run on any thread, as the header asks; nothing else uses the pointer.
unsafe impl Send for BorrowedMemory {}
// SAFETY: see above.
unsafe impl Sync for BorrowedMemory {}

impl Drop for BorrowedMemory {
    fn drop(&mut self) {
        if let Some(release) = self.release {
            // SAFETY: the program's function with its own data, called once.
            unsafe { release(self.data) };
        }
    }
}

/// Registers a table of `count` columns and `length` rows in the program's memory. Columns are used
/// in place, except dictionaries, which are decoded. Lists need a context without a device.
///
/// - The values must be complete, or be written by earlier work of the program in the queue of
///   devicefusion_context_get_command_queue. They must not change afterwards.
/// - Only this call reads the structs and strings.
/// - On a device, offsets, views and codes are not checked: all must be in range.
/// - `release`, unless NULL, is called with `data` once, on any thread. It is called if this
///   function fails. Otherwise it is called once the table is dropped and its queries have ended.
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
    let memory = BorrowedMemory { release, data };
    code(with_context(context, |context| {
        if columns.is_null() || count == 0 {
            return Err(Failure::program("a table needs columns, and there are none"));
        }
        let length = usize::try_from(length).map_err(|_| Failure::program(format!("a table cannot have {length} rows")))?;
        // SAFETY: not null, and as many as the header asks for.
        let columns = unsafe { std::slice::from_raw_parts(columns, count) };
        let device = context.device()?;
        let (device_type, id) = device_of_context(device.as_ref().map(|device| device.info()));
        // SAFETY: strings and elements are as the header asks.
        let columns = columns
            .iter()
            .map(|column| unsafe { import_column(column, length, Level::Column, device.is_some()) })
            .collect::<Result<Vec<_>>>()?;
        let (fields, arrays): (Vec<_>, Vec<_>) = columns.into_iter().unzip();
        let rows = ArrayExport::batch(length, arrays)?.owner(Box::new(memory));
        let rows = rows.export(device_type, id, ptr::null_mut())?;
        let stream = export_iterator(&schema::batch_field(&Schema::new(fields)), device_type, [Ok(rows)])?;
        // SAFETY: arrow-device exported the stream, and the memory is as the header asks.
        let reader = unsafe { ArrowDeviceArrayStreamReader::try_new(stream)? };
        let kind = if device.is_some() { DEVICEFUSION_TABLE_DEVICE } else { DEVICEFUSION_TABLE_HOST };
        // SAFETY: the name is as the header asks.
        register(context, unsafe { string("name of the table", name) }, |_| Ok(ArraySource::Pulled(reader)), kind)
    }))
}

/// Checks precision, width and time zone of a type.
fn validate_type(ty: DataType) -> std::result::Result<DataType, ArrowError> {
    match &ty {
        DataType::Decimal32(precision, scale) => validate_decimal_precision_and_scale::<Decimal32Type>(*precision, *scale)?,
        DataType::Decimal64(precision, scale) => validate_decimal_precision_and_scale::<Decimal64Type>(*precision, *scale)?,
        DataType::Decimal128(precision, scale) => validate_decimal_precision_and_scale::<Decimal128Type>(*precision, *scale)?,
        DataType::Decimal256(precision, scale) => validate_decimal_precision_and_scale::<Decimal256Type>(*precision, *scale)?,
        DataType::FixedSizeBinary(width) if *width < 1 => {
            return Err(ArrowError::InvalidArgumentError(format!("a value cannot have {width} bytes")));
        }
        DataType::Timestamp(_, Some(zone)) => drop(zone.parse::<Tz>()?),
        _ => {}
    }
    Ok(ty)
}

/// Whether a raw column is one of the table's, or the elements of one.
#[derive(Clone, Copy, PartialEq)]
enum Level {
    Column,
    Elements,
}

/// The refusal of a raw column.
fn refused_column(name: &str, reason: impl Display) -> Failure {
    Failure::program(format!("column \"{name}\" {reason}"))
}

/// A raw column as an Arrow field and array. `on_device`: its memory is a device's.
///
/// # Safety
/// - The column's strings are NULL or C strings.
/// - Its elements are NULL or initialised.
/// - Its memory is as the header asks.
unsafe fn import_column(
    column: &devicefusion_raw_column,
    length: usize,
    level: Level,
    on_device: bool,
) -> Result<(Field, ArrayExport)> {
    // SAFETY: this function's own condition.
    let name = if level == Level::Column { unsafe { string("name of a column", column.name) }? } else { "item" };
    // SAFETY: see above.
    let format = unsafe { string("format of a column", column.format) }?;
    // SAFETY: see above.
    let elements = match unsafe { column.elements.as_ref() } {
        Some(_) if level == Level::Elements => return Err(refused_column(name, "has elements within elements")),
        Some(elements) => {
            let count = usize::try_from(column.element_count)
                .map_err(|_| refused_column(name, format!("cannot have {} elements", column.element_count)))?;
            // SAFETY: see above.
            Some(unsafe { import_column(elements, count, Level::Elements, on_device) }?)
        }
        None => None,
    };
    let ty = column_type(name, format, elements.as_ref().map(|(element, _)| element))?;
    // SAFETY: see above.
    unsafe { check_memory(name, column, &ty, length, on_device) }?;
    let array = column_array(name, column, &ty, length)?;
    let is_dictionary = matches!(ty, DataType::Dictionary(..));
    // A code may stand for a NULL among the dictionary's values.
    let has_null_values = is_dictionary && elements.as_ref().is_some_and(|(element, _)| element.is_nullable());
    let nullable = !column.validity.is_null() || has_null_values;
    let array = match elements {
        Some((_, values)) if is_dictionary => array.dictionary(values),
        Some((_, elements)) => array.children(vec![elements]),
        None => array,
    };
    Ok((Field::new(name, ty, nullable), array))
}

/// The type of a raw column, from its format and the field of its elements.
fn column_type(name: &str, format: &str, element: Option<&Field>) -> Result<DataType> {
    let no_values = "which has no raw values: devicefusion_register_device_array takes every type";
    match (format, element) {
        ("+l", Some(element)) => return Ok(DataType::List(Arc::new(element.clone()))),
        ("+L", Some(element)) => return Ok(DataType::LargeList(Arc::new(element.clone()))),
        ("+l" | "+L", None) => return Err(refused_column(name, "has lists, and its elements are NULL")),
        _ if format.starts_with('+') => {
            return Err(refused_column(name, format!("has the format {format:?}, {no_values}")));
        }
        _ => {}
    }
    let parsed = FFI_ArrowSchema::try_new(format, vec![], None).and_then(|schema| validate_type(DataType::try_from(&schema)?));
    let ty = parsed.map_err(|error| refused_column(name, format!("has the format {format:?}: {error}")))?;
    let is_fixed_width = ty.primitive_width().is_some() || matches!(ty, DataType::Boolean | DataType::FixedSizeBinary(_));
    match element {
        Some(element) if ty.is_dictionary_key_type() => {
            Ok(DataType::Dictionary(Box::new(ty), Box::new(element.data_type().clone())))
        }
        Some(_) => Err(refused_column(name, format!("is {ty}, which has no elements"))),
        None if is_fixed_width || is_of_bytes(&ty) => Ok(ty),
        None => Err(refused_column(name, format!("is {ty}, {no_values}"))),
    }
}

/// Whether values are strings or binary.
fn is_of_bytes(ty: &DataType) -> bool {
    use DataType::{Binary, BinaryView, LargeBinary, LargeUtf8, Utf8, Utf8View};
    matches!(ty, Utf8 | LargeUtf8 | Binary | LargeBinary | Utf8View | BinaryView)
}

/// Checks that a raw column has the memory for its type. Offsets are checked on the host only.
///
/// # Safety
/// The column's memory is as the header asks.
unsafe fn check_memory(
    name: &str,
    column: &devicefusion_raw_column,
    ty: &DataType,
    length: usize,
    on_device: bool,
) -> Result<()> {
    if column.memory.is_null() && length > 0 {
        return Err(Failure::program(format!("the memory of column \"{name}\" is NULL")));
    }
    let offset_bytes = match ty {
        DataType::Utf8 | DataType::Binary => Some(4),
        DataType::LargeUtf8 | DataType::LargeBinary => Some(8),
        _ => None,
    };
    let needs_data = column.data_bytes > 0 || on_device && length > 0 && offset_bytes.is_some();
    if is_of_bytes(ty) && column.data.is_null() && needs_data {
        return Err(refused_column(name, "has no bytes for its values: the member data is NULL"));
    }
    let Some(width) = offset_bytes.filter(|_| !on_device && column.data_bytes > 0 && length > 0) else { return Ok(()) };
    let last_offset = column.memory.cast::<u8>().wrapping_add(length * width);
    // SAFETY: the offsets are in host memory, one more than there are rows.
    let last = unsafe {
        match width {
            4 => i64::from(last_offset.cast::<i32>().read_unaligned()),
            _ => last_offset.cast::<i64>().read_unaligned(),
        }
    };
    if usize::try_from(last).is_ok_and(|last| last > column.data_bytes) {
        return Err(refused_column(name, format!("has values up to byte {last}, of {} bytes", column.data_bytes)));
    }
    Ok(())
}

/// The array over a raw column's own buffers, without its elements.
fn column_array(name: &str, column: &devicefusion_raw_column, ty: &DataType, length: usize) -> Result<ArrayExport> {
    let nulls = if column.validity.is_null() { Some(0) } else { None };
    let mut buffers: Vec<*const c_void> = vec![column.validity, column.memory];
    let mut array = ArrayExport::new(length).null_count(nulls);
    match ty {
        DataType::Utf8View | DataType::BinaryView => {
            let sizes: Box<[i64]> = match (column.data.is_null(), i64::try_from(column.data_bytes)) {
                (true, _) => Box::new([]),
                (false, Ok(bytes)) => Box::new([bytes]),
                (false, Err(_)) => {
                    return Err(refused_column(name, format!("cannot have {} bytes", column.data_bytes)));
                }
            };
            if !sizes.is_empty() {
                buffers.push(column.data);
            }
            buffers.push(sizes.as_ptr().cast());
            array = array.owner(Box::new(sizes));
        }
        _ if is_of_bytes(ty) => buffers.push(column.data),
        _ => {}
    }
    Ok(array.buffers(buffers))
}
