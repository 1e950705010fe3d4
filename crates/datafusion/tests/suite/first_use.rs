// SPDX-License-Identifier: Apache-2.0
//! What the first queries of a process leave undone.

use std::sync::Arc;
use std::time::{Duration, Instant};

use devicefusion::DeviceRuntime;

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
            "SELECT table_name, count(*) FROM information_schema.columns WHERE column_name LIKE 'a%' GROUP BY 1 ORDER BY 1",
            "SELECT 6 * 7, 'text'",
            "EXPLAIN SELECT upper(name) FROM information_schema.df_settings ORDER BY 1",
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

fn text_of(answer: &Answer) -> String {
    answer.ordered_lines().join("\n")
}

/// Waits until all programs of the runtime's context are compiled.
fn wait_for_programs(runtime: &DeviceRuntime) {
    let context = runtime.opened().unwrap();
    let begin = Instant::now();
    while context.unprepared() > 0 {
        assert!(begin.elapsed() < Duration::from_secs(300), "{} programs are not compiled", context.unprepared());
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn first_runs_are_the_hosts_until_kernels_are_compiled() {
    block_on(async {
        let runtime = DeviceRuntime::new();
        let ctx = strict_on(2, Arc::clone(&runtime));
        set(&ctx, "device.fallback", "host");
        set(&ctx, "device.cost", "auto");
        set(&ctx, "device.adaptive_start", "always");
        let host = plain(2);
        answer(&host, "SET datafusion.execution.batch_size = 1000").await.unwrap();
        let queries = [
            "SELECT value % 7 AS k, count(*), sum(value) FROM generate_series(1, 100000) GROUP BY 1 ORDER BY 1",
            "SELECT a.value, b.value FROM generate_series(1, 20000) a JOIN generate_series(1, 20000) b ON a.value = 2 * b.value \
             WHERE b.value % 5 = 1 ORDER BY 1 LIMIT 50",
            "SELECT value, value * 2 FROM generate_series(1, 30000) WHERE value % 100 = 3",
        ];
        for sql in queries {
            let expected = answer(&host, sql).await.unwrap().lines();
            let explained = text_of(&answer(&ctx, &format!("EXPLAIN {sql}")).await.unwrap());
            assert!(explained.contains("first_runs=[host, while its kernels are compiled"), "{explained}");
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
        // Without leave, a query waits for its kernels.
        for (key, value) in [("device.adaptive_start", "never"), ("device.cost", "always"), ("device.fallback", "error")] {
            set(&ctx, key, value);
            let sql = format!("SELECT sum(value + {value}) FROM generate_series(1, 30000)", value = value.len());
            assert!(answer(&ctx, &sql).await.unwrap().launches > 0, "{key}");
            set(&ctx, "device.adaptive_start", "always");
        }
        wait_for_programs(&runtime);
    });
}
