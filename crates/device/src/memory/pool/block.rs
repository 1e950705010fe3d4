// SPDX-License-Identifier: Apache-2.0
//! Memory that no buffer owns: blocks of free lists, and what returns to the driver.

use std::sync::Arc;
use std::time::Instant;

use crate::driver::{Driver, Memory};
use crate::queue::{PendingUses, QueueWorker};

/// A block of a free list.
#[derive(Debug)]
pub(super) struct Block {
    pub memory: Memory,
    pub uses: PendingUses,
    pub free_since: Instant,
}

impl Block {
    /// Whether `worker`'s queue may use it without waiting.
    pub fn is_ready_for(&self, worker: Option<&Arc<QueueWorker>>) -> bool {
        let same = |other: &Arc<QueueWorker>| worker.is_some_and(|worker| Arc::ptr_eq(worker, other));
        self.uses.iter().all(|(other, last)| same(other) || other.is_complete(*last))
    }
}

/// Memory that its drop returns to the driver.
pub(super) struct Freed {
    pub driver: Arc<dyn Driver>,
    pub memory: Memory,
}

impl Drop for Freed {
    fn drop(&mut self) {
        // SAFETY: the memory is the driver's, and this is dropped after its last use.
        unsafe { self.driver.free(self.memory) };
    }
}
