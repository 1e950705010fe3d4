// SPDX-License-Identifier: Apache-2.0
//! The ADBC entry point that the C library exports. `devicefusion.h` has its documentation.

mod default_entry;
mod stream;

use std::ffi::{c_int, c_void};

use adbc_core::constants::{ADBC_STATUS_NOT_IMPLEMENTED, ADBC_STATUS_OK, ADBC_VERSION_1_1_0};
use adbc_core::error::{AdbcStatusCode, Error, Result, Status};
use adbc_ffi::{FFI_AdbcDriver, FFI_AdbcError, FFI_AdbcStatement, FFIDriver, export_error};
use arrow::ffi::{FFI_ArrowArray, FFI_ArrowSchema};
use arrow::ffi_stream::FFI_ArrowArrayStream;
use arrow_device::{ImportedArray, cpu, schema};

use crate::DeviceFusionDriver;
use crate::bind::{validated_batch, validated_stream};
use crate::error::error;
use crate::statement::ROWS_AFFECTED;

pub use default_entry::AdbcDriverInit;
pub(crate) use stream::note_failure;

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
            // SAFETY: the caller vouches for it.
            unsafe { refuse(refusal, failure) }
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
    table.StatementBind = Some(bind);
    table.StatementBindStream = Some(bind_stream);
    table.ErrorFromArrayStream = Some(stream::error_from_array_stream);
    Ok(table)
}

/// `AdbcStatementExecuteQuery` of `adbc_ffi`, with two additions: the number of rows written beside
/// a result stream, from the statement's option, and the errors of the stream.
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
    if status == ADBC_STATUS_OK && !out.is_null() {
        // SAFETY: the call has written a stream, which moves into another one.
        unsafe { out.write_unaligned(stream::with_failures(out.read_unaligned())) };
    }
    if status == ADBC_STATUS_OK && !out.is_null() && !rows_affected.is_null() {
        // SAFETY: the statement was good for the call above, and the number is writable. If the
        // call fails, the number stays -1.
        _ = unsafe { get_option(statement, ROWS_AFFECTED.as_ptr(), rows_affected, std::ptr::null_mut()) };
    }
    status
}

/// `AdbcStatementBind` of `adbc_ffi`, which takes arrays as they are. This function validates them.
///
/// # Safety
/// That of `AdbcStatementBind`.
unsafe extern "C" fn bind(
    statement: *mut FFI_AdbcStatement,
    values: *mut FFI_ArrowArray,
    schema: *mut FFI_ArrowSchema,
    failure: *mut FFI_AdbcError,
) -> AdbcStatusCode {
    let Some(bind) = DeviceFusionDriver::ffi_driver().StatementBind else { return ADBC_STATUS_NOT_IMPLEMENTED };
    if values.is_null() || schema.is_null() {
        // SAFETY: this function's own condition. The function of `adbc_ffi` refuses NULL.
        return unsafe { bind(statement, values, schema, failure) };
    }
    // SAFETY: neither is NULL, and the rest is this function's own condition.
    let bound = unsafe {
        let values = cpu::as_cpu_array(FFI_ArrowArray::from_raw(values));
        schema::field(&*schema).and_then(|field| ImportedArray::import(values, &field))
    };
    match validated_batch(bound) {
        // SAFETY: the locals live during the call, which moves out of the first.
        Ok((mut values, mut schema)) => unsafe { bind(statement, &raw mut values, &raw mut schema, failure) },
        // SAFETY: this function's own condition.
        Err(refusal) => unsafe { refuse(refusal, failure) },
    }
}

/// `AdbcStatementBindStream` of `adbc_ffi`, as [`bind`].
///
/// # Safety
/// That of `AdbcStatementBindStream`.
unsafe extern "C" fn bind_stream(
    statement: *mut FFI_AdbcStatement,
    stream: *mut FFI_ArrowArrayStream,
    failure: *mut FFI_AdbcError,
) -> AdbcStatusCode {
    let Some(bind_stream) = DeviceFusionDriver::ffi_driver().StatementBindStream else { return ADBC_STATUS_NOT_IMPLEMENTED };
    if stream.is_null() {
        // SAFETY: this function's own condition. The function of `adbc_ffi` refuses NULL.
        return unsafe { bind_stream(statement, stream, failure) };
    }
    // SAFETY: it is not NULL, and the rest is this function's own condition.
    let bound = unsafe { cpu::reader_of_host_stream(FFI_ArrowArrayStream::from_raw(stream)) };
    match validated_stream(bound) {
        // SAFETY: the local lives during the call, which moves out of it.
        Ok(mut stream) => unsafe { bind_stream(statement, &raw mut stream, failure) },
        // SAFETY: this function's own condition.
        Err(refusal) => unsafe { refuse(refusal, failure) },
    }
}

/// Writes an error for C.
///
/// # Safety
/// `failure` is NULL, or can be written.
unsafe fn refuse(refusal: Error, failure: *mut FFI_AdbcError) -> AdbcStatusCode {
    let status = refusal.status;
    // SAFETY: this function's own condition.
    unsafe { export_error(failure, refusal) };
    status.into()
}

#[cfg(test)]
mod tests {
    use std::ptr::null_mut;

    use super::*;
    use crate::doubling::{doubling, doubling_stream};

    #[test]
    fn schemas_with_too_many_fields_are_refused_before_the_statement_sees_them() {
        let refused = |bind: &dyn Fn(*mut FFI_AdbcError) -> AdbcStatusCode| {
            let mut failure = FFI_AdbcError::default();
            assert_eq!(bind(&raw mut failure), AdbcStatusCode::from(Status::InvalidArguments));
            let error = Error::try_from(failure).unwrap();
            assert!(error.message.contains("more than 100000 fields"), "{}", error.message);
        };
        let mut values = FFI_ArrowArray::empty();
        let values = &raw mut values;
        // SAFETY: live structs; the statement is not read.
        refused(&|failure| unsafe { bind(null_mut(), values, &mut doubling(), failure) });
        // SAFETY: as above.
        refused(&|failure| unsafe { bind_stream(null_mut(), &mut doubling_stream(), failure) });
    }
}
