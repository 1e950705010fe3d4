// SPDX-License-Identifier: Apache-2.0
//! Strings that expressions compute within themselves, such as `lower(s)` in `lower(s) = 'x'`.
//!
//! Kernels write new strings to columns only. So such a string becomes a column behind the others,
//! and the expression refers to that column. A conditionally evaluated string stays in the
//! expression if it may fail. Rows without need of it must not fail.

use std::sync::Arc;

use arrow::datatypes::{Field, Schema, SchemaRef};
use datafusion::common::Result;
use datafusion::logical_expr::Operator;
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::ScalarFunctionExpr;
use datafusion::physical_expr::expressions::{BinaryExpr, CaseExpr, Column, InListExpr};
use datafusion::physical_expr::utils::collect_columns;
use kernels::expr::{Aggregate, Expr};
use kernels::support::supports_aggregate;

use super::aggregate::AggregateCall;
use super::builtin::is_builtin;
use super::evaluation::Evaluation;
use super::translate::{lower, may_fail, must_be_column, supported, supported_output};
use crate::reason::Reason;

/// Columns of computed strings behind those of a schema.
pub(crate) struct ComputedStrings {
    /// The schema with the columns of the strings.
    pub schema: SchemaRef,
    /// Each over the columns before its own.
    strings: Vec<Arc<dyn PhysicalExpr>>,
    /// Number of columns before the first string.
    input_columns: usize,
}

impl ComputedStrings {
    /// No strings yet.
    pub fn new(schema: &SchemaRef) -> ComputedStrings {
        ComputedStrings { schema: Arc::clone(schema), strings: Vec::new(), input_columns: schema.fields().len() }
    }

    pub fn is_empty(&self) -> bool {
        self.strings.is_empty()
    }

    /// Lifts the strings of an expression to columns, also the expression itself where it is one.
    pub fn lift(&mut self, expr: &Arc<dyn PhysicalExpr>, evaluation: Evaluation) -> Result<Arc<dyn PhysicalExpr>> {
        let within = self.lift_within(expr, evaluation)?;
        let may_be_string = within.is::<ScalarFunctionExpr>() || within.is::<CaseExpr>() || concatenates(&within);
        if !may_be_string || !must_be_column(&within, &self.schema) {
            return Ok(within);
        }
        if evaluation == Evaluation::Conditional && may_fail(&within, &self.schema) {
            // Strings within the branches may still be columns.
            return if chooses(expr) { self.lift_children(expr, |_| false, |_| evaluation) } else { Ok(within) };
        }
        let known = self.strings.iter().position(|string| string == &within);
        let index = self.input_columns + known.unwrap_or(self.strings.len());
        if known.is_none() {
            let name = format!("string {}", self.strings.len());
            let field = Field::new(name, within.data_type(&self.schema)?, within.nullable(&self.schema)?);
            let fields = self.schema.fields().iter().cloned().chain([Arc::new(field)]);
            self.schema = Arc::new(Schema::new(fields.collect::<Vec<_>>()));
            self.strings.push(within);
        }
        Ok(Arc::new(Column::new(self.schema.field(index).name(), index)))
    }

    /// As [`lift`](Self::lift) for an output of a projection, which may be a new string itself.
    #[recursive::recursive]
    pub fn lift_within(&mut self, expr: &Arc<dyn PhysicalExpr>, evaluation: Evaluation) -> Result<Arc<dyn PhysicalExpr>> {
        if let Some(case) = expr.downcast_ref::<CaseExpr>() {
            // Operand, conditions and values in turn, and the last value.
            let (first, count) = (usize::from(case.expr().is_some()), expr.children().len());
            let is_value = |child: usize| child >= first && ((child - first) % 2 == 1 || child + 1 == count);
            return self.lift_children(expr, is_value, |_| Evaluation::Conditional);
        }
        if chooses(expr) {
            return self.lift_children(expr, |_| true, |_| Evaluation::Conditional);
        }
        // AND, OR and IN short-circuit: later operands are evaluated conditionally.
        let first_conditional = match expr.downcast_ref::<BinaryExpr>().map(BinaryExpr::op) {
            Some(Operator::And | Operator::Or) => 1,
            _ if expr.is::<InListExpr>() => 2,
            _ => usize::MAX,
        };
        let of_child = |child| if child >= first_conditional { Evaluation::Conditional } else { evaluation };
        // Kernels concatenate new strings without columns for the parts.
        let is_concatenation = concatenates(expr);
        self.lift_children(expr, |_| is_concatenation, of_child)
    }

