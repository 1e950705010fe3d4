// SPDX-License-Identifier: Apache-2.0
//! Queries: parameters, repeated runs, EXPLAIN, cancellation, progress and row counts.

use std::ffi::{CStr, c_int};
use std::time::{Duration, Instant};

use arrow::array::{ArrayRef, Date32Array, RecordBatch, StringArray};
use arrow::datatypes::DataType;
use arrow::ffi::{FFI_ArrowArray, FFI_ArrowSchema};
use arrow::ffi_stream::{ArrowArrayStreamReader, FFI_ArrowArrayStream};
use arrow_device::async_stream::{AsyncDeviceStream, AsyncStreamOptions};
use arrow_device::ffi::FFI_ArrowDeviceArrayStream;
use arrow_device::stream::ArrowDeviceArrayStreamReader;
use arrow_device::{cpu, schema};
use devicefusion_capi::config::*;
use devicefusion_capi::context::*;
use devicefusion_capi::query::*;
use devicefusion_capi::table::*;
use futures::StreamExt;
use futures::executor::block_on;

use crate::support::{Context, Query, config, lines, prices, take_string};

fn with_prices() -> Context {
    let context = Context::new();
    context.ok(context.register("t", vec![prices()], DEVICEFUSION_TABLE_DEVICE));
    context
}

#[test]
fn parameters_have_values_of_each_type_and_new_ones_each_run() {
    let context = with_prices();
    let query = context.query("SELECT sum(items) FROM t WHERE items < $1 AND price > $2 AND city = $3");
    let run = |items, price, city: &std::ffi::CStr| {
        context.ok(devicefusion_query_bind_int64(query.raw, 1, items));
        context.ok(devicefusion_query_bind_double(query.raw, 2, price));
        // SAFETY: a C string.
        context.ok(unsafe { devicefusion_query_bind_string(query.raw, 3, city.as_ptr()) });
        query.rows()
    };
    assert_eq!(run(4, 0.5, c"Oslo"), ["1"]);
    let compiled = context.report()["programs"]["compiled"].clone();
    assert_eq!(run(9, 1.0, c"Bern"), ["3"]);
    // Parameter values are kernel arguments, so nothing is compiled again.
    assert_eq!(context.report()["programs"]["compiled"], compiled);
    context.ok(devicefusion_query_bind_null(query.raw, 1));
    assert_eq!(query.rows(), [""]);

    let query = context.query("SELECT count(*) FROM t WHERE (items > 2) = $1");
    context.ok(devicefusion_query_bind_bool(query.raw, 1, 7));
    assert_eq!(query.rows(), ["2"]);
    context.ok(devicefusion_query_bind_bool(query.raw, 1, 0));
    assert_eq!(query.rows(), ["2"]);
}

#[test]
fn files_are_tables_by_name_and_parameters_have_numbers() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("t.csv");
    std::fs::write(&file, "a\n1\n2\n3\n").unwrap();
    let context = Context::new();
    let query = context.query(&format!("SELECT count(*), ? FROM '{}' WHERE a > ?", file.display()));
    context.ok(devicefusion_query_bind_int64(query.raw, 1, 7));
    context.ok(devicefusion_query_bind_int64(query.raw, 2, 1));
    assert_eq!(query.rows(), ["2 7"]);
}

fn bind_row(query: &Query<'_>, row: &RecordBatch) -> c_int {
    let mut array = cpu::export_batch(row).unwrap();
    let mut columns = schema::export_schema(&row.schema()).unwrap();
    // SAFETY: structs of arrow-device.
    unsafe { devicefusion_query_bind_row(query.raw, &raw mut array.array, &raw mut columns) }
}

fn row<const N: usize>(columns: [(&str, ArrayRef); N]) -> RecordBatch {
    RecordBatch::try_from_iter(columns).unwrap()
}

