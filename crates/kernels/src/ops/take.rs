// SPDX-License-Identifier: Apache-2.0
//! Rows of a batch by their numbers: what sorts, joins and windows end with.
//!
//! One kernel writes the columns of a row. Dictionary columns pass codes on, view columns their views over the same heap, and
//! lists their words over the same elements; other strings write lengths, which are scanned to offsets, and then bytes.

use arrow::datatypes::SchemaRef;
use columnar::{ColumnType, DeviceBatch, Layout};
use device::{Arg, Buffer, Queue};

use super::output::Output;
use super::primitives::Primitives;
use super::program::Program;
use super::project::{Projection, Rows};
use super::select::share;
use super::source::Source;
use super::{Input, Options};
use crate::codegen::{Params, RowWriter, Value};
use crate::expr::Expr;
use crate::{Error, Result};

/// Gathers rows of batches of one source.
#[derive(Debug, Clone)]
pub struct Take {
    source: Source,
    types: Vec<ColumnType>,
    columns: Vec<Column>,
    options: Options,
    primitives: Primitives,
    program: Program,
    projection: Projection,
}

/// A column of the result.
#[derive(Debug, Clone)]
struct Column {
    output: Output,
    expr: Expr,
    /// Whether dictionary, heap and bases of views, or elements of lists, are the batch's.
    shares: bool,
}

/// Whether views stay what they are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Views {
    Shared,
    Copied,
}

impl Take {
    /// For batches of `schema` in the layouts of `types`.
    ///
    /// # Errors
    /// `Unsupported` where a column's type is not supported on the device.
    ///
    /// # Examples
    /// ```
    /// use std::sync::Arc;
    /// use arrow::array::{Int64Array, RecordBatch};
    /// use columnar::{download, natural_types, upload};
    /// use kernels::codegen::Profile;
    /// use kernels::ops::{Options, Take};
    ///
    /// # futures::executor::block_on(async {
    /// let host = RecordBatch::try_from_iter([("x", Arc::new(Int64Array::from(vec![10, 20, 30])) as _)])?;
    /// let queue = device::Context::new(device::DeviceConfig::default())?.queue()?;
    /// let types = natural_types(&host.schema())?;
    /// let batch = upload(&queue, &host.schema(), &types, &[host.clone()])?;
    /// let indices = queue.alloc(2 * size_of::<u32>())?;
    /// queue.write(&indices, 0, &[2, 0, 0, 0, 2, 0, 0, 0])?;
    ///
    /// let take = Take::try_new(host.schema(), types, Options::new(Profile::Cpu))?;
    /// let taken = download(&queue, &take.run(&queue, &batch, &indices, 2).await?).await?;
    /// assert_eq!(taken.column(0).as_ref(), &Int64Array::from(vec![30, 30]));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # }).unwrap();
    /// ```
    pub fn try_new(schema: SchemaRef, types: Vec<ColumnType>, options: Options) -> Result<Take> {
        Self::with_views(schema, types, Views::Shared, options)
    }

    /// As [`try_new`](Self::try_new), with the bytes of views copied: few rows do not keep a large heap.
    ///
    /// # Errors
    /// As [`try_new`](Self::try_new).
    pub fn detached(schema: SchemaRef, types: Vec<ColumnType>, options: Options) -> Result<Take> {
        Self::with_views(schema, types, Views::Copied, options)
    }

    fn with_views(schema: SchemaRef, types: Vec<ColumnType>, views: Views, options: Options) -> Result<Take> {
        let count = types.len();
        let mut source = Source::try_new(Input { schema, types, filter: None })?;
        let mut columns = Vec::with_capacity(count);
        for index in 0..count {
            columns.push(Column::plan(&mut source, index, views, &options)?);
        }
        let mut take = Take {
            types: columns.iter().map(|column| (*column.output.ty).clone()).collect(),
            source,
            columns,
            primitives: Primitives::try_new(&options)?,
            program: Program::try_new("Take", &options, vec![])?,
            options,
            projection: Projection::default(),
        };
        let mut kernels = vec![];
        let outputs = take.columns.iter().map(|column| Some(column.output.clone())).collect();
        take.projection = Projection::try_new("take", &take, outputs, false, &take.options, &mut kernels)?;
        take.program = Program::try_new("Take", &take.options, kernels)?;
        Ok(take)
    }

