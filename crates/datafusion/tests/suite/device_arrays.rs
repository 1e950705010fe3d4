// SPDX-License-Identifier: Apache-2.0
//! Tables of device arrays, and dictionaries that come with them.

use std::sync::Arc;

use arrow::array::{ArrayRef, DictionaryArray, Int32Array, RecordBatch, StringArray};
use arrow::datatypes::{Int8Type, Int32Type, SchemaRef};
use arrow_device::stream::ArrowDeviceArrayStreamReader;
use arrow_device::{ImportedArray, cpu, schema};
use datafusion::prelude::SessionContext;
use devicefusion::{DeviceResult, DeviceRuntime, DeviceStreamTable, DeviceTable};

use crate::harness::{answer, assert_returned, block_on, context, device_config, plain, strict, strict_on, text};

/// The rows of a query as a stream of device arrays.
async fn rows(ctx: &SessionContext, sql: &str) -> ArrowDeviceArrayStreamReader {
    let result = DeviceResult::try_new(ctx.sql(sql).await.unwrap()).await.unwrap();
    // SAFETY: the stream is ours.
    unsafe { ArrowDeviceArrayStreamReader::try_new(result.into_device_stream().unwrap()) }.unwrap()
}

async fn arrays(ctx: &SessionContext, sql: &str) -> (SchemaRef, Vec<ImportedArray>) {
    let stream = rows(ctx, sql).await;
    let schema = stream.schema().unwrap();
    (schema, tokio::task::spawn_blocking(|| stream.collect::<Result<Vec<_>, _>>()).await.unwrap().unwrap())
}

#[test]
fn device_arrays_make_a_table_in_place() {
    block_on(async {
        let context = context(device_config());
        let runtime = DeviceRuntime::with_context(context.clone());
        let (first, second) = (strict_on(2, Arc::clone(&runtime)), strict_on(2, runtime));
        let rows = "SELECT value AS i, CASE WHEN value % 7 > 0 THEN value END AS n, CAST(value AS VARCHAR) AS s \
             FROM generate_series(1, 300000)";
        first.sql(&format!("CREATE TABLE device.t AS {rows}")).await.unwrap().collect().await.unwrap();
        let query = "SELECT count(*) AS c, sum(i) AS s, count(n) AS n, max(s) AS m, min(i) AS l FROM";
        let expected = answer(&plain(2), &format!("{query} ({rows})")).await.unwrap().lines();

        let before = context.pool().in_use();
        let (schema, arrays) = arrays(&first, "SELECT * FROM device.t WHERE i > 0").await;
        let (up, down) = (context.counters().bytes_up, context.counters().bytes_down);
        let table = DeviceTable::try_from_device_arrays(&second, schema, arrays).await.unwrap();
        assert_eq!(table.num_rows(), 300_000);
        second.register_table("u", table).unwrap();
        let found = answer(&second, &format!("{query} u")).await.unwrap();
        assert!(found.launches > 0 && found.lines() == expected);
        let moved = (context.counters().bytes_up - up, context.counters().bytes_down - down);
        assert!(moved.0 < 4096 && moved.1 < 4096, "{moved:?} bytes went up and down");
        // As often as one likes, and it grows as another table does.
        second.sql("INSERT INTO u VALUES (-1, NULL, 'z')").await.unwrap().collect().await.unwrap();
        let changed = answer(&second, "SELECT count(*) AS c, count(n) AS n, max(s) AS m, min(i) AS l FROM u").await.unwrap();
        assert_eq!(changed.lines(), ["| 300001 | 257143 | z | -1 |"]);
        second.deregister_table("u").unwrap();
        // A device that shares the host's memory has the answers in it.
        drop((found, changed));
        assert_returned(&context, before);
    });
}

#[test]
fn array_of_another_schema_makes_no_table() {
    block_on(async {
        let ctx = strict(1);
        let (_, arrays) = arrays(&ctx, "SELECT value AS i FROM generate_series(1, 10) WHERE value > 3").await;
        let other = RecordBatch::try_from_iter([("s", Arc::new(StringArray::from(vec!["a"])) as ArrayRef)]).unwrap();
        let error = DeviceTable::try_from_device_arrays(&ctx, other.schema(), arrays).await.unwrap_err();
        assert!(text(&error).starts_with("Execution error: DeviceTable: column \"s\": expected Utf8, got Int64"), "{error}");
    });
}

