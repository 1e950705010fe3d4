// SPDX-License-Identifier: Apache-2.0
//! Contexts that share a device: arrays and buffers are the same memory.

use device::{Buffer, Context as Device, Queue, testing};
use futhark::{Argument, Array, Context, ContextConfig, Error, Library, Primitive, Scalar, Value};
use futures::executor::block_on;

use crate::fixture::{Fixture, OutputStyle};

fn device() -> Option<Device> {
    let device = Device::new(testing::config().unwrap()).unwrap();
    // Other drivers have no queues to lend.
    (device.info().driver == device::DriverKind::OpenCl).then_some(device)
}

fn library(fixture: &Fixture) -> Library {
    // SAFETY: the manifest is the program's.
    unsafe { Library::open(fixture.manifest()) }.unwrap()
}

fn context(fixture: &Fixture, device: &Device) -> Context {
    Context::on_device(&library(fixture), ContextConfig::default(), device).unwrap()
}

fn buffer(queue: &Queue, values: &[i64]) -> Buffer {
    let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_ne_bytes()).collect();
    let buffer = queue.alloc(bytes.len()).unwrap();
    queue.write(&buffer, 0, &bytes).unwrap();
    block_on(queue.finish()).unwrap();
    buffer
}

fn over(context: &Context, buffer: &Buffer, n: usize) -> Array {
    context.array_from_buffer(Primitive::I64, &[n], buffer.clone()).unwrap()
}

fn numbers(queue: &Queue, buffer: &Buffer) -> Vec<i64> {
    let bytes = block_on(queue.read(buffer, 0..buffer.len())).unwrap();
    bytes.chunks_exact(8).map(|bytes| i64::from_ne_bytes(bytes.try_into().unwrap())).collect()
}

fn array(values: Vec<Value>) -> Array {
    match values.into_iter().next() {
        Some(Value::Array(array)) => array,
        other => panic!("{other:?} is not an array"),
    }
}

#[test]
fn buffers_become_arrays_and_back_without_a_copy() {
    let Some(device) = device() else { return };
    let fixture = Fixture::opencl();
    let queue = device.queue().unwrap();
    let context = context(&fixture, &device);
    assert!(context.device().unwrap().same(&device));
    assert_eq!(fixture.counter("fixture_adopted"), 1);
    let xs = buffer(&queue, &[1, 2, 3, 4]);
    let ys = buffer(&queue, &[10, 20, 30, 40]);
    let added = context.call("add", vec![over(&context, &xs, 4).into(), over(&context, &ys, 4).into()]).unwrap();
    let sum = block_on(array(added).into_buffer(&queue)).unwrap();
    assert_eq!((sum.len(), numbers(&queue, &sum)), (32, vec![11, 22, 33, 44]));
    // Fewer values than the buffer has, and fewer results than arguments.
    let some = block_on(array(context.call("positives", vec![over(&context, &xs, 2).into()]).unwrap()).into_buffer(&queue));
    assert_eq!(numbers(&queue, &some.unwrap()), [1, 2]);
    let none = buffer(&queue, &[-1, 0]);
    let none = array(context.call("positives", vec![over(&context, &none, 2).into()]).unwrap());
    assert!(block_on(none.into_buffer(&queue)).unwrap().is_empty());
    let total = context.call("sum", vec![over(&context, &sum, 4).into()]).unwrap();
    assert!(matches!(total.as_slice(), [Value::Scalar(Scalar::I64(110))]));
    assert_eq!((fixture.counter("fixture_copied"), fixture.counter("fixture_borrowed")), (0, 5));
    drop((sum, total, context));
    block_on(queue.finish()).unwrap();
    fixture.assert_clean();
}

#[test]
fn results_keep_shared_memory_alive() {
    let Some(device) = device() else { return };
    let fixture = Fixture::opencl();
    let queue = device.queue().unwrap();
    let context = context(&fixture, &device);
    let xs = buffer(&queue, &[5, 6, 7]);
    let same = array(context.call("id_i64", vec![over(&context, &xs, 3).into()]).unwrap());
    drop(xs);
    // Freed memory would be reused for these.
    let _others: Vec<Buffer> = (0..4).map(|_| buffer(&queue, &[0, 0, 0])).collect();
    assert_eq!(same.to_vec::<i64>().unwrap(), [5, 6, 7]);
    let same = block_on(same.into_buffer(&queue)).unwrap();
    drop(context);
    assert_eq!(fixture.counter("fixture_contexts"), 1, "the buffer keeps its context alive");
    assert_eq!(numbers(&queue, &same), [5, 6, 7]);
    drop(same);
    block_on(queue.finish()).unwrap();
    fixture.assert_clean();
}

