// SPDX-License-Identifier: Apache-2.0
//! Filter and projection of a batch, rows in their order.
//!
//! Without a filter one kernel writes the results, and plain columns are passed on without a copy.
//! With one, see [`compact`](super::compact): only survivors load what the filter does not need.
//! Strings write lengths, which are scanned to offsets, and then bytes; dictionary columns pass codes
//! on, and view columns their views over the same heap.

use std::sync::Arc;

use arrow::datatypes::{Field, Schema, SchemaRef};
use columnar::{ColumnType, DeviceBatch, DeviceColumn, Layout};
use device::{Arg, Buffer, Queue};

use super::compact::{Survivors, mask_body, write_body};
use super::output::{Buffers, Output};
use super::primitives::{LoadedPrimitives, Primitives};
use super::program::{Kernel, Loaded, Program, check_row, for_rows, spread, word};
use super::source::Source;
use super::{Input, Options};
use crate::codegen::Params;
use crate::expr::Expr;
use crate::{Error, Result};

/// Filter and projection.
#[derive(Debug, Clone)]
pub struct Select {
    source: Source,
    schema: SchemaRef,
    types: Vec<ColumnType>,
    columns: Vec<Column>,
    options: Options,
    primitives: Primitives,
    program: Program,
    /// Whether kernel 0 is the filter's.
    filtered: bool,
    writes: Vec<Write>,
    copies: Vec<Copy>,
}

/// Where an output comes from.
#[derive(Debug, Clone)]
enum Column {
    /// A column of the source, as it is.
    Pass(usize),
    /// Computed, or gathered.
    Written {
        output: Output,
        expr: Expr,
        /// Source of the dictionary, or of heap and bases of views.
        shares: Option<usize>,
    },
}

/// A kernel that writes some of the outputs.
#[derive(Debug, Clone)]
struct Write {
    kernel: usize,
    outputs: Vec<usize>,
}

/// A kernel that copies the bytes of one output.
#[derive(Debug, Clone)]
struct Copy {
    kernel: usize,
    output: usize,
}

impl Select {
    /// Keeps the rows that pass the input's filter, and computes `outputs` of them.
    ///
    /// # Errors
    /// `Unsupported` where an expression has no device form.
    pub fn try_new(input: Input, outputs: Vec<(Expr, Field)>, options: Options) -> Result<Select> {
        let mut source = Source::try_new(input)?;
        let filtered = source.filter.is_some();
        let schema = Arc::new(Schema::new(outputs.iter().map(|(_, field)| field.clone()).collect::<Vec<_>>()));
        let mut columns = Vec::with_capacity(outputs.len());
        for (index, (expr, field)) in outputs.into_iter().enumerate() {
            columns.push(plan(&mut source, filtered, index, expr, &field, &options)?);
        }
        let types = columns.iter().map(|column| column.ty(&source).clone()).collect();
        let mut select = Select {
            primitives: Primitives::try_new(&options)?,
            program: Program::try_new("Select", &options, vec![])?,
            source,
            schema,
            types,
            columns,
            options,
            filtered,
            writes: vec![],
            copies: vec![],
        };
        select.generate()?;
        Ok(select)
    }

