// SPDX-License-Identifier: Apache-2.0
//! Values of rows for a function that is no kernel of ours, and its results back at their rows.
//!
//! The function is strict: rows with a NULL argument are left out, and their results are NULL. What it is given is dense:
//! each argument in the layout of its type, from the beginning of a buffer. Plain columns that lie so are handed on without a
//! copy. The results of fewer rows are spread by the kernel of their width, a thread for each row that is not left out.

use std::sync::Arc;

use arrow::datatypes::{Field, SchemaRef};
use columnar::{ColumnType, DeviceBatch, DeviceColumn, Layout};
use device::{Arg, Buffer, Queue};

use super::compact::{Survivors, write_body};
use super::primitives::Primitives;
use super::program::{Kernel, Program};
use super::{Conform, Input, Options, Select};
use crate::codegen::Params;
use crate::expr::Expr;
use crate::prelude::Section;
use crate::{Error, Result};

/// Bytes of the values that there is a kernel for.
const WIDTHS: [usize; 4] = [1, 2, 4, 8];

/// The way to a function over dense values and back.
#[derive(Debug, Clone)]
pub struct Strict {
    /// The arguments of all rows.
    whole: Select,
    /// Those of the rows without a NULL, where there can be one.
    kept: Option<Select>,
    /// The columns that have NULLs where arguments do; `None` where an argument computes its own.
    nullable: Option<Vec<usize>>,
    /// Each to the layout of its type.
    conform: Conform,
    spread: Program,
    primitives: Primitives,
}

/// What a function is given.
pub struct Arguments {
    /// The values of each argument, from the buffer's beginning.
    pub buffers: Vec<Buffer>,
    /// How many values each has.
    pub count: usize,
    /// Rows of the batch.
    rows: usize,
    survivors: Option<Survivors>,
}

impl Strict {
    /// The way to a function of `arguments`, of fixed width, over batches of `schema` in the layouts of `types`.
    ///
    /// # Errors
    /// `Unsupported` where an argument is not supported on the device or no fixed width.
    pub fn try_new(schema: SchemaRef, types: Vec<ColumnType>, arguments: Vec<(Expr, Field)>, options: Options) -> Result<Strict> {
        let input = |filter| Input { schema: Arc::clone(&schema), types: types.clone(), filter };
        let whole = Select::try_new(input(None), arguments.clone(), options.clone())?;
        let nullable: Vec<&Expr> =
            arguments.iter().zip(whole.output_types()).filter(|(_, ty)| ty.nullable).map(|((expr, _), _)| expr).collect();
        let mut valid: Vec<Expr> =
            nullable.iter().map(|expr| Expr::Not(Box::new(Expr::IsNull(Box::new((*expr).clone()))))).collect();
        let filter = if valid.len() > 1 { Some(Expr::And(valid)) } else { valid.pop() };
        let column = |expr: &&Expr| if let Expr::Column(index) = expr { Some(*index) } else { None };
        let nullable = nullable.iter().map(column).collect();
        let kept = filter.map(|filter| Select::try_new(input(Some(filter)), arguments, options.clone())).transpose()?;
        let dense = whole.output_types().iter().map(|ty| {
            let layout = ColumnType::of(&ty.data_type, ty.nullable).map(|natural| natural.layout);
            match layout {
                Some(layout @ Layout::Fixed(_)) => Ok(ColumnType { layout, ..ty.clone() }),
                _ => Err(Error::Unsupported(format!("an argument of type {} has no fixed width", ty.data_type))),
            }
        });
        let (from, dense) = (whole.output_types().to_vec(), dense.collect::<Result<Vec<_>>>()?);
        let schema = Arc::clone(whole.schema());
        let conform = Conform::try_new(Arc::clone(&schema), from, dense, schema, options.clone())?;
        let spread = WIDTHS.map(|width| {
            let mut params = Params::new();
            params.need(Section::Base);
            let bits = width * 8;
            let from = params.named("from", &format!("const G u{bits} *RESTRICT"));
            let to = params.named("to", &format!("G u{bits} *RESTRICT"));
            let body = write_body(&mut params, &options, &format!("      {to}[row] = {from}[o];\n"));
            Kernel::new(format!("spread_u{bits}"), params, body)
        });
        let spread = Program::try_new("Strict", &options, spread.into())?;
        Ok(Strict { whole, kept, nullable, conform, spread, primitives: Primitives::try_new(&options)? })
    }

    /// Whether results may be NULL.
    pub fn is_nullable(&self) -> bool {
        self.kept.is_some()
    }

    /// Names and texts of the kernels: none where plain columns are handed on.
    pub fn kernel_text(&self) -> Vec<(String, String)> {
        let spread = self.kept.iter().flat_map(|_| self.spread.kernel_text());
        let kept = self.kept.as_ref().unwrap_or(&self.whole);
        kept.kernel_text().into_iter().chain(self.conform.kernel_text()).chain(spread).collect()
    }

