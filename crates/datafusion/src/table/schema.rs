// SPDX-License-Identifier: Apache-2.0
//! The catalog schema `device`: tables registered in it become resident.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Weak};

use datafusion::catalog::{SchemaProvider, TableProvider};
use datafusion::common::{Result, exec_err, plan_datafusion_err};
use datafusion::datasource::MemTable;
use datafusion::execution::SessionState;
use datafusion::prelude::SessionContext;
use futures::future::{BoxFuture, ready};
use parking_lot::RwLock;

use crate::session::{DeviceOptions, DeviceRuntime};
use crate::table::DeviceTable;
use crate::table::device_table::needed;
use crate::table::file_cache_function::{self, DeviceFileCache};
use crate::table::kernels_function::{self, DeviceKernels};
use crate::table::memory_function::{self, DeviceMemory};
use crate::table::missing::MissingTables;

/// Name of the schema of resident tables.
pub(super) const DEVICE_SCHEMA: &str = "device";

/// Adds the schema `device` to a session's default catalog: `CREATE TABLE device.t AS …` makes a
/// resident table. The table function `device_memory()` tells what holds device memory, and
/// `device_kernels()` what has run.
///
/// # Errors
/// If the session has no device runtime, or its default catalog takes no schemas.
pub fn register_schema(ctx: &SessionContext) -> Result<()> {
    let state = ctx.state();
    let runtime = DeviceRuntime::of(state.config()).ok_or_else(|| {
        plan_datafusion_err!("this session has no device: build its state with SessionStateBuilderExt::with_device")
    })?;
    let name = state.config().options().catalog.default_catalog.clone();
    let catalog = ctx.catalog(&name).ok_or_else(|| plan_datafusion_err!("there is no catalog {name}"))?;
    let missing = MissingTables { catalog: name, runtime: Arc::clone(&runtime) };
    let schema = Arc::new(DeviceSchema { session: ctx.state_weak_ref(), runtime, tables: RwLock::default() });
    ctx.register_udtf(file_cache_function::NAME, Arc::new(DeviceFileCache(Arc::clone(&schema.runtime))));
    ctx.register_udtf(kernels_function::NAME, Arc::new(DeviceKernels(Arc::clone(&schema.runtime))));
    ctx.register_udtf(memory_function::NAME, Arc::new(DeviceMemory(Arc::clone(&schema))));
    catalog.register_schema(DEVICE_SCHEMA, schema)?;
    ctx.register_relation_planner(Arc::new(missing))
}

/// Tables by name. Registration uploads tables of the host.
pub(super) struct DeviceSchema {
    /// The session's settings. A weak reference: the session owns the catalog that owns this
    /// schema.
    session: Weak<RwLock<SessionState>>,
    runtime: Arc<DeviceRuntime>,
    tables: RwLock<BTreeMap<String, Arc<dyn TableProvider>>>,
}

impl fmt::Debug for DeviceSchema {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeviceSchema").field("tables", &self.table_names()).finish_non_exhaustive()
    }
}

impl DeviceSchema {
    pub fn runtime(&self) -> &DeviceRuntime {
        &self.runtime
    }

    /// The resident tables by their names in SQL.
    pub fn resident(&self) -> Vec<(String, Arc<dyn TableProvider>)> {
        let tables = self.tables.read();
        tables.iter().map(|(name, table)| (format!("{DEVICE_SCHEMA}.{name}"), Arc::clone(table))).collect()
    }

    /// Host memory of the session's operators; `None` for a session that was replaced.
    pub fn host_bytes(&self) -> Option<usize> {
        // A query that is planned holds the lock for reading.
        Some(self.session.upgrade()?.read_recursive().runtime_env().memory_pool.reserved())
    }

    fn options(&self) -> DeviceOptions {
        match self.session.upgrade() {
            // CREATE TABLE may hold the lock for reading already.
            Some(state) => DeviceOptions::of(state.read_recursive().config().options()),
            // The session was replaced, as by `enable_url_table`. It has planned the registered
            // rows before.
            None => self.runtime.noted_settings(),
        }
    }
}

impl SchemaProvider for DeviceSchema {
    fn table_names(&self) -> Vec<String> {
        self.tables.read().keys().cloned().collect()
    }

    // Not `async`, see CONTRIBUTING.md.
    fn table<'schema, 'name, 'table>(&'schema self, name: &'name str) -> BoxFuture<'table, Result<Option<Arc<dyn TableProvider>>>>
    where
        'schema: 'table,
        'name: 'table,
        Self: 'table,
    {
        Box::pin(ready(Ok(self.tables.read().get(name).cloned())))
    }

    /// Adds a table. Refuses a second one of the name, unless it is a
    /// [replacement](DeviceTable::replacing): then readers find the old table or the new one, never
    /// none. Sessions that take files as tables wrap this schema, so the table carries the flag.
    fn register_table(&self, name: String, table: Arc<dyn TableProvider>) -> Result<Option<Arc<dyn TableProvider>>> {
        let replaces = table.downcast_ref::<DeviceTable>().is_some_and(DeviceTable::is_replacement);
        let table = match table.downcast_ref::<MemTable>() {
            Some(host) => {
                let mut batches = Vec::new();
                for partition in &host.batches {
                    match partition.try_read() {
                        Ok(partition) => batches.extend(partition.iter().cloned()),
                        Err(_) => return exec_err!("table {name} is being written while it is registered"),
                    }
                }
                // The trait's method is not async. This waits for the device's own thread, not for
                // tokio.
                let options = self.options();
                let context = needed(self.runtime.try_context(&options))?;
                let table = DeviceTable::try_with_options(&context, host.schema(), batches, &options);
                Arc::new(futures::executor::block_on(table)?.declared_as(host).watched_by(&self.runtime))
            }
            None => match table.downcast_ref::<DeviceTable>() {
                // In the schema it is an ordinary table.
                Some(resident) if replaces => Arc::new(resident.replacing(false)) as Arc<dyn TableProvider>,
                Some(_) => table,
                None => {
                    return exec_err!(
                        "device.{name}: only tables of rows can be resident; create it with CREATE TABLE, or a view in another schema"
                    );
                }
            },
        };
        let mut tables = self.tables.write();
        if !replaces && tables.contains_key(&name) {
            return exec_err!("Table '{DEVICE_SCHEMA}.{name}' already exists");
        }
        Ok(tables.insert(name, table))
    }

    fn deregister_table(&self, name: &str) -> Result<Option<Arc<dyn TableProvider>>> {
        Ok(self.tables.write().remove(name))
    }

    fn table_exist(&self, name: &str) -> bool {
        self.tables.read().contains_key(name)
    }
}
