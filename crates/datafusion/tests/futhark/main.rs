// SPDX-License-Identifier: Apache-2.0
//! SQL functions of a library with Futhark's C API, from `CREATE FUNCTION` to the results of
//! queries.
//!
//! The library is `crates/futhark/tests/fixture`: hand-written C with counts of the objects that it
//! makes and frees.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

#[path = "../../../futhark/tests/fixture/mod.rs"]
mod fixture;
mod on_device;
mod page;
mod untrusted;

use std::path::Path;
use std::sync::Arc;

use arrow::array::{ArrayRef, Float16Array, Int64Array, ListArray, NullArray, RecordBatch, StructArray, UInt64Array};
use arrow::buffer::{NullBuffer, OffsetBuffer};
use arrow::compute::cast;
use arrow::datatypes::{DataType, Field, Fields};
use arrow::util::pretty::pretty_format_batches;
use datafusion::common::{DataFusionError, Result};
use datafusion::datasource::MemTable;
use datafusion::execution::context::{FunctionFactory, RegisterFunction, SessionConfig};
use datafusion::execution::runtime_env::RuntimeEnvBuilder;
use datafusion::execution::session_state::{SessionState, SessionStateBuilder};
use datafusion::logical_expr::CreateFunction;
use datafusion::prelude::SessionContext;
use devicefusion::{DeviceOptions, FutharkFunctions, SessionStateBuilderExt, register_futhark};
use futhark::{Context, ContextConfig, Library};
use futures::future::{BoxFuture, ready};

use crate::fixture::{Fixture, OutputStyle};

/// Host session that may load libraries.
fn session() -> SessionContext {
    let ctx = cautious_session();
    set(&ctx, "device.futhark", "true");
    ctx
}

/// Host session with default settings.
fn cautious_session() -> SessionContext {
    let config = SessionConfig::new().with_target_partitions(2).with_batch_size(3);
    let config = config.with_option_extension(DeviceOptions::default());
    let ctx = devicefusion::session_with(config, Arc::default()).unwrap();
    set(&ctx, "device.selector", "none");
    ctx
}

fn set(ctx: &SessionContext, key: &str, value: &str) {
    DeviceOptions::set_by_program(ctx.state_ref().write().config_mut().options_mut(), key, value).unwrap();
}

/// Creates functions under the names of their entry points.
async fn create(ctx: &SessionContext, fixture: &Fixture, names: &[&str]) {
    for name in names {
        run(ctx, &format!("CREATE FUNCTION {name}() LANGUAGE futhark AS '{}'", fixture.manifest().display())).await.unwrap();
    }
}

async fn run(ctx: &SessionContext, sql: &str) -> Result<Vec<RecordBatch>> {
    ctx.sql(sql).await?.collect().await
}

/// Returns the rows of a query: a line for each, with commas between values.
#[track_caller]
fn lines(batches: &[RecordBatch]) -> Vec<String> {
    let text = pretty_format_batches(batches).unwrap().to_string();
    let rows = text.lines().skip(3).filter(|line| line.starts_with('|'));
    rows.map(|line| line.trim_matches('|').split('|').map(str::trim).collect::<Vec<_>>().join(",")).collect()
}

async fn check(ctx: &SessionContext, sql: &str, expected: &[&str]) {
    assert_eq!(lines(&run(ctx, sql).await.unwrap()), expected, "{sql}");
}

async fn check_fails(ctx: &SessionContext, sql: &str, problem: &str) -> DataFusionError {
    let error = run(ctx, sql).await.unwrap_err();
    assert!(error.to_string().contains(problem), "{sql}: {error}");
    error
}

