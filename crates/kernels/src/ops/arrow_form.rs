// SPDX-License-Identifier: Apache-2.0
//! Batches in Arrow's own layouts, for handing them out without leaving the device.
//!
//! Columns that lie as Arrow does pass without a copy. For the others as little as possible is written: strings keep their
//! heap where offsets or views over it will do, validity is written only where it begins at another bit than the values.
//! What the types tell is decided once, and one projection over all columns writes it; what only a batch tells (where it
//! begins, whether its NULLs are counted, over how many heaps its views are) chooses among kernels that are there already.

use std::sync::Arc;

use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use columnar::exchange::has_arrow_layout;
use columnar::{Carrier, ColumnType, DeviceBatch, DeviceColumn, Layout};
use device::{Buffer, Queue};
use futures::future::{BoxFuture, FutureExt, OptionFuture, try_join};

use super::Options;
use super::forms::{Forms, LoadedForms};
use super::output::{Buffers, Output};
use super::primitives::{LoadedPrimitives, Primitives};
use super::program::{Kernel, Program, word};
use super::project::{Projection, Rows};
use crate::codegen::{CType, Params, Profile, RowWriter, Value};
use crate::expr::Expr;
use crate::{Error, Result};

/// Most bytes of a heap that 32-bit offsets and views address.
const HEAP_BYTES: usize = i32::MAX as usize;

/// Brings batches into Arrow's layouts: what [`export`](columnar::exchange::export) takes.
///
/// A column of a dictionary type that lies as plain values becomes codes 0, 1, … over those values. Arrow allows it, but
/// kernels rely on distinct values: results are for handing out, not for other operators.
#[derive(Debug, Clone)]
pub struct ArrowForm {
    schema: SchemaRef,
    types: Vec<ColumnType>,
    columns: Vec<Column>,
    options: Options,
    heap_bytes: usize,
    forms: Forms,
    primitives: Primitives,
    /// Writes what the types alone tell that it must be written.
    main: Step,
    main_program: Program,
    /// Kernels of [`Column::gathered`].
    gather_program: Program,
}

/// How a column is brought into form.
#[derive(Debug, Clone)]
struct Column {
    name: String,
    ty: Arc<ColumnType>,
    shape: Shape,
    /// What `values` are to lie as: of [`Shape::Codes`] the codes.
    target: Layout,
    values: Values,
    /// For a heap beyond what 32 bits address: its used bytes go to a new one.
    gathered: Option<Step>,
}

#[derive(Debug, Clone)]
enum Shape {
    /// Values of the column's own type.
    Plain,
    /// Codes, and what brings their dictionary into form.
    Codes(Box<ArrowForm>),
    /// Plain values of a dictionary's type, to be numbered by such codes.
    Numbered(Carrier),
}

/// Where the buffers of the values come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Values {
    /// They lie right.
    Pass,
    /// Views, which lie right where there is one heap.
    Views,
    /// Offsets of the other width over the same heap.
    Offsets,
    /// [`ArrowForm::main`] writes them.
    Written,
    /// It writes views over the heap of the column or of its dictionary.
    WrittenViews,
    /// It writes the strings one after the other.
    Gathered,
}

impl ArrowForm {
    /// For batches of `schema` in the layouts of `types`.
    ///
    /// # Errors
    /// `Unsupported` where a column's type is not supported on the device; `Internal` for a layout that does not carry its type.
    ///
    /// # Examples
    /// ```
    /// use std::sync::Arc;
    /// use arrow::array::{Decimal128Array, RecordBatch};
    /// use columnar::{exchange, file_types, upload};
    /// use kernels::codegen::Profile;
    /// use kernels::ops::{ArrowForm, Options};
    ///
    /// # futures::executor::block_on(async {
    /// let prices = Decimal128Array::from(vec![199, 250]).with_precision_and_scale(9, 2)?;
    /// let host = RecordBatch::try_from_iter([("price", Arc::new(prices) as _)])?;
    /// let queue = device::Context::new(device::DeviceConfig::default())?.queue()?;
    /// let types = file_types(&host.schema())?;
    /// let batch = upload(&queue, &host.schema(), &types, &[host.clone()])?;
    /// assert!(exchange::export(&queue, &batch).is_err());
    ///
    /// let form = ArrowForm::try_new(host.schema(), types, Options::new(Profile::Cpu))?;
    /// let array = exchange::export(&queue, &form.run(&queue, &batch).await?)?;
    /// assert_eq!(array.array.length, 2);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # }).unwrap();
    /// ```
    pub fn try_new(schema: SchemaRef, types: Vec<ColumnType>, options: Options) -> Result<ArrowForm> {
        Self::with_heap_bytes(schema, types, options, HEAP_BYTES)
    }

