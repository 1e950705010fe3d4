// SPDX-License-Identifier: Apache-2.0
//! The queues of a context: idle ones and leased ones, some leased several times.

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use super::worker::QueueWorker;
use crate::Result;

/// The most queues of a context, as NVIDIA's GPUs have in hardware. Each of them has a thread.
///
/// Further leases share queues. Work waits for work that was enqueued earlier, never for later
/// work, so that no two leases wait for each other. It also waits for events that an application
/// lends: these must not wait for rows of another lease.
const MAX_QUEUES: usize = 32;

/// The queues of a context.
#[derive(Default)]
pub(crate) struct Workers {
    /// The number of queues so far.
    created: u32,
    /// Queues without a lease.
    idle: Vec<Arc<QueueWorker>>,
    /// All queues that may still be alive.
    all: Vec<Weak<QueueWorker>>,
    /// The number of leases, by the number of the queue.
    leases: HashMap<u32, usize>,
}

impl Workers {
    /// Leases a queue: an idle one, else a new one. `new` gets its number.
    pub(crate) fn lease(&mut self, new: impl FnOnce(u32) -> Result<Arc<QueueWorker>>) -> Result<Arc<QueueWorker>> {
        let worker = match self.take() {
            Some(worker) => worker,
            None => {
                self.created += 1;
                let worker = new(self.created)?;
                self.all.push(Arc::downgrade(&worker));
                worker
            }
        };
        *self.leases.entry(worker.number()).or_default() += 1;
        Ok(worker)
    }

    /// A queue without a lease whose work has completed. If there are [`MAX_QUEUES`], else the one
    /// with the fewest leases.
    fn take(&mut self) -> Option<Arc<QueueWorker>> {
        // Work may have failed after the queue was returned.
        self.idle.retain(|worker| worker.outcome().is_ok());
        self.all.retain(|worker| worker.strong_count() > 0);
        if let Some(index) = self.idle.iter().rposition(|worker| worker.is_idle()) {
            return Some(self.idle.remove(index));
        }
        if self.all.len() < MAX_QUEUES {
            return None;
        }
        let healthy = self.all.iter().filter_map(Weak::upgrade).filter(|worker| worker.outcome().is_ok());
        let shared = healthy.min_by_key(|worker| self.leases.get(&worker.number()).copied())?;
        self.idle.retain(|worker| !Arc::ptr_eq(worker, &shared));
        Some(shared)
    }

    /// Ends a lease. A queue with a failure is not reused.
    pub(crate) fn give_back(&mut self, worker: &Arc<QueueWorker>) {
        if let Some(leases) = self.leases.get_mut(&worker.number()).filter(|leases| **leases > 1) {
            *leases -= 1;
            return;
        }
        self.leases.remove(&worker.number());
        if worker.outcome().is_ok() {
            self.idle.push(Arc::clone(worker));
        }
    }

    /// All live queues.
    pub(crate) fn alive(&self) -> Vec<Arc<QueueWorker>> {
        self.all.iter().filter_map(Weak::upgrade).collect()
    }

    /// Takes out the queues without a lease whose work has completed.
    pub(crate) fn take_idle(&mut self) -> Vec<Arc<QueueWorker>> {
        self.idle.extract_if(.., |worker| worker.is_idle()).collect()
    }
}
