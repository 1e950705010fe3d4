// SPDX-License-Identifier: Apache-2.0
//! `MERGE INTO` a resident table, as a join of its numbered rows with the source.

use std::sync::Arc;

use arrow::datatypes::{DataType, FieldRef};
use datafusion::catalog::TableProvider;
use datafusion::catalog::default_table_source::provider_as_source;
use datafusion::common::tree_node::TreeNode;
use datafusion::common::{Column, DFSchema, Result, ScalarValue, TableReference, internal_err, not_impl_err, plan_err};
use datafusion::logical_expr::dml::{MergeIntoAction, MergeIntoClause, MergeIntoClauseKind, MergeIntoOp};
use datafusion::logical_expr::{Case, Expr, ExprSchemable, JoinType, LogicalPlan, LogicalPlanBuilder, col, lit};

use crate::exec::JoinTypeFacts;
use crate::table::DeviceTable;
use crate::table::added_columns::{CLAUSE, DELETED, NUMBER, SOURCE, check_names};
use crate::table::changes::{check_nulls, for_each_subquery};
use crate::table::numbered::NumberedTable;
use crate::table::snapshot::Snapshot;

/// The changed, deleted and inserted rows. Each has its [`NUMBER`], NULL for an inserted one, and
/// the flag [`DELETED`].
pub(super) fn rows_of_merge(
    op: &MergeIntoOp,
    name: &TableReference,
    table: &DeviceTable,
    source: &LogicalPlan,
    before: &Arc<Snapshot>,
) -> Result<LogicalPlan> {
    check(op, name, source)?;
    let numbered = provider_as_source(Arc::new(NumberedTable::new(Arc::clone(before))));
    let target = LogicalPlanBuilder::scan(name.clone(), numbered, None)?;
    let columns = source.schema().iter().map(|(qualifier, field)| Expr::Column(Column::from((qualifier, field))));
    let source = LogicalPlanBuilder::from(source.clone()).project(columns.chain([lit(true).alias(SOURCE)]))?.build()?;
    let joined = target.join_on(source, join_type(&op.clauses), [op.on.clone()])?;
    check_nulls(&op.on, joined.schema())?;
    check_predicates(&op.clauses, joined.schema())?;

    let columns = joined.schema().iter().map(|(qualifier, field)| Expr::Column(Column::from((qualifier, field))));
    let columns: Vec<Expr> = columns.chain([first_clause(&op.clauses)]).collect();
    let met = joined.project(columns)?.filter(column(CLAUSE).is_not_null())?.build()?;

    let mut new = Vec::new();
    for (position, field) in table.schema().fields().iter().enumerate() {
        let value = new_value(op, name, table, position, field, met.schema())?;
        new.push(value.alias(field.name()));
    }
    let number = Expr::Column(Column::new(Some(name.clone()), NUMBER));
    let deleting = numbers(&op.clauses, |clause| clause.action == MergeIntoAction::Delete);
    let deleted = column(CLAUSE).in_list(deleting, false);
    let last = [number.alias(NUMBER), deleted.alias(DELETED)];
    LogicalPlanBuilder::from(met).project(new.into_iter().chain(last))?.build()
}

/// Refuses what has no clear meaning, or no plan.
fn check(op: &MergeIntoOp, name: &TableReference, source: &LogicalPlan) -> Result<()> {
    if source.schema().iter().any(|(qualifier, _)| qualifier.is_some_and(|qualifier| qualifier.resolved_eq(name))) {
        return plan_err!("the source of MERGE INTO {name} has the name of the table: give it an alias");
    }
    check_names(source.schema().fields())?;
    check_plain_functions("ON", &op.on)?;
    let mut has_subquery = false;
    for_each_subquery(&op.on, &mut |_| has_subquery = true)?;
    // DataFusion plans subqueries in the condition of inner joins only.
    if has_subquery && !JoinTypeFacts::of(join_type(&op.clauses)).is_inner() {
        return not_impl_err!("a subquery in ON of MERGE INTO with WHEN NOT MATCHED; put it into the source");
    }
    for clause in &op.clauses {
        let values: Vec<&Expr> = match &clause.action {
            MergeIntoAction::Update(assignments) => assignments.iter().map(|(_, value)| value).collect(),
            MergeIntoAction::Insert { values, .. } => values.iter().collect(),
            MergeIntoAction::Delete => vec![],
        };
        for expr in clause.predicate.iter().chain(values) {
            check_plain_functions("a WHEN clause", expr)?;
            let is_of_target = |column: &&Column| column.relation.as_ref() == Some(name);
            let missing = match clause.kind.canonical() {
                MergeIntoClauseKind::NotMatchedBySource => expr.column_refs().into_iter().find(|column| !is_of_target(column)),
                MergeIntoClauseKind::NotMatchedByTarget => expr.column_refs().into_iter().find(is_of_target),
                _ => None,
            };
            if let Some(column) = missing {
                return plan_err!("a row that is not matched has no {column}: a WHEN clause of MERGE INTO reads it");
            }
            let mut has_subquery = false;
            for_each_subquery(expr, &mut |_| has_subquery = true)?;
            if has_subquery {
                return not_impl_err!("a subquery in a WHEN clause of MERGE INTO a resident table; put it into the source");
            }
        }
    }
    Ok(())
}

