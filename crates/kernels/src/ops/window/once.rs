// SPDX-License-Identifier: Apache-2.0
//! Values that stand once each: which rows count for that, and the texts of a column, with NULL where the same text stands
//! elsewhere in the frame.

use std::sync::Arc;

use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use columnar::{ColumnType, DeviceBatch, DeviceColumn};
use device::Queue;

use super::frame::{Frame, FrameBound};
use super::sorted::{Sorted, Tell};
use crate::expr::{CompareOp, Expr, Literal, LiteralValue};
use crate::ops::program::Kernel;
use crate::ops::{Input, Options, Select};
use crate::{Error, Result};

/// Where the same value must not stand for a row to be the one that counts, in frames that begin with the partition or end with it.
pub(super) fn tell(function: &str, frame: &Frame) -> Result<Tell> {
    match frame {
        Frame { start: FrameBound::UnboundedPreceding, .. } => Ok(Tell::Before),
        Frame { end: FrameBound::UnboundedFollowing, .. } => Ok(Tell::Behind),
        _ => Err(Error::Unsupported(format!(
            "{function} of DISTINCT values over frames that neither begin nor end with the partition is not supported on the device"
        ))),
    }
}

/// Whether the value stands nowhere else where column `told` tells of.
pub(super) fn is_alone(told: usize) -> Expr {
    let none = Literal { data_type: DataType::UInt32, value: LiteralValue::Int(0) };
    Expr::Compare { op: CompareOp::Eq, left: Box::new(Expr::Column(told)), right: Box::new(Expr::Literal(none)) }
}

/// A column's texts, each where it stands first in the partition, or last, where frames end with that.
#[derive(Debug, Clone)]
pub(super) struct Once {
    column: usize,
    /// The column that tells where the same text stands.
    told: usize,
    schema: SchemaRef,
    select: Select,
}

impl Once {
    /// Of a `LargeUtf8` column, in frames that begin with the partition or end with it.
    pub fn plan(
        column: usize,
        frame: &Frame,
        types: &[ColumnType],
        sorted: &mut Sorted,
        options: &Options,
        kernels: &mut Vec<Kernel>,
    ) -> Result<Once> {
        let told = sorted.tell(tell("string_agg", frame)?, column, types, options, kernels)?;
        let ty = types.get(column).ok_or_else(|| Error::Internal(format!("no column {column}")))?.clone();
        let text = Field::new("text", ty.data_type.clone(), true);
        let schema = Arc::new(Schema::new(vec![text.clone(), Field::new("told", DataType::UInt32, false)]));
        let once =
            Expr::Case { branches: vec![(is_alone(1), Expr::Column(0))], otherwise: None, data_type: ty.data_type.clone() };
        let input = Input { schema: Arc::clone(&schema), types: vec![ty, Sorted::ty(false)], filter: None };
        Ok(Once { column, told, schema, select: Select::try_new(input, vec![(once, text)], options.clone())? })
    }

    /// The kernels that write the texts.
    pub fn select(&self) -> &Select {
        &self.select
    }

    /// Type of the texts.
    pub fn ty(&self) -> Result<&ColumnType> {
        self.select.output_types().first().ok_or_else(|| Error::Internal("texts without a type".into()))
    }

    /// The texts. `columns`: the input's and what sorting tells.
    pub async fn texts(&self, queue: &Queue, columns: &[DeviceColumn], n: usize) -> Result<DeviceColumn> {
        let read = [self.column, self.told].map(|column| columns[column].clone()).to_vec();
        let texts = self.select.run(queue, &DeviceBatch::try_new(Arc::clone(&self.schema), read, n)?).await?;
        texts.columns().first().cloned().ok_or_else(|| Error::Internal("texts without a column".into()))
    }
}
