// SPDX-License-Identifier: Apache-2.0
//! What the tests in Python call: this crate behind functions that take the addresses of C structs.
//!
//! Each function returns null, or a text that says what went wrong and goes back to [`peer_free_text`]. Structs that are
//! given away are moved out of the caller's memory in every case, those that come back are only written on success.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod capsule;
mod counted;
mod memory;
mod samples;

use std::ffi::{CStr, CString, c_char};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, MutableArrayData, RecordBatch, RecordBatchIterator, make_array};
use arrow::datatypes::Field;
use arrow::error::ArrowError;
use arrow::ffi::FFI_ArrowSchema;
use arrow_device::ffi::{FFI_ArrowDeviceArray, FFI_ArrowDeviceArrayStream};
use arrow_device::stream::ArrowDeviceArrayStreamReader;
use arrow_device::{Error, ImportedArray, Result, cpu, schema};

use samples::sample;

/// Null, or the text of an error or a panic.
fn text_of(body: impl FnOnce() -> Result<()>) -> *mut c_char {
    let text = match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => return std::ptr::null_mut(),
        Ok(Err(error)) => error.to_string(),
        Err(payload) => format!("panicked: {:?}", payload.downcast_ref::<String>()),
    };
    CString::new(text.replace('\0', "")).unwrap().into_raw()
}

/// Frees what another function returned.
///
/// # Safety
/// The text comes from this library, and has not been freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn peer_free_text(text: *mut c_char) {
    // SAFETY: as this function's own condition.
    drop(unsafe { CString::from_raw(text) });
}

/// Bytes that this library has allocated and not freed.
#[unsafe(no_mangle)]
pub extern "C" fn peer_allocated_bytes() -> i64 {
    memory::allocated_bytes()
}

/// Takes over an array with its schema.
///
/// # Safety
/// Both point to initialised structs that follow the interface.
unsafe fn import(array: *mut FFI_ArrowDeviceArray, schema: *mut FFI_ArrowSchema) -> Result<ImportedArray> {
    // SAFETY: as this function's own condition.
    let (array, schema) = unsafe { (FFI_ArrowDeviceArray::from_raw(array), FFI_ArrowSchema::from_raw(schema)) };
    // SAFETY: as this function's own condition.
    let field = unsafe { schema::import_field(schema)? };
    // SAFETY: as this function's own condition.
    unsafe { ImportedArray::import(array, &field) }
}

/// Writes the results of an export.
///
/// # Safety
/// Both can be written.
unsafe fn give(
    array: FFI_ArrowDeviceArray,
    field: &Field,
    out: *mut FFI_ArrowDeviceArray,
    out_schema: *mut FFI_ArrowSchema,
) -> Result<()> {
    let schema = schema::export_field(field)?;
    // SAFETY: as this function's own condition.
    unsafe {
        out.write(array);
        out_schema.write(schema);
    }
    Ok(())
}

/// Makes an arrow-rs array of a foreign one, and gives that away.
///
/// # Safety
/// The first two follow the interface, the others can be written; they may be the same.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn peer_array(
    array: *mut FFI_ArrowDeviceArray,
    schema: *mut FFI_ArrowSchema,
    out: *mut FFI_ArrowDeviceArray,
    out_schema: *mut FFI_ArrowSchema,
) -> *mut c_char {
    text_of(|| {
        // SAFETY: as this function's own condition.
        let imported = unsafe { import(array, schema)? };
        let field = Arc::clone(imported.field());
        let rows = cpu::import_array(imported)?;
        rows.to_data().validate_full()?;
        // SAFETY: as this function's own condition.
        unsafe { give(cpu::export_array(&rows)?, &field, out, out_schema) }
    })
}

/// As [`peer_array`], by way of a record batch.
///
/// # Safety
/// As [`peer_array`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn peer_batch(
    array: *mut FFI_ArrowDeviceArray,
    schema: *mut FFI_ArrowSchema,
    out: *mut FFI_ArrowDeviceArray,
    out_schema: *mut FFI_ArrowSchema,
) -> *mut c_char {
    text_of(|| {
        // SAFETY: as this function's own condition.
        let batch = cpu::import_batch(unsafe { import(array, schema)? })?;
        // SAFETY: as this function's own condition.
        unsafe { give(cpu::export_batch(&batch)?, &schema::batch_field(&batch.schema()), out, out_schema) }
    })
}

/// As [`peer_array`], in memory of this library; only the texts of views and the values of dictionaries stay the producer's.
///
/// # Safety
/// As [`peer_array`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn peer_copy(
    array: *mut FFI_ArrowDeviceArray,
    schema: *mut FFI_ArrowSchema,
    out: *mut FFI_ArrowDeviceArray,
    out_schema: *mut FFI_ArrowSchema,
) -> *mut c_char {
    text_of(|| {
        // SAFETY: as this function's own condition.
        let imported = unsafe { import(array, schema)? };
        let field = Arc::clone(imported.field());
        let copy = {
            let data = cpu::import_array(imported)?.to_data();
            let mut copy = MutableArrayData::new(vec![&data], false, data.len());
            copy.try_extend(0, 0, data.len())?;
            make_array(copy.freeze())
        };
        // SAFETY: as this function's own condition.
        unsafe { give(cpu::export_array(&copy)?, &field, out, out_schema) }
    })
}

