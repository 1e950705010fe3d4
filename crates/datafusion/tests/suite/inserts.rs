// SPDX-License-Identifier: Apache-2.0
//! Inserts of rows with other types than the table's columns. DataFusion's in-memory tables take
//! them without a cast. Inserts up to the limit of device memory.

use std::sync::Arc;

use arrow::array::{
    ArrayRef, BooleanArray, Date32Array, Decimal128Array, Float64Array, Int32Array, Int64Array, RecordBatch, StringArray,
};
use datafusion::common::stats::Precision;
use datafusion::common::{Result, ScalarValue};
use datafusion::dataframe::DataFrameWriteOptions;
use datafusion::logical_expr::dml::InsertOp;
use datafusion::physical_plan::{collect, displayable, execute_stream};
use datafusion::prelude::SessionContext;
use device::UnifiedMemory;
use devicefusion::DeviceRuntime;
use futures::{StreamExt, TryStreamExt};

use crate::harness::{answer, assert_returned, block_on, context, device_config, set, strict, strict_on, text};

const TABLES: [&str; 2] = ["t", "device.t"];

async fn run(ctx: &SessionContext, sql: &str) -> Result<()> {
    ctx.sql(sql).await?.collect().await.map(drop)
}

async fn run_with(ctx: &SessionContext, sql: &str, values: Vec<ScalarValue>) -> Result<()> {
    let plan = ctx.state().create_logical_plan(sql).await?;
    let plan = devicefusion::with_parameters(plan, values)?;
    ctx.execute_logical_plan(plan).await?.collect().await.map(drop)
}

async fn append(ctx: &SessionContext, table: &str, columns: Vec<(&str, ArrayRef)>) -> Result<()> {
    let rows = ctx.read_batch(RecordBatch::try_from_iter(columns)?)?;
    rows.write_table(table, DataFrameWriteOptions::new().with_insert_operation(InsertOp::Append)).await.map(drop)
}

#[test]
fn parameters_of_another_type_are_cast_to_that_of_the_column() {
    block_on(async {
        for table in TABLES {
            let ctx = strict(1);
            run(&ctx, &format!("CREATE TABLE {table} AS SELECT 1::BIGINT AS a WHERE false")).await.unwrap();
            let values = format!("INSERT INTO {table} VALUES ($1)");
            for value in [ScalarValue::from(2.5), ScalarValue::from(true), ScalarValue::from("7"), ScalarValue::from(9_i32)] {
                run_with(&ctx, &values, vec![value]).await.unwrap();
            }
            run_with(&ctx, &format!("INSERT INTO {table} SELECT $1"), vec![3.5.into()]).await.unwrap();
            run(&ctx, &format!("PREPARE p(DOUBLE) AS INSERT INTO {table} VALUES ($1)")).await.unwrap();
            run(&ctx, "EXECUTE p(4.5)").await.unwrap();
            let error = run_with(&ctx, &values, vec!["xyz".into()]).await.unwrap_err();
            assert!(error.to_string().contains("xyz"), "{error}");
            let rows = answer(&ctx, &format!("SELECT a FROM {table} ORDER BY a")).await.unwrap();
            assert_eq!(rows.lines(), ["1", "2", "3", "4", "7", "9"].map(|a| format!("| {a} |")), "{table}");
        }
    });
}

/// Values of one column have types of their own, and each is cast.
#[test]
fn rows_of_parameters_of_several_types_are_cast_one_by_one() {
    block_on(async {
        for table in TABLES {
            let ctx = strict(1);
            run(&ctx, &format!("CREATE TABLE {table} AS SELECT 1::BIGINT AS a WHERE false")).await.unwrap();
            let values = vec![9_007_199_254_740_993_i64.into(), 2.0.into(), "8".into()];
            run_with(&ctx, &format!("INSERT INTO {table} VALUES ($1), ($2), ($3)"), values).await.unwrap();
            let rows = answer(&ctx, &format!("SELECT a::VARCHAR AS a FROM {table} ORDER BY 1")).await.unwrap();
            assert_eq!(rows.lines(), ["| 2 |", "| 8 |", "| 9007199254740993 |"], "{table}");
        }
    });
}

/// The value that is written is cast, and not that of the condition.
#[test]
fn a_parameter_of_an_update_keeps_its_type_in_the_condition() {
    block_on(async {
        for table in TABLES {
            let ctx = strict(1);
            run(&ctx, &format!("CREATE TABLE {table} AS SELECT 2::BIGINT AS a, 0::BIGINT AS b")).await.unwrap();
            run_with(&ctx, &format!("UPDATE {table} SET b = $1 WHERE a < $1"), vec![2.5.into()]).await.unwrap();
            assert_eq!(answer(&ctx, &format!("SELECT a, b FROM {table}")).await.unwrap().lines(), ["| 2 | 2 |"], "{table}");
        }
    });
}

