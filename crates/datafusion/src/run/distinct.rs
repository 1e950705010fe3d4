// SPDX-License-Identifier: Apache-2.0
//! Aggregations with DISTINCT whose values may be more than device memory.
//!
//! Once further values would not fit, those so far go to disk, each with its keys. At the end an
//! aggregation by all of their columns merges them, which may spill too. Its groups are the values,
//! each once.

use std::sync::Arc;

use columnar::StorageFormat;
use datafusion::common::{Result, internal_err};
use futures::{StreamExt, TryStreamExt, stream};
use kernels::ops::{GroupBy, GroupByState};

use super::DeviceBatchStream;
use super::aggregate::Aggregation;
use super::errors::explain;
use super::spill::{Spill, SpillWriter};
use crate::error::op_error;
use crate::graph::AggregateOp;

/// The values of a DISTINCT on disk.
struct SpilledValues {
    number: usize,
    merge: GroupBy,
    spill: Spill,
    /// Without values there is no file.
    writer: Option<SpillWriter>,
}

impl Aggregation {
    /// Aggregates rows, with DISTINCT. Groups must fit memory, not so values.
    pub(super) fn over_distinct(self, mut rows: DeviceBatchStream) -> DeviceBatchStream {
        stream::once(async move {
            let Some(op) = self.op.group_by() else { return internal_err!("an aggregation without a table has DISTINCT") };
            let failed = |error| op_error(&self.stage.operator, error);
            let (mut state, mut spilled) = (op.start(), None::<Vec<SpilledValues>>);
            while let Some(batch) = rows.try_next().await? {
                for piece in self.pieces(op, batch, false) {
                    if op.distinct_values(&state) > 0 && !self.fits(op, &state, &piece) {
                        for values in self.spilled_values(op, &mut spilled)? {
                            values.take(&self, op, &mut state).await?;
                        }
                    }
                    if let Err(error) = op.push(&self.queue, &mut state, &piece).await {
                        return Err(explain(error, &self.stage.operator, &self.queue, &piece, &self.checks).await);
                    }
                }
            }
            drop(rows);
            // Values that wait would leave little memory to merge others.
            for values in spilled.iter_mut().flatten() {
                values.take(&self, op, &mut state).await?;
            }
            for values in spilled.into_iter().flatten() {
                let number = values.number;
                let mut merged = values.merged(&self).await?;
                while let Some(batch) = merged.try_next().await? {
                    op.push_distinct(&self.queue, &mut state, number, &batch).await.map_err(failed)?;
                }
            }
            let groups = op.finish(&self.queue, state).await.map_err(failed)?;
            Ok(stream::iter(groups.into_iter().filter(|batch| batch.num_rows() > 0).map(Ok)))
        })
        .try_flatten()
        .boxed()
    }

    /// What goes to disk, planned when the first values go there.
    fn spilled_values<'a>(&self, op: &GroupBy, spilled: &'a mut Option<Vec<SpilledValues>>) -> Result<&'a mut [SpilledValues]> {
        if spilled.is_none() {
            let values = (0..op.distinct_count()).map(|number| SpilledValues::plan(self, op, number));
            *spilled = Some(values.filter_map(Result::transpose).collect::<Result<_>>()?);
        }
        Ok(spilled.as_deref_mut().unwrap_or_default())
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
            for piece in batch.chunks(of.run.batch_rows) {
                writer.write(&piece).await?;
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
