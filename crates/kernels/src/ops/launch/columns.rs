// SPDX-License-Identifier: Apache-2.0
//! Columns of a result: passed on, computed, or gathered over values that they share with a column
//! of the source.

use std::sync::Arc;

use arrow::array::{ArrayRef, RecordBatch, new_empty_array};
use arrow::datatypes::{Field, Schema, SchemaRef};
use columnar::{ColumnType, DeviceColumn, Layout};
use device::{Buffer, Queue};

use super::Launch;
use super::output::{Output, OutputBuffers};
use super::primitives::LoadedPrimitives;
use super::source::Source;
use crate::codegen::{CType, Params, RowWriter, Value};
use crate::expr::{Expr, LiteralValue};
use crate::function::ColumnFunction;
use crate::ops::Options;
use crate::{Error, Result};

/// Where a column of a result comes from.
#[derive(Debug, Clone)]
pub(in crate::ops) enum OutputColumn {
    /// A column of the source, without a copy.
    Pass(usize),
    /// Computed, or gathered.
    Written {
        output: Output,
        expr: Expr,
        /// The owner of the dictionary, of the heap and bases of views, or of the elements of
        /// lists.
        shares: Option<SharedValues>,
    },
}

/// The owner of the values that the rows of a column refer to.
#[derive(Debug, Clone)]
pub(in crate::ops) enum SharedValues {
    /// A column of the source.
    Column(usize),
    /// A literal list, of these elements.
    Literal(ArrayRef),
}

impl OutputColumn {
    /// As [`Rows::is_simple`](super::projection::Rows::is_simple).
    pub fn is_simple(&self) -> bool {
        let is_leaf = |expr: &Expr| matches!(expr, Expr::Column(_) | Expr::Literal(_));
        match self {
            OutputColumn::Pass(_) => true,
            OutputColumn::Written { expr: Expr::Arithmetic { left, right, .. }, .. } => is_leaf(left) && is_leaf(right),
            OutputColumn::Written { expr: Expr::Cast { expr, .. }, .. } => is_leaf(expr),
            OutputColumn::Written { expr, .. } => is_leaf(expr),
        }
    }

    /// Decides how `outputs` are made. Returns also their schema.
    pub fn plan_all(
        source: &mut Source,
        filtered: bool,
        outputs: Vec<(Expr, Field)>,
        options: &Options,
    ) -> Result<(SchemaRef, Vec<OutputColumn>)> {
        let schema = Schema::new(outputs.iter().map(|(_, field)| field.clone()).collect::<Vec<_>>());
        let mut columns = Vec::with_capacity(outputs.len());
        for (index, (expr, field)) in outputs.into_iter().enumerate() {
            columns.push(OutputColumn::plan(source, filtered, index, expr, &field, options)?);
        }
        Ok((Arc::new(schema), columns))
    }

    /// Decides how the output `index` is made. Without a filter (`filtered`), plain columns are
    /// passed on.
    fn plan(
        source: &mut Source,
        filtered: bool,
        index: usize,
        expr: Expr,
        field: &Field,
        options: &Options,
    ) -> Result<OutputColumn> {
        let name = index.to_string();
        if let Some((column, ty)) = source.plain(&expr)
            && ty.data_type == *field.data_type()
        {
            if !filtered {
                return Ok(OutputColumn::Pass(column));
            }
            // Codes and views are copied as they are, under the source's own type.
            let ty = ColumnType { nullable: ty.nullable || source.may_be_absent(column), ..ty.clone() };
            let alias = match ty.layout {
                Layout::Dictionary { .. } => Some(source.codes(column)?),
                Layout::Views => Some(source.views(column)?),
                _ => None,
            };
            if let Some(alias) = alias {
                let mut params = Params::new();
                let ctype = source.writer(options.profile, &mut params).eval(&alias)?.ctype;
                return Ok(OutputColumn::Written {
                    output: Output::new(ty, ctype, &name),
                    expr: alias,
                    shares: Some(SharedValues::Column(column)),
                });
            }
        }
        let mut params = Params::new();
        let value = source.writer(options.profile, &mut params).eval_output(&expr)?;
        if let Some((shared, layout)) = lists(source, &expr).filter(|_| value.ctype == CType::List) {
            let ty = ColumnType { data_type: field.data_type().clone(), nullable: value.valid.is_some(), layout, bounds: None };
            return Ok(OutputColumn::Written { output: Output::new(ty, CType::List, &name), expr, shares: Some(shared) });
        }
        let mut output = Output::of(&value, field.data_type(), &name)?;
        if let Expr::Call { function, .. } = &expr
            && let Some(bytes) = function.row().column_function().and_then(ColumnFunction::most_bytes)
        {
            output = output.with_limit(field.name(), bytes);
        }
        Ok(OutputColumn::Written { output, expr, shares: None })
    }

    /// Type and layout of the column.
    pub fn ty<'a>(&'a self, source: &'a Source) -> &'a ColumnType {
        match self {
            OutputColumn::Pass(index) => &source.types[*index],
            OutputColumn::Written { output, .. } => &output.ty,
        }
    }

