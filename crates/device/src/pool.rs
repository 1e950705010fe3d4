// SPDX-License-Identifier: Apache-2.0
//! The memory of a context: one limit, size classes with free lists, reservations.
//!
//! Memory that a buffer gives back goes to the free list of its class at once, with the uses that may still
//! be going on. The same queue takes it again without waiting, since its work is in order; another queue
//! prefers memory whose uses have completed, and else makes the device wait for them. Only where the limit
//! is reached, or the driver has no more, and all that could be freed is still in use does an allocation wait for
//! a launch to end.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use parking_lot::Mutex;

use crate::driver::{Driver, Memory};
use crate::error::MEMORY_SETTING;
use crate::lane::{Lane, drop_after};
use crate::meter::Totals;
use crate::{DeviceKind, Error, Result};

/// The smallest class.
const SMALLEST: usize = 256;

/// How many entries of a free list are looked at before a new one is asked for.
const SEARCHED: usize = 64;

/// The uses of a block that may still be going on.
pub(crate) type PendingUses = Vec<(Arc<Lane>, u64)>;

/// The memory that a context holds. A handle: clones share one pool.
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
pub struct Pool(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    driver: Arc<dyn Driver>,
    totals: Arc<Totals>,
    name: String,
    limit: usize,
    /// Free memory beyond this goes back to the driver, since a CPU shares it with everyone else.
    max_cached: usize,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    in_use: usize,
    peak: usize,
    cached: usize,
    /// Reserved and not yet allocated.
    reserved: usize,
    free: HashMap<usize, Vec<Block>>,
}

/// Memory that no buffer owns.
#[derive(Debug)]
struct Block {
    memory: Memory,
    uses: PendingUses,
}

impl Block {
    /// Whether `lane` may use it without any waiting.
    fn is_ready_for(&self, lane: Option<&Arc<Lane>>) -> bool {
        let same = |other: &Arc<Lane>| lane.is_some_and(|lane| Arc::ptr_eq(lane, other));
        self.uses.iter().all(|(other, last)| same(other) || other.is_complete(*last))
    }
}

/// Memory on its way back to the driver.
struct Freed {
    driver: Arc<dyn Driver>,
    memory: Memory,
}

impl Drop for Freed {
    fn drop(&mut self) {
        // SAFETY: the memory is the driver's, and this is dropped after its last use.
        unsafe { self.driver.free(self.memory) };
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        for (_, blocks) in self.state.get_mut().free.drain() {
            for Block { memory, uses } in blocks {
                drop_after(Freed { driver: Arc::clone(&self.driver), memory }, &uses);
            }
        }
    }
}

impl Pool {
    pub(crate) fn new(driver: Arc<dyn Driver>, totals: Arc<Totals>, limit: usize) -> Self {
        let info = driver.info();
        let max_cached = if info.kind == DeviceKind::Cpu { limit / 4 } else { limit };
        let name = info.label();
        Self(Arc::new(Shared { driver, totals, name, limit, max_cached, state: Mutex::default() }))
    }

    /// Bytes that buffers, reservations and the free lists may have together.
    pub fn limit(&self) -> usize {
        self.0.limit
    }

    /// Bytes of living buffers, rounded up to their classes.
    pub fn in_use(&self) -> usize {
        self.0.state.lock().in_use
    }

    /// The highest value that [`in_use`](Self::in_use) has had.
    pub fn peak(&self) -> usize {
        self.0.state.lock().peak
    }

    /// Bytes in the free lists.
    pub fn cached(&self) -> usize {
        self.0.state.lock().cached
    }

    /// Bytes that reservations hold back and have not been allocated yet.
    pub fn reserved(&self) -> usize {
        self.0.state.lock().reserved
    }

    /// Claims bytes before they are allocated. [`Queue::reserved`](crate::Queue::reserved) gives a handle
    /// whose allocations draw on the claim first.
    ///
    /// # Errors
    /// `OutOfMemory` if living buffers and other claims leave less.
    pub fn reserve(&self, bytes: usize) -> Result<Reservation> {
        let reservation = Reservation { pool: self.clone(), claim: Arc::new(Mutex::new(Claim::default())) };
        reservation.resize(bytes)?;
        Ok(reservation)
    }

    /// Gives the free lists back to the driver, as far as their uses have completed.
    pub fn trim(&self) {
        let freed = self.evict(&mut self.0.state.lock(), usize::MAX);
        drop(freed);
    }

