// SPDX-License-Identifier: Apache-2.0
//! Reuse of kernels: the second run of a query, and runs with other constants, compile nothing.

use std::sync::{Arc, Mutex};

use arrow::array::{AsArray, RecordBatch};
use arrow::compute::sum;
use arrow::datatypes::Int64Type;
use datafusion::common::tree_node::{TreeNode, TreeNodeRecursion};
use datafusion::physical_plan::{ExecutionPlan, displayable, execute_stream};
use datafusion::prelude::SessionContext;
use devicefusion::DeviceRuntime;
use devicefusion::exec::HostToDeviceExec;
use futures::{FutureExt, StreamExt};

use crate::harness::{
    self, answer, answer_of, assert_returned, block_on, check, metric, plain, set, shared_runtime, strict, strict_on,
};

const TABLE: &str = "CREATE TABLE t AS SELECT value AS i, value % 10 AS k, CAST(value AS DOUBLE) / 8 AS f, \
    CAST(value % 1000 AS DECIMAL(15, 2)) AS d, CASE value % 3 WHEN 0 THEN 'apple' WHEN 1 THEN 'pear' END AS s \
    FROM generate_series(1, 50000)";

/// Asserts that a query has the host's answer, and uploads the given number of rows.
async fn assert_rows_up(ctx: &SessionContext, host: &SessionContext, sql: &str, rows: usize) {
    let frame = ctx.sql(sql).await.unwrap();
    let task = Arc::new(frame.task_ctx());
    let plan = frame.create_physical_plan().await.unwrap();
    let lines = answer_of(Arc::clone(&plan), task).await.unwrap().lines();
    assert_eq!(lines, answer(host, sql).await.unwrap().lines(), "{sql}");
    assert_eq!(rows_up(&plan), rows, "{sql}");
}

#[test]
fn a_second_run_and_other_constants_compile_nothing() {
    device::skip_unless_turn!(2);
    block_on(async {
        let runtime = DeviceRuntime::new();
        let ctx = strict_on(2, Arc::clone(&runtime));
        ctx.sql(TABLE).await.unwrap().collect().await.unwrap();
        for pair in [
            ["SELECT i + 1, s FROM t WHERE k = 3 AND f > 10.5", "SELECT i + 7, s FROM t WHERE k = 4 AND f > 0.5"],
            [
                "SELECT sum(d * 2) FROM t WHERE d < 24 AND s = 'apple'",
                "SELECT sum(d * 3) FROM t WHERE d < 500 AND s = 'a longer constant'",
            ],
            [
                "SELECT k, count(*), sum(f) FROM t WHERE i > 9 GROUP BY k",
                "SELECT k, count(*), sum(f) FROM t WHERE i > 12345 GROUP BY k",
            ],
            [
                "SELECT s, k, min(i) FROM t WHERE k IN (1, 2, 3) GROUP BY s, k",
                "SELECT s, k, min(i) FROM t WHERE k IN (4, 5, 6) GROUP BY s, k",
            ],
        ] {
            answer(&ctx, pair[0]).await.unwrap();
            let before = runtime.counters().unwrap();
            for sql in [pair[0], pair[1]] {
                answer(&ctx, sql).await.unwrap();
                let after = runtime.counters().unwrap();
                assert_eq!(after.programs_compiled, before.programs_compiled, "{sql} compiles");
                assert_eq!(after.first_launches, before.first_launches, "{sql} launches a kernel for the first time");
                assert!(after.launches > before.launches, "{sql} launches nothing");
            }
        }
    });
}

