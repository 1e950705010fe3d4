// SPDX-License-Identifier: Apache-2.0
//! Joins whose build side has more rows of one key than memory holds: blocks of it are joined one
//! after another.
//!
//! Some joins give a probe row by its matches in all blocks. Each of their blocks is joined with
//! the probe rows that have a match in it. Where the join gives rows without a match, they come
//! last. Matched rows of a semi or mark join are given once, and not looked up in later blocks.

use std::pin::Pin;
use std::sync::Arc;

use columnar::DeviceBatch;
use datafusion::common::{DataFusionError, Result};
use datafusion::physical_plan::metrics::Count;
use futures::stream::Peekable;
use futures::{StreamExt, TryStreamExt, stream};
use kernels::ops::JoinKind;

use super::partitioned::PairJoin;
use crate::run::DeviceBatchStream;
use crate::run::memory::MemoryAttribution;
use crate::run::partitions::Partition;

/// A build side in blocks.
struct Blocks {
    join: Arc<PairJoin>,
    build: Peekable<DeviceBatchStream>,
    probe: Partition,
    unmatched: Unmatched,
    number: Count,
}

/// Probe rows without a match in the blocks so far.
enum Unmatched {
    /// The kind of join does not ask for them, or they are given.
    Unknown,
    /// All rows: there was no block yet.
    All,
    Rows(Partition),
}

/// The joined rows, by blocks of the build side. Each reads the probe side.
pub(super) fn joined_in_blocks(join: Arc<PairJoin>, build: DeviceBatchStream, probe: Partition) -> DeviceBatchStream {
    let unmatched = if join.kind().joins_blocks_independently() { Unmatched::Unknown } else { Unmatched::All };
    let number = join.block_counter();
    let blocks = Blocks { join, build: build.peekable(), probe, unmatched, number };
    let rows = stream::try_unfold(blocks, |mut blocks| async move {
        let memory = MemoryAttribution::new(&blocks.join.side()?.operator, "a block of its build side");
        let rows = blocks.next(&memory).await.map_err(|error| memory.attributed(error))?;
        Ok::<_, DataFusionError>(rows.map(|rows| (rows, blocks)))
    });
    rows.try_flatten().boxed()
}

impl Blocks {
    /// The joined rows of the next block, then those without a match.
    async fn next(&mut self, memory: &MemoryAttribution) -> Result<Option<DeviceBatchStream>> {
        let unmatched = match std::mem::replace(&mut self.unmatched, Unmatched::Unknown) {
            Unmatched::Unknown => None,
            Unmatched::All => {
                (self.join, self.probe) = Arc::clone(&self.join).with_written(self.probe.clone()).await?;
                Some(self.probe.clone())
            }
            Unmatched::Rows(rows) => Some(rows),
        };
        let (join, kind) = (Arc::clone(&self.join), self.join.kind());
        if !kind.gives_pairs() && unmatched.as_ref().is_some_and(|rows| rows.rows == 0) {
            return Ok(None);
        }
        let block = self.next_block().await?;
        if block.is_empty() {
            let Some(unmatched) = unmatched.filter(|_| kind.gives_unmatched_probe_rows()) else { return Ok(None) };
            return join.joined_rows(join.table(vec![]).await?, || join.probe_rows(unmatched)).await.map(Some);
        }
        self.number.add(1);
        memory.holds(block.iter().map(DeviceBatch::num_rows).sum());
        let table = join.table(block).await?;
        let Some(unmatched) = unmatched else {
            return join.joined_rows(table, || join.probe_rows(self.probe.clone())).await.map(Some);
        };
        // A probe row has pairs in any number of blocks.
        let candidates = if kind.gives_pairs() { self.probe.clone() } else { unmatched.clone() };
        let left = join.filtered(JoinKind::RightAnti, Arc::clone(&table), unmatched)?;
        self.unmatched = Unmatched::Rows(join.stored(left).await?);
        if kind.drops_matched_probe_rows() {
            return Ok(Some(stream::empty().boxed()));
        }
        let matched = || join.filtered(JoinKind::RightSemi, Arc::clone(&table), candidates);
        join.joined_rows(Arc::clone(&table), matched).await.map(Some)
    }

    /// As many rows of the build side as fit; none at the end.
    async fn next_block(&mut self) -> Result<Vec<DeviceBatch>> {
        let most = self.join.free_bytes() / 2;
        let (mut block, mut rows, mut bytes) = (vec![], 0, 0);
        while let Some(next) = Pin::new(&mut self.build).peek().await {
            if let Ok(next) = next {
                (rows, bytes) = (rows + next.num_rows(), bytes + next.row_bytes());
            }
            if !block.is_empty() && !self.join.fits(rows, bytes, most)? {
                break;
            }
            block.extend(self.build.try_next().await?);
        }
        Ok(block)
    }
}
