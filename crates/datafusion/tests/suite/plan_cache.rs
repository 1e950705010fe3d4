// SPDX-License-Identifier: Apache-2.0
//! Kept plans: they give the answers of new ones, and what they must not outlive drops them.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use datafusion::common::Result;
use datafusion::common::config::ConfigOptions;
use datafusion::dataframe::DataFrame;
use datafusion::execution::session_state::SessionStateBuilder;
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::physical_plan::{ExecutionPlan, displayable, execute_stream};
use datafusion::prelude::SessionContext;
use device::testing::FaultPlan;
use devicefusion::DeviceRuntime;
use futures::{StreamExt, TryStreamExt, future};

use crate::harness::{
    answer, assert_returned, block_on, check, context, device_config, metric, plain, set, shared_runtime, strict, strict_on, text,
};

const TABLES: [&str; 2] = [
    "CREATE TABLE device.t AS SELECT value AS i, value % 7 AS k, CASE value % 3 WHEN 0 THEN 'a' WHEN 1 THEN 'b' END AS s \
     FROM generate_series(1, 5000)",
    "CREATE TABLE device.u AS SELECT value AS i, value * 2 AS j FROM generate_series(1, 100)",
];

/// Queries of all shapes. Each gives its rows in one order.
const QUERIES: [&str; 12] = [
    "SELECT count(*), sum(i), min(s) FROM device.t WHERE k > 2",
    "SELECT k, s, avg(i), count(DISTINCT i % 5) FROM device.t GROUP BY k, s ORDER BY k, s",
    "SELECT t.i, u.j FROM device.t JOIN device.u ON t.i = u.i WHERE t.k = 3 ORDER BY t.i",
    "SELECT i FROM device.t WHERE i < (SELECT avg(j) FROM device.u) AND k = 1 ORDER BY i DESC LIMIT 5",
    "SELECT i FROM device.t a WHERE EXISTS (SELECT 1 FROM device.u b WHERE b.j = a.i AND b.i > 90) ORDER BY i",
    "SELECT i FROM device.t WHERE k NOT IN (SELECT i FROM device.u WHERE j > 6) ORDER BY i LIMIT 3",
    "SELECT i, row_number() OVER (PARTITION BY k ORDER BY i DESC) AS r FROM device.t ORDER BY r, i LIMIT 9",
    "SELECT s, sum(i) FROM device.t GROUP BY ROLLUP(s) ORDER BY s NULLS FIRST, sum(i)",
    "SELECT x FROM (SELECT i AS x FROM device.t WHERE k = 2 UNION ALL SELECT j FROM device.u) ORDER BY x, x LIMIT 20",
    "WITH c AS (SELECT k, sum(i) AS n FROM device.t GROUP BY k) \
     SELECT k FROM c WHERE n > (SELECT avg(n) FROM c) ORDER BY k",
    "SELECT upper(s) || '-' || k AS x, max(i) FROM device.t GROUP BY x ORDER BY x",
    "SELECT DISTINCT k FROM device.t WHERE s LIKE '%a%' ORDER BY k",
];

async fn run(ctx: &SessionContext, sql: &str) {
    ctx.sql(sql).await.unwrap().collect().await.unwrap();
}

async fn session() -> SessionContext {
    let ctx = strict(2);
    for table in TABLES {
        run(&ctx, table).await;
    }
    ctx
}

/// The optimized plan as text: that of a kept one is a single node.
fn optimized(frame: &DataFrame) -> String {
    frame.clone().into_optimized_plan().unwrap().to_string()
}

/// Whether the plan of a query is kept.
async fn is_kept(ctx: &SessionContext, sql: &str) -> bool {
    optimized(&ctx.sql(sql).await.unwrap()).starts_with("PlanCache: kept=true")
}

async fn rows(ctx: &SessionContext, sql: &str) -> Vec<String> {
    answer(ctx, sql).await.unwrap().ordered_lines()
}

