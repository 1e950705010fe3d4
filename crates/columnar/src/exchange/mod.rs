// SPDX-License-Identifier: Apache-2.0
//! Batches in and out as arrays of the Arrow C Device data interface: the same memory, no copy.
//!
//! [`export`] takes columns that lie as Arrow lays them out, [`lies_as_arrow`] says which do; kernels bring the others into
//! that form first. [`import`] takes any array of this device's driver, and of the host.
//!
//! | driver | device type | device id | `buffers[i]` | event |
//! |---|---|---|---|---|
//! | CUDA | `CUDA` | the driver's ordinal | a device pointer | `CUevent` |
//! | OpenCL | `OPENCL` | position among the devices of all platforms, in the loader's order | a `cl_mem`, from its start | `cl_event` |

mod export;
mod import;

use arrow_device::ffi::ArrowDeviceType;
use device::{DeviceInfo, DriverKind};

pub use export::{export, lies_as_arrow};
pub use import::import;

/// The device type and id of the arrays that a device exports.
pub fn home(info: &DeviceInfo) -> (ArrowDeviceType, i64) {
    let device_type = match info.driver {
        DriverKind::OpenCl => ArrowDeviceType::OPENCL,
        DriverKind::Cuda => ArrowDeviceType::CUDA,
    };
    (device_type, info.ordinal as i64)
}
