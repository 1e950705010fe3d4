// SPDX-License-Identifier: Apache-2.0
//! Sessions that run on a device.

use std::sync::Arc;

use datafusion::common::Result;
use datafusion::execution::context::{SessionConfig, SessionContext};
use datafusion::execution::runtime_env::RuntimeEnv;
use datafusion::execution::session_state::{SessionState, SessionStateBuilder};
use datafusion::physical_optimizer::PhysicalOptimizerRule;

use crate::futhark::{FutharkFactory, TableFunctionsListed};
use crate::planner::{
    DevicePlanner, EarlyDrivers, HostReasons, InsertTypes, PlanCache, PlanCacheQueryPlanner, PlanCacheRule, ProjectionKeeper,
    SubqueryColumns, WindowFilters,
};
use crate::session::{DeviceOptions, DeviceRuntime};
use crate::table;

/// A session whose queries run on this machine's device, with settings from `DATAFUSION_*`
/// variables.
///
/// The first query that can use the device opens it. Without a device, queries run on the host and
/// EXPLAIN says so. The schema `device` of the default catalog keeps resident tables.
///
/// # Errors
/// If a variable holds a bad value.
///
/// # Examples
/// ```
/// # tokio::runtime::Runtime::new()?.block_on(async {
/// let ctx = devicefusion::session()?;
/// let rows = ctx.sql("SELECT sum(value) FROM generate_series(1, 100000)").await?.collect().await?;
/// assert_eq!(rows[0].num_rows(), 1);
/// # datafusion::common::Result::<()>::Ok(())
/// # })?;
/// # datafusion::common::Result::<()>::Ok(())
/// ```
pub fn session() -> Result<SessionContext> {
    let config = SessionConfig::from_env()?.with_option_extension(DeviceOptions::from_env()?);
    session_with(config, Arc::new(RuntimeEnv::default()))
}

/// A session that runs on a device, with the given configuration and runtime.
///
/// # Errors
/// If the catalog refuses the schema `device`.
pub fn session_with(config: SessionConfig, runtime: Arc<RuntimeEnv>) -> Result<SessionContext> {
    let state = SessionStateBuilder::new()
        .with_config(config.with_information_schema(true))
        .with_runtime_env(runtime)
        .with_default_features()
        .with_device()
        .build();
    let ctx = SessionContext::new_with_state(state);
    table::register_schema(&ctx)?;
    Ok(ctx)
}

/// Adds a device to a session state.
///
/// # Examples
/// ```
/// use datafusion::execution::session_state::SessionStateBuilder;
/// use datafusion::prelude::SessionContext;
/// use devicefusion::SessionStateBuilderExt;
///
/// let state = SessionStateBuilder::new().with_default_features().with_device().build();
/// let ctx = SessionContext::new_with_state(state);
/// devicefusion::register_schema(&ctx)?; // the schema `device`, for resident tables
/// # datafusion::common::Result::<()>::Ok(())
/// ```
pub trait SessionStateBuilderExt: Sized {
    /// Installs the settings `device.*`, the planning rules and a device that the first query
    /// opens.
    ///
    /// Settings that run native code or use files are the program's: it sets them before, or by
    /// [`DeviceOptions::set_by_program`]. `SET` refuses them from now on.
    ///
    /// The builder's query planner is wrapped, to keep plans. Another one is set before, not after:
    /// it would not know the nodes of kept queries.
    ///
    /// `CREATE FUNCTION` gets `LANGUAGE futhark`. The state's former factory makes functions of
    /// other languages.
    fn with_device(self) -> Self {
        self.with_device_runtime(DeviceRuntime::new())
    }

    /// As [`with_device`](Self::with_device), sharing a device and its compiled kernels with other
    /// sessions.
    fn with_device_runtime(self, runtime: Arc<DeviceRuntime>) -> Self;
}

impl SessionStateBuilderExt for SessionStateBuilder {
    fn with_device_runtime(mut self, runtime: Arc<DeviceRuntime>) -> Self {
        let mut config = self.config().take().unwrap_or_default();
        if config.options().extensions.get::<DeviceOptions>().is_none() {
            config = config.with_option_extension(DeviceOptions::default());
        }
        if let Some(options) = config.options_mut().extensions.get_mut::<DeviceOptions>() {
            options.seal();
        }
        // Rules that the builder got one by one come behind these.
        let rules = self.physical_optimizers().take().unwrap_or_default().rules;
        let factory = FutharkFactory::new(self.function_factory().take());
        let plans = Arc::new(PlanCache::default());
        let planner = PlanCacheQueryPlanner::new(Arc::clone(&plans), Arc::clone(&runtime), self.query_planner().take());
        let analyzer = self.analyzer().get_or_insert_default();
        analyzer.rules.insert(0, Arc::new(PlanCacheRule::new(plans)));
        analyzer.rules.insert(1, Arc::new(EarlyDrivers::new(Arc::clone(&runtime))));
        // Before types are coerced.
        analyzer.rules.insert(2, Arc::new(table::TableChanges));
        self.with_function_factory(Some(Arc::new(factory)))
            .with_config(config.with_extension(Arc::clone(&runtime)))
            .with_query_planner(Arc::new(planner))
            .with_analyzer_rule(Arc::new(InsertTypes))
            .with_optimizer_rule(Arc::new(WindowFilters::new(Arc::clone(&runtime))))
            .with_optimizer_rule(Arc::new(SubqueryColumns::new(Arc::clone(&runtime))))
            .with_optimizer_rule(Arc::new(TableFunctionsListed))
            .with_physical_optimizer_rules(installed(rules, &runtime))
    }
}

type Rule = Arc<dyn PhysicalOptimizerRule + Send + Sync>;

/// DataFusion's rules with those of this crate: planning before `EnsureCooperative`, reasons at the
/// end.
fn installed(mut rules: Vec<Rule>, runtime: &Arc<DeviceRuntime>) -> Vec<Rule> {
    let before = |rules: &[Rule], name| rules.iter().position(|rule| rule.name() == name).unwrap_or(rules.len());
    rules.insert(before(&rules, "ProjectionPushdown"), Arc::new(ProjectionKeeper::new(Arc::clone(runtime))));
    rules.insert(before(&rules, "EnsureCooperative"), Arc::new(DevicePlanner::new(Arc::clone(runtime))));
    rules.push(Arc::new(HostReasons::new(Arc::clone(runtime))));
    rules
}

/// Whether a state has a device runtime.
pub fn has_device(state: &SessionState) -> bool {
    DeviceRuntime::of(state.config()).is_some()
}