#[test]
fn a_row_of_arrow_binds_values_of_any_type_in_order_or_by_name() {
    let context = with_prices();
    let (city, day) = (
        || -> ArrayRef { std::sync::Arc::new(StringArray::from(vec!["Oslo"])) },
        |days| -> ArrayRef { std::sync::Arc::new(Date32Array::from(vec![days])) },
    );
    let query = context.query("SELECT count(*) FROM t WHERE city = $1 AND $2 < DATE '1970-01-03'");
    context.ok(bind_row(&query, &row([("anything", city()), ("goes", day(1))])));
    assert_eq!(query.rows(), ["2"]);
    context.ok(bind_row(&query, &row([("anything", city()), ("goes", day(2))])));
    assert_eq!(query.rows(), ["0"]);

    let query = context.query("SELECT count(*) FROM t WHERE city = $town AND $until < DATE '1970-01-03'");
    context.ok(bind_row(&query, &row([("until", day(1)), ("town", city())])));
    assert_eq!(query.rows(), ["2"]);
    let error = context.failed(2, bind_row(&query, &row([("city", city())])));
    assert_eq!(error, "the query has no parameter $city; it has $town, $until");
    let error = context.failed(2, bind_row(&query, &prices()));
    assert_eq!(error, "parameters must be one row, not 4");
}

#[test]
fn parameters_without_a_value_and_values_without_a_parameter_are_errors() {
    let context = with_prices();
    let query = context.query("SELECT $1 + items FROM t");
    // SAFETY: the pointer for the number may be NULL.
    let error = context.failed(2, unsafe { devicefusion_query_run(query.raw, std::ptr::null_mut()) });
    assert_eq!(error, "the parameter $1 has no value: bind one");
    let error = context.failed(2, devicefusion_query_bind_int64(query.raw, 2, 1));
    assert_eq!(error, "the query has no parameter $2; it has $1");
    let query = context.query("SELECT items FROM t");
    let error = context.failed(2, devicefusion_query_bind_int64(query.raw, 1, 1));
    assert_eq!(error, "the query has no parameter $1; it has none");
}

#[test]
fn inserted_values_are_cast_to_the_type_of_their_column() {
    let context = with_prices();
    for table in ["host", "device.resident"] {
        context.execute(&format!("CREATE TABLE {table} AS SELECT 1::BIGINT AS a WHERE false"));
        let query = context.query(&format!("INSERT INTO {table} VALUES ($1)"));
        // SAFETY: the pointer for the number may be NULL.
        let run = || unsafe { devicefusion_query_run(query.raw, std::ptr::null_mut()) };
        context.ok(devicefusion_query_bind_double(query.raw, 1, 2.5));
        context.ok(run());
        // SAFETY: a C string.
        context.ok(unsafe { devicefusion_query_bind_string(query.raw, 1, c"xyz".as_ptr()) });
        assert_ne!(run(), 0);
        assert!(context.error().unwrap().contains("xyz"));
        assert_eq!(context.rows(&format!("SELECT a FROM {table}")), ["2"]);
    }
}

#[test]
fn the_schema_is_known_before_the_query_runs() {
    let context = with_prices();
    let query = context.query("SELECT city, items * 2 AS twice FROM t");
    let mut out = FFI_ArrowSchema::empty();
    // SAFETY: a pointer for the schema.
    context.ok(unsafe { devicefusion_query_schema(query.raw, &raw mut out) });
    // SAFETY: a schema from the library.
    let columns = unsafe { schema::import_schema(out) }.unwrap();
    assert_eq!((columns.field(0).data_type(), columns.field(1).name().as_str()), (&DataType::Utf8, "twice"));
}

