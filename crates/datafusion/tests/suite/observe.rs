// SPDX-License-Identifier: Apache-2.0
//! What a session tells of its device: the JSON report, settings that are frozen; EXPLAIN is in `explain`.

use std::sync::Arc;

use devicefusion::DeviceRuntime;

use crate::harness::{answer, block_on, strict_on, text};

const TABLE: &str = "CREATE TABLE t AS SELECT value AS i, value % 10 AS k FROM generate_series(1, 20000)";

#[test]
fn report_tells_what_the_device_did() {
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
fn what_the_open_device_depends_on_is_frozen() {
    block_on(async {
        let ctx = strict_on(1, DeviceRuntime::new());
        let run = async |sql: &str| ctx.sql(sql).await.map(|_| ()).map_err(|error| text(&error));
        run("SET device.memory_bytes = 500000000").await.unwrap();
        ctx.sql(TABLE).await.unwrap().collect().await.unwrap();
        answer(&ctx, "SELECT sum(i) FROM t").await.unwrap();
        for setting in ["memory_bytes = 600000000", "selector = 'none'", "cache_dir = '/tmp/elsewhere'", "profiling = 'false'"] {
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

/// An aggregation launches some thirty kernels for a batch, whatever its rows.
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
        // 40 batches, of which each asks for a few kernels that look rows up.
        assert!(small < large + 40 * 10, "{small} launches, {large} of one batch");
    });
}
