// SPDX-License-Identifier: Apache-2.0
//! Partitions that are cut: the functions of the rows behind a cut *carry on* from those before it.
//!
//! Ranks need the number of rows and of groups of peers before the cut. Aggregates of frames from
//! the partition's first row to the current one need their state. LAG, LEAD and frames of so many
//! rows read the rows around the cut. No other function can be cut.

use device::{Arg, Buffer, Queue};

use super::frame::{Frame, FrameBound, FrameUnits, PartitionIndex};
use super::order_dependent::OrderDependent;
use super::value::{Ranking, ValueKind};
use super::{Call, FunctionPlan, NullTreatment};
use crate::Result;
use crate::codegen::Params;
use crate::ops::Options;
use crate::ops::launch::program::{Kernel, row_loop};
use crate::ops::launch::{Launch, NamedArgs};
use crate::prelude::Section;

/// A cut of a partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Cut {
    pub at: CutAt,
    /// Rows that functions read before and after a row, beside their states.
    pub before: usize,
    pub after: usize,
}

impl Cut {
    /// A cut for functions that read no other rows.
    fn at(at: CutAt) -> Cut {
        Cut { at, before: 0, after: 0 }
    }

    /// A cut for functions that read rows from one position to another, counted from the row.
    fn around(first: i64, last: i64) -> Cut {
        let rows = |position: i64| usize::try_from(position).unwrap_or(0);
        Cut { at: CutAt::Row, before: rows(-first.min(last)), after: rows(first.max(last)) }
    }

    /// A cut for the functions of both.
    fn and(self, other: Cut) -> Cut {
        let at = if self.at == CutAt::Peers { self.at } else { other.at };
        Cut { at, before: self.before.max(other.before), after: self.after.max(other.after) }
    }
}

/// Where a partition may be cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CutAt {
    /// Before any row.
    Row,
    /// Before a group of peers.
    Peers,
}

/// How the functions of a window carry on behind a cut.
#[derive(Debug, Clone)]
pub(super) struct Carry {
    pub cut: Cut,
    /// Position of the kernel that counts rows and groups of peers.
    count: usize,
}

/// Counts and states of the rows of a partition before a cut.
#[derive(Debug, Clone)]
pub(super) struct Carried {
    /// The number of rows, and that of groups of peers; u64 each.
    counts: Buffer,
    /// States of aggregates, by function.
    states: Vec<Option<Buffer>>,
}

/// The arguments of functions that carry on.
#[derive(Clone, Copy)]
pub(super) struct CarryArgs<'a> {
    /// Of the partition's rows before the batch, if it was cut.
    pub before: Option<&'a Carried>,
    /// Of its rows up to the row `rows` of the batch, which is written.
    pub after: &'a Carried,
    pub rows: usize,
}

/// Parameters: whether the first partition was cut, and counts or state of its rows before.
const IS_CUT: &str = "is_cut";
const BEFORE: &str = "known_before";
/// Parameters: counts or state of the rows before the next cut, and the row of that cut.
const AFTER: &str = "known_after";
const CUT_ROW: &str = "cut_row";

impl Carry {
    /// `None` unless all functions carry on. Appends a kernel.
    pub fn plan(plans: &[(FunctionPlan, Frame)], options: &Options, kernels: &mut Vec<Kernel>) -> Option<Carry> {
        let cuts = plans.iter().map(|(plan, frame)| plan.cut(frame)).collect::<Option<Vec<_>>>()?;
        let cut = cuts.into_iter().fold(Cut::at(CutAt::Row), Cut::and);
        // Rows behind the results lack peers, and their sums may exceed those of all peers.
        if cut.at == CutAt::Peers && cut.after > 0 && plans.iter().any(|(plan, _)| plan.may_overflow()) {
            return None;
        }
        kernels.push(count_kernel(options));
        Some(Carry { cut, count: kernels.len() - 1 })
    }

