// SPDX-License-Identifier: Apache-2.0
//! OpenCL's functions, as opencl3 re-exports them from its lower layer cl3: plain functions that
//! return a status.
//!
//! opencl3's own types (`Context`, `CommandQueue`, `Buffer`, `Event`, ...) are not used: their
//! `Drop` panics if the driver refuses the release. So this driver owns raw handles.

pub(super) use opencl3::context::context;
pub(super) use opencl3::error_codes::{self, error_text};
pub(super) use opencl3::platform::platform;
pub(super) use opencl3::types;
pub(super) use opencl3::{command_queue, device, event, kernel, memory, program};

use crate::info::DeviceInfo;
use crate::{Error, Result};

/// Whether the device's driver is PoCL.
pub(super) fn is_pocl(info: &DeviceInfo) -> bool {
    info.platform.contains("Portable Computing Language")
}

/// Turns a status into an error that names call and device.
pub(super) fn check<T>(device: &str, call: &'static str, result: std::result::Result<T, i32>) -> Result<T> {
    result.map_err(|code| driver_error(device, call, code))
}

/// The error of a refused call.
pub(in crate::drivers) fn driver_error(device: &str, call: &'static str, code: i32) -> Error {
    Error::driver(device, call, code, error_text(code))
}
