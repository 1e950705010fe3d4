// SPDX-License-Identifier: Apache-2.0
//! Columns of files that stay on the device, beside plain DataFusion.

use std::panic::Location;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use datafusion::execution::context::SessionContext;
use datafusion::execution::object_store::ObjectStoreUrl;
use datafusion::object_store::ObjectStoreExt;
use datafusion::object_store::memory::InMemory;
use datafusion::object_store::path::Path as ObjectPath;
use datafusion::physical_plan::ExecutionPlan;
use device::Context;
use devicefusion::DeviceRuntime;

use crate::harness::{answer, answer_of, assert_returned, block_on, context, device_config, metric, plain, set, strict_on};

const ROWS: usize = 50_000;
/// Rows of a row group, so that a file has five.
const GROUP: &str = "10000";

/// Writes rows of `seed`, with NULLs and strings, as one file.
async fn write(file: &Path, seed: usize, rows: usize) {
    let host = plain(1);
    set(&host, "datafusion.execution.parquet.max_row_group_size", GROUP);
    let sql = format!(
        "COPY (SELECT value AS i, nullif(value * {seed} % 7, 3) AS k, CAST(value AS DOUBLE) / 4 AS f, \
         'text ' || (value * {seed} % 100) AS s, value % 3 = 0 AS b FROM generate_series(1, {rows})) TO '{}' STORED AS PARQUET",
        file.display()
    );
    host.sql(&sql).await.unwrap().collect().await.unwrap();
}

/// A session with a device of its own, and its context.
fn device(partitions: usize) -> (SessionContext, Context) {
    let context = context(device_config());
    let ctx = strict_on(partitions, DeviceRuntime::with_context(context.clone()));
    set(&ctx, "device.file_cache", "true");
    set(&ctx, "device.file_cache_bytes", "64M");
    // A row group is a batch.
    set(&ctx, "device.batch_rows", GROUP);
    // Partitions share the file.
    set(&ctx, "datafusion.optimizer.repartition_file_min_size", "0");
    (ctx, context)
}

async fn register(ctx: &SessionContext, location: &Path) {
    let sql = format!("CREATE EXTERNAL TABLE p STORED AS PARQUET LOCATION '{}'", location.display());
    ctx.sql(&sql).await.unwrap().collect().await.unwrap();
}

/// Runs a query and compares it with plain DataFusion. Gives the number of row groups on the
/// device, and of others.
#[track_caller]
fn row_groups(ctx: &SessionContext, location: &Path, sql: &str) -> impl Future<Output = (usize, usize)> {
    let caller = Location::caller();
    async move {
        let host = plain(2);
        register(&host, location).await;
        row_groups_beside(&host, ctx, sql, caller).await
    }
}

/// The same beside a session of plain DataFusion.
async fn row_groups_beside(host: &SessionContext, ctx: &SessionContext, sql: &str, caller: &Location<'_>) -> (usize, usize) {
    let expected = answer(host, sql).await.unwrap();
    let frame = ctx.sql(sql).await.unwrap();
    let task = Arc::new(frame.task_ctx());
    let plan: Arc<dyn ExecutionPlan> = frame.create_physical_plan().await.unwrap();
    let actual = answer_of(Arc::clone(&plan), task).await.unwrap();
    assert!(actual.launches > 0, "{caller}: {sql}");
    assert_eq!(actual.lines(), expected.lines(), "{caller}: {sql}");
    (metric(&plan, "row_groups_cached"), metric(&plan, "row_groups_read"))
}

fn folder() -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("p.parquet");
    (folder, file)
}

#[test]
fn the_second_query_reads_no_row_group() {
    block_on(async {
        let (_folder, file) = folder();
        write(&file, 11, ROWS).await;
        for partitions in [1, 2] {
            let (ctx, _context) = device(partitions);
            register(&ctx, &file).await;
            let sql = "SELECT k, count(*), sum(i), min(f), count(s) FROM p GROUP BY k";
            assert_eq!(row_groups(&ctx, &file, sql).await, (0, 5));
            assert_eq!(row_groups(&ctx, &file, sql).await, (5, 0));
            // Other queries of the same columns, and one that reads another column beside them.
            assert_eq!(row_groups(&ctx, &file, "SELECT sum(i), max(s) FROM p WHERE k > 2").await, (5, 0));
            assert_eq!(row_groups(&ctx, &file, "SELECT b, sum(i) FROM p GROUP BY b").await, (0, 5));
            assert_eq!(row_groups(&ctx, &file, "SELECT * FROM p WHERE i % 100 = 7").await, (5, 0));
            assert_eq!(row_groups(&ctx, &file, "SELECT * FROM p ORDER BY i DESC LIMIT 5").await, (5, 0));
            set(&ctx, "device.file_cache", "false");
            assert_eq!(row_groups(&ctx, &file, sql).await, (0, 0));
        }
    });
}

