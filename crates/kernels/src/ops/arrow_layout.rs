// SPDX-License-Identifier: Apache-2.0
//! Batches in Arrow's layouts, for the Arrow C device interface.
//!
//! - Columns that have Arrow's layout are passed on without a copy.
//! - Strings keep their heap if offsets or views over it suffice.
//! - Validity is written only if it begins at another bit than the values.
//!
//! The types decide what one projection writes for all columns. A batch's own properties choose
//! among fixed kernels: its first row, whether its NULLs are counted, the number of heaps of its
//! views.

use std::sync::Arc;

use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use columnar::exchange::has_arrow_layout;
use columnar::{Carrier, ColumnType, DeviceBatch, DeviceColumn, Layout};
use device::{Buffer, Queue};
use futures::future::{BoxFuture, FutureExt, OptionFuture, try_join};

use super::Options;
use super::launch::Launch;
use super::launch::layout_kernels::{CountedBits, LayoutKernels, LoadedLayoutKernels};
use super::launch::output::{Output, OutputBuffers};
use super::launch::primitives::{LoadedPrimitives, Primitives};
use super::launch::program::{Kernel, Program, read_u64};
use super::launch::projection::{ProjectedRows, Projection, Rows};
use crate::codegen::{CType, Params, Profile, RowWriter, Value};
use crate::expr::Expr;
use crate::{Error, Result};

/// Most bytes of a heap that 32-bit offsets and views can address.
const HEAP_BYTES: usize = i32::MAX as usize;

/// Converts batches to Arrow's layouts, which [`export`](columnar::exchange::export) takes.
///
/// A column of a dictionary type in a plain layout becomes codes 0, 1, … over its values. Arrow
/// allows repeated values, but kernels do not: results are for export, not for other operators.
#[derive(Debug, Clone)]
pub struct ArrowLayout {
    schema: SchemaRef,
    types: Vec<ColumnType>,
    columns: Vec<ArrowColumn>,
    options: Options,
    heap_bytes: usize,
    layout_kernels: LayoutKernels,
    primitives: Primitives,
    /// Writes the columns whose types alone require it.
    main: ColumnWrites,
    main_program: Program,
    /// Kernels of [`ArrowColumn::concatenated`].
    concat_program: Program,
}

/// How a column is converted.
#[derive(Debug, Clone)]
struct ArrowColumn {
    name: String,
    ty: Arc<ColumnType>,
    shape: ArrowShape,
    /// Layout of the values; of [`ArrowShape::Codes`], that of the codes.
    target: Layout,
    values: ValueSource,
    /// Copies the used bytes of a heap that 32 bits cannot address.
    concatenated: Option<ColumnWrites>,
}

#[derive(Debug, Clone)]
enum ArrowShape {
    /// Values of the column's own type.
    Plain,
    /// Codes, and the conversion of their dictionary.
    Codes(Box<ArrowLayout>),
    /// Plain values of a dictionary type, which such codes number.
    Numbered(Carrier),
}

/// The source of the value buffers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ValueSource {
    /// The column has Arrow's layout.
    Pass,
    /// Views, which have Arrow's layout if they are over one heap.
    Views,
    /// Offsets of the other width over the same heap.
    OtherOffsets,
    /// [`ArrowLayout::main`] writes the values.
    Written,
    /// [`ArrowLayout::main`] writes views over the heap of the column or of its dictionary.
    WrittenViews,
    /// [`ArrowLayout::main`] writes concatenated strings.
    Concatenated,
}

impl ArrowLayout {
    /// For batches of `schema` in the layouts of `types`.
    ///
    /// # Errors
    /// `Unsupported` if a column's type is not supported on the device; `Internal` for a layout
    /// that cannot have its type.
    ///
    /// # Examples
    /// ```
    /// use std::sync::Arc;
    /// use arrow::array::{Decimal128Array, RecordBatch};
    /// use columnar::{exchange, file_types, upload};
    /// use kernels::codegen::Profile;
    /// use kernels::ops::{ArrowLayout, Options};
    ///
    /// # futures::executor::block_on(async {
    /// let prices = Decimal128Array::from(vec![199, 250]).with_precision_and_scale(9, 2)?;
    /// let host = RecordBatch::try_from_iter([("price", Arc::new(prices) as _)])?;
    /// let queue = device::Context::new(device::DeviceConfig::default())?.queue()?;
    /// let types = file_types(&host.schema())?;
    /// let batch = upload(&queue, &host.schema(), &types, &[host.clone()])?;
    /// assert!(exchange::export(&queue, &batch).is_err());
    ///
    /// let layout = ArrowLayout::try_new(host.schema(), types, Options::new(Profile::Cpu))?;
    /// let array = exchange::export(&queue, &layout.run(&queue, &batch).await?)?;
    /// assert_eq!(array.array.length, 2);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # }).unwrap();
    /// ```
    pub fn try_new(schema: SchemaRef, types: Vec<ColumnType>, options: Options) -> Result<ArrowLayout> {
        Self::with_heap_bytes(schema, types, options, HEAP_BYTES)
    }

