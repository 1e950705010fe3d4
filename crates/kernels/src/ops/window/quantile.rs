// SPDX-License-Identifier: Apache-2.0
//! Medians and percentiles over frames: the one or two values around a position in the order of the
//! counted values.
//!
//! A sort by value gives each row a rank. The ranks of the counted rows are compacted, so that a
//! frame is a range of them. A [`Wavelet`] matrix finds the ranks around the position, and the
//! states of grouped aggregation make a result of their values.
//!
//! With DISTINCT, rows without an equal value before them in the frame count. They depend on the
//! frame, unless it begins or ends with the partition. So the matrix has, for each row, the nearest
//! row before with its value. A frame of few rows is read for each row instead, and a rank is found
//! by bisection.

use std::sync::Arc;

use arrow::datatypes::{DataType, Field};
use columnar::{ColumnType, DeviceColumn};
use device::{Arg, Buffer};

use super::frame::{Frame, FrameBound, PartitionIndex};
use super::order_facts::{OrderFact, OrderFacts, ROWS};
use super::value::{COUNTED, counted_flags};
use super::wavelet::{Companions, Wavelet};
use super::{PlanContext, WindowInput, first_occurrence, is_not_null};
use crate::codegen::{Params, RowRef, RowWriter, Value};
use crate::expr::{Aggregate, AggregateFunction, Expr, Literal, LiteralValue};
use crate::ops::Options;
use crate::ops::accumulate::{Accumulators, StateUse};
use crate::ops::launch::NamedArgs;
use crate::ops::launch::output::Output;
use crate::ops::launch::primitives::Lengths;
use crate::ops::launch::program::{Kernel, row_loop};
use crate::ops::launch::source::Source;
use crate::prelude::Section;
use crate::{Error, Result};

/// A quantile of a set of values.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Quantile {
    /// The median; between two values, their mean.
    Median,
    /// The percentile at a fraction from 0 to 1; between two values, an interpolation.
    Percentile(f64),
}

/// Most rows of a frame that is read for each row, once for each bit of a rank.
const MAX_BISECTED_ROWS: u64 = 1 << 9;

/// A quantile over columns and order facts.
pub(super) struct QuantilePlan {
    quantile: Quantile,
    column: usize,
    /// The column with the ranks.
    rank: usize,
    /// Condition for a row to count.
    counts: Expr,
    /// For DISTINCT over a frame that neither begins nor ends with the partition: the column of
    /// [`OrderFact::Before`].
    before: Option<usize>,
    /// The position of the sort.
    order: usize,
}

impl QuantilePlan {
    /// With DISTINCT and frames from the partition's start, a row counts unless its value occurs
    /// before it in the partition. For frames to the partition's end, unless its value occurs after
    /// it.
    pub fn plan(
        quantile: Quantile,
        column: usize,
        distinct: bool,
        frame: &Frame,
        context: &mut PlanContext<'_>,
    ) -> Result<QuantilePlan> {
        if let Quantile::Percentile(fraction) = quantile
            && !(0.0..=1.0).contains(&fraction)
        {
            return Err(Error::Unsupported(format!("a percentile at {fraction} is not supported on the device")));
        }
        let rank = context.fact(OrderFact::Rank, column)?;
        let mut counts = vec![is_not_null(column)];
        let mut before = None;
        let begins = frame.start == FrameBound::UnboundedPreceding;
        if distinct && !begins && frame.end != FrameBound::UnboundedFollowing {
            before = Some(context.fact(OrderFact::Before, column)?);
        } else if distinct {
            let other = context.fact(if begins { OrderFact::Before } else { OrderFact::After }, column)?;
            counts.push(first_occurrence::has_no_other(other));
        }
        let order = context.facts.order_of(rank);
        Ok(QuantilePlan { quantile, column, rank, counts: Expr::And(counts), before, order })
    }
}

/// A quantile, and the kernels that write it.
#[derive(Debug, Clone)]
pub(super) struct QuantileCall {
    frame: Frame,
    order: usize,
    output: Output,
    strategy: QuantileStrategy,
    /// Position of the first kernel.
    first: usize,
    /// Position of the kernel that writes the quantiles.
    last: usize,
}

/// How ranks around a quantile are found.
#[derive(Debug, Clone)]
enum QuantileStrategy {
    /// A frame is a range of the counted rows.
    Range(Wavelet),
    /// A range leaves out rows with an equal value before them in the frame.
    DistinctRange(Wavelet),
    /// The same, by reading the frame of each row.
    Bisection,
}

