// SPDX-License-Identifier: Apache-2.0
//! The partitions of a stage as one stream.

use std::collections::VecDeque;
use std::sync::Arc;

use columnar::DeviceBatch;
use datafusion::common::runtime::JoinSet;
use datafusion::common::{Result, internal_datafusion_err};
use futures::{StreamExt, stream};
use tokio::sync::mpsc;

use super::DeviceBatchStream;
use super::state::{BATCHES_AHEAD, Run};
use crate::graph::{Origin, Stage};

impl Run {
    /// All partitions in no order. Host partitions decode in tasks of their own.
    pub fn merge(self: &Arc<Run>, stage: &Arc<Stage>) -> Result<DeviceBatchStream> {
        if stage.origin() == Origin::Resident && stage.partitions == 1 {
            return self.open(stage, 0);
        }
        let (sender, receiver) = mpsc::channel(stage.partitions.max(1));
        let mut tasks = JoinSet::new();
        for partition in 0..stage.partitions {
            read(self.open(stage, partition)?, sender.clone(), &mut tasks);
        }
        drop(sender);
        Ok(received(vec![receiver], tasks))
    }

    /// One partition after another. Those that wait for their turn read a few batches ahead.
    pub fn merge_in_order(self: &Arc<Run>, stage: &Arc<Stage>) -> Result<DeviceBatchStream> {
        if stage.partitions <= 1 {
            return self.merge(stage);
        }
        let mut tasks = JoinSet::new();
        let mut receivers = Vec::with_capacity(stage.partitions);
        for partition in 0..stage.partitions {
            let (sender, receiver) = mpsc::channel(BATCHES_AHEAD);
            read(self.open(stage, partition)?, sender, &mut tasks);
            receivers.push(receiver);
        }
        Ok(received(receivers, tasks))
    }
}

/// Reads a partition in a task of its own, up to its first error.
fn read(mut batches: DeviceBatchStream, sender: mpsc::Sender<Result<DeviceBatch>>, tasks: &mut JoinSet<()>) {
    tasks.spawn(async move {
        while let Some(batch) = batches.next().await {
            let failed = batch.is_err();
            if sender.send(batch).await.is_err() || failed {
                return;
            }
        }
    });
}

/// Batches that the tasks send, one receiver after another.
fn received(receivers: Vec<mpsc::Receiver<Result<DeviceBatch>>>, tasks: JoinSet<()>) -> DeviceBatchStream {
    let state = (receivers.into_iter().collect::<VecDeque<_>>(), tasks);
    let merged = stream::try_unfold(state, |(mut receivers, mut tasks)| async move {
        while let Some(receiver) = receivers.front_mut() {
            if let Some(batch) = receiver.recv().await {
                return Ok(Some((batch?, (receivers, tasks))));
            }
            receivers.pop_front();
        }
        // A task that panicked closes its end of the channel without an error.
        while let Some(joined) = tasks.join_next().await {
            joined.map_err(|error| internal_datafusion_err!("a task that reads a partition failed: {error}"))?;
        }
        Ok(None)
    });
    merged.boxed()
}
