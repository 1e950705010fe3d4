// SPDX-License-Identifier: Apache-2.0
//! Partitions that are cut: the functions of the rows behind a cut *carry on* from those before it.
//!
//! Ranks need the number of rows and of groups of peers before the cut. Aggregates of frames from
//! the partition's first row to the current one need their state. No other function can be cut.

use device::{Arg, Buffer, Queue};

use super::frame::{Frame, FrameBound, FrameUnits, PartitionIndex};
use super::order_dependent::OrderDependent;
use super::value::{Ranking, ValueKind};
use super::{Call, FunctionPlan};
use crate::Result;
use crate::codegen::Params;
use crate::ops::Options;
use crate::ops::launch::program::{Kernel, row_loop};
use crate::ops::launch::{Launch, NamedArgs};
use crate::prelude::Section;

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
    pub cut_at: CutAt,
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
    /// Of its rows up to the end of the batch, which is written.
    pub after: &'a Carried,
}

/// Parameters: whether the first partition was cut, counts or state of its rows before, and those
/// at the end.
const IS_CUT: &str = "is_cut";
const BEFORE: &str = "known_before";
const AFTER: &str = "known_after";

impl Carry {
    /// `None` unless all functions carry on. Appends a kernel.
    pub fn plan(plans: &[(FunctionPlan, Frame)], options: &Options, kernels: &mut Vec<Kernel>) -> Option<Carry> {
        let cuts = plans.iter().map(|(plan, frame)| plan.cut_at(frame)).collect::<Option<Vec<_>>>()?;
        kernels.push(count_kernel(options));
        let cut_at = if cuts.contains(&CutAt::Peers) { CutAt::Peers } else { CutAt::Row };
        Some(Carry { cut_at, count: kernels.len() - 1 })
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

    /// Writes the numbers of rows and of groups of peers of the last partition.
    pub fn count(&self, launch: &Launch<'_>, partitions: &PartitionIndex, n: usize, args: CarryArgs<'_>) -> Result<()> {
        let mut named = partitions.args();
        named.extend(args.of_counts());
        named.extend([(AFTER, Arg::Buffer(&args.after.counts)), ("n", Arg::U64(n as u64)), ("count", Arg::U64(1))]);
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
        std::iter::once((IS_CUT, Arg::U32(u32::from(before.is_some())))).chain(known).chain(written).collect()
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
}

/// C for slot `slot` of the state of no rows, `init`, in the partition that begins with row `start`
/// of the batch.
pub(super) fn first_state(slot: usize, init: u64, start: &str) -> String {
    format!("{IS_CUT} && {start} == 0 ? {BEFORE}[{slot}] : (u64){init:#x}UL")
}

/// C that writes the state of the last row.
pub(super) fn last_state(slots: usize) -> String {
    let writes: String = (0..slots).map(|slot| format!(" {AFTER}[{slot}] = s[{slot}];")).collect();
    format!("    if (row + 1 == n) {{{writes} }}\n")
}

fn count_kernel(options: &Options) -> Kernel {
    let mut params = Params::new();
    params.need(Section::Base);
    let partition = PartitionIndex::declare(&mut params, "row");
    let before = declare_counts(&mut params);
    params.named(AFTER, "G u64 *RESTRICT");
    params.named("n", "u64");
    params.named("count", "u64");
    let statements = format!(
        "    u64 row = n - 1;
    {partition}
    {before}
    known_after[0] = rows_before + n - part_start;
    known_after[1] = groups_before + peer + 2 - (u64)peers[part_start + 1];
"
    );
    Kernel::new("window_carry", params, row_loop(options.profile, "item", "count", &statements))
}

impl FunctionPlan {
    /// Possible cuts of a partition for the function; `None` if it cannot carry on.
    fn cut_at(&self, frame: &Frame) -> Option<CutAt> {
        match self {
            FunctionPlan::Value(ValueKind::Ranking { ranking, .. }) => match ranking {
                Ranking::RowNumber => Some(CutAt::Row),
                Ranking::Rank | Ranking::DenseRank => Some(CutAt::Peers),
                Ranking::PercentRank | Ranking::CumeDist | Ranking::Ntile(_) => None,
            },
            FunctionPlan::Aggregate(aggregate) if aggregate.is_of_rows() => match (frame.start, frame.end, frame.units) {
                (FrameBound::UnboundedPreceding, FrameBound::CurrentRow, FrameUnits::Rows) => Some(CutAt::Row),
                (FrameBound::UnboundedPreceding, FrameBound::CurrentRow, _) => Some(CutAt::Peers),
                _ => None,
            },
            FunctionPlan::Value(_) | FunctionPlan::StringAgg { .. } | FunctionPlan::Aggregate(_) | FunctionPlan::Quantile(_) => {
                None
            }
        }
    }

    /// The same function, which carries on behind cuts.
    pub(super) fn carried_on(self) -> FunctionPlan {
        match self {
            FunctionPlan::Value(ValueKind::Ranking { ranking, .. }) => {
                FunctionPlan::Value(ValueKind::Ranking { ranking, carries_on: true })
            }
            FunctionPlan::Aggregate(aggregate) => FunctionPlan::Aggregate(OrderDependent { carries_on: true, ..aggregate }),
            other @ (FunctionPlan::Value(_) | FunctionPlan::StringAgg { .. } | FunctionPlan::Quantile(_)) => other,
        }
    }
}
