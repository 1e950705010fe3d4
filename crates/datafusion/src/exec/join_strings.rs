// SPDX-License-Identifier: Apache-2.0
//! Strings that the keys and the condition of a join compute, as columns of its sides.

use std::sync::Arc;

use arrow::datatypes::{FieldRef, Schema, SchemaRef};
use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::common::{JoinSide, Result, internal_datafusion_err};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::ScalarFunctionExpr;
use datafusion::physical_expr::expressions::Column;
use datafusion::physical_expr::utils::collect_columns;
use datafusion::physical_plan::joins::utils::{ColumnIndex, JoinFilter};

use crate::exec::JoinSpec;
use crate::expr::{ComputedStrings, Evaluation, as_key, concatenates, is_builtin};
use crate::reason::Reason;

/// The computed strings of both sides, each behind its side's columns.
pub(crate) struct JoinStrings {
    pub left: ComputedStrings,
    pub right: ComputedStrings,
}

impl JoinStrings {
    /// The join over sides with such columns. A string of both sides stays in the condition, where
    /// kernels compare the parts of concatenations.
    pub fn lift(spec: &JoinSpec, left: &SchemaRef, right: &SchemaRef) -> Result<(JoinSpec, JoinStrings)> {
        let mut strings = JoinStrings { left: ComputedStrings::new(left), right: ComputedStrings::new(right) };
        let on = spec.on.iter().map(|(left_key, right_key)| {
            let left_key = strings.left.lift(&as_key(left_key, left)?, Evaluation::Always)?;
            Ok((left_key, strings.right.lift(&as_key(right_key, right)?, Evaluation::Always)?))
        });
        let on = on.collect::<Result<_>>()?;
        let filter = spec.filter.as_ref().map(|filter| strings.filter(filter)).transpose()?;
        Ok((JoinSpec { on, filter, ..spec.clone() }, strings))
    }

    /// Checks that the strings are supported on the device.
    pub fn check(&self) -> Result<(), Reason> {
        self.left.check()?;
        self.right.check()
    }

    fn filter(&mut self, filter: &JoinFilter) -> Result<JoinFilter> {
        let mut columns = Vec::new();
        let expression = self.part(filter.expression(), filter.column_indices(), &mut columns)?;
        let (columns, fields): (Vec<_>, Vec<_>) = columns.into_iter().unzip();
        Ok(JoinFilter::new(expression, columns, Arc::new(Schema::new(fields))))
    }

    /// Lifts the strings of a part of the condition. Its columns are those of `from` before, and of
    /// `to` after.
    fn part(
        &mut self,
        expr: &Arc<dyn PhysicalExpr>,
        from: &[ColumnIndex],
        to: &mut Vec<(ColumnIndex, FieldRef)>,
    ) -> Result<Arc<dyn PhysicalExpr>> {
        let source = |index: usize| from.get(index).ok_or_else(|| internal_datafusion_err!("a join filter lacks column {index}"));
        let (mut of_left, mut of_right) = (false, false);
        for column in collect_columns(expr) {
            match source(column.index())?.side {
                JoinSide::Left => of_left = true,
                JoinSide::Right | JoinSide::None => of_right = true,
            }
        }
        if of_left && of_right {
            if let Some(parts) = upper_of_parts(expr)? {
                return self.part(&parts, from, to);
            }
            let children = expr.children().into_iter().map(|child| self.part(child, from, to)).collect::<Result<_>>()?;
            return Arc::clone(expr).with_new_children(children);
        }
        let (side, strings) = if of_left { (JoinSide::Left, &mut self.left) } else { (JoinSide::Right, &mut self.right) };
        let over_side = with_columns_at(expr, |index| Ok(source(index)?.index))?;
        // The condition is evaluated for pairs with equal keys only.
        let lifted = strings.lift(&over_side, Evaluation::Conditional)?;
        with_columns_at(&lifted, |index| {
            if let Some(known) = to.iter().position(|(column, _)| column.side == side && column.index == index) {
                return Ok(known);
            }
            let field = strings.schema.fields().get(index);
            let field = field.ok_or_else(|| internal_datafusion_err!("a side of a join lacks column {index}"))?;
            to.push((ColumnIndex { index, side }, Arc::clone(field)));
            Ok(to.len() - 1)
        })
    }
}

/// An expression with its columns at other positions.
fn with_columns_at(expr: &Arc<dyn PhysicalExpr>, mut to: impl FnMut(usize) -> Result<usize>) -> Result<Arc<dyn PhysicalExpr>> {
    let moved = Arc::clone(expr).transform_up(|node| match node.downcast_ref::<Column>() {
        Some(column) => Ok(Transformed::yes(Arc::new(Column::new(column.name(), to(column.index())?)))),
        None => Ok(Transformed::no(node)),
    })?;
    Ok(moved.data)
}

/// Rewrites `upper(a || b)` to `upper(a) || upper(b)`, where each part may be of one side. The
/// upper case of a character does not depend on its neighbours.
fn upper_of_parts(expr: &Arc<dyn PhysicalExpr>) -> Result<Option<Arc<dyn PhysicalExpr>>> {
    let is_upper = |call: &&ScalarFunctionExpr| is_builtin(call.fun()) && call.fun().name() == "upper";
    let Some(call) = expr.downcast_ref::<ScalarFunctionExpr>().filter(is_upper) else { return Ok(None) };
    let Some(parts) = call.args().first().filter(|string| concatenates(string)) else { return Ok(None) };
    let uppers = parts.children().into_iter().map(|part| Arc::clone(expr).with_new_children(vec![Arc::clone(part)]));
    Ok(Some(Arc::clone(parts).with_new_children(uppers.collect::<Result<_>>()?)?))
}
