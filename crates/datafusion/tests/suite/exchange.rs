// SPDX-License-Identifier: Apache-2.0
//! Device streams into and out of queries: rows stay on the device, on any thread, and all memory
//! is released.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Poll;
use std::time::Duration;

use arrow::array::{ArrayRef, AsArray, Int64Array, RecordBatch, StringArray};
use arrow::datatypes::{DataType, Field, Int64Type, Schema, SchemaRef};
use arrow_device::async_stream::{AsyncDeviceStream, AsyncStreamOptions, ProduceOptions, produce_on_thread};
use arrow_device::ffi::{ArrowDeviceType, FFI_ArrowDeviceArray, FFI_ArrowDeviceArrayStream};
use arrow_device::stream::{ArrowDeviceArrayStreamReader, export_iterator};
use arrow_device::{ArrayExport, ImportedArray, cpu, schema};
use columnar::exchange;
use datafusion::physical_plan::displayable;
use datafusion::prelude::SessionContext;
use device::Context;
use devicefusion::{AsyncDeviceStreamTable, DeviceResult, DeviceRuntime, DeviceStreamTable, DeviceTable};
use futures::{StreamExt, stream};

use crate::harness::{
    answer, assert_returned, block_on, context, device_config, plain, set, sorted_lines, strict, strict_on, text,
};

const TABLE: &str = "CREATE TABLE device.t AS SELECT value AS i, value % 1000 AS k, CASE WHEN value % 7 > 0 THEN value END AS n, \
     CAST(value AS DECIMAL(15, 2)) AS d, CASE WHEN value % 3 = 0 THEN 'three' ELSE CAST(value AS VARCHAR) END AS s \
     FROM generate_series(1, 300000)";

fn reader(stream: FFI_ArrowDeviceArrayStream) -> ArrowDeviceArrayStreamReader {
    // SAFETY: these tests export the stream that they read.
    unsafe { ArrowDeviceArrayStreamReader::try_new(stream) }.unwrap()
}

/// Stream of host batches of numbers, as from a foreign producer.
fn numbers(batches: i64, rows: i64) -> (SchemaRef, FFI_ArrowDeviceArrayStream) {
    let batch = move |index: i64| {
        let i: ArrayRef = Arc::new(Int64Array::from_iter_values(index * rows..(index + 1) * rows));
        let s: ArrayRef = Arc::new(StringArray::from_iter_values((0..rows).map(|row| format!("row {row} of batch {index}"))));
        RecordBatch::try_from_iter([("i", i), ("s", s)]).unwrap()
    };
    let schema = batch(0).schema();
    let arrays = (0..batches).map(move |index| cpu::export_batch(&batch(index)));
    let stream = export_iterator(&schema::batch_field(&schema), ArrowDeviceType::CPU, arrays).unwrap();
    (schema, stream)
}

async fn result(ctx: &SessionContext, sql: &str) -> DeviceResult {
    DeviceResult::try_new(ctx.sql(sql).await.unwrap()).await.unwrap()
}

/// Downloads all rows of device arrays.
async fn download(context: &Context, arrays: Vec<ImportedArray>, schema: &SchemaRef) -> Vec<RecordBatch> {
    let queue = context.queue().unwrap();
    let columns: Vec<usize> = (0..schema.fields().len()).collect();
    let mut batches = Vec::new();
    for array in arrays {
        let batch = exchange::import(&queue, array, schema, &columns).await.unwrap();
        batches.push(columnar::download(&queue, &batch).await.unwrap());
    }
    batches
}