#[test]
fn only_an_unshared_buffer_is_consumed() {
    let Some(device) = device() else { return };
    let fixture = Fixture::opencl();
    let queue = device.queue().unwrap();
    let context = context(&fixture, &device);
    let xs = buffer(&queue, &[1, 2, 3]);
    let error = context.call("bump", vec![over(&context, &xs, 3).into()]).unwrap_err();
    assert!(error.to_string().contains("bump consumes argument 1, which shares its memory with another value"), "{error}");
    assert_eq!(numbers(&queue, &xs), [1, 2, 3]);
    let bumped = context.call("bump", vec![context.array_from_buffer(Primitive::I64, &[3], xs).unwrap().into()]).unwrap();
    let bumped = block_on(array(bumped).into_buffer(&queue)).unwrap();
    let _others: Vec<Buffer> = (0..4).map(|_| buffer(&queue, &[0, 0, 0])).collect();
    assert_eq!(numbers(&queue, &bumped), [2, 3, 4]);
    // The library's memory must not be overwritten.
    let again = context.call("bump", vec![context.array_from_buffer(Primitive::I64, &[3], bumped).unwrap().into()]);
    assert!(again.is_err());
    drop(context);
    block_on(queue.finish()).unwrap();
    fixture.assert_clean();
}

#[test]
fn failures_on_a_device_are_reported_at_the_call_or_at_the_wait() {
    let Some(device) = device() else { return };
    let fixture = Fixture::opencl();
    let queue = device.queue().unwrap();
    let context = context(&fixture, &device);
    let bad = buffer(&queue, &[1, -2]);
    let good = buffer(&queue, &[1, 2]);
    for _ in 0..2 {
        let late = context.call("late", vec![over(&context, &bad, 2).into()]).unwrap_err();
        assert!(matches!(&late, Error::Program { message, .. } if message == "Error: the kernel failed"), "{late}");
        assert!(context.call("late", vec![over(&context, &good, 2).into()]).is_ok());
        let hungry = context.call("hungry", vec![over(&context, &bad, 2).into()]).unwrap_err();
        assert!(matches!(hungry, Error::OutOfMemory { .. }), "{hungry}");
    }
    drop(context);
    fixture.assert_clean();
}

#[test]
fn unshareable_memory_is_refused() {
    let Some(device) = device() else { return };
    let fixture = Fixture::opencl();
    let context = context(&fixture, &device);
    let queue = device.queue().unwrap();
    let problem = |result: futhark::Result<Array>| result.unwrap_err().to_string();
    let short = context.array_from_buffer(Primitive::I64, &[3], buffer(&queue, &[1, 2]));
    assert!(problem(short).contains("16 bytes are too few for i64 with the shape [3]"));
    let other = Device::new(testing::config().unwrap()).unwrap();
    let foreign = context.array_from_buffer(Primitive::I64, &[1], buffer(&other.queue().unwrap(), &[1]));
    assert!(problem(foreign).contains("memory that the context does not share"));
    // A context without a shared device passes values through the host.
    let own = Context::new(&library(&fixture), ContextConfig::default()).unwrap();
    assert!(own.device().is_none());
    assert!(problem(own.array_from_buffer(Primitive::I64, &[1], buffer(&queue, &[1]))).contains("does not share"));
    let doubled = array(
        own.call(
            "add",
            vec![
                Argument::Owned(own.array(&[2], &[1i64, 2]).unwrap().into()),
                Argument::Owned(own.array(&[2], &[1i64, 2]).unwrap().into()),
            ],
        )
        .unwrap(),
    );
    assert_eq!(doubled.to_vec::<i64>().unwrap(), [2, 4]);
    assert!(block_on(doubled.into_buffer(&queue)).is_err());
    drop((own, context));
    fixture.assert_clean();
    let on_host = Fixture::new(OutputStyle::Outputs);
    let error = Context::on_device(&library(&on_host), ContextConfig::default(), &device).unwrap_err();
    assert_eq!(error.to_string(), "a library of the back end c cannot share a device");
    // Manifests of older compilers name neither, because those functions take more arguments.
    let mut manifest = crate::fixture::opencl_manifest();
    manifest["types"]["[]i64"]["ops"].as_object_mut().unwrap().remove("new_raw");
    fixture.write_manifest(&manifest);
    let context = self::context(&fixture, &device);
    let error = problem(context.array_from_buffer(Primitive::I64, &[1], buffer(&queue, &[1])));
    assert_eq!(error, "the manifest names no new_raw of the type []i64");
}
