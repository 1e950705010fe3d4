// SPDX-License-Identifier: Apache-2.0
//! Windows whose rows do not fit device memory: ended partitions are computed early. An unfinished
//! one is cut if its functions can carry on.
//!
//! Functions may read rows before and after their own. Both sides of a cut keep these. Each row has
//! its result on one side.

use columnar::DeviceBatch;
use device::Queue;

use super::carry::{Carry, Cut, CutAt};
use super::{NextCut, Window, WindowState, bounds};
use crate::Result;
use crate::ops::launch::Launch;

impl Window {
    /// Whether [`split_off`](Self::split_off) may give rows: there are partition keys, or all
    /// functions carry on behind a cut; and no lists are among the columns.
    pub fn may_split(&self) -> bool {
        self.may_split
    }

    /// Splits off the rows of the partitions that have ended: all before the last one. If none has
    /// ended, the partition is cut before its last group of peers. This needs functions that carry
    /// on: ranks, aggregates of the rows up to the current one, and functions of so many rows
    /// around it. `None` if nothing [may](Self::may_split) be split off. Waits for the device.
    ///
    /// The rows that are split off must be [finished](Self::finish) before others.
    ///
    /// # Errors
    /// Errors of the device.
    ///
    /// # Examples
    /// ```
    /// use std::sync::Arc;
    /// use arrow::array::{Int64Array, RecordBatch};
    /// use arrow::datatypes::{DataType, Field};
    /// use columnar::{download, natural_types, upload};
    /// use kernels::codegen::Profile;
    /// use kernels::expr::Expr;
    /// use kernels::ops::{Frame, Input, Options, Window, WindowCall, WindowFunction};
    ///
    /// # futures::executor::block_on(async {
    /// let host = RecordBatch::try_from_iter([("x", Arc::new(Int64Array::from(vec![7, 7, 9])) as _)])?;
    /// let queue = device::Context::new(device::DeviceConfig::default())?.queue()?;
    /// let types = natural_types(&host.schema())?;
    /// let batch = upload(&queue, &host.schema(), &types, &[host.clone()])?;
    ///
    /// let input = Input { schema: host.schema(), types, filter: None };
    /// let number = WindowCall { function: WindowFunction::RowNumber, frame: Frame::RUNNING };
    /// let functions = vec![(number, Field::new("number", DataType::UInt64, false))];
    /// let window = Window::try_new(input, vec![Expr::Column(0)], vec![], vec![], functions, Options::new(Profile::Cpu))?;
    /// let mut state = window.start();
    /// window.push(&queue, &mut state, &batch).await?;
    /// let ended = window.split_off(&queue, &mut state).await?.ok_or("one partition")?;
    /// assert_eq!((ended.num_rows(), state.num_rows()), (2, 1));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # }).unwrap();
    /// ```
    pub async fn split_off(&self, queue: &Queue, state: &mut WindowState) -> Result<Option<WindowState>> {
        if !self.may_split {
            return Ok(None);
        }
        let Some(all) = self.concat.run(queue, std::mem::take(&mut state.batches)).await? else { return Ok(None) };
        let launch = Launch::load(queue, &self.options, &self.program, &self.primitives).await?;
        let ((part, peers), rows) = (bounds::last_starts(&launch, &all).await?, all.num_rows());
        let WindowState { before, results_given, .. } = std::mem::take(state);
        let carry = self.carry.as_ref().filter(|_| part == 0);
        let split = match carry {
            Some(carry) => SplitRows::at_cut(carry, &launch, &all, peers).await?,
            None => SplitRows { start: part, results: part, read: part },
        };
        let SplitRows { start, results, read } = split;
        if start == 0 || results <= results_given {
            *state = WindowState { before, results_given, ..WindowState::of(all) };
            return Ok(None);
        }
        let after = carry.map(|carry| carry.alloc(queue, &self.calls)).transpose()?;
        let rest = all.slice(start, rows - start);
        // A slice keeps the memory of all rows, also the strings of those that have ended.
        let rest = if start > rows / 2 { self.kept_copy.run(queue, &rest).await? } else { rest };
        *state = WindowState { before: after.clone(), results_given: results - start, ..WindowState::of(rest) };
        let next_cut = after.map(|after| NextCut { row: start, after });
        let results_later = read - results;
        Ok(Some(WindowState { before, next_cut, results_given, results_later, ..WindowState::of(all.slice(0, read)) }))
    }

    /// As [`push`](Self::push), of a copy: a slice would keep the memory of its whole batch.
    ///
    /// # Errors
    /// As [`push`](Self::push).
    pub async fn push_copy(&self, queue: &Queue, state: &mut WindowState, slice: &DeviceBatch) -> Result<()> {
        let selected = self.select.run(queue, slice).await?;
        let copy = self.selected_copy.run(queue, &selected).await?;
        self.keep(state, copy)
    }
}

/// How rows are split.
struct SplitRows {
    /// The first row of the rest, where functions carry on.
    start: usize,
    /// The first rows have a result now.
    results: usize,
    /// Their functions read so many rows.
    read: usize,
}

impl SplitRows {
    /// Splits the rows of one partition, which goes on. `peers`: the first row of its last group of
    /// peers.
    async fn at_cut(carry: &Carry, launch: &Launch<'_>, all: &DeviceBatch, peers: usize) -> Result<SplitRows> {
        let (Cut { at, before, after }, rows) = (carry.cut, all.num_rows());
        let results = rows.saturating_sub(after.max(1));
        let results = if at == CutAt::Peers { results.min(peers) } else { results };
        let start = match results.saturating_sub(before) {
            start if at == CutAt::Row || start == 0 || start == peers => start,
            // The last group of peers that begins before.
            start => bounds::last_starts(launch, &all.slice(0, start + 1)).await?.1,
        };
        Ok(SplitRows { start, results, read: (results + after).min(rows) })
    }
}
