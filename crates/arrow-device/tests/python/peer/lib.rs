// SPDX-License-Identifier: Apache-2.0
//! The library of the Python tests: this crate behind functions that take the addresses of C
//! structs.
//!
//! Each function returns null, or an error message to be freed by [`peer_free_message`]. Input
//! structs are moved out of the caller's memory in every case; output structs are written only on
//! success.
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

/// Null, or the message of an error or a panic.
fn message_of(body: impl FnOnce() -> Result<()>) -> *mut c_char {
    let message = match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => return std::ptr::null_mut(),
        Ok(Err(error)) => error.to_string(),
        Err(payload) => format!("panicked: {:?}", payload.downcast_ref::<String>()),
    };
    CString::new(message.replace('\0', "")).unwrap().into_raw()
}

/// Frees the message that another function returned.
///
/// # Safety
/// The message comes from this library, and has not been freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn peer_free_message(message: *mut c_char) {
    // SAFETY: the caller upholds the contract.
    drop(unsafe { CString::from_raw(message) });
}

/// Bytes that this library has allocated and not freed.
#[unsafe(no_mangle)]
pub extern "C" fn peer_allocated_bytes() -> i64 {
    memory::allocated_bytes()
}

/// Imports an array with its schema.
///
/// # Safety
/// Both point to initialised structs that follow the interface.
unsafe fn import(array: *mut FFI_ArrowDeviceArray, schema: *mut FFI_ArrowSchema) -> Result<ImportedArray> {
    // SAFETY: the caller upholds the contract.
    let (array, schema) = unsafe { (FFI_ArrowDeviceArray::from_raw(array), FFI_ArrowSchema::from_raw(schema)) };
    // SAFETY: the caller upholds the contract.
    let field = unsafe { schema::import_field(schema)? };
    // SAFETY: the caller upholds the contract.
    unsafe { ImportedArray::import(array, &field) }
}

/// Writes the results of an export.
///
/// # Safety
/// Both are writable.
unsafe fn write_outputs(
    array: FFI_ArrowDeviceArray,
    field: &Field,
    out: *mut FFI_ArrowDeviceArray,
    out_schema: *mut FFI_ArrowSchema,
) -> Result<()> {
    let schema = schema::export_field(field)?;
    // SAFETY: the caller upholds the contract.
    unsafe {
        out.write(array);
        out_schema.write(schema);
    }
    Ok(())
}

/// Imports an array as an arrow-rs array, and exports it again.
///
/// # Safety
/// The first two follow the interface, the others are writable; they may be the same.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn peer_array(
    array: *mut FFI_ArrowDeviceArray,
    schema: *mut FFI_ArrowSchema,
    out: *mut FFI_ArrowDeviceArray,
    out_schema: *mut FFI_ArrowSchema,
) -> *mut c_char {
    message_of(|| {
        // SAFETY: the caller upholds the contract.
        let imported = unsafe { import(array, schema)? };
        let field = Arc::clone(imported.field());
        let rows = cpu::import_array(imported)?;
        rows.to_data().validate_full()?;
        // SAFETY: the caller upholds the contract.
        unsafe { write_outputs(cpu::export_array(&rows)?, &field, out, out_schema) }
    })
}

/// As [`peer_array`], through a record batch.
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
    message_of(|| {
        // SAFETY: the caller upholds the contract.
        let batch = cpu::import_batch(unsafe { import(array, schema)? })?;
        // SAFETY: the caller upholds the contract.
        unsafe { write_outputs(cpu::export_batch(&batch)?, &schema::batch_field(&batch.schema()), out, out_schema) }
    })
}

/// As [`peer_array`], copied into this library's memory; only the variadic buffers of views and the
/// values of dictionaries stay the producer's.
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
    message_of(|| {
        // SAFETY: the caller upholds the contract.
        let imported = unsafe { import(array, schema)? };
        let field = Arc::clone(imported.field());
        let copy = {
            let data = cpu::import_array(imported)?.to_data();
            let mut copy = MutableArrayData::new(vec![&data], false, data.len());
            copy.try_extend(0, 0, data.len())?;
            make_array(copy.freeze())
        };
        // SAFETY: the caller upholds the contract.
        unsafe { write_outputs(cpu::export_array(&copy)?, &field, out, out_schema) }
    })
}

