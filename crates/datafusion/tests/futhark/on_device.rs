// SPDX-License-Identifier: Apache-2.0
//! Functions of libraries that share the device, called inside offloaded subplans.

use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::util::pretty::pretty_format_batches;
use datafusion::common::DataFusionError;
use datafusion::prelude::SessionContext;
use devicefusion::{DeviceRuntime, register_futhark};
use futhark::{Context, ContextConfig, Library};

use crate::fixture::Fixture;
use crate::{check, check_fails, clean, create, create_as, lines, run, session, set};

/// Strict device session with the library of the `opencl` back end, and tables in host and device
/// memory. `None` if the device is not an OpenCL device.
async fn device_session(profile: &str) -> Option<(SessionContext, Fixture)> {
    let ctx = session();
    set(&ctx, "device.selector", &device::testing::config().unwrap().selector.to_string());
    set(&ctx, "device.cost", "always");
    set(&ctx, "device.profile", profile);
    set(&ctx, "datafusion.execution.batch_size", "1000");
    let rows = "SELECT value AS i, value * 0.5 AS x, value % 3 = 0 AS b, CAST(value AS INTEGER) AS small, \
        CASE WHEN value % 7 > 0 THEN value END AS n FROM generate_series(1, 3000)";
    run(&ctx, &format!("CREATE TABLE host AS {rows}")).await.unwrap();
    run(&ctx, "CREATE TABLE device.t AS SELECT * FROM host").await.unwrap();
    let device = runtime(&ctx).opened().unwrap();
    if device.info().driver != device::DriverKind::OpenCl {
        return None;
    }
    let fixture = Fixture::opencl();
    create(&ctx, &fixture, &["add", "bump", "flip", "halve", "hungry", "id_i64", "late", "positives", "scale", "triple"]).await;
    set(&ctx, "device.fallback", "error");
    assert_eq!(fixture.counter("fixture_adopted"), 1, "the library shares the device");
    Some((ctx, fixture))
}

fn runtime(ctx: &SessionContext) -> Arc<DeviceRuntime> {
    DeviceRuntime::of(ctx.state().config()).unwrap()
}

async fn explain(ctx: &SessionContext, sql: &str) -> String {
    pretty_format_batches(&run(ctx, &format!("EXPLAIN {sql}")).await.unwrap()).unwrap().to_string()
}

/// Asserts that a query of both tables answers as an expression without the library does on the
/// host.
async fn check_on_device(ctx: &SessionContext, sql: &str, instead: &str) {
    for table in ["device.t", "host"] {
        let rows = lines(&run(ctx, &sql.replace("FROM t", &format!("FROM {table}"))).await.unwrap());
        set(ctx, "device.enabled", "false");
        let expected = lines(&run(ctx, &instead.replace("FROM t", "FROM host")).await.unwrap());
        set(ctx, "device.enabled", "true");
        assert!(!rows.is_empty());
        assert_eq!(rows, expected, "{sql} over {table}");
    }
}

