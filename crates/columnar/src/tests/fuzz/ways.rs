// SPDX-License-Identifier: Apache-2.0
//! The ways in: one array, and streams that C calls produce.

use std::collections::VecDeque;
use std::ffi::{c_char, c_int, c_void};
use std::ptr::{null, null_mut};
use std::sync::Arc;

use arrow::array::{ArrayRef, RecordBatchReader, StructArray};
use arrow::datatypes::Field;
use arrow::ffi::{FFI_ArrowArray, FFI_ArrowSchema};
use arrow::ffi_stream::FFI_ArrowArrayStream;
use arrow_device::async_stream::{AsyncDeviceStream, AsyncStreamOptions};
use arrow_device::ffi::{
    ArrowDeviceType, FFI_ArrowAsyncProducer, FFI_ArrowAsyncTask, FFI_ArrowDeviceArray, FFI_ArrowDeviceArrayStream,
};
use arrow_device::stream::ArrowDeviceArrayStreamReader;
use arrow_device::{Error, ImportedArray, Result, cpu, schema};
use futures::StreamExt;
use futures::executor::block_on;

use super::producer::{Alive, Node, Schema};

/// How C hands over arrays.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Way {
    Array,
    Batch,
    HostStream,
    DeviceStream,
    AsyncStream,
}

pub(super) const WAYS: [Way; 5] = [Way::Array, Way::Batch, Way::HostStream, Way::DeviceStream, Way::AsyncStream];

/// A fault of a stream's calls.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Fault {
    None,
    NoSchema,
    NoNext,
    NoError,
    SchemaFails,
    NextFails,
}

/// The schema and arrays that a producer hands over, with its fault.
#[derive(Debug, Clone)]
pub(super) struct Source {
    pub schema: Schema,
    pub arrays: VecDeque<Node>,
    pub fault: Fault,
    /// The device type of each array, which for streams should be the stream's.
    pub device_type: ArrowDeviceType,
    pub has_event: bool,
    pub alive: Alive,
}

impl Source {
    /// Imports all arrays, up to the first error.
    pub(super) fn import(self, way: Way) -> (Vec<ArrayRef>, Option<Error>) {
        let mut arrays = vec![];
        let error = match way {
            Way::Array | Way::Batch => self.import_one(way).map(|array| arrays.push(array)).err(),
            // SAFETY: the stream lies about nothing but what the import checks.
            Way::HostStream => read(unsafe { cpu::reader_of_host_stream(self.host_stream()) }, &mut arrays).err(),
            // SAFETY: as above.
            Way::DeviceStream => read(unsafe { ArrowDeviceArrayStreamReader::try_new(self.device_stream()) }, &mut arrays).err(),
            Way::AsyncStream => self.push(&mut arrays).err(),
        };
        (arrays, error)
    }

    /// Imports the schema and the first array.
    pub(super) fn imported(&self) -> Result<ImportedArray> {
        // SAFETY: the schema lies about nothing but what the import checks.
        let field = unsafe { schema::import_field(self.schema.export(&self.alive))? };
        check_field(&field);
        let Some(array) = self.arrays.front() else { return Err(Error::Other("no array".into())) };
        // SAFETY: as for the schema.
        unsafe { ImportedArray::import_from_raw(&mut self.device_array(array), &field) }
    }

    fn import_one(&self, way: Way) -> Result<ArrayRef> {
        let imported = self.imported()?;
        match way {
            Way::Batch => Ok(Arc::new(StructArray::from(cpu::import_batch(imported)?))),
            _ => cpu::import_array(imported),
        }
    }

    fn device_array(&self, array: &Node) -> FFI_ArrowDeviceArray {
        let mut array = cpu::as_cpu_array(array.export(&self.alive));
        array.device_type = self.device_type;
        if self.has_event {
            // Nothing may read it.
            array.sync_event = std::ptr::without_provenance_mut(16);
        }
        array
    }

    fn host_stream(self) -> FFI_ArrowArrayStream {
        FFI_ArrowArrayStream {
            get_schema: self.unless(Fault::NoSchema, host_schema as _),
            get_next: self.unless(Fault::NoNext, host_next as _),
            get_last_error: self.unless(Fault::NoError, host_error as _),
            release: Some(host_release),
            private_data: Box::into_raw(Box::new(self)).cast(),
        }
    }

