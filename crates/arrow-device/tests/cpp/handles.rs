// SPDX-License-Identifier: Apache-2.0
//! A simulated device of the type OPENCL (device.cc). Its buffers are handles, written after the
//! wait for their event. Dereferencing a handle crashes; early reads are counted.

use std::any::Any;
use std::ffi::c_void;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, BooleanArray, Int32Array, Int64Array, ListArray, RecordBatch, StructArray};
use arrow::buffer::OffsetBuffer;
use arrow::datatypes::{DataType, Field, Schema};
use arrow_device::async_stream::{AsyncBatch, ProduceOptions, produce_on_thread};
use arrow_device::ffi::{ArrowDeviceType, FFI_ArrowDeviceArray};
use arrow_device::stream::{ArrowDeviceArrayStreamReader, export_iterator};
use arrow_device::{ArrayExport, ArrayView, BufferKind, BufferView, ImportedArray, cpu, schema};
use futures::{StreamExt, executor::block_on, stream};

use crate::peer::{CppArray, CppBatch, CppReader, End, peer};
use crate::pushed::{CppPull, CppPush, our_consumer};
use crate::samples::{Sample, samples};
use crate::session::{DeviceCount, Session, count, counted};

const OPENCL: ArrowDeviceType = ArrowDeviceType::OPENCL;
const ID: i64 = 3;

// ---- The device

type Owner = Box<dyn Any + Send + Sync>;

/// An event of the device, not yet complete.
pub struct Event(*mut c_void);

// SAFETY: the device locks itself.
unsafe impl Send for Event {}
// SAFETY: as above.
unsafe impl Sync for Event {}

impl Drop for Event {
    fn drop(&mut self) {
        // SAFETY: made by `new`, and freed once.
        unsafe { (peer().peer_event_free)(self.0) }
    }
}

impl Event {
    pub fn new() -> Self {
        // SAFETY: no conditions.
        Self(unsafe { (peer().peer_event_new)() })
    }

    /// The event's cell for `sync_event`.
    pub fn cell(&self) -> *mut c_void {
        self.0
    }
}

/// Waits for an event of any producer.
pub fn wait(event: *mut c_void) {
    // SAFETY: any pointer is accepted; an unknown one is counted as a violation.
    assert_eq!(unsafe { (peer().peer_event_wait)(event) }, 0);
}

/// DeviceMemory of the device.
struct DeviceMemory(u64);

impl Drop for DeviceMemory {
    fn drop(&mut self) {
        // SAFETY: any handle is accepted; an unknown one is counted as a violation.
        unsafe { (peer().peer_device_free)(self.0) }
    }
}

/// Copies an array, buffer by buffer, from one memory to another.
struct ArrayCopier<'a> {
    read: &'a dyn Fn(*const c_void, usize) -> Vec<u8>,
    /// Returns the pointer for C, and the owner that keeps it valid.
    write: &'a dyn Fn(Vec<u8>) -> (*const c_void, Owner),
}

fn read_host(ptr: *const c_void, len: usize) -> Vec<u8> {
    // SAFETY: a buffer of a host array, which has as many bytes.
    unsafe { std::slice::from_raw_parts(ptr.cast::<u8>(), len) }.to_vec()
}

fn write_host(bytes: Vec<u8>) -> (*const c_void, Owner) {
    (bytes.as_ptr().cast(), Box::new(bytes))
}

fn read_device(ptr: *const c_void, len: usize) -> Vec<u8> {
    let mut bytes = vec![0u8; len];
    // SAFETY: any handle is accepted, and the output has `len` bytes.
    let code = unsafe { (peer().peer_device_get)(ptr.addr() as u64, bytes.as_mut_ptr().cast(), len) };
    assert_eq!(code, 0, "no such device memory");
    bytes
}

impl ArrayCopier<'_> {
    /// A copy of one node and its descendants, which owns `owners` too.
    fn node(&self, view: &ArrayView<'_>, mut owners: Vec<Owner>) -> ArrayExport {
        let mut pointers = Vec::new();
        for buffer in view.buffers() {
            let len = buffer.len_bytes.unwrap_or_else(|| self.last_offset(view));
            let (ptr, owner) = match buffer.kind {
                _ if buffer.ptr.is_null() => (std::ptr::null(), Box::new(()) as Owner),
                // In host memory on every device (R35).
                BufferKind::VariadicLengths => write_host(read_host(buffer.ptr, len)),
                _ => (self.write)((self.read)(buffer.ptr, len)),
            };
            pointers.push(ptr);
            owners.push(owner);
        }
        let export = ArrayExport::new(view.len()).offset(view.offset()).null_count(view.null_count());
        let export = export
            .buffers(pointers)
            .owner(Box::new(owners))
            .children(view.children().map(|child| self.node(&child, vec![])).collect());
        match view.dictionary() {
            Some(dictionary) => export.dictionary(self.node(&dictionary, vec![])),
            None => export,
        }
    }

    fn last_offset(&self, view: &ArrayView<'_>) -> usize {
        let Some(BufferView { kind: BufferKind::Offsets(width), ptr, .. }) = view.buffer(1) else { return 0 };
        if view.len() == 0 {
            return 0;
        }
        let at = ptr.wrapping_byte_add((view.offset() + view.len()) * width);
        let mut bytes = (self.read)(at, width);
        bytes.resize(8, 0);
        usize::from_ne_bytes(bytes.try_into().unwrap())
    }
}

