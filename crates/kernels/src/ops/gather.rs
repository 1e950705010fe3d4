// SPDX-License-Identifier: Apache-2.0
//! Rows of a batch by an index buffer, as Arrow's `take`: the last step of sorts and windows.
//!
//! One kernel writes all columns of a row. Dictionary columns copy codes, view columns copy views
//! over the same heap, and lists copy offset/length pairs over the same elements. Other strings
//! write lengths, which a prefix sum makes offsets, and then bytes.

use arrow::datatypes::SchemaRef;
use columnar::{ColumnType, DeviceBatch, Layout};
use device::{Arg, Buffer, ProgramSource, Queue};

use super::launch::Launch;
use super::launch::columns::share;
use super::launch::output::Output;
use super::launch::primitives::Primitives;
use super::launch::program::Program;
use super::launch::projection::{self, LazyProgram, ProjectedRows, Projection, Rows};
use super::launch::source::Source;
use super::{Input, Options};
use crate::codegen::{Params, RowWriter, Value};
use crate::expr::Expr;
use crate::{Error, Result};

/// Gathers rows of batches of one source.
#[derive(Debug, Clone)]
pub struct Gather {
    source: Source,
    types: Vec<ColumnType>,
    columns: Vec<GatheredColumn>,
    options: Options,
    primitives: Primitives,
    program: LazyProgram,
}

/// A column of the result.
#[derive(Debug, Clone)]
struct GatheredColumn {
    output: Output,
    expr: Expr,
    /// Whether the column shares its dictionary, view heap or list elements with the batch.
    shares: bool,
}

/// Whether views share the heap of the batch, or their bytes are copied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ViewBytes {
    Shared,
    Copied,
}

impl Gather {
    /// For batches of `schema` in the layouts of `types`.
    ///
    /// # Errors
    /// `Unsupported` if a column's type is not supported on the device.
    ///
    /// # Examples
    /// ```
    /// use std::sync::Arc;
    /// use arrow::array::{Int64Array, RecordBatch};
    /// use columnar::{download, natural_types, upload};
    /// use kernels::codegen::Profile;
    /// use kernels::ops::{Options, Gather};
    ///
    /// # futures::executor::block_on(async {
    /// let host = RecordBatch::try_from_iter([("x", Arc::new(Int64Array::from(vec![10, 20, 30])) as _)])?;
    /// let queue = device::Context::new(device::DeviceConfig::default())?.queue()?;
    /// let types = natural_types(&host.schema())?;
    /// let batch = upload(&queue, &host.schema(), &types, &[host.clone()])?;
    /// let indices = queue.alloc(2 * size_of::<u32>())?;
    /// queue.write(&indices, 0, &[2, 0, 0, 0, 2, 0, 0, 0])?;
    ///
    /// let gather = Gather::try_new(host.schema(), types, Options::new(Profile::Cpu))?;
    /// let rows = download(&queue, &gather.run(&queue, &batch, &indices, 2).await?).await?;
    /// assert_eq!(rows.column(0).as_ref(), &Int64Array::from(vec![30, 30]));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # }).unwrap();
    /// ```
    pub fn try_new(schema: SchemaRef, types: Vec<ColumnType>, options: Options) -> Result<Gather> {
        Self::with_views(schema, types, ViewBytes::Shared, options)
    }

    /// As [`try_new`](Self::try_new), with the bytes of views copied, so that a few rows do not
    /// keep a large heap in memory.
    ///
    /// # Errors
    /// As [`try_new`](Self::try_new).
    pub fn with_copied_views(schema: SchemaRef, types: Vec<ColumnType>, options: Options) -> Result<Gather> {
        Self::with_views(schema, types, ViewBytes::Copied, options)
    }

