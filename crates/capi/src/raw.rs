// SPDX-License-Identifier: Apache-2.0
//! Raw values: where the columns of a result lie, and columns that lie in memory of the program's own.

use std::ffi::{c_char, c_int, c_void};
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

use crate::boundary::{code, text, wanted, with_context};
use crate::context::{Context, devicefusion_context};
use crate::error::{Failure, Result};
use crate::table::{Arrays, DEVICEFUSION_TABLE_DEVICE, DEVICEFUSION_TABLE_HOST, register};

/// Where the values of a column lie, for devicefusion_array_values_raw.
#[repr(C)]
#[derive(Debug)]
pub struct devicefusion_raw_values {
    /// The memory of the values, one behind the other: a cl_mem, a CUdeviceptr, or an address of the host, as the array's
    /// `device_type` says. Of booleans, bits; of a dictionary, codes; of lists and of texts, offsets, one more than there are
    /// values; of texts of the type view, views of 16 bytes.
    pub memory: *mut c_void,
    /// Bytes of that memory before the first value; of booleans, before the byte that has its bit.
    pub offset: usize,
    /// Bytes of all values.
    pub bytes: usize,
    /// How many values there are.
    pub length: i64,
    /// Memory of the same kind with a bit for each value, the least significant first: 0 for NULL. NULL where no value is.
    pub validity: *mut c_void,
    /// Bits of that memory before the first value's.
    pub validity_offset: usize,
    /// Of booleans, which bit of the first byte is the first value, the least significant being 0.
    pub bit: usize,
    /// Memory of the same kind with the bytes that offsets or views of texts point into, from its begin on. NULL for other types,
    /// and where no text needs any.
    pub data: *mut c_void,
    /// Bytes of that memory; 0 where the last offset tells.
    pub data_bytes: usize,
}

/// A column in memory of the program's own, for devicefusion_register_raw.
#[repr(C)]
#[derive(Debug)]
pub struct devicefusion_raw_column {
    /// Its name.
    pub name: *const c_char,
    /// Its type as a format string of Arrow's C data interface: "l" for 64-bit integers, "b" for booleans, "u" for texts with
    /// offsets of 32 bits, and so on; of a dictionary, the type of its codes.
    pub format: *const c_char,
    /// The memory of the values, from its begin on: a cl_mem or a CUdeviceptr of the context's device, or an address of the
    /// host where the context has no device. What lies there is as in devicefusion_raw_values.
    pub memory: *mut c_void,
    /// Memory of the same kind with a bit for each value, the least significant first: 0 for NULL. NULL where no value is.
    pub validity: *mut c_void,
    /// Memory of the same kind with the bytes that offsets or views of texts point into. NULL for other types.
    pub data: *mut c_void,
    /// How many bytes that are; of texts with offsets it may be 0, for the last offset tells.
    pub data_bytes: usize,
    /// Of a dictionary its values, of lists their elements, whose name does not matter. NULL for other types.
    pub elements: *const devicefusion_raw_column,
    /// How many elements there are.
    pub element_count: i64,
}

/// The device type and id of arrays in the context's memory.
fn home(info: Option<&DeviceInfo>) -> (ArrowDeviceType, i64) {
    let on_device = |info: &DeviceInfo| (ArrowDeviceType(info.driver.arrow_device_types().device), info.ordinal as i64);
    info.map_or((ArrowDeviceType::CPU, -1), on_device)
}

/// Tells where the values of a column lie: column `column`, counted from zero, of a record batch such as
/// devicefusion_query_device_stream gives, with its schema. Of structs and unions there are the fields' arrays alone.
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
    // SAFETY: all is as the header asks.
    unsafe { tell(context, array, schema, column, out, |column| column.values()) }
}

/// As devicefusion_array_values_raw, of what the column's codes or offsets point to: all values of a dictionary, or all elements of
/// lists, which may themselves be of any type but lists and dictionaries. Lists of a fixed size have no offsets: their elements
/// lie one behind the other.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn devicefusion_array_elements_raw(
    context: *mut devicefusion_context,
    array: *const FFI_ArrowDeviceArray,
    schema: *const FFI_ArrowSchema,
    column: i64,
    out: *mut devicefusion_raw_values,
) -> c_int {
    // SAFETY: all is as the header asks.
    unsafe { tell(context, array, schema, column, out, |column| column.elements()?.values()) }
}