#[test]
fn statistics_choose_row_groups() {
    block_on(async {
        let (_folder, file) = folder();
        write(&file, 11, ROWS).await;
        let (ctx, _context) = device(2);
        register(&ctx, &file).await;
        // The last row group, then the last two, then all.
        assert_eq!(row_groups(&ctx, &file, "SELECT sum(i), count(s) FROM p WHERE i > 40000").await, (0, 1));
        assert_eq!(row_groups(&ctx, &file, "SELECT sum(i), count(s) FROM p WHERE i > 30000").await, (1, 1));
        assert_eq!(row_groups(&ctx, &file, "SELECT sum(i), count(s) FROM p").await, (2, 3));
        assert_eq!(row_groups(&ctx, &file, "SELECT sum(i), count(s) FROM p WHERE i < 0").await, (0, 0));
    });
}

#[test]
fn small_row_groups_stay_together() {
    block_on(async {
        let (_folder, file) = folder();
        write(&file, 11, ROWS).await;
        let (ctx, _context) = device(1);
        set(&ctx, "device.batch_rows", "0");
        register(&ctx, &file).await;
        // Few of the rows do not stay.
        assert_eq!(row_groups(&ctx, &file, "SELECT sum(i), count(s) FROM p WHERE i > 40000").await, (0, 1));
        assert_eq!(row_groups(&ctx, &file, "SELECT sum(i), count(s) FROM p WHERE i > 10000").await, (0, 5));
        assert_eq!(row_groups(&ctx, &file, "SELECT sum(i), count(s) FROM p WHERE i > 40000").await, (5, 0));
    });
}

#[test]
fn a_changed_file_is_read_again() {
    block_on(async {
        let (_folder, file) = folder();
        let (ctx, _context) = device(2);
        write(&file, 11, ROWS).await;
        register(&ctx, &file).await;
        let sql = "SELECT s, sum(k), count(*) FROM p GROUP BY s";
        assert_eq!(row_groups(&ctx, &file, sql).await, (0, 5));
        assert_eq!(row_groups(&ctx, &file, sql).await, (5, 0));
        // Other rows of the same size, some time later.
        write(&file, 13, ROWS).await;
        let later = SystemTime::now() + Duration::from_secs(5);
        std::fs::File::options().write(true).open(&file).unwrap().set_modified(later).unwrap();
        ctx.sql("DROP TABLE p").await.unwrap().collect().await.unwrap();
        register(&ctx, &file).await;
        assert_eq!(row_groups(&ctx, &file, sql).await, (0, 5));
        assert_eq!(row_groups(&ctx, &file, sql).await, (5, 0));
        // The listing of a plan is older than the file.
        let frame = ctx.sql("SELECT sum(k), max(s), count(*) FROM p").await.unwrap();
        let task = Arc::new(frame.task_ctx());
        let plan = frame.create_physical_plan().await.unwrap();
        write(&file, 17, ROWS).await;
        let later = later + Duration::from_secs(5);
        std::fs::File::options().write(true).open(&file).unwrap().set_modified(later).unwrap();
        let rows = answer_of(Arc::clone(&plan), task).await;
        assert_eq!(metric(&plan, "row_groups_cached"), 0, "{rows:?}");
    });
}

#[test]
fn a_changed_object_is_read_again() {
    block_on(async {
        let ((_folder, file), store) = (folder(), Arc::new(InMemory::new()));
        let ((ctx, _context), host) = (device(2), plain(2));
        let url = ObjectStoreUrl::parse("memory://bucket").unwrap();
        for session in [&ctx, &host] {
            session.register_object_store(url.as_ref(), Arc::clone(&store) as _);
        }
        for seed in [11, 13] {
            write(&file, seed, ROWS).await;
            let object = std::fs::read(&file).unwrap();
            store.put(&ObjectPath::from("p.parquet"), object.into()).await.unwrap();
            for session in [&ctx, &host] {
                session.sql("DROP TABLE IF EXISTS p").await.unwrap().collect().await.unwrap();
                register(session, Path::new("memory://bucket/p.parquet")).await;
            }
            for expected in [(0, 5), (5, 0)] {
                let sql = "SELECT s, sum(k), count(*) FROM p GROUP BY s";
                assert_eq!(row_groups_beside(&host, &ctx, sql, Location::caller()).await, expected, "seed {seed}");
            }
        }
    });
}

