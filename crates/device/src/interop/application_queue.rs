// SPDX-License-Identifier: Apache-2.0
//! A queue of the application, which chooses a context's device.

use std::fmt;

use crate::driver::{KeepAlive, RawQueue};
use crate::drivers::{DriverKind, adopt_queue};
use crate::info::{DeviceEntry, DeviceInfo};
use crate::selector::Selector;
use crate::{Error, Result};

/// A queue of the application, for [`DeviceConfig::application_queue`].
///
/// A context uses the queue's device, and with OpenCL its `cl_context`. Then memory and events need
/// no copy between the application and the context.
///
/// [`DeviceConfig::application_queue`]: crate::DeviceConfig::application_queue
#[derive(Clone)]
pub struct ApplicationQueue {
    raw: RawQueue,
    driver: DriverKind,
    /// The queue's device, as in [`DeviceInfo::ordinal`].
    ordinal: usize,
    _keep_alive: Option<KeepAlive>,
}

impl ApplicationQueue {
    /// Takes a queue of `driver`:
    /// - OpenCL: a `cl_command_queue`. It is retained as long as this, or a context made with it.
    /// - CUDA: a `CUstream` of a device's primary context, which CUDA's runtime uses too. A stream
    ///   of another context is refused when the device is opened.
    ///
    /// # Errors
    /// `Config` for 0, or a queue whose device the driver does not list; `Unusable` without a
    /// driver; the driver's refusal.
    ///
    /// # Safety
    /// The queue is 0 or live. A `CUstream` lives as long as every context made with this.
    pub unsafe fn new(driver: DriverKind, queue: u64) -> Result<Self> {
        let raw = RawQueue(queue);
        // SAFETY: the caller's promise.
        let adopted = unsafe { adopt_queue(driver, raw) }?;
        Ok(Self { raw, driver, ordinal: adopted.ordinal, _keep_alive: adopted.keep_alive })
    }

    pub(crate) fn raw(&self) -> RawQueue {
        self.raw
    }

    /// The queue's device, if selector and platform allow it.
    pub(crate) fn device(&self, entries: &[DeviceEntry], selector: &Selector, platform: Option<&str>) -> Result<DeviceInfo> {
        let matches = |info: &DeviceInfo| info.driver == self.driver && info.ordinal == self.ordinal;
        let own: Vec<DeviceEntry> = entries.iter().filter(|entry| entry.info.as_ref().is_some_and(matches)).cloned().collect();
        selector.choose(&own, platform).map_err(|error| match (error, own.first()) {
            (Error::NoDevice { .. }, Some(DeviceEntry { info: Some(info), .. })) => Error::Config {
                setting: "device.selector",
                value: selector.to_string(),
                reason: format!("the program's queue is one of #{} \"{}\" of \"{}\"", info.index, info.name, info.platform),
            },
            (error, _) => error,
        })
    }
}

impl fmt::Debug for ApplicationQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ApplicationQueue").field("raw", &self.raw).field("driver", &self.driver).finish_non_exhaustive()
    }
}
