// SPDX-License-Identifier: Apache-2.0
//! `CREATE TABLE device.t AS SELECT …` with rows that stream to the device.

use std::sync::Arc;

use datafusion::common::{Result, exec_err};
use datafusion::dataframe::DataFrame;
use datafusion::execution::context::SessionContext;
use datafusion::logical_expr::{CreateMemoryTable, DdlStatement, LogicalPlan, LogicalPlanBuilder};

use crate::session::{DeviceOptions, DeviceRuntime};
use crate::table::DeviceTable;
use crate::table::schema::DEVICE_SCHEMA;

/// Runs a plan as `SessionContext::execute_logical_plan` does, but streams the rows of
/// `CREATE TABLE device.t AS SELECT …` to the device.
///
/// DataFusion's method, and so `SessionContext::sql`, first collects all rows on the host. A
/// failure leaves no table; with `OR REPLACE` it leaves the old one.
///
/// Returns an empty frame for the table, else what DataFusion's method does.
///
/// # Errors
/// As DataFusion's method; or if device memory runs out.
///
/// # Examples
/// ```
/// # tokio::runtime::Runtime::new()?.block_on(async {
/// let ctx = devicefusion::session()?;
/// let sql = "CREATE TABLE device.numbers AS SELECT value FROM generate_series(1, 100000)";
/// let plan = ctx.state().create_logical_plan(sql).await?;
/// devicefusion::execute_logical_plan(&ctx, plan).await?;
/// assert_eq!(ctx.table("device.numbers").await?.count().await?, 100000);
/// # datafusion::common::Result::<()>::Ok(())
/// # })?;
/// # datafusion::common::Result::<()>::Ok(())
/// ```
pub async fn execute_logical_plan(ctx: &SessionContext, plan: LogicalPlan) -> Result<DataFrame> {
    match plan {
        LogicalPlan::Ddl(DdlStatement::CreateMemoryTable(create)) if streams(ctx, &create) => {
            create_resident_table(ctx, create).await
        }
        plan => ctx.execute_logical_plan(plan).await,
    }
}

/// Whether the table is resident, the session has a device, and the statement uses no feature of
/// host tables only.
fn streams(ctx: &SessionContext, create: &CreateMemoryTable) -> bool {
    let state = ctx.state();
    let options = state.config().options();
    let name = create.name.clone().resolve(&options.catalog.default_catalog, &options.catalog.default_schema);
    let has_device = || {
        let runtime = DeviceRuntime::of(state.config());
        runtime.is_some_and(|runtime| matches!(runtime.context_if_any(&DeviceOptions::of(options)), Ok(Some(_))))
    };
    name.schema.as_ref() == DEVICE_SCHEMA
        && create.constraints.is_empty()
        && create.column_defaults.is_empty()
        && !create.temporary
        && has_device()
}

async fn create_resident_table(ctx: &SessionContext, create: CreateMemoryTable) -> Result<DataFrame> {
    let CreateMemoryTable { name, input, if_not_exists, or_replace, .. } = create;
    let empty = || Ok(DataFrame::new(ctx.state(), LogicalPlanBuilder::empty(false).build()?));
    match (ctx.table_exist(name.clone())?, if_not_exists, or_replace) {
        (_, true, true) => return exec_err!("'IF NOT EXISTS' cannot coexist with 'REPLACE'"),
        (true, true, false) => return empty(),
        (true, false, false) => return exec_err!("Table '{name}' already exists"),
        (true, false, true) | (false, _, _) => {}
    }
    let rows = DataFrame::new(ctx.state(), Arc::unwrap_or_clone(input));
    let mut table = DeviceTable::load(ctx, rows).await?;
    if or_replace {
        table = Arc::new(table.as_replacement());
    }
    match ctx.register_table(name.clone(), table) {
        // Another statement has made the table meanwhile.
        Err(_) if if_not_exists && ctx.table_exist(name.clone())? => empty(),
        Err(error) => Err(error),
        Ok(_) => empty(),
    }
}
