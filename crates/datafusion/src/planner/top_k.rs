// SPDX-License-Identifier: Apache-2.0
//! The top-k rows of each partition: rows whose `row_number` or `rank` is at most k.

use std::sync::Arc;

use datafusion::common::Result;
use datafusion::logical_expr::{Operator, WindowFrame, WindowFunctionDefinition};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::expressions::{BinaryExpr, Column, lit};
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::filter::FilterExec;
use datafusion::physical_plan::projection::ProjectionExec;
use datafusion::physical_plan::sorts::partitioned_topk::{PartitionedTopKExec, WindowFnKind};
use datafusion::physical_plan::windows::{WindowAggExec, create_window_expr};

/// Operators over `input` that give the rows of a `PartitionedTopKExec`. `offload` maps each host
/// operator.
pub(crate) fn partitioned_top_k(
    top: &PartitionedTopKExec,
    input: Arc<dyn ExecutionPlan>,
    offload: &dyn Fn(Arc<dyn ExecutionPlan>) -> Result<Arc<dyn ExecutionPlan>>,
) -> Result<Arc<dyn ExecutionPlan>> {
    let schema = input.schema();
    let (partition, order) = top.expr().split_at(top.partition_prefix_len());
    let partition: Vec<_> = partition.iter().map(|key| Arc::clone(&key.expr)).collect();
    let function = match top.fn_kind() {
        WindowFnKind::RowNumber => datafusion::functions_window::row_number::row_number_udwf(),
        WindowFnKind::Rank => datafusion::functions_window::rank::rank_udwf(),
    };
    let (function, frame) = (WindowFunctionDefinition::WindowUDF(function), Arc::new(WindowFrame::new(Some(true))));
    let name = "rank".to_string();
    let rank_of_row =
        create_window_expr(&function, name.clone(), &[], &partition, order, frame, Arc::clone(&schema), false, false, None)?;
    let numbered = offload(Arc::new(WindowAggExec::try_new(vec![rank_of_row], input, false)?))?;
    let number: Arc<dyn PhysicalExpr> = Arc::new(Column::new(&name, schema.fields().len()));
    let first = Arc::new(BinaryExpr::new(number, Operator::LtEq, lit(top.fetch() as u64)));
    let filtered = offload(Arc::new(FilterExec::try_new(first, numbered)?))?;
    let columns = schema.fields().iter().enumerate().map(|(index, field)| {
        let column: Arc<dyn PhysicalExpr> = Arc::new(Column::new(field.name(), index));
        (column, field.name().clone())
    });
    offload(Arc::new(ProjectionExec::try_new(columns.collect::<Vec<_>>(), filtered)?))
}
