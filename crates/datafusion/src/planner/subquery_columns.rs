// SPDX-License-Identifier: Apache-2.0
//! Values of scalar subqueries for sorts, windows and join conditions, as columns of their inputs.
//!
//! The rule rewrites logical plans. `subqueries` then joins the values, as for any projection.

use std::sync::Arc;

use datafusion::common::tree_node::{Transformed, TreeNode, TreeNodeRecursion};
use datafusion::common::{Column, Result};
use datafusion::logical_expr::expr_rewriter::NamePreserver;
use datafusion::logical_expr::logical_plan::{Join, Sort, Subquery, Window};
use datafusion::logical_expr::{Expr, JoinType, LogicalPlan, LogicalPlanBuilder};
use datafusion::optimizer::{ApplyOrder, OptimizerConfig, OptimizerRule};

use crate::session::{DeviceOptions, DeviceRuntime};

/// Puts a projection with the values below operators that read them and compute no columns. Another
/// one above drops the values.
///
/// `ORDER BY x - (SELECT …)` becomes an order by `x - v` of rows with a column `v`.
#[derive(Debug)]
pub struct SubqueryColumns {
    runtime: Arc<DeviceRuntime>,
}

impl SubqueryColumns {
    /// A rule for plans made for the device of `runtime`.
    pub fn new(runtime: Arc<DeviceRuntime>) -> Self {
        SubqueryColumns { runtime }
    }
}

impl OptimizerRule for SubqueryColumns {
    fn name(&self) -> &str {
        "SubqueryColumns"
    }

    fn apply_order(&self) -> Option<ApplyOrder> {
        Some(ApplyOrder::BottomUp)
    }

    fn supports_rewrite(&self) -> bool {
        true
    }

    fn rewrite(&self, plan: LogicalPlan, config: &dyn OptimizerConfig) -> Result<Transformed<LogicalPlan>> {
        let readers = match &plan {
            LogicalPlan::Sort(_) | LogicalPlan::Window(_) => plan.expressions(),
            LogicalPlan::Join(join) => join.filter.iter().cloned().collect(),
            _ => return Ok(Transformed::no(plan)),
        };
        if !readers.iter().any(reads_subquery)
            || !DeviceOptions::of(&config.options()).enabled
            || self.runtime.problem().is_some()
        {
            return Ok(Transformed::no(plan));
        }
        let mut values = SubqueryValues::default();
        for expr in &readers {
            values.find(expr, config)?;
        }
        if values.0.is_empty() {
            return Ok(Transformed::no(plan));
        }
        let (schema, names) = (Arc::clone(plan.schema()), NamePreserver::new(&plan));
        let over_values = match plan {
            LogicalPlan::Sort(sort) => {
                let keys = sort.expr.into_iter().map(|key| Ok(key.with_expr(values.as_columns(key.expr.clone())?)));
                LogicalPlan::Sort(Sort { expr: keys.collect::<Result<_>>()?, input: values.behind(&sort.input)?, ..sort })
            }
            LogicalPlan::Window(window) => {
                let functions = window.window_expr.into_iter().map(|function| {
                    let name = names.save(&function);
                    Ok(name.restore(values.as_columns(function)?))
                });
                LogicalPlan::Window(Window::try_new(functions.collect::<Result<_>>()?, values.behind(&window.input)?)?)
            }
            LogicalPlan::Join(join) => LogicalPlan::Join(values.within(join)?),
            other => other,
        };
        if over_values.schema() == &schema {
            return Ok(Transformed::yes(over_values));
        }
        let before = schema.iter().map(|field| Expr::Column(Column::from(field)));
        Ok(Transformed::yes(LogicalPlanBuilder::from(over_values).project(before)?.build()?))
    }
}

fn reads_subquery(expr: &Expr) -> bool {
    expr.exists(|node| Ok(matches!(node, Expr::ScalarSubquery(_)))).unwrap_or(false)
}

/// Scalar subqueries of an operator, each with the name of its value's column.
#[derive(Default)]
struct SubqueryValues(Vec<(Subquery, String)>);

impl SubqueryValues {
    /// Collects the subqueries of an expression that can be columns:
    /// - they are not correlated,
    /// - they may be NULL, or always give a row. A subquery without a row is NULL.
    fn find(&mut self, expr: &Expr, config: &dyn OptimizerConfig) -> Result<()> {
        let visited = expr.apply(|node| {
            if let Expr::ScalarSubquery(subquery) = node
                && subquery.outer_ref_columns.is_empty()
                && (may_be_null(&subquery.subquery) || gives_one_row(&subquery.subquery))
                && self.name_of(subquery).is_none()
            {
                self.0.push((subquery.clone(), config.alias_generator().next("__value")));
            }
            Ok(TreeNodeRecursion::Continue)
        });
        visited.map(drop)
    }

    fn name_of(&self, subquery: &Subquery) -> Option<&String> {
        self.0.iter().find(|(known, _)| known == subquery).map(|(_, name)| name)
    }

    /// An expression over the columns of the values.
    fn as_columns(&self, expr: Expr) -> Result<Expr> {
        let replaced = expr.transform_down(|node| match &node {
            Expr::ScalarSubquery(subquery) => Ok(match self.name_of(subquery) {
                Some(name) => Transformed::yes(Expr::Column(Column::new_unqualified(name))),
                None => Transformed::no(node),
            }),
            _ => Ok(Transformed::no(node)),
        });
        Ok(replaced?.data)
    }

    /// The input with the values behind its columns.
    fn behind(&self, input: &Arc<LogicalPlan>) -> Result<Arc<LogicalPlan>> {
        let columns = input.schema().iter().map(|field| Expr::Column(Column::from(field)));
        let values = self.0.iter().map(|(subquery, name)| Expr::ScalarSubquery(subquery.clone()).alias(name));
        let outputs = columns.chain(values).collect::<Vec<_>>();
        Ok(Arc::new(LogicalPlanBuilder::from(Arc::clone(input)).project(outputs)?.build()?))
    }

    /// A join with the values on one side, preferably one whose columns it does not give.
    fn within(&self, mut join: Join) -> Result<Join> {
        let side = match join.join_type {
            JoinType::RightSemi | JoinType::RightAnti | JoinType::RightMark => &mut join.left,
            JoinType::Inner
            | JoinType::Left
            | JoinType::Right
            | JoinType::Full
            | JoinType::LeftSemi
            | JoinType::LeftAnti
            | JoinType::LeftMark => &mut join.right,
        };
        *side = self.behind(side)?;
        let filter = join.filter.map(|filter| self.as_columns(filter)).transpose()?;
        Join::try_new(
            join.left,
            join.right,
            join.on,
            filter,
            join.join_type,
            join.join_constraint,
            join.null_equality,
            join.null_aware,
        )
    }
}

fn may_be_null(subquery: &LogicalPlan) -> bool {
    subquery.schema().fields().iter().any(|field| field.is_nullable())
}

/// Whether a plan gives one row whatever its input: an aggregation without keys.
fn gives_one_row(subquery: &LogicalPlan) -> bool {
    match subquery {
        LogicalPlan::Aggregate(aggregate) => aggregate.group_expr.is_empty(),
        LogicalPlan::EmptyRelation(row) => row.produce_one_row,
        LogicalPlan::Projection(projection) => gives_one_row(&projection.input),
        LogicalPlan::SubqueryAlias(alias) => gives_one_row(&alias.input),
        _ => false,
    }
}
