// SPDX-License-Identifier: Apache-2.0
//! Queries whose rows are more than device memory, beside plain DataFusion.

use std::path::Path;
use std::sync::Arc;

use arrow::array::{
    ArrayRef, BooleanArray, Date32Array, Decimal128Array, DictionaryArray, Float64Array, Int64Array, RecordBatch, StringArray,
    StringViewArray,
};
use arrow::datatypes::Int32Type;
use datafusion::datasource::MemTable;
use datafusion::execution::disk_manager::{DiskManagerBuilder, DiskManagerMode};
use datafusion::execution::runtime_env::RuntimeEnvBuilder;
use datafusion::execution::session_state::SessionStateBuilder;
use datafusion::physical_plan::{ExecutionPlan, collect, execute_stream};
use datafusion::prelude::{SessionConfig, SessionContext};
use device::testing;
use device::{Context, UnifiedMemory};
use devicefusion::{DeviceOptions, DeviceRuntime, SessionStateBuilderExt, register_schema};
use futures::StreamExt;

use crate::harness::{assert_returned, block_on, context, device_config, metric, ordered_lines, plain, set, text};

/// More than a block of rows of any kernel.
pub const ROWS: usize = (1 << 17) + 1;

/// A number that looks random.
fn random(row: usize, salt: u64) -> u64 {
    let mut x = (row as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ salt.wrapping_mul(0xd1b5_4a32_d192_ed03);
    x = (x ^ (x >> 31)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x ^ (x >> 29)
}

/// Columns of several layouts, one of them the row's number.
pub fn table() -> RecordBatch {
    let nth = |salt| move |row: usize| (!random(row, salt + 100).is_multiple_of(11)).then(|| random(row, salt));
    let rows = || 0..ROWS;
    let term = |row: usize| nth(3)(row).map(|x| format!("term {} {}", x % 5000, "ü".repeat((x % 5) as usize)));
    let terms: Vec<Option<String>> = rows().map(term).collect();
    let code = |row: usize| nth(4)(row).map(|x| format!("code {}", x % 90));
    let codes: Vec<Option<String>> = rows().map(code).collect();
    RecordBatch::try_from_iter([
        ("row", Arc::new(Int64Array::from_iter_values(rows().map(|row| row as i64))) as ArrayRef),
        ("few", Arc::new(Int64Array::from_iter(rows().map(|row| nth(1)(row).map(|x| (x % 7) as i64))))),
        ("many", Arc::new(Int64Array::from_iter(rows().map(|row| nth(2)(row).map(|x| x as i64))))),
        ("term", Arc::new(StringArray::from_iter(terms.iter().map(Option::as_deref)))),
        ("text", Arc::new(StringViewArray::from_iter(terms.iter().map(Option::as_deref)))),
        ("code", Arc::new(codes.iter().map(Option::as_deref).collect::<DictionaryArray<Int32Type>>())),
        ("float", Arc::new(Float64Array::from_iter(rows().map(|row| nth(5)(row).map(f64::from_bits))))),
        ("day", Arc::new(Date32Array::from_iter(rows().map(|row| nth(6)(row).map(|x| (x % 9000) as i32))))),
        (
            "price",
            Arc::new(
                Decimal128Array::from_iter(rows().map(|row| nth(7)(row).map(|x| i128::from(x % 1_000_000) - 500_000)))
                    .with_precision_and_scale(15, 2)
                    .unwrap(),
            ),
        ),
        ("flag", Arc::new(BooleanArray::from_iter(rows().map(|row| nth(8)(row).map(|x| x % 2 == 0))))),
    ])
    .unwrap()
}

/// A session with so much device memory, and temporary files in a folder.
pub fn session(bytes: usize, unified: UnifiedMemory, folder: &Path, quota: Option<u64>) -> (SessionContext, Context) {
    let disk = DiskManagerBuilder::default().with_mode(DiskManagerMode::Directories(vec![folder.to_owned()]));
    session_with_disk(bytes, unified, disk.with_max_temp_directory_size(quota.unwrap_or(1 << 40)))
}

/// A session with so much device memory, and temporary files as `disk` says.
pub fn session_with_disk(bytes: usize, unified: UnifiedMemory, disk: DiskManagerBuilder) -> (SessionContext, Context) {
    session_on(context(device_config().with_memory_bytes(bytes).with_unified_memory(unified)), disk)
}

/// A session on a device, and temporary files as `disk` says.
pub fn session_on(context: Context, disk: DiskManagerBuilder) -> (SessionContext, Context) {
    let state = SessionStateBuilder::new()
        .with_config(SessionConfig::new().with_target_partitions(1).with_option_extension(DeviceOptions::default()))
        .with_runtime_env(Arc::new(RuntimeEnvBuilder::new().with_disk_manager_builder(disk).build().unwrap()))
        .with_default_features()
        .with_device_runtime(DeviceRuntime::with_context(context.clone()))
        .build();
    let ctx = SessionContext::new_with_state(state);
    register_schema(&ctx).unwrap();
    set(&ctx, "device.fallback", "error");
    set(&ctx, "device.cost", "always");
    (ctx, context)
}

pub fn register(ctx: &SessionContext, name: &str, rows: &RecordBatch) {
    let table = MemTable::try_new(rows.schema(), vec![vec![rows.clone()]]).unwrap();
    ctx.register_table(name, Arc::new(table)).unwrap();
}

/// A session whose table `t` is resident.
pub async fn resident(bytes: usize, rows: &RecordBatch, folder: &Path) -> (SessionContext, Context) {
    let (ctx, context) = session(bytes, UnifiedMemory::Auto, folder, None);
    register(&ctx, "source", rows);
    ctx.sql("CREATE TABLE device.t AS SELECT * FROM source").await.unwrap().collect().await.unwrap();
    set(&ctx, "datafusion.catalog.default_schema", "device");
    (ctx, context)
}

/// Files in a folder and those below it.
pub fn files(folder: &Path) -> usize {
    let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    entries.map(|path| if path.is_dir() { files(&path) } else { 1 }).sum()
}

/// Waits until all files of an ended query are gone.
pub async fn assert_no_files_stay(folder: &Path) {
    let start = std::time::Instant::now();
    while files(folder) > 0 {
        assert!(start.elapsed().as_secs() < 30, "files stay");
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
}

pub async fn planned(ctx: &SessionContext, sql: &str) -> Arc<dyn ExecutionPlan> {
    ctx.sql(sql).await.unwrap().create_physical_plan().await.unwrap()
}

pub async fn lines(ctx: &SessionContext, sql: &str) -> Vec<String> {
    ordered_lines(&ctx.sql(sql).await.unwrap().collect().await.unwrap())
}

/// Runs a query that spills, and returns its rows and how many files it wrote.
pub async fn spilled(ctx: &SessionContext, context: &Context, folder: &Path, sql: &str) -> (Vec<String>, usize) {
    let (lines, plan) = spilled_plan(ctx, context, folder, sql).await;
    (lines, metric(&plan, "spill_count"))
}

/// Runs a query that spills, and returns its rows and its plan.
pub async fn spilled_plan(
    ctx: &SessionContext,
    context: &Context,
    folder: &Path,
    sql: &str,
) -> (Vec<String>, Arc<dyn ExecutionPlan>) {
    let before = context.pool().in_use();
    let plan = planned(ctx, sql).await;
    let batches = collect(Arc::clone(&plan), ctx.task_ctx()).await.unwrap_or_else(|error| panic!("{sql}: {error}"));
    let lines = ordered_lines(&batches);
    drop(batches);
    assert!(metric(&plan, "launches") > 0, "{sql}");
    assert!(metric(&plan, "spilled_bytes") > 0 && metric(&plan, "spilled_rows") > 0, "{sql}: nothing was spilled");
    assert_eq!(files(folder), 0, "{sql}");
    assert_returned(context, before);
    (lines, plan)
}

/// Runs queries over the table in so many bytes of device memory, on both kinds of memory. Each
/// spills, and gives the rows of plain DataFusion, in any order.
pub async fn assert_answers_spill(queries: &[&str], bytes: usize) {
    let (rows, folder) = (table(), tempfile::tempdir().unwrap());
    let host = plain(1);
    register(&host, "t", &rows);
    for unified in [UnifiedMemory::Auto, UnifiedMemory::Never] {
        let (ctx, context) = session(bytes, unified, folder.path(), None);
        register(&ctx, "t", &rows);
        for sql in of_turn(queries, unified) {
            let (mut actual, _) = spilled(&ctx, &context, folder.path(), sql).await;
            let mut expected = lines(&host, sql).await;
            actual.sort();
            expected.sort();
            assert!(actual == expected, "unified memory {unified:?}: {sql}: {} rows, not {}", actual.len(), expected.len());
        }
    }
}

/// All queries in a full run, else every fourth one, others by the part and by the memory.
pub fn of_turn<'a>(queries: &[&'a str], unified: UnifiedMemory) -> Vec<&'a str> {
    let first = match testing::parts().unwrap().as_slice() {
        [part] => Some(part + 2 * usize::from(unified == UnifiedMemory::Never)),
        _ => None,
    };
    let numbered = queries.iter().enumerate();
    numbered.filter(|(number, _)| first.is_none_or(|first| number % 4 == first % 4)).map(|(_, query)| *query).collect()
}

