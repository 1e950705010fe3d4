// SPDX-License-Identifier: Apache-2.0
//! Sessions with and without a device, and the answers of their queries.

use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use arrow::util::display::{ArrayFormatter, FormatOptions};
use datafusion::common::tree_node::{TreeNode, TreeNodeRecursion};
use datafusion::common::{DataFusionError, Result};
use datafusion::execution::TaskContext;
use datafusion::execution::session_state::SessionStateBuilder;
use datafusion::physical_plan::{ExecutionPlan, collect};
use datafusion::prelude::{SessionConfig, SessionContext};
use device::{Context, DeviceConfig, DeviceKind};
use devicefusion::{DeviceOptions, DeviceRuntime, Placement, SessionStateBuilderExt, placement, register_schema};

/// Device that the tests of this binary share, so that each kernel is compiled once.
pub fn shared_runtime() -> Arc<DeviceRuntime> {
    static RUNTIME: OnceLock<Arc<DeviceRuntime>> = OnceLock::new();
    Arc::clone(RUNTIME.get_or_init(|| DeviceRuntime::with_context(context(device_config()))))
}

/// Configuration of the device that `DEVICEFUSION_TEST_DEVICE` names.
pub fn device_config() -> DeviceConfig {
    device::testing::config().unwrap()
}

/// Opens a device.
pub fn context(config: DeviceConfig) -> Context {
    Context::new(config).unwrap()
}

/// The wanted profile, or `gpu` if the shared device is a GPU: GPUs do not use `cpu`.
pub fn profile(wanted: &'static str) -> &'static str {
    let kind = shared_runtime().opened().map(|context| context.info().kind);
    if kind == Some(DeviceKind::Cpu) { wanted } else { "gpu" }
}

/// Plain DataFusion session.
pub fn plain(partitions: usize) -> SessionContext {
    SessionContext::new_with_config(config(partitions))
}

/// Strict session on the shared device: unsupported operators fail.
pub fn strict(partitions: usize) -> SessionContext {
    strict_on(partitions, shared_runtime())
}

/// Strict session on the given runtime. A runtime that is not open yet opens the device of the
/// tests.
pub fn strict_on(partitions: usize, runtime: Arc<DeviceRuntime>) -> SessionContext {
    let state = SessionStateBuilder::new()
        .with_config(config(partitions).with_option_extension(DeviceOptions::default()))
        .with_default_features()
        .with_device_runtime(runtime)
        .build();
    let ctx = SessionContext::new_with_state(state);
    register_schema(&ctx).unwrap();
    set(&ctx, "device.selector", &device_config().selector.to_string());
    set(&ctx, "device.fallback", "error");
    set(&ctx, "device.cost", "always");
    set(&ctx, "device.cache_dir", "");
    ctx
}

fn config(partitions: usize) -> SessionConfig {
    SessionConfig::new().with_target_partitions(partitions).with_information_schema(true)
}

/// Changes a setting of a session.
#[track_caller]
pub fn set(ctx: &SessionContext, key: &str, value: &str) {
    let state = ctx.state_ref();
    DeviceOptions::set_by_program(state.write().config_mut().options_mut(), key, value).unwrap();
}

/// Rows of a query, and the placement of its operators.
#[derive(Debug)]
pub struct Answer {
    pub schema: SchemaRef,
    pub batches: Vec<RecordBatch>,
    pub placement: Placement,
    pub launches: usize,
    pub spilled_bytes: usize,
}

impl Answer {
    pub fn num_rows(&self) -> usize {
        self.batches.iter().map(RecordBatch::num_rows).sum()
    }

    /// The rows as strings, in their order.
    pub fn ordered_lines(&self) -> Vec<String> {
        ordered_lines(&self.batches)
    }

    /// The rows as sorted strings.
    pub fn lines(&self) -> Vec<String> {
        sorted_lines(&self.batches)
    }
}

/// Rows as sorted strings.
pub fn sorted_lines(batches: &[RecordBatch]) -> Vec<String> {
    let mut lines = ordered_lines(batches);
    lines.sort();
    lines
}

/// Rows as strings, in their order. Tables of arrow are slower by far for many rows.
pub fn ordered_lines(batches: &[RecordBatch]) -> Vec<String> {
    let options = FormatOptions::new().with_null("NULL");
    let mut lines = Vec::new();
    for batch in batches {
        let columns = batch.columns().iter().map(|column| ArrayFormatter::try_new(column, &options).unwrap());
        let columns: Vec<_> = columns.collect();
        lines.extend((0..batch.num_rows()).map(|row| {
            let mut line = String::from("|");
            for column in &columns {
                line.push(' ');
                column.value(row).write(&mut line).unwrap();
                line.push_str(" |");
            }
            line
        }));
    }
    lines
}

/// Runs a query to its end.
pub async fn answer(ctx: &SessionContext, sql: &str) -> Result<Answer> {
    let frame = ctx.sql(sql).await?;
    let task = Arc::new(frame.task_ctx());
    let plan = frame.create_physical_plan().await?;
    answer_of(plan, task).await
}

/// Runs a plan to its end.
pub async fn answer_of(plan: Arc<dyn ExecutionPlan>, task: Arc<TaskContext>) -> Result<Answer> {
    let batches = collect(Arc::clone(&plan), task).await?;
    let (launches, spilled_bytes) = (metric(&plan, "launches"), metric(&plan, "spilled_bytes"));
    Ok(Answer { schema: plan.schema(), batches, placement: placement(&plan), launches, spilled_bytes })
}

/// Sum of a metric over all operators of a plan that has run.
pub fn metric(plan: &Arc<dyn ExecutionPlan>, name: &str) -> usize {
    let mut total = 0;
    plan.apply(|node| {
        if let Some(metrics) = node.metrics() {
            total += metrics.sum(|metric| metric.value().name() == name).map_or(0, |value| value.as_usize());
        }
        Ok(TreeNodeRecursion::Continue)
    })
    .unwrap();
    total
}

/// Waits until only memory kept by the test is in use.
#[track_caller]
pub fn assert_returned(context: &Context, before: usize) {
    let start = Instant::now();
    while context.pool().in_use() > before {
        assert!(start.elapsed() < Duration::from_secs(30), "{} bytes in use, {before} before", context.pool().in_use());
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Runs a query on the shared device and on plain DataFusion, and compares the rows in any order.
#[track_caller]
pub fn check(setup: &[&str], sql: &str) {
    let location = std::panic::Location::caller();
    block_on(async {
        let (device, host) = (strict(2), plain(2));
        for statement in setup {
            device.sql(statement).await.unwrap().collect().await.unwrap();
            if !statement.contains("device.") {
                host.sql(statement).await.unwrap().collect().await.unwrap();
            }
        }
        let actual = answer(&device, sql).await.unwrap();
        let expected = answer(&host, sql).await.unwrap();
        assert!(actual.launches > 0, "{location}: {sql}: nothing was launched");
        assert_eq!(actual.lines(), expected.lines(), "{location}: {sql}");
    });
}

/// Number of threads of a runtime. Concurrent queries must wait for each other at times.
pub fn threads() -> usize {
    std::thread::available_parallelism().map_or(2, |cores| cores.get().clamp(2, 8))
}

/// Blocks on a future, with several threads and the stack size that unoptimized planners need.
pub fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(threads())
        .thread_stack_size(16 << 20)
        .enable_all()
        .build()
        .unwrap()
        .block_on(future)
}

/// Message of an error, without a backtrace.
pub fn text(error: &DataFusionError) -> String {
    error.strip_backtrace()
}