    /// As [`try_new`](Self::try_new), with another limit of the bytes that 32-bit offsets address.
    /// For tests.
    #[doc(hidden)]
    pub fn with_heap_bytes(
        schema: SchemaRef,
        types: Vec<ColumnType>,
        options: Options,
        heap_bytes: usize,
    ) -> Result<ArrowLayout> {
        if schema.fields().len() != types.len() {
            return Err(Error::Internal(format!("{} types for {} columns", types.len(), schema.fields().len())));
        }
        let mut columns = Vec::with_capacity(types.len());
        let mut writes = Vec::with_capacity(types.len());
        let (mut kernels, mut concat_kernels) = (vec![], vec![]);
        for (index, field) in schema.fields().iter().enumerate() {
            let (column, write) = ArrowColumn::plan(field, index, &types, &options, heap_bytes, &mut concat_kernels)?;
            columns.push(column);
            writes.push(write);
        }
        Ok(ArrowLayout {
            types: columns.iter().map(|column| (*column.ty).clone()).collect(),
            main: ColumnWrites::try_new("arrow", &types, writes, &options, &mut kernels)?,
            main_program: Program::new("ArrowLayout", &options, kernels),
            concat_program: Program::new("ArrowLayout", &options, concat_kernels),
            layout_kernels: LayoutKernels::new(&options),
            primitives: Primitives::new(&options),
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

    /// Names and sources of the kernels.
    pub fn kernel_source(&self) -> Vec<(String, String)> {
        let own = self.own_programs().flat_map(Program::kernel_source);
        let dictionary_layouts =
            self.dictionary_layouts().flat_map(|layout| layout.own_programs().flat_map(Program::kernel_source));
        self.layout_kernels.kernel_source().into_iter().chain(own).chain(dictionary_layouts).collect()
    }

    /// The kernel sources as they are compiled, for batches that need them.
    pub fn programs(&self) -> Vec<String> {
        let fixed = [self.primitives.source(), self.layout_kernels.source()].into_iter();
        let dictionary_layouts = self.dictionary_layouts().flat_map(ArrowLayout::own_programs);
        fixed.chain(self.own_programs().chain(dictionary_layouts).map(Program::source)).map(str::to_owned).collect()
    }

    /// Most rows of a batch: the keys of a dictionary type number computed values.
    pub fn max_rows(&self) -> usize {
        self.columns.iter().map(ArrowColumn::max_rows).min().unwrap_or(usize::MAX)
    }

    fn own_programs(&self) -> impl Iterator<Item = &Program> {
        let concatenates = self.columns.iter().any(|column| column.concatenated.is_some());
        let main = (!self.main.is_empty()).then_some(&self.main_program);
        main.into_iter().chain(concatenates.then_some(&self.concat_program))
    }

    fn dictionary_layouts(&self) -> impl Iterator<Item = &ArrowLayout> {
        self.columns.iter().filter_map(|column| match &column.shape {
            ArrowShape::Codes(layout) => Some(&**layout),
            ArrowShape::Plain | ArrowShape::Numbered(_) => None,
        })
    }

    /// The batch in Arrow's layouts: [`has_arrow_layout`] holds for all columns. Waits if NULLs
    /// have to be counted or strings concatenated, once for all columns.
    ///
    /// # Errors
    /// - `TooLarge` for more bytes of strings than their type can address
    /// - `TooLarge` for more rows of computed values than the keys of a dictionary can number
    /// - errors of the device
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
        let loading = OptionFuture::from(self.needs_layout_kernels(batch).then(|| self.layout_kernels.load(queue)));
        let layout_kernels = loading.await.transpose()?;

        // Both reads are enqueued before either is waited for.
        let mut validities = Validities::new(queue, self, batch, layout_kernels.as_ref())?;
        let written = self.main.run(queue, self, &self.main_program, batch);
        let ((), mut written) = try_join(validities.count(queue), written).await?;

        let mut columns = Vec::with_capacity(self.columns.len());
        for (index, (given, column)) in batch.columns().iter().zip(&self.columns).enumerate() {
            if has_arrow_layout(given) {
                columns.push(given.clone());
                continue;
            }
            let builder = ColumnBuilder { op: self, queue, batch, index, column, given, layout_kernels: layout_kernels.as_ref() };
            let values = builder.values(written.get_mut(index).and_then(Option::take)).await?;
            columns.push(builder.column(values, validities.take(index)).await?);
        }
        Ok(DeviceBatch::try_new(Arc::clone(&self.schema), columns, batch.num_rows())?)
    }

    /// As [`run`](Self::run), boxed for dictionaries: a future cannot contain one of its own type.
    fn run_boxed<'a>(&'a self, queue: &'a Queue, batch: &'a DeviceBatch) -> BoxFuture<'a, Result<DeviceBatch>> {
        self.run(queue, batch).boxed()
    }

