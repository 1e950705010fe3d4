// SPDX-License-Identifier: Apache-2.0
//! Values of DISTINCT that do not fit device memory.
//!
//! They are taken out of a state, as the groups of their inner aggregation. An aggregation by all
//! of their columns merges what was taken at different times. The result feeds the outer states.

use columnar::{ColumnType, DeviceBatch};
use device::Queue;

use super::{GroupBy, GroupByState, GroupMode};
use crate::expr::Expr;
use crate::ops::Input;
use crate::{Error, Result};

impl GroupBy {
    /// Number of the different DISTINCTs and sketches.
    pub fn distinct_count(&self) -> usize {
        self.distincts.len()
    }

    /// Number of the values that can be [taken out](Self::take_distinct) of a state, each counted
    /// with its keys.
    pub fn distinct_values(&self, state: &GroupByState) -> usize {
        let inner = self.distincts.iter().zip(&state.distincts);
        inner.filter(|(inner, _)| inner.holds_values()).map(|(_, state)| state.groups()).sum()
    }

    /// As [`growth_bytes`](Self::growth_bytes), also for the values of DISTINCT.
    pub fn distinct_growth_bytes(&self, state: &GroupByState, rows: usize, row_bytes: usize) -> usize {
        let of = |op: &GroupBy, state: &GroupByState| match (op.mode, &state.states) {
            // An array whose size does not change.
            (GroupMode::Dense { .. }, Some(_)) => 0,
            (GroupMode::Dense { groups }, None) => groups * op.accumulators.slots * size_of::<u64>(),
            (GroupMode::Inline { .. } | GroupMode::Wide, _) => op.growth_bytes(state, rows, row_bytes),
        };
        let inner = self.distincts.iter().zip(&state.distincts);
        of(self, state) + inner.map(|(inner, state)| of(inner, state)).sum::<usize>()
    }

    /// Whether the groups are values of a DISTINCT in a table. Those of a sketch have a rank beside
    /// their register. Those that are array indexes take bounded memory.
    fn holds_values(&self) -> bool {
        self.types.len() == self.keys.len() && !self.mode.is_dense()
    }

    /// The aggregation that merges values of a DISTINCT that [`take_distinct`](Self::take_distinct)
    /// gave: its groups are those values, each once. `None` for a sketch, and for values that are
    /// array indexes: they take bounded memory.
    ///
    /// # Errors
    /// `Internal` without such a DISTINCT; `Unsupported` if a column cannot be a key.
    pub fn distinct_merge(&self, number: usize) -> Result<Option<GroupBy>> {
        let inner = self.distincts.get(number).ok_or_else(unknown)?;
        if !inner.holds_values() {
            return Ok(None);
        }
        let input = Input { schema: inner.schema.clone(), types: inner.types.clone(), filter: None };
        let keys = inner.schema.fields().iter().enumerate();
        let keys = keys.map(|(index, field)| (Expr::Column(index), field.as_ref().clone())).collect();
        let merge = GroupBy::planned(input, keys, vec![], true, self.options.clone())?;
        // The kernels of the outer states read these layouts.
        let layout = |ty: &ColumnType| (ty.data_type.clone(), ty.nullable, ty.layout.clone());
        if !merge.types.iter().map(layout).eq(inner.types.iter().map(layout)) {
            return Err(Error::Internal("merged values of a DISTINCT in other layouts".into()));
        }
        Ok(Some(merge))
    }

    /// Takes the values of a DISTINCT out of a state, each with its keys.
    ///
    /// # Errors
    /// `Internal` without such a DISTINCT; errors of the device.
    pub async fn take_distinct(&self, queue: &Queue, state: &mut GroupByState, number: usize) -> Result<Vec<DeviceBatch>> {
        let (Some(inner), Some(values)) = (self.distincts.get(number), state.distincts.get_mut(number)) else {
            return Err(unknown());
        };
        let taken = std::mem::replace(values, inner.start());
        Box::pin(inner.finish(queue, taken)).await
    }

    /// Aggregates values of a DISTINCT, which must come once each.
    ///
    /// # Errors
    /// As [`push`](Self::push).
    pub async fn push_distinct(
        &self,
        queue: &Queue,
        state: &mut GroupByState,
        number: usize,
        values: &DeviceBatch,
    ) -> Result<()> {
        if number >= self.distincts.len() {
            return Err(unknown());
        }
        self.push_feed(queue, state, number + 1, values).await.map(drop)
    }
}

fn unknown() -> Error {
    Error::Internal("a DISTINCT that the aggregation does not have".into())
}
