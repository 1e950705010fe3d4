// SPDX-License-Identifier: Apache-2.0
//! Batches of several sources in the layouts of one, as a union of them needs.
//!
//! A column that lies as it should is passed on; another one is written anew: integers and decimals at full width,
//! strings and dictionaries' values with offsets of 64 bits. Lists keep their words; their elements are laid out as a column of
//! their own.

use std::sync::Arc;

use arrow::datatypes::{DataType, Field, FieldRef, Schema, SchemaRef};
use columnar::{ColumnType, DeviceBatch, DeviceColumn, Layout};
use device::Queue;
use futures::FutureExt;
use futures::future::BoxFuture;

use super::output::Output;
use super::primitives::Primitives;
use super::program::Program;
use super::project::{Projection, Rows};
use super::source::Source;
use super::{Input, Options, check_rows};
use crate::codegen::{CType, Params, RowWriter, Value};
use crate::expr::{Expr, value_type};
use crate::{Error, Result};

/// Lays batches of one source out as others.
#[derive(Debug, Clone)]
pub struct Conform {
    source: Source,
    schema: SchemaRef,
    types: Vec<ColumnType>,
    /// `None`: passed on, or lists.
    outputs: Vec<Option<Output>>,
    /// Of columns of lists that lie otherwise, what lays their elements out.
    lists: Vec<Option<Conform>>,
    options: Options,
    primitives: Primitives,
    program: Program,
    projection: Projection,
}

impl Conform {
    /// The layouts in which batches of all of `sources` can lie; each has the same columns.
    ///
    /// # Errors
    /// `Internal` where the sources differ in number or logical type of columns.
    pub fn common(sources: &[&[ColumnType]]) -> Result<Vec<ColumnType>> {
        let Some((first, others)) = sources.split_first() else { return Ok(vec![]) };
        (0..first.len())
            .map(|index| {
                let mut ty = first[index].clone();
                for other in others {
                    let other = other.get(index).filter(|other| value_type(&other.data_type) == value_type(&ty.data_type));
                    let Some(other) = other else { return Err(Error::Internal(format!("column {index} of a union differs"))) };
                    ty = both(&ty, other)?;
                }
                Ok(ty)
            })
            .collect()
    }

    /// Batches of `schema` and layouts `from` in the layouts of `to`, which [`common`](Self::common) gave, under the names of
    /// `result`.
    ///
    /// # Errors
    /// `Unsupported` where a column is not supported on the device.
    pub fn try_new(
        schema: SchemaRef,
        from: Vec<ColumnType>,
        to: Vec<ColumnType>,
        result: SchemaRef,
        options: Options,
    ) -> Result<Conform> {
        let outputs = from.iter().zip(&to).enumerate().map(|(index, (from, to))| {
            (!same(from, to) && !matches!(to.layout, Layout::List(_)))
                .then(|| Output::new(to.clone(), stored(to), &index.to_string()))
        });
        let outputs: Vec<_> = outputs.collect();
        let lists = from.iter().zip(&to).map(|(from, to)| match (&from.layout, &to.layout) {
            (Layout::List(elements), Layout::List(others)) if !same(from, to) => {
                let field = element(&from.data_type).ok_or_else(|| Error::Internal(format!("{} as lists", from.data_type)))?;
                let schema = Arc::new(Schema::new(vec![Field::clone(field).with_nullable(true)]));
                let (from, to) = (vec![elements.as_ref().clone()], vec![others.as_ref().clone()]);
                Conform::try_new(Arc::clone(&schema), from, to, schema, options.clone()).map(Some)
            }
            _ => Ok(None),
        });
        let lists = lists.collect::<Result<Vec<_>>>()?;
        let source = Source::try_new(Input { schema, types: from, filter: None })?;
        let mut conform = Conform {
            source,
            schema: result,
            types: to,
            primitives: Primitives::try_new(&options)?,
            program: Program::try_new("Conform", &options, vec![])?,
            projection: Projection::default(),
            outputs,
            lists,
            options,
        };
        let mut kernels = vec![];
        let outputs = conform.outputs.clone();
        conform.projection = Projection::try_new("conform", &conform, outputs, false, &conform.options, &mut kernels)?;
        conform.program = Program::try_new("Conform", &conform.options, kernels)?;
        Ok(conform)
    }

    /// Types and layouts of the result.
    pub fn output_types(&self) -> &[ColumnType] {
        &self.types
    }

    /// Names and texts of the kernels: none where every column is passed on.
    pub fn kernel_text(&self) -> Vec<(String, String)> {
        let of_elements = self.lists.iter().flatten().flat_map(Conform::kernel_text);
        self.program.kernel_text().into_iter().chain(of_elements).collect()
    }