#[test]
fn other_columns_of_the_same_types_compile_nothing() {
    block_on(async {
        let runtime = DeviceRuntime::new();
        let ctx = strict_on(2, Arc::clone(&runtime));
        let table =
            "CREATE TABLE same AS SELECT value AS a, value + 1 AS b, value + 2 AS c, value + 3 AS d FROM generate_series(1, 300)";
        ctx.sql(table).await.unwrap().collect().await.unwrap();
        for pair in [
            ["SELECT sum(a), min(b) FROM same WHERE c > 3", "SELECT sum(d), min(a) FROM same WHERE b > 3"],
            ["SELECT a, b - 1 FROM same WHERE d > 290 ORDER BY c", "SELECT c, d - 1 FROM same WHERE a > 290 ORDER BY b"],
            ["SELECT a % 3, max(b) FROM same GROUP BY a % 3", "SELECT d % 3, max(c) FROM same GROUP BY d % 3"],
        ] {
            answer(&ctx, pair[0]).await.unwrap();
            let before = runtime.counters().unwrap();
            answer(&ctx, pair[1]).await.unwrap();
            let after = runtime.counters().unwrap();
            assert_eq!(after.programs_compiled, before.programs_compiled, "{} compiles", pair[1]);
            assert!(after.launches > before.launches, "{} launches nothing", pair[1]);
        }
    });
}

/// Different queries share the kernels that are the same for every query.
#[test]
fn fixed_primitives_are_compiled_once() {
    block_on(async {
        let log = Arc::new(Mutex::new(Vec::new()));
        let sink = Arc::clone(&log);
        let runtime = DeviceRuntime::for_program(Arc::new(move |line: &str| sink.lock().unwrap().push(line.to_owned())), None);
        let ctx = strict_on(1, Arc::clone(&runtime));
        ctx.sql(TABLE).await.unwrap().collect().await.unwrap();
        let mut compiled = 0;
        for sql in [
            "SELECT s || 'x', i FROM t WHERE k = 3",
            "SELECT s, f FROM t ORDER BY f DESC, s, i",
            "SELECT k, s, count(*) FROM t GROUP BY k, s ORDER BY s, k",
            "SELECT s, row_number() OVER (PARTITION BY k ORDER BY i) FROM t",
            "SELECT count(*), min(a.s) FROM t a JOIN t b ON a.i = b.k AND a.d < b.d",
        ] {
            answer(&ctx, sql).await.unwrap();
            let now = runtime.counters().unwrap().programs_compiled;
            assert!(now > compiled, "{sql} compiles nothing of its own");
            compiled = now;
        }
        let log = log.lock().unwrap();
        for fixed in ["primitives", "ArrowLayout", "Concat"] {
            let line = format!("program of {fixed}: compiled");
            let count = log.iter().filter(|logged| logged.contains(&line)).count();
            assert_eq!(count, 1, "{fixed}: {log:#?}");
        }
    });
}

#[test]
fn programs_come_from_the_cache_folder_in_the_next_session() {
    block_on(async {
        let folder = tempfile::tempdir().unwrap();
        let sql = "SELECT k, sum(i * 17 + 4) FROM t WHERE f <> 3 GROUP BY k";
        let mut counters = Vec::new();
        for _ in 0..2 {
            let runtime = DeviceRuntime::new();
            let ctx = strict_on(1, Arc::clone(&runtime));
            set(&ctx, "device.cache_dir", folder.path().to_str().unwrap());
            ctx.sql(TABLE).await.unwrap().collect().await.unwrap();
            answer(&ctx, sql).await.unwrap();
            counters.push(runtime.counters().unwrap());
        }
        assert!(counters[0].programs_compiled > 0, "{counters:?}");
        assert_eq!(counters[1].programs_compiled, 0, "{counters:?}");
        assert!(counters[1].cache_hits_disk > 0, "{counters:?}");
    });
}

