// SPDX-License-Identifier: Apache-2.0
//! Large schemas, through each way into the library.

use std::ffi::{c_int, c_void};
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use arrow::array::{ArrayRef, Int64Array, RecordBatch};
use arrow::ffi::FFI_ArrowSchema;
use arrow_device::cpu;
use arrow_device::ffi::{
    ArrowDeviceType, FFI_ArrowAsyncDeviceStreamHandler, FFI_ArrowAsyncProducer, FFI_ArrowDeviceArray, FFI_ArrowDeviceArrayStream,
};
use arrow_device::schema::export_schema;
use devicefusion_capi::query::*;
use devicefusion_capi::raw::*;
use devicefusion_capi::store::*;
use devicefusion_capi::table::*;

use crate::doubling::{doubling, doubling_stream};
use crate::support::{Context, prices};

/// A stream of device arrays with the schema that doubles.
fn device_stream() -> FFI_ArrowDeviceArrayStream {
    unsafe extern "C" fn get_schema(_: *mut FFI_ArrowDeviceArrayStream, out: *mut FFI_ArrowSchema) -> c_int {
        // SAFETY: the library gives a place for the schema.
        unsafe { out.write(doubling()) };
        0
    }
    unsafe extern "C" fn get_next(_: *mut FFI_ArrowDeviceArrayStream, _: *mut FFI_ArrowDeviceArray) -> c_int {
        libc::EIO
    }
    unsafe extern "C" fn get_last_error(_: *mut FFI_ArrowDeviceArrayStream) -> *const std::ffi::c_char {
        ptr::null()
    }
    unsafe extern "C" fn release(stream: *mut FFI_ArrowDeviceArrayStream) {
        // SAFETY: the stream to be released, which owns nothing.
        unsafe { (*stream).release = None };
    }
    let mut stream = FFI_ArrowDeviceArrayStream::empty();
    stream.device_type = ArrowDeviceType::CPU;
    stream.get_schema = Some(get_schema);
    stream.get_next = Some(get_next);
    stream.get_last_error = Some(get_last_error);
    stream.release = Some(release);
    stream
}

/// A `produce` callback: passes the schema that doubles, and ends.
unsafe extern "C" fn push(_: *mut c_void, handler: *mut FFI_ArrowAsyncDeviceStreamHandler) {
    unsafe extern "C" fn request(_: *mut FFI_ArrowAsyncProducer, _: i64) {}
    unsafe extern "C" fn cancel(_: *mut FFI_ArrowAsyncProducer) {}
    let mut producer = FFI_ArrowAsyncProducer {
        device_type: ArrowDeviceType::CPU,
        request: Some(request),
        cancel: Some(cancel),
        additional_metadata: ptr::null(),
        private_data: ptr::null_mut(),
    };
    // SAFETY: a handler from the library; the producer outlives it.
    unsafe {
        (*handler).producer = &raw mut producer;
        assert_eq!((*handler).on_schema.unwrap()(handler, &mut doubling()), libc::ENOSYS);
        (*handler).release.unwrap()(handler);
    }
}

#[test]
fn a_schema_whose_structs_share_their_children_is_refused_at_once() {
    let (context, start) = (Context::on_host(), Instant::now());
    let (name, kind) = (c"t".as_ptr(), DEVICEFUSION_TABLE_HOST);
    let refused = |code| {
        let error = context.failed(2, code);
        assert!(error.contains("more than 100000 fields"), "{error}");
    };
    let query = context.query("SELECT $1");
    let (mut bytes, mut size) = (ptr::null_mut(), 0);
    let mut values = MaybeUninit::uninit();
    let mut array = cpu::export_batch(&prices()).unwrap();
    let mut row = cpu::export_batch(&prices().slice(0, 1)).unwrap().array;
    // SAFETY: C strings and live structs, which follow the interface but for the size.
    unsafe {
        refused(devicefusion_register_stream(context.raw, name, &mut doubling_stream(), kind));
        refused(devicefusion_register_device_stream(context.raw, name, &mut device_stream(), kind));
        refused(devicefusion_register_async_stream(context.raw, name, Some(push), ptr::null_mut(), kind));
        refused(devicefusion_store(context.raw, &mut device_stream(), &raw mut bytes, &raw mut size));
        refused(devicefusion_array_values_raw(context.raw, &raw const array, &doubling(), 0, values.as_mut_ptr()));
        refused(devicefusion_array_elements_raw(context.raw, &raw const array, &doubling(), 0, values.as_mut_ptr()));
        refused(devicefusion_register_device_array(context.raw, name, &raw mut array, &mut doubling(), kind));
        refused(devicefusion_query_bind_row(query.raw, &raw mut row, &mut doubling()));
    }
    assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
}

#[test]
fn a_table_of_20000_columns_is_accepted() {
    let column: ArrayRef = Arc::new(Int64Array::from(vec![1]));
    let columns = (0..20_000).map(|index| (format!("c{index}"), Arc::clone(&column)));
    let wide = RecordBatch::try_from_iter(columns).unwrap();
    let context = Context::on_host();
    context.ok(context.register("streamed", vec![wide.clone()], DEVICEFUSION_TABLE_HOST));
    let (mut array, mut schema) = (cpu::export_batch(&wide).unwrap(), export_schema(&wide.schema()).unwrap());
    let kind = DEVICEFUSION_TABLE_HOST;
    // SAFETY: a C string, and structs that arrow-device exported.
    let code =
        unsafe { devicefusion_register_device_array(context.raw, c"whole".as_ptr(), &raw mut array, &raw mut schema, kind) };
    context.ok(code);
}
