// SPDX-License-Identifier: Apache-2.0
//! Queues that a program shares, raw values in and out, and rows as bytes.

use std::ffi::{CString, c_void};
use std::ptr;
use std::sync::atomic::{AtomicUsize, Ordering};

use arrow::array::AsArray;
use arrow::datatypes::{Float64Type, Int64Type};
use arrow::ffi::FFI_ArrowSchema;
use arrow_device::ffi::{ArrowDeviceType, FFI_ArrowDeviceArray, FFI_ArrowDeviceArrayStream};
use arrow_device::stream::{ArrowDeviceArrayStreamReader, export_iterator};
use arrow_device::{cpu, schema};
use device::DriverKind;
use devicefusion_capi::config::*;
use devicefusion_capi::context::*;
use devicefusion_capi::raw::*;
use devicefusion_capi::store::*;
use devicefusion_capi::table::*;

use crate::support::{Context, c, config, homeless_error, prices};

/// The queue or stream that a context shares, and whose it is.
fn shared(context: &Context) -> (*mut c_void, DriverKind) {
    let (opencl, cuda) = (devicefusion_context_get_command_queue(context.raw), devicefusion_context_get_cuda_stream(context.raw));
    assert!(opencl.is_null() != cuda.is_null());
    assert!(context.error().unwrap().contains("the context's device is "));
    if opencl.is_null() { (cuda, DriverKind::Cuda) } else { (opencl, DriverKind::OpenCl) }
}

fn share(config: *mut devicefusion_context_config, (queue, driver): (*mut c_void, DriverKind)) -> i32 {
    // SAFETY: the queue is live, or NULL.
    unsafe {
        match driver {
            DriverKind::OpenCl => devicefusion_context_config_set_command_queue(config, queue),
            DriverKind::Cuda => devicefusion_context_config_set_cuda_stream(config, queue),
        }
    }
}

/// The only array of a stream, with its schema.
fn only(stream: FFI_ArrowDeviceArrayStream) -> (FFI_ArrowDeviceArray, FFI_ArrowSchema) {
    // SAFETY: a stream of the library.
    let mut reader = unsafe { ArrowDeviceArrayStreamReader::try_new(stream) }.unwrap();
    let columns = schema::export_field(reader.field()).unwrap();
    let array = reader.next().unwrap().unwrap().into_ffi();
    assert!(reader.next().is_none());
    (array, columns)
}

fn values(
    context: &Context,
    array: &FFI_ArrowDeviceArray,
    columns: &FFI_ArrowSchema,
    column: i64,
) -> Result<devicefusion_raw_values, String> {
    let mut out = std::mem::MaybeUninit::uninit();
    // SAFETY: structs of the library, and a place for the values, which are written on success.
    unsafe {
        match devicefusion_array_values_raw(context.raw, array, columns, column, out.as_mut_ptr()) {
            0 => Ok(out.assume_init()),
            code => Err(context.failed(2, code)),
        }
    }
}

/// Counts how often a program got its memory back.
unsafe extern "C" fn count(data: *mut c_void) {
    // SAFETY: the counter outlives the context.
    unsafe { &*data.cast::<AtomicUsize>() }.fetch_add(1, Ordering::SeqCst);
}

struct Column(CString, CString, *mut c_void, *mut c_void);

fn register_raw(context: &Context, columns: &[Column], length: i64, released: &AtomicUsize) -> i32 {
    let raw = |Column(name, format, memory, validity): &Column| devicefusion_raw_column {
        name: name.as_ptr(),
        format: format.as_ptr(),
        memory: *memory,
        validity: *validity,
    };
    let columns: Vec<_> = columns.iter().map(raw).collect();
    let data = ptr::from_ref(released).cast_mut().cast();
    // SAFETY: texts, memory and counter outlive the context.
    unsafe { devicefusion_register_raw(context.raw, c"raw".as_ptr(), columns.as_ptr(), columns.len(), length, Some(count), data) }
}

