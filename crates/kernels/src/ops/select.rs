// SPDX-License-Identifier: Apache-2.0
//! Filter and projection of a batch, rows in their order.
//!
//! Without a filter one kernel writes the results, and plain columns are passed on without a copy.
//! With one, see [`compact`](super::compact): only survivors load what the filter does not need.
//! Strings write lengths, which are scanned to offsets, and then bytes; dictionary columns pass codes
//! on, view columns their views over the same heap, and lists their words over the same elements; those of a literal list go up
//! with each batch.

use std::sync::Arc;

use arrow::array::{ArrayRef, RecordBatch, new_empty_array};
use arrow::datatypes::{Field, Schema, SchemaRef};
use columnar::{ColumnType, DeviceBatch, DeviceColumn, Layout};
use device::{Buffer, Queue};

use super::compact::{Survivors, mask_body};
use super::output::{Buffers, Output};
use super::primitives::{LoadedPrimitives, Primitives};
use super::program::{Kernel, Program, described_by_its_fields};
use super::project::{Projection, Rows};
use super::source::Source;
use super::{Input, Options};
use crate::codegen::{CType, Params, RowWriter, Value};
use crate::expr::{Expr, LiteralValue};
use crate::function::Function;
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
    projection: Projection,
}

/// Where an output comes from.
#[derive(Debug, Clone)]
pub(super) enum Column {
    /// A column of the source, as it is.
    Pass(usize),
    /// Computed, or gathered.
    Written {
        output: Output,
        expr: Expr,
        /// Where the dictionary, heap and bases of views, or the elements of lists are.
        shares: Option<Origin>,
    },
}

/// What has the values that rows of a column point at.
#[derive(Debug, Clone)]
pub(super) enum Origin {
    /// A column of the source.
    Column(usize),
    /// A literal list, of these elements.
    Literal(ArrayRef),
}

impl Select {
    /// Keeps the rows that pass the input's filter, and computes `outputs` of them.
    ///
    /// # Errors
    /// `Unsupported` where an expression is not supported on the device.
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
            projection: Projection::default(),
        };
        select.generate()?;
        Ok(select)
    }

    described_by_its_fields!();

    /// Filters and projects a batch.
    ///
    /// # Errors
    /// `Row` with the lowest failing row where a checked operation failed in a surviving one.
    pub async fn run(&self, queue: &Queue, batch: &DeviceBatch) -> Result<DeviceBatch> {
        self.run_and_keep(queue, batch).await.map(|(selected, _)| selected)
    }

    /// As [`run`](Self::run), with the rows that have passed the filter, if there is one and there are rows.
    pub(super) async fn run_and_keep(&self, queue: &Queue, batch: &DeviceBatch) -> Result<(DeviceBatch, Option<Survivors>)> {
        let n = batch.num_rows();
        let bound = self.source.bind(batch)?;
        let loaded = self.program.load(queue).await?;
        let primitives = self.primitives.load(queue).await?;
        let survivors = match self.filtered && n > 0 {
            false => None,
            true => Some(
                Survivors::find(queue, &self.options, &primitives, n, &[], |grid, named, control| {
                    loaded.launch_on(queue, 0, grid, &bound, Some(control), named)
                })
                .await?,
            ),
        };
        let rows = survivors.as_ref().map_or(n, |survivors| survivors.count);
        let written = self
            .projection
            .run(queue, &self.options, &self.program, &loaded, &primitives, &bound, survivors.as_ref(), rows, &[])
            .await?;
        let mut columns = Vec::with_capacity(self.columns.len());
        for ((column, buffers), ty) in self.columns.iter().zip(written).zip(&self.types) {
            columns.push(match (column, buffers) {
                (Column::Written { output, shares: None, .. }, Some(buffers)) => {
                    output.finish(queue, &primitives, rows, buffers, None)?
                }
                (Column::Written { shares: Some(shared), .. }, Some(buffers)) => {
                    share(queue, &primitives, ty, rows, buffers, &shared.column(queue, ty, batch.columns())?)?
                }
                (Column::Pass(index), _) => batch.columns()[*index].clone(),
                (Column::Written { .. }, None) => return Err(Error::Internal("an output without buffers".into())),
            });
        }
        Ok((DeviceBatch::try_new(self.schema.clone(), columns, rows)?, survivors))
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
        let outputs = self.columns.iter().map(|column| match column {
            Column::Pass(_) => None,
            Column::Written { output, .. } => Some(output.clone()),
        });
        let projection = Projection::try_new("select", self, outputs.collect(), self.filtered, &self.options, &mut kernels)?;
        self.projection = projection;
        self.program = Program::try_new("Select", &self.options, kernels)?;
        Ok(())
    }
}

impl Rows for Select {
    fn writer<'a>(&'a self, params: &'a mut Params) -> RowWriter<'a> {
        self.source.writer(self.options.profile, params)
    }

    fn value(&self, writer: &mut RowWriter<'_>, output: usize) -> Result<Value> {
        match &self.columns[output] {
            Column::Written { expr, .. } => writer.eval_output(expr),
            Column::Pass(_) => Err(Error::Internal("a column that is passed on is not written".into())),
        }
    }
}

