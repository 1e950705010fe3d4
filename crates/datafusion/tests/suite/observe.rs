// SPDX-License-Identifier: Apache-2.0
//! What a session tells of its device: EXPLAIN ANALYZE, the JSON report, settings that are frozen.

use std::sync::Arc;

use arrow::util::pretty::pretty_format_batches;
use device::testing::FaultPlan;
use devicefusion::DeviceRuntime;

use crate::harness::{answer, block_on, context, device_config, set, strict_on, text};

const TABLE: &str = "CREATE TABLE t AS SELECT value AS i, value % 10 AS k FROM generate_series(1, 20000)";

#[test]
fn explain_analyze_tells_what_each_operator_cost() {
    block_on(async {
        let plan = FaultPlan::masking(|info| info.unified_memory = false);
        let ctx = strict_on(2, DeviceRuntime::with_context(context(device_config().with_wrap(plan.wrap()))));
        ctx.sql(TABLE).await.unwrap().collect().await.unwrap();
        set(&ctx, "datafusion.explain.format", "indent");
        let sql = "EXPLAIN ANALYZE SELECT k, sum(i * 3 + 1) FROM t WHERE i > 7 GROUP BY k";
        let batches = ctx.sql(sql).await.unwrap().collect().await.unwrap();
        let told = pretty_format_batches(&batches).unwrap().to_string();
        let of =
            |operator: &str| told.lines().find(|line| line.contains(operator)).unwrap_or_else(|| panic!("{operator}: {told}"));
        for (operator, metrics) in [
            ("DeviceAggregateExec", &["output_rows=10", "launches=", "kernel_time=", "compile_time=", "peak_device_bytes="][..]),
            ("DeviceUploadExec", &["output_rows=20", "bytes_up=", "peak_device_bytes="][..]),
            ("DeviceIslandExec", &["output_rows=10", "bytes_down="][..]),
        ] {
            let line = of(operator);
            for metric in metrics {
                assert!(line.contains(metric), "{metric}: {line}");
            }
        }
    });
}

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
