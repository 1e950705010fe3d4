// SPDX-License-Identifier: Apache-2.0
//! Device memory of grouped states: how it grows, and an estimate of that.

use device::{Arg, Buffer, Queue};

use super::table::HashTable;
use super::var_width_min_max::VarWidthStore;
use super::{FEWEST_STATES, GroupBy, GroupByState, GroupMode, KeyStore, States};
use crate::Result;
use crate::codegen::CType;
use crate::ops::launch::{Launch, NamedArgs};

/// Bytes of a slot of the hash table.
const SLOT_BYTES: usize = 2 * size_of::<u64>();
/// Bytes of a group's MIN or MAX that exceeds a state slot, beside its bytes.
const EXTREME_BYTES: usize = 3 * size_of::<u64>();
/// Largest share of the memory limit for the first keys or states of an aggregation, and for
/// private copies of states.
const FIRST_OF_LIMIT: usize = 32;
const COPIES_OF_LIMIT: usize = 16;
/// Most bytes of states that a CPU sets and copies without a kernel of its own: a kernel takes time
/// to compile.
const MAX_BYTES_WITHOUT_KERNEL: usize = 16 << 20;

/// Groups that arrays have room for at first, of `most` and so many bytes a group: a power of two.
fn first_groups(most: usize, bytes: usize, limit: usize) -> usize {
    let affordable = (limit / FIRST_OF_LIMIT / bytes.max(1)).max(1);
    most.min(1 << affordable.ilog2())
}

impl GroupBy {
    /// About the device bytes of the state's growth, and of the result at the end. Each row of a
    /// batch counts as a new group, unless the state is frozen, and as a new value of each
    /// DISTINCT.
    ///
    /// `row_bytes`: of all rows of the batch, for strings.
    pub fn growth_bytes(&self, state: &GroupByState, rows: usize, row_bytes: usize) -> usize {
        let inner = self.distincts.iter().zip(&state.distincts);
        let values: usize = inner.map(|(inner, state)| inner.growth_bytes(state, rows, row_bytes)).sum();
        values + self.group_growth_bytes(state, rows, row_bytes)
    }

    /// The part of [`growth_bytes`](Self::growth_bytes) that is the groups'.
    pub fn group_growth_bytes(&self, state: &GroupByState, rows: usize, row_bytes: usize) -> usize {
        match (self.mode, &state.states) {
            // An array whose size does not change.
            (GroupMode::Dense { .. }, Some(_)) => 0,
            (GroupMode::Dense { groups }, None) => groups * self.state_bytes(),
            (GroupMode::Inline { .. } | GroupMode::Wide, _) => self.table_growth_bytes(state, rows, row_bytes),
        }
    }

    /// Device bytes of the states of a group.
    fn state_bytes(&self) -> usize {
        self.accumulators.slots * size_of::<u64>() + self.extremes.len() * EXTREME_BYTES
    }

    /// The same of groups in a table.
    fn table_growth_bytes(&self, state: &GroupByState, rows: usize, row_bytes: usize) -> usize {
        // A frozen state takes no groups, but its strings of MIN and MAX change.
        let (new_groups, new_bytes) = if state.further_groups.set_aside().is_some() { (0, 0) } else { (rows, row_bytes) };
        let groups = state.groups + new_groups;
        let capacity = groups.next_power_of_two();
        // Memory is allocated anew where the old does not suffice.
        let grown = |known: Option<usize>, bytes: usize| if known.is_some_and(|known| known >= groups) { 0 } else { bytes };
        let (hashed, states) = (state.hashed.as_ref(), state.states.as_ref());
        let keys = hashed.map(|hashed| &hashed.keys);
        let key_bytes: usize = self.keys.iter().map(|key| key.store_bytes()).sum();
        let (row_bytes_of_key, stored) = match self.mode.stores_keys() {
            true => (size_of::<u64>() + 2 * size_of::<u32>(), capacity * key_bytes),
            false => (size_of::<u64>(), 0),
        };
        let table = grown(hashed.map(|hashed| hashed.table.capacity()), capacity * 2 * SLOT_BYTES);
        let numbers = grown(keys.map(|keys| keys.capacity), capacity * row_bytes_of_key);
        let columns = grown(keys.map(|keys| keys.columns_capacity), stored);
        // A heap doubles beside the old one.
        let heaps = keys.iter().flat_map(|keys| keys.columns.iter().zip(&keys.heap_bytes));
        let heaps: usize = heaps
            .filter_map(|(buffers, used)| Some((buffers.heap.as_ref()?.len(), used + new_bytes)))
            .map(|(heap, needed)| if heap >= needed { 0 } else { needed.next_power_of_two() })
            .sum();
        let heaps = if hashed.is_none() && self.mode.stores_keys() { row_bytes.next_power_of_two() } else { heaps };
        let state_bytes = self.state_bytes();
        let copies = states.map_or(1, |states| states.copies);
        let one = capacity * state_bytes;
        let slots = grown(states.map(|states| states.capacity), (one * copies).min(one.max(self.options.private_bytes)));
        // Each batch copies the winning strings, and so does the result.
        let extremes = self.extremes.iter().filter(|extreme| extreme.ctype == CType::Str).count();
        let winners: usize = states.iter().flat_map(|states| &states.extremes).map(|store| store.values.len()).sum();
        let winners = 2 * (winners + extremes * row_bytes);
        let result = groups * (key_bytes + state_bytes);
        table + numbers + columns + heaps + slots + winners + result + rows * size_of::<u32>()
    }

