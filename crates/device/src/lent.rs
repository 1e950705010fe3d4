// SPDX-License-Identifier: Apache-2.0
//! Native queues that libraries in the same process take over.

use std::fmt;
use std::sync::Arc;

use crate::driver::{Driver, RawQueue};
use crate::{Context, Result};

/// A queue of a device's context for somebody else to own: a `cl_command_queue`, and a reference to its context.
///
/// Both are released when this is dropped, unless [`hand_over`](Self::hand_over) has said that somebody else will.
pub struct LentQueue {
    driver: Arc<dyn Driver>,
    raw: RawQueue,
    handed_over: bool,
}

impl Drop for LentQueue {
    fn drop(&mut self) {
        if !self.handed_over {
            // SAFETY: the driver lent it to this object, which nobody has taken it from.
            unsafe { self.driver.take_back_queue(self.raw) };
        }
    }
}

impl LentQueue {
    /// The driver's handle.
    pub fn raw(&self) -> RawQueue {
        self.raw
    }

    /// Somebody else releases the queue and its context from now on, once each.
    pub fn hand_over(mut self) {
        self.handed_over = true;
    }
}

impl fmt::Debug for LentQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LentQueue").field("raw", &self.raw).finish_non_exhaustive()
    }
}

impl Context {
    /// A queue for a library that wants one of its own in this context, where its work and that of [`Queue`](crate::Queue)s
    /// can share buffers. Nothing orders the two but those who wait. It times commands with `profiling`.
    ///
    /// # Errors
    /// `Unusable` where the device is none of OpenCL's; the driver's refusal.
    ///
    /// # Examples
    /// ```
    /// # use device::{Context, DeviceConfig, DriverKind};
    /// # let Ok(context) = Context::new(DeviceConfig::default()) else { return Ok(()) };
    /// # if context.info().driver != DriverKind::OpenCl { return Ok(()) }
    /// let queue = context.lend_queue(false)?;
    /// assert_ne!(queue.raw().0, 0);
    /// // It was not handed over: dropped, it goes back.
    /// # Ok::<(), device::Error>(())
    /// ```
    pub fn lend_queue(&self, profiling: bool) -> Result<LentQueue> {
        let driver = Arc::clone(self.driver());
        let raw = driver.lend_queue(profiling)?;
        Ok(LentQueue { driver, raw, handed_over: false })
    }
}
