// SPDX-License-Identifier: Apache-2.0
//! The entry point that the C library has. Its documentation stands in `devicefusion.h`.

use std::ffi::{c_int, c_void};

use adbc_core::constants::{ADBC_STATUS_OK, ADBC_VERSION_1_1_0};
use adbc_core::error::{AdbcStatusCode, Error, Result, Status};
use adbc_ffi::{FFI_AdbcDriver, FFI_AdbcError, FFIDriver, export_error};

use crate::DeviceFusionDriver;
use crate::error::error;

/// The ADBC driver: fills in the struct AdbcDriver at `driver`, of version 1.1.0, which is 1001000. A driver manager that loads this
/// library finds the function by the option `entrypoint`; a program that is linked with both hands it to
/// AdbcDriverManagerDatabaseSetInitFunc. Returns ADBC's codes: 0, or 2 (not implemented) for another version, or 5 (invalid
/// argument) where `driver` is NULL; `failure`, unless NULL, then has the text.
#[allow(
    clippy::missing_safety_doc,
    reason = "it is told for readers of C, who have the rules for pointers in the header and in ADBC's own"
)]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn devicefusion_adbc_init(
    version: c_int,
    driver: *mut c_void,
    failure: *mut FFI_AdbcError,
) -> AdbcStatusCode {
    match table(version, driver) {
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

fn table(version: c_int, driver: *mut c_void) -> Result<FFI_AdbcDriver> {
    if version != ADBC_VERSION_1_1_0 {
        return Err::<_, Error>(error(Status::NotImplemented, "this driver speaks ADBC 1.1.0 alone"));
    }
    if driver.is_null() {
        return Err(error(Status::InvalidArguments, "there is no driver to fill in"));
    }
    Ok(DeviceFusionDriver::ffi_driver())
}
