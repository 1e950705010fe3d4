// SPDX-License-Identifier: Apache-2.0
//! The handle of a queue, and the order of queues among each other.

use std::any::{Any, TypeId};
use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use parking_lot::Mutex;

use super::event::Event;
use super::worker::QueueWorker;
use crate::context::Context;
use crate::driver::Driver;
use crate::memory::{Buffer, Reservation, SharedClaim};
use crate::report::{Meter, Meters, WorkKind};
use crate::{Error, Result};

/// An in-order queue of a device. Clones share one queue, from any thread.
///
/// - An operation that enqueues returns at once; the work runs in order.
/// - Queues are not ordered among each other, with one exception. Work on a buffer waits for
///   earlier uses in the queue that allocated the buffer.
/// - [`record`](Self::record) and [`wait_for`](Self::wait_for) give other orders.
/// - A future begins its work at once, not at its first poll, and may be dropped.
#[derive(Clone)]
pub struct Queue {
    lease: Arc<Lease>,
    pub(super) meters: Meters,
    pub(super) claim: Option<SharedClaim>,
}

/// A queue of the context, returned when dropped. Several leases may share it.
struct Lease {
    context: Context,
    worker: Arc<QueueWorker>,
    extensions: Mutex<HashMap<TypeId, Arc<dyn Any + Send + Sync>>>,
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.worker.flush();
        self.context.give_back(&self.worker);
    }
}

impl fmt::Debug for Queue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Queue").field("worker", &self.lease.worker).finish_non_exhaustive()
    }
}

impl Queue {
    pub(crate) fn new(context: Context, worker: Arc<QueueWorker>) -> Self {
        let lease = Arc::new(Lease { context, worker, extensions: Mutex::default() });
        Self { lease, meters: Meters::default(), claim: None }
    }

    pub(crate) fn worker(&self) -> &Arc<QueueWorker> {
        &self.lease.worker
    }

    pub(crate) fn driver(&self) -> &Arc<dyn Driver> {
        self.context().driver()
    }

    /// The context of the queue.
    pub fn context(&self) -> &Context {
        &self.lease.context
    }

    /// Position in the context, counted from 1, as in the records of [`Context::timeline`]. A queue
    /// keeps its number when it is reused.
    pub fn number(&self) -> u32 {
        self.worker().number()
    }

    /// A value of type `T` that all clones of this handle share, `T::default()` at the first call.
    ///
    /// It is dropped with the last handle, so it must not hold a handle itself.
    ///
    /// # Examples
    /// ```
    /// # use parking_lot::Mutex;
    /// #[derive(Default)]
    /// struct Requests(Mutex<u32>);
    ///
    /// # let context = device::Context::new(device::testing::config()?)?;
    /// let queue = context.queue()?;
    /// *queue.extension::<Requests>().0.lock() += 1;
    /// assert_eq!(*queue.clone().extension::<Requests>().0.lock(), 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn extension<T: Any + Default + Send + Sync>(&self) -> Arc<T> {
        let mut extensions = self.lease.extensions.lock();
        let known = extensions.get(&TypeId::of::<T>()).and_then(|known| Arc::clone(known).downcast().ok());
        known.unwrap_or_else(|| {
            let new = Arc::<T>::default();
            extensions.insert(TypeId::of::<T>(), Arc::clone(&new) as Arc<dyn Any + Send + Sync>);
            new
        })
    }

    /// A handle of the same queue that also charges its costs to `meter`. The pool's errors name a
    /// meter that has a name.
    pub fn metered(&self, meter: &Arc<Meter>) -> Queue {
        self.context().pool().list(meter);
        Queue { meters: self.meters.with(meter), ..self.clone() }
    }

    /// A handle of the same queue whose allocations draw on `reservation` first. A reservation of
    /// another context is ignored.
    pub fn reserved(&self, reservation: &Reservation) -> Queue {
        Queue { claim: reservation.claim_on(self.context().pool()), ..self.clone() }
    }

    /// Records an event at the current end of the queue.
    ///
    /// # Errors
    /// The driver's refusal.
    pub fn record(&self) -> Result<Event> {
        Ok(Event { worker: Arc::clone(self.worker()), fence: self.worker().fence()? })
    }

    /// Like [`record`](Self::record), also after the uses of `buffers` in the queues that allocated
    /// them.
    ///
    /// # Errors
    /// The driver's refusal; `Foreign` for a buffer of another context.
    pub fn record_after<'a>(&self, buffers: impl IntoIterator<Item = &'a Buffer>) -> Result<Event> {
        buffers.into_iter().try_for_each(|buffer| self.wait_for_uses(buffer))?;
        self.record()
    }

    /// Makes later work of this queue wait for `event`, on the device.
    ///
    /// # Errors
    /// The driver's refusal.
    pub fn wait_for(&self, event: &Event) -> Result<()> {
        if !event.worker.is_of(self.driver()) {
            return Err(self.foreign("wait", "event"));
        }
        if Arc::ptr_eq(&event.worker, self.worker()) || event.worker.is_complete(event.fence.sequence()) {
            return Ok(());
        }
        self.worker().wait_on(&event.fence)
    }

    /// Completes with everything enqueued so far.
    ///
    /// # Errors
    /// The first failure of work in this queue. It stays: no later result can be trusted.
    pub fn finish(&self) -> impl Future<Output = Result<()>> + Send + use<> {
        let (worker, finished, meters) = (Arc::clone(self.worker()), self.worker().finished(), self.meters.clone());
        async move { worker.wait(finished?, meters, WorkKind::Wait).await }
    }

    /// Makes this queue wait for uses of the buffer in the queue that allocated it.
    pub(crate) fn wait_for_uses(&self, buffer: &Buffer) -> Result<()> {
        if Arc::ptr_eq(buffer.home(), self.worker()) {
            return Ok(());
        }
        if !buffer.home().is_of(self.driver()) {
            return Err(self.foreign("use", "buffer"));
        }
        match buffer.uses().pending_in(buffer.home()) {
            Some(sequence) => self.order_after(buffer.home(), sequence),
            None => Ok(()),
        }
    }

    /// Makes this queue wait for the work of `sequence` in another queue.
    pub(super) fn order_after(&self, other: &Arc<QueueWorker>, sequence: u64) -> Result<()> {
        if Arc::ptr_eq(other, self.worker()) {
            return Ok(());
        }
        match other.fence_after(sequence)? {
            Some(fence) => self.worker().wait_on(&fence),
            None => Ok(()),
        }
    }

    pub(super) fn foreign(&self, call: &'static str, what: &'static str) -> Error {
        Error::Foreign { device: self.context().info().label(), call, what }
    }
}
