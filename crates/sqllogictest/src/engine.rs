// SPDX-License-Identifier: Apache-2.0
//! The database that sqllogictest talks to: a DataFusion session, plain or with a device.

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
use sqllogictest::{AsyncDB, DBOutput, MakeConnection};

use crate::tally::SharedTally;
use crate::tpch::Tpch;

/// How the sessions are set up.
#[derive(Debug, Clone)]
pub struct Setup {
    device: DeviceOptions,
    settings: Arc<[(String, String)]>,
    timeout: Duration,
    /// Shared by all sessions, so that a kernel is compiled once for all files.
    runtime: Option<Arc<DeviceRuntime>>,
}

impl Setup {
    /// Takes settings of `device.*` and any others.
    ///
    /// # Errors
    /// If a setting of `device.*` is unknown or its value is wrong.
    pub fn new(settings: Vec<(String, String)>, timeout: Duration) -> Result<Self> {
        use datafusion::config::ExtensionOptions;
        let mut device = DeviceOptions::default();
        let (of_device, others) = settings.into_iter().partition::<Vec<_>, _>(|(key, _)| key.starts_with("device."));
        for (key, value) in of_device {
            device.set(&key["device.".len()..], &value)?;
        }
        Ok(Setup { device, settings: others.into(), timeout, runtime: None })
    }

    /// One device for the sessions of all files. Without this each file has its own, and can choose
    /// its settings.
    pub fn with_shared_device(self) -> Self {
        Setup { runtime: Some(DeviceRuntime::new()), ..self }
    }
}

/// Which of the two kinds of session runs a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// DataFusion as it is.
    Plain,
    /// DataFusion with the plugin.
    Device,
}

/// The session of one file; clones are connections to it.
#[derive(Clone)]
pub struct Engine {
    context: SessionContext,
    device: Option<Device>,
    spark: bool,
    timeout: Duration,
    // Owns the folder of data that some files of DataFusion's suite come with.
    _test_context: Arc<TestContext>,
}

/// What only sessions with a device have.
#[derive(Clone)]
struct Device {
    runtime: Arc<DeviceRuntime>,
    tally: SharedTally,
}

impl Engine {
    /// The session that DataFusion's own runner gives to the file of this name, with a device if
    /// asked for. `None` if the file needs a feature that is not built in.
    ///
    /// # Errors
    /// If a setting is wrong.
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
                (with_device(plain, setup, &runtime)?, Some(Device { runtime, tally: Arc::clone(tally) }))
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

    /// Kernels that the session's device has launched; those of other sessions too where it is shared.
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

#[async_trait]
impl AsyncDB for Engine {
    type Error = DFSqlLogicTestError;
    type ColumnType = DFColumnType;

    async fn run(&mut self, sql: &str) -> Result<DFOutput, DFSqlLogicTestError> {
        match tokio::time::timeout(self.timeout, self.execute(sql)).await {
            Ok(result) => result,
            Err(_) => Err(DFSqlLogicTestError::Other(format!("no answer after {} seconds", self.timeout.as_secs()))),
        }
    }

    async fn shutdown(&mut self) {}

    /// The name that the conditions `onlyif` and `skipif` of DataFusion's files know.
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

/// Whether a plan computes rows, as opposed to one that defines, sets, describes or explains.
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

/// The session `plain` with a device and a schema for resident tables, which is an ordinary one where the selector is 'none'.
fn with_device(plain: &SessionContext, setup: &Setup, runtime: &Arc<DeviceRuntime>) -> Result<SessionContext> {
    let state = plain.state();
    let mut builder = SessionStateBuilder::new_from_existing(state.clone());
    builder.config().get_or_insert_default().options_mut().extensions.insert(setup.device.clone());
    let context = SessionContext::new_with_state(builder.with_device_runtime(Arc::clone(runtime)).build());
    match setup.device.selector {
        Some(_) => devicefusion::register_schema(&context)?,
        // Files that make resident tables run without a device too, as plain DataFusion does.
        None => {
            let catalog = &state.config().options().catalog.default_catalog;
            let catalog = context.catalog(catalog).ok_or_else(|| plan_datafusion_err!("there is no catalog {catalog}"))?;
            catalog.register_schema("device", Arc::new(MemorySchemaProvider::new()))?;
        }
    }
    // The rebuilt state finds its catalog made; the setting is to say what it said.
    let catalog = state.config().options().catalog.create_default_catalog_and_schema;
    context.state_ref().write().config_mut().options_mut().catalog.create_default_catalog_and_schema = catalog;
    // A builder takes functions in no fixed order, in which the alias of one can hide another.
    let built = context.state();
    for (name, function) in state.scalar_functions() {
        if function.name() == name && built.scalar_functions().get(name) != Some(function) {
            context.register_udf(function.as_ref().clone());
        }
    }
    Ok(context)
}
