// SPDX-License-Identifier: Apache-2.0
//! Device types and ids of exported arrays.

use arrow_device::ffi::ArrowDeviceType;
use device::{DeviceInfo, DriverKind};

/// Device type and id of arrays in the memory of a device.
pub fn exported_device(info: &DeviceInfo) -> (ArrowDeviceType, i64) {
    let device_type = match info.driver {
        DriverKind::OpenCl => ArrowDeviceType::OPENCL,
        DriverKind::Cuda => ArrowDeviceType::CUDA,
    };
    (device_type, info.ordinal as i64)
}

/// Device type and id of arrays that a device exports to host memory.
pub fn exported_host_device(info: &DeviceInfo) -> (ArrowDeviceType, i64) {
    match info.driver {
        // `CPU` has no ids (R14).
        DriverKind::OpenCl => (ArrowDeviceType::CPU, -1),
        // Pinned for all devices, but Arrow C++ and nanoarrow look for a device of this ordinal.
        DriverKind::Cuda => (ArrowDeviceType::CUDA_HOST, info.ordinal as i64),
    }
}