    /// Memory for `bytes`, and the uses that its next user's queue must wait for; `idle` memory has none,
    /// unless the limit leaves no other.
    pub(crate) fn allocate(
        &self,
        lane: &Arc<Lane>,
        bytes: usize,
        idle: bool,
        claim: Option<&SharedClaim>,
    ) -> Result<(Memory, PendingUses)> {
        let class = self.class(bytes);
        let block = match self.take_or_claim((!idle).then_some(lane), class, claim)? {
            Some(block) => block,
            None => self.ask_driver(class).inspect_err(|error| {
                lane.heed(error);
                self.give_up(class, claim);
            })?,
        };
        self.0.totals.allocations.fetch_add(1, Relaxed);
        Ok((block.memory, block.uses))
    }

    /// Takes memory back from a buffer.
    pub(crate) fn release(&self, memory: Memory, uses: PendingUses, claim: Option<&SharedClaim>) {
        let mut state = self.0.state.lock();
        state.give_back(memory.bytes, claim);
        state.cached += memory.bytes;
        state.free.entry(memory.bytes).or_default().push(Block { memory, uses });
        let surplus = state.cached.saturating_sub(self.0.max_cached);
        let freed = self.evict(&mut state, surplus);
        drop(state);
        drop(freed);
    }

    /// Rounds up to 1, 1.25, 1.5 or 1.75 times a power of two, as far as one allocation may go.
    fn class(&self, bytes: usize) -> usize {
        let largest = usize::try_from(self.0.driver.info().max_alloc_bytes).unwrap_or(usize::MAX);
        let class = size_class(bytes);
        if class <= largest { class } else { bytes.max(largest) }
    }

    /// A free block that `lane` may use without waiting, or without a lane anyone; nothing after `class` bytes
    /// were counted as in use.
    fn take_or_claim(&self, lane: Option<&Arc<Lane>>, class: usize, claim: Option<&SharedClaim>) -> Result<Option<Block>> {
        loop {
            let mut state = self.0.state.lock();
            if !state.fits(class, claim, self.0.limit) {
                return Err(self.out_of_memory(state.in_use + state.reserved, class));
            }
            if let Some(block) = state.take(class, SEARCHED, |block| block.is_ready_for(lane)) {
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
            // What is left in the free lists is in use: of the same class the device can wait for it.
            if let Some(block) = state.take(class, 1, |_| true) {
                state.count(class, claim);
                return Ok(Some(block));
            }
            let mut uses = state.free.values().flatten().flat_map(|block| &block.uses);
            let pending = uses.find(|(lane, last)| !lane.is_complete(*last)).cloned();
            drop(state);
            drop(freed);
            if let Some((lane, last)) = pending {
                lane.wait_blocking(last)?;
            }
        }
    }

    /// New memory. Where the driver has none, the free lists go back to it first.
    fn ask_driver(&self, class: usize) -> Result<Block> {
        let block = |memory| Block { memory, uses: Vec::new() };
        match self.0.driver.alloc(class) {
            Err(Error::OutOfMemory { .. }) => {}
            answer => return answer.map(block),
        }
        self.drain();
        self.0.driver.alloc(class).map(block).map_err(|error| match error {
            // The caller has counted this very allocation as in use.
            Error::OutOfMemory { .. } => self.out_of_memory(self.in_use() - class, class),
            other => other,
        })
    }

    /// Gives the free lists back to the driver, those in use after a wait for the launches that use them.
    fn drain(&self) {
        let free = {
            let mut state = self.0.state.lock();
            state.cached = 0;
            std::mem::take(&mut state.free)
        };
        for Block { memory, uses } in free.into_values().flatten() {
            // Where waiting is impossible the memory goes back whenever its uses complete.
            uses.iter().for_each(|(lane, last)| _ = lane.wait_blocking(*last));
            drop_after(Freed { driver: Arc::clone(&self.0.driver), memory }, &uses);
        }
    }

    /// Takes back what [`take_or_claim`](Self::take_or_claim) counted for memory that there is not.
    fn give_up(&self, class: usize, claim: Option<&SharedClaim>) {
        self.0.state.lock().give_back(class, claim);
    }

    /// Takes blocks whose uses have completed out of the free lists until `bytes` are together.
    fn evict(&self, state: &mut State, bytes: usize) -> Vec<Freed> {
        let mut freed = Vec::new();
        let mut missing = bytes;
        // Large ones first: fewer calls of the driver.
        let mut classes: Vec<usize> = if bytes == 0 { Vec::new() } else { state.free.keys().copied().collect() };
        classes.sort_unstable_by(|a, b| b.cmp(a));
        for class in classes {
            while missing > 0
                && let Some(block) = state.take(class, usize::MAX, |block| block.is_ready_for(None))
            {
                missing = missing.saturating_sub(class);
                freed.push(Freed { driver: Arc::clone(&self.0.driver), memory: block.memory });
            }
        }
        freed
    }

    fn out_of_memory(&self, in_use: usize, requested: usize) -> Error {
        Error::OutOfMemory { pool: self.0.name.clone(), requested, in_use, limit: self.0.limit, setting: MEMORY_SETTING }
    }
}

impl State {
    /// Takes a block of `class` that `suits` out of the free list, looking at `searched` from the last one on.
    fn take(&mut self, class: usize, searched: usize, suits: impl Fn(&Block) -> bool) -> Option<Block> {
        let list = self.free.get_mut(&class)?;
        let index = list.iter().rev().take(searched).position(suits)?;
        let block = list.remove(list.len() - 1 - index);
        if list.is_empty() {
            self.free.remove(&class);
        }
        self.cached -= class;
        Some(block)
    }

