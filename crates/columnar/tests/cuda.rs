// SPDX-License-Identifier: Apache-2.0
//! Device arrays under CUDA without a GPU: the emulator of `device`, with the real
//! NVRTC.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

// Other tests use more of it.
#[allow(dead_code)]
#[path = "../../device/tests/cuda/emulator.rs"]
mod emulator;

use std::ffi::c_void;
use std::ptr;
use std::sync::Arc;
use std::task::Waker;

use arrow::array::{
    Array, ArrayRef, AsArray, BooleanArray, Decimal128Array, DictionaryArray, FixedSizeBinaryArray, Int32Array, Int64Array,
    NullArray, RecordBatch, StringArray, StringViewArray,
};
use arrow::datatypes::{DataType, Int32Type, SchemaRef};
use arrow_device::ffi::{ArrowDeviceType, FFI_ArrowDeviceArray};
use arrow_device::{ArrayExport, ArrayView, BufferKind, ImportedArray, cpu, schema};
use columnar::{DeviceBatch, Error, Result, download, exchange, natural_types, upload};
use device::{Buffer, Context, DeviceConfig, DriverKind, Queue, Selector};
use futures::executor::block_on;

use crate::emulator::Turn;

/// A queue of a context on the emulator. Declare it after `turn`, so that it is dropped first.
fn queue(turn: &Turn) -> Queue {
    let config = DeviceConfig::default().with_selector(Selector::Driver(DriverKind::Cuda)).with_nvrtc_path(&turn.nvrtc);
    Context::new(config).unwrap().queue().unwrap()
}

/// Columns of every layout.
fn host(rows: usize) -> RecordBatch {
    let some = |row: usize| !row.is_multiple_of(3);
    let string = |row: usize| ["", "short", "a string that is longer than twelve bytes"][row % 3];
    let columns: [(&str, ArrayRef); 9] = [
        ("null", Arc::new(NullArray::new(rows))),
        ("bits", Arc::new((0..rows).map(|row| some(row).then_some(row % 2 == 0)).collect::<BooleanArray>())),
        ("numbers", Arc::new((0..rows).map(|row| some(row).then_some(row as i32)).collect::<Int32Array>())),
        ("all", Arc::new(Int64Array::from_iter_values((0..rows).map(|row| row as i64)))),
        ("decimals", Arc::new((0..rows).map(|row| Some(row as i128 - 50)).collect::<Decimal128Array>())),
        ("strings", Arc::new((0..rows).map(|row| some(row).then_some(string(row))).collect::<StringArray>())),
        ("views", Arc::new((0..rows).map(|row| Some(string(row))).collect::<StringViewArray>().gc())),
        ("few", Arc::new((0..rows).map(|row| Some(string(row))).collect::<DictionaryArray<Int32Type>>())),
        ("nothings", Arc::new(FixedSizeBinaryArray::new(0, arrow::buffer::Buffer::default(), Some(vec![true; rows].into())))),
    ];
    RecordBatch::try_from_iter_with_nullable(columns.map(|(name, column)| (name, column, true))).unwrap()
}

fn up(queue: &Queue, host: &RecordBatch) -> DeviceBatch {
    upload(queue, &host.schema(), &natural_types(&host.schema()).unwrap(), std::slice::from_ref(host)).unwrap()
}

fn imported(array: FFI_ArrowDeviceArray, schema: &SchemaRef) -> ImportedArray {
    // SAFETY: this process exported the array.
    unsafe { ImportedArray::import(array, &schema::batch_field(schema)) }.unwrap()
}

fn import(queue: &Queue, array: FFI_ArrowDeviceArray, schema: &SchemaRef) -> Result<DeviceBatch> {
    let all: Vec<usize> = (0..schema.fields().len()).collect();
    block_on(exchange::import(queue, imported(array, schema), schema, &all))
}

/// Asserts that all buffers of `view` and its children are pinned. Returns their number.
fn assert_pinned(turn: &Turn, view: &ArrayView<'_>) -> usize {
    let mut count = 0;
    for buffer in view.buffers().filter(|buffer| !buffer.ptr.is_null() && buffer.kind != BufferKind::VariadicLengths) {
        assert!(turn.is_pinned(buffer.ptr.cast(), buffer.len_bytes.unwrap_or(1)), "{:?}: {buffer:?}", view.data_type());
        count += 1;
    }
    count + view.children().chain(view.dictionary()).map(|view| assert_pinned(turn, &view)).sum::<usize>()
}