#[test]
fn kept_plans_give_the_answers_and_the_metrics_of_new_ones() {
    device::skip_unless_turn!(4);
    block_on(async {
        let (ctx, host) = (session().await, plain(2));
        run(&host, "CREATE SCHEMA device").await;
        for table in TABLES {
            run(&host, table).await;
        }
        for sql in QUERIES {
            let expected = rows(&host, sql).await;
            let first = answer(&ctx, sql).await.unwrap();
            assert!(first.launches > 0, "{sql}");
            assert_eq!(first.ordered_lines(), expected, "{sql}");
            for _ in 0..3 {
                assert!(is_kept(&ctx, sql).await, "{sql}");
                let next = answer(&ctx, sql).await.unwrap();
                assert_eq!(next.ordered_lines(), expected, "{sql}");
                assert_eq!(next.schema, first.schema, "{sql}");
                // The first run may have launched kernels that prepare others.
                assert!((1..=first.launches).contains(&next.launches), "{sql}: {} launches", next.launches);
            }
        }
    });
}

#[test]
fn other_queries_settings_and_rows_have_their_own_plans() {
    block_on(async {
        let ctx = session().await;
        let sql = "SELECT count(*) FROM device.u WHERE i > 40";
        assert_eq!(rows(&ctx, sql).await, ["| 60 |"]);
        assert!(is_kept(&ctx, sql).await);
        for other in [
            "SELECT count(*) FROM device.u WHERE i > 41",
            "SELECT count(*) AS n FROM device.u WHERE i > 40",
            "SELECT count(*) FROM device.u WHERE i > CAST(40 AS DOUBLE)",
            "SELECT count(*) FROM device.t WHERE i > 40",
            "SELECT count(*) FROM device.u AS v WHERE i > 40",
        ] {
            assert!(!is_kept(&ctx, other).await, "{other}");
        }
        run(&ctx, "SET datafusion.execution.batch_size = 1000").await;
        assert!(!is_kept(&ctx, sql).await);
        assert_eq!(rows(&ctx, sql).await, ["| 60 |"]);
        run(&ctx, "INSERT INTO device.u VALUES (200, 1), (201, 1)").await;
        assert!(!is_kept(&ctx, sql).await);
        assert_eq!(rows(&ctx, sql).await, ["| 62 |"]);
        assert_eq!(rows(&ctx, sql).await, ["| 62 |"]);
        run(&ctx, "CREATE OR REPLACE TABLE device.u AS SELECT 50 AS i, 1 AS j").await;
        assert_eq!(rows(&ctx, sql).await, ["| 1 |"]);
        run(&ctx, "DROP TABLE device.u").await;
        assert!(text(&ctx.sql(sql).await.unwrap_err()).contains("not found"));
        run(&ctx, "CREATE TABLE device.u AS SELECT value AS i, value AS j FROM generate_series(39, 43)").await;
        assert_eq!(rows(&ctx, sql).await, ["| 3 |"]);
    });
}

#[test]
fn queries_whose_plans_hold_for_one_run_are_planned_each_time() {
    block_on(async {
        let ctx = session().await;
        run(&ctx, "CREATE TABLE hosts AS SELECT 1 AS i").await;
        set(&ctx, "device.fallback", "host");
        for sql in [
            "SELECT now() > to_timestamp(i) FROM device.u",
            "SELECT current_date() FROM device.u LIMIT 1",
            "SELECT random() < 2 FROM device.u",
            "SELECT count(*) FROM device.u JOIN hosts ON hosts.i = u.i",
            "SELECT 1",
            "SELECT value FROM generate_series(1, 3)",
        ] {
            for _ in 0..2 {
                answer(&ctx, sql).await.unwrap();
                assert!(!is_kept(&ctx, sql).await, "{sql}");
            }
        }
    });
}

