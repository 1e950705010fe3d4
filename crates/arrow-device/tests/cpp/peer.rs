// SPDX-License-Identifier: Apache-2.0
//! Objects of Arrow C++ as Rust values.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::fmt;
use std::ptr::null_mut;
use std::sync::OnceLock;

use arrow::datatypes::{Field, Schema};
use arrow::ffi::FFI_ArrowSchema;
use arrow_device::ffi::{ArrowDeviceType, FFI_ArrowAsyncDeviceStreamHandler, FFI_ArrowDeviceArray, FFI_ArrowDeviceArrayStream};
use arrow_device::schema;

use crate::build::library;

/// Declares the functions of the C++ files.
macro_rules! functions {
    ($($name:ident($($argument:ty),*) $(-> $result:ty)?;)*) => {
        /// The functions of the peer.
        pub struct Functions { $(pub $name: unsafe extern "C" fn($($argument),*) $(-> $result)?,)* }

        impl Functions {
            fn load() -> Option<Self> {
                let library = library()?;
                // SAFETY: the signatures are those of the C++ files.
                Some(unsafe { Self { $($name: *library.get(concat!(stringify!($name), "\0").as_bytes()).unwrap(),)* } })
            }
        }
    };
}

type Raw = *mut c_void;

functions! {
    peer_error() -> *const c_char;
    peer_detail() -> c_int;
    peer_version() -> *const c_char;
    peer_bytes_allocated() -> i64;
    peer_array_build(*mut FFI_ArrowSchema, *const c_char, *mut Raw) -> c_int;
    peer_array_slice(Raw, i64, i64, *mut Raw) -> c_int;
    peer_array_export(Raw, *mut FFI_ArrowDeviceArray, *mut FFI_ArrowSchema) -> c_int;
    peer_array_import(*mut FFI_ArrowDeviceArray, *mut FFI_ArrowSchema, *mut Raw) -> c_int;
    peer_array_equals(Raw, Raw) -> c_int;
    peer_array_free(Raw);
    peer_array_to_device(Raw, i64, c_int, *mut Raw) -> c_int;
    peer_array_to_host(Raw, *mut Raw) -> c_int;
    peer_batch_build(*mut FFI_ArrowSchema, *const c_char, *mut Raw) -> c_int;
    peer_batch_slice(Raw, i64, i64, *mut Raw) -> c_int;
    peer_batch_export(Raw, *mut FFI_ArrowDeviceArray, *mut FFI_ArrowSchema) -> c_int;
    peer_batch_import(*mut FFI_ArrowDeviceArray, *mut FFI_ArrowSchema, *mut Raw) -> c_int;
    peer_batch_equals(Raw, Raw) -> c_int;
    peer_batch_rows(Raw) -> i64;
    peer_batch_has_event(Raw) -> c_int;
    peer_batch_mix(Raw, Raw, *mut Raw) -> c_int;
    peer_batch_free(Raw);
    peer_batch_to_device(Raw, i64, c_int, *mut Raw) -> c_int;
    peer_batch_to_host(Raw, *mut Raw) -> c_int;
    peer_reader_new(*mut FFI_ArrowSchema, *mut Raw, i64, i32, c_int, *const c_char, *mut Raw) -> c_int;
    peer_reader_export(Raw, *mut FFI_ArrowDeviceArrayStream) -> c_int;
    peer_reader_import(*mut FFI_ArrowDeviceArrayStream, *mut Raw) -> c_int;
    peer_reader_schema(Raw, *mut FFI_ArrowSchema) -> c_int;
    peer_reader_next(Raw, *mut Raw) -> c_int;
    peer_reader_free(Raw);
    peer_chunks_export(Raw, *mut FFI_ArrowDeviceArrayStream) -> c_int;
    peer_chunks_import(*mut FFI_ArrowDeviceArrayStream, *mut Raw) -> c_int;
    peer_device_register() -> c_int;
    peer_device_put(*const c_void, usize, Raw) -> u64;
    peer_device_get(u64, Raw, usize) -> c_int;
    peer_device_free(u64);
    peer_device_count(c_int) -> i64;
    peer_device_reset();
    peer_event_new() -> Raw;
    peer_event_wait(Raw) -> c_int;
    peer_event_free(Raw);
    peer_producer_new(
        *mut FFI_ArrowSchema, *mut Raw, i64, i32, c_int, *const c_char, i64,
        *mut FFI_ArrowAsyncDeviceStreamHandler, *mut Raw
    ) -> c_int;
    peer_producer_pulled(Raw) -> i64;
    peer_producer_join(Raw) -> c_int;
    peer_consumer_new(u64, *mut Raw) -> c_int;
    peer_consumer_handler(Raw) -> *mut FFI_ArrowAsyncDeviceStreamHandler;
    peer_consumer_schema(Raw, *mut FFI_ArrowSchema, *mut i32) -> c_int;
    peer_consumer_next(Raw, *mut Raw, *mut c_char, usize) -> c_int;
    peer_consumer_error_metadata(Raw) -> i64;
    peer_consumer_drop_reader(Raw);
    peer_consumer_free(Raw);
}