    /// As [`try_new`](Self::try_new), with another limit of the bytes that 32-bit offsets address: for tests.
    #[doc(hidden)]
    pub fn with_heap_bytes(schema: SchemaRef, types: Vec<ColumnType>, options: Options, heap_bytes: usize) -> Result<ArrowForm> {
        if schema.fields().len() != types.len() {
            return Err(Error::Internal(format!("{} types for {} columns", types.len(), schema.fields().len())));
        }
        let mut columns = Vec::with_capacity(types.len());
        let mut writes = Vec::with_capacity(types.len());
        let (mut kernels, mut gather_kernels) = (vec![], vec![]);
        for (index, field) in schema.fields().iter().enumerate() {
            let (column, write) = Column::plan(field, index, &types, &options, heap_bytes, &mut gather_kernels)?;
            columns.push(column);
            writes.push(write);
        }
        Ok(ArrowForm {
            types: columns.iter().map(|column| (*column.ty).clone()).collect(),
            main: Step::try_new("form", &types, writes, &options, &mut kernels)?,
            main_program: Program::try_new("ArrowForm", &options, kernels)?,
            gather_program: Program::try_new("ArrowForm", &options, gather_kernels)?,
            forms: Forms::try_new(&options)?,
            primitives: Primitives::try_new(&options)?,
            schema,
            columns,
            options,
            heap_bytes,
        })
    }

    /// Types of the result in their natural layouts, the same for every batch.
    pub fn output_types(&self) -> &[ColumnType] {
        &self.types
    }

    /// Names and texts of the kernels.
    pub fn kernel_text(&self) -> Vec<(String, String)> {
        let own = self.own_programs().flat_map(Program::kernel_text);
        let nested = self.nested().flat_map(|form| form.own_programs().flat_map(Program::kernel_text));
        self.forms.kernel_text().into_iter().chain(own).chain(nested).collect()
    }

    /// The programs as they are compiled, where a batch needs them.
    pub fn programs(&self) -> Vec<String> {
        let fixed = [self.primitives.text(), self.forms.text()].into_iter();
        let nested = self.nested().flat_map(ArrowForm::own_programs);
        fixed.chain(self.own_programs().chain(nested).map(Program::text)).map(str::to_owned).collect()
    }

    /// Most rows that a batch may have: computed values of a dictionary's type are numbered by its keys.
    pub fn most_rows(&self) -> usize {
        self.columns.iter().map(Column::most_rows).min().unwrap_or(usize::MAX)
    }

    fn own_programs(&self) -> impl Iterator<Item = &Program> {
        let gathers = self.columns.iter().any(|column| column.gathered.is_some());
        let main = (!self.main.is_empty()).then_some(&self.main_program);
        main.into_iter().chain(gathers.then_some(&self.gather_program))
    }

    fn nested(&self) -> impl Iterator<Item = &ArrowForm> {
        self.columns.iter().filter_map(|column| match &column.shape {
            Shape::Codes(form) => Some(&**form),
            _ => None,
        })
    }

