// SPDX-License-Identifier: Apache-2.0
//! Faults give a clear error: no panic, no hang, and the session stays usable.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use arrow::array::{ArrayRef, Float64Array, RecordBatch};
use datafusion::catalog::TableProvider;
use datafusion::datasource::MemTable;
use datafusion::prelude::{ParquetReadOptions, SessionContext};
use device::testing::{Fault, FaultPlan, PARTS, parts, sample};
use device::{Context, DeviceConfig, DeviceInfo, UnifiedMemory};
use devicefusion::{DeviceOptions, DeviceRuntime};

use crate::harness::{Answer, answer, block_on, context, device_config, plain, set, strict_on, text};

const TABLE: &str = "CREATE TABLE t AS SELECT value AS i, value % 7 AS k, CAST(value AS DOUBLE) AS f, \
    CASE value % 3 WHEN 0 THEN 'apple' WHEN 1 THEN 'pear' END AS s FROM generate_series(1, 300)";
const RESIDENT: &str = "CREATE TABLE device.r AS SELECT i, k, f, s FROM t";

const SETUP: &[&str] = &[TABLE, RESIDENT, "CREATE TABLE device.filled AS SELECT i, s FROM t WHERE k < 5"];

/// A small query of each kind. Tests that repeat a query for each call take a sample.
const QUERIES: &[&str] = &[
    "SELECT i + 1, s FROM t",
    "SELECT i, f FROM t WHERE k = 3",
    "SELECT i FROM t WHERE k = 3 LIMIT 5 OFFSET 2",
    "SELECT count(*), sum(i), max(s), avg(f) FROM t",
    // Groups: inline, wide, dense.
    "SELECT k, count(*), sum(f) FROM t GROUP BY k",
    "SELECT s, k, min(i) FROM t GROUP BY s, k",
    "SELECT k, count(*), sum(f) FROM device.r GROUP BY k",
    "SELECT count(DISTINCT k) FROM t",
    "SELECT k, count(DISTINCT s) FROM t GROUP BY k",
    "SELECT i, s FROM device.r",
    "SELECT s, sum(i) FROM device.r WHERE k < 5 GROUP BY s",
    "SELECT n, count(*) FROM (SELECT i % 10 AS d, count(*) AS n FROM t WHERE i > 5 GROUP BY i % 10) GROUP BY n",
    "SELECT t.i, r.s FROM t JOIN device.r AS r ON t.i = r.i WHERE r.k < 5",
    "SELECT x.k, count(y.i) FROM t AS x LEFT JOIN t AS y ON x.k = y.k AND x.i < y.i GROUP BY x.k",
    "WITH c AS (SELECT k, sum(i) AS n FROM t GROUP BY k) SELECT k, n FROM c WHERE n = (SELECT max(n) FROM c)",
    "SELECT s, i FROM t ORDER BY s, i DESC LIMIT 20",
    "SELECT i, rank() OVER (PARTITION BY k ORDER BY s) FROM t",
    "CREATE OR REPLACE TABLE device.made AS SELECT i, f, s FROM t WHERE k < 5",
    "INSERT OVERWRITE device.filled SELECT i, s FROM t WHERE k < 5",
];

/// Names of operators in messages.
const OPERATORS: &[&str] = &[
    "DeviceAggregateExec",
    "DeviceFilterExec",
    "DeviceToHostExec",
    "DeviceJoinExec",
    "DeviceProjectionExec",
    "DeviceSortExec",
    "DeviceTable",
    "HostToDeviceExec",
    "DeviceWindowExec",
];

struct Faulty {
    plan: FaultPlan,
    context: Context,
    ctx: SessionContext,
}

impl Faulty {
    async fn new() -> Faulty {
        Self::on(FaultPlan::new()).await
    }

    /// A device with memory of its own, so that everything is copied.
    async fn with_own_memory() -> Faulty {
        Self::on(FaultPlan::masking(|info| info.unified_memory = false)).await
    }

    async fn on(plan: FaultPlan) -> Faulty {
        let context = context(device_config().with_wrap(plan.wrap()));
        Self::with(plan, context, 1).await
    }

    async fn with(plan: FaultPlan, context: Context, partitions: usize) -> Faulty {
        let ctx = strict_on(partitions, DeviceRuntime::with_context(context.clone()));
        for sql in SETUP {
            ctx.sql(sql).await.unwrap().collect().await.unwrap();
        }
        Faulty { plan, context, ctx }
    }

    /// Runs a query that may fail. A query that hangs fails the test.
    async fn run(&self, sql: &str) -> Result<Vec<String>, String> {
        let answer = tokio::time::timeout(Duration::from_secs(60), answer(&self.ctx, sql));
        let answer = answer.await.unwrap_or_else(|_| panic!("{sql}: no answer after 60 seconds"));
        answer.map(|answer| answer.lines()).map_err(|error| text(&error))
    }

