// SPDX-License-Identifier: Apache-2.0
//! Searches that look at many rows for each: in launches of bounded length, few of which wait for the device. A query that is
//! cancelled gives its memory back once what was launched has run.

use columnar::DeviceBatch;
use device::{Event, Queue};

use crate::Result;
use crate::ops::Options;

/// Pairs of rows that a unit of a device may compare in a launch: some tenths of a second on a core, less on a GPU.
const MOST_MEETINGS: usize = 1 << 27;
/// Rows that a search looks at for one, from which on a tile of many rows is more than a unit's share of a launch.
const MANY: usize = 1 << 10;
/// Rows of a tile then.
const FEW_ROWS: u32 = 256;

/// A batch in pieces of which a launch can compare each row with `met` others.
pub(super) fn pieces(queue: &Queue, batch: &DeviceBatch, met: usize) -> impl DoubleEndedIterator<Item = DeviceBatch> + use<> {
    let (rows, all) = ((most_meetings(queue) / met.max(1)).max(1), batch.num_rows());
    let batch = batch.clone();
    (0..all.div_ceil(rows)).map(move |piece| batch.slice(piece * rows, rows))
}

fn most_meetings(queue: &Queue) -> usize {
    queue.context().info().compute_units.max(1) as usize * MOST_MEETINGS
}

/// Whether so many rows are met by each that batches are cut.
pub(super) fn meets_many(met: usize) -> bool {
    met > MANY
}

/// The options of kernels that compact rows of which each meets `met` others: the tiles are small enough for every unit to have
/// some of a piece.
pub(super) fn tiled(options: Options, met: usize) -> Options {
    match meets_many(met) {
        true => {
            Options { compaction_tile_rows: options.compaction_tile_rows.min(options.work_group_size.max(FEW_ROWS)), ..options }
        }
        false => options,
    }
}

/// How far the host is ahead of the device, where nothing that comes back from a launch makes it wait.
#[derive(Debug, Default)]
pub struct Pace {
    meetings: usize,
    /// The end of what had been launched when the host waited last.
    before: Option<Event>,
}

impl Pace {
    /// Notes that each of so many rows is to meet `met` others. Every time that these come to a launch's most, waits for what
    /// had been launched the time before: the device always has something to do.
    pub(super) async fn keep(&mut self, queue: &Queue, rows: usize, met: usize) -> Result<()> {
        self.meetings = self.meetings.saturating_add(rows.saturating_mul(met));
        if self.meetings < most_meetings(queue) {
            return Ok(());
        }
        self.meetings = 0;
        if let Some(before) = self.before.replace(queue.record()?) {
            before.wait().await?;
        }
        Ok(())
    }
}
