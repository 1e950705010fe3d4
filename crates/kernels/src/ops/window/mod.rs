// SPDX-License-Identifier: Apache-2.0
//! Window functions over sorted rows: ranks, values of other rows, aggregates over frames.
//!
//! The input has the order of partition and order keys, as [`Sort`](super::Sort) gives it. Rows
//! keep their order. All of the input is kept and concatenated to one batch at the end, or all of
//! the partitions that have ended:
//!
//! 1. Partitions and groups of peers are found (see [`bounds`]).
//! 2. The orders of values are found that some functions need (see [`order_facts`]): DISTINCT, MIN
//!    and MAX of strings, quantiles, sketches.
//! 3. Each function writes its column (see [`value`], [`aggregate`] and [`quantile`]).

mod aggregate;
mod bounds;
mod carry;
mod compaction;
mod first_occurrence;
mod frame;
mod interval_bounds;
mod order_dependent;
mod order_facts;
mod quantile;
mod split;
mod value;
mod wavelet;

use std::sync::Arc;

use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use columnar::{ColumnType, DeviceBatch, DeviceColumn, Layout};
use device::{Buffer, ProgramSource, Queue};

use super::launch::Launch;
use super::launch::primitives::Primitives;
use super::launch::program::{Kernel, Program};
use super::launch::source::Source;
use super::{Concat, Gather, Input, Options, Select, check_rows, row_width};
use crate::codegen::CType;
use crate::expr::{Aggregate, Expr, Literal};
use crate::{Error, Result};
use aggregate::AggregateCall;
use carry::{Carried, Carry, CarryArgs};
use compaction::Compaction;
use first_occurrence::FirstOccurrence;
use frame::PartitionIndex;
pub use frame::{Frame, FrameBound, FrameUnits, interval};
use interval_bounds::IntervalBounds;
use order_dependent::OrderDependent;
use order_facts::{OrderFact, OrderFacts};
pub use quantile::Quantile;
use quantile::{QuantileCall, QuantilePlan};
use value::{Ranking, ValueCall, ValueKind};
use wavelet::Wavelet;

/// Device bytes of a row's numbers: those of its partition and of its peers, and their starts.
const NUMBER_BYTES: usize = 2 * (size_of::<i64>() + size_of::<u32>());
/// Device bytes of a row in an order of values, and while it is sorted.
const ORDER_BYTES: usize = 2 * (size_of::<u64>() + 2 * size_of::<u32>());
/// Device bytes of a function's state beside its result, for each row.
const STATE_BYTES: usize = 2 * size_of::<u64>();

/// A function of a row and the rows around it.
#[derive(Debug, Clone, PartialEq)]
pub enum WindowFunction {
    /// Number of the row in its partition, from 1. `UInt64`, as the ranks.
    RowNumber,
    /// One more than the number of rows before its peers.
    Rank,
    /// One more than the number of groups of peers before its own.
    DenseRank,
    /// The share of rows before its peers among the other rows of the partition, as `Float64`.
    PercentRank,
    /// The share of rows up to its last peer among the rows of the partition, as `Float64`.
    CumeDist,
    /// Number of the row's bucket, as `UInt64`: there are so many buckets, at least 1, of about
    /// equal size.
    Ntile(u64),
    /// The value so many rows before, or after if negative; the default without such a row.
    Lag {
        /// The value.
        value: Expr,
        /// Rows before.
        offset: i64,
        /// A default of the value's type; `None` is NULL.
        default: Option<Literal>,
        /// The rows that count.
        nulls: NullTreatment,
    },
    /// The value in the row with a number of the frame, from 1, or from its end, from -1; NULL
    /// without such a row.
    NthValue(Expr, i64),
    /// The same among the rows of the frame whose value is not NULL.
    NthNonNull(Expr, i64),
    /// `array_agg`: the list of the values in the frame; NULL for an empty list.
    ArrayAgg {
        /// The values.
        value: Expr,
        /// Whether NULLs are left out.
        ignore_nulls: bool,
        /// Whether only the first of repeated values counts. If frames end with the partition and
        /// do not begin with it, only the last one counts.
        distinct: bool,
    },
    /// `string_agg`: the concatenated strings of a `LargeUtf8` column in the frame; NULL if all
    /// are.
    StringAgg {
        /// The column.
        strings: Expr,
        /// Number of bytes at the beginning of each string that the result leaves out.
        skipped: u32,
        /// Whether one of repeated strings counts, as in [`ArrayAgg`](Self::ArrayAgg).
        distinct: bool,
    },
    /// An aggregate of the rows of the frame, except for medians and percentiles.
    Aggregate(Aggregate),
    /// A quantile of the values in the frame that are not NULL, floats or decimals; NULL without
    /// such values.
    Quantile {
        /// The quantile.
        quantile: Quantile,
        /// The values; the result has their type.
        value: Expr,
        /// Whether repeated values in the frame count once.
        distinct: bool,
    },
}

