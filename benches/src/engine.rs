// SPDX-License-Identifier: Apache-2.0
//! The engines of a comparison: plain DataFusion, or DataFusion with a device.
//!
//! Each has the same tables, resident and from Parquet.

use std::collections::BTreeMap;
use std::path::Path;
use std::str::FromStr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use datafusion::arrow::datatypes::SchemaRef;
use datafusion::arrow::record_batch::RecordBatch;
use datafusion::common::TableReference;
use datafusion::common::stats::Precision;
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::datasource::{MemTable, source_as_provider};
use datafusion::error::{DataFusionError, Result};
use datafusion::execution::runtime_env::RuntimeEnv;
use datafusion::logical_expr::LogicalPlan;
use datafusion::physical_plan::{ExecutionPlan, execute_stream};
use datafusion::prelude::{ParquetReadOptions, SessionConfig, SessionContext, col};
use devicefusion::{DeviceOptions, DeviceRuntime, DeviceTable, Placement, PlacementKind, placement};
use futures::TryStreamExt;
use serde_json::Value;

/// The longest wait for the optimization of kernels.
const PATIENCE: Duration = Duration::from_secs(300);

/// Storage of a query's tables.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    /// In memory: a `MemTable`, or a `DeviceTable` on the device.
    Resident,
    /// In Parquet files.
    Parquet,
}

impl Source {
    /// Name of the SQL schema of these tables.
    pub fn name(self) -> &'static str {
        match self {
            Source::Resident => "resident",
            Source::Parquet => "parquet",
        }
    }
}

impl FromStr for Source {
    type Err = String;

    fn from_str(string: &str) -> Result<Self, String> {
        match string {
            "resident" => Ok(Source::Resident),
            "parquet" => Ok(Source::Parquet),
            _ => Err("expected resident or parquet".to_string()),
        }
    }
}

/// One side of a comparison.
pub struct Engine {
    /// `datafusion`, or the selector that chose the device.
    pub name: String,
    session: SessionContext,
    context: Option<device::Context>,
}

/// One run of a query.
pub struct Execution {
    /// From the SQL string to the last batch of the answer, planning included.
    pub seconds: f64,
    /// The part of planning.
    pub planning_seconds: f64,
    /// Rows of the answer.
    pub rows: usize,
    /// The answer, if the caller keeps it.
    pub batches: Vec<RecordBatch>,
    /// The executed plan with its metrics.
    pub plan: Arc<dyn ExecutionPlan>,
}

/// Compilations and first launches of a device.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct ColdWork {
    /// Compiled programs.
    pub programs: u64,
    /// Kernels launched for the first time.
    pub kernels: u64,
}

impl ColdWork {
    /// The difference to an earlier state.
    pub fn since(self, before: Self) -> Self {
        Self { programs: self.programs - before.programs, kernels: self.kernels - before.kernels }
    }
}

/// Launches and nanoseconds of each kernel, by name.
pub type KernelTotals = BTreeMap<String, (u64, u64)>;

/// Sums of the metrics of a plan's device nodes.
#[derive(Debug, Default, Clone, Copy)]
pub struct DeviceMetrics {
    /// Kernel launches.
    pub launches: usize,
    /// Waits of the host for the device.
    pub waits: usize,
    /// Time inside kernels, by the device's own events.
    pub kernel: Duration,
    /// Time spent compiling kernels.
    pub compile: Duration,
    /// Bytes copied to the device.
    pub bytes_up: usize,
    /// Bytes copied back.
    pub bytes_down: usize,
    /// The largest peak of any node.
    pub peak_bytes: usize,
}

impl Engine {
    /// DataFusion without the plugin.
    pub async fn plain(partitions: usize) -> Result<Self> {
        let session = SessionContext::new_with_config(SessionConfig::new().with_target_partitions(partitions));
        Self { name: "datafusion".to_string(), session, context: None }.with_schemas().await
    }