/// # Safety
/// As of the functions for C.
unsafe fn tell(
    context: *mut devicefusion_context,
    array: *const FFI_ArrowDeviceArray,
    schema: *const FFI_ArrowSchema,
    column: i64,
    out: *mut devicefusion_raw_values,
    values: impl FnOnce(Column<'_>) -> Result<devicefusion_raw_values>,
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
        // SAFETY: as above; the schema's tables are what the C data interface says, or are refused.
        let DataType::Struct(fields) = unsafe { schema::field(schema) }?.data_type().clone() else {
            return Err(Failure::program("the schema is none of a record batch, which is an array of structs"));
        };
        // SAFETY: the array is live and follows the interface, as the header asks.
        let values = values(unsafe { Column::of(&array.array, &fields, column) }?)?;
        // SAFETY: as above.
        unsafe { order(context, array) }?;
        // SAFETY: not null, and writable as the header asks.
        unsafe { out.write(values) };
        Ok(())
    }))
}

/// A live array that follows the interface, with its type and its place in a batch.
struct Column<'a> {
    array: &'a FFI_ArrowArray,
    ty: DataType,
    /// For messages.
    label: String,
    /// Where its rows begin in its buffers, and how many they are.
    first: usize,
    length: usize,
}

impl<'a> Column<'a> {
    /// # Safety
    /// The batch is live and follows the interface.
    unsafe fn of(rows: &'a FFI_ArrowArray, fields: &Fields, column: i64) -> Result<Self> {
        let index = usize::try_from(column).ok().filter(|index| *index < fields.len());
        let Some(index) = index.filter(|_| fields.len() == rows.num_children()) else {
            let (columns, children) = (fields.len(), rows.num_children());
            return Err(Failure::program(format!("there is no column {column}: the schema has {columns}, the array {children}")));
        };
        let (name, ty) = (fields[index].name(), fields[index].data_type().clone());
        let label = format!("column {column} \"{name}\" is {ty}");
        // SAFETY: where there is a table of children it has that many pointers, to live structs.
        let child = unsafe { rows.children.as_ref().and_then(|_| (*rows.children.add(index)).as_ref()) };
        let array = child.ok_or_else(|| amiss(column))?;
        if array.is_released() {
            return Err(Failure::program(format!("{label}, whose array has been released, or moved away")));
        }
        if [rows.length, rows.offset, array.length, array.offset].iter().any(|number| *number < 0) {
            return Err(Failure::program(format!("{label}, and a length or offset of its array is negative")));
        }
        if rows.offset().checked_add(rows.len()).is_none_or(|needed| array.len() < needed) {
            let (rows, first, own) = (rows.len(), rows.offset(), array.len());
            return Err(Failure::program(format!(
                "{label}, which has {own} values; the batch has {rows} rows from value {first} on"
            )));
        }
        if array.buffers.is_null() && array.num_buffers() > 0 {
            return Err(amiss(column));
        }
        Ok(Self { array, ty, label, first: rows.offset() + array.offset(), length: rows.len() })
    }

