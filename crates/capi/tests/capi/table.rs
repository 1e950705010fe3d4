// SPDX-License-Identifier: Apache-2.0
//! Tables of host and device streams, of arrays, and of files.

use std::ffi::{c_int, c_void};
use std::ptr;
use std::sync::Arc;

use arrow::array::{ArrayRef, Int64Array, RecordBatch, StringArray, StructArray, UnionArray};
use arrow::datatypes::{DataType, Field, UnionFields};
use arrow_device::async_stream::{AsyncHandler, ProduceOptions, produce_on_thread};
use arrow_device::ffi::{ArrowDeviceType, FFI_ArrowAsyncDeviceStreamHandler};
use arrow_device::stream::ArrowDeviceArrayStreamReader;
use arrow_device::{cpu, schema};
use devicefusion_capi::config::*;
use devicefusion_capi::query::*;
use devicefusion_capi::table::*;

use crate::c::is_alone;
use crate::support::{Context, c, config, prices};

const SUMS: &str = "SELECT city, sum(items) AS items, sum(price) AS price FROM t GROUP BY city ORDER BY city NULLS LAST";
const ANSWER: [&str; 3] = ["Bern 3 1.5", "Oslo 2 8.0", " 4 2.0"];

#[test]
fn host_streams_become_tables_of_each_kind() {
    let context = Context::new();
    for kind in [DEVICEFUSION_TABLE_STREAM, DEVICEFUSION_TABLE_HOST, DEVICEFUSION_TABLE_DEVICE] {
        let batches = vec![prices().slice(0, 1), prices().slice(1, 3)];
        context.ok(context.register("t", batches, kind));
        assert_eq!(context.rows(SUMS), ANSWER, "{kind}");
        if kind == DEVICEFUSION_TABLE_STREAM {
            let error = context.failed(2, context.try_execute(SUMS));
            assert!(error.contains("have been read"), "{error}");
        } else {
            assert_eq!(context.rows(SUMS), ANSWER, "{kind}");
        }
        // SAFETY: a C string.
        context.ok(unsafe { devicefusion_drop_table(context.raw, c"t".as_ptr()) });
    }
    // SAFETY: see above.
    let error = context.failed(2, unsafe { devicefusion_drop_table(context.raw, c"t".as_ptr()) });
    assert_eq!(error, "there is no table t");
}

#[test]
fn without_a_device_tables_lie_in_host_memory() {
    let context = Context::on_host();
    context.ok(context.register("t", vec![prices()], DEVICEFUSION_TABLE_HOST));
    assert_eq!(context.rows(SUMS), ANSWER);
    let error = context.failed(2, context.register("u", vec![prices()], DEVICEFUSION_TABLE_STREAM));
    assert!(error.contains("DEVICEFUSION_TABLE_HOST does not"), "{error}");
    let error = context.failed(2, context.register("u", vec![prices()], DEVICEFUSION_TABLE_DEVICE));
    assert!(error.contains("needs a device: device.selector = 'none'"), "{error}");
}

/// Futhark's records and sum types. SQL supports both on the host: construction, fields and
/// variants.
#[test]
fn records_are_structs_and_sums_are_unions() {
    let numbers: ArrayRef = Arc::new(Int64Array::from(vec![3, 1, 4]));
    let terms: ArrayRef = Arc::new(StringArray::from(vec!["c", "a", "d"]));
    let record = StructArray::from(vec![
        (Arc::new(Field::new("n", DataType::Int64, true)), Arc::clone(&numbers)),
        (Arc::new(Field::new("s", DataType::Utf8, true)), Arc::clone(&terms)),
    ]);
    let variants = [Field::new("number", DataType::Int64, true), Field::new("term", DataType::Utf8, true)];
    let variants = UnionFields::try_new([0, 1], variants).unwrap();
    let sum = UnionArray::try_new(variants, vec![0, 1, 0].into(), None, vec![numbers, terms]).unwrap();
    let columns: [(&str, ArrayRef, bool); 2] = [("record", Arc::new(record), true), ("sum", Arc::new(sum), true)];
    let batch = RecordBatch::try_from_iter_with_nullable(columns).unwrap();
    for context in [Context::on_host(), Context::of(devicefusion_context_config_new())] {
        context.ok(context.register("t", vec![batch.clone()], DEVICEFUSION_TABLE_HOST));
        let parts = "SELECT record['n'] + 1, record['s'], union_tag(sum), union_extract(sum, 'term') FROM t";
        assert_eq!(context.rows(parts), ["4 c number ", "2 a term a", "5 d number "]);
        let made = "SELECT named_struct('n', record['n'], 's', record['s']) = record FROM t";
        assert_eq!(context.rows(made), ["true", "true", "true"]);
    }
}

