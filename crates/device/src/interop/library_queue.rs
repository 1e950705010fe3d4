// SPDX-License-Identifier: Apache-2.0
//! Native queues that other libraries of the process own.

use std::fmt;
use std::sync::Arc;

use crate::driver::{Driver, RawQueue};
use crate::{Context, Result};

/// A native queue of a context for another library: a `cl_command_queue`, with a reference to its
/// context.
///
/// The drop releases both, unless [`into_raw`](Self::into_raw) has made the library the owner.
pub struct LibraryQueue {
    driver: Arc<dyn Driver>,
    raw: RawQueue,
    released: bool,
}

impl Drop for LibraryQueue {
    fn drop(&mut self) {
        if !self.released {
            // SAFETY: created by the driver for this object, which is still the owner.
            unsafe { self.driver.release_library_queue(self.raw) };
        }
    }
}

impl LibraryQueue {
    /// The driver's handle, which this object still owns.
    pub fn raw(&self) -> RawQueue {
        self.raw
    }

    /// Makes the library the owner: it releases the queue and its context, once each.
    pub fn into_raw(mut self) -> RawQueue {
        self.released = true;
        self.raw
    }
}

impl fmt::Debug for LibraryQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LibraryQueue").field("raw", &self.raw).finish_non_exhaustive()
    }
}

impl Context {
    /// Creates a native queue for a library that wants one in this context. Its work and that of
    /// [`Queue`](crate::Queue)s can share buffers, but neither waits for the other by itself. It
    /// times commands with `profiling`.
    ///
    /// # Errors
    /// `Unusable` for a driver other than OpenCL; the driver's refusal.
    ///
    /// # Examples
    /// ```
    /// # use device::{Context, DeviceConfig, DriverKind};
    /// # let Ok(context) = Context::new(DeviceConfig::default()) else { return Ok(()) };
    /// # if context.info().driver != DriverKind::OpenCl { return Ok(()) }
    /// let queue = context.library_queue(false)?;
    /// assert_ne!(queue.raw().0, 0);
    /// // Still owned here, so the drop releases it.
    /// # Ok::<(), device::Error>(())
    /// ```
    pub fn library_queue(&self, profiling: bool) -> Result<LibraryQueue> {
        let driver = Arc::clone(self.driver());
        let raw = driver.create_library_queue(profiling)?;
        Ok(LibraryQueue { driver, raw, released: false })
    }
}
