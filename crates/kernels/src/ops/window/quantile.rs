// SPDX-License-Identifier: Apache-2.0
//! Medians and percentiles over frames: of the values that count, the one or two around a place in their order.
//!
//! Sorting by value gives each row the number of its value among all. The numbers of the rows that count are brought together;
//! a frame is a range of them, in which a [`Wavelet`] matrix finds those around the place. What is made of their values is what
//! grouped aggregation makes of them.
//!
//! Which rows of DISTINCT count depends on the frame, unless it begins or ends with the partition: those with no row of the same
//! value before them in the frame. The matrix is told how far before each row there is one. A frame of few rows is looked at anew
//! for each row instead: a number is found by halving the range that it lies in.

use arrow::datatypes::{DataType, Field};
use columnar::{ColumnType, DeviceColumn};
use device::{Arg, Buffer, Queue};

use super::frame::{Frame, FrameBound, Places};
use super::is_known;
use super::sorted::{ROWS, Sorted, Tell};
use super::value::{KNOWN, known_flags};
use super::wavelet::{Companions, Wavelet};
use crate::codegen::{Params, RowRef, RowWriter, Value};
use crate::expr::{Aggregate, AggregateFunction, CompareOp, Expr, Literal, LiteralValue};
use crate::ops::Options;
use crate::ops::accumulate::{Accumulators, StateUse};
use crate::ops::output::Output;
use crate::ops::primitives::LoadedPrimitives;
use crate::ops::program::{Kernel, Loaded, for_rows, spread};
use crate::ops::source::Source;
use crate::prelude::Section;
use crate::{Error, Result};

/// A place in the order of values.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Quantile {
    /// The middle; between two values, their mean.
    Median,
    /// So far from the least to the greatest, of 1; between two values, a part of both.
    Share(f64),
}

/// Most rows of a frame that is looked at anew for each row, once for each bit of a number.
const FEW_ROWS: u64 = 1 << 9;

/// A quantile of a column and what sorting tells of it.
pub(super) struct Ranked {
    quantile: Quantile,
    column: usize,
    /// The column with the numbers of values.
    number: usize,
    /// Whether a row counts.
    counts: Expr,
    /// For DISTINCT over a frame that begins and ends somewhere: the column that tells where the same value stands before a row.
    before: Option<usize>,
    /// The position of the sort.
    order: usize,
}

impl Ranked {
    /// Of DISTINCT, rows count where the same value does not stand before them in the partition, where frames begin with it, or
    /// behind them, where frames end with it.
    #[allow(clippy::too_many_arguments)]
    pub fn plan(
        quantile: Quantile,
        column: usize,
        distinct: bool,
        frame: &Frame,
        types: &[ColumnType],
        sorted: &mut Sorted,
        options: &Options,
        kernels: &mut Vec<Kernel>,
    ) -> Result<Ranked> {
        if let Quantile::Share(share) = quantile
            && !(0.0..=1.0).contains(&share)
        {
            return Err(Error::Unsupported(format!("a percentile at {share} is not supported on the device")));
        }
        let number = sorted.tell(Tell::Number, column, types, options, kernels)?;
        let mut counts = vec![is_known(column)];
        let mut before = None;
        let begins_or_ends = frame.start == FrameBound::UnboundedPreceding || frame.end == FrameBound::UnboundedFollowing;
        if distinct && !begins_or_ends {
            before = Some(sorted.tell(Tell::Before, column, types, options, kernels)?);
        } else if distinct {
            let tell = if frame.start == FrameBound::UnboundedPreceding { Tell::Before } else { Tell::Behind };
            let told = Box::new(Expr::Column(sorted.tell(tell, column, types, options, kernels)?));
            let none = Literal { data_type: DataType::UInt32, value: LiteralValue::Int(0) };
            counts.push(Expr::Compare { op: CompareOp::Eq, left: told, right: Box::new(Expr::Literal(none)) });
        }
        Ok(Ranked { quantile, column, number, counts: Expr::And(counts), before, order: sorted.sort_of(number) })
    }
}