/// Copies an array to the device; with an event, its data appears after a wait for the event.
pub fn upload(array: &dyn Array, event: Option<Event>) -> FFI_ArrowDeviceArray {
    let cell = event.as_ref().map_or(std::ptr::null_mut(), |event| event.0);
    let write = |bytes: Vec<u8>| {
        // SAFETY: the bytes are readable, and the event is live.
        let handle = unsafe { (peer().peer_device_put)(bytes.as_ptr().cast(), bytes.len(), cell) };
        (std::ptr::without_provenance(handle as usize), Box::new(DeviceMemory(handle)) as Owner)
    };
    // SAFETY: exported here.
    let host = unsafe { ImportedArray::import(cpu::export_array(array).unwrap(), &cpu::field_of(array)).unwrap() };
    let export = ArrayCopier { read: &read_host, write: &write }.node(&host.view(), vec![Box::new(event)]);
    counted(export.export(OPENCL, ID, cell).unwrap())
}

/// Copies an array from the device, after its event.
fn download(array: ImportedArray) -> ArrayRef {
    assert_eq!((array.device_type(), array.device_id()), (OPENCL, ID));
    if !array.sync_event().is_null() {
        wait(array.sync_event());
    }
    let export = ArrayCopier { read: &read_device, write: &write_host }.node(&array.view(), vec![]);
    let host = export.export(ArrowDeviceType::CPU, -1, std::ptr::null_mut()).unwrap();
    // SAFETY: built from the bytes read above.
    cpu::import_array(unsafe { ImportedArray::import(host, array.field()).unwrap() }).unwrap()
}

/// Asserts that no read came before its event.
#[track_caller]
fn none_early() {
    assert_eq!(count(DeviceCount::Early), 0, "reads before the event");
}

/// Whether Arrow C++ reads such an array during its import (Y6).
pub fn has_offsets_of_bytes(data_type: &DataType) -> bool {
    use DataType::*;
    match data_type {
        Utf8 | LargeUtf8 | Binary | LargeBinary => true,
        Dictionary(_, values) => has_offsets_of_bytes(values),
        List(field) | LargeList(field) | ListView(field) | LargeListView(field) | FixedSizeList(field, _) | Map(field, _) => {
            has_offsets_of_bytes(field.data_type())
        }
        Struct(fields) => fields.iter().any(|field| has_offsets_of_bytes(field.data_type())),
        Union(fields, _) => fields.iter().any(|(_, field)| has_offsets_of_bytes(field.data_type())),
        RunEndEncoded(_, values) => has_offsets_of_bytes(values.data_type()),
        _ => false,
    }
}

/// Columns that Arrow C++ does not read during their import.
fn device_schema() -> Schema {
    let item = Arc::new(Field::new("item", DataType::Int32, true));
    Schema::new(vec![
        Field::new("key", DataType::Int64, false),
        Field::new("flag", DataType::Boolean, true),
        Field::new("list", DataType::List(item), true),
    ])
}

fn device_batch(start: i64) -> RecordBatch {
    let columns: Vec<ArrayRef> = vec![
        Arc::new(Int64Array::from(vec![start, start + 1])),
        Arc::new(BooleanArray::from(vec![None, Some(true)])),
        Arc::new(ListArray::new(
            Arc::new(Field::new("item", DataType::Int32, true)),
            OffsetBuffer::from_lengths([1, 2]),
            Arc::new(Int32Array::from(vec![Some(1), None, Some(3)])),
            None,
        )),
    ];
    RecordBatch::try_new(Arc::new(device_schema()), columns).unwrap()
}

fn cpp_device_batch(start: i64) -> CppBatch {
    let json = r#"[{"key": START, "flag": null, "list": [1]}, {"key": NEXT, "flag": true, "list": [null, 3]}]"#;
    let json = json.replace("START", &start.to_string()).replace("NEXT", &(start + 1).to_string());
    CppBatch::build(&device_schema(), &json).unwrap()
}

