// SPDX-License-Identifier: Apache-2.0
//! `FILTER (WHERE …)` of window functions. The rule rewrites logical plans: physical window
//! expressions hide the filter.

use std::sync::Arc;

use datafusion::common::tree_node::Transformed;
use datafusion::common::{Result, ScalarValue};
use datafusion::logical_expr::expr::WindowFunction;
use datafusion::logical_expr::expr_rewriter::NamePreserver;
use datafusion::logical_expr::{Case, Expr, LogicalPlan, WindowFunctionDefinition};
use datafusion::optimizer::{ApplyOrder, OptimizerConfig, OptimizerRule};

use crate::expr::{is_builtin_aggregate, skips_nulls};
use crate::session::{DeviceOptions, DeviceRuntime};

/// Moves the filter of an aggregate that skips NULLs into its first argument.
///
/// `sum(x) FILTER (WHERE p) OVER w` becomes `sum(CASE WHEN p THEN x END) OVER w`, under its old
/// name.
#[derive(Debug)]
pub struct WindowFilters {
    runtime: Arc<DeviceRuntime>,
}

impl WindowFilters {
    /// A rule for plans made for the device of `runtime`.
    pub fn new(runtime: Arc<DeviceRuntime>) -> Self {
        WindowFilters { runtime }
    }
}

impl OptimizerRule for WindowFilters {
    fn name(&self) -> &str {
        "WindowFilters"
    }

    fn apply_order(&self) -> Option<ApplyOrder> {
        Some(ApplyOrder::BottomUp)
    }

    fn supports_rewrite(&self) -> bool {
        true
    }

    fn rewrite(&self, plan: LogicalPlan, config: &dyn OptimizerConfig) -> Result<Transformed<LogicalPlan>> {
        let LogicalPlan::Window(window) = &plan else { return Ok(Transformed::no(plan)) };
        if !window.window_expr.iter().any(has_filter)
            || !DeviceOptions::of(&config.options()).enabled
            || self.runtime.problem().is_some()
        {
            return Ok(Transformed::no(plan));
        }
        let names = NamePreserver::new(&plan);
        // DataFusion would replace one of two equal functions by a column of a projection, which
        // cannot compute it.
        let mut known: Vec<Expr> = window.window_expr.iter().filter(|expr| !has_filter(expr)).map(without_name).collect();
        plan.map_expressions(|expr| {
            let name = names.save(&expr);
            let without = without_filter(expr.clone());
            let function = without_name(&without.data);
            if !without.transformed || known.contains(&function) {
                return Ok(Transformed::no(expr));
            }
            known.push(function);
            Ok(without.update_data(|expr| name.restore(expr)))
        })
    }
}

/// A function without its alias. An argument that is always NULL loses its type.
fn without_name(expr: &Expr) -> Expr {
    let mut expr = expr.clone().unalias();
    if let Expr::WindowFunction(function) = &mut expr
        && let [argument, ..] = function.params.args.as_mut_slice()
        && is_null(argument)
    {
        *argument = Expr::default();
    }
    expr
}

/// Whether DataFusion simplifies an expression to NULL.
fn is_null(expr: &Expr) -> bool {
    match expr {
        Expr::Literal(value, _) => value.is_null(),
        Expr::Cast(cast) => is_null(&cast.expr),
        Expr::Case(Case { when_then_expr, .. }) => match when_then_expr.as_slice() {
            [(condition, value)] => is_false(condition) || is_null(value),
            _ => false,
        },
        _ => false,
    }
}

/// Whether a condition is constant false or NULL.
fn is_false(condition: &Expr) -> bool {
    matches!(condition, Expr::Literal(value, _) if value.is_null() || *value == ScalarValue::Boolean(Some(false)))
}

fn has_filter(expr: &Expr) -> bool {
    match expr {
        Expr::Alias(alias) => has_filter(&alias.expr),
        Expr::WindowFunction(function) => function.params.filter.is_some(),
        _ => false,
    }
}

fn without_filter(expr: Expr) -> Transformed<Expr> {
    match expr {
        Expr::Alias(mut alias) => {
            let inner = without_filter(*alias.expr);
            alias.expr = Box::new(inner.data);
            Transformed { data: Expr::Alias(alias), ..inner }
        }
        Expr::WindowFunction(function) if can_move_into_argument(&function) => {
            let mut function = *function;
            if let (Some(filter), [argument, ..]) = (function.params.filter.take(), function.params.args.as_mut_slice()) {
                let value = Box::new(std::mem::take(argument));
                *argument = Expr::Case(Case { expr: None, when_then_expr: vec![(filter, value)], else_expr: None });
            }
            Transformed::yes(Expr::WindowFunction(Box::new(function)))
        }
        other => Transformed::no(other),
    }
}

/// Whether the filter can become part of the argument.
fn can_move_into_argument(function: &WindowFunction) -> bool {
    let WindowFunctionDefinition::AggregateUDF(aggregate) = &function.fun else { return false };
    let has_both = function.params.filter.is_some() && !function.params.args.is_empty();
    has_both && is_builtin_aggregate(aggregate) && skips_nulls(aggregate.name())
}
