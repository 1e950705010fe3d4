// SPDX-License-Identifier: Apache-2.0
//! Joins whose build sides are more than device memory, beside plain DataFusion.

use std::path::Path;
use std::sync::Arc;

use arrow::array::{ArrayRef, DictionaryArray, Int64Array, RecordBatch};
use arrow::datatypes::Int8Type;
use datafusion::datasource::MemTable;
use datafusion::physical_plan::{ExecutionPlanProperties, collect, displayable, execute_stream};
use datafusion::prelude::{SessionContext, col};
use device::{Context, UnifiedMemory};
use futures::StreamExt;

use crate::harness::{assert_returned, block_on, metric, plain, set, text};
use crate::spill::{
    ROWS, assert_no_files_stay, files, lines, of_turn, planned, register, resident, session, spilled, spilled_plan, table,
};

/// `u` has about the rows of `t` whose number ends in 3, with other numbers.
const TABLE_U: &str = "SELECT row * 3 / 2 AS row, few, many, term, text, code, float, day, price, flag FROM t WHERE row % 3 <> 1";

/// Joins of every kind, by keys of several types. Those of `u` to `t` and of `t` to `u` build the
/// same side, but keep rows of another.
const JOINS: [&str; 25] = [
    "SELECT t.row, u.row, u.text, t.term FROM t JOIN u ON t.row = u.row",
    "SELECT t.row, u.many FROM t JOIN u ON t.many = u.many",
    "SELECT t.row, u.row, u.code, t.code FROM t LEFT JOIN u ON t.row = u.row + 1",
    "SELECT t.row, u.row, t.text FROM u LEFT JOIN t ON t.row = u.row + 1",
    "SELECT t.row, u.row, t.flag, u.day FROM t FULL JOIN u ON t.row = u.row * 2",
    "SELECT t.row, u.row, t.price FROM t RIGHT JOIN u ON t.row = u.row * 2 AND t.row % 5 > u.row % 7",
    "SELECT row, text FROM t WHERE EXISTS (SELECT 1 FROM u WHERE u.row = t.row)",
    "SELECT row, code FROM u WHERE EXISTS (SELECT 1 FROM t WHERE u.row = t.row AND t.many > u.many)",
    "SELECT row, many FROM t WHERE NOT EXISTS (SELECT 1 FROM u WHERE u.row = t.row)",
    "SELECT row, term FROM u WHERE NOT EXISTS (SELECT 1 FROM t WHERE u.row = t.row)",
    "SELECT row, many, term FROM t WHERE many NOT IN (SELECT many FROM u WHERE many IS NOT NULL)",
    "SELECT row, code FROM u WHERE term NOT IN (SELECT term FROM t WHERE term IS NOT NULL AND row % 3 = 1)",
    "SELECT row, day FROM t WHERE flag OR row IN (SELECT row FROM u)",
    "SELECT row, day FROM u WHERE flag OR row IN (SELECT row FROM t)",
    "SELECT t.row, u.row FROM t JOIN u ON t.term = u.text AND t.row % 100 = u.row % 100",
    "SELECT t.row, u.row FROM t JOIN u ON t.code = u.code AND t.day = u.day",
    "SELECT t.row, u.row FROM t JOIN u ON (t.many IS NOT DISTINCT FROM u.many) AND t.row / 1000 = u.row / 1000",
    "SELECT t.row, u.row FROM t JOIN u ON t.float = u.float AND t.row <= u.row",
    "SELECT t.row, u.row FROM t JOIN u ON t.price = u.price AND t.row % 16 = u.row % 16 WHERE t.few < 3 AND u.flag",
    "SELECT count(*), sum(t.row), max(u.text) FROM t JOIN u ON t.row = u.row",
    "SELECT u.few, count(*), sum(t.price) FROM t JOIN u ON t.row = u.row WHERE t.few + u.few > 4 GROUP BY u.few",
    "SELECT t.row, u.row, v.day FROM t JOIN u ON t.row = u.row JOIN t AS v ON v.many = u.many AND v.row <> u.row % 7",
    "SELECT t.row, u.many FROM t LEFT JOIN u ON nullif(t.row % 3, 0) * t.row = u.row",
    "SELECT t.row, u.many FROM u LEFT JOIN t ON t.row * nullif(t.few, 3) = u.row * nullif(u.row % 3, 0)",
    "SELECT t.row, u.row, v.row FROM t JOIN u ON t.row = u.row LEFT JOIN u AS v ON v.many = t.many AND v.row > 9",
];