    /// The batch with columns that all [lie as Arrow does](has_arrow_layout). Waits where NULLs are to be counted or strings
    /// gathered, once for all columns.
    ///
    /// # Errors
    /// `TooLarge` where strings are more than their type can address, or rows of computed values more than a dictionary's
    /// keys can number; the device's.
    pub async fn run(&self, queue: &Queue, batch: &DeviceBatch) -> Result<DeviceBatch> {
        if batch.columns().len() != self.columns.len() {
            return Err(Error::Internal(format!("a batch of {} columns, not {}", batch.columns().len(), self.columns.len())));
        }
        if batch.columns().iter().all(has_arrow_layout) {
            return Ok(batch.clone());
        }
        if batch.num_rows() == 0 {
            let columns = batch.columns().iter().zip(&self.columns).map(|(given, column)| match has_arrow_layout(given) {
                true => Ok(given.clone()),
                false => empty(queue, &column.ty),
            });
            return Ok(DeviceBatch::try_new(Arc::clone(&self.schema), columns.collect::<Result<_>>()?, 0)?);
        }
        for (given, column) in batch.columns().iter().zip(&self.columns) {
            column.check_rows(given)?;
        }
        let loading = OptionFuture::from(self.needs_forms(batch).then(|| self.forms.load(queue)));
        let forms = loading.await.transpose()?;

        // Both reads are enqueued before either is waited for.
        let mut nulls = Nulls::new(queue, self, batch, forms.as_ref())?;
        let written = self.main.run(queue, self, &self.main_program, batch);
        let ((), mut written) = try_join(nulls.count(queue), written).await?;

        let mut columns = Vec::with_capacity(self.columns.len());
        for (index, (given, column)) in batch.columns().iter().zip(&self.columns).enumerate() {
            if has_arrow_layout(given) {
                columns.push(given.clone());
                continue;
            }
            let maker = Maker { form: self, queue, batch, index, column, given, forms: forms.as_ref() };
            let values = maker.values(written.get_mut(index).and_then(Option::take)).await?;
            columns.push(maker.column(values, nulls.take(index)).await?);
        }
        Ok(DeviceBatch::try_new(Arc::clone(&self.schema), columns, batch.num_rows())?)
    }

    /// The same as an object, for dictionaries: a future cannot hold one of its own kind.
    fn run_boxed<'a>(&'a self, queue: &'a Queue, batch: &'a DeviceBatch) -> BoxFuture<'a, Result<DeviceBatch>> {
        self.run(queue, batch).boxed()
    }

    /// Whether a fixed kernel has to do with the batch.
    fn needs_forms(&self, batch: &DeviceBatch) -> bool {
        batch.columns().iter().zip(&self.columns).any(|(given, column)| {
            let changes = !has_arrow_layout(given);
            let joins = column.joins(given) || column.gathers(given, self.heap_bytes);
            let converts = column.values == Values::Offsets || joins;
            let narrows = column.values == Values::Gathered && column.target == Layout::Offsets32;
            let numbers = matches!(column.shape, Shape::Numbered(_));
            changes && (converts || narrows || numbers || column.null_job(given).is_some())
        })
    }
}

