// SPDX-License-Identifier: Apache-2.0
//! Batches of several sources in common layouts, for a UNION.
//!
//! - A column that has the common layout is passed on.
//! - Other integers and decimals are written at full width.
//! - Other strings and dictionary values are written with 64-bit offsets.
//! - Lists keep their offset/length pairs; their elements are converted as a column of their own.

use std::sync::Arc;

use arrow::datatypes::{DataType, Field, FieldRef, Schema, SchemaRef};
use columnar::{ColumnType, DeviceBatch, DeviceColumn, Layout};
use device::{ProgramSource, Queue};
use futures::FutureExt;
use futures::future::BoxFuture;

use super::launch::Launch;
use super::launch::output::Output;
use super::launch::primitives::Primitives;
use super::launch::program::Program;
use super::launch::projection::{ProjectedRows, Projection, Rows};
use super::launch::source::Source;
use super::{Input, Options, check_rows, row_width};
use crate::codegen::{CType, Params, RowWriter, Value};
use crate::expr::{Expr, value_type};
use crate::{Error, Result};

/// Converts batches of one source to the layouts of a union.
#[derive(Debug, Clone)]
pub struct UnifyLayouts {
    source: Source,
    schema: SchemaRef,
    types: Vec<ColumnType>,
    /// `None`: the column is passed on, or has lists.
    outputs: Vec<Option<Output>>,
    /// Converts the elements of list columns.
    lists: Vec<Option<UnifyLayouts>>,
    options: Options,
    primitives: Primitives,
    program: Program,
    projection: Projection,
}

impl UnifyLayouts {
    /// The common layouts of `sources`, which have the same columns.
    ///
    /// # Errors
    /// `Internal` if the sources differ in number or logical type of columns.
    pub fn common(sources: &[&[ColumnType]]) -> Result<Vec<ColumnType>> {
        let Some((first, others)) = sources.split_first() else { return Ok(vec![]) };
        (0..first.len())
            .map(|index| {
                let mut ty = first[index].clone();
                for other in others {
                    let other = other.get(index).filter(|other| value_type(&other.data_type) == value_type(&ty.data_type));
                    let Some(other) = other else { return Err(Error::Internal(format!("column {index} of a union differs"))) };
                    ty = common_type(&ty, other)?;
                }
                Ok(ty)
            })
            .collect()
    }

    /// Converts batches of `schema` from the layouts `from` to the layouts `to`, which
    /// [`common`](Self::common) gave. The result has the names of `result`.
    ///
    /// # Errors
    /// `Unsupported` if a column is not supported on the device.
    pub fn try_new(
        schema: SchemaRef,
        from: Vec<ColumnType>,
        to: Vec<ColumnType>,
        result: SchemaRef,
        options: Options,
    ) -> Result<UnifyLayouts> {
        let outputs = from.iter().zip(&to).enumerate().map(|(index, (from, to))| {
            (!same(from, to) && !matches!(to.layout, Layout::List(_)))
                .then(|| Output::new(to.clone(), stored_ctype(to), &index.to_string()))
        });
        let outputs: Vec<_> = outputs.collect();
        let lists = from.iter().zip(&to).map(|(from, to)| match (&from.layout, &to.layout) {
            (Layout::List(elements), Layout::List(others)) if !same(from, to) => {
                let field = element(&from.data_type).ok_or_else(|| Error::Internal(format!("{} as lists", from.data_type)))?;
                let schema = Arc::new(Schema::new(vec![Field::clone(field).with_nullable(true)]));
                let (from, to) = (vec![elements.as_ref().clone()], vec![others.as_ref().clone()]);
                UnifyLayouts::try_new(Arc::clone(&schema), from, to, schema, options.clone()).map(Some)
            }
            _ => Ok(None),
        });
        let lists = lists.collect::<Result<Vec<_>>>()?;
        let source = Source::try_new(Input { schema, types: from, filter: None })?;
        let mut unify = UnifyLayouts {
            source,
            schema: result,
            types: to,
            primitives: Primitives::new(&options),
            program: Program::new("UnifyLayouts", &options, vec![]),
            projection: Projection::default(),
            outputs,
            lists,
            options,
        };
        let mut kernels = vec![];
        let outputs = unify.outputs.clone();
        unify.projection = Projection::try_new("unify", &unify, outputs, false, &unify.options, &mut kernels)?;
        unify.program = Program::new("UnifyLayouts", &unify.options, kernels);
        Ok(unify)
    }

