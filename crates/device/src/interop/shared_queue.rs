// SPDX-License-Identifier: Apache-2.0
//! The queue that a context shares with the application: its work comes before later work of the
//! context.
//!
//! The context's own work runs in queues of its own. A new [`Queue`](crate::Queue) first waits, on
//! the device, for the work that the application has enqueued so far. In the other direction the
//! application waits for events of the context.

use std::sync::Arc;

use super::application_queue::ApplicationQueue;
use crate::Result;
use crate::driver::{Driver, RawEvent, RawQueue};
use crate::queue::QueueWorker;

/// The shared queue of an open context.
pub(crate) struct SharedQueue {
    driver: Arc<dyn Driver>,
    raw: RawQueue,
    /// `None` for a queue that the context has created.
    application: Option<ApplicationQueue>,
}

impl Drop for SharedQueue {
    fn drop(&mut self) {
        if self.application.is_none() {
            // SAFETY: created by this driver, and this was the last owner. Drivers finish the work
            // of a destroyed queue.
            unsafe { self.driver.destroy_queue(self.raw) };
        }
    }
}

impl SharedQueue {
    /// Shares a queue of the application.
    pub(crate) fn adopt(application: ApplicationQueue, driver: &Arc<dyn Driver>) -> Self {
        Self { driver: Arc::clone(driver), raw: application.raw(), application: Some(application) }
    }

    /// Creates a queue for the application.
    pub(crate) fn create(driver: &Arc<dyn Driver>) -> Result<Self> {
        Ok(Self { driver: Arc::clone(driver), raw: driver.create_queue()?, application: None })
    }

    pub(crate) fn raw(&self) -> RawQueue {
        self.raw
    }

    /// Makes `worker`'s queue wait for the current work of the shared queue.
    pub(crate) fn order_before(&self, worker: &Arc<QueueWorker>) -> Result<()> {
        let driver = &self.driver;
        // SAFETY: the queue is live, and one of this driver's context.
        let event = unsafe { driver.record(self.raw) }?;
        // SAFETY: as above; the driver keeps the event that it waits on.
        let enqueue = |raw| unsafe {
            driver.flush(self.raw)?;
            driver.can_wait_on(event)?;
            driver.wait_on(raw, event)
        };
        let enqueued = worker.enqueue(enqueue);
        // SAFETY: recorded above, and not used any more.
        unsafe { driver.destroy_event(event) };
        // The caller may enqueue nothing more, so only a fence shows that the queue is idle again.
        enqueued.and_then(|_| worker.fence()).map(drop)
    }

    /// Makes later work of the shared queue wait for the work that another queue has so far.
    ///
    /// # Safety
    /// The other queue is live, and of the driver's context.
    pub(crate) unsafe fn follow(&self, other: RawQueue) -> Result<()> {
        let driver = &self.driver;
        // SAFETY: the caller's promise.
        let event = unsafe { driver.record(other) }?;
        // SAFETY: recorded above; the driver keeps the event that it waits on.
        let waits = unsafe { driver.flush(other).and_then(|()| self.wait_for(event)) };
        // SAFETY: recorded above, and not used any more.
        unsafe { driver.destroy_event(event) };
        waits
    }

    /// Makes later work of the shared queue wait for an event.
    ///
    /// # Safety
    /// The event is live.
    pub(crate) unsafe fn wait_for(&self, event: RawEvent) -> Result<()> {
        // SAFETY: the queue is live; the event is the caller's promise.
        unsafe {
            match self.driver.can_wait_on(event)? {
                true => self.driver.wait_on(self.raw, event),
                false => self.driver.wait(event),
            }
        }
    }
}
