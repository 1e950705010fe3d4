// SPDX-License-Identifier: Apache-2.0
//! Any OpenCL 1.2 driver, through `libOpenCL.so.1`, which is opened at run time.
//!
//! A machine without the library, or without a platform, gets an entry that says so.
//! Specification:
//! <https://registry.khronos.org/OpenCL/specs/3.0-unified/html/OpenCL_API.html>.

mod api;
mod application_queue;
mod discovery;
mod driver;
mod host_memory;
mod overlap;
mod pocl_cache;
mod pocl_prune;
mod program;

use std::path::Path;
use std::sync::Arc;

#[cfg(test)]
pub(super) use api::driver_error;
pub use pocl_cache::place_pocl_cache;
pub use program::DECLARES_BUILTINS;

use crate::Result;
use crate::driver::{AdoptedQueue, Driver, DriverFactory, DriverOptions, RawQueue};
use crate::info::{DeviceEntry, DeviceInfo};

/// The factory of OpenCL devices.
pub(super) struct OpenCl;

impl DriverFactory for OpenCl {
    fn devices(&self, _nvrtc_path: Option<&Path>) -> Vec<DeviceEntry> {
        discovery::entries()
    }

    fn open(&self, info: &DeviceInfo, options: &DriverOptions) -> Result<Arc<dyn Driver>> {
        pocl_cache::prepare(info, options.log.as_ref());
        let device = discovery::find(info)?;
        let context = options.application_queue.map(application_queue::context_of).transpose()?;
        Ok(Arc::new(driver::OpenClDriver::open(device, info.clone(), options.profiling, context)?))
    }

    fn null_queue(&self) -> &'static str {
        "the cl_command_queue is NULL"
    }

    unsafe fn adopt_queue(&self, queue: RawQueue) -> Result<Option<AdoptedQueue>> {
        // SAFETY: the caller's promise.
        let retained = unsafe { application_queue::RetainedQueue::new(queue) }?;
        let ordinal = retained.ordinal()?;
        Ok(ordinal.map(|ordinal| AdoptedQueue { ordinal, keep_alive: Some(Arc::new(retained)) }))
    }
}