impl Column {
    pub(super) fn ty<'a>(&'a self, source: &'a Source) -> &'a ColumnType {
        match self {
            Column::Pass(index) => &source.types[*index],
            Column::Written { output, .. } => &output.ty,
        }
    }
}

impl Origin {
    /// The column, or one of the elements of a literal list in a column of type `ty`.
    pub fn column(&self, queue: &Queue, ty: &ColumnType, columns: &[DeviceColumn]) -> Result<DeviceColumn> {
        let (elements, ty) = match (self, &ty.layout) {
            (Origin::Column(column), _) => return Ok(columns[*column].clone()),
            (Origin::Literal(elements), Layout::List(ty)) => (elements, ty),
            (Origin::Literal(_), _) => return Err(Error::Internal(format!("a literal list in a column of {}", ty.data_type))),
        };
        let schema = Arc::new(Schema::new(vec![Field::new("elements", ty.data_type.clone(), ty.nullable)]));
        let batch = RecordBatch::try_new(Arc::clone(&schema), vec![Arc::clone(elements)]).map_err(columnar::Error::from)?;
        let batch = columnar::upload(queue, &schema, std::slice::from_ref(ty), &[batch])?;
        batch.columns().first().cloned().ok_or_else(|| Error::Internal("a batch without its column".into()))
    }
}

/// Decides how an output is made.
pub(super) fn plan(
    source: &mut Source,
    filtered: bool,
    index: usize,
    expr: Expr,
    field: &Field,
    options: &Options,
) -> Result<Column> {
    let name = index.to_string();
    if let Some((column, ty)) = source.plain(&expr)
        && ty.data_type == *field.data_type()
    {
        if !filtered {
            return Ok(Column::Pass(column));
        }
        // Codes and views go on as they are, under the source's own type.
        let ty = ColumnType { nullable: ty.nullable || source.may_be_absent(column), ..ty.clone() };
        let alias = match ty.layout {
            Layout::Dictionary { .. } => Some(source.codes(column)?),
            Layout::Views => Some(source.views(column)?),
            _ => None,
        };
        if let Some(alias) = alias {
            let mut params = Params::new();
            let ctype = source.writer(options.profile, &mut params).eval(&alias)?.ctype;
            return Ok(Column::Written {
                output: Output::new(ty, ctype, &name),
                expr: alias,
                shares: Some(Origin::Column(column)),
            });
        }
    }
    let mut params = Params::new();
    let value = source.writer(options.profile, &mut params).eval_output(&expr)?;
    if let Some((origin, layout)) = lists(source, &expr).filter(|_| value.ctype == CType::List) {
        let ty = ColumnType { data_type: field.data_type().clone(), nullable: value.valid.is_some(), layout, bounds: None };
        return Ok(Column::Written { output: Output::new(ty, CType::List, &name), expr, shares: Some(origin) });
    }
    let mut output = Output::of(&value, field.data_type(), &name)?;
    if matches!(expr, Expr::Call { function: Function::ListKey { .. }, .. }) {
        // Keys know their lengths in 32 bits.
        output = output.with_limit(field.name(), u32::MAX as usize);
    }
    Ok(Column::Written { output, expr, shares: None })
}

/// What has the elements of lists, or is these elements, and the layout of the lists.
fn lists(source: &Source, expr: &Expr) -> Option<(Origin, Layout)> {
    let layout = |column: &usize| source.types.get(*column).map(|ty| ty.layout.clone());
    match expr {
        Expr::Column(column) => Some((Origin::Column(*column), layout(column)?)),
        Expr::Call { function: Function::ListOfRows, arguments, .. } => match arguments.as_slice() {
            [Expr::Column(column), ..] => {
                Some((Origin::Column(*column), Layout::List(Box::new(source.types.get(*column)?.clone()))))
            }
            _ => None,
        },
        Expr::Literal(literal) => {
            let layout = ColumnType::of(&literal.data_type, true)?.layout;
            let Layout::List(elements) = &layout else { return None };
            let own = match &literal.value {
                LiteralValue::List(own) => Arc::clone(own),
                _ => new_empty_array(&elements.data_type),
            };
            Some((Origin::Literal(own), layout))
        }
        _ => None,
    }
}

/// A gathered column that shares the dictionary, heap and bases, or the elements, of its origin, or has the origin's rows as elements.
pub(super) fn share(
    queue: &Queue,
    primitives: &LoadedPrimitives<'_>,
    ty: &ColumnType,
    rows: usize,
    buffers: Buffers,
    origin: &DeviceColumn,
) -> Result<DeviceColumn> {
    let shared: &[Buffer] = if ty.layout == Layout::Views { &origin.buffers()[1..] } else { &[] };
    let all = buffers.values.into_iter().chain(shared.iter().cloned()).collect();
    let values = match &ty.layout {
        Layout::List(elements) if **elements == **origin.ty() => Some(Arc::new(origin.clone())),
        Layout::List(_) => origin.elements().cloned(),
        _ => origin.dictionary().cloned(),
    };
    primitives.column(queue, &Arc::new(ty.clone()), rows, all, buffers.valid.as_ref(), values)
}
