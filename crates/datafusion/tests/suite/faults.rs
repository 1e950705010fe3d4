// SPDX-License-Identifier: Apache-2.0
//! What goes wrong, goes wrong with a clear error: no panic, no hang, and the session goes on.

use std::time::Duration;

use datafusion::prelude::SessionContext;
use device::Context;
use device::testing::{Fault, FaultPlan};
use devicefusion::DeviceRuntime;

use crate::harness::{answer, block_on, context, device_config, set, strict_on, text};

const TABLE: &str = "CREATE TABLE t AS SELECT value AS i, value % 7 AS k, CAST(value AS DOUBLE) AS f, \
    CASE value % 3 WHEN 0 THEN 'apple' WHEN 1 THEN 'pear' END AS s FROM generate_series(1, 300)";
const RESIDENT: &str = "CREATE TABLE device.r AS SELECT i, k, f, s FROM t";

/// A small query of each kind.
const QUERIES: &[&str] = &[
    "SELECT i + 1, s FROM t",
    "SELECT i, f FROM t WHERE k = 3",
    "SELECT i FROM t WHERE k = 3 LIMIT 5 OFFSET 2",
    "SELECT count(*), sum(i), max(s), avg(f) FROM t",
    "SELECT k, count(*), sum(f) FROM t GROUP BY k",
    "SELECT s, k, min(i) FROM t GROUP BY s, k",
    "SELECT count(DISTINCT k) FROM t",
    "SELECT s, sum(i) FROM device.r WHERE k < 5 GROUP BY s",
    "SELECT n, count(*) FROM (SELECT i % 10 AS d, count(*) AS n FROM t WHERE i > 5 GROUP BY i % 10) GROUP BY n",
];

struct Faulty {
    plan: FaultPlan,
    context: Context,
    ctx: SessionContext,
}

impl Faulty {
    async fn new() -> Faulty {
        let plan = FaultPlan::new();
        let context = context(device_config().with_wrap(plan.wrap()));
        let ctx = strict_on(1, DeviceRuntime::with_context(context.clone()));
        ctx.sql(TABLE).await.unwrap().collect().await.unwrap();
        ctx.sql(RESIDENT).await.unwrap().collect().await.unwrap();
        Faulty { plan, context, ctx }
    }

    /// Runs a query that may fail; hanging is a failure of the test.
    async fn run(&self, sql: &str) -> Result<Vec<String>, String> {
        let answer = tokio::time::timeout(Duration::from_secs(60), answer(&self.ctx, sql));
        let answer = answer.await.unwrap_or_else(|_| panic!("{sql}: no answer after 60 seconds"));
        answer.map(|answer| answer.lines()).map_err(|error| text(&error))
    }

    /// Fails every call of a kind in turn.
    async fn fail_each(&self, fault: Fault, sql: &str, arm: impl Fn(&FaultPlan, u64)) {
        let expected = self.run(sql).await.unwrap();
        for n in 1.. {
            assert!(n < 200, "{sql}: {fault:?} goes on for ever");
            // A pool's free lists would spare the driver most calls.
            self.context.trim();
            let before = self.plan.calls(fault);
            arm(&self.plan, n);
            let result = self.run(sql).await;
            self.plan.heal();
            let calls = self.plan.calls(fault) - before;
            match result {
                Err(error) => assert_clear(&error, fault, sql),
                Ok(rows) => {
                    assert_eq!(rows, expected, "{sql}: {fault:?} {n} failed and the answer is wrong");
                    assert!(calls < n, "{sql}: {fault:?} {n} failed unnoticed");
                }
            }
            assert_eq!(self.run(sql).await.as_ref(), Ok(&expected), "{sql}: after {fault:?} {n} failed");
            if calls < n {
                return;
            }
        }
    }
}

fn assert_clear(error: &str, fault: Fault, sql: &str) {
    let wanted = match fault {
        Fault::Alloc => "device.memory_bytes",
        _ => "a fault that a test injected",
    };
    assert!(error.contains(wanted), "{sql}: {fault:?}: {error}");
}

#[test]
fn each_failing_launch_is_an_error_and_the_session_goes_on() {
    block_on(async {
        let faulty = Faulty::new().await;
        for sql in QUERIES {
            faulty.fail_each(Fault::Launch, sql, FaultPlan::fail_launch).await;
        }
    });
}

#[test]
fn each_failing_allocation_is_an_error_and_the_session_goes_on() {
    block_on(async {
        let faulty = Faulty::new().await;
        for sql in QUERIES {
            faulty.fail_each(Fault::Alloc, sql, FaultPlan::fail_alloc).await;
        }
    });
}

#[test]
fn each_failing_copy_is_an_error_and_the_session_goes_on() {
    block_on(async {
        let faulty = Faulty::new().await;
        for sql in QUERIES {
            faulty.fail_each(Fault::Copy, sql, FaultPlan::fail_copy).await;
        }
    });
}

#[test]
fn a_failing_compilation_names_the_operator_and_the_next_attempt_compiles() {
    block_on(async {
        let faulty = Faulty::new().await;
        // Constants compile nothing: each query must be new to the device to compile at all.
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
                assert!(error.contains("a fault that a test injected"), "{sql}: {error}");
                let (operator, _) = error.split_once(": kernel does not compile on ").expect(&error);
                assert!(operator.contains("Device") && operator.ends_with("Exec"), "{sql}: {error}");
            }
            faulty.run(sql).await.unwrap();
        }
    });
}

#[test]
fn a_memory_limit_that_is_too_small_is_named() {
    block_on(async {
        let ctx = strict_on(1, DeviceRuntime::new());
        set(&ctx, "device.memory_bytes", "65536");
        for (name, rows) in [("big", 100_000), ("small", 100)] {
            let sql = format!("CREATE TABLE {name} AS SELECT value AS i FROM generate_series(1, {rows})");
            ctx.sql(&sql).await.unwrap().collect().await.unwrap();
        }
        let error = text(&answer(&ctx, "SELECT i, count(*) FROM big GROUP BY i").await.unwrap_err());
        assert!(error.contains("device.memory_bytes"), "{error}");
        let rows = answer(&ctx, "SELECT sum(i) FROM small WHERE i < 10").await.unwrap();
        assert_eq!(rows.num_rows(), 1);
    });
}

#[test]
fn a_device_without_doubles_or_wide_atomics_is_refused_by_name() {
    for (capability, mask) in [("fp64", true), ("atomics", false)] {
        let plan = FaultPlan::masking(move |info| if mask { info.fp64 = false } else { info.atomics64 = false });
        let error = Context::new(device_config().with_wrap(plan.wrap())).err().map(|error| error.to_string());
        assert!(
            error.as_ref().is_some_and(|error| error.contains(capability) || error.contains("64-bit")),
            "{capability}: {error:?}"
        );
    }
}

#[test]
fn answers_do_not_depend_on_shared_memory_or_argument_limits() {
    block_on(async {
        let plan = FaultPlan::masking(|info| {
            info.unified_memory = false;
            info.max_arg_bytes = 256;
        });
        let context = context(device_config().with_wrap(plan.wrap()));
        let masked = strict_on(1, DeviceRuntime::with_context(context));
        let open = strict_on(1, crate::harness::shared_runtime());
        for ctx in [&masked, &open] {
            ctx.sql(TABLE).await.unwrap().collect().await.unwrap();
            ctx.sql(RESIDENT).await.unwrap().collect().await.unwrap();
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
