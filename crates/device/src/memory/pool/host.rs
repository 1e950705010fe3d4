// SPDX-License-Identifier: Apache-2.0
//! Host memory that buffers use in place; it counts towards the pool's limit.

use super::Pool;
use super::state::PoolState;
use crate::Result;

impl Pool {
    /// Counts host memory that a buffer uses in place, once for each address.
    pub(crate) fn count_host(&self, address: usize, bytes: usize) -> Result<CountedHost> {
        let more = |state: &PoolState| bytes.saturating_sub(state.host.get(&address).map_or(0, |(known, _)| *known));
        let room = self.with_room(None, more);
        let mut state = room.map_err(|in_use| self.out_of_memory(in_use, bytes))?;
        let more = more(&state);
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
