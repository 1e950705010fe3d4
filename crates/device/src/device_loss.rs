// SPDX-License-Identifier: Apache-2.0
//! Whether a context has lost its device.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::Error;

/// A context's flag that a fault has cost it its device. Clones share the flag.
///
/// Any call of the driver may be the first to report the fault, so each caller has a clone.
#[derive(Debug, Clone, Default)]
pub(crate) struct DeviceLoss(Arc<AtomicBool>);

impl DeviceLoss {
    /// Sets the flag if `error` means the loss of the device.
    pub(crate) fn check(&self, error: &Error) {
        if error.is_device_lost() {
            self.0.store(true, Ordering::Release);
        }
    }

    /// Whether an error has reported the loss.
    pub(crate) fn has_occurred(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}
