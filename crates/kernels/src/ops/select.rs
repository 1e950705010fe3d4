// SPDX-License-Identifier: Apache-2.0
//! Filter and projection of a batch; rows keep their order.
//!
//! - Without a filter one kernel writes the results, and plain columns are passed on without a
//!   copy.
//! - With a filter, rows are compacted (see [`compact`](super::launch::compact)): only surviving
//!   rows load columns that the filter does not need.
//! - Strings write lengths, which a prefix sum makes offsets, and then bytes.
//! - Dictionary columns copy codes, view columns copy views over the same heap, lists copy
//!   offset/length pairs over the same elements.
//! - The elements of a literal list are uploaded with each batch.

use arrow::datatypes::{Field, SchemaRef};
use columnar::{ColumnType, DeviceBatch};
use device::Queue;

use super::launch::Launch;
use super::launch::columns::{OutputColumn, finish_columns};
use super::launch::compact::{Survivors, mask_body};
use super::launch::primitives::Primitives;
use super::launch::program::{Kernel, Program, describe_operator};
use super::launch::projection::{ProjectedRows, Projection, Rows};
use super::launch::source::Source;
use super::{Input, Options, row_width};
use crate::Result;
use crate::codegen::{Params, RowWriter, Value};
use crate::expr::Expr;

/// Filters and projects batches.
#[derive(Debug, Clone)]
pub struct Select {
    source: Source,
    schema: SchemaRef,
    types: Vec<ColumnType>,
    columns: Vec<OutputColumn>,
    options: Options,
    primitives: Primitives,
    program: Program,
    /// Whether there is a filter. Its kernel is number 0.
    filtered: bool,
    projection: Projection,
}

impl Select {
    /// Computes `outputs` of the rows that pass the input's filter.
    ///
    /// # Errors
    /// `Unsupported` if an expression is not supported on the device.
    pub fn try_new(input: Input, outputs: Vec<(Expr, Field)>, options: Options) -> Result<Select> {
        let mut source = Source::try_new(input)?;
        let filtered = source.filter.is_some();
        let (schema, columns) = OutputColumn::plan_all(&mut source, filtered, outputs, &options)?;
        let types = columns.iter().map(|column| column.ty(&source).clone()).collect();
        let mut select = Select {
            primitives: Primitives::new(&options),
            program: Program::new("Select", &options, vec![]),
            source,
            schema,
            types,
            columns,
            options,
            filtered,
            projection: Projection::default(),
        };
        select.generate()?;
        Ok(select)
    }

    describe_operator!();

    /// About the device bytes of the columns that [`run`](Self::run) writes for so many rows. All
    /// of them pass the filter, and strings count as short ones.
    pub fn output_bytes(&self, rows: usize) -> usize {
        let written = self.columns.iter().zip(&self.types).filter(|(column, _)| column.output().is_some());
        rows * row_width(written.map(|(_, ty)| ty))
    }

    /// Filters and projects a batch.
    ///
    /// # Errors
    /// `Row` with the lowest surviving row in which a checked operation failed.
    pub async fn run(&self, queue: &Queue, batch: &DeviceBatch) -> Result<DeviceBatch> {
        self.run_with_survivors(queue, batch).await.map(|(selected, _)| selected)
    }

    /// As [`run`](Self::run), with the mask of the surviving rows; `None` without a filter or
    /// without rows.
    pub(super) async fn run_with_survivors(
        &self,
        queue: &Queue,
        batch: &DeviceBatch,
    ) -> Result<(DeviceBatch, Option<Survivors>)> {
        let n = batch.num_rows();
        let bound = self.source.bind(batch)?;
        let launch = Launch::load(queue, &self.options, &self.program, &self.primitives).await?;
        let survivors = match self.filtered && n > 0 {
            false => None,
            true => Some(Survivors::find(&launch, 0, &bound, n, &[]).await?),
        };
        let rows = match &survivors {
            Some(survivors) => ProjectedRows::surviving(&bound, survivors),
            None => ProjectedRows::all(&bound, n),
        };
        let count = survivors.as_ref().map_or(n, |survivors| survivors.count);
        let written = self.projection.run(&launch, rows).await?;
        let columns = finish_columns(&launch, &self.columns, &self.types, written, count, &bound)?;
        Ok((DeviceBatch::try_new(self.schema.clone(), columns, count)?, survivors))
    }

    /// Generates the kernels.
    fn generate(&mut self) -> Result<()> {
        let mut kernels = Vec::new();
        if let Some(filter) = &self.source.filter {
            let mut params = Params::new();
            let mut writer = self.source.writer(self.options.profile, &mut params);
            let condition = writer.eval(filter)?.is_true();
            let statements = writer.statements();
            let body = mask_body(&mut params, &self.options, &statements, &condition);
            kernels.push(Kernel::new("select_mask", params, body));
        }
        let outputs = self.columns.iter().map(OutputColumn::output).collect();
        let projection = Projection::try_new("select", self, outputs, self.filtered, &self.options, &mut kernels)?;
        self.projection = projection;
        self.program = Program::new("Select", &self.options, kernels);
        Ok(())
    }
}

impl Rows for Select {
    fn writer<'a>(&'a self, params: &'a mut Params) -> RowWriter<'a> {
        self.source.writer(self.options.profile, params)
    }

    fn is_simple(&self, output: usize) -> bool {
        self.columns[output].is_simple()
    }

    fn value(&self, writer: &mut RowWriter<'_>, output: usize) -> Result<Value> {
        self.columns[output].value(writer)
    }
}