#[test]
fn host_memory_is_pinned_and_complete() {
    let Some(turn) = Turn::take() else { return };
    let queue = queue(&turn);
    for rows in [0, 1, 257] {
        let host = host(rows);
        let schema = host.schema();
        let exported = || block_on(exchange::export_to_host(&queue, &up(&queue, &host))).unwrap();
        let array = imported(exported(), &schema);
        assert_eq!((array.device_type(), array.device_id()), (ArrowDeviceType::CUDA_HOST, 0));
        assert!(array.sync_event().is_null());
        let pinned = assert_pinned(&turn, &array.view());
        assert!(pinned >= 13 || rows < 2, "{pinned} buffers of {rows} rows");
        assert_eq!(cpu::import_batch(array).unwrap(), host);
    }
}

#[test]
fn host_memory_is_waited_for() {
    let Some(turn) = Turn::take() else { return };
    let queue = queue(&turn);
    let batch = up(&queue, &host(257));
    block_on(queue.finish()).unwrap();
    turn.hold(true);
    let mut exported = Box::pin(exchange::export_to_host(&queue, &batch));
    assert!(exported.as_mut().poll(&mut std::task::Context::from_waker(Waker::noop())).is_pending());
    turn.hold(false);
    assert!(block_on(exported).is_ok());
}

#[test]
fn host_memory_is_uploaded_again_after_its_event() {
    let Some(turn) = Turn::take() else { return };
    let queue = queue(&turn);
    let numbers: ArrayRef = Arc::new(Int32Array::from_iter_values(0..100));
    let host = RecordBatch::try_from_iter_with_nullable([("x", numbers, true)]).unwrap();
    let mut array = block_on(exchange::export_to_host(&queue, &up(&queue, &host))).unwrap();
    let other = queue.context().queue().unwrap();
    let work = other.alloc(1 << 20).unwrap();
    // The emulator holds the fill back until other work waits for it.
    turn.hold(true);
    other.fill(&work, 0, 1 << 20, 1).unwrap();
    let event = other.record().unwrap();
    assert!(!event.is_done().unwrap());
    let mut cell = event.raw().unwrap().0;
    array.sync_event = (&raw mut cell).cast();
    let back = import(&queue, array, &host.schema()).unwrap();
    assert!(event.is_done().unwrap(), "read before its event");
    turn.hold(false);
    assert_eq!(block_on(download(&queue, &back)).unwrap(), host);
}

#[test]
fn refusals_of_the_driver_fail_exports() {
    let Some(turn) = Turn::take() else { return };
    let queue = queue(&turn);
    let batch = up(&queue, &host(257));
    block_on(queue.finish()).unwrap();
    turn.fail("cuEventRecord", 1);
    assert!(matches!(exchange::export(&queue, &batch), Err(Error::Device(_))));
    queue.context().trim();
    for n in 1..13 {
        queue.context().trim();
        turn.fail_nth("cuMemHostAlloc", 2, n);
        let refused = block_on(exchange::export_to_host(&queue, &batch));
        assert!(matches!(&refused, Err(Error::Device(error)) if error.is_out_of_memory()), "{n}: {refused:?}");
        block_on(queue.finish()).unwrap();
    }
}

/// A producer whose pointers lie anywhere in an allocation, as far as the type allows.
struct UnalignedProducer<'a> {
    queue: &'a Queue,
    owners: Vec<Buffer>,
}

impl UnalignedProducer<'_> {
    /// Copies the buffers of a host array to device memory, `shift` bytes into an allocation.
    fn column(&mut self, host: &ArrayView<'_>, shift: impl Fn(BufferKind) -> usize) -> ArrayExport {
        let buffers = host.buffers().map(|buffer| match buffer.kind {
            BufferKind::VariadicLengths => buffer.ptr,
            _ if buffer.ptr.is_null() => buffer.ptr,
            // The length of a string heap is known only from the offsets.
            kind => self.copy_to_device(buffer.ptr, buffer.len_bytes.unwrap_or(800), shift(kind)),
        });
        ArrayExport::new(host.len()).null_count(host.null_count()).buffers(buffers.collect())
    }

    fn copy_to_device(&mut self, from: *const c_void, bytes: usize, shift: usize) -> *const c_void {
        let to = self.queue.alloc(bytes + shift).unwrap();
        // SAFETY: the host array has these bytes.
        self.queue.write(&to, shift, unsafe { std::slice::from_raw_parts(from.cast(), bytes) }).unwrap();
        let at = to.raw().handle + shift as u64;
        self.owners.push(to);
        at as *const c_void
    }
}