    /// Fails each call of a kind in turn.
    async fn fail_each(&self, fault: Fault, sql: &str, arm: impl Fn(&FaultPlan, u64)) {
        let expected = self.run(sql).await.unwrap();
        let in_use = self.settled().await;
        let mut errors = 0;
        for n in 1.. {
            assert!(n < 200, "{sql}: {fault:?} goes on for ever");
            // The free lists of a pool would avoid most driver calls.
            self.context.trim();
            let before = self.plan.calls(fault);
            arm(&self.plan, n);
            let result = self.run(sql).await;
            self.plan.heal();
            let calls = self.plan.calls(fault) - before;
            match result {
                Err(error) => {
                    assert_clear(&error, fault, sql);
                    errors += 1;
                }
                Ok(rows) => {
                    assert_eq!(rows, expected, "{sql}: {fault:?} {n} failed and the answer is wrong");
                    // Joins write fewer pairs where memory for them is short. Without pinned
                    // memory, which counts as an allocation, downloads still work.
                    let tries_again = sql.contains("JOIN") || !self.context.info().unified_memory;
                    let tolerated = fault == Fault::Alloc && tries_again;
                    assert!(calls < n || tolerated, "{sql}: {fault:?} {n} failed unnoticed");
                }
            }
            assert_eq!(self.run(sql).await.as_ref(), Ok(&expected), "{sql}: after {fault:?} {n} failed");
            assert_eq!(self.settled().await, in_use, "{sql}: {fault:?} {n} leaves memory behind");
            if calls < n {
                let most = errors * 2 >= n - 1 || !self.context.info().unified_memory;
                assert!(most, "{sql}: {errors} of {} {fault:?} were noticed", n - 1);
                return;
            }
        }
    }

    /// Bytes in use after all work has ended.
    async fn settled(&self) -> usize {
        self.context.synchronize().unwrap();
        let in_use = || self.context.pool().in_use();
        let (mut last, mut same) = (in_use(), 0);
        while same < 3 {
            tokio::time::sleep(Duration::from_millis(1)).await;
            same = if in_use() == last { same + 1 } else { 0 };
            last = in_use();
        }
        last
    }
}

pub fn assert_clear(error: &str, fault: Fault, sql: &str) {
    let wanted = match fault {
        Fault::Alloc => "device.memory_bytes",
        _ => "a fault that a test injected",
    };
    assert!(error.contains(wanted), "{sql}: {fault:?}: {error}");
    assert!(OPERATORS.iter().any(|operator| error.contains(operator)), "{sql}: {fault:?} names no operator: {error}");
}

#[test]
fn each_failing_launch_is_an_error_and_the_session_goes_on() {
    block_on(async {
        let faulty = Faulty::new().await;
        for sql in sample(QUERIES.to_vec()).unwrap() {
            faulty.fail_each(Fault::Launch, sql, FaultPlan::fail_launch).await;
        }
    });
}

#[test]
fn each_failing_launch_of_the_other_profile_is_an_error_and_the_session_goes_on() {
    block_on(async {
        let faulty = Faulty::new().await;
        set(&faulty.ctx, "device.profile", "gpu");
        for sql in sample(QUERIES.to_vec()).unwrap() {
            faulty.fail_each(Fault::Launch, sql, FaultPlan::fail_launch).await;
        }
    });
}

#[test]
fn each_failing_allocation_is_an_error_and_the_session_goes_on() {
    block_on(async {
        for faulty in [Faulty::new().await, Faulty::with_own_memory().await] {
            for sql in sample(QUERIES.to_vec()).unwrap() {
                faulty.fail_each(Fault::Alloc, sql, FaultPlan::fail_alloc).await;
            }
        }
    });
}

#[test]
fn allocations_that_fail_from_one_on_are_an_error_and_the_session_goes_on() {
    block_on(async {
        for faulty in [Faulty::new().await, Faulty::with_own_memory().await] {
            for sql in sample(QUERIES.to_vec()).unwrap() {
                faulty.fail_each(Fault::Alloc, sql, |plan, n| plan.fail(Fault::Alloc, n, u64::MAX)).await;
            }
        }
    });
}

#[test]
fn each_failing_copy_is_an_error_and_the_session_goes_on() {
    block_on(async {
        for faulty in [Faulty::new().await, Faulty::with_own_memory().await] {
            for sql in sample(QUERIES.to_vec()).unwrap() {
                faulty.fail_each(Fault::Copy, sql, FaultPlan::fail_copy).await;
            }
        }
    });
}

#[test]
fn a_failing_compilation_names_the_operator_and_the_next_attempt_compiles() {
    device::skip_unless_turn!(0);
    block_on(async {
        let faulty = Faulty::new().await;
        // Constants compile nothing, so each query must be new to the device.
        for sql in QUERIES {
            for n in 1..20 {
                let before = faulty.plan.calls(Fault::Compile);
                faulty.plan.fail_compile(n);
                let result = faulty.run(sql).await;
                faulty.plan.heal();
                let calls = faulty.plan.calls(Fault::Compile) - before;
                if calls < n {
                    result.unwrap();
                    break;
                }
                let error = result.expect_err("a failed compilation fails the query");
                assert_clear(&error, Fault::Compile, sql);
                let (operator, _) = error.split_once(": kernel does not compile on ").expect(&error);
                assert!(operator.contains("Device") && operator.ends_with("Exec"), "{sql}: {error}");
            }
            faulty.run(sql).await.unwrap();
        }
    });
}

/// A query whose value of a resident table moves into the subplan below an operator of the host.
const VALUE_BELOW_THE_HOST: &str = "SELECT md5(s), i + 2 FROM t WHERE f > (SELECT avg(f) FROM device.r)";

