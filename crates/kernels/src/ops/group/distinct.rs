// SPDX-License-Identifier: Apache-2.0
//! Values of DISTINCT that do not fit device memory.
//!
//! They are taken out of a state, as the groups of their inner aggregation. An aggregation by all
//! of their columns merges what was taken at different times. The result feeds the outer states.

use columnar::{ColumnType, DeviceBatch};
use device::Queue;

use super::{GroupBy, GroupByState};
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

    /// Whether the groups are values of a DISTINCT in a table. Those of a sketch have a rank beside
    /// their register. Those that are array indexes take bounded memory.
    fn holds_values(&self) -> bool {
        self.types.len() == self.keys.len() && !self.mode.is_dense()
    }

    /// The aggregation that merges values of a DISTINCT from
    /// [`take_distinct`](Self::take_distinct): its groups are those values, each once. `None` for a
    /// sketch, and for values that are array indexes: they take bounded memory.
    ///
    /// # Errors
    /// `Internal` without such a DISTINCT; `Unsupported` if a column cannot be a key.
    ///
    /// # Examples
    /// ```
    /// use std::sync::Arc;
    /// use arrow::array::{Int64Array, RecordBatch};
    /// use arrow::datatypes::{DataType, Field};
    /// use columnar::{download, natural_types, upload};
    /// use kernels::codegen::Profile;
    /// use kernels::expr::{Aggregate, AggregateFunction, Expr};
    /// use kernels::ops::{GroupBy, Input, Options};
    ///
    /// # futures::executor::block_on(async {
    /// let host = RecordBatch::try_from_iter([("x", Arc::new(Int64Array::from(vec![7, 8, 7])) as _)])?;
    /// let queue = device::Context::new(device::DeviceConfig::default())?.queue()?;
    /// let types = natural_types(&host.schema())?;
    /// let batch = upload(&queue, &host.schema(), &types, &[host.clone()])?;
    ///
    /// let input = Input { schema: host.schema(), types, filter: None };
    /// let (function, arguments) = (AggregateFunction::Count, vec![Expr::Column(0)]);
    /// let count = Aggregate { function, arguments, filter: None, distinct: true, data_type: DataType::Int64 };
    /// let aggregates = vec![(count, Field::new("count", DataType::Int64, false))];
    /// let group = GroupBy::try_new(input, vec![], aggregates, Options::new(Profile::Cpu))?;
    /// let merge = group.distinct_merge(0)?.ok_or("values are few")?;
    /// let (mut state, mut values) = (group.start(), merge.start());
    /// for _ in 0..2 {
    ///     group.push(&queue, &mut state, &batch).await?;
    ///     for taken in group.take_distinct(&queue, &mut state, 0).await? {
    ///         merge.push(&queue, &mut values, &taken).await?;
    ///     }
    /// }
    /// for once in merge.finish(&queue, values).await? {
    ///     group.push_distinct(&queue, &mut state, 0, &once).await?;
    /// }
    /// let counted = group.finish(&queue, state).await?;
    /// assert_eq!(download(&queue, &counted[0]).await?.column(0).as_ref(), &Int64Array::from(vec![2]));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # }).unwrap();
    /// ```
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
    /// As [`push`](Self::push); `Internal` for values of groups that a frozen state does not have.
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
        self.feed_values(queue, state, number, values).await
    }
}

fn unknown() -> Error {
    Error::Internal("a DISTINCT that the aggregation does not have".into())
}