    /// The programs as they are compiled.
    pub fn programs(&self) -> Vec<String> {
        let of_elements = self.lists.iter().flatten().flat_map(Conform::programs);
        [self.primitives.text().into(), self.program.text().into()].into_iter().chain(of_elements).collect()
    }

    /// Lays a batch out anew.
    ///
    /// # Errors
    /// `Unsupported` for lists of more than 2^31 - 1 elements in one batch; those of the device.
    pub async fn run(&self, queue: &Queue, batch: &DeviceBatch) -> Result<DeviceBatch> {
        let mut columns = self.columns(queue, batch).await?;
        for ((column, conform), ty) in columns.iter_mut().zip(&self.lists).zip(&self.types) {
            if let Some(conform) = conform {
                *column = conform.elements_of(queue, column, ty).await?;
            }
        }
        Ok(DeviceBatch::try_new(self.schema.clone(), columns, batch.num_rows())?)
    }

    /// A column of lists with elements as this lays them out. The future is an object since elements may be lists.
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
            let words = if ty.nullable { column.nullable(queue, false)? } else { column.clone() };
            retyped(&words, ty, Some(Arc::new(elements)))
        }
        .boxed()
    }

    /// The columns, lists as they are.
    async fn columns(&self, queue: &Queue, batch: &DeviceBatch) -> Result<Vec<DeviceColumn>> {
        let n = batch.num_rows();
        if self.outputs.iter().all(Option::is_none) {
            return Ok(batch.columns().to_vec());
        }
        let loaded = self.program.load(queue).await?;
        let primitives = self.primitives.load(queue).await?;
        let bound = self.source.bind(batch)?;
        let written =
            self.projection.run(queue, &self.options, &self.program, &loaded, &primitives, &bound, None, n, &[]).await?;
        let mut columns = Vec::with_capacity(self.outputs.len());
        for ((output, buffers), column) in self.outputs.iter().zip(written).zip(batch.columns()) {
            columns.push(match (output, buffers) {
                (Some(output), Some(buffers)) => output.finish(queue, &primitives, n, buffers, Some(Arc::clone(&output.ty)))?,
                _ => column.clone(),
            });
        }
        Ok(columns)
    }
}

impl Rows for Conform {
    fn writer<'a>(&'a self, params: &'a mut Params) -> RowWriter<'a> {
        self.source.writer(self.options.profile, params)
    }

    fn value(&self, writer: &mut RowWriter<'_>, output: usize) -> Result<Value> {
        let mut value = writer.eval(&Expr::Column(output))?;
        let to = stored(&self.types[output]);
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

/// The same values described by a type that allows more, over `values`: a dictionary's or elements.
fn retyped(column: &DeviceColumn, ty: &ColumnType, values: Option<Arc<DeviceColumn>>) -> Result<DeviceColumn> {
    let validity = column.validity().map(|(bits, first)| (bits.clone(), first));
    let (buffers, nulls) = (column.buffers().to_vec(), column.null_count());
    Ok(DeviceColumn::try_new(Arc::new(ty.clone()), column.len(), buffers, validity, nulls, values)?
        .with_offset(column.offset())?)
}

/// The layout in which two columns of one logical type can both lie.
fn both(left: &ColumnType, right: &ColumnType) -> Result<ColumnType> {
    let nullable = left.nullable || right.nullable;
    let bounds = match (left.bounds, right.bounds) {
        (Some((a, b)), Some((c, d))) if !matches!(left.layout, Layout::Dictionary { .. }) => Some((a.min(c), b.max(d))),
        _ => None,
    };
    // Codes of different dictionaries are no one's codes.
    let coded = matches!(left.layout, Layout::Dictionary { .. }) || matches!(right.layout, Layout::Dictionary { .. });
    let natural = || ColumnType::of(value_type(&left.data_type), nullable).map(|ty| ty.layout);
    let layout = match (plain(&left.layout), plain(&right.layout)) {
        (a, b) if a == b && !coded && left.nullable == right.nullable => a.clone(),
        (a, b) if is_text(a) && is_text(b) => Layout::Offsets64,
        (Layout::List(a), Layout::List(b)) => Layout::List(Box::new(both(a, b)?)),
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

fn is_text(layout: &Layout) -> bool {
    matches!(layout, Layout::Offsets32 | Layout::Offsets64 | Layout::Views)
}

/// The C type of what lies in memory.
fn stored(ty: &ColumnType) -> CType {
    match &ty.layout {
        Layout::Null | Layout::Bits => CType::Bool,
        Layout::Fixed(carrier) => CType::of_carrier(*carrier),
        Layout::Dictionary { codes, .. } => CType::of_carrier(*codes),
        Layout::Bytes(_) | Layout::Offsets32 | Layout::Offsets64 | Layout::Views => CType::Str,
        Layout::List(_) => CType::List,
    }
}