/// Positions after the first kernel.
const FLAGS: usize = 0;
const COMPACT_RANKS: usize = 1;
const SEARCH: usize = 2;
/// Kernels of [`QuantileStrategy::DistinctRange`].
const COMPACT_BEFORE: usize = 3;
const FRAMES: usize = 4;

impl QuantileCall {
    /// Appends the kernels, named after `name`, over columns of `types`.
    ///
    /// # Errors
    /// `Unsupported` if values of the column have no quantile.
    pub fn try_new(
        plan: &QuantilePlan,
        frame: Frame,
        field: &Field,
        name: &str,
        types: &[ColumnType],
        options: &Options,
        kernels: &mut Vec<Kernel>,
    ) -> Result<QuantileCall> {
        let first = kernels.len();
        let few = frame.rows().is_some_and(|rows| rows <= MAX_BISECTED_ROWS);
        let strategy = match plan.before {
            Some(before) if few => {
                kernels.push(bisect_kernel(name, plan, before, &frame, types, options)?);
                QuantileStrategy::Bisection
            }
            before => {
                kernels.push(counted_flags(name, &plan.counts, types, options)?);
                kernels.push(compact_kernel(&format!("window_compact_ranks{name}"), plan.rank, types, options)?);
                kernels.push(search_kernel(name, plan.quantile, before.is_some(), &frame, options)?);
                if let Some(before) = before {
                    kernels.push(compact_kernel(&format!("window_compact_before{name}"), before, types, options)?);
                    kernels.push(frames_kernel(name, &frame, options)?);
                }
                let wavelet = Wavelet::try_new(before.is_some(), options)?;
                if before.is_some() { QuantileStrategy::DistinctRange(wavelet) } else { QuantileStrategy::Range(wavelet) }
            }
        };
        let (last, output) = result_kernel(name, plan, field, types, options)?;
        kernels.push(last);
        Ok(QuantileCall { frame, order: plan.order, output, strategy, first, last: kernels.len() - 1 })
    }

    /// Type of the result.
    pub fn ty(&self) -> &ColumnType {
        &self.output.ty
    }

    /// The wavelet matrix, if the strategy has one.
    pub fn wavelet(&self) -> Option<&Wavelet> {
        match &self.strategy {
            QuantileStrategy::Range(wavelet) | QuantileStrategy::DistinctRange(wavelet) => Some(wavelet),
            QuantileStrategy::Bisection => None,
        }
    }

    /// The quantiles.
    pub async fn run(&self, input: WindowInput<'_>) -> Result<DeviceColumn> {
        let WindowInput { launch, columns, n, orders, .. } = input;
        let order = orders.get(self.order).ok_or_else(|| Error::Internal(format!("no order {}", self.order)))?;
        let found = match &self.strategy {
            QuantileStrategy::Range(wavelet) => self.search_wavelet(input, wavelet, false).await?,
            QuantileStrategy::DistinctRange(wavelet) => self.search_wavelet(input, wavelet, true).await?,
            QuantileStrategy::Bisection => self.bisect(input)?,
        };
        let Found { counts, searches, ranks } = found;
        let counts = launch.primitives.column(&OrderFacts::ty(false).into(), n, vec![counts], None, None)?;
        let columns: Vec<_> = columns.iter().cloned().chain([counts]).collect();
        let buffers = self.output.alloc(launch.queue, n)?;
        let mut named: NamedArgs<'_> =
            vec![(ROWS, Arg::Buffer(order)), (RANKS, Arg::Buffer(&ranks)), (SEARCHES, Arg::Buffer(&searches))];
        named.push(("n", Arg::U64(n as u64)));
        named.extend(self.output.args(&buffers));
        launch.run_on(self.last, launch.grid(n), &columns, None, named)?;
        self.output.finish(&launch.primitives, n, buffers, None)
    }