/// Kernels load up to 16 bytes at once, except from string heaps.
#[test]
fn unaligned_buffers_are_copied() {
    let Some(turn) = Turn::take() else { return };
    let queue = queue(&turn);
    let strings = || (0..100).map(|row| (row % 7 != 0).then_some("8 bytes!"));
    // With the alignment of each type's elements.
    let columns: [(ArrayRef, usize); 6] = [
        (Arc::new((0..100).map(|row| (row % 7 != 0).then_some(row % 2 == 0)).collect::<BooleanArray>()), 1),
        (Arc::new((0..100).map(|row| (row % 7 != 0).then_some(row)).collect::<Int32Array>()), 4),
        (Arc::new((0..100).map(|row| (row % 7 != 0).then_some(row)).collect::<Int64Array>()), 8),
        (Arc::new((0..100).map(|row| (row % 7 != 0).then_some(row)).collect::<Decimal128Array>()), 8),
        (Arc::new(StringArray::from_iter_values((0..100).map(|_| "8 bytes!"))), 4),
        (Arc::new(strings().map(|string| string.map(|string| string.repeat(2))).collect::<StringViewArray>().gc()), 8),
    ];
    for (column, step) in columns {
        let batch = RecordBatch::try_from_iter_with_nullable([("x", column, true)]).unwrap();
        let array = imported(cpu::export_batch(&batch).unwrap(), &batch.schema());
        let host = array.view().child(0).unwrap();
        for shift in [0, 1, 2, 16, 17] {
            let case = format!("{}, {shift} steps of {step} bytes", host.data_type());
            let is_heap = |kind| matches!(kind, BufferKind::Bytes | BufferKind::Variadic);
            let shift_of = |kind| if kind == BufferKind::Validity || is_heap(kind) { shift } else { shift * step };
            let mut producer = UnalignedProducer { queue: &queue, owners: Vec::new() };
            let column = producer.column(&host, shift_of);
            let given: Vec<u64> = producer.owners.iter().map(|buffer| buffer.raw().handle).collect();
            let kinds = || host.buffers().filter(|buffer| !buffer.ptr.is_null()).map(|buffer| buffer.kind);
            let given: Vec<(BufferKind, u64)> = kinds().zip(given).map(|(kind, at)| (kind, at + shift_of(kind) as u64)).collect();
            let root = ArrayExport::batch(100, vec![column]).unwrap().owner(Box::new(producer.owners));
            let exported = root.export(ArrowDeviceType::CUDA, 0, ptr::null_mut()).unwrap();
            let back = import(&queue, exported, &batch.schema()).unwrap();

            let column = &back.columns()[0];
            let used: Vec<u64> =
                column.buffers().iter().chain(column.validity().map(|(bits, _)| bits)).map(|b| b.raw().handle).collect();
            for (kind, at) in given {
                assert_eq!(used.contains(&at), is_heap(kind) || at % 16 == 0, "{case}: {kind:?} at {at:#x}");
            }
            assert_eq!(block_on(download(&queue, &back)).unwrap(), batch, "{case}");
        }
    }
}

/// R46: the pointer of an empty buffer may be invalid.
#[test]
fn pointers_of_empty_buffers_are_not_used() {
    let Some(turn) = Turn::take() else { return };
    let queue = queue(&turn);
    let nowhere = 0x10 as *const c_void;
    let nothings: ArrayRef = Arc::new(FixedSizeBinaryArray::new(0, arrow::buffer::Buffer::default(), Some(vec![true; 5].into())));
    let short: ArrayRef = Arc::new(StringViewArray::from(vec!["a", "b", "c", "", "e"]));
    for column in [nothings, short] {
        let batch = RecordBatch::try_from_iter_with_nullable([("x", column, true)]).unwrap();
        let mut producer = UnalignedProducer { queue: &queue, owners: Vec::new() };
        let lengths = Box::new(0i64);
        let buffers = match batch.column(0).data_type() {
            DataType::Utf8View => {
                let views = batch.column(0).as_string_view().views();
                vec![ptr::null(), producer.copy_to_device(views.as_ptr().cast(), 80, 0), nowhere, ptr::from_ref(&*lengths).cast()]
            }
            _ => vec![ptr::null(), nowhere],
        };
        let column = ArrayExport::new(5).buffers(buffers);
        let root = ArrayExport::batch(5, vec![column]).unwrap().owner(Box::new((producer.owners, lengths)));
        let exported = root.export(ArrowDeviceType::CUDA, 0, ptr::null_mut()).unwrap();
        let back = import(&queue, exported, &batch.schema()).unwrap();
        assert_eq!(block_on(download(&queue, &back)).unwrap(), batch);
    }
}