#[test]
fn rows_pass_from_engine_to_engine_without_leaving_the_device() {
    block_on(async {
        let context = context(device_config());
        let runtime = DeviceRuntime::with_context(context.clone());
        let (first, second) = (strict_on(2, Arc::clone(&runtime)), strict_on(2, runtime));
        first.sql(TABLE).await.unwrap().collect().await.unwrap();
        let totals =
            |table: &str| format!("SELECT k, count(*) AS c, sum(i) AS s, count(n) AS n, max(d) AS d FROM {table} GROUP BY k");
        let expected = answer(&first, &totals("(SELECT * FROM device.t WHERE i > 1000)")).await.unwrap().lines();
        let before = context.pool().in_use();
        for asynchronous in [false, true] {
            let downloads = context.counters().bytes_down;
            let rows = result(&first, "SELECT i, k, n, d FROM device.t WHERE i > 1000").await;
            if asynchronous {
                // SAFETY: this test is the producer.
                let (handler, stream) = unsafe { AsyncDeviceStream::new(AsyncStreamOptions::default()) };
                let producer = tokio::spawn(rows.push_into(handler));
                let table = AsyncDeviceStreamTable::try_new(stream).await.unwrap();
                second.register_table("u", Arc::new(table)).unwrap();
                drop(producer);
            } else {
                let table = DeviceStreamTable::try_new(reader(rows.into_device_stream().unwrap())).unwrap();
                second.register_table("u", Arc::new(table)).unwrap();
            }
            let rows = result(&second, &totals("u")).await;
            let schema = Arc::clone(rows.schema());
            let stream = reader(rows.into_device_stream().unwrap());
            let arrays = tokio::task::spawn_blocking(|| stream.collect::<Result<Vec<_>, _>>()).await.unwrap().unwrap();
            // The host reads a few words for each batch, such as the number of rows that passed a
            // filter.
            let down = context.counters().bytes_down - downloads;
            assert!(down < 4096, "{down} bytes went down");
            let batches = download(&context, arrays, &schema).await;
            assert!(sorted_lines(&batches) == expected, "asynchronous: {asynchronous}");
            drop(batches);
            second.deregister_table("u").unwrap();
        }
        assert_returned(&context, before);
    });
}

/// Without filters and NULLs to count, a query downloads nothing.
#[test]
fn projections_of_two_engines_download_nothing() {
    block_on(async {
        let context = context(device_config());
        let runtime = DeviceRuntime::with_context(context.clone());
        let (first, second) = (strict_on(2, Arc::clone(&runtime)), strict_on(2, runtime));
        let schema = Arc::new(Schema::new(vec![Field::new("i", DataType::Int64, false)]));
        let numbers: ArrayRef = Arc::new(Int64Array::from_iter_values(0..200_000));
        let batch = RecordBatch::try_new(Arc::clone(&schema), vec![numbers]).unwrap();
        let table = DeviceTable::try_from_batches(&first, schema, vec![batch]).await.unwrap();
        first.register_table("t", table).unwrap();
        let before = context.counters();
        let rows = result(&first, "SELECT i * 2 AS j, i FROM t").await;
        let table = DeviceStreamTable::try_new(reader(rows.into_device_stream().unwrap())).unwrap();
        second.register_table("u", Arc::new(table)).unwrap();
        let rows = result(&second, "SELECT j + i AS k FROM u").await;
        let schema = Arc::clone(rows.schema());
        let stream = reader(rows.into_device_stream().unwrap());
        let arrays = tokio::task::spawn_blocking(|| stream.collect::<Result<Vec<_>, _>>()).await.unwrap().unwrap();
        let after = context.counters();
        assert_eq!((after.bytes_down - before.bytes_down, after.bytes_up - before.bytes_up), (0, 0));
        assert!(after.launches > before.launches);
        let batches = download(&context, arrays, &schema).await;
        let sum = batches.iter().flat_map(|batch| batch.column(0).as_primitive::<Int64Type>().values().iter()).sum::<i64>();
        assert_eq!(sum, (0..200_000).map(|i| 3 * i).sum::<i64>());
    });
}