    /// Types and layouts of the result.
    pub fn output_types(&self) -> &[ColumnType] {
        &self.types
    }

    /// About the device bytes of the columns that [`run`](Self::run) writes for so many rows.
    /// Strings and lists count as short ones.
    pub fn output_bytes(&self, rows: usize) -> usize {
        let columns = self.types.iter().zip(&self.outputs).zip(&self.lists);
        let written = columns.filter(|((_, output), lists)| output.is_some() || lists.is_some());
        rows * row_width(written.map(|((ty, _), _)| ty))
    }

    /// Names and sources of the kernels; none if every column is passed on.
    pub fn kernel_source(&self) -> Vec<(String, String)> {
        let of_elements = self.lists.iter().flatten().flat_map(UnifyLayouts::kernel_source);
        self.program.kernel_source().into_iter().chain(of_elements).collect()
    }

    /// The programs, as they are compiled.
    pub fn programs(&self) -> Vec<ProgramSource> {
        let of_elements = self.lists.iter().flatten().flat_map(UnifyLayouts::programs);
        [self.primitives.source(), self.program.source()].into_iter().chain(of_elements).collect()
    }

    /// Converts a batch.
    ///
    /// # Errors
    /// `Unsupported` for lists of more than 2^31 - 1 elements in one batch; errors of the device.
    pub async fn run(&self, queue: &Queue, batch: &DeviceBatch) -> Result<DeviceBatch> {
        let mut columns = self.columns(queue, batch).await?;
        for ((column, unify), ty) in columns.iter_mut().zip(&self.lists).zip(&self.types) {
            if let Some(unify) = unify {
                *column = unify.elements_of(queue, column, ty).await?;
            }
        }
        Ok(DeviceBatch::try_new(self.schema.clone(), columns, batch.num_rows())?)
    }

    /// A column of lists with converted elements. The future is boxed since elements may be lists.
    fn elements_of<'a>(
        &'a self,
        queue: &'a Queue,
        column: &'a DeviceColumn,
        ty: &'a ColumnType,
    ) -> BoxFuture<'a, Result<DeviceColumn>> {
        async move {
            let elements = column.elements().ok_or_else(|| Error::Internal("lists without elements".into()))?;
            check_rows("UNION of lists", elements.len())?;
            let batch = DeviceBatch::try_new(self.schema.clone(), vec![elements.as_ref().clone()], elements.len())?;
            let laid_out = self.run(queue, &batch).await?;
            let (Some(elements), Some(to)) = (laid_out.columns().first(), self.types.first()) else {
                return Err(Error::Internal("elements without a column".into()));
            };
            let elements = if to.nullable { elements.nullable(queue, false)? } else { elements.clone() };
            let elements = retyped(&elements, to, elements.elements().or(elements.dictionary()).cloned())?;
            let lists = if ty.nullable { column.nullable(queue, false)? } else { column.clone() };
            retyped(&lists, ty, Some(Arc::new(elements)))
        }
        .boxed()
    }

    /// The converted columns; lists are passed on.
    async fn columns(&self, queue: &Queue, batch: &DeviceBatch) -> Result<Vec<DeviceColumn>> {
        let n = batch.num_rows();
        if self.outputs.iter().all(Option::is_none) {
            return Ok(batch.columns().to_vec());
        }
        let launch = Launch::load(queue, &self.options, &self.program, &self.primitives).await?;
        let bound = self.source.bind(batch)?;
        let written = self.projection.run(&launch, ProjectedRows::all(&bound, n)).await?;
        let mut columns = Vec::with_capacity(self.outputs.len());
        for ((output, buffers), column) in self.outputs.iter().zip(written).zip(batch.columns()) {
            columns.push(match (output, buffers) {
                (Some(output), Some(buffers)) => output.finish(&launch.primitives, n, buffers, Some(Arc::clone(&output.ty)))?,
                _ => column.clone(),
            });
        }
        Ok(columns)
    }
}

