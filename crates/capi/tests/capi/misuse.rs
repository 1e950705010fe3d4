// SPDX-License-Identifier: Apache-2.0
//! Misuse of the library: each mistake is an error with a message, never a crash.

use std::ffi::{c_char, c_int};
use std::ptr;
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};

use arrow::array::{ArrayRef, Int64Array, RecordBatch, RecordBatchIterator};
use arrow::datatypes::{DataType, Field, Schema};
use arrow::error::ArrowError;
use arrow::ffi::FFI_ArrowSchema;
use arrow::ffi_stream::FFI_ArrowArrayStream;
use arrow_device::cpu;
use arrow_device::ffi::{
    FFI_ArrowAsyncDeviceStreamHandler, FFI_ArrowAsyncTask, FFI_ArrowDeviceArray, FFI_ArrowDeviceArrayStream,
};
use arrow_device::schema::{export_field, export_schema};
use devicefusion_capi::config::*;
use devicefusion_capi::context::*;
use devicefusion_capi::query::*;
use devicefusion_capi::table::*;

use crate::support::{Context, c, prices, stream, take_string, thread_error};

#[test]
fn null_freed_and_foreign_handles_are_told_apart_from_good_ones() {
    assert_eq!(devicefusion_context_sync(ptr::null_mut()), 2);
    assert_eq!(thread_error(), "the context is NULL");
    assert_eq!(devicefusion_context_config_set_logging(ptr::null_mut(), 1), 2);
    assert_eq!(thread_error(), "the configuration is NULL");
    assert!(devicefusion_context_new(ptr::null_mut()).is_null());
    assert_eq!(thread_error(), "the configuration is NULL");
    assert_eq!(devicefusion_query_cancel(ptr::null_mut()), 2);
    assert_eq!(thread_error(), "the query is NULL");
    assert!(devicefusion_context_report(ptr::null_mut()).is_null());
    assert_eq!(thread_error(), "the context is NULL");

    let config = devicefusion_context_config_new();
    assert_eq!(devicefusion_context_config_free(config), 0);
    assert_eq!(devicefusion_context_config_free(config), 2);
    assert!(thread_error().contains("is not a configuration: it was freed, or is something else"));

    let context = Context::on_host();
    let query = context.query("SELECT 1");
    assert_eq!(devicefusion_query_free(context.raw.cast()), 2);
    assert!(thread_error().contains("is not a query"));
    assert_eq!(devicefusion_context_free(query.raw.cast()), 2);
    assert!(thread_error().contains("is not a context"));
    assert_eq!(devicefusion_query_free(query.raw), 0);
    assert_eq!(devicefusion_query_bind_int64(query.raw, 1, 1), 2);
    assert!(thread_error().contains("is not a query"));
    std::mem::forget(query);

    // An arbitrary address.
    let mut somewhere = 0u8;
    assert_eq!(devicefusion_context_free((&raw mut somewhere).cast()), 2);
    assert!(thread_error().contains("is not a context"));
}

#[test]
fn pointers_for_results_must_not_be_null() {
    let context = Context::on_host();
    let query = context.query("SELECT 1");
    // SAFETY: the pointers are NULL, which the test is about.
    unsafe {
        context.failed(2, devicefusion_query_new(context.raw, c"SELECT 1".as_ptr(), ptr::null_mut()));
        context.failed(2, devicefusion_query_stream(query.raw, ptr::null_mut()));
        context.failed(2, devicefusion_query_device_stream(query.raw, ptr::null_mut()));
        context.failed(2, devicefusion_query_schema(query.raw, ptr::null_mut()));
        let error = context.failed(2, devicefusion_query_explain(query.raw, 0, ptr::null_mut()));
        assert_eq!(error, "the pointer for the string is NULL");
        let mut out = ptr::null_mut();
        assert_eq!(context.failed(2, devicefusion_query_new(context.raw, ptr::null(), &raw mut out)), "the SQL is NULL");
        assert!(out.is_null());
    }
}