#[test]
fn eight_queries_at_once_give_right_answers() {
    block_on(async {
        let queries: Vec<String> = (0..8)
            .map(|n| match n % 4 {
                0 => format!("SELECT k, count(*), sum(i + {n}) FROM t GROUP BY k"),
                1 => format!("SELECT i, s FROM t WHERE i % 1000 = {n}"),
                2 => format!("SELECT sum(d), min(f), max(s), count(*) FROM t WHERE i > {n}00"),
                _ => format!("SELECT s, k, avg(f) FROM t WHERE k <> {n} GROUP BY s, k"),
            })
            .collect();
        let host = plain(2);
        host.sql(TABLE).await.unwrap().collect().await.unwrap();
        let device = strict(2);
        device.sql(TABLE).await.unwrap().collect().await.unwrap();
        let mut expected = Vec::new();
        for sql in &queries {
            expected.push(answer(&host, sql).await.unwrap().lines());
        }
        for _ in 0..3 {
            let running: Vec<_> = queries
                .iter()
                .map(|sql| {
                    let (device, sql) = (device.clone(), sql.clone());
                    tokio::spawn(async move { answer(&device, &sql).await.unwrap() })
                })
                .collect();
            for ((running, expected), sql) in running.into_iter().zip(&expected).zip(&queries) {
                let actual = running.await.unwrap();
                assert!(actual.launches > 0, "{sql}: nothing was launched");
                assert_eq!(&actual.lines(), expected, "{sql}");
            }
        }
    });
}

#[test]
fn inserts_do_not_disturb_running_scans() {
    block_on(async {
        let ctx = strict(1);
        let run = async |sql: &str| ctx.sql(sql).await.unwrap().collect().await.unwrap();
        run(TABLE).await;
        run("CREATE TABLE device.r AS SELECT i FROM t").await;
        run("INSERT INTO device.r SELECT i FROM t").await;
        let plan = ctx.sql("SELECT i FROM device.r WHERE i > 0").await.unwrap().create_physical_plan().await.unwrap();
        let mut rows = execute_stream(Arc::clone(&plan), ctx.task_ctx()).unwrap();
        let first = rows.next().await.unwrap().unwrap();
        assert!(first.num_rows() < 50_000, "{} rows at once", first.num_rows());
        // Values that need a wider type, so that the batches of the scan get a new layout.
        run("INSERT INTO device.r SELECT i * 1000000000 FROM t").await;
        let mut batches = vec![first];
        while let Some(batch) = rows.next().await {
            batches.push(batch.unwrap());
        }
        let sums: Option<i64> = batches.iter().map(|batch| sum(batch.column(0).as_primitive::<Int64Type>())).sum();
        let count = batches.iter().map(RecordBatch::num_rows).sum::<usize>();
        assert_eq!((count, sums), (100_000, Some(2 * 1_250_025_000)));
        assert!(metric(&plan, "launches") > 0);
        let after = answer(&ctx, "SELECT count(*), sum(i) FROM device.r WHERE i > 0").await.unwrap();
        assert!(after.lines()[0].contains(" 150000 "), "{:?}", after.lines());
        assert!(after.lines()[0].contains(" 1250025002500050000 "), "{:?}", after.lines());
    });
}

#[test]
fn sessions_share_one_device() {
    check(&[TABLE], "SELECT k, sum(i) FROM t GROUP BY k");
    let device = shared_runtime().opened().map(|context| context.info().name.clone());
    check(&[TABLE], "SELECT k, sum(i) FROM t GROUP BY k");
    assert_eq!(device, shared_runtime().opened().map(|context| context.info().name.clone()));
}

