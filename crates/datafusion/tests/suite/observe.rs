// SPDX-License-Identifier: Apache-2.0
//! Observability of a session's device: the JSON report and frozen settings. EXPLAIN is in
//! `explain`.

use std::sync::Arc;

use datafusion::common::tree_node::{TreeNode, TreeNodeRecursion};
use devicefusion::DeviceRuntime;

use crate::harness::{self, answer, answer_of, block_on, set, strict_on, text};

const TABLE: &str = "CREATE TABLE t AS SELECT value AS i, value % 10 AS k FROM generate_series(1, 20000)";

#[test]
fn report_shows_the_work_of_the_device() {
    block_on(async {
        let runtime = DeviceRuntime::new();
        assert!(runtime.report().is_none(), "no query has opened the device yet");
        let ctx = strict_on(1, Arc::clone(&runtime));
        ctx.sql(TABLE).await.unwrap().collect().await.unwrap();
        let launches = answer(&ctx, "SELECT k, sum(i) FROM t GROUP BY k").await.unwrap().launches as u64;
        let (report, counters) = (runtime.report().unwrap(), runtime.counters().unwrap());
        assert_eq!(report["version"], 1);
        let of_kernels: u64 =
            report["kernels"].as_array().unwrap().iter().map(|kernel| kernel["launches"].as_u64().unwrap()).sum();
        assert!(
            of_kernels == counters.launches && of_kernels >= launches,
            "{of_kernels} of kernels, {launches} of the query: {counters:?}"
        );
        assert_eq!(report["programs"]["compiled"], counters.programs_compiled);
        assert_eq!(report["copies"]["bytes_up"], counters.bytes_up);
        assert!(report["memory"]["peak"].as_u64() > Some(0));
    });
}

#[test]
fn settings_of_an_open_device_are_frozen() {
    block_on(async {
        let ctx = strict_on(1, DeviceRuntime::new());
        let run = async |sql: &str| ctx.sql(sql).await.map(|_| ()).map_err(|error| text(&error));
        run("SET device.memory_bytes = 500000000").await.unwrap();
        ctx.sql(TABLE).await.unwrap().collect().await.unwrap();
        answer(&ctx, "SELECT sum(i) FROM t").await.unwrap();
        for setting in ["memory_bytes = 600000000", "selector = 'none'", "platform = 'another'", "profiling = 'false'"] {
            let error = run(&format!("SET device.{setting}")).await.unwrap_err();
            let (name, _) = setting.split_once(' ').unwrap();
            assert!(
                error.contains(&format!("device.{name} cannot change")) && error.contains("before the first query"),
                "{error}"
            );
        }
        run("SET device.memory_bytes = 500000000").await.unwrap();
        run("SET device.batch_rows = 1000").await.unwrap();
        answer(&ctx, "SELECT sum(i) FROM t").await.unwrap();
    });
}

/// An aggregation launches about thirty kernels for a batch, regardless of its rows.
#[test]
fn small_batches_of_a_join_are_aggregated_together() {
    block_on(async {
        let ctx = strict_on(1, DeviceRuntime::new());
        let run = async |sql: &str| ctx.sql(sql).await.unwrap().collect().await.unwrap();
        run("SET datafusion.execution.batch_size = 500").await;
        run(TABLE).await;
        run("CREATE TABLE names AS SELECT value * 50 AS i, CAST(concat('name number ', value) AS VARCHAR) AS name FROM generate_series(1, 500)").await;
        let query = "SELECT name, count(*), sum(t.i) FROM t JOIN names ON t.i = names.i GROUP BY name";
        run("SET device.batch_rows = 500").await;
        let small = answer(&ctx, query).await.unwrap();
        run("SET device.batch_rows = 0").await;
        let large = answer(&ctx, query).await.unwrap();
        assert!(small.num_rows() == 400 && small.lines() == large.lines());
        let (small, large) = (small.launches, large.launches);
        // Each of the 40 batches launches a few kernels that look up rows.
        assert!(small < large + 40 * 10, "{small} launches, {large} of one batch");
    });
}

