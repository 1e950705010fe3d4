// SPDX-License-Identifier: Apache-2.0
//! The ADBC entry point that the C library exports. `devicefusion.h` has its documentation.

use std::ffi::{c_int, c_void};

use adbc_core::constants::{ADBC_STATUS_NOT_IMPLEMENTED, ADBC_STATUS_OK, ADBC_VERSION_1_1_0};
use adbc_core::error::{AdbcStatusCode, Error, Result, Status};
use adbc_ffi::{FFI_AdbcDriver, FFI_AdbcError, FFI_AdbcStatement, FFIDriver, export_error};
use arrow::ffi_stream::FFI_ArrowArrayStream;

use crate::DeviceFusionDriver;
use crate::error::error;
use crate::statement::ROWS_AFFECTED;

/// The ADBC driver: fills in the struct AdbcDriver at `driver`. `version` is 1001000, for 1.1.0.
///
/// A driver manager that loads this library finds the function by the option `entrypoint`. A
/// program that links both passes it to AdbcDriverManagerDatabaseSetInitFunc.
///
/// Returns an ADBC status: 0, 2 (not implemented) for another version, or 5 (invalid argument) for
/// a NULL `driver`. `failure`, unless NULL, then has the message.
#[allow(clippy::missing_safety_doc, reason = "the documentation is for C, where the header and ADBC have the rules for pointers")]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn devicefusion_adbc_init(
    version: c_int,
    driver: *mut c_void,
    failure: *mut FFI_AdbcError,
) -> AdbcStatusCode {
    match driver_table(version, driver) {
        Ok(table) => {
            // SAFETY: it is not NULL, and the caller vouches for the rest.
            unsafe { driver.cast::<FFI_AdbcDriver>().write_unaligned(table) };
            ADBC_STATUS_OK
        }
        Err(refusal) => {
            let status = refusal.status;
            // SAFETY: the caller vouches for it.
            unsafe { export_error(failure, refusal) };
            status.into()
        }
    }
}

fn driver_table(version: c_int, driver: *mut c_void) -> Result<FFI_AdbcDriver> {
    if version != ADBC_VERSION_1_1_0 {
        return Err::<_, Error>(error(Status::NotImplemented, "this driver supports ADBC 1.1.0 only"));
    }
    if driver.is_null() {
        return Err(error(Status::InvalidArguments, "the driver to fill in is NULL"));
    }
    let mut table = DeviceFusionDriver::ffi_driver();
    table.StatementExecuteQuery = Some(execute_query);
    Ok(table)
}

/// `AdbcStatementExecuteQuery` of `adbc_ffi`, which knows no number of rows beside a result stream.
/// This function adds it, from the statement's option.
///
/// # Safety
/// That of `AdbcStatementExecuteQuery`.
unsafe extern "C" fn execute_query(
    statement: *mut FFI_AdbcStatement,
    out: *mut FFI_ArrowArrayStream,
    rows_affected: *mut i64,
    failure: *mut FFI_AdbcError,
) -> AdbcStatusCode {
    let table = DeviceFusionDriver::ffi_driver();
    let (Some(execute), Some(get_option)) = (table.StatementExecuteQuery, table.StatementGetOptionInt) else {
        return ADBC_STATUS_NOT_IMPLEMENTED;
    };
    // SAFETY: this function's own condition.
    let status = unsafe { execute(statement, out, rows_affected, failure) };
    if status == ADBC_STATUS_OK && !out.is_null() && !rows_affected.is_null() {
        // SAFETY: the statement was good for the call above, and the number is writable. If the
        // call fails, the number stays -1.
        _ = unsafe { get_option(statement, ROWS_AFFECTED.as_ptr(), rows_affected, std::ptr::null_mut()) };
    }
    status
}