    /// DataFusion with the device that `selector` names, opened here. All runs are the device's,
    /// unless a setting allows others, and no program comes from an earlier process.
    pub async fn device(selector: &str, partitions: usize, settings: &[Setting]) -> Result<Self> {
        let config = SessionConfig::new().with_target_partitions(partitions);
        let session = devicefusion::session_with(config, Arc::new(RuntimeEnv::default()))?;
        DeviceOptions::set_by_program(session.state_ref().write().config_mut().options_mut(), "device.cache_dir", "")?;
        let selector_setting = Setting { key: "device.selector".to_string(), value: selector.to_string() };
        let start = Setting { key: "device.adaptive_start".to_string(), value: "never".to_string() };
        for Setting { key, value } in [&start, &selector_setting].into_iter().chain(settings) {
            session.sql(&format!("SET {key} = '{}'", value.replace('\'', "''"))).await?;
        }
        let config = session.copied_config();
        let options = config.options().extensions.get::<DeviceOptions>().cloned().unwrap_or_default();
        let runtime = DeviceRuntime::of(&config)
            .ok_or_else(|| DataFusionError::Internal("the session has no device runtime".to_string()))?;
        let context = runtime.context(&options)?;
        Self { name: selector.to_string(), session, context: Some(context) }.with_schemas().await
    }

    async fn with_schemas(self) -> Result<Self> {
        for source in [Source::Resident, Source::Parquet] {
            self.session.sql(&format!("CREATE SCHEMA {}", source.name())).await?;
        }
        Ok(self)
    }

    /// The session.
    pub fn session(&self) -> &SessionContext {
        &self.session
    }

    /// The device; `None` for plain DataFusion.
    pub fn context(&self) -> Option<&device::Context> {
        self.context.as_ref()
    }

    /// Compilations and first launches so far.
    pub fn cold_work(&self) -> ColdWork {
        let counters = self.context.as_ref().map(device::Context::counters).unwrap_or_default();
        ColdWork { programs: counters.programs_compiled, kernels: counters.first_launches }
    }

    /// Waits until kernels compiled without optimization are optimized.
    pub fn wait_until_optimized(&self) {
        self.context.iter().for_each(|context| _ = context.wait_until_prepared(PATIENCE));
    }

    /// Launches and nanoseconds of each kernel so far, by name.
    pub fn kernel_totals(&self) -> KernelTotals {
        let report = self.context.as_ref().map(device::Context::report).unwrap_or_default();
        let kernels = report["kernels"].as_array().into_iter().flatten();
        let number = |value: &Value| value.as_u64().unwrap_or_default();
        let entry = |kernel: &Value| {
            Some((kernel["name"].as_str()?.to_string(), (number(&kernel["launches"]), number(&kernel["nanos"]))))
        };
        kernels.filter_map(entry).collect()
    }

    /// Registers a Parquet file.
    pub async fn register(&self, table: &str, path: &Path) -> Result<()> {
        let name = TableReference::partial(Source::Parquet.name(), table);
        self.session.register_parquet(name, path.to_string_lossy(), ParquetReadOptions::default()).await
    }

    /// Makes the chosen columns of a registered Parquet file resident.
    pub async fn load(&self, table: &str, chosen: impl Fn(&str) -> bool) -> Result<()> {
        let all = self.session.table(TableReference::partial(Source::Parquet.name(), table)).await?;
        let columns =
            all.schema().fields().iter().map(|field| field.name()).filter(|name| chosen(name)).map(col).collect::<Vec<_>>();
        let table_data = all.select(columns)?;
        let name = TableReference::partial(Source::Resident.name(), table);
        match self.context {
            None => {
                let schema = Arc::clone(table_data.schema().inner());
                let partitions = table_data.collect_partitioned().await?;
                self.session.register_table(name, Arc::new(MemTable::try_new(schema, partitions)?))?;
            }
            Some(_) => {
                self.session.register_table(name, DeviceTable::load(&self.session, table_data).await?)?;
            }
        }
        Ok(())
    }

    /// Registers batches as a resident table.
    pub async fn put(&self, table: &str, schema: SchemaRef, partitions: Vec<Vec<RecordBatch>>) -> Result<()> {
        let name = TableReference::partial(Source::Resident.name(), table);
        match self.context {
            None => self.session.register_table(name, Arc::new(MemTable::try_new(schema, partitions)?))?,
            Some(_) => {
                let batches = partitions.into_iter().flatten().collect();
                self.session.register_table(name, DeviceTable::try_from_batches(&self.session, schema, batches).await?)?
            }
        };
        Ok(())
    }