/// Sessions with the tables, one of them plain.
fn sessions(bytes: usize, unified: UnifiedMemory, folder: &Path) -> (SessionContext, SessionContext, Context) {
    let (ctx, context) = session(bytes, unified, folder, None);
    (plain(1), ctx, context)
}

async fn register_both(ctxs: [&SessionContext; 2]) {
    let rows = table();
    register(ctxs[0], "t", &rows);
    let others = ctxs[0].sql(TABLE_U).await.unwrap().collect().await.unwrap();
    let others = arrow::compute::concat_batches(&others[0].schema(), &others).unwrap();
    register(ctxs[0], "u", &others);
    register(ctxs[1], "t", &rows);
    register(ctxs[1], "u", &others);
}

fn sorted(mut lines: Vec<String>) -> Vec<String> {
    lines.sort();
    lines
}

#[test]
fn joins_of_every_kind_spill() {
    device::skip_unless_turn!(7);
    block_on(async {
        let folder = tempfile::tempdir().unwrap();
        for unified in [UnifiedMemory::Auto, UnifiedMemory::Never] {
            let (host, ctx, context) = sessions(4 << 20, unified, folder.path());
            register_both([&host, &ctx]).await;
            for sql in of_turn(&JOINS, unified) {
                let (actual, _) = spilled(&ctx, &context, folder.path(), sql).await;
                let expected = lines(&host, sql).await;
                assert!(!expected.is_empty(), "{sql}: no rows to compare");
                assert!(sorted(actual) == sorted(expected), "unified memory {unified:?}: {sql}");
            }
        }
    });
}

#[test]
fn joins_of_resident_tables_spill() {
    block_on(async {
        let (rows, folder) = (table(), tempfile::tempdir().unwrap());
        let (ctx, context) = resident(20 << 20, &rows, folder.path()).await;
        let host = plain(1);
        register(&host, "t", &rows);
        for sql in [
            "SELECT a.row, b.text FROM t AS a JOIN t AS b ON a.row = b.row * 2",
            "SELECT a.few, b.code, count(*) FROM t AS a JOIN t AS b ON a.many = b.many GROUP BY a.few, b.code",
        ] {
            let (actual, _) = spilled(&ctx, &context, folder.path(), sql).await;
            assert!(sorted(actual) == sorted(lines(&host, sql).await), "{sql}");
        }
    });
}

/// Partitions of 19,000 rows do not fit, and are partitioned again.
#[test]
fn large_partitions_are_partitioned_again() {
    block_on(async {
        let folder = tempfile::tempdir().unwrap();
        let (ctx, context) = session(1 << 20, UnifiedMemory::Auto, folder.path(), None);
        set(&ctx, "device.batch_rows", "2000");
        let sql = "SELECT count(*), sum(a.value), max(b.value) FROM generate_series(1, 600000) AS a \
                   JOIN generate_series(300001, 700000) AS b ON a.value = b.value";
        let (actual, files) = spilled(&ctx, &context, folder.path(), sql).await;
        assert!(files > 4 * 32, "{files} files");
        assert_eq!(actual, lines(&plain(1), sql).await);
    });
}

/// A session with so much memory and small batches.
fn session_of_small_batches(bytes: usize, folder: &Path) -> (SessionContext, Context) {
    let (ctx, context) = session(bytes, UnifiedMemory::Auto, folder, None);
    set(&ctx, "device.batch_rows", "4000");
    (ctx, context)
}

/// The rows of a query whose join takes its build side in blocks.
async fn joined_in_blocks(ctx: &SessionContext, context: &Context, folder: &Path, sql: &str) -> Vec<String> {
    let (lines, plan) = spilled_plan(ctx, context, folder, sql).await;
    assert!(metric(&plan, "build_blocks") > 1, "{sql}: {} blocks", metric(&plan, "build_blocks"));
    lines
}

