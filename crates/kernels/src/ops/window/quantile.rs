// SPDX-License-Identifier: Apache-2.0
//! Medians and percentiles over frames: of the values that count, the one or two around a place in their order.
//!
//! Sorting by value gives each row the number of its value among all. The numbers of the rows that count are brought together;
//! a frame is a range of them, in which a [`Wavelet`] matrix finds those around the place. What is made of their values is what
//! grouped aggregation makes of them.
//!
//! Which rows of DISTINCT count depends on the frame, unless it begins or ends with the partition. A frame of few rows is looked at
//! anew for each row then: a number is found by halving the range that it lies in.

use arrow::datatypes::{DataType, Field};
use columnar::{ColumnType, DeviceColumn};
use device::{Arg, Buffer, Queue};

use super::frame::{Frame, FrameBound, Places};
use super::is_known;
use super::sorted::{ROWS, Sorted, Tell};
use super::value::{KNOWN, known_flags};
use super::wavelet::Wavelet;
use crate::codegen::{Params, Place, RowWriter, Value};
use crate::expr::{Aggregate, AggregateFunction, CompareOp, Expr, Literal, LiteralValue};
use crate::ops::Options;
use crate::ops::accumulate::{Accumulators, Use};
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
const MOST_DISTINCT_ROWS: u64 = 1 << 9;

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
            return Err(Error::Unsupported(format!("a percentile at {share} has no device form")));
        }
        let number = sorted.tell(Tell::Number, column, types, options, kernels)?;
        let mut counts = vec![is_known(column)];
        let mut before = None;
        let begins_or_ends = frame.start == FrameBound::UnboundedPreceding || frame.end == FrameBound::UnboundedFollowing;
        if distinct && !begins_or_ends {
            if frame.rows().is_none_or(|rows| rows > MOST_DISTINCT_ROWS) {
                return Err(Error::Unsupported(format!(
                    "a percentile of DISTINCT values over frames that neither begin nor end with the partition and may have more than {MOST_DISTINCT_ROWS} rows has no device form"
                )));
            }
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
    /// What finds numbers in their order, where a frame is a range of those that count.
    wavelet: Option<Wavelet>,
    /// The positions of the first kernel and of the last one.
    first: usize,
    end: usize,
}

