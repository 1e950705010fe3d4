// SPDX-License-Identifier: Apache-2.0
//! Rows of the build side that no row of the probe side matched: of left and full joins, once all
//! batches were probed.

use std::ops::Range;

use columnar::{DeviceBatch, DeviceColumn};
use device::{Arg, Buffer, Queue};

use super::{PairRows, Probe, ProbeState, UNMATCHED, UNMATCHED_ROWS, Unwritten, zeroed_once};
use crate::codegen::Params;
use crate::ops::launch::NamedArgs;
use crate::ops::launch::compact::{Survivors, mask_body, write_body};
use crate::ops::launch::program::Kernel;
use crate::prelude::Section;
use crate::{Error, Result};

/// The unmatched rows of a build side.
#[derive(Debug)]
pub(in super::super) struct UnmatchedBuildRows {
    /// A row of the probe side, and the columns of the build side.
    bound: Vec<DeviceColumn>,
    /// The numbers of the rows: `u32`, ascending.
    numbers: Buffer,
    unwritten: Unwritten,
}

impl Probe {
    /// The build rows without a match, of a join that keeps them.
    pub async fn unmatched_build_rows(&self, queue: &Queue, state: &ProbeState) -> Result<Option<UnmatchedBuildRows>> {
        let Some(table) = self.lookup.tables.last() else { return Ok(None) };
        if !self.keeps_unmatched_build_rows() || table.num_rows() == 0 {
            return Ok(None);
        }
        let launch = self.launch(queue).await?;
        let visited = zeroed_once(queue, &state.visited, table.num_rows())?;
        let extra = [("visited", Arg::Buffer(visited))];
        let unmatched = Survivors::find(&launch, UNMATCHED, &[], table.num_rows(), &extra).await?;
        if unmatched.count == 0 {
            return Ok(None);
        }
        let numbers = queue.alloc(unmatched.count * 4)?;
        let mut named: NamedArgs<'_> = unmatched.args();
        named.push(("pair_build", Arg::Buffer(&numbers)));
        launch.run(UNMATCHED_ROWS, unmatched.grid(), named)?;
        let (schema, types) = &self.probe;
        let sample = match state.sample.get() {
            Some(sample) => sample.clone(),
            None => DeviceBatch::blank(queue, schema, types)?,
        };
        let (bound, unwritten) = (self.bound(&sample)?, Unwritten::new(unmatched.count as u64));
        Ok(Some(UnmatchedBuildRows { bound, numbers, unwritten }))
    }

    /// Writes the next unmatched rows; `None` if none are left.
    ///
    /// # Errors
    /// `Row` with the lowest position among all unmatched rows of which an expression failed.
    pub async fn next_unmatched(&self, queue: &Queue, rows: &mut UnmatchedBuildRows) -> Result<Option<DeviceBatch>> {
        let UnmatchedBuildRows { bound, numbers, unwritten } = rows;
        let affordable = self.options.threshold(self.affordable_rows(queue));
        loop {
            let range = unwritten.next(affordable);
            if range.is_empty() {
                return Ok(None);
            }
            let written = self.write_unmatched(queue, bound, numbers, &range).await;
            if let Some(written) = unwritten.settle(&range, written) {
                return written.map(Some);
            }
        }
    }

    /// The unmatched row at a position.
    ///
    /// # Errors
    /// `Row` if an expression of it fails.
    pub async fn unmatched_at(&self, queue: &Queue, rows: &UnmatchedBuildRows, at: u64) -> Result<DeviceBatch> {
        self.write_unmatched(queue, &rows.bound, &rows.numbers, &(at..at + 1)).await
    }

    /// Writes the unmatched rows at positions.
    async fn write_unmatched(
        &self,
        queue: &Queue,
        bound: &[DeviceColumn],
        numbers: &Buffer,
        range: &Range<u64>,
    ) -> Result<DeviceBatch> {
        let (first, count) = (range.start, (range.end - range.start) as usize);
        let build = queue.alloc(count * 4)?;
        queue.copy(numbers, first as usize * 4, &build, 0, count * 4)?;
        let probe = queue.filled(count * 4, 0xff)?;
        let rows = PairRows { probe: &probe, build: &build, count };
        let launch = self.launch(queue).await?;
        self.write_pairs(&launch, bound, rows, vec![]).await.map_err(|error| match error {
            Error::Row { row } => Error::Row { row: first + row },
            error => error,
        })
    }

    pub(super) fn unmatched_kernel(&self) -> Kernel {
        let mut params = Params::new();
        params.need(Section::Base);
        let visited = params.named("visited", "const G u8 *RESTRICT");
        let body = mask_body(&mut params, &self.options, "", &format!("!{visited}[row]"));
        Kernel::new("probe_unmatched", params, body)
    }

    pub(super) fn unmatched_rows_kernel(&self) -> Kernel {
        let mut params = Params::new();
        params.need(Section::Base);
        let builds = params.named("pair_build", "G u32 *RESTRICT");
        let body = write_body(&mut params, &self.options, &format!("      {builds}[o] = (u32)row;\n"));
        Kernel::new("probe_unmatched_rows", params, body)
    }
}
