// SPDX-License-Identifier: Apache-2.0
//! Statements that run otherwise than in DataFusion.

use datafusion::common::Result;
use datafusion::dataframe::DataFrame;
use datafusion::execution::context::SessionContext;
use datafusion::logical_expr::{DdlStatement, LogicalPlan, LogicalPlanBuilder, Statement};

use crate::session::DeviceOptions;
use crate::table::{create_resident_table, streams};

/// Runs a plan as `SessionContext::execute_logical_plan` does, except for two statements.
///
/// - `CREATE TABLE device.t AS SELECT …` streams its rows to the device. DataFusion's method, and
///   so `SessionContext::sql`, first collects all rows on the host. A failure leaves no table; with
///   `OR REPLACE` it leaves the old one.
/// - `RESET device.…` sets a setting to its default. DataFusion resets its own settings only.
///
/// Returns an empty frame for these, else what DataFusion's method does.
///
/// # Errors
/// As DataFusion's method; if device memory runs out; or if a setting cannot change.
///
/// # Examples
/// ```
/// # tokio::runtime::Runtime::new()?.block_on(async {
/// let ctx = devicefusion::session()?;
/// for sql in [
///     "CREATE TABLE device.numbers AS SELECT value FROM generate_series(1, 100000)",
///     "RESET device.cost",
/// ] {
///     let plan = ctx.state().create_logical_plan(sql).await?;
///     devicefusion::execute_logical_plan(&ctx, plan).await?;
/// }
/// assert_eq!(ctx.table("device.numbers").await?.count().await?, 100000);
/// # datafusion::common::Result::<()>::Ok(())
/// # })?;
/// # datafusion::common::Result::<()>::Ok(())
/// ```
pub async fn execute_logical_plan(ctx: &SessionContext, plan: LogicalPlan) -> Result<DataFrame> {
    match plan {
        LogicalPlan::Ddl(DdlStatement::CreateMemoryTable(create)) if streams(ctx, &create) => {
            create_resident_table(ctx, create).await?;
        }
        LogicalPlan::Statement(Statement::ResetVariable(reset)) if reset.variable.starts_with("device.") => {
            DeviceOptions::reset(ctx.state_ref().write().config_mut().options_mut(), &reset.variable)?;
        }
        plan => return ctx.execute_logical_plan(plan).await,
    }
    Ok(DataFrame::new(ctx.state(), LogicalPlanBuilder::empty(false).build()?))
}