#[test]
fn explain_shows_a_kept_query_as_any_other() {
    block_on(async {
        let ctx = session().await;
        for sql in [QUERIES[1], QUERIES[4], QUERIES[9]] {
            for explain in ["EXPLAIN", "EXPLAIN VERBOSE", "EXPLAIN FORMAT TREE"] {
                let before = rows(&ctx, &format!("{explain} {sql}")).await;
                assert!(!before.iter().any(|line| line.contains("PlanCache:")), "{before:#?}");
                answer(&ctx, sql).await.unwrap();
                assert_eq!(rows(&ctx, &format!("{explain} {sql}")).await, before, "{sql}");
            }
        }
        // The statement under EXPLAIN ANALYZE is planned anew, and its metrics are of its own run.
        let analyzed = rows(&ctx, &format!("EXPLAIN ANALYZE {}", QUERIES[0])).await.join("\n");
        assert!(analyzed.contains("DeviceScanExec") && analyzed.contains("output_rows=5"), "{analyzed}");
    });
}

#[test]
fn dropped_and_replaced_tables_return_their_memory() {
    block_on(async {
        let runtime = DeviceRuntime::with_context(context(device_config()));
        let ctx = strict_on(2, Arc::clone(&runtime));
        let device = runtime.opened().unwrap();
        let sql = "SELECT sum(i) FROM device.big WHERE i % 3 = 1";
        let create = "TABLE device.big AS SELECT value AS i FROM generate_series(1, 200000)";
        let other = "SELECT sum(i) FROM device.small WHERE i > 0";
        run(&ctx, "CREATE TABLE device.small AS SELECT 1 AS i").await;
        rows(&ctx, other).await;
        let before = device.pool().in_use();
        for statement in ["DROP TABLE device.big", "INSERT OVERWRITE device.big SELECT 1"] {
            run(&ctx, &format!("CREATE {create}")).await;
            for _ in 0..2 {
                rows(&ctx, sql).await;
            }
            assert!(is_kept(&ctx, sql).await && device.pool().in_use() > before + 200_000);
            run(&ctx, statement).await;
            assert_returned(&device, before + 4096);
        }
        assert_eq!(rows(&ctx, sql).await, ["| 1 |"]);
        assert!(is_kept(&ctx, other).await);
    });
}

#[test]
fn a_table_that_is_dropped_while_its_plan_runs_returns_its_memory() {
    block_on(async {
        let runtime = DeviceRuntime::with_context(context(device_config()));
        let ctx = strict_on(2, Arc::clone(&runtime));
        let device = runtime.opened().unwrap();
        run(&ctx, "CREATE TABLE device.small AS SELECT 1 AS i").await;
        let before = device.pool().in_use();
        run(&ctx, "CREATE TABLE device.big AS SELECT value AS i FROM generate_series(1, 200000)").await;
        let frame = ctx.sql("SELECT i FROM device.big WHERE i > 10").await.unwrap();
        for _ in 0..2 {
            let plan = frame.clone().create_physical_plan().await.unwrap();
            let mut stream = execute_stream(plan, Arc::new(frame.task_ctx())).unwrap();
            assert!(stream.next().await.unwrap().unwrap().num_rows() > 0);
            run(&ctx, "DROP TABLE IF EXISTS device.big").await;
            let rest: Vec<_> = stream.try_collect().await.unwrap();
            assert!(!rest.is_empty());
        }
        // The frame has the table.
        drop(frame);
        assert_returned(&device, before);
    });
}

#[test]
fn runs_at_the_same_time_have_plans_of_their_own() {
    block_on(async {
        let ctx = session().await;
        // The main query reads rows that its scalar subquery has left in a cache of the plan.
        for sql in [QUERIES[9], QUERIES[2]] {
            let expected = rows(&ctx, sql).await;
            let runs = (0..24).map(|_| {
                let ctx = ctx.clone();
                tokio::spawn(async move { answer(&ctx, sql).await.unwrap() })
            });
            for answer in future::join_all(runs).await {
                let answer = answer.unwrap();
                assert!(answer.launches > 0);
                assert_eq!(answer.ordered_lines(), expected, "{sql}");
            }
        }
    });
}