#[test]
fn explain_tells_what_runs_where() {
    let context = with_prices();
    let query = context.query("SELECT sum(items) FROM t WHERE price > 1");
    let plan = query.explain(DEVICEFUSION_EXPLAIN_PLAN);
    assert!(plan.contains("physical_plan\nDeviceToHostExec"), "{plan}");
    assert!(query.explain(DEVICEFUSION_EXPLAIN_VERBOSE).contains("kernel"));
    let plan = query.explain(DEVICEFUSION_EXPLAIN_ANALYZE);
    assert!(plan.contains("launches="), "{plan}");
    assert!(query.explain(DEVICEFUSION_EXPLAIN_HTML).contains("SELECT sum(items)"));
    let profile: serde_json::Value = serde_json::from_str(&query.explain(DEVICEFUSION_EXPLAIN_JSON)).unwrap();
    assert_eq!((&profile["rows"], profile["nodes"][0]["name"].as_str()), (&1.into(), Some("DeviceToHostExec")));
    let plan: serde_json::Value = serde_json::from_str(&query.explain(DEVICEFUSION_EXPLAIN_PGJSON)).unwrap();
    assert_eq!(plan[0]["Plan"]["Node Type"], "DeviceToHostExec");
    let trace: serde_json::Value = serde_json::from_str(&query.explain(DEVICEFUSION_EXPLAIN_TRACE)).unwrap();
    assert!(trace["traceEvents"].as_array().is_some_and(|events| events.len() > 2), "{trace}");
    let mut out = std::ptr::null_mut();
    // SAFETY: a pointer for the string.
    let error = context.failed(2, unsafe { devicefusion_query_explain(query.raw, 7, &raw mut out) });
    assert!(error.contains("DEVICEFUSION_EXPLAIN_PLAN") && out.is_null());
}

#[test]
fn runs_count_the_rows_returned_or_written() {
    let context = with_prices();
    assert_eq!(context.execute("SELECT * FROM t WHERE items > 1"), 2);
    assert_eq!(context.execute("CREATE TABLE device.u AS SELECT items FROM t"), 0);
    assert_eq!(context.execute("INSERT INTO device.u SELECT items FROM t WHERE items = 1"), 2);
    assert_eq!(context.rows("SELECT count(*), sum(items) FROM device.u"), ["6 11"]);
    let mut rows = -1;
    let query = context.query("SELECT items FROM t");
    for _ in 0..2 {
        // SAFETY: a pointer for the number.
        context.ok(unsafe { devicefusion_query_run(query.raw, &raw mut rows) });
        assert_eq!(rows, 4);
    }
}

/// The number of rows of a table.
fn rows_of(context: &Context, table: &str) -> String {
    context.rows(&format!("SELECT count(*) FROM {table}")).remove(0)
}

