// SPDX-License-Identifier: Apache-2.0
//! `DELETE`, `UPDATE` and `TRUNCATE` of resident tables.
//!
//! They become queries for the rows of the next snapshot. DataFusion's own way hands the conditions
//! of an optimized plan to the table, and loses those that are joins by then, or always false.

use std::sync::Arc;

use arrow::datatypes::Schema;
use datafusion::catalog::default_table_source::{DefaultTableSource, provider_as_source};
use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::{Transformed, TreeNode, TreeNodeRecursion};
use datafusion::common::{Column, DFSchema, DFSchemaRef, Result, not_impl_err};
use datafusion::logical_expr::dml::{DmlStatement, InsertOp};
use datafusion::logical_expr::{EmptyRelation, Expr, ExprSchemable, LogicalPlan, LogicalPlanBuilder, WriteOp, lit, when};
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
        WriteOp::Update => (rows_of_update(&dml.input, &dml.target.schema())?, true),
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
    let (rows, condition) = match input {
        LogicalPlan::Filter(filter) => (filter.input.as_ref(), Some(&filter.predicate)),
        rows => (rows, None),
    };
    match (whole_scan(rows)?, condition) {
        (Some(rows), Some(condition)) => {
            check_condition(condition, rows.schema())?;
            LogicalPlanBuilder::from(rows).filter(Expr::IsNotTrue(Box::new(condition.clone())))?.build()
        }
        (Some(rows), None) => Ok(no_rows(Arc::clone(rows.schema()))),
        (None, _) => not_impl_err!("DELETE from a resident table by {}: choose the rows by a condition", rows.display()),
    }
}

fn no_rows(schema: DFSchemaRef) -> LogicalPlan {
    LogicalPlan::EmptyRelation(EmptyRelation { produce_one_row: false, schema })
}

/// All rows, those that the condition chooses with new values. A last column tells them apart.
fn rows_of_update(input: &LogicalPlan, table: &Schema) -> Result<LogicalPlan> {
    let LogicalPlan::Projection(values) = input else {
        return not_impl_err!("UPDATE of a resident table by {}", input.display());
    };
    let (rows, condition) = match values.input.as_ref() {
        LogicalPlan::Filter(filter) => (&filter.input, Some(&filter.predicate)),
        _ => (&values.input, None),
    };
    let Some(rows) = whole_scan(rows)? else {
        return not_impl_err!("UPDATE of a resident table by {}: read other tables in subqueries", rows.display());
    };
    let new = values.expr.iter().zip(table.fields()).map(|(value, column)| {
        // A parameter's value may have another type, which the other rows must not get.
        Ok(value.clone().unalias().cast_to(column.data_type(), rows.schema())?.alias(column.name()))
    });
    let new = new.collect::<Result<Vec<_>>>()?;
    let all = LogicalPlanBuilder::from(rows.clone());
    let marked = |values: Vec<Expr>, changed: Expr| values.into_iter().chain([changed.alias(CHANGED)]);
    let Some(condition) = condition else { return all.project(marked(new, lit(true)))?.build() };
    check_condition(condition, rows.schema())?;
    let old: Vec<Expr> = rows.schema().iter().map(|(qualifier, field)| Expr::Column(Column::from((qualifier, field)))).collect();
    if !has_subquery(condition)? && !new.iter().map(has_subquery).collect::<Result<Vec<_>>>()?.contains(&true) {
        let chosen = new
            .into_iter()
            .zip(old)
            .zip(table.fields())
            .map(|((new, old), column)| Ok(when(condition.clone(), new.unalias()).otherwise(old)?.alias(column.name())));
        let changed = Expr::IsTrue(Box::new(condition.clone()));
        return all.project(marked(chosen.collect::<Result<Vec<_>>>()?, changed))?.build();
    }
    // DataFusion plans subqueries of a condition in filters only.
    let old = old.into_iter().zip(table.fields()).map(|(old, column)| old.alias(column.name()));
    let stay = all.clone().filter(Expr::IsNotTrue(Box::new(condition.clone())))?;
    let stay = stay.project(marked(old.collect(), lit(false)))?;
    let change = all.filter(condition.clone())?.project(marked(new, lit(true)))?;
    stay.union(change.build()?)?.build()
}

/// Refuses conditions that two evaluations may answer differently.
fn check_condition(condition: &Expr, rows: &DFSchema) -> Result<()> {
    let mut is_volatile = condition.is_volatile();
    for_each_subquery(condition, &mut |plan| {
        plan.apply_with_subqueries(|node| {
            is_volatile |= node.expressions().iter().any(Expr::is_volatile);
            Ok(TreeNodeRecursion::Continue)
        })?;
        Ok(())
    })?;
    if is_volatile {
        return not_impl_err!("changes of a resident table by a volatile condition: {condition}");
    }
    // Within other operators DataFusion takes a NOT IN that is NULL for true.
    let mut negations = 0;
    condition.apply(|expr| {
        negations += usize::from(matches!(expr, Expr::Not(_)));
        if let Expr::InSubquery(test) = expr
            && (test.negated || negations > 0)
            && (test.expr.nullable(rows)? || test.subquery.subquery.schema().fields().iter().any(|field| field.is_nullable()))
        {
            return not_impl_err!("changes of a resident table by NOT IN where values may be NULL; use NOT EXISTS");
        }
        Ok(TreeNodeRecursion::Continue)
    })?;
    Ok(())
}

fn has_subquery(expr: &Expr) -> Result<bool> {
    let mut found = false;
    for_each_subquery(expr, &mut |_| {
        found = true;
        Ok(())
    })?;
    Ok(found)
}

fn for_each_subquery(expr: &Expr, visit: &mut dyn FnMut(&LogicalPlan) -> Result<()>) -> Result<()> {
    expr.apply(|expr| {
        match expr {
            Expr::InSubquery(test) => visit(&test.subquery.subquery)?,
            Expr::Exists(test) => visit(&test.subquery.subquery)?,
            Expr::SetComparison(test) => visit(&test.subquery.subquery)?,
            Expr::ScalarSubquery(query) => visit(&query.subquery)?,
            _ => {}
        }
        Ok(TreeNodeRecursion::Continue)
    })?;
    Ok(())
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
