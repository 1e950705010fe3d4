// SPDX-License-Identifier: Apache-2.0
//! Caches in a pool's memory. They give it back when an allocation needs it.

use std::fmt;
use std::sync::{Arc, Weak};

use parking_lot::MutexGuard;

use super::Pool;
use super::claim::SharedClaim;
use super::state::PoolState;

/// A cache in a pool's memory.
pub trait Reclaim: fmt::Debug + Send + Sync {
    /// Bytes that the cache could free now.
    fn reclaimable(&self) -> usize;

    /// Drops buffers of at least `bytes`, or all of them. Returns the bytes. It must not allocate.
    fn reclaim(&self, bytes: usize) -> usize;
}

impl Pool {
    /// Adds a cache, for as long as it lives. An allocation that does not fit takes its memory.
    ///
    /// # Examples
    /// ```
    /// use std::sync::{Arc, Mutex};
    ///
    /// use device::{Buffer, Context, DeviceConfig, Reclaim};
    ///
    /// #[derive(Debug, Default)]
    /// struct Cache(Mutex<Vec<Buffer>>);
    ///
    /// impl Reclaim for Cache {
    ///     fn reclaimable(&self) -> usize {
    ///         self.0.lock().unwrap().iter().map(Buffer::len).sum()
    ///     }
    ///
    ///     fn reclaim(&self, _bytes: usize) -> usize {
    ///         let buffers = std::mem::take(&mut *self.0.lock().unwrap());
    ///         buffers.iter().map(Buffer::len).sum()
    ///     }
    /// }
    ///
    /// let Ok(context) = Context::new(DeviceConfig::default().with_memory_bytes(1 << 20)) else { return Ok(()) };
    /// let (queue, cache) = (context.queue()?, Arc::new(Cache::default()));
    /// context.pool().add_cache(&cache);
    /// cache.0.lock().unwrap().push(queue.alloc(768 << 10)?);
    /// assert_eq!(context.pool().available(), 1 << 20);
    /// let _buffer = queue.alloc(512 << 10)?;
    /// assert_eq!(cache.reclaimable(), 0);
    /// # Ok::<(), device::Error>(())
    /// ```
    pub fn add_cache(&self, cache: &Arc<impl Reclaim + 'static>) {
        let mut caches = self.0.caches.lock();
        caches.retain(|known| known.strong_count() > 0);
        let cache: Weak<_> = Arc::downgrade(cache);
        caches.push(cache);
    }

    /// Bytes below the limit that are free, or reclaimable.
    pub fn available(&self) -> usize {
        let kept: usize = self.caches().iter().map(|cache| cache.reclaimable()).sum();
        self.limit().saturating_sub(self.in_use().saturating_sub(kept))
    }

    /// The locked state, with room for the bytes that `more` gives. Caches make the room.
    ///
    /// # Errors
    /// The bytes in use or reserved, if there is too little room without caches.
    pub(super) fn with_room(
        &self,
        claim: Option<&SharedClaim>,
        more: impl Fn(&PoolState) -> usize,
    ) -> Result<MutexGuard<'_, PoolState>, usize> {
        loop {
            let state = self.0.state.lock();
            let missing = state.committed(claim).saturating_add(more(&state)).saturating_sub(self.0.limit);
            if missing == 0 {
                return Ok(state);
            }
            let in_use = state.in_use + state.reserved;
            drop(state);
            if !self.reclaim(missing) {
                return Err(in_use);
            }
        }
    }

    /// Has caches free `bytes`. Returns whether they freed any.
    pub(super) fn reclaim(&self, bytes: usize) -> bool {
        let mut freed = 0;
        for cache in self.caches() {
            if freed < bytes {
                freed += cache.reclaim(bytes - freed);
            }
        }
        freed > 0
    }

    /// The caches. Without the lock: a cache that drops buffers may be the last holder of another.
    fn caches(&self) -> Vec<Arc<dyn Reclaim>> {
        self.0.caches.lock().iter().filter_map(Weak::upgrade).collect()
    }
}