    /// Names and types of the result.
    pub fn schema(&self) -> &SchemaRef {
        &self.schema
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

    /// Filters and projects a batch.
    ///
    /// # Errors
    /// `Row` with the lowest failing row where a checked operation failed in a surviving one.
    pub async fn run(&self, queue: &Queue, batch: &DeviceBatch) -> Result<DeviceBatch> {
        let n = batch.num_rows();
        let bound = self.source.bind(batch)?;
        let loaded = self.program.load(queue).await?;
        let primitives = self.primitives.load(queue).await?;
        let survivors = match self.filtered && n > 0 {
            false => None,
            true => Some(
                Survivors::find(queue, &self.options, &primitives, n, |grid, named, control| {
                    loaded.launch_on(queue, 0, grid, &bound, Some(control), named)
                })
                .await?,
            ),
        };
        let rows = survivors.as_ref().map_or(n, |survivors| survivors.count);
        let mut buffers = self.columns.iter().map(|column| column.alloc(queue, rows)).collect::<Result<Vec<_>>>()?;
        if rows > 0 {
            self.write(queue, &loaded, &primitives, &bound, survivors.as_ref(), rows, &mut buffers).await?;
        }
        let mut columns = Vec::with_capacity(self.columns.len());
        for ((column, buffers), ty) in self.columns.iter().zip(buffers).zip(&self.types) {
            columns.push(match (column, buffers) {
                (Column::Written { output, shares, .. }, Some(mut buffers)) => {
                    if output.is_str() && buffers.heap.is_none() {
                        buffers.heap = Some(queue.alloc(0)?);
                    }
                    match shares {
                        None => output.finish(queue, &primitives, rows, buffers)?,
                        Some(shared) => share(queue, &primitives, ty, rows, buffers, &batch.columns()[*shared])?,
                    }
                }
                (Column::Pass(index), _) => batch.columns()[*index].clone(),
                (Column::Written { .. }, None) => return Err(Error::Internal("an output without buffers".into())),
            });
        }
        Ok(DeviceBatch::try_new(self.schema.clone(), columns, rows)?)
    }

    #[allow(clippy::too_many_arguments)]
    async fn write(
        &self,
        queue: &Queue,
        loaded: &Loaded<'_>,
        primitives: &LoadedPrimitives<'_>,
        bound: &DeviceBatch,
        survivors: Option<&Survivors>,
        rows: usize,
        buffers: &mut [Option<Buffers>],
    ) -> Result<()> {
        let grid = survivors.map_or_else(|| spread(queue, &self.options, rows), Survivors::grid);
        // The error word, and the bytes of each string output.
        let control = queue.filled(8 + self.copies.len() * 8, 0xff)?;
        let origins = if survivors.is_some() && !self.copies.is_empty() { Some(queue.alloc(rows * 4)?) } else { None };
        for write in &self.writes {
            let mut named = match survivors {
                Some(survivors) => survivors.args(),
                None => vec![("n", Arg::U64(rows as u64))],
            };
            named.extend(origins.as_ref().map(|origins| ("origins", Arg::Buffer(origins))));
            for index in &write.outputs {
                if let (Column::Written { output, .. }, Some(buffers)) = (&self.columns[*index], &buffers[*index]) {
                    named.extend(output.args(buffers));
                }
            }
            loaded.launch_on(queue, write.kernel, grid, bound, Some(&control), named)?;
        }
        for (at, copy) in self.copies.iter().enumerate() {
            let offsets = buffers[copy.output].as_ref().and_then(|buffers| buffers.values.as_ref());
            let offsets = offsets.ok_or_else(|| Error::Internal("strings without offsets".into()))?;
            primitives.offsets(queue, offsets, 0, rows, 0, &control, at as u32 + 1)?;
        }
        let fails = self.writes.iter().any(|write| self.program.can_fail(write.kernel));
        if !fails && self.copies.is_empty() {
            return Ok(());
        }
        let answer = queue.read(&control, 0..control.len()).await?;
        check_row(word(&answer, 0)?)?;
        for (at, copy) in self.copies.iter().enumerate() {
            let heap = queue.alloc(word(&answer, at + 1)? as usize)?;
            if let (Column::Written { output, .. }, Some(buffers)) = (&self.columns[copy.output], &mut buffers[copy.output]) {
                // What failed has failed above already; this word is never read.
                let errors = if self.program.can_fail(copy.kernel) { Some(queue.filled(8, 0xff)?) } else { None };
                let mut named = vec![("n", Arg::U64(rows as u64)), ("heap", Arg::Buffer(&heap))];
                named.extend(origins.as_ref().map(|origins| ("origins", Arg::Buffer(origins))));
                named.extend(output.args(buffers));
                loaded.launch_on(queue, copy.kernel, spread(queue, &self.options, rows), bound, errors.as_ref(), named)?;
                buffers.heap = Some(heap);
            }
        }
        Ok(())
    }

    /// Writes the kernels.
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
        let written: Vec<usize> = (0..self.columns.len())
            .filter(|index| matches!(&self.columns[*index], Column::Written { output, .. } if !output.is_null()))
            .collect();
        let mut pending = vec![written.as_slice()];
        while let Some(outputs) = pending.pop() {
            if outputs.is_empty() {
                continue;
            }
            let kernel = self.write_kernel(self.writes.len(), outputs)?;
            if !kernel.fits(&self.options) && outputs.len() > 1 {
                let (first, second) = outputs.split_at(outputs.len() / 2);
                pending.extend([second, first]);
                continue;
            }
            self.writes.push(Write { kernel: kernels.len(), outputs: outputs.to_vec() });
            kernels.push(kernel);
        }
        for (index, column) in self.columns.iter().enumerate() {
            if let Column::Written { output, expr, .. } = column
                && output.is_str()
            {
                self.copies.push(Copy { kernel: kernels.len(), output: index });
                kernels.push(self.copy_kernel(index, output, expr)?);
            }
        }
        self.program = Program::try_new("Select", &self.options, kernels)?;
        Ok(())
    }

