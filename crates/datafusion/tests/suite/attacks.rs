// SPDX-License-Identifier: Apache-2.0
//! Wide tables, long concatenations and patterns that once took minutes, rows kept by the host, and
//! names with the end of a comment.

use std::fmt::Write;
use std::sync::Arc;
use std::time::{Duration, Instant};

use datafusion::prelude::{CsvReadOptions, SessionContext};
use device::testing::{PARTS, parts};
use devicefusion::DeviceRuntime;

use crate::harness::{Answer, answer, block_on, context, device_config, plain, strict, strict_on};

/// Columns of the wide table.
const COLUMNS: usize = 1000;

/// Registers a table `wide` of a CSV file with columns `c0` and on, and 20 rows.
async fn register_wide(ctx: &SessionContext, folder: &std::path::Path, columns: usize) {
    let mut text = (0..columns).map(|column| format!("c{column}")).collect::<Vec<_>>().join(",");
    for row in 0..20 {
        text.push('\n');
        for column in 0..columns {
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
    device::skip_unless_turn!(7);
    block_on(async {
        let (folder, runtime) = (tempfile::tempdir().unwrap(), DeviceRuntime::new());
        let (host, device) = (plain(1), strict_on(1, Arc::clone(&runtime)));
        register_wide(&host, folder.path(), COLUMNS).await;
        register_wide(&device, folder.path(), COLUMNS).await;
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

/// Compares the answers to a query, and their times: on the device it takes less than `times` that
/// of the host and 10 s.
async fn check_times(host: &SessionContext, device: &SessionContext, sql: &str, times: u32) -> Answer {
    let timed = async |ctx: &SessionContext| {
        let begin = Instant::now();
        let answer = answer(ctx, sql).await.unwrap();
        (answer, begin.elapsed())
    };
    let (expected, on_host) = timed(host).await;
    let (actual, on_device) = timed(device).await;
    let start = &sql[..sql.len().min(40)];
    println!("{start}: {on_host:?} on the host, {on_device:?} on the device");
    assert!(actual.lines() == expected.lines(), "{start}: the answers differ");
    assert!(on_device < on_host * times + Duration::from_secs(10), "{start}: {on_device:?}, and {on_host:?} on the host");
    actual
}

#[test]
fn a_projection_of_2000_columns_takes_at_most_a_few_times_as_long_as_on_the_host() {
    device::skip_unless_turn!(3);
    block_on(async {
        let (folder, columns) = (tempfile::tempdir().unwrap(), 2000);
        let (host, device) = (plain(1), strict(1));
        register_wide(&host, folder.path(), columns).await;
        register_wide(&device, folder.path(), columns).await;
        let outputs = (0..columns).map(|column| format!("c{column} + 1 AS x{column}")).collect::<Vec<_>>().join(", ");
        // It took 19 s, and the host 0.4 s.
        let answer = check_times(&host, &device, &format!("SELECT {outputs} FROM wide"), 5).await;
        assert!(answer.launches > 0, "nothing was launched");
    });
}

#[test]
fn a_file_of_10000_columns_takes_at_most_a_few_times_as_long_as_on_the_host() {
    // Minutes, without optimization.
    if parts().unwrap().len() < PARTS {
        return;
    }
    block_on(async {
        let (folder, columns) = (tempfile::tempdir().unwrap(), 10_000);
        let (host, device) = (plain(1), strict(1));
        register_wide(&host, folder.path(), columns).await;
        register_wide(&device, folder.path(), columns).await;
        // It took more than 100 s, and the host 14 s. No operator computes.
        let all = check_times(&host, &device, "SELECT * FROM wide", 4).await;
        assert_eq!((all.num_rows(), all.schema.fields().len()), (20, columns));
        let sums = (0..columns).step_by(1000).map(|column| format!("sum(c{column})")).collect::<Vec<_>>().join(", ");
        let sums = check_times(&host, &device, &format!("SELECT {sums}, count(*) FROM wide WHERE c5 > 3"), 4).await;
        assert!(sums.launches > 0, "nothing was launched");
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
            assert!(begin.elapsed() < Duration::from_secs(2), "{sql}: {:?}", begin.elapsed());
        }
    });
}

#[test]
fn names_and_literals_stay_out_of_the_text_of_kernels() {
    block_on(async {
        let folder = tempfile::tempdir().unwrap();
        let context = context(device_config().with_dump_programs(folder.path()));
        let (host, device) = (plain(1), strict_on(1, DeviceRuntime::with_context(context.clone())));
        // In a kernel, names would end a comment, and literals a string.
        let rows = r#"SELECT value AS "zq_number""", 'zq_lit"' || (value % 5) AS "zq_name*/" FROM generate_series(1, 100)"#;
        for ctx in [&host, &device] {
            ctx.sql(&format!("CREATE TABLE zq_t AS {rows}")).await.unwrap().collect().await.unwrap();
        }
        for sql in [
            r#"SELECT "zq_number""" AS "zq_x*/" FROM zq_t WHERE "zq_name*/" = 'zq_lit"3' OR "zq_name*/" LIKE '%lit"_'"#,
            r#"SELECT "zq_name*/" || 'zq_lit"' AS "zq_x*/", "zq_number""" + 1 AS zq_y FROM zq_t WHERE "zq_name*/" <> 'zq_lit"3'"#,
            r#"SELECT "zq_name*/", sum("zq_number""") AS zq_x, max("zq_name*/" || 'zq_lit"') FROM zq_t GROUP BY "zq_name*/""#,
            r#"SELECT "zq_number""", "zq_name*/" FROM zq_t ORDER BY "zq_name*/" DESC, "zq_number""""#,
        ] {
            let answer_of_device = answer(&device, sql).await.unwrap();
            assert!(answer_of_device.launches > 0, "{sql}");
            assert_eq!(answer_of_device.lines(), answer(&host, sql).await.unwrap().lines(), "{sql}");
        }
        // A compilation may still be running for a query that has ended.
        context.synchronize().unwrap();
        let files: Vec<_> = std::fs::read_dir(folder.path()).unwrap().map(|file| file.unwrap().path()).collect();
        assert!(files.iter().any(|path| path.extension().is_some_and(|extension| extension == "cl")), "{files:?}");
        for file in files {
            let bytes = std::fs::read(&file).unwrap();
            let text = String::from_utf8_lossy(&bytes);
            assert!(!text.contains("zq_"), "{}:\n{text}", file.display());
        }
    });
}
