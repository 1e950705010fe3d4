// SPDX-License-Identifier: Apache-2.0
//! Throttled probes: launches of bounded length, few of which wait on the device.
//!
//! A search may compare each probe row with many build rows. Slices of batches bound the candidate
//! pairs of a launch, and the host stays at most two such launches ahead of the device. So a
//! cancelled query frees its memory once these have run.

use columnar::DeviceBatch;
use device::{Event, Queue};

use crate::Result;
use crate::ops::Options;

/// Most candidate pairs that a compute unit compares in a launch: some tenths of a second on a
/// core, less on a GPU.
const MAX_CANDIDATE_PAIRS: usize = 1 << 27;
/// Candidates of a row from which on a tile of many rows exceeds the share of a compute unit in a
/// launch.
const MANY_CANDIDATES: usize = 1 << 10;
/// Most rows of a tile then.
const SMALL_TILE_ROWS: u32 = 256;

/// Slices of a batch of at most `most` rows, in each of which a launch can compare every row with
/// `candidates` others.
pub(super) fn bounded_slices(
    queue: &Queue,
    batch: &DeviceBatch,
    candidates: usize,
    most: usize,
) -> impl DoubleEndedIterator<Item = DeviceBatch> + use<> {
    let (rows, all) = ((max_candidate_pairs(queue) / candidates.max(1)).min(most).max(1), batch.num_rows());
    let batch = batch.clone();
    (0..all.div_ceil(rows)).map(move |slice| batch.slice(slice * rows, rows))
}

fn max_candidate_pairs(queue: &Queue) -> usize {
    queue.context().info().compute_units.max(1) as usize * MAX_CANDIDATE_PAIRS
}

/// Whether rows have so many candidates that batches are sliced.
pub(super) fn has_many_candidates(candidates: usize) -> bool {
    candidates > MANY_CANDIDATES
}

/// The options of kernels that compact rows with `candidates` each: small tiles, so that every
/// compute unit has some of a slice.
pub(super) fn with_small_tiles(options: Options, candidates: usize) -> Options {
    match has_many_candidates(candidates) {
        true => Options {
            compaction_tile_rows: options.compaction_tile_rows.min(options.work_group_size.max(SMALL_TILE_ROWS)),
            ..options
        },
        false => options,
    }
}

/// Limits how far the host is ahead of the device, for launches that return nothing to wait for.
#[derive(Debug, Default)]
pub struct Throttle {
    candidate_pairs: usize,
    /// The end of the work that was enqueued when the host waited last.
    before: Option<Event>,
}

impl Throttle {
    /// Counts rows that are about to be compared with `candidates` others each. Whenever the count
    /// reaches the limit of a launch, waits for the work up to the previous time, so that the
    /// device is never idle.
    pub(super) async fn wait(&mut self, queue: &Queue, rows: usize, candidates: usize) -> Result<()> {
        self.candidate_pairs = self.candidate_pairs.saturating_add(rows.saturating_mul(candidates));
        if self.candidate_pairs < max_candidate_pairs(queue) {
            return Ok(());
        }
        self.candidate_pairs = 0;
        if let Some(before) = self.before.replace(queue.record()?) {
            before.wait().await?;
        }
        Ok(())
    }
}