/// No hash parts the rows of one key, so that they are joined in blocks.
#[test]
fn rows_of_one_key_are_joined_in_blocks() {
    block_on(async {
        let folder = tempfile::tempdir().unwrap();
        let (ctx, context) = session_of_small_batches(2 << 20, folder.path());
        // The side that is built stays: the first one is too large for its rows to be known.
        set(&ctx, "datafusion.optimizer.join_reordering", "false");
        for (kind, sql) in [
            ("Inner", "SELECT count(*), sum(a.value), sum(b.value) FROM a JOIN b ON a.value / 200000 = b.value % 5"),
            ("Left", "SELECT count(*), sum(a.value), sum(b.value) FROM a LEFT JOIN b ON a.value / 200000 = b.value % 5 + 1"),
            (
                "LeftSemi",
                "SELECT count(*), sum(value) FROM a WHERE EXISTS (SELECT 1 FROM b WHERE a.value / 200000 = b.value % 5 + 1)",
            ),
            (
                "LeftAnti",
                "SELECT count(*), sum(value) FROM a WHERE NOT EXISTS (SELECT 1 FROM b WHERE a.value / 200000 = b.value % 5 + 1)",
            ),
            (
                "LeftMark",
                "SELECT count(*), sum(value) FROM a \
                 WHERE value % 7 = 1 OR EXISTS (SELECT 1 FROM b WHERE a.value / 200000 = b.value % 5 + 1)",
            ),
            ("Right", "SELECT count(*), sum(a.value), sum(b.value) FROM a RIGHT JOIN b ON a.value / 200000 = b.value % 5"),
            ("Full", "SELECT count(*), sum(a.value), sum(b.value) FROM a FULL JOIN b ON a.value / 200000 = b.value % 5 + 1"),
            (
                "Full",
                "SELECT count(*), count(a.value), sum(b.value) FROM a FULL JOIN b \
                 ON a.value / 200000 = b.value % 5 AND a.value % 100 < b.value",
            ),
            ("RightSemi", "SELECT count(*), sum(b.value) FROM a RIGHT SEMI JOIN b ON a.value / 200000 = b.value % 5"),
            (
                "RightSemi",
                "SELECT count(*), sum(b.value) FROM a RIGHT SEMI JOIN b \
                 ON a.value / 200000 = b.value % 5 AND abs(a.value - b.value * 3000) < 2",
            ),
            (
                "RightAnti",
                "SELECT count(*), sum(b.value) FROM a RIGHT ANTI JOIN b \
                 ON a.value / 200000 = b.value % 5 AND abs(a.value - b.value * 3000) < 2",
            ),
            // Rows go on to another join, whose side stays in memory.
            (
                "Right",
                "SELECT count(*), sum(a.value), sum(b.value), sum(c.value) FROM a RIGHT JOIN b ON a.value / 200000 = b.value % 5 \
                 JOIN (SELECT value FROM b WHERE value < 60) AS c ON b.value = c.value",
            ),
        ] {
            let tables =
                "WITH a AS (SELECT value FROM generate_series(1, 300000)), b AS (SELECT value FROM generate_series(1, 90))";
            let sql = format!("{tables} {sql}");
            let shown = displayable(planned(&ctx, &sql).await.as_ref()).indent(false).to_string();
            assert!(shown.contains(&format!("join_type={kind},")), "{shown}");
            let actual = joined_in_blocks(&ctx, &context, folder.path(), &sql).await;
            assert_eq!(actual, lines(&plain(1), &sql).await, "{kind}");
        }
    });
}

