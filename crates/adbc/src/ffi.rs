// SPDX-License-Identifier: Apache-2.0
//! The entry point of the shared object.

use std::ffi::{c_int, c_void};

use adbc_core::constants::ADBC_STATUS_OK;
use adbc_core::error::{AdbcStatusCode, Error, Result, Status};
use adbc_core::options::AdbcVersion;
use adbc_ffi::{FFI_AdbcDriver, FFI_AdbcError, FFIDriver, export_error};

use crate::DeviceFusionDriver;
use crate::error::error;

/// Fills in ADBC's table of functions, version 1.1.0: what a driver manager calls, under the name that its option
/// `entrypoint` gives. Returns `ADBC_STATUS_OK`.
///
/// # Errors
/// `ADBC_STATUS_NOT_IMPLEMENTED` for another version, `ADBC_STATUS_INVALID_ARGUMENT` without a driver to fill in; `failure` then
/// has the words.
///
/// # Safety
/// `driver` is NULL or points to an `AdbcDriver` of version 1.1.0; `failure` is NULL or points to an `AdbcError` that
/// holds nothing.
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
    if AdbcVersion::try_from(version)? != AdbcVersion::V110 {
        return Err::<_, Error>(error(Status::NotImplemented, "this driver speaks ADBC 1.1.0 alone"));
    }
    if driver.is_null() {
        return Err(error(Status::InvalidArguments, "there is no driver to fill in"));
    }
    Ok(DeviceFusionDriver::ffi_driver())
}