    /// The array that codes or offsets point into.
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
            return refuse(&format!(", whose elements are {ty}: the struct of Arrow has theirs"));
        }
        // SAFETY: NULL, or live as long as the array.
        let Some(array) = (unsafe { inner.as_ref() }).filter(|array| !array.buffers.is_null()) else {
            return refuse(", whose elements are not there: a pointer of its tables is NULL");
        };
        let (first, length) = match &self.ty {
            DataType::FixedSizeList(_, size) => {
                let size = usize::try_from(*size).unwrap_or(0);
                match (self.first.checked_mul(size), self.length.checked_mul(size)) {
                    (Some(first), Some(length)) => (array.offset() + first, length),
                    _ => return refuse(", whose length cannot be"),
                }
            }
            _ => (array.offset(), array.len()),
        };
        let label = format!("{}, whose elements are {ty}", self.label);
        Ok(Self { array, ty, label, first, length })
    }

    /// Where the values lie.
    fn values(&self) -> Result<devicefusion_raw_values> {
        let refuse = |reason: &str| Err(Failure::program(format!("{}{reason}", self.label)));
        // Bits of a value, values beyond the last row's, buffers of the type.
        let (width, beyond, buffers) = match &self.ty {
            DataType::Boolean => (1, 0, 2),
            DataType::Utf8 | DataType::Binary => (32, 1, 3),
            DataType::LargeUtf8 | DataType::LargeBinary => (64, 1, 3),
            DataType::Utf8View | DataType::BinaryView => (128, 0, self.array.num_buffers().clamp(3, 4)),
            DataType::List(_) | DataType::Map(..) => (32, 1, 2),
            DataType::LargeList(_) => (64, 1, 2),
            DataType::FixedSizeBinary(width) => (8 * usize::try_from(*width).unwrap_or(0), 0, 2),
            DataType::Dictionary(codes, _) => (8 * codes.primitive_width().unwrap_or(0), 0, 2),
            DataType::FixedSizeList(..) => {
                return refuse(", which has elements alone: devicefusion_array_elements_raw tells where");
            }
            ty => match ty.primitive_width() {
                Some(width) => (8 * width, 0, 2),
                None => return refuse(", which has no values of its own"),
            },
        };
        if self.array.num_buffers() != buffers {
            let given = self.array.num_buffers();
            return refuse(&match &self.ty {
                DataType::Utf8View | DataType::BinaryView if self.array.n_buffers > 4 => {
                    format!(", whose bytes lie in {} buffers and not in one", given - 3)
                }
                _ => format!(", which has {buffers} buffers, and the array {given}"),
            });
        }
        // SAFETY: the array follows the interface: its table has so many buffers.
        let buffer = |index: usize| unsafe { *self.array.buffers.add(index) }.cast_mut();
        let (data, data_bytes) = match (&self.ty, buffers) {
            (DataType::Utf8View | DataType::BinaryView, 4) => {
                // SAFETY: the sizes of the buffers, which lie in host memory, or NULL.
                let size = unsafe { buffer(3).cast::<i64>().as_ref() }.copied();
                (buffer(2), size.and_then(|size| usize::try_from(size).ok()).unwrap_or(0))
            }
            (DataType::Utf8 | DataType::Binary | DataType::LargeUtf8 | DataType::LargeBinary, _) => (buffer(2), 0),
            _ => (ptr::null_mut(), 0),
        };
        let bits = |values: usize| values.checked_mul(width).ok_or_else(|| Failure::program("the array's length cannot be"));
        let (before, bit) = (bits(self.first)? / 8, bits(self.first)? % 8);
        Ok(devicefusion_raw_values {
            memory: buffer(1),
            offset: before,
            bytes: (bit + bits(self.length + beyond)?).div_ceil(8),
            length: self.length as i64,
            validity: if self.array.null_count_opt() == Some(0) { ptr::null_mut() } else { buffer(0) },
            validity_offset: self.first,
            bit,
            data,
            data_bytes,
        })
    }
}

fn amiss(column: i64) -> Failure {
    Failure::program(format!("the array does not have column {column}: a pointer of its tables is NULL"))
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

/// Makes a table of `length` rows that lies in memory of the program's own: `count` columns, which are used in place, but for
/// dictionaries, of which each row gets its value. Lists are taken where the context has no device.
///
/// The values must be there already, or be written by what the program has enqueued before in the queue that it shares with the
/// context: see devicefusion_context_get_command_queue. From now on nobody may write them. The structs and texts are read by this
/// call alone. Offsets, views and codes are not checked on a device: each must point into what it points into. `release`, unless
/// NULL, is called with `data` once the memory is no longer used: after the table was dropped and the queries that read it have
/// ended, or where this function fails; on any thread, once.
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
        // SAFETY: texts and elements are as the header asks.
        let given = columns
            .iter()
            .map(|column| unsafe { given(column, length, (true, device.is_some())) })
            .collect::<Result<Vec<_>>>()?;
        let (fields, arrays): (Vec<_>, Vec<_>) = given.into_iter().unzip();
        let rows = ArrayExport::batch(length, arrays)?.owner(Box::new(lent));
        let rows = rows.export(device_type, id, ptr::null_mut())?;
        let stream = export_iterator(&schema::batch_field(&Schema::new(fields)), device_type, [Ok(rows)])?;
        // SAFETY: the stream comes from arrow-device's export, and the memory is what the program says.
        let reader = unsafe { ArrowDeviceArrayStreamReader::try_new(stream)? };
        let kind = if device.is_some() { DEVICEFUSION_TABLE_DEVICE } else { DEVICEFUSION_TABLE_HOST };
        // SAFETY: the name is as the header asks.
        register(context, unsafe { text("name of the table", name) }, Ok(Arrays::Pulled(reader)), kind)
    }))
}