/// Ends a session, and asserts that the library has all its objects back.
async fn clean(ctx: SessionContext, fixture: &Fixture) {
    drop(ctx);
    // The runtime drops the tasks of failed queries with a delay.
    for _ in 0..1000 {
        if fixture.counter("fixture_contexts") == 0 {
            break;
        }
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
    fixture.assert_clean();
}

const NUMBERS: &str = "CREATE TABLE numbers AS SELECT column1 AS k, column2 AS i, column3 AS x FROM VALUES \
    ('a', 1, 1.5), ('b', NULL, 2.5), ('a', 3, NULL), ('b', 4, 4.5), ('a', 5, 5.5), ('c', NULL, NULL), ('b', 7, 7.5)";

#[tokio::test]
async fn scalar_functions_give_each_row_its_value() {
    let (ctx, fixture) = (session(), Fixture::new(OutputStyle::Outputs));
    create(&ctx, &fixture, &["scale", "add", "triple", "tuned"]).await;
    run(&ctx, NUMBERS).await.unwrap();
    let sql = "SELECT i, scale(x, 2), add(i, i + 1), triple(i) FROM numbers ORDER BY i";
    let expected = ["1,3.0,3,3", "3,,7,9", "4,9.0,9,12", "5,11.0,11,15", "7,15.0,15,21", ",5.0,,", ",,,"];
    check(&ctx, sql, &expected).await;
    // Constants, and no rows.
    check(&ctx, "SELECT scale(1.5, 2), add(1, 2), triple(14), tuned(), scale(1.5, NULL), triple(NULL)", &["3.0,3,42,0,,"]).await;
    check(&ctx, "SELECT add(i, i), triple(i) FROM numbers WHERE i > 100", &[]).await;
    check(&ctx, "SELECT scale(x, NULL) FROM numbers WHERE i = 1", &[""]).await;
    check(&ctx, "SELECT count(*) FROM numbers WHERE add(i, 1) > 4", &["3"]).await;
    clean(ctx, &fixture).await;
}

#[tokio::test]
async fn batches_are_called_one_by_one_and_in_parallel() {
    let (ctx, fixture) = (session(), Fixture::new(OutputStyle::Outputs));
    set(&ctx, "datafusion.execution.batch_size", "100");
    set(&ctx, "datafusion.execution.target_partitions", "4");
    create(&ctx, &fixture, &["add"]).await;
    let total = format!("CREATE FUNCTION total() LANGUAGE futhark AS '{}#sum'", fixture.manifest().display());
    run(&ctx, &total).await.unwrap();
    run(&ctx, "CREATE TABLE t AS SELECT value AS i, CASE WHEN value % 7 > 0 THEN value END AS n FROM generate_series(1, 10000)")
        .await
        .unwrap();
    check(&ctx, "SELECT count(*) FROM t WHERE add(i, n) <> i + n", &["0"]).await;
    check(&ctx, "SELECT count(add(i, n)), count(n) FROM t", &["8572,8572"]).await;
    let sql = "SELECT i % 3, total(n) = sum(n) FROM t GROUP BY 1 ORDER BY 1";
    check(&ctx, sql, &["0,true", "1,true", "2,true"]).await;
    clean(ctx, &fixture).await;
}

#[tokio::test]
async fn aggregates_get_all_rows_of_a_group() {
    let (ctx, fixture) = (session(), Fixture::new(OutputStyle::Outputs));
    let create_total = format!("CREATE FUNCTION total() LANGUAGE futhark AS '{}#sum'", fixture.manifest().display());
    run(&ctx, &create_total).await.unwrap();
    create(&ctx, &fixture, &["pick"]).await;
    run(&ctx, NUMBERS).await.unwrap();
    check(&ctx, "SELECT k, total(i) FROM numbers GROUP BY k ORDER BY k", &["a,9", "b,11", "c,"]).await;
    check(&ctx, "SELECT total(i), total(i) FILTER (WHERE k = 'a') FROM numbers", &["20,9"]).await;
    check(&ctx, "SELECT total(i) FROM numbers WHERE i > 100", &[""]).await;
    check(&ctx, "SELECT k, total(i) OVER (PARTITION BY k) FROM numbers WHERE i < 5 ORDER BY i", &["a,4", "a,4", "b,4"]).await;
    // A scalar parameter takes a constant.
    check(&ctx, "SELECT k, pick(i, 0) FROM numbers WHERE i < 5 AND i <> 3 GROUP BY k ORDER BY k", &["a,1", "b,4"]).await;
    check(&ctx, "SELECT pick(i, NULL) FROM numbers", &[""]).await;
    check_fails(&ctx, "SELECT pick(i, i) FROM numbers", "the argument i of pick is one value for all rows: pass a constant")
        .await;
    check_fails(&ctx, "SELECT pick(i, 99) FROM numbers", "pick: futhark_entry_pick: Error: index is out of bounds").await;
    check_fails(&ctx, "SELECT total(i ORDER BY i) FROM numbers", "takes neither DISTINCT nor ORDER BY").await;
    clean(ctx, &fixture).await;
}

#[tokio::test]
async fn rows_of_aggregates_count_as_memory() {
    // The second plan has an exchange, which holds rows as well.
    for (partitions, limit) in [(1, 2_000_000), (2, 4_000_000)] {
        let fixture = Fixture::new(OutputStyle::Outputs);
        let runtime = RuntimeEnvBuilder::new().with_memory_limit(limit, 1.0).build_arc().unwrap();
        let config = SessionConfig::new().with_target_partitions(partitions).with_option_extension(DeviceOptions::default());
        let ctx = devicefusion::session_with(config, runtime).unwrap();
        set(&ctx, "device.selector", "none");
        set(&ctx, "device.futhark", "true");
        let total = format!("CREATE FUNCTION total() LANGUAGE futhark AS '{}#sum'", fixture.manifest().display());
        run(&ctx, &total).await.unwrap();
        // One batch with all rows is split into slices. Each slice counts, not the whole batch each
        // time.
        let values = Int64Array::from_iter_values(0..100_000);
        let batch = RecordBatch::try_from_iter([("v", Arc::new(values) as ArrayRef)]).unwrap();
        ctx.register_table("t", Arc::new(MemTable::try_new(batch.schema(), vec![vec![batch]]).unwrap())).unwrap();
        check(&ctx, "SELECT total(v) FROM t", &["4999950000"]).await;
        let error = run(&ctx, "SELECT total(value) FROM generate_series(1, 1000000)").await.unwrap_err();
        assert!(matches!(error.find_root(), DataFusionError::ResourcesExhausted(_)), "{error}");
        clean(ctx, &fixture).await;
    }
}

#[tokio::test]
async fn tables_have_the_columns_of_records() {
    for style in [OutputStyle::Outputs, OutputStyle::Output] {
        let (ctx, fixture) = (session(), Fixture::new(style));
        create(&ctx, &fixture, &["listing", "count_to", "matrix", "cube", "divmod", "span", "ragged"]).await;
        check(&ctx, "SELECT * FROM listing(3)", &["true,0.0,0", "false,0.5,1", "true,1.0,2"]).await;
        check(&ctx, "SELECT sum(key) FROM listing(100) WHERE even", &["2450"]).await;
        check(&ctx, "SELECT * FROM listing(0)", &[]).await;
        check(&ctx, "SELECT sum(column1) FROM count_to(10)", &["55"]).await;
        check(&ctx, "SELECT count(*) FROM count_to(-5)", &["0"]).await;
        check(&ctx, "SELECT * FROM divmod([7, 9, -3], 4)", &["1,3", "2,1", "0,-3"]).await;
        check(&ctx, "SELECT * FROM divmod(arrow_cast([], 'List(Int64)'), 4)", &[]).await;
        check(&ctx, "SELECT highest - lowest FROM span([4, -2, 9])", &["11"]).await;
        check(&ctx, "SELECT * FROM matrix(2, 3)", &["[0.0, 1.0, 2.0]", "[3.0, 4.0, 5.0]"]).await;
        check(&ctx, "SELECT arrow_typeof(column1) FROM matrix(1, 2)", &["FixedSizeList(2 x non-null Float32)"]).await;
        check(&ctx, "SELECT count(*), count(column1) FROM matrix(2, 0)", &["2,2"]).await;
        check(&ctx, "SELECT count(*) FROM matrix(0, 2)", &["0"]).await;
        check(&ctx, "SELECT * FROM cube(2, 1, 3)", &["[[0.0, 1.0, 2.0]]", "[[3.0, 4.0, 5.0]]"]).await;
        check(&ctx, "SELECT * FROM cube(2, 3, 0)", &["[[], [], []]", "[[], [], []]"]).await;
        check_fails(&ctx, "SELECT * FROM ragged(4)", "ragged gave columns that differ in length: even 2, half 4, key 4").await;
        check_fails(&ctx, "SELECT * FROM divmod([1, NULL], 4)", "the argument xs of divmod is NULL, or has NULLs").await;
        check_fails(&ctx, "SELECT * FROM count_to(NULL)", "the argument n of count_to is NULL").await;
        check_fails(&ctx, "SELECT * FROM divmod(7, 4)", "the argument xs of divmod must be a list").await;
        check_fails(&ctx, "SELECT * FROM count_to([1])", "the argument n of count_to must be one value").await;
        check_fails(&ctx, "SELECT * FROM count_to()", "takes 1 arguments, not 0").await;
        check_fails(&ctx, "SELECT * FROM divmod([1], 0)", "divmod: futhark_entry_divmod: Error: division by zero").await;
        clean(ctx, &fixture).await;
    }
}

#[tokio::test]
async fn columns_of_all_types_round_trip() {
    let (ctx, fixture) = (session(), Fixture::new(OutputStyle::Outputs));
    let halves = Arc::new(Float16Array::from_iter([0.0, 1.0, 2.0, 100.0].map(half::f16::from_f32))) as ArrayRef;
    for (name, data_type) in [
        ("i8", DataType::Int8),
        ("i16", DataType::Int16),
        ("i32", DataType::Int32),
        ("i64", DataType::Int64),
        ("u8", DataType::UInt8),
        ("u16", DataType::UInt16),
        ("u32", DataType::UInt32),
        ("u64", DataType::UInt64),
        ("f16", DataType::Float16),
        ("f32", DataType::Float32),
        ("f64", DataType::Float64),
        ("bool", DataType::Boolean),
    ] {
        create(&ctx, &fixture, &[&format!("id_{name}")]).await;
        let values = cast(&halves, &data_type).unwrap();
        // A slice whose bits start within a byte, with NULLs at the start and in the middle.
        let with_nulls = arrow::compute::take(
            &values,
            &arrow::array::UInt32Array::from(vec![None, Some(3), None, Some(1), Some(0), Some(2)]),
            None,
        );
        let column = with_nulls.unwrap().slice(1, 5);
        let batch = RecordBatch::try_from_iter_with_nullable([("v", column, true)]).unwrap();
        ctx.register_table("t", Arc::new(MemTable::try_new(batch.schema(), vec![vec![batch]]).unwrap())).unwrap();
        let sql = format!("SELECT count(*), count(v), count(*) FILTER (WHERE id_{name}(v) IS NOT DISTINCT FROM v) FROM t");
        check(&ctx, &sql, &["5,4,5"]).await;
        let sql = format!("SELECT DISTINCT arrow_typeof(id_{name}(v)) FROM t");
        check(&ctx, &sql, &[&data_type.to_string()]).await;
        ctx.deregister_table("t").unwrap();
    }
    create(&ctx, &fixture, &["flip"]).await;
    check(&ctx, "SELECT flip(column1) FROM VALUES (true), (NULL), (false)", &["false", "", "true"]).await;
    clean(ctx, &fixture).await;
}

#[tokio::test]
async fn lists_are_more_dimensions() {
    let (ctx, fixture) = (session(), Fixture::new(OutputStyle::Outputs));
    create(&ctx, &fixture, &["row_sums", "any_set", "transposed"]).await;
    let points = "CREATE TABLE points AS SELECT column1 AS i, column2 AS p FROM VALUES \
        (1, [1, 2]), (2, NULL), (3, [3, 4]), (4, [5, 6]), (5, [7, 8])";
    run(&ctx, points).await.unwrap();
    check(&ctx, "SELECT i, row_sums(p) FROM points ORDER BY i", &["1,3.0", "2,", "3,7.0", "4,11.0", "5,15.0"]).await;
    // Lists of fixed size.
    let sql = "SELECT row_sums(column1) FROM transposed([[1, 2, 3], [4, 5, 6]]) WHERE column1[1] > 1";
    check(&ctx, sql, &["7.0", "9.0"]).await;
    check(&ctx, "SELECT row_sums([1, 2, 3.5]), row_sums([]), row_sums(NULL)", &["6.5,0.0,"]).await;
    check(
        &ctx,
        "SELECT i % 2, any_set([[i > 4, false], [false, i = 9]]) FROM points GROUP BY 1 ORDER BY 1",
        &["0,false", "1,true"],
    )
    .await;
    check(&ctx, "SELECT * FROM transposed([[1, 2, 3], [4, 5, 6]])", &["[1.0, 4.0]", "[2.0, 5.0]", "[3.0, 6.0]"]).await;
    let problem = "row_sums: the argument xss: lists of 2 and of 1 values are no array";
    check_fails(&ctx, "SELECT row_sums(column1) FROM VALUES ([1, 2]), ([3])", problem).await;
    check_fails(&ctx, "SELECT row_sums([1, NULL])", "row_sums: the argument xss: a list with a NULL is no array").await;
    check_fails(&ctx, "SELECT row_sums(i) FROM points", "Int64 is not accepted for List(Float64)").await;
    check_fails(&ctx, "SELECT * FROM transposed([1, 2])", "Int64 is not accepted for List(Float64)").await;
    clean(ctx, &fixture).await;
}

#[tokio::test]
async fn times_are_handed_over_as_integers() {
    let (ctx, fixture) = (session(), Fixture::new(OutputStyle::Outputs));
    let path = fixture.manifest().display().to_string();
    let declared = format!("CREATE FUNCTION later(t TIMESTAMP, d BIGINT) RETURNS TIMESTAMP LANGUAGE futhark AS '{path}#add'");
    run(&ctx, &declared).await.unwrap();
    let declared = format!("CREATE FUNCTION thrice(d DATE) RETURNS DATE LANGUAGE futhark AS '{path}#triple'");
    run(&ctx, &declared).await.unwrap();
    create(&ctx, &fixture, &["add"]).await;
    check(
        &ctx,
        "SELECT later(column1, 1000000000) FROM VALUES (TIMESTAMP '2024-02-29T23:59:59'), (NULL)",
        &["2024-03-01T00:00:00", ""],
    )
    .await;
    check(&ctx, "SELECT thrice(DATE '1970-01-11')", &["1970-01-31"]).await;
    // Without declared types, a timestamp argument is its integer, and so is the result.
    check(&ctx, "SELECT add(TIMESTAMP '1970-01-01T00:00:01', 5)", &["1000000005"]).await;
    clean(ctx, &fixture).await;
}

#[tokio::test]
async fn failures_are_errors_of_the_query() {
    let (ctx, fixture) = (session(), Fixture::new(OutputStyle::Outputs));
    create(&ctx, &fixture, &["checked", "late", "hungry", "positives", "triple"]).await;
    run(&ctx, "CREATE TABLE t AS SELECT 2 - value AS i FROM generate_series(0, 5)").await.unwrap();
    check_fails(&ctx, "SELECT checked(i) FROM t", "checked: futhark_entry_checked: Error: assertion failed").await;
    check_fails(&ctx, "SELECT late(i) FROM t", "late: futhark_entry_late: Error: the kernel failed").await;
    let error = check_fails(&ctx, "SELECT hungry(i) FROM t", "hungry: futhark_entry_hungry: out of memory").await;
    assert!(matches!(error.find_root(), DataFusionError::ResourcesExhausted(_)), "{error:?}");
    let problem = "positives gave 2 values for 3 rows: a scalar function must give each row its value";
    check_fails(&ctx, "SELECT positives(column1) FROM VALUES (2), (-1), (5)", problem).await;
    check_fails(&ctx, "SELECT triple(CAST(-2147483648 AS INT))", "Error: too small to triple").await;
    check_fails(&ctx, "SELECT triple(i * 5000000000) FROM t", "the argument x of triple: Cast error: Can't cast value").await;
    // The session and the library still work.
    check(&ctx, "SELECT checked(i), late(i), hungry(i) FROM t WHERE i >= 1 ORDER BY i", &["1,1,1", "2,2,2"]).await;
    clean(ctx, &fixture).await;
}

#[tokio::test]
async fn unsupported_functions_are_refused_with_the_reason() {
    let (ctx, fixture) = (session(), Fixture::new(OutputStyle::Outputs));
    let path = fixture.manifest().display().to_string();
    for (sql, problem) in [
        ("CREATE FUNCTION f() LANGUAGE futhark AS 'PATH'", "there is no entry point f; there are add, any_set, area, "),
        ("CREATE FUNCTION f() LANGUAGE futhark AS '/nowhere/program.json'", "/nowhere/program.json: No such file or directory"),
        ("CREATE FUNCTION f() LANGUAGE futhark", "needs the path of a manifest: AS '/path/program.json'"),
        (
            "CREATE FUNCTION f() LANGUAGE python AS 'x'",
            "Function factory has not been configured; without one there is LANGUAGE futhark only",
        ),
        ("CREATE FUNCTION f() AS 'x'", "Function factory has not been configured"),
        ("CREATE FUNCTION sum() LANGUAGE futhark AS 'PATH'", "there is a function sum already, of the kind aggregate"),
        (
            "CREATE OR REPLACE FUNCTION sum() LANGUAGE futhark AS 'PATH#triple'",
            "the function sum is of the kind aggregate, and would be scalar too; DROP FUNCTION sum before",
        ),
        (
            "CREATE FUNCTION scale(x DOUBLE) LANGUAGE futhark AS 'PATH'",
            "scale is (xs: []f64, k: f64) -> []f64 and takes 2 arguments, not 1",
        ),
        (
            "CREATE FUNCTION scale(x DOUBLE, k BIGINT) LANGUAGE futhark AS 'PATH'",
            "the parameter k of scale: it is Float64, which Int64 is not",
        ),
        (
            "CREATE FUNCTION add(x DECIMAL(9, 2), y BIGINT) LANGUAGE futhark AS 'PATH'",
            "the parameter xs of add: decimals have no Futhark type; use DOUBLE or BIGINT",
        ),
        (
            "CREATE FUNCTION add() RETURNS DOUBLE LANGUAGE futhark AS 'PATH'",
            "the result of add: it is Int64, which Float64 is not",
        ),
        (
            "CREATE FUNCTION matrix() RETURNS REAL LANGUAGE futhark AS 'PATH'",
            "matrix gives columns that are the manifest's: leave RETURNS out",
        ),
    ] {
        check_fails(&ctx, &sql.replace("PATH", &path), problem).await;
    }
    create(&ctx, &fixture, &["scale", "add"]).await;
    run(&ctx, NUMBERS).await.unwrap();
    for (sql, problem) in [
        ("SELECT scale(k, 2) FROM numbers", "the argument xs of scale, which is (xs: []f64, k: f64) -> []f64: Utf8"),
        ("SELECT scale(x) FROM numbers", "takes 2 arguments, not 1"),
        ("SELECT add(x, i) FROM numbers", "Float64 is not accepted for Int64; cast it"),
        ("SELECT add(CAST(i AS DECIMAL(9, 2)), i) FROM numbers", "decimals have no Futhark type; use DOUBLE or BIGINT"),
        ("SELECT scale(x, x) FROM numbers", "the argument k of scale is one value for all rows: pass a constant"),
    ] {
        check_fails(&ctx, sql, problem).await;
    }
}

#[tokio::test]
async fn functions_are_listed_replaced_and_dropped() {
    let (ctx, fixture) = (session(), Fixture::new(OutputStyle::Output));
    create(&ctx, &fixture, &["scale", "pick", "matrix"]).await;
    let listed = async |name: &str| {
        let rows = lines(&run(&ctx, &format!("SHOW FUNCTIONS LIKE '{name}'")).await.unwrap());
        rows.join("\n")
    };
    let from = format!("of {}", fixture.object().canonicalize().unwrap().display());
    let scale = format!(
        "scale,Float64,[xs, k],[Float64, Float64],SCALAR,The function scale. Futhark: (xs: []f64, k: f64) -> []f64, {from},scale(xs, k)"
    );
    assert_eq!(listed("scale").await, scale);
    let pick = listed("pick").await;
    assert!(pick.starts_with("pick,Int64,[xs, i],[Int64, Int64],AGGREGATE,"), "{pick}");
    // For other table functions, DataFusion lists only their existence.
    create(&ctx, &fixture, &["listing", "divmod"]).await;
    for (name, types, signature, call) in [
        ("matrix", "column1 List(Float32)", "(n: i64, m: i64) -> [][]f32", "matrix(n Int64, m Int64)"),
        ("listing", "even Boolean, half Float64, key Int64", "(n: i64) -> table", "listing(n Int64)"),
        ("divmod", "column1 Int64, column2 Int64", "(xs: []i64, d: i64) -> ([]i64, []i64)", "divmod(xs List(Int64), d Int64)"),
    ] {
        let line = format!("{name},TABLE({types}),,,TABLE,The function {name}. Futhark: {signature}, {from},{call}");
        assert_eq!(listed(name).await, line);
    }
    assert!(listed("range").await.lines().any(|line| line == "range,TABLE,,,TABLE,,"), "{}", listed("range").await);
    check(
        &ctx,
        "SELECT data_type FROM information_schema.routines WHERE routine_name = 'matrix'",
        &["TABLE(column1 List(Float32))"],
    )
    .await;

    check_fails(
        &ctx,
        &format!("CREATE FUNCTION scale() LANGUAGE futhark AS '{}'", fixture.manifest().display()),
        "CREATE OR REPLACE",
    )
    .await;
    let other = format!("CREATE OR REPLACE FUNCTION scale() LANGUAGE futhark AS '{}#add'", fixture.manifest().display());
    run(&ctx, &other).await.unwrap();
    check(&ctx, "SELECT scale(1, 2)", &["3"]).await;
    run(&ctx, "DROP FUNCTION scale").await.unwrap();
    assert_eq!(listed("scale").await, "");
}

#[tokio::test]
async fn functions_of_a_library_share_its_context() {
    let (ctx, fixture) = (session(), Fixture::new(OutputStyle::Outputs));
    create(&ctx, &fixture, &["scale", "pick", "count_to"]).await;
    assert_eq!(fixture.counter("fixture_contexts"), 1);
    // Another manifest is another library.
    fixture.write_manifest(&fixture::manifest(OutputStyle::Outputs));
    create(&ctx, &fixture, &["add"]).await;
    assert_eq!(fixture.counter("fixture_contexts"), 2);
    for name in ["scale", "pick", "count_to"] {
        run(&ctx, &format!("DROP FUNCTION {name}")).await.unwrap();
    }
    assert_eq!(fixture.counter("fixture_contexts"), 1);
    check(&ctx, "SELECT add(1, 2)", &["3"]).await;
    check_fails(&ctx, "SELECT scale(1.0, 2)", "Invalid function 'scale'").await;
    // Other tuning parameters make another library as well.
    for (name, from) in [
        ("tuned", "tuned?tuning.program.threshold_0=7"),
        ("tuned_too", "tuned?tuning.program.threshold_0=7"),
        ("tuned_more", "tuned?tuning.program.threshold_0=9&returns=table"),
        ("untuned", "tuned"),
    ] {
        create_as(&ctx, &fixture, name, from).await;
    }
    assert_eq!(fixture.counter("fixture_contexts"), 3);
    check(&ctx, "SELECT tuned(), tuned_too(), tuned_more(), untuned()", &["7,7,9,0"]).await;
    for (said, problem) in [
        ("tuning.program.nothing=7", "the tuning parameter program.nothing cannot be set; there are program.threshold_0, "),
        ("tuning.program.threshold_0=many", "tuning.program.threshold_0=many: many is no natural number"),
    ] {
        let sql = format!("CREATE FUNCTION other() LANGUAGE futhark AS '{}#tuned?{said}'", fixture.manifest().display());
        check_fails(&ctx, &sql, problem).await;
    }
    clean(ctx, &fixture).await;
}

/// Function factory of an application.
#[derive(Debug)]
struct Own;

impl FunctionFactory for Own {
    // Not `async`, see CONTRIBUTING.md.
    fn create<'factory, 'session, 'function>(
        &'factory self,
        _: &'session SessionState,
        statement: CreateFunction,
    ) -> BoxFuture<'function, Result<RegisterFunction>>
    where
        'factory: 'function,
        'session: 'function,
        Self: 'function,
    {
        Box::pin(ready(datafusion::common::exec_err!("{} was asked of the user's own factory", statement.name)))
    }
}

