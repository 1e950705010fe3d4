// SPDX-License-Identifier: Apache-2.0
//! Events: points in queues.

use std::fmt;
use std::sync::Arc;

use futures::channel::oneshot;

use super::worker::{Fence, QUEUE_GONE, QueueWorker};
use crate::Result;
use crate::driver::RawEvent;

/// A point in a queue that other queues can wait for.
#[derive(Clone)]
pub struct Event {
    pub(super) worker: Arc<QueueWorker>,
    pub(super) fence: Arc<Fence>,
}

impl fmt::Debug for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Event").field("worker", &self.worker).field("sequence", &self.fence.sequence()).finish()
    }
}

impl Event {
    /// Whether all work before the event has completed.
    ///
    /// # Errors
    /// The failure of the work before it.
    pub fn is_done(&self) -> Result<bool> {
        if self.worker.is_complete(self.fence.sequence()) {
            return self.worker.outcome().map(|()| true);
        }
        self.fence.is_done().inspect_err(|error| self.worker.check_loss(error))
    }

    /// The driver's event, for other libraries; valid as long as `self`. `None` where the work
    /// before it is known to have completed.
    pub fn raw(&self) -> Option<RawEvent> {
        (!self.worker.is_complete(self.fence.sequence())).then(|| self.fence.raw())
    }

    /// Completes with all work before the event.
    ///
    /// # Errors
    /// The failure of the work before it.
    pub fn wait(&self) -> impl Future<Output = Result<()>> + Send + use<> {
        let (sender, receiver) = oneshot::channel();
        let worker = Arc::clone(&self.worker);
        self.worker.run_after(&self.fence, Box::new(move || _ = sender.send(worker.outcome())));
        async move { receiver.await.map_err(|_| QUEUE_GONE)? }
    }
}