/// The functions; `None` without a peer.
pub fn try_peer() -> Option<&'static Functions> {
    static FUNCTIONS: OnceLock<Option<Functions>> = OnceLock::new();
    let functions = FUNCTIONS.get_or_init(|| {
        let functions = Functions::load()?;
        // SAFETY: called once, before everything else.
        assert_eq!(unsafe { (functions.peer_device_register)() }, 0);
        // SAFETY: a static string.
        eprintln!("peer: Arrow C++ {}", unsafe { CStr::from_ptr((functions.peer_version)()) }.to_string_lossy());
        Some(functions)
    });
    // The message comes with each test that is skipped.
    if functions.is_none() {
        library();
    }
    functions.as_ref()
}

/// The functions. A test with a session has a peer.
pub fn peer() -> &'static Functions {
    try_peer().unwrap()
}

/// Status codes of Arrow C++.
pub mod status {
    pub const OUT_OF_MEMORY: i32 = 1;
    pub const INVALID: i32 = 4;
    pub const IO_ERROR: i32 = 5;
    pub const UNKNOWN: i32 = 9;
    pub const NOT_IMPLEMENTED: i32 = 10;
    pub const CANCELLED: i32 = 8;
}

/// A `Status` of Arrow C++ other than OK.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    pub code: c_int,
    /// The errno, if it came through an async stream.
    pub errno: c_int,
    pub message: String,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({}): {}", self.code, self.errno, self.message)
    }
}

pub type CppResult<T = ()> = Result<T, Failure>;

/// The outcome of the last call on this thread.
fn outcome(code: c_int) -> CppResult {
    if code == 0 {
        return Ok(());
    }
    // SAFETY: the string of this thread, which the next call replaces.
    let message = unsafe { CStr::from_ptr((peer().peer_error)()) }.to_string_lossy().into_owned();
    // SAFETY: no conditions.
    Err(Failure { code, errno: unsafe { (peer().peer_detail)() }, message })
}

/// Runs a function that writes a new object.
fn create(make: impl FnOnce(*mut Raw) -> c_int) -> CppResult<Raw> {
    let mut raw = null_mut();
    outcome(make(&mut raw)).map(|()| raw)
}

