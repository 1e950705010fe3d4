// SPDX-License-Identifier: Apache-2.0
//! Joins that give rows of their build side alone.

use std::sync::Arc;

use device::Queue;
use futures::{StreamExt, TryStreamExt, stream};
use kernels::ops::VisitedBitmap;

use super::failed::failed_build_side;
use super::tables::build;
use crate::error::op_error;
use crate::graph::BuildSideJoin;
use crate::run::DeviceBatchStream;
use crate::run::state::Run;

/// Runs the probe side over the build table's visited bitmap, then gives the build side's rows with
/// a mark.
pub(in crate::run) fn build_side(join: Arc<BuildSideJoin>, operator: String, run: Arc<Run>, queue: Queue) -> DeviceBatchStream {
    stream::once(async move {
        let table = build(&join.build, &run, &queue).await?;
        // DataFusion reads the probe side of joins without keys in any case.
        let empty = table.gives_nothing(join.join.kind) && !join.join.keys.is_empty();
        let op = VisitedBitmap::try_new(join.input.clone(), &join.join, Some(Arc::clone(&table)), join.options.clone())
            .map_err(|error| op_error(&operator, error))?;
        let mut state = op.start();
        let mut input = if empty { stream::empty().boxed() } else { run.merge(&join.probe)? };
        while let Some(batch) = input.next().await {
            let batch = batch?;
            if let Err(error) = op.push(&queue, &mut state, &batch).await {
                return Err(failed_build_side(error, &operator, &join, &table, &queue, &batch).await);
            }
        }
        drop(input);
        let batches = op.finish(&queue, state).await.map_err(|error| op_error(&operator, error))?;
        Ok(stream::iter(batches.into_iter().map(Ok)))
    })
    .try_flatten()
    .boxed()
}