impl Column {
    /// The plan of a column, and what [`ArrowForm::main`] has to write for it.
    fn plan(
        field: &Field,
        index: usize,
        types: &[ColumnType],
        options: &Options,
        heap_bytes: usize,
        gather_kernels: &mut Vec<Kernel>,
    ) -> Result<(Column, Option<Write>)> {
        let from = types.get(index).ok_or_else(|| Error::Internal(format!("column {index} without a type")))?;
        let layout = natural(&from.data_type)?;
        let (shape, target) = match (&from.data_type, &from.layout, &layout) {
            (DataType::Dictionary(_, value), Layout::Dictionary { values, .. }, Layout::Dictionary { codes, .. }) => {
                let ty = ColumnType {
                    data_type: value.as_ref().clone(),
                    nullable: **values == Layout::Null,
                    layout: values.as_ref().clone(),
                    bounds: None,
                };
                let schema = Schema::new(vec![Field::new(field.name(), ty.data_type.clone(), ty.nullable)]);
                let form = ArrowForm::with_heap_bytes(Arc::new(schema), vec![ty], options.clone(), heap_bytes)?;
                (Shape::Codes(Box::new(form)), Layout::Fixed(*codes))
            }
            (DataType::Dictionary(_, value), _, Layout::Dictionary { codes, .. }) => (Shape::Numbered(*codes), natural(value)?),
            _ => (Shape::Plain, layout.clone()),
        };
        use Layout::{Dictionary, Offsets32, Offsets64};
        let values = match (&shape, &from.layout, &target) {
            (Shape::Codes(_), Dictionary { codes, .. }, Layout::Fixed(natural)) if codes == natural => Values::Pass,
            (Shape::Codes(_), _, _) => Values::Written,
            // Below a NULL a view may be anything, which a dictionary's values may not.
            (Shape::Numbered(_), Layout::Views, Layout::Views) if from.nullable => Values::WrittenViews,
            (_, Layout::Views, Layout::Views) => Values::Views,
            (_, from, to) if from == to => Values::Pass,
            (_, Offsets32 | Offsets64, Offsets32 | Offsets64) => Values::Offsets,
            (_, _, Layout::Views) => Values::WrittenViews,
            (_, _, Offsets32 | Offsets64) => Values::Gathered,
            _ => Values::Written,
        };
        let keeps_bounds = matches!(shape, Shape::Codes(_)) || !matches!(from.layout, Dictionary { .. });
        let bounds = from.bounds.filter(|_| keeps_bounds && !matches!(shape, Shape::Numbered(_)));
        let ty = ColumnType { data_type: from.data_type.clone(), nullable: from.nullable, layout, bounds };
        let name = index.to_string();
        let data_type = &from.data_type;
        let write = |kind: Kind, layout: Layout, ctype: CType| {
            // Validity is not the writer's.
            let ty = ColumnType { data_type: data_type.clone(), nullable: false, layout, bounds: None };
            Write { kind, output: Output::new(ty, ctype, &name) }
        };
        let views = || write(Kind::View, Layout::Views, CType::I128);
        let strings = || {
            let write = write(Kind::Value, Offsets64, CType::Str);
            let limit = if target == Offsets64 { usize::MAX } else { heap_bytes };
            Write { output: write.output.with_limit(field.name(), limit), ..write }
        };
        let main = match (values, &shape, &target) {
            (Values::Pass | Values::Views | Values::Offsets, _, _) => None,
            (Values::WrittenViews, _, _) => Some(views()),
            (Values::Gathered, _, _) => Some(strings()),
            (Values::Written, Shape::Codes(_), Layout::Fixed(codes)) => {
                Some(write(Kind::Code, target.clone(), CType::of_carrier(*codes)))
            }
            (Values::Written, _, Layout::Fixed(carrier)) => Some(write(Kind::Value, target.clone(), CType::of_carrier(*carrier))),
            (Values::Written, _, Layout::Bits) => Some(write(Kind::Value, Layout::Bits, CType::Bool)),
            (Values::Written, _, Layout::Bytes(_)) => Some(write(Kind::Value, target.clone(), CType::Str)),
            (Values::Written, _, _) => {
                return Err(Error::Internal(format!("column \"{}\" of {data_type} in layout {:?}", field.name(), from.layout)));
            }
        };
        let may_gather = match values {
            Values::Views | Values::WrittenViews => true,
            Values::Offsets => target == Offsets32,
            _ => false,
        };
        let gathered = match may_gather {
            true => {
                let writes = (0..types.len()).map(|at| (at == index).then(strings)).collect();
                Some(Step::try_new(&format!("gather{index}"), types, writes, options, gather_kernels)?)
            }
            false => None,
        };
        Ok((Column { name: field.name().clone(), ty: Arc::new(ty), shape, target, values, gathered }, main))
    }

    /// Rows that a dictionary's keys can number.
    fn most_rows(&self) -> usize {
        let Shape::Numbered(codes) = &self.shape else { return usize::MAX };
        let most = CType::of_carrier(*codes).range().map_or(0, |(_, most)| most);
        usize::try_from(most).map_or(usize::MAX, |most| most.saturating_add(1))
    }