#[tokio::test]
async fn a_library_that_shares_the_device_is_called_inside_an_offloaded_subplan() {
    device::skip_unless_turn!(6);
    for profile in ["cpu", "gpu"] {
        let Some((ctx, fixture)) = device_session(profile).await else { return };
        for (sql, instead) in [
            ("SELECT i, scale(x, 3) FROM t ORDER BY i", "SELECT i, x * 3 FROM t ORDER BY i"),
            // Rows with a NULL, columns written by kernels, filters below, calls within expressions
            // and within calls.
            ("SELECT i, add(n, i) FROM t ORDER BY i", "SELECT i, n + i FROM t ORDER BY i"),
            ("SELECT i, add(n + 1, small) FROM t ORDER BY i", "SELECT i, n + 1 + small FROM t ORDER BY i"),
            ("SELECT i, add(i, 5) FROM t WHERE i % 2 = 0 ORDER BY i", "SELECT i, i + 5 FROM t WHERE i % 2 = 0 ORDER BY i"),
            ("SELECT i, flip(b), NOT flip(n > 50) FROM t ORDER BY i", "SELECT i, NOT b, n > 50 FROM t ORDER BY i"),
            ("SELECT i, halve(small) * 2 FROM t ORDER BY i", "SELECT i, small / 2 * 2 FROM t ORDER BY i"),
            ("SELECT i, add(add(i, n), n) - 1 FROM t ORDER BY i", "SELECT i, i + n + n - 1 FROM t ORDER BY i"),
            ("SELECT i, id_i64(n) FROM t ORDER BY i", "SELECT i, n FROM t ORDER BY i"),
            // Consumed arguments are copies.
            ("SELECT i, bump(i), bump(n), n FROM t ORDER BY i", "SELECT i, i + 1, n + 1, n FROM t ORDER BY i"),
            ("SELECT i FROM t WHERE add(i, n) > 5000 ORDER BY i", "SELECT i FROM t WHERE i + n > 5000 ORDER BY i"),
            ("SELECT count(*), sum(v) FROM (SELECT add(i, n) AS v FROM t)", "SELECT count(*), sum(i + n) FROM t"),
            (
                "SELECT halve(small) % 5, sum(add(i, n)), max(i) FILTER (WHERE flip(b)) FROM t GROUP BY 1 ORDER BY 1",
                "SELECT small / 2 % 5, sum(i + n), max(i) FILTER (WHERE NOT b) FROM t GROUP BY 1 ORDER BY 1",
            ),
            // All rows NULL, and no rows.
            ("SELECT i, add(i, n) FROM t WHERE n IS NULL ORDER BY i", "SELECT i, n FROM t WHERE n IS NULL ORDER BY i"),
            ("SELECT count(v) FROM (SELECT add(i, n) AS v FROM t WHERE i < 0)", "SELECT 0"),
        ] {
            check_on_device(&ctx, sql, instead).await;
        }
        assert_eq!(fixture.counter("fixture_copied"), 0, "no array came from the host or went there");
        clean(ctx, &fixture).await;
    }
}