    /// Whether the batch needs a fixed kernel.
    fn needs_layout_kernels(&self, batch: &DeviceBatch) -> bool {
        batch.columns().iter().zip(&self.columns).any(|(given, column)| {
            let changes = !has_arrow_layout(given);
            let merges = column.merges_heaps(given) || column.concatenates(given, self.heap_bytes);
            let converts = column.values == ValueSource::OtherOffsets || merges;
            let narrows = column.values == ValueSource::Concatenated && column.target == Layout::Offsets32;
            let numbers = column.shape.is_numbered();
            changes && (converts || narrows || numbers || column.validity_work(given).is_some())
        })
    }
}

impl ArrowShape {
    /// Whether codes number the rows.
    fn is_numbered(&self) -> bool {
        match self {
            ArrowShape::Numbered(_) => true,
            ArrowShape::Plain | ArrowShape::Codes(_) => false,
        }
    }

    /// The shape of a column of type `from`, and the layout of its values or codes. `layout`: the
    /// natural one of the type.
    fn of(
        field: &Field,
        from: &ColumnType,
        layout: &Layout,
        options: &Options,
        heap_bytes: usize,
    ) -> Result<(ArrowShape, Layout)> {
        Ok(match (&from.data_type, &from.layout, layout) {
            (DataType::Dictionary(_, value), Layout::Dictionary { values, .. }, Layout::Dictionary { codes, .. }) => {
                let ty = ColumnType {
                    data_type: value.as_ref().clone(),
                    nullable: **values == Layout::Null,
                    layout: values.as_ref().clone(),
                    bounds: None,
                };
                let schema = Schema::new(vec![Field::new(field.name(), ty.data_type.clone(), ty.nullable)]);
                let dictionary = ArrowLayout::with_heap_bytes(Arc::new(schema), vec![ty], options.clone(), heap_bytes)?;
                (ArrowShape::Codes(Box::new(dictionary)), Layout::Fixed(*codes))
            }
            (DataType::Dictionary(_, value), _, Layout::Dictionary { codes, .. }) => {
                (ArrowShape::Numbered(*codes), natural_layout(value)?)
            }
            _ => (ArrowShape::Plain, layout.clone()),
        })
    }
}

impl ValueSource {
    /// The source of values of type `from` for the layout `target`.
    fn of(from: &ColumnType, shape: &ArrowShape, target: &Layout) -> ValueSource {
        use Layout::{Dictionary, Offsets32, Offsets64};
        match (shape, &from.layout, target) {
            (ArrowShape::Codes(_), Dictionary { codes, .. }, Layout::Fixed(natural)) if codes == natural => ValueSource::Pass,
            (ArrowShape::Codes(_), _, _) => ValueSource::Written,
            // The view of a NULL is arbitrary, which Arrow does not allow in the values of a
            // dictionary.
            (ArrowShape::Numbered(_), Layout::Views, Layout::Views) if from.nullable => ValueSource::WrittenViews,
            (_, Layout::Views, Layout::Views) => ValueSource::Views,
            (_, from, to) if from == to => ValueSource::Pass,
            (_, Offsets32 | Offsets64, Offsets32 | Offsets64) => ValueSource::OtherOffsets,
            (_, _, Layout::Views) => ValueSource::WrittenViews,
            (_, _, Offsets32 | Offsets64) => ValueSource::Concatenated,
            _ => ValueSource::Written,
        }
    }
}