impl WindowFunction {
    /// Whether each value repeats all strings of its frame.
    pub fn repeats_strings(&self) -> bool {
        match self {
            WindowFunction::StringAgg { distinct, .. } => !distinct,
            WindowFunction::RowNumber
            | WindowFunction::Rank
            | WindowFunction::DenseRank
            | WindowFunction::PercentRank
            | WindowFunction::CumeDist
            | WindowFunction::Ntile(_)
            | WindowFunction::Lag { .. }
            | WindowFunction::NthValue(..)
            | WindowFunction::NthNonNull(..)
            | WindowFunction::ArrayAgg { .. }
            | WindowFunction::Aggregate(_)
            | WindowFunction::Quantile { .. } => false,
        }
    }
}

/// The rows that [`WindowFunction::Lag`] counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NullTreatment {
    /// `RESPECT NULLS`: all rows.
    Respect,
    /// `IGNORE NULLS`: rows with a value.
    Ignore,
    /// `IGNORE NULLS` as DataFusion's `BoundedWindowAggExec` computes it: only values in sight
    /// count.
    ///
    /// - For the n-th value after a row, n + 1 values are in sight at first.
    /// - Each value that follows the last one of these at once comes into sight.
    /// - If a NULL follows instead, the values of the last n - 1 rows before get the default. At
    ///   the last one again n + 1 values come into sight.
    ///
    /// One work-item goes along a partition to find out.
    IgnoreBounded,
}

/// A window function and its frame, which ranks and `Lag` ignore.
#[derive(Debug, Clone, PartialEq)]
pub struct WindowCall {
    /// The function.
    pub function: WindowFunction,
    /// The rows that the function reads.
    pub frame: Frame,
}

impl WindowCall {
    /// Whether the rows of the frame are found by their order key.
    fn searches_keys(&self) -> bool {
        let reads_frame = match &self.function {
            WindowFunction::NthValue(..)
            | WindowFunction::NthNonNull(..)
            | WindowFunction::ArrayAgg { .. }
            | WindowFunction::StringAgg { .. }
            | WindowFunction::Aggregate(_)
            | WindowFunction::Quantile { .. } => true,
            WindowFunction::RowNumber
            | WindowFunction::Rank
            | WindowFunction::DenseRank
            | WindowFunction::PercentRank
            | WindowFunction::CumeDist
            | WindowFunction::Ntile(_)
            | WindowFunction::Lag { .. } => false,
        };
        reads_frame && self.frame.searches_keys()
    }
}

/// Computes window functions of one partitioning and order.
#[derive(Debug, Clone)]
pub struct Window {
    schema: SchemaRef,
    types: Vec<ColumnType>,
    /// Number of columns that are passed on.
    passed: usize,
    /// Copies slices of the input, as it is selected, and of rows that are kept.
    selected_copy: Compaction,
    kept_copy: Compaction,
    /// See [`Window::may_split`].
    may_split: bool,
    carry: Option<Carry>,
    /// C type of the order key, if frames find rows by it.
    key: Option<CType>,
    interval_bounds: IntervalBounds,
    options: Options,
    /// Columns that are passed on, then keys and arguments.
    select: Select,
    concat: Concat,
    facts: OrderFacts,
    /// Columns after those of `facts`.
    first_occurrences: Vec<FirstOccurrence>,
    calls: Vec<Call>,
    program: Program,
    primitives: Primitives,
}