#[tokio::test]
async fn what_libraries_measure_is_in_the_devices_report() {
    let Some((ctx, fixture)) = device_session("auto").await else { return };
    let device = runtime(&ctx);
    assert!(device.report().unwrap().get("libraries").is_none(), "it was not asked to measure");
    let measured = Fixture::opencl();
    set(&ctx, "device.futhark_profiling", "true");
    run(&ctx, "DROP FUNCTION add").await.unwrap();
    create(&ctx, &measured, &["add"]).await;
    check(&ctx, "SELECT max(add(i, i)) FROM device.t", &["6000"]).await;
    check(&ctx, "SELECT max(scale(x, 2)) FROM device.t", &["3000.0"]).await;
    let path = measured.object().canonicalize().unwrap().display().to_string();
    assert_eq!(device.report().unwrap()["libraries"], serde_json::json!({ path: { "calls": 1 } }));
    run(&ctx, "DROP FUNCTION add").await.unwrap();
    for _ in 0..1000 {
        if measured.counter("fixture_contexts") == 0 {
            break;
        }
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
    assert!(device.report().unwrap().get("libraries").is_none(), "it has gone with its last function");
    measured.assert_clean();
    clean(ctx, &fixture).await;
}

#[tokio::test]
async fn masks_stay_on_the_device() {
    device::skip_unless_turn!(2);
    for profile in ["cpu", "gpu"] {
        let Some((ctx, fixture)) = device_session(profile).await else { return };
        for name in ["fill", "halves"] {
            let create =
                format!("CREATE FUNCTION {name}() LANGUAGE futhark AS '{}#{name}?nulls=mask'", fixture.manifest().display());
            run(&ctx, &create).await.unwrap();
        }
        let even = "CASE WHEN n % 2 = 0 THEN n / 2 END";
        for (sql, instead) in [
            ("SELECT i, fill(n, -1) FROM t ORDER BY i".to_owned(), "SELECT i, coalesce(n, -1) FROM t ORDER BY i".to_owned()),
            ("SELECT i, halves(n) FROM t ORDER BY i".to_owned(), format!("SELECT i, {even} FROM t ORDER BY i")),
            ("SELECT sum(fill(halves(n), -5)) FROM t".to_owned(), format!("SELECT sum(coalesce({even}, -5)) FROM t")),
        ] {
            check_on_device(&ctx, &sql, &instead).await;
        }
        assert_eq!(fixture.counter("fixture_copied"), 0, "no array came from the host or went there");
        clean(ctx, &fixture).await;
    }
}

#[tokio::test]
async fn aggregates_of_all_rows_stay_on_the_device() {
    device::skip_unless_turn!(4);
    for (profile, batch_rows) in [("cpu", "0"), ("gpu", "128")] {
        let Some((ctx, fixture)) = device_session(profile).await else { return };
        if batch_rows != "0" {
            set(&ctx, "device.batch_rows", batch_rows);
        }
        create_as(&ctx, &fixture, "total", "sum").await;
        for (sql, instead) in [
            ("SELECT total(i), total(n) FROM t", "SELECT sum(i), sum(n) FROM t"),
            // Arguments written by kernels, filtered rows, nested calls, no rows.
            ("SELECT total(small) FROM t", "SELECT sum(small) FROM t"),
            ("SELECT total(n + 1) * 2 AS v FROM t WHERE b", "SELECT sum(n + 1) * 2 AS v FROM t WHERE b"),
            (
                "SELECT total(n) FILTER (WHERE b), total(i) FILTER (WHERE x > 1400) FROM t",
                "SELECT sum(n) FILTER (WHERE b), sum(i) FILTER (WHERE x > 1400) FROM t",
            ),
            ("SELECT total(add(i, n)) FROM t", "SELECT sum(i + n) FROM t"),
            ("SELECT total(i), total(n) FILTER (WHERE i > 5000) FROM t", "SELECT sum(i), NULL FROM t"),
            ("SELECT total(i) FROM t WHERE i > 5000", "SELECT sum(i) FROM t WHERE i > 5000"),
            (
                "SELECT total(v) FROM (SELECT i AS v FROM t UNION ALL SELECT n FROM t)",
                "SELECT sum(v) FROM (SELECT i AS v FROM t UNION ALL SELECT n FROM t)",
            ),
        ] {
            check_on_device(&ctx, sql, instead).await;
        }
        assert_eq!(fixture.counter("fixture_copied"), 0, "no array came from the host or went there");
        let device = runtime(&ctx);
        let (before, borrowed) = (device.counters().unwrap(), fixture.counter("fixture_borrowed"));
        check(&ctx, "SELECT total(i) FROM device.t", &["4501500"]).await;
        let after = device.counters().unwrap();
        assert_eq!(fixture.counter("fixture_borrowed") - borrowed, 1, "one call for all rows");
        // The library's scalar becomes the result column.
        let (up, down) = (after.bytes_up - before.bytes_up, after.bytes_down - before.bytes_down);
        assert!(up <= 64 && down <= 64, "{up} bytes up, {down} bytes down");
        let plan = explain(&ctx, "SELECT total(i) FROM device.t").await;
        assert!(plan.contains("DeviceAggregateExec: gby=[], aggr=[total(device.t.i)], libraries=["), "{plan}");
        let analyzed = run(&ctx, "EXPLAIN ANALYZE SELECT total(i) FROM device.t").await.unwrap();
        assert!(pretty_format_batches(&analyzed).unwrap().to_string().contains("library_time="));
        set(&ctx, "device.fallback", "host");
        for sql in [
            "SELECT b, total(i) FROM device.t GROUP BY b",
            "SELECT total(i), max(i) FROM device.t",
            "SELECT total(i) FROM device.t GROUP BY GROUPING SETS (())",
        ] {
            let plan = explain(&ctx, sql).await;
            assert!(
                plan.contains("the Futhark function total works in host memory: on the device it is called for all rows"),
                "{plan}"
            );
        }
        check(&ctx, "SELECT total(i) FROM device.t GROUP BY GROUPING SETS (())", &["4501500"]).await;
        check(&ctx, "SELECT b, total(i) FROM device.t GROUP BY b ORDER BY b", &["false,3000000", "true,1501500"]).await;
        check_fails(&ctx, "SELECT total(i ORDER BY i) FROM device.t", "takes neither DISTINCT nor ORDER BY").await;
        clean(ctx, &fixture).await;
    }
}

#[tokio::test]
async fn a_call_inside_an_offloaded_subplan_stays_on_the_device() {
    let Some((ctx, fixture)) = device_session("auto").await else { return };
    let device = runtime(&ctx);
    let sql = "SELECT scale(x, 2) FROM device.t";
    run(&ctx, sql).await.unwrap();
    let (before, borrowed) = (device.counters().unwrap(), fixture.counter("fixture_borrowed"));
    let rows: usize = run(&ctx, sql).await.unwrap().iter().map(RecordBatch::num_rows).sum();
    let after = device.counters().unwrap();
    assert_eq!((rows, fixture.counter("fixture_borrowed") - borrowed), (3000, 1));
    assert_eq!(after.bytes_up, before.bytes_up);
    // The result: values, and a validity bit for each if the column is nullable.
    let down = after.bytes_down - before.bytes_down;
    assert!((24_000..=24_000 + 376).contains(&down), "{down} bytes");
    assert_eq!(after.launches, before.launches, "the column's own memory is the argument");
    // The operator itself transfers nothing, not even the number of non-NULL rows.
    let analyzed = pretty_format_batches(&run(&ctx, &format!("EXPLAIN ANALYZE {sql}")).await.unwrap()).unwrap().to_string();
    let operator = analyzed.lines().find(|line| line.contains("DeviceFutharkExec")).unwrap();
    assert!(operator.contains("output_rows=3.00 K") && !operator.contains("bytes_"), "{operator}");
    assert!(operator.contains("library_time="), "{operator}");
    clean(ctx, &fixture).await;
}

#[tokio::test]
async fn rows_of_table_functions_stay_on_the_device() {
    device::skip_unless_turn!(5);
    for profile in ["cpu", "gpu"] {
        let Some((ctx, fixture)) = device_session(profile).await else { return };
        create(&ctx, &fixture, &["count_to", "divmod"]).await;
        for rows in [0i64, 1, 3, 257, (1 << 17) + 1] {
            let sql = format!("SELECT count(*), sum(column1 * 2), max(column1) FROM count_to({rows})");
            let (total, most) =
                if rows == 0 { (String::new(), String::new()) } else { ((rows * (rows + 1)).to_string(), rows.to_string()) };
            check(&ctx, &sql, &[&format!("{rows},{total},{most}")]).await;
        }
        check(&ctx, "SELECT column2, column1 FROM divmod([7, 9, -3], 4)", &["3,1", "1,2", "-3,0"]).await;
        check(&ctx, "SELECT * FROM divmod(arrow_cast([], 'List(Int64)'), 4)", &[]).await;
        let sql = "SELECT count(*), sum(c.column1) FROM count_to(1000) c JOIN device.t ON c.column1 = t.i WHERE t.b";
        check(&ctx, sql, &["333,166833"]).await;
        check_fails(&ctx, "SELECT * FROM divmod([7], 0)", "divmod: futhark_entry_divmod: Error: division by zero").await;
        // The scan reads the rows in place, so only the answer goes to the host.
        let device = runtime(&ctx);
        let copied = fixture.counter("fixture_copied");
        let before = device.counters().unwrap();
        check(&ctx, "SELECT sum(column1) FROM count_to(100000)", &["5000050000"]).await;
        let after = device.counters().unwrap();
        let (up, down) = (after.bytes_up - before.bytes_up, after.bytes_down - before.bytes_down);
        assert!(up < 1000 && down < 1000, "{up} bytes up, {down} down");
        assert_eq!(fixture.counter("fixture_copied"), copied);
        let plan = explain(&ctx, "SELECT sum(column1) FROM count_to(10)").await;
        assert!(plan.contains("DeviceScanExec"), "{plan}");
        // A table can be read several times, and outlives its function.
        let table = ctx.sql("SELECT * FROM count_to(300)").await.unwrap();
        run(&ctx, "DROP FUNCTION count_to").await.unwrap();
        for _ in 0..2 {
            let rows: usize = table.clone().collect().await.unwrap().iter().map(RecordBatch::num_rows).sum();
            assert_eq!(rows, 300);
        }
        drop(table);
        // Host execution gives the same answers, also for rows on the device.
        run(&ctx, "CREATE VIEW divided AS SELECT * FROM divmod([7, 9, -3], 4)").await.unwrap();
        set(&ctx, "device.enabled", "false");
        check(&ctx, "SELECT column2, column1 FROM divided", &["3,1", "1,2", "-3,0"]).await;
        check(&ctx, "SELECT column2, column1 FROM divmod([7, 9, -3], 4)", &["3,1", "1,2", "-3,0"]).await;
        set(&ctx, "device.enabled", "true");
        drop(device);
        clean(ctx, &fixture).await;
    }
}

#[tokio::test]
async fn explain_names_the_function_and_the_library() {
    let Some((ctx, fixture)) = device_session("auto").await else { return };
    let plan = explain(&ctx, "SELECT scale(x, 2) AS twice FROM device.t").await;
    let library = fixture.object().canonicalize().unwrap();
    let file = library.file_name().unwrap().to_string_lossy().into_owned();
    assert!(plan.contains("DeviceFutharkExec: calls=[scale(x@0, 2)], libraries=[") && plan.contains(&file), "{plan}");
    set(&ctx, "device.fallback", "host");
    for (sql, reason) in [
        ("SELECT CASE WHEN i > 5 THEN add(i, i) END FROM device.t", "evaluates it for some rows only"),
        ("SELECT coalesce(n, add(i, i)) FROM device.t", "evaluates it for some rows only"),
        ("SELECT triple(small) FROM device.t", "the Futhark function triple works in host memory: it is called for each row"),
        ("SELECT scale(x, NULL) FROM device.t", "its argument k is NULL"),
        ("SELECT add(i, i), sum(i) OVER (ORDER BY add(i, n)) FROM device.t", "projections, filters and aggregations alone"),
    ] {
        let plan = explain(&ctx, sql).await;
        assert!(plan.contains(reason), "{sql}\n{plan}");
    }
    check(&ctx, "SELECT CASE WHEN i > 2998 THEN add(i, i) END FROM device.t WHERE i > 2997 ORDER BY 1", &["5998", "6000", ""])
        .await;
    clean(ctx, &fixture).await;
}

#[tokio::test]
async fn failures_inside_an_offloaded_subplan_are_errors_of_the_query() {
    device::skip_unless_turn!(0);
    let Some((ctx, fixture)) = device_session("auto").await else { return };
    // Failures when the library waits for its work, at once, and for rows without a value.
    check_fails(&ctx, "SELECT late(i - 10) FROM device.t", "late: futhark_entry_late: Error: the kernel failed").await;
    let error = check_fails(&ctx, "SELECT hungry(i - 10) FROM device.t", "no memory for 1 TiB").await;
    assert!(matches!(error.find_root(), DataFusionError::ResourcesExhausted(_)), "{error}");
    let problem = "positives gave 2989 values for 2999 rows: a scalar function must give each row its value";
    check_fails(&ctx, "SELECT positives(i - 11) FROM device.t WHERE i < 3000", problem.replace("2989", "2988").as_str()).await;
    // DataFusion's own message for a value out of range.
    check_fails(&ctx, "SELECT halve(i * 1000000) FROM device.t", "Can't cast value 2148000000 to type Int32").await;
    // This query has no failing rows: it reads other rows, or NULL in their place.
    check(&ctx, "SELECT count(late(i)), count(hungry(i)) FROM device.t", &["3000,3000"]).await;
    let below = "SELECT count(v) FROM (SELECT late(CASE WHEN i > 9 THEN i - 10 END) AS v FROM device.t)";
    check(&ctx, below, &["2991"]).await;
    clean(ctx, &fixture).await;
}

#[tokio::test]
async fn a_function_of_another_device_names_the_reason() {
    let Some((ctx, fixture)) = device_session("auto").await else { return };
    check(&ctx, "SELECT sum(scale(x, 2)) FROM device.t", &["4501500.0"]).await;
    let other = device::Context::new(device::testing::config().unwrap()).unwrap();
    let elsewhere = Fixture::opencl();
    // SAFETY: the manifest was written for this library.
    let library = unsafe { Library::open(elsewhere.manifest()) }.unwrap();
    let context = Context::on_device(&library, ContextConfig::default(), &other).unwrap();
    run(&ctx, "DROP FUNCTION add").await.unwrap();
    assert!(register_futhark(&ctx, &context).unwrap().registered.contains(&"add".to_owned()));
    check_fails(&ctx, "SELECT add(i, i) FROM device.t", "the Futhark function add shares another device than the query's").await;
    drop((context, library));
    let anew = format!("CREATE OR REPLACE FUNCTION add() LANGUAGE futhark AS '{}'", elsewhere.manifest().display());
    run(&ctx, &anew).await.unwrap();
    check(&ctx, "SELECT max(add(i, i)) FROM device.t", &["6000"]).await;
    drop(other);
    clean(ctx, &fixture).await;
}
