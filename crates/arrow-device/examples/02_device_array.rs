// SPDX-License-Identifier: Apache-2.0
//! Export and import of device memory by a driver. The device here is simulated: its memory is a
//! vector, its event a flag.
//!
//! `cargo run -p arrow-device --example 02_device_array`

use std::error::Error;
use std::ffi::c_void;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use arrow::datatypes::{DataType, Field};
use arrow_device::ffi::{ArrowDeviceType, FFI_ArrowDeviceArray};
use arrow_device::{ArrayExport, BufferKind, ImportedArray};

/// The array's owner: with a real driver, the allocation and the cell of the native event.
struct DeviceColumn {
    memory: Vec<i32>,
    // Boxed, because `sync_event` points here wherever the column moves.
    event: Box<Event>,
}

type Event = Arc<AtomicBool>;

impl Drop for DeviceColumn {
    fn drop(&mut self) {
        println!("producer: released, {} bytes go back to the pool", self.memory.len() * 4);
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let written = Event::default();
    let exported = produce(vec![3, 1, 4, 1, 5], Arc::clone(&written))?;

    let field = Field::new("digits", DataType::Int32, false);
    // SAFETY: the array comes from this crate's export, with correct sizes.
    let imported = unsafe { ImportedArray::import(exported, &field)? };
    let view = imported.view();
    for buffer in view.buffers() {
        println!("consumer: {:?} at {:?}, {:?} bytes", buffer.kind, buffer.ptr, buffer.len_bytes);
    }

    // The device completes. Before its event says so, the memory must not be read.
    written.store(true, Ordering::Release);
    // SAFETY: the sync event of this device is an `Event`, which the array keeps alive.
    let event = unsafe { &*imported.sync_event().cast::<Event>() };
    while !event.load(Ordering::Acquire) {
        std::thread::yield_now();
    }
    let values = view.buffer(1).filter(|values| values.kind == BufferKind::Fixed(4)).ok_or("no values")?;
    // SAFETY: the import checked the sizes, the event has completed, and the host can read this
    // simulated device's memory.
    let digits = unsafe { std::slice::from_raw_parts(values.ptr.cast::<i32>(), view.offset() + view.len()) };
    println!("consumer: {:?}", &digits[view.offset()..]);

    drop(imported);
    println!("consumer: done");
    Ok(())
}

fn produce(memory: Vec<i32>, event: Event) -> arrow_device::Result<FFI_ArrowDeviceArray> {
    let column = DeviceColumn { memory, event: Box::new(event) };
    let values: *const c_void = column.memory.as_ptr().cast();
    let event: *mut c_void = (&raw const *column.event).cast_mut().cast();
    ArrayExport::new(column.memory.len() - 1).offset(1).buffers(vec![std::ptr::null(), values]).owner(Box::new(column)).export(
        ArrowDeviceType::EXT_DEV,
        0,
        event,
    )
}