/// A planned function, with its kernels.
#[derive(Debug, Clone)]
enum Call {
    Value(ValueCall),
    Aggregate(AggregateCall),
    /// MIN or MAX of strings: an aggregate of the ranks of the strings, then the string of that
    /// rank.
    StringMinMax {
        rank: Box<AggregateCall>,
        /// Position of the order that ranks the strings.
        order: usize,
        value: Box<ValueCall>,
    },
    Quantile(QuantileCall),
}

/// A function over columns and order facts, before its kernels are generated.
enum FunctionPlan {
    Value(ValueKind),
    /// `string_agg` of a [`FirstOccurrence`], by its position.
    StringAgg {
        occurrence: usize,
        skipped: u32,
    },
    Aggregate(OrderDependent),
    Quantile(QuantilePlan),
}

/// The context that functions are planned in: columns, order facts, and the kernels so far.
struct PlanContext<'a> {
    types: &'a [ColumnType],
    facts: OrderFacts,
    first_occurrences: Vec<FirstOccurrence>,
    options: &'a Options,
    kernels: Vec<Kernel>,
}

/// The rows of a window with everything that functions read.
#[derive(Clone, Copy)]
struct WindowInput<'a> {
    launch: &'a Launch<'a>,
    columns: &'a [DeviceColumn],
    n: usize,
    partitions: &'a PartitionIndex,
    /// Row numbers in the orders of [`OrderFacts`], u32 each.
    orders: &'a [Buffer],
    carry: Option<CarryArgs<'a>>,
}

/// The rows that were pushed so far.
#[derive(Debug, Default)]
pub struct WindowState {
    batches: Vec<DeviceBatch>,
    rows: usize,
    /// Device bytes of a copy of the rows, about.
    row_bytes: usize,
    /// Counts and states of the rows before a cut of the first partition.
    before: Option<Carried>,
    /// The next cut of a partition.
    next_cut: Option<NextCut>,
    /// The first rows have had their results before a cut. Functions of later rows read them.
    results_given: usize,
    /// The last rows get their results behind the next cut. Functions of earlier rows read them.
    results_later: usize,
}

/// A cut of a partition before its rows are computed.
#[derive(Debug)]
struct NextCut {
    /// The rows before it.
    row: usize,
    /// Counts and states of these rows, for those behind.
    after: Carried,
}

impl WindowState {
    fn of(batch: DeviceBatch) -> WindowState {
        let (rows, row_bytes) = (batch.num_rows(), batch.row_bytes());
        WindowState { rows, row_bytes, batches: vec![batch], ..WindowState::default() }
    }

    /// Number of rows.
    pub fn num_rows(&self) -> usize {
        self.rows
    }

    /// Device bytes of a copy of the rows, about.
    pub fn row_bytes(&self) -> usize {
        self.row_bytes
    }
}