#[test]
fn each_failing_compilation_leaves_its_part_to_the_host() {
    block_on(async {
        for partitions in [1, 3] {
            let plan = FaultPlan::new();
            // Compiler options would be the user's mistake, which is an error.
            let config = DeviceConfig::default().with_selector(device_config().selector);
            let faulty = Faulty::with(plan.clone(), context(config.with_wrap(plan.wrap())), partitions).await;
            set(&faulty.ctx, "device.fallback", "host");
            let queries = sample(QUERIES.to_vec()).unwrap();
            for sql in queries.into_iter().chain([VALUE_BELOW_THE_HOST]) {
                let mut answers = Vec::new();
                for n in 1..40 {
                    let before = plan.calls(Fault::Compile);
                    plan.fail_compile(n);
                    answers.push((n, faulty.run(sql).await.unwrap_or_else(|error| panic!("{sql}: compilation {n}: {error}"))));
                    plan.heal();
                    if plan.calls(Fault::Compile) - before < n {
                        break;
                    }
                }
                let expected = faulty.run(sql).await.unwrap();
                for (n, rows) in answers {
                    assert_eq!(rows, expected, "{sql}: compilation {n} failed and the answer is wrong");
                }
            }
            plan.fail_compile(1);
            let analysis = faulty.run("EXPLAIN ANALYZE SELECT sum(i * 3 - k) FROM t WHERE f < 99").await.unwrap().join("\n");
            plan.heal();
            assert!(analysis.contains("ran_on_host=[DeviceAggregateExec: kernel does not compile on "), "{analysis}");
        }
    });
}

#[test]
fn batches_fit_a_small_limit() {
    block_on(async {
        // 131,072 rows of these columns would take 16.8 MB.
        let plan = FaultPlan::masking(|info| info.unified_memory = false);
        let context = context(device_config().with_memory_bytes(16 << 20).with_wrap(plan.wrap()));
        let ctx = strict_on(1, DeviceRuntime::with_context(context));
        let column = Arc::new(Float64Array::from_iter_values((0..300_000).map(|row| f64::from(row % 1000)))) as _;
        let columns: Vec<(String, ArrayRef)> = (0..16).map(|number| (format!("c{number}"), Arc::clone(&column))).collect();
        ctx.register_batch("wide", RecordBatch::try_from_iter(columns).unwrap()).unwrap();
        let all = (0..16).map(|number| format!("c{number} < 10")).collect::<Vec<_>>().join(" AND ");
        let counted = answer(&ctx, &format!("SELECT count(*) FROM wide WHERE {all}")).await.unwrap();
        assert!(counted.launches > 0);
        assert_eq!(counted.lines(), ["| 3000 |"]);
    });
}

#[test]
fn a_failing_wait_is_an_error_and_the_session_goes_on() {
    block_on(async {
        let faulty = Faulty::new().await;
        for sql in QUERIES {
            let expected = faulty.run(sql).await.unwrap();
            // The number of waits depends on the speed of the device. Waits in the background
            // report no error.
            for n in 1..6 {
                faulty.plan.fail(Fault::Wait, n, 1);
                let result = faulty.run(sql).await;
                faulty.plan.heal();
                match result {
                    Err(error) => assert_clear(&error, Fault::Wait, sql),
                    Ok(rows) => assert_eq!(rows, expected, "{sql}: wait {n} failed and the answer is wrong"),
                }
                assert_eq!(faulty.run(sql).await.as_ref(), Ok(&expected), "{sql}: after wait {n} failed");
            }
        }
    });
}

#[test]
fn faults_among_eight_concurrent_queries_fail_only_the_queries_they_hit() {
    device::skip_unless_turn!(1);
    block_on(async {
        let faulty = Faulty::new().await;
        let queries = &QUERIES[..8];
        let mut expected = Vec::new();
        for sql in queries {
            expected.push(faulty.run(sql).await.unwrap());
        }
        let in_use = faulty.settled().await;
        let mut failures = 0;
        for n in 1..16 {
            faulty.context.trim();
            faulty.plan.fail_launch(n);
            faulty.plan.fail_alloc(2 * n);
            let answers = futures::future::join_all(queries.iter().map(|sql| {
                let (ctx, sql) = (faulty.ctx.clone(), sql.to_string());
                tokio::spawn(async move { answer(&ctx, &sql).await.map(|answer| answer.lines()).map_err(|error| text(&error)) })
            }));
            let answers = tokio::time::timeout(Duration::from_secs(60), answers).await.expect("no answers after 60 seconds");
            faulty.plan.heal();
            for ((answer, expected), sql) in answers.into_iter().zip(&expected).zip(queries) {
                match answer.unwrap() {
                    Ok(rows) => assert_eq!(&rows, expected, "{sql}: fault {n} in another query spoils this one"),
                    Err(error) => {
                        failures += 1;
                        let fault = if error.contains("device.memory_bytes") { Fault::Alloc } else { Fault::Launch };
                        assert_clear(&error, fault, sql);
                    }
                }
            }
            assert_eq!(faulty.settled().await, in_use, "fault {n} leaves memory behind");
        }
        assert!((15..=30).contains(&failures), "{failures} queries failed, of which each met a fault of its own");
    });
}