#[test]
fn rows_inserted_without_sql_are_cast_or_refused_by_number() {
    block_on(async {
        for table in TABLES {
            let ctx = strict(1);
            run(&ctx, &format!("CREATE TABLE {table} AS SELECT 1::BIGINT AS a WHERE false")).await.unwrap();
            append(&ctx, table, vec![("a", Arc::new(Int32Array::from(vec![7, 8])))]).await.unwrap();
            append(&ctx, table, vec![("a", Arc::new(Float64Array::from(vec![1.5])))]).await.unwrap();
            let two = Arc::new(BooleanArray::from(vec![true]));
            let error = append(&ctx, table, vec![("a", Arc::clone(&two) as ArrayRef), ("b", two)]).await.unwrap_err();
            assert!(error.to_string().contains("has 1 columns, and the rows to insert have 2"), "{error}");
            let rows = answer(&ctx, &format!("SELECT a FROM {table} ORDER BY a")).await.unwrap();
            assert_eq!(rows.lines(), ["1", "7", "8"].map(|a| format!("| {a} |")), "{table}");
        }
    });
}

#[test]
fn columns_of_other_names_are_refused() {
    block_on(async {
        for table in TABLES {
            let ctx = strict(1);
            run(&ctx, &format!("CREATE TABLE {table} AS SELECT 1 AS a, 2 AS b")).await.unwrap();
            let column = |value| Arc::new(Int32Array::from(vec![value])) as ArrayRef;
            let error = append(&ctx, table, vec![("b", column(4)), ("a", column(3))]).await.unwrap_err();
            assert!(error.to_string().contains("Expected table field 'a'"), "{error}");
            let rows = answer(&ctx, &format!("SELECT a, b FROM {table}")).await.unwrap();
            assert_eq!(rows.lines(), ["| 1 | 2 |"], "{table}");
        }
    });
}

/// Plans built by hand have no rule that casts their rows.
#[test]
fn a_resident_table_refuses_plans_of_another_type() {
    block_on(async {
        let ctx = strict(1);
        run(&ctx, "CREATE TABLE device.t AS SELECT 1::DECIMAL(10, 2) AS a").await.unwrap();
        let table = ctx.table_provider("device.t").await.unwrap();
        for (rows, given) in [("SELECT 1.5::DOUBLE AS a", "Float64"), ("SELECT 1::DECIMAL(10, 1) AS a", "Decimal128(10, 1)")] {
            let rows = ctx.sql(rows).await.unwrap().create_physical_plan().await.unwrap();
            let error = table.insert_into(&ctx.state(), rows, InsertOp::Append).await.unwrap_err();
            let problem = format!("a of {given} for a resident table of a of Decimal128(10, 2)");
            assert!(error.to_string().contains(&problem), "{error}");
        }
    });
}

#[test]
fn of_two_statements_that_create_one_table_one_fails() {
    block_on(async {
        // The second session wraps its schemas.
        for ctx in [strict(1), strict(1).enable_url_table()] {
            let create = async |head: &str| {
                let sql = format!("{head} AS SELECT value AS i FROM generate_series(1, 1000)");
                let plan = ctx.state().create_logical_plan(&sql).await.unwrap();
                devicefusion::execute_logical_plan(&ctx, plan).await.map(drop)
            };
            let failures = async |head: &str| {
                let both = futures::join!(create(head), create(head));
                [both.0, both.1].into_iter().filter_map(std::result::Result::err).collect::<Vec<_>>()
            };
            let failed = failures("CREATE TABLE device.twice").await;
            assert_eq!(failed.len(), 1);
            assert!(failed[0].to_string().contains("Table 'device.twice' already exists"), "{}", failed[0]);
            for head in ["CREATE TABLE IF NOT EXISTS device.once", "CREATE OR REPLACE TABLE device.twice"] {
                assert!(failures(head).await.is_empty(), "{head}");
            }
            // A table that has replaced another one is an ordinary table.
            for (from, to) in [("device.once", "device.twice"), ("device.twice", "device.once")] {
                let table = ctx.table_provider(from).await.unwrap();
                let error = ctx.register_table(to, table).unwrap_err();
                assert!(error.to_string().contains(&format!("Table '{to}' already exists")), "{error}");
            }
        }
    });
}