#[test]
fn statements_with_effects_run_even_if_their_result_is_not_read() {
    let context = with_prices();
    for table in ["host", "device.resident"] {
        context.execute(&format!("CREATE TABLE {table} AS SELECT items FROM t WHERE false"));
        let insert = context.query(&format!("INSERT INTO {table} SELECT items FROM t"));
        drop(insert.stream());
        assert_eq!(rows_of(&context, table), "4");
        drop(insert.device_stream());
        assert_eq!(rows_of(&context, table), "8");
        drop(pushed(&insert).unwrap());
        assert_eq!(rows_of(&context, table), "12");
        assert_eq!(insert.rows(), ["4"]);
        drop(context.query(&format!("EXPLAIN INSERT INTO {table} SELECT items FROM t")).stream());
        assert_eq!(rows_of(&context, table), "16");
        context.execute(&format!("PREPARE one_more AS INSERT INTO {table} SELECT items FROM t LIMIT 1"));
        assert_eq!(context.execute("EXECUTE one_more"), 1);
        context.execute("DEALLOCATE one_more");
        assert_eq!(rows_of(&context, table), "17");
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("t.csv");
    drop(context.query(&format!("COPY t TO '{}'", path.display())).stream());
    assert_eq!(std::fs::read_to_string(path).unwrap().lines().count(), 5);
    drop(context.query("CREATE VIEW v AS SELECT 1 AS n").stream());
    assert_eq!(context.rows("SELECT n FROM v"), ["1"]);
}

#[test]
fn errors_of_statements_with_effects_come_from_the_call_that_runs_them() {
    let context = with_prices();
    context.execute("CREATE TABLE host AS SELECT items FROM t WHERE false");
    let insert = context.query("INSERT INTO host SELECT items / (items - 1) FROM t");
    let (mut stream, mut on_device) = (FFI_ArrowArrayStream::empty(), FFI_ArrowDeviceArrayStream::empty());
    // SAFETY: a pointer for the stream.
    let error = context.failed(2, unsafe { devicefusion_query_stream(insert.raw, &raw mut stream) });
    assert!(error.contains("Divide by zero") && stream.release.is_none(), "{error}");
    // SAFETY: a pointer for the stream.
    let error = context.failed(2, unsafe { devicefusion_query_device_stream(insert.raw, &raw mut on_device) });
    assert!(error.contains("Divide by zero") && on_device.release.is_none(), "{error}");
    assert_eq!(pushed(&insert).err(), Some(2));
    assert!(context.error().unwrap().contains("Divide by zero"));
    assert_eq!(rows_of(&context, "host"), "0");
}

#[test]
fn codes_tell_what_kind_of_failure_it_was() {
    let context = with_prices();
    for (sql, message) in [
        ("SELEC 1", "SELEC"),
        ("SELECT nothing FROM t", "nothing"),
        ("SELECT * FROM nowhere", "nowhere"),
        ("SELECT 1; SELECT 2", "a query is one statement"),
        ("SELECT items / (items - 1) FROM t", "Divide by zero"),
        ("SELECT CAST(city AS INT) FROM t", "Bern"),
        ("SELECT approx_median(items) FROM t", "device.fallback"),
    ] {
        let error = context.failed(2, context.try_execute(sql));
        assert!(error.contains(message), "{sql}: {error}");
    }

    let config = config();
    assert_eq!(devicefusion_context_config_set_memory_limit(config, 1 << 20), 0);
    let small = Context::of(config);
    let error = small.failed(3, small.try_execute("SELECT * FROM generate_series(1, 1000000) ORDER BY value % 1000"));
    assert!(error.contains("device.memory_bytes"), "{error}");

    let host = Context::on_host();
    host.execute("SET datafusion.runtime.memory_limit = '1M'");
    host.failed(3, host.try_execute("SELECT count(DISTINCT value) FROM generate_series(1, 1000000)"));
}

/// A query that practically never ends.
const ENDLESS: &str = "SELECT count(*) FROM generate_series(1, 1000000000000) WHERE value % 7 = 3";

/// Cancels the query 300 ms after `work` has begun. `work` must end soon after that.
fn cancelled_while(query: &Query<'_>, work: impl FnOnce()) {
    let raw = query.raw.addr();
    let cancelling = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(300));
        assert_eq!(devicefusion_query_cancel(std::ptr::without_provenance_mut(raw)), 0);
        Instant::now()
    });
    work();
    let since = cancelling.join().unwrap().elapsed();
    assert!(since < Duration::from_secs(30), "{since:?}");
}

#[test]
fn queries_are_cancelled_from_another_thread() {
    let context = Context::new();
    let query = context.query(ENDLESS);
    cancelled_while(&query, || {
        // SAFETY: the pointer for the number may be NULL.
        let code = unsafe { devicefusion_query_run(query.raw, std::ptr::null_mut()) };
        assert_eq!(context.failed(1, code), "the query was cancelled");
    });

    let mut reader = ArrowArrayStreamReader::try_new(query.stream()).unwrap();
    cancelled_while(&query, || {
        for _ in 0..2 {
            let error = reader.next().unwrap().unwrap_err().to_string();
            assert!(error.contains("the query was cancelled"), "{error}");
        }
    });
    assert_eq!(context.error().unwrap(), "the query was cancelled");

    // SAFETY: a stream from the library.
    let mut reader = unsafe { ArrowDeviceArrayStreamReader::try_new(query.device_stream()) }.unwrap();
    cancelled_while(&query, || {
        let error = reader.next().unwrap().unwrap_err().to_string();
        assert!(error.contains("the query was cancelled"), "{error}");
    });

    // Later runs are not affected.
    let query = context.query("SELECT 1");
    context.ok(devicefusion_query_cancel(query.raw));
    assert_eq!(query.rows(), ["1"]);
}

