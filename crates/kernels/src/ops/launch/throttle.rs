// SPDX-License-Identifier: Apache-2.0
//! Throttled operators: launches of bounded time, few of which wait on the device.
//!
//! A search may compare each probe row with many build rows, and a comparison may take a
//! nanosecond or a microsecond. So the times of launches bound the candidate pairs of the next; a
//! constant bounds the first. A kernel that compares nothing has one pair for each row.
//! Slices of batches, or [ranges](super::ranges) of work-groups, keep to that bound, and the host
//! stays at most two launches ahead of the device. So a cancelled query frees its memory once these
//! have run.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

use columnar::DeviceBatch;
use device::{Event, Meter, Queue};
use parking_lot::Mutex;

use crate::Result;
use crate::ops::Options;

/// Most time for a launch: half of the 100 ms in which a query can be cancelled.
const LAUNCH_TIME: Duration = Duration::from_millis(50);
/// Candidate pairs of a compute unit in the first launch, which no earlier one bounds. They take
/// 50 ms where a comparison takes 50 ns, as that of long strings on a core.
const FIRST_PAIRS: usize = 1 << 20;
/// The same for rows with a candidate each. They take 50 ms where a row takes 380 ns, as with a
/// key of concatenated strings.
const FIRST_ROWS: usize = 1 << 17;
/// The fewest of any launch. Fewer would take less time than a launch itself.
const FEWEST_PAIRS: usize = 1 << 14;
/// The most of any launch, however fast they are.
const MOST_PAIRS: usize = 1 << 27;
/// The most that a launch may have beside the one before.
const GROWTH: usize = 4;
/// Candidates of a row from which on a tile of many rows exceeds the share of a compute unit in a
/// launch.
const MANY_CANDIDATES: usize = 1 << 10;
/// Most rows of a tile then.
const SMALL_TILE_ROWS: u32 = 256;

/// The candidate pairs that a launch may compare, as the launches before it have shown.
#[derive(Debug, Default)]
pub(in crate::ops) struct LaunchBudget {
    /// Candidate pairs of a compute unit; 0 before the first launch.
    pairs: AtomicUsize,
    /// Times the launches that compare.
    meter: Arc<Meter>,
    measured: Mutex<Measured>,
}

/// Candidate pairs and their time. Older ones count half with each measurement, because slices at
/// the same time share the meter.
#[derive(Debug, Default)]
struct Measured {
    pairs: f64,
    seconds: f64,
    /// Time of the meter that was seen.
    seen: Duration,
}

impl LaunchBudget {
    /// For launches that write pairs: each is as fast as a comparison.
    pub fn of_writes() -> Self {
        Self { pairs: AtomicUsize::new(FIRST_PAIRS), ..Self::default() }
    }

    /// A handle for launches that compare.
    pub fn metered(&self, queue: &Queue) -> Queue {
        queue.metered(&self.meter)
    }

    /// Candidate pairs of a launch over rows with so many candidates each.
    fn pairs(&self, queue: &Queue, candidates: usize) -> usize {
        let first = if candidates > 1 { FIRST_PAIRS } else { FIRST_ROWS };
        _ = self.pairs.compare_exchange(0, first, Relaxed, Relaxed);
        self.pairs.load(Relaxed).saturating_mul(compute_units(queue))
    }

    /// Rows of a launch that compares each with `candidates` others.
    pub fn rows(&self, queue: &Queue, candidates: usize) -> usize {
        (self.pairs(queue, candidates) / candidates.max(1)).max(1)
    }

    /// Adapts the budget to completed launches, which compared so many pairs. The `wait` of the
    /// host for them counts where launches are not timed.
    pub fn adapt(&self, queue: &Queue, pairs: usize, wait: Duration) {
        if pairs == 0 {
            return;
        }
        let mut measured = self.measured.lock();
        let timed = self.meter.kernel_time();
        let time = if timed.is_zero() { wait } else { timed.saturating_sub(measured.seen) };
        measured.seen = timed;
        measured.pairs = measured.pairs / 2.0 + pairs as f64 / compute_units(queue) as f64;
        measured.seconds = measured.seconds / 2.0 + time.as_secs_f64();
        let next = adapted(self.pairs.load(Relaxed), measured.pairs, measured.seconds);
        self.pairs.store(next, Relaxed);
    }
}

/// The next budget after `pairs` took these seconds.
fn adapted(budget: usize, pairs: f64, seconds: f64) -> usize {
    let launch = LAUNCH_TIME.as_secs_f64();
    // Short launches tell the time of a launch, and no pair's.
    if pairs < (budget / GROWTH) as f64 && seconds < launch {
        return budget;
    }
    let fitting = pairs * launch / seconds.max(1e-9);
    (fitting as usize).min(budget.saturating_mul(GROWTH)).clamp(FEWEST_PAIRS, MOST_PAIRS)
}

fn compute_units(queue: &Queue) -> usize {
    queue.context().info().compute_units.max(1) as usize
}

/// Slices of a batch, in each of which a launch compares every row with `candidates` others. Each
/// is cut as the budget is then.
#[derive(Debug)]
pub(in crate::ops) struct Slices {
    batch: DeviceBatch,
    next: usize,
    queue: Queue,
    candidates: usize,
    most: usize,
    budget: Arc<LaunchBudget>,
}