/// More rows than the keys of a dictionary number.
#[test]
fn narrow_dictionaries_go_in_and_out() {
    block_on(async {
        let ctx = strict(2);
        let texts: DictionaryArray<Int8Type> = (0..5000).map(|row| (row % 13 > 0).then_some(["a", "b", "c"][row % 3])).collect();
        let batch = RecordBatch::try_from_iter([("w", Arc::new(texts) as ArrayRef)]).unwrap();
        // SAFETY: the array is arrow-device's own export.
        let array =
            unsafe { ImportedArray::import(cpu::export_batch(&batch).unwrap(), &schema::batch_field(&batch.schema())).unwrap() };
        let table = DeviceTable::try_from_device_arrays(&ctx, batch.schema(), [array]).await.unwrap();
        ctx.register_table("t", table).unwrap();
        let table = DeviceStreamTable::try_new(rows(&ctx, "SELECT * FROM t").await).unwrap();
        ctx.register_table("u", Arc::new(table)).unwrap();
        let host = plain(2);
        host.register_batch("u", batch).unwrap();
        let sql = "SELECT w, count(*) AS c FROM u GROUP BY w";
        assert_eq!(answer(&ctx, sql).await.unwrap().lines(), answer(&host, sql).await.unwrap().lines());
    });
}

/// Strings as codes of a dictionary that repeats values and has a NULL, with NULL rows besides.
fn texts() -> RecordBatch {
    let values =
        StringArray::from(vec![Some("pear"), None, Some("apple"), Some("pear"), Some("a longer string than fits a view")]);
    let keys = Int32Array::from_iter((0..5000).map(|row| (row % 11 != 3).then_some(row * 7 % 5)));
    let texts: ArrayRef = Arc::new(DictionaryArray::<Int32Type>::try_new(keys, Arc::new(values)).unwrap());
    let number: ArrayRef = Arc::new(Int32Array::from_iter_values(0..5000));
    RecordBatch::try_from_iter([("w", texts), ("i", number)]).unwrap()
}

#[test]
fn dictionaries_are_queried_wherever_they_lie() {
    block_on(async {
        let (host, ctx) = (plain(2), strict(2));
        let batch = texts();
        host.register_batch("t", batch.clone()).unwrap();
        let queries = [
            "SELECT * FROM t WHERE i < 100",
            "SELECT w, count(*) AS c, sum(i) AS s FROM t GROUP BY w",
            "SELECT i FROM t WHERE w = 'pear' OR w IS NULL",
            "SELECT count(w) AS c, min(w) AS l, max(w) AS m, count(DISTINCT w) AS d FROM t",
            "SELECT CASE WHEN w > 'b' THEN w END AS x, NULLIF(w, 'pear') AS y FROM t WHERE i % 50 = 0",
        ];
        // SAFETY: the array is arrow-device's own export.
        let imported = || unsafe {
            ImportedArray::import(cpu::export_batch(&batch).unwrap(), &schema::batch_field(&batch.schema())).unwrap()
        };
        let table = DeviceTable::try_from_device_arrays(&ctx, batch.schema(), [imported()]).await.unwrap();
        ctx.register_table("u", table).unwrap();
        for sql in queries {
            let expected = answer(&host, sql).await.unwrap();
            // Of the host, then of the device: what left the first table.
            for source in ["SELECT * FROM u", "SELECT w, i FROM u WHERE i >= 0"] {
                let table = DeviceStreamTable::try_new(rows(&ctx, source).await).unwrap();
                ctx.register_table("t", Arc::new(table)).unwrap();
                let found = answer(&ctx, sql).await.unwrap();
                assert!(found.launches > 0, "{sql}");
                assert_eq!(found.schema, expected.schema, "{sql}");
                assert_eq!(found.lines(), expected.lines(), "{sql}");
                ctx.deregister_table("t").unwrap();
            }
        }
        ctx.sql("INSERT INTO u SELECT w, i + 5000 FROM u WHERE i < 10").await.unwrap().collect().await.unwrap();
        let grown = "(SELECT w, i FROM t UNION ALL SELECT w, i + 5000 FROM t WHERE i < 10)";
        let count = |table| format!("SELECT w, count(*) AS c, max(i) AS m FROM {table} GROUP BY w");
        let found = answer(&ctx, &count("u")).await.unwrap();
        assert_eq!(found.lines(), answer(&host, &count(grown)).await.unwrap().lines());
    });
}