    /// Refuses more rows than that.
    fn check_rows(&self, given: &DeviceColumn) -> Result<()> {
        let limit = self.most_rows();
        if given.len() <= limit {
            return Ok(());
        }
        Err(columnar::Error::TooLarge {
            column: self.name.clone(),
            data_type: self.ty.data_type.clone(),
            what: "rows to be numbered by the dictionary's keys",
            actual: given.len(),
            limit,
        }
        .into())
    }

    /// Whether the column's views are over several heaps.
    fn joins(&self, given: &DeviceColumn) -> bool {
        match (self.values, given.buffers()) {
            (Values::Views, [_, heap, bases]) => !heap.is_empty() && bases.len() != size_of::<u64>(),
            _ => false,
        }
    }

    /// Whether the column's heap is beyond what its new offsets or views address.
    fn gathers(&self, given: &DeviceColumn, heap_bytes: usize) -> bool {
        let beyond = heap(given).is_some_and(|heap| heap.len() > heap_bytes);
        beyond && self.gathered.is_some() && (self.values != Values::Views || self.joins(given))
    }

    /// The bit at which the result's validity begins: its first element in its buffers.
    fn first_bit(&self, given: &DeviceColumn) -> usize {
        let passes = match self.values {
            Values::Pass => true,
            Values::Views => !self.joins(given),
            _ => false,
        };
        if passes && !matches!(self.shape, Shape::Numbered(_)) { given.offset() } else { 0 }
    }

    /// What is to be done to a column's validity: whether to move it, and whether to count its NULLs.
    fn null_job(&self, given: &DeviceColumn) -> Option<(bool, bool)> {
        let (_, first) = given.validity()?;
        if given.null_count() == Some(0) {
            return None;
        }
        let job = (first != self.first_bit(given), given.null_count().is_none());
        (job.0 || job.1).then_some(job)
    }
}

/// The validity of a batch's columns: moved where it begins elsewhere than the values, and counted.
struct Nulls {
    counts: Option<Buffer>,
    /// Of each column.
    results: Vec<Option<Validity>>,
    rows: usize,
}

/// A column's validity as the result has it.
struct Validity {
    bits: Buffer,
    first: usize,
    null_count: Option<usize>,
    /// Word of the counts.
    counted: Option<usize>,
}

impl Nulls {
    /// Enqueues what is to be moved and counted.
    fn new(queue: &Queue, form: &ArrowForm, batch: &DeviceBatch, forms: Option<&LoadedForms<'_>>) -> Result<Nulls> {
        let rows = batch.num_rows();
        let given = || batch.columns().iter().zip(&form.columns);
        let jobs: Vec<_> = given().map(|(given, column)| column.null_job(given).filter(|_| !has_arrow_layout(given))).collect();
        let counted = jobs.iter().flatten().count();
        let counts = if counted > 0 { Some(queue.zeroed(counted * size_of::<u64>())?) } else { None };
        let mut results = Vec::with_capacity(jobs.len());
        let mut at = 0;
        for ((given, column), job) in given().zip(jobs) {
            let Some((bits, first)) = given.validity() else {
                results.push(None);
                continue;
            };
            let mut validity = Validity { bits: bits.clone(), first, null_count: given.null_count(), counted: None };
            if let (Some((moves, counts_nulls)), Some(counts)) = (job, &counts) {
                let forms = forms.ok_or_else(|| Error::Internal("validity without kernels".into()))?;
                let to = column.first_bit(given);
                match moves {
                    true => {
                        validity.bits = forms.move_bits(queue, bits, first, rows, to, counts, at)?;
                        validity.first = to;
                    }
                    false => forms.count_bits(queue, bits, first, rows, counts, at)?,
                }
                validity.counted = counts_nulls.then_some(at);
                at += 1;
            }
            results.push(Some(validity));
        }
        Ok(Nulls { counts, results, rows })
    }

    /// Waits for the counts, if there are any that were not known.
    async fn count(&mut self, queue: &Queue) -> Result<()> {
        let Some(counts) = self.counts.as_ref().filter(|_| self.results.iter().flatten().any(|one| one.counted.is_some())) else {
            return Ok(());
        };
        let answer = queue.read(counts, 0..counts.len()).await?;
        for validity in self.results.iter_mut().flatten() {
            if let Some(at) = validity.counted {
                validity.null_count = Some(self.rows.saturating_sub(word(&answer, at)? as usize));
            }
        }
        Ok(())
    }

