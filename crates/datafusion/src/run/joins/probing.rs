// SPDX-License-Identifier: Apache-2.0
//! Rows of a probe side on their way through joins.

use std::sync::Arc;

use columnar::DeviceBatch;
use datafusion::common::{DataFusionError, Result};
use datafusion::physical_plan::metrics::Count;
use device::Queue;
use futures::stream::BoxStream;
use futures::{StreamExt, TryStreamExt, stream};
use kernels::ops::{ChainState, FirstStep, JoinChain};

use super::failed::{failed_chain, failed_unmatched_build_row};
use super::tables::Tables;
use crate::error::op_error;
use crate::graph::{ChainPlan, Stage};
use crate::run::DeviceBatchStream;
use crate::run::select::{BATCHES_STARTED, started};
use crate::run::state::Run;

/// Adds the removed rows to each dynamic filter's counter.
pub(super) fn count(counters: &[Count], removed: impl IntoIterator<Item = u64>) {
    counters.iter().zip(removed).for_each(|(counter, rows)| counter.add(rows as usize));
}

/// The probe side of a chain of joins.
pub(super) struct Probing {
    queue: Queue,
    chain: Arc<JoinChain>,
    state: ChainState,
    /// Slices of the probe side after the first step of the chain, each with its batch.
    first_steps: BoxStream<'static, Result<(DeviceBatch, FirstStep)>>,
    pub current: CurrentBatch,
}

/// The batch that is on its way, for messages.
#[derive(Clone)]
pub(super) struct CurrentBatch {
    plan: Arc<ChainPlan>,
    stage: Arc<Stage>,
    tables: Arc<Tables>,
    batch: Option<DeviceBatch>,
}

impl CurrentBatch {
    /// The message of an error on the way.
    pub async fn failed(&self, error: kernels::Error, queue: &Queue) -> DataFusionError {
        match (&error, &self.batch) {
            (kernels::Error::JoinedRow, Some(batch)) => failed_chain(&self.stage, &self.plan, &self.tables, queue, batch).await,
            _ => op_error(&self.stage.operator, error),
        }
    }
}

impl Probing {
    pub fn new(
        input: DeviceBatchStream,
        chain: JoinChain,
        plan: &Arc<ChainPlan>,
        stage: &Arc<Stage>,
        tables: &Arc<Tables>,
        queue: &Queue,
    ) -> Probing {
        let (state, chain, queue) = (chain.start(), Arc::new(chain), queue.clone());
        let (plan, stage, tables) = (Arc::clone(plan), Arc::clone(stage), Arc::clone(tables));
        let current = CurrentBatch { plan, stage, tables, batch: None };
        let filter = (Arc::clone(&chain), queue.clone(), current.clone());
        let slices = input.and_then(move |batch| {
            let (chain, queue, current) = filter.clone();
            async move {
                match chain.filtered(&queue, &batch).await {
                    Ok(rows) => Ok(stream::iter(chain.slices(&queue, &rows).map(move |slice| Ok((batch.clone(), slice))))),
                    Err(error) => Err(CurrentBatch { batch: Some(batch), ..current }.failed(error, &queue).await),
                }
            }
        });
        let start = (chain.first_step(&queue, &state), current.clone(), queue.clone());
        let first_steps = slices.try_flatten().map(move |slice: Result<(DeviceBatch, DeviceBatch)>| {
            let (start, current, queue) = &start;
            let first_step = slice.map(|(batch, slice)| (batch, start(slice)));
            let (current, queue) = (current.clone(), queue.clone());
            started(async move {
                let (batch, first_step) = first_step?;
                match first_step.await {
                    Ok(first_step) => Ok((batch, first_step)),
                    Err(error) => Err(CurrentBatch { batch: Some(batch), ..current }.failed(error, &queue).await),
                }
            })
        });
        Probing { queue, chain, state, first_steps: first_steps.buffered(BATCHES_STARTED).boxed(), current }
    }

    /// The next batch of joined rows.
    pub async fn next(&mut self) -> Result<Option<DeviceBatch>> {
        loop {
            match self.chain.next(&self.queue, &mut self.state).await {
                Ok(None) => {}
                Ok(batch) => return Ok(batch),
                Err(error) => return Err(self.current.failed(error, &self.queue).await),
            }
            let Some(first_step) = self.first_steps.next().await else { return Ok(None) };
            let (batch, first_step) = first_step?;
            self.chain.resume(&mut self.state, first_step);
            self.current.batch = Some(batch);
        }
    }

    /// Number of rows that each dynamic filter has removed.
    pub fn removed(&self) -> impl Future<Output = kernels::Result<Vec<u64>>> + Send + use<> {
        self.chain.removed(&self.queue, &self.state)
    }

    /// Counts the rows that dynamic filters removed, at the end of the run.
    pub fn count_removed(&self, run: &Run) {
        let (counters, operator) = (self.current.tables.removed.clone(), self.current.stage.operator.clone());
        let removed = self.removed();
        run.at_end(async move {
            count(&counters, removed.await.map_err(|error| op_error(&operator, error))?);
            Ok(())
        });
    }

    /// The next unmatched rows of the build side, after the last probe.
    pub async fn next_unmatched(&mut self) -> Result<Option<DeviceBatch>> {
        match self.chain.finish(&self.queue, &mut self.state).await {
            Ok(rest) => Ok(rest),
            Err(kernels::Error::Row { row }) => {
                let CurrentBatch { plan, stage, tables, .. } = &self.current;
                Err(failed_unmatched_build_row(stage, plan, tables, &self.queue, &self.state, row).await)
            }
            Err(error) => Err(op_error(&self.current.stage.operator, error)),
        }
    }
}
