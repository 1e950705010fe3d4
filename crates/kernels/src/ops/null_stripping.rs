// SPDX-License-Identifier: Apache-2.0
//! Null-stripping adapter for external functions, such as those of Futhark libraries.
//!
//! The function is strict: rows with a NULL argument are left out, and their results are NULL.
//!
//! - Arguments are dense: each in the natural layout of its type, from the beginning of a buffer.
//!   Plain columns in that layout are not copied.
//! - Results are scattered to their rows by the kernel of their width, a work-item for each row
//!   that is not left out.

use std::sync::Arc;

use arrow::datatypes::{Field, SchemaRef};
use columnar::{ColumnType, DeviceBatch, DeviceColumn, Layout};
use device::{Arg, Buffer, ProgramSource, Queue};

use super::launch::compact::{Survivors, write_body};
use super::launch::primitives::Primitives;
use super::launch::program::{Kernel, Program};
use super::{Input, Options, Select, UnifyLayouts};
use crate::codegen::Params;
use crate::expr::Expr;
use crate::prelude::Section;
use crate::{Error, Result};

/// Widths of values that have a kernel, in bytes.
const WIDTHS: [usize; 4] = [1, 2, 4, 8];

/// Prepares the arguments of a function over dense values, and puts its results back to their rows.
#[derive(Debug, Clone)]
pub struct NullStripping {
    /// Arguments of all rows.
    whole: DenseArguments,
    /// Arguments of the rows without a NULL, if arguments may be NULL.
    kept: Option<DenseArguments>,
    /// The columns with the NULLs of the arguments; `None` if an argument computes NULLs.
    nullable: Option<Vec<usize>>,
    scatter: Program,
    primitives: Primitives,
}

/// The arguments of some rows. An unfiltered column has another layout than a filtered one.
#[derive(Debug, Clone)]
struct DenseArguments {
    select: Select,
    /// Converts each argument to the natural layout of its type.
    unify: UnifyLayouts,
}

impl DenseArguments {
    fn try_new(input: Input, arguments: Vec<(Expr, Field)>, options: &Options) -> Result<DenseArguments> {
        let select = Select::try_new(input, arguments, options.clone())?;
        let from = select.output_types().to_vec();
        let dense = from.iter().map(|ty| {
            let layout = ColumnType::of(&ty.data_type, ty.nullable).map(|natural| natural.layout);
            match layout {
                Some(layout @ Layout::Fixed(_)) => Ok(ColumnType { layout, ..ty.clone() }),
                _ => Err(Error::Unsupported(format!("an argument of type {} has no fixed width", ty.data_type))),
            }
        });
        let (dense, schema) = (dense.collect::<Result<Vec<_>>>()?, Arc::clone(select.schema()));
        let unify = UnifyLayouts::try_new(Arc::clone(&schema), from, dense, schema, options.clone())?;
        Ok(DenseArguments { select, unify })
    }

    fn kernel_source(&self) -> impl Iterator<Item = (String, String)> {
        self.select.kernel_source().into_iter().chain(self.unify.kernel_source())
    }

    fn programs(&self) -> impl Iterator<Item = ProgramSource> {
        self.select.programs().into_iter().chain(self.unify.programs())
    }
}

/// The arguments of a function call.
pub struct Arguments {
    /// The values of each argument, from the beginning of the buffer.
    pub buffers: Vec<Buffer>,
    /// Number of values of each argument.
    pub count: usize,
    /// Rows of the batch.
    rows: usize,
    survivors: Option<Survivors>,
}

impl NullStripping {
    /// The adapter for a function of `arguments`, of fixed width, over batches of `schema` in the
    /// layouts of `types`.
    ///
    /// # Errors
    /// `Unsupported` if an argument is not supported on the device or has no fixed width.
    pub fn try_new(
        schema: SchemaRef,
        types: Vec<ColumnType>,
        arguments: Vec<(Expr, Field)>,
        options: Options,
    ) -> Result<NullStripping> {
        let input = |filter| Input { schema: Arc::clone(&schema), types: types.clone(), filter };
        let whole = DenseArguments::try_new(input(None), arguments.clone(), &options)?;
        let nullable: Vec<&Expr> =
            arguments.iter().zip(whole.select.output_types()).filter(|(_, ty)| ty.nullable).map(|((expr, _), _)| expr).collect();
        let mut valid: Vec<Expr> =
            nullable.iter().map(|expr| Expr::Not(Arc::new(Expr::IsNull(Arc::new((*expr).clone()))))).collect();
        let filter = if valid.len() > 1 { Some(Expr::And(valid)) } else { valid.pop() };
        let column = |expr: &&Expr| if let Expr::Column(index) = expr { Some(*index) } else { None };
        let nullable = nullable.iter().map(column).collect();
        let kept = filter.map(|filter| DenseArguments::try_new(input(Some(filter)), arguments, &options)).transpose()?;
        let scatter = WIDTHS.map(|width| {
            let mut params = Params::new();
            params.need(Section::Base);
            let bits = width * 8;
            let from = params.named("from", &format!("const G u{bits} *RESTRICT"));
            let to = params.named("to", &format!("G u{bits} *RESTRICT"));
            let body = write_body(&mut params, &options, &format!("      {to}[row] = {from}[o];\n"));
            Kernel::new(format!("scatter_u{bits}"), params, body)
        });
        let scatter = Program::new("NullStripping", &options, scatter.into());
        Ok(NullStripping { whole, kept, nullable, scatter, primitives: Primitives::new(&options) })
    }