    fn with_views(schema: SchemaRef, types: Vec<ColumnType>, views: ViewBytes, options: Options) -> Result<Gather> {
        let count = types.len();
        let mut source = Source::try_new(Input { schema, types, filter: None })?;
        let mut columns = Vec::with_capacity(count);
        for index in 0..count {
            columns.push(GatheredColumn::plan(&mut source, index, views, &options)?);
        }
        Ok(Gather {
            types: columns.iter().map(|column| (*column.output.ty).clone()).collect(),
            source,
            columns,
            primitives: Primitives::new(&options),
            program: LazyProgram::default(),
            options,
        })
    }

    fn generated(&self) -> Result<&(Program, Projection)> {
        self.program.get(|| {
            let mut kernels = vec![];
            let outputs = self.columns.iter().map(|column| Some(column.output.clone())).collect();
            let projection = Projection::try_new("gather", self, outputs, false, &self.options, &mut kernels)?;
            Ok((Program::new("Gather", &self.options, kernels), projection))
        })
    }

    /// Types and layouts of the result, the same for every batch.
    pub fn output_types(&self) -> &[ColumnType] {
        &self.types
    }

    /// Names and sources of the kernels.
    pub fn kernel_source(&self) -> Vec<(String, String)> {
        projection::kernel_source(self.generated())
    }

    /// The programs, as they are compiled.
    pub fn programs(&self) -> Vec<ProgramSource> {
        projection::programs(&self.primitives, self.generated())
    }

    /// The rows of `batch` at the first `n` of `indices`, u32 each; repeats are allowed. Waits only
    /// if strings are copied.
    ///
    /// # Errors
    /// `Internal` for fewer than `n` indices; errors of the device. Each index must be below the
    /// number of rows: kernels do not check it.
    pub async fn run(&self, queue: &Queue, batch: &DeviceBatch, indices: &Buffer, n: usize) -> Result<DeviceBatch> {
        if indices.len() / size_of::<u32>() < n {
            return Err(Error::Internal(format!("{n} rows by {} bytes of indices", indices.len())));
        }
        let bound = self.source.bind(batch)?;
        let (program, projection) = self.generated()?;
        let launch = Launch::load(queue, &self.options, program, &self.primitives).await?;
        let args = [(INDICES, Arg::Buffer(indices))];
        let written = projection.run(&launch, ProjectedRows::all(&bound, n).with_args(&args)).await?;
        let mut columns = Vec::with_capacity(self.columns.len());
        for ((column, buffers), owner) in self.columns.iter().zip(written).zip(batch.columns()) {
            let buffers = buffers.ok_or_else(|| Error::Internal("an output without buffers".into()))?;
            columns.push(match column.shares {
                true => share(&launch.primitives, &column.output.ty, n, buffers, owner)?,
                false => column.output.finish(&launch.primitives, n, buffers, None)?,
            });
        }
        Ok(DeviceBatch::try_new(batch.schema().clone(), columns, n)?)
    }
}

impl GatheredColumn {
    fn plan(source: &mut Source, index: usize, views: ViewBytes, options: &Options) -> Result<GatheredColumn> {
        let ty = source.types.get(index).cloned().ok_or_else(|| Error::Internal(format!("column {index} without a type")))?;
        let alias = match ty.layout {
            Layout::Dictionary { .. } => Some(source.codes(index)?),
            Layout::Views if views == ViewBytes::Shared => Some(source.views(index)?),
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
        Ok(GatheredColumn { output, expr, shares })
    }
}

impl Rows for Gather {
    fn writer<'a>(&'a self, params: &'a mut Params) -> RowWriter<'a> {
        let indices = params.named(INDICES, "const G u32 *RESTRICT");
        self.source.writer(self.options.profile, params).with_names(&format!("{indices}[row]"), "x")
    }

    fn is_simple(&self, _output: usize) -> bool {
        true
    }

    fn value(&self, writer: &mut RowWriter<'_>, output: usize) -> Result<Value> {
        let column = self.columns.get(output).ok_or_else(|| Error::Internal(format!("no column {output}")))?;
        writer.eval_output(&column.expr)
    }
}

/// Parameter of the row indices.
const INDICES: &str = "indices";