    /// The programs as they are compiled.
    pub fn programs(&self) -> Vec<String> {
        let selects = [Some(&self.whole), self.kept.as_ref()];
        let selects = selects.into_iter().flatten().flat_map(Select::programs);
        selects.chain(self.conform.programs()).chain([self.spread.text().into()]).collect()
    }

    /// The arguments of a batch's rows.
    ///
    /// # Errors
    /// `Row` with the lowest failing row where a checked operation failed; the device's.
    pub async fn arguments(&self, queue: &Queue, batch: &DeviceBatch) -> Result<Arguments> {
        let has_no_nulls = |index: &usize| batch.columns().get(*index).is_some_and(|column| column.null_count() == Some(0));
        let kept = self.kept.as_ref().filter(|_| !self.nullable.as_ref().is_some_and(|columns| columns.iter().all(has_no_nulls)));
        let (selected, survivors) = kept.unwrap_or(&self.whole).run_and_keep(queue, batch).await?;
        let count = selected.num_rows();
        let mut buffers = Vec::with_capacity(selected.columns().len());
        if count > 0 {
            for column in self.conform.run(queue, &selected).await?.columns() {
                buffers.push(from_beginning(queue, column)?);
            }
        }
        Ok(Arguments { buffers, count, rows: batch.num_rows(), survivors })
    }

    /// The column of the type `ty` whose values are `values` in the rows that `arguments` are of, and NULL in the others.
    /// Values of booleans are bytes, 0 or 1, and so is `mask`, which is 0 where a value of `values` is NULL too.
    ///
    /// # Errors
    /// `Internal` for a type of another width than 1, 2, 4 or 8 bytes, or too few values; the device's.
    pub async fn column(
        &self,
        queue: &Queue,
        arguments: &Arguments,
        values: Option<(Buffer, Option<Buffer>)>,
        ty: Arc<ColumnType>,
    ) -> Result<DeviceColumn> {
        let (values, mask) = values.unzip();
        let width = width(&ty)?;
        let Arguments { count, rows, survivors, .. } = arguments;
        if values.as_ref().map_or(0, Buffer::len) < count * width {
            return Err(Error::Internal(format!("{count} values of {width} bytes are missing")));
        }
        let values = match values {
            Some(values) => self.spread(queue, arguments, values, width).await?,
            None => queue.zeroed(rows * width)?,
        };
        if let Some(mask) = mask.flatten() {
            let mask = self.spread(queue, arguments, mask, 1).await?;
            let primitives = self.primitives.load(queue).await?;
            let values = if ty.layout == Layout::Bits { primitives.pack(queue, &values, *rows)? } else { values };
            return primitives.column(queue, &ty, *rows, vec![values], Some(&mask), None);
        }
        let values = match &ty.layout {
            Layout::Bits => self.primitives.load(queue).await?.pack(queue, &values, *rows)?,
            _ => values,
        };
        let validity = match survivors {
            _ if !ty.nullable => None,
            Some(survivors) => Some((survivors.mask().clone(), 0)),
            None => Some((queue.filled(rows.div_ceil(32).max(1) * 4, 0xff)?, 0)),
        };
        Ok(DeviceColumn::try_new(ty, *rows, vec![values], validity, Some(rows - count), None)?)
    }

    /// Values of the rows that were not left out, at their rows; 0 at the others.
    async fn spread(&self, queue: &Queue, arguments: &Arguments, values: Buffer, width: usize) -> Result<Buffer> {
        let Some(survivors) = arguments.survivors.as_ref().filter(|_| arguments.count < arguments.rows) else {
            return Ok(values);
        };
        let spread = queue.zeroed(arguments.rows * width)?;
        let loaded = self.spread.load(queue).await?;
        let mut named = survivors.args();
        named.extend([("from", Arg::Buffer(&values)), ("to", Arg::Buffer(&spread))]);
        loaded.launch(queue, width.trailing_zeros() as usize, survivors.grid(), named)?;
        Ok(spread)
    }
}

/// The values of a column from the beginning of a buffer.
fn from_beginning(queue: &Queue, column: &DeviceColumn) -> Result<Buffer> {
    let Some(values) = column.buffers().first() else { return Err(Error::Internal("an argument without values".into())) };
    if column.offset() == 0 {
        return Ok(values.clone());
    }
    let width = width(column.ty())?;
    let copy = queue.alloc(column.len() * width)?;
    queue.copy(values, column.offset() * width, &copy, 0, column.len() * width)?;
    Ok(copy)
}

fn width(ty: &ColumnType) -> Result<usize> {
    match &ty.layout {
        Layout::Bits => Ok(1),
        Layout::Fixed(carrier) if WIDTHS.contains(&carrier.width()) => Ok(carrier.width()),
        layout => Err(Error::Internal(format!("values of {} in {layout:?}", ty.data_type))),
    }
}