    fn write_kernel(&self, number: usize, outputs: &[usize]) -> Result<Kernel> {
        let profile = self.options.profile;
        let mut params = Params::new();
        let mut writer = self.source.writer(profile, &mut params);
        let place = if self.filtered { "o" } else { "row" };
        let mut strings = false;
        for index in outputs {
            if let Column::Written { output, expr, .. } = &self.columns[*index] {
                let value = writer.eval(expr)?;
                output.write(&mut writer, &value, place);
                strings |= output.is_str();
            }
        }
        if strings && self.filtered {
            let origins = writer.params().named("origins", "G u32 *RESTRICT");
            writer.push(&format!("{origins}[o] = (u32)row;"));
        }
        let statements = writer.statements();
        let body = match self.filtered {
            true => write_body(&mut params, &self.options, &statements),
            false => {
                let n = params.named("n", "u64");
                for_rows(profile, "row", &n, &statements)
            }
        };
        Ok(Kernel::new(format!("select_write{number}"), params, body))
    }

    fn copy_kernel(&self, index: usize, output: &Output, expr: &Expr) -> Result<Kernel> {
        let profile = self.options.profile;
        let mut params = Params::new();
        let n = params.named("n", "u64");
        let origin = match self.filtered {
            true => format!("{}[o]", params.named("origins", "const G u32 *RESTRICT")),
            false => "o".into(),
        };
        let mut writer = self.source.writer(profile, &mut params);
        writer.push(&format!("u64 row = {origin};"));
        let value = writer.eval(expr)?;
        output.write_bytes(&mut writer, &value, "o")?;
        let statements = writer.statements();
        let body = for_rows(profile, "o", &n, &statements);
        Ok(Kernel::new(format!("select_bytes{index}"), params, body))
    }
}

impl Column {
    fn ty<'a>(&'a self, source: &'a Source) -> &'a ColumnType {
        match self {
            Column::Pass(index) => &source.types[*index],
            Column::Written { output, .. } => &output.ty,
        }
    }

    fn alloc(&self, queue: &Queue, rows: usize) -> Result<Option<Buffers>> {
        match self {
            Column::Pass(_) => Ok(None),
            Column::Written { output, .. } => output.alloc(queue, rows).map(Some),
        }
    }
}

/// Decides how an output is made.
fn plan(source: &mut Source, filtered: bool, index: usize, expr: Expr, field: &Field, options: &Options) -> Result<Column> {
    let name = index.to_string();
    if let Some((column, ty)) = source.plain(&expr)
        && ty.data_type == *field.data_type()
    {
        if !filtered {
            return Ok(Column::Pass(column));
        }
        // Codes and views go on as they are, under the source's own type.
        let ty = ty.clone();
        let alias = match ty.layout {
            Layout::Dictionary { .. } => Some(source.codes(column)?),
            Layout::Views => Some(source.views(column)?),
            _ => None,
        };
        if let Some(alias) = alias {
            let mut params = Params::new();
            let ctype = source.writer(options.profile, &mut params).eval(&alias)?.ctype;
            return Ok(Column::Written { output: Output::new(ty, ctype, &name), expr: alias, shares: Some(column) });
        }
    }
    let mut params = Params::new();
    let value = source.writer(options.profile, &mut params).eval(&expr)?;
    Ok(Column::Written { output: Output::of(&value, field.data_type(), &name)?, expr, shares: None })
}

/// A gathered column that shares the dictionary, or heap and bases, of its origin.
fn share(
    queue: &Queue,
    primitives: &LoadedPrimitives<'_>,
    ty: &ColumnType,
    rows: usize,
    buffers: Buffers,
    origin: &DeviceColumn,
) -> Result<DeviceColumn> {
    let shared: &[Buffer] = if ty.layout == Layout::Views { &origin.buffers()[1..] } else { &[] };
    let all = buffers.values.into_iter().chain(shared.iter().cloned()).collect();
    primitives.column(queue, &Arc::new(ty.clone()), rows, all, buffers.valid.as_ref(), origin.dictionary().cloned())
}