impl Window {
    /// For an input in the order of `partition` and then of `order`. The result has `outputs`, then
    /// the functions.
    ///
    /// # Errors
    /// `Unsupported` if an expression, a function or a frame is not supported on the device.
    ///
    /// # Examples
    /// ```
    /// use std::sync::Arc;
    /// use arrow::array::{Int64Array, RecordBatch, UInt64Array};
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
    /// let rank = WindowCall { function: WindowFunction::Rank, frame: Frame::RUNNING };
    /// let functions = vec![(rank, Field::new("rank", DataType::UInt64, false))];
    /// let window = Window::try_new(input, vec![], vec![Expr::Column(0)], vec![], functions, Options::new(Profile::Cpu))?;
    /// let mut state = window.start();
    /// window.push(&queue, &mut state, &batch).await?;
    /// let ranked = window.finish(&queue, state).await?;
    /// assert_eq!(download(&queue, &ranked[0]).await?.column(0).as_ref(), &UInt64Array::from(vec![1, 1, 3]));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # }).unwrap();
    /// ```
    pub fn try_new(
        input: Input,
        partition: Vec<Expr>,
        order: Vec<Expr>,
        outputs: Vec<(Expr, Field)>,
        functions: Vec<(WindowCall, Field)>,
        options: Options,
    ) -> Result<Window> {
        let passed = outputs.len();
        let mut fields: Vec<_> = outputs.iter().map(|(_, field)| field.clone()).collect();
        fields.extend(functions.iter().map(|(_, field)| field.clone()));
        let mut columns = InputColumns { schema: input.schema.clone(), list: outputs };
        let has_partitions = !partition.is_empty();
        let partition = columns.add_all(&partition)?;
        let order = columns.add_all(&order)?;
        let mut interval_bounds = IntervalBounds::default();
        let functions = functions.into_iter().map(|(call, field)| {
            let frame = interval_bounds.number(call.frame);
            Ok((WindowCall { frame, ..columns.add_call(call)? }, field))
        });
        let functions = functions.collect::<Result<Vec<_>>>()?;
        let select = Select::try_new(input, columns.list, options.clone())?;
        let concat = Concat::try_new(select.schema().clone(), select.output_types().to_vec(), options.clone())?;
        let types = concat.output_types();
        let units = searched_units(&functions)?;
        let kernels = bounds::kernels(types, &partition, &order, &units, &mut interval_bounds, &options)?;
        let facts = OrderFacts::after(types.len());
        let mut context = PlanContext { types, facts, first_occurrences: vec![], options: &options, kernels };
        let plans = functions.iter().map(|(call, _)| context.plan(call)).collect::<Result<Vec<_>>>()?;
        let PlanContext { facts, first_occurrences, mut kernels, .. } = context;
        let columns = FunctionColumns::of(types, &facts, &first_occurrences)?;
        let plans: Vec<(FunctionPlan, Frame)> = plans.into_iter().zip(functions.iter().map(|(call, _)| call.frame)).collect();
        let carry = if facts.is_empty() { Carry::plan(&plans, &options, &mut kernels) } else { None };
        // Slices of lists keep all elements.
        let has_lists = types.iter().any(|ty| matches!(ty.layout, Layout::List(_)));
        let may_split = (has_partitions || carry.is_some()) && !has_lists;
        let mut calls = Vec::with_capacity(functions.len());
        for (index, ((_, field), (plan, frame))) in functions.into_iter().zip(plans).enumerate() {
            frame.check()?;
            let plan = if carry.is_some() { plan.carried_on(&frame) } else { plan };
            calls.push(columns.call(plan, frame, &field, &index.to_string(), &options, &mut kernels)?);
        }
        let mut result: Vec<_> = types.iter().take(passed).cloned().collect();
        result.extend(calls.iter().map(|call| call.ty().clone()));
        Ok(Window {
            schema: Arc::new(Schema::new(fields)),
            types: result,
            passed,
            selected_copy: Compaction::new(select.schema(), select.output_types(), &options),
            kept_copy: Compaction::new(select.schema(), concat.output_types(), &options),
            may_split,
            carry,
            key: units.first().map(|units| units.key()),
            interval_bounds,
            program: Program::new("Window", &options, kernels),
            primitives: Primitives::new(&options),
            options,
            select,
            concat,
            facts,
            first_occurrences,
            calls,
        })
    }

    /// Names and types of the result.
    pub fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    /// Types and layouts of the result.
    pub fn output_types(&self) -> &[ColumnType] {
        &self.types
    }

