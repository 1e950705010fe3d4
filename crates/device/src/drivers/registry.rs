// SPDX-License-Identifier: Apache-2.0
//! The registry of drivers: lists and opens the devices of all of them.

use std::path::Path;
use std::sync::Arc;

use super::kind::DriverKind;
use super::{cuda, opencl};
use crate::driver::{AdoptedQueue, Driver, DriverFactory, DriverOptions, RawQueue};
use crate::info::{DeviceEntry, DeviceInfo};
use crate::{Error, Result};

/// The factory of each driver.
fn factory(driver: DriverKind) -> &'static dyn DriverFactory {
    match driver {
        DriverKind::OpenCl => &opencl::OpenCl,
        DriverKind::Cuda => &cuda::Cuda,
    }
}

/// Lists the devices of every driver, CUDA's first, and each driver without devices with the
/// reason.
///
/// Never fails: a missing or broken driver is an entry with a problem.
///
/// # Examples
/// ```
/// for entry in device::devices() {
///     match (&entry.info, &entry.problem) {
///         (Some(info), None) => println!("#{} {}", info.index, info.name),
///         (_, problem) => println!("{}: {}", entry.driver, problem.as_deref().unwrap_or_default()),
///     }
/// }
/// ```
pub fn devices() -> Vec<DeviceEntry> {
    devices_for(None)
}

/// Like [`devices`], with the setting `device.nvrtc_path`: a CUDA device is usable only with a
/// compiler.
pub fn devices_for(nvrtc_path: Option<&Path>) -> Vec<DeviceEntry> {
    let mut entries: Vec<DeviceEntry> =
        DriverKind::ALL.into_iter().flat_map(|driver| factory(driver).devices(nvrtc_path)).collect();
    for (index, info) in entries.iter_mut().filter_map(|entry| entry.info.as_mut()).enumerate() {
        info.index = index;
    }
    entries
}

/// Opens a device out of [`devices_for`].
pub(crate) fn open(info: &DeviceInfo, options: &DriverOptions) -> Result<Arc<dyn Driver>> {
    factory(info.driver).open(info, options)
}

/// Finds the device of an application's queue, and keeps the queue alive where the driver can.
///
/// # Safety
/// The queue is 0 or live.
pub(crate) unsafe fn adopt_queue(driver: DriverKind, queue: RawQueue) -> Result<AdoptedQueue> {
    if queue.0 == 0 {
        return Err(invalid_queue(factory(driver).null_queue()));
    }
    // SAFETY: the caller's promise.
    unsafe { factory(driver).adopt_queue(queue) }?
        .ok_or_else(|| invalid_queue("its device is none that the driver lists; a part of one is none"))
}

fn invalid_queue(reason: &str) -> Error {
    Error::Config { setting: "the program's queue", value: "what was given".to_owned(), reason: reason.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_faults_of_a_cuda_context_lose_the_device() {
        const ILLEGAL_ADDRESS: i32 = 700;
        assert!(cuda::driver_error("cuda:0", "cuStreamSynchronize", ILLEGAL_ADDRESS, "").is_device_lost());
        assert!(!cuda::driver_error("cuda:0", "cuStreamSynchronize", 1, "").is_device_lost());
        assert!(!opencl::driver_error("opencl:0", "clFlush", ILLEGAL_ADDRESS).is_device_lost());
    }
}