#[tokio::test]
async fn other_languages_use_the_previous_factory() {
    let builder = SessionStateBuilder::new().with_default_features().with_function_factory(Some(Arc::new(Own)));
    let ctx = SessionContext::new_with_state(builder.with_device().build());
    check_fails(&ctx, "CREATE FUNCTION f() LANGUAGE python AS 'x'", "f was asked of the user's own factory").await;
    check_fails(&ctx, "CREATE FUNCTION f() LANGUAGE futhark AS 'x'", "device.futhark = false").await;
}

/// The code of `docs/futhark.md`.
fn register(ctx: &SessionContext, manifest: &Path) -> std::result::Result<FutharkFunctions, Box<dyn std::error::Error>> {
    // SAFETY: built from the program beside it, with the manifest that came with it.
    let library = unsafe { Library::open(manifest) }?;
    let config = ContextConfig { tuning: vec![("program.threshold_0".to_owned(), 7)], ..ContextConfig::default() };
    let context = Context::new(&library, config)?;
    let functions = register_futhark(ctx, &context)?;
    for (name, reason) in &functions.refused {
        eprintln!("{name}: {reason}");
    }
    Ok(functions)
}

#[tokio::test]
async fn rust_registers_a_whole_library() {
    let (ctx, fixture) = (cautious_session(), Fixture::new(OutputStyle::Outputs));
    let functions = register(&ctx, &fixture.manifest()).unwrap();
    let refused: Vec<&str> = functions.refused.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(refused, ["filed", "sum"]);
    assert!(functions.refused[0].1.ends_with("?returns=struct makes a struct of them"), "{:?}", functions.refused);
    assert!(functions.refused[1].1.starts_with("there is a function sum already"), "{:?}", functions.refused);
    assert_eq!(
        functions.registered.len() + 2,
        fixture::manifest(OutputStyle::Outputs)["entry_points"].as_object().unwrap().len()
    );
    check(&ctx, "SELECT tuned(), add(1, 2)", &["7,3"]).await;
    // Entry points that consume an argument get a copy.
    check(&ctx, "SELECT bump(column1), column1 FROM VALUES (1), (NULL), (5)", &["2,1", ",", "6,5"]).await;
    clean(ctx, &fixture).await;
}