#[test]
fn a_resident_table_uploads_nothing_when_it_is_read() {
    let context = Context::new();
    context.ok(context.register("t", vec![prices()], DEVICEFUSION_TABLE_DEVICE));
    let bytes_up = || context.report()["copies"]["bytes_up"].as_u64().unwrap();
    context.execute("SELECT sum(items) FROM t");
    let before = bytes_up();
    context.execute("SELECT sum(items) FROM t");
    // A few kernel arguments.
    assert!(bytes_up() - before < 1000, "{}", bytes_up() - before);
}

#[test]
fn device_streams_of_a_query_are_tables_of_the_next() {
    let context = Context::new();
    context.ok(context.register("t", vec![prices()], DEVICEFUSION_TABLE_DEVICE));
    let other = Context::new();
    for (target, kind) in [
        (&context, DEVICEFUSION_TABLE_STREAM),
        (&context, DEVICEFUSION_TABLE_DEVICE),
        (&other, DEVICEFUSION_TABLE_STREAM),
        (&other, DEVICEFUSION_TABLE_DEVICE),
    ] {
        let mut stream = context.query("SELECT items * 2 AS twice FROM t WHERE items < 4").device_stream();
        // SAFETY: a C string and a stream from the library.
        target.ok(unsafe { devicefusion_register_device_stream(target.raw, c"twice".as_ptr(), &raw mut stream, kind) });
        assert!(stream.release.is_none());
        assert_eq!(target.rows("SELECT sum(twice) FROM twice"), ["10"]);
        target.execute("DROP TABLE twice");
    }
}

/// A `produce` callback: the query at `query` pushes its rows.
unsafe extern "C" fn push(query: *mut c_void, handler: *mut FFI_ArrowAsyncDeviceStreamHandler) {
    // SAFETY: a handler from the library.
    assert_eq!(unsafe { devicefusion_query_push(query.cast(), handler) }, 0);
}

#[test]
fn pushed_rows_of_a_query_are_tables_of_the_next() {
    let context = Context::new();
    context.ok(context.register("t", vec![prices()], DEVICEFUSION_TABLE_DEVICE));
    let other = Context::new();
    for (target, kind) in [
        (&context, DEVICEFUSION_TABLE_STREAM),
        (&context, DEVICEFUSION_TABLE_DEVICE),
        (&other, DEVICEFUSION_TABLE_STREAM),
        (&other, DEVICEFUSION_TABLE_DEVICE),
    ] {
        let query = context.query("SELECT items * 2 AS twice FROM t WHERE items < 4");
        // SAFETY: a C string, and a function that follows the interface.
        target
            .ok(unsafe { devicefusion_register_async_stream(target.raw, c"twice".as_ptr(), Some(push), query.raw.cast(), kind) });
        assert_eq!(target.rows("SELECT sum(twice) FROM twice"), ["10"]);
        target.execute("DROP TABLE twice");
    }
}

/// A `produce` callback: one host batch, or a failure if `data` is not NULL.
unsafe extern "C" fn produce(data: *mut c_void, handler: *mut FFI_ArrowAsyncDeviceStreamHandler) {
    let batch = prices();
    let arrays = match data.is_null() {
        true => vec![cpu::export_batch(&batch)],
        false => vec![Err(arrow_device::Error::Other("the disk is gone".to_owned()))],
    };
    let (field, arrays) = (schema::batch_field(&batch.schema()), futures::stream::iter(arrays));
    // SAFETY: a handler from the library.
    let handler = unsafe { AsyncHandler::from_raw(handler) }.unwrap();
    produce_on_thread(arrays, &field, ArrowDeviceType::CPU, handler, ProduceOptions::default()).unwrap();
}

