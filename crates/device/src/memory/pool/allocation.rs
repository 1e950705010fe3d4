// SPDX-License-Identifier: Apache-2.0
//! Allocations: from the free lists, else from the driver.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use super::Pool;
use super::block::{Block, Freed};
use super::claim::SharedClaim;
use super::state::PoolState;
use crate::driver::Memory;
use crate::queue::{PendingUses, QueueWorker, drop_after};
use crate::{DeviceKind, Error, Result};

/// The smallest size class.
const SMALLEST: usize = 256;

/// The most entries of a free list that an allocation searches for a ready block.
const SEARCHED: usize = 64;

impl Pool {
    /// Allocates `bytes`, with the uses that the caller's queue must wait for. `idle` memory has no
    /// uses, unless the limit leaves no other memory.
    pub(crate) fn allocate(
        &self,
        worker: &Arc<QueueWorker>,
        bytes: usize,
        idle: bool,
        claim: Option<&SharedClaim>,
    ) -> Result<(Memory, PendingUses)> {
        let class = self.class(bytes);
        let allocated = match self.take_or_count((!idle).then_some(worker), class, claim)? {
            Some(block) => (block.memory, block.uses),
            None => {
                let memory = self.alloc_from_driver(class).inspect_err(|error| {
                    worker.check_loss(error);
                    self.uncount(class, claim);
                })?;
                (memory, PendingUses::new())
            }
        };
        self.0.counters.allocations.fetch_add(1, Relaxed);
        Ok(allocated)
    }

    /// Takes memory back from a buffer.
    pub(crate) fn release(&self, memory: Memory, uses: PendingUses, claim: Option<&SharedClaim>) {
        let mut state = self.0.state.lock();
        state.give_back(memory.bytes, claim);
        state.cached += memory.bytes;
        state.free.entry(memory.bytes).or_default().push_back(Block { memory, uses, free_since: Instant::now() });
        let most = self.most_cached(&state);
        let mut freed = Vec::new();
        while state.cached > most
            && let Some(block) = state.take_oldest(Duration::ZERO)
        {
            freed.push(self.freed(block.memory));
        }
        self.start_evictor(&mut state);
        drop(state);
        drop(freed);
    }

    /// The most bytes that stay free.
    ///
    /// Other processes need a CPU's memory too. The sizes of a query's buffers differ, so that it
    /// leaves up to twice the bytes that it has had in use at once.
    fn most_cached(&self, state: &PoolState) -> usize {
        if self.0.driver.info().kind != DeviceKind::Cpu {
            return self.0.limit;
        }
        let [present, before] = state.recent_peaks;
        (self.0.limit / 4).min(2 * present.max(before))
    }

    /// The size class of an allocation, limited by the device's largest allocation.
    fn class(&self, bytes: usize) -> usize {
        let largest = usize::try_from(self.0.driver.info().max_alloc_bytes).unwrap_or(usize::MAX);
        let class = size_class(bytes);
        if class <= largest { class } else { bytes.max(largest) }
    }

    /// Takes a free block that `worker`'s queue, or without it any queue, may use without waiting.
    /// Returns `None` where the caller is to allocate; both count `class` bytes as in use.
    fn take_or_count(
        &self,
        worker: Option<&Arc<QueueWorker>>,
        class: usize,
        claim: Option<&SharedClaim>,
    ) -> Result<Option<Block>> {
        loop {
            let room = self.with_room(claim, |_| class);
            let mut state = room.map_err(|in_use| self.out_of_memory(in_use, class))?;
            let mut found = state.take(class, SEARCHED, |block| block.is_ready_for(worker));
            if found.is_none() && worker.is_some() && state.cached > self.most_cached(&state) {
                // Too much memory is free, but in use. The device waits for some of it.
                found = state.take_at(class, 0);
            }
            if let Some(block) = found {
                state.count(class, claim);
                return Ok(Some(block));
            }
            let surplus = (state.committed(claim) + state.cached + class).saturating_sub(self.0.limit);
            let freed = self.evict(&mut state, surplus);
            if freed.iter().map(|freed| freed.memory.bytes).sum::<usize>() >= surplus {
                state.count(class, claim);
                drop(state);
                drop(freed);
                return Ok(None);
            }
            // All free blocks are in use. The device can wait for one of the same class.
            if let Some(block) = state.take(class, 1, |_| true) {
                state.count(class, claim);
                return Ok(Some(block));
            }
            let mut uses = state.free.values().flatten().flat_map(|block| &block.uses);
            let pending = uses.find(|(worker, last)| !worker.is_complete(*last)).cloned();
            drop(state);
            drop(freed);
            if let Some((worker, last)) = pending {
                worker.wait_blocking(last)?;
            }
        }
    }