/// Queries over all columns. The row's number makes the order total.
const SORTS: [&str; 6] = [
    "SELECT * FROM t ORDER BY many, row",
    "SELECT * FROM t ORDER BY few DESC NULLS LAST, term NULLS FIRST, row DESC",
    "SELECT row, term, text FROM t ORDER BY text DESC, code, row",
    "SELECT row FROM t WHERE row % 3 <> 1 ORDER BY float, day DESC, row",
    "SELECT price + 1, flag, code, row FROM t ORDER BY flag, price, row",
    "SELECT row FROM t ORDER BY term, row LIMIT 100000 OFFSET 7",
];

#[test]
fn sorts_of_every_layout_spill() {
    device::skip_unless_turn!(0);
    block_on(async {
        let (rows, folder) = (table(), tempfile::tempdir().unwrap());
        let host = plain(1);
        register(&host, "t", &rows);
        for unified in [UnifiedMemory::Auto, UnifiedMemory::Never] {
            let (ctx, context) = session(6 << 20, unified, folder.path(), None);
            register(&ctx, "t", &rows);
            for sql in of_turn(&SORTS, unified) {
                let (actual, _) = spilled(&ctx, &context, folder.path(), sql).await;
                assert!(actual == lines(&host, sql).await, "unified memory {unified:?}: {sql}");
            }
        }
    });
}