    fn device_stream(self) -> FFI_ArrowDeviceArrayStream {
        FFI_ArrowDeviceArrayStream {
            device_type: ArrowDeviceType::CPU,
            get_schema: self.unless(Fault::NoSchema, device_schema as _),
            get_next: self.unless(Fault::NoNext, device_next as _),
            get_last_error: self.unless(Fault::NoError, device_error as _),
            release: Some(device_release),
            private_data: Box::into_raw(Box::new(self)).cast(),
        }
    }

    fn unless<F>(&self, fault: Fault, call: F) -> Option<F> {
        (self.fault != fault).then_some(call)
    }

    /// The async stream, all of whose calls come before the first read.
    fn push(mut self, read: &mut Vec<ArrayRef>) -> Result<()> {
        // SAFETY: the producer below lies about nothing but what the import checks.
        let (handler, mut stream) = unsafe { AsyncDeviceStream::new(AsyncStreamOptions::default()) };
        let metadata = self.schema.metadata.clone().map(Vec::into_boxed_slice);
        let metadata: *const c_char = metadata.as_ref().map_or(null(), |metadata| metadata.as_ptr().cast());
        let mut producer = FFI_ArrowAsyncProducer {
            device_type: ArrowDeviceType::CPU,
            request: self.unless(Fault::NoNext, request as _),
            cancel: self.unless(Fault::NoError, cancel as _),
            additional_metadata: metadata,
            private_data: null_mut(),
        };
        let handler = handler.into_raw();
        // SAFETY: the handler is live until `release`, and has all callbacks.
        unsafe {
            (*handler).producer = if self.fault == Fault::NoSchema { null_mut() } else { &raw mut producer };
            let mut schema = self.schema.export(&self.alive);
            let mut code = match self.fault {
                Fault::SchemaFails => 0,
                _ => (*handler).on_schema.unwrap()(handler, &raw mut schema),
            };
            while code == 0
                && let Some(array) = self.arrays.pop_front()
            {
                let array = Box::into_raw(Box::new(self.device_array(&array)));
                let mut task = FFI_ArrowAsyncTask { extract_data: Some(extract), private_data: array.cast() };
                code = (*handler).on_next_task.unwrap()(handler, &raw mut task, metadata);
                if code != 0 {
                    drop(Box::from_raw(array));
                }
            }
            match self.fault {
                _ if code != 0 => {}
                Fault::NextFails => (*handler).on_error.unwrap()(handler, 5, c"\xff".as_ptr(), metadata),
                _ => drop((*handler).on_next_task.unwrap()(handler, null_mut(), null())),
            }
            (*handler).release.unwrap()(handler);
        }
        block_on(async {
            check_field(&*stream.field().await?);
            while let Some(array) = stream.next().await {
                read.push(Arc::new(StructArray::from(cpu::import_batch(array?)?)));
            }
            Ok(())
        })
    }
}

/// Reads all batches of a stream.
fn read(stream: Result<ArrowDeviceArrayStreamReader>, read: &mut Vec<ArrayRef>) -> Result<()> {
    let stream = stream?;
    check_field(stream.field());
    let reader = cpu::import_reader(stream)?;
    let schema = reader.schema();
    for batch in reader {
        let batch = batch?;
        assert_eq!(batch.schema(), schema);
        read.push(Arc::new(StructArray::from(batch)));
    }
    Ok(())
}

/// An accepted field survives export and import, unless C cannot express it.
fn check_field(field: &Field) {
    let Ok(exported) = schema::export_field(field) else { return };
    // SAFETY: exported here.
    assert_eq!(&unsafe { schema::import_field(exported) }.unwrap(), field);
}

/// The outcome of a call: 0, or an errno.
///
/// # Safety
/// `out` is writable.
unsafe fn give<T>(out: *mut T, given: Option<T>, garbage: fn() -> T) -> c_int {
    let code = if given.is_some() { 0 } else { 5 };
    let given = given.unwrap_or_else(garbage);
    // SAFETY: by this function's contract.
    unsafe { out.write(given) };
    code
}

impl Source {
    fn next_schema(&self) -> Option<FFI_ArrowSchema> {
        (self.fault != Fault::SchemaFails).then(|| self.schema.export(&self.alive))
    }

