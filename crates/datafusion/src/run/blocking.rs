// SPDX-License-Identifier: Apache-2.0
//! Operators that read all of their input before their first row: aggregations, and the first rows
//! of an order.

use std::sync::Arc;

use columnar::DeviceBatch;
use datafusion::common::{DataFusionError, Result};
use datafusion::physical_expr::PhysicalExpr;
use device::Queue;
use futures::{StreamExt, TryStreamExt, stream};
use kernels::ops::{Sort, SortState};

use super::DeviceBatchStream;
use super::errors::explain;
use super::lists::Elements;
use super::memory::MemoryAttribution;
use crate::error::op_error;
use crate::graph::{AggregateOp, AggregateState, Checks, ListOutput, Stage};

/// A kernel operator that takes batches and gives its rows at the end.
trait BlockingOp: Sync {
    type State: Send;

    fn start(&self) -> Self::State;

    fn push(
        &self,
        queue: &Queue,
        state: &mut Self::State,
        batch: &DeviceBatch,
    ) -> impl Future<Output = kernels::Result<()>> + Send;

    fn finish(&self, queue: &Queue, state: Self::State) -> impl Future<Output = kernels::Result<Vec<DeviceBatch>>> + Send;
}

/// Implements the trait by the methods of the same names.
macro_rules! blocking_op {
    ($op:ty, $state:ty) => {
        impl BlockingOp for $op {
            type State = $state;

            fn start(&self) -> $state {
                self.start()
            }

            async fn push(&self, queue: &Queue, state: &mut $state, batch: &DeviceBatch) -> kernels::Result<()> {
                self.push(queue, state, batch).await
            }

            async fn finish(&self, queue: &Queue, state: $state) -> kernels::Result<Vec<DeviceBatch>> {
                self.finish(queue, state).await
            }
        }
    };
}
blocking_op!(AggregateOp, AggregateState);
blocking_op!(Sort, SortState);

/// The operator of a stage that reads all of its input first.
pub(super) enum Blocking {
    Aggregate(Arc<AggregateOp>, Vec<ListOutput>),
    TopK(Arc<Sort>),
}

impl Blocking {
    fn lists(&self) -> &[ListOutput] {
        match self {
            Blocking::Aggregate(_, lists) => lists,
            Blocking::TopK(_) => &[],
        }
    }
}

/// Runs the operator of a stage over all of its input.
pub(super) fn run(input: DeviceBatchStream, op: Blocking, checks: Checks, stage: Arc<Stage>, queue: Queue) -> DeviceBatchStream {
    stream::once(async move {
        let mut elements = Elements::new(op.lists());
        let batches = match &op {
            Blocking::Aggregate(op, _) => result(op.as_ref(), &checks, input, &mut elements, &stage, &queue).await?,
            Blocking::TopK(op) => result(op.as_ref(), &checks, input, &mut elements, &stage, &queue).await?,
        };
        let batches = batches.into_iter().filter(|batch| batch.num_rows() > 0);
        let batches: Vec<_> = batches.map(|batch| elements.attach(&queue, &stage, batch)).collect();
        Ok::<_, DataFusionError>(stream::iter(batches))
    })
    .try_flatten()
    .boxed()
}

/// As [`run`] for an operator that holds all of its input in device memory.
pub(super) fn run_over_whole_input(
    input: DeviceBatchStream,
    op: Blocking,
    checks: Checks,
    stage: Arc<Stage>,
    queue: Queue,
) -> DeviceBatchStream {
    let memory = MemoryAttribution::new(&stage.operator, "its input");
    run(memory.counted(input), op, checks, stage, queue).map_err(move |error| memory.attributed(error)).boxed()
}

async fn result<O: BlockingOp>(
    op: &O,
    checks: &[Arc<dyn PhysicalExpr>],
    mut input: DeviceBatchStream,
    elements: &mut Elements<'_>,
    stage: &Stage,
    queue: &Queue,
) -> Result<Vec<DeviceBatch>> {
    let mut state = op.start();
    while let Some(batch) = input.next().await {
        let batch = batch?;
        elements.record(&batch)?;
        if let Err(error) = op.push(queue, &mut state, &batch).await {
            return Err(explain(error, &stage.operator, queue, &batch, checks).await);
        }
    }
    drop(input);
    op.finish(queue, state).await.map_err(|error| op_error(&stage.operator, error))
}