#[test]
fn a_producer_pushes_host_arrays_or_fails() {
    let context = Context::new();
    let register = |produce, data, kind| {
        // SAFETY: a C string, and a function that follows the interface.
        unsafe { devicefusion_register_async_stream(context.raw, c"t".as_ptr(), produce, data, kind) }
    };
    for kind in [DEVICEFUSION_TABLE_STREAM, DEVICEFUSION_TABLE_HOST, DEVICEFUSION_TABLE_DEVICE] {
        context.ok(register(Some(produce), ptr::null_mut(), kind));
        assert_eq!(context.rows(SUMS), ANSWER, "{kind}");
        context.execute("DROP TABLE t");
    }
    let mut failing = 1;
    let error = context.failed(1, register(Some(produce), (&raw mut failing).cast(), DEVICEFUSION_TABLE_HOST));
    assert!(error.contains("the disk is gone"), "{error}");
    let error = context.failed(2, register(None, ptr::null_mut(), DEVICEFUSION_TABLE_HOST));
    assert_eq!(error, "the function that starts the producer is NULL");
}

#[test]
fn host_streams_of_a_query_are_tables_of_the_same_context() {
    let context = Context::new();
    context.ok(context.register("t", vec![prices()], DEVICEFUSION_TABLE_DEVICE));
    for kind in [DEVICEFUSION_TABLE_STREAM, DEVICEFUSION_TABLE_HOST, DEVICEFUSION_TABLE_DEVICE] {
        let mut stream = context.query("SELECT items FROM t WHERE items < 4").stream();
        // SAFETY: a C string and a stream from the library.
        context.ok(unsafe { devicefusion_register_stream(context.raw, c"few".as_ptr(), &raw mut stream, kind) });
        assert_eq!(context.rows("SELECT sum(items) FROM few"), ["5"]);
        context.execute("DROP TABLE few");
    }
}

fn register_array(context: &Context, batch: &RecordBatch, kind: c_int) -> c_int {
    let mut array = cpu::export_batch(batch).unwrap();
    let mut columns = schema::export_schema(&batch.schema()).unwrap();
    // SAFETY: a C string and structs of arrow-device.
    let code = unsafe { devicefusion_register_device_array(context.raw, c"t".as_ptr(), &raw mut array, &raw mut columns, kind) };
    assert!(array.is_released() && columns.release.is_none());
    code
}

#[test]
fn device_arrays_become_tables() {
    let context = Context::new();
    for kind in [DEVICEFUSION_TABLE_STREAM, DEVICEFUSION_TABLE_HOST, DEVICEFUSION_TABLE_DEVICE] {
        context.ok(register_array(&context, &prices(), kind));
        assert_eq!(context.rows(SUMS), ANSWER, "{kind}");
        context.execute("DROP TABLE t");
    }
}

#[test]
fn arrays_of_device_memory_stay_in_place() {
    let context = Context::new();
    context.ok(context.register("source", vec![prices()], DEVICEFUSION_TABLE_DEVICE));
    let stream = context.query("SELECT items + 1 AS more FROM source").device_stream();
    // SAFETY: a stream from the library.
    let mut reader = unsafe { ArrowDeviceArrayStreamReader::try_new(stream) }.unwrap();
    let mut columns = schema::export_field(reader.field()).unwrap();
    let mut array = reader.next().unwrap().unwrap().into_ffi();
    let down = || context.report()["copies"]["bytes_down"].as_u64().unwrap();
    let before = down();
    // SAFETY: a C string and structs from the library.
    context.ok(unsafe {
        let kind = DEVICEFUSION_TABLE_DEVICE;
        devicefusion_register_device_array(context.raw, c"t".as_ptr(), &raw mut array, &raw mut columns, kind)
    });
    // Counts may be downloaded, but not the rows, which take 32 bytes.
    assert!(down() - before < 32, "{}", down() - before);
    assert_eq!(context.rows("SELECT sum(more) FROM t"), ["13"]);
}

#[test]
fn files_become_tables() {
    let folder = tempfile::tempdir().unwrap();
    let (context, source) = (Context::new(), Context::on_host_with("source", prices()));
    // A quote in a file name is escaped.
    for (name, format) in [("it's.parquet", c"PARQUET"), ("prices.csv", c"csv"), ("prices.json", c"JSON")] {
        let path = folder.path().join(name);
        let path = path.to_str().unwrap();
        let sql = format!("COPY source TO '{}' STORED AS {}", path.replace('\'', "''"), format.to_str().unwrap());
        assert_eq!(source.execute(&sql), 4);
        let path = c(path);
        // SAFETY: C strings.
        context.ok(unsafe { devicefusion_register_file(context.raw, c"t".as_ptr(), path.as_ptr(), format.as_ptr()) });
        assert_eq!(context.rows("SELECT sum(items) FROM t"), ["9"], "{name}");
        context.execute("DROP TABLE t");
    }
    // SAFETY: C strings.
    let error = context
        .failed(2, unsafe { devicefusion_register_file(context.raw, c"t".as_ptr(), c"x".as_ptr(), c"CSV; DROP".as_ptr()) });
    assert_eq!(error, "'CSV; DROP' is not a file format");
    // SAFETY: see above.
    let code =
        unsafe { devicefusion_register_file(context.raw, c"t".as_ptr(), c"/nowhere/x.parquet".as_ptr(), c"PARQUET".as_ptr()) };
    assert!(code != 0 && context.error().is_some());
}

