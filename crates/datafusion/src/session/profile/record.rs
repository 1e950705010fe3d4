// SPDX-License-Identifier: Apache-2.0
//! Runs a query whose operators record.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use datafusion::DATAFUSION_VERSION;
use datafusion::common::{Result, plan_err};
use datafusion::config::ConfigOptions;
use datafusion::logical_expr::{CreateMemoryTable, DdlStatement, LogicalPlan, Statement};
use datafusion::physical_plan::execute_stream;
use datafusion::prelude::{DataFrame, SessionContext};
use futures::TryStreamExt;

use super::plan::Tree;
use super::timeline::Timeline;
use super::{DeviceFacts, Profile};
use crate::error::error_text;
use crate::run::Recording;
use crate::session::{DeviceOptions, DeviceRuntime, execute_logical_plan};

/// Runs a statement.
pub(super) async fn run_sql(ctx: &SessionContext, sql: &str) -> Result<(Profile, Result<()>)> {
    let planned = Instant::now();
    let plan = ctx.state().create_logical_plan(sql).await?;
    run_plan(ctx, plan, sql, planned).await
}

/// Runs a statement whose planning has begun before. Of `CREATE TABLE … AS` it runs the query, and
/// makes no table.
pub(super) async fn run_plan(
    ctx: &SessionContext,
    plan: LogicalPlan,
    sql: &str,
    planned: Instant,
) -> Result<(Profile, Result<()>)> {
    let frame = match plan {
        LogicalPlan::Ddl(DdlStatement::CreateMemoryTable(CreateMemoryTable { input, .. }))
            if !matches!(input.as_ref(), LogicalPlan::EmptyRelation(_)) =>
        {
            DataFrame::new(ctx.state(), Arc::unwrap_or_clone(input))
        }
        plan @ LogicalPlan::Statement(Statement::Execute(_)) => execute_logical_plan(ctx, plan).await?,
        // These run while they are planned, and have no operators.
        plan @ (LogicalPlan::Ddl(_) | LogicalPlan::Statement(_)) => {
            return plan_err!("a profile is of a query, or of a statement that writes rows, not of {}", plan.display());
        }
        plan => execute_logical_plan(ctx, plan).await?,
    };
    run(frame, sql, planned).await
}

/// Runs a query whose planning has begun before. The inner result is that of the run.
async fn run(frame: DataFrame, sql: &str, planned: Instant) -> Result<(Profile, Result<()>)> {
    let task = frame.task_ctx();
    let config = task.session_config().clone().with_extension(Arc::new(Recording));
    let runtime = DeviceRuntime::of(&config);
    let settings = changed_settings(config.options());
    let task = Arc::new(task.with_session_config(config));
    let plan = frame.create_physical_plan().await?;

    let begun = Instant::now();
    let mut rows = 0;
    let outcome: Result<()> = async {
        let mut batches = execute_stream(Arc::clone(&plan), task)?;
        while let Some(batch) = batches.try_next().await? {
            rows += batch.num_rows() as u64;
        }
        Ok(())
    }
    .await;
    let ended = Instant::now();

    let tree = Tree::of(&plan);
    let timeline = Timeline::of(&tree, begun..ended);
    let device = runtime.and_then(|runtime| runtime.opened()).map(|context| {
        let info = context.info();
        DeviceFacts {
            label: info.label(),
            name: info.name.clone(),
            platform: info.platform.clone(),
            driver_version: info.driver_version.clone(),
            memory_bytes: info.memory_bytes,
            memory_bytes_per_second: info.memory_bandwidth().bytes_per_second(),
        }
    });
    let (nodes, sources) = tree.into_nodes();
    let profile = Profile {
        sql: sql.trim().to_owned(),
        version: env!("CARGO_PKG_VERSION"),
        datafusion: DATAFUSION_VERSION,
        device,
        settings,
        rows,
        error: outcome.as_ref().err().map(error_text),
        times: timeline.times(nanos(begun - planned)),
        nodes,
        lanes: timeline.lanes(),
        sources,
    };
    Ok((profile, outcome))
}

/// Settings that differ from their defaults.
fn changed_settings(options: &ConfigOptions) -> Vec<(String, String)> {
    let mut defaults = ConfigOptions::default();
    defaults.extensions.insert(DeviceOptions::default());
    let defaults: HashMap<String, Option<String>> =
        defaults.entries().into_iter().map(|entry| (entry.key, entry.value)).collect();
    let changed = options.entries().into_iter().filter(|entry| defaults.get(&entry.key) != Some(&entry.value));
    changed.map(|entry| (entry.key, entry.value.unwrap_or_else(|| "NULL".to_owned()))).collect()
}

pub(super) fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}