#[test]
fn shared_rows_of_a_subquery_are_read_once_and_freed_with_their_plan() {
    block_on(async {
        let context = harness::context(harness::device_config());
        let ctx = strict_on(1, DeviceRuntime::with_context(context.clone()));
        ctx.sql(TABLE).await.unwrap().collect().await.unwrap();
        let with = "WITH c AS (SELECT k, sum(i) AS n FROM t GROUP BY k)";
        let plan_of = async |sql: String| {
            let frame = ctx.sql(&sql).await.unwrap();
            (Arc::new(frame.task_ctx()), frame.create_physical_plan().await.unwrap())
        };
        // The subquery may be NULL, but its column is not nullable. So no projection feeds it to a
        // sort, and it is an offloaded subplan of its own.
        let sql = format!("{with} SELECT k FROM c ORDER BY abs(k - (SELECT k FROM c ORDER BY n DESC LIMIT 1)) LIMIT 1");
        // The first query allocates memory that the device keeps for later queries.
        answer(&ctx, &sql).await.unwrap();
        context.synchronize().unwrap();
        let before = context.pool().in_use();
        // On a device with unified memory, answers are in this memory, so they are dropped at once.
        let lines_of = async |plan: &Arc<dyn ExecutionPlan>, task| answer_of(Arc::clone(plan), task).await.unwrap().lines();
        let (task, plan) = plan_of(sql).await;
        assert!(displayable(plan.as_ref()).indent(false).to_string().contains("DeviceReuseExec: cached="));
        let rows = lines_of(&plan, Arc::clone(&task)).await;
        assert_eq!(rows, ["| 0 |"]);
        assert_returned(&context, before);
        let mut launches = metric(&plan, "launches");
        let of_both = launches;
        // The subquery's value is cached, but its rows are freed. The main query groups them
        // itself, in the same execution or another.
        for task in [task, plan_of("SELECT 1".into()).await.0] {
            assert_eq!(lines_of(&plan, task).await, rows);
            assert_returned(&context, before);
            let launched = metric(&plan, "launches") - launches;
            assert!((1..of_both).contains(&launched), "{launched} launches after {of_both}");
            launches += launched;
        }
        // No operator reads the shared rows.
        let order = "abs(c.k - (SELECT k FROM c ORDER BY n LIMIT 1))";
        let none = "(SELECT max(i) AS i FROM t WHERE i < 0 GROUP BY k)";
        let sql = format!("{with} SELECT c.k, c.n FROM {none} t JOIN c ON t.i = c.k + 0 ORDER BY {order}");
        let (task, plan) = plan_of(sql).await;
        assert!(displayable(plan.as_ref()).indent(false).to_string().contains("DeviceReuseExec: cached="));
        assert!(lines_of(&plan, task).await.is_empty());
        drop(plan);
        assert_returned(&context, before);
    });
}

/// Number of rows uploaded to the device.
fn rows_up(plan: &Arc<dyn ExecutionPlan>) -> usize {
    let mut rows = 0;
    plan.apply(|node| {
        let metrics = node.metrics().filter(|_| node.is::<HostToDeviceExec>());
        rows += metrics.and_then(|metrics| metrics.output_rows()).unwrap_or(0);
        Ok(TreeNodeRecursion::Continue)
    })
    .unwrap();
    rows
}

#[test]
fn subqueries_and_partitions_share_the_rows_of_one_subquery() {
    block_on(async {
        let ctx = strict(2);
        ctx.sql(TABLE).await.unwrap().collect().await.unwrap();
        let host = plain(2);
        host.sql(TABLE).await.unwrap().collect().await.unwrap();
        for (query, constant_rows) in [
            ("SELECT (SELECT max(n) FROM c), (SELECT min(n) FROM c), (SELECT sum(k) FROM c WHERE n > 5)", 1),
            ("SELECT k FROM c WHERE n > (SELECT avg(n) FROM c) UNION ALL SELECT -k FROM c WHERE n < (SELECT avg(n) FROM c)", 0),
            ("SELECT k FROM c WHERE n = (SELECT min(n) FROM c) UNION ALL SELECT (SELECT max(n) FROM c)", 1),
        ] {
            let sql = format!("WITH c AS (SELECT k, sum(i) AS n FROM t GROUP BY k) {query}");
            assert_rows_up(&ctx, &host, &sql, 50_000 + constant_rows).await;
        }
    });
}

