// SPDX-License-Identifier: Apache-2.0
//! Sorts of a whole input; rows of equal keys keep their order.
//!
//! 1. Each batch is filtered and projected, with the keys beside the outputs, and kept.
//! 2. At the end all rows are concatenated. Keys become u64 words (see [`key`]), strings among them
//!    by their ranks (see [`rank`]).
//! 3. The words are sorted from the least significant to the most (see [`radix`]). A few rows are
//!    compared by one kernel instead (see [`few`]).
//! 4. The outputs are gathered once.
//!
//! Rows that do not fit device memory together are sorted in runs and merged (see [`SortMerge`]).
//!
//! For a small `fetch` only rows that can be in the result are kept (see [`topk`]). Whenever a
//! multiple of `fetch` rows has come together, they are cut to the first ones.

mod few;
mod key;
mod merge;
mod radix;
mod rank;
mod strings;
mod topk;

use std::sync::Arc;

use arrow::datatypes::{Field, Schema, SchemaRef};
use columnar::{Carrier, ColumnType, DeviceBatch, Layout};
use device::{Arg, Buffer, ProgramSource, Queue};

use super::launch::Launch;
use super::launch::layout_kernels::LayoutKernels;
use super::launch::primitives::Primitives;
use super::launch::program::{Kernel, Program, row_loop};
use super::launch::throttle::Throttle;
use super::{Concat, Gather, Input, Options, Select, check_rows, row_width};
use crate::codegen::{Params, Profile, RowWriter};
use crate::expr::Expr;
use crate::prelude::Section;
use crate::{Error, Result};
use few::{FewRows, MOST_KEYS};
use key::PackedSortKey;
pub use merge::{Merged, SortMerge};
pub(super) use radix::{Radix, WordRowPairs, shared_bytes as radix_shared_bytes};
use rank::Ranker;
use topk::TopK;

/// Greatest `fetch` for which rows are removed before the end.
const MAX_FETCH: usize = 1 << 16;
/// Kept rows from which on they are cut to the first ones: at least so many, and at least a
/// multiple of `fetch`.
const KEPT_ROWS: usize = 1 << 16;
const KEPT_MULTIPLE: usize = 4;
/// Of the free memory, kept rows take one part in so many.
const KEPT_SHARE: usize = 8;
/// Rows that are kept under any limit.
const FEWEST_KEPT: usize = 1 << 8;

/// Device bytes of a row's word and number, before a pass of the radix sort and after it.
const WORD_BYTES: usize = 2 * (size_of::<u64>() + size_of::<u32>());
/// Device bytes of a string that is ranked: its word, segment, position, depth and row, for two
/// rounds.
const RANK_BYTES: usize = 2 * (2 * size_of::<u64>() + 4 * size_of::<u32>());

/// Rows of a slice of the result, on a CPU device.
const SLICE_ROWS: usize = 1 << 20;

/// A key of a sort.
#[derive(Debug, Clone, PartialEq)]
pub struct SortKey {
    /// Over the input's columns.
    pub expr: Expr,
    /// Whether greater values come first.
    pub descending: bool,
    /// Whether NULLs come first, in either direction.
    pub nulls_first: bool,
}

/// Sorts a whole input, or finds its first rows.
///
/// Floats have IEEE 754's totalOrder, as in Arrow's sort: -0.0 before 0.0, NaNs by their bits at
/// both ends. Strings are ordered by their bytes, dictionaries by their values.
#[derive(Debug, Clone)]
pub struct Sort {
    schema: SchemaRef,
    types: Vec<ColumnType>,
    fetch: Option<usize>,
    kept_rows: usize,
    options: Options,
    /// Outputs, then keys that are not outputs.
    select: Select,
    /// For a small `fetch`.
    topk: Option<TopK>,
    concat: Concat,
    /// Gathers the first rows, with their keys.
    cut: Gather,
    /// Gathers the outputs.
    gather: Gather,
    keys: Vec<PackedSortKey>,
    /// `None` for the steps of a merge, and for many keys.
    few: Option<FewRows>,
    /// For keys that are strings.
    rankers: Vec<Option<Ranker>>,
    /// A kernel for each word, most significant first.
    words: Program,
    word_count: usize,
    radix: Radix,
    layout_kernels: LayoutKernels,
    primitives: Primitives,
}