    /// Finds ranks in ranges of the counted rows. With `distinct`, a range leaves out repeated
    /// values.
    async fn search_wavelet(&self, input: WindowInput<'_>, wavelet: &Wavelet, distinct: bool) -> Result<Found> {
        let WindowInput { launch, columns, n, .. } = input;
        let (queue, grid, rows) = (launch.queue, launch.grid(n), ("n", Arg::U64(n as u64)));
        let words = |count: usize| queue.alloc(count * n * size_of::<u32>());
        let (counts, searches) = (words(1)?, words(2 * 3)?);
        let counted = queue.alloc((n + 1) * size_of::<i64>())?;
        let wavelet = wavelet.load(launch, &counted, n).await?;
        launch.run_on(self.first + FLAGS, grid, columns, None, vec![(COUNTED, Arg::Buffer(&counted)), rows])?;
        launch.primitives.offsets(Lengths::of(&counted, n), &queue.alloc(size_of::<u64>())?, 0)?;
        let compacted = |kernel: usize| {
            let compacted = words(1)?;
            let named = vec![(COUNTED, Arg::Buffer(&counted)), (COMPACTED, Arg::Buffer(&compacted)), rows];
            launch.run_on(self.first + kernel, grid, columns, None, named)?;
            Ok::<_, Error>(compacted)
        };
        let ranks = compacted(COMPACT_RANKS)?;
        let (ranges, thresholds) = (words(3)?, words(1)?);
        let companions = match distinct {
            true => {
                let companions = Companions { values: compacted(COMPACT_BEFORE)?, thresholds: &thresholds };
                let mut named = self.frame_args(input);
                named.extend([(COUNTED, Arg::Buffer(&counted)), (RANGES, Arg::Buffer(&ranges))]);
                named.push((THRESHOLDS, Arg::Buffer(&thresholds)));
                launch.run(self.first + FRAMES, grid, named)?;
                wavelet.below(&companions, &ranges, n)?;
                queue.copy(&ranges, 2 * n * size_of::<u32>(), &counts, 0, n * size_of::<u32>())?;
                Some(companions)
            }
            false => None,
        };
        let mut named = self.frame_args(input);
        named.extend([(COUNTS, Arg::Buffer(&counts)), (SEARCHES, Arg::Buffer(&searches))]);
        named.push((COUNTED, Arg::Buffer(&counted)));
        launch.run(self.first + SEARCH, grid, named)?;
        let ranks = wavelet.select(ranks, companions, &searches, 2 * n).await?;
        Ok(Found { counts, searches, ranks })
    }

    /// Finds ranks by reading the frame of each row.
    fn bisect(&self, input: WindowInput<'_>) -> Result<Found> {
        let WindowInput { launch, columns, n, .. } = input;
        let words = |count: usize| launch.queue.alloc(count * n * size_of::<u32>());
        let (counts, searches, ranks) = (words(1)?, words(2 * 3)?, words(2)?);
        let mut named = self.frame_args(input);
        named.extend([(COUNTS, Arg::Buffer(&counts)), (SEARCHES, Arg::Buffer(&searches))]);
        named.push((RANKS, Arg::Buffer(&ranks)));
        launch.run_on(self.first, launch.grid(n), columns, None, named)?;
        Ok(Found { counts, searches, ranks })
    }

    /// The arguments of [`over_frames`].
    fn frame_args<'a>(&self, input: WindowInput<'a>) -> NamedArgs<'a> {
        let mut args = input.partitions.args();
        args.extend(self.frame.offsets());
        args.push(("n", Arg::U64(input.n as u64)));
        args
    }
}

/// The ranks around a quantile, for each row.
struct Found {
    /// Number of counted values of the frame, a u32 for each row.
    counts: Buffer,
    /// Positions in `ranks`: for the lower value of each row, then for the upper value of each; u32
    /// each.
    searches: Buffer,
    /// Ranks, u32 each.
    ranks: Buffer,
}

/// Parameters of [`Found`].
const RANKS: &str = "ranks";
const COUNTS: &str = "counts";
const SEARCHES: &str = "searches";
/// Parameter of the u32 values of a column in the counted rows.
const COMPACTED: &str = "compacted";
/// Parameters of each row's frame as a range of the counted rows, and of the thresholds for the
/// companions of these.
const RANGES: &str = "ranges";
const THRESHOLDS: &str = "thresholds";

/// The kernel that compacts the u32 values of a column to those of the counted rows.
fn compact_kernel(name: &str, column: usize, types: &[ColumnType], options: &Options) -> Result<Kernel> {
    let mut params = Params::new();
    params.need(Section::Base);
    params.named(COUNTED, "const G i64 *RESTRICT");
    params.named(COMPACTED, "G u32 *RESTRICT");
    let n = params.named("n", "u64");
    let mut writer = RowWriter::new(types, options.profile, &mut params);
    let value = writer.eval(&Expr::Column(column))?;
    writer.push(&format!("if ({COUNTED}[row + 1] != {COUNTED}[row]) {COMPACTED}[{COUNTED}[row]] = {};", value.code));
    let statements = writer.statements();
    Ok(Kernel::new(name, params, row_loop(options.profile, "row", &n, &statements)))
}