fn register_file(context: &Context, name: &str, url: &str, format: &str) -> c_int {
    let (name, url, format) = (c(name), c(url), c(format));
    // SAFETY: C strings.
    unsafe { devicefusion_register_file(context.raw, name.as_ptr(), url.as_ptr(), format.as_ptr()) }
}

/// An Avro file with a column "items" of 3, 1, 4 and 1, by the format's specification: DataFusion
/// writes no Avro.
fn avro() -> Vec<u8> {
    let schema = r#"{"type":"record","name":"t","fields":[{"name":"items","type":"long"}]}"#;
    let zigzag = |number: usize| -> Vec<u8> {
        match 2 * number {
            small @ ..128 => vec![small as u8],
            large => vec![large as u8 | 128, (large >> 7) as u8],
        }
    };
    let string = |string: &str| [zigzag(string.len()), string.as_bytes().to_vec()].concat();
    let sync = [7; 16];
    let header = [b"Obj\x01".to_vec(), zigzag(1), string("avro.schema"), string(schema), zigzag(0), sync.to_vec()].concat();
    let values: Vec<u8> = [3, 1, 4, 1].into_iter().flat_map(zigzag).collect();
    [header, zigzag(4), zigzag(values.len()), values, sync.to_vec()].concat()
}

#[test]
fn urls_of_files_and_folders_become_tables() {
    let folder = tempfile::tempdir().unwrap();
    let (context, source) = (Context::new(), Context::on_host_with("source", prices()));
    for format in ["parquet", "csv", "json", "arrow", "avro"] {
        let parts = folder.path().join(format);
        std::fs::create_dir(&parts).unwrap();
        for part in ["one", "a space"] {
            let path = parts.join(format!("{part}.{format}"));
            match format {
                "avro" => std::fs::write(path, avro()).unwrap(),
                _ => {
                    let sql = format!("COPY (SELECT items FROM source) TO '{}' STORED AS {format}", path.display());
                    assert_eq!(source.execute(&sql), 4);
                }
            }
        }
        std::fs::write(parts.join("notes.txt"), "not for the table").unwrap();
        let parts = parts.to_str().unwrap();
        for (url, sum) in [
            (format!("file://{parts}/one.{format}"), 9),
            (format!("file://{parts}/a%20space.{format}"), 9),
            (format!("file://{parts}/"), 18),
            (format!("{parts}/"), 18),
            (parts.to_owned(), 18),
        ] {
            context.ok(register_file(&context, "t", &url, format));
            assert_eq!(context.rows("SELECT sum(items) FROM t"), [sum.to_string()], "{url}");
            context.execute("DROP TABLE t");
        }
    }
    let nothing = format!("file://{}/csv/", folder.path().display());
    let error = context.failed(2, register_file(&context, "t", &nothing, "parquet"));
    assert!(error.contains("No files found"), "{error}");
}

#[test]
fn remote_urls_are_refused_with_advice() {
    let context = Context::on_host();
    for url in
        ["http://127.0.0.1:9/prices.csv", "https://127.0.0.1:9/prices.csv", "s3://bucket/prices.csv", "gs://bucket/prices.csv"]
    {
        let expected = format!(
            "{url} cannot be read: tables are files on this machine, by path or file:// URL; copy the file, or register its rows as \
             a stream"
        );
        assert_eq!(context.failed(2, register_file(&context, "t", url, "CSV")), expected);
        let sql = format!("CREATE EXTERNAL TABLE t STORED AS CSV LOCATION '{url}'");
        assert_eq!(context.failed(2, context.try_execute(&sql)), expected);
    }
    let error = context.failed(2, context.try_execute("COPY (SELECT 1) TO 's3://bucket/one.csv'"));
    assert!(error.starts_with("s3://bucket") && error.contains("cannot be read"), "{error}");
}