/// The rows that were pushed so far.
#[derive(Debug, Default)]
pub struct SortState {
    batches: Vec<DeviceBatch>,
    rows: usize,
    /// Bytes of rows that are kept to the end.
    bytes: usize,
    threshold: Option<Buffer>,
}

/// Rows of known order, of which slices are taken.
#[derive(Debug)]
pub struct SortedRows(Option<OrderedBatch>);

/// A batch, the numbers of its rows in their order, and the range that is left.
#[derive(Debug)]
struct OrderedBatch {
    rows: DeviceBatch,
    /// u32 each.
    order: Buffer,
    next: usize,
    end: usize,
}

impl SortState {
    /// Number of rows that were pushed and are kept.
    pub fn num_rows(&self) -> usize {
        self.rows
    }

    /// Device bytes of the rows where all are kept, about.
    pub fn row_bytes(&self) -> usize {
        self.bytes
    }
}

impl Sort {
    /// Sorts by `keys`, most significant first, and gives `outputs`; with `fetch`, of that many
    /// first rows.
    ///
    /// # Errors
    /// `Unsupported` if an expression is not supported on the device.
    ///
    /// # Examples
    /// ```
    /// use std::sync::Arc;
    /// use arrow::array::{Int64Array, RecordBatch};
    /// use columnar::{download, natural_types, upload};
    /// use kernels::codegen::Profile;
    /// use kernels::expr::Expr;
    /// use kernels::ops::{Input, Options, Sort, SortKey};
    ///
    /// # futures::executor::block_on(async {
    /// let host = RecordBatch::try_from_iter([("x", Arc::new(Int64Array::from(vec![2, 3, 1])) as _)])?;
    /// let queue = device::Context::new(device::DeviceConfig::default())?.queue()?;
    /// let types = natural_types(&host.schema())?;
    /// let batch = upload(&queue, &host.schema(), &types, &[host.clone()])?;
    ///
    /// let input = Input { schema: host.schema(), types, filter: None };
    /// let key = SortKey { expr: Expr::Column(0), descending: true, nulls_first: false };
    /// let output = (Expr::Column(0), host.schema().field(0).clone());
    /// let sort = Sort::try_new(input, vec![key], vec![output], Some(2), Options::new(Profile::Cpu))?;
    /// let mut state = sort.start();
    /// sort.push(&queue, &mut state, &batch).await?;
    /// let sorted = sort.finish(&queue, state).await?;
    /// assert_eq!(download(&queue, &sorted[0]).await?.column(0).as_ref(), &Int64Array::from(vec![3, 2]));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # }).unwrap();
    /// ```
    pub fn try_new(
        input: Input,
        keys: Vec<SortKey>,
        outputs: Vec<(Expr, Field)>,
        fetch: Option<usize>,
        options: Options,
    ) -> Result<Sort> {
        let (count, mut columns, mut key_columns) = (outputs.len(), outputs, vec![]);
        for key in &keys {
            let data_type = key.expr.data_type(&input.schema)?;
            let known = columns.iter().position(|(expr, field)| *expr == key.expr && *field.data_type() == data_type);
            key_columns.push(known.unwrap_or(columns.len()));
            if known.is_none() {
                columns.push((key.expr.clone(), Field::new(format!("key {}", key_columns.len()), data_type, true)));
            }
        }
        let select = Select::try_new(input, columns, options.clone())?;
        let all = select.schema().clone();
        let schema = Arc::new(Schema::new(all.fields().iter().take(count).cloned().collect::<Vec<_>>()));
        let topk = match fetch {
            Some(rows) if rows <= MAX_FETCH => Some(TopK::try_new(&all, select.output_types(), &keys, &key_columns, &options)?),
            _ => None,
        };
        let kept = topk.as_ref().map_or(select.output_types(), TopK::output_types).to_vec();
        let concat = Concat::try_new(all.clone(), kept, options.clone())?;
        let types = concat.output_types().to_vec();
        let cut = Gather::try_new(all, types.clone(), options.clone())?;
        if topk.is_some() && cut.output_types() != types {
            return Err(Error::Internal("kept rows that have another layout once they are cut".into()));
        }
        let gather = Gather::try_new(schema.clone(), types.iter().take(count).cloned().collect(), options.clone())?;
        let planned = keys.iter().zip(&key_columns);
        let planned = planned.map(|(key, column)| PackedSortKey::plan(*column, &types, key, options.profile));
        let keys = planned.collect::<Result<Vec<_>>>()?;
        let rankers = keys.iter().map(|key| ranker(key, &types, &options)).collect::<Result<_>>()?;
        let words = key::words(&keys);
        let kernels = words.iter().enumerate().map(|(index, fields)| word_kernel(index, fields, &keys, &types, &options));
        Ok(Sort {
            types: gather.output_types().to_vec(),
            words: Program::new("Sort", &options, kernels.collect::<Result<_>>()?),
            word_count: words.len(),
            radix: Radix::new(&options),
            layout_kernels: LayoutKernels::new(&options),
            primitives: Primitives::new(&options),
            schema,
            fetch,
            kept_rows: KEPT_ROWS,
            few: (keys.len() <= MOST_KEYS).then(|| FewRows::try_new(&keys, &types, &options)).transpose()?,
            options,
            select,
            topk,
            concat,
            cut,
            gather,
            keys,
            rankers,
        })
    }

