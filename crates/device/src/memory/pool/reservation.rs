// SPDX-License-Identifier: Apache-2.0
//! Reservations of a pool's memory.

use std::sync::Arc;

use parking_lot::Mutex;

use super::Pool;
use super::claim::{Claim, SharedClaim};
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
        let mut state = self.pool.0.state.lock();
        let drawn = self.claim.lock().drawn;
        if !state.fits(bytes.saturating_sub(drawn), Some(&self.claim), self.pool.0.limit) {
            return Err(self.pool.out_of_memory(state.in_use + state.reserved, bytes));
        }
        state.change(Some(&self.claim), |claim| claim.bytes = bytes);
        Ok(())
    }

    /// The claim, if the reservation is one of `pool`.
    pub(crate) fn claim_on(&self, pool: &Pool) -> Option<SharedClaim> {
        Arc::ptr_eq(&self.pool.0, &pool.0).then(|| Arc::clone(&self.claim))
    }
}
