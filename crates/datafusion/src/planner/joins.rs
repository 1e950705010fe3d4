// SPDX-License-Identifier: Apache-2.0
//! Support of joins.

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

use crate::exec::{JoinSpec, JoinStrings, JoinTypeFacts};
use crate::expr::supported;
use crate::planner::columns::{reason_of, support_of_columns};
use crate::reason::Reason;

/// A join of the host.
enum HostJoin<'a> {
    Hash(&'a HashJoinExec),
    NestedLoop(&'a NestedLoopJoinExec),
    Cross,
    SortMerge(&'a SortMergeJoinExec),
    PiecewiseMerge(&'a PiecewiseMergeJoinExec),
    SymmetricHash(&'a SymmetricHashJoinExec),
}

impl<'a> HostJoin<'a> {
    fn of(plan: &'a Arc<dyn ExecutionPlan>) -> Option<HostJoin<'a>> {
        let hash = plan.downcast_ref().map(HostJoin::Hash);
        hash.or_else(|| plan.downcast_ref().map(HostJoin::NestedLoop))
            .or_else(|| plan.is::<CrossJoinExec>().then_some(HostJoin::Cross))
            .or_else(|| plan.downcast_ref().map(HostJoin::SortMerge))
            .or_else(|| plan.downcast_ref().map(HostJoin::PiecewiseMerge))
            .or_else(|| plan.downcast_ref().map(HostJoin::SymmetricHash))
    }

    fn join_type(&self) -> JoinType {
        match self {
            HostJoin::Cross => JoinType::Inner,
            HostJoin::Hash(join) => *join.join_type(),
            HostJoin::NestedLoop(join) => *join.join_type(),
            HostJoin::SortMerge(join) => join.join_type(),
            HostJoin::PiecewiseMerge(join) => join.join_type(),
            HostJoin::SymmetricHash(join) => *join.join_type(),
        }
    }

    /// Whether the host probes with the right side too, so that orders of its rows may stay.
    fn probes_as_device(&self) -> bool {
        match self {
            HostJoin::Hash(_) => true,
            HostJoin::NestedLoop(_) | HostJoin::Cross | HostJoin::SortMerge(_) => false,
            HostJoin::PiecewiseMerge(_) | HostJoin::SymmetricHash(_) => false,
        }
    }

    /// Whether it is a `NOT IN` missing on the device.
    fn is_refused_not_in(&self) -> bool {
        match self {
            HostJoin::Hash(join) => {
                let is_supported = || join.on().len() == 1 && JoinTypeFacts::of(*join.join_type()).may_be_null_aware();
                join.null_aware && !is_supported()
            }
            HostJoin::NestedLoop(_) | HostJoin::Cross | HostJoin::SortMerge(_) => false,
            HostJoin::PiecewiseMerge(_) | HostJoin::SymmetricHash(_) => false,
        }
    }
}

/// Whether a host operator is a join.
pub(crate) fn is_join(plan: &Arc<dyn ExecutionPlan>) -> bool {
    HostJoin::of(plan).is_some()
}

/// The type of a host operator that is a join.
pub(crate) fn join_type(plan: &Arc<dyn ExecutionPlan>) -> Option<JoinType> {
    HostJoin::of(plan).map(|join| join.join_type())
}

/// The spec of a host join, if it is supported on the device.
pub(crate) fn supported_join(plan: &Arc<dyn ExecutionPlan>) -> Result<JoinSpec, Reason> {
    let Some(join) = HostJoin::of(plan) else { return Err(format!("{} is not supported on the device", plan.name())) };
    let spec = spec_of(plan, join)?;
    let [left, right] = <[_; 2]>::try_from(plan.children()).map_err(|_| "a join has two sides".to_string())?;
    for child in [left, right] {
        support_of_columns(child)?;
    }
    let (lifted, strings) = JoinStrings::lift(&spec, &left.schema(), &right.schema()).map_err(reason_of)?;
    strings.check()?;
    let (left, right) = (strings.left.schema, strings.right.schema);
    for (left_key, right_key) in &lifted.on {
        supported(left_key, &left)?;
        supported(right_key, &right)?;
    }
    if let Some(filter) = &lifted.filter {
        supported(filter.expression(), filter.schema())?;
    }
    support_of_columns(plan)?;
    Ok(spec)
}

fn spec_of(plan: &Arc<dyn ExecutionPlan>, join: HostJoin<'_>) -> Result<JoinSpec, Reason> {
    let mut equivalences = plan.equivalence_properties().clone();
    equivalences.clear_per_partition_constants();
    if !join.probes_as_device() {
        equivalences.clear_orderings();
    }
    let nulls_equal = |equality| equality == NullEquality::NullEqualsNull;
    let plain = JoinSpec {
        join_type: join.join_type(),
        on: vec![],
        null_equals_null: false,
        null_aware: false,
        filter: None,
        scalar: None,
        projection: None,
        schema: plan.schema(),
        equivalences,
    };
    Ok(match join {
        HostJoin::Cross => plain,
        HostJoin::Hash(_) if join.is_refused_not_in() => {
            return Err("NOT IN of several columns is not supported on the device yet".to_string());
        }
        HostJoin::Hash(join) => JoinSpec {
            on: join.on().to_vec(),
            null_equals_null: nulls_equal(join.null_equality()),
            // In a column of untyped NULLs DataFusion sees no NULL.
            null_aware: join.null_aware && !join.on().iter().any(|(key, _)| is_untyped(key, &join.left().schema())),
            filter: join.filter().cloned(),
            projection: join.projection.as_ref().map(|projection| projection.to_vec()),
            ..plain
        },
        HostJoin::NestedLoop(join) => JoinSpec {
            filter: join.filter().cloned(),
            projection: join.projection().as_ref().map(|projection| projection.to_vec()),
            ..plain
        },
        HostJoin::SortMerge(join) => JoinSpec {
            on: join.on().to_vec(),
            null_equals_null: nulls_equal(join.null_equality()),
            filter: join.filter().clone(),
            ..plain
        },
        HostJoin::PiecewiseMerge(join) => JoinSpec { filter: Some(range_filter(join)?), ..plain },
        HostJoin::SymmetricHash(_) if plan.boundedness().is_unbounded() => {
            return Err("joins of unbounded streams are not supported on the device".to_string());
        }
        HostJoin::SymmetricHash(join) => JoinSpec {
            on: join.on().to_vec(),
            null_equals_null: nulls_equal(join.null_equality()),
            filter: join.filter().cloned(),
            ..plain
        },
    })
}

/// Whether an expression is always an untyped NULL.
fn is_untyped(expr: &Arc<dyn PhysicalExpr>, schema: &Schema) -> bool {
    expr.data_type(schema).is_ok_and(|data_type| data_type == DataType::Null)
}

/// The comparison of a `PiecewiseMergeJoinExec`, as a join filter.
fn range_filter(join: &PiecewiseMergeJoinExec) -> Result<JoinFilter, Reason> {
    let (mut fields, mut columns) = (Vec::new(), Vec::new());
    let mut of_side = |expr: &Arc<dyn PhysicalExpr>, plan: &Arc<dyn ExecutionPlan>, side| {
        let schema = plan.schema();
        let moved = Arc::clone(expr).transform_up(|node| {
            let Some(column) = node.downcast_ref::<Column>() else { return Ok(Transformed::no(node)) };
            let index = column.index();
            fields.push(schema.field(index).clone());
            columns.push(ColumnIndex { index, side });
            Ok(Transformed::yes(Arc::new(Column::new(column.name(), columns.len() - 1))))
        });
        moved.map(|expr| expr.data).map_err(|error| error.to_string())
    };
    let left = of_side(&join.on.0, join.buffered(), JoinSide::Left)?;
    let right = of_side(&join.on.1, join.streamed(), JoinSide::Right)?;
    let comparison = Arc::new(BinaryExpr::new(left, join.operator, right));
    Ok(JoinFilter::new(comparison, columns, Arc::new(Schema::new(fields))))
}
