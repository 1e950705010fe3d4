// SPDX-License-Identifier: Apache-2.0
//! Aggregations whose groups do not fit device memory: rows of further groups are set aside.
//!
//! A *frozen* state takes no new groups. Rows of its groups are aggregated, the others are given
//! back, for an aggregation of their own. So each group is whole in one of them.

use arrow::datatypes::SchemaRef;
use columnar::{ColumnType, DeviceBatch};
use device::{Arg, Buffer};

use super::table::SET_ASIDE;
use super::{GroupBy, GroupByState};
use crate::codegen::{CType, Params};
use crate::ops::launch::compact::{Survivors, mask_body, row_indices};
use crate::ops::launch::program::{FixedProgram, Kernel};
use crate::ops::launch::{Launch, NamedArgs};
use crate::ops::{Gather, Options};
use crate::prelude::Section;
use crate::{Error, Result};

/// Positions of the kernels.
const MASK: usize = 0;
const ROW_INDICES: usize = 1;

/// Gathers the rows that are set aside.
#[derive(Debug)]
pub(super) struct SetAside {
    program: FixedProgram,
    gather: Gather,
}

impl SetAside {
    /// The rows of a batch whose group ids say so. Waits for their number.
    pub async fn rows(&self, launch: &Launch<'_>, batch: &DeviceBatch, ids: &Buffer) -> Result<Option<DeviceBatch>> {
        let (queue, n) = (launch.queue, batch.num_rows());
        let launch = launch.with_program(&self.program).await?;
        let extra = [("ids", Arg::Buffer(ids))];
        let rows = Survivors::find(&launch, MASK, &[], n, &extra).await?;
        if rows.count == 0 {
            return Ok(None);
        }
        let indices = queue.alloc(rows.count * size_of::<u32>())?;
        let mut named: NamedArgs<'_> = rows.args();
        named.push(("indices", Arg::Buffer(&indices)));
        launch.run(ROW_INDICES, rows.grid(), named)?;
        self.gather.run(queue, batch, &indices, rows.count).await.map(Some)
    }
}

impl GroupByState {
    /// Number of groups so far.
    pub fn groups(&self) -> usize {
        self.groups
    }
}

impl GroupBy {
    /// Whether a state can be frozen: its groups are in a table, and none of the aggregates is
    /// DISTINCT.
    pub fn may_freeze(&self) -> bool {
        !self.mode.is_dense() && self.distincts.is_empty()
    }

    /// Makes a state take no further groups.
    ///
    /// # Errors
    /// `Unsupported` if a column of the input cannot be gathered; `Internal` unless
    /// [`may_freeze`](Self::may_freeze).
    pub fn freeze(&self, state: &mut GroupByState) -> Result<()> {
        let feed = self.feeds.first().filter(|_| self.may_freeze());
        let feed = feed.ok_or_else(|| Error::Internal("an aggregation that cannot be frozen".into()))?;
        let program = FixedProgram::new("GroupBy", &self.options, |options| {
            vec![mask_kernel(options), row_indices("group_set_aside_rows", options)]
        });
        let (schema, types) = feed.source.input();
        let gather = Gather::try_new(schema, types, self.options.clone())?;
        state.set_aside = Some(SetAside { program, gather });
        Ok(())
    }

    /// Schema and types of the rows that [`push_set_aside`](Self::push_set_aside) takes. Strings
    /// with 32-bit offsets are set aside with offsets of 64 bits.
    ///
    /// # Errors
    /// `Internal` for an aggregation without an input.
    pub fn set_aside_types(&self) -> Result<(SchemaRef, Vec<ColumnType>)> {
        let feed = self.feeds.first().ok_or_else(|| Error::Internal("an aggregation without an input".into()))?;
        Ok(feed.source.input())
    }

    /// About the device bytes that the state grows by where a batch has so many new groups, and
    /// that the result takes at the end.
    ///
    /// `row_bytes`: of all rows of the batch, for strings.
    pub fn growth_bytes(&self, state: &GroupByState, rows: usize, row_bytes: usize) -> usize {
        let groups = state.groups + rows;
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
            .filter_map(|(buffers, used)| Some((buffers.heap.as_ref()?.len(), used + row_bytes)))
            .map(|(heap, needed)| if heap >= needed { 0 } else { needed.next_power_of_two() })
            .sum();
        let heaps = if hashed.is_none() && self.mode.stores_keys() { row_bytes.next_power_of_two() } else { heaps };
        let state_bytes = self.accumulators.slots * size_of::<u64>() + self.extremes.len() * EXTREME_BYTES;
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
}

/// Bytes of a slot of the hash table.
const SLOT_BYTES: usize = 2 * size_of::<u64>();
/// Bytes of a group's MIN or MAX that exceeds a state slot, beside its bytes.
const EXTREME_BYTES: usize = 3 * size_of::<u64>();

fn mask_kernel(options: &Options) -> Kernel {
    let mut params = Params::new();
    params.need(Section::Base);
    let ids = params.named("ids", "const G u32 *RESTRICT");
    let body = mask_body(&mut params, options, "", &format!("{ids}[row] == {SET_ASIDE}"));
    Kernel::new("group_set_aside", params, body)
}
