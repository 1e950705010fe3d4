// SPDX-License-Identifier: Apache-2.0
//! The work that the first queries of a process leave undone.

use std::sync::Arc;
use std::time::Duration;

use datafusion::execution::runtime_env::RuntimeEnvBuilder;
use datafusion::execution::session_state::SessionStateBuilder;
use datafusion::physical_plan::{ExecutionPlan, collect, displayable};
use datafusion::prelude::SessionContext;
use devicefusion::DeviceRuntime;
use devicefusion::exec::DeviceToHostExec;
use parking_lot::Mutex;

use crate::harness::{Answer, answer, block_on, plain, set, strict_on};

#[test]
fn the_catalog_and_tiny_inputs_leave_the_device_closed() {
    block_on(async {
        let runtime = DeviceRuntime::new();
        let ctx = strict_on(2, Arc::clone(&runtime));
        for sql in [
            "SHOW device.memory_bytes",
            "SHOW ALL",
            "SHOW TABLES",
            "SHOW COLUMNS FROM information_schema.tables",
            "DESCRIBE information_schema.tables",
            "SELECT table_name, count(*) FROM information_schema.columns WHERE column_name LIKE 'a%' GROUP BY 1 ORDER BY 1",
            "SELECT 6 * 7, 'text'",
            "EXPLAIN SELECT upper(name) FROM information_schema.df_settings ORDER BY 1",
            "EXPLAIN SELECT value % 7, count(*) FROM generate_series(1, 100000) GROUP BY 1",
            "EXPLAIN VERBOSE SELECT a.value FROM generate_series(1, 100000) a JOIN generate_series(1, 9) b USING (value)",
        ] {
            assert_eq!(answer(&ctx, sql).await.unwrap().launches, 0, "{sql}");
            assert!(runtime.opened().is_none(), "{sql} opens the device");
        }
        // No setting is frozen.
        set(&ctx, "device.memory_bytes", "67108864");

        let ctx = {
            set(&ctx, "device.fallback", "host");
            set(&ctx, "device.cost", "auto");
            set(&ctx, "device.adaptive_start", "never");
            ctx.enable_url_table()
        };
        let folder = tempfile::tempdir().unwrap();
        let file = |name: &str| folder.path().join(name).display().to_string();
        for name in ["t.csv", "t.json", "t.parquet"] {
            let file = file(name);
            answer(&ctx, &format!("COPY (VALUES (1, 'a'), (2, 'b')) TO '{file}'")).await.unwrap();
            for sql in [
                format!("SELECT column2, count(*) FROM '{file}' WHERE column1 > 0 GROUP BY 1 ORDER BY 1"),
                format!("SELECT sum(a.column1) FROM '{file}' a JOIN '{file}' b ON a.column1 = b.column1 + 1 WHERE a.column1 > 1"),
            ] {
                assert_eq!(answer(&ctx, &sql).await.unwrap().launches, 0, "{sql}");
                assert!(runtime.opened().is_none(), "{sql} opens the device");
            }
        }
        let many = "SELECT value % 7, count(*) FROM generate_series(1, 100000) GROUP BY 1";
        assert!(answer(&ctx, many).await.unwrap().launches > 0);
        assert!(runtime.opened().is_some());
    });
}

/// EXPLAIN says why there is no device, though it opens none, and forgets it with the setting.
#[test]
fn explain_of_a_closed_session_knows_whether_there_is_a_device() {
    block_on(async {
        let runtime = DeviceRuntime::new();
        let ctx = strict_on(2, Arc::clone(&runtime));
        for (key, value) in [("device.fallback", "host"), ("device.cost", "auto")] {
            set(&ctx, key, value);
        }
        let explain = "EXPLAIN SELECT value % 7, count(*) FROM generate_series(1, 100000) GROUP BY 1";
        set(&ctx, "device.selector", "none");
        let plan = text_of(&answer(&ctx, explain).await.unwrap());
        assert!(plan.contains("there is no device: device.selector = 'none'"), "{plan}");
        set(&ctx, "device.selector", "#99");
        let verbose = explain.replace("EXPLAIN", "EXPLAIN VERBOSE");
        let plan = text_of(&answer(&ctx, &verbose).await.unwrap());
        assert!(plan.contains("no such device"), "{plan}");
        set(&ctx, "device.selector", &device::testing::config().unwrap().selector.to_string());
        let plan = text_of(&answer(&ctx, explain).await.unwrap());
        assert!(plan.contains("DeviceAggregateExec") && !plan.contains("there is no device"), "{plan}");
        assert!(runtime.opened().is_none());
    });
}