/// As under a limit that others have used up.
#[test]
fn allocations_that_fail_from_one_on_among_eight_concurrent_queries_are_errors() {
    device::skip_unless_turn!(2);
    block_on(async {
        let faulty = Faulty::new().await;
        let queries = &QUERIES[..8];
        let mut expected = Vec::new();
        for sql in queries {
            expected.push(faulty.run(sql).await.unwrap());
        }
        let in_use = faulty.settled().await;
        let mut failures = 0;
        for n in (1..60).step_by(4) {
            faulty.context.trim();
            faulty.plan.fail(Fault::Alloc, n, u64::MAX);
            let answers = futures::future::join_all(queries.iter().map(|sql| faulty.run(sql))).await;
            faulty.plan.heal();
            for ((answer, expected), sql) in answers.into_iter().zip(&expected).zip(queries) {
                match answer {
                    Ok(rows) => assert_eq!(&rows, expected, "{sql}: allocation {n} spoils the answer"),
                    Err(error) => {
                        failures += 1;
                        assert_clear(&error, Fault::Alloc, sql);
                    }
                }
            }
            assert_eq!(faulty.settled().await, in_use, "allocation {n} leaves memory behind");
            for (sql, expected) in queries.iter().zip(&expected) {
                assert_eq!(faulty.run(sql).await.as_ref(), Ok(expected), "{sql}: after allocation {n} failed");
            }
        }
        assert!(failures > 15, "{failures} queries failed");
    });
}

#[test]
fn a_failing_insert_leaves_the_table_as_it_was() {
    block_on(async {
        let faulty = Faulty::with_own_memory().await;
        let insert = "INSERT INTO device.filled SELECT i, s FROM t WHERE k >= 5";
        let count = "SELECT count(*), sum(i) FROM device.filled";
        let before = faulty.run(count).await.unwrap();
        for fault in [Fault::Alloc, Fault::Copy] {
            faulty.context.trim();
            faulty.plan.fail(fault, 1, 2);
            assert_clear(&faulty.run(insert).await.unwrap_err(), fault, insert);
            faulty.plan.heal();
            assert_eq!(faulty.run(count).await.unwrap(), before);
        }
        faulty.run(insert).await.unwrap();
        assert!(faulty.run(count).await.unwrap()[0].contains(" 300 "));
    });
}

