// SPDX-License-Identifier: Apache-2.0
//! Values of DISTINCT that may be more than device memory.
//!
//! Once further values would not fit, those so far go to disk, each with its keys. At the end of a
//! round an aggregation by all of their columns merges them, which may spill too. Its groups are
//! the values, each once.

use std::sync::Arc;

use columnar::StorageFormat;
use datafusion::common::Result;
use futures::{StreamExt, TryStreamExt, stream};
use kernels::ops::{GroupBy, GroupByState};

use super::DeviceBatchStream;
use super::aggregate::Aggregation;
use super::spill::{Spill, SpillWriter};
use crate::error::op_error;
use crate::graph::AggregateOp;

/// The values of all DISTINCTs of a state on disk.
#[derive(Default)]
pub(super) struct DistinctValues {
    /// Planned when the first values go to disk.
    spilled: Option<Vec<SpilledValues>>,
}

/// The values of a DISTINCT on disk.
struct SpilledValues {
    number: usize,
    merge: GroupBy,
    spill: Spill,
    /// Without values there is no file.
    writer: Option<SpillWriter>,
}

impl DistinctValues {
    /// Moves the values of a state to disk.
    pub async fn spill(&mut self, of: &Aggregation, op: &GroupBy, state: &mut GroupByState) -> Result<()> {
        if op.distinct_values(state) == 0 {
            return Ok(());
        }
        let spilled = match &mut self.spilled {
            Some(spilled) => spilled,
            None => {
                let values = (0..op.distinct_count()).map(|number| SpilledValues::plan(of, op, number));
                self.spilled.insert(values.filter_map(Result::transpose).collect::<Result<_>>()?)
            }
        };
        for values in spilled {
            values.take(of, op, state).await?;
        }
        Ok(())
    }

    /// Feeds the values to the outer states, each once.
    pub async fn merge(mut self, of: &Aggregation, op: &GroupBy, state: &mut GroupByState) -> Result<()> {
        if self.spilled.is_none() {
            return Ok(());
        }
        // Values that wait would leave little memory to merge others.
        self.spill(of, op, state).await?;
        for values in self.spilled.into_iter().flatten() {
            let number = values.number;
            let mut merged = values.merged(of).await?;
            while let Some(batch) = merged.try_next().await? {
                let pushed = op.push_distinct(&of.queue, state, number, &batch).await;
                pushed.map_err(|error| op_error(&of.stage.operator, error))?;
            }
        }
        Ok(())
    }
}

impl SpilledValues {
    /// `None` if the values stay in memory: they cannot be stored, or take bounded memory.
    fn plan(of: &Aggregation, op: &GroupBy, number: usize) -> Result<Option<SpilledValues>> {
        let merge = op.distinct_merge(number).map_err(|error| op_error(&of.stage.operator, error))?;
        let Some(merge) = merge else { return Ok(None) };
        let Some(format) = StorageFormat::of(merge.schema(), merge.output_types()) else { return Ok(None) };
        let spill = Spill::new(format, &of.stage, &of.run.task);
        Ok(Some(SpilledValues { number, merge, spill, writer: None }))
    }

    /// Writes the values that a state has, and takes them out of it.
    async fn take(&mut self, of: &Aggregation, op: &GroupBy, state: &mut GroupByState) -> Result<()> {
        let taken = op.take_distinct(&of.queue, state, self.number).await;
        for batch in taken.map_err(|error| op_error(&of.stage.operator, error))? {
            let writer = match &mut self.writer {
                Some(writer) => writer,
                None => self.writer.insert(self.spill.writer(&of.queue)?),
            };
            for chunk in batch.chunks(of.run.batch_rows) {
                writer.write(&chunk).await?;
            }
        }
        Ok(())
    }

    /// The values, each once.
    async fn merged(self, of: &Aggregation) -> Result<DeviceBatchStream> {
        let Some(writer) = self.writer else { return Ok(stream::empty().boxed()) };
        let Some(file) = writer.finish().await? else { return Ok(stream::empty().boxed()) };
        let rows = self.spill.read(&of.queue, file)?;
        let merge = Aggregation {
            op: Arc::new(AggregateOp::GroupBy(Box::new(self.merge))),
            lists: vec![],
            // Columns that are read cannot fail.
            checks: Vec::new().into(),
            stage: Arc::clone(&of.stage),
            run: Arc::clone(&of.run),
            queue: of.queue.clone(),
        };
        Ok(merge.over(rows))
    }
}