fn progress(query: &Query<'_>) -> Result<String, String> {
    let mut out = std::ptr::null_mut();
    // SAFETY: a pointer for the string.
    match unsafe { devicefusion_query_progress(query.raw, &raw mut out) } {
        0 => Ok(take_string(out).unwrap()),
        _ => Err(query.context.error().unwrap()),
    }
}

#[test]
fn a_run_tells_how_far_it_is_and_only_while_it_is_under_way() {
    const NONE: &str = "no run of the query is under way";
    let context = with_prices();
    let query = context.query("SELECT items FROM t");
    assert_eq!(progress(&query).unwrap_err(), NONE);
    query.rows();
    assert_eq!(progress(&query).unwrap_err(), NONE);

    let mut reader = ArrowArrayStreamReader::try_new(query.stream()).unwrap();
    reader.next().unwrap().unwrap();
    let plan = progress(&query).unwrap();
    assert!(plan.starts_with("DeviceToHostExec") && plan.contains("output_rows=4"), "{plan}");
    drop(reader);
    assert_eq!(progress(&query).unwrap_err(), NONE);

    let query = context.query(ENDLESS);
    let stream = query.device_stream();
    let has_rows = |plan: &str| plan.lines().any(|line| line.contains("LazyMemoryExec") && !line.contains("output_rows=0"));
    let deadline = Instant::now() + Duration::from_secs(60);
    // SAFETY: a stream from the library.
    let mut reader = unsafe { ArrowDeviceArrayStreamReader::try_new(stream) }.unwrap();
    let reading = std::thread::spawn(move || reader.next().unwrap().unwrap_err().to_string());
    while !has_rows(&progress(&query).unwrap()) {
        assert!(Instant::now() < deadline, "{}", progress(&query).unwrap());
        std::thread::sleep(Duration::from_millis(20));
    }
    context.ok(devicefusion_query_cancel(query.raw));
    assert!(reading.join().unwrap().contains("the query was cancelled"));
}

/// Starts a push; the stream of its rows, or the code of the failure.
fn pushed(query: &Query<'_>) -> Result<AsyncDeviceStream, c_int> {
    // SAFETY: the producer is the library, which follows the interface.
    let (handler, stream) = unsafe { AsyncDeviceStream::new(AsyncStreamOptions::default()) };
    // SAFETY: a handler of arrow-device.
    match unsafe { devicefusion_query_push(query.raw, handler.into_raw()) } {
        0 => Ok(stream),
        code => Err(code),
    }
}

#[test]
fn rows_are_pushed_until_they_end_or_the_query_fails_or_is_cancelled() {
    let context = with_prices();
    let query = context.query("SELECT items FROM t");
    let arrays = pushed(&query).unwrap().map(|array| array.unwrap().len());
    assert_eq!(block_on(arrays.collect::<Vec<_>>()).iter().sum::<usize>(), 4);

    let query = context.query("SELECT items / (items - 1) FROM t");
    let error = block_on(pushed(&query).unwrap().next()).unwrap().unwrap_err().to_string();
    assert!(error.contains("Divide by zero"), "{error}");

    let query = context.query("SELECT approx_median(items) FROM t");
    assert_eq!(pushed(&query).err(), Some(2));
    assert!(context.error().unwrap().contains("device.fallback"));

    let query = context.query(ENDLESS);
    let mut stream = pushed(&query).unwrap();
    cancelled_while(&query, || {
        let error = block_on(stream.next()).unwrap().unwrap_err().to_string();
        assert!(error.contains("the query was cancelled"), "{error}");
    });

    // SAFETY: NULL is an error.
    let error = context.failed(2, unsafe { devicefusion_query_push(query.raw, std::ptr::null_mut()) });
    assert!(error.contains("the pointer is null"), "{error}");
}