#[test]
fn sorts_of_a_resident_table_spill() {
    block_on(async {
        let (rows, folder) = (table(), tempfile::tempdir().unwrap());
        let host = plain(1);
        register(&host, "t", &rows);
        let (ctx, context) = resident(14 << 20, &rows, folder.path()).await;
        for sql in [SORTS[0], SORTS[1]] {
            let (actual, _) = spilled(&ctx, &context, folder.path(), sql).await;
            assert!(actual == lines(&host, sql).await, "{sql}");
        }
    });
}

/// More runs than are merged at once.
#[test]
fn many_runs_are_merged_to_fewer() {
    block_on(async {
        let folder = tempfile::tempdir().unwrap();
        let (ctx, context) = session(1 << 20, UnifiedMemory::Auto, folder.path(), None);
        set(&ctx, "device.batch_rows", "2000");
        let sql = "SELECT value, value * 7919 % 1000003 AS x FROM generate_series(1, 600000) ORDER BY x, value";
        let (actual, files) = spilled(&ctx, &context, folder.path(), sql).await;
        assert!(files > 33, "{files} files");
        assert!(actual == lines(&plain(1), sql).await);
    });
}

/// Equal keys keep their order through runs, also where most rows of a run are equal.
#[test]
fn equal_rows_keep_their_order() {
    block_on(async {
        let folder = tempfile::tempdir().unwrap();
        let (ctx, context) = session(2 << 20, UnifiedMemory::Auto, folder.path(), None);
        set(&ctx, "device.batch_rows", "4000");
        for key in ["value / 1000000", "value / 100000", "-(value / 1000)", "value % 3", "-value"] {
            let sql = format!("SELECT {key} AS key, value FROM generate_series(1, {}) ORDER BY key", 2 * ROWS);
            let (actual, _) = spilled(&ctx, &context, folder.path(), &sql).await;
            let by_both = lines(&plain(1), &format!("{sql}, value")).await;
            assert!(actual == by_both, "{key}");
        }
    });
}

