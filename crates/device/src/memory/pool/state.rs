// SPDX-License-Identifier: Apache-2.0
//! The counts of a pool, and its free lists.

use std::collections::{HashMap, VecDeque};
use std::thread::Thread;
use std::time::Duration;

use super::block::Block;
use super::claim::{Claim, SharedClaim};

/// A pool's counts and free lists, under its lock.
#[derive(Debug, Default)]
pub(super) struct PoolState {
    pub in_use: usize,
    pub peak: usize,
    /// The highest `in_use` of the evictor's present period, and of the one before.
    pub recent_peaks: [usize; 2],
    pub cached: usize,
    /// Reserved bytes that are not allocated yet.
    pub reserved: usize,
    /// Free blocks by size class, those freed last at the end.
    pub free: HashMap<usize, VecDeque<Block>>,
    /// The thread for the return of free memory to the driver, while there is some.
    pub evictor: Option<Thread>,
    /// Host memory that tables hold in place: bytes and buffers by address. Batches share heaps.
    pub host: HashMap<usize, (usize, usize)>,
}

impl PoolState {
    /// Takes a block of `class` that `suits` out of its free list; searches the last `searched`
    /// ones.
    pub fn take(&mut self, class: usize, searched: usize, suits: impl Fn(&Block) -> bool) -> Option<Block> {
        let list = self.free.get(&class)?;
        let index = list.len() - 1 - list.iter().rev().take(searched).position(suits)?;
        self.take_at(class, index)
    }

    /// Takes out the block with the longest free time, if it is at least `time`. Of each size class
    /// it looks at the oldest block, and skips the class if the block is in use.
    pub fn take_oldest(&mut self, time: Duration) -> Option<Block> {
        let idle = self.free.values().filter_map(VecDeque::front).filter(|block| block.is_ready_for(None));
        let oldest = idle.min_by_key(|block| block.free_since).filter(|block| block.free_since.elapsed() >= time)?;
        let class = oldest.memory.bytes;
        self.take_at(class, 0)
    }

    pub fn take_at(&mut self, class: usize, index: usize) -> Option<Block> {
        let list = self.free.get_mut(&class)?;
        let block = list.remove(index)?;
        if list.is_empty() {
            self.free.remove(&class);
        }
        self.cached -= class;
        Some(block)
    }

    /// Bytes in use or reserved, without the unused rest of `claim`.
    pub fn committed(&self, claim: Option<&SharedClaim>) -> usize {
        let own = claim.map_or(0, |claim| claim.lock().left());
        self.in_use + self.reserved - own
    }

    /// Counts `bytes` as in use, and as drawn from `claim`.
    pub fn count(&mut self, bytes: usize, claim: Option<&SharedClaim>) {
        self.in_use += bytes;
        self.peak = self.peak.max(self.in_use);
        self.recent_peaks[0] = self.recent_peaks[0].max(self.in_use);
        self.change(claim, |claim| claim.drawn += bytes);
    }

    /// Undoes [`count`](Self::count).
    pub fn give_back(&mut self, bytes: usize, claim: Option<&SharedClaim>) {
        self.in_use -= bytes;
        self.change(claim, |claim| claim.drawn -= bytes);
    }

    /// Changes a claim, and updates the reserved bytes.
    pub fn change(&mut self, claim: Option<&SharedClaim>, change: impl FnOnce(&mut Claim)) {
        if let Some(claim) = claim {
            let mut claim = claim.lock();
            let before = claim.left();
            change(&mut claim);
            self.reserved = self.reserved - before + claim.left();
        }
    }
}