#[tokio::test]
async fn explain_shows_functions_on_the_host() {
    let (ctx, fixture) = (session(), Fixture::new(OutputStyle::Outputs));
    set(&ctx, "device.selector", &device::testing::config().unwrap().selector.to_string());
    set(&ctx, "device.cost", "always");
    create(&ctx, &fixture, &["add", "pick"]).await;
    run(&ctx, NUMBERS).await.unwrap();
    let plan = async |sql: &str| pretty_format_batches(&run(&ctx, &format!("EXPLAIN {sql}")).await.unwrap()).unwrap().to_string();
    let scalar = plan("SELECT add(i, i) FROM numbers WHERE i > 2").await;
    assert!(scalar.contains("the Futhark function add works in host memory"), "{scalar}");
    assert!(scalar.contains("DeviceFilterExec"), "{scalar}");
    let aggregate = plan("SELECT pick(i, 0) FROM numbers").await;
    assert!(aggregate.contains("the Futhark function pick works in host memory"), "{aggregate}");
    check(&ctx, "SELECT add(i, i) FROM numbers WHERE i > 4 ORDER BY 1", &["10", "14"]).await;
    set(&ctx, "device.fallback", "error");
    check_fails(&ctx, "SELECT add(i, i) FROM numbers", "the Futhark function add works in host memory").await;
}