/// Inputs of a union have different layouts: resident decimals and strings are narrow, computed
/// ones are not.
#[test]
fn union_stays_on_the_device() {
    block_on(async {
        let context = context(device_config());
        let ctx = strict_on(2, DeviceRuntime::with_context(context.clone()));
        ctx.sql(TABLE).await.unwrap().collect().await.unwrap();
        let sql = "SELECT i, d, s FROM device.t WHERE i > 1000 UNION ALL SELECT k AS other, d * 2, 'x' FROM device.t WHERE k = 7";
        let expected = answer(&ctx, sql).await.unwrap();
        let before = context.counters().bytes_down;
        let rows = result(&ctx, sql).await;
        let schema = Arc::clone(rows.schema());
        assert_eq!(schema, expected.schema);
        let stream = reader(rows.into_device_stream().unwrap());
        let arrays = tokio::task::spawn_blocking(|| stream.collect::<Result<Vec<_>, _>>()).await.unwrap().unwrap();
        let down = context.counters().bytes_down - before;
        assert!(down < 4096, "{down} bytes went down");
        assert!(sorted_lines(&download(&context, arrays, &schema).await) == expected.lines());
    });
}

#[test]
fn every_column_of_a_table_round_trips() {
    block_on(async {
        let ctx = strict(2);
        ctx.sql(&TABLE.replace("300000", "20000")).await.unwrap().collect().await.unwrap();
        for sql in
            ["SELECT * FROM device.t", "SELECT i, n, d, s FROM device.t WHERE k = 5", "SELECT sum(d), avg(n) FROM device.t"]
        {
            let rows = result(&ctx, sql).await;
            let table = DeviceStreamTable::try_new(reader(rows.into_device_stream().unwrap())).unwrap();
            ctx.register_table("u", Arc::new(table)).unwrap();
            let expected = answer(&ctx, sql).await.unwrap().lines();
            assert!(answer(&ctx, "SELECT * FROM u").await.unwrap().lines() == expected, "{sql}");
            ctx.deregister_table("u").unwrap();
        }
    });
}

#[test]
fn host_arrays_of_a_foreign_stream_are_queried() {
    block_on(async {
        let ctx = strict(2);
        let (schema, stream) = numbers(5, 1000);
        ctx.register_table("t", Arc::new(DeviceStreamTable::try_new(reader(stream)).unwrap())).unwrap();
        let sql = "SELECT s, i * 2 AS twice FROM t WHERE i % 1000 = 7 AND s <> 'row 7 of batch 3'";
        let actual = answer(&ctx, sql).await.unwrap();
        assert!(actual.launches > 0);
        let host = plain(2);
        let all = reader(numbers(5, 1000).1).map(|array| cpu::import_batch(array.unwrap()).unwrap()).collect::<Vec<_>>();
        host.register_batch("t", arrow::compute::concat_batches(&schema, &all).unwrap()).unwrap();
        assert_eq!(actual.lines(), answer(&host, sql).await.unwrap().lines());
        assert_eq!(actual.num_rows(), 4);
    });
}

#[test]
fn second_scan_of_a_one_shot_stream_is_refused_and_a_factory_gives_another() {
    block_on(async {
        let ctx = strict(1);
        ctx.register_table("once", Arc::new(DeviceStreamTable::try_new(reader(numbers(1, 10).1)).unwrap())).unwrap();
        answer(&ctx, "SELECT sum(i) FROM once").await.unwrap();
        let error = text(&answer(&ctx, "SELECT sum(i) FROM once").await.unwrap_err());
        assert!(error.contains("the rows of this ArrowDeviceArrayStream have been read, and it gives them once"), "{error}");

        let schema = numbers(1, 10).0;
        let table = DeviceStreamTable::from_factory(Arc::clone(&schema), || Ok(reader(numbers(3, 10).1)));
        ctx.register_table("often", Arc::new(table)).unwrap();
        for _ in 0..2 {
            let sum = answer(&ctx, "SELECT sum(i) FROM often").await.unwrap();
            assert_eq!(sum.batches[0].column(0).as_primitive::<Int64Type>().value(0), 435);
        }
        let other = DeviceStreamTable::from_factory(Arc::new(Schema::empty()), || Ok(reader(numbers(1, 10).1)));
        ctx.register_table("other", Arc::new(other)).unwrap();
        let error = text(&answer(&ctx, "SELECT count(*) FROM other").await.unwrap_err());
        assert!(error.contains("a stream of a table of columns"), "{error}");
    });
}

