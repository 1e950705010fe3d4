// SPDX-License-Identifier: Apache-2.0
//! The memory pool of a context: one limit, size classes with free lists, reservations.
//!
//! A dropped buffer's memory goes to the free list of its class at once, with its pending uses:
//! - The same queue reuses it without waiting, since its work is in order.
//! - Another queue prefers memory whose uses have completed; else the device waits for the uses.
//!
//! An allocation blocks until a launch ends only if both hold:
//! - the limit is reached, or the driver has no more memory;
//! - all memory of the free lists is still in use.
//!
//! A CPU's free memory has a bound, and returns to the driver once it has not been reused for some
//! seconds.

mod evictor;

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::thread::Thread;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::driver::{Driver, Memory};
use crate::error::MEMORY_SETTING;
use crate::queue::{PendingUses, QueueWorker, drop_after};
use crate::report::LiveCounters;
use crate::{DeviceKind, Error, Result};

/// The smallest size class.
const SMALLEST: usize = 256;

/// The most entries of a free list that an allocation searches for a ready block.
const SEARCHED: usize = 64;

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
}

#[derive(Debug, Default)]
struct PoolState {
    in_use: usize,
    peak: usize,
    /// The highest `in_use` of the evictor's present period, and of the one before.
    recent_peaks: [usize; 2],
    cached: usize,
    /// Reserved bytes that are not allocated yet.
    reserved: usize,
    /// Free blocks by size class, those freed last at the end.
    free: HashMap<usize, VecDeque<Block>>,
    /// The thread that returns free memory to the driver, while there is free memory.
    evictor: Option<Thread>,
    /// Host memory that tables hold in place: bytes and buffers by address. Batches share heaps.
    host: HashMap<usize, (usize, usize)>,
}

/// A count of host memory, until it is dropped.
pub(crate) struct CountedHost {
    pool: Pool,
    address: usize,
}

impl Drop for CountedHost {
    fn drop(&mut self) {
        let mut state = self.pool.0.state.lock();
        let Some((bytes, buffers)) = state.host.get_mut(&self.address) else { return };
        *buffers -= 1;
        if *buffers == 0 {
            let bytes = *bytes;
            state.host.remove(&self.address);
            state.give_back(bytes, None);
        }
    }
}

/// Memory that no buffer owns.
#[derive(Debug)]
struct Block {
    memory: Memory,
    uses: PendingUses,
    free_since: Instant,
}

impl Block {
    /// Whether `worker`'s queue may use it without waiting.
    fn is_ready_for(&self, worker: Option<&Arc<QueueWorker>>) -> bool {
        let same = |other: &Arc<QueueWorker>| worker.is_some_and(|worker| Arc::ptr_eq(worker, other));
        self.uses.iter().all(|(other, last)| same(other) || other.is_complete(*last))
    }
}

/// Memory that its drop returns to the driver.
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
        Self(Arc::new(PoolInner { driver, counters, name, limit, state: Mutex::default() }))
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

    /// The highest [`in_use`](Self::in_use) so far.
    pub fn peak(&self) -> usize {
        self.0.state.lock().peak
    }

    /// Bytes in the free lists.
    pub fn cached(&self) -> usize {
        self.0.state.lock().cached
    }

    /// Bytes of reservations that are not allocated yet.
    pub fn reserved(&self) -> usize {
        self.0.state.lock().reserved
    }

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

    /// Returns the free lists to the driver, except for blocks in use.
    pub fn trim(&self) {
        let freed = self.evict(&mut self.0.state.lock(), usize::MAX);
        drop(freed);
    }

    /// Counts host memory that a buffer uses in place, once for each address.
    pub(crate) fn count_host(&self, address: usize, bytes: usize) -> Result<CountedHost> {
        let mut state = self.0.state.lock();
        let known = state.host.get(&address).map_or(0, |(known, _)| *known);
        let more = bytes.saturating_sub(known);
        if !state.fits(more, None, self.0.limit) {
            return Err(self.out_of_memory(state.in_use + state.reserved, more));
        }
        let surplus = (state.committed(None) + state.cached + more).saturating_sub(self.0.limit);
        let freed = self.evict(&mut state, surplus);
        state.count(more, None);
        let (counted, buffers) = state.host.entry(address).or_default();
        *counted += more;
        *buffers += 1;
        // A load frees what it decoded.
        self.start_evictor(&mut state);
        drop(state);
        drop(freed);
        Ok(CountedHost { pool: self.clone(), address })
    }

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
            let mut state = self.0.state.lock();
            if !state.fits(class, claim, self.0.limit) {
                return Err(self.out_of_memory(state.in_use + state.reserved, class));
            }
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

    /// Allocates from the driver. Where it has no memory, retries after [`drain`](Self::drain).
    fn alloc_from_driver(&self, class: usize) -> Result<Memory> {
        match self.0.driver.alloc(class) {
            Err(Error::OutOfMemory { .. }) => {}
            answer => return answer,
        }
        self.drain();
        self.0.driver.alloc(class).map_err(|error| match error {
            // The caller has already counted this allocation as in use.
            Error::OutOfMemory { .. } => self.out_of_memory(self.in_use() - class, class),
            other => other,
        })
    }

    /// Returns the free lists to the driver, and blocks until the launches that use them end.
    fn drain(&self) {
        let free = {
            let mut state = self.0.state.lock();
            state.cached = 0;
            std::mem::take(&mut state.free)
        };
        for Block { memory, uses, .. } in free.into_values().flatten() {
            // If waiting is impossible, the memory is freed when its uses complete.
            uses.iter().for_each(|(worker, last)| _ = worker.wait_blocking(*last));
            drop_after(self.freed(memory), &uses);
        }
    }

    /// Undoes the count of [`take_or_count`](Self::take_or_count) after a failed allocation.
    fn uncount(&self, class: usize, claim: Option<&SharedClaim>) {
        self.0.state.lock().give_back(class, claim);
    }

    /// Takes idle blocks out of the free lists, at least `bytes` of them where there are as many.
    fn evict(&self, state: &mut PoolState, bytes: usize) -> Vec<Freed> {
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

    fn freed(&self, memory: Memory) -> Freed {
        Freed { driver: Arc::clone(&self.0.driver), memory }
    }

    fn out_of_memory(&self, in_use: usize, requested: usize) -> Error {
        Error::OutOfMemory { pool: self.0.name.clone(), requested, in_use, limit: self.0.limit, setting: MEMORY_SETTING }
    }
}