#[test]
fn files_of_several_schemas_and_partitions_stay_apart() {
    block_on(async {
        let folder = tempfile::tempdir().unwrap();
        let host = plain(1);
        for (part, columns) in [("a", "value AS i, value % 5 AS k"), ("b", "value + 1 AS i"), ("c", "value % 3 AS k, value AS i")]
        {
            let of_part = folder.path().join(format!("part={part}"));
            std::fs::create_dir(&of_part).unwrap();
            let file = of_part.join("rows.parquet");
            let sql = format!("COPY (SELECT {columns} FROM generate_series(1, 5000)) TO '{}' STORED AS PARQUET", file.display());
            host.sql(&sql).await.unwrap().collect().await.unwrap();
        }
        let (ctx, _context) = device(2);
        let table = format!(
            "CREATE EXTERNAL TABLE p (k BIGINT, i BIGINT, part VARCHAR) STORED AS PARQUET PARTITIONED BY (part) LOCATION '{}'",
            folder.path().display()
        );
        for session in [&ctx, &host] {
            session.sql(&table).await.unwrap().collect().await.unwrap();
        }
        for sql in [
            "SELECT part, k, sum(i) FROM p GROUP BY part, k",
            "SELECT part, sum(i) FROM p WHERE part <> 'b' GROUP BY part",
            "SELECT k, count(*) FROM p WHERE i > 4990 GROUP BY k",
            "SELECT part, k, sum(i) FROM p GROUP BY part, k",
        ] {
            let (actual, expected) = (answer(&ctx, sql).await.unwrap(), answer(&host, sql).await.unwrap());
            assert_eq!(actual.lines(), expected.lines(), "{sql}");
        }
    });
}

#[test]
fn queries_take_the_memory() {
    block_on(async {
        let (_folder, file) = folder();
        write(&file, 11, 4 * ROWS).await;
        let small = context(device_config().with_memory_bytes(16 << 20));
        let ctx = strict_on(2, DeviceRuntime::with_context(small.clone()));
        register(&ctx, &file).await;
        set(&ctx, "device.file_cache", "true");
        let scan = "SELECT sum(i), sum(k), sum(f) FROM p";
        row_groups(&ctx, &file, scan).await;
        // By default none stay in so little memory.
        assert_returned(&small, 0);
        set(&ctx, "device.file_cache_bytes", "16M");
        row_groups(&ctx, &file, scan).await;
        let (cached, _) = row_groups(&ctx, &file, scan).await;
        assert!(cached > 0);
        assert!(small.pool().in_use() > 1 << 20, "{} bytes", small.pool().in_use());
        assert!(small.pool().available() > 15 << 20, "{} bytes", small.pool().available());
        for sql in [
            "SELECT a.i, b.s FROM p a JOIN p b ON a.i = b.i WHERE a.i % 1000 = 1",
            "SELECT s, f FROM p ORDER BY f DESC, s",
            "SELECT i % 50000, count(*), min(s) FROM p GROUP BY 1",
            scan,
        ] {
            row_groups(&ctx, &file, sql).await;
        }
    });
}

#[test]
fn the_columns_are_listed() {
    block_on(async {
        let (_folder, file) = folder();
        write(&file, 11, ROWS).await;
        let (ctx, _context) = device(2);
        register(&ctx, &file).await;
        row_groups(&ctx, &file, "SELECT sum(i), max(s) FROM p").await;
        set(&ctx, "device.fallback", "host");
        let sql = "SELECT column_name, row_groups, rows, bytes > 100000 AS large, hits FROM device_file_cache() ORDER BY 1";
        let lines = answer(&ctx, sql).await.unwrap().ordered_lines();
        assert_eq!(lines, ["| i | 5 | 50000 | true | 0 |", "| s | 5 | 50000 | true | 0 |"]);
        let sql = "SELECT rows, bytes > 200000 AS large FROM device_memory() WHERE name = 'columns of files'";
        assert_eq!(answer(&ctx, sql).await.unwrap().ordered_lines(), ["| 2 | true |"]);
    });
}
