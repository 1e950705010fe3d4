// SPDX-License-Identifier: Apache-2.0
//! `DELETE`, `UPDATE` and `TRUNCATE` of resident tables.
//!
//! They become queries for the rows of the next snapshot. DataFusion's own way hands the conditions
//! of an optimized plan to the table, and loses those that are joins by then, or always false.

use std::sync::Arc;

use datafusion::catalog::default_table_source::{DefaultTableSource, provider_as_source};
use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::common::{Column, DFSchema, DFSchemaRef, Result, not_impl_err};
use datafusion::logical_expr::dml::{DmlStatement, InsertOp};
use datafusion::logical_expr::{EmptyRelation, Expr, LogicalPlan, LogicalPlanBuilder, WriteOp, lit};
use datafusion::optimizer::AnalyzerRule;

use crate::table::DeviceTable;
use crate::table::change_sink::{CHANGED, ChangedTable};

/// Plans statements that change rows of a resident table as an insert of all rows that it has
/// afterwards.
#[derive(Debug)]
pub(crate) struct TableChanges;

impl AnalyzerRule for TableChanges {
    fn name(&self) -> &str {
        "TableChanges"
    }

    fn analyze(&self, plan: LogicalPlan, _: &ConfigOptions) -> Result<LogicalPlan> {
        Ok(plan.transform_up(as_insert)?.data)
    }
}

fn as_insert(plan: LogicalPlan) -> Result<Transformed<LogicalPlan>> {
    let LogicalPlan::Dml(dml @ DmlStatement { op: WriteOp::Delete | WriteOp::Update | WriteOp::Truncate, .. }) = &plan else {
        return Ok(Transformed::no(plan));
    };
    let source = dml.target.downcast_ref::<DefaultTableSource>();
    let Some(table) = source.and_then(|source| source.table_provider.downcast_ref::<DeviceTable>()) else {
        return Ok(Transformed::no(plan));
    };
    let (rows, marks_changes) = match dml.op {
        WriteOp::Update => (rows_of_update(&dml.input)?, true),
        WriteOp::Delete => (rows_of_delete(&dml.input)?, false),
        // Of TRUNCATE.
        _ => (no_rows(DFSchema::try_from_qualified_schema(dml.table_name.clone(), &dml.target.schema())?.into()), false),
    };
    let target = provider_as_source(Arc::new(ChangedTable::try_new(table, marks_changes)?));
    let insert = DmlStatement::new(dml.table_name.clone(), target, WriteOp::Insert(InsertOp::Overwrite), Arc::new(rows));
    Ok(Transformed::yes(LogicalPlan::Dml(insert)))
}

/// The rows that stay.
fn rows_of_delete(input: &LogicalPlan) -> Result<LogicalPlan> {
    match input {
        LogicalPlan::Filter(filter) if is_scan(&filter.input) => {
            let stays = Expr::IsNotTrue(Box::new(filter.predicate.clone()));
            LogicalPlanBuilder::from(Arc::clone(&filter.input)).filter(stays)?.build()
        }
        scan if is_scan(scan) => Ok(no_rows(Arc::clone(scan.schema()))),
        _ => not_impl_err!("DELETE with LIMIT from a resident table: choose the rows by a condition"),
    }
}

fn no_rows(schema: DFSchemaRef) -> LogicalPlan {
    LogicalPlan::EmptyRelation(EmptyRelation { produce_one_row: false, schema })
}

/// The rows that stay as they are, and those with new values. A last column tells them apart.
fn rows_of_update(input: &LogicalPlan) -> Result<LogicalPlan> {
    let (values, rows, condition) = match input {
        LogicalPlan::Projection(values) => match values.input.as_ref() {
            LogicalPlan::Filter(filter) => (&values.expr, &filter.input, Some(&filter.predicate)),
            _ => (&values.expr, &values.input, None),
        },
        _ => return not_impl_err!("UPDATE of a resident table by {}", input.display()),
    };
    if !is_scan(rows) {
        return not_impl_err!("UPDATE … FROM of a resident table: read the other table in a subquery");
    }
    let with_mark = |values: Vec<Expr>, changed: bool| values.into_iter().chain([lit(changed).alias(CHANGED)]);
    let all = LogicalPlanBuilder::from(Arc::clone(rows));
    let Some(condition) = condition else { return all.project(with_mark(values.clone(), true))?.build() };
    if condition.is_volatile() {
        return not_impl_err!("UPDATE of a resident table by a volatile condition: {condition}");
    }
    let columns = rows.schema().iter().map(|(qualifier, field)| {
        let column = Expr::Column(Column::from((qualifier, field)));
        column.alias(field.name())
    });
    let stay = all.clone().filter(Expr::IsNotTrue(Box::new(condition.clone())))?;
    let stay = stay.project(with_mark(columns.collect(), false))?;
    let change = all.filter(condition.clone())?.project(with_mark(values.clone(), true))?;
    stay.union(change.build()?)?.build()
}

/// Whether a plan gives the rows of one table.
fn is_scan(plan: &LogicalPlan) -> bool {
    match plan {
        LogicalPlan::TableScan(_) => true,
        LogicalPlan::SubqueryAlias(alias) => is_scan(&alias.input),
        _ => false,
    }
}
