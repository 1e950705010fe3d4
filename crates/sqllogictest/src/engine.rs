// SPDX-License-Identifier: Apache-2.0
//! The database under sqllogictest: a DataFusion session, plain or with a device.

use std::future::{Ready, ready};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use datafusion::catalog::MemorySchemaProvider;
use datafusion::common::{Result, plan_datafusion_err};
use datafusion::execution::SessionStateBuilder;
use datafusion::logical_expr::LogicalPlan;
use datafusion::physical_plan::common::collect;
use datafusion::physical_plan::execute_stream;
use datafusion::prelude::SessionContext;
use datafusion_sqllogictest::{
    DFColumnType, DFOutput, DFSqlLogicTestError, TestContext, convert_batches, convert_schema_to_types, is_spark_path,
};
use devicefusion::{DeviceOptions, DeviceRuntime, SessionStateBuilderExt, placement};
use futures::future::BoxFuture;
use sqllogictest::{AsyncDB, DBOutput, MakeConnection};

use crate::tally::SharedTally;
use crate::tpch::Tpch;

/// Settings of the sessions.
#[derive(Debug, Clone)]
pub struct Setup {
    device: DeviceOptions,
    settings: Arc<[(String, String)]>,
    timeout: Duration,
    /// Shared by all sessions, so that each kernel is compiled once.
    runtime: Option<Arc<DeviceRuntime>>,
}

impl Setup {
    /// Takes settings of `device.*` and of DataFusion.
    ///
    /// # Errors
    /// If a setting of `device.*` is unknown or its value is invalid.
    pub fn new(settings: Vec<(String, String)>, timeout: Duration) -> Result<Self> {
        use datafusion::config::ExtensionOptions;
        let mut device = DeviceOptions::default();
        let (device_settings, others) = settings.into_iter().partition::<Vec<_>, _>(|(key, _)| key.starts_with("device."));
        for (key, value) in device_settings {
            device.set(&key["device.".len()..], &value)?;
        }
        Ok(Setup { device, settings: others.into(), timeout, runtime: None })
    }

    /// Shares one device among all files. Otherwise each file opens its own, and can set it up.
    pub fn with_shared_device(self) -> Self {
        Setup { runtime: Some(DeviceRuntime::new()), ..self }
    }
}

/// Kind of the session that runs a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// DataFusion without the plugin.
    Plain,
    /// DataFusion with the plugin.
    Device,
}

/// The session of one file; clones are connections to it.
#[derive(Clone)]
pub struct Engine {
    context: SessionContext,
    device: Option<DeviceSession>,
    spark: bool,
    timeout: Duration,
    // Owns the temporary data folder of some files in DataFusion's suite.
    _test_context: Arc<TestContext>,
}

/// State of a session with a device.
#[derive(Clone)]
struct DeviceSession {
    runtime: Arc<DeviceRuntime>,
    tally: SharedTally,
}

impl Engine {
    /// Opens the session that DataFusion's runner sets up for this file, with a device for
    /// [`Side::Device`]. `None` if the file needs a feature outside this build.
    ///
    /// # Errors
    /// If a setting is invalid.
    pub async fn open(relative_path: &Path, side: Side, setup: &Setup, tally: &SharedTally) -> Result<Option<Self>> {
        let Some(test_context) = TestContext::try_new_for_test_file(relative_path).await else {
            return Ok(None);
        };
        let plain = test_context.session_ctx();
        plain.register_udtf(Tpch::NAME, Arc::new(Tpch));
        for (key, value) in setup.settings.iter() {
            plain.state_ref().write().config_mut().options_mut().set(key, value)?;
        }
        let (context, device) = match side {
            Side::Plain => (plain.clone(), None),
            Side::Device => {
                let runtime = setup.runtime.clone().unwrap_or_default();
                (with_device(plain, setup, &runtime)?, Some(DeviceSession { runtime, tally: Arc::clone(tally) }))
            }
        };
        Ok(Some(Engine {
            context,
            device,
            spark: is_spark_path(relative_path),
            timeout: setup.timeout,
            _test_context: Arc::new(test_context),
        }))
    }

    /// Number of kernels that the session's device has launched, for all of its sessions.
    pub fn launches(&self) -> u64 {
        let counters = self.device.as_ref().and_then(|device| device.runtime.counters());
        counters.map_or(0, |counters| counters.launches)
    }

