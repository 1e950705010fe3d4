// SPDX-License-Identifier: Apache-2.0
//! Libraries of the back end `cuda` without a GPU: over the emulator of the crate
//! `device`, with the real NVRTC.
//!
//! A library has its own context, and the emulator refuses work on another context's memory.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

// Other users need more of it.
#[allow(dead_code)]
#[path = "../../device/tests/cuda/emulator.rs"]
mod emulator;
mod fixture;

use bytes::Bytes;
use device::{Buffer, Context as Device, DeviceConfig, DriverKind, Queue, Selector};
use futhark::{Array, Context, ContextConfig, Error, Library, Primitive, Scalar, Value};
use futures::executor::block_on;

use crate::emulator::Turn;
use crate::fixture::Fixture;

fn device(turn: &Turn) -> Device {
    Device::new(DeviceConfig::default().with_selector(Selector::Driver(DriverKind::Cuda)).with_nvrtc_path(&turn.nvrtc)).unwrap()
}

fn library(fixture: &Fixture) -> Library {
    // SAFETY: the manifest is the program's.
    unsafe { Library::open(fixture.manifest()) }.unwrap()
}

/// A device of the emulator, a queue on it, and a library's context that shares it.
fn beside(turn: &Turn, fixture: &Fixture) -> (Device, Queue, Context) {
    let device = device(turn);
    let context = Context::on_device(&library(fixture), ContextConfig::default(), &device).unwrap();
    (device.clone(), device.queue().unwrap(), context)
}

fn buffer(queue: &Queue, values: &[i64]) -> Buffer {
    queue.upload(values.iter().flat_map(|value| value.to_ne_bytes()).collect::<Vec<u8>>().into()).unwrap()
}

fn numbers(queue: &Queue, buffer: &Buffer) -> Vec<i64> {
    let bytes: Bytes = block_on(queue.read(buffer, 0..buffer.len())).unwrap();
    bytes.chunks_exact(8).map(|bytes| i64::from_ne_bytes(bytes.try_into().unwrap())).collect()
}

/// An array over a prepared buffer.
fn prepared(context: &Context, queue: &Queue, buffer: &Buffer) -> Array {
    let copy = context.prepare_buffer(queue, buffer, false).unwrap();
    block_on(queue.finish()).unwrap();
    context.array_from_buffer(Primitive::I64, &[buffer.len() / 8], copy).unwrap()
}

/// The array that a call with one argument returns.
fn array_of(context: &Context, entry: &str, argument: Array) -> Array {
    array(context.call(entry, vec![argument.into()]).unwrap())
}

fn array(values: Vec<Value>) -> Array {
    match values.into_iter().next() {
        Some(Value::Array(array)) => array,
        other => panic!("{other:?} is not an array"),
    }
}

#[test]
fn values_are_copied_to_the_library_context_and_back_on_the_device() {
    let Some(turn) = Turn::take() else { return };
    let fixture = Fixture::cuda();
    let (device, queue, context) = beside(&turn, &fixture);
    assert!(context.device().unwrap().same(&device));
    assert_eq!(fixture.counter("fixture_unified"), 0, "its memory is device memory");
    // One value was copied to find the library's context.
    assert_eq!(fixture.counter("fixture_copied"), 1);
    let (xs, ys) = (buffer(&queue, &[1, 2, 3, 4]), buffer(&queue, &[10, 20, 30, 40]));
    let before = device.counters();
    let added =
        context.call("add", vec![prepared(&context, &queue, &xs).into(), prepared(&context, &queue, &ys).into()]).unwrap();
    let sum = block_on(array(added).into_buffer(&queue)).unwrap();
    let none = array_of(&context, "positives", prepared(&context, &queue, &buffer(&queue, &[-1, 0])));
    assert!(block_on(none.into_buffer(&queue)).unwrap().is_empty());
    let total = context.call("sum", vec![prepared(&context, &queue, &sum).into()]).unwrap();
    assert!(matches!(total.as_slice(), [Value::Scalar(Scalar::I64(110))]));
    let after = device.counters();
    assert_eq!((after.bytes_up - before.bytes_up, after.bytes_down - before.bytes_down), (16, 0), "the two numbers above");
    assert_eq!((fixture.counter("fixture_copied"), fixture.counter("fixture_borrowed")), (1, 4));
    assert_eq!(numbers(&queue, &sum), [11, 22, 33, 44]);
    drop((context, total));
    // The result is in the caller's context.
    assert_eq!(numbers(&queue, &sum), [11, 22, 33, 44]);
    drop((xs, ys, sum, queue, device));
    fixture.assert_clean();
}

