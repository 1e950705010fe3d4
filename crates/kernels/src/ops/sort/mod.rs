// SPDX-License-Identifier: Apache-2.0
//! The rows of a whole input in the order of keys; rows of equal keys keep their order.
//!
//! A batch that is pushed is filtered and projected, keys beside it, and kept. At the end all rows become one batch, whose
//! keys become words of 64 bits (see [`key`]) that are sorted from the least significant to the most (see [`radix`]), strings
//! by their ranks (see [`rank`]). The outputs are gathered once.
//!
//! Where only few rows are wanted, those that can be among them are kept (see [`top`]), and cut to the first ones whenever a
//! multiple of these has come together.

mod key;
mod radix;
mod rank;
mod top;

use std::sync::Arc;

use arrow::datatypes::{Field, Schema, SchemaRef};
use columnar::{Carrier, ColumnType, DeviceBatch, Layout};
use device::{Arg, Buffer, Queue};

use super::forms::Forms;
use super::primitives::Primitives;
use super::program::{Kernel, Program, for_rows, spread};
use super::{Concat, Input, Options, Select, Take, check_rows};
use crate::codegen::{Params, RowWriter};
use crate::expr::Expr;
use crate::prelude::Section;
use crate::{Error, Result};
use key::Key;
pub(super) use radix::shared_bytes as radix_shared_bytes;
use radix::{Pairs, Radix};
use rank::Ranker;
use top::Top;

/// Most rows that count as few.
const MOST_TOP_ROWS: usize = 1 << 16;
/// Rows that are kept at least before they are cut to the first ones, and as a multiple of these.
const KEPT_ROWS: usize = 1 << 16;
const KEPT_MULTIPLE: usize = 4;

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
/// Floats are ordered as IEEE's totalOrder tells: -0.0 before 0.0, NaNs by their bits at both ends, as Arrow's sort does.
/// Strings are ordered by their bytes, dictionaries by their values.
#[derive(Debug, Clone)]
pub struct Sort {
    schema: SchemaRef,
    types: Vec<ColumnType>,
    fetch: Option<usize>,
    kept_rows: usize,
    options: Options,
    /// Outputs, then keys that are no output.
    select: Select,
    /// Where only few rows are wanted.
    top: Option<Top>,
    concat: Concat,
    /// The first rows, with their keys.
    cut: Take,
    /// The outputs alone.
    take: Take,
    keys: Vec<Key>,
    /// Of the keys that are strings.
    rankers: Vec<Option<Ranker>>,
    /// A kernel for each word, most significant first.
    words: Program,
    word_count: usize,
    radix: Radix,
    forms: Forms,
    primitives: Primitives,
}

/// What has been pushed so far.
#[derive(Debug, Default)]
pub struct SortState {
    batches: Vec<DeviceBatch>,
    rows: usize,
    threshold: Option<Buffer>,
}