/// The type, unless there can be no value of it.
fn possible(ty: DataType) -> std::result::Result<DataType, ArrowError> {
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

/// A column as Arrow has it; `outer` where it may have elements, `on_device` where its memory is a device's.
///
/// # Safety
/// The column's texts are NULL, or C strings; its elements are NULL, or initialised; its memory is what the header asks for.
unsafe fn given(
    column: &devicefusion_raw_column,
    length: usize,
    (outer, on_device): (bool, bool),
) -> Result<(Field, ArrayExport)> {
    // SAFETY: as this function's own condition.
    let name = if outer { unsafe { text("name of a column", column.name) }? } else { "item" };
    // SAFETY: as above.
    let format = unsafe { text("format of a column", column.format) }?;
    let refuse = |reason: String| Err(Failure::program(format!("column \"{name}\" {reason}")));
    // SAFETY: as above.
    let elements = match unsafe { column.elements.as_ref() } {
        Some(_) if !outer => return refuse("has elements within elements".to_owned()),
        Some(elements) => {
            let count = usize::try_from(column.element_count);
            let Ok(count) = count else { return refuse(format!("cannot have {} elements", column.element_count)) };
            // SAFETY: as above.
            Some(unsafe { given(elements, count, (false, on_device)) }?)
        }
        None => None,
    };
    let is_list = matches!(format, "+l" | "+L");
    if format.starts_with('+') && !is_list {
        return refuse(format!(
            "is of format {format:?}, which has no raw values: devicefusion_register_device_array takes every type"
        ));
    }
    let ty = match (&elements, is_list) {
        (Some((element, _)), true) if format == "+l" => DataType::List(Arc::new(element.clone())),
        (Some((element, _)), true) => DataType::LargeList(Arc::new(element.clone())),
        (None, true) => return refuse("is one of lists, and its elements are NULL".to_owned()),
        (_, false) => {
            match FFI_ArrowSchema::try_new(format, vec![], None).and_then(|format| possible(DataType::try_from(&format)?)) {
                Ok(ty) => ty,
                Err(error) => return refuse(format!("is of format {format:?}: {error}")),
            }
        }
    };
    let ty = match &elements {
        Some((element, _)) if !is_list && ty.is_dictionary_key_type() => {
            DataType::Dictionary(Box::new(ty), Box::new(element.data_type().clone()))
        }
        Some(_) if !is_list => return refuse(format!("is {ty}, which has no elements")),
        _ => ty,
    };
    use DataType::{Binary, BinaryView, LargeBinary, LargeUtf8, Utf8, Utf8View};
    let of_bytes = matches!(ty, Utf8 | LargeUtf8 | Binary | LargeBinary | Utf8View | BinaryView);
    let of_fixed_width = ty.primitive_width().is_some() || matches!(ty, DataType::Boolean | DataType::FixedSizeBinary(_));
    if elements.is_none() && !of_bytes && !of_fixed_width {
        return refuse(format!("is {ty}, which has no raw values: devicefusion_register_device_array takes every type"));
    }
    if column.memory.is_null() && length > 0 {
        return Err(Failure::program(format!("the memory of column \"{name}\" is NULL")));
    }
    let offset_bytes = match ty {
        Utf8 | Binary => Some(4),
        LargeUtf8 | LargeBinary => Some(8),
        _ => None,
    };
    if of_bytes && column.data.is_null() && (column.data_bytes > 0 || on_device && length > 0 && offset_bytes.is_some()) {
        return refuse("has its texts at NULL: the member data is their memory".to_owned());
    }
    if let Some(width) = offset_bytes.filter(|_| !on_device && column.data_bytes > 0 && length > 0) {
        let place = column.memory.cast::<u8>().wrapping_add(length * width);
        // SAFETY: the offsets lie in host memory, one more than there are rows.
        let last = unsafe {
            match width {
                4 => i64::from(place.cast::<i32>().read_unaligned()),
                _ => place.cast::<i64>().read_unaligned(),
            }
        };
        if usize::try_from(last).is_ok_and(|last| last > column.data_bytes) {
            return refuse(format!("has texts up to byte {last}, of {} bytes", column.data_bytes));
        }
    }
    let nulls = if column.validity.is_null() { Some(0) } else { None };
    // A code may be that of a NULL among a dictionary's values.
    let nullable = nulls.is_none()
        || matches!(&ty, DataType::Dictionary(..)) && elements.as_ref().is_some_and(|(element, _)| element.is_nullable());
    let mut buffers: Vec<*const c_void> = vec![column.validity, column.memory];
    let mut array = ArrayExport::new(length).null_count(nulls);
    match ty {
        Utf8View | BinaryView => {
            let sizes: Box<[i64]> = match (column.data.is_null(), i64::try_from(column.data_bytes)) {
                (true, _) => Box::new([]),
                (false, Ok(bytes)) => Box::new([bytes]),
                (false, Err(_)) => return refuse(format!("cannot have {} bytes", column.data_bytes)),
            };
            if !sizes.is_empty() {
                buffers.push(column.data);
            }
            buffers.push(sizes.as_ptr().cast());
            array = array.owner(Box::new(sizes));
        }
        _ if of_bytes => buffers.push(column.data),
        _ => {}
    }
    array = array.buffers(buffers);
    if let Some((_, elements)) = elements {
        array = if is_list { array.children(vec![elements]) } else { array.dictionary(elements) };
    }
    Ok((Field::new(name, ty, nullable), array))
}