/// A NULL of the probe side is in one partition, and empties all. Without any row of it, NULLs of
/// the build side stay.
#[test]
fn not_in_has_the_nulls_of_all_partitions() {
    device::skip_unless_turn!(5);
    block_on(async {
        let folder = tempfile::tempdir().unwrap();
        for unified in [UnifiedMemory::Auto, UnifiedMemory::Never] {
            let (host, ctx, context) = sessions(4 << 20, unified, folder.path());
            register_both([&host, &ctx]).await;
            for (of_probe, keeps_rows) in [
                ("many FROM u", false),
                ("CASE WHEN row <> 777 THEN row END FROM u", false),
                ("many FROM u WHERE many IS NOT NULL AND row % 2 = 0", true),
                ("few FROM u WHERE few < 3", true),
                ("many FROM u WHERE row % 5 = 7", true),
            ] {
                let sql =
                    format!("SELECT count(*), count(many), sum(row), max(term) FROM t WHERE many NOT IN (SELECT {of_probe})");
                let shown = displayable(planned(&ctx, &sql).await.as_ref()).indent(false).to_string();
                assert!(shown.contains("null_aware"), "{shown}");
                let (actual, _) = spilled(&ctx, &context, folder.path(), &sql).await;
                assert_eq!(actual, lines(&host, &sql).await, "{sql}");
                assert_eq!(actual[0].starts_with("| 0 |"), !keeps_rows, "{sql}: {actual:?}");
            }
        }
    });
}

/// Without equal keys nothing parts the rows, so that they are joined in blocks.
#[test]
fn joins_without_equal_keys_spill() {
    block_on(async {
        let folder = tempfile::tempdir().unwrap();
        let (ctx, context) = session_of_small_batches(2 << 20, folder.path());
        set(&ctx, "datafusion.optimizer.join_reordering", "false");
        for sql in [
            "SELECT count(*), sum(a.value), sum(b.value) FROM a CROSS JOIN b",
            "SELECT count(*), sum(a.value), sum(b.value) FROM a JOIN b ON a.value < b.value * 9000",
            "SELECT count(*), sum(a.value), sum(b.value) FROM a JOIN b ON a.value BETWEEN b.value * 100 AND b.value * 9000",
            "SELECT count(*), sum(a.value), count(b.value) FROM a LEFT JOIN b ON a.value < b.value * 9000",
            "SELECT count(*), count(a.value), sum(b.value) FROM a RIGHT JOIN b ON a.value > b.value * 20000",
            "SELECT count(*), count(a.value), count(b.value) FROM a FULL JOIN b ON a.value > b.value * 20000",
            "SELECT count(*), sum(value) FROM a WHERE NOT EXISTS (SELECT 1 FROM b WHERE a.value < b.value * 9000)",
            "SELECT count(*), sum(value) FROM a WHERE EXISTS (SELECT 1 FROM b WHERE a.value % 9 < b.value - 15)",
            "SELECT count(*), sum(value) FROM a WHERE value % 7 = 1 OR EXISTS (SELECT 1 FROM b WHERE a.value < b.value * 9000)",
            "SELECT count(*), sum(b.value) FROM a RIGHT SEMI JOIN b ON a.value > b.value * 20000",
            "SELECT count(*), sum(b.value) FROM a RIGHT ANTI JOIN b ON a.value > b.value * 20000",
            // No column of the other side is read.
            "SELECT sum(a.value) FROM a CROSS JOIN b",
            "SELECT sum(a.value) FROM a CROSS JOIN b WHERE b.value > 3",
            "SELECT sum(a.value) FROM a LEFT JOIN b ON true",
            "SELECT sum(a.value) FROM a FULL JOIN b ON true",
            "SELECT sum(a.value) FROM a RIGHT JOIN b ON true",
        ] {
            let tables =
                "WITH a AS (SELECT value FROM generate_series(1, 300000)), b AS (SELECT value FROM generate_series(1, 20))";
            let sql = format!("{tables} {sql}");
            let actual = joined_in_blocks(&ctx, &context, folder.path(), &sql).await;
            assert_eq!(actual, lines(&plain(1), &sql).await, "{sql}");
        }
    });
}