#[test]
fn limit_stops_the_stream_and_explain_names_it() {
    block_on(async {
        let ctx = strict(1);
        let made = Arc::new(AtomicUsize::new(0));
        let schema = numbers(1, 10).0;
        let count = Arc::clone(&made);
        let arrays = (0..1_000_000).map(move |_| {
            count.fetch_add(1, Ordering::SeqCst);
            let i: ArrayRef = Arc::new(Int64Array::from_iter_values(0..10));
            let s: ArrayRef = Arc::new(StringArray::from_iter_values((0..10).map(|row| row.to_string())));
            cpu::export_batch(&RecordBatch::try_from_iter([("i", i), ("s", s)]).unwrap())
        });
        let stream = export_iterator(&schema::batch_field(&schema), ArrowDeviceType::CPU, arrays).unwrap();
        ctx.register_table("t", Arc::new(DeviceStreamTable::try_new(reader(stream)).unwrap())).unwrap();
        let frame = ctx.sql("SELECT i FROM t WHERE i > 3 LIMIT 20").await.unwrap();
        let plan = frame.clone().create_physical_plan().await.unwrap();
        let plan = displayable(plan.as_ref()).indent(false).to_string();
        assert!(plan.contains("DeviceStreamExec: source=ArrowDeviceArrayStream, projection=[i]"), "{plan}");
        let rows: usize = frame.collect().await.unwrap().iter().map(RecordBatch::num_rows).sum();
        assert_eq!(rows, 20);
        assert!(made.load(Ordering::SeqCst) < 100, "{} batches were made", made.load(Ordering::SeqCst));
    });
}

/// A failing query reports errno and message to its consumer, and a failing producer to its query.
#[test]
fn errors_cross_in_both_directions() {
    block_on(async {
        let ctx = strict(1);
        ctx.sql(TABLE).await.unwrap().collect().await.unwrap();
        let rows = result(&ctx, "SELECT 1 / (i - 150000) AS x FROM device.t").await;
        let stream = rows.into_device_stream().unwrap();
        let failed = tokio::task::spawn_blocking(|| reader(stream).find_map(|array| array.err())).await.unwrap().unwrap();
        let arrow_device::Error::Foreign { code, message: Some(message), .. } = &failed else { panic!("{failed}") };
        assert_eq!(*code, 5, "EIO");
        assert!(message.contains("Divide by zero"), "{message}");

        let (schema, stream) = numbers(2, 10);
        let good = reader(stream).map(|array| Ok(array?.into_ffi()));
        let bad = std::iter::once_with(|| Err(arrow_device::Error::OutOfMemory("the producer has no memory left".into())));
        let stream = export_iterator(&schema::batch_field(&schema), ArrowDeviceType::CPU, good.chain(bad)).unwrap();
        ctx.register_table("u", Arc::new(DeviceStreamTable::try_new(reader(stream)).unwrap())).unwrap();
        let error = text(&answer(&ctx, "SELECT sum(i) FROM u").await.unwrap_err());
        assert!(error.contains("get_next failed with 12: the producer has no memory left"), "{error}");
    });
}

#[test]
fn dropping_either_end_returns_the_memory() {
    block_on(async {
        let context = context(device_config());
        let ctx = strict_on(2, DeviceRuntime::with_context(context.clone()));
        set(&ctx, "device.batch_rows", "4096");
        ctx.sql("CREATE TABLE t AS SELECT value AS i FROM generate_series(1, 300000)").await.unwrap().collect().await.unwrap();
        let before = context.pool().in_use();
        // The consumer is dropped after zero, one or two batches.
        for batches in 0..3 {
            let rows = result(&ctx, "SELECT i + 1 AS j FROM t WHERE i > 5").await;
            let stream = reader(rows.into_device_stream().unwrap());
            let some = std::thread::spawn(move || stream.take(batches).collect::<Result<Vec<_>, _>>().unwrap()).join().unwrap();
            assert_eq!(some.len(), batches);
            drop(some);
            assert_returned(&context, before);
        }
        // The same for a pushed stream.
        let rows = result(&ctx, "SELECT i + 1 AS j FROM t WHERE i > 5").await;
        // SAFETY: this test is the producer.
        let (handler, mut stream) = unsafe { AsyncDeviceStream::new(AsyncStreamOptions::default()) };
        let producer = tokio::spawn(rows.push_into(handler));
        let first = stream.next().await.unwrap().unwrap();
        drop(stream);
        drop(first);
        producer.await.unwrap();
        assert_returned(&context, before);
        // Batches of a result may outlive the result and its session.
        let rows = result(&ctx, "SELECT i + 1 AS j FROM t WHERE i > 5").await;
        let stream = reader(rows.into_device_stream().unwrap());
        let kept = std::thread::spawn(move || stream.take(1).collect::<Result<Vec<_>, _>>().unwrap()).join().unwrap();
        drop(ctx);
        assert!(context.pool().in_use() > 0 && kept[0].len() > 0);
        drop(kept);
        assert_returned(&context, 0);
    });
}

