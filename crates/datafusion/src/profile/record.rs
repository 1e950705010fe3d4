// SPDX-License-Identifier: Apache-2.0
//! Runs a query whose operators record.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use datafusion::DATAFUSION_VERSION;
use datafusion::common::Result;
use datafusion::config::ConfigOptions;
use datafusion::physical_plan::execute_stream;
use datafusion::prelude::{DataFrame, SessionContext};
use futures::TryStreamExt;

use super::plan::Tree;
use super::timeline::Timeline;
use super::{DeviceFacts, Profile};
use crate::execute_logical_plan;
use crate::run::Recording;
use crate::session::{DeviceOptions, DeviceRuntime};

pub(super) async fn run_sql(ctx: &SessionContext, sql: &str) -> Result<Profile> {
    let planned = Instant::now();
    let plan = ctx.state().create_logical_plan(sql).await?;
    run(execute_logical_plan(ctx, plan).await?, sql, planned).await
}

/// Runs a query whose planning has begun before.
pub(super) async fn run(frame: DataFrame, sql: &str, planned: Instant) -> Result<Profile> {
    let task = frame.task_ctx();
    let config = task.session_config().clone().with_extension(Arc::new(Recording));
    let runtime = DeviceRuntime::of(&config);
    let settings = changed_settings(config.options());
    let task = Arc::new(task.with_session_config(config));
    let plan = frame.create_physical_plan().await?;

    let begun = Instant::now();
    let rows = execute_stream(Arc::clone(&plan), task)?;
    let rows = rows.try_fold(0, |rows, batch| async move { Ok(rows + batch.num_rows() as u64) }).await?;
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
            memory_bytes_per_second: info.memory_bytes_per_second,
        }
    });
    let (nodes, sources) = tree.into_nodes();
    Ok(Profile {
        sql: sql.trim().to_owned(),
        version: env!("CARGO_PKG_VERSION"),
        datafusion: DATAFUSION_VERSION,
        device,
        settings,
        rows,
        times: timeline.times(nanos(begun - planned)),
        nodes,
        lanes: timeline.lanes(),
        sources,
    })
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