/// Passes an array on unchanged, after the import's checks.
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
    message_of(|| {
        // SAFETY: the caller upholds the contract.
        let imported = unsafe { import(array, schema)? };
        let field = Arc::clone(imported.field());
        // SAFETY: the caller upholds the contract.
        unsafe { write_outputs(imported.into_ffi(), &field, out, out_schema) }
    })
}

/// A slice of the sample with that name.
///
/// # Safety
/// `name` is a C string.
unsafe fn sample_slice(name: *const c_char, offset: usize, length: usize) -> Result<ArrayRef> {
    // SAFETY: the caller upholds the contract.
    let name = unsafe { CStr::from_ptr(name) }.to_str().unwrap();
    let array = sample(name).ok_or_else(|| Error::Other(format!("there is no sample {name}")))?;
    Ok(array.slice(offset, length))
}

/// The names of all samples, one per line, as the message.
#[unsafe(no_mangle)]
pub extern "C" fn peer_sample_names() -> *mut c_char {
    let names: Vec<_> = samples::samples().into_iter().map(|(name, _)| name).collect();
    message_of(|| Err(Error::Other(names.join("\n"))))
}

/// Exports a slice of a sample.
///
/// # Safety
/// `name` is a C string, the outputs are writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn peer_sample(
    name: *const c_char,
    offset: usize,
    length: usize,
    out: *mut FFI_ArrowDeviceArray,
    out_schema: *mut FFI_ArrowSchema,
) -> *mut c_char {
    message_of(|| {
        // SAFETY: the caller upholds the contract.
        let array = unsafe { sample_slice(name, offset, length)? };
        // SAFETY: the caller upholds the contract.
        unsafe { write_outputs(cpu::export_array(&array)?, &cpu::field_of(&array), out, out_schema) }
    })
}

/// Compares a foreign array with a slice of a sample.
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
    message_of(|| {
        // SAFETY: the caller upholds the contract.
        let given = cpu::import_array(unsafe { import(array, schema)? })?;
        // SAFETY: the caller upholds the contract.
        let expected = unsafe { sample_slice(name, offset, length)? };
        match given.data_type() == expected.data_type() && *given == *expected {
            true => Ok(()),
            false => {
                let shown = |array: &ArrayRef| format!("{}: {array:?}", array.data_type());
                Err(Error::Other(format!("expected {}\ngot {}", shown(&expected), shown(&given))))
            }
        }
    })
}

/// Imports a stream as a reader of record batches, and exports that.
///
/// # Safety
/// `stream` follows the interface, `out` is writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn peer_stream(
    stream: *mut FFI_ArrowDeviceArrayStream,
    out: *mut FFI_ArrowDeviceArrayStream,
) -> *mut c_char {
    message_of(|| {
        // SAFETY: the caller upholds the contract.
        let reader = cpu::import_reader(unsafe { ArrowDeviceArrayStreamReader::from_raw(stream)? })?;
        let stream = cpu::export_reader(reader)?;
        // SAFETY: the caller upholds the contract.
        unsafe { out.write(stream) };
        Ok(())
    })
}

/// Reads a foreign stream to its end on a thread of this library, and writes the numbers of its
/// arrays and rows.
///
/// # Safety
/// `stream` follows the interface, the outputs are writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn peer_drain(stream: *mut FFI_ArrowDeviceArrayStream, arrays: *mut i64, rows: *mut i64) -> *mut c_char {
    message_of(|| {
        // SAFETY: the caller upholds the contract.
        let reader = unsafe { ArrowDeviceArrayStreamReader::from_raw(stream)? };
        let read = move || reader.map(|array| Ok(array?.len() as i64)).collect::<Result<Vec<_>>>();
        let lengths = std::thread::spawn(read).join().unwrap()?;
        // SAFETY: the caller upholds the contract.
        unsafe {
            arrays.write(lengths.len() as i64);
            rows.write(lengths.iter().sum());
        }
        Ok(())
    })
}

/// Exports a stream of `batches` batches of the samples, whose columns begin at row `index % 3`.
///
/// If `fails` is not 0, it ends with an error.
///
/// # Safety
/// `out` is writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn peer_sample_stream(batches: usize, fails: i32, out: *mut FFI_ArrowDeviceArrayStream) -> *mut c_char {
    message_of(|| {
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
        // SAFETY: the caller upholds the contract.
        unsafe { out.write(stream) };
        Ok(())
    })
}
