// SPDX-License-Identifier: Apache-2.0
//! What the first queries of a process leave undone.

use std::sync::Arc;

use devicefusion::DeviceRuntime;

use crate::harness::{answer, block_on, set, strict_on};

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