/// Aggregations of many groups, by keys of several kinds.
const AGGREGATIONS: [&str; 6] = [
    "SELECT many, count(*), sum(row), min(day), max(price) FROM t GROUP BY many",
    "SELECT term, count(*), count(price), max(text), min(term) FROM t GROUP BY term, row % 40000",
    "SELECT text, code, sum(price), bool_and(flag) FROM t WHERE row % 5 > 0 GROUP BY text, code",
    "SELECT DISTINCT row / 2, few FROM t",
    "SELECT code, row + 1, min(float), max(many) FROM t GROUP BY 1, 2",
    "SELECT day, few, many % 100, flag, sum(row) / count(*), max(text) FROM t GROUP BY 1, 2, 3, 4",
];

#[test]
fn aggregations_of_many_groups_spill() {
    block_on(assert_answers_spill(&AGGREGATIONS, 6 << 20));
}

/// Aggregations with few groups and many values of several DISTINCTs.
const DISTINCTS: [&str; 7] = [
    "SELECT count(DISTINCT many), count(DISTINCT row), count(DISTINCT text), sum(price), count(*) FROM t",
    "SELECT few, count(DISTINCT many), sum(DISTINCT row % 90000), max(day), min(term) FROM t GROUP BY few",
    "SELECT code, count(DISTINCT float), count(DISTINCT row), avg(DISTINCT price) FROM t WHERE row % 5 > 0 GROUP BY code",
    "SELECT flag, few, count(DISTINCT row) FILTER (WHERE day > 4000), count(DISTINCT many), count(price) FROM t GROUP BY 1, 2",
    "SELECT code, few, count(DISTINCT code), count(DISTINCT row), count(DISTINCT many) FROM t GROUP BY code, few",
    "SELECT count(DISTINCT many), approx_distinct(many), sum(DISTINCT row) FROM t",
    "SELECT count(DISTINCT code), count(DISTINCT many), count(DISTINCT row) FILTER (WHERE row < 0), max(code) FROM t",
];

#[test]
fn values_of_distinct_spill() {
    block_on(assert_answers_spill(&DISTINCTS, 6 << 20));
}

/// Aggregations with many groups, and with values of several DISTINCTs or sketches.
const GROUPED_DISTINCTS: [&str; 5] = [
    "SELECT many, count(DISTINCT few), count(DISTINCT row), sum(price) FROM t GROUP BY many",
    "SELECT term, row % 40000, count(DISTINCT many), count(DISTINCT text), max(text) FROM t GROUP BY 1, 2",
    "SELECT row / 2, code, sum(DISTINCT row), count(DISTINCT price) FROM t WHERE row % 5 > 0 GROUP BY 1, 2",
    "SELECT row / 3, count(DISTINCT many) FILTER (WHERE day > 4000), count(DISTINCT term), min(term) FROM t GROUP BY 1",
    "SELECT row / 4, approx_distinct(many), count(DISTINCT few) FROM t GROUP BY 1",
];

