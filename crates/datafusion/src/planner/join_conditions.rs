// SPDX-License-Identifier: Apache-2.0
//! Conditions of inner joins that kernels cannot evaluate for a pair, such as
//! `left(t.s || u.s, 2) = 'ab'`.
//!
//! Their strings are computed from both sides. A filter above the join evaluates them, after the
//! strings are written to columns.

use std::sync::Arc;

use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode};
use datafusion::common::{JoinSide, JoinType, Result};
use datafusion::physical_expr::expressions::Column;

use datafusion::physical_expr::{PhysicalExpr, conjunction, split_conjunction};
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::filter::FilterExec;
use datafusion::physical_plan::joins::utils::JoinFilter;
use datafusion::physical_plan::joins::{HashJoinExec, NestedLoopJoinExec, NestedLoopJoinExecBuilder};
use datafusion::physical_plan::projection::{ProjectionExec, ProjectionExpr};

use crate::exec::JoinTypeFacts;
use crate::planner::joins::supported_join;
use crate::planner::support::support_of;

/// A join that is supported on the device, and what stands above it.
pub(super) struct ConditionsAbove {
    pub join: Arc<dyn ExecutionPlan>,
    /// The other conditions and the projection, over `join`.
    pub whole: Arc<dyn ExecutionPlan>,
}

/// A join that is not supported on the device, with such conditions moved above it. `None` if this
/// is not supported either.
pub(super) fn with_conditions_above(join: &Arc<dyn ExecutionPlan>) -> Result<Option<ConditionsAbove>> {
    // The limit of a join counts pairs that satisfy its condition.
    if join.fetch().is_some() {
        return Ok(None);
    }
    let Some((filter, projection)) = condition(join) else { return Ok(None) };
    let mut kept = Vec::new();
    let mut above = Vec::new();
    for part in split_conjunction(filter.expression()) {
        match supported_join(&with_condition(join, Some(part_of(&filter, Arc::clone(part))))?) {
            Ok(_) => kept.push(Arc::clone(part)),
            Err(_) => above.push(over_both(&filter, part, join)?),
        }
    }
    let kept = (!kept.is_empty()).then(|| part_of(&filter, conjunction(kept)));
    let pairs = with_condition(join, kept)?;
    let filtered: Arc<dyn ExecutionPlan> = Arc::new(FilterExec::try_new(conjunction(above), Arc::clone(&pairs))?);
    if supported_join(&pairs).is_err() || support_of(&filtered).is_err() {
        return Ok(None);
    }
    let Some(projection) = projection else { return Ok(Some(ConditionsAbove { join: pairs, whole: filtered })) };
    let schema = filtered.schema();
    let columns = projection.into_iter().map(|index| {
        let name = schema.field(index).name();
        ProjectionExpr { expr: Arc::new(Column::new(name, index)), alias: name.clone() }
    });
    let whole = Arc::new(ProjectionExec::try_new(columns.collect::<Vec<_>>(), filtered)?);
    Ok(Some(ConditionsAbove { join: pairs, whole }))
}

/// The condition of an inner join, and its projection.
fn condition(join: &Arc<dyn ExecutionPlan>) -> Option<(JoinFilter, Option<Vec<usize>>)> {
    let (join_type, filter, projection) = if let Some(join) = join.downcast_ref::<HashJoinExec>() {
        (join.join_type(), join.filter(), &join.projection)
    } else {
        let join = join.downcast_ref::<NestedLoopJoinExec>()?;
        (join.join_type(), join.filter(), join.projection())
    };
    let projection = projection.as_ref().map(|columns| columns.to_vec());
    filter.filter(|_| JoinTypeFacts::of(*join_type).is_inner()).map(|filter| (filter.clone(), projection))
}

/// The join with another condition and without a projection.
fn with_condition(join: &Arc<dyn ExecutionPlan>, filter: Option<JoinFilter>) -> Result<Arc<dyn ExecutionPlan>> {
    if let Some(join) = join.downcast_ref::<HashJoinExec>() {
        return Ok(Arc::new(join.builder().with_filter(filter).with_projection_ref(None).build()?));
    }
    let [left, right] = [0, 1].map(|side| Arc::clone(join.children()[side]));
    Ok(Arc::new(NestedLoopJoinExecBuilder::new(left, right, JoinType::Inner).with_filter(filter).build()?))
}

fn part_of(filter: &JoinFilter, part: Arc<dyn PhysicalExpr>) -> JoinFilter {
    JoinFilter::new(part, filter.column_indices().to_vec(), Arc::clone(filter.schema()))
}

/// A part of the condition over the columns of the join.
fn over_both(filter: &JoinFilter, part: &Arc<dyn PhysicalExpr>, join: &Arc<dyn ExecutionPlan>) -> Result<Arc<dyn PhysicalExpr>> {
    let left_columns = join.children().first().map_or(0, |left| left.schema().fields().len());
    Arc::clone(part)
        .transform_up(|node| {
            let Some(column) = node.downcast_ref::<Column>() else { return Ok(Transformed::no(node)) };
            let Some(source) = filter.column_indices().get(column.index()) else { return Ok(Transformed::no(node)) };
            let index = if source.side == JoinSide::Left { source.index } else { left_columns + source.index };
            Ok(Transformed::yes(Arc::new(Column::new(column.name(), index))))
        })
        .data()
}
