// SPDX-License-Identifier: Apache-2.0
//! The shell's session: a DataFusion context with the device, and with `datafusion-cli`'s catalogs,
//! table functions and object stores.

use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use datafusion::common::config::ConfigNonZeroUsize;
use datafusion::common::tree_node::TreeNode;
use datafusion::common::{DFSchema, Result, config_err, exec_err, plan_err};
use datafusion::config::ConfigOptions;
use datafusion::dataframe::DataFrame;
use datafusion::error::DataFusionError;
use datafusion::execution::TaskContext;
use datafusion::execution::context::SessionState;
use datafusion::execution::disk_manager::{DiskManagerBuilder, DiskManagerMode};
use datafusion::execution::memory_pool::{FairSpillPool, GreedyMemoryPool, MemoryPool, TrackConsumersPool};
use datafusion::execution::runtime_env::{RuntimeEnv, RuntimeEnvBuilder};
use datafusion::logical_expr::{EmptyRelation, ExplainFormat, LogicalPlan};
use datafusion::physical_plan::execution_plan::EmissionType;
use datafusion::physical_plan::{ExecutionPlanProperties, execute_stream};
use datafusion::prelude::{SessionConfig, SessionContext};
use datafusion_cli::catalog::DynamicObjectStoreCatalog;
use datafusion_cli::cli_context::CliSessionContext;
use datafusion_cli::functions::{ListFilesCacheFunc, MetadataCacheFunc, ParquetMetadataFunc, StatisticsCacheFunc};
use datafusion_cli::object_storage::StdinCarriesCommands;
use datafusion_cli::object_storage::instrumented::InstrumentedObjectStoreRegistry;
use datafusion_cli::pool_type::PoolType;
use device::{DeviceConfig, Selector};
use devicefusion::{DeviceOptions, DevicePlanner, error_text};
use futures::future::BoxFuture;
use object_store::ObjectStore;
use parking_lot::Mutex;
use url::Url;

use crate::args::Args;
use crate::printer::{Expanded, Printer, RunningStatement, StatementKind, print_to_stderr};
use crate::progress::Progress;

/// A session of the shell.
pub struct Session {
    context: SessionContext,
    /// The device for queries, or the reason for the host. A query opens it: settings can change
    /// until then.
    device: OnceLock<std::result::Result<device::DeviceInfo, String>>,
    /// Whether nothing is to be said about the device, or nothing more.
    is_noted: AtomicBool,
    /// How results are printed.
    pub printer: Mutex<Printer>,
    /// When the next result's statement has begun.
    begun: Mutex<Instant>,
}

impl Session {
    /// Opens the session that the arguments and the environment (`DATAFUSION_*`) describe.
    ///
    /// # Errors
    /// - A setting is invalid.
    /// - The device of the arguments does not exist. With `auto`, queries run on the host instead,
    ///   unless the arguments are strict.
    pub async fn open(args: &Args) -> Result<Self> {
        let registry = Arc::new(InstrumentedObjectStoreRegistry::new().with_profile_mode(args.object_store_profiling));
        let config = session_config(args)?;
        let device = OnceLock::new();
        // The drivers are loaded for it, which takes some 40 ms.
        if args.is_interactive() || args.strict || args.device.is_some() || !is_default(&config) {
            _ = device.set(chosen_device(&config, args.strict)?);
        }

        let context = devicefusion::session_with(config, runtime(args, &registry)?)?;
        let context = devicefusion::with_file_tables(context)?;
        context.refresh_catalogs().await?;
        register_catalogs_and_functions(&context);
        let printer = Mutex::new(Printer {
            format: args.format,
            maxrows: args.maxrows,
            expanded: Expanded::Off,
            quiet: args.quiet,
            timing: true,
            registry,
        });
        let session = Session { context, device, is_noted: args.quiet.into(), printer, begun: Mutex::new(Instant::now()) };
        if session.device.get().is_some() {
            session.note_device();
        }
        Ok(session)
    }

    /// Times the next statements from now on.
    pub fn start_timer(&self) {
        *self.begun.lock() = Instant::now();
    }

    /// Prints a line about the device of queries, once.
    fn note_device(&self) {
        if self.is_noted.swap(true, Relaxed) {
            return;
        }
        // A query that needs a missing device fails by itself.
        let chosen = || chosen_device(&self.context.copied_config(), false).unwrap_or_else(|error| Err(error_text(&error)));
        print_to_stderr(&match self.device.get_or_init(chosen) {
            Ok(info) => format!("Device #{} {} ({}, {} compute units)", info.index, info.name, info.driver, info.compute_units),
            Err(problem) => format!("No device, queries run on the host: {problem}"),
        });
    }

    pub fn context(&self) -> &SessionContext {
        &self.context
    }

    fn is_strict(&self) -> bool {
        let options = self.context.state().config().options().extensions.get::<DeviceOptions>().cloned();
        options.is_some_and(|options| options.fallback.is_strict())
    }