/// DataFusion collects the rows of a table with a key, and registers them.
#[test]
fn batches_have_the_rows_of_the_setting_on_every_way() {
    block_on(async {
        let ctx = strict(1);
        set(&ctx, "device.resident_batch_rows", "100");
        for columns in ["", "(i BIGINT, PRIMARY KEY (i))"] {
            run(&ctx, &format!("CREATE TABLE device.t {columns} AS SELECT value AS i FROM generate_series(1, 1000)"))
                .await
                .unwrap();
            let plan = ctx.sql("SELECT i FROM device.t").await.unwrap().create_physical_plan().await.unwrap();
            let plan = displayable(plan.as_ref()).indent(false).to_string();
            assert!(plan.contains("rows=1000, batches=10"), "{columns}: {plan}");
            run(&ctx, "DROP TABLE device.t").await.unwrap();
        }
    });
}

/// Bytes of a small limit of device memory.
const LIMIT: usize = 1 << 20;

/// Rows of an insert. The limit has room for several.
const ROWS: i64 = 4000;

/// Columns as those of `lineitem`, in memory that no other batch shares.
fn lines(insert: i64) -> RecordBatch {
    let rows = || insert * ROWS..(insert + 1) * ROWS;
    let decimal = |value: fn(i64) -> i64| {
        let values = Decimal128Array::from_iter_values(rows().map(|row| i128::from(value(row))));
        values.with_precision_and_scale(15, 2).unwrap()
    };
    let columns: [(&str, ArrayRef); 6] = [
        ("l_orderkey", Arc::new(Int64Array::from_iter_values(rows()))),
        ("l_quantity", Arc::new(decimal(|row| row % 50 * 100))),
        ("l_extendedprice", Arc::new(decimal(|row| row * 7919 % 10_000_000))),
        ("l_shipdate", Arc::new(Date32Array::from_iter_values(rows().map(|row| 8000 + (row % 2500) as i32)))),
        ("l_linenumber", Arc::new(Int32Array::from_iter_values(rows().map(|row| (row % 7) as i32)))),
        ("l_returnflag", Arc::new(StringArray::from_iter_values(rows().map(|row| ["A", "N", "R"][(row % 3) as usize])))),
    ];
    RecordBatch::try_from_iter(columns).unwrap()
}

/// A device with the host's memory uses columns in place, and they count too.
#[test]
fn inserts_fail_at_the_memory_limit_and_a_dropped_table_returns_its_memory() {
    block_on(async {
        for unified in [UnifiedMemory::Auto, UnifiedMemory::Never] {
            let context = context(device_config().with_memory_bytes(LIMIT).with_unified_memory(unified));
            let ctx = strict_on(1, DeviceRuntime::with_context(context.clone()));
            let pool = context.pool();
            let offer = |insert| {
                ctx.deregister_table("lines").unwrap();
                ctx.register_batch("lines", lines(insert)).unwrap();
            };
            let (before, mut inserted) = (pool.in_use(), 1);
            offer(0);
            run(&ctx, "CREATE TABLE device.t AS SELECT * FROM lines").await.unwrap();
            let error = loop {
                let kept = pool.in_use();
                assert!((1..=LIMIT).contains(&kept), "{unified:?}: {kept} bytes in use after {inserted} inserts");
                offer(inserted);
                if let Err(error) = run(&ctx, "INSERT INTO device.t SELECT * FROM lines").await {
                    // The rows that it had uploaded are freed.
                    assert_returned(&context, kept);
                    break text(&error);
                }
                inserted += 1;
                assert!(inserted < 100, "{unified:?}: {inserted} inserts, and {} bytes in use", pool.in_use());
            };
            let names = ["DeviceTable", "of 1.0 MB in use", "raise device.memory_bytes"];
            assert!(names.iter().all(|name| error.contains(name)), "{unified:?}: {error}");
            assert!(pool.peak() <= LIMIT, "{unified:?}: {} bytes were in use", pool.peak());
            assert!(inserted > 2, "{unified:?}: {inserted} inserts only");
            let table = ctx.table_provider("device.t").await.unwrap();
            let rows = table.statistics().unwrap().num_rows;
            assert_eq!(rows, Precision::Exact((inserted * ROWS) as usize), "{unified:?}");
            drop(table);
            run(&ctx, "DROP TABLE device.t").await.unwrap();
            assert_returned(&context, before);
            // The memory is there for another table.
            run(&ctx, "CREATE TABLE device.t AS SELECT * FROM lines").await.unwrap();
        }
    });
}

