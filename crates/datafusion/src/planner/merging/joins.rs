// SPDX-License-Identifier: Apache-2.0
//! Merging of joins of the same pairs of rows.

use std::sync::Arc;

use arrow::datatypes::SchemaRef;
use datafusion::common::{JoinSide, JoinType};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::equivalence::{EquivalenceProperties, ProjectionMapping, join_equivalence_properties};
use datafusion::physical_plan::ExecutionPlanProperties;
use datafusion::physical_plan::joins::utils::{ColumnIndex, JoinFilter, JoinOnRef, build_join_schema};

use super::merged::{Merged, both, union};
use super::operators::merge;
use crate::exec::{DeviceJoinExec, JoinSpec};
use crate::planner::rewrite::Plan;
use crate::planner::same::is_fixed;

type Keys<'a> = Vec<(&'a Arc<dyn PhysicalExpr>, &'a Arc<dyn PhysicalExpr>)>;

/// The second join, with its sides in the order of the first.
struct Other<'a> {
    join_type: JoinType,
    left: &'a Plan,
    right: &'a Plan,
    on: Keys<'a>,
    /// Whether its sides are swapped. The optimizer may swap them by the sizes of their columns.
    is_swapped: bool,
}

impl<'a> Other<'a> {
    fn new(join: &'a DeviceJoinExec, is_swapped: bool) -> Other<'a> {
        let (spec, left, right) = (&join.spec, join.left(), join.right());
        let pairs = spec.on.iter();
        match is_swapped {
            true => {
                let on = pairs.map(|(left, right)| (right, left)).collect();
                Other { join_type: spec.join_type.swap(), left: right, right: left, on, is_swapped }
            }
            false => {
                let on = pairs.map(|(left, right)| (left, right)).collect();
                Other { join_type: spec.join_type, left, right, on, is_swapped }
            }
        }
    }
}

/// Merges joins. With swapped sides the rows of one join come in another order.
pub(super) fn joins(a: &Plan, b: &Plan, in_order: bool) -> Option<Merged> {
    let (a, b) = both::<DeviceJoinExec>(a, b)?;
    let merged = merge_with(a, b, Other::new(b, false), in_order);
    merged.or_else(|| if in_order { None } else { merge_with(a, b, Other::new(b, true), in_order) })
}

fn merge_with(a: &DeviceJoinExec, b: &DeviceJoinExec, other: Other<'_>, in_order: bool) -> Option<Merged> {
    let flags = |spec: &JoinSpec| (spec.null_equals_null, spec.null_aware, spec.scalar.clone(), spec.on.len());
    let (join_type, is_swapped) = (a.spec.join_type, other.is_swapped);
    if join_type != other.join_type || flags(&a.spec) != flags(&b.spec) || is_swapped && a.spec.null_aware {
        return None;
    }
    let (left, right) = (merge(a.left(), other.left, in_order)?, merge(a.right(), other.right, in_order)?);
    let on = a.spec.on.iter().zip(other.on);
    let on = on.map(|(a, b)| Some((left.agreed(&a.0, b.0)?, right.agreed(&a.1, b.1)?))).collect::<Option<Vec<_>>>()?;
    let of_a = |column: &ColumnIndex| moved_column(column, column.side, &left.a, &right.a);
    let of_b = |column: &ColumnIndex| {
        let side = if is_swapped { column.side.negate() } else { column.side };
        moved_column(column, side, &left.b, &right.b)
    };
    let filter = match (&a.spec.filter, &b.spec.filter) {
        (None, None) => None,
        (Some(a), Some(b)) => Some(merged_filter(a, b, &of_a, &of_b)?),
        (None, Some(_)) | (Some(_), None) => return None,
    };
    let (schema, joined) = build_join_schema(&left.plan.schema(), &right.plan.schema(), &join_type);
    let (a_columns, b_columns) = (outputs(a, &joined, &of_a)?, outputs(b, &joined, &of_b)?);
    let columns = union(&a_columns, &b_columns);
    let projection = (columns.len() < joined.len()).then(|| columns.clone());
    let equivalences = equivalences(join_type, &left.plan, &right.plan, &on, Arc::new(schema), projection.as_deref())?;
    let mut spec = JoinSpec { on, filter, projection, schema: Arc::clone(equivalences.schema()), equivalences, ..a.spec.clone() };
    if let Some(ordering) = spec.order_of_probe(&left.plan, &right.plan).ok()? {
        spec.equivalences.add_ordering(ordering);
    }
    Merged::of(DeviceJoinExec::new(spec, left.plan, right.plan), &columns, &a_columns, &b_columns)
}

/// The position of a side's column on the merged side.
fn moved_column(column: &ColumnIndex, side: JoinSide, left: &[usize], right: &[usize]) -> Option<ColumnIndex> {
    let index = match side {
        JoinSide::Left => *left.get(column.index)?,
        JoinSide::Right => *right.get(column.index)?,
        JoinSide::None => column.index,
    };
    Some(ColumnIndex { index, side })
}

type MovedColumn<'a> = &'a dyn Fn(&ColumnIndex) -> Option<ColumnIndex>;

/// The filter of both joins; `None` if they differ.
fn merged_filter(a: &JoinFilter, b: &JoinFilter, of_a: MovedColumn<'_>, of_b: MovedColumn<'_>) -> Option<JoinFilter> {
    if a.expression() != b.expression() || !is_fixed(a.expression()) {
        return None;
    }
    let columns = a.column_indices().iter().map(of_a).collect::<Option<Vec<_>>>()?;
    if columns != b.column_indices().iter().map(of_b).collect::<Option<Vec<_>>>()? {
        return None;
    }
    Some(JoinFilter::new(Arc::clone(a.expression()), columns, Arc::clone(a.schema())))
}

/// The columns that a join passes on, as positions in the merged join's columns `joined`.
fn outputs(join: &DeviceJoinExec, joined: &[ColumnIndex], moved: MovedColumn<'_>) -> Option<Vec<usize>> {
    let (_, columns) = build_join_schema(&join.left().schema(), &join.right().schema(), &join.spec.join_type);
    let position = |column: &ColumnIndex| moved(column).and_then(|moved| joined.iter().position(|other| *other == moved));
    let positions = columns.iter().map(position).collect::<Option<Vec<_>>>()?;
    match &join.spec.projection {
        Some(projection) => projection.iter().map(|column| positions.get(*column).copied()).collect(),
        None => Some(positions),
    }
}

/// Equalities of the merged join, without orders.
fn equivalences(
    join_type: JoinType,
    left: &Plan,
    right: &Plan,
    on: JoinOnRef<'_>,
    schema: SchemaRef,
    projection: Option<&[usize]>,
) -> Option<EquivalenceProperties> {
    let (left, right) = (left.equivalence_properties().clone(), right.equivalence_properties().clone());
    let joined = join_equivalence_properties(left, right, &join_type, Arc::clone(&schema), &[false, false], None, on);
    let mut equivalences = joined.ok()?;
    if let Some(columns) = projection {
        let mapping = ProjectionMapping::from_indices(columns, &schema).ok()?;
        equivalences = equivalences.project(&mapping, Arc::new(schema.project(columns).ok()?));
    }
    equivalences.clear_orderings();
    equivalences.clear_per_partition_constants();
    Some(equivalences)
}