/// What kernels can write of a column.
struct WritePlan<'a> {
    field: &'a Field,
    from: &'a ColumnType,
    target: &'a Layout,
    name: String,
    heap_bytes: usize,
}

impl WritePlan<'_> {
    fn write(&self, kind: WrittenKind, layout: Layout, ctype: CType) -> ColumnWrite {
        // Validity is handled apart from the values.
        let ty = ColumnType { data_type: self.from.data_type.clone(), nullable: false, layout, bounds: None };
        ColumnWrite { kind, output: Output::new(ty, ctype, &self.name) }
    }

    /// Concatenated strings.
    fn strings(&self) -> ColumnWrite {
        let write = self.write(WrittenKind::Value, Layout::Offsets64, CType::Str);
        let limit = if *self.target == Layout::Offsets64 { usize::MAX } else { self.heap_bytes };
        ColumnWrite { output: write.output.with_limit(self.field.name(), limit), ..write }
    }

    /// What [`ArrowLayout::main`] writes.
    fn main(&self, values: ValueSource, shape: &ArrowShape) -> Result<Option<ColumnWrite>> {
        let target = self.target;
        let write = match (values, shape, target) {
            (ValueSource::Pass | ValueSource::Views | ValueSource::OtherOffsets, _, _) => return Ok(None),
            (ValueSource::WrittenViews, _, _) => self.write(WrittenKind::View, Layout::Views, CType::I128),
            (ValueSource::Concatenated, _, _) => self.strings(),
            (ValueSource::Written, ArrowShape::Codes(_), Layout::Fixed(codes)) => {
                self.write(WrittenKind::Code, target.clone(), CType::of_carrier(*codes))
            }
            (ValueSource::Written, _, Layout::Fixed(carrier)) => {
                self.write(WrittenKind::Value, target.clone(), CType::of_carrier(*carrier))
            }
            (ValueSource::Written, _, Layout::Bits) => self.write(WrittenKind::Value, Layout::Bits, CType::Bool),
            (ValueSource::Written, _, Layout::Bytes(_)) => self.write(WrittenKind::Value, target.clone(), CType::Str),
            (ValueSource::Written, _, _) => {
                let (name, data_type, layout) = (self.field.name(), &self.from.data_type, &self.from.layout);
                return Err(Error::Internal(format!("column \"{name}\" of {data_type} in layout {layout:?}")));
            }
        };
        Ok(Some(write))
    }
}

impl ArrowColumn {
    /// Plans a column. Returns also what [`ArrowLayout::main`] has to write for it.
    fn plan(
        field: &Field,
        index: usize,
        types: &[ColumnType],
        options: &Options,
        heap_bytes: usize,
        concat_kernels: &mut Vec<Kernel>,
    ) -> Result<(ArrowColumn, Option<ColumnWrite>)> {
        let from = types.get(index).ok_or_else(|| Error::Internal(format!("column {index} without a type")))?;
        let layout = natural_layout(&from.data_type)?;
        let (shape, target) = ArrowShape::of(field, from, &layout, options, heap_bytes)?;
        let values = ValueSource::of(from, &shape, &target);
        let keeps_bounds = match shape {
            ArrowShape::Codes(_) => true,
            ArrowShape::Plain => !matches!(from.layout, Layout::Dictionary { .. }),
            ArrowShape::Numbered(_) => false,
        };
        let bounds = from.bounds.filter(|_| keeps_bounds);
        let ty = ColumnType { data_type: from.data_type.clone(), nullable: from.nullable, layout, bounds };
        let writes = WritePlan { field, from, target: &target, name: index.to_string(), heap_bytes };
        let main = writes.main(values, &shape)?;
        let may_concatenate = match values {
            ValueSource::Views | ValueSource::WrittenViews => true,
            ValueSource::OtherOffsets => target == Layout::Offsets32,
            ValueSource::Pass | ValueSource::Written | ValueSource::Concatenated => false,
        };
        let concatenated = match may_concatenate {
            true => {
                let writes = (0..types.len()).map(|at| (at == index).then(|| writes.strings())).collect();
                Some(ColumnWrites::try_new(&format!("concat{index}"), types, writes, options, concat_kernels)?)
            }
            false => None,
        };
        Ok((ArrowColumn { name: field.name().clone(), ty: Arc::new(ty), shape, target, values, concatenated }, main))
    }