    /// Names and sources of the kernels.
    pub fn kernel_source(&self) -> Vec<(String, String)> {
        let occurrences = self.first_occurrences.iter().flat_map(|occurrence| occurrence.select().kernel_source());
        let before = self.select.kernel_source().into_iter().chain(self.facts.kernel_source()).chain(occurrences);
        let wavelets = self.wavelets().into_iter().flat_map(Wavelet::kernel_source);
        let gathers = self.gathers().flat_map(Gather::kernel_source);
        before.chain(self.program.kernel_source()).chain(wavelets).chain(gathers).collect()
    }

    /// The programs, as they are compiled, for inputs that need them.
    pub fn programs(&self) -> Vec<ProgramSource> {
        let before = self.select.programs().into_iter().chain(self.concat.programs()).chain(self.facts.programs());
        let before = before.chain(self.first_occurrences.iter().flat_map(|occurrence| occurrence.select().programs()));
        let wavelets = self.wavelets().into_iter().map(|wavelet| wavelet.source());
        let after = wavelets.chain(self.gathers().flat_map(Gather::programs));
        before.chain([self.program.source()]).chain(after).collect()
    }

    /// The operators that gather elements of lists.
    fn gathers(&self) -> impl Iterator<Item = &Gather> {
        self.calls.iter().filter_map(|call| match call {
            Call::Value(call) => call.gather(),
            Call::Aggregate(_) | Call::StringMinMax { .. } | Call::Quantile(_) => None,
        })
    }

    /// The kernels that quantiles share, each once.
    fn wavelets(&self) -> Vec<&Wavelet> {
        let mut wavelets: Vec<&Wavelet> = vec![];
        for call in &self.calls {
            let Call::Quantile(call) = call else { continue };
            let is_new = |own: &&Wavelet| wavelets.iter().all(|known| known.source_str() != own.source_str());
            let new = call.wavelet().filter(is_new);
            wavelets.extend(new);
        }
        wavelets
    }

    /// The state before the first batch.
    pub fn start(&self) -> WindowState {
        WindowState::default()
    }

    /// Adds the next rows.
    ///
    /// # Errors
    /// `Row` with the lowest failing row; `Unsupported` for more than 2^31 - 1 rows in all.
    pub async fn push(&self, queue: &Queue, state: &mut WindowState, batch: &DeviceBatch) -> Result<()> {
        let batch = self.select.run(queue, batch).await?;
        self.keep(state, batch)
    }

    fn keep(&self, state: &mut WindowState, batch: DeviceBatch) -> Result<()> {
        state.rows += batch.num_rows();
        state.row_bytes += batch.row_bytes();
        check_rows("Window", state.rows)?;
        state.batches.push(batch);
        Ok(())
    }

    /// Whether a window can have so many rows at once.
    pub fn accepts_rows(rows: usize) -> bool {
        check_rows("Window", rows).is_ok()
    }

    /// About the device bytes that [`finish`](Self::finish) takes for so many rows.
    ///
    /// They are a copy of several batches as one, the numbers and orders of rows, and the
    /// functions. Strings of a function count as all rows do. `row_bytes`: of all rows, as they are
    /// kept.
    pub fn finish_bytes(&self, batches: usize, rows: usize, row_bytes: usize) -> usize {
        let copy = if batches > 1 { row_bytes } else { 0 };
        let key = self.key.map_or(0, |key| key.width() + 1);
        let functions = self.types.get(self.passed..).unwrap_or_default();
        let strings = functions.iter().filter(|ty| ty.data_type.is_string() || ty.data_type.is_binary()).count();
        let orders = self.facts.sort_count() * ORDER_BYTES;
        let offsets = self.concat.widening_bytes(batches);
        let per_row = NUMBER_BYTES + key + orders + self.calls.len() * STATE_BYTES + row_width(functions) + offsets;
        copy + strings * row_bytes + rows * per_row
    }