/// Hands an array on as it came, with nothing but the check.
///
/// # Safety
/// As [`peer_array`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn peer_hand_on(
    array: *mut FFI_ArrowDeviceArray,
    schema: *mut FFI_ArrowSchema,
    out: *mut FFI_ArrowDeviceArray,
    out_schema: *mut FFI_ArrowSchema,
) -> *mut c_char {
    text_of(|| {
        // SAFETY: as this function's own condition.
        let imported = unsafe { import(array, schema)? };
        let field = Arc::clone(imported.field());
        // SAFETY: as this function's own condition.
        unsafe { give(imported.into_ffi(), &field, out, out_schema) }
    })
}

/// A part of the sample of that name.
///
/// # Safety
/// `name` is a C string.
unsafe fn part(name: *const c_char, offset: usize, length: usize) -> Result<ArrayRef> {
    // SAFETY: as this function's own condition.
    let name = unsafe { CStr::from_ptr(name) }.to_str().unwrap();
    let array = sample(name).ok_or_else(|| Error::Other(format!("there is no sample {name}")))?;
    Ok(array.slice(offset, length))
}

/// The names of all samples, one per line, as the text.
#[unsafe(no_mangle)]
pub extern "C" fn peer_sample_names() -> *mut c_char {
    let names: Vec<_> = samples::samples().into_iter().map(|(name, _)| name).collect();
    text_of(|| Err(Error::Other(names.join("\n"))))
}

/// Gives away a part of a sample.
///
/// # Safety
/// `name` is a C string, the outputs can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn peer_sample(
    name: *const c_char,
    offset: usize,
    length: usize,
    out: *mut FFI_ArrowDeviceArray,
    out_schema: *mut FFI_ArrowSchema,
) -> *mut c_char {
    text_of(|| {
        // SAFETY: as this function's own condition.
        let array = unsafe { part(name, offset, length)? };
        // SAFETY: as this function's own condition.
        unsafe { give(cpu::export_array(&array)?, &cpu::field_of(&array), out, out_schema) }
    })
}

/// Compares a foreign array with a part of a sample.
///
/// # Safety
/// `name` is a C string, the structs follow the interface.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn peer_expect(
    name: *const c_char,
    offset: usize,
    length: usize,
    array: *mut FFI_ArrowDeviceArray,
    schema: *mut FFI_ArrowSchema,
) -> *mut c_char {
    text_of(|| {
        // SAFETY: as this function's own condition.
        let given = cpu::import_array(unsafe { import(array, schema)? })?;
        // SAFETY: as this function's own condition.
        let expected = unsafe { part(name, offset, length)? };
        match given.data_type() == expected.data_type() && *given == *expected {
            true => Ok(()),
            false => {
                let shown = |array: &ArrayRef| format!("{}: {array:?}", array.data_type());
                Err(Error::Other(format!("expected {}\ngot {}", shown(&expected), shown(&given))))
            }
        }
    })
}

/// Makes a reader of record batches of a foreign stream, and gives that away.
///
/// # Safety
/// `stream` follows the interface, `out` can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn peer_stream(
    stream: *mut FFI_ArrowDeviceArrayStream,
    out: *mut FFI_ArrowDeviceArrayStream,
) -> *mut c_char {
    text_of(|| {
        // SAFETY: as this function's own condition.
        let reader = cpu::import_reader(unsafe { ArrowDeviceArrayStreamReader::from_raw(stream)? })?;
        let stream = cpu::export_reader(reader)?;
        // SAFETY: as this function's own condition.
        unsafe { out.write(stream) };
        Ok(())
    })
}

/// Reads a foreign stream to its end on a thread of this library, and writes how many arrays and rows there were.
///
/// # Safety
/// `stream` follows the interface, the outputs can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn peer_drain(stream: *mut FFI_ArrowDeviceArrayStream, arrays: *mut i64, rows: *mut i64) -> *mut c_char {
    text_of(|| {
        // SAFETY: as this function's own condition.
        let reader = unsafe { ArrowDeviceArrayStreamReader::from_raw(stream)? };
        let read = move || reader.map(|array| Ok(array?.len() as i64)).collect::<Result<Vec<_>>>();
        let lengths = std::thread::spawn(read).join().unwrap()?;
        // SAFETY: as this function's own condition.
        unsafe {
            arrays.write(lengths.len() as i64);
            rows.write(lengths.iter().sum());
        }
        Ok(())
    })
}

/// Gives away a stream of `batches` batches of the samples, all of whose columns begin at row `index % 3`; where
/// `fails` is not 0, an error instead of the end.
///
/// # Safety
/// `out` can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn peer_sample_stream(batches: usize, fails: i32, out: *mut FFI_ArrowDeviceArrayStream) -> *mut c_char {
    text_of(|| {
        let columns = samples::samples().into_iter().map(|(name, array)| (name, array, true));
        // pyarrow has no such types.
        let columns = columns.filter(|(name, _, _)| !["interval_months", "interval_day_time"].contains(name));
        let batch = RecordBatch::try_from_iter_with_nullable(columns)?;
        let schema = batch.schema();
        let rows = batch.num_rows() - 2;
        let mut items: Vec<_> = (0..batches).map(|index| Ok(batch.slice(index % 3, rows))).collect();
        if fails != 0 {
            items.push(Err(ArrowError::ComputeError("the disk is gone: \u{e9}".into())));
        }
        let stream = cpu::export_reader(RecordBatchIterator::new(items, schema))?;
        // SAFETY: as this function's own condition.
        unsafe { out.write(stream) };
        Ok(())
    })
}
