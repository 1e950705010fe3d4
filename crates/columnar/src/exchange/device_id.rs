// SPDX-License-Identifier: Apache-2.0
//! Device types and ids of exported arrays.

use arrow_device::ffi::ArrowDeviceType;
use device::DeviceInfo;

/// Device type and id of arrays in the memory of a device.
pub fn exported_device(info: &DeviceInfo) -> (ArrowDeviceType, i64) {
    (ArrowDeviceType(info.driver.arrow_device_types().device), info.ordinal as i64)
}

/// Device type and id of arrays that a device exports to host memory.
pub fn exported_host_device(info: &DeviceInfo) -> (ArrowDeviceType, i64) {
    match info.driver.arrow_device_types().pinned {
        // `CPU` has no ids (R14).
        None => (ArrowDeviceType::CPU, -1),
        // Pinned for all devices, but Arrow C++ and nanoarrow look for a device of this ordinal.
        Some(pinned) => (ArrowDeviceType(pinned), info.ordinal as i64),
    }
}
