// SPDX-License-Identifier: Apache-2.0
//! Classification of plans: those with effects run when a statement is executed.
//!
//! DataFusion runs INSERT, UPDATE, DELETE and COPY only when their result is read. A driver runs
//! them at once, because a caller of `execute` need not read any result.

use datafusion::logical_expr::{LogicalPlan, Statement};

/// Whether the plan writes rows once it runs: INSERT, UPDATE, DELETE, COPY, and EXPLAIN ANALYZE of
/// one. EXPLAIN alone writes none.
///
/// For an EXECUTE of a prepared statement, pass the plan of the data frame that
/// `SessionContext::execute_logical_plan` returns.
pub fn writes_rows(plan: &LogicalPlan) -> bool {
    match plan {
        LogicalPlan::Analyze(analyze) => writes_rows(&analyze.input),
        plan => counts_written_rows(plan),
    }
}

/// Whether the result of the plan is the number of written rows.
pub fn counts_written_rows(plan: &LogicalPlan) -> bool {
    matches!(plan, LogicalPlan::Dml(_) | LogicalPlan::Copy(_))
}

/// Whether `SessionContext::execute_logical_plan` itself runs the plan: DDL, SET, PREPARE and the
/// like. EXECUTE is none of them: it stands for the prepared statement.
pub(crate) fn is_command(plan: &LogicalPlan) -> bool {
    match plan {
        LogicalPlan::Ddl(_) => true,
        LogicalPlan::Statement(statement) => !matches!(statement, Statement::Execute(_)),
        _ => false,
    }
}
