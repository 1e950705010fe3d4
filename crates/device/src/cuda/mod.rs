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

use crate::driver::Driver;
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