    /// Most rows that the keys of a dictionary type can number.
    fn max_rows(&self) -> usize {
        let ArrowShape::Numbered(codes) = &self.shape else { return usize::MAX };
        let most = CType::of_carrier(*codes).range().map_or(0, |(_, most)| most);
        usize::try_from(most).map_or(usize::MAX, |most| most.saturating_add(1))
    }

    /// Fails for more rows than that.
    fn check_rows(&self, given: &DeviceColumn) -> Result<()> {
        let limit = self.max_rows();
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

    /// Whether the views of the column are over several heaps, which are one buffer.
    fn merges_heaps(&self, given: &DeviceColumn) -> bool {
        match (self.values, given.buffers()) {
            (ValueSource::Views, [_, heap, bases]) => !heap.is_empty() && bases.len() != size_of::<u64>(),
            _ => false,
        }
    }

    /// Whether the heap of the column is too large for its new offsets or views.
    fn concatenates(&self, given: &DeviceColumn, heap_bytes: usize) -> bool {
        let beyond = heap(given).is_some_and(|heap| heap.len() > heap_bytes);
        beyond && self.concatenated.is_some() && (self.values != ValueSource::Views || self.merges_heaps(given))
    }

    /// The first validity bit of the result: its first element in its buffers.
    fn first_bit(&self, given: &DeviceColumn) -> usize {
        let passes = match self.values {
            ValueSource::Pass => true,
            ValueSource::Views => !self.merges_heaps(given),
            ValueSource::OtherOffsets | ValueSource::Written | ValueSource::WrittenViews | ValueSource::Concatenated => false,
        };
        if passes && !self.shape.is_numbered() { given.offset() } else { 0 }
    }

    /// The work on the validity of a column; `None` without any.
    fn validity_work(&self, given: &DeviceColumn) -> Option<ValidityWork> {
        let (_, first) = given.validity()?;
        if given.null_count() == Some(0) {
            return None;
        }
        let work = ValidityWork { moves: first != self.first_bit(given), counts: given.null_count().is_none() };
        (work.moves || work.counts).then_some(work)
    }
}

/// The work on the validity of a column.
#[derive(Clone, Copy)]
struct ValidityWork {
    /// Whether the bits move to another first bit.
    moves: bool,
    /// Whether NULLs are counted.
    counts: bool,
}

/// The validity of a batch's columns: moved to the first bit of the values, and counted.
struct Validities {
    counts: Option<Buffer>,
    /// The validity of each column; `None` without NULLs.
    results: Vec<Option<Validity>>,
    rows: usize,
}

/// The validity of a column of the result.
struct Validity {
    bits: Buffer,
    first: usize,
    null_count: Option<usize>,
    /// Position among the counts, if NULLs are counted.
    counted: Option<usize>,
}

impl Validities {
    /// Enqueues the kernels that move and count.
    fn new(
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
    async fn count(&mut self, queue: &Queue) -> Result<()> {
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

    fn take(&mut self, column: usize) -> Option<Validity> {
        self.results.get_mut(column).and_then(Option::take)
    }
}

/// Builds one column of the result.
struct ColumnBuilder<'a> {
    op: &'a ArrowLayout,
    queue: &'a Queue,
    batch: &'a DeviceBatch,
    index: usize,
    column: &'a ArrowColumn,
    given: &'a DeviceColumn,
    layout_kernels: Option<&'a LoadedLayoutKernels<'a>>,
}

impl ColumnBuilder<'_> {
    /// The value buffers, and their first element.
    async fn values(&self, written: Option<WrittenValues>) -> Result<(Vec<Buffer>, usize)> {
        let (column, given) = (self.column, self.given);
        let (n, offset) = (given.len(), given.offset());
        if column.concatenates(given, self.op.heap_bytes) {
            return Ok((self.strings(self.concatenated().await?)?, 0));
        }
        match column.values {
            ValueSource::Views if column.merges_heaps(given) => {
                let values = Some(self.layout_kernels()?.merge_view_heaps(given)?);
                Ok((self.views(WrittenValues { values, heap: None })?, 0))
            }
            ValueSource::Pass | ValueSource::Views => Ok((given.buffers().to_vec(), offset)),
            ValueSource::OtherOffsets => {
                let [offsets, heap] = given.buffers() else { return Err(self.missing()) };
                let offsets = match column.target {
                    Layout::Offsets32 => self.layout_kernels()?.narrow_offsets(offsets, offset, n)?,
                    _ => self.layout_kernels()?.widen_offsets(offsets, offset, n)?,
                };
                Ok((vec![offsets, heap.clone()], 0))
            }
            ValueSource::Written => Ok((vec![written.and_then(|written| written.values).ok_or_else(|| self.missing())?], 0)),
            ValueSource::WrittenViews => Ok((self.views(written.ok_or_else(|| self.missing())?)?, 0)),
            ValueSource::Concatenated => Ok((self.strings(written.ok_or_else(|| self.missing())?)?, 0)),
        }
    }