    /// Allocates from the driver. Where it has no memory, retries after [`drain`](Self::drain),
    /// without the memory of caches.
    fn alloc_from_driver(&self, class: usize) -> Result<Memory> {
        match self.0.driver.alloc(class) {
            Err(Error::OutOfMemory { .. }) => {}
            answer => return answer,
        }
        self.reclaim(usize::MAX);
        self.drain();
        self.0.driver.alloc(class).map_err(|error| match error {
            // The caller has already counted this allocation as in use.
            Error::OutOfMemory { .. } => self.out_of_memory(self.in_use() - class, class),
            other => other,
        })
    }

    /// Returns the free lists to the driver, and blocks until their uses end.
    fn drain(&self) {
        for Block { memory, uses, .. } in self.take_free() {
            // If waiting is impossible, the memory is freed after its uses.
            uses.iter().for_each(|(worker, last)| _ = worker.wait_blocking(*last));
            drop_after(self.freed(memory), &uses);
        }
    }

    /// Takes all blocks out of the free lists.
    pub(super) fn take_free(&self) -> impl Iterator<Item = Block> + use<> {
        let mut state = self.0.state.lock();
        state.cached = 0;
        std::mem::take(&mut state.free).into_values().flatten()
    }

    /// Undoes the count of [`take_or_count`](Self::take_or_count) after a failed allocation.
    fn uncount(&self, class: usize, claim: Option<&SharedClaim>) {
        self.0.state.lock().give_back(class, claim);
    }

    /// Takes idle blocks out of the free lists, at least `bytes` of them where there are as many.
    pub(super) fn evict(&self, state: &mut PoolState, bytes: usize) -> Vec<Freed> {
        let mut freed = Vec::new();
        let mut missing = bytes;
        // Large blocks first: fewer driver calls.
        let mut classes: Vec<usize> = if bytes == 0 { Vec::new() } else { state.free.keys().copied().collect() };
        classes.sort_unstable_by(|a, b| b.cmp(a));
        for class in classes {
            while missing > 0
                && let Some(block) = state.take(class, usize::MAX, |block| block.is_ready_for(None))
            {
                missing = missing.saturating_sub(class);
                freed.push(self.freed(block.memory));
            }
        }
        freed
    }

    pub(super) fn freed(&self, memory: Memory) -> Freed {
        Freed { driver: Arc::clone(&self.0.driver), memory }
    }
}

/// The smallest size class for `bytes`: 1, 1.25, 1.5 or 1.75 times a power of two; at least 256.
fn size_class(bytes: usize) -> usize {
    if bytes <= SMALLEST {
        return SMALLEST;
    }
    // A quarter of the largest power of two below `bytes`.
    let step = (1 << (usize::BITS - 1 - (bytes - 1).leading_zeros())) / 4;
    bytes.checked_next_multiple_of(step).unwrap_or(bytes)
}

#[cfg(test)]
mod tests {
    use super::size_class;

    #[test]
    fn classes_waste_at_most_a_quarter() {
        assert_eq!([0, 1, 256, 257, 320, 321, 512, 513].map(size_class), [256, 256, 256, 320, 320, 384, 512, 640]);
        for bytes in (257..100_000).chain([usize::MAX / 3, usize::MAX]) {
            let class = size_class(bytes);
            assert!(class >= bytes && class - bytes <= bytes / 4, "{bytes} in {class}");
        }
    }
}