/// With a producer faster than the kernels, the query holds few arrays at a time.
#[test]
fn query_keeps_few_arrays_of_a_fast_producer() {
    struct Alive(Arc<AtomicUsize>);
    impl Drop for Alive {
        fn drop(&mut self) {
            self.0.fetch_sub(1, Ordering::SeqCst);
        }
    }
    block_on(async {
        let ctx = strict(1);
        let (alive, peak) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let schema = Arc::new(Schema::new(vec![Field::new("i", DataType::Int64, false)]));
        let (living, most) = (Arc::clone(&alive), Arc::clone(&peak));
        let arrays = (0..200).map(move |_| {
            most.fetch_max(living.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
            let values: Vec<i64> = (1_000_000..1_020_000).collect();
            let buffers = vec![std::ptr::null(), values.as_ptr().cast()];
            let column = ArrayExport::new(values.len()).buffers(buffers).owner(Box::new((values, Alive(Arc::clone(&living)))));
            ArrayExport::batch(20_000, vec![column])?.export(ArrowDeviceType::CPU, -1, std::ptr::null_mut())
        });
        let stream = export_iterator(&schema::batch_field(&schema), ArrowDeviceType::CPU, arrays).unwrap();
        ctx.register_table("t", Arc::new(DeviceStreamTable::try_new(reader(stream)).unwrap())).unwrap();
        // The query computes much, and the host does not wait for single batches.
        let sql = "SELECT sum(TRY_CAST(CAST(i AS VARCHAR) AS BIGINT)) AS s FROM t";
        let sum = answer(&ctx, sql).await.unwrap();
        assert_eq!(sum.batches[0].column(0).as_primitive::<Int64Type>().value(0), 200 * (1_000_000..1_020_000i64).sum::<i64>());
        assert!(peak.load(Ordering::SeqCst) <= 12, "{} arrays at a time", peak.load(Ordering::SeqCst));
        assert_eq!(alive.load(Ordering::SeqCst), 0);
    });
}

/// Several consumers and producers at once, on threads outside of tokio.
#[test]
fn foreign_threads_produce_and_consume() {
    block_on(async {
        let ctx = strict(2);
        ctx.sql(TABLE).await.unwrap().collect().await.unwrap();
        let mut consumers = Vec::new();
        for number in 0..8 {
            let (_, stream) = numbers(4, 500);
            // SAFETY: this test is the producer.
            let (handler, pushed) = unsafe { AsyncDeviceStream::new(AsyncStreamOptions::default().with_in_flight(2)) };
            let foreign = reader(stream);
            let field = schema::batch_field(&foreign.schema().unwrap());
            let arrays = stream::iter(foreign.map(|array| Ok(array?.into_ffi())));
            produce_on_thread::<_, FFI_ArrowDeviceArray>(
                arrays,
                &field,
                ArrowDeviceType::CPU,
                handler,
                ProduceOptions::default(),
            )
            .unwrap();
            let table = AsyncDeviceStreamTable::try_new(pushed).await.unwrap();
            let name = format!("u{number}");
            ctx.register_table(name.as_str(), Arc::new(table)).unwrap();
            let rows = result(&ctx, &format!("SELECT i FROM {name} WHERE i % 2 = 0")).await;
            let stream = reader(rows.into_device_stream().unwrap());
            consumers.push(std::thread::spawn(move || stream.map(|array| array.unwrap().len()).sum::<usize>()));
        }
        let counts =
            tokio::task::spawn_blocking(|| consumers.into_iter().map(|consumer| consumer.join().unwrap()).collect::<Vec<_>>());
        assert_eq!(counts.await.unwrap(), [1000; 8]);
    });
}

/// A producer of two streams waits for a reader of each.
#[test]
fn streams_of_one_producer_are_read_together() {
    block_on(async {
        let ctx = strict(1);
        let batch = reader(numbers(1, 10).1).map(|array| cpu::import_batch(array.unwrap()).unwrap()).next().unwrap();
        let mut senders = Vec::new();
        for name in ["a", "b"] {
            let (sender, receiver) = std::sync::mpsc::sync_channel::<RecordBatch>(1);
            let arrays = receiver.into_iter().map(|batch| cpu::export_batch(&batch));
            let stream = export_iterator(&schema::batch_field(&batch.schema()), ArrowDeviceType::CPU, arrays).unwrap();
            ctx.register_table(name, Arc::new(DeviceStreamTable::try_new(reader(stream)).unwrap())).unwrap();
            senders.push(sender);
        }
        let producer = std::thread::spawn(move || {
            for _ in 0..50 {
                senders.iter().for_each(|sender| sender.send(batch.clone()).unwrap());
            }
        });
        let sum = answer(&ctx, "SELECT sum(i) AS s FROM (SELECT i FROM a UNION ALL SELECT i FROM b)").await.unwrap();
        assert_eq!(sum.lines(), ["| 4500 |"]);
        producer.join().unwrap();
    });
}

/// Waits end when they are dropped, and the producer is cancelled.
#[test]
fn a_silent_producer_blocks_neither_its_table_nor_a_query() {
    block_on(async {
        let context = context(device_config());
        let ctx = strict_on(1, DeviceRuntime::with_context(context.clone()));
        let field = schema::batch_field(&numbers(1, 1).0);
        let new_stream = || {
            // SAFETY: this test is the producer.
            unsafe { AsyncDeviceStream::new(AsyncStreamOptions::default()) }
        };
        // Gives the schema and no rows. Its sender drops when it ends.
        let produce = |handler| {
            let (requested, requests) = tokio::sync::mpsc::unbounded_channel();
            let rows = stream::poll_fn(move |_| -> Poll<Option<arrow_device::Result<FFI_ArrowDeviceArray>>> {
                // The test may have received a request already.
                _ = requested.send(());
                Poll::Pending
            });
            produce_on_thread(rows, &field, ArrowDeviceType::CPU, handler, ProduceOptions::default()).unwrap();
            requests
        };

        let (handler, silent) = new_stream();
        let table = AsyncDeviceStreamTable::try_new(silent);
        assert!(tokio::time::timeout(Duration::from_millis(50), table).await.is_err());
        // The late schema is refused.
        assert_eq!(produce(handler).recv().await, None);

        let (handler, silent) = new_stream();
        let mut requests = produce(handler);
        ctx.register_table("t", Arc::new(AsyncDeviceStreamTable::try_new(silent).await.unwrap())).unwrap();
        let before = context.pool().in_use();
        tokio::select! {
            ended = answer(&ctx, "SELECT i FROM t") => panic!("{ended:?}"),
            requested = requests.recv() => assert_eq!(requested, Some(())),
        }
        while requests.recv().await.is_some() {}
        assert_returned(&context, before);
    });
}

#[test]
fn table_over_a_stream_needs_a_device() {
    block_on(async {
        let ctx = strict_on(1, DeviceRuntime::new());
        set(&ctx, "device.selector", "none");
        set(&ctx, "device.fallback", "host");
        ctx.register_table("t", Arc::new(DeviceStreamTable::try_new(reader(numbers(1, 10).1)).unwrap())).unwrap();
        let error = text(&answer(&ctx, "SELECT sum(i) FROM t").await.unwrap_err());
        assert!(error.contains("a table of device memory needs a device: device.selector = 'none'"), "{error}");
    });
}