    /// Keeps so many rows before they are cut to the first ones. For tests.
    #[doc(hidden)]
    #[must_use]
    pub fn keeping(self, kept_rows: usize) -> Sort {
        Sort { kept_rows, ..self }
    }

    /// Whether all rows are kept to the end.
    pub fn keeps_all(&self) -> bool {
        self.topk.is_none()
    }

    /// The number of first rows that the result has at most.
    pub fn fetch(&self) -> Option<usize> {
        self.fetch
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
        let mut sources = self.select.kernel_source();
        sources.extend(self.topk.iter().flat_map(TopK::kernel_source));
        sources.extend(self.few.iter().flat_map(FewRows::kernel_source));
        sources.extend(self.words.kernel_source());
        sources.extend(self.rankers.iter().flatten().flat_map(Ranker::kernel_source));
        sources.extend(self.radix.kernel_source());
        sources.extend(self.gather.kernel_source());
        sources
    }

    /// The programs, as they are compiled, for inputs that need them.
    pub fn programs(&self) -> Vec<ProgramSource> {
        let mut programs = self.select.programs();
        programs.extend(self.concat.programs());
        if let Some(topk) = &self.topk {
            programs.extend(topk.programs());
            programs.extend(self.cut.programs());
        }
        programs.extend(self.gather.programs());
        programs.extend(self.rankers.iter().flatten().flat_map(Ranker::programs));
        programs.extend([self.layout_kernels.source(), self.radix.source()]);
        if self.word_count > 0 {
            programs.extend(self.few.iter().map(FewRows::source));
            programs.push(self.words.source());
        }
        programs
    }

    /// About the device bytes that [`finish`](Self::finish) takes for so many rows.
    ///
    /// They are a copy of several batches as one, a copy in order, and the words of the keys.
    /// `row_bytes`: of all rows, before the sort.
    pub fn finish_bytes(&self, batches: usize, rows: usize, row_bytes: usize) -> usize {
        let ranked = if self.rankers.iter().any(Option::is_some) { RANK_BYTES } else { 0 };
        let copies = if batches > 1 { 2 } else { 1 };
        // The copy in order has wide offsets too.
        let in_order = self.concat.widened_columns() * (size_of::<i64>() - size_of::<i32>());
        // Kernels write a byte for each bit of the copy in order, and pack them.
        let bits = |ty: &ColumnType| usize::from(ty.nullable) + usize::from(ty.layout == Layout::Bits);
        let unpacked: usize = self.types.iter().map(bits).sum();
        let per_row = WORD_BYTES + ranked + self.concat.widening_bytes(batches) + in_order + unpacked;
        let bytes = copies * row_bytes + rows * per_row;
        // The pool rounds sizes up to classes, by a quarter at most.
        bytes + bytes / 4
    }

    /// About the device bytes of so many outputs and keys, whose strings are short.
    pub fn output_bytes(&self, rows: usize) -> usize {
        rows * row_width(self.select.output_types())
    }

    /// Whether a sort can have so many rows.
    pub fn accepts_rows(rows: usize) -> bool {
        check_rows("Sort", rows).is_ok()
    }

    /// The state before the first batch.
    pub fn start(&self) -> SortState {
        SortState::default()
    }

