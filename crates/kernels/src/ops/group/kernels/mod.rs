// SPDX-License-Identifier: Apache-2.0
//! The kernels of a [`GroupBy`](super::GroupBy).

mod find;
mod output;
mod table;
mod update;
mod winners;

use super::key::GroupKey;
use super::var_width_min_max::VarWidthMinMax;
use super::{Feed, GroupMode, KEYS_OF_STORE, Occupancy};
use crate::Result;
use crate::codegen::{RowWriter, Value};
use crate::expr::Expr;
use crate::ops::Options;
use crate::ops::accumulate::Accumulators;
use crate::ops::launch::program::Kernel;
use crate::ops::launch::source::Source;

/// C type of states that a kernel only reads.
const STATES: &str = "const G u64 *RESTRICT";

/// A planned aggregation, which generates the kernels.
pub(super) struct GroupKernels {
    pub options: Options,
    pub mode: GroupMode,
    pub occupancy: Occupancy,
    pub keys: Vec<GroupKey>,
    pub accumulators: Accumulators,
    pub extremes: Vec<VarWidthMinMax>,
    /// Whether work-items have private copies of the states.
    pub private: bool,
}

impl GroupKernels {
    /// State slots of a group, u64 each.
    fn state_slots(&self) -> usize {
        self.accumulators.slots
    }

    /// The kernels of one input.
    pub fn feed(&self, feed: usize, source: Source, keys: Vec<Expr>, kernels: &mut Vec<Kernel>) -> Result<Feed> {
        let mut planned = Feed { source, keys, find: None, store_keys: vec![], store_bytes: vec![], updates: vec![] };
        if !self.mode.is_dense() {
            planned.find = Some(kernels.len());
            kernels.push(self.find_kernel(feed, &planned)?);
        }
        if self.mode.stores_keys() {
            for first in (0..self.keys.len()).step_by(KEYS_OF_STORE) {
                planned.store_keys.push(kernels.len());
                kernels.push(self.store_keys_kernel(feed, &planned, first)?);
            }
            for (index, key) in self.keys.iter().enumerate() {
                planned.store_bytes.push(key.store.is_str().then_some(kernels.len()));
                if key.store.is_str() {
                    kernels.push(self.store_bytes_kernel(feed, &planned, index)?);
                }
            }
        }
        let own: Vec<usize> =
            (0..self.accumulators.states.len()).filter(|index| self.accumulators.states[*index].feed == feed).collect();
        let mut pending = vec![own];
        while let Some(part) = pending.pop() {
            if part.is_empty() && !self.sets_bits(feed, planned.updates.len()) {
                continue;
            }
            let kernel = self.update_kernel(feed, planned.updates.len(), &planned, &part)?;
            if !kernel.fits(&self.options) && part.len() > 1 {
                let (first, second) = part.split_at(part.len() / 2);
                pending.extend([second.to_vec(), first.to_vec()]);
                continue;
            }
            planned.updates.push(kernels.len());
            kernels.push(kernel);
        }
        Ok(planned)
    }

    /// Whether an update kernel of a feed sets the bits of groups with rows: the first one of the
    /// input. Distinct values are of groups that it has.
    fn sets_bits(&self, feed: usize, number: usize) -> bool {
        feed == 0 && number == 0 && self.occupancy.has_bits()
    }

    /// Appends `body` for rows that pass the filter and the joins of the source.
    fn filtered<'a>(
        &self,
        source: &Source,
        writer: &mut RowWriter<'a>,
        body: impl FnOnce(&mut RowWriter<'a>) -> Result<()>,
    ) -> Result<()> {
        match source.write_filter(writer)? {
            None => body(writer),
            Some(condition) => writer.guarded(&condition, body),
        }
    }

    fn evaluate(&self, writer: &mut RowWriter<'_>, feed: &Feed) -> Result<Vec<Value>> {
        for key in &self.keys {
            key.need(writer.params());
        }
        self.keys.iter().zip(&feed.keys).map(|(key, expr)| key.eval(writer, expr)).collect()
    }

    /// Appends the group number of a dense aggregation, as a local `g`.
    fn dense_number(&self, writer: &mut RowWriter<'_>, values: &[Value]) {
        let mut number = String::from("0");
        for (key, value) in self.keys.iter().zip(values) {
            let span = key.span().unwrap_or(1);
            let packed = format!("(u32){}", key.pack(value));
            let value = match &value.valid {
                Some(valid) => format!("({valid} ? {packed} : {}u)", span - 1),
                None => packed,
            };
            number = if number == "0" { value } else { format!("({number}) * {span}u + {value}") };
        }
        writer.push(&format!("u32 g = {number};"));
        // The value of an expression that failed may be out of its bounds.
        if let (GroupMode::Dense { groups }, true) = (&self.mode, writer.params().can_fail()) {
            writer.push(&format!("if (g >= {groups}u) g = 0;"));
        }
    }
}