    /// Buffers for counts and states at a cut.
    pub fn alloc(&self, queue: &Queue, calls: &[Call]) -> Result<Carried> {
        let state = |call: &Call| match call {
            Call::Aggregate(call) => Ok(Some(queue.alloc(call.state_bytes())?)),
            Call::Value(_) | Call::StringMinMax { .. } | Call::Quantile(_) => Ok(None),
        };
        let states = calls.iter().map(state).collect::<Result<_>>()?;
        Ok(Carried { counts: queue.alloc(2 * size_of::<u64>())?, states })
    }

    /// Writes the numbers of rows and of groups of peers of the partition at the next cut.
    pub fn count(&self, launch: &Launch<'_>, partitions: &PartitionIndex, args: CarryArgs<'_>) -> Result<()> {
        let mut named = partitions.args();
        named.extend(args.of_counts());
        named.extend([(AFTER, Arg::Buffer(&args.after.counts)), args.cut_row(), ("count", Arg::U64(1))]);
        launch.run(self.count, launch.grid(1), named)
    }
}

impl<'a> CarryArgs<'a> {
    /// The arguments of a rank.
    pub fn of_counts(self) -> NamedArgs<'a> {
        let carried = self.before.map_or(&self.after.counts, |before| &before.counts);
        vec![(IS_CUT, Arg::U32(u32::from(self.before.is_some()))), (BEFORE, Arg::Buffer(carried))]
    }

    /// The arguments of the aggregate with this number among the functions.
    pub fn of_state(self, function: usize) -> NamedArgs<'a> {
        let state = |carried: &'a Carried| carried.states.get(function).and_then(Option::as_ref);
        let (before, after) = (self.before.and_then(state), state(self.after));
        let known = before.or(after).map(|state| (BEFORE, Arg::Buffer(state)));
        let written = after.map(|state| (AFTER, Arg::Buffer(state)));
        let is_cut = (IS_CUT, Arg::U32(u32::from(before.is_some())));
        [is_cut, self.cut_row()].into_iter().chain(known).chain(written).collect()
    }

    fn cut_row(self) -> (&'static str, Arg<'static>) {
        (CUT_ROW, Arg::U64(self.rows as u64))
    }
}

/// Declares the parameters of [`CarryArgs::of_counts`]. Returns C that declares `rows_before` and
/// `groups_before` of a row, after [`PartitionIndex::declare`].
pub(super) fn declare_counts(params: &mut Params) -> &'static str {
    params.named(IS_CUT, "u32");
    params.named(BEFORE, "const G u64 *RESTRICT");
    "i32 carries_on = is_cut && part == 0;
u64 rows_before = carries_on ? known_before[0] : 0, groups_before = carries_on ? known_before[1] : 0;"
}

/// Declares the parameters of [`CarryArgs::of_state`].
pub(super) fn declare_state(params: &mut Params) {
    params.named(IS_CUT, "u32");
    params.named(BEFORE, "const G u64 *RESTRICT");
    params.named(AFTER, "G u64 *RESTRICT");
    params.named(CUT_ROW, "u64");
}

/// C for slot `slot` of the state of no rows, `init`, in the partition that begins with row `start`
/// of the batch.
pub(super) fn first_state(slot: usize, init: u64, start: &str) -> String {
    format!("{IS_CUT} && {start} == 0 ? {BEFORE}[{slot}] : (u64){init:#x}UL")
}

/// C that writes the state of the last row before the next cut.
pub(super) fn last_state(slots: usize) -> String {
    let writes: String = (0..slots).map(|slot| format!(" {AFTER}[{slot}] = s[{slot}];")).collect();
    format!("    if (row + 1 == {CUT_ROW}) {{{writes} }}\n")
}