#[test]
fn names_are_those_of_sql() {
    let context = Context::new();
    context.ok(context.register("Prices", vec![prices()], DEVICEFUSION_TABLE_DEVICE));
    context.ok(context.register("\"Prices\"", vec![prices().slice(0, 1)], DEVICEFUSION_TABLE_DEVICE));
    context.ok(context.register("device.prices", vec![prices().slice(0, 2)], DEVICEFUSION_TABLE_HOST));
    for (name, rows) in [("PRICES", "4"), ("\"Prices\"", "1"), ("device.prices", "2")] {
        assert_eq!(context.rows(&format!("SELECT count(*) FROM {name}")), [rows]);
    }
    let error = context.failed(2, context.register("prices", vec![prices()], DEVICEFUSION_TABLE_HOST));
    assert_eq!(error, "the table prices exists already");
}

/// Bytes of this process under a name of Linux.
fn status(name: &str) -> Option<usize> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let value = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')?.trim().strip_suffix(" kB"))?;
    Some(value.parse::<usize>().ok()? << 10)
}

/// A statement that collected its rows would hold 32 bytes a row on the host and 14 narrow ones on
/// the device. It took 327 bytes a row where values need some 130.
#[test]
fn a_table_of_a_query_takes_little_more_than_its_rows() {
    const ROWS: usize = 6_000_000;
    const ROW_BYTES: usize = 32;
    if !is_alone("table::a_table_of_a_query_takes_little_more_than_its_rows") {
        return;
    }
    let context = Context::new();
    let create = |table: &str, rows: usize| {
        let columns = "value AS a, value * 3 AS b, value % 1000 AS c, value + 7 AS d";
        context.execute(&format!("CREATE TABLE device.{table} AS SELECT {columns} FROM generate_series(1, {rows})"));
    };
    // Compiles the kernels.
    create("small", 300_000);
    let Some(before) = status("VmRSS") else { return };
    create("t", ROWS);
    let peak = status("VmHWM").unwrap().saturating_sub(before);
    println!("{} bytes a row at the peak", peak / ROWS);
    assert!(peak < ROWS * ROW_BYTES * 11 / 10, "{peak} bytes at the peak for {ROWS} rows of {ROW_BYTES}");
    assert_eq!(context.rows("SELECT count(*), max(d) FROM device.t"), [format!("{ROWS} {}", ROWS + 7)]);
}

/// Operators that hold all rows, some 300 MB, keep the process near both limits. Copies between
/// host and device count towards neither.
#[test]
fn queries_of_many_rows_stay_within_the_limits_of_memory() {
    const LIMIT: usize = 64 << 20;
    const COPIES: usize = 128 << 20;
    if !is_alone("table::queries_of_many_rows_stay_within_the_limits_of_memory") {
        return;
    }
    let config = config();
    assert_eq!(devicefusion_context_config_set_memory_limit(config, LIMIT), 0);
    assert_eq!(devicefusion_context_config_set_host_memory_limit(config, LIMIT), 0);
    let context = Context::of(config);
    let rows = |many: usize| {
        format!("SELECT value AS a, value * 7919 % 6000011 AS b, 'text of row ' || value AS s FROM generate_series(1, {many})")
    };
    for (query, answer) in [
        ("SELECT count(*), max(b) FROM (SELECT a, b, s FROM (ROWS) ORDER BY s OFFSET 1)", "5999999 6000010"),
        ("SELECT count(*), sum(n) FROM (SELECT s, count(*) AS n FROM (ROWS) GROUP BY s)", "6000000 6000000"),
        ("SELECT count(*), count(y.s) FROM (ROWS) x JOIN (ROWS) y ON x.a = y.b", "5999990 5999990"),
        ("SELECT max(r) FROM (SELECT rank() OVER (PARTITION BY a % 997 ORDER BY b) AS r, s FROM (ROWS))", "6019"),
    ] {
        let query = |many| query.replace("ROWS", &rows(many));
        // Compiles the kernels, of which the driver keeps some memory.
        context.rows(&query(300_000));
        // The peak begins anew.
        let (Ok(()), Some(before)) = (std::fs::write("/proc/self/clear_refs", "5"), status("VmRSS")) else { return };
        let query = query(6_000_000);
        assert_eq!(context.rows(&query), [answer], "{query}");
        let peak = status("VmHWM").unwrap().saturating_sub(before);
        println!("{} MiB at the peak: {query}", peak >> 20);
        assert!(peak < 2 * LIMIT + COPIES, "{peak} bytes at the peak: {query}");
    }
}
