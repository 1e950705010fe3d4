// SPDX-License-Identifier: Apache-2.0
//! Joins of the host: what they compute, or why they are not supported on the device.

use std::sync::Arc;

use arrow::datatypes::{DataType, Schema};
use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::common::{JoinSide, JoinType, NullEquality};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::expressions::{BinaryExpr, Column};
use datafusion::physical_plan::joins::utils::{ColumnIndex, JoinFilter};
use datafusion::physical_plan::joins::{
    CrossJoinExec, HashJoinExec, NestedLoopJoinExec, PiecewiseMergeJoinExec, SortMergeJoinExec, SymmetricHashJoinExec,
};
use datafusion::physical_plan::{ExecutionPlan, ExecutionPlanProperties};
use kernels::support::supports;

use crate::exec::JoinSpec;
use crate::expr::{Reason, lower};
use crate::planner::support::{columns_have_device_form, reason_of};
use crate::texts::JoinTexts;

/// Whether an operator is a join.
pub(crate) fn is_join(plan: &Arc<dyn ExecutionPlan>) -> bool {
    plan.is::<HashJoinExec>()
        || plan.is::<NestedLoopJoinExec>()
        || plan.is::<CrossJoinExec>()
        || plan.is::<SortMergeJoinExec>()
        || plan.is::<PiecewiseMergeJoinExec>()
        || plan.is::<SymmetricHashJoinExec>()
}

/// What a join computes on the device.
pub(crate) fn join_form(plan: &Arc<dyn ExecutionPlan>) -> Result<JoinSpec, Reason> {
    let schema = plan.schema();
    let mut equivalences = plan.equivalence_properties().clone();
    equivalences.clear_per_partition_constants();
    if !plan.is::<HashJoinExec>() {
        equivalences.clear_orderings();
    }
    let nulls_equal = |equality| equality == NullEquality::NullEqualsNull;
    let pairs = JoinSpec {
        join_type: JoinType::Inner,
        on: vec![],
        null_equals_null: false,
        null_aware: false,
        filter: None,
        scalar: None,
        projection: None,
        schema,
        equivalences,
    };
    let spec = if let Some(join) = plan.downcast_ref::<HashJoinExec>() {
        if join.null_aware && (join.join_type(), join.on().len()) != (&JoinType::LeftAnti, 1) {
            return Err("NOT IN of several columns is not supported on the device yet".to_string());
        }
        JoinSpec {
            join_type: *join.join_type(),
            on: join.on().to_vec(),
            null_equals_null: nulls_equal(join.null_equality()),
            // DataFusion sees no NULLs in a column that has no others.
            null_aware: join.null_aware && !join.on().iter().any(|(key, _)| is_untyped(key, &join.left().schema())),
            filter: join.filter().cloned(),
            projection: join.projection.as_ref().map(|projection| projection.to_vec()),
            ..pairs
        }
    } else if let Some(join) = plan.downcast_ref::<NestedLoopJoinExec>() {
        JoinSpec {
            join_type: *join.join_type(),
            filter: join.filter().cloned(),
            projection: join.projection().as_ref().map(|projection| projection.to_vec()),
            ..pairs
        }
    } else if plan.is::<CrossJoinExec>() {
        pairs
    } else if let Some(join) = plan.downcast_ref::<SortMergeJoinExec>() {
        JoinSpec {
            join_type: join.join_type(),
            on: join.on().to_vec(),
            null_equals_null: nulls_equal(join.null_equality()),
            filter: join.filter().clone(),
            ..pairs
        }
    } else if let Some(join) = plan.downcast_ref::<PiecewiseMergeJoinExec>() {
        JoinSpec { join_type: join.join_type(), filter: Some(range_filter(join)?), ..pairs }
    } else if let Some(join) = plan.downcast_ref::<SymmetricHashJoinExec>() {
        if plan.boundedness().is_unbounded() {
            return Err("joins of streams without end are not supported on the device".to_string());
        }
        JoinSpec {
            join_type: *join.join_type(),
            on: join.on().to_vec(),
            null_equals_null: nulls_equal(join.null_equality()),
            filter: join.filter().cloned(),
            ..pairs
        }
    } else {
        return Err(format!("{} is not supported on the device", plan.name()));
    };
    let [left, right] = <[_; 2]>::try_from(plan.children()).map_err(|_| "a join has two sides".to_string())?;
    for child in [left, right] {
        columns_have_device_form(child)?;
    }
    let (lifted, texts) = JoinTexts::within(&spec, &left.schema(), &right.schema()).map_err(reason_of)?;
    texts.check()?;
    let (left, right) = (texts.left.schema, texts.right.schema);
    let mut keys = Vec::new();
    for (left_key, right_key) in &lifted.on {
        keys.extend([(lower(left_key, &left)?, &left), (lower(right_key, &right)?, &right)]);
    }
    if let Some(filter) = &lifted.filter {
        keys.push((lower(filter.expression(), filter.schema())?, filter.schema()));
    }
    keys.iter().try_for_each(|(expr, schema)| supports(expr, schema))?;
    columns_have_device_form(plan)?;
    Ok(spec)
}

/// Whether an expression is always an untyped NULL.
fn is_untyped(expr: &Arc<dyn PhysicalExpr>, schema: &Schema) -> bool {
    expr.data_type(schema).is_ok_and(|data_type| data_type == DataType::Null)
}

/// The comparison by which a join of ranges finds its pairs.
fn range_filter(join: &PiecewiseMergeJoinExec) -> Result<JoinFilter, Reason> {
    let (mut fields, mut columns) = (Vec::new(), Vec::new());
    let mut of_side = |expr: &Arc<dyn PhysicalExpr>, plan: &Arc<dyn ExecutionPlan>, side| {
        let schema = plan.schema();
        let renumbered = Arc::clone(expr).transform_up(|node| {
            let Some(column) = node.downcast_ref::<Column>() else { return Ok(Transformed::no(node)) };
            let index = column.index();
            fields.push(schema.field(index).clone());
            columns.push(ColumnIndex { index, side });
            Ok(Transformed::yes(Arc::new(Column::new(column.name(), columns.len() - 1))))
        });
        renumbered.map(|expr| expr.data).map_err(|error| error.to_string())
    };
    let left = of_side(&join.on.0, join.buffered(), JoinSide::Left)?;
    let right = of_side(&join.on.1, join.streamed(), JoinSide::Right)?;
    let comparison = Arc::new(BinaryExpr::new(left, join.operator, right));
    Ok(JoinFilter::new(comparison, columns, Arc::new(Schema::new(fields))))
}