impl Rows for UnifyLayouts {
    fn writer<'a>(&'a self, params: &'a mut Params) -> RowWriter<'a> {
        self.source.writer(self.options.profile, params)
    }

    fn value(&self, writer: &mut RowWriter<'_>, output: usize) -> Result<Value> {
        let mut value = writer.eval(&Expr::Column(output))?;
        let to = stored_ctype(&self.types[output]);
        if value.ctype != to {
            value.code = value.to_ctype(to);
            value.ctype = to;
            value = writer.store(value);
        }
        Ok(value)
    }
}

/// Whether a column can be passed on.
fn same(from: &ColumnType, to: &ColumnType) -> bool {
    from.layout == to.layout && from.nullable == to.nullable && from.data_type == to.data_type
}

/// The field of a list type's elements.
fn element(data_type: &DataType) -> Option<&FieldRef> {
    match data_type {
        DataType::List(element) | DataType::LargeList(element) | DataType::FixedSizeList(element, _) => Some(element),
        _ => None,
    }
}

/// The column under a more general type, over `values`: those of a dictionary, or elements of
/// lists.
fn retyped(column: &DeviceColumn, ty: &ColumnType, values: Option<Arc<DeviceColumn>>) -> Result<DeviceColumn> {
    let validity = column.validity().map(|(bits, first)| (bits.clone(), first));
    let (buffers, nulls) = (column.buffers().to_vec(), column.null_count());
    Ok(DeviceColumn::try_new(Arc::new(ty.clone()), column.len(), buffers, validity, nulls, values)?
        .with_offset(column.offset())?)
}

/// The common layout of two columns of one logical type.
fn common_type(left: &ColumnType, right: &ColumnType) -> Result<ColumnType> {
    let nullable = left.nullable || right.nullable;
    let bounds = match (left.bounds, right.bounds) {
        (Some((a, b)), Some((c, d))) if !matches!(left.layout, Layout::Dictionary { .. }) => Some((a.min(c), b.max(d))),
        _ => None,
    };
    // Codes of different dictionaries cannot be mixed.
    let coded = matches!(left.layout, Layout::Dictionary { .. }) || matches!(right.layout, Layout::Dictionary { .. });
    let natural = || ColumnType::of(value_type(&left.data_type), nullable).map(|ty| ty.layout);
    let layout = match (plain(&left.layout), plain(&right.layout)) {
        (a, b) if a == b && !coded && left.nullable == right.nullable => a.clone(),
        (a, b) if is_string(a) && is_string(b) => Layout::Offsets64,
        (Layout::List(a), Layout::List(b)) => Layout::List(Box::new(common_type(a, b)?)),
        (a, b) if a == b => a.clone(),
        (Layout::Fixed(_), Layout::Fixed(_)) => natural().ok_or_else(|| Error::Internal("a union of no layout".into()))?,
        (a, b) => return Err(Error::Internal(format!("{a:?} and {b:?} in one union"))),
    };
    Ok(ColumnType { data_type: left.data_type.clone(), nullable, layout, bounds })
}

fn plain(layout: &Layout) -> &Layout {
    match layout {
        Layout::Dictionary { values, .. } => values,
        other => other,
    }
}

fn is_string(layout: &Layout) -> bool {
    matches!(layout, Layout::Offsets32 | Layout::Offsets64 | Layout::Views)
}

/// The C type of the values in memory.
fn stored_ctype(ty: &ColumnType) -> CType {
    match &ty.layout {
        Layout::Null | Layout::Bits => CType::Bool,
        Layout::Fixed(carrier) => CType::of_carrier(*carrier),
        Layout::Dictionary { codes, .. } => CType::of_carrier(*codes),
        Layout::Bytes(_) | Layout::Offsets32 | Layout::Offsets64 | Layout::Views => CType::Str,
        Layout::List(_) => CType::List,
    }
}