#[test]
fn failed_and_cancelled_runs_leave_a_plan_as_it_was() {
    block_on(async {
        let ctx = session().await;
        let failing = "SELECT sum(100 / (i - 50)) FROM device.u";
        for _ in 0..3 {
            assert!(text(&answer(&ctx, failing).await.unwrap_err()).contains("Divide by zero"));
        }
        let sql = "SELECT i, i * 2 AS x FROM device.t WHERE k > 0 ORDER BY i";
        let expected = rows(&ctx, sql).await;
        for _ in 0..5 {
            let frame = ctx.sql(sql).await.unwrap();
            let task = Arc::new(frame.task_ctx());
            let plan = frame.create_physical_plan().await.unwrap();
            drop(execute_stream(Arc::clone(&plan), Arc::clone(&task)).unwrap());
            // The same plan again: it is lent until the plan and its streams are gone.
            let mut stream = execute_stream(plan, task).unwrap();
            stream.next().await.unwrap().unwrap();
            assert_eq!(rows(&ctx, sql).await, expected);
            drop(stream);
            assert_eq!(rows(&ctx, sql).await, expected);
        }
    });
}

#[test]
fn metrics_of_a_plan_are_those_of_its_run() {
    block_on(async {
        let ctx = session().await;
        let scanned = async || {
            let frame = ctx.sql(QUERIES[0]).await.unwrap();
            let task = Arc::new(frame.task_ctx());
            let plan = frame.create_physical_plan().await.unwrap();
            let ran = datafusion::physical_plan::collect(Arc::clone(&plan), task).await;
            assert_eq!(ran.unwrap().len(), 1);
            let text = displayable(plan.as_ref()).indent(false).to_string();
            // The total is the run's.
            let (above, below) = text.split_once(", total=[").unwrap();
            let text = [above, below.split_once(']').unwrap().1].concat();
            (metric(&plan, "output_rows"), metric(&plan, "launches"), text)
        };
        let first = scanned().await;
        assert!(first.1 > 0);
        for _ in 0..3 {
            let next = scanned().await;
            assert_eq!((next.0, &next.2), (first.0, &first.2));
            assert!(next.1 <= first.1);
        }
    });
}

#[test]
fn a_session_keeps_as_many_queries_as_its_setting() {
    block_on(async {
        let ctx = session().await;
        set(&ctx, "device.cached_plans", "2");
        let queries: Vec<String> = (0..3).map(|bound| format!("SELECT count(*) FROM device.u WHERE i > {bound}")).collect();
        for sql in &queries {
            rows(&ctx, sql).await;
        }
        assert!(!is_kept(&ctx, &queries[0]).await && is_kept(&ctx, &queries[1]).await && is_kept(&ctx, &queries[2]).await);
        // The second one was used later than the third.
        assert!(is_kept(&ctx, &queries[1]).await);
        rows(&ctx, &queries[0]).await;
        assert!(is_kept(&ctx, &queries[1]).await && !is_kept(&ctx, &queries[2]).await);
        set(&ctx, "device.cached_plans", "0");
        for _ in 0..2 {
            assert_eq!(rows(&ctx, &queries[0]).await, ["| 100 |"]);
            assert!(!is_kept(&ctx, &queries[0]).await);
        }
        // The plans that were kept before are gone.
        set(&ctx, "device.cached_plans", "2");
        assert!(!is_kept(&ctx, &queries[1]).await);
    });
}