#[test]
fn groups_beside_values_of_distinct_spill() {
    block_on(assert_answers_spill(&GROUPED_DISTINCTS, 6 << 20));
}

#[test]
fn values_of_distinct_of_a_resident_table_spill() {
    block_on(async {
        let (rows, folder) = (table(), tempfile::tempdir().unwrap());
        let host = plain(1);
        register(&host, "t", &rows);
        let (ctx, context) = resident(13 << 20, &rows, folder.path()).await;
        // The table has its integers and dates in the fewest bytes.
        for sql in [DISTINCTS[0], DISTINCTS[6], GROUPED_DISTINCTS[0], GROUPED_DISTINCTS[3]] {
            let (mut actual, _) = spilled(&ctx, &context, folder.path(), sql).await;
            let mut expected = lines(&host, sql).await;
            actual.sort();
            expected.sort();
            assert!(actual == expected, "{sql}: {} rows", actual.len());
        }
    });
}

#[test]
fn aggregations_of_a_resident_table_spill() {
    block_on(async {
        let (rows, folder) = (table(), tempfile::tempdir().unwrap());
        let host = plain(1);
        register(&host, "t", &rows);
        let (ctx, context) = resident(24 << 20, &rows, folder.path()).await;
        for sql in [AGGREGATIONS[0], AGGREGATIONS[2]] {
            let (mut actual, _) = spilled(&ctx, &context, folder.path(), sql).await;
            let mut expected = lines(&host, sql).await;
            actual.sort();
            expected.sort();
            assert!(actual == expected, "{sql}");
        }
    });
}

#[test]
fn without_room_on_disk_the_query_fails_and_says_why() {
    block_on(async {
        let folder = tempfile::tempdir().unwrap();
        let sql = "SELECT value FROM generate_series(1, 1000000) ORDER BY -value";
        let error = async |ctx: &SessionContext| text(&ctx.sql(sql).await.unwrap().collect().await.unwrap_err());
        let (ctx, context) = session(2 << 20, UnifiedMemory::Auto, folder.path(), Some(100_000));
        set(&ctx, "device.batch_rows", "10000");
        let full = error(&ctx).await;
        assert!(full.contains("DeviceSortExec spills rows to disk") && full.contains("max_temp_directory_size"), "{full}");
        set(&ctx, "device.spill", "off");
        let off = error(&ctx).await;
        assert!(off.contains("raise device.memory_bytes") && off.contains("DeviceSortExec holds all rows"), "{off}");
        assert_eq!(files(folder.path()), 0);
        assert_returned(&context, 0);
    });
}

#[test]
fn a_dropped_query_leaves_no_files() {
    block_on(async {
        let folder = tempfile::tempdir().unwrap();
        let (ctx, context) = session(2 << 20, UnifiedMemory::Auto, folder.path(), None);
        set(&ctx, "device.batch_rows", "10000");
        let plan = planned(&ctx, "SELECT value FROM generate_series(1, 1000000) ORDER BY -value").await;
        // During the writes of runs, and during their merge.
        let writes = execute_stream(Arc::clone(&plan), ctx.task_ctx()).unwrap();
        let started = tokio::spawn(async move {
            let mut writes = writes;
            _ = writes.next().await;
        });
        while files(folder.path()) == 0 {
            tokio::time::sleep(std::time::Duration::from_millis(1)).await;
        }
        started.abort();
        _ = started.await;
        let mut merges = execute_stream(plan, ctx.task_ctx()).unwrap();
        merges.next().await.unwrap().unwrap();
        assert!(files(folder.path()) > 0);
        drop(merges);
        assert_returned(&context, 0);
        assert_no_files_stay(folder.path()).await;
    });
}
