// SPDX-License-Identifier: Apache-2.0
//! Rows of many columns in little device memory: no batch on its way may take most of it.

use std::sync::Arc;

use arrow::array::{ArrayRef, Int64Array, RecordBatch};
use datafusion::datasource::MemTable;
use datafusion::prelude::SessionContext;
use device::UnifiedMemory;

use crate::harness::{assert_returned, block_on, metric, ordered_lines, plain};
use crate::spill::{lines, planned, session};

const COLUMNS: i64 = 150;
/// As many as DataFusion's batches have.
const BATCH_ROWS: i64 = 8192;
const BATCHES: i64 = 4;
const LIMIT: usize = 16 << 20;

/// Rows of 1200 bytes each. A row for each KiB of the limit would be more than the limit.
fn register_wide(ctx: &SessionContext) {
    let batch = |number: i64| {
        let rows = number * BATCH_ROWS..(number + 1) * BATCH_ROWS;
        let column = |column: i64| Int64Array::from_iter_values(rows.clone().map(|row| row * 7 + column));
        let columns = (0..COLUMNS).map(|number| (format!("c{number}"), Arc::new(column(number)) as ArrayRef));
        RecordBatch::try_from_iter(columns).unwrap()
    };
    let batches: Vec<RecordBatch> = (0..BATCHES).map(batch).collect();
    ctx.register_table("wide", Arc::new(MemTable::try_new(batches[0].schema(), vec![batches]).unwrap())).unwrap();
    let keys = Int64Array::from_iter_values((0..BATCH_ROWS * BATCHES).map(|row| row * 7));
    let keys = RecordBatch::try_from_iter([("k", Arc::new(keys) as ArrayRef)]).unwrap();
    ctx.register_table("keys", Arc::new(MemTable::try_new(keys.schema(), vec![vec![keys]]).unwrap())).unwrap();
}

/// A query of the device gives the rows of the host's, in any order.
async fn assert_answer(ctx: &SessionContext, sql: &str, host: &SessionContext, sql_of_host: &str) {
    let plan = planned(ctx, sql).await;
    let batches = datafusion::physical_plan::collect(Arc::clone(&plan), ctx.task_ctx()).await;
    let mut actual = ordered_lines(&batches.unwrap_or_else(|error| panic!("{sql}: {error}")));
    let mut expected = lines(host, sql_of_host).await;
    actual.sort();
    expected.sort();
    assert!(actual == expected, "{sql}: {} rows", actual.len());
    assert!(metric(&plan, "launches") > 0, "{sql}");
}

#[test]
fn rows_of_many_columns_fit_little_memory() {
    device::skip_unless_turn!(6);
    let sums = |columns: std::ops::Range<i64>| columns.map(|column| format!("sum(c{column})")).collect::<Vec<_>>().join(", ");
    let queries = [
        // Uploads, of which a filter leaves few rows.
        "SELECT * FROM wide WHERE c0 % 1001 = 7".to_string(),
        // Rows of a probe that are coalesced for an aggregation by groups.
        format!("SELECT c0 % 1000003 AS g, {} FROM keys JOIN wide ON k = c0 WHERE k % 5 = 0 GROUP BY 1", sums(1..COLUMNS)),
        // Pairs of a probe. Kernels that aggregate them exceed the limit of arguments.
        format!(
            "SELECT {} FROM (SELECT k FROM keys UNION ALL SELECT k FROM keys) JOIN wide ON k = c0 WHERE k % 5 = 0",
            sums(0..COLUMNS)
        ),
        // Rows that a sort keeps for its first ones.
        "SELECT * FROM wide ORDER BY c1 DESC LIMIT 10".to_string(),
    ];
    block_on(async {
        let folder = tempfile::tempdir().unwrap();
        let host = plain(1);
        register_wide(&host);
        for unified in [UnifiedMemory::Auto, UnifiedMemory::Never] {
            let (ctx, context) = session(LIMIT, unified, folder.path(), None);
            register_wide(&ctx);
            for sql in &queries {
                assert_answer(&ctx, sql, &host, sql).await;
                assert_returned(&context, 0);
            }
        }
    });
}

/// Rows of 24 bytes become ones of 800 bytes, or strings of a thousand characters.
#[test]
fn wide_results_of_narrow_rows_fit_little_memory() {
    device::skip_unless_turn!(6);
    let computed = (0..100).map(|number| format!("a + b * {number} AS x{number}")).collect::<Vec<_>>().join(", ");
    let queries = [
        format!("SELECT {computed} FROM narrow"),
        format!("SELECT {computed} FROM narrow WHERE a % 7 <> 3"),
        "SELECT a, repeat(s, 200) AS long FROM narrow".to_string(),
        "SELECT a, repeat(s, 200) AS long FROM narrow WHERE b <> 3".to_string(),
        "SELECT a, repeat(s, 200) AS long FROM narrow ORDER BY b, a LIMIT 5".to_string(),
        format!("SELECT {computed} FROM narrow n WHERE NOT EXISTS (SELECT 1 FROM keys WHERE k = n.a)"),
        "SELECT a AS x, s FROM narrow UNION ALL SELECT column1, column2 FROM (VALUES (1, 'a'), (2, 'b'))".to_string(),
    ];
    let narrow = "SELECT value AS a, value % 11 AS b, 'text' || (value % 9) AS s FROM generate_series(1, 40000)";
    let setup = [format!("CREATE TABLE narrow AS {narrow}"), "CREATE TABLE keys AS SELECT a AS k FROM narrow WHERE b = 5".into()];
    block_on(async {
        let folder = tempfile::tempdir().unwrap();
        let host = plain(1);
        for sql in &setup {
            host.sql(sql).await.unwrap().collect().await.unwrap();
        }
        for unified in [UnifiedMemory::Auto, UnifiedMemory::Never] {
            let (ctx, context) = session(LIMIT, unified, folder.path(), None);
            for sql in &setup {
                let resident = sql.replace("CREATE TABLE ", "CREATE TABLE device.").replace("FROM narrow", "FROM device.narrow");
                ctx.sql(&resident).await.unwrap().collect().await.unwrap();
            }
            let held = context.pool().in_use();
            for sql in &queries {
                let sql_of_device = sql.replace("FROM narrow", "FROM device.narrow").replace("FROM keys", "FROM device.keys");
                assert_answer(&ctx, &sql_of_device, &host, sql).await;
                assert_returned(&context, held);
            }
        }
    });
}