#[test]
fn views_prepared_statements_and_frames_over_kept_queries() {
    block_on(async {
        let ctx = session().await;
        run(&ctx, "CREATE VIEW v AS SELECT i, j FROM device.u WHERE i < 11").await;
        run(&ctx, "PREPARE p(BIGINT) AS SELECT sum(j) FROM v WHERE i > $1").await;
        for _ in 0..2 {
            assert_eq!(rows(&ctx, "SELECT sum(j) FROM v").await, ["| 110 |"]);
            assert_eq!(rows(&ctx, "EXECUTE p(8)").await, ["| 38 |"]);
            assert_eq!(rows(&ctx, "EXECUTE p(9)").await, ["| 20 |"]);
        }
        let kept = ctx.sql("SELECT sum(j) AS n FROM v").await.unwrap();
        for _ in 0..2 {
            assert_eq!(kept.clone().count().await.unwrap(), 1);
            // An optimized plan is a plan as any other.
            let optimized = kept.clone().into_optimized_plan().unwrap();
            let twice = ctx.execute_logical_plan(optimized).await.unwrap();
            let rows = twice.clone().union(twice).unwrap().collect().await.unwrap();
            assert_eq!(rows.iter().map(|batch| batch.num_rows()).sum::<usize>(), 2);
            run(&ctx, "CREATE OR REPLACE TABLE copy AS SELECT sum(j) AS n FROM v").await;
        }
        assert_eq!(rows(&ctx, "SELECT n FROM copy").await, ["| 110 |"]);
    });
}

/// A rule that counts the plans it sees.
#[derive(Debug, Default)]
struct Counting(AtomicUsize);

impl PhysicalOptimizerRule for Counting {
    fn optimize(&self, plan: Arc<dyn ExecutionPlan>, _: &ConfigOptions) -> Result<Arc<dyn ExecutionPlan>> {
        self.0.fetch_add(1, Ordering::Relaxed);
        Ok(plan)
    }

    fn name(&self) -> &str {
        "Counting"
    }

    fn schema_check(&self) -> bool {
        true
    }
}

#[test]
fn a_session_made_from_another_plans_for_itself() {
    block_on(async {
        let ctx = session().await;
        rows(&ctx, QUERIES[0]).await;
        let rule = Arc::new(Counting::default());
        let state = SessionStateBuilder::new_from_existing(ctx.state()).with_physical_optimizer_rule(Arc::clone(&rule) as _);
        let other = SessionContext::new_with_state(state.build());
        for runs in 1..4 {
            assert_eq!(rows(&other, QUERIES[0]).await, rows(&ctx, QUERIES[0]).await);
            assert_eq!(rule.0.load(Ordering::Relaxed), runs);
        }
    });
}

#[test]
fn kept_plans_of_a_lost_device_give_way() {
    block_on(async {
        let faults = FaultPlan::new();
        let runtime = DeviceRuntime::with_context(context(device_config().with_wrap(faults.wrap())));
        let ctx = strict_on(2, Arc::clone(&runtime));
        let create = "CREATE OR REPLACE TABLE device.t AS SELECT value AS i FROM generate_series(1, 1000)";
        let sql = "SELECT sum(i) FROM device.t WHERE i > 1";
        run(&ctx, create).await;
        assert_eq!(rows(&ctx, sql).await, rows(&ctx, sql).await);
        faults.lose_device();
        answer(&ctx, sql).await.unwrap_err();
        answer(&ctx, sql).await.unwrap_err();
        run(&ctx, create).await;
        for _ in 0..2 {
            assert_eq!(rows(&ctx, sql).await, ["| 500499 |"]);
        }
    });
}

#[test]
fn a_kept_query_over_many_rows_has_the_answer_of_the_host() {
    let table = "CREATE TABLE t AS SELECT value AS i FROM generate_series(1, 131073)";
    check(&[table], "SELECT count(*), sum(i) FROM t");
    block_on(async {
        let ctx = strict_on(2, shared_runtime());
        run(&ctx, &table.replace("TABLE t", "TABLE device.t")).await;
        for _ in 0..3 {
            assert_eq!(rows(&ctx, "SELECT count(*), sum(i) FROM device.t").await, ["| 131073 | 8590131201 |"]);
        }
    });
}
