// SPDX-License-Identifier: Apache-2.0
//! Texts that expressions compute within themselves, such as the one in `lower(s) = 'x'`.
//!
//! Kernels write new text to columns only, so such a text becomes a column behind those that are there, and the
//! expression one over all of them. A text that may fail stays where it is if some rows do not need it, which must not fail.

use std::sync::Arc;

use arrow::datatypes::{Field, Schema, SchemaRef};
use datafusion::common::Result;
use datafusion::logical_expr::Operator;
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::ScalarFunctionExpr;
use datafusion::physical_expr::expressions::{BinaryExpr, CaseExpr, Column, InListExpr};
use datafusion::physical_expr::utils::collect_columns;
use kernels::expr::{Aggregate, Expr};

use super::aggregate::AggregateCall;
use super::builtin::is_own;
use super::translate::{lower, lower_output, may_fail, must_be_column};
use crate::reason::Reason;

/// The rows that an expression is computed of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Rows {
    /// All that come.
    All,
    /// Those that need it.
    Some,
}

/// Columns of texts behind those of a schema.
pub(crate) struct Texts {
    /// The schema with the columns of the texts.
    pub schema: SchemaRef,
    /// Each over the columns before its own.
    texts: Vec<Arc<dyn PhysicalExpr>>,
    /// Columns that are no texts.
    columns: usize,
}

impl Texts {
    /// None yet.
    pub fn behind(schema: &SchemaRef) -> Texts {
        Texts { schema: Arc::clone(schema), texts: Vec::new(), columns: schema.fields().len() }
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.texts.is_empty()
    }

    /// The expression over columns, also where it is a text itself.
    pub fn lift(&mut self, expr: &Arc<dyn PhysicalExpr>, rows: Rows) -> Result<Arc<dyn PhysicalExpr>> {
        let within = self.lift_within(expr, rows)?;
        let may_be_text = within.is::<ScalarFunctionExpr>() || within.is::<CaseExpr>() || concatenates(&within);
        if !may_be_text || !must_be_column(&within, &self.schema) {
            return Ok(within);
        }
        if rows == Rows::Some && may_fail(&within, &self.schema) {
            // The texts among which it chooses may be columns all the same.
            return if chooses(expr) { self.lift_children(expr, |_| false, |_| rows) } else { Ok(within) };
        }
        let known = self.texts.iter().position(|text| text == &within);
        let index = self.columns + known.unwrap_or(self.texts.len());
        if known.is_none() {
            let name = format!("text {}", self.texts.len());
            let field = Field::new(name, within.data_type(&self.schema)?, within.nullable(&self.schema)?);
            let fields = self.schema.fields().iter().cloned().chain([Arc::new(field)]);
            self.schema = Arc::new(Schema::new(fields.collect::<Vec<_>>()));
            self.texts.push(within);
        }
        Ok(Arc::new(Column::new(self.schema.field(index).name(), index)))
    }

    /// As [`lift`](Self::lift) for an output of a projection, which may be new text itself.
    pub fn lift_within(&mut self, expr: &Arc<dyn PhysicalExpr>, rows: Rows) -> Result<Arc<dyn PhysicalExpr>> {
        if let Some(case) = expr.downcast_ref::<CaseExpr>() {
            // Operand, conditions and values in turn, and the last value.
            let (first, count) = (usize::from(case.expr().is_some()), expr.children().len());
            let stays = |child: usize| child >= first && ((child - first) % 2 == 1 || child + 1 == count);
            return self.lift_children(expr, stays, |_| Rows::Some);
        }
        if chooses(expr) {
            return self.lift_children(expr, |_| true, |_| Rows::Some);
        }
        // Operands behind these are asked only where those before them do not say all.
        let first = match expr.downcast_ref::<BinaryExpr>().map(BinaryExpr::op) {
            Some(Operator::And | Operator::Or) => 1,
            _ if expr.is::<InListExpr>() => 2,
            _ => usize::MAX,
        };
        let of_child = |child| if child >= first { Rows::Some } else { rows };
        // Concatenation is one text after the other, whatever they are.
        let inner = concatenates(expr);
        self.lift_children(expr, |_| inner, of_child)
    }

