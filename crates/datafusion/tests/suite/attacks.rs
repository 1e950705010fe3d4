// SPDX-License-Identifier: Apache-2.0
//! Wide tables, long concatenations and patterns that once took minutes, and rows that the host
//! keeps.

use std::fmt::Write;
use std::sync::Arc;
use std::time::{Duration, Instant};

use datafusion::prelude::{CsvReadOptions, SessionContext};
use devicefusion::DeviceRuntime;

use crate::harness::{answer, block_on, context, device_config, plain, strict, strict_on};

/// Columns of the wide table.
const COLUMNS: usize = 1000;

/// Registers a table `wide` of a CSV file with columns `c0` and on, and 20 rows.
async fn register_wide(ctx: &SessionContext, folder: &std::path::Path) {
    let mut text = (0..COLUMNS).map(|column| format!("c{column}")).collect::<Vec<_>>().join(",");
    for row in 0..20 {
        text.push('\n');
        for column in 0..COLUMNS {
            let separator = if column == 0 { "" } else { "," };
            write!(text, "{separator}{}", (column * 7 + row) % 100).unwrap();
        }
    }
    let path = folder.join("wide.csv");
    std::fs::write(&path, text).unwrap();
    ctx.register_csv("wide", path.to_str().unwrap(), CsvReadOptions::new()).await.unwrap();
}

#[test]
fn wide_tables_take_few_kernels() {
    block_on(async {
        let (folder, runtime) = (tempfile::tempdir().unwrap(), DeviceRuntime::new());
        let (host, device) = (plain(1), strict_on(1, Arc::clone(&runtime)));
        register_wide(&host, folder.path()).await;
        register_wide(&device, folder.path()).await;
        let sums = (0..COLUMNS).step_by(100).map(|column| format!("sum(c{column})")).collect::<Vec<_>>().join(", ");
        let outputs = (0..COLUMNS).map(|column| format!("c{column} + 1 AS x{column}")).collect::<Vec<_>>().join(", ");
        for sql in [
            format!("SELECT {sums}, count(c999) FROM wide WHERE c5 > 3"),
            "SELECT * FROM wide WHERE c5 > 3 ORDER BY c7 LIMIT 2".to_string(),
            format!("SELECT {outputs} FROM wide WHERE c998 > 50"),
        ] {
            let answer_of_device = answer(&device, &sql).await.unwrap();
            assert!(answer_of_device.launches > 0, "{}", &sql[..40]);
            assert_eq!(answer_of_device.lines(), answer(&host, &sql).await.unwrap().lines(), "{}", &sql[..40]);
        }
        // Columns of one type share theirs: one for each column would be thousands.
        let kernels = runtime.counters().unwrap().first_launches;
        assert!((1..200).contains(&kernels), "{kernels} kernels");
    });
}

#[test]
fn a_long_concatenation_is_one_call() {
    block_on(async {
        let device = strict(1);
        device.sql("CREATE TABLE t AS SELECT 'text' AS s").await.unwrap().collect().await.unwrap();
        let text = vec!["s"; 60].join(" || ");
        let explained = answer(&device, &format!("EXPLAIN VERBOSE SELECT {text} AS x FROM t")).await.unwrap().lines().join("");
        assert!(explained.contains("append_all(") && !explained.contains("append_str("), "{explained}");
    });
}

#[test]
fn rows_that_the_host_keeps_leave_room_on_the_device() {
    block_on(async {
        let context = context(device_config().with_memory_bytes(16 << 20));
        let device = strict_on(1, DeviceRuntime::with_context(context.clone()));
        let rows = "SELECT value * 2 AS a, value + 1 AS b FROM generate_series(1, 150000)";
        for number in 0..8 {
            device.sql(&format!("CREATE TABLE h{number} AS {rows}")).await.unwrap().collect().await.unwrap();
        }
        let sum = answer(&device, "SELECT sum(a + b), count(*) FROM h7").await.unwrap();
        assert_eq!(sum.lines(), ["| 33750375000 | 150000 |"]);
        assert!(sum.launches > 0 && context.pool().in_use() < 8 << 20, "{}", context.pool().in_use());
    });
}

#[test]
fn patterns_that_nearly_match_everywhere_take_linear_time() {
    block_on(async {
        let (host, device) = (plain(1), strict(1));
        for ctx in [&host, &device] {
            let table = "CREATE TABLE long AS SELECT repeat('a', 400000 + value) AS s FROM generate_series(1, 8)";
            ctx.sql(table).await.unwrap().collect().await.unwrap();
        }
        for condition in [
            "s LIKE '%' || repeat('a_', 500) || 'c%'",
            "s LIKE '%' || repeat('a_', 500) || 'a%'",
            "s ILIKE '%' || repeat('a', 1000) || 'b%'",
            "s ILIKE '%' || repeat('A', 1000) || '%'",
        ] {
            let sql = format!("SELECT count(*) FROM long WHERE {condition}");
            let answer_of_device = answer(&device, &sql).await.unwrap();
            assert!(answer_of_device.launches > 0, "{sql}");
            assert_eq!(answer_of_device.lines(), answer(&host, &sql).await.unwrap().lines(), "{sql}");
            // Compiled by now. Comparing each position with the pattern took 7 to 13 s, optimized.
            let begin = Instant::now();
            answer(&device, &sql).await.unwrap();
            assert!(begin.elapsed() < Duration::from_secs(6), "{sql}: {:?}", begin.elapsed());
        }
    });
}
