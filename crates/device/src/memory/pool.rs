// SPDX-License-Identifier: Apache-2.0
//! The memory pool of a context: one limit, size classes with free lists, reservations.
//!
//! A dropped buffer's memory goes to the free list of its class at once, with its pending uses:
//! - The same queue reuses it without waiting, since its work is in order.
//! - Another queue prefers memory whose uses have completed; else the device waits for the uses.
//!
//! An allocation blocks until a launch ends only under both of these conditions:
//! - the limit is reached, or the driver has no more memory;
//! - all memory of the free lists is still in use.
//!
//! An allocation beyond the limit first takes the memory of [caches](Reclaim).
//!
//! A CPU's free memory has a bound, and returns to the driver once it has not been reused for some
//! seconds.

mod allocation;
mod block;
mod claim;
mod evictor;
mod holders;
mod host;
mod reclaim;
mod reservation;
mod state;

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;

pub(crate) use self::claim::SharedClaim;
pub(crate) use self::host::CountedHost;
pub use self::reclaim::Reclaim;
pub use self::reservation::{Reservation, SoftReservation};

use self::block::{Block, Freed};
use self::state::PoolState;
use crate::driver::Driver;
use crate::error::MEMORY_SETTING;
use crate::queue::drop_after;
use crate::report::LiveCounters;
use crate::{Error, Meter};

/// The memory pool of a context. Clones share one pool.
///
/// # Examples
/// ```
/// # use device::{Context, DeviceConfig};
/// # let Ok(context) = Context::new(DeviceConfig::default().with_memory_bytes(1 << 20)) else { return Ok(()) };
/// let buffer = context.queue()?.alloc(1000)?;
/// assert_eq!(context.pool().in_use(), 1024);
/// drop(buffer);
/// assert_eq!((context.pool().in_use(), context.pool().cached()), (0, 1024));
/// assert!(context.queue()?.alloc(2 << 20).is_err_and(|error| error.is_out_of_memory()));
/// # Ok::<(), device::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct Pool(Arc<PoolInner>);

#[derive(Debug)]
struct PoolInner {
    driver: Arc<dyn Driver>,
    counters: Arc<LiveCounters>,
    name: String,
    limit: usize,
    state: Mutex<PoolState>,
    /// Bytes of soft reservations.
    soft_reserved: AtomicUsize,
    /// Meters with names, for errors.
    holders: Mutex<Vec<Weak<Meter>>>,
    /// Caches in the pool's memory.
    caches: Mutex<Vec<Weak<dyn Reclaim>>>,
}

impl Drop for PoolInner {
    fn drop(&mut self) {
        let state = self.state.get_mut();
        for Block { memory, uses, .. } in state.free.drain().flat_map(|(_, blocks)| blocks) {
            drop_after(Freed { driver: Arc::clone(&self.driver), memory }, &uses);
        }
        if let Some(evictor) = &state.evictor {
            evictor.unpark();
        }
    }
}

impl Pool {
    pub(crate) fn new(driver: Arc<dyn Driver>, counters: Arc<LiveCounters>, limit: usize) -> Self {
        let name = driver.info().label();
        let (state, soft_reserved, holders, caches) = Default::default();
        Self(Arc::new(PoolInner { driver, counters, name, limit, state, soft_reserved, holders, caches }))
    }

    /// The most bytes of buffers, reservations and free lists together.
    pub fn limit(&self) -> usize {
        self.0.limit
    }

    /// Bytes of live buffers, rounded up to their size classes, and of host memory that
    /// [`Buffer::count_in_place`](crate::Buffer::count_in_place) has counted.
    pub fn in_use(&self) -> usize {
        self.0.state.lock().in_use
    }

    /// The highest [`in_use`](Self::in_use) so far, or since [`reset_peak`](Self::reset_peak).
    pub fn peak(&self) -> usize {
        self.0.state.lock().peak
    }

    /// Begins a new peak at what is in use.
    pub fn reset_peak(&self) {
        let mut state = self.0.state.lock();
        state.peak = state.in_use;
    }

    /// Bytes in the free lists.
    pub fn cached(&self) -> usize {
        self.0.state.lock().cached
    }

    /// Bytes of reservations that are not allocated yet.
    pub fn reserved(&self) -> usize {
        self.0.state.lock().reserved
    }

    /// Bytes of [soft reservations](Self::reserve_softly).
    pub fn soft_reserved(&self) -> usize {
        self.0.soft_reserved.load(Relaxed)
    }

    /// Returns the free lists to the driver. Blocks that launches still use return after them.
    ///
    /// Such blocks count nowhere until then.
    pub fn trim(&self) {
        for Block { memory, uses, .. } in self.take_free() {
            drop_after(self.freed(memory), &uses);
        }
    }

    /// The failure of a request of `requested` bytes, beside `in_use` ones.
    fn out_of_memory(&self, in_use: usize, requested: usize) -> Error {
        Error::OutOfMemory {
            pool: self.0.name.clone(),
            requested,
            in_use,
            limit: self.0.limit,
            setting: MEMORY_SETTING,
            held: self.largest_holders(),
        }
    }
}
