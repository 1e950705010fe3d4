// SPDX-License-Identifier: Apache-2.0
//! A profile of one run of a query: its plan with times, and a timeline.
//!
//! - `record` runs the query; its operators record their activities.
//! - `plan` makes the tree of the plan, `timeline` the lanes.
//! - `export` writes HTML, JSON, PostgreSQL's JSON and a trace.

mod export;
mod plan;
mod record;
mod timeline;

use std::time::{Duration, Instant};

use datafusion::common::Result;
use datafusion::logical_expr::LogicalPlan;
use datafusion::prelude::SessionContext;
use serde::Serialize;

use self::plan::{KernelSource, Node};
use self::timeline::Lane;

/// The course of one run of a query: the place, the time and the duration of each operator.
///
/// Times of kernels need `device.profiling`, which is on by default.
#[derive(Debug, Clone, Serialize)]
pub struct Profile {
    sql: String,
    version: &'static str,
    datafusion: &'static str,
    device: Option<DeviceFacts>,
    /// Settings that differ from their defaults.
    settings: Vec<(String, String)>,
    /// Rows of the result.
    rows: u64,
    /// Why the run failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
    #[serde(flatten)]
    times: Times,
    nodes: Vec<Node>,
    lanes: Vec<Lane>,
    sources: Vec<KernelSource>,
}

/// The device of a run.
#[derive(Debug, Clone, Serialize)]
struct DeviceFacts {
    label: String,
    name: String,
    platform: String,
    driver_version: String,
    memory_bytes: u64,
    memory_bytes_per_second: Option<u64>,
}

/// Where the time of a run went, in nanoseconds. All but planning add up to the total.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
struct Times {
    #[serde(rename = "planning_nanos")]
    planning: u64,
    #[serde(rename = "total_nanos")]
    total: u64,
    /// Kernels ran.
    #[serde(rename = "device_nanos")]
    device: u64,
    /// No kernel ran, and programs were compiled.
    #[serde(rename = "compiling_nanos")]
    compiling: u64,
    /// Neither, and the host waited for the device.
    #[serde(rename = "waiting_nanos")]
    waiting: u64,
    /// The rest.
    #[serde(rename = "host_nanos")]
    host: u64,
}

impl Profile {
    /// Runs a query to its end, drops its rows, and tells how the run went.
    ///
    /// - A statement that writes does so.
    /// - Of `CREATE TABLE … AS` the query runs, and no table is made.
    ///
    /// # Errors
    /// Those of the query, and of statements without operators, such as `SET`.
    ///
    /// # Examples
    /// ```
    /// # tokio::runtime::Runtime::new()?.block_on(async {
    /// use devicefusion::Profile;
    ///
    /// let ctx = devicefusion::session()?;
    /// let profile = Profile::of(&ctx, "SELECT value % 10, count(*) FROM generate_series(1, 100000) GROUP BY 1").await?;
    /// assert_eq!(profile.rows(), 10);
    /// std::fs::write(std::env::temp_dir().join("profile.html"), profile.to_html())?;
    /// # datafusion::common::Result::<()>::Ok(())
    /// # })?;
    /// # datafusion::common::Result::<()>::Ok(())
    /// ```
    pub async fn of(ctx: &SessionContext, sql: &str) -> Result<Profile> {
        let (profile, outcome) = Self::of_run(ctx, sql).await?;
        outcome.map(|()| profile)
    }

    /// As [`of`](Self::of), for a run that may fail: with its profile up to the failure.
    ///
    /// # Errors
    /// Those of planning. Those of the run are the inner result.
    ///
    /// # Examples
    /// ```
    /// # tokio::runtime::Runtime::new()?.block_on(async {
    /// use devicefusion::Profile;
    ///
    /// let ctx = devicefusion::session()?;
    /// let (profile, outcome) = Profile::of_run(&ctx, "SELECT 1 / (value - 5) FROM generate_series(1, 9)").await?;
    /// assert!(outcome.is_err() && profile.to_json().contains("Divide by zero"));
    /// # datafusion::common::Result::<()>::Ok(())
    /// # })?;
    /// # datafusion::common::Result::<()>::Ok(())
    /// ```
    pub async fn of_run(ctx: &SessionContext, sql: &str) -> Result<(Profile, Result<()>)> {
        record::run_sql(ctx, sql).await
    }

    /// As [`of_run`](Self::of_run), for a plan. `sql` is what the page shows.
    ///
    /// # Errors
    /// As [`of_run`](Self::of_run).
    pub async fn of_plan(ctx: &SessionContext, plan: LogicalPlan, sql: &str) -> Result<(Profile, Result<()>)> {
        record::run_plan(ctx, plan, sql, Instant::now()).await
    }

    /// Rows of the result.
    pub fn rows(&self) -> u64 {
        self.rows
    }

    /// From the start of the run to its last row.
    pub fn total(&self) -> Duration {
        Duration::from_nanos(self.times.total)
    }

    /// A page that shows the plan and the timeline. It needs no other file.
    pub fn to_html(&self) -> String {
        export::html(self)
    }

    /// All data of the page.
    pub fn to_json(&self) -> String {
        export::json(self)
    }

    /// The plan in the JSON of PostgreSQL's EXPLAIN, which its viewers read.
    pub fn to_pgjson(&self) -> String {
        export::pgjson(self)
    }

    /// The timeline in Chrome's trace event format, for Perfetto (<https://ui.perfetto.dev>).
    pub fn to_trace(&self) -> String {
        export::trace(self)
    }
}