    /// Lifts the strings of the operands. `stays`: whether an operand may be a new string itself.
    fn lift_children(
        &mut self,
        expr: &Arc<dyn PhysicalExpr>,
        stays: impl Fn(usize) -> bool,
        evaluation: impl Fn(usize) -> Evaluation,
    ) -> Result<Arc<dyn PhysicalExpr>> {
        let children = expr.children();
        let lift = |(index, child)| match stays(index) {
            true => self.lift_within(child, evaluation(index)),
            false => self.lift(child, evaluation(index)),
        };
        let lifted = children.iter().copied().enumerate().map(lift).collect::<Result<Vec<_>>>()?;
        match children.iter().zip(&lifted).all(|(child, lifted)| Arc::ptr_eq(child, lifted)) {
            true => Ok(Arc::clone(expr)),
            false => Arc::clone(expr).with_new_children(lifted),
        }
    }

    /// Lifts the strings of an expression that is always evaluated, and lowers it over all columns.
    pub fn lower(&mut self, expr: &Arc<dyn PhysicalExpr>) -> Result<Expr, Reason> {
        let lifted = self.lift(expr, Evaluation::Always).map_err(|error| error.to_string())?;
        lower(&lifted, &self.schema)
    }

    /// As [`lower`](Self::lower) for an aggregate.
    pub fn lower_aggregate(&mut self, call: &AggregateCall) -> Result<Aggregate, Reason> {
        let call = call.over_keys(&self.schema).map_err(|error| error.to_string())?;
        let exprs = call.exprs_with_evaluation().map(|(expr, evaluation)| self.lift(expr, evaluation));
        let exprs = exprs.collect::<Result<Vec<_>>>().map_err(|error| error.to_string())?;
        call.with_exprs(&exprs).lower(&self.schema)
    }

    /// The strings in steps: a step refers to the input and to strings of earlier steps.
    pub fn steps(&self) -> Vec<&[Arc<dyn PhysicalExpr>]> {
        let (mut steps, mut from) = (Vec::new(), 0);
        for (index, string) in self.strings.iter().enumerate() {
            if collect_columns(string).iter().any(|column| column.index() >= self.input_columns + from) {
                steps.push(&self.strings[from..index]);
                from = index;
            }
        }
        steps.push(&self.strings[from..]);
        steps
    }

    /// Checks that the strings are supported on the device.
    pub fn check(&self) -> Result<(), Reason> {
        self.strings.iter().try_for_each(|string| supported_output(string, &self.schema).map(|_| ()))
    }
}

pub(crate) fn concatenates(expr: &Arc<dyn PhysicalExpr>) -> bool {
    expr.downcast_ref::<BinaryExpr>().is_some_and(|binary| *binary.op() == Operator::StringConcat)
}

/// Whether an expression is one of several values: `CASE` or `coalesce`.
fn chooses(expr: &Arc<dyn PhysicalExpr>) -> bool {
    let coalesces = |call: &ScalarFunctionExpr| is_builtin(call.fun()) && call.fun().name() == "coalesce";
    expr.is::<CaseExpr>() || expr.downcast_ref::<ScalarFunctionExpr>().is_some_and(coalesces)
}

/// Whether an expression is supported on the device, with its strings as columns.
pub(crate) fn support_of_expr(expr: &Arc<dyn PhysicalExpr>, schema: &SchemaRef) -> Result<(), Reason> {
    let mut strings = ComputedStrings::new(schema);
    let lifted = strings.lift(expr, Evaluation::Always).map_err(|error| error.to_string())?;
    supported(&lifted, &strings.schema)?;
    strings.check()
}

/// As [`support_of_expr`] for an output of a projection.
pub(crate) fn support_of_output(expr: &Arc<dyn PhysicalExpr>, schema: &SchemaRef) -> Result<(), Reason> {
    let mut strings = ComputedStrings::new(schema);
    let lifted = strings.lift_within(expr, Evaluation::Always).map_err(|error| error.to_string())?;
    strings.check()?;
    supported_output(&lifted, &strings.schema).map(|_| ())
}

/// As [`support_of_expr`] for an aggregate.
pub(crate) fn support_of_aggregate(call: &AggregateCall, schema: &SchemaRef) -> Result<(), Reason> {
    let mut strings = ComputedStrings::new(schema);
    let lowered = strings.lower_aggregate(call)?;
    supports_aggregate(&lowered, &strings.schema)?;
    strings.check()
}