#[test]
fn a_device_loss_fails_running_queries_and_the_next_query_opens_another_device() {
    block_on(async {
        let Faulty { plan, context, ctx } = Faulty::new().await;
        drop(context);
        let run = async |sql: &str| answer(&ctx, sql).await.map(|answer| answer.lines()).map_err(|error| text(&error));
        // The memory of a device may still hold its rows, so this table's rows are made on the
        // host.
        set(&ctx, "device.enabled", "false");
        run(&TABLE.replace("CREATE", "CREATE OR REPLACE")).await.unwrap();
        set(&ctx, "device.enabled", "true");
        let sql = "SELECT k, count(*), sum(f) FROM t GROUP BY k";
        let resident = "SELECT sum(i) FROM device.r WHERE k < 5";
        let (expected, sum) = (run(sql).await.unwrap(), run(resident).await.unwrap());
        for _ in 0..2 {
            plan.lose_device();
            let error = run(sql).await.unwrap_err();
            assert_lost(&error);
            assert_eq!(run(sql).await.as_ref(), Ok(&expected));
            // The rows of the resident table are lost, and each query reports so.
            for sql in [resident, "INSERT INTO device.r SELECT i, k, f, s FROM t", resident] {
                let error = run(sql).await.unwrap_err();
                assert!(error.contains("were lost") && error.contains("DROP TABLE"), "{sql}: {error}");
            }
            run("DROP TABLE device.r").await.unwrap();
            run(RESIDENT).await.unwrap();
            assert_eq!(run(resident).await.as_ref(), Ok(&sum));
            let start = Instant::now();
            while plan.live().drivers > 1 {
                assert!(start.elapsed() < Duration::from_secs(30), "the lost context is never let go of: {plan:?}");
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        }
    });
}

#[test]
fn a_device_loss_found_by_a_compilation_replaces_the_device() {
    block_on(async {
        let Faulty { plan, context, ctx } = Faulty::new().await;
        drop(context);
        let run = async |sql: &str| answer(&ctx, sql).await.map(|answer| answer.lines()).map_err(|error| text(&error));
        // The rows are resident and a queue is free, so the query's first device call compiles a
        // program.
        for sql in ["SELECT sum(i * 5 + 3) FROM device.r", "SELECT sum(i * 7 - 2) FROM device.r"] {
            run("SELECT sum(i) FROM device.r").await.unwrap();
            let launches = plan.calls(Fault::Launch);
            plan.lose_device();
            assert_lost(&run(sql).await.unwrap_err());
            assert_eq!(plan.calls(Fault::Launch), launches, "{sql} was to fail before its first launch");
            assert!(run(sql).await.unwrap_err().contains("were lost"));
            set(&ctx, "device.enabled", "false");
            run(&TABLE.replace("CREATE", "CREATE OR REPLACE")).await.unwrap();
            set(&ctx, "device.enabled", "true");
            run("DROP TABLE device.r").await.unwrap();
            run(RESIDENT).await.unwrap();
            assert_eq!(run(sql).await.unwrap().len(), 1);
        }
    });
}

/// Asserts that an operator reports the loss of the device.
#[track_caller]
fn assert_lost(error: &str) {
    assert!(OPERATORS.iter().any(|operator| error.contains(operator)), "no operator is named: {error}");
    assert!(error.contains("the context is lost"), "{error}");
}

#[test]
fn settings_that_cannot_be_met_fail_the_query_by_name() {
    block_on(async {
        let sql = "SELECT sum(value) FROM generate_series(1, 100) WHERE value > 3";
        let file = tempfile::NamedTempFile::new().unwrap();
        let most = "18446744073709551615";
        let too_much = "device.memory_bytes = 18446744073709551615: must be 0, for the device's default, or at most ";
        let label = crate::harness::shared_runtime().opened().unwrap().info().label();
        let refused = format!(
            "DeviceAggregateExec: kernel does not compile on {label}: error with device.compile_options = '-cl-std=CL9.9'"
        );
        for (setting, value, problem) in [
            ("device.selector", "no such device", "device.selector = 'no such device': no such device; there is #0"),
            ("device.selector", "#99", "device.selector = '#99': no such device; there is #0"),
            ("device.platform", "no such platform", "device.platform = 'no such platform': no such device; there is #0"),
            ("device.memory_bytes", most, too_much),
            ("device.cache_dir", file.path().to_str().unwrap(), "device.cache_dir = "),
            ("device.compile_options", "-cl-std=CL9.9", refused.as_str()),
        ] {
            // Even without strict planning, the host does not replace a device that a setting
            // demands.
            let ctx = strict_on(1, DeviceRuntime::new());
            set(&ctx, "device.fallback", "host");
            set(&ctx, setting, value);
            let error = text(&answer(&ctx, sql).await.unwrap_err());
            assert!(error.contains(problem), "{setting} = {value}: {error}");
            if setting != "device.compile_options" {
                answer(&ctx, "SHOW device.selector").await.unwrap();
                // No device is open, so no setting is frozen.
                set(&ctx, setting, DeviceOptions::documentation().iter().find(|doc| doc.key == setting).unwrap().default);
                assert!(answer(&ctx, sql).await.unwrap().launches > 0);
            }
        }
        let ctx = strict_on(1, DeviceRuntime::new());
        set(&ctx, "device.selector", "None");
        let error = text(&answer(&ctx, sql).await.unwrap_err());
        assert!(error.contains("device.fallback = error and there is no device to run on: device.selector = 'none'"), "{error}");
        set(&ctx, "device.fallback", "host");
        assert_eq!(answer(&ctx, sql).await.unwrap().launches, 0);
    });
}

#[test]
fn damaged_parquet_fails_as_on_the_host_and_the_session_goes_on() {
    device::skip_unless_turn!(4);
    block_on(async {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name).to_str().unwrap().to_string();
        let (host, device) = (plain(1), strict_on(1, crate::harness::shared_runtime()));
        host.sql(TABLE).await.unwrap().collect().await.unwrap();
        let copy = format!("COPY (SELECT * FROM t) TO '{}'", path("whole.parquet"));
        host.sql(&copy).await.unwrap().collect().await.unwrap();
        let whole = std::fs::read(path("whole.parquet")).unwrap();

        let cut = |bytes: usize| whole[..bytes].to_vec();
        let mut damaged = vec![cut(0), cut(7), cut(whole.len() / 2), cut(whole.len() - 1)];
        let wrong_bytes = if parts().unwrap().len() == PARTS { 1096 } else { 40 };
        damaged.extend((0..wrong_bytes).map(|n| {
            let mut bytes = whole.clone();
            bytes[n * whole.len() / wrong_bytes] ^= 0xff;
            bytes
        }));
        let mut failures = 0;
        for (n, bytes) in damaged.iter().enumerate() {
            let name = path(&format!("{n}.parquet"));
            std::fs::write(&name, bytes).unwrap();
            for sql in ["SELECT i, f FROM p WHERE k < 5", "SELECT s, count(*), sum(i) FROM p GROUP BY s"] {
                let run = |ctx: &SessionContext| {
                    let (ctx, sql, name) = (ctx.clone(), sql.to_string(), name.clone());
                    tokio::spawn(async move {
                        let _ = ctx.deregister_table("p");
                        ctx.register_parquet("p", &name, ParquetReadOptions::default()).await?;
                        answer(&ctx, &sql).await
                    })
                };
                // The reader may panic on a damaged page, so its result on the host is the
                // reference.
                let Ok(expected) = run(&host).await else { continue };
                let actual = run(&device).await.unwrap_or_else(|error| panic!("{n}: {sql}: {error}"));
                match (expected, actual) {
                    (Ok(expected), Ok(actual)) => assert_eq!(actual.lines(), expected.lines(), "{n}: {sql}"),
                    (Err(_), Err(_)) => failures += 1,
                    (expected, actual) => panic!("{n}: {sql}: on the host {expected:?}, on the device {actual:?}"),
                }
            }
        }
        assert!(failures >= 8, "{failures} damaged files were noticed");
        device.sql(TABLE).await.unwrap().collect().await.unwrap();
        assert_eq!(answer(&device, "SELECT sum(i) FROM t WHERE k < 5").await.unwrap().num_rows(), 1);
    });
}

