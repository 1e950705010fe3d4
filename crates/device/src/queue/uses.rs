// SPDX-License-Identifier: Apache-2.0
//! The last uses of a resource, by queue.

use std::sync::Arc;

use parking_lot::Mutex;

use super::worker::QueueWorker;

/// Queues with the sequence number of their last use, as far as it may still be running.
pub(crate) type PendingUses = Vec<(Arc<QueueWorker>, u64)>;

/// The last use of a resource in each queue that may still use it.
#[derive(Debug, Default)]
pub(crate) struct LastUses(Mutex<PendingUses>);

impl LastUses {
    pub(crate) fn new(uses: PendingUses) -> Self {
        Self(Mutex::new(uses))
    }

    /// Adds a use, and forgets completed ones of other queues.
    pub(crate) fn add(&self, worker: &Arc<QueueWorker>, sequence: u64) {
        let mut uses = self.0.lock();
        uses.retain(|(other, last)| Arc::ptr_eq(other, worker) || !other.is_complete(*last));
        match uses.iter_mut().find(|(other, _)| Arc::ptr_eq(other, worker)) {
            Some((_, last)) => *last = sequence.max(*last),
            None => uses.push((Arc::clone(worker), sequence)),
        }
    }

    /// The last use in one queue, if it may still be running.
    pub(crate) fn pending_in(&self, worker: &Arc<QueueWorker>) -> Option<u64> {
        let uses = self.0.lock();
        let (_, last) = uses.iter().find(|(other, _)| Arc::ptr_eq(other, worker))?;
        (!worker.is_complete(*last)).then_some(*last)
    }

    /// Whether all uses are known to have completed.
    pub(crate) fn is_idle(&self) -> bool {
        self.0.lock().iter().all(|(worker, last)| worker.is_complete(*last))
    }

    /// Takes out the uses that may still be running.
    pub(crate) fn take_pending(&self) -> PendingUses {
        let mut uses = std::mem::take(&mut *self.0.lock());
        uses.retain(|(worker, last)| !worker.is_complete(*last));
        uses
    }
}

/// Drops `resource` once all `uses` have completed, without waiting.
pub(crate) fn drop_after(resource: impl Send + Sync + 'static, uses: &[(Arc<QueueWorker>, u64)]) {
    let resource = Arc::new(resource);
    for (worker, sequence) in uses {
        worker.keep_alive(*sequence, Box::new(Arc::clone(&resource)));
    }
}