    /// A table with room for `capacity` groups, and with the groups so far.
    pub(super) fn table_of_groups(
        &self,
        launch: &Launch<'_>,
        state: &GroupByState,
        keys: &KeyStore,
        capacity: usize,
    ) -> Result<HashTable> {
        let table = HashTable::new(launch.queue, capacity)?;
        if state.groups > 0 {
            let mut named: NamedArgs<'_> = vec![("n", Arg::U64(state.groups as u64)), ("null_group", Arg::U64(state.null_group))];
            named.extend(table.args(table.capacity()));
            named.extend(self.key_args(keys));
            launch.run(self.kernels.insert, launch.grid(state.groups), named)?;
        }
        Ok(table)
    }

    /// A key store for `capacity` groups, with the keys of `groups` groups of the store before.
    pub(super) fn reserve_keys(&self, queue: &Queue, old: Option<KeyStore>, capacity: usize, groups: usize) -> Result<KeyStore> {
        let old = match old {
            Some(keys) if keys.capacity >= capacity => return Ok(keys),
            old => old,
        };
        let wide = self.mode.stores_keys();
        let words = queue.alloc(capacity * 8)?;
        let small = if wide { capacity * 4 } else { 0 };
        let (origins, new_slots) = (queue.alloc(small)?, queue.alloc(small)?);
        let mut keys = KeyStore {
            words,
            origins,
            new_slots,
            capacity,
            columns: vec![],
            columns_capacity: 0,
            heap_bytes: vec![0; self.keys.len()],
        };
        match old {
            Some(old) => {
                queue.copy(&old.words, 0, &keys.words, 0, groups * 8)?;
                keys.columns = old.columns;
                keys.columns_capacity = old.columns_capacity;
                keys.heap_bytes = old.heap_bytes;
            }
            None if wide => {
                for key in &self.keys {
                    let mut buffers = key.store.alloc(queue, 0)?;
                    buffers.heap = if key.store.is_str() { Some(queue.alloc(0)?) } else { None };
                    keys.columns.push(buffers);
                }
            }
            None => {}
        }
        Ok(keys)
    }

    /// Groups that arrays of so many bytes a group have room for at first.
    fn first_groups(&self, queue: &Queue, bytes: usize) -> usize {
        first_groups(self.options.initial_groups.min(FEWEST_STATES), bytes, queue.context().pool().limit())
    }

    /// Reserves columns of the key store for `groups` groups.
    pub(super) fn reserve_key_columns(&self, queue: &Queue, store: &mut KeyStore, groups: usize) -> Result<()> {
        if store.columns_capacity >= groups {
            return Ok(());
        }
        let key_bytes = self.keys.iter().map(|key| key.store_bytes()).sum();
        let capacity = groups.next_power_of_two().max(self.first_groups(queue, key_bytes));
        for (key, buffers) in self.keys.iter().zip(&mut store.columns) {
            let mut grown = key.store.alloc(queue, capacity)?;
            grown.heap = buffers.heap.take();
            for (old, new) in [(&buffers.values, &grown.values), (&buffers.valid, &grown.valid)] {
                if let (Some(old), Some(new)) = (old, new) {
                    queue.copy(old, 0, new, 0, old.len().min(new.len()))?;
                }
            }
            *buffers = grown;
        }
        store.columns_capacity = capacity;
        Ok(())
    }