    /// How kernels write the column; `None` where it is passed on.
    pub fn output(&self) -> Option<Output> {
        match self {
            OutputColumn::Pass(_) => None,
            OutputColumn::Written { output, .. } => Some(output.clone()),
        }
    }

    /// Appends the statements of the column's value.
    pub fn value(&self, writer: &mut RowWriter<'_>) -> Result<Value> {
        match self {
            OutputColumn::Written { expr, .. } => writer.eval_output(expr),
            OutputColumn::Pass(_) => Err(Error::Internal("a column that is passed on is not written".into())),
        }
    }

    /// The finished column of `rows` rows. `bound`: the columns of the source.
    pub fn finish(
        &self,
        launch: &Launch<'_>,
        ty: &ColumnType,
        rows: usize,
        buffers: Option<OutputBuffers>,
        bound: &[DeviceColumn],
    ) -> Result<DeviceColumn> {
        match (self, buffers) {
            (OutputColumn::Written { output, shares: None, .. }, Some(buffers)) => {
                output.finish(&launch.primitives, rows, buffers, None)
            }
            (OutputColumn::Written { shares: Some(shared), .. }, Some(buffers)) => {
                share(&launch.primitives, ty, rows, buffers, &shared.column(launch.queue, ty, bound)?)
            }
            (OutputColumn::Pass(index), _) => Ok(bound[*index].clone()),
            (OutputColumn::Written { .. }, None) => Err(Error::Internal("an output without buffers".into())),
        }
    }
}

impl SharedValues {
    /// The column, or one of the elements of a literal list in a column of type `ty`.
    fn column(&self, queue: &Queue, ty: &ColumnType, columns: &[DeviceColumn]) -> Result<DeviceColumn> {
        let (elements, ty) = match (self, &ty.layout) {
            (SharedValues::Column(column), _) => return Ok(columns[*column].clone()),
            (SharedValues::Literal(elements), Layout::List(ty)) => (elements, ty),
            (SharedValues::Literal(_), _) => {
                return Err(Error::Internal(format!("a literal list in a column of {}", ty.data_type)));
            }
        };
        let schema = Arc::new(Schema::new(vec![Field::new("elements", ty.data_type.clone(), ty.nullable)]));
        let batch = RecordBatch::try_new(Arc::clone(&schema), vec![Arc::clone(elements)]).map_err(columnar::Error::from)?;
        let batch = columnar::upload(queue, &schema, std::slice::from_ref(ty), &[batch])?;
        batch.columns().first().cloned().ok_or_else(|| Error::Internal("a batch without its column".into()))
    }
}

/// The finished columns of a projection. `bound`: the columns of the source.
pub(in crate::ops) fn finish_columns(
    launch: &Launch<'_>,
    columns: &[OutputColumn],
    types: &[ColumnType],
    written: Vec<Option<OutputBuffers>>,
    rows: usize,
    bound: &[DeviceColumn],
) -> Result<Vec<DeviceColumn>> {
    let columns = columns.iter().zip(types).zip(written);
    columns.map(|((column, ty), buffers)| column.finish(launch, ty, rows, buffers, bound)).collect()
}

/// The owner of the elements of lists, and the layout of the lists.
fn lists(source: &Source, expr: &Expr) -> Option<(SharedValues, Layout)> {
    use ColumnFunction::{ListKey, ListLength, ListOfRows, ListView, StringOfRows};
    let layout = |column: &usize| source.types.get(*column).map(|ty| ty.layout.clone());
    match expr {
        Expr::Column(column) => Some((SharedValues::Column(*column), layout(column)?)),
        Expr::Call { function, arguments, .. } => match (function.row().column_function(), arguments.as_slice()) {
            (Some(ListOfRows), [Expr::Column(column), ..]) => {
                Some((SharedValues::Column(*column), Layout::List(Box::new(source.types.get(*column)?.clone()))))
            }
            (Some(ListOfRows | StringOfRows | ListLength | ListView | ListKey) | None, _) => None,
        },
        Expr::Literal(literal) => {
            let layout = ColumnType::of(&literal.data_type, true)?.layout;
            let Layout::List(elements) = &layout else { return None };
            let own = match &literal.value {
                LiteralValue::List(own) => Arc::clone(own),
                _ => new_empty_array(&elements.data_type),
            };
            Some((SharedValues::Literal(own), layout))
        }
        _ => None,
    }
}

/// A gathered column over the values of `owner`: its dictionary, its heap and bases, its elements,
/// or its rows as elements.
pub(in crate::ops) fn share(
    primitives: &LoadedPrimitives<'_>,
    ty: &ColumnType,
    rows: usize,
    buffers: OutputBuffers,
    owner: &DeviceColumn,
) -> Result<DeviceColumn> {
    let shared: &[Buffer] = if ty.layout == Layout::Views { &owner.buffers()[1..] } else { &[] };
    let all = buffers.values.into_iter().chain(shared.iter().cloned()).collect();
    let values = match &ty.layout {
        Layout::List(elements) if **elements == **owner.ty() => Some(Arc::new(owner.clone())),
        Layout::List(_) => owner.elements().cloned(),
        _ => owner.dictionary().cloned(),
    };
    primitives.column(&Arc::new(ty.clone()), rows, all, buffers.valid.as_ref(), values)
}