/// A statement that reads the rows of one snapshot and publishes the next must not drop rows
/// inserted between.
#[test]
fn a_volatile_condition_neither_loses_nor_doubles_rows() {
    block_on(async {
        let ctx = strict(2);
        let run = async |sql: &str| ctx.sql(sql).await.unwrap().collect().await.unwrap();
        // Only the host has `random`.
        run("SET device.fallback = 'host'").await;
        run("CREATE TABLE device.t AS SELECT value AS i, 0 AS n FROM generate_series(1, 20000)").await;
        for condition in ["random() < 0.5", "i IN (SELECT value FROM generate_series(1, 20000) WHERE random() < 0.5)"] {
            run(&format!("UPDATE device.t SET n = n + 1 WHERE {condition}")).await;
            let counts = answer(&ctx, "SELECT count(*), count(DISTINCT i) FROM device.t").await.unwrap().lines();
            assert_eq!(counts, ["| 20000 | 20000 |"], "{condition}");
        }
        run("DELETE FROM device.t WHERE random() < 0.5").await;
        let sums = "SELECT count(*) BETWEEN 9000 AND 11000, avg(n) BETWEEN 0.9 AND 1.1 FROM device.t";
        assert_eq!(answer(&ctx, sums).await.unwrap().lines(), ["| true | true |"]);
    });
}

#[test]
fn a_change_of_rows_that_another_statement_has_changed_fails() {
    block_on(async {
        let ctx = strict(2);
        let run = async |sql: &str| ctx.sql(sql).await.unwrap().collect().await.unwrap();
        set(&ctx, "device.resident_batch_rows", "4");
        run("CREATE TABLE device.t AS SELECT value AS i FROM generate_series(1, 10)").await;
        for statement in
            ["UPDATE device.t SET i = i + 1 WHERE i > 3", "DELETE FROM device.t WHERE i > 3", "TRUNCATE TABLE device.t"]
        {
            let plan = ctx.sql(statement).await.unwrap().create_physical_plan().await.unwrap();
            run("INSERT INTO device.t VALUES (100)").await;
            let before = answer(&ctx, "SELECT i FROM device.t").await.unwrap().lines();
            let error = text(&collect(plan, ctx.task_ctx()).await.unwrap_err());
            assert!(error.contains("another statement has changed the table meanwhile"), "{statement}: {error}");
            assert_eq!(answer(&ctx, "SELECT i FROM device.t").await.unwrap().lines(), before, "{statement}");
        }
        // A running scan keeps its rows.
        set(&ctx, "datafusion.execution.batch_size", "4");
        let scan = ctx.sql("SELECT i FROM device.t").await.unwrap().create_physical_plan().await.unwrap();
        let mut scan = execute_stream(scan, ctx.task_ctx()).unwrap();
        let first = scan.next().await.unwrap().unwrap().num_rows();
        run("DELETE FROM device.t WHERE i > 3").await;
        let rest: Vec<RecordBatch> = scan.try_collect().await.unwrap();
        let rest = rest.iter().map(RecordBatch::num_rows).sum::<usize>();
        assert!(first <= 4 && first + rest == 13, "{first} rows, and {rest} after the change");
        assert_eq!(answer(&ctx, "SELECT i FROM device.t").await.unwrap().num_rows(), 3);
    });
}

/// The row that fails comes after batches on the device.
#[test]
fn a_table_whose_query_fails_is_not_made_and_the_old_one_stays() {
    block_on(async {
        let runtime = DeviceRuntime::with_context(context(device_config()));
        let ctx = strict_on(1, runtime.clone());
        let create = async |head: &str, divisor: &str| {
            let sql = format!("{head} AS SELECT 1 / {divisor} AS x FROM generate_series(1, 300000)");
            devicefusion::execute_logical_plan(&ctx, ctx.state().create_logical_plan(&sql).await?).await.map(drop)
        };
        let fails = "(value - 290000)";
        let error = create("CREATE TABLE device.made", fails).await.unwrap_err();
        assert!(text(&error).contains("Divide by zero"), "{error}");
        let error = answer(&ctx, "SELECT * FROM device.made").await.unwrap_err();
        assert!(text(&error).contains("device.made"), "{error}");
        let device = runtime.opened().unwrap();
        assert_returned(&device, 0);
        create("CREATE TABLE device.made", "value").await.unwrap();
        let held = device.pool().in_use();
        create("CREATE OR REPLACE TABLE device.made", fails).await.unwrap_err();
        assert_returned(&device, held);
        assert_eq!(answer(&ctx, "SELECT count(*), sum(x) FROM device.made").await.unwrap().lines(), ["| 300000 | 1 |"]);
    });
}