fn wait_for(released: &AtomicUsize) {
    for _ in 0..5000 {
        if released.load(Ordering::SeqCst) > 0 {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    assert_eq!(released.load(Ordering::SeqCst), 1);
}

#[test]
fn contexts_share_a_queue_and_with_it_memory() {
    let program = Context::new();
    let queue = shared(&program);
    assert_eq!(shared(&program), queue);
    let config = config();
    assert_eq!(share(config, queue), 0);
    let context = Context::of(config);
    assert_eq!(shared(&context), queue);

    program.ok(program.register("t", vec![prices()], DEVICEFUSION_TABLE_DEVICE));
    let (mut array, mut columns) = only(program.query("SELECT items * 2 AS twice, price FROM t").device_stream());
    let raw = values(&program, &array, &columns, 0).unwrap();
    assert_eq!((raw.length, raw.bytes, raw.validity), (4, 32, ptr::null_mut()));
    let down = || context.report()["copies"].clone();
    let before = down();
    let released = AtomicUsize::new(0);
    let price = values(&program, &array, &columns, 1).unwrap();
    assert_eq!((raw.offset, price.offset, price.validity_offset), (0, 0, 0));
    let both = [Column(c("twice"), c("l"), raw.memory, raw.validity), Column(c("price"), c("g"), price.memory, price.validity)];
    context.ok(register_raw(&context, &both, 4, &released));
    // A few counts at most.
    let moved = |way: &str| down()[way].as_u64().unwrap() - before[way].as_u64().unwrap();
    assert!(moved("bytes_down") < 32, "{}", moved("bytes_down"));
    assert_eq!(context.rows("SELECT sum(twice), sum(price), count(price) FROM raw"), ["18 11.5 3"]);
    assert_eq!(released.load(Ordering::SeqCst), 0);
    context.execute("DROP TABLE raw");
    wait_for(&released);
    // SAFETY: released once.
    unsafe {
        array.array.release.unwrap()(&raw mut array.array);
        columns.release.unwrap()(&raw mut columns);
    }
}

#[test]
fn queues_of_no_use_are_told_when_they_are_set_or_opened() {
    let program = Context::new();
    let queue = shared(&program);
    let other = devicefusion_context_config_new();
    assert_eq!(share(other, (ptr::null_mut(), DriverKind::OpenCl)), 2);
    assert!(homeless_error().contains("the cl_command_queue is NULL"));
    assert_eq!(share(other, (ptr::null_mut(), DriverKind::Cuda)), 2);
    assert!(homeless_error().contains("the CUstream is NULL"));
    assert_eq!(share(program.config, queue), 2);
    assert!(homeless_error().contains("frozen"));
    assert_eq!(share(ptr::null_mut(), queue), 2);
    assert_eq!(homeless_error(), "the configuration is NULL");

    // The queue of one device, and the name of another.
    for (device, expected) in [("some other device", "the program's queue is one of #"), ("none", "device.selector = 'none'")] {
        assert_eq!(share(other, queue), 0);
        let device = c(device);
        // SAFETY: a C string.
        assert_eq!(unsafe { devicefusion_context_config_set_device(other, device.as_ptr()) }, 0);
        let context = devicefusion_context_new(other);
        let error = crate::support::text(devicefusion_context_get_error(context)).unwrap();
        assert!(error.contains(expected), "{error}");
        assert_eq!(devicefusion_context_free(context), 0);
    }
    assert_eq!(devicefusion_context_config_free(other), 0);

    let host = Context::on_host();
    assert!(devicefusion_context_get_command_queue(host.raw).is_null());
    assert_eq!(host.error().unwrap(), "the context has no device, and no queue");
    assert!(devicefusion_context_get_command_queue(ptr::null_mut()).is_null());
    assert_eq!(homeless_error(), "the context is NULL");
}

#[test]
fn raw_values_are_those_of_slices_too_and_bad_ones_are_refused() {
    let context = Context::on_host();
    let batch = prices();
    let columns = schema::export_schema(&batch.schema()).unwrap();
    let mut array = cpu::export_batch(&batch.slice(1, 3)).unwrap();
    let raw = values(&context, &array, &columns, 1).unwrap();
    assert_eq!((raw.length, raw.bytes), (3, 24));
    let items = batch.column(1).as_primitive::<Int64Type>().values();
    assert_eq!(raw.memory.addr() + raw.offset, items[1..].as_ptr().addr());
    let raw = values(&context, &array, &columns, 2).unwrap();
    let price = batch.column(2).as_primitive::<Float64Type>();
    assert_eq!(raw.memory.addr() + raw.offset, price.values()[1..].as_ptr().addr());
    assert!(!raw.validity.is_null());

    let error = values(&context, &array, &columns, 0).unwrap_err();
    assert!(error.contains("column 0 \"city\" is Utf8, whose values are not of a fixed width"), "{error}");
    for column in [-1, 3] {
        let error = values(&context, &array, &columns, column).unwrap_err();
        assert_eq!(error, format!("there is no column {column}: the schema has 3, the array 3"));
    }
    let int = schema::export_field(&arrow::datatypes::Field::new("x", arrow::datatypes::DataType::Int64, false)).unwrap();
    assert!(values(&context, &array, &int, 0).unwrap_err().contains("is none of a record batch"));
    let children = std::mem::replace(&mut array.array.children, ptr::null_mut());
    let error = values(&context, &array, &columns, 1).unwrap_err();
    assert_eq!(error, "the array does not have column 1: a pointer of its tables is NULL");
    array.array.children = children;
    // SAFETY: pointers that are NULL, which is what is tested.
    unsafe {
        let mut out = std::mem::MaybeUninit::uninit();
        let call = |array, columns, out| context.failed(2, devicefusion_array_values_raw(context.raw, array, columns, 1, out));
        assert_eq!(call(ptr::null(), &raw const columns, out.as_mut_ptr()), "the array is NULL");
        assert_eq!(call(&raw const array, ptr::null(), out.as_mut_ptr()), "the schema is NULL");
        assert!(call(&raw const array, &raw const columns, ptr::null_mut()).contains("no place for the raw values"));
        array.device_type = ArrowDeviceType::VULKAN;
        assert!(call(&raw const array, &raw const columns, out.as_mut_ptr()).contains("the array lies in memory of"));
        array.device_type = ArrowDeviceType::CPU;
        array.array.release.unwrap()(&raw mut array.array);
        assert!(call(&raw const array, &raw const columns, out.as_mut_ptr()).contains("has been released"));
    }
}

#[test]
fn without_a_device_raw_columns_are_memory_of_the_host() {
    let context = Context::on_host();
    let (mut items, validity, released) = ([3i64, 1, 4, 1], [0b1101u8; 8], AtomicUsize::new(0));
    let memory = items.as_mut_ptr().cast();
    let nulls = validity.as_ptr().cast_mut().cast();
    let columns = [Column(c("items"), c("l"), memory, ptr::null_mut()), Column(c("known"), c("l"), memory, nulls)];
    context.ok(register_raw(&context, &columns, 4, &released));
    assert_eq!(context.rows("SELECT sum(items), sum(known), count(known) FROM raw"), ["9 8 3"]);
    let again = AtomicUsize::new(0);
    let error = context.failed(2, register_raw(&context, &columns, 4, &again));
    assert_eq!(error, "there is a table raw already");
    wait_for(&again);
    assert_eq!(released.load(Ordering::SeqCst), 0);
    context.execute("DROP TABLE raw");
    wait_for(&released);

    for (columns, length, expected) in [
        (vec![], 4, "a table has columns, and there are none"),
        (vec![Column(c("x"), c("l"), memory, ptr::null_mut())], -1, "a table cannot have -1 rows"),
        (vec![Column(c("x"), c("u"), memory, ptr::null_mut())], 4, "column \"x\" is Utf8, whose values are not of a fixed width"),
        (vec![Column(c("x"), c("l"), ptr::null_mut(), ptr::null_mut())], 4, "the memory of column \"x\" is NULL"),
        (vec![Column(c("x"), c("nonsense"), memory, ptr::null_mut())], 4, "nonsense"),
    ] {
        let released = AtomicUsize::new(0);
        let code = register_raw(&context, &columns, length, &released);
        let error = context.failed(if expected == "nonsense" { code } else { 2 }, code);
        assert!(code != 0 && error.contains(expected), "{error}");
        wait_for(&released);
    }
    // Also where there is no context.
    let released = AtomicUsize::new(0);
    let data = ptr::from_ref(&released).cast_mut().cast();
    // SAFETY: the counter lives on.
    let code = unsafe { devicefusion_register_raw(ptr::null_mut(), c"raw".as_ptr(), ptr::null(), 0, 0, Some(count), data) };
    assert_eq!((code, homeless_error().as_str()), (2, "the context is NULL"));
    wait_for(&released);
}

/// The rows of a stream as bytes.
fn store(context: &Context, mut stream: FFI_ArrowDeviceArrayStream) -> Vec<u8> {
    let (mut bytes, mut size) = (ptr::null_mut(), 0);
    // SAFETY: a stream of the library, and places for the bytes, which are copied and freed once.
    unsafe {
        context.ok(devicefusion_store(context.raw, &raw mut stream, &raw mut bytes, &raw mut size));
        assert!(stream.release.is_none());
        let copy = std::slice::from_raw_parts(bytes.cast::<u8>(), size).to_vec();
        libc::free(bytes);
        copy
    }
}

fn restore(context: &Context, bytes: &[u8]) -> Result<FFI_ArrowDeviceArrayStream, String> {
    let mut stream = FFI_ArrowDeviceArrayStream::empty();
    // SAFETY: the bytes are as many as is said, and there is a place for the stream.
    match unsafe { devicefusion_restore(context.raw, bytes.as_ptr().cast(), bytes.len(), &raw mut stream) } {
        0 => Ok(stream),
        code => Err(context.failed(2, code)),
    }
}

fn sum_of(context: &Context, mut stream: FFI_ArrowDeviceArrayStream) -> Vec<String> {
    let kind = DEVICEFUSION_TABLE_HOST;
    let kind = if context.report()["device"].is_null() { kind } else { DEVICEFUSION_TABLE_DEVICE };
    // SAFETY: a C string and a stream of the library.
    context.ok(unsafe { devicefusion_register_device_stream(context.raw, c"back".as_ptr(), &raw mut stream, kind) });
    let rows = context.rows("SELECT count(*), count(city), sum(items), sum(price) FROM back");
    context.execute("DROP TABLE back");
    rows
}

#[test]
fn rows_are_stored_as_bytes_and_restored_anywhere() {
    let (context, host) = (Context::new(), Context::on_host());
    context.ok(context.register("t", vec![prices()], DEVICEFUSION_TABLE_DEVICE));
    let bytes = store(&context, context.query("SELECT * FROM t").device_stream());
    for target in [&context, &host] {
        assert_eq!(sum_of(target, restore(target, &bytes).unwrap()), ["4 3 9 11.5"]);
    }
    let many = "SELECT CAST(value AS VARCHAR) AS city, value AS items, 0.5 AS price FROM generate_series(1, 131073)";
    let bytes = store(&context, context.query(many).device_stream());
    for target in [&host, &context] {
        assert_eq!(sum_of(target, restore(target, &bytes).unwrap()), ["131073 131073 8590131201 65536.5"]);
    }
    // None, and from the host.
    let bytes = store(&context, context.query("SELECT * FROM t WHERE items > 100").device_stream());
    assert_eq!(sum_of(&context, restore(&context, &bytes).unwrap()), ["0 0  "]);
    let field = schema::batch_field(&prices().schema());
    let arrays = export_iterator(&field, ArrowDeviceType::CPU, [prices(), prices()].map(|batch| cpu::export_batch(&batch)));
    let bytes = store(&host, arrays.unwrap());
    assert_eq!(sum_of(&context, restore(&context, &bytes).unwrap()), ["8 6 18 23.0"]);

    let error = restore(&context, b"nonsense").map(drop).unwrap_err();
    assert!(error.starts_with("the bytes are no IPC stream: "), "{error}");
    let error = restore(&context, &bytes[..bytes.len() / 2]).map(drop).unwrap_err();
    assert!(error.starts_with("the bytes are no IPC stream: "), "{error}");
    // SAFETY: pointers that are NULL or released, which is what is tested.
    unsafe {
        let mut stream = FFI_ArrowDeviceArrayStream::empty();
        let (mut bytes, mut size) = (ptr::null_mut(), 0);
        let code = devicefusion_store(context.raw, &raw mut stream, &raw mut bytes, &raw mut size);
        assert_eq!(context.failed(2, code), "the stream has been released, or moved away");
        let code = devicefusion_store(context.raw, ptr::null_mut(), &raw mut bytes, &raw mut size);
        assert_eq!(context.failed(2, code), "the stream is NULL");
        let code = devicefusion_restore(context.raw, ptr::null(), 8, &raw mut stream);
        assert_eq!(context.failed(2, code), "the bytes are NULL");
        let code = devicefusion_restore(context.raw, [0u8; 8].as_ptr().cast(), 8, ptr::null_mut());
        assert!(context.failed(2, code).contains("no place for the stream"));
    }
    let mut stream = context.query("SELECT * FROM t").device_stream();
    // SAFETY: a stream of the library, and no place for the bytes.
    let code = unsafe { devicefusion_store(context.raw, &raw mut stream, ptr::null_mut(), ptr::null_mut()) };
    assert!(context.failed(2, code).contains("no place for the bytes"));
    assert!(stream.release.is_none());
}