impl Slices {
    /// Slices of at most `most` rows.
    pub fn new(queue: &Queue, batch: &DeviceBatch, candidates: usize, most: usize, budget: &Arc<LaunchBudget>) -> Self {
        let (batch, queue, budget) = (batch.clone(), queue.clone(), Arc::clone(budget));
        Self { batch, next: 0, queue, candidates, most, budget }
    }

    /// The rows behind the slices so far; `None` if there are none.
    pub fn rest(&self) -> Option<DeviceBatch> {
        let rows = self.batch.num_rows() - self.next;
        (rows > 0).then(|| self.batch.slice(self.next, rows))
    }
}

impl Iterator for Slices {
    type Item = DeviceBatch;

    fn next(&mut self) -> Option<DeviceBatch> {
        let left = self.batch.num_rows() - self.next;
        if left == 0 {
            return None;
        }
        let rows = self.budget.rows(&self.queue, self.candidates).min(self.most).clamp(1, left);
        let slice = self.batch.slice(self.next, rows);
        self.next += rows;
        Some(slice)
    }
}

/// Whether rows have too many candidates for whole batches.
pub(in crate::ops) fn has_many_candidates(candidates: usize) -> bool {
    candidates > MANY_CANDIDATES
}

/// The options of kernels that compact rows with `candidates` each: small tiles, so that every
/// compute unit has some of a slice.
pub(in crate::ops) fn with_small_tiles(options: Options, candidates: usize) -> Options {
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
    work: Work,
    before: Option<Enqueued>,
}

/// Work that the host has not waited for.
#[derive(Debug)]
struct Enqueued {
    end: Event,
    work: Work,
    since: Instant,
}

/// Launches, as shares of what their budgets allow. Kernels of several budgets may take turns.
#[derive(Debug, Default)]
struct Work {
    share: f64,
    parts: Vec<WorkPart>,
}

/// The launches of a budget.
#[derive(Debug)]
struct WorkPart {
    budget: Arc<LaunchBudget>,
    share: f64,
    candidate_pairs: usize,
}

impl Work {
    fn add(&mut self, part: WorkPart) {
        self.share += part.share;
        match self.parts.iter_mut().find(|known| Arc::ptr_eq(&known.budget, &part.budget)) {
            Some(known) => {
                known.share += part.share;
                known.candidate_pairs = known.candidate_pairs.saturating_add(part.candidate_pairs);
            }
            None => self.parts.push(part),
        }
    }

    /// Adapts the budgets to the work, which is complete after so long.
    fn adapt(&self, queue: &Queue, wait: Duration) {
        for part in &self.parts {
            part.budget.adapt(queue, part.candidate_pairs, wait.mul_f64(part.share / self.share));
        }
    }
}

impl Throttle {
    /// Counts rows that are about to be compared with `candidates` others each. Whenever the count
    /// reaches the budget of a launch, waits for the work up to the previous time, so that the
    /// device is never idle. Adapts the budgets to that work.
    pub(in crate::ops) async fn wait(
        &mut self,
        budget: &Arc<LaunchBudget>,
        queue: &Queue,
        rows: usize,
        candidates: usize,
    ) -> Result<()> {
        let candidate_pairs = rows.saturating_mul(candidates);
        let share = candidate_pairs as f64 / budget.pairs(queue, candidates) as f64;
        let next = WorkPart { budget: Arc::clone(budget), share, candidate_pairs };
        if self.work.share > 0.0 && self.work.share + share >= 1.0 {
            let work = std::mem::take(&mut self.work);
            let enqueued = Enqueued { end: queue.record()?, work, since: Instant::now() };
            if let Some(Enqueued { end, work, since }) = self.before.replace(enqueued) {
                end.wait().await?;
                work.adapt(queue, since.elapsed());
            }
        }
        self.work.add(next);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn budgets_have_their_own_shares_of_the_work() {
        let (one, other) = (Arc::new(LaunchBudget::default()), Arc::new(LaunchBudget::default()));
        let mut work = Work::default();
        for (budget, share, candidate_pairs) in [(&one, 0.25, 10), (&other, 0.125, 3), (&one, 0.5, 20)] {
            work.add(WorkPart { budget: Arc::clone(budget), share, candidate_pairs });
        }
        let parts: Vec<_> = work.parts.iter().map(|part| (part.share, part.candidate_pairs)).collect();
        assert_eq!((work.share, parts), (0.875, vec![(0.75, 30), (0.125, 3)]));
    }

    #[test]
    fn budgets_follow_the_time_of_launches() {
        // Ten times too long, and right.
        assert_eq!(adapted(1_000_000, 1e6, 0.5), 100_000);
        assert_eq!(adapted(1_000_000, 9e5, 0.05), 900_000);
        // Faster launches grow, step by step.
        assert_eq!(adapted(1_000_000, 1e6, 0.025), 2_000_000);
        assert_eq!(adapted(1_000_000, 1e6, 0.0), 4_000_000);
        // Few pairs say something where they took long.
        assert_eq!(adapted(1_000_000, 1e3, 0.001), 1_000_000);
        assert_eq!(adapted(1_000_000, 2e5, 0.1), 100_000);
        assert_eq!(adapted(1_000_000, 10.0, 0.1), FEWEST_PAIRS);
        assert_eq!(adapted(MOST_PAIRS, MOST_PAIRS as f64, 0.001), MOST_PAIRS);
    }
}