    /// Adds a batch.
    ///
    /// # Errors
    /// `Row` with the lowest failing row; `Unsupported` for more than 2^31 - 1 rows in all.
    pub async fn push(&self, queue: &Queue, state: &mut SortState, batch: &DeviceBatch) -> Result<()> {
        let mut batch = self.select.run(queue, batch).await?;
        let (Some(topk), Some(fetch)) = (&self.topk, self.fetch) else {
            state.rows += batch.num_rows();
            check_rows("Sort", state.rows)?;
            state.bytes += batch.row_bytes();
            state.batches.push(batch);
            return Ok(());
        };
        let layout_kernels = self.layout_kernels.load(queue).await?;
        while fetch > 0 && batch.num_rows() > 0 {
            let affordable = self.affordable_rows(queue, &batch, fetch);
            let most = self.kept_rows.max(fetch * KEPT_MULTIPLE).min(affordable);
            // The first rows give a threshold for the others.
            let n = if state.threshold.is_none() { most.saturating_sub(state.rows) } else { affordable };
            let n = n.clamp(1, batch.num_rows());
            let kept = topk.keep(queue, &self.primitives, &layout_kernels, &batch.slice(0, n), state.threshold.as_ref()).await?;
            batch = batch.slice(n, batch.num_rows() - n);
            state.rows += kept.num_rows();
            state.batches.extend(Some(kept).filter(|kept| kept.num_rows() > 0));
            if state.rows >= most {
                self.cut(queue, state, topk, fetch).await?;
            }
        }
        Ok(())
    }

    /// Rows like those of a batch that fit a share of the free memory: they are kept, then copied
    /// as one batch, and in order.
    fn affordable_rows(&self, queue: &Queue, batch: &DeviceBatch, fetch: usize) -> usize {
        let row_bytes = batch.row_bytes() / batch.num_rows().max(1) + WORD_BYTES;
        (queue.context().pool().available() / KEPT_SHARE / row_bytes).max(2 * fetch).max(FEWEST_KEPT)
    }

    /// The sorted rows. No batch without rows.
    ///
    /// # Errors
    /// `Unsupported` if dictionaries of different batches have too many values together; errors of
    /// the device.
    pub async fn finish(&self, queue: &Queue, state: SortState) -> Result<Vec<DeviceBatch>> {
        let (mut rows, mut sorted) = (self.sorted(queue, state).await?, vec![]);
        while let Some(slice) = self.next_slice(queue, &mut rows).await? {
            sorted.push(slice);
        }
        Ok(sorted)
    }

    /// The order of the rows, from which [`next_slice`](Self::next_slice) takes one slice after
    /// another.
    ///
    /// # Errors
    /// As [`finish`](Self::finish).
    pub async fn sorted(&self, queue: &Queue, state: SortState) -> Result<SortedRows> {
        let Some(all) = self.concat.run(queue, state.batches).await? else { return Ok(SortedRows(None)) };
        let end = self.fetch.map_or(all.num_rows(), |fetch| fetch.min(all.num_rows()));
        if end == 0 {
            return Ok(SortedRows(None));
        }
        let order = self.order(queue, &all).await?;
        let columns = all.columns().iter().take(self.types.len()).cloned().collect();
        let rows = DeviceBatch::try_new(self.schema.clone(), columns, all.num_rows())?;
        Ok(SortedRows(Some(OrderedBatch { rows, order, next: 0, end })))
    }

    /// The next sorted rows. A GPU gives all of them, a CPU device some 2^20, so that launches take
    /// bounded time. `None` after the last.
    ///
    /// # Errors
    /// Errors of the device.
    pub async fn next_slice(&self, queue: &Queue, sorted: &mut SortedRows) -> Result<Option<DeviceBatch>> {
        let Some(OrderedBatch { rows, order, next, end }) = &mut sorted.0 else { return Ok(None) };
        let left = *end - *next;
        let n = match self.options.profile {
            Profile::Cpu => SLICE_ROWS.min(left),
            Profile::Gpu => left,
        };
        let slice = if *next == 0 {
            self.gather.run(queue, rows, order, n).await?
        } else {
            let numbers = queue.alloc(n * size_of::<u32>())?;
            queue.copy(order, *next * size_of::<u32>(), &numbers, 0, n * size_of::<u32>())?;
            self.gather.run(queue, rows, &numbers, n).await?
        };
        *next += n;
        if n == left {
            sorted.0 = None;
        }
        Ok(Some(slice))
    }

    /// The row numbers of one batch in the order of the keys, u32 each.
    pub(super) async fn rows(&self, queue: &Queue, batch: &DeviceBatch) -> Result<Buffer> {
        let keys = self.select.run(queue, batch).await?;
        match self.concat.run(queue, vec![keys]).await? {
            Some(keys) => self.order(queue, &keys).await,
            None => self.layout_kernels.load(queue).await?.row_numbers(Carrier::U32, 0),
        }
    }

