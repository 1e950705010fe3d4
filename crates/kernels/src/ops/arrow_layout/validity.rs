// SPDX-License-Identifier: Apache-2.0
//! The validity of a batch's columns.

use columnar::DeviceBatch;
use columnar::exchange::has_arrow_layout;
use device::{Buffer, Queue};

use super::ArrowLayout;
use crate::ops::launch::layout_kernels::{CountedBits, LoadedLayoutKernels};
use crate::ops::launch::program::read_u64;
use crate::{Error, Result};

/// The work on the validity of a column.
#[derive(Clone, Copy)]
pub(super) struct ValidityWork {
    /// Whether the bits move to another first bit.
    pub(super) moves: bool,
    /// Whether NULLs are counted.
    pub(super) counts: bool,
}

/// The validity of a batch's columns: moved to the first bit of the values, and counted.
pub(super) struct Validities {
    counts: Option<Buffer>,
    /// The validity of each column; `None` without NULLs.
    results: Vec<Option<Validity>>,
    rows: usize,
}

/// The validity of a column of the result.
pub(super) struct Validity {
    pub(super) bits: Buffer,
    pub(super) first: usize,
    pub(super) null_count: Option<usize>,
    /// Position among the counts, if NULLs are counted.
    counted: Option<usize>,
}

impl Validities {
    /// Enqueues the kernels that move and count.
    pub(super) fn new(
        queue: &Queue,
        op: &ArrowLayout,
        batch: &DeviceBatch,
        layout_kernels: Option<&LoadedLayoutKernels<'_>>,
    ) -> Result<Validities> {
        let rows = batch.num_rows();
        let given = || batch.columns().iter().zip(&op.columns);
        let work: Vec<_> =
            given().map(|(given, column)| column.validity_work(given).filter(|_| !has_arrow_layout(given))).collect();
        let counted = work.iter().flatten().count();
        let counts = if counted > 0 { Some(queue.zeroed(counted * size_of::<u64>())?) } else { None };
        let mut results = Vec::with_capacity(work.len());
        let mut at = 0;
        for ((given, column), work) in given().zip(work) {
            let Some((bits, first)) = given.validity() else {
                results.push(None);
                continue;
            };
            let mut validity = Validity { bits: bits.clone(), first, null_count: given.null_count(), counted: None };
            if let (Some(work), Some(counts)) = (work, &counts) {
                let layout_kernels = layout_kernels.ok_or_else(|| Error::Internal("validity without kernels".into()))?;
                let to = column.first_bit(given);
                let bits = CountedBits { bits, first, n: rows, counts, at };
                match work.moves {
                    true => {
                        validity.bits = layout_kernels.move_bits(bits, to)?;
                        validity.first = to;
                    }
                    false => layout_kernels.count_bits(bits)?,
                }
                validity.counted = work.counts.then_some(at);
                at += 1;
            }
            results.push(Some(validity));
        }
        Ok(Validities { counts, results, rows })
    }

    /// Waits for the counts of NULLs that were unknown.
    pub(super) async fn count(&mut self, queue: &Queue) -> Result<()> {
        let Some(counts) =
            self.counts.as_ref().filter(|_| self.results.iter().flatten().any(|validity| validity.counted.is_some()))
        else {
            return Ok(());
        };
        let answer = queue.read(counts, 0..counts.len()).await?;
        for validity in self.results.iter_mut().flatten() {
            if let Some(at) = validity.counted {
                validity.null_count = Some(self.rows.saturating_sub(read_u64(&answer, at)? as usize));
            }
        }
        Ok(())
    }

    pub(super) fn take(&mut self, column: usize) -> Option<Validity> {
        self.results.get_mut(column).and_then(Option::take)
    }
}