impl PoolState {
    /// Takes a block of `class` that `suits` out of its free list; searches the last `searched`
    /// ones.
    fn take(&mut self, class: usize, searched: usize, suits: impl Fn(&Block) -> bool) -> Option<Block> {
        let list = self.free.get(&class)?;
        let index = list.len() - 1 - list.iter().rev().take(searched).position(suits)?;
        self.take_at(class, index)
    }

    /// Takes the block out that has been free longest, if that is at least `time`. Of each size
    /// class it looks at the oldest block, and skips the class where that is in use.
    fn take_oldest(&mut self, time: Duration) -> Option<Block> {
        let idle = self.free.values().filter_map(VecDeque::front).filter(|block| block.is_ready_for(None));
        let oldest = idle.min_by_key(|block| block.free_since).filter(|block| block.free_since.elapsed() >= time)?;
        let class = oldest.memory.bytes;
        self.take_at(class, 0)
    }

    fn take_at(&mut self, class: usize, index: usize) -> Option<Block> {
        let list = self.free.get_mut(&class)?;
        let block = list.remove(index)?;
        if list.is_empty() {
            self.free.remove(&class);
        }
        self.cached -= class;
        Some(block)
    }

    /// Bytes in use or reserved, without the unused rest of `claim`.
    fn committed(&self, claim: Option<&SharedClaim>) -> usize {
        let own = claim.map_or(0, |claim| claim.lock().left());
        self.in_use + self.reserved - own
    }

    /// Whether `bytes` fit under the limit beside the committed bytes.
    fn fits(&self, bytes: usize, claim: Option<&SharedClaim>, limit: usize) -> bool {
        self.committed(claim).saturating_add(bytes) <= limit
    }

    /// Counts `bytes` as in use, and as drawn from `claim`.
    fn count(&mut self, bytes: usize, claim: Option<&SharedClaim>) {
        self.in_use += bytes;
        self.peak = self.peak.max(self.in_use);
        self.recent_peaks[0] = self.recent_peaks[0].max(self.in_use);
        self.change(claim, |claim| claim.drawn += bytes);
    }

    /// Undoes [`count`](Self::count).
    fn give_back(&mut self, bytes: usize, claim: Option<&SharedClaim>) {
        self.in_use -= bytes;
        self.change(claim, |claim| claim.drawn -= bytes);
    }

    /// Changes a claim, and updates the reserved bytes.
    fn change(&mut self, claim: Option<&SharedClaim>, change: impl FnOnce(&mut Claim)) {
        if let Some(claim) = claim {
            let mut claim = claim.lock();
            let before = claim.left();
            change(&mut claim);
            self.reserved = self.reserved - before + claim.left();
        }
    }
}

/// Bytes of a [`Reservation`], and how many of them are allocated.
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

/// A claim that buffers share with its reservation. Lock order: the pool's state first.
pub(crate) type SharedClaim = Arc<Mutex<Claim>>;

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
