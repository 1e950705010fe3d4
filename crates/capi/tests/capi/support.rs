// SPDX-License-Identifier: Apache-2.0
//! Contexts, strings and streams, as a C program handles them.

use std::ffi::{CStr, CString, c_char, c_int};
use std::ptr;
use std::sync::Arc;

use arrow::array::{ArrayRef, Float64Array, Int64Array, RecordBatch, RecordBatchIterator, StringArray};
use arrow::ffi_stream::{ArrowArrayStreamReader, FFI_ArrowArrayStream};
use arrow::util::pretty::pretty_format_batches;
use arrow_device::ffi::FFI_ArrowDeviceArrayStream;
use devicefusion_capi::config::*;
use devicefusion_capi::context::*;
use devicefusion_capi::query::*;
use devicefusion_capi::table::*;

/// A C string.
pub fn c(string: &str) -> CString {
    CString::new(string).unwrap()
}

/// Takes a string from the library and frees it; `None` for NULL.
pub fn take_string(string: *mut c_char) -> Option<String> {
    if string.is_null() {
        return None;
    }
    // SAFETY: the library's strings are C strings from `malloc`, and freed once.
    unsafe {
        let copy = CStr::from_ptr(string).to_str().unwrap().to_owned();
        libc::free(string.cast());
        Some(copy)
    }
}

/// The message of a failure on this thread without a context.
pub fn thread_error() -> String {
    take_string(devicefusion_context_get_error(ptr::null_mut())).unwrap()
}

/// A strict configuration for the test device.
pub fn config() -> *mut devicefusion_context_config {
    let config = devicefusion_context_config_new();
    let device = c(&device::testing::config().unwrap().selector.to_string());
    // SAFETY: `device` is a C string.
    assert_eq!(unsafe { devicefusion_context_config_set_device(config, device.as_ptr()) }, 0);
    assert_eq!(devicefusion_context_config_set_strict(config, 1), 0);
    config
}

/// A context and its configuration, freed when dropped.
pub struct Context {
    pub config: *mut devicefusion_context_config,
    pub raw: *mut devicefusion_context,
}

// SAFETY: all functions may be called on any thread.
unsafe impl Sync for Context {}

impl Drop for Context {
    fn drop(&mut self) {
        assert_eq!(devicefusion_context_free(self.raw), 0);
        assert_eq!(devicefusion_context_config_free(self.config), 0);
    }
}

impl Context {
    pub fn new() -> Self {
        Self::of(config())
    }

    #[track_caller]
    pub fn of(config: *mut devicefusion_context_config) -> Self {
        let context = Self { config, raw: devicefusion_context_new(config) };
        assert!(!context.raw.is_null());
        assert_eq!(context.error(), None);
        context
    }

    /// A context that runs everything on the host.
    pub fn on_host() -> Self {
        let config = devicefusion_context_config_new();
        // SAFETY: a C string.
        assert_eq!(unsafe { devicefusion_context_config_set_device(config, c"none".as_ptr()) }, 0);
        Self::of(config)
    }

    /// A host context with a table.
    pub fn on_host_with(name: &str, batch: RecordBatch) -> Self {
        let context = Self::on_host();
        context.ok(context.register(name, vec![batch], DEVICEFUSION_TABLE_HOST));
        context
    }

    pub fn error(&self) -> Option<String> {
        take_string(devicefusion_context_get_error(self.raw))
    }

    /// Asserts that a call has succeeded.
    #[track_caller]
    pub fn ok(&self, code: c_int) {
        assert!(code == 0, "{code}: {:?}", self.error());
    }

    /// Asserts that a call has failed with this code, and returns its message.
    #[track_caller]
    pub fn failed(&self, expected: c_int, code: c_int) -> String {
        assert_eq!(code, expected);
        self.error().unwrap()
    }

    /// Cancels all that is under way.
    #[track_caller]
    pub fn cancel(&self) {
        self.ok(devicefusion_context_cancel(self.raw));
    }

    #[track_caller]
    pub fn execute(&self, sql: &str) -> i64 {
        let (sql, mut rows) = (c(sql), -1);
        // SAFETY: a C string, and a pointer for the number.
        self.ok(unsafe { devicefusion_execute(self.raw, sql.as_ptr(), &raw mut rows) });
        rows
    }