    /// The concatenated strings of the column.
    async fn concatenated(&self) -> Result<WrittenValues> {
        let step = self.column.concatenated.as_ref().ok_or_else(|| self.missing())?;
        let mut written = step.run(self.queue, self.op, &self.op.concat_program, self.batch).await?;
        written.get_mut(self.index).and_then(Option::take).ok_or_else(|| self.missing())
    }

    /// Written views, over the heap of the column or of its dictionary.
    fn views(&self, written: WrittenValues) -> Result<Vec<Buffer>> {
        let values = written.values.ok_or_else(|| self.missing())?;
        let heap = heap(self.given).ok_or_else(|| self.missing())?;
        Ok(vec![values, heap.clone(), self.queue.zeroed(size_of::<u64>())?])
    }

    /// Concatenated strings in the target layout.
    fn strings(&self, written: WrittenValues) -> Result<Vec<Buffer>> {
        let (Some(offsets), Some(heap)) = (written.values, written.heap) else { return Err(self.missing()) };
        let n = self.given.len();
        Ok(match self.column.target {
            Layout::Views => {
                let views = self.layout_kernels()?.views(&offsets, &heap, n)?;
                vec![views, heap, self.queue.zeroed(size_of::<u64>())?]
            }
            Layout::Offsets32 => vec![self.layout_kernels()?.narrow_offsets(&offsets, 0, n)?, heap],
            _ => vec![offsets, heap],
        })
    }

    /// The column of value buffers, with the given first element.
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
            ArrowShape::Plain => make(validity, None),
            ArrowShape::Codes(layout) => {
                let dictionary = given.dictionary().ok_or_else(|| self.missing())?;
                if has_arrow_layout(dictionary) {
                    return make(validity, Some(Arc::clone(dictionary)));
                }
                let batch = DeviceBatch::try_new(Arc::clone(&layout.schema), vec![(**dictionary).clone()], dictionary.len())?;
                let dictionary = layout.run_boxed(queue, &batch).await?.columns().first().cloned();
                make(validity, Some(Arc::new(dictionary.ok_or_else(|| self.missing())?)))
            }
            ArrowShape::Numbered(codes) => {
                let DataType::Dictionary(_, value) = &ty.data_type else { return Err(self.missing()) };
                let target = self.column.target.clone();
                let nothing = target == Layout::Null;
                let value = ColumnType { data_type: value.as_ref().clone(), nullable: nothing, layout: target, bounds: None };
                let values = DeviceColumn::try_new(Arc::new(value), n, buffers.clone(), None, None, None)?.with_offset(offset)?;
                let codes = self.layout_kernels()?.row_numbers(*codes, n)?;
                // Values of type Null have no validity; their codes have.
                let (validity, null_count) = match nothing && ty.nullable {
                    true => (Some((queue.zeroed(n.div_ceil(8))?, 0)), Some(n)),
                    false => (validity, null_count),
                };
                Ok(DeviceColumn::try_new(Arc::clone(&ty), n, vec![codes], validity, null_count, Some(Arc::new(values)))?)
            }
        }
    }

    fn layout_kernels(&self) -> Result<&LoadedLayoutKernels<'_>> {
        self.layout_kernels.ok_or_else(|| Error::Internal(format!("column \"{}\" without its kernels", self.column.name)))
    }

    fn missing(&self) -> Error {
        let (name, ty) = (&self.column.name, self.given.ty());
        Error::Internal(format!("column \"{name}\" ({}) in layout {:?} lacks a buffer", ty.data_type, ty.layout))
    }
}