macro_rules! owner {
    ($(#[$doc:meta])* $name:ident, $free:ident) => {
        $(#[$doc])*
        pub struct $name(Raw);

        // SAFETY: a shared pointer of C++ to an immutable object, or a reader that one thread uses
        // at a time.
        unsafe impl Send for $name {}

        impl Drop for $name {
            fn drop(&mut self) {
                // SAFETY: from the peer, and freed once.
                unsafe { (peer().$free)(self.0) }
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(stringify!($name))
            }
        }
    };
}

owner!(/** An array of Arrow C++. */ CppArray, peer_array_free);
owner!(/** A record batch of Arrow C++. */ CppBatch, peer_batch_free);
owner!(/** A reader of record batches of Arrow C++. */ CppReader, peer_reader_free);

impl CppArray {
    /// An array that Arrow C++ parses from JSON; see `Build` in arrays.cc for types beyond JSON.
    pub fn build(field: &Field, json: &str) -> CppResult<Self> {
        let (mut schema, json) = (schema::export_field(field).unwrap(), CString::new(json).unwrap());
        // SAFETY: a live schema, a string and an output.
        create(|out| unsafe { (peer().peer_array_build)(&mut schema, json.as_ptr(), out) }).map(Self)
    }

    pub fn slice(&self, offset: usize, len: usize) -> Self {
        // SAFETY: a live array and an output.
        create(|out| unsafe { (peer().peer_array_slice)(self.0, offset as i64, len as i64, out) }).map(Self).unwrap()
    }

    pub fn export(&self) -> CppResult<(FFI_ArrowDeviceArray, FFI_ArrowSchema)> {
        let (mut array, mut schema) = (FFI_ArrowDeviceArray::empty(), FFI_ArrowSchema::empty());
        // SAFETY: a live array and outputs.
        outcome(unsafe { (peer().peer_array_export)(self.0, &mut array, &mut schema) }).map(|()| (array, schema))
    }

    pub fn import(mut array: FFI_ArrowDeviceArray, mut schema: FFI_ArrowSchema) -> CppResult<Self> {
        // SAFETY: live structs, which are moved out.
        create(|out| unsafe { (peer().peer_array_import)(&mut array, &mut schema, out) }).map(Self)
    }

    #[track_caller]
    pub fn assert_equals(&self, other: &Self) {
        // SAFETY: live arrays.
        outcome(unsafe { (peer().peer_array_equals)(self.0, other.0) }).unwrap();
    }

    pub fn to_device(&self, id: i64, with_event: bool) -> Self {
        // SAFETY: a live array and an output.
        create(|out| unsafe { (peer().peer_array_to_device)(self.0, id, with_event.into(), out) }).map(Self).unwrap()
    }

    pub fn to_host(&self) -> CppResult<Self> {
        // SAFETY: a live array and an output.
        create(|out| unsafe { (peer().peer_array_to_host)(self.0, out) }).map(Self)
    }

    /// The array's halves, as a pull stream.
    pub fn export_chunks(&self) -> CppResult<FFI_ArrowDeviceArrayStream> {
        let mut stream = FFI_ArrowDeviceArrayStream::empty();
        // SAFETY: a live array and an output.
        outcome(unsafe { (peer().peer_chunks_export)(self.0, &mut stream) }).map(|()| stream)
    }

    pub fn import_chunks(mut stream: FFI_ArrowDeviceArrayStream) -> CppResult<Self> {
        // SAFETY: a live stream, which is moved out.
        create(|out| unsafe { (peer().peer_chunks_import)(&mut stream, out) }).map(Self)
    }
}

impl CppBatch {
    /// A batch of rows in JSON: an array of objects.
    pub fn build(schema: &Schema, json: &str) -> CppResult<Self> {
        let (mut schema, json) = (schema::export_schema(schema).unwrap(), CString::new(json).unwrap());
        // SAFETY: a live schema, a string and an output.
        create(|out| unsafe { (peer().peer_batch_build)(&mut schema, json.as_ptr(), out) }).map(Self)
    }

    pub fn slice(&self, offset: usize, len: usize) -> Self {
        // SAFETY: a live batch and an output.
        create(|out| unsafe { (peer().peer_batch_slice)(self.0, offset as i64, len as i64, out) }).map(Self).unwrap()
    }

    pub fn export(&self) -> CppResult<(FFI_ArrowDeviceArray, FFI_ArrowSchema)> {
        let (mut array, mut schema) = (FFI_ArrowDeviceArray::empty(), FFI_ArrowSchema::empty());
        self.export_to(&mut array, &mut schema).map(|()| (array, schema))
    }

    /// Exports into structs with arbitrary content.
    pub fn export_to(&self, array: &mut FFI_ArrowDeviceArray, schema: &mut FFI_ArrowSchema) -> CppResult {
        // SAFETY: a live batch and outputs.
        outcome(unsafe { (peer().peer_batch_export)(self.0, array, schema) })
    }

    pub fn import(mut array: FFI_ArrowDeviceArray, mut schema: FFI_ArrowSchema) -> CppResult<Self> {
        // SAFETY: live structs, which are moved out.
        create(|out| unsafe { (peer().peer_batch_import)(&mut array, &mut schema, out) }).map(Self)
    }

    #[track_caller]
    pub fn assert_equals(&self, other: &Self) {
        // SAFETY: live batches.
        outcome(unsafe { (peer().peer_batch_equals)(self.0, other.0) }).unwrap();
    }

    pub fn num_rows(&self) -> i64 {
        // SAFETY: a live batch.
        unsafe { (peer().peer_batch_rows)(self.0) }
    }

    pub fn has_event(&self) -> bool {
        // SAFETY: a live batch.
        unsafe { (peer().peer_batch_has_event)(self.0) != 0 }
    }

    /// A batch of the first columns of both, in different memories.
    pub fn mix(&self, device: &Self) -> Self {
        // SAFETY: live batches and an output.
        create(|out| unsafe { (peer().peer_batch_mix)(self.0, device.0, out) }).map(Self).unwrap()
    }

    pub fn to_device(&self, id: i64, with_event: bool) -> Self {
        // SAFETY: a live batch and an output.
        create(|out| unsafe { (peer().peer_batch_to_device)(self.0, id, with_event.into(), out) }).map(Self).unwrap()
    }

    pub fn to_host(&self) -> CppResult<Self> {
        // SAFETY: a live batch and an output.
        create(|out| unsafe { (peer().peer_batch_to_host)(self.0, out) }).map(Self)
    }
}

/// The end of a producer of Arrow C++: a code of [`status`] (0 for the plain end) and a message.
#[derive(Clone, Copy)]
pub struct End(pub c_int, pub &'static CStr);

impl End {
    pub const PLAIN: Self = Self(0, c"");
}

impl CppReader {
    pub fn new(schema: &Schema, batches: Vec<CppBatch>, device_type: ArrowDeviceType, end: End) -> Self {
        let mut schema = schema::export_schema(schema).unwrap();
        let mut raw: Vec<Raw> = batches.iter().map(|batch| batch.0).collect();
        let (count, table) = (raw.len() as i64, raw.as_mut_ptr());
        let new = peer().peer_reader_new;
        // SAFETY: a live schema, live batches, a string and an output.
        create(|out| unsafe { new(&mut schema, table, count, device_type.0, end.0, end.1.as_ptr(), out) }).map(Self).unwrap()
    }

    pub fn export(self) -> CppResult<FFI_ArrowDeviceArrayStream> {
        let mut stream = FFI_ArrowDeviceArrayStream::empty();
        // SAFETY: a live reader and an output.
        outcome(unsafe { (peer().peer_reader_export)(self.0, &mut stream) }).map(|()| stream)
    }

    pub fn import(mut stream: FFI_ArrowDeviceArrayStream) -> CppResult<Self> {
        // SAFETY: a live stream, which is moved out.
        create(|out| unsafe { (peer().peer_reader_import)(&mut stream, out) }).map(Self)
    }

    pub fn schema(&self) -> Schema {
        let mut schema = FFI_ArrowSchema::empty();
        // SAFETY: a live reader and an output.
        outcome(unsafe { (peer().peer_reader_schema)(self.0, &mut schema) }).unwrap();
        // SAFETY: written by Arrow C++.
        unsafe { schema::import_schema(schema) }.unwrap()
    }

    /// Calls `ReadNext` in C++; `None` at the end.
    pub fn read(&mut self) -> CppResult<Option<CppBatch>> {
        // SAFETY: a live reader and an output.
        let batch = create(|out| unsafe { (peer().peer_reader_next)(self.0, out) })?;
        Ok((!batch.is_null()).then(|| CppBatch(batch)))
    }
}

/// An async producer of Arrow C++ on its own thread. [`Self::join`] frees it.
pub struct CppProducer(Raw);

impl CppProducer {
    /// Pushes these batches into `handler`.
    ///
    /// # Safety
    /// The handler is live until its `release` has been called.
    pub unsafe fn start(
        schema: &Schema,
        batches: Vec<CppBatch>,
        device_type: ArrowDeviceType,
        end: End,
        delay_us: i64,
        handler: *mut FFI_ArrowAsyncDeviceStreamHandler,
    ) -> Self {
        let mut schema = schema::export_schema(schema).unwrap();
        let mut raw: Vec<Raw> = batches.iter().map(|batch| batch.0).collect();
        let (count, table) = (raw.len() as i64, raw.as_mut_ptr());
        let new = peer().peer_producer_new;
        let (code, message) = (end.0, end.1.as_ptr());
        // SAFETY: a live schema, live batches, a string and an output; the handler by this
        // function's contract.
        let raw = create(|out| unsafe { new(&mut schema, table, count, device_type.0, code, message, delay_us, handler, out) });
        Self(raw.unwrap())
    }

    /// The number of batches pulled from its source.
    pub fn pulled(&self) -> i64 {
        // SAFETY: a live producer.
        unsafe { (peer().peer_producer_pulled)(self.0) }
    }

    /// Waits for the release of its handler, and returns the producer's view of the end.
    pub fn join(self) -> CppResult {
        // SAFETY: a live producer, which is freed.
        outcome(unsafe { (peer().peer_producer_join)(self.0) })
    }
}

/// An async consumer of Arrow C++.
pub struct CppConsumer(Raw);

// SAFETY: the handler accepts calls on any thread; the reader is used by one thread at a time.
unsafe impl Send for CppConsumer {}

impl CppConsumer {
    /// A consumer that requests `queue_size` batches first.
    pub fn new(queue_size: u64) -> Self {
        // SAFETY: an output.
        create(|out| unsafe { (peer().peer_consumer_new)(queue_size, out) }).map(Self).unwrap()
    }

    /// The handler; live until [`Self::free`].
    pub fn handler(&self) -> *mut FFI_ArrowAsyncDeviceStreamHandler {
        // SAFETY: a live consumer.
        unsafe { (peer().peer_consumer_handler)(self.0) }
    }

    /// Waits for the schema.
    pub fn schema(&mut self) -> CppResult<(Schema, ArrowDeviceType)> {
        let (mut schema, mut device_type) = (FFI_ArrowSchema::empty(), 0);
        // SAFETY: a live consumer and outputs.
        outcome(unsafe { (peer().peer_consumer_schema)(self.0, &mut schema, &mut device_type) })?;
        // SAFETY: written by Arrow C++.
        Ok((unsafe { schema::import_schema(schema) }.unwrap(), ArrowDeviceType(device_type)))
    }

    /// Waits for the next batch, after the schema; `None` at the end.
    pub fn read(&mut self) -> CppResult<Option<(CppBatch, String)>> {
        let mut metadata = vec![0u8; 1024];
        let (to, size) = (metadata.as_mut_ptr().cast(), metadata.len());
        // SAFETY: a live consumer with a schema, an output, and a buffer of that size.
        let batch = create(|out| unsafe { (peer().peer_consumer_next)(self.0, out, to, size) })?;
        let metadata = CStr::from_bytes_until_nul(&metadata).unwrap().to_string_lossy().into_owned();
        Ok((!batch.is_null()).then(|| (CppBatch(batch), metadata)))
    }

    /// The number of bytes of an error's metadata that arrived.
    pub fn error_metadata_len(&mut self) -> i64 {
        // SAFETY: a live consumer.
        unsafe { (peer().peer_consumer_error_metadata)(self.0) }
    }

    /// Drops the generator of batches.
    pub fn drop_reader(&mut self) {
        // SAFETY: a live consumer.
        unsafe { (peer().peer_consumer_drop_reader)(self.0) }
    }

    /// Frees the consumer.
    ///
    /// # Safety
    /// Its handler was released.
    pub unsafe fn free(self) {
        // SAFETY: a live consumer without further calls.
        unsafe { (peer().peer_consumer_free)(self.0) }
    }
}