    fn take(&mut self, column: usize) -> Option<Validity> {
        self.results.get_mut(column).and_then(Option::take)
    }
}

/// Makes one column of the result.
struct Maker<'a> {
    form: &'a ArrowForm,
    queue: &'a Queue,
    batch: &'a DeviceBatch,
    index: usize,
    column: &'a Column,
    given: &'a DeviceColumn,
    forms: Option<&'a LoadedForms<'a>>,
}

impl Maker<'_> {
    /// The buffers of the values, and the element at which they begin.
    async fn values(&self, written: Option<Formed>) -> Result<(Vec<Buffer>, usize)> {
        let (queue, column, given) = (self.queue, self.column, self.given);
        let (n, offset) = (given.len(), given.offset());
        if column.gathers(given, self.form.heap_bytes) {
            return Ok((self.strings(self.gathered().await?)?, 0));
        }
        match column.values {
            Values::Views if column.joins(given) => {
                let values = Some(self.forms()?.join_views(queue, given)?);
                Ok((self.views(Formed { values, heap: None })?, 0))
            }
            Values::Pass | Values::Views => Ok((given.buffers().to_vec(), offset)),
            Values::Offsets => {
                let [offsets, heap] = given.buffers() else { return Err(self.missing()) };
                let offsets = match column.target {
                    Layout::Offsets32 => self.forms()?.narrow_offsets(queue, offsets, offset, n)?,
                    _ => self.forms()?.widen_offsets(queue, offsets, offset, n)?,
                };
                Ok((vec![offsets, heap.clone()], 0))
            }
            Values::Written => Ok((vec![written.and_then(|formed| formed.values).ok_or_else(|| self.missing())?], 0)),
            Values::WrittenViews => Ok((self.views(written.ok_or_else(|| self.missing())?)?, 0)),
            Values::Gathered => Ok((self.strings(written.ok_or_else(|| self.missing())?)?, 0)),
        }
    }

    /// The column's strings one after the other.
    async fn gathered(&self) -> Result<Formed> {
        let step = self.column.gathered.as_ref().ok_or_else(|| self.missing())?;
        let mut written = step.run(self.queue, self.form, &self.form.gather_program, self.batch).await?;
        written.get_mut(self.index).and_then(Option::take).ok_or_else(|| self.missing())
    }

    /// Views that were written, over the heap of the column or of its dictionary.
    fn views(&self, formed: Formed) -> Result<Vec<Buffer>> {
        let values = formed.values.ok_or_else(|| self.missing())?;
        let heap = heap(self.given).ok_or_else(|| self.missing())?;
        Ok(vec![values, heap.clone(), self.queue.zeroed(size_of::<u64>())?])
    }

    /// Strings that were written one after the other, in the form that is wanted.
    fn strings(&self, formed: Formed) -> Result<Vec<Buffer>> {
        let (Some(offsets), Some(heap)) = (formed.values, formed.heap) else { return Err(self.missing()) };
        let n = self.given.len();
        Ok(match self.column.target {
            Layout::Views => {
                let views = self.forms()?.views(self.queue, &offsets, &heap, n)?;
                vec![views, heap, self.queue.zeroed(size_of::<u64>())?]
            }
            Layout::Offsets32 => vec![self.forms()?.narrow_offsets(self.queue, &offsets, 0, n)?, heap],
            _ => vec![offsets, heap],
        })
    }

    /// The column of these values, which begin at an element of their buffers.
    async fn column(&self, (buffers, offset): (Vec<Buffer>, usize), validity: Option<Validity>) -> Result<DeviceColumn> {
        let (queue, given, n) = (self.queue, self.given, self.given.len());
        let ty = Arc::clone(&self.column.ty);
        let null_count = validity.as_ref().map_or(given.null_count(), |validity| validity.null_count);
        let validity = validity.map(|validity| (validity.bits, validity.first));
        let make = |validity, dictionary| -> Result<DeviceColumn> {
            Ok(DeviceColumn::try_new(Arc::clone(&ty), n, buffers.clone(), validity, null_count, dictionary)?
                .with_offset(offset)?)
        };
        match &self.column.shape {
            Shape::Plain => make(validity, None),
            Shape::Codes(form) => {
                let dictionary = given.dictionary().ok_or_else(|| self.missing())?;
                if has_arrow_layout(dictionary) {
                    return make(validity, Some(Arc::clone(dictionary)));
                }
                let batch = DeviceBatch::try_new(Arc::clone(&form.schema), vec![(**dictionary).clone()], dictionary.len())?;
                let dictionary = form.run_boxed(queue, &batch).await?.columns().first().cloned();
                make(validity, Some(Arc::new(dictionary.ok_or_else(|| self.missing())?)))
            }
            Shape::Numbered(codes) => {
                let DataType::Dictionary(_, value) = &ty.data_type else { return Err(self.missing()) };
                let target = self.column.target.clone();
                let nothing = target == Layout::Null;
                let value = ColumnType { data_type: value.as_ref().clone(), nullable: nothing, layout: target, bounds: None };
                let values = DeviceColumn::try_new(Arc::new(value), n, buffers.clone(), None, None, None)?.with_offset(offset)?;
                let codes = self.forms()?.number(queue, *codes, n)?;
                // Values of type Null have no validity, codes have.
                let (validity, null_count) = match nothing && ty.nullable {
                    true => (Some((queue.zeroed(n.div_ceil(8))?, 0)), Some(n)),
                    false => (validity, null_count),
                };
                Ok(DeviceColumn::try_new(Arc::clone(&ty), n, vec![codes], validity, null_count, Some(Arc::new(values)))?)
            }
        }
    }

    fn forms(&self) -> Result<&LoadedForms<'_>> {
        self.forms.ok_or_else(|| Error::Internal(format!("column \"{}\" without its kernels", self.column.name)))
    }

    fn missing(&self) -> Error {
        let (name, ty) = (&self.column.name, self.given.ty());
        Error::Internal(format!("column \"{name}\" ({}) in layout {:?} lacks a buffer", ty.data_type, ty.layout))
    }
}