#[tokio::test]
async fn libraries_of_multicore_work_in_host_memory() {
    let (ctx, fixture) = (session(), Fixture::multicore());
    set(&ctx, "device.selector", &device::testing::config().unwrap().selector.to_string());
    set(&ctx, "device.cost", "always");
    create(&ctx, &fixture, &["scale"]).await;
    create_as(&ctx, &fixture, "total", "sum").await;
    run(&ctx, NUMBERS).await.unwrap();
    check(&ctx, "SELECT k, sum(scale(x, 2)), total(i) FROM numbers GROUP BY k ORDER BY k", &["a,14.0,9", "b,29.0,11", "c,,"])
        .await;
    assert!(fixture.counter("fixture_slices") > 0);
    let plan = pretty_format_batches(&run(&ctx, "EXPLAIN SELECT scale(x, 2) FROM numbers").await.unwrap()).unwrap().to_string();
    assert!(plan.contains("the Futhark function scale works in host memory: its back end is multicore"), "{plan}");
    clean(ctx, &fixture).await;
    assert_eq!(fixture.counter("fixture_threads"), 0);
}

#[tokio::test]
async fn masks_say_where_there_are_values() {
    for style in [OutputStyle::Outputs, OutputStyle::Output] {
        let (ctx, fixture) = (session(), Fixture::new(style));
        for name in ["fill", "halves"] {
            let create =
                format!("CREATE FUNCTION {name}() LANGUAGE futhark AS '{}#{name}?nulls=mask'", fixture.manifest().display());
            run(&ctx, &create).await.unwrap();
        }
        run(&ctx, NUMBERS).await.unwrap();
        let sql = "SELECT i, fill(i, -1), halves(i), halves(i - 1) FROM numbers ORDER BY i";
        check(&ctx, sql, &["1,1,,0", "3,3,,1", "4,4,2,", "5,5,,2", "7,7,,3", ",-1,,", ",-1,,"]).await;
        check(&ctx, "SELECT fill(NULL, 3), fill(2, 3), fill(2, NULL), halves(8)", &["3,2,,4"]).await;
        check(&ctx, "SELECT fill(i, 0) FROM numbers WHERE i > 100", &[]).await;
        let manifest = fixture.manifest();
        for (entry_point, problem) in [
            ("add?nulls=mask", "behind its parameter xs there is no mask, an array of bool"),
            ("sum?nulls=mask", "behind its parameter xs there is no mask, an array of bool"),
            ("row_sums?nulls=mask", "its parameter xss has several dimensions, and a mask only one"),
            ("triple?nulls=mask", "with nulls=mask it must take arrays, and give one, or one and its mask"),
            (
                "fill?nulls=some",
                "nulls=some: must be nulls=strict, nulls=mask, returns=table, returns=struct or tuning.NAME=NUMBER",
            ),
        ] {
            let sql = format!("CREATE FUNCTION other() LANGUAGE futhark AS '{}#{entry_point}'", manifest.display());
            check_fails(&ctx, &sql, problem).await;
        }
        clean(ctx, &fixture).await;
    }
}

