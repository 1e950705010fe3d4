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

mod column;
mod plan;
mod validity;
mod write;

use std::sync::Arc;

use arrow::datatypes::SchemaRef;
use columnar::exchange::has_arrow_layout;
use columnar::{Carrier, ColumnType, DeviceBatch, DeviceColumn, Layout};
use device::{Buffer, ProgramSource, Queue};
use futures::future::{BoxFuture, FutureExt, OptionFuture, try_join};

use self::column::{ColumnBuilder, empty};
use self::validity::Validities;
use self::write::ColumnWrites;
use super::Options;
use super::launch::layout_kernels::LayoutKernels;
use super::launch::primitives::Primitives;
use super::launch::program::Program;
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
    /// Views: in Arrow's layout if they are over one heap.
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
    /// `Unsupported` for a column type without support on the device; `Internal` for a layout that
    /// cannot have the type.
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

    /// The programs, as they are compiled, for batches that need them.
    pub fn programs(&self) -> Vec<ProgramSource> {
        let fixed = [self.primitives.source(), self.layout_kernels.source()].into_iter();
        let dictionary_layouts = self.dictionary_layouts().flat_map(ArrowLayout::own_programs);
        fixed.chain(self.own_programs().chain(dictionary_layouts).map(Program::source)).collect()
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

/// The heap of a column's strings, which is that of the dictionary for a dictionary column.
fn heap(column: &DeviceColumn) -> Option<&Buffer> {
    match (&column.ty().layout, column.dictionary()) {
        (Layout::Offsets32 | Layout::Offsets64 | Layout::Views, _) => column.buffers().get(1),
        (Layout::Dictionary { .. }, Some(dictionary)) => heap(dictionary),
        _ => None,
    }
}