    /// Bytes that are spoken for, seen by the owner of `claim`.
    fn committed(&self, claim: Option<&SharedClaim>) -> usize {
        let own = claim.map_or(0, |claim| claim.lock().left());
        self.in_use + self.reserved - own
    }

    /// Whether `bytes` fit beside everything that cannot be freed.
    fn fits(&self, bytes: usize, claim: Option<&SharedClaim>, limit: usize) -> bool {
        self.committed(claim).saturating_add(bytes) <= limit
    }

    /// Counts `bytes` as in use, and as drawn from `claim`.
    fn count(&mut self, bytes: usize, claim: Option<&SharedClaim>) {
        self.in_use += bytes;
        self.peak = self.peak.max(self.in_use);
        self.change(claim, |claim| claim.drawn += bytes);
    }

    /// Undoes [`count`](Self::count).
    fn give_back(&mut self, bytes: usize, claim: Option<&SharedClaim>) {
        self.in_use -= bytes;
        self.change(claim, |claim| claim.drawn -= bytes);
    }

    /// Changes a claim and what it holds back.
    fn change(&mut self, claim: Option<&SharedClaim>, change: impl FnOnce(&mut Claim)) {
        if let Some(claim) = claim {
            let mut claim = claim.lock();
            let before = claim.left();
            change(&mut claim);
            self.reserved = self.reserved - before + claim.left();
        }
    }
}

/// Bytes claimed by a [`Reservation`] and how many of them are allocated.
#[derive(Debug, Default)]
pub(crate) struct Claim {
    bytes: usize,
    drawn: usize,
}

impl Claim {
    fn left(&self) -> usize {
        self.bytes.saturating_sub(self.drawn)
    }
}

/// A claim as buffers share it with its reservation. Locked inside the pool's lock.
pub(crate) type SharedClaim = Arc<Mutex<Claim>>;

/// A claim on a pool's memory, given up when dropped. Buffers that drew on it live on.
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
    /// Bytes claimed, allocated or not.
    pub fn bytes(&self) -> usize {
        self.claim.lock().bytes
    }

    /// Claims more or less.
    ///
    /// # Errors
    /// `OutOfMemory` if there is not so much; the claim then stays as it was.
    pub fn resize(&self, bytes: usize) -> Result<()> {
        let mut state = self.pool.0.state.lock();
        let drawn = self.claim.lock().drawn;
        if !state.fits(bytes.saturating_sub(drawn), Some(&self.claim), self.pool.0.limit) {
            return Err(self.pool.out_of_memory(state.in_use + state.reserved, bytes));
        }
        state.change(Some(&self.claim), |claim| claim.bytes = bytes);
        Ok(())
    }

    /// The claim, if it is one on `pool`.
    pub(crate) fn claim_on(&self, pool: &Pool) -> Option<SharedClaim> {
        Arc::ptr_eq(&self.pool.0, &pool.0).then(|| Arc::clone(&self.claim))
    }
}

/// The smallest of 1, 1.25, 1.5 and 1.75 times a power of two that holds `bytes`; at least 256.
fn size_class(bytes: usize) -> usize {
    if bytes <= SMALLEST {
        return SMALLEST;
    }
    // `bytes` lies above this power of two, and in one of the four steps up to the next.
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
