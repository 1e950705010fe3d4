// SPDX-License-Identifier: Apache-2.0
//! Any OpenCL 1.2 driver, through `libOpenCL.so.1`, which is opened at run time.
//!
//! The calls are cl3's, the lower layer of opencl3: plain functions that answer with a status. A machine
//! without the library, or with a library and no platform, gets an entry that says so.
//! Specification: <https://registry.khronos.org/OpenCL/specs/3.0-unified/html/OpenCL_API.html>.

mod discovery;
mod driver;
mod host;
mod launches;
mod program;
mod queue;

use std::sync::Arc;

pub(crate) use discovery::entries;
pub use program::DECLARES_BUILTINS;
pub(crate) use queue::RetainedQueue;

use crate::driver::Driver;
use crate::error::Error;
use crate::{DeviceConfig, DeviceInfo, Result};

/// Opens one of the devices that [`entries`] listed, in the context of the configuration's queue if there is one.
pub(crate) fn open(info: &DeviceInfo, config: &DeviceConfig) -> Result<Arc<dyn Driver>> {
    let device = discovery::find(info)?;
    let context = config.program_queue.as_ref().and_then(|queue| queue.retained()).map(RetainedQueue::context);
    Ok(Arc::new(driver::OpenClDriver::open(device, info.clone(), config.times_launches(), context)?))
}

/// Whether the device's driver is PoCL.
fn is_pocl(info: &DeviceInfo) -> bool {
    info.platform.contains("Portable Computing Language")
}

/// Turns a status into an error that names call and device.
fn check<T>(device: &str, call: &'static str, result: std::result::Result<T, i32>) -> Result<T> {
    result.map_err(|code| Error::driver(device, call, code, cl3::error_codes::error_text(code)))
}