fn text_of(answer: &Answer) -> String {
    answer.ordered_lines().join("\n")
}

fn wait_for_programs(runtime: &DeviceRuntime) {
    assert!(runtime.opened().unwrap().wait_until_prepared(Duration::from_secs(300)));
}

/// A session of `runtime` that may start on the host.
fn adaptive(runtime: &Arc<DeviceRuntime>) -> SessionContext {
    let ctx = strict_on(2, Arc::clone(runtime));
    for (key, value) in [("device.fallback", "host"), ("device.cost", "auto"), ("device.adaptive_start", "always")] {
        set(&ctx, key, value);
    }
    ctx
}

#[test]
fn first_runs_are_the_hosts_until_kernels_are_compiled() {
    block_on(async {
        let log = Arc::new(Mutex::new(Vec::new()));
        let sink = Arc::clone(&log);
        let runtime = DeviceRuntime::for_program(Arc::new(move |line: &str| sink.lock().push(line.to_owned())), None);
        let ctx = adaptive(&runtime);
        let host = plain(2);
        let queries = [
            "SELECT value % 7 AS k, count(*), sum(value) FROM generate_series(1, 100000) GROUP BY 1 ORDER BY 1",
            "SELECT a.value, b.value FROM generate_series(1, 20000) a JOIN generate_series(1, 20000) b ON a.value = 2 * b.value \
             WHERE b.value % 5 = 1 ORDER BY 1 LIMIT 50",
            "SELECT value, value * 2 FROM generate_series(1, 30000) WHERE value % 100 = 3",
        ];
        for sql in queries {
            let expected = answer(&host, sql).await.unwrap().lines();
            let explained = text_of(&answer(&ctx, &format!("EXPLAIN {sql}")).await.unwrap());
            assert!(explained.contains("first_runs=[host, until its kernels are compiled"), "{explained}");
            let first = answer(&ctx, sql).await.unwrap();
            assert_eq!((first.launches, first.lines()), (0, expected.clone()), "{sql}");
            wait_for_programs(&runtime);
            let second = answer(&ctx, sql).await.unwrap();
            assert_eq!(second.lines(), expected, "{sql}");
            assert!(second.launches > 0, "{sql}");
            let explained = text_of(&answer(&ctx, &format!("EXPLAIN ANALYZE {sql}")).await.unwrap());
            assert!(!explained.contains("first_runs") && !explained.contains("ran_on_host"), "{explained}");
        }
        let analyzed =
            text_of(&answer(&ctx, "EXPLAIN ANALYZE SELECT max(value * 3) FROM generate_series(1, 30000)").await.unwrap());
        assert!(
            analyzed.contains("ran_on_host=[its kernels were not compiled yet; SET device.adaptive_start = 'never'"),
            "{analyzed}"
        );
        let (_, operators) = analyzed.split_once("host_operators=[AggregateExec 1 rows ").unwrap_or_else(|| panic!("{analyzed}"));
        assert!(operators.split(']').next().unwrap().contains(" 30000 rows"), "{analyzed}");
        // Without leave, a query waits for its kernels. So does one over much data.
        for (key, value, expression) in [
            ("device.adaptive_start", "never", "value * 4"),
            ("device.cost", "always", "value * value"),
            ("device.fallback", "error", "(value - 1) * 5"),
            ("device.threshold_divisor", "1048576", "value + value * 2"),
        ] {
            let ctx = adaptive(&runtime);
            // Its statistics tell the bytes.
            answer(&ctx, "CREATE TABLE t AS SELECT value FROM generate_series(1, 30000)").await.unwrap();
            set(&ctx, key, value);
            assert!(answer(&ctx, &format!("SELECT sum({expression}) FROM t")).await.unwrap().launches > 0, "{key}");
        }
        wait_for_programs(&runtime);
        let failed = log.lock().iter().find(|line| line.contains("dry launch")).cloned();
        assert_eq!(failed, None);
    });
}