    async fn execute(&self, sql: &str) -> Result<DFOutput, DFSqlLogicTestError> {
        let plan = self.context.state().create_logical_plan(sql).await?;
        let is_query = is_query(&plan);
        let frame = self.context.execute_logical_plan(plan).await?;
        let task = Arc::new(frame.task_ctx());
        let plan = frame.create_physical_plan().await?;
        if let (true, Some(device)) = (is_query, &self.device) {
            device.tally.lock().count_query(&placement(&plan));
        }

        let schema = plan.schema();
        let stream = execute_stream(plan, task)?;
        let types = convert_schema_to_types(stream.schema().fields());
        let batches = collect(stream).await?;
        let rows = convert_batches(&schema, batches, self.spark)?;
        if rows.is_empty() && types.is_empty() {
            return Ok(DBOutput::StatementComplete(0));
        }
        Ok(DBOutput::Rows { types, rows })
    }
}

impl Engine {
    fn execute_in_time<'a>(&'a mut self, sql: &'a str) -> BoxFuture<'a, Result<DFOutput, DFSqlLogicTestError>> {
        Box::pin(async {
            match tokio::time::timeout(self.timeout, self.execute(sql)).await {
                Ok(result) => result,
                Err(_) => Err(DFSqlLogicTestError::Other(format!("no result after {} seconds", self.timeout.as_secs()))),
            }
        })
    }
}

#[async_trait]
impl AsyncDB for Engine {
    type Error = DFSqlLogicTestError;
    type ColumnType = DFColumnType;

    // Not `async`, see CONTRIBUTING.md.
    fn run<'engine, 'sql, 'run>(&'engine mut self, sql: &'sql str) -> BoxFuture<'run, Result<DFOutput, DFSqlLogicTestError>>
    where
        'engine: 'run,
        'sql: 'run,
        Self: 'run,
    {
        self.execute_in_time(sql)
    }

    fn shutdown<'engine, 'shutdown>(&'engine mut self) -> BoxFuture<'shutdown, ()>
    where
        'engine: 'shutdown,
        Self: 'shutdown,
    {
        Box::pin(ready(()))
    }

    /// The name in the conditions `onlyif` and `skipif` of DataFusion's files.
    fn engine_name(&self) -> &str {
        "DataFusion"
    }

    async fn sleep(duration: Duration) {
        tokio::time::sleep(duration).await;
    }
}

impl MakeConnection for Engine {
    type Conn = Engine;
    type MakeFuture = Ready<Result<Engine, DFSqlLogicTestError>>;

    fn make(&mut self) -> Self::MakeFuture {
        ready(Ok(self.clone()))
    }
}

/// Whether a plan computes rows. DDL, SET, DESCRIBE and EXPLAIN do not.
fn is_query(plan: &LogicalPlan) -> bool {
    !matches!(
        plan,
        LogicalPlan::Ddl(_)
            | LogicalPlan::Statement(_)
            | LogicalPlan::Explain(_)
            | LogicalPlan::Analyze(_)
            | LogicalPlan::DescribeTable(_)
    )
}

/// The session `plain` with a device and a schema for resident tables. With the selector 'none'
/// that is an ordinary schema.
fn with_device(plain: &SessionContext, setup: &Setup, runtime: &Arc<DeviceRuntime>) -> Result<SessionContext> {
    let state = plain.state();
    let mut builder = SessionStateBuilder::new_from_existing(state.clone());
    builder.config().get_or_insert_default().options_mut().extensions.insert(setup.device.clone());
    let context = SessionContext::new_with_state(builder.with_device_runtime(Arc::clone(runtime)).build());
    match setup.device.selector {
        Some(_) => devicefusion::register_schema(&context)?,
        // Files with resident tables also run without a device.
        None => {
            let catalog = &state.config().options().catalog.default_catalog;
            let catalog = context.catalog(catalog).ok_or_else(|| plan_datafusion_err!("there is no catalog {catalog}"))?;
            catalog.register_schema("device", Arc::new(MemorySchemaProvider::new()))?;
        }
    }
    // The builder turned this setting off, because the catalog exists already. Restores it.
    let catalog = state.config().options().catalog.create_default_catalog_and_schema;
    context.state_ref().write().config_mut().options_mut().catalog.create_default_catalog_and_schema = catalog;
    // A builder registers functions in no fixed order, so that an alias can hide a function.
    let built = context.state();
    for (name, function) in state.scalar_functions() {
        if function.name() == name && built.scalar_functions().get(name) != Some(function) {
            context.register_udf(function.as_ref().clone());
        }
    }
    Ok(context)
}