/// Positions behind the first kernel.
const FLAGS: usize = 0;
const GATHER: usize = 1;
const SEARCH: usize = 2;

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
        let wavelet = match ranked.before {
            Some(before) => {
                kernels.push(pick(name, ranked, before, &frame, types, options)?);
                None
            }
            None => {
                kernels.push(known_flags(name, &ranked.counts, types, options)?);
                kernels.push(gather(name, ranked.number, types, options)?);
                kernels.push(search(name, ranked.quantile, &frame, options)?);
                Some(Wavelet::try_new(options)?)
            }
        };
        let (end, output) = end(name, ranked, field, types, options)?;
        kernels.push(end);
        Ok(QuantileCall { frame, order: ranked.order, output, wavelet, first, end: kernels.len() - 1 })
    }

    /// Type of the result.
    pub fn ty(&self) -> &ColumnType {
        &self.output.ty
    }

    /// What finds numbers in their order, if it asks for it.
    pub fn wavelet(&self) -> Option<&Wavelet> {
        self.wavelet.as_ref()
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
        let counts = queue.alloc(n * size_of::<u32>())?;
        let searches = queue.alloc(2 * n * 3 * size_of::<u32>())?;
        let mut of_frame = places.args();
        of_frame.extend(self.frame.offsets());
        of_frame.extend([(COUNTS, Arg::Buffer(&counts)), (SEARCHES, Arg::Buffer(&searches)), rows]);
        let numbers = match &self.wavelet {
            Some(wavelet) => {
                let wavelet = wavelet.load(queue).await?;
                let known = queue.alloc((n + 1) * size_of::<i64>())?;
                let named = vec![(KNOWN, Arg::Buffer(&known)), rows];
                loaded.launch_on(queue, self.first + FLAGS, grid, columns, None, named)?;
                primitives.offsets(queue, &known, 0, n, 0, &queue.alloc(size_of::<u64>())?, 0)?;
                let numbers = queue.alloc(n * size_of::<u32>())?;
                let named = vec![(KNOWN, Arg::Buffer(&known)), (NUMBERS, Arg::Buffer(&numbers)), rows];
                loaded.launch_on(queue, self.first + GATHER, grid, columns, None, named)?;
                of_frame.push((KNOWN, Arg::Buffer(&known)));
                loaded.launch(queue, self.first + SEARCH, grid, of_frame)?;
                wavelet.select(queue, primitives, numbers, (&known, n), &searches, 2 * n)?
            }
            None => {
                let numbers = queue.alloc(2 * n * size_of::<u32>())?;
                of_frame.push((NUMBERS, Arg::Buffer(&numbers)));
                loaded.launch_on(queue, self.first, grid, columns, None, of_frame)?;
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

/// Brings the numbers of the values that count together.
fn gather(name: &str, number: usize, types: &[ColumnType], options: &Options) -> Result<Kernel> {
    let mut params = Params::new();
    params.need(Section::Base);
    params.named(KNOWN, "const G i64 *RESTRICT");
    params.named(NUMBERS, "G u32 *RESTRICT");
    let n = params.named("n", "u64");
    let mut writer = RowWriter::new(types, options.profile, &mut params);
    let number = writer.eval(&Expr::Column(number))?;
    writer.push(&format!("if ({KNOWN}[row + 1] != {KNOWN}[row]) {NUMBERS}[{KNOWN}[row]] = {};", number.code));
    let statements = writer.statements();
    Ok(Kernel::new(format!("window_numbers_of{name}"), params, for_rows(options.profile, "row", &n, &statements)))
}

/// Writes what each row searches for.
fn search(name: &str, quantile: Quantile, frame: &Frame, options: &Options) -> Result<Kernel> {
    let mut params = Params::new();
    params.need(Section::Base);
    let places = Places::text(&mut params, "row");
    let bounds = frame.text(&mut params, "row");
    params.named(KNOWN, "const G i64 *RESTRICT");
    params.named(COUNTS, "G u32 *RESTRICT");
    params.named(SEARCHES, "G u32 *RESTRICT");
    let n = params.named("n", "u64");
    let between = between(quantile, &mut params, options)?;
    let text = format!(
        "    {places}
    {bounds}
    u32 first = (u32){KNOWN}[frame_start], behind = (u32){KNOWN}[frame_end], count = behind - first;
    u32 last = count ? count - 1 : 0;
    {between}
    {COUNTS}[row] = count;
    G u32 *of = {SEARCHES} + row;
    of[0] = of[{n}] = first;
    of[2 * {n}] = of[3 * {n}] = behind;
    of[4 * {n}] = low;
    of[5 * {n}] = high;
"
    );
    Ok(Kernel::new(format!("window_search{name}"), params, for_rows(options.profile, "row", &n, &text)))
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
    let mut params = Params::new();
    params.need(Section::Base);
    let places = Places::text(&mut params, "row");
    let bounds = frame.text(&mut params, "row");
    params.named(NUMBERS, "G u32 *RESTRICT");
    params.named(COUNTS, "G u32 *RESTRICT");
    params.named(SEARCHES, "G u32 *RESTRICT");
    let n = params.named("n", "u64");
    let between = between(ranked.quantile, &mut params, options)?;
    let mut writer = RowWriter::new(types, options.profile, &mut params).with_names("i", "x");
    let counts = writer.eval(&ranked.counts)?.is_true();
    let (before, number) = (writer.eval(&Expr::Column(before))?.code, writer.eval(&Expr::Column(ranked.number))?.code);
    let values = writer.statements();
    let of_frame = |then: &str| {
        format!(
            "for (u64 i = frame_start; i < frame_end; ++i) {{\n{values}      if (({counts}) && {before} <= frame_start) {{ {then} }}\n    }}"
        )
    };
    let text = format!(
        "    {places}
    {bounds}
    u32 count = 0;
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
    );
    Ok(Kernel::new(format!("window_pick{name}"), params, for_rows(options.profile, "row", &n, &text)))
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
    accumulators.plan(&aggregate, &Source::of_types(types.clone()), 0, Use { atomic: false, grouped: false })?;

    let mut params = Params::new();
    params.need(Section::Base);
    params.named(ROWS, "const G u32 *RESTRICT");
    params.named(NUMBERS, "const G u32 *RESTRICT");
    params.named(SEARCHES, "const G u32 *RESTRICT");
    let n = params.named("n", "u64");
    // Values are those of other rows, their number is the row's own.
    let mut own = vec![None; types.len()];
    own[count] = Some(Place { row: "row".into(), found: None, is_mark: false });
    let mut writer = RowWriter::new(&types, options.profile, &mut params).with_places(&own).with_names("at", "x");
    let there = writer.eval(&Expr::Column(count))?;
    let before = writer.statements();
    let mut update = |writer: &mut RowWriter<'_>, index: usize, values: &[Value]| {
        let state = &accumulators.list[index];
        writer.push(&state.kind.take(&state.places(|word| format!("s{word}")), values));
        Ok(())
    };
    accumulators.write(&mut writer, 0, &mut update)?;
    let take = writer.statements();
    let mut writer = RowWriter::new(&types, options.profile, &mut params).with_names("row", "e");
    let ending = accumulators.endings.first().ok_or_else(|| Error::Internal("a quantile without an end".into()))?;
    let value = accumulators.end(&mut writer, ending, &|word| format!("s{word}"))?;
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
