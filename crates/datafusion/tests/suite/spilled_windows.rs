// SPDX-License-Identifier: Apache-2.0
//! Window functions over more rows than device memory holds, beside plain DataFusion.

use std::sync::Arc;

use arrow::array::{ArrayRef, Int64Array, RecordBatch, StringViewArray};
use device::UnifiedMemory;

use crate::harness::{assert_returned, block_on, plain, set, text};
use crate::spill::{assert_answers_spill, lines, register, session, spilled, table};

/// Partitions of one row to a seventh of all. The row's number makes the order total.
const WINDOWS: [&str; 9] = [
    "SELECT row, sum(price) OVER (PARTITION BY many % 1000 ORDER BY row) FROM t",
    "SELECT row, rank() OVER (PARTITION BY term ORDER BY day), count(*) OVER (PARTITION BY term) FROM t",
    "SELECT row, text, lag(text) OVER (PARTITION BY code ORDER BY row), lead(term, 2) OVER (PARTITION BY code ORDER BY row) FROM t",
    "SELECT row, max(term) OVER (PARTITION BY day ORDER BY row), count(DISTINCT few) OVER (PARTITION BY day ORDER BY row) FROM t",
    "SELECT row, avg(price) OVER (PARTITION BY many ORDER BY row ROWS BETWEEN 3 PRECEDING AND 1 FOLLOWING), code FROM t",
    "SELECT row, sum(row) OVER (PARTITION BY few, flag ORDER BY day RANGE BETWEEN 10 PRECEDING AND CURRENT ROW) FROM t",
    "SELECT row, median(price) OVER (PARTITION BY day) FROM t",
    "SELECT row, array_agg(few) OVER (PARTITION BY day ORDER BY row) FROM t",
    "SELECT count(*), sum(n) FROM (SELECT row_number() OVER (PARTITION BY row % 30000 ORDER BY many, row) AS n FROM t) WHERE n < 3",
];

#[test]
fn windows_of_many_partitions_fit_little_memory() {
    block_on(assert_answers_spill(&WINDOWS, 8 << 20));
}

/// Partitions of a half or more of the rows, and windows without `PARTITION BY`.
const CUT_WINDOWS: [&str; 12] = [
    "SELECT row, rank() OVER (ORDER BY day), dense_rank() OVER (ORDER BY day), term FROM t",
    "SELECT row, rank() OVER (PARTITION BY flag ORDER BY many DESC), text FROM t",
    "SELECT row, row_number() OVER (ORDER BY many, row), code FROM t",
    "SELECT row, sum(price) OVER (ORDER BY row), min(day) OVER (ORDER BY row), term FROM t",
    "SELECT row, count(*) OVER (PARTITION BY flag ORDER BY day), avg(price) OVER (PARTITION BY flag ORDER BY day), text FROM t",
    "SELECT row, sum(row) OVER (PARTITION BY flag ORDER BY row ROWS UNBOUNDED PRECEDING), text FROM t",
    "SELECT row, lag(text) OVER (ORDER BY row), lead(day, 3, DATE '2000-01-01') OVER (ORDER BY row), code FROM t",
    "SELECT row, sum(price) OVER (PARTITION BY flag ORDER BY row ROWS BETWEEN 30 PRECEDING AND 5 FOLLOWING), text FROM t",
    "SELECT row, term, last_value(many) OVER (ORDER BY day, row), max(few) OVER (ORDER BY day, row ROWS 9 PRECEDING) FROM t",
    "SELECT row, lag(few, 500) OVER w, row_number() OVER w, sum(row) OVER w, nth_value(row, 2) OVER (w ROWS 7 PRECEDING), text
     FROM t WINDOW w AS (PARTITION BY flag ORDER BY many, row)",
    "SELECT row, term, n FROM (SELECT row, term, rank() OVER (PARTITION BY flag ORDER BY many, row) AS n FROM t) WHERE n < 100",
    "SELECT count(*), sum(n), max(term) FROM (SELECT row_number() OVER (ORDER BY term, row) AS n, term FROM t)",
];

#[test]
fn windows_cut_partitions_beyond_memory() {
    block_on(assert_answers_spill(&CUT_WINDOWS, 5 << 20));
}

