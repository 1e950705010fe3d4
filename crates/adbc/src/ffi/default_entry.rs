// SPDX-License-Identifier: Apache-2.0
//! The entry point under ADBC's own name. ADBC's header declares it. The installed static library
//! hides it, since a program may link several drivers.

use std::ffi::{c_int, c_void};

use adbc_core::error::AdbcStatusCode;
use adbc_ffi::FFI_AdbcError;

use super::devicefusion_adbc_init;

/// The entry point that driver managers look for by default.
///
/// # Safety
/// As [`devicefusion_adbc_init`].
#[allow(non_snake_case, reason = "ADBC's name")]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn AdbcDriverInit(version: c_int, driver: *mut c_void, failure: *mut FFI_AdbcError) -> AdbcStatusCode {
    // SAFETY: this function's own condition.
    unsafe { devicefusion_adbc_init(version, driver, failure) }
}