#[test]
fn null_and_released_structs_are_refused() {
    let context = Context::on_host();
    let name = c"t".as_ptr();
    let kind = DEVICEFUSION_TABLE_HOST;
    // SAFETY: pointers are NULL or to released structs, which the test is about.
    unsafe {
        let error = context.failed(2, devicefusion_register_stream(context.raw, name, ptr::null_mut(), kind));
        assert_eq!(error, "the stream is NULL");
        let mut released = FFI_ArrowArrayStream::empty();
        let error = context.failed(2, devicefusion_register_stream(context.raw, name, &raw mut released, kind));
        assert_eq!(error, "the stream has been released, or moved away");
        let mut released = FFI_ArrowDeviceArrayStream::empty();
        let error = context.failed(2, devicefusion_register_device_stream(context.raw, name, &raw mut released, kind));
        assert_eq!(error, "the stream has been released, or moved away");

        let mut columns = export_schema(&prices().schema()).unwrap();
        let mut released = FFI_ArrowDeviceArray::empty();
        let code = devicefusion_register_device_array(context.raw, name, &raw mut released, &raw mut columns, kind);
        assert_eq!(context.failed(2, code), "the array has been released, or moved away");
        assert!(columns.release.is_none(), "it is moved in any case");
        let mut array = cpu::export_batch(&prices()).unwrap();
        let mut released = FFI_ArrowSchema::empty();
        let code = devicefusion_register_device_array(context.raw, name, &raw mut array, &raw mut released, kind);
        assert_eq!(context.failed(2, code), "the schema has been released, or moved away");
        assert!(array.is_released(), "it is moved in any case");

        let query = context.query("SELECT $1");
        let code = devicefusion_query_bind_row(query.raw, ptr::null_mut(), ptr::null_mut());
        assert_eq!(context.failed(2, code), "the row is NULL");
    }
}

#[test]
fn structs_are_moved_even_without_a_context_or_a_name() {
    let mut rows = stream(vec![prices()]);
    // SAFETY: a C string and a stream of arrow-rs.
    let code = unsafe { devicefusion_register_stream(ptr::null_mut(), c"t".as_ptr(), &raw mut rows, 1) };
    assert!(code == 2 && rows.release.is_none());
    assert_eq!(thread_error(), "the context is NULL");

    let context = Context::on_host();
    let mut rows = stream(vec![prices()]);
    // SAFETY: a stream of arrow-rs; the name is NULL.
    let code = unsafe { devicefusion_register_stream(context.raw, ptr::null(), &raw mut rows, 1) };
    assert_eq!(context.failed(2, code), "the name of the table is NULL");
    assert!(rows.release.is_none());
    assert_eq!(
        context.failed(2, context.register("t", vec![prices()], 9)),
        "9 is not a kind of table: see DEVICEFUSION_TABLE_STREAM"
    );
}

#[test]
fn arrays_that_do_not_fit_their_schema_are_refused() {
    let context = Context::on_host();
    let numbers: ArrayRef = Arc::new(Int64Array::from(vec![1, 2]));
    let register = |mut array: FFI_ArrowDeviceArray, mut columns: FFI_ArrowSchema| {
        let kind = DEVICEFUSION_TABLE_HOST;
        // SAFETY: a C string and valid structs, except for the type.
        let code =
            unsafe { devicefusion_register_device_array(context.raw, c"t".as_ptr(), &raw mut array, &raw mut columns, kind) };
        context.failed(2, code)
    };
    let error = register(cpu::export_array(&numbers).unwrap(), export_field(&cpu::field_of(&numbers)).unwrap());
    assert!(error.contains("a table needs record batches, which are arrays of structs, not Int64"), "{error}");

    let batch = RecordBatch::try_from_iter([("n", numbers)]).unwrap();
    let strings = Schema::new(vec![Field::new("n", DataType::Utf8, false)]);
    let error = register(cpu::export_batch(&batch).unwrap(), export_schema(&strings).unwrap());
    assert!(error.contains("column 0 \"n\" (Utf8)") && error.contains("buffers"), "{error}");
}

#[test]
fn a_device_stream_needs_a_device() {
    let context = Context::on_host();
    let query = context.query("SELECT 1");
    let mut out = FFI_ArrowDeviceArrayStream::empty();
    // SAFETY: a pointer for the stream.
    let code = unsafe { devicefusion_query_device_stream(query.raw, &raw mut out) };
    let expected = "a result on the device needs a device, and the context has none: device.selector = 'none'; \
                    devicefusion_query_stream gives host rows";
    assert_eq!(context.failed(2, code), expected);
    assert!(out.release.is_none());
}