fn count_kernel(options: &Options) -> Kernel {
    let mut params = Params::new();
    params.need(Section::Base);
    let partition = PartitionIndex::declare(&mut params, "row");
    let before = declare_counts(&mut params);
    params.named(AFTER, "G u64 *RESTRICT");
    params.named(CUT_ROW, "u64");
    params.named("count", "u64");
    let statements = format!(
        "    u64 row = {CUT_ROW} - 1;
    {partition}
    {before}
    known_after[0] = rows_before + {CUT_ROW} - part_start;
    known_after[1] = groups_before + peer + 2 - (u64)peers[part_start + 1];
"
    );
    Kernel::new("window_carry", params, row_loop(options.profile, "item", "count", &statements))
}

impl FunctionPlan {
    /// Possible cuts of a partition for the function; `None` if it cannot carry on.
    fn cut(&self, frame: &Frame) -> Option<Cut> {
        match self {
            FunctionPlan::Value(ValueKind::Ranking { ranking, .. }) => match ranking {
                Ranking::RowNumber => Some(Cut::at(CutAt::Row)),
                Ranking::Rank | Ranking::DenseRank => Some(Cut::at(CutAt::Peers)),
                Ranking::PercentRank | Ranking::CumeDist | Ranking::Ntile(_) => None,
            },
            FunctionPlan::Value(ValueKind::Lag { offset, nulls: NullTreatment::Respect, .. }) => {
                Some(Cut::around(offset.saturating_neg(), offset.saturating_neg()))
            }
            FunctionPlan::Value(ValueKind::Nth { n, ignore_nulls, .. }) => match of_rows_around(frame) {
                // The last row of a frame from the partition's start.
                None if *n == -1 && !ignore_nulls => running(frame),
                cut => cut,
            },
            FunctionPlan::Value(ValueKind::StringAgg { .. }) => of_rows_around(frame),
            // Frames of rows without results are cut off, and their sums may exceed those of whole
            // frames.
            FunctionPlan::Aggregate(aggregate) if aggregate.is_of_rows() => {
                running(frame).or_else(|| of_rows_around(frame).filter(|_| !self.may_overflow()))
            }
            FunctionPlan::Value(ValueKind::Lag { .. } | ValueKind::OfRank { .. } | ValueKind::ArrayAgg { .. })
            | FunctionPlan::StringAgg { .. }
            | FunctionPlan::Aggregate(_)
            | FunctionPlan::Quantile(_) => None,
        }
    }

    /// Whether the result of a row may fail the query.
    fn may_overflow(&self) -> bool {
        match self {
            FunctionPlan::Aggregate(OrderDependent { aggregate, .. }) => {
                aggregate.function.row().family.may_overflow(&aggregate.data_type)
            }
            FunctionPlan::Value(_) | FunctionPlan::StringAgg { .. } | FunctionPlan::Quantile(_) => false,
        }
    }

    /// The same function, which carries on behind cuts.
    pub(super) fn carried_on(self, frame: &Frame) -> FunctionPlan {
        match self {
            FunctionPlan::Value(ValueKind::Ranking { ranking, .. }) => {
                FunctionPlan::Value(ValueKind::Ranking { ranking, carries_on: true })
            }
            FunctionPlan::Aggregate(aggregate) => {
                FunctionPlan::Aggregate(OrderDependent { carries_on: running(frame).is_some(), ..aggregate })
            }
            other @ (FunctionPlan::Value(_) | FunctionPlan::StringAgg { .. } | FunctionPlan::Quantile(_)) => other,
        }
    }
}

/// The cut for a frame from the partition's first row to the current one.
fn running(frame: &Frame) -> Option<Cut> {
    match (frame.start, frame.end, frame.units) {
        (FrameBound::UnboundedPreceding, FrameBound::CurrentRow, FrameUnits::Rows) => Some(Cut::at(CutAt::Row)),
        (FrameBound::UnboundedPreceding, FrameBound::CurrentRow, _) => Some(Cut::at(CutAt::Peers)),
        _ => None,
    }
}

/// The cut for a frame of so many rows around the current one.
fn of_rows_around(frame: &Frame) -> Option<Cut> {
    frame.positions().map(|(first, last)| Cut::around(first, last))
}