/// DataFusion builds the smaller side, whose rows of one key do not fit. The larger one is marked.
#[test]
fn marks_of_probe_rows_are_those_of_all_blocks() {
    block_on(async {
        let folder = tempfile::tempdir().unwrap();
        let (ctx, context) = session_of_small_batches(2 << 20, folder.path());
        let host = plain(1);
        for session in [&ctx, &host] {
            for (name, rows) in [("a", 300_000), ("b", 400_000)] {
                let sql = format!("CREATE TABLE {name} AS SELECT value FROM generate_series(1, {rows})");
                session.sql(&sql).await.unwrap().collect().await.unwrap();
            }
        }
        let sql = "SELECT count(*), sum(value) FROM b WHERE value % 7 = 1 OR EXISTS \
                   (SELECT 1 FROM a WHERE a.value / 200000 = b.value % 5000 AND a.value > b.value / 2)";
        let shown = displayable(planned(&ctx, sql).await.as_ref()).indent(false).to_string();
        assert!(shown.contains("join_type=RightMark"), "{shown}");
        let actual = joined_in_blocks(&ctx, &context, folder.path(), sql).await;
        assert_eq!(actual, lines(&host, sql).await);
    });
}

/// Rows of the probe side go back to disk after each block: of all types, and of a resident table.
#[test]
fn columns_of_all_types_pass_by_all_blocks() {
    block_on(async {
        let folder = tempfile::tempdir().unwrap();
        let (ctx, context) = session_of_small_batches(3 << 20, folder.path());
        set(&ctx, "datafusion.optimizer.join_reordering", "false");
        let (host, rows) = (plain(1), table().slice(0, 60));
        for session in [&ctx, &host] {
            register(session, "p", &rows);
        }
        ctx.sql("CREATE TABLE device.p AS SELECT * FROM p").await.unwrap().collect().await.unwrap();
        let with_a = |sql: &str| format!("WITH a AS (SELECT value FROM generate_series(1, 300000)) {sql}");
        let on = "a.value / 200000 = nullif(p.row, 7) % 4 AND abs(a.value - p.row * 4000) < 2";
        for sql in [
            format!("SELECT a.value, p.* FROM a RIGHT JOIN p ON {on}"),
            format!("SELECT a.value / 299999, p.* FROM a FULL JOIN p ON {on} WHERE p.row > 0"),
            format!("SELECT p.* FROM a RIGHT SEMI JOIN p ON {on}"),
            format!("SELECT p.* FROM a RIGHT ANTI JOIN p ON {on}"),
        ] {
            let expected = sorted(lines(&host, &with_a(&sql)).await);
            for sql in [sql.clone(), sql.replace(" JOIN p ", " JOIN device.p AS p ")] {
                let actual = joined_in_blocks(&ctx, &context, folder.path(), &with_a(&sql)).await;
                assert!(sorted(actual) == expected, "{sql}");
            }
        }
        let sql = with_a("SELECT p.row FROM a RIGHT JOIN p ON a.value / 200000 = p.row % 4 AND 1 / (a.value - 299990) < p.row");
        let failed = collect(planned(&ctx, &sql).await, ctx.task_ctx()).await.unwrap_err();
        assert!(text(&failed).contains("Divide by zero"), "{failed}");
    });
}

/// Rows that fail in partitioning, or in the joins after it.
#[test]
fn rows_of_spilled_joins_fail_as_in_memory() {
    block_on(async {
        let folder = tempfile::tempdir().unwrap();
        let (host, ctx, context) = sessions(8 << 20, UnifiedMemory::Auto, folder.path());
        register_both([&host, &ctx]).await;
        for (number, sql) in [
            "SELECT count(*) FROM t JOIN u ON 1000 / (t.row - 70000) = u.row",
            "SELECT count(*) FROM t JOIN u ON t.row = 1000 / (u.row - 70002)",
            "SELECT t.row, 1 / (u.row - 90000) FROM t JOIN u ON t.row = u.row",
            "SELECT t.row FROM t JOIN u ON t.row = u.row AND 1 / (t.row + u.row - 180000) < 7",
            "SELECT row FROM u WHERE EXISTS (SELECT 1 FROM t WHERE t.row = u.row AND 1 / (t.row + u.row - 180000) < 7)",
        ]
        .into_iter()
        .enumerate()
        {
            let plan = planned(&ctx, sql).await;
            let actual = text(&collect(Arc::clone(&plan), ctx.task_ctx()).await.unwrap_err());
            let expected = text(&host.sql(sql).await.unwrap().collect().await.unwrap_err());
            // The first two may fail before the first file is written.
            assert!(number < 2 || metric(&plan, "spill_count") > 0, "{sql}: nothing was spilled");
            assert!(expected.contains("Divide by zero") && actual.contains("Divide by zero"), "{sql}: {actual}, {expected}");
        }
        assert_eq!(files(folder.path()), 0);
        assert_returned(&context, 0);
    });
}