/// An aggregation that probes a join itself needs no kernels to count or write joined rows first.
/// The join still reports their number.
#[test]
fn an_aggregation_probes_the_joins_below_it() {
    device::skip_unless_turn!(0);
    block_on(async {
        for profile in ["cpu", "gpu"] {
            // Each query has a device of its own, which separates the kernels of its join from
            // others.
            let kernels = async |sql: &str| {
                let runtime = DeviceRuntime::new();
                let ctx = strict_on(1, Arc::clone(&runtime));
                set(&ctx, "device.profile", harness::profile(profile));
                let names = "CREATE TABLE names AS SELECT value * 50 AS i, value % 2 = 0 AS even FROM generate_series(1, 300)";
                for statement in [TABLE, names] {
                    ctx.sql(statement).await.unwrap().collect().await.unwrap();
                }
                let frame = ctx.sql(sql).await.unwrap();
                let (task, plan) = (Arc::new(frame.task_ctx()), frame.create_physical_plan().await.unwrap());
                let lines = answer_of(Arc::clone(&plan), task).await.unwrap().lines();
                let mut joined = None;
                plan.apply(|node| {
                    if node.name() == "DeviceJoinExec" {
                        joined = node.metrics().and_then(|metrics| metrics.output_rows());
                    }
                    Ok(TreeNodeRecursion::Continue)
                })
                .unwrap();
                let report = runtime.report().unwrap();
                let probes =
                    report["kernels"].as_array().unwrap().iter().any(|kernel| kernel["name"].as_str().unwrap().contains("probe"));
                (lines, joined, probes)
            };
            for (sql, expected) in [
                ("SELECT count(*), sum(t.i) FROM t JOIN names ON t.i = names.i", vec!["| 300 | 2257500 |"]),
                (
                    "SELECT even, count(*) FROM t JOIN names ON t.i = names.i GROUP BY even",
                    vec!["| false | 150 |", "| true | 150 |"],
                ),
            ] {
                let (lines, joined, probes) = kernels(sql).await;
                assert_eq!(lines, expected, "{sql}");
                assert_eq!((joined, probes), (Some(300), false), "{sql}");
            }
            // With repeated keys, a kernel writes the joined rows.
            let (lines, joined, probes) = kernels("SELECT count(*) FROM t JOIN names ON t.k = names.i % 100").await;
            assert_eq!(lines, ["| 300000 |"]);
            assert_eq!((joined, probes), (Some(300_000), true));
        }
    });
}

#[test]
fn a_table_function_lists_what_holds_device_memory() {
    block_on(async {
        let runtime = DeviceRuntime::new();
        let ctx = strict_on(1, Arc::clone(&runtime));
        let lines = async |sql: &str| answer(&ctx, sql).await.unwrap().ordered_lines();
        assert!(lines("SELECT * FROM device_memory()").await.is_empty() && runtime.opened().is_none());
        let rows = "SELECT value AS i, CASE WHEN value % 2 = 0 THEN 'even' END AS s FROM generate_series(1, 1000)";
        ctx.sql(&format!("CREATE TABLE device.t AS {rows}")).await.unwrap().collect().await.unwrap();
        let columns = "SELECT name, column_name, encoding, rows FROM device_memory() WHERE holder = 'table' ORDER BY column_name";
        assert_eq!(
            lines(columns).await,
            ["| device.t | i | i16 | 1000 |", "| device.t | s | u8 codes of 32-bit offsets | 1000 |"],
        );
        let bytes = "SELECT bytes >= 2 * rows AND bytes_a_row < 5 FROM device_memory() WHERE column_name = 'i'";
        assert_eq!(lines(bytes).await, ["| true |"]);
        let pool = "SELECT name FROM device_memory() WHERE holder = 'pool' AND (bytes > 0 OR name = 'free')";
        assert_eq!(lines(pool).await, ["| in use |", "| free |", "| peak |", "| limit |"]);
        let caches = "SELECT name FROM device_memory() WHERE holder = 'cache' AND (bytes > 0 OR name <> 'programs') ORDER BY 1";
        assert_eq!(lines(caches).await, ["| columns of files |", "| constants |", "| pinned |", "| programs |"]);
        let host = "SELECT name FROM device_memory() WHERE holder = 'host' AND bytes = 0";
        assert_eq!(lines(host).await, ["| uploads |", "| downloads |", "| operators |"]);
        // A query that has not ended holds memory by its operators.
        let sorted = "SELECT value FROM generate_series(1, 1000000) ORDER BY value % 1001";
        let mut stream = ctx.sql(sorted).await.unwrap().execute_stream().await.unwrap();
        assert!(futures::StreamExt::next(&mut stream).await.unwrap().unwrap().num_rows() > 0);
        let held = "SELECT count(*) > 0, min(bytes) > 0 FROM device_memory() WHERE holder = 'query'";
        assert_eq!(lines(held).await, ["| true | true |"]);
        drop(stream);
        let kernels = "SELECT count(*) > 0, sum(launches) >= count(*), min(seconds) >= 0 FROM device_kernels()";
        assert_eq!(lines(kernels).await, ["| true | true | true |"]);
        let error = text(&answer(&ctx, "SELECT * FROM device_kernels(1)").await.unwrap_err());
        assert!(error.contains("device_kernels() takes no arguments"), "{error}");
        let error = text(&answer(&ctx, "SELECT * FROM device_memory(1)").await.unwrap_err());
        assert!(error.contains("device_memory() takes no arguments"), "{error}");
    });
}
