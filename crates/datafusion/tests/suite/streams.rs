// SPDX-License-Identifier: Apache-2.0
//! Rows are streamed: a dropped result returns its memory, and memory depends on batches, not
//! tables.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use arrow::array::{ArrayRef, Int64Array, RecordBatch};
use arrow::buffer::{Buffer, ScalarBuffer};
use arrow::datatypes::SchemaRef;
use datafusion::catalog::streaming::StreamingTable;
use datafusion::common::exec_err;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::streaming::PartitionStream;
use datafusion::physical_plan::{displayable, execute_stream};
use datafusion::prelude::ParquetReadOptions;
use device::testing::{Fault, FaultPlan};
use device::{Context, DeviceConfig, DeviceKind, Grid, ProgramSource};
use devicefusion::{DeviceRuntime, DeviceTable};
use futures::{FutureExt, StreamExt, stream};
use tokio::sync::Barrier;

use crate::harness::{answer, block_on, context, device_config, plain, profile, set, strict, strict_on};

const ROWS: usize = 400_000;

/// Waits until a pool has no more memory in use than before.
async fn assert_returns(context: &Context, before: usize) {
    let start = Instant::now();
    while context.pool().in_use() > before {
        assert!(
            start.elapsed() < Duration::from_secs(30),
            "{} bytes are still in use, {before} were before",
            context.pool().in_use()
        );
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Launches at the end of the work of a dropped result: at most `most`.
///
/// A partition ends a poll that runs during the drop. The poll launches for one batch.
async fn settled(launches: impl Fn() -> u64, most: u64) -> u64 {
    tokio::time::sleep(Duration::from_millis(50)).await;
    let now = launches();
    assert!(now <= most, "{now} launches, at most {most} of a poll that was under way");
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert_eq!(launches(), now, "goes on after its result was dropped");
    now
}

#[test]
fn a_result_that_is_dropped_midway_returns_its_memory() {
    const PARTITIONS: u64 = 2;
    const BATCH_ROWS: u64 = 4096;
    let of_a_batch = |of_all: u64| of_all.div_ceil(ROWS as u64 / BATCH_ROWS);
    block_on(async {
        let plan = FaultPlan::new();
        let launches = || plan.calls(Fault::Launch);
        let context = context(device_config().with_wrap(plan.wrap()));
        let ctx = strict_on(PARTITIONS as usize, DeviceRuntime::with_context(context.clone()));
        set(&ctx, "device.batch_rows", &BATCH_ROWS.to_string());
        set(&ctx, "datafusion.execution.batch_size", "1024");
        let table = format!("CREATE TABLE t AS SELECT value AS i, value % 1000 AS k FROM generate_series(1, {ROWS})");
        ctx.sql(&table).await.unwrap().collect().await.unwrap();
        let before = context.pool().in_use();
        let mut of_all = 0;
        for sql in ["SELECT i + 1, k FROM t WHERE k > 2", "SELECT i, count(*) FROM t GROUP BY i"] {
            let before_all = launches();
            answer(&ctx, sql).await.unwrap();
            of_all = launches() - before_all;
            let before_some = launches();
            let task = ctx.task_ctx();
            let plan = ctx.sql(sql).await.unwrap().create_physical_plan().await.unwrap();
            let mut stream = execute_stream(Arc::clone(&plan), task).unwrap();
            assert_eq!(stream.next().await.unwrap().unwrap().num_rows(), 1024, "{sql}");
            drop(stream);
            assert_returns(&context, before).await;
            let of_some = settled(launches, launches() + PARTITIONS * of_a_batch(of_all)).await - before_some;
            if sql.contains("WHERE") {
                assert!(of_some < of_all / 2, "{sql}: {of_some} of {of_all} launches before the first rows were taken");
            }
        }
        // Dropped before the first batch.
        let plan = ctx.sql("SELECT k, sum(i) FROM t GROUP BY k").await.unwrap().create_physical_plan().await.unwrap();
        let mut stream = execute_stream(plan, ctx.task_ctx()).unwrap();
        let _ = tokio::time::timeout(Duration::from_millis(2), stream.next()).await;
        drop(stream);
        assert_returns(&context, before).await;
        settled(launches, launches() + PARTITIONS * of_a_batch(of_all)).await;
        assert_eq!(answer(&ctx, "SELECT sum(i) FROM t WHERE k = 1").await.unwrap().num_rows(), 1);
    });
}

/// Names of operators in EXPLAIN, each with a query that is cancelled within it.
const CANCELLED: &[(&str, &str)] = &[
    ("DeviceJoinExec: join_type=Inner", "SELECT a.i, b.i FROM t a JOIN t b ON a.k = b.k WHERE a.i < 3000"),
    ("DeviceJoinExec: join_type=Left,", "SELECT a.i, b.s FROM t a LEFT JOIN t b ON a.i = b.i + 7 AND a.k < b.k"),
    ("DeviceJoinExec: join_type=Full", "SELECT a.i, b.i FROM t a FULL JOIN t b ON a.i = b.i * 2"),
    (
        "DeviceJoinExec: join_type=LeftSemi",
        "SELECT i FROM t WHERE EXISTS (SELECT 1 FROM t u WHERE u.k = t.k AND u.i > t.i + 40000)",
    ),
    ("DeviceJoinExec: join_type=RightAnti", "SELECT i FROM t WHERE k NOT IN (SELECT k FROM t WHERE i % 3 = 0)"),
    ("DeviceJoinExec: join_type=RightSemi", "SELECT i, k FROM t INTERSECT SELECT k AS i, k FROM t"),
    ("DeviceJoinExec: join_type=RightMark", "SELECT i FROM t WHERE i IN (SELECT k FROM t) OR k = 5"),
    ("DeviceJoinExec: join_type=LeftMark", "SELECT i FROM t WHERE i IN (SELECT u.i FROM t u WHERE u.k < t.k) OR k = 5"),
    (
        "DeviceJoinExec: join_type=Inner, on=[], filter=i@0 < k@1",
        "SELECT count(*) FROM t a JOIN t b ON a.i < b.k WHERE a.i < 3000",
    ),
    ("DeviceJoinExec: join_type=Inner, on=[]", "SELECT a.i + b.i, a.s FROM t a CROSS JOIN (SELECT i FROM t WHERE i < 20) b"),
    (
        "DeviceDynamicFilterExec",
        "SELECT a.i, b.n FROM t a JOIN (SELECT i, s, count(*) AS n FROM t GROUP BY i, s) b ON a.i = b.i WHERE a.k < 300",
    ),
    ("DeviceAggregateExec: gby=[k@0]", "SELECT a.k, count(*), sum(b.i) FROM t a JOIN t b ON a.i = b.i GROUP BY a.k"),
    ("DeviceAggregateExec: gby=[k@1]", "SELECT count(DISTINCT i), string_agg(s, ',' ORDER BY i) FROM t GROUP BY k"),
    ("DeviceAggregateExec: gby=[l@", "SELECT l, count(*) FROM (SELECT array_agg(i) AS l FROM t GROUP BY i % 1009) GROUP BY l"),
    ("DeviceAggregateExec: gby=[i@0], aggr=[]", "SELECT i FROM t UNION SELECT k FROM t"),
    ("DeviceExpandExec", "SELECT k, s, count(*) FROM t GROUP BY ROLLUP (k, s)"),
    ("DeviceSortExec: expr=", "SELECT i, s FROM t ORDER BY s DESC, i"),
    ("DeviceSortExec: TopK", "SELECT i, s FROM t ORDER BY s DESC, i LIMIT 10"),
    (
        "DeviceWindowExec: wdw=[rank()",
        "SELECT sum(i) OVER (PARTITION BY k ORDER BY i ROWS 3 PRECEDING), rank() OVER (ORDER BY s) FROM t",
    ),
    (
        "DeviceWindowExec: wdw=[median(",
        "SELECT median(CAST(i AS DOUBLE)) OVER (PARTITION BY k ORDER BY i ROWS 9 PRECEDING) FROM t",
    ),
    ("DeviceUnnestExec", "SELECT unnest(l) FROM (SELECT array_agg(i) AS l FROM t GROUP BY k)"),
    ("DeviceUnionExec", "SELECT concat(s, '!', s) AS x FROM t UNION ALL SELECT upper(s) FROM t"),
    ("DeviceGlobalLimitExec: skip=5", "SELECT concat(s, '!', s) FROM t WHERE k > 2 LIMIT 45000 OFFSET 5"),
    ("DeviceScanExec", "SELECT i, s FROM device.r ORDER BY s DESC, i"),
    (
        "DeviceReuseExec: shared=#1",
        "WITH c AS (SELECT i, s, sum(k) AS n FROM t GROUP BY i, s) SELECT a.i, a.s, b.n FROM c a JOIN c b ON a.i = b.i + 1",
    ),
    (
        "DeviceSharedExec: cached=#1",
        "WITH c AS (SELECT i, sum(k) AS n FROM t GROUP BY i) \
         SELECT i FROM c ORDER BY abs(i - (SELECT i FROM c ORDER BY n DESC, i LIMIT 1)), i LIMIT 1",
    ),
    ("DataSinkExec: sink=DeviceTable", "INSERT INTO device.filled SELECT i, concat(s, '!', s) FROM t WHERE k > 5"),
    ("DeviceProjectionExec", "CREATE TABLE device.made AS SELECT i, concat(s, '!', s) AS x FROM t WHERE k > 5"),
];

#[test]
fn a_query_that_is_cancelled_within_any_operator_returns_its_memory() {
    block_on(async {
        let plan = FaultPlan::new();
        let launches = || plan.calls(Fault::Launch);
        let context = context(device_config().with_wrap(plan.wrap()));
        let ctx = strict_on(2, DeviceRuntime::with_context(context.clone()));
        set(&ctx, "device.batch_rows", "4096");
        // A plan needs its table first.
        let run = async |sql: &str| {
            let frame = ctx.sql(sql).await.unwrap();
            let task = Arc::new(frame.task_ctx());
            let mut rows = execute_stream(frame.create_physical_plan().await.unwrap(), task).unwrap();
            while rows.next().await.transpose().unwrap().is_some() {}
        };
        // Inserted rows and new tables would count as memory that is not returned.
        let forget = async || {
            run("DROP TABLE IF EXISTS device.made").await;
            run("CREATE OR REPLACE TABLE device.filled AS SELECT i, concat(s, '!', s) AS x FROM t WHERE false").await;
        };
        let table = "CREATE TABLE t AS SELECT value AS i, value % 1000 AS k, 'text ' || (value % 777)::TEXT AS s \
                     FROM generate_series(1, 50000)";
        run(table).await;
        run("CREATE TABLE device.r AS SELECT i, s FROM t").await;
        forget().await;
        context.synchronize().unwrap();
        let before = context.pool().in_use();
        for (operator, sql) in CANCELLED.iter().copied() {
            let query = sql.strip_prefix("CREATE TABLE device.made AS ").unwrap_or(sql);
            // The plan itself would hold the target table of an insert.
            let planned = {
                let plan = ctx.sql(query).await.unwrap().create_physical_plan().await.unwrap();
                displayable(plan.as_ref()).indent(false).to_string()
            };
            assert!(planned.contains(operator), "{sql}: no {operator} in {planned}");
            let start = launches();
            run(sql).await;
            let all = launches() - start;
            forget().await;
            assert_returns(&context, before).await;
            let mut cancelled = 0;
            for part in 0..4 {
                let goal = launches() + all * part / 4;
                let reached = async {
                    while launches() <= goal {
                        tokio::time::sleep(Duration::from_millis(1)).await;
                    }
                };
                tokio::select! {
                    () = run(sql) => {}
                    () = reached => cancelled += 1,
                }
                forget().await;
                assert_returns(&context, before).await;
            }
            assert!(cancelled > 0, "{sql}: ends before it can be cancelled");
        }
        assert_eq!(answer(&ctx, "SELECT sum(i) FROM t WHERE k = 1").await.unwrap().num_rows(), 1);
    });
}

#[test]
fn a_join_that_explodes_gives_its_memory_back_when_it_is_cancelled() {
    device::skip_unless_turn!(1);
    block_on(async {
        // Kernels without optimization exceed the bound.
        let context = context(DeviceConfig::default().with_selector(device_config().selector).with_timeline(10_000));
        let ctx = strict_on(1, DeviceRuntime::with_context(context.clone()));
        let text = "'the same forty characters of each text: ' || CAST(x AS varchar)";
        ctx.sql(&format!("CREATE TABLE l AS SELECT x AS id, 1 AS one, {text} AS text FROM generate_series(1, 300000) t(x)"))
            .await
            .unwrap()
            .collect()
            .await
            .unwrap();
        for profile in [profile("cpu"), "gpu"] {
            set(&ctx, "device.profile", profile);
            // Visited bitmap, remaining rows, their sums, candidate pairs, written pairs, and pairs
            // that take long to compare.
            for sql in [
                "SELECT count(*) FROM l a LEFT SEMI JOIN l b ON a.one = b.one AND a.id * b.id < 0",
                "SELECT a.id + 1 FROM l a LEFT ANTI JOIN l b ON a.one = b.one AND a.id * b.id < 0",
                "SELECT count(*) FROM l a RIGHT SEMI JOIN l b ON a.one = b.one AND a.id * b.id < 0",
                "SELECT count(*) FROM l a JOIN l b ON a.one = b.one AND a.id * b.id < 0",
                "SELECT count(*), sum(a.id - b.id) FROM l a JOIN l b ON a.one = b.one",
                "SELECT count(*) FROM l a JOIN l b ON a.one = b.one WHERE a.text || 'z' < b.text AND a.id * b.id < 0",
            ] {
                // Compiles the kernels first.
                answer(&ctx, &sql.replace("l b", "(SELECT * FROM l LIMIT 3) b")).await.unwrap();
                context.synchronize().unwrap();
                let before = context.pool().in_use();
                let plan = ctx.sql(sql).await.unwrap().create_physical_plan().await.unwrap();
                let mut rows = execute_stream(Arc::clone(&plan), ctx.task_ctx()).unwrap();
                assert!(tokio::time::timeout(Duration::from_secs(2), rows.next()).await.is_err(), "{sql}: an answer");
                drop((rows, plan));
                let cancelled = Instant::now();
                assert_returns(&context, before).await;
                context.synchronize().unwrap();
                println!("{profile} {sql}: {:?}", cancelled.elapsed());
                assert!(cancelled.elapsed() < Duration::from_secs(2), "{profile}, {sql}: {:?}", cancelled.elapsed());
            }
        }
        // Launches take 50 ms by the times of those before; other tests slow some of them down.
        let mut times: Vec<_> = context.timeline().iter().map(|launch| launch.end_nanos - launch.start_nanos).collect();
        times.retain(|nanos| *nanos > 5_000_000);
        times.sort_unstable();
        println!("launches of at least 5 ms, in ns: {times:?}");
        assert!(times.len() > 50 && times[times.len() * 9 / 10] < 250_000_000, "{times:?}");
        assert!(times[times.len() / 2] < 100_000_000, "{times:?}");
    });
}

/// Launches over all rows of a build side or a sort are cut by the times of those before.
#[test]
fn launches_of_large_builds_and_sorts_take_bounded_time() {
    const ROWS: u64 = 6_000_000;
    block_on(async {
        // Kernels without optimization exceed the bound.
        let context = context(DeviceConfig::default().with_selector(device_config().selector).with_timeline(10_000));
        if context.info().kind != DeviceKind::Cpu {
            return;
        }
        let ctx = strict_on(1, DeviceRuntime::with_context(context.clone()));
        let table =
            format!("CREATE TABLE device.r AS SELECT value AS i, value * 7919 % {ROWS} AS h FROM generate_series(1, {ROWS})");
        ctx.sql(&table).await.unwrap().collect().await.unwrap();
        for (sql, kernel) in [
            ("SELECT h FROM device.r ORDER BY h", "sort_word0"),
            ("SELECT count(*), sum(a.h - b.i) FROM device.r a JOIN device.r b ON a.h = b.i + 5", "join_insert_packed"),
            ("SELECT count(*), sum(a.h - b.i) FROM device.r a JOIN device.r b ON a.h / 2 = b.i / 2", "join_count_rows"),
            ("SELECT count(*) FROM device.r a JOIN device.r b ON a.h || 'x' = b.i || 'x'", "join_insert_hashed"),
        ] {
            let launches_of_run = async || {
                let before = context.timeline().len();
                assert!(answer(&ctx, sql).await.unwrap().num_rows() > 0);
                context.synchronize().unwrap();
                context.timeline().into_iter().skip(before).collect::<Vec<_>>()
            };
            // No launch bounds the first ranges, so that these are small.
            let first = launches_of_run().await;
            let of_kernel = first.iter().filter(|launch| &*launch.kernel == kernel).count();
            assert!(of_kernel > 2, "{sql}: {of_kernel} launches of {kernel}");
            // The second run has all kernels compiled.
            let launches = launches_of_run().await;
            let long = launches.iter().map(|launch| launch.end_nanos - launch.start_nanos).filter(|nanos| *nanos > 5_000_000);
            let mut times: Vec<_> = long.collect();
            times.sort_unstable();
            println!("{sql}: {of_kernel} of {kernel}, launches of at least 5 ms, in ns: {times:?}");
            // Other tests slow some of them down.
            let at = |position: usize| times.get(position).copied().unwrap_or_default();
            assert!(at(times.len() * 9 / 10) < 250_000_000, "{sql}: {times:?}");
            assert!(at(times.len() / 2) < 100_000_000, "{sql}: {times:?}");
        }
    });
}

/// Kernels that return nothing to the host would be enqueued for all of a table, and a cancelled
/// query would run them to their end.
#[test]
fn scans_of_resident_tables_stay_few_batches_ahead_of_the_device() {
    const BATCHES: usize = 16;
    block_on(async {
        let plan = FaultPlan::new();
        let context = context(device_config().with_wrap(plan.wrap()));
        if context.info().kind != DeviceKind::Cpu {
            return;
        }
        let ctx = strict_on(1, DeviceRuntime::with_context(context.clone()));
        let rows = BATCHES << 20;
        let table =
            format!("CREATE TABLE device.r AS SELECT arrow_cast(value % 100, 'Int8') AS k FROM generate_series(1, {rows})");
        ctx.sql(&table).await.unwrap().collect().await.unwrap();
        let sql = "SELECT sum(CAST(k AS BIGINT) * k), max(k % 7), min(k % 5), max(k % 3) FROM device.r WHERE k > 2";
        let mut launches = Vec::new();
        for is_cancelled in [false, false, true] {
            let before = plan.calls(Fault::Launch);
            let query = ctx.sql(sql).await.unwrap().create_physical_plan().await.unwrap();
            let mut stream = execute_stream(query, ctx.task_ctx()).unwrap();
            match is_cancelled {
                true => assert!(stream.next().now_or_never().is_none(), "an answer at once"),
                false => _ = stream.next().await.unwrap().unwrap(),
            }
            drop(stream);
            context.synchronize().unwrap();
            launches.push(plan.calls(Fault::Launch) - before);
        }
        assert!(launches[1] as usize >= BATCHES && launches[2] * 4 < launches[1] * 3, "{launches:?}");
    });
}

#[test]
fn uploads_use_a_separate_queue_on_devices_with_separate_memory() {
    block_on(async {
        for own_memory in [true, false] {
            let plan = FaultPlan::masking(move |info| info.unified_memory &= !own_memory);
            let context = context(device_config().with_wrap(plan.wrap()));
            let copies = !context.info().unified_memory;
            let ctx = strict_on(1, DeviceRuntime::with_context(context.clone()));
            let column = Arc::new(Int64Array::from_iter_values(0..1000)) as _;
            ctx.register_batch("t", RecordBatch::try_from_iter([("i", column)]).unwrap()).unwrap();
            ctx.sql("CREATE TABLE device.r AS SELECT i FROM t").await.unwrap().collect().await.unwrap();
            for (table, queues) in [("t", 1 + u64::from(copies)), ("device.r", 1)] {
                // Without idle queues, each queue of a query is a new one.
                context.synchronize().unwrap();
                context.trim();
                let before = plan.calls(Fault::Queue);
                assert!(answer(&ctx, &format!("SELECT sum(i) FROM {table} WHERE i > 7")).await.unwrap().launches > 0);
                assert_eq!(plan.calls(Fault::Queue) - before, queues, "{table}, memory of its own: {copies}");
            }
        }
    });
}

#[test]
fn memory_of_a_streaming_aggregate_over_parquet_is_bounded_by_batches() {
    block_on(async {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name).to_str().unwrap().to_string();
        let host = plain(1);
        set(&host, "datafusion.execution.parquet.max_row_group_size", "20000");
        for (name, rows) in [("small.parquet", ROWS / 8), ("large.parquet", ROWS)] {
            let sql = format!(
                "COPY (SELECT value AS i, value % 7 AS k, CAST(value AS DOUBLE) AS f FROM generate_series(1, {rows})) TO '{}'",
                path(name)
            );
            host.sql(&sql).await.unwrap().collect().await.unwrap();
        }
        let mut peaks = Vec::new();
        for name in ["small.parquet", "large.parquet"] {
            // Context of its own, without unified memory, so that every batch counts.
            let plan = device::testing::FaultPlan::masking(|info| info.unified_memory = false);
            let context = context(device_config().with_wrap(plan.wrap()));
            let ctx = strict_on(1, DeviceRuntime::with_context(context.clone()));
            set(&ctx, "device.batch_rows", "8192");
            // Columns that stay are no memory of the aggregation.
            set(&ctx, "device.file_cache", "false");
            ctx.register_parquet("p", path(name), ParquetReadOptions::default()).await.unwrap();
            let sql = "SELECT k, count(*), sum(f), max(i) FROM p WHERE i % 3 <> 0 GROUP BY k";
            let rows = answer(&ctx, sql).await.unwrap();
            assert_eq!(rows.num_rows(), 7);
            peaks.push(context.pool().peak());
        }
        let whole = ROWS * 3 * 8;
        assert!(peaks[1] < whole / 2, "peak {} bytes of a table of {whole}", peaks[1]);
        assert!(peaks[1] <= peaks[0] * 3 / 2, "peaks {peaks:?} grow with the table");
    });
}

/// Partition with a first batch that waits for requests to all other partitions.
#[derive(Debug)]
struct Meeting {
    batch: RecordBatch,
    barrier: Arc<Barrier>,
}

impl PartitionStream for Meeting {
    fn schema(&self) -> &SchemaRef {
        self.batch.schema_ref()
    }

    fn execute(&self, _task: Arc<TaskContext>) -> SendableRecordBatchStream {
        let (batch, barrier) = (self.batch.clone(), Arc::clone(&self.barrier));
        let rows = stream::once(async move {
            barrier.wait().await;
            Ok(batch)
        });
        Box::pin(RecordBatchStreamAdapter::new(Arc::clone(self.schema()), rows))
    }
}

#[test]
fn partitions_decode_at_once() {
    block_on(async {
        let column = |values: &[i64]| Arc::new(Int64Array::from(values.to_vec())) as ArrayRef;
        let batch = RecordBatch::try_from_iter([("k", column(&[1, 2, 1])), ("i", column(&[10, 20, 30]))]).unwrap();
        let barrier = Arc::new(Barrier::new(2));
        let meeting = || Arc::new(Meeting { batch: batch.clone(), barrier: Arc::clone(&barrier) }) as Arc<dyn PartitionStream>;
        let table = StreamingTable::try_new(batch.schema(), vec![meeting(), meeting()]).unwrap();
        let ctx = strict(2);
        ctx.register_table("t", Arc::new(table)).unwrap();
        let query = answer(&ctx, "SELECT k, sum(i) AS s FROM t GROUP BY k");
        let rows = tokio::time::timeout(Duration::from_secs(60), query).await;
        let rows = rows.expect("one partition waits for the end of another").unwrap();
        assert_eq!(rows.lines(), ["| 1 | 80 |", "| 2 | 40 |"]);
        assert!(rows.launches > 0, "nothing was launched");
    });
}

/// One batch, followed by an error.
#[derive(Debug)]
struct Failing(RecordBatch);

impl PartitionStream for Failing {
    fn schema(&self) -> &SchemaRef {
        self.0.schema_ref()
    }

    fn execute(&self, _task: Arc<TaskContext>) -> SendableRecordBatchStream {
        let items = [Ok(self.0.clone()), exec_err!("the input is broken")];
        Box::pin(RecordBatchStreamAdapter::new(Arc::clone(self.schema()), stream::iter(items)))
    }
}

#[test]
fn an_error_of_the_input_comes_after_the_rows_before_it() {
    block_on(async {
        let column = Arc::new(Int64Array::from_iter_values(0..100)) as ArrayRef;
        let batch = RecordBatch::try_from_iter([("i", column)]).unwrap();
        let table = StreamingTable::try_new(batch.schema(), vec![Arc::new(Failing(batch.clone()))]).unwrap();
        let ctx = strict(1);
        set(&ctx, "device.batch_rows", "100");
        ctx.register_table("t", Arc::new(table)).unwrap();
        let rows = answer(&ctx, "SELECT i FROM t WHERE i > 95 LIMIT 4").await.unwrap();
        assert_eq!(rows.num_rows(), 4);
        assert!(rows.launches > 0, "nothing was launched");
        for (sql, message) in [
            ("SELECT i FROM t WHERE i > 95", "the input is broken"),
            ("SELECT 1 / (i - 99) AS q FROM t WHERE i > 95", "Divide by zero"),
        ] {
            let error = answer(&ctx, sql).await.err().unwrap().to_string();
            assert!(error.contains(message), "{sql}: {error}");
        }
    });
}

/// Owner of a host batch's memory, which counts the live instances.
struct Counted {
    values: Buffer,
    alive: Arc<AtomicUsize>,
}

impl AsRef<[u8]> for Counted {
    fn as_ref(&self) -> &[u8] {
        self.values.as_slice()
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.alive.fetch_sub(1, Ordering::Relaxed);
    }
}

#[test]
fn a_table_of_a_stream_holds_few_of_its_batches_on_the_host() {
    const BATCHES: usize = 40;
    const BATCH_ROWS: usize = 1 << 17;
    block_on(async {
        // The device has memory of its own, so the host's is needed only until the copy ends.
        let plan = FaultPlan::masking(|info| info.unified_memory = false);
        let ctx = strict_on(1, DeviceRuntime::with_context(context(device_config().with_wrap(plan.wrap()))));
        let (alive, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let batch = {
            let (alive, most) = (Arc::clone(&alive), Arc::clone(&most));
            move |index: usize| {
                most.fetch_max(alive.fetch_add(1, Ordering::Relaxed) + 1, Ordering::Relaxed);
                let values = Buffer::from_vec(vec![index as i64; BATCH_ROWS]);
                let bytes = bytes::Bytes::from_owner(Counted { values, alive: Arc::clone(&alive) });
                let column = Int64Array::new(ScalarBuffer::new(Buffer::from(bytes), 0, BATCH_ROWS), None);
                RecordBatch::try_from_iter([("i", Arc::new(column) as ArrayRef)]).unwrap()
            }
        };
        let schema = batch(0).schema();
        let rows = stream::iter((0..BATCHES).map(move |index| Ok(batch(index))));
        let rows = Box::pin(RecordBatchStreamAdapter::new(schema, rows));
        let table = DeviceTable::try_from_stream(&ctx, rows).await.unwrap();
        let most = most.load(Ordering::Relaxed);
        println!("{most} alive at once, {} now", alive.load(Ordering::Relaxed));
        assert!(most <= BATCHES / 2, "{most} of {BATCHES} batches were on the host at once");
        ctx.register_table("r", table).unwrap();
        let sum = answer(&ctx, "SELECT sum(i) AS s FROM r WHERE i >= 0").await.unwrap();
        assert_eq!(sum.lines(), [format!("| {} |", BATCHES * (BATCHES - 1) / 2 * BATCH_ROWS)]);
        assert_eq!(alive.load(Ordering::Relaxed), 0, "batches are held once they are on the device");
    });
}

#[test]
fn synchronize_waits_for_background_compilations_and_launches() {
    const SPIN: &str = r#"
#ifdef __OPENCL_VERSION__
kernel void spin(global ulong *x, ulong n) {
#else
extern "C" __global__ void spin(unsigned long long *x, unsigned long long n) {
#endif
    for (int i = 0; i < n; i++) x[0] = x[0] * 5 + i;
}"#;
    let context = context(device_config());
    let queue = context.queue().unwrap();
    let program = queue.compile(ProgramSource::new(SPIN, "tests"));
    context.synchronize().unwrap();
    let program = program.now_or_never().expect("a compilation goes on").unwrap();
    let x = queue.zeroed(8).unwrap();
    let args = [(&x).into(), 20_000_000_u64.into()];
    queue.launch(&program.kernel("spin").unwrap(), Grid { work_groups: 1, work_group_size: 1 }, &args).unwrap();
    assert!(queue.finish().now_or_never().is_none(), "the launch is too short to tell");
    context.synchronize().unwrap();
    queue.finish().now_or_never().expect("a launch goes on").unwrap();
}