#[test]
fn a_memory_limit_that_is_too_small_is_named() {
    block_on(async {
        let ctx = strict_on(1, DeviceRuntime::new());
        set(&ctx, "device.memory_bytes", "1048576");
        set(&ctx, "device.spill", "off");
        for (name, rows) in [("big", 100_000), ("small", 100)] {
            let sql = format!("CREATE TABLE {name} AS SELECT value AS i FROM generate_series(1, {rows})");
            ctx.sql(&sql).await.unwrap().collect().await.unwrap();
        }
        let error = text(&answer(&ctx, "SELECT i, count(*) FROM big GROUP BY i").await.unwrap_err());
        assert!(error.contains("raise device.memory_bytes") && error.contains("of 1.0 MB in use"), "{error}");
        assert!(OPERATORS.iter().any(|operator| error.contains(operator)), "{error}");
        let rows = answer(&ctx, "SELECT sum(i) FROM small WHERE i < 10").await.unwrap();
        assert_eq!(rows.num_rows(), 1);
    });
}

/// Tables on the host: `facts` of 200,000 rows has four groups `g` and 20,011 keys `k`, of which
/// `dims` has most.
async fn facts_and_dims() -> Vec<(&'static str, Arc<dyn TableProvider>)> {
    let numbers = (0..8).map(|n| format!("value * {} % 100003 AS c{n}", 7919 + 2 * n)).collect::<Vec<_>>().join(", ");
    let facts = format!(
        "SELECT value AS id, value % 4 AS g, value * 7919 % 20011 AS k, {numbers}, \
         CAST(value % 1009 * 0.25 AS DECIMAL(15, 2)) AS d0, CAST(value * 37 % 5009 AS DECIMAL(15, 2)) AS d1, \
         arrow_cast(arrow_cast(value % 2500 + 8000, 'Int32'), 'Date32') AS shipped, \
         CASE WHEN value % 10 <> 3 THEN 'Term ' || (value * 31 % 5003) END AS s FROM generate_series(1, 200000)"
    );
    let dims = "SELECT value AS k, value * 13 % 1000 AS w, 'name ' || (value % 997) AS name FROM generate_series(1, 20000)";
    let (host, mut tables) = (plain(1), Vec::new());
    for (name, sql) in [("facts", facts.as_str()), ("dims", dims)] {
        let rows = answer(&host, sql).await.unwrap().batches;
        let table: Arc<dyn TableProvider> = Arc::new(MemTable::try_new(rows[0].schema(), vec![rows]).unwrap());
        tables.push((name, table));
    }
    tables
}

const FILTERED_COUNT: &str = "SELECT count(*) FROM facts WHERE c0 > 900 AND c1 > 900 AND c2 > 900 AND c3 > 900 AND c4 > 900 \
    AND c5 > 900 AND c6 > 900 AND c7 > 900 AND d0 > 3 AND d1 > 3 AND g < 3";
const FOUR_GROUPS: &str = "SELECT g, count(*), sum(c0), min(c1), max(c2), sum(c3 + c4), min(c5), max(c6), sum(c7), sum(d0), \
    max(d1) FROM facts GROUP BY g";

/// Queries that stream their input, and others with all of it in memory.
const UNDER_LIMITS: [&str; 16] = [
    FILTERED_COUNT,
    FOUR_GROUPS,
    "SELECT g, count(DISTINCT k), sum(d0 * d1), min(s) FROM facts GROUP BY g",
    "SELECT k, count(*), sum(c0), max(d0) FROM facts GROUP BY k",
    "SELECT count(*), sum(k) FROM (SELECT DISTINCT k, g FROM facts)",
    "SELECT count(*), sum(f.c0 + d.w) FROM facts f JOIN dims d ON f.k = d.k",
    "SELECT f.id, d.name, f.d0 FROM facts f JOIN dims d ON f.k = d.k WHERE d.w < 100",
    "SELECT d.name, count(f.id), sum(f.c1) FROM dims d LEFT JOIN facts f ON d.k = f.k AND f.c0 > 50000 GROUP BY d.name",
    "SELECT count(*), sum(c4) FROM facts WHERE k IN (SELECT k FROM dims WHERE w > 500) AND d1 > (SELECT min(d0) FROM facts)",
    "SELECT id, c3, d1 FROM facts WHERE id % 4 = 1 ORDER BY c3 DESC, id",
    "SELECT id, s, c2 FROM facts ORDER BY c2, id LIMIT 10",
    "SELECT g, sum(r), max(t) FROM (SELECT g, rank() OVER (PARTITION BY g ORDER BY c1) AS r, \
         sum(c0) OVER (PARTITION BY k ORDER BY id) AS t FROM facts) GROUP BY g",
    "SELECT g, count(*), sum(x) FROM (SELECT g, c0 + 1 AS x FROM facts UNION ALL SELECT g, c1 * 2 FROM facts \
         UNION ALL SELECT w % 4, w FROM dims) GROUP BY g",
    "SELECT lower(s) || '-' || g AS u, count(*), max(length(s)) FROM facts GROUP BY u",
    "SELECT count(*), min(s), max(s) FROM facts WHERE s LIKE '%m 1%7%' OR s LIKE 'Term 49__'",
    "SELECT date_part('year', shipped) AS y, count(*), sum(d1) FROM facts WHERE shipped >= DATE '1994-01-01' GROUP BY y",
];

/// Limits of device memory in bytes, 0 for the default, and whether the device may use the host's
/// memory. Copies count towards the limit.
const LIMITS: [(usize, UnifiedMemory); 7] = [
    (0, UnifiedMemory::Auto),
    (1 << 20, UnifiedMemory::Auto),
    (4 << 20, UnifiedMemory::Auto),
    (16 << 20, UnifiedMemory::Auto),
    (64 << 20, UnifiedMemory::Auto),
    (4 << 20, UnifiedMemory::Never),
    (16 << 20, UnifiedMemory::Never),
];