/// Refuses functions of several rows: an aggregate, or one of a window.
fn check_plain_functions(clause: &str, expr: &Expr) -> Result<()> {
    let is_of_rows = |expr: &Expr| Ok(matches!(expr, Expr::AggregateFunction(_) | Expr::WindowFunction(_)));
    if expr.exists(is_of_rows)? {
        return plan_err!("{clause} of MERGE INTO has no group of rows to aggregate: {expr}; put it into the source");
    }
    Ok(())
}

fn check_predicates(clauses: &[MergeIntoClause], rows: &DFSchema) -> Result<()> {
    for predicate in clauses.iter().filter_map(|clause| clause.predicate.as_ref()) {
        let ty = predicate.get_type(rows)?;
        if !matches!(ty, DataType::Boolean | DataType::Null) {
            return plan_err!("the condition of a WHEN clause of MERGE INTO must be Boolean: {predicate} is {ty}");
        }
    }
    Ok(())
}

fn column(name: &str) -> Expr {
    col(Column::from_name(name))
}

/// The join that gives rows to each clause, and few others.
fn join_type(clauses: &[MergeIntoClause]) -> JoinType {
    let has = |kind: MergeIntoClauseKind| clauses.iter().any(|clause| clause.kind.canonical() == kind);
    match (has(MergeIntoClauseKind::NotMatchedByTarget), has(MergeIntoClauseKind::NotMatchedBySource)) {
        (true, true) => JoinType::Full,
        (true, false) => JoinType::Right,
        (false, true) => JoinType::Left,
        (false, false) => JoinType::Inner,
    }
}

/// The number of the first clause whose kind and predicate a row meets.
fn first_clause(clauses: &[MergeIntoClause]) -> Expr {
    let met = clauses.iter().zip(0_i32..).map(|(clause, number)| {
        let (is_of_target, is_of_source) = (column(NUMBER).is_not_null(), column(SOURCE).is_not_null());
        let kind = match clause.kind {
            MergeIntoClauseKind::Matched => is_of_target.and(is_of_source),
            MergeIntoClauseKind::NotMatched | MergeIntoClauseKind::NotMatchedByTarget => column(NUMBER).is_null(),
            MergeIntoClauseKind::NotMatchedBySource => column(SOURCE).is_null(),
        };
        // AND may evaluate the predicate for rows of another kind, where it may fail.
        let met = match &clause.predicate {
            Some(predicate) => Expr::Case(Case {
                expr: None,
                when_then_expr: vec![(Box::new(kind), Box::new(predicate.clone()))],
                else_expr: Some(Box::new(lit(false))),
            }),
            None => kind,
        };
        (Box::new(met), Box::new(lit(number)))
    });
    Expr::Case(Case { expr: None, when_then_expr: met.collect(), else_expr: None }).alias(CLAUSE)
}

/// The value of a column in a new row: by the clause that sets it, or else the target's.
fn new_value(
    op: &MergeIntoOp,
    name: &TableReference,
    table: &DeviceTable,
    position: usize,
    field: &FieldRef,
    rows: &DFSchema,
) -> Result<Expr> {
    let old = Expr::Column(Column::new(Some(name.clone()), field.name()));
    let mut cases = Vec::new();
    for (clause, number) in op.clauses.iter().zip(0_i32..) {
        let value = match &clause.action {
            MergeIntoAction::Delete => None,
            MergeIntoAction::Update(assignments) => {
                assignments.iter().find(|(column, _)| column == field.name()).map(|(_, value)| value.clone())
            }
            MergeIntoAction::Insert { columns, values } => {
                let given = match columns.as_slice() {
                    [] => Some(position),
                    columns => columns.iter().position(|column| column == field.name()),
                };
                Some(match given {
                    Some(given) => match values.get(given) {
                        Some(value) => value.clone(),
                        None => return internal_err!("INSERT of {} values", values.len()),
                    },
                    None => table.get_column_default(field.name()).cloned().unwrap_or_else(|| lit(ScalarValue::Null)),
                })
            }
        };
        // Each value by itself: a CASE would bring all to one type first.
        let value = value.map(|value| value.cast_to(field.data_type(), rows)).transpose()?;
        cases.extend(value.map(|value| (Box::new(column(CLAUSE).eq(lit(number))), Box::new(value))));
    }
    if cases.is_empty() {
        return Ok(old);
    }
    Ok(Expr::Case(Case { expr: None, when_then_expr: cases, else_expr: Some(Box::new(old)) }))
}

fn numbers(clauses: &[MergeIntoClause], of: impl Fn(&MergeIntoClause) -> bool) -> Vec<Expr> {
    clauses.iter().zip(0_i32..).filter(|(clause, _)| of(clause)).map(|(_, number)| lit(number)).collect()
}