/// The host has the operators of plain DataFusion: filters of joins and of the first rows reach the
/// scans, and scans compute columns. Sorts of all rows over scans are left out: DataFusion 55.2
/// gives reset ones a filter that never filters.
#[test]
fn first_runs_have_the_plan_of_plain_datafusion() {
    block_on(async {
        let runtime = DeviceRuntime::new();
        let (ctx, host) = (adaptive(&runtime).enable_url_table(), plain(2).enable_url_table());
        let folder = tempfile::tempdir().unwrap();
        let [few, many] = ["few", "many"].map(|name| folder.path().join(name).with_extension("parquet").display().to_string());
        answer(&host, &format!("COPY (SELECT value AS k, value % 5 AS x FROM generate_series(1, 500)) TO '{few}'"))
            .await
            .unwrap();
        answer(&host, &format!("COPY (SELECT value AS k, value * 3 AS y FROM generate_series(1, 200000)) TO '{many}'"))
            .await
            .unwrap();
        for sql in [
            format!("SELECT sum(m.y) FROM '{many}' m JOIN '{few}' f ON m.k = f.k WHERE f.x = 2"),
            format!("SELECT k, y FROM '{many}' WHERE y % 7 = 1 ORDER BY y DESC LIMIT 4"),
            format!("SELECT k % 10, sum(y * 2 + 1), avg(y * 2 + 1) FROM '{many}' WHERE k > 9 GROUP BY 1 ORDER BY 1"),
            format!("SELECT count(m.k), sum(m.y + f.x) FROM '{many}' m LEFT JOIN '{few}' f ON m.k = f.k WHERE m.y < 900"),
            format!("SELECT max(y) FROM '{many}' WHERE k IN (SELECT k + 1 FROM '{few}' WHERE x > 3)"),
        ] {
            let plain = run(&host, &sql).await;
            let first = run(&ctx, &sql).await;
            assert_eq!(runtime.counters().unwrap().launches, 0, "{sql}");
            let rows = |plan: &Arc<dyn ExecutionPlan>| plan.metrics().unwrap().output_rows();
            assert_eq!((rows(&first), rows(&first).is_some()), (rows(&plain), true), "{sql}");
            let host = first.downcast_ref::<DeviceToHostExec>().unwrap().host_run().unwrap();
            assert_eq!(operators(&host), operators(&plain), "{sql}");
            wait_for_programs(&runtime);
        }
    });
}

/// The plan of a query, once it has run.
async fn run(ctx: &SessionContext, sql: &str) -> Arc<dyn ExecutionPlan> {
    let plan = ctx.sql(sql).await.unwrap().create_physical_plan().await.unwrap();
    collect(Arc::clone(&plan), ctx.task_ctx()).await.unwrap();
    plan
}

/// A line for each operator, without what a filter of a run has found.
fn operators(plan: &Arc<dyn ExecutionPlan>) -> String {
    let lines = displayable(plan.as_ref()).indent(false).to_string();
    let cut = lines.lines().map(|line| line.split_inclusive("DynamicFilter").next().unwrap_or(line));
    cut.collect::<Vec<_>>().join("\n")
}

#[test]
fn a_first_run_without_memory_of_the_host_is_the_devices() {
    block_on(async {
        let runtime = DeviceRuntime::new();
        let host_memory = RuntimeEnvBuilder::new().with_memory_limit(4 << 20, 1.0).build_arc().unwrap();
        let ctx = adaptive(&runtime);
        let state = SessionStateBuilder::new_from_existing(ctx.state()).with_runtime_env(host_memory).build();
        let ctx = SessionContext::new_with_state(state);
        let tables = "generate_series(1, 400000) a JOIN generate_series(1, 400000) b ON a.value = b.value";
        let sql = format!("SELECT count(*), sum(a.value) FROM {tables}");
        let explained = text_of(&answer(&ctx, &format!("EXPLAIN {sql}")).await.unwrap());
        assert!(explained.contains("first_runs=[host"), "{explained}");
        let first = answer(&ctx, &sql).await.unwrap();
        assert_eq!(first.lines(), ["| 400000 | 80000200000 |"]);
        assert!(first.launches > 0);
        wait_for_programs(&runtime);
    });
}