/// The limit from which the queries on few groups and on none pass.
const ENOUGH: usize = 16 << 20;

/// Rows in the order of a query that has one, else sorted.
fn rows_of(sql: &str, answer: &Answer) -> Vec<String> {
    // Windows have an order too, which their groups lose.
    if sql.contains("ORDER BY") && !sql.contains("GROUP BY") { answer.ordered_lines() } else { answer.lines() }
}

#[test]
fn under_each_memory_limit_queries_give_the_answer_or_an_error_that_names_it() {
    device::skip_unless_turn!(6);
    block_on(async {
        let tables = facts_and_dims().await;
        let with_tables = |ctx: SessionContext| {
            for (name, table) in &tables {
                ctx.register_table(*name, Arc::clone(table)).unwrap();
            }
            ctx
        };
        let (host, mut expected) = (with_tables(plain(1)), Vec::new());
        for sql in UNDER_LIMITS {
            expected.push(rows_of(sql, &answer(&host, sql).await.unwrap()));
        }
        for (bytes, unified) in LIMITS {
            let limit = format!("limit of {bytes} bytes, unified memory {unified:?}");
            let context = context(device_config().with_memory_bytes(bytes).with_unified_memory(unified));
            let ctx = with_tables(strict_on(1, DeviceRuntime::with_context(context.clone())));
            let mut failures = 0;
            for (sql, expected) in UNDER_LIMITS.into_iter().zip(&expected) {
                let result = tokio::time::timeout(Duration::from_secs(300), answer(&ctx, sql)).await;
                match result.unwrap_or_else(|_| panic!("{limit}: {sql}: no answer after 300 seconds")) {
                    Ok(answer) => {
                        assert!(answer.launches > 0, "{limit}: {sql}: nothing was launched");
                        assert!(rows_of(sql, &answer) == *expected, "{limit}: {sql}: the answer is wrong");
                    }
                    Err(error) => {
                        let error = text(&error);
                        let is_clear = error.contains("device.memory_bytes") && error.contains("pool \"");
                        assert!(is_clear && bytes > 0, "{limit}: {sql}: {error}");
                        let may_fail = bytes < ENOUGH || ![FILTERED_COUNT, FOUR_GROUPS].contains(&sql);
                        assert!(may_fail, "{limit}: {sql}: {error}");
                        failures += 1;
                    }
                }
            }
            let pool = context.pool();
            println!("{limit}: {failures} of {} queries failed, {} bytes at the peak", UNDER_LIMITS.len(), pool.peak());
            assert!(pool.peak() <= pool.limit(), "{limit}: {} bytes were in use", pool.peak());
        }
    });
}

#[test]
fn memory_errors_name_the_operator_that_holds_all_rows() {
    device::skip_unless_turn!(5);
    block_on(async {
        let big = "generate_series(1, 1000000)";
        // The failing allocation is that of an upload, or of the operator itself for its keys.
        for bytes in (2_000_000..2_160_000).step_by(20_000) {
            let ctx = strict_on(1, DeviceRuntime::new());
            set(&ctx, "device.memory_bytes", &bytes.to_string());
            set(&ctx, "device.batch_rows", "10000");
            set(&ctx, "device.spill", "off");
            for (query, holder) in [
                (format!("SELECT value FROM {big} ORDER BY -value"), "DeviceSortExec holds all rows of its input, "),
                (format!("SELECT sum(value) OVER () FROM {big}"), "DeviceWindowExec holds all rows of its input, "),
                (
                    format!("SELECT count(*) FROM {big} a JOIN {big} b ON a.value = -b.value"),
                    "DeviceJoinExec holds all rows of its build side, ",
                ),
                (
                    format!("SELECT a.value, b.value FROM {big} a CROSS JOIN {big} b"),
                    "DeviceJoinExec holds all rows of its build side, ",
                ),
                (
                    format!("SELECT count(*) FROM {big} a JOIN {big} b ON a.value < -b.value"),
                    "DeviceJoinExec holds all rows of its build side, ",
                ),
                // The join's kernels compute the projection.
                (
                    format!("SELECT a.value + b.value FROM {big} a JOIN {big} b ON a.value = -b.value"),
                    "DeviceJoinExec holds all rows of its build side, ",
                ),
            ] {
                let error = text(&answer(&ctx, &query).await.unwrap_err());
                assert!(error.contains("raise device.memory_bytes") && error.contains(holder), "{bytes} bytes, {query}: {error}");
                assert_eq!(error.matches(" holds all rows of ").count(), 1, "{error}");
            }
            assert_eq!(answer(&ctx, "SELECT sum(value) FROM generate_series(1, 9)").await.unwrap().num_rows(), 1);
        }
    });
}