fn upload_batch(start: i64) -> FFI_ArrowDeviceArray {
    upload(&StructArray::from(device_batch(start)), Some(Event::new()))
}

fn download_batch(array: ImportedArray) -> RecordBatch {
    RecordBatch::from(StructArray::from(download(array).to_data()))
}

#[test]
fn our_arrays_on_a_device_arrive_in_arrow_cpp() {
    Session::run(|_session| {
        for Sample { array, json } in samples() {
            let field = cpu::field_of(&array);
            let expected = CppArray::build(&field, &json).unwrap();
            for part in [(0, array.len()), (1, 3)] {
                let sliced = array.slice(part.0, part.1);
                let early = has_offsets_of_bytes(field.data_type());
                let event = Event::new();
                let cell = event.cell();
                let exported = upload(&sliced, Some(event));
                let (wraps, reads) = (count(DeviceCount::Wraps), count(DeviceCount::Reads));
                if early {
                    // The import reads these offsets, so they must be complete.
                    wait(cell);
                }
                let imported = CppArray::import(exported, schema::export_field(&field).unwrap()).unwrap();
                assert_eq!(count(DeviceCount::Wraps), wraps + 1);
                assert!(early || count(DeviceCount::Reads) == reads, "{} was read", field.data_type());
                imported.to_host().unwrap().assert_equals(&expected.slice(part.0, part.1));
                none_early();
            }
        }
    });
}

#[test]
fn arrays_of_arrow_cpp_on_a_device_arrive_here() {
    Session::run(|_session| {
        for Sample { array: expected, json } in samples() {
            let built = CppArray::build(&cpu::field_of(&expected), &json).unwrap();
            for with_event in [true, false] {
                let (exported, schema) = built.to_device(ID, with_event).export().unwrap();
                let reads = count(DeviceCount::Reads);
                // SAFETY: both were written by Arrow C++.
                let array = unsafe { ImportedArray::import(exported, &schema::import_field(schema).unwrap()).unwrap() };
                let no_buffers = array.view().num_buffers() == 0 && array.view().num_children() == 0;
                if no_buffers {
                    // Without buffers, Arrow C++ cannot infer the device.
                    assert_eq!(array.device_type(), ArrowDeviceType::CPU);
                    continue;
                }
                assert_eq!(!array.sync_event().is_null(), with_event);
                // The import refuses device memory without reading it.
                assert_eq!(count(DeviceCount::Reads), reads);
                assert_eq!(&download(array), &expected, "{}", expected.data_type());
                none_early();
            }
        }
    });
}

#[test]
fn host_import_refuses_device_memory() {
    Session::run(|_session| {
        let (exported, schema) = cpp_device_batch(1).to_device(ID, true).export().unwrap();
        // SAFETY: both were written by Arrow C++.
        let array = unsafe {
            let schema = schema::import_schema(schema).unwrap();
            ImportedArray::import(exported, &schema::batch_field(&schema)).unwrap()
        };
        let error = cpu::import_batch(array).unwrap_err().to_string();
        assert!(error.contains("it is in memory of OPENCL"), "{error}");
        assert_eq!(count(DeviceCount::Reads), 0);
    });
}

#[test]
fn record_batches_keep_device_and_event_both_ways() {
    Session::run(|_session| {
        let theirs = cpp_device_batch(7);
        let (exported, schema) = theirs.to_device(ID, true).export().unwrap();
        // SAFETY: both were written by Arrow C++.
        let array = unsafe {
            let schema = schema::import_schema(schema).unwrap();
            ImportedArray::import(exported, &schema::batch_field(&schema)).unwrap()
        };
        // Returned unchanged: one more owner, no read.
        let field = array.field().as_ref().clone();
        let back = CppBatch::import(counted(array.into_ffi()), schema::export_field(&field).unwrap()).unwrap();
        assert!(back.has_event());
        assert_eq!(count(DeviceCount::Reads), 0);
        back.to_host().unwrap().assert_equals(&theirs);

        let ours = CppBatch::import(upload_batch(7), schema::export_schema(&device_schema()).unwrap()).unwrap();
        assert!(ours.has_event());
        ours.to_host().unwrap().assert_equals(&theirs);
        none_early();
    });
}

/// After a wait, the next consumer need not wait.
#[test]
fn a_complete_batch_is_exported_without_its_event() {
    Session::run(|_session| {
        let (exported, _schema) = cpp_device_batch(7).to_device(ID, true).export().unwrap();
        let field = schema::batch_field(&device_schema());
        // SAFETY: written by Arrow C++.
        let array = unsafe { ImportedArray::import(exported, &field).unwrap() };
        wait(array.sync_event());
        // SAFETY: `wait` has returned.
        let array = unsafe { array.assume_complete() };
        let back = CppBatch::import(counted(array.into_ffi()), schema::export_field(&field).unwrap()).unwrap();
        assert!(!back.has_event());
        back.to_host().unwrap().assert_equals(&cpp_device_batch(7));
        none_early();
    });
}