/// A kernel that reads the frame of each row. `statements` gives the C after the declaration of the
/// frame.
fn over_frames(
    name: &str,
    frame: &Frame,
    options: &Options,
    named: &[(&str, &str)],
    statements: impl FnOnce(&mut Params, &str) -> Result<String>,
) -> Result<Kernel> {
    let mut params = Params::new();
    params.need(Section::Base);
    let partition = PartitionIndex::declare(&mut params, "row");
    let bounds = frame.declare(&mut params, "row");
    for (name, c_type) in named {
        params.named(name, c_type);
    }
    let n = params.named("n", "u64");
    let statements = statements(&mut params, &n)?;
    let statements = format!("    {partition}\n    {bounds}\n{statements}");
    Ok(Kernel::new(name, params, row_loop(options.profile, "row", &n, &statements)))
}

/// The kernel that writes each row's frame as a range of the counted rows. The threshold of its
/// companions is one more than the last row before the frame.
fn frames_kernel(name: &str, frame: &Frame, options: &Options) -> Result<Kernel> {
    let named = [(COUNTED, "const G i64 *RESTRICT"), (RANGES, "G u32 *RESTRICT"), (THRESHOLDS, "G u32 *RESTRICT")];
    over_frames(&format!("window_frames{name}"), frame, options, &named, |_, n| {
        Ok(format!(
            "    {RANGES}[row] = (u32){COUNTED}[frame_start];
    {RANGES}[{n} + row] = (u32){COUNTED}[frame_end];
    {RANGES}[2 * {n} + row] = 0;
    {THRESHOLDS}[row] = (u32)(frame_start < {n} ? frame_start + 1 : {n});
"
        ))
    })
}

/// The kernel that writes the searches of each row. `has_counts`: the number of counted values is
/// known.
fn search_kernel(name: &str, quantile: Quantile, has_counts: bool, frame: &Frame, options: &Options) -> Result<Kernel> {
    let named = [(COUNTED, "const G i64 *RESTRICT"), (COUNTS, "G u32 *RESTRICT"), (SEARCHES, "G u32 *RESTRICT")];
    let count = match has_counts {
        true => format!("count = {COUNTS}[row];"),
        false => format!("count = behind - first;\n    {COUNTS}[row] = count;"),
    };
    over_frames(&format!("window_search{name}"), frame, options, &named, |params, n| {
        let between = between(quantile, params, options)?;
        Ok(format!(
            "    u32 first = (u32){COUNTED}[frame_start], behind = (u32){COUNTED}[frame_end], {count}
    u32 last = count ? count - 1 : 0;
    {between}
    G u32 *of = {SEARCHES} + row;
    of[0] = of[{n}] = first;
    of[2 * {n}] = of[3 * {n}] = behind;
    of[4 * {n}] = low;
    of[5 * {n}] = high;
"
        ))
    })
}

/// C that declares the positions `low` and `high` around the quantile, among `last` + 1 values.
fn between(quantile: Quantile, params: &mut Params, options: &Options) -> Result<String> {
    Ok(match quantile {
        Quantile::Median => "u32 low = last / 2, high = last - low;".into(),
        Quantile::Percentile(fraction) => {
            let fraction = RowWriter::new(&[], options.profile, params).eval(&literal(fraction))?;
            format!(
                "f64 position = {} * (f64)last;\n    u32 low = (u32)position, high = low + ((f64)low < position);",
                fraction.code
            )
        }
    })
}