/// Kernels of a program that write some of the columns.
#[derive(Debug, Clone)]
struct Step {
    projection: Projection,
    /// Values of each column, packed where they are bits.
    bits: Vec<bool>,
}

/// What is written of a column.
#[derive(Debug, Clone)]
struct Write {
    kind: Kind,
    output: Output,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// The value.
    Value,
    /// Its code in the column's dictionary.
    Code,
    /// A view over the heap that it lies in.
    View,
}

/// What a step has written of a column.
struct Formed {
    values: Option<Buffer>,
    heap: Option<Buffer>,
}

impl Step {
    /// Appends the kernels, named after `prefix`.
    fn try_new(
        prefix: &str,
        types: &[ColumnType],
        writes: Vec<Option<Write>>,
        options: &Options,
        kernels: &mut Vec<Kernel>,
    ) -> Result<Step> {
        let mut types = types.to_vec();
        for (ty, write) in types.iter_mut().zip(&writes) {
            // Only strings look at validity: below a NULL there may be anything.
            ty.nullable &= write.as_ref().is_none_or(|write| write.kind == Kind::View || write.output.is_str());
        }
        let outputs: Vec<_> = writes.iter().map(|write| write.as_ref().map(|write| write.output.clone())).collect();
        let bits = outputs.iter().map(|output| output.as_ref().is_some_and(|output| output.ty.layout == Layout::Bits)).collect();
        let rows = Written { types, profile: options.profile, writes };
        let projection = Projection::try_new(prefix, &rows, outputs, false, options, kernels)?;
        Ok(Step { projection, bits })
    }

    fn is_empty(&self) -> bool {
        self.projection.outputs.iter().all(Option::is_none)
    }