    /// Fails if a setting forbids the query's plan. DataFusion's EXPLAIN in the format `indent`
    /// would succeed, and show the reason only with VERBOSE.
    async fn check_placement(&self, query: &LogicalPlan) -> Result<()> {
        match devicefusion::plan_for_explain(&self.context.state(), query).await {
            Err(DataFusionError::Context(rule, cause)) if rule == DevicePlanner::NAME => {
                Err(DataFusionError::Context(rule, cause))
            }
            _ => Ok(()),
        }
    }
}

impl Session {
    fn run_and_print(&self, plan: LogicalPlan) -> BoxFuture<'_, Result<DataFrame>> {
        Box::pin(self.run_plan(plan))
    }

    /// Runs a statement to its end and prints the rows. In a strict session EXPLAIN refuses what
    /// the query would be refused for.
    ///
    /// `datafusion-cli` calls this with each plan that it has made. It gets an empty result, of
    /// which it prints nothing.
    async fn run_plan(&self, plan: LogicalPlan) -> Result<DataFrame> {
        let kind = kind_of(&plan);
        let rows = match plan {
            LogicalPlan::Explain(explain) if explain.explain_format == ExplainFormat::Indent && self.is_strict() => {
                self.check_placement(&explain.plan).await?;
                self.context.execute_logical_plan(LogicalPlan::Explain(explain)).await?
            }
            plan => {
                let (mut progress, task) = (None, self.task_ctx());
                let watch = |query: &_| progress = Some(Progress::of(query, &task));
                devicefusion::execute_logical_plan_watched(&self.context, plan, watch).await?
            }
        };
        self.print_rows(rows, kind).await?;
        let nothing = EmptyRelation { produce_one_row: false, schema: Arc::new(DFSchema::empty()) };
        Ok(DataFrame::new(self.context.state(), LogicalPlan::EmptyRelation(nothing)))
    }

    /// Runs a statement to its end and prints the rows.
    ///
    /// # Errors
    /// Those of the statement, and of writing.
    pub async fn print_rows(&self, rows: DataFrame, kind: StatementKind) -> Result<()> {
        if kind == StatementKind::Query && reads_rows(rows.logical_plan()) {
            self.note_device();
        }
        let task = Arc::new(rows.task_ctx());
        let plan = rows.create_physical_plan().await?;
        let is_endless = plan.boundedness().is_unbounded();
        if is_endless && plan.pipeline_behavior() == EmissionType::Final {
            return plan_err!("the result comes once its source ends, and the source is endless");
        }
        let rows = execute_stream(Arc::clone(&plan), Arc::clone(&task))?;
        let progress = Progress::of(&plan, &task);
        let (printer, begun) = (self.printer.lock().clone(), *self.begun.lock());
        printer.print(RunningStatement { rows, kind, is_endless, progress, begun }, &task).await?;
        self.start_timer();
        Ok(())
    }
}

/// Whether a plan has an input: constants need no device.
fn reads_rows(plan: &LogicalPlan) -> bool {
    plan.exists(|plan| Ok(matches!(plan, LogicalPlan::TableScan(_) | LogicalPlan::Extension(_)))).unwrap_or(true)
}

/// The kind of a plan's rows.
fn kind_of(plan: &LogicalPlan) -> StatementKind {
    let is_setting = |plan: &LogicalPlan| matches!(plan, LogicalPlan::TableScan(scan) if scan.table_name.schema() == Some("information_schema"));
    match plan {
        LogicalPlan::Explain(_) | LogicalPlan::Analyze(_) => StatementKind::Plan,
        LogicalPlan::DescribeTable(_) => StatementKind::Listing,
        plan if plan.exists(|plan| Ok(is_setting(plan))).unwrap_or(false) => StatementKind::Listing,
        _ => StatementKind::Query,
    }
}

impl CliSessionContext for Session {
    fn task_ctx(&self) -> Arc<TaskContext> {
        self.context.task_ctx()
    }

    fn session_state(&self) -> SessionState {
        self.context.state()
    }

    fn register_object_store(&self, url: &Url, store: Arc<dyn ObjectStore>) -> Option<Arc<dyn ObjectStore>> {
        self.context.register_object_store(url, store)
    }

    fn register_table_options_extension_from_scheme(&self, scheme: &str) {
        CliSessionContext::register_table_options_extension_from_scheme(&self.context, scheme);
    }