#[tokio::test]
async fn records_are_structs() {
    for style in [OutputStyle::Outputs, OutputStyle::Output] {
        let (ctx, fixture) = (session(), Fixture::new(style));
        create(&ctx, &fixture, &["area", "weigh"]).await;
        for (name, from) in [("parts", "divmod"), ("corner", "corner")] {
            let path = fixture.manifest();
            let create = format!("CREATE FUNCTION {name}() LANGUAGE futhark AS '{}#{from}?returns=struct'", path.display());
            run(&ctx, &create).await.unwrap();
        }
        run(&ctx, NUMBERS).await.unwrap();
        // Fields are matched by name. A NULL in a struct makes the whole struct NULL.
        let sql = "SELECT i, area({width: i, height: 2}), area(named_struct('height', x, 'width', i)) FROM numbers ORDER BY i";
        check(&ctx, sql, &["1,2.0,1.5", "3,6.0,", "4,8.0,18.0", "5,10.0,27.5", "7,14.0,52.5", ",,", ",,"]).await;
        let sql = "SELECT i, weigh({key: i, half: i * 0.5, even: i % 2 = 0}) FROM numbers ORDER BY i";
        check(&ctx, sql, &["1,0.5", "3,4.5", "4,2.0", "5,12.5", "7,24.5", ",", ","]).await;
        check(&ctx, "SELECT weigh({key: i, half: x, even: true}) FROM numbers WHERE i > 100", &[]).await;
        let sql = "SELECT i, parts(i, 2), parts(i, 2)['c1'] FROM numbers WHERE i < 4 OR i IS NULL ORDER BY i";
        check(&ctx, sql, &["1,{c0: 0, c1: 1},1", "3,{c0: 1, c1: 1},1", ",,", ",,"]).await;
        check(&ctx, "SELECT arrow_typeof(parts(1, 2))", &["Struct(\"c0\": Int64, \"c1\": Int64)"]).await;
        check(
            &ctx,
            "SELECT corner(i, 2), area(corner(i, x)) FROM numbers WHERE i = 4 OR i = 3 ORDER BY i",
            &["{height: 2.0, width: 3.0},", "{height: 2.0, width: 4.0},18.0"],
        )
        .await;
        check_fails(&ctx, "SELECT area({width: 1})", "the struct has no field height").await;
        check_fails(&ctx, "SELECT area({width: 1, height: 2, depth: 3})", "the struct has 3 fields, must have 2").await;
        check_fails(&ctx, "SELECT area({width: 1, height: 'a'})", "its field height: ").await;
        check_fails(&ctx, "SELECT area(1)", "is not accepted for").await;
        check_fails(&ctx, "SELECT parts(i, 0) FROM numbers", "divmod: Error: division by zero").await;
        let create =
            |entry: &str| format!("CREATE FUNCTION other() LANGUAGE futhark AS '{}#{entry}'", fixture.manifest().display());
        check_fails(&ctx, &create("sum?returns=struct"), "with returns=struct it must give a record or tuple").await;
        check_fails(&ctx, &create("describe?returns=struct"), "with returns=struct it must give a record or tuple").await;
        // Functions of all rows take and return structs too.
        create_as(&ctx, &fixture, "spread", "span?returns=struct").await;
        self::create(&ctx, &fixture, &["worth", "doubled"]).await;
        let sql = "SELECT k, spread(i), worth({key: i, half: x, even: true}) FROM numbers GROUP BY k ORDER BY k";
        check(&ctx, sql, &["a,{highest: 5, lowest: 1},7.0", "b,{highest: 7, lowest: 4},12.0", "c,,"]).await;
        let sql = "SELECT key, half FROM doubled([{key: 1, half: 1.5, even: true}, {key: 2, half: 2.5, even: false}])";
        check(&ctx, sql, &["1,3.0", "2,5.0"]).await;
        let problem = "the argument t of doubled is NULL, or has NULLs";
        check_fails(&ctx, "SELECT * FROM doubled([{key: 1, half: NULL, even: true}])", problem).await;
        clean(ctx, &fixture).await;
    }
}

/// Creates a function under another name, from an entry point and its options.
async fn create_as(ctx: &SessionContext, fixture: &Fixture, name: &str, from: &str) {
    run(ctx, &format!("CREATE FUNCTION {name}() LANGUAGE futhark AS '{}#{from}'", fixture.manifest().display())).await.unwrap();
}

#[tokio::test]
async fn sums_are_structs_that_name_the_variant() {
    for style in [OutputStyle::Outputs, OutputStyle::Output] {
        let (ctx, fixture) = (session(), Fixture::new(style));
        create(&ctx, &fixture, &["classify", "describe", "grow", "bundle", "items"]).await;
        run(&ctx, NUMBERS).await.unwrap();
        let sql = "SELECT i, classify(i - 2) FROM numbers WHERE i < 5 OR k = 'c' ORDER BY i";
        let some = |i: i64, list: &str| format!("{},{{variant: some, some_0: {}, some_1: {list}}}", i + 2, i);
        let expected = ["1,{variant: none, some_0: , some_1: }", &some(1, "[0]"), &some(2, "[0, 1]"), ","];
        check(&ctx, sql, &expected).await;
        let of = "Struct(\"variant\": Utf8, \"some_0\": Int64, \"some_1\": List(Int64))";
        check(&ctx, "SELECT arrow_typeof(classify(1))", &[of]).await;
        // Values go there and back, and SQL reads their fields.
        let sql = "SELECT describe(classify(i)), classify(i)['some_1'][2], classify(i - 5)['variant'] AS v, count(*) FROM numbers \
            WHERE i > 1 GROUP BY i ORDER BY i";
        check(&ctx, sql, &["303,1,none,1", "404,1,none,1", "505,1,some,1", "707,1,some,1"]).await;
        check(&ctx, "SELECT classify(i) FROM numbers WHERE i > 100", &[]).await;
        // A payload of one value has the variant's name. Fields of other variants are ignored and
        // optional.
        let sql = "SELECT grow(column1, 2) FROM VALUES ({variant: 'circle', circle: 1.5, oblong_0: NULL, oblong_1: NULL}), \
            ({variant: 'dot', circle: 9, oblong_0: NULL, oblong_1: NULL}), ({variant: 'oblong', circle: NULL, oblong_0: 1, oblong_1: 2}), \
            ({variant: 'oblong', circle: 1, oblong_0: 1, oblong_1: NULL}), ({variant: NULL, circle: 1, oblong_0: 1, oblong_1: 2}), (NULL)";
        let shape = |variant: &str, circle: &str, w: &str, h: &str| {
            format!("{{variant: {variant}, circle: {circle}, oblong_0: {w}, oblong_1: {h}}}")
        };
        let (circle, dot, oblong) = (shape("circle", "3.0", "", ""), shape("dot", "", "", ""), shape("oblong", "", "2.0", "4.0"));
        check(&ctx, sql, &[&circle, &dot, &oblong, "", "", ""]).await;
        check(&ctx, "SELECT grow({variant: 'dot'}, 2)['variant'], describe({variant: 'none'}), describe(NULL)", &["dot,-1,"])
            .await;
        check(&ctx, "SELECT describe({variant: 'some', some_0: 3, some_1: [7, 8]})", &["302"]).await;
        // Aggregates return them, and table functions take them.
        let bundled = ["a,{variant: some, some_0: 9, some_1: [1, 3, 5]}", "b,{variant: none, some_0: , some_1: }", "c,"];
        check(&ctx, "SELECT k, bundle(i) FROM numbers WHERE i IS NULL OR i < 7 GROUP BY k ORDER BY k", &bundled).await;
        check(&ctx, "SELECT * FROM items({variant: 'some', some_0: 0, some_1: [4, 5]})", &["4", "5"]).await;
        for (sql, problem) in [
            ("SELECT describe({variant: 'many'})", "describe: answer has no variant 'many'; there are none, some"),
            ("SELECT describe({some_0: 3})", "the struct has no field variant, which names one of none, some"),
            ("SELECT describe({variant: 3})", "its field variant is Int64, must be a string"),
            ("SELECT describe({variant: 'none', many: 3})", "has no field many"),
            ("SELECT describe({variant: 'some', some_0: 'x'})", "its field some_0: Utf8 is not accepted for Int64; cast it"),
            (
                "SELECT describe({variant: 'some', some_0: 3, some_1: [1, NULL]})",
                "the argument some_1: a list with a NULL is no array",
            ),
            ("SELECT describe(3)", "Int64 is not accepted for Struct("),
            ("SELECT * FROM items({variant: 'some', some_0: 3})", "the argument a of items is NULL, or has NULLs"),
        ] {
            check_fails(&ctx, sql, problem).await;
        }
        let mut manifest = fixture::manifest(style);
        manifest["types"]["answer"]["sum"]["variants"][1]["payload"] = serde_json::json!(["state", "[]i64"]);
        manifest["types"]["state"]["ops"].as_object_mut().unwrap().remove("store");
        fixture.write_manifest(&manifest);
        let create = format!("CREATE FUNCTION other() LANGUAGE futhark AS '{}#describe'", fixture.manifest().display());
        let problem = "its parameter a: the variant some of answer: its value some_0 is of type state, which cannot be stored";
        check_fails(&ctx, &create, problem).await;
        clean(ctx, &fixture).await;
    }
}

