// SPDX-License-Identifier: Apache-2.0
//! NVIDIA GPUs through CUDA's driver API, opened at run time, with NVRTC as the compiler.
//!
//! Nothing of CUDA is linked: a machine without `libcuda.so.1` gets an entry that says so. Types
//! and signatures are cudarc's (`driver::sys`, `nvrtc::sys`). Its wrappers are not used: they panic
//! if a library or function is missing.

mod api;
mod clock;
mod discovery;
mod driver;
mod image;
mod library;
mod module;
pub mod nvrtc;

use std::path::Path;
use std::sync::Arc;

#[cfg(test)]
pub(super) use api::driver_error;
pub use discovery::devices_for;

use crate::driver::{AdoptedQueue, Driver, DriverFactory, DriverOptions, RawQueue};
use crate::info::{DeviceEntry, DeviceInfo};
use crate::{Error, Result};

/// Every CUDA device; a single entry with the reason where there is none. Never fails.
pub fn devices() -> Vec<DeviceEntry> {
    devices_for(None)
}

/// Opens the device that `info`, from [`devices`], names.
///
/// # Errors
/// `Config` without a compiler, `Unusable` for too old a device, `Driver` if CUDA refuses.
pub fn open(info: &DeviceInfo, options: &DriverOptions) -> Result<Arc<dyn Driver>> {
    let unusable = |reason: String| Error::Unusable { device: info.name.clone(), reason };
    let api = api::api().map_err(|problem| unusable(problem.to_owned()))?;
    let devices = discovery::found(api).map_err(unusable)?;
    let found = devices.into_iter().find(|device| device.info.ordinal == info.ordinal);
    let mut found = found.ok_or_else(|| unusable("it is gone".to_owned()))?;
    found.info.index = info.index;
    Ok(Arc::new(driver::CudaDriver::open(api, found, options)?))
}

/// The factory of CUDA devices.
pub(super) struct Cuda;

impl DriverFactory for Cuda {
    fn devices(&self, nvrtc_path: Option<&Path>) -> Vec<DeviceEntry> {
        devices_for(nvrtc_path)
    }

    fn open(&self, info: &DeviceInfo, options: &DriverOptions) -> Result<Arc<dyn Driver>> {
        open(info, options)
    }

    fn null_queue(&self) -> &'static str {
        "the CUstream is NULL; CUDA's default stream is CU_STREAM_LEGACY, which is 1"
    }

    unsafe fn adopt_queue(&self, queue: RawQueue) -> Result<Option<AdoptedQueue>> {
        let stream = "the program's stream".to_owned();
        let api = api::api().map_err(|problem| Error::Unusable { device: stream.clone(), reason: problem.to_owned() })?;
        // SAFETY: the caller's promise.
        let device = unsafe { driver::device_of(api, queue) }
            .map_err(|(call, code)| api::driver_error(&stream, call, code, api.status_name(code)))?;
        let devices = discovery::found(api).map_err(|reason| Error::Unusable { device: stream, reason })?;
        let ordinal = devices.iter().position(|found| found.device == device);
        // CUDA does not count references to streams.
        Ok(ordinal.map(|ordinal| AdoptedQueue { ordinal, keep_alive: None }))
    }
}
