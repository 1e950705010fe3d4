// SPDX-License-Identifier: Apache-2.0
//! The OpenCL driver.

use std::sync::Arc;

use crate::driver::Driver;
use crate::{DeviceConfig, DeviceEntry, DeviceInfo, DriverKind, Error, Result};

/// The devices of every OpenCL platform, or why there are none.
pub(crate) fn entries() -> Vec<DeviceEntry> {
    vec![DeviceEntry::absent(DriverKind::OpenCl, "not written yet")]
}

/// Opens one of the devices that [`entries`] listed.
pub(crate) fn open(info: &DeviceInfo, _config: &DeviceConfig) -> Result<Arc<dyn Driver>> {
    Err(Error::driver(info.label(), "open", 0, "not written yet"))
}
