// SPDX-License-Identifier: Apache-2.0
//! `DELETE`, `UPDATE`, `TRUNCATE` and `MERGE INTO` of resident tables.
//!
//! They become queries for the rows of the next snapshot. DataFusion's own way hands the conditions
//! of an optimized plan to the table, and loses those that are joins by then, or always false.

use std::sync::Arc;

use arrow::datatypes::{FieldRef, Schema};
use datafusion::catalog::default_table_source::{DefaultTableSource, provider_as_source};
use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::{Transformed, TreeNode, TreeNodeRecursion};
use datafusion::common::{Column, DFSchema, DFSchemaRef, Result, internal_err, not_impl_err};
use datafusion::logical_expr::dml::{DmlStatement, InsertOp};
use datafusion::logical_expr::{
    BinaryExpr, EmptyRelation, Expr, ExprSchemable, LogicalPlan, LogicalPlanBuilder, Operator, WriteOp, col, lit, when,
};
use datafusion::optimizer::AnalyzerRule;

use crate::error::ANALYZER_RULE;
use crate::table::added_columns::{CHANGED, NUMBER, check_names};
use crate::table::change_sink::{ChangedTable, GivenRows};
use crate::table::merge_into::rows_of_merge;
use crate::table::numbered::NumberedTable;
use crate::table::{DeviceTable, Snapshot};

/// Plans a change of rows of a resident table as an insert of the rows that it has afterwards, or
/// of the changed ones.
#[derive(Debug)]
pub(crate) struct TableChanges;

impl AnalyzerRule for TableChanges {
    fn name(&self) -> &str {
        ANALYZER_RULE
    }

    fn analyze(&self, plan: LogicalPlan, _: &ConfigOptions) -> Result<LogicalPlan> {
        Ok(plan.transform_up(as_insert)?.data)
    }
}

fn as_insert(plan: LogicalPlan) -> Result<Transformed<LogicalPlan>> {
    let LogicalPlan::Dml(
        dml @ DmlStatement { op: WriteOp::Delete | WriteOp::Update | WriteOp::Truncate | WriteOp::MergeInto(_), .. },
    ) = &plan
    else {
        return Ok(Transformed::no(plan));
    };
    let source = dml.target.downcast_ref::<DefaultTableSource>();
    let Some(table) = source.and_then(|source| source.table_provider.downcast_ref::<DeviceTable>()) else {
        return Ok(Transformed::no(plan));
    };
    let before = table.state().current()?;
    if matches!(dml.op, WriteOp::Update | WriteOp::MergeInto(_)) {
        check_names(dml.target.schema().fields())?;
    }
    let (rows, given) = match &dml.op {
        WriteOp::Update => rows_of_update(&dml.input, &dml.target.schema(), &before)?,
        WriteOp::Delete => (rows_of_delete(&dml.input)?, GivenRows::Kept),
        WriteOp::MergeInto(op) => (rows_of_merge(op, &dml.table_name, table, &dml.input, &before)?, GivenRows::Merged),
        WriteOp::Truncate => {
            let schema = DFSchema::try_from_qualified_schema(dml.table_name.clone(), &dml.target.schema())?;
            (no_rows(schema.into()), GivenRows::Kept)
        }
        _ => return Ok(Transformed::no(plan)),
    };
    let target = provider_as_source(Arc::new(ChangedTable::new(table, before, given)));
    let insert = DmlStatement::new(dml.table_name.clone(), target, WriteOp::Insert(InsertOp::Overwrite), Arc::new(rows));
    Ok(Transformed::yes(LogicalPlan::Dml(insert)))
}

/// The rows that stay.
fn rows_of_delete(input: &LogicalPlan) -> Result<LogicalPlan> {
    let (rows, condition) = match input {
        LogicalPlan::Filter(filter) => (filter.input.as_ref(), Some(&filter.predicate)),
        rows => (rows, None),
    };
    match (whole_scan(rows)?, condition) {
        (Some(rows), Some(condition)) => {
            check_nulls(condition, rows.schema())?;
            LogicalPlanBuilder::from(rows).filter(Expr::IsNotTrue(Box::new(condition.clone())))?.build()
        }
        (Some(rows), None) => Ok(no_rows(Arc::clone(rows.schema()))),
        (None, _) => not_impl_err!("DELETE from a resident table by {}: choose the rows by a condition", rows.display()),
    }
}

fn no_rows(schema: DFSchemaRef) -> LogicalPlan {
    LogicalPlan::EmptyRelation(EmptyRelation { produce_one_row: false, schema })
}

