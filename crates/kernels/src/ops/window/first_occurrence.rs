// SPDX-License-Identifier: Apache-2.0
//! Values of DISTINCT: the rows that count, and strings with NULL for repeated ones.

use std::sync::Arc;

use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use columnar::{ColumnType, DeviceBatch, DeviceColumn};
use device::Queue;

use super::PlanContext;
use super::frame::{Frame, FrameBound};
use super::order_facts::{OrderFact, OrderFacts};
use crate::expr::{CompareOp, Expr, Literal, LiteralValue};
use crate::ops::{Input, Select};
use crate::{Error, Result};

/// The fact to find another occurrence of a row's value, for frames that begin or end with the
/// partition.
pub(super) fn other_occurrence(function: &str, frame: &Frame) -> Result<OrderFact> {
    match frame {
        Frame { start: FrameBound::UnboundedPreceding, .. } => Ok(OrderFact::Before),
        Frame { end: FrameBound::UnboundedFollowing, .. } => Ok(OrderFact::After),
        _ => Err(Error::Unsupported(format!(
            "{function} of DISTINCT values over frames that neither begin nor end with the partition is not supported on the device"
        ))),
    }
}

/// Whether a row's value has no other occurrence. `fact`: the column of [`other_occurrence`].
pub(super) fn has_no_other(fact: usize) -> Expr {
    let none = Literal { data_type: DataType::UInt32, value: LiteralValue::Int(0) };
    Expr::Compare { op: CompareOp::Eq, left: Arc::new(Expr::Column(fact)), right: Arc::new(Expr::Literal(none)) }
}

/// The strings of a column at their first occurrence in the partition, NULL elsewhere. For frames
/// that end with the partition, at the last occurrence.
#[derive(Debug, Clone)]
pub(super) struct FirstOccurrence {
    column: usize,
    /// The column of the [`OrderFact`].
    fact: usize,
    schema: SchemaRef,
    select: Select,
}

impl FirstOccurrence {
    /// For a `LargeUtf8` column and frames that begin or end with the partition.
    pub fn plan(column: usize, frame: &Frame, context: &mut PlanContext<'_>) -> Result<FirstOccurrence> {
        let fact = context.fact(other_occurrence("string_agg", frame)?, column)?;
        let ty = context.types.get(column).ok_or_else(|| Error::Internal(format!("no column {column}")))?.clone();
        let string = Field::new("string", ty.data_type.clone(), true);
        let schema = Arc::new(Schema::new(vec![string.clone(), Field::new("fact", DataType::UInt32, false)]));
        let branches = vec![(has_no_other(1), Expr::Column(0))];
        let first = Expr::Case { branches, otherwise: None, data_type: ty.data_type.clone() };
        let input = Input { schema: Arc::clone(&schema), types: vec![ty, OrderFacts::ty(false)], filter: None };
        let select = Select::try_new(input, vec![(first, string)], context.options.clone())?;
        Ok(FirstOccurrence { column, fact, schema, select })
    }

    /// The operator that writes the strings.
    pub fn select(&self) -> &Select {
        &self.select
    }

    /// Type of the strings.
    pub fn ty(&self) -> Result<&ColumnType> {
        self.select.output_types().first().ok_or_else(|| Error::Internal("strings without a type".into()))
    }

    /// The strings. `columns`: those of the input and of the order facts.
    pub async fn strings(&self, queue: &Queue, columns: &[DeviceColumn], n: usize) -> Result<DeviceColumn> {
        let read = [self.column, self.fact].map(|column| columns[column].clone()).to_vec();
        let strings = self.select.run(queue, &DeviceBatch::try_new(Arc::clone(&self.schema), read, n)?).await?;
        strings.columns().first().cloned().ok_or_else(|| Error::Internal("strings without a column".into()))
    }
}