/// A quantile, and the kernels that write it.
#[derive(Debug, Clone)]
pub(super) struct QuantileCall {
    frame: Frame,
    order: usize,
    output: Output,
    way: Way,
    /// The positions of the first kernel and of the last one.
    first: usize,
    end: usize,
}

/// How numbers are found in their order.
#[derive(Debug, Clone)]
enum Way {
    /// A frame is a range of those that count.
    Range(Wavelet),
    /// A range leaves out those of rows before which there is one of the same value in the frame.
    Distinct(Wavelet),
    /// The same, each row looking at its frame itself.
    Few,
}

/// Positions behind the first kernel.
const FLAGS: usize = 0;
const GATHER: usize = 1;
const SEARCH: usize = 2;
/// Of [`Way::Distinct`].
const GATHER_BEFORE: usize = 3;
const FRAMES: usize = 4;

impl QuantileCall {
    /// Appends the kernels, named after `name`, over columns of `types`.
    ///
    /// # Errors
    /// `Unsupported` where values of the column have no quantile.
    pub fn try_new(
        ranked: &Ranked,
        frame: Frame,
        field: &Field,
        name: &str,
        types: &[ColumnType],
        options: &Options,
        kernels: &mut Vec<Kernel>,
    ) -> Result<QuantileCall> {
        let first = kernels.len();
        let few = frame.rows().is_some_and(|rows| rows <= FEW_ROWS);
        let way = match ranked.before {
            Some(before) if few => {
                kernels.push(pick(name, ranked, before, &frame, types, options)?);
                Way::Few
            }
            before => {
                kernels.push(known_flags(name, &ranked.counts, types, options)?);
                kernels.push(gather(&format!("window_numbers_of{name}"), ranked.number, types, options)?);
                kernels.push(search(name, ranked.quantile, before.is_some(), &frame, options)?);
                if let Some(before) = before {
                    kernels.push(gather(&format!("window_before{name}"), before, types, options)?);
                    kernels.push(frames(name, &frame, options)?);
                }
                let wavelet = Wavelet::try_new(before.is_some(), options)?;
                if before.is_some() { Way::Distinct(wavelet) } else { Way::Range(wavelet) }
            }
        };
        let (end, output) = end(name, ranked, field, types, options)?;
        kernels.push(end);
        Ok(QuantileCall { frame, order: ranked.order, output, way, first, end: kernels.len() - 1 })
    }

    /// Type of the result.
    pub fn ty(&self) -> &ColumnType {
        &self.output.ty
    }

    /// What finds numbers in their order, if it asks for it.
    pub fn wavelet(&self) -> Option<&Wavelet> {
        match &self.way {
            Way::Range(wavelet) | Way::Distinct(wavelet) => Some(wavelet),
            Way::Few => None,
        }
    }

