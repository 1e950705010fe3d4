// SPDX-License-Identifier: Apache-2.0
//! Statements that run otherwise than in DataFusion.

use std::sync::Arc;

use datafusion::common::{Result, TableReference, plan_err};
use datafusion::dataframe::DataFrame;
use datafusion::execution::context::{SessionContext, SessionState};
use datafusion::logical_expr::{DdlStatement, LogicalPlan, LogicalPlanBuilder, Statement};
use datafusion::physical_plan::ExecutionPlan;

use crate::session::{DeviceOptions, ExplainedPlan};
use crate::table::{create_resident_table, streams};

/// Runs a plan as `SessionContext::execute_logical_plan` does, except for some statements.
///
/// - `CREATE TABLE device.t AS SELECT …` streams its rows to the device. DataFusion's method, and
///   so `SessionContext::sql`, first collects all rows on the host. A failure leaves no table; with
///   `OR REPLACE` it leaves the old one.
/// - `RESET device.…` sets a setting to its default. DataFusion resets its own settings only.
/// - `DROP TABLE` of a file's name is an error. DataFusion's method does nothing.
///
/// Returns an empty frame for these, else what DataFusion's method does.
///
/// # Errors
/// As DataFusion's method; also if device memory runs out or a setting cannot change.
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
    execute_logical_plan_watched(ctx, plan, |_| {}).await
}

/// As [`execute_logical_plan`], which may run a query itself: for `CREATE TABLE device.t AS
/// SELECT …`. Then `watch` first gets the query's plan, whose metrics show how far it is.
///
/// # Errors
/// As [`execute_logical_plan`].
///
/// # Examples
/// ```
/// # tokio::runtime::Runtime::new()?.block_on(async {
/// let ctx = devicefusion::session()?;
/// let sql = "CREATE TABLE device.numbers AS SELECT value FROM generate_series(1, 1000)";
/// let plan = ctx.state().create_logical_plan(sql).await?;
/// let mut watched = None;
/// devicefusion::execute_logical_plan_watched(&ctx, plan, |plan| watched = Some(plan.clone())).await?;
/// let read = watched.and_then(|plan| plan.metrics()?.output_rows());
/// assert_eq!(read, Some(1000));
/// # datafusion::common::Result::<()>::Ok(())
/// # })?;
/// # datafusion::common::Result::<()>::Ok(())
/// ```
pub async fn execute_logical_plan_watched(
    ctx: &SessionContext,
    plan: LogicalPlan,
    watch: impl FnOnce(&Arc<dyn ExecutionPlan>) + Send,
) -> Result<DataFrame> {
    match plan {
        LogicalPlan::Ddl(DdlStatement::CreateMemoryTable(create)) if streams(ctx, &create) => {
            create_resident_table(ctx, create, watch).await?;
        }
        LogicalPlan::Statement(Statement::ResetVariable(reset)) if reset.variable.starts_with("device.") => {
            DeviceOptions::reset(ctx.state_ref().write().config_mut().options_mut(), &reset.variable)?;
        }
        LogicalPlan::Ddl(DdlStatement::DropTable(drop)) if is_file(ctx, &drop.name).await => {
            return plan_err!("'{}' is a file and no table: DROP TABLE removes no files", drop.name.table());
        }
        plan => return ctx.execute_logical_plan(plan).await,
    }
    Ok(DataFrame::new(ctx.state(), LogicalPlanBuilder::empty(false).build()?))
}

/// Whether a name is that of a file, and of no table.
async fn is_file(ctx: &SessionContext, name: &TableReference) -> bool {
    let catalog = &ctx.copied_config().options().catalog.clone();
    let name = name.clone().resolve(&catalog.default_catalog, &catalog.default_schema);
    let schema = ctx.catalog(&name.catalog).and_then(|catalog| catalog.schema(&name.schema));
    let Some(schema) = schema.filter(|schema| !schema.table_names().iter().any(|table| **table == *name.table)) else {
        return false;
    };
    schema.table(&name.table).await.is_ok_and(|table| table.is_some())
}

/// The plan of a query as EXPLAIN makes it: a device that is closed stays closed.
///
/// # Errors
/// As `SessionState::create_physical_plan`.
///
/// # Examples
/// ```
/// # tokio::runtime::Runtime::new()?.block_on(async {
/// let ctx = devicefusion::session()?;
/// let query = ctx.state().create_logical_plan("SELECT value % 7 FROM generate_series(1, 100000)").await?;
/// devicefusion::plan_for_explain(&ctx.state(), &query).await?;
/// assert!(devicefusion::DeviceRuntime::of(ctx.state().config()).is_some_and(|runtime| runtime.opened().is_none()));
/// # datafusion::common::Result::<()>::Ok(())
/// # })?;
/// # datafusion::common::Result::<()>::Ok(())
/// ```
pub async fn plan_for_explain(state: &SessionState, query: &LogicalPlan) -> Result<Arc<dyn ExecutionPlan>> {
    state_for_explain(state, Arc::default()).create_physical_plan(query).await
}

/// A session whose plans do not open its device.
pub(crate) fn state_for_explain(state: &SessionState, plan: Arc<ExplainedPlan>) -> SessionState {
    let mut state = state.clone();
    DeviceOptions::set_explained(state.config_mut().options_mut(), plan);
    state
}