/// The rows with new values, and which ones of the table they are.
fn rows_of_update(input: &LogicalPlan, table: &Schema, before: &Arc<Snapshot>) -> Result<(LogicalPlan, GivenRows)> {
    let LogicalPlan::Projection(values) = input else {
        return not_impl_err!("UPDATE of a resident table by {}", input.display());
    };
    let (rows, condition) = match values.input.as_ref() {
        LogicalPlan::Filter(filter) => (&filter.input, Some(&filter.predicate)),
        _ => (&values.input, None),
    };
    let Some(scan) = whole_scan(rows)? else {
        return not_impl_err!("UPDATE of a resident table by {}: read other tables in subqueries", rows.display());
    };
    let cast = |(value, column): (&Expr, &FieldRef)| {
        // A parameter's value may have another type, which the other rows must not get.
        Ok(value.clone().unalias().cast_to(column.data_type(), scan.schema())?.alias(column.name()))
    };
    let new = values.expr.iter().zip(table.fields()).map(cast).collect::<Result<Vec<_>>>()?;
    let with_last = |values: Vec<Expr>, last: Expr| values.into_iter().chain([last]);
    let all = LogicalPlanBuilder::from(scan.clone());
    let Some(condition) = condition else {
        let rows = all.project(with_last(new, lit(true).alias(CHANGED)))?.build()?;
        return Ok((rows, GivenRows::Flagged));
    };
    check_nulls(condition, scan.schema())?;
    if is_plain(condition)? && new.iter().map(is_plain).collect::<Result<Vec<_>>>()?.iter().all(|plain| *plain) {
        let old = scan.schema().iter().map(|(qualifier, field)| Expr::Column(Column::from((qualifier, field))));
        let chosen = new
            .into_iter()
            .zip(old)
            .zip(table.fields())
            .map(|((new, old), column)| Ok(when(condition.clone(), new.unalias()).otherwise(old)?.alias(column.name())));
        let changed = Expr::IsTrue(Box::new(condition.clone())).alias(CHANGED);
        let rows = all.project(with_last(chosen.collect::<Result<Vec<_>>>()?, changed))?.build()?;
        return Ok((rows, GivenRows::Flagged));
    }
    // A second evaluation could choose other rows. DataFusion plans subqueries of a condition in
    // filters only.
    let numbered = LogicalPlanBuilder::from(numbered_scan(rows, before)?);
    let rows = numbered.filter(condition.clone())?.project(with_last(new, col(Column::from_name(NUMBER))))?.build()?;
    Ok((rows, GivenRows::Numbered))
}

/// Whether the same row always gives the same value, without a subquery.
fn is_plain(expr: &Expr) -> Result<bool> {
    let mut has_subquery = false;
    for_each_subquery(expr, &mut |_| has_subquery = true)?;
    Ok(!has_subquery && !expr.is_volatile())
}

/// Refuses `IN (SELECT …)` where DataFusion would take NULL for true: NULLs are possible, and the
/// condition is neither the test nor its AND and OR with others.
pub(super) fn check_nulls(condition: &Expr, rows: &DFSchema) -> Result<()> {
    match condition {
        Expr::BinaryExpr(BinaryExpr { left, op: Operator::And | Operator::Or, right }) => {
            check_nulls(left, rows)?;
            return check_nulls(right, rows);
        }
        Expr::InSubquery(test) if !test.negated => return check_nulls(&test.expr, rows),
        _ => {}
    }
    condition.apply(|expr| {
        if let Expr::InSubquery(test) = expr
            && (test.expr.nullable(rows)? || test.subquery.subquery.schema().fields().iter().any(|field| field.is_nullable()))
        {
            return not_impl_err!(
                "changes of a resident table by IN (SELECT …) within another test, where values may be NULL; use EXISTS"
            );
        }
        Ok(TreeNodeRecursion::Continue)
    })?;
    Ok(())
}

pub(super) fn for_each_subquery(expr: &Expr, visit: &mut dyn FnMut(&LogicalPlan)) -> Result<()> {
    expr.apply(|expr| {
        match expr {
            Expr::InSubquery(test) => visit(&test.subquery.subquery),
            Expr::Exists(test) => visit(&test.subquery.subquery),
            Expr::SetComparison(test) => visit(&test.subquery.subquery),
            Expr::ScalarSubquery(query) => visit(&query.subquery),
            _ => {}
        }
        Ok(TreeNodeRecursion::Continue)
    })?;
    Ok(())
}

/// A scan of one table, perhaps with an alias, whose rows have numbers.
fn numbered_scan(plan: &LogicalPlan, before: &Arc<Snapshot>) -> Result<LogicalPlan> {
    match plan {
        LogicalPlan::TableScan(scan) => {
            let table = provider_as_source(Arc::new(NumberedTable::new(Arc::clone(before))));
            LogicalPlanBuilder::scan(scan.table_name.clone(), table, None)?.build()
        }
        LogicalPlan::SubqueryAlias(alias) => {
            LogicalPlanBuilder::from(numbered_scan(&alias.input, before)?).alias(alias.alias.clone())?.build()
        }
        other => internal_err!("a numbered scan of {}", other.display()),
    }
}

/// The plan with all rows and columns of one table; `None` for others. A prepared statement is
/// optimized already, so that its scan may lack columns.
fn whole_scan(plan: &LogicalPlan) -> Result<Option<LogicalPlan>> {
    Ok(match plan {
        LogicalPlan::TableScan(scan) if scan.filters.is_empty() && scan.fetch.is_none() => {
            Some(LogicalPlanBuilder::scan(scan.table_name.clone(), Arc::clone(&scan.source), None)?.build()?)
        }
        LogicalPlan::SubqueryAlias(alias) => match whole_scan(&alias.input)? {
            Some(scan) => Some(LogicalPlanBuilder::from(scan).alias(alias.alias.clone())?.build()?),
            None => None,
        },
        _ => None,
    })
}