    /// Whether results may be NULL.
    pub fn is_nullable(&self) -> bool {
        self.kept.is_some()
    }

    /// Names and sources of the kernels; none if all arguments are plain columns without NULLs.
    pub fn kernel_source(&self) -> Vec<(String, String)> {
        let scatter = self.kept.iter().flat_map(|_| self.scatter.kernel_source());
        self.kept.as_ref().unwrap_or(&self.whole).kernel_source().chain(scatter).collect()
    }

    /// The programs, as they are compiled.
    pub fn programs(&self) -> Vec<ProgramSource> {
        let arguments = [Some(&self.whole), self.kept.as_ref()];
        arguments.into_iter().flatten().flat_map(DenseArguments::programs).chain([self.scatter.source()]).collect()
    }

    /// The arguments for the rows of a batch.
    ///
    /// # Errors
    /// `Row` with the lowest row in which a checked operation failed; errors of the device.
    pub async fn arguments(&self, queue: &Queue, batch: &DeviceBatch) -> Result<Arguments> {
        let has_no_nulls = |index: &usize| batch.columns().get(*index).is_some_and(|column| column.null_count() == Some(0));
        let kept = self.kept.as_ref().filter(|_| !self.nullable.as_ref().is_some_and(|columns| columns.iter().all(has_no_nulls)));
        let DenseArguments { select, unify } = kept.unwrap_or(&self.whole);
        let (selected, survivors) = select.run_with_survivors(queue, batch).await?;
        let count = selected.num_rows();
        let mut buffers = Vec::with_capacity(selected.columns().len());
        if count > 0 {
            for column in unify.run(queue, &selected).await?.columns() {
                buffers.push(from_beginning(queue, column)?);
            }
        }
        Ok(Arguments { buffers, count, rows: batch.num_rows(), survivors })
    }

    /// The result column of type `ty`: `values` in the rows of `arguments`, NULL in the others.
    ///
    /// Booleans are bytes of 0 or 1. So is the mask beside the values: 0 denotes a result that is
    /// NULL.
    ///
    /// # Errors
    /// `Internal` for a type of another width than 1, 2, 4 or 8 bytes, or too few values; errors of
    /// the device.
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
            Some(values) => self.scatter(queue, arguments, values, width).await?,
            None => queue.zeroed(rows * width)?,
        };
        if let Some(mask) = mask.flatten() {
            let mask = self.scatter(queue, arguments, mask, 1).await?;
            let primitives = self.primitives.load(queue).await?;
            let values = if ty.layout == Layout::Bits { primitives.pack(&values, *rows)? } else { values };
            return primitives.column(&ty, *rows, vec![values], Some(&mask), None);
        }
        let values = match &ty.layout {
            Layout::Bits => self.primitives.load(queue).await?.pack(&values, *rows)?,
            _ => values,
        };
        let validity = match survivors {
            _ if !ty.nullable => None,
            Some(survivors) => Some((survivors.mask().clone(), 0)),
            None => Some((queue.filled(rows.div_ceil(32).max(1) * 4, 0xff)?, 0)),
        };
        Ok(DeviceColumn::try_new(ty, *rows, vec![values], validity, Some(rows - count), None)?)
    }

    /// The values at their rows; 0 at rows that were left out.
    async fn scatter(&self, queue: &Queue, arguments: &Arguments, values: Buffer, width: usize) -> Result<Buffer> {
        let Some(survivors) = arguments.survivors.as_ref().filter(|_| arguments.count < arguments.rows) else {
            return Ok(values);
        };
        let scatter = queue.zeroed(arguments.rows * width)?;
        let loaded = self.scatter.load(queue).await?;
        let mut named = survivors.args();
        named.extend([("from", Arg::Buffer(&values)), ("to", Arg::Buffer(&scatter))]);
        loaded.launch(queue, width.trailing_zeros() as usize, survivors.grid(), named)?;
        Ok(scatter)
    }
}

/// The values of a column, copied unless they begin at the beginning of a buffer.
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