    /// The rows with their functions. No batch without rows.
    ///
    /// # Errors
    /// `AverageOverflow`; errors of the device.
    pub async fn finish(&self, queue: &Queue, state: WindowState) -> Result<Vec<DeviceBatch>> {
        let WindowState { batches, before, next_cut, results_given, results_later, .. } = state;
        let Some(all) = self.concat.run(queue, batches).await? else { return Ok(vec![]) };
        let launch = Launch::load(queue, &self.options, &self.program, &self.primitives).await?;
        let mut partitions = bounds::find(&launch, &all, self.key).await?;
        self.interval_bounds.find(&launch, &all, &mut partitions)?;
        let (n, mut read) = (all.num_rows(), all.columns().to_vec());
        let orders = self.facts.orders(queue, &all).await?;
        read.extend(self.facts.columns(&launch, &all, &partitions, &orders)?);
        for occurrence in &self.first_occurrences {
            read.push(occurrence.strings(queue, &read, n).await?);
        }
        let is_cut = next_cut.is_some();
        let next_cut = match (&self.carry, next_cut) {
            (Some(carry), None) => Some(NextCut { row: n, after: carry.alloc(queue, &self.calls)? }),
            (_, next_cut) => next_cut,
        };
        let carry = next_cut.as_ref().map(|NextCut { row, after }| CarryArgs { before: before.as_ref(), after, rows: *row });
        if let (Some(kernels), Some(args), true) = (&self.carry, carry, is_cut) {
            kernels.count(&launch, &partitions, args)?;
        }
        let input = WindowInput { launch: &launch, columns: &read, n, partitions: &partitions, orders: &orders, carry };
        let mut columns: Vec<_> = all.columns().iter().take(self.passed).cloned().collect();
        for (function, call) in self.calls.iter().enumerate() {
            columns.push(call.run(input, function).await?);
        }
        let batch = DeviceBatch::try_new(self.schema.clone(), columns, n)?;
        Ok(match (results_given, results_later) {
            (0, 0) => vec![batch],
            (given, later) => vec![batch.slice(given, n.saturating_sub(given + later))],
        })
    }
}

/// The units of frames that find rows by the order key. All must read the key in the same way.
fn searched_units(functions: &[(WindowCall, Field)]) -> Result<Vec<FrameUnits>> {
    let units = functions.iter().filter(|(call, _)| call.searches_keys()).map(|(call, _)| call.frame.units);
    let units: Vec<FrameUnits> = units.collect();
    // The keys of interval ranges are their ticks, as those of integer ranges.
    let key_units = |units: &FrameUnits| match *units {
        FrameUnits::IntervalRange { descending } => FrameUnits::Range { descending },
        other => other,
    };
    if units.iter().any(|other| Some(key_units(other)) != units.first().map(key_units)) {
        return Err(Error::Unsupported("frames that read one order key in several ways are not supported on the device".into()));
    }
    Ok(units)
}