/// Kernels that write some of the columns.
#[derive(Debug, Clone)]
struct ColumnWrites {
    projection: Projection,
    /// For each column, whether its values are packed to bits.
    bits: Vec<bool>,
}

/// What kernels write for a column.
#[derive(Debug, Clone)]
struct ColumnWrite {
    kind: WrittenKind,
    output: Output,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum WrittenKind {
    /// The value.
    Value,
    /// The code in the dictionary of the column.
    Code,
    /// A view over the heap of the value.
    View,
}

/// The written buffers of a column.
struct WrittenValues {
    values: Option<Buffer>,
    heap: Option<Buffer>,
}

impl ColumnWrites {
    /// Appends the kernels, named after `prefix`.
    fn try_new(
        prefix: &str,
        types: &[ColumnType],
        writes: Vec<Option<ColumnWrite>>,
        options: &Options,
        kernels: &mut Vec<Kernel>,
    ) -> Result<ColumnWrites> {
        let mut types = types.to_vec();
        for (ty, write) in types.iter_mut().zip(&writes) {
            // Only strings read validity: other values of NULLs are arbitrary.
            ty.nullable &= write.as_ref().is_none_or(|write| write.kind == WrittenKind::View || write.output.is_str());
        }
        let outputs: Vec<_> = writes.iter().map(|write| write.as_ref().map(|write| write.output.clone())).collect();
        let bits = outputs.iter().map(|output| output.as_ref().is_some_and(|output| output.ty.layout == Layout::Bits)).collect();
        let rows = WrittenRows { types, profile: options.profile, writes };
        let projection = Projection::try_new(prefix, &rows, outputs, false, options, kernels)?;
        Ok(ColumnWrites { projection, bits })
    }

    fn is_empty(&self) -> bool {
        self.projection.outputs.iter().all(Option::is_none)
    }

    /// Writes the columns by kernels of `program`.
    async fn run(
        &self,
        queue: &Queue,
        op: &ArrowLayout,
        program: &Program,
        batch: &DeviceBatch,
    ) -> Result<Vec<Option<WrittenValues>>> {
        if self.is_empty() {
            return Ok(vec![]);
        }
        let n = batch.num_rows();
        let launch = Launch::load(queue, &op.options, program, &op.primitives).await?;
        let written = self.projection.run(&launch, ProjectedRows::all(batch.columns(), n)).await?;
        let values = written
            .into_iter()
            .zip(&self.bits)
            .map(|(buffers, bits)| buffers.map(|buffers| written_values(&launch.primitives, buffers, n, *bits)).transpose());
        values.collect()
    }
}

fn written_values(primitives: &LoadedPrimitives<'_>, buffers: OutputBuffers, n: usize, bits: bool) -> Result<WrittenValues> {
    let values = match buffers.values {
        Some(bytes) if bits => Some(primitives.pack(&bytes, n)?),
        values => values,
    };
    Ok(WrittenValues { values, heap: buffers.heap })
}

/// The rows that [`ColumnWrites`] reads.
struct WrittenRows {
    types: Vec<ColumnType>,
    profile: Profile,
    writes: Vec<Option<ColumnWrite>>,
}

impl Rows for WrittenRows {
    fn writer<'a>(&'a self, params: &'a mut Params) -> RowWriter<'a> {
        RowWriter::new(&self.types, self.profile, params)
    }

    fn value(&self, writer: &mut RowWriter<'_>, output: usize) -> Result<Value> {
        let Some(Some(ColumnWrite { kind, output: write })) = self.writes.get(output) else {
            return Err(Error::Internal(format!("column {output} is not written")));
        };
        let value = match kind {
            WrittenKind::Value => writer.eval(&Expr::Column(output))?,
            WrittenKind::Code => writer.code(output)?,
            WrittenKind::View => return writer.view(output),
        };
        writer.params().need_type(write.ctype);
        Ok(Value { code: value.to_ctype(write.ctype), ctype: write.ctype, ..value })
    }
}

fn natural_layout(data_type: &DataType) -> Result<Layout> {
    let ty = ColumnType::of(data_type, true).filter(|ty| !matches!(ty.layout, Layout::List(_)));
    ty.map(|ty| ty.layout).ok_or_else(|| Error::Unsupported(format!("type {data_type} has no layout as an Arrow device array")))
}

/// The heap of a column's strings, which is that of the dictionary for a dictionary column.
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