#[test]
fn copies_with_other_columns_run_once() {
    device::skip_unless_turn!(3);
    block_on(async {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("t.parquet").display().to_string();
        let ctx = strict(2);
        let host = plain(2);
        for session in [&ctx, &host] {
            session.sql(TABLE).await.unwrap().collect().await.unwrap();
        }
        host.sql(&format!("COPY t TO '{file}'")).await.unwrap().collect().await.unwrap();
        for session in [&ctx, &host] {
            let sql = format!("CREATE EXTERNAL TABLE p STORED AS PARQUET LOCATION '{file}'");
            session.sql(&sql).await.unwrap().collect().await.unwrap();
        }
        let merged = [
            "SELECT a.k, a.n, b.g FROM c a JOIN c b ON a.k = b.k",
            "SELECT k, n FROM c UNION ALL SELECT k, m FROM c",
            "SELECT k FROM c WHERE n > (SELECT avg(g) FROM c)",
            "SELECT k FROM c WHERE n > (SELECT avg(n) FROM c WHERE g <= (SELECT max(g) FROM c WHERE m > (SELECT min(m) FROM c)))",
        ];
        let joined = ["SELECT x.k, x.n, y.m FROM (SELECT a.k, b.n FROM c a JOIN c b ON a.k = b.k) x \
             JOIN (SELECT a.k, b.m FROM c a JOIN c b ON a.k = b.k) y ON x.k = y.k"];
        for (query, table) in merged.iter().chain(&joined).flat_map(|query| [(query, "t"), (query, "p")]) {
            let sql = format!("WITH c AS (SELECT k, sum(i) AS n, max(f) AS g, min(i) AS m FROM {table} GROUP BY k) {query}");
            assert_rows_up(&ctx, &host, &sql, 50_000).await;
        }
    });
}

#[test]
fn a_main_query_below_host_operators_shares_the_rows_of_its_subquery() {
    block_on(async {
        let context = harness::context(harness::device_config());
        let ctx = strict_on(1, DeviceRuntime::with_context(context.clone()));
        set(&ctx, "device.fallback", "host");
        ctx.sql(TABLE).await.unwrap().collect().await.unwrap();
        let host = plain(1);
        host.sql(TABLE).await.unwrap().collect().await.unwrap();
        for query in [
            "SELECT approx_median(n) FROM c WHERE n > (SELECT avg(m) FROM c)",
            "SELECT approx_median(n) FROM c WHERE n > (SELECT avg(m) FROM c) UNION ALL SELECT approx_median(k) FROM c",
        ] {
            let sql = format!("WITH c AS (SELECT k, sum(i) AS n, min(i) AS m FROM t GROUP BY k) {query}");
            answer(&ctx, &sql).await.unwrap();
            context.synchronize().unwrap();
            let before = context.pool().in_use();
            assert_rows_up(&ctx, &host, &sql, 50_000).await;
            assert_returned(&context, before);
        }
    });
}

#[test]
fn a_cancel_while_subqueries_wait_for_each_other_returns_the_memory() {
    device::skip_unless_turn!(5);
    block_on(async {
        let context = harness::context(harness::device_config());
        let ctx = strict_on(1, DeviceRuntime::with_context(context.clone()));
        ctx.sql(TABLE).await.unwrap().collect().await.unwrap();
        let with = "WITH c AS (SELECT i, k, count(*) AS n, max(f) AS g FROM t GROUP BY i, k)";
        let queries = [
            "SELECT k FROM c WHERE n = (SELECT max(n) FROM c) AND k < (SELECT min(i) - 1 FROM c)",
            "SELECT k FROM c WHERE n = (SELECT max(n) FROM c WHERE g >= (SELECT min(g) FROM c)) AND k < (SELECT min(i) - 1 FROM c)",
        ]
        .map(|query| format!("{with} {query}"));
        for sql in &queries {
            answer(&ctx, sql).await.unwrap();
        }
        context.synchronize().unwrap();
        let before = context.pool().in_use();
        for (sql, polls) in queries.iter().flat_map(|sql| [0, 1, 2, 5, 30].map(|polls| (sql, polls))) {
            let frame = ctx.sql(sql).await.unwrap();
            let task = Arc::new(frame.task_ctx());
            let plan = frame.create_physical_plan().await.unwrap();
            let mut rows = execute_stream(Arc::clone(&plan), task).unwrap();
            for _ in 0..polls {
                assert!(rows.next().now_or_never().is_none(), "an answer after {polls} polls");
            }
            // DataFusion's operator keeps started subqueries until it is dropped.
            drop((rows, plan));
            assert_returned(&context, before);
        }
        for sql in &queries {
            assert_eq!(answer(&ctx, sql).await.unwrap().num_rows(), 0);
        }
    });
}