    /// Types and layouts of the result, the same for every batch.
    pub fn output_types(&self) -> &[ColumnType] {
        &self.types
    }

    /// Names and texts of the kernels.
    pub fn kernel_text(&self) -> Vec<(String, String)> {
        self.program.kernel_text()
    }

    /// The programs as they are compiled.
    pub fn programs(&self) -> Vec<String> {
        vec![self.primitives.text().into(), self.program.text().into()]
    }

    /// The rows of `batch` whose numbers are the first `n` of `indices`, 32 bits each, repeats allowed. Waits only where there
    /// are strings to copy.
    ///
    /// # Errors
    /// `Internal` where there are less than `n` indices; the device's. A number beyond the batch is the caller's fault, and
    /// undefined.
    pub async fn run(&self, queue: &Queue, batch: &DeviceBatch, indices: &Buffer, n: usize) -> Result<DeviceBatch> {
        if indices.len() / size_of::<u32>() < n {
            return Err(Error::Internal(format!("{n} rows by {} bytes of indices", indices.len())));
        }
        let bound = self.source.bind(batch)?;
        let loaded = self.program.load(queue).await?;
        let primitives = self.primitives.load(queue).await?;
        let extra = [(INDICES, Arg::Buffer(indices))];
        let written =
            self.projection.run(queue, &self.options, &self.program, &loaded, &primitives, &bound, None, n, &extra).await?;
        let mut columns = Vec::with_capacity(self.columns.len());
        for ((column, buffers), origin) in self.columns.iter().zip(written).zip(batch.columns()) {
            let buffers = buffers.ok_or_else(|| Error::Internal("an output without buffers".into()))?;
            columns.push(match column.shares {
                true => share(queue, &primitives, &column.output.ty, n, buffers, origin)?,
                false => column.output.finish(queue, &primitives, n, buffers, None)?,
            });
        }
        Ok(DeviceBatch::try_new(batch.schema().clone(), columns, n)?)
    }
}

impl Column {
    fn plan(source: &mut Source, index: usize, views: Views, options: &Options) -> Result<Column> {
        let ty = source.types.get(index).cloned().ok_or_else(|| Error::Internal(format!("column {index} without a type")))?;
        let alias = match ty.layout {
            Layout::Dictionary { .. } => Some(source.codes(index)?),
            Layout::Views if views == Views::Shared => Some(source.views(index)?),
            _ => None,
        };
        let shares = alias.is_some() || matches!(ty.layout, Layout::List(_));
        let expr = alias.unwrap_or(Expr::Column(index));
        let mut params = Params::new();
        let value = source.writer(options.profile, &mut params).eval_output(&expr)?;
        let name = index.to_string();
        let output = match shares {
            true => Output::new(ty, value.ctype, &name),
            false => Output::of(&value, &ty.data_type, &name)?,
        };
        Ok(Column { output, expr, shares })
    }
}

impl Rows for Take {
    fn writer<'a>(&'a self, params: &'a mut Params) -> RowWriter<'a> {
        let indices = params.named(INDICES, "const G u32 *RESTRICT");
        self.source.writer(self.options.profile, params).with_names(&format!("{indices}[row]"), "x")
    }

    fn value(&self, writer: &mut RowWriter<'_>, output: usize) -> Result<Value> {
        let column = self.columns.get(output).ok_or_else(|| Error::Internal(format!("no column {output}")))?;
        writer.eval_output(&column.expr)
    }
}

/// The kernels' name for the numbers of the rows.
const INDICES: &str = "indices";