    /// Cuts the kept rows to the first ones.
    async fn cut(&self, queue: &Queue, state: &mut SortState, topk: &TopK, fetch: usize) -> Result<()> {
        let batches = std::mem::take(&mut state.batches);
        let Some(all) = self.concat.run(queue, batches).await? else { return Ok(()) };
        let order = self.order(queue, &all).await?;
        let first = self.cut.run(queue, &all, &order, fetch.min(all.num_rows())).await?;
        if first.num_rows() == fetch {
            state.threshold = topk.threshold(queue, &first).await?;
        }
        state.rows = first.num_rows();
        state.batches.push(first);
        Ok(())
    }

    /// The row numbers of a batch in the order of the keys, u32 each.
    async fn order(&self, queue: &Queue, batch: &DeviceBatch) -> Result<Buffer> {
        let n = batch.num_rows();
        let is_ordered = self.word_count == 0 || n < 2;
        if let Some(few) = self.few.as_ref().filter(|few| !is_ordered && few.takes(batch.columns(), n)) {
            return few.order(queue, batch.columns(), n).await;
        }
        let layout_kernels = self.layout_kernels.load(queue).await?;
        let mut rows = layout_kernels.row_numbers(Carrier::U32, n)?;
        if is_ordered {
            return Ok(rows);
        }
        let launch = Launch::load(queue, &self.options, &self.words, &self.primitives).await?;
        let radix = self.radix.load(&launch).await?;
        let mut ranks = Vec::with_capacity(self.keys.len());
        for (index, (key, ranker)) in self.keys.iter().zip(&self.rankers).enumerate() {
            let Some(ranker) = ranker else { continue };
            let column = batch.columns().get(key.column).ok_or_else(|| Error::Internal("a key without a column".into()))?;
            let strings = column.dictionary().map_or(column, |dictionary| dictionary);
            ranks.push((key::ranks(index), ranker.run(&launch, &layout_kernels, &radix, strings).await?));
        }
        let mut throttle = Throttle::default();
        for kernel in (0..self.word_count).rev() {
            let words = queue.alloc(n * size_of::<u64>())?;
            let mut named = vec![("rows", Arg::Buffer(&rows)), ("words", Arg::Buffer(&words)), ("n", Arg::U64(n as u64))];
            named.extend(ranks.iter().map(|(name, ranks)| (name.as_str(), Arg::Buffer(ranks))));
            launch.run_in_ranges(kernel, n, batch.columns(), named, &mut throttle).await?;
            rows = radix.sort(WordRowPairs { words, rows }, n).await?.rows;
        }
        Ok(rows)
    }
}

/// The ranker for the strings of a key, or of its dictionary; `None` for other keys.
fn ranker(key: &PackedSortKey, types: &[ColumnType], options: &Options) -> Result<Option<Ranker>> {
    let Some(ty) = types.get(key.column).filter(|_| key.is_str()) else { return Ok(None) };
    let strings = match &ty.layout {
        Layout::Dictionary { values, .. } => {
            let data_type = crate::expr::value_type(&ty.data_type).clone();
            ColumnType { data_type, nullable: false, layout: values.as_ref().clone(), bounds: None }
        }
        _ => ty.clone(),
    };
    Ranker::try_new(&strings, options).map(Some)
}

/// The kernel that writes a word of each row's keys.
fn word_kernel(
    index: usize,
    fields: &[key::SortField],
    keys: &[PackedSortKey],
    types: &[ColumnType],
    options: &Options,
) -> Result<Kernel> {
    let mut params = Params::new();
    params.need(Section::Base);
    let rows = params.named("rows", "const G u32 *RESTRICT");
    let words = params.named("words", "G u64 *RESTRICT");
    let n = params.named("n", "u64");
    let index_of_row = format!("{rows}[row]");
    let mut writer = RowWriter::new(types, options.profile, &mut params).with_names(&index_of_row, "x");
    let word = key::word(&mut writer, keys, fields, &index_of_row)?;
    writer.push(&format!("{words}[row] = {word};"));
    let statements = writer.statements();
    let body = row_loop(options.profile, "row", &n, &statements);
    Ok(Kernel::new(format!("sort_word{index}"), params, body).in_ranges(options.profile))
}