impl PlanContext<'_> {
    /// Position of the column with a fact, a new one unless it exists already.
    fn fact(&mut self, fact: OrderFact, column: usize) -> Result<usize> {
        self.facts.add(fact, column, self.types, self.options, &mut self.kernels)
    }

    /// Plans a function whose arguments are columns.
    fn plan(&mut self, call: &WindowCall) -> Result<FunctionPlan> {
        let frame = call.frame;
        let ranking = |ranking| ValueKind::Ranking { ranking, carries_on: false };
        Ok(FunctionPlan::Value(match &call.function {
            WindowFunction::Aggregate(aggregate) => {
                let aggregate = OrderDependent::plan(aggregate.clone().plain(), &frame, self)?;
                return Ok(FunctionPlan::Aggregate(aggregate));
            }
            WindowFunction::Quantile { quantile, value, distinct } => {
                let plan = QuantilePlan::plan(*quantile, column(value)?, *distinct, &frame, self)?;
                return Ok(FunctionPlan::Quantile(plan));
            }
            WindowFunction::StringAgg { strings, skipped, distinct: true } => {
                let occurrence = FirstOccurrence::plan(column(strings)?, &frame, self)?;
                self.first_occurrences.push(occurrence);
                return Ok(FunctionPlan::StringAgg { occurrence: self.first_occurrences.len() - 1, skipped: *skipped });
            }
            WindowFunction::StringAgg { strings, skipped, distinct: false } => {
                ValueKind::StringAgg { column: column(strings)?, skipped: *skipped, frame, nullable: true }
            }
            WindowFunction::ArrayAgg { value, ignore_nulls, distinct } => {
                let column = column(value)?;
                let non_null = (*ignore_nulls && self.types[column].nullable).then(|| is_not_null(column));
                let first = match distinct {
                    true => {
                        let fact = first_occurrence::other_occurrence("array_agg", &frame)?;
                        Some(first_occurrence::has_no_other(self.fact(fact, column)?))
                    }
                    false => None,
                };
                let counted = non_null.into_iter().chain(first).reduce(|a, b| Expr::And(vec![a, b]));
                ValueKind::ArrayAgg { column, frame, counted }
            }
            WindowFunction::RowNumber => ranking(Ranking::RowNumber),
            WindowFunction::Rank => ranking(Ranking::Rank),
            WindowFunction::DenseRank => ranking(Ranking::DenseRank),
            WindowFunction::PercentRank => ranking(Ranking::PercentRank),
            WindowFunction::CumeDist => ranking(Ranking::CumeDist),
            WindowFunction::Ntile(0) => return Err(Error::Unsupported("NTILE(0) is not supported on the device".into())),
            WindowFunction::Ntile(n) => ranking(Ranking::Ntile(*n)),
            WindowFunction::Lag { value, offset, default, nulls } => {
                ValueKind::Lag { column: column(value)?, offset: *offset, default: default.clone(), nulls: *nulls }
            }
            WindowFunction::NthValue(value, n) => ValueKind::Nth { column: column(value)?, n: *n, frame, ignore_nulls: false },
            WindowFunction::NthNonNull(value, n) => ValueKind::Nth { column: column(value)?, n: *n, frame, ignore_nulls: true },
        }))
    }
}

/// The columns that the kernels of functions read.
struct FunctionColumns {
    types: Vec<ColumnType>,
    source: Source,
    /// Position of the first [`FirstOccurrence`].
    first_occurrence: usize,
}

impl FunctionColumns {
    fn of(types: &[ColumnType], facts: &OrderFacts, occurrences: &[FirstOccurrence]) -> Result<FunctionColumns> {
        let mut types: Vec<ColumnType> = types.iter().cloned().chain(facts.types()).collect();
        let first_occurrence = types.len();
        for occurrence in occurrences {
            types.push(occurrence.ty()?.clone());
        }
        Ok(FunctionColumns { source: Source::of_types(types.clone()), types, first_occurrence })
    }

    /// Generates the kernels of a function, named after `name`.
    fn call(
        &self,
        plan: FunctionPlan,
        frame: Frame,
        field: &Field,
        name: &str,
        options: &Options,
        kernels: &mut Vec<Kernel>,
    ) -> Result<Call> {
        let value = |kind, kernels| ValueCall::try_new(kind, field, name, &self.types, options, kernels);
        Ok(match plan {
            FunctionPlan::Value(kind) => Call::Value(value(kind, kernels)?),
            FunctionPlan::StringAgg { occurrence, skipped } => {
                let column = self.first_occurrence + occurrence;
                Call::Value(value(ValueKind::StringAgg { column, skipped, frame, nullable: true }, kernels)?)
            }
            FunctionPlan::Quantile(plan) => {
                Call::Quantile(QuantileCall::try_new(&plan, frame, field, name, &self.types, options, kernels)?)
            }
            FunctionPlan::Aggregate(plan) => {
                let Some((column, order)) = plan.string else {
                    let call = AggregateCall::try_new(&plan, frame, field, name, &self.source, options, kernels)?;
                    return Ok(Call::Aggregate(call));
                };
                let rank_field = Field::new("number", DataType::UInt32, true);
                let rank = AggregateCall::try_new(&plan, frame, &rank_field, name, &self.source, options, kernels)?;
                let types: Vec<ColumnType> = self.types.iter().chain([rank.ty()]).cloned().collect();
                let kind = ValueKind::OfRank { column, rank: self.types.len() };
                let value = ValueCall::try_new(kind, field, &format!("{name}_text"), &types, options, kernels)?;
                Call::StringMinMax { rank: Box::new(rank), order, value: Box::new(value) }
            }
        })
    }
}

