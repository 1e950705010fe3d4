// SPDX-License-Identifier: Apache-2.0
//! A library for Python: the last rows of a record batch, without a copy. `04_python.py` calls it.
//!
//! `cargo build -p arrow-device --example 04_python`, then
//! `python 04_python.py target/debug/examples/lib04_python.so`

use arrow::ffi::FFI_ArrowSchema;
use arrow_device::ffi::FFI_ArrowDeviceArray;
use arrow_device::{ImportedArray, Result, cpu, schema};

/// Replaces the batch in both structs by its last `rows` rows; returns an errno on failure.
///
/// # Safety
/// Both point to the structs of a record batch, as the C Device data interface specifies.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn last_rows(rows: usize, array: *mut FFI_ArrowDeviceArray, schema: *mut FFI_ArrowSchema) -> i32 {
    // SAFETY: the caller upholds the contract.
    match unsafe { try_last_rows(rows, array, schema) } {
        Ok(()) => 0,
        Err(error) => error.errno(),
    }
}

unsafe fn try_last_rows(rows: usize, array: *mut FFI_ArrowDeviceArray, schema: *mut FFI_ArrowSchema) -> Result<()> {
    // SAFETY: both are moved out of the caller's memory, which is left flagged as released.
    let (array_in, columns) = unsafe { (FFI_ArrowDeviceArray::from_raw(array), FFI_ArrowSchema::from_raw(schema)) };
    // SAFETY: the schema follows the interface.
    let columns = unsafe { schema::import_schema(columns)? };
    // SAFETY: the array follows the interface.
    let batch = cpu::import_batch(unsafe { ImportedArray::import(array_in, &schema::batch_field(&columns))? })?;

    let rows = rows.min(batch.num_rows());
    let last = batch.slice(batch.num_rows() - rows, rows);

    let (given, columns) = (cpu::export_batch(&last)?, schema::export_schema(&last.schema())?);
    // SAFETY: the old content was moved out above.
    unsafe {
        array.write(given);
        schema.write(columns);
    }
    Ok(())
}