    // Not `async`, see CONTRIBUTING.md.
    fn execute_logical_plan<'session, 'plan>(&'session self, plan: LogicalPlan) -> BoxFuture<'plan, Result<DataFrame>>
    where
        'session: 'plan,
        Self: 'plan,
    {
        self.run_and_print(plan)
    }
}

/// The device that the session will open with its first query. The inner error is the reason for
/// running on the host.
fn chosen_device(config: &SessionConfig, strict: bool) -> Result<std::result::Result<device::DeviceInfo, String>> {
    let options = config.options().extensions.get::<DeviceOptions>().cloned().unwrap_or_default();
    let Some(selector) = options.selector.filter(|_| options.enabled) else {
        let reason = if options.enabled { "device.selector is 'none'" } else { "device.enabled is false" };
        if strict {
            return config_err!("--strict needs a device, and {reason}");
        }
        return Ok(Err(reason.to_string()));
    };
    let may_do_without = !strict && selector == Selector::Auto && options.platform.is_empty();
    let mut config = DeviceConfig::default().with_selector(selector).with_memory_bytes(options.memory_bytes);
    config.unified_memory = options.unified_memory;
    if !options.platform.is_empty() {
        config = config.with_platform(options.platform);
    }
    if !options.nvrtc_path.is_empty() {
        config = config.with_nvrtc_path(options.nvrtc_path);
    }
    match config.choose() {
        Ok(device) => Ok(Ok(device)),
        Err(error) if may_do_without && !matches!(error, device::Error::Config { .. }) => Ok(Err(error.to_string())),
        Err(error) => exec_err!("{error}"),
    }
}

/// Whether the settings of the device's choice are the defaults.
fn is_default(config: &SessionConfig) -> bool {
    let options = config.options().extensions.get::<DeviceOptions>().cloned().unwrap_or_default();
    let default = DeviceOptions::default();
    let of_choice = |options: DeviceOptions| {
        let DeviceOptions { selector, enabled, platform, memory_bytes, unified_memory, nvrtc_path, .. } = options;
        (selector, enabled, platform, memory_bytes, unified_memory, nvrtc_path)
    };
    of_choice(options) == of_choice(default)
}

fn session_config(args: &Args) -> Result<SessionConfig> {
    let mut options = ConfigOptions::from_env()?;
    if let Some(rows) = args.batch_size {
        options.execution.batch_size = ConfigNonZeroUsize::try_new(rows)?;
    }
    // Defaults for a terminal: plans as trees, and NULL distinct from an empty string.
    if std::env::var_os("DATAFUSION_EXPLAIN_FORMAT").is_none() {
        options.explain.format = ExplainFormat::Tree;
    }
    if std::env::var_os("DATAFUSION_FORMAT_NULL").is_none() {
        options.format.null = "NULL".to_string();
    }
    options.extensions.insert(DeviceOptions::from_env()?);
    if let Some(device) = &args.device {
        options.set("device.selector", device)?;
    }
    if args.strict {
        options.set("device.fallback", "error")?;
    }

    let config = SessionConfig::from(options).with_information_schema(true);
    if args.reads_statements_from_stdin() {
        return Ok(config.with_extension(Arc::new(StdinCarriesCommands)));
    }
    Ok(config)
}

fn runtime(args: &Args, registry: &Arc<InstrumentedObjectStoreRegistry>) -> Result<Arc<RuntimeEnv>> {
    let mut builder = RuntimeEnvBuilder::new().with_object_store_registry(Arc::clone(registry) as _);
    if let Some(limit) = args.memory_limit {
        builder = builder.with_memory_pool(memory_pool(limit, &args.mem_pool_type, args.top_memory_consumers));
    }
    if let Some(limit) = args.disk_limit {
        builder = builder.with_disk_manager_builder(
            DiskManagerBuilder::default().with_mode(DiskManagerMode::OsTmpDirectory).with_max_temp_directory_size(limit as u64),
        );
    }
    builder.build_arc()
}

fn memory_pool(limit: usize, kind: &PoolType, top_consumers: usize) -> Arc<dyn MemoryPool> {
    match (kind, NonZeroUsize::new(top_consumers)) {
        (PoolType::Fair, None) => Arc::new(FairSpillPool::new(limit)),
        (PoolType::Fair, Some(top)) => Arc::new(TrackConsumersPool::new(FairSpillPool::new(limit), top)),
        (PoolType::Greedy, None) => Arc::new(GreedyMemoryPool::new(limit)),
        (PoolType::Greedy, Some(top)) => Arc::new(TrackConsumersPool::new(GreedyMemoryPool::new(limit), top)),
    }
}

/// Registers the catalog for `SELECT … FROM 's3://…'`, and functions about caches and files.
fn register_catalogs_and_functions(context: &SessionContext) {
    context.register_catalog_list(Arc::new(DynamicObjectStoreCatalog::new(
        Arc::clone(context.state().catalog_list()),
        context.state_weak_ref(),
    )));
    let caches = || Arc::clone(&context.task_ctx().runtime_env().cache_manager);
    context.register_udtf("parquet_metadata", Arc::new(ParquetMetadataFunc {}));
    context.register_udtf("metadata_cache", Arc::new(MetadataCacheFunc::new(caches())));
    context.register_udtf("statistics_cache", Arc::new(StatisticsCacheFunc::new(caches())));
    context.register_udtf("list_files_cache", Arc::new(ListFilesCacheFunc::new(caches())));
}
