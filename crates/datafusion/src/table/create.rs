// SPDX-License-Identifier: Apache-2.0
//! `CREATE TABLE device.t AS SELECT …` with rows that stream to the device.

use std::sync::Arc;

use datafusion::common::{Result, exec_err};
use datafusion::dataframe::DataFrame;
use datafusion::execution::context::SessionContext;
use datafusion::logical_expr::CreateMemoryTable;
use datafusion::physical_plan::ExecutionPlan;

use crate::session::{DeviceOptions, DeviceRuntime};
use crate::table::DeviceTable;
use crate::table::schema::DEVICE_SCHEMA;

/// Whether the table is resident, the session has a device, and the statement uses no feature of
/// host tables only.
pub(crate) fn streams(ctx: &SessionContext, create: &CreateMemoryTable) -> bool {
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

/// Runs the statement. `watch` gets the plan of its query before that runs.
pub(crate) async fn create_resident_table(
    ctx: &SessionContext,
    create: CreateMemoryTable,
    watch: impl FnOnce(&Arc<dyn ExecutionPlan>) + Send,
) -> Result<()> {
    let CreateMemoryTable { name, input, if_not_exists, or_replace, .. } = create;
    match (ctx.table_exist(name.clone())?, if_not_exists, or_replace) {
        (_, true, true) => return exec_err!("'IF NOT EXISTS' cannot coexist with 'REPLACE'"),
        (true, true, false) => return Ok(()),
        (true, false, false) => return exec_err!("Table '{name}' already exists"),
        (true, false, true) | (false, _, _) => {}
    }
    let rows = DataFrame::new(ctx.state(), Arc::unwrap_or_clone(input));
    let mut table = DeviceTable::load_watched(ctx, rows, watch).await?;
    if or_replace {
        table = Arc::new(table.replacing(true));
    }
    match ctx.register_table(name.clone(), table) {
        // Another statement has made the table meanwhile.
        Err(_) if if_not_exists && ctx.table_exist(name.clone())? => Ok(()),
        registered => registered.map(drop),
    }
}
