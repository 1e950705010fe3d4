// SPDX-License-Identifier: Apache-2.0
//! The partitions of a stage as one stream.
//!
//! A union has the partitions of all its inputs. Each partition that is read has batches on their
//! way. So a run reads about as many at once as the session has target partitions, and opens the
//! next ones when these end. It reads all of them at once where one is a live stream.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use columnar::DeviceBatch;
use datafusion::common::runtime::JoinSet;
use datafusion::common::{Result, internal_datafusion_err};
use futures::future::ready;
use futures::{StreamExt, TryStreamExt, stream};
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
        let groups = stage.partition_groups();
        if let [all] = groups.as_slice() {
            return self.merge_group(stage, all.clone());
        }
        let at_once = self.groups_at_once(&groups);
        let (run, stage) = (Arc::clone(self), Arc::clone(stage));
        let groups = stream::iter(groups).map(move |group| run.merge_group(&stage, group));
        Ok(groups.try_flatten_unordered(at_once).boxed())
    }

    /// One partition after another. Those that wait for their turn read a few batches ahead.
    pub fn merge_in_order(self: &Arc<Run>, stage: &Arc<Stage>) -> Result<DeviceBatchStream> {
        if stage.partitions <= 1 {
            return self.merge(stage);
        }
        let groups = stage.partition_groups();
        if let [all] = groups.as_slice() {
            return self.read_in_order(stage, all.clone());
        }
        let at_once = self.groups_at_once(&groups);
        let (run, stage) = (Arc::clone(self), Arc::clone(stage));
        // A group starts to read when the buffer takes it, not at its turn.
        let groups = stream::iter(groups).map(move |group| ready(run.read_in_order(&stage, group)));
        Ok(groups.buffered(at_once).try_flatten().boxed())
    }

    /// Number of groups that are read at once.
    fn groups_at_once(&self, groups: &[Range<usize>]) -> usize {
        let largest = groups.iter().map(Range::len).max().unwrap_or(0);
        (self.task.session_config().target_partitions() / largest.max(1)).max(1)
    }

    /// Partitions in no order.
    fn merge_group(self: &Arc<Run>, stage: &Arc<Stage>, group: Range<usize>) -> Result<DeviceBatchStream> {
        let (sender, receiver) = mpsc::channel(group.len().max(1));
        let mut tasks = JoinSet::new();
        for partition in group {
            read(self.open(stage, partition)?, sender.clone(), &mut tasks);
        }
        drop(sender);
        Ok(received(vec![receiver], tasks))
    }

    /// Partitions one after another, all of which begin to read.
    fn read_in_order(self: &Arc<Run>, stage: &Arc<Stage>, group: Range<usize>) -> Result<DeviceBatchStream> {
        let mut tasks = JoinSet::new();
        let mut receivers = Vec::with_capacity(group.len());
        for partition in group {
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
