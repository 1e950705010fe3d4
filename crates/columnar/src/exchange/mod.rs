// SPDX-License-Identifier: Apache-2.0
//! Batches in and out as arrays of the Arrow C Device data interface: the same memory, no copy, or host memory.
//!
//! [`export`] takes columns that lie as Arrow lays them out, [`lies_as_arrow`] says which do; kernels bring the others into
//! that form first. [`export_to_host`] gives the same columns in host memory. [`import`] takes any array of this device's
//! driver, and of the host.
//!
//! | driver | device type | device id | `buffers[i]` | event |
//! |---|---|---|---|---|
//! | CUDA | `CUDA` | the driver's ordinal | a device pointer | `CUevent` |
//! | OpenCL | `OPENCL` | position among the devices of all platforms, in the loader's order | a `cl_mem`, from its start | `cl_event` |
//! | CUDA, to the host | `CUDA_HOST` | the driver's ordinal | pinned memory | none |
//! | OpenCL, to the host | `CPU` | -1 | the driver's host memory | none |

mod export;
mod import;

use arrow_device::ffi::ArrowDeviceType;
use device::DeviceInfo;

pub use export::{export, export_to_host, lies_as_arrow};
pub use import::import;

/// The device type and id of the arrays that a device exports.
pub fn home(info: &DeviceInfo) -> (ArrowDeviceType, i64) {
    (ArrowDeviceType(info.driver.arrow_device_types().device), info.ordinal as i64)
}

/// The device type and id of the arrays in host memory that a device exports.
pub fn host_home(info: &DeviceInfo) -> (ArrowDeviceType, i64) {
    match info.driver.arrow_device_types().pinned {
        // Host memory has no ids to tell apart (R14).
        None => (ArrowDeviceType::CPU, -1),
        // Pinned for all devices, but Arrow C++ and nanoarrow look for a device of this ordinal.
        Some(pinned) => (ArrowDeviceType(pinned), info.ordinal as i64),
    }
}
