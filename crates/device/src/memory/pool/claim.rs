// SPDX-License-Identifier: Apache-2.0
//! The claim of a reservation on a pool.

use std::sync::Arc;

use parking_lot::Mutex;

/// Bytes of a [`Reservation`](super::Reservation), and how many of them are allocated.
#[derive(Debug, Default)]
pub(crate) struct Claim {
    pub bytes: usize,
    pub drawn: usize,
}

impl Claim {
    pub fn left(&self) -> usize {
        self.bytes.saturating_sub(self.drawn)
    }
}

/// A claim that buffers share with its reservation. Lock order: the pool's state first.
pub(crate) type SharedClaim = Arc<Mutex<Claim>>;
