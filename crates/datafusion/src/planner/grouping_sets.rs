// SPDX-License-Identifier: Apache-2.0
//! `GROUPING SETS`, `ROLLUP` and `CUBE`: an aggregation by all keys and `__grouping_id` over
//! expanded rows.

use std::sync::Arc;

use arrow::datatypes::SchemaRef;
use datafusion::common::Result;
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::expressions::Column;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::aggregates::AggregateExec;
use datafusion::physical_plan::projection::ProjectionExec;

use crate::exec::{AggregateSpec, DeviceAggregateExec, DeviceExpandExec, DeviceProjectionExec, GroupingSet};

/// The spec of an aggregation over raw rows, and its input: `input`, expanded for grouping sets.
pub(crate) fn aggregate_of_sets(
    raw: &AggregateExec,
    schema: SchemaRef,
    input: Arc<dyn ExecutionPlan>,
) -> Result<(AggregateSpec, Arc<dyn ExecutionPlan>)> {
    let sets = GroupingSet::numbered(raw.group_expr().groups()).filter(|_| raw.group_expr().has_grouping_set());
    let Some(sets) = sets else { return Ok((DeviceAggregateExec::spec_of(raw, schema), input)) };
    let from = input.schema();
    let passed = from.fields().iter().enumerate().map(|(index, field)| {
        let column: Arc<dyn PhysicalExpr> = Arc::new(Column::new(field.name(), index));
        (column, field.name().clone())
    });
    let columns = passed.chain(raw.group_expr().expr().iter().cloned()).collect::<Vec<_>>();
    let projection = DeviceProjectionExec::try_new(Arc::new(ProjectionExec::try_new(columns, input)?))?;
    let expanded = DeviceExpandExec::try_new(Arc::new(projection), sets)?;
    let real = expanded.schema().column_with_name(DeviceExpandExec::REAL).map(|(index, field)| Column::new(field.name(), index));
    let spec = DeviceAggregateExec::spec_of_sets(raw, schema, from.fields().len(), real);
    Ok((spec, Arc::new(expanded)))
}