    pub fn try_execute(&self, sql: &str) -> c_int {
        let sql = c(sql);
        // SAFETY: a C string; the pointer for the number may be NULL.
        unsafe { devicefusion_execute(self.raw, sql.as_ptr(), ptr::null_mut()) }
    }

    #[track_caller]
    pub fn query(&self, sql: &str) -> Query<'_> {
        let (sql, mut raw) = (c(sql), ptr::null_mut());
        // SAFETY: a C string, and a pointer for the query.
        self.ok(unsafe { devicefusion_query_new(self.raw, sql.as_ptr(), &raw mut raw) });
        Query { context: self, raw }
    }

    /// The rows of a query, one string each, with a space between columns.
    #[track_caller]
    pub fn rows(&self, sql: &str) -> Vec<String> {
        self.query(sql).rows()
    }

    pub fn register(&self, name: &str, batches: Vec<RecordBatch>, kind: c_int) -> c_int {
        let (name, mut stream) = (c(name), stream(batches));
        // SAFETY: a C string, and a stream of arrow-rs.
        unsafe { devicefusion_register_stream(self.raw, name.as_ptr(), &raw mut stream, kind) }
    }

    pub fn report(&self) -> serde_json::Value {
        serde_json::from_str(&take_string(devicefusion_context_report(self.raw)).unwrap()).unwrap()
    }
}

/// A query, freed when dropped.
pub struct Query<'a> {
    pub context: &'a Context,
    pub raw: *mut devicefusion_query,
}

impl Drop for Query<'_> {
    fn drop(&mut self) {
        assert_eq!(devicefusion_query_free(self.raw), 0);
    }
}

impl Query<'_> {
    #[track_caller]
    pub fn stream(&self) -> FFI_ArrowArrayStream {
        let mut stream = FFI_ArrowArrayStream::empty();
        // SAFETY: a pointer for the stream.
        self.context.ok(unsafe { devicefusion_query_stream(self.raw, &raw mut stream) });
        stream
    }

    #[track_caller]
    pub fn device_stream(&self) -> FFI_ArrowDeviceArrayStream {
        let mut stream = FFI_ArrowDeviceArrayStream::empty();
        // SAFETY: a pointer for the stream.
        self.context.ok(unsafe { devicefusion_query_device_stream(self.raw, &raw mut stream) });
        stream
    }

    #[track_caller]
    pub fn rows(&self) -> Vec<String> {
        lines(self.stream())
    }

    #[track_caller]
    pub fn explain(&self, how: c_int) -> String {
        let mut out = ptr::null_mut();
        // SAFETY: a pointer for the string.
        self.context.ok(unsafe { devicefusion_query_explain(self.raw, how, &raw mut out) });
        take_string(out).unwrap()
    }
}

/// The rows of a stream, one string each, with a space between columns.
#[track_caller]
pub fn lines(stream: FFI_ArrowArrayStream) -> Vec<String> {
    let batches: Vec<_> = ArrowArrayStreamReader::try_new(stream).unwrap().map(Result::unwrap).collect();
    let table = pretty_format_batches(&batches).unwrap().to_string();
    let rows = table.lines().skip(3).filter(|line| !line.starts_with('+'));
    rows.map(|line| line.trim_matches('|').split('|').map(str::trim).collect::<Vec<_>>().join(" ")).collect()
}

/// A stream of batches, all of one schema.
pub fn stream(batches: Vec<RecordBatch>) -> FFI_ArrowArrayStream {
    let schema = batches[0].schema();
    FFI_ArrowArrayStream::new(Box::new(RecordBatchIterator::new(batches.into_iter().map(Ok), schema)))
}

/// Cities with item counts and prices, some of them NULL.
pub fn prices() -> RecordBatch {
    let city: ArrayRef = Arc::new(StringArray::from(vec![Some("Bern"), Some("Oslo"), None, Some("Oslo")]));
    let items: ArrayRef = Arc::new(Int64Array::from(vec![3, 1, 4, 1]));
    let price: ArrayRef = Arc::new(Float64Array::from(vec![Some(1.5), None, Some(2.0), Some(8.0)]));
    RecordBatch::try_from_iter_with_nullable([("city", city, true), ("items", items, false), ("price", price, true)]).unwrap()
}