    /// The quantiles. `orders`: the rows in the order of each column's values.
    #[allow(clippy::too_many_arguments)]
    pub async fn run(
        &self,
        queue: &Queue,
        options: &Options,
        loaded: &Loaded<'_>,
        primitives: &LoadedPrimitives<'_>,
        columns: &[DeviceColumn],
        n: usize,
        places: &Places,
        orders: &[Buffer],
    ) -> Result<DeviceColumn> {
        let order = orders.get(self.order).ok_or_else(|| Error::Internal(format!("no order {}", self.order)))?;
        let (grid, rows) = (spread(queue, options, n), ("n", Arg::U64(n as u64)));
        let words = |count: usize| queue.alloc(count * n * size_of::<u32>());
        let (counts, searches) = (words(1)?, words(2 * 3)?);
        let mut of_frame = places.args();
        of_frame.extend(self.frame.offsets());
        of_frame.push(rows);
        let mut found = of_frame.clone();
        found.extend([(COUNTS, Arg::Buffer(&counts)), (SEARCHES, Arg::Buffer(&searches))]);
        let numbers = match self.wavelet() {
            Some(wavelet) => {
                let known = queue.alloc((n + 1) * size_of::<i64>())?;
                let wavelet = wavelet.load(queue, &known, n).await?;
                loaded.launch_on(queue, self.first + FLAGS, grid, columns, None, vec![(KNOWN, Arg::Buffer(&known)), rows])?;
                primitives.offsets(queue, &known, 0, n, 0, &queue.alloc(size_of::<u64>())?, 0)?;
                let gathered = |kernel: usize| {
                    let gathered = words(1)?;
                    let named = vec![(KNOWN, Arg::Buffer(&known)), (GATHERED, Arg::Buffer(&gathered)), rows];
                    loaded.launch_on(queue, self.first + kernel, grid, columns, None, named)?;
                    Ok::<_, Error>(gathered)
                };
                let numbers = gathered(GATHER)?;
                let (ranges, thresholds) = (words(3)?, words(1)?);
                let companions = match self.way {
                    Way::Distinct(_) => {
                        let companions = Companions { values: gathered(GATHER_BEFORE)?, thresholds: &thresholds };
                        of_frame.extend([(KNOWN, Arg::Buffer(&known)), (RANGES, Arg::Buffer(&ranges))]);
                        of_frame.push((THRESHOLDS, Arg::Buffer(&thresholds)));
                        loaded.launch(queue, self.first + FRAMES, grid, of_frame)?;
                        wavelet.below(primitives, &companions, &ranges, n)?;
                        queue.copy(&ranges, 2 * n * size_of::<u32>(), &counts, 0, n * size_of::<u32>())?;
                        Some(companions)
                    }
                    _ => None,
                };
                found.push((KNOWN, Arg::Buffer(&known)));
                loaded.launch(queue, self.first + SEARCH, grid, found)?;
                wavelet.select(primitives, numbers, companions, &searches, 2 * n).await?
            }
            None => {
                let numbers = words(2)?;
                found.push((NUMBERS, Arg::Buffer(&numbers)));
                loaded.launch_on(queue, self.first, grid, columns, None, found)?;
                numbers
            }
        };
        let counts = primitives.column(queue, &Sorted::ty(false).into(), n, vec![counts], None, None)?;
        let columns: Vec<_> = columns.iter().cloned().chain([counts]).collect();
        let buffers = self.output.alloc(queue, n)?;
        let mut named =
            vec![(ROWS, Arg::Buffer(order)), (NUMBERS, Arg::Buffer(&numbers)), (SEARCHES, Arg::Buffer(&searches)), rows];
        named.extend(self.output.args(&buffers));
        loaded.launch_on(queue, self.end, grid, &columns, None, named)?;
        self.output.finish(queue, primitives, n, buffers, None)
    }
}

/// The numbers of the values that count, and how many of them each frame has.
const NUMBERS: &str = "numbers";
const COUNTS: &str = "counts";
/// A search for the lower place of each row, then one for the upper place of each.
const SEARCHES: &str = "searches";
/// A column's words, of the rows that count.
const GATHERED: &str = "gathered";
/// Each row's frame as a range of the rows that count, and which of these have one of the same value before them in the frame.
const RANGES: &str = "ranges";
const THRESHOLDS: &str = "thresholds";

/// Brings the words of a column together that are of rows that count.
fn gather(name: &str, column: usize, types: &[ColumnType], options: &Options) -> Result<Kernel> {
    let mut params = Params::new();
    params.need(Section::Base);
    params.named(KNOWN, "const G i64 *RESTRICT");
    params.named(GATHERED, "G u32 *RESTRICT");
    let n = params.named("n", "u64");
    let mut writer = RowWriter::new(types, options.profile, &mut params);
    let word = writer.eval(&Expr::Column(column))?;
    writer.push(&format!("if ({KNOWN}[row + 1] != {KNOWN}[row]) {GATHERED}[{KNOWN}[row]] = {};", word.code));
    let statements = writer.statements();
    Ok(Kernel::new(name, params, for_rows(options.profile, "row", &n, &statements)))
}