    /// The next array; a released one at the end, unless the end fails.
    fn next_array(&mut self) -> Option<FFI_ArrowDeviceArray> {
        match self.arrays.pop_front() {
            Some(array) => Some(self.device_array(&array)),
            None if self.fault == Fault::NextFails => None,
            None => Some(FFI_ArrowDeviceArray::empty()),
        }
    }

    fn message(&self) -> *const c_char {
        if self.arrays.is_empty() { c"it failed \xff".as_ptr() } else { null() }
    }
}

/// The output of a failed call, which nothing may release.
fn garbage_array() -> FFI_ArrowArray {
    unsafe extern "C" fn release(_: *mut FFI_ArrowArray) {
        std::process::abort();
    }
    let mut array = FFI_ArrowArray::empty();
    array.release = Some(release);
    array
}

/// As [`garbage_array`].
fn garbage_schema() -> FFI_ArrowSchema {
    unsafe extern "C" fn release(_: *mut FFI_ArrowSchema) {
        std::process::abort();
    }
    let mut schema = FFI_ArrowSchema::empty();
    schema.release = Some(release);
    schema
}

/// The source behind a stream's private data.
///
/// # Safety
/// The pointer is that of a live stream of this module, which makes one call at a time.
unsafe fn source<'a>(private_data: *mut c_void) -> &'a mut Source {
    // SAFETY: by this function's contract.
    unsafe { &mut *private_data.cast::<Source>() }
}

unsafe extern "C" fn host_schema(stream: *mut FFI_ArrowArrayStream, out: *mut FFI_ArrowSchema) -> c_int {
    // SAFETY: the consumer calls with a live stream and an output.
    unsafe { give(out, source((*stream).private_data).next_schema(), garbage_schema) }
}

unsafe extern "C" fn host_next(stream: *mut FFI_ArrowArrayStream, out: *mut FFI_ArrowArray) -> c_int {
    // SAFETY: the consumer calls with a live stream and an output.
    unsafe { give(out, source((*stream).private_data).next_array().map(|array| array.array), garbage_array) }
}

unsafe extern "C" fn host_error(stream: *mut FFI_ArrowArrayStream) -> *const c_char {
    // SAFETY: the consumer calls with a live stream.
    unsafe { source((*stream).private_data).message() }
}

unsafe extern "C" fn host_release(stream: *mut FFI_ArrowArrayStream) {
    // SAFETY: the consumer calls once with a live stream.
    unsafe {
        (*stream).release = None;
        drop(Box::from_raw((*stream).private_data.cast::<Source>()));
    }
}

unsafe extern "C" fn device_schema(stream: *mut FFI_ArrowDeviceArrayStream, out: *mut FFI_ArrowSchema) -> c_int {
    // SAFETY: the consumer calls with a live stream and an output.
    unsafe { give(out, source((*stream).private_data).next_schema(), garbage_schema) }
}

unsafe extern "C" fn device_next(stream: *mut FFI_ArrowDeviceArrayStream, out: *mut FFI_ArrowDeviceArray) -> c_int {
    // SAFETY: the consumer calls with a live stream and an output.
    unsafe { give(out, source((*stream).private_data).next_array(), || cpu::as_cpu_array(garbage_array())) }
}

unsafe extern "C" fn device_error(stream: *mut FFI_ArrowDeviceArrayStream) -> *const c_char {
    // SAFETY: the consumer calls with a live stream.
    unsafe { source((*stream).private_data).message() }
}

unsafe extern "C" fn device_release(stream: *mut FFI_ArrowDeviceArrayStream) {
    // SAFETY: the consumer calls once with a live stream.
    unsafe {
        (*stream).release = None;
        drop(Box::from_raw((*stream).private_data.cast::<Source>()));
    }
}

unsafe extern "C" fn request(_: *mut FFI_ArrowAsyncProducer, _: i64) {}

unsafe extern "C" fn cancel(_: *mut FFI_ArrowAsyncProducer) {}

unsafe extern "C" fn extract(task: *mut FFI_ArrowAsyncTask, out: *mut FFI_ArrowDeviceArray) -> c_int {
    // SAFETY: the consumer calls once, with an output or null.
    unsafe {
        let array = *Box::from_raw((*task).private_data.cast::<FFI_ArrowDeviceArray>());
        if !out.is_null() {
            out.write(array);
        }
    }
    0
}