    /// Runs a query to its last batch. Keeps the answer if `keep` is set.
    pub async fn execute(&self, source: Source, sql: &str, keep: bool) -> Result<Execution> {
        self.session.sql(&format!("SET datafusion.catalog.default_schema = '{}'", source.name())).await?;
        let begin = Instant::now();
        let query = self.session.sql(sql).await?;
        let task = Arc::new(query.task_ctx());
        let plan = query.create_physical_plan().await?;
        let planning_seconds = begin.elapsed().as_secs_f64();
        let mut stream = execute_stream(Arc::clone(&plan), task)?;
        let (mut rows, mut batches) = (0, Vec::new());
        while let Some(batch) = stream.try_next().await? {
            rows += batch.num_rows();
            if keep {
                batches.push(batch);
            }
        }
        Ok(Execution { seconds: begin.elapsed().as_secs_f64(), planning_seconds, rows, batches, plan })
    }

    /// Plans a query. Returns the seconds that it took, from the SQL string to the physical plan.
    pub async fn plan(&self, source: Source, sql: &str) -> Result<f64> {
        self.session.sql(&format!("SET datafusion.catalog.default_schema = '{}'", source.name())).await?;
        let begin = Instant::now();
        self.session.sql(sql).await?.create_physical_plan().await?;
        Ok(begin.elapsed().as_secs_f64())
    }

    /// Device bytes of a query's scanned columns, if the tables' statistics have them.
    pub async fn scanned_bytes(&self, source: Source, sql: &str) -> Result<Option<usize>> {
        self.session.sql(&format!("SET datafusion.catalog.default_schema = '{}'", source.name())).await?;
        let (mut state, plan) = self.session.sql(sql).await?.into_parts();
        // The optimized plan of a kept query has no scans.
        if let Some(options) = state.config_mut().options_mut().extensions.get_mut::<DeviceOptions>() {
            options.cached_plans = 0;
        }
        let plan = state.optimize(&plan)?;
        let mut bytes = Some(0);
        plan.apply_with_subqueries(|node| {
            if let LogicalPlan::TableScan(scan) = node {
                let statistics = source_as_provider(&scan.source)?.statistics();
                let columns = scan.projection.clone().unwrap_or_else(|| (0..scan.source.schema().fields().len()).collect());
                for column in columns {
                    let column = statistics.as_ref().and_then(|statistics| statistics.column_statistics.get(column));
                    bytes = match (bytes, column.map(|column| column.byte_size)) {
                        (Some(bytes), Some(Precision::Exact(more) | Precision::Inexact(more))) => Some(bytes + more),
                        _ => None,
                    };
                }
            }
            Ok(TreeNodeRecursion::Continue)
        })?;
        Ok(bytes)
    }
}

impl Execution {
    /// Operators on the device and on the host.
    pub fn placement(&self) -> Placement {
        placement(&self.plan)
    }

    /// `whole`, `partly`, `host` or `scan only`.
    pub fn placement_kind(&self) -> &'static str {
        match self.placement().kind() {
            PlacementKind::Whole => "whole",
            PlacementKind::Partly => "partly",
            PlacementKind::Host => "host",
            PlacementKind::ScanOnly => "scan only",
        }
    }

    /// Sums of the metrics of the plan's device nodes.
    pub fn device_metrics(&self) -> DeviceMetrics {
        let mut metrics = DeviceMetrics::default();
        add_metrics(&self.plan, &mut metrics);
        metrics
    }
}

fn add_metrics(plan: &Arc<dyn ExecutionPlan>, sums: &mut DeviceMetrics) {
    if let Some(metrics) = plan.metrics() {
        let sum = |name: &str| metrics.sum_by_name(name).map_or(0, |value| value.as_usize());
        sums.launches += sum("launches");
        sums.waits += sum("waits");
        sums.kernel += Duration::from_nanos(sum("kernel_time") as u64);
        sums.compile += Duration::from_nanos(sum("compile_time") as u64);
        sums.bytes_up += sum("bytes_up");
        sums.bytes_down += sum("bytes_down");
        sums.peak_bytes = sums.peak_bytes.max(sum("peak_device_bytes"));
    }
    for child in plan.children() {
        add_metrics(child, sums);
    }
}

/// Cores of this machine that the process may use.
pub fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, |cores| cores.get())
}

/// A setting `KEY=VALUE` of the command line.
#[derive(Debug, Clone)]
pub struct Setting {
    /// Full name.
    pub key: String,
    /// Value.
    pub value: String,
}

impl FromStr for Setting {
    type Err = String;

    fn from_str(string: &str) -> Result<Self, String> {
        let (key, value) = string.split_once('=').ok_or_else(|| format!("{string}: expected KEY=VALUE"))?;
        Ok(Self { key: key.trim().to_string(), value: value.trim().to_string() })
    }
}