/// A kernel that looks at each row's frame. `text` is C behind what declares that.
fn over_frames(
    name: &str,
    frame: &Frame,
    options: &Options,
    named: &[(&str, &str)],
    text: impl FnOnce(&mut Params, &str) -> Result<String>,
) -> Result<Kernel> {
    let mut params = Params::new();
    params.need(Section::Base);
    let places = Places::text(&mut params, "row");
    let bounds = frame.text(&mut params, "row");
    for (name, c_type) in named {
        params.named(name, c_type);
    }
    let n = params.named("n", "u64");
    let text = text(&mut params, &n)?;
    Ok(Kernel::new(name, params, for_rows(options.profile, "row", &n, &format!("    {places}\n    {bounds}\n{text}"))))
}

/// Writes each row's frame as a range of the rows that count, and the threshold of its companions: one more than the last row
/// before the frame.
fn frames(name: &str, frame: &Frame, options: &Options) -> Result<Kernel> {
    let named = [(KNOWN, "const G i64 *RESTRICT"), (RANGES, "G u32 *RESTRICT"), (THRESHOLDS, "G u32 *RESTRICT")];
    over_frames(&format!("window_frames{name}"), frame, options, &named, |_, n| {
        Ok(format!(
            "    {RANGES}[row] = (u32){KNOWN}[frame_start];
    {RANGES}[{n} + row] = (u32){KNOWN}[frame_end];
    {RANGES}[2 * {n} + row] = 0;
    {THRESHOLDS}[row] = (u32)(frame_start < {n} ? frame_start + 1 : {n});
"
        ))
    })
}

