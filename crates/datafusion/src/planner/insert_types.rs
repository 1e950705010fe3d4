// SPDX-License-Identifier: Apache-2.0
//! Casts of rows to insert.

use std::sync::Arc;

use datafusion::common::config::ConfigOptions;
use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::common::{Column, Result, plan_err};
use datafusion::logical_expr::dml::DmlStatement;
use datafusion::logical_expr::{Expr, ExprSchemable, LogicalPlan, LogicalPlanBuilder, WriteOp};
use datafusion::optimizer::AnalyzerRule;

/// Casts the rows of INSERT to the types of the table.
///
/// DataFusion plans SQL with such casts. But types may change later, with values for parameters,
/// and plans may not come from SQL. `MemTable` accepts castable types and does not cast: it would
/// read the bytes as another type.
#[derive(Debug)]
pub(crate) struct InsertTypes;

impl AnalyzerRule for InsertTypes {
    fn name(&self) -> &str {
        "InsertTypes"
    }

    fn analyze(&self, plan: LogicalPlan, _: &ConfigOptions) -> Result<LogicalPlan> {
        Ok(plan.transform_up(cast)?.data)
    }
}

fn cast(plan: LogicalPlan) -> Result<Transformed<LogicalPlan>> {
    let LogicalPlan::Dml(dml @ DmlStatement { op: WriteOp::Insert(_), .. }) = &plan else { return Ok(Transformed::no(plan)) };
    let (table, rows) = (dml.target.schema(), dml.input.schema());
    let (wanted, given) = (table.fields().len(), rows.fields().len());
    if wanted != given {
        return plan_err!("the table {} has {wanted} columns, and the rows to insert have {given}", dml.table_name);
    }
    if table.fields().iter().zip(rows.fields()).all(|(column, row)| column.data_type() == row.data_type()) {
        return Ok(Transformed::no(plan));
    }
    // The names stay, so that a table can check them.
    let columns = table.fields().iter().zip(rows.iter()).map(|(column, (qualifier, row))| {
        let value = Expr::Column(Column::from((qualifier, row)));
        Ok(value.cast_to(column.data_type(), rows)?.alias(row.name()))
    });
    let columns = columns.collect::<Result<Vec<_>>>()?;
    let input = LogicalPlanBuilder::from(Arc::clone(&dml.input)).project(columns)?.build()?;
    Ok(Transformed::yes(LogicalPlan::Dml(DmlStatement { input: Arc::new(input), ..dml.clone() })))
}