#[tokio::test]
async fn unused_values_may_be_out_of_range() {
    let (ctx, fixture) = (session(), Fixture::new(OutputStyle::Outputs));
    create(&ctx, &fixture, &["describe", "balance"]).await;
    let big = "CREATE TABLE big AS SELECT column1 AS i, column2 AS u, arrow_cast([column2], 'List(UInt64)') AS us \
        FROM (VALUES (1, arrow_cast(7, 'UInt64')), (2, arrow_cast('18446744073709551615', 'UInt64')))";
    run(&ctx, big).await.unwrap();
    let some = "{variant: 'some', some_0: u, some_1: us}";
    check_fails(&ctx, &format!("SELECT describe({some}) FROM big"), "18446744073709551615").await;
    // Values cut off by LIMIT, of another variant, and of no variant.
    check(&ctx, &format!("SELECT describe({some}) FROM (SELECT * FROM big ORDER BY i LIMIT 1)"), &["701"]).await;
    for (otherwise, gives) in [("'none'", "-1"), ("NULL", "")] {
        let variant = format!("CASE WHEN i = 1 THEN 'some' ELSE {otherwise} END");
        let sql = format!("SELECT describe({{variant: {variant}, some_0: u, some_1: us}}) FROM big ORDER BY i");
        check(&ctx, &sql, &["701", gives]).await;
    }
    // Values under a NULL.
    let numbers: ArrayRef = Arc::new(UInt64Array::from(vec![7, u64::MAX]));
    let nulls = || Some(NullBuffer::from(vec![true, false]));
    let item = Arc::new(Field::new_list_field(DataType::UInt64, true));
    let lists = ListArray::try_new(item, OffsetBuffer::from_lengths([1, 1]), Arc::clone(&numbers), nulls()).unwrap();
    let fields = Fields::from(vec![Field::new("number", DataType::UInt64, true), Field::new("grades", DataType::Null, true)]);
    let grades: ArrayRef = Arc::new(NullArray::new(2));
    let files = StructArray::try_new(fields, vec![numbers, grades], nulls()).unwrap();
    let columns: [(&str, ArrayRef); 2] = [("us", Arc::new(lists)), ("file", Arc::new(files))];
    ctx.register_batch("hidden", RecordBatch::try_from_iter(columns).unwrap()).unwrap();
    check(&ctx, "SELECT describe({variant: 'some', some_0: 1, some_1: us}) FROM hidden", &["101", ""]).await;
    check(&ctx, "SELECT balance(file) FROM hidden", &["", ""]).await;
    clean(ctx, &fixture).await;
}

#[tokio::test]
async fn duplicate_field_names_are_refused() {
    let (ctx, fixture) = (session(), Fixture::new(OutputStyle::Outputs));
    let mut manifest = fixture::manifest(OutputStyle::Outputs);
    for of in ["rect", "table"] {
        let fields = &mut manifest["types"][of]["record"]["fields"];
        fields[1]["name"] = fields[0]["name"].clone();
    }
    fixture.write_manifest(&manifest);
    for (entry, problem) in [
        ("area", "its parameter r: the type rect would be a struct with two fields height"),
        ("between", "its field inner: the type rect would be a struct with two fields height"),
        ("weigh", "the type table would be a struct with two fields even"),
        ("listing", "it gives a table with two columns even"),
        ("corner?returns=struct", "its result would be a struct with two fields height"),
    ] {
        let create = format!("CREATE FUNCTION other() LANGUAGE futhark AS '{}#{entry}'", fixture.manifest().display());
        check_fails(&ctx, &create, problem).await;
    }
    // The other functions exist.
    create(&ctx, &fixture, &["scale"]).await;
    check(&ctx, "SELECT scale(1.5, 2)", &["3.0"]).await;
    clean(ctx, &fixture).await;
}