#[test]
fn pull_streams_carry_events_both_ways() {
    Session::run(|_session| {
        let batches = (0..5).map(|start| cpp_device_batch(start).to_device(ID, true)).collect();
        let stream = CppReader::new(&device_schema(), batches, OPENCL, End::PLAIN).export().unwrap();
        // SAFETY: exported by Arrow C++.
        let reader = unsafe { ArrowDeviceArrayStreamReader::try_new(stream).unwrap() };
        assert_eq!(reader.device_type(), OPENCL);
        let arrays: Vec<_> = reader.map(Result::unwrap).collect();
        assert_eq!(count(DeviceCount::Reads), 0);
        for (start, array) in (0..).zip(arrays) {
            assert!(!array.sync_event().is_null());
            assert_eq!(download_batch(array), device_batch(start));
        }

        let field = schema::batch_field(&device_schema());
        let stream = export_iterator(&field, OPENCL, (0..5).map(|start| Ok(upload_batch(start)))).unwrap();
        let mut reader = CppReader::import(stream).unwrap();
        let reads = count(DeviceCount::Reads);
        let batches: Vec<_> = std::iter::from_fn(|| reader.read().unwrap()).collect();
        assert_eq!(count(DeviceCount::Reads), reads);
        for (start, batch) in (0..5).zip(batches) {
            assert!(batch.has_event());
            batch.to_host().unwrap().assert_equals(&cpp_device_batch(start));
        }
        none_early();
    });
}

#[test]
fn async_streams_carry_events_to_us() {
    Session::run(|_session| {
        for in_flight in [1, 4] {
            let (handler, stream) = our_consumer(in_flight);
            let batches = (0..10).map(|start| cpp_device_batch(start).to_device(ID, true)).collect();
            let push = CppPush::start_with(handler, &device_schema(), batches, OPENCL, End::PLAIN, 0);
            let arrays: Vec<_> = block_on(stream.map(Result::unwrap).collect());
            assert_eq!(arrays.len(), 10);
            for (start, array) in (0..).zip(arrays) {
                assert!(!array.sync_event().is_null());
                assert_eq!(download_batch(array), device_batch(start));
            }
            push.join().0.unwrap();
            none_early();
            // Some tasks are dropped, some never extracted.
            let (handler, mut stream) = our_consumer(in_flight);
            let batches = (0..10).map(|start| cpp_device_batch(start).to_device(ID, true)).collect();
            let push = CppPush::start_with(handler, &device_schema(), batches, OPENCL, End::PLAIN, 0);
            drop(block_on(stream.next()).unwrap().unwrap());
            drop(stream);
            push.join().0.unwrap_err();
        }
    });
}

#[test]
fn async_streams_carry_events_to_arrow_cpp() {
    Session::run(|_session| {
        for queue in [1, 4] {
            let mut pull = CppPull::new(queue);
            let field = schema::batch_field(&device_schema());
            let source = stream::iter((0..10).map(|start| Ok(AsyncBatch::from(upload_batch(start)))));
            let options = ProduceOptions::default();
            let thread = produce_on_thread(source, &field, OPENCL, pull.handler(), options).unwrap();
            assert_eq!(pull.consumer.schema().unwrap(), (device_schema(), OPENCL));
            let reads = count(DeviceCount::Reads);
            let batches: Vec<_> = std::iter::from_fn(|| pull.consumer.read().unwrap()).collect();
            assert_eq!((batches.len(), count(DeviceCount::Reads)), (10, reads));
            for (start, (batch, _)) in (0..10).zip(batches) {
                assert!(batch.has_event());
                batch.to_host().unwrap().assert_equals(&cpp_device_batch(start));
            }
            pull.end(thread);
            none_early();
        }
    });
}

/// Shows that the device detects a missing wait.
#[test]
fn a_read_before_the_event_is_counted() {
    Session::run(|_session| {
        let field = schema::batch_field(&device_schema());
        // SAFETY: exported here.
        let array = unsafe { ImportedArray::import(upload_batch(1), &field).unwrap() };
        let values = array.view().child(0).unwrap().buffer(1).unwrap();
        assert_eq!(read_device(values.ptr, 8), [0xAB; 8]);
        assert_eq!(count(DeviceCount::Early), 1);
        wait(array.sync_event());
        assert_eq!(read_device(values.ptr, 8), 1i64.to_ne_bytes());
        assert_eq!((count(DeviceCount::Early), count(DeviceCount::Waits)), (1, 1));
    });
}