/// The kernel that finds ranks by bisection, of rows without an equal value before them in the
/// frame.
fn bisect_kernel(
    name: &str,
    plan: &QuantilePlan,
    before: usize,
    frame: &Frame,
    types: &[ColumnType],
    options: &Options,
) -> Result<Kernel> {
    let named = [(RANKS, "G u32 *RESTRICT"), (COUNTS, "G u32 *RESTRICT"), (SEARCHES, "G u32 *RESTRICT")];
    over_frames(&format!("window_bisect{name}"), frame, options, &named, |params, n| {
        let between = between(plan.quantile, params, options)?;
        let mut writer = RowWriter::new(types, options.profile, params).with_names("i", "x");
        let counts = writer.eval(&plan.counts)?.is_true();
        let (before, rank) = (writer.eval(&Expr::Column(before))?.code, writer.eval(&Expr::Column(plan.rank))?.code);
        let values = writer.statements();
        let of_frame = |then: &str| {
            format!(
                "for (u64 i = frame_start; i < frame_end; ++i) {{\n{values}      if (({counts}) && {before} <= frame_start) {{ {then} }}\n    }}"
            )
        };
        Ok(format!(
            "    u32 count = 0;
    {count}
    u32 last = count ? count - 1 : 0;
    {between}
    u32 least = 0, above = (u32){n};
    while (above - least > 1) {{
    u32 middle = least + (above - least) / 2, below = 0;
    {below}
    if (below <= low) least = middle; else above = middle;
    }}
    u32 next = (u32){n};
    {next}
    {COUNTS}[row] = count;
    {RANKS}[row] = least;
    {RANKS}[{n} + row] = next;
    {SEARCHES}[row] = (u32)row;
    {SEARCHES}[{n} + row] = (u32)(high > low ? {n} + row : row);
",
            count = of_frame("++count;"),
            below = of_frame(&format!("below += {rank} < middle;")),
            next = of_frame(&format!("if ({rank} > least && {rank} < next) next = {rank};")),
        ))
    })
}

/// The kernel that writes the quantiles, from the values of the ranks.
fn result_kernel(
    name: &str,
    plan: &QuantilePlan,
    field: &Field,
    types: &[ColumnType],
    options: &Options,
) -> Result<(Kernel, Output)> {
    let count = types.len();
    let types: Vec<ColumnType> = types.iter().cloned().chain([OrderFacts::ty(false)]).collect();
    let (value, data_type) = (Expr::Column(plan.column), field.data_type().clone());
    let (function, arguments) = match plan.quantile {
        Quantile::Median => (AggregateFunction::Median, vec![value]),
        Quantile::Percentile(fraction) => {
            let number = Expr::Cast { expr: Arc::new(Expr::Column(count)), to: DataType::Int64, checked: false };
            (AggregateFunction::PercentileCont, vec![value, number, literal(fraction)])
        }
    };
    let aggregate = Aggregate { function, arguments, filter: None, distinct: false, data_type };
    let mut accumulators = Accumulators::default();
    accumulators.plan(&aggregate, &Source::of_types(types.clone()), 0, StateUse { atomic: false, grouped: false })?;

    let mut params = Params::new();
    params.need(Section::Base);
    params.named(ROWS, "const G u32 *RESTRICT");
    params.named(RANKS, "const G u32 *RESTRICT");
    params.named(SEARCHES, "const G u32 *RESTRICT");
    let n = params.named("n", "u64");
    // Values are read at other rows, their count at the row itself.
    let mut own = vec![None; types.len()];
    own[count] = Some(RowRef { row: "row".into(), found: None, is_mark: false });
    let mut writer = RowWriter::new(&types, options.profile, &mut params).with_row_refs(&own).with_names("at", "x");
    let there = writer.eval(&Expr::Column(count))?;
    let before = writer.statements();
    let mut update = |writer: &mut RowWriter<'_>, index: usize, values: &[Value]| {
        let state = &accumulators.states[index];
        writer.push(&state.kind.update(&state.slot_names(|slot| format!("s{slot}")), values));
        Ok(())
    };
    accumulators.write(&mut writer, 0, &mut update)?;
    let take = writer.statements();
    let mut writer = RowWriter::new(&types, options.profile, &mut params).with_names("row", "e");
    let evaluator = accumulators.evaluators.first().ok_or_else(|| Error::Internal("a quantile without an end".into()))?;
    let value = accumulators.evaluate(&mut writer, evaluator, &|slot| format!("s{slot}"))?;
    let output = Output::of(&value, field.data_type(), name)?;
    output.write(&mut writer, &value, "row");
    let end = writer.statements();
    let states = accumulators
        .init()
        .iter()
        .enumerate()
        .map(|(slot, value)| format!("    u64 s{slot} = (u64){value:#x}UL;\n"))
        .collect::<String>();
    let text = format!(
        "{before}{states}    u32 found = {there} ? 1 + ({SEARCHES}[row] != {SEARCHES}[{n} + row]) : 0;
    for (u32 k = 0; k < found; ++k) {{
      u64 at = {ROWS}[{RANKS}[{SEARCHES}[k * {n} + row]]];
{take}    }}
{end}",
        there = there.code,
    );
    Ok((Kernel::new(format!("window_quantile{name}"), params, row_loop(options.profile, "row", &n, &text)), output))
}

fn literal(fraction: f64) -> Expr {
    Expr::Literal(Literal { data_type: DataType::Float64, value: LiteralValue::Float(fraction) })
}