#[test]
fn errors_of_a_foreign_stream_are_returned() {
    let schema = prices().schema();
    let failing = || {
        let error = ArrowError::IoError("the disk is gone".into(), std::io::ErrorKind::Other.into());
        FFI_ArrowArrayStream::new(Box::new(RecordBatchIterator::new(vec![Ok(prices()), Err(error)], Arc::clone(&schema))))
    };
    let context = Context::new();
    for kind in [DEVICEFUSION_TABLE_HOST, DEVICEFUSION_TABLE_DEVICE] {
        let mut rows = failing();
        // SAFETY: a C string and a stream of arrow-rs.
        let code = unsafe { devicefusion_register_stream(context.raw, c"t".as_ptr(), &raw mut rows, kind) };
        let error = context.failed(1, code);
        assert!(error.contains("the disk is gone"), "{error}");
    }
    let mut rows = failing();
    // SAFETY: as above.
    context.ok(unsafe { devicefusion_register_stream(context.raw, c"t".as_ptr(), &raw mut rows, DEVICEFUSION_TABLE_STREAM) });
    assert!(context.try_execute("SELECT sum(items) FROM t") != 0);
    assert!(context.error().unwrap().contains("the disk is gone"));
}

/// A handler whose callback runs a query and frees another context on a thread of the library. It
/// sends both results.
#[repr(C)]
struct NestedHandler {
    handler: FFI_ArrowAsyncDeviceStreamHandler,
    context: *mut devicefusion_context,
    other: *mut devicefusion_context,
    result: Sender<(c_int, String, c_int)>,
}

unsafe extern "C" fn on_schema(handler: *mut FFI_ArrowAsyncDeviceStreamHandler, schema: *mut FFI_ArrowSchema) -> c_int {
    // SAFETY: the handler is the first field of a `NestedHandler`, alive until its release. The
    // schema is moved out.
    let (nested, _schema) = unsafe { (&*handler.cast::<NestedHandler>(), FFI_ArrowSchema::from_raw(schema)) };
    // SAFETY: a C string; the pointer for the number may be NULL.
    let code = unsafe { devicefusion_execute(nested.context, c"SELECT 1".as_ptr(), ptr::null_mut()) };
    let error = take_string(devicefusion_context_get_error(nested.context)).unwrap_or_default();
    nested.result.send((code, error, devicefusion_context_free(nested.other))).unwrap();
    libc::ECANCELED
}

unsafe extern "C" fn on_next_task(
    _: *mut FFI_ArrowAsyncDeviceStreamHandler,
    _: *mut FFI_ArrowAsyncTask,
    _: *const c_char,
) -> c_int {
    libc::ECANCELED
}

unsafe extern "C" fn on_error(_: *mut FFI_ArrowAsyncDeviceStreamHandler, _: c_int, _: *const c_char, _: *const c_char) {}

unsafe extern "C" fn release(handler: *mut FFI_ArrowAsyncDeviceStreamHandler) {
    // SAFETY: the last call, on a boxed `NestedHandler`.
    drop(unsafe { Box::from_raw(handler.cast::<NestedHandler>()) });
}

#[test]
fn a_callback_cannot_run_queries_but_can_free_contexts() {
    let context = Context::new();
    let query = context.query("SELECT 1");
    let (result, results) = channel();
    let handler = FFI_ArrowAsyncDeviceStreamHandler {
        on_schema: Some(on_schema),
        on_next_task: Some(on_next_task),
        on_error: Some(on_error),
        release: Some(release),
        producer: ptr::null_mut(),
        private_data: ptr::null_mut(),
    };
    let config = devicefusion_context_config_new();
    let other = devicefusion_context_new(config);
    let nested = Box::into_raw(Box::new(NestedHandler { handler, context: context.raw, other, result }));
    // SAFETY: the handler follows the interface, and is the first field of the box.
    context.ok(unsafe { devicefusion_query_push(query.raw, &raw mut (*nested).handler) });
    let (code, error, freed) = results.recv().unwrap();
    assert_eq!((code, &*error), (2, "a blocking call was made on a worker thread of a context"));
    assert_eq!(freed, 0);
    assert_eq!(devicefusion_context_config_free(config), 0);
    // The release dropped the sender.
    assert!(results.recv().is_err());
}

/// The thread's own stack would overflow: it has 2 MiB.
#[test]
fn deep_expressions_run_and_deeper_ones_are_refused() {
    let context = Context::on_host();
    context.execute("CREATE TABLE t AS SELECT value AS a FROM generate_series(1, 5000)");
    let sql = |number| format!("SELECT count(*) FROM t WHERE {}", vec!["(a = 1 OR a > 4990)"; number].join(" AND "));
    assert_eq!(context.query(&sql(600)).rows(), ["11"]);
    let (sql, mut raw) = (c(&sql(20_100)), ptr::null_mut());
    // SAFETY: a C string, and a pointer for the query.
    let code = unsafe { devicefusion_query_new(context.raw, sql.as_ptr(), &raw mut raw) };
    let error = context.failed(2, code);
    assert!(error.contains("operators, the limit is 20000"), "{error}");
}