    /// The expression with its operands lifted, each for its rows; `stays`: whether one of them may be new text itself.
    fn lift_children(
        &mut self,
        expr: &Arc<dyn PhysicalExpr>,
        stays: impl Fn(usize) -> bool,
        rows: impl Fn(usize) -> Rows,
    ) -> Result<Arc<dyn PhysicalExpr>> {
        let children = expr.children();
        let lift = |(index, child)| match stays(index) {
            true => self.lift_within(child, rows(index)),
            false => self.lift(child, rows(index)),
        };
        let lifted = children.iter().copied().enumerate().map(lift).collect::<Result<Vec<_>>>()?;
        match children.iter().zip(&lifted).all(|(child, lifted)| Arc::ptr_eq(child, lifted)) {
            true => Ok(Arc::clone(expr)),
            false => Arc::clone(expr).with_new_children(lifted),
        }
    }

    /// Lifts an expression of all rows and lowers it over the columns that are there then.
    pub fn lower(&mut self, expr: &Arc<dyn PhysicalExpr>) -> Result<Expr, Reason> {
        let lifted = self.lift(expr, Rows::All).map_err(|error| error.to_string())?;
        lower(&lifted, &self.schema)
    }

    /// The same for a value that goes on as it is: it may be a column of lists.
    pub fn lower_value(&mut self, expr: &Arc<dyn PhysicalExpr>) -> Result<Expr, Reason> {
        let lifted = self.lift(expr, Rows::All).map_err(|error| error.to_string())?;
        if lifted.is::<Column>() { lower_output(&lifted, &self.schema) } else { lower(&lifted, &self.schema) }
    }

    /// The same for an aggregate.
    pub fn lower_aggregate(&mut self, call: &AggregateCall) -> Result<Aggregate, Reason> {
        let call = call.over_keys(&self.schema).map_err(|error| error.to_string())?;
        let exprs = call.exprs_with_rows().map(|(expr, rows)| self.lift(expr, rows)).collect::<Result<Vec<_>>>();
        let exprs = exprs.map_err(|error| error.to_string())?;
        call.with_exprs(&exprs).lower(&self.schema)
    }

    /// The texts in steps, of which each is over the columns that are there before it.
    pub fn steps(&self) -> Vec<&[Arc<dyn PhysicalExpr>]> {
        let (mut steps, mut from) = (Vec::new(), 0);
        for (index, text) in self.texts.iter().enumerate() {
            if collect_columns(text).iter().any(|column| column.index() >= self.columns + from) {
                steps.push(&self.texts[from..index]);
                from = index;
            }
        }
        steps.push(&self.texts[from..]);
        steps
    }

    /// Checks that the texts are supported on the device.
    pub fn check(&self) -> Result<(), Reason> {
        self.texts.iter().try_for_each(|text| lower_output(text, &self.schema).map(|_| ()))
    }
}

pub(crate) fn concatenates(expr: &Arc<dyn PhysicalExpr>) -> bool {
    expr.downcast_ref::<BinaryExpr>().is_some_and(|binary| *binary.op() == Operator::StringConcat)
}

/// Whether an expression is one of several values.
fn chooses(expr: &Arc<dyn PhysicalExpr>) -> bool {
    let coalesces = |call: &ScalarFunctionExpr| is_own(call.fun()) && call.fun().name() == "coalesce";
    expr.is::<CaseExpr>() || expr.downcast_ref::<ScalarFunctionExpr>().is_some_and(coalesces)
}

/// Whether an expression is supported on the device, with the texts within it as columns.
pub(crate) fn has_device_form(expr: &Arc<dyn PhysicalExpr>, schema: &SchemaRef) -> Result<(), Reason> {
    let mut texts = Texts::behind(schema);
    texts.lower(expr)?;
    texts.check()
}

/// As [`has_device_form`] for an output of a projection.
pub(crate) fn output_has_device_form(expr: &Arc<dyn PhysicalExpr>, schema: &SchemaRef) -> Result<(), Reason> {
    let mut texts = Texts::behind(schema);
    let lifted = texts.lift_within(expr, Rows::All).map_err(|error| error.to_string())?;
    texts.check()?;
    lower_output(&lifted, &texts.schema).map(|_| ())
}

/// As [`has_device_form`] for an aggregate.
pub(crate) fn aggregate_has_device_form(call: &AggregateCall, schema: &SchemaRef) -> Result<(), Reason> {
    let mut texts = Texts::behind(schema);
    texts.lower_aggregate(call)?;
    texts.check()
}