#[tokio::test]
async fn records_and_sums_hold_one_another() {
    for style in [OutputStyle::Outputs, OutputStyle::Output] {
        let (ctx, fixture) = (session(), Fixture::new(style));
        create(&ctx, &fixture, &["between", "settle", "extent"]).await;
        for name in ["framed", "stretch", "moved"] {
            create_as(&ctx, &fixture, name, &format!("{name}?returns=struct")).await;
        }
        run(&ctx, NUMBERS).await.unwrap();
        // Records of records. Fields are matched by name.
        let sql = "SELECT i, framed({width: i, height: 2}, 0.5), between(framed({width: i, height: 2}, 0.5)) FROM numbers ORDER BY i LIMIT 2";
        let ring = |width: &str, wider: &str| {
            format!("{{inner: {{height: 2.0, width: {width}}}, outer: {{height: 3.0, width: {wider}}}}}")
        };
        check(&ctx, sql, &[&format!("1,{},4.0", ring("1.0", "2.0")), &format!("3,{},6.0", ring("3.0", "4.0"))]).await;
        let sql = "SELECT between({outer: {width: i, height: 3}, inner: {height: x, width: 1}}) FROM numbers ORDER BY i";
        check(&ctx, sql, &["1.5", "", "7.5", "9.5", "13.5", "", ""]).await;
        // Sums in records, and records in sums. Fields of other variants may be absent or NULL.
        let sql = "SELECT stretch({at: i, figure: {variant: 'circle', circle: x}}, 2) FROM numbers WHERE i < 5 ORDER BY i";
        let scene = |at: i64, circle: &str| {
            format!("{{at: {at}, figure: {{variant: circle, circle: {circle}, oblong_0: , oblong_1: }}}}")
        };
        check(&ctx, sql, &[&scene(2, "3.0"), "", &scene(5, "9.0")]).await;
        let sql =
            "SELECT stretch(stretch({figure: {variant: 'oblong', oblong_0: 1, oblong_1: 2}, at: 1}, 2), 2)['figure']['oblong_1']";
        check(&ctx, sql, &["8.0"]).await;
        let sql = "SELECT settle(x - 2), extent(settle(x - 2)) FROM numbers WHERE i IN (1, 4) ORDER BY i";
        let settled = ["{variant: nowhere, inside: },0.0", "{variant: inside, inside: {height: 2.5, width: 2.5}},6.25"];
        check(&ctx, sql, &settled).await;
        let sql = "SELECT extent({variant: 'inside', inside: {width: i, height: x}}) FROM numbers ORDER BY i";
        check(&ctx, sql, &["1.5", "", "18.0", "27.5", "52.5", "", ""]).await;
        // Records of records of arrays are columns.
        let sql = "SELECT i, moved({weight: x, points: {x: i, y: i + 1}}, 10) FROM numbers WHERE i < 5 ORDER BY i";
        let plot = |x: &str, y: &str, weight: &str| format!("{{points: {{x: {x}, y: {y}}}, weight: {weight}}}");
        check(&ctx, sql, &[&format!("1,{}", plot("11.0", "2.0", "1.5")), "3,", &format!("4,{}", plot("14.0", "5.0", "4.5"))])
            .await;
        create_as(&ctx, &fixture, "plots", "moved").await;
        let sql =
            "SELECT points['x'], weight FROM plots([{points: {x: 1, y: 2}, weight: 3}, {points: {x: 4, y: 5}, weight: 6}], 1)";
        check(&ctx, sql, &["2.0,3.0", "5.0,6.0"]).await;
        for (sql, problem) in [
            (
                "SELECT between({inner: {width: 1}, outer: {width: 1, height: 1}})",
                "its field inner: the struct has no field height",
            ),
            ("SELECT extent({variant: 'inside', inside: {width: 'a', height: 1}})", "its field inside: its field width: "),
            ("SELECT stretch({at: 1, figure: {variant: 'square'}}, 2)", "shape has no variant 'square'"),
            ("SELECT between({inner: 1, outer: 2})", "its field inner: Int64 is not accepted for Struct("),
        ] {
            check_fails(&ctx, sql, problem).await;
        }
        clean(ctx, &fixture).await;
    }
}

#[tokio::test]
async fn arrays_of_records_are_columns_of_structs() {
    for style in [OutputStyle::Outputs, OutputStyle::Output] {
        let (ctx, fixture) = (session(), Fixture::new(style));
        create(&ctx, &fixture, &["score", "graded", "balance"]).await;
        create_as(&ctx, &fixture, "grades", "graded?returns=struct").await;
        create_as(&ctx, &fixture, "filed", "filed?returns=struct").await;
        create_as(&ctx, &fixture, "lists", "listing?returns=struct").await;
        run(&ctx, NUMBERS).await.unwrap();
        let sql = "SELECT i, grades(i), score({value: x, key: i}), score(grades(i)) FROM numbers WHERE i < 5 ORDER BY i";
        let expected = ["1,{key: 1, value: 0.5},1.5,0.5", "3,{key: 3, value: 1.5},,4.5", "4,{key: 4, value: 2.0},18.0,8.0"];
        check(&ctx, sql, &expected).await;
        check(&ctx, "SELECT * FROM graded([7, 9])", &["7,3.5", "9,4.5"]).await;
        // Within a value they are lists, as arrays are.
        let sql = "SELECT filed(i), balance(filed(i)) FROM numbers WHERE i < 4 ORDER BY i";
        let files = [
            "{grades: [{key: 0, value: 0.0}], number: 1},1.0",
            "{grades: [{key: 0, value: 0.0}, {key: 1, value: 0.5}, {key: 2, value: 1.0}], number: 3},4.5",
        ];
        check(&ctx, sql, &files).await;
        check(
            &ctx,
            "SELECT filed(0), balance({number: 2, grades: [{value: 1.5, key: 1}, {value: 2, key: 2}]})",
            &["{grades: [], number: 0},5.5"],
        )
        .await;
        check(&ctx, "SELECT lists(2), lists(NULL)", &["{even: [true, false], half: [0.0, 0.5], key: [0, 1]},"]).await;
        let problem = "the argument grades: a list with a NULL is no array";
        check_fails(&ctx, "SELECT balance({number: 2, grades: [{value: NULL, key: 1}]})", problem).await;
        check_fails(&ctx, "SELECT balance({number: 2, grades: 3})", "its field grades: Int64 is not accepted for List(").await;
        // Compilers that export no functions for them leave these types opaque.
        let mut manifest = fixture::manifest(style);
        manifest["types"]["[]grade"].as_object_mut().unwrap().remove("record_array");
        fixture.write_manifest(&manifest);
        create_as(&ctx, &fixture, "sealed", "graded").await;
        check(&ctx, "SELECT arrow_typeof(sealed(i)) FROM numbers", &["Binary"]).await;
        clean(ctx, &fixture).await;
    }
}

#[tokio::test]
async fn opaque_values_are_bytes_that_only_the_library_gives() {
    let (ctx, fixture) = (session(), Fixture::new(OutputStyle::Output));
    create(&ctx, &fixture, &["tally", "merged", "middle"]).await;
    run(&ctx, NUMBERS).await.unwrap();
    let sql = "SELECT k, middle(tally(i)), arrow_typeof(tally(i)) FROM numbers GROUP BY k ORDER BY k";
    check(&ctx, sql, &["a,3.0,Binary", "b,5.5,Binary", "c,,Binary"]).await;
    // They can be stored, and read back from every binary type.
    run(&ctx, "CREATE TABLE states AS SELECT k, tally(i) AS s FROM numbers GROUP BY k").await.unwrap();
    let sql = "SELECT middle(merged(a.s, arrow_cast(b.s, 'BinaryView'))) FROM states a, states b WHERE a.k = 'a' AND b.k = 'b'";
    check(&ctx, sql, &["4.0"]).await;
    let problem = "middle: these bytes are not a value of type state from this library";
    check_fails(&ctx, "SELECT middle(X'00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff')", problem).await;
    check_fails(&ctx, "SELECT middle('a')", "Utf8 is not accepted for Binary").await;
    let mut manifest = fixture::manifest(OutputStyle::Output);
    manifest["types"]["state"]["ops"].as_object_mut().unwrap().remove("store");
    fixture.write_manifest(&manifest);
    for (entry, problem) in [
        ("middle", "its parameter s is of type state, which cannot be stored"),
        ("tally", "it gives a value of type state, which is no column"),
    ] {
        let sql = format!("CREATE FUNCTION other() LANGUAGE futhark AS '{}#{entry}'", fixture.manifest().display());
        check_fails(&ctx, &sql, problem).await;
    }
    clean(ctx, &fixture).await;
}