    /// Reserves states for `groups` groups.
    pub(super) fn reserve_states(&self, launch: &Launch<'_>, state: &mut GroupByState, groups: usize) -> Result<()> {
        if state.states.as_ref().is_some_and(|states| states.capacity >= groups) {
            return Ok(());
        }
        let queue = launch.queue;
        let slot_count = self.accumulators.slots;
        let (old, old_capacity, old_copies, extremes) = match state.states.take() {
            Some(states) => (states.slots, states.capacity, states.copies, Some(states.extremes)),
            None => (queue.alloc(8)?, 0, 1, None),
        };
        let capacity = match self.mode {
            GroupMode::Dense { groups } => groups,
            GroupMode::Inline { .. } | GroupMode::Wide => {
                groups.next_power_of_two().max(self.first_groups(queue, self.state_bytes()))
            }
        };
        let copied_bytes = self.options.private_bytes.min(queue.context().pool().limit() / COPIES_OF_LIMIT);
        let most = if slot_count == 0 { usize::MAX } else { copied_bytes / (capacity * slot_count * 8).max(1) };
        let wanted = match self.options.max_work_groups {
            0 => queue.context().info().compute_units.max(1),
            chosen => chosen,
        };
        let copies = if self.private { (wanted as usize).min(most).max(1) } else { 1 };
        let state_bytes = slot_count * size_of::<u64>();
        let bytes = (copies * capacity * state_bytes).max(8);
        let begins_with_zeros = self.accumulators.init().iter().all(|slot| *slot == 0);
        // The cores of a CPU set much memory faster together, by a kernel.
        let is_cheap = !self.private || bytes <= MAX_BYTES_WITHOUT_KERNEL;
        let is_copied = begins_with_zeros && copies >= old_copies && is_cheap;
        let slots = if is_copied { queue.zeroed(bytes)? } else { queue.alloc(bytes)? };
        let of_copy = old_capacity * state_bytes;
        if is_copied && of_copy > 0 {
            for copy in 0..old_copies {
                queue.copy(&old, copy * of_copy, &slots, copy * capacity * state_bytes, of_copy)?;
            }
        }
        if slot_count > 0 && !is_copied {
            let named = vec![
                ("old", Arg::Buffer(&old)),
                ("old_capacity", Arg::U64(old_capacity as u64)),
                ("old_copies", Arg::U64(old_copies as u64)),
                ("states", Arg::Buffer(&slots)),
                ("n", Arg::U64(capacity as u64)),
                ("copies", Arg::U64(copies as u64)),
            ];
            launch.run(self.kernels.grow, launch.grid(capacity), named)?;
        }
        let extremes = match extremes {
            None => self.extremes.iter().map(|extreme| VarWidthStore::new(queue, extreme, capacity)).collect::<Result<_>>()?,
            Some(mut extremes) => {
                for (extreme, store) in self.extremes.iter().zip(&mut extremes) {
                    store.grow(queue, extreme, old_capacity, capacity)?;
                }
                extremes
            }
        };
        let occupied = self.occupancy.has_bits().then(|| queue.zeroed(capacity.div_ceil(32) * 4)).transpose()?;
        state.states = Some(States { slots, occupied, capacity, copies, extremes });
        Ok(())
    }
}

/// A heap of at least `needed` bytes, with the `used` bytes of the old one.
pub(super) fn grown_heap(queue: &Queue, old: Option<Buffer>, used: usize, needed: usize) -> Result<Buffer> {
    match old {
        Some(heap) if heap.len() >= needed => Ok(heap),
        old => {
            let heap = queue.alloc(needed.next_power_of_two())?;
            if let Some(old) = old.filter(|_| used > 0) {
                queue.copy(&old, 0, &heap, 0, used)?;
            }
            Ok(heap)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_groups_fit_a_small_limit() {
        assert_eq!(first_groups(FEWEST_STATES, 100, 8 << 30), FEWEST_STATES);
        assert_eq!(first_groups(FEWEST_STATES, 100, 16 << 20), 4096);
        assert_eq!(first_groups(FEWEST_STATES, 1 << 20, 1 << 20), 1);
        assert_eq!(first_groups(FEWEST_STATES, 0, 1 << 20), FEWEST_STATES);
    }
}