/// 25 million pairs of two columns take 400 MB.
#[test]
fn a_join_that_explodes_stays_within_the_memory_limit() {
    device::skip_unless_turn!(7);
    block_on(async {
        let ctx = strict_on(1, DeviceRuntime::new());
        set(&ctx, "device.memory_bytes", "100000000");
        let (a, b) = ("generate_series(1, 5000) a", "generate_series(1, 5000) b");
        for (query, expected) in [
            (
                format!(
                    "SELECT a.value AS a, b.value AS b FROM {a} CROSS JOIN {b} ORDER BY a.value + b.value DESC, a.value LIMIT 2"
                ),
                vec!["| 4999 | 5000 |", "| 5000 | 5000 |"],
            ),
            (
                format!("SELECT count(*) AS pairs, sum(a.value - b.value) AS s FROM {a} JOIN {b} ON a.value < b.value"),
                vec!["| 12497500 | -20833332500 |"],
            ),
            (
                format!("SELECT a.value % 2 AS k, count(*) AS pairs FROM {a} JOIN {b} ON a.value <> b.value GROUP BY k"),
                vec!["| 0 | 12497500 |", "| 1 | 12497500 |"],
            ),
            // All rows have one key.
            (
                format!(
                    "SELECT a.value AS a, b.value AS b FROM {a} JOIN {b} ON a.value / 6000 = b.value / 6000 ORDER BY a.value * b.value DESC, a.value LIMIT 2"
                ),
                vec!["| 4999 | 5000 |", "| 5000 | 5000 |"],
            ),
        ] {
            assert_eq!(answer(&ctx, &query).await.unwrap().lines(), expected, "{query}");
        }
    });
}

/// Change of the capabilities that a device reports.
type Change = fn(&mut DeviceInfo);

const LACKS: &[(Change, &str)] = &[
    (|info| info.fp64 = false, "it lacks double precision (cl_khr_fp64)"),
    (|info| info.atomics64 = false, "it lacks 64-bit atomics (cl_khr_int64_base_atomics and cl_khr_int64_extended_atomics)"),
];

#[test]
fn a_device_without_doubles_or_wide_atomics_is_refused_by_name() {
    for (mask, lack) in LACKS {
        let plan = FaultPlan::masking(mask);
        let error = Context::new(device_config().with_wrap(plan.wrap())).unwrap_err().to_string();
        let expected = format!("cannot be used: {lack}; device.selector chooses another");
        assert!(error.starts_with("device ") && error.ends_with(&expected), "{error}");
    }
}

#[test]
fn a_reopened_device_that_lacks_capabilities_fails_queries_until_they_return() {
    block_on(async {
        for (mask, lack) in LACKS {
            let masked = Arc::new(AtomicBool::new(false));
            let is_masked = Arc::clone(&masked);
            let change = move |info: &mut DeviceInfo| {
                if is_masked.load(Relaxed) {
                    mask(info);
                }
            };
            let faulty = Faulty::on(FaultPlan::masking(change)).await;
            let sql = "SELECT count(*), sum(value) FROM generate_series(1, 100) WHERE value > 3";
            let expected = faulty.run(sql).await.unwrap();
            masked.store(true, Relaxed);
            faulty.plan.lose_device();
            faulty.run(sql).await.unwrap_err();
            for _ in 0..2 {
                let error = faulty.run(sql).await.unwrap_err();
                assert!(error.contains(lack), "{error}");
            }
            masked.store(false, Relaxed);
            assert_eq!(faulty.run(sql).await.unwrap(), expected);
        }
    });
}

#[test]
fn answers_do_not_depend_on_shared_memory_or_argument_limits() {
    device::skip_unless_turn!(1);
    block_on(async {
        let plan = FaultPlan::masking(|info| {
            info.unified_memory = false;
            info.max_arg_bytes = 256;
        });
        let context = context(device_config().with_wrap(plan.wrap()));
        let masked = strict_on(1, DeviceRuntime::with_context(context));
        let open = strict_on(1, crate::harness::shared_runtime());
        for ctx in [&masked, &open] {
            for sql in SETUP {
                ctx.sql(sql).await.unwrap().collect().await.unwrap();
            }
        }
        for sql in QUERIES {
            let actual = answer(&masked, sql).await.unwrap().lines();
            assert_eq!(actual, answer(&open, sql).await.unwrap().lines(), "{sql}");
        }
    });
}

#[test]
fn nothing_is_left_on_the_device_when_a_session_ends() {
    let plan = block_on(async {
        let Faulty { plan, context, ctx } = Faulty::new().await;
        drop(context);
        for sql in QUERIES {
            answer(&ctx, sql).await.unwrap();
        }
        plan
    });
    plan.wait_until_nothing_is_alive(Duration::from_secs(30)).unwrap();
}

#[test]
fn a_failing_row_gives_datafusions_own_message() {
    block_on(async {
        let ctx = strict_on(2, crate::harness::shared_runtime());
        ctx.sql(TABLE).await.unwrap().collect().await.unwrap();
        for (sql, message) in [
            ("SELECT 10 / (i - 200) FROM t", "Divide by zero"),
            ("SELECT sum(10 % (k - 3)) FROM t", "Divide by zero"),
            ("SELECT CAST(i AS TINYINT) FROM t", "Can't cast value 128 to type Int8"),
            ("SELECT k, max(CAST(s AS INT)) FROM t GROUP BY k", "Cannot cast string 'pear' to value of Int32 type"),
        ] {
            let error = text(&answer(&ctx, sql).await.unwrap_err());
            assert!(error.contains(message), "{sql}: {error}");
            assert_eq!(answer(&ctx, "SELECT count(*) FROM t WHERE i > 10").await.unwrap().num_rows(), 1);
        }
    });
}