/// Partitions would change the order of the probe side, which a plan without a sort counts on.
#[test]
fn a_join_that_keeps_an_order_does_not_spill() {
    block_on(async {
        let folder = tempfile::tempdir().unwrap();
        let (host, ctx, context) = sessions(1 << 20, UnifiedMemory::Auto, folder.path());
        register_both([&host, &ctx]).await;
        for ctx in [&host, &ctx] {
            let rows = table();
            let ordered = MemTable::try_new(rows.schema(), vec![vec![rows]]).unwrap();
            let ordered = ordered.with_sort_order(vec![vec![col("row").sort(true, false)]]);
            ctx.register_table("ordered", Arc::new(ordered)).unwrap();
        }
        let join = "SELECT o.row, o.many, o.day, u.few FROM u JOIN ordered AS o ON o.row = u.row ORDER BY o.row";
        let plan = planned(&ctx, join).await;
        let shown = displayable(plan.as_ref()).indent(false).to_string();
        assert!(plan.output_ordering().is_some() && !shown.contains("Sort"), "{shown}");
        let error = text(&collect(plan, ctx.task_ctx()).await.unwrap_err());
        assert!(error.contains("DeviceJoinExec holds all rows of its build side"), "{error}");
        // Nothing counts on the order here.
        let sum = format!("SELECT sum(row), count(few) FROM ({join}) AS unordered");
        let (actual, _) = spilled(&ctx, &context, folder.path(), &sum).await;
        assert_eq!(actual, lines(&host, &sum).await);
    });
}

/// Each batch of the probe side has a dictionary of its own, and its codes number no more values.
#[test]
fn dictionaries_of_batches_may_differ() {
    block_on(async {
        let folder = tempfile::tempdir().unwrap();
        let (host, ctx, context) = sessions(2 << 20, UnifiedMemory::Auto, folder.path());
        let batch = |first: usize| {
            let texts: Vec<String> = (0..5000).map(|row| format!("{first} {}", row % 100)).collect();
            let codes: DictionaryArray<Int8Type> = texts.iter().map(|text| Some(text.as_str())).collect();
            let rows = Int64Array::from_iter_values((first..first + 5000).map(|row| row as i64));
            RecordBatch::try_from_iter([("row", Arc::new(rows) as ArrayRef), ("code", Arc::new(codes))]).unwrap()
        };
        let batches: Vec<_> = (0..6).map(|number| batch(number * 5000)).collect();
        for ctx in [&host, &ctx] {
            let table = MemTable::try_new(batches[0].schema(), vec![batches.clone()]).unwrap();
            ctx.register_table("d", Arc::new(table)).unwrap();
        }
        let sql = "SELECT d.row, d.code FROM generate_series(1, 60000) AS b JOIN d ON b.value = d.row * 2";
        let (actual, _) = spilled(&ctx, &context, folder.path(), sql).await;
        assert!(sorted(actual) == sorted(lines(&host, sql).await));
    });
}

#[test]
fn a_dropped_join_leaves_no_files() {
    block_on(async {
        let folder = tempfile::tempdir().unwrap();
        let (ctx, context) = session(4 << 20, UnifiedMemory::Auto, folder.path(), None);
        let sql = format!(
            "SELECT a.value FROM generate_series(1, {ROWS}) AS a JOIN generate_series(1, {ROWS}) AS b ON a.value = b.value"
        );
        let mut rows = execute_stream(Arc::clone(&planned(&ctx, &sql).await), ctx.task_ctx()).unwrap();
        rows.next().await.unwrap().unwrap();
        assert!(files(folder.path()) > 0);
        drop(rows);
        assert_returned(&context, 0);
        assert_no_files_stay(folder.path()).await;
    });
}