    /// Writes the columns that are the step's, by kernels of `program`.
    async fn run(&self, queue: &Queue, form: &ArrowForm, program: &Program, batch: &DeviceBatch) -> Result<Vec<Option<Formed>>> {
        if self.is_empty() {
            return Ok(vec![]);
        }
        let n = batch.num_rows();
        let loaded = program.load(queue).await?;
        let primitives = form.primitives.load(queue).await?;
        let written = self.projection.run(queue, &form.options, program, &loaded, &primitives, batch, None, n, &[]).await?;
        let formed = written
            .into_iter()
            .zip(&self.bits)
            .map(|(buffers, bits)| buffers.map(|buffers| formed(queue, &primitives, buffers, n, *bits)).transpose());
        formed.collect()
    }
}

fn formed(queue: &Queue, primitives: &LoadedPrimitives<'_>, buffers: Buffers, n: usize, bits: bool) -> Result<Formed> {
    let values = match buffers.values {
        Some(bytes) if bits => Some(primitives.pack(queue, &bytes, n)?),
        values => values,
    };
    Ok(Formed { values, heap: buffers.heap })
}

/// The rows that a step reads.
struct Written {
    types: Vec<ColumnType>,
    profile: Profile,
    writes: Vec<Option<Write>>,
}

impl Rows for Written {
    fn writer<'a>(&'a self, params: &'a mut Params) -> RowWriter<'a> {
        RowWriter::new(&self.types, self.profile, params)
    }

    fn value(&self, writer: &mut RowWriter<'_>, output: usize) -> Result<Value> {
        let Some(Some(Write { kind, output: write })) = self.writes.get(output) else {
            return Err(Error::Internal(format!("column {output} is not written")));
        };
        let value = match kind {
            Kind::Value => writer.eval(&Expr::Column(output))?,
            Kind::Code => writer.code(output)?,
            Kind::View => return writer.view(output),
        };
        writer.params().need_type(write.ctype);
        Ok(Value { code: value.to_ctype(write.ctype), ctype: write.ctype, ..value })
    }
}

fn natural(data_type: &DataType) -> Result<Layout> {
    let ty = ColumnType::of(data_type, true).filter(|ty| !matches!(ty.layout, Layout::List(_)));
    ty.map(|ty| ty.layout).ok_or_else(|| Error::Unsupported(format!("type {data_type} has no form as a device array")))
}

/// The heap of a column's strings, which lies in its dictionary where it has one.
fn heap(column: &DeviceColumn) -> Option<&Buffer> {
    match (&column.ty().layout, column.dictionary()) {
        (Layout::Offsets32 | Layout::Offsets64 | Layout::Views, _) => column.buffers().get(1),
        (Layout::Dictionary { .. }, Some(dictionary)) => heap(dictionary),
        _ => None,
    }
}

/// A column without rows.
fn empty(queue: &Queue, ty: &Arc<ColumnType>) -> Result<DeviceColumn> {
    let buffers = match &ty.layout {
        Layout::Null => vec![],
        Layout::Bits | Layout::Fixed(_) | Layout::Bytes(_) | Layout::Dictionary { .. } | Layout::List(_) => vec![queue.alloc(0)?],
        Layout::Offsets32 => vec![queue.zeroed(size_of::<i32>())?, queue.alloc(0)?],
        Layout::Offsets64 => vec![queue.zeroed(size_of::<i64>())?, queue.alloc(0)?],
        Layout::Views => vec![queue.alloc(0)?, queue.alloc(0)?, queue.zeroed(size_of::<u64>())?],
    };
    let dictionary = match (&ty.data_type, &ty.layout) {
        (DataType::Dictionary(_, value), Layout::Dictionary { values, .. }) => {
            let nullable = **values == Layout::Null;
            let layout = values.as_ref().clone();
            let values = ColumnType { data_type: value.as_ref().clone(), nullable, layout, bounds: None };
            Some(Arc::new(empty(queue, &Arc::new(values))?))
        }
        _ => None,
    };
    let validity = if ty.nullable && ty.layout != Layout::Null { Some((queue.alloc(0)?, 0)) } else { None };
    Ok(DeviceColumn::try_new(Arc::clone(ty), 0, buffers, validity, Some(0), dictionary)?)
}
