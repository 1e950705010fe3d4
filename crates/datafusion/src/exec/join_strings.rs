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
use crate::expr::{Rows, Texts, as_key, concatenates, is_own};
use crate::reason::Reason;

/// Texts within a join's keys and its condition, each behind the columns of the side that it is of.
pub(crate) struct JoinTexts {
    pub left: Texts,
    pub right: Texts,
}

impl JoinTexts {
    /// A join over sides with such columns. A text of both sides stays where it is: kernels take concatenations apart.
    pub fn within(spec: &JoinSpec, left: &SchemaRef, right: &SchemaRef) -> Result<(JoinSpec, JoinTexts)> {
        let mut texts = JoinTexts { left: Texts::behind(left), right: Texts::behind(right) };
        let on = spec.on.iter().map(|(of_left, of_right)| {
            Ok((texts.left.lift(&as_key(of_left, left)?, Rows::All)?, texts.right.lift(&as_key(of_right, right)?, Rows::All)?))
        });
        let on = on.collect::<Result<_>>()?;
        let filter = spec.filter.as_ref().map(|filter| texts.filter(filter)).transpose()?;
        Ok((JoinSpec { on, filter, ..spec.clone() }, texts))
    }

    /// Checks that the texts are supported on the device.
    pub fn check(&self) -> Result<(), Reason> {
        self.left.check()?;
        self.right.check()
    }

    fn filter(&mut self, filter: &JoinFilter) -> Result<JoinFilter> {
        let mut columns = Vec::new();
        let expression = self.lift(filter.expression(), filter.column_indices(), &mut columns)?;
        let (columns, fields): (Vec<_>, Vec<_>) = columns.into_iter().unzip();
        Ok(JoinFilter::new(expression, columns, Arc::new(Schema::new(fields))))
    }

    /// A part of a condition over the columns `from`, with the texts of one side lifted, over the columns `to`.
    fn lift(
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
                _ => of_right = true,
            }
        }
        if of_left && of_right {
            if let Some(apart) = upper_of_parts(expr)? {
                return self.lift(&apart, from, to);
            }
            let children = expr.children().into_iter().map(|child| self.lift(child, from, to)).collect::<Result<_>>()?;
            return Arc::clone(expr).with_new_children(children);
        }
        let (side, texts) = if of_left { (JoinSide::Left, &mut self.left) } else { (JoinSide::Right, &mut self.right) };
        let own = renumbered(expr, |index| Ok(source(index)?.index))?;
        // A condition is that of pairs that the keys have found.
        let lifted = texts.lift(&own, Rows::Some)?;
        renumbered(&lifted, |index| {
            if let Some(known) = to.iter().position(|(column, _)| column.side == side && column.index == index) {
                return Ok(known);
            }
            let field = texts.schema.fields().get(index);
            let field = field.ok_or_else(|| internal_datafusion_err!("a side of a join lacks column {index}"))?;
            to.push((ColumnIndex { index, side }, Arc::clone(field)));
            Ok(to.len() - 1)
        })
    }
}

/// An expression with its columns at other positions.
fn renumbered(expr: &Arc<dyn PhysicalExpr>, mut to: impl FnMut(usize) -> Result<usize>) -> Result<Arc<dyn PhysicalExpr>> {
    let renumbered = Arc::clone(expr).transform_up(|node| match node.downcast_ref::<Column>() {
        Some(column) => Ok(Transformed::yes(Arc::new(Column::new(column.name(), to(column.index())?)))),
        None => Ok(Transformed::no(node)),
    })?;
    Ok(renumbered.data)
}

/// `upper(a || b)` as `upper(a) || upper(b)`, of which each may be of one side: no character asks for its neighbours.
fn upper_of_parts(expr: &Arc<dyn PhysicalExpr>) -> Result<Option<Arc<dyn PhysicalExpr>>> {
    let Some(call) = expr.downcast_ref::<ScalarFunctionExpr>().filter(|call| is_own(call.fun()) && call.fun().name() == "upper")
    else {
        return Ok(None);
    };
    let Some(parts) = call.args().first().filter(|text| concatenates(text)) else { return Ok(None) };
    let apart = parts.children().into_iter().map(|part| Arc::clone(expr).with_new_children(vec![Arc::clone(part)]));
    Ok(Some(Arc::clone(parts).with_new_children(apart.collect::<Result<_>>()?)?))
}