/// Writes what each row searches for. `counted`: how many values its frame has stands there.
fn search(name: &str, quantile: Quantile, counted: bool, frame: &Frame, options: &Options) -> Result<Kernel> {
    let named = [(KNOWN, "const G i64 *RESTRICT"), (COUNTS, "G u32 *RESTRICT"), (SEARCHES, "G u32 *RESTRICT")];
    let count = match counted {
        true => format!("count = {COUNTS}[row];"),
        false => format!("count = behind - first;\n    {COUNTS}[row] = count;"),
    };
    over_frames(&format!("window_search{name}"), frame, options, &named, |params, n| {
        let between = between(quantile, params, options)?;
        Ok(format!(
            "    u32 first = (u32){KNOWN}[frame_start], behind = (u32){KNOWN}[frame_end], {count}
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

/// C: the places around the quantile among so many numbers and one more, from 0.
fn between(quantile: Quantile, params: &mut Params, options: &Options) -> Result<String> {
    Ok(match quantile {
        Quantile::Median => "u32 low = last / 2, high = last - low;".into(),
        Quantile::Share(share) => {
            let share = RowWriter::new(&[], options.profile, params).eval(&literal(share))?;
            format!("f64 place = {} * (f64)last;\n    u32 low = (u32)place, high = low + ((f64)low < place);", share.code)
        }
    })
}

/// Finds the numbers themselves, of values that do not stand before in the frame.
fn pick(name: &str, ranked: &Ranked, before: usize, frame: &Frame, types: &[ColumnType], options: &Options) -> Result<Kernel> {
    let named = [(NUMBERS, "G u32 *RESTRICT"), (COUNTS, "G u32 *RESTRICT"), (SEARCHES, "G u32 *RESTRICT")];
    over_frames(&format!("window_pick{name}"), frame, options, &named, |params, n| {
        let between = between(ranked.quantile, params, options)?;
        let mut writer = RowWriter::new(types, options.profile, params).with_names("i", "x");
        let counts = writer.eval(&ranked.counts)?.is_true();
        let (before, number) = (writer.eval(&Expr::Column(before))?.code, writer.eval(&Expr::Column(ranked.number))?.code);
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
    {NUMBERS}[row] = least;
    {NUMBERS}[{n} + row] = next;
    {SEARCHES}[row] = (u32)row;
    {SEARCHES}[{n} + row] = (u32)(high > low ? {n} + row : row);
",
            count = of_frame("++count;"),
            below = of_frame(&format!("below += {number} < middle;")),
            next = of_frame(&format!("if ({number} > least && {number} < next) next = {number};")),
        ))
    })
}

/// Writes the quantiles, out of the values that were found.
fn end(name: &str, ranked: &Ranked, field: &Field, types: &[ColumnType], options: &Options) -> Result<(Kernel, Output)> {
    let count = types.len();
    let types: Vec<ColumnType> = types.iter().cloned().chain([Sorted::ty(false)]).collect();
    let (value, data_type) = (Expr::Column(ranked.column), field.data_type().clone());
    let (function, arguments) = match ranked.quantile {
        Quantile::Median => (AggregateFunction::Median, vec![value]),
        Quantile::Share(share) => {
            let number = Expr::Cast { expr: Box::new(Expr::Column(count)), to: DataType::Int64, checked: false };
            (AggregateFunction::PercentileCont, vec![value, number, literal(share)])
        }
    };
    let aggregate = Aggregate { function, arguments, filter: None, distinct: false, data_type };
    let mut accumulators = Accumulators::default();
    accumulators.plan(&aggregate, &Source::of_types(types.clone()), 0, StateUse { atomic: false, grouped: false })?;

    let mut params = Params::new();
    params.need(Section::Base);
    params.named(ROWS, "const G u32 *RESTRICT");
    params.named(NUMBERS, "const G u32 *RESTRICT");
    params.named(SEARCHES, "const G u32 *RESTRICT");
    let n = params.named("n", "u64");
    // Values are those of other rows, their number is the row's own.
    let mut own = vec![None; types.len()];
    own[count] = Some(RowRef { row: "row".into(), found: None, is_mark: false });
    let mut writer = RowWriter::new(&types, options.profile, &mut params).with_row_refs(&own).with_names("at", "x");
    let there = writer.eval(&Expr::Column(count))?;
    let before = writer.statements();
    let mut update = |writer: &mut RowWriter<'_>, index: usize, values: &[Value]| {
        let state = &accumulators.states[index];
        writer.push(&state.kind.update(&state.slot_names(|word| format!("s{word}")), values));
        Ok(())
    };
    accumulators.write(&mut writer, 0, &mut update)?;
    let take = writer.statements();
    let mut writer = RowWriter::new(&types, options.profile, &mut params).with_names("row", "e");
    let evaluator = accumulators.evaluators.first().ok_or_else(|| Error::Internal("a quantile without an end".into()))?;
    let value = accumulators.evaluate(&mut writer, evaluator, &|word| format!("s{word}"))?;
    let output = Output::of(&value, field.data_type(), name)?;
    output.write(&mut writer, &value, "row");
    let end = writer.statements();
    let states = accumulators
        .init()
        .iter()
        .enumerate()
        .map(|(word, value)| format!("    u64 s{word} = (u64){value:#x}UL;\n"))
        .collect::<String>();
    let text = format!(
        "{before}{states}    u32 found = {there} ? 1 + ({SEARCHES}[row] != {SEARCHES}[{n} + row]) : 0;
    for (u32 k = 0; k < found; ++k) {{
      u64 at = {ROWS}[{NUMBERS}[{SEARCHES}[k * {n} + row]]];
{take}    }}
{end}",
        there = there.code,
    );
    Ok((Kernel::new(format!("window_quantile{name}"), params, for_rows(options.profile, "row", &n, &text)), output))
}

fn literal(share: f64) -> Expr {
    Expr::Literal(Literal { data_type: DataType::Float64, value: LiteralValue::Float(share) })
}