impl Call {
    fn ty(&self) -> &ColumnType {
        match self {
            Call::Value(call) => call.ty(),
            Call::Aggregate(call) => call.ty(),
            Call::StringMinMax { value, .. } => value.ty(),
            Call::Quantile(call) => call.ty(),
        }
    }

    /// The column of the function with this number.
    async fn run(&self, input: WindowInput<'_>, function: usize) -> Result<DeviceColumn> {
        match self {
            Call::Value(call) => call.run(input, None).await,
            Call::Aggregate(call) => call.run(input, function).await,
            Call::StringMinMax { rank, order, value } => {
                let rank = rank.run(input, function).await?;
                let columns: Vec<_> = input.columns.iter().cloned().chain([rank]).collect();
                value.run(WindowInput { columns: &columns, ..input }, input.orders.get(*order)).await
            }
            Call::Quantile(call) => call.run(input).await,
        }
    }
}

/// The columns that are computed before anything else.
struct InputColumns {
    schema: SchemaRef,
    list: Vec<(Expr, Field)>,
}

impl InputColumns {
    /// Position of the column of an expression, a new one unless it exists already.
    fn add(&mut self, expr: &Expr) -> Result<usize> {
        let data_type = expr.data_type(&self.schema)?;
        let known = self.list.iter().position(|(other, field)| other == expr && *field.data_type() == data_type);
        if known.is_none() {
            self.list.push((expr.clone(), Field::new(format!("argument {}", self.list.len()), data_type, true)));
        }
        Ok(known.unwrap_or(self.list.len() - 1))
    }

    fn add_all(&mut self, exprs: &[Expr]) -> Result<Vec<usize>> {
        exprs.iter().map(|expr| self.add(expr)).collect()
    }

    /// The call with columns as arguments.
    fn add_call(&mut self, call: WindowCall) -> Result<WindowCall> {
        use WindowFunction::{ArrayAgg, Lag, NthNonNull, NthValue, Quantile, StringAgg};
        let mut add = |expr: Expr| self.add(&expr).map(Expr::Column);
        let function = match call.function {
            Lag { value, offset, default, nulls } => Lag { value: add(value)?, offset, default, nulls },
            NthValue(value, n) => NthValue(add(value)?, n),
            NthNonNull(value, n) => NthNonNull(add(value)?, n),
            ArrayAgg { value, ignore_nulls, distinct } => ArrayAgg { value: add(value)?, ignore_nulls, distinct },
            StringAgg { strings, skipped, distinct } => StringAgg { strings: add(strings)?, skipped, distinct },
            WindowFunction::Aggregate(aggregate) => WindowFunction::Aggregate(Aggregate {
                arguments: aggregate.arguments.into_iter().map(&mut add).collect::<Result<_>>()?,
                filter: aggregate.filter.map(&mut add).transpose()?,
                ..aggregate
            }),
            Quantile { quantile, value, distinct } => Quantile { quantile, value: add(value)?, distinct },
            function @ (WindowFunction::RowNumber
            | WindowFunction::Rank
            | WindowFunction::DenseRank
            | WindowFunction::PercentRank
            | WindowFunction::CumeDist
            | WindowFunction::Ntile(_)) => function,
        };
        Ok(WindowCall { function, ..call })
    }
}

/// The column of an argument.
fn column(expr: &Expr) -> Result<usize> {
    match expr {
        Expr::Column(index) => Ok(*index),
        _ => Err(Error::Internal("an argument that is no column".into())),
    }
}

/// Whether a column is not NULL.
fn is_not_null(column: usize) -> Expr {
    Expr::Not(Arc::new(Expr::IsNull(Arc::new(Expr::Column(column)))))
}
