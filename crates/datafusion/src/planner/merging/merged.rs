// SPDX-License-Identifier: Apache-2.0
//! A merged plan and the positions of columns in it.

use std::sync::Arc;

use arrow::datatypes::Schema;
use datafusion::common::internal_datafusion_err;
use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::physical_expr::PhysicalExprRef;
use datafusion::physical_expr::expressions::Column;
use datafusion::physical_expr::scalar_subquery::ScalarSubqueryExpr;
use datafusion::physical_plan::ExecutionPlan;

use crate::expr::{AggregateCall, awaits_subquery, may_fail};
use crate::planner::rewrite::Plan;
use crate::planner::same::is_fixed;

/// One plan for two, `a` and `b`, with the positions of their columns in it.
pub(super) struct Merged {
    pub plan: Plan,
    pub a: Vec<usize>,
    pub b: Vec<usize>,
}

impl Merged {
    /// The merged plan of two equal plans.
    pub fn same(plan: &Plan) -> Merged {
        let columns: Vec<usize> = (0..plan.schema().fields().len()).collect();
        Merged { plan: Arc::clone(plan), a: columns.clone(), b: columns }
    }

    /// A plan with output `columns`, for two plans with some of these columns.
    pub fn of(plan: impl ExecutionPlan + 'static, columns: &[usize], a: &[usize], b: &[usize]) -> Option<Merged> {
        let positions = |wanted: &[usize]| {
            wanted.iter().map(|wanted| columns.iter().position(|column| column == wanted)).collect::<Option<Vec<_>>>()
        };
        Some(Merged { plan: Arc::new(plan), a: positions(a)?, b: positions(b)? })
    }

    /// The same columns of another operator.
    pub fn with(self, plan: impl ExecutionPlan + 'static) -> Merged {
        Merged { plan: Arc::new(plan), ..self }
    }

    /// An expression of `a` and one of `b` over the merged plan, if they are equal.
    pub fn agreed(&self, a: &PhysicalExprRef, b: &PhysicalExprRef) -> Option<PhysicalExprRef> {
        let (a, b) = (moved(a, &self.a, &self.plan)?, moved(b, &self.b, &self.plan)?);
        (a == b).then_some(a)
    }
}

/// An expression with its columns at `positions` of `plan`. `None` if each use has other values.
pub(super) fn moved(expr: &PhysicalExprRef, positions: &[usize], plan: &Plan) -> Option<PhysicalExprRef> {
    if !is_fixed(expr) {
        return None;
    }
    let moved = Arc::clone(expr).transform_up(|node| {
        let Some(column) = node.downcast_ref::<Column>() else { return Ok(Transformed::no(node)) };
        let position = positions.get(column.index());
        let position = position.ok_or_else(|| internal_datafusion_err!("a merged plan lacks {column}"))?;
        Ok(Transformed::yes(column_of(plan, *position)))
    });
    moved.ok().map(|moved| moved.data)
}

/// An expression with all columns replaced by one.
pub(super) fn shape(expr: &PhysicalExprRef) -> Option<PhysicalExprRef> {
    let shape = Arc::clone(expr).transform_up(|node| match node.is::<Column>() {
        true => Ok(Transformed::yes(Arc::new(Column::new("", 0)) as PhysicalExprRef)),
        false => Ok(Transformed::no(node)),
    });
    shape.ok().map(|shape| shape.data)
}

pub(super) fn column_of(plan: &Plan, index: usize) -> PhysicalExprRef {
    Arc::new(Column::new(plan.schema().field(index).name(), index))
}

pub(super) fn input(plan: &Plan) -> Option<&Plan> {
    plan.children().into_iter().next()
}

/// Columns of either, sorted.
pub(super) fn union(a: &[usize], b: &[usize]) -> Vec<usize> {
    let mut columns = [a, b].concat();
    columns.sort_unstable();
    columns.dedup();
    columns
}

/// Columns of only one of two.
pub(super) fn not_of_both<'a>(a: &'a [usize], b: &'a [usize]) -> impl Iterator<Item = usize> + 'a {
    let only = |these: &'a [usize], others: &'a [usize]| these.iter().copied().filter(|column| !others.contains(column));
    only(a, b).chain(only(b, a))
}

/// Whether an expression may fail. A subquery's value that is not known yet may make it fail.
pub(super) fn is_fallible(expr: &PhysicalExprRef, schema: &Schema) -> bool {
    may_fail(expr, schema) || awaits_subquery(expr) && !expr.is::<ScalarSubqueryExpr>()
}

pub(super) fn is_fallible_call(call: &AggregateCall, schema: &Schema) -> bool {
    call.may_overflow() || call.exprs().any(|expr| is_fallible(expr, schema))
}

pub(super) fn both<'a, T: ExecutionPlan>(a: &'a Plan, b: &'a Plan) -> Option<(&'a T, &'a T)> {
    Some((a.downcast_ref()?, b.downcast_ref()?))
}