/// Without an order there is no sort that could spill.
#[test]
fn a_window_over_all_rows_holds_few_of_them() {
    block_on(async {
        let (rows, folder) = (table(), tempfile::tempdir().unwrap());
        let host = plain(1);
        register(&host, "t", &rows);
        for unified in [UnifiedMemory::Auto, UnifiedMemory::Never] {
            let (ctx, context) = session(5 << 20, unified, folder.path(), None);
            register(&ctx, "t", &rows);
            for sql in [
                "SELECT count(*), sum(n), max(term) FROM (SELECT row_number() OVER () AS n, term FROM t)",
                "SELECT max(total), max(n), count(code) FROM (SELECT sum(row) OVER w AS total, count(price) OVER w AS n, code FROM t
                 WINDOW w AS (ROWS UNBOUNDED PRECEDING))",
            ] {
                assert!(lines(&ctx, sql).await == lines(&host, sql).await, "unified memory {unified:?}: {sql}");
            }
            assert_returned(&context, 0);
        }
    });
}

/// An aggregation of lists reads its rows in one batch, whatever the window below gives.
#[test]
fn lists_of_rows_in_little_memory() {
    block_on(async {
        let (rows, folder) = (table(), tempfile::tempdir().unwrap());
        let host = plain(1);
        register(&host, "t", &rows);
        let (ctx, _) = session(16 << 20, UnifiedMemory::Auto, folder.path(), None);
        register(&ctx, "t", &rows);
        for list in ["array_agg(row ORDER BY row DESC)", "array_agg(DISTINCT few ORDER BY few)"] {
            let sql = format!("SELECT row % 4000 AS key, {list} FROM t GROUP BY key");
            let mut actual = lines(&ctx, &sql).await;
            let mut expected = lines(&host, &sql).await;
            actual.sort();
            expected.sort();
            assert!(actual == expected, "{sql}");
        }
    });
}

/// Long strings in the heaps of views: more bytes than the memory.
#[test]
fn rows_that_wait_keep_no_strings_of_others() {
    block_on(async {
        let folder = tempfile::tempdir().unwrap();
        let numbers = Int64Array::from_iter_values(0..200_000);
        let texts = StringViewArray::from_iter_values((0..200_000).map(|number| format!("{number} ").repeat(24)));
        let rows = [("number", Arc::new(numbers) as ArrayRef), ("text", Arc::new(texts))];
        let rows = RecordBatch::try_from_iter(rows).unwrap();
        let (ctx, context) = session(24 << 20, UnifiedMemory::Auto, folder.path(), None);
        let host = plain(1);
        register(&ctx, "t", &rows);
        register(&host, "t", &rows);
        let sql = "SELECT n, sum(number), min(text), max(before) FROM (
                       SELECT number, text, lag(text) OVER w AS before, count(*) OVER w AS n FROM t
                       WINDOW w AS (PARTITION BY number % 30000 ORDER BY number)
                   ) GROUP BY n";
        let (mut actual, _) = spilled(&ctx, &context, folder.path(), sql).await;
        let mut expected = lines(&host, sql).await;
        actual.sort();
        expected.sort();
        assert!(actual == expected);
    });
}

/// The rows come in the order of their partitions, one large partition among small ones.
#[test]
fn partitions_keep_their_order() {
    block_on(async {
        let folder = tempfile::tempdir().unwrap();
        let (ctx, context) = session(5 << 20, UnifiedMemory::Auto, folder.path(), None);
        set(&ctx, "device.batch_rows", "5000");
        let key = "CASE WHEN value % 20 = 0 THEN 600 ELSE value % 1000 END";
        let sql = format!(
            "SELECT key, value, sum(value) OVER (PARTITION BY key ORDER BY value) AS running
             FROM (SELECT {key} AS key, value FROM generate_series(1, 250000)) ORDER BY key, value"
        );
        let (actual, _) = spilled(&ctx, &context, folder.path(), &sql).await;
        assert!(actual == lines(&plain(1), &sql).await);
    });
}

#[test]
fn a_partition_beyond_memory_fails_and_the_error_names_it() {
    block_on(async {
        let folder = tempfile::tempdir().unwrap();
        let (ctx, context) = session(2 << 20, UnifiedMemory::Auto, folder.path(), None);
        set(&ctx, "device.batch_rows", "5000");
        let sql = "SELECT value, sum(value) OVER (PARTITION BY value / 900000) FROM generate_series(1, 1000000)";
        let error = text(&ctx.sql(sql).await.unwrap().collect().await.unwrap_err());
        assert!(error.contains("DeviceWindowExec holds all rows of its input since the last result, "), "{error}");
        assert!(error.contains("raise device.memory_bytes"), "{error}");
        assert_returned(&context, 0);
    });
}