#[test]
fn results_outlive_arguments_and_the_reverse() {
    let Some(turn) = Turn::take() else { return };
    let fixture = Fixture::cuda();
    let (device, queue, context) = beside(&turn, &fixture);
    let xs = buffer(&queue, &[5, 6, 7]);
    let same = array_of(&context, "id_i64", prepared(&context, &queue, &xs));
    // The library overwrites the copy rather than the source; the result takes over its memory.
    let copy = context.prepare_buffer(&queue, &xs, true).unwrap();
    block_on(queue.finish()).unwrap();
    let bumped = array_of(&context, "bump", context.array_from_buffer(Primitive::I64, &[3], copy).unwrap());
    drop(context);
    let bumped = block_on(bumped.into_buffer(&queue)).unwrap();
    assert_eq!(numbers(&queue, &bumped), [6, 7, 8]);
    assert_eq!(numbers(&queue, &xs), [5, 6, 7]);
    drop(xs);
    assert_eq!(same.to_vec::<i64>().unwrap(), [5, 6, 7]);
    let same = block_on(same.into_buffer(&queue)).unwrap();
    assert_eq!(numbers(&queue, &same), [5, 6, 7]);
    drop((same, bumped, queue, device));
    fixture.assert_clean();
}

#[test]
fn failures_are_reported_and_leak_nothing() {
    let Some(turn) = Turn::take() else { return };
    let fixture = Fixture::cuda();
    let (device, queue, context) = beside(&turn, &fixture);
    let xs = buffer(&queue, &[1, -2]);
    let late = context.call("late", vec![prepared(&context, &queue, &xs).into()]).unwrap_err();
    assert!(matches!(&late, Error::Program { message, .. } if message == "Error: the kernel failed"), "{late}");
    // The library's kernels do not see another context's memory.
    let error = context.array_from_buffer(Primitive::I64, &[2], xs.clone()).unwrap_err();
    assert!(error.to_string().contains("memory that the context does not share"), "{error}");
    turn.fail("cuMemcpyPeerAsync", 1);
    let error = context.prepare_buffer(&queue, &xs, false).unwrap_err();
    assert!(error.to_string().contains("cuMemcpyPeerAsync"), "{error}");
    // The second try follows once the pool has freed its cache.
    turn.fail("cuMemAlloc_v2", 2);
    let total = context.call("sum", vec![prepared(&context, &queue, &xs).into()]).unwrap();
    assert!(matches!(total.as_slice(), [Value::Scalar(Scalar::I64(-1))]));
    drop((context, xs, queue, device));
    fixture.assert_clean();
}

#[test]
fn libraries_without_raw_arrays_share_nothing() {
    let Some(turn) = Turn::take() else { return };
    let fixture = Fixture::cuda();
    let mut manifest = fixture::cuda_manifest();
    for of in ["[]i64", "[]f64"] {
        manifest["types"][of]["ops"].as_object_mut().unwrap().remove("new_raw");
    }
    fixture.write_manifest(&manifest);
    let device = device(&turn);
    let error = Context::on_device(&library(&fixture), ContextConfig::default(), &device).unwrap_err();
    assert_eq!(error.to_string(), "the manifest names no new_raw of any array");
    // Values pass through the host, in whatever memory the library uses.
    let context = Context::new(&library(&fixture), ContextConfig::default()).unwrap();
    let total = context.call("sum", vec![context.array(&[2], &[3i64, 4]).unwrap().into()]).unwrap();
    assert!(matches!(total.as_slice(), [Value::Scalar(Scalar::I64(7))]));
    assert_eq!(fixture.counter("fixture_unified"), 2);
    drop((context, device));
    fixture.assert_clean();
}
