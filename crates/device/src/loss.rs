// SPDX-License-Identifier: Apache-2.0
//! Whether a context has lost its device.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::Error;

/// A context's mark that a fault has cost it its device. A handle: any call of the driver may be the first to
/// tell, so whoever calls it has one.
#[derive(Debug, Clone, Default)]
pub(crate) struct Loss(Arc<AtomicBool>);

impl Loss {
    /// Sees whether a failure means that the device is lost.
    pub(crate) fn heed(&self, error: &Error) {
        if error.is_device_lost() {
            self.0.store(true, Ordering::Release);
        }
    }

    /// Whether some failure meant so.
    pub(crate) fn is_met(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}
