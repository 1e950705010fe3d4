// SPDX-License-Identifier: Apache-2.0
//! Reservations of a pool's memory.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use parking_lot::Mutex;

use super::Pool;
use super::claim::{Claim, SharedClaim};
use super::state::PoolState;
use crate::Result;

impl Pool {
    /// Reserves bytes before they are allocated. Allocations of a
    /// [`Queue::reserved`](crate::Queue::reserved) handle draw on the reservation first.
    ///
    /// # Errors
    /// `OutOfMemory` if live buffers and other reservations leave less.
    pub fn reserve(&self, bytes: usize) -> Result<Reservation> {
        let reservation = Reservation { pool: self.clone(), claim: Arc::new(Mutex::new(Claim::default())) };
        reservation.resize(bytes)?;
        Ok(reservation)
    }

    /// A soft reservation, without bytes yet.
    ///
    /// # Examples
    /// ```
    /// # use device::{Context, DeviceConfig};
    /// # let Ok(context) = Context::new(DeviceConfig::default().with_memory_bytes(1 << 20)) else { return Ok(()) };
    /// let (table, other) = (context.pool().reserve_softly(), context.pool().reserve_softly());
    /// assert!(table.try_grow(600 << 10, 256 << 10));
    /// assert!(!other.try_grow(600 << 10, 0), "the first one counts on them");
    /// assert_eq!(context.pool().soft_reserved(), 600 << 10);
    /// drop(table);
    /// assert!(other.try_grow(600 << 10, 0));
    /// # Ok::<(), device::Error>(())
    /// ```
    pub fn reserve_softly(&self) -> SoftReservation {
        SoftReservation { pool: self.clone(), bytes: AtomicUsize::new(0) }
    }
}

/// Bytes that an operator is about to allocate; the drop ends the reservation. Allocations do not
/// heed them. Operators that can do with less memory ask [`Pool::soft_reserved`], and leave so much
/// free.
#[derive(Debug)]
pub struct SoftReservation {
    pool: Pool,
    bytes: AtomicUsize,
}

impl SoftReservation {
    /// Reserves `bytes` in all, if the other soft reservations and `left_free` bytes have room
    /// beside them. Returns whether they have; else the reservation stays as it is.
    pub fn try_grow(&self, bytes: usize, left_free: usize) -> bool {
        let of_others = self.pool.soft_reserved().saturating_sub(self.bytes.load(Relaxed));
        let fits = bytes + left_free + of_others <= self.pool.available();
        if fits {
            self.grow(bytes);
        }
        fits
    }

    /// Reserves at least `bytes` in all, whether or not they are free.
    pub fn grow(&self, bytes: usize) {
        let before = self.bytes.fetch_max(bytes, Relaxed);
        self.pool.0.soft_reserved.fetch_add(bytes.saturating_sub(before), Relaxed);
    }
}

impl Drop for SoftReservation {
    fn drop(&mut self) {
        self.pool.0.soft_reserved.fetch_sub(*self.bytes.get_mut(), Relaxed);
    }
}

/// A reservation of a pool's memory, released when dropped. Buffers that drew on it stay valid.
#[derive(Debug)]
pub struct Reservation {
    pool: Pool,
    claim: SharedClaim,
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.pool.0.state.lock().change(Some(&self.claim), |claim| claim.bytes = 0);
    }
}

impl Reservation {
    /// Reserved bytes, allocated or not.
    pub fn bytes(&self) -> usize {
        self.claim.lock().bytes
    }

    /// Changes the reserved bytes.
    ///
    /// # Errors
    /// `OutOfMemory` beyond the pool's limit; the reservation then stays unchanged.
    pub fn resize(&self, bytes: usize) -> Result<()> {
        let more = |_: &PoolState| bytes.saturating_sub(self.claim.lock().drawn);
        let room = self.pool.with_room(Some(&self.claim), more);
        let mut state = room.map_err(|in_use| self.pool.out_of_memory(in_use, bytes))?;
        state.change(Some(&self.claim), |claim| claim.bytes = bytes);
        Ok(())
    }

    /// The claim, if the reservation is one of `pool`.
    pub(crate) fn claim_on(&self, pool: &Pool) -> Option<SharedClaim> {
        Arc::ptr_eq(&self.pool.0, &pool.0).then(|| Arc::clone(&self.claim))
    }
}