#[test]
fn pushing_goes_on_after_query_and_context_are_freed() {
    let context = with_prices();
    let stream = pushed(&context.query("SELECT items FROM t")).unwrap();
    drop(context);
    let arrays = stream.map(|array| array.unwrap().len());
    assert_eq!(block_on(arrays.collect::<Vec<_>>()).iter().sum::<usize>(), 4);
}

#[test]
fn a_stream_fails_with_what_the_query_fails_with() {
    let context = with_prices();
    let query = context.query("SELECT items / (items - 1) FROM t");
    let mut reader = ArrowArrayStreamReader::try_new(query.stream()).unwrap();
    let error = reader.next().unwrap().unwrap_err().to_string();
    assert!(error.contains("Divide by zero"), "{error}");
    assert!(context.error().unwrap().contains("Divide by zero"));
}

/// The errno and the message of a stream that has no next batch but a failure.
#[track_caller]
fn next_fails(stream: &mut FFI_ArrowArrayStream) -> (c_int, String) {
    let mut array = FFI_ArrowArray::empty();
    // SAFETY: a live stream, and a pointer for the array.
    let errno = unsafe { stream.get_next.unwrap()(stream, &raw mut array) };
    assert_ne!(errno, 0);
    // SAFETY: the last call of the stream has failed.
    let message = unsafe { stream.get_last_error.unwrap()(stream) };
    assert!(!message.is_null());
    // SAFETY: a C string until the next call.
    (errno, unsafe { CStr::from_ptr(message) }.to_str().unwrap().to_owned())
}

#[test]
fn the_message_of_a_stream_is_that_of_the_failure_itself() {
    const MEMORY: &str = "SELECT count(DISTINCT value) FROM generate_series(1, 1000000)";
    const ZERO: &str = "SELECT items / (items - 1) FROM t";
    let (context, host) = (with_prices(), Context::on_host());
    host.execute("SET datafusion.runtime.memory_limit = '1M'");
    for (context, sql, errno, part) in
        [(&context, ZERO, libc::EINVAL, "Divide by zero"), (&host, MEMORY, libc::ENOMEM, "Resources exhausted")]
    {
        let mut stream = context.query(sql).stream();
        let failure = next_fails(&mut stream);
        assert_eq!(failure, (errno, context.error().unwrap()));
        // Later calls repeat it.
        assert_eq!(next_fails(&mut stream), failure);
        let (_, message) = failure;
        let has_prefix = ["External error", "Memory error"].iter().any(|prefix| message.contains(prefix));
        assert!(message.contains(part) && !has_prefix, "{message}");
    }
    let query = context.query(ENDLESS);
    let mut stream = query.stream();
    cancelled_while(&query, || {
        assert_eq!(next_fails(&mut stream), (libc::EINVAL, "the query was cancelled".to_owned()));
    });
}

#[test]
fn streams_outlive_their_query_and_context() {
    let context = with_prices();
    let (host, device) = {
        let query = context.query("SELECT items FROM t ORDER BY items");
        (query.stream(), query.device_stream())
    };
    drop(context);
    assert_eq!(lines(host), ["1", "1", "3", "4"]);
    // SAFETY: a stream from the library.
    let reader = unsafe { ArrowDeviceArrayStreamReader::try_new(device) }.unwrap();
    assert_eq!(reader.map(|array| array.unwrap().len()).sum::<usize>(), 4);
}

#[test]
fn a_query_that_outlives_its_context_can_still_run() {
    let context = with_prices();
    let query = context.query("SELECT sum(items) FROM t");
    assert_eq!(devicefusion_context_free(context.raw), 0);
    let mut rows = -1;
    // SAFETY: a pointer for the number.
    assert_eq!(unsafe { devicefusion_query_run(query.raw, &raw mut rows) }, 0);
    assert_eq!(rows, 1);
    drop(query);
    assert_eq!(devicefusion_context_config_free(context.config), 0);
    std::mem::forget(context);
}