impl Sort {
    /// Sorts by `keys`, most significant first, and gives `outputs`; with `fetch`, of the first so many rows alone.
    ///
    /// # Errors
    /// `Unsupported` where an expression is not supported on the device.
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
        let (count, mut columns, mut places) = (outputs.len(), outputs, vec![]);
        for key in &keys {
            let data_type = key.expr.data_type(&input.schema)?;
            let known = columns.iter().position(|(expr, field)| *expr == key.expr && *field.data_type() == data_type);
            places.push(known.unwrap_or(columns.len()));
            if known.is_none() {
                columns.push((key.expr.clone(), Field::new(format!("key {}", places.len()), data_type, true)));
            }
        }
        let select = Select::try_new(input, columns, options.clone())?;
        let all = select.schema().clone();
        let schema = Arc::new(Schema::new(all.fields().iter().take(count).cloned().collect::<Vec<_>>()));
        let top = match fetch {
            Some(rows) if rows <= MOST_TOP_ROWS => Some(Top::try_new(&all, select.output_types(), &keys, &places, &options)?),
            _ => None,
        };
        let kept = top.as_ref().map_or(select.output_types(), Top::output_types).to_vec();
        let concat = Concat::try_new(all.clone(), kept, options.clone())?;
        let types = concat.output_types().to_vec();
        let cut = Take::try_new(all, types.clone(), options.clone())?;
        if top.is_some() && cut.output_types() != types {
            return Err(Error::Internal("kept rows that lie otherwise once they are cut".into()));
        }
        let take = Take::try_new(schema.clone(), types.iter().take(count).cloned().collect(), options.clone())?;
        let planned = keys.iter().zip(&places).map(|(key, place)| Key::plan(*place, &types, key, options.profile));
        let keys = planned.collect::<Result<Vec<_>>>()?;
        let rankers = keys.iter().map(|key| ranker(key, &types, &options)).collect::<Result<_>>()?;
        let words = key::words(&keys);
        let kernels = words.iter().enumerate().map(|(index, fields)| word_kernel(index, fields, &keys, &types, &options));
        Ok(Sort {
            types: take.output_types().to_vec(),
            words: Program::try_new("Sort", &options, kernels.collect::<Result<_>>()?)?,
            word_count: words.len(),
            radix: Radix::try_new(&options)?,
            forms: Forms::try_new(&options)?,
            primitives: Primitives::try_new(&options)?,
            schema,
            fetch,
            kept_rows: KEPT_ROWS,
            options,
            select,
            top,
            concat,
            cut,
            take,
            keys,
            rankers,
        })
    }

    /// The same where so many rows are kept before they are cut to the first ones: for tests.
    #[doc(hidden)]
    #[must_use]
    pub fn keeping(self, kept_rows: usize) -> Sort {
        Sort { kept_rows, ..self }
    }

    /// Whether every row stays until the last has come.
    pub fn keeps_all(&self) -> bool {
        self.top.is_none()
    }

    /// Names and types of the result.
    pub fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    /// Types and layouts of the result.
    pub fn output_types(&self) -> &[ColumnType] {
        &self.types
    }

    /// Names and texts of the kernels.
    pub fn kernel_text(&self) -> Vec<(String, String)> {
        let mut texts = self.select.kernel_text();
        texts.extend(self.top.iter().flat_map(Top::kernel_text));
        texts.extend(self.words.kernel_text());
        texts.extend(self.rankers.iter().flatten().flat_map(Ranker::kernel_text));
        texts.extend(self.radix.kernel_text());
        texts.extend(self.take.kernel_text());
        texts
    }

    /// The programs as they are compiled, where an input needs them.
    pub fn programs(&self) -> Vec<String> {
        let mut programs = self.select.programs();
        programs.extend(self.concat.programs());
        if let Some(top) = &self.top {
            programs.extend(top.programs());
            programs.extend(self.cut.programs());
        }
        programs.extend(self.take.programs());
        programs.extend(self.rankers.iter().flatten().map(|ranker| ranker.text().to_owned()));
        programs.extend([self.forms.text(), self.radix.text()].map(str::to_owned));
        if self.word_count > 0 {
            programs.push(self.words.text().into());
        }
        programs
    }

    /// Nothing pushed yet.
    pub fn start(&self) -> SortState {
        SortState::default()
    }

    /// Takes in a batch.
    ///
    /// # Errors
    /// `Row` with the lowest failing row; `Unsupported` for more than 2^31 - 1 rows in all.
    pub async fn push(&self, queue: &Queue, state: &mut SortState, batch: &DeviceBatch) -> Result<()> {
        let mut batch = self.select.run(queue, batch).await?;
        let (Some(top), Some(fetch)) = (&self.top, self.fetch) else {
            state.rows += batch.num_rows();
            check_rows("Sort", state.rows)?;
            state.batches.push(batch);
            return Ok(());
        };
        let (primitives, forms) = (self.primitives.load(queue).await?, self.forms.load(queue).await?);
        let most = self.kept_rows.max(fetch * KEPT_MULTIPLE);
        while fetch > 0 && batch.num_rows() > 0 {
            // The first rows give a threshold for the others.
            let n = if state.threshold.is_none() { (most - state.rows).clamp(1, batch.num_rows()) } else { batch.num_rows() };
            let kept = top.keep(queue, &primitives, &forms, &batch.slice(0, n), state.threshold.as_ref()).await?;
            batch = batch.slice(n, batch.num_rows() - n);
            state.rows += kept.num_rows();
            state.batches.extend(Some(kept).filter(|kept| kept.num_rows() > 0));
            if state.rows >= most {
                self.cut(queue, state, top, fetch).await?;
            }
        }
        Ok(())
    }

    /// The rows in order. No batch where there are no rows.
    ///
    /// # Errors
    /// `Unsupported` where dictionaries of different batches have too many values together; the device's.
    pub async fn finish(&self, queue: &Queue, state: SortState) -> Result<Vec<DeviceBatch>> {
        let Some(all) = self.concat.run(queue, state.batches).await? else { return Ok(vec![]) };
        let n = self.fetch.map_or(all.num_rows(), |fetch| fetch.min(all.num_rows()));
        if n == 0 {
            return Ok(vec![]);
        }
        let order = self.order(queue, &all).await?;
        let columns = all.columns().iter().take(self.types.len()).cloned().collect();
        let outputs = DeviceBatch::try_new(self.schema.clone(), columns, all.num_rows())?;
        Ok(vec![self.take.run(queue, &outputs, &order, n).await?])
    }

    /// Numbers of the rows of one batch, 32 bits each, in the keys' order.
    pub(super) async fn rows(&self, queue: &Queue, batch: &DeviceBatch) -> Result<Buffer> {
        let keys = self.select.run(queue, batch).await?;
        match self.concat.run(queue, vec![keys]).await? {
            Some(keys) => self.order(queue, &keys).await,
            None => self.forms.load(queue).await?.number(queue, Carrier::U32, 0),
        }
    }

    /// Lets go of the kept rows that are not among the first.
    async fn cut(&self, queue: &Queue, state: &mut SortState, top: &Top, fetch: usize) -> Result<()> {
        let batches = std::mem::take(&mut state.batches);
        let Some(all) = self.concat.run(queue, batches).await? else { return Ok(()) };
        let order = self.order(queue, &all).await?;
        let first = self.cut.run(queue, &all, &order, fetch.min(all.num_rows())).await?;
        if first.num_rows() == fetch {
            state.threshold = top.threshold(queue, &first).await?;
        }
        state.rows = first.num_rows();
        state.batches.push(first);
        Ok(())
    }

    /// Numbers of a batch's rows, 32 bits each, in the keys' order.
    async fn order(&self, queue: &Queue, batch: &DeviceBatch) -> Result<Buffer> {
        let n = batch.num_rows();
        let (primitives, forms) = (self.primitives.load(queue).await?, self.forms.load(queue).await?);
        let mut rows = forms.number(queue, Carrier::U32, n)?;
        if self.word_count == 0 || n < 2 {
            return Ok(rows);
        }
        let radix = self.radix.load(queue).await?;
        let mut ranks = Vec::with_capacity(self.keys.len());
        for (index, (key, ranker)) in self.keys.iter().zip(&self.rankers).enumerate() {
            let Some(ranker) = ranker else { continue };
            let column = batch.columns().get(key.column).ok_or_else(|| Error::Internal("a key without a column".into()))?;
            let strings = column.dictionary().map_or(column, |dictionary| dictionary);
            ranks.push((key::ranks(index), ranker.run(queue, &primitives, &forms, &radix, strings).await?));
        }
        let loaded = self.words.load(queue).await?;
        for kernel in (0..self.word_count).rev() {
            let words = queue.alloc(n * size_of::<u64>())?;
            let mut named = vec![("rows", Arg::Buffer(&rows)), ("words", Arg::Buffer(&words)), ("n", Arg::U64(n as u64))];
            named.extend(ranks.iter().map(|(name, ranks)| (name.as_str(), Arg::Buffer(ranks))));
            loaded.launch_on(queue, kernel, spread(queue, &self.options, n), batch, None, named)?;
            rows = radix.sort(queue, &primitives, Pairs { words, rows }, n).await?.rows;
        }
        Ok(rows)
    }
}

/// What ranks the strings of a key, or of its dictionary.
fn ranker(key: &Key, types: &[ColumnType], options: &Options) -> Result<Option<Ranker>> {
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

/// Writes a word of each row's keys.
fn word_kernel(index: usize, fields: &[key::Field], keys: &[Key], types: &[ColumnType], options: &Options) -> Result<Kernel> {
    let mut params = Params::new();
    params.need(Section::Base);
    let rows = params.named("rows", "const G u32 *RESTRICT");
    let words = params.named("words", "G u64 *RESTRICT");
    let n = params.named("n", "u64");
    let place = format!("{rows}[row]");
    let mut writer = RowWriter::new(types, options.profile, &mut params).with_names(&place, "x");
    let word = key::word(&mut writer, keys, fields, &place)?;
    writer.push(&format!("{words}[row] = {word};"));
    let statements = writer.statements();
    Ok(Kernel::new(format!("sort_word{index}"), params, for_rows(options.profile, "row", &n, &statements)))
}
