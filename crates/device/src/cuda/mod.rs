// SPDX-License-Identifier: Apache-2.0
//! NVIDIA GPUs through CUDA's driver API, opened at run time, with NVRTC as the compiler.
//!
//! Nothing of CUDA is linked: a machine without `libcuda.so.1` gets an entry that says so. Types and
//! signatures are cudarc's (`driver::sys`, `nvrtc::sys`); its wrappers are not used, since they panic where
//! a library or function is missing.

mod api;
mod discovery;
mod driver;
mod image;
mod library;
pub mod nvrtc;

use std::sync::Arc;

pub use api::is_sticky;
pub use discovery::entries_for;

use crate::driver::{Driver, RawQueue};
use crate::{DeviceConfig, DeviceEntry, DeviceInfo, Error, Result};

/// Every CUDA device; a single entry with the reason where there is none. Never fails.
pub fn entries() -> Vec<DeviceEntry> {
    entries_for(None)
}

/// Opens the device that `info`, from [`entries`], names.
///
/// # Errors
/// `Config` without a compiler, `Unusable` for a device that is too old, `Driver` if CUDA refuses.
pub fn open(info: &DeviceInfo, config: &DeviceConfig) -> Result<Arc<dyn Driver>> {
    let unusable = |reason: String| Error::Unusable { device: info.name.clone(), reason };
    let api = api::api().map_err(|problem| unusable(problem.to_owned()))?;
    let devices = discovery::found(api).map_err(unusable)?;
    let found = devices.into_iter().find(|device| device.info.ordinal == info.ordinal);
    let mut found = found.ok_or_else(|| unusable("it is gone".to_owned()))?;
    found.info.index = info.index;
    Ok(Arc::new(driver::CudaDriver::open(api, found, config)?))
}

/// The place of a stream's device in the driver's order.
///
/// # Safety
/// The stream is live.
pub(crate) unsafe fn ordinal_of(stream: RawQueue) -> Result<usize> {
    let whose = "the program's stream".to_owned();
    let api = api::api().map_err(|problem| Error::Unusable { device: whose.clone(), reason: problem.to_owned() })?;
    // SAFETY: the caller's promise.
    let device = unsafe { driver::device_of(api, stream) }
        .map_err(|(call, code)| Error::driver(&whose, call, code, api.status_name(code)))?;
    let devices = discovery::found(api).map_err(|reason| Error::Unusable { device: whose.clone(), reason })?;
    let ordinal = devices.iter().position(|found| found.device == device);
    ordinal.ok_or_else(|| Error::NoDriver { selector: crate::Selector::Cuda, reason: "its device is not listed".to_owned() })
}
