// SPDX-License-Identifier: Apache-2.0
//! Contexts, queues, buffers and programs over the CUDA driver.
//!
//! The emulator runs work only on a wait for it, and counts objects that are freed too early or not
//! at all.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use device::testing::{Fault, FaultPlan};
use device::{ApplicationQueue, Buffer, Context, DeviceConfig, DriverKind, Grid, Meter, ProgramSource, Queue, Result, Selector};
use futures::executor::block_on;

use crate::emulator::Turn;

const TEXT: &str = "extern \"C\" __global__ void scale(double* values, double by, int plus) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    values[i] = values[i] * by + plus;
}
extern \"C\" __global__ void fault(double* values) { *(volatile double*)8 = *values; }";

/// More than one chunk of an upload, and no multiple of a chunk.
const LONG: usize = 1_500_032;

fn config(nvrtc: &Path) -> DeviceConfig {
    DeviceConfig::default().with_selector(Selector::Driver(DriverKind::Cuda)).with_nvrtc_path(nvrtc)
}

fn source() -> ProgramSource {
    ProgramSource::new(TEXT, "tests")
}

fn doubles(values: impl IntoIterator<Item = f64>) -> Bytes {
    values.into_iter().flat_map(f64::to_ne_bytes).collect::<Vec<u8>>().into()
}

fn read(queue: &Queue, x: &Buffer) -> Result<Vec<f64>> {
    let bytes = block_on(queue.read(x, 0..x.len()))?;
    Ok(bytes.chunks_exact(8).map(|chunk| f64::from_ne_bytes(chunk.try_into().unwrap())).collect())
}

/// Multiplies and adds; the length is a multiple of 64 numbers.
fn scale(queue: &Queue, x: &Buffer, by: f64, plus: i32) -> Result<()> {
    let program = block_on(queue.compile(source()))?;
    let grid = Grid { work_groups: u32::try_from(x.len() / 8 / 64).unwrap(), work_group_size: 64 };
    queue.launch(&program.kernel("scale")?, grid, &[x.into(), by.into(), plus.into()])
}

#[test]
fn auto_takes_the_gpu_whose_compiler_only_the_setting_names() -> Result<()> {
    let Some(turn) = Turn::take() else { return Ok(()) };
    let config = DeviceConfig::default().with_nvrtc_path(&turn.nvrtc);
    assert_eq!(Context::new(config)?.info().driver, DriverKind::Cuda);
    let entries = device::devices_for(Some(&turn.nvrtc));
    assert_eq!((entries[0].info.as_ref().unwrap().name.as_str(), &entries[0].problem), ("Emulated GPU", &None));
    let context = Context::new(DeviceConfig::default().with_nvrtc_path(&turn.nvrtc).with_selector("#0".parse()?))?;
    assert_eq!(context.info().name, "Emulated GPU");
    let error = Context::new(self::config(Path::new("/nowhere"))).unwrap_err().to_string();
    assert!(error.starts_with("device Emulated GPU cannot be used: device.nvrtc_path = /nowhere: "), "{error}");
    Ok(())
}

#[test]
fn query_goes_up_through_kernels_and_down() -> Result<()> {
    let Some(turn) = Turn::take() else { return Ok(()) };
    let context = Context::new(config(&turn.nvrtc))?;
    let meter = Arc::new(Meter::default());
    let queue = context.queue()?.metered(&meter);
    let host = doubles((0..LONG).map(|i| i as f64));
    let x = queue.upload(host.clone())?;
    let y = queue.zeroed(x.len())?;
    queue.copy(&x, 8, &y, 0, x.len() - 8)?;
    scale(&queue, &x, 2.0, 1)?;
    scale(&queue, &y, -1.0, 0)?;
    queue.write(&y, 16, &7f64.to_ne_bytes())?;
    // The upload was copied to pinned chunks; the host may reuse its bytes.
    assert!(host.try_into_mut().is_ok());
    let (first, second) = (read(&queue, &x)?, read(&queue, &y)?);
    assert!(first.into_iter().eq((0..LONG).map(|i| 2.0 * i as f64 + 1.0)));
    assert_eq!(second[..4], [-1.0, -2.0, 7.0, -4.0]);
    assert_eq!((second[LONG - 2], second[LONG - 1]), (1.0 - LONG as f64, 0.0));
    assert_eq!((meter.launches(), meter.kernel_time()), (2, Duration::from_millis(3)));
    assert_eq!((meter.bytes_up(), meter.bytes_down()), (8 * LONG as u64 + 8, 16 * LONG as u64));
    assert_eq!(context.report()["kernels"][0]["nanos"], 3_000_000);
    assert!(context.pool().limit() < 1 << 30 && context.pool().in_use() > 16 * LONG);
    Ok(())
}

#[test]
fn timeline_has_the_launches_of_all_queues() -> Result<()> {
    let Some(turn) = Turn::take() else { return Ok(()) };
    let context = Context::new(config(&turn.nvrtc).with_profiling(false).with_timeline(100))?;
    let (first, second) = (context.queue()?, context.queue()?);
    let x = first.upload(doubles([1.0; 64]))?;
    scale(&first, &x, 2.0, 1)?;
    scale(&first, &x, 2.0, 1)?;
    scale(&second, &x, 2.0, 1)?;
    context.synchronize()?;
    let timeline = context.timeline();
    assert!(timeline.iter().all(|record| &*record.kernel == "scale"));
    let times = |queue: &Queue| {
        let own = timeline.iter().filter(|record| record.queue == queue.number());
        own.map(|record| (record.start_nanos, record.end_nanos)).collect::<Vec<_>>()
    };
    assert_eq!(times(&first), [(0, 1_500_000), (1_500_000, 3_000_000)]);
    assert_eq!(times(&second), [(3_000_000, 4_500_000)]);
    Ok(())
}

#[test]
fn work_dropped_midway_gives_everything_back() -> Result<()> {
    let Some(turn) = Turn::take() else { return Ok(()) };
    let context = Context::new(config(&turn.nvrtc))?;
    let queue = context.queue()?;
    let x = queue.upload(doubles((0..LONG).map(|i| i as f64)))?;
    scale(&queue, &x, 2.0, 1)?;
    let futures = (queue.read(&x, 0..x.len()), queue.finish());
    drop((x, queue, futures, context));
    Ok(())
}

#[test]
fn memory_in_use_moves_to_another_queue() -> Result<()> {
    let Some(turn) = Turn::take() else { return Ok(()) };
    let context = Context::new(config(&turn.nvrtc).with_memory_bytes(1 << 20))?;
    let first = context.queue()?;
    let whole = |value: f64| doubles(std::iter::repeat_n(value, 1 << 17));
    let x = first.upload(whole(1.0))?;
    block_on(first.finish())?;
    turn.hold(true);
    scale(&first, &x, 2.0, 1)?;
    let before = first.read(&x, 0..8);
    drop(x);
    let second = context.queue()?;
    let y = second.upload(whole(5.0))?;
    scale(&second, &y, 1.0, 1)?;
    assert_eq!(read(&second, &y)?[..2], [6.0, 6.0]);
    turn.hold(false);
    assert_eq!(block_on(before)?[..], 3f64.to_ne_bytes());
    assert_eq!((context.pool().in_use(), context.pool().cached()), (1 << 20, 0));
    Ok(())
}

#[test]
fn buffer_of_another_queue_is_waited_for_on_the_device() -> Result<()> {
    let Some(turn) = Turn::take() else { return Ok(()) };
    let context = Context::new(config(&turn.nvrtc))?;
    let first = context.queue()?;
    let x = first.upload(doubles([1.0; 64]))?;
    block_on(first.finish())?;
    turn.hold(true);
    scale(&first, &x, 3.0, 0)?;
    let second = context.queue()?;
    // Waits, since the first queue allocated the buffer.
    scale(&second, &x, 1.0, 1)?;
    assert_eq!(read(&second, &x)?, [4.0; 64]);
    turn.hold(false);
    block_on(first.finish())?;
    // Waits for an event.
    turn.hold(true);
    scale(&second, &x, 1.0, 1)?;
    first.wait_for(&second.record()?)?;
    scale(&first, &x, 2.0, 0)?;
    assert_eq!(read(&first, &x)?, [10.0; 64]);
    turn.hold(false);
    Ok(())
}

#[test]
fn driver_without_memory_gets_the_free_lists_back() -> Result<()> {
    let Some(turn) = Turn::take() else { return Ok(()) };
    // Another process has a quarter of the device's memory.
    turn.occupy(1 << 28);
    let context = Context::new(config(&turn.nvrtc).with_memory_bytes(1 << 30))?;
    let (first, second) = (context.queue()?, context.queue()?);
    let x = first.zeroed(1 << 29)?;
    drop(x);
    let y = second.filled(3 << 27, 5)?;
    assert_eq!(block_on(second.read(&y, (3 << 27) - 8..3 << 27))?[..], [5; 8]);
    let error = second.alloc(1 << 29).unwrap_err();
    assert!(error.is_out_of_memory(), "{error}");
    assert_eq!(context.pool().in_use(), 3 << 27);
    turn.occupy(0);
    Ok(())
}

#[test]
fn fault_loses_the_context_and_a_new_one_works() -> Result<()> {
    let Some(turn) = Turn::take() else { return Ok(()) };
    let context = Context::new(config(&turn.nvrtc))?;
    let queue = context.queue()?;
    let x = queue.upload(doubles([1.0; 64]))?;
    scale(&queue, &x, 1.0, 1)?;
    assert!(!context.is_lost());
    let program = block_on(queue.compile(source()))?;
    queue.launch(&program.kernel("fault")?, Grid { work_groups: 1, work_group_size: 1 }, &[(&x).into()])?;
    let (read, finish) = (queue.read(&x, 0..8), queue.finish());
    for error in [block_on(read).unwrap_err(), block_on(finish).unwrap_err(), queue.alloc(1 << 20).unwrap_err()] {
        assert!(error.is_device_lost() && error.to_string().contains("the context is lost"), "{error}");
    }
    assert!(context.is_lost());
    assert!(block_on(queue.compile(ProgramSource::new("extern \"C\" __global__ void f() {}", "tests"))).is_err());
    drop((queue, x, program, context));
    // The thread of the queue may keep the old context alive for a moment.
    let healthy = || {
        std::thread::sleep(Duration::from_millis(10));
        Context::new(config(&turn.nvrtc)).ok().filter(|context| !context.is_lost())
    };
    let context = (0..1000).find_map(|_| healthy()).expect("the old context is gone");
    let queue = context.queue()?;
    let x = queue.upload(doubles([1.0; 64]))?;
    scale(&queue, &x, 1.0, 1)?;
    assert_eq!(self::read(&queue, &x)?, [2.0; 64]);
    Ok(())
}

#[test]
fn threads_at_once_give_right_answers() -> Result<()> {
    let Some(turn) = Turn::take() else { return Ok(()) };
    let context = Context::new(config(&turn.nvrtc))?;
    std::thread::scope(|scope| {
        let work = |thread: usize| {
            let context = context.clone();
            move || -> Result<()> {
                for round in 0..50 {
                    let queue = context.queue()?;
                    let n = 64 * (1 + (thread * 7 + round) % 40);
                    let x = queue.upload(doubles((0..n).map(|i| i as f64)))?;
                    scale(&queue, &x, 2.0, thread as i32)?;
                    let y = queue.alloc(x.len())?;
                    queue.copy(&x, 0, &y, 0, x.len())?;
                    drop(x);
                    scale(&queue, &y, 1.0, 1)?;
                    assert!(read(&queue, &y)?.into_iter().eq((0..n).map(|i| (2 * i + thread + 1) as f64)));
                }
                Ok(())
            }
        };
        let threads: Vec<_> = (0..4).map(|thread| scope.spawn(work(thread))).collect();
        threads.into_iter().try_for_each(|thread| thread.join().unwrap())
    })?;
    assert_eq!((context.counters().programs_compiled, context.counters().launches), (1, 400));
    Ok(())
}

#[test]
fn failure_of_every_single_call_leaves_nothing_behind() -> Result<()> {
    let Some(turn) = Turn::take() else { return Ok(()) };
    for fault in [Fault::Alloc, Fault::Launch, Fault::Compile, Fault::Copy, Fault::Wait] {
        let plan = FaultPlan::new();
        let query = || -> Result<Vec<f64>> {
            let context = Context::new(config(&turn.nvrtc).with_wrap(plan.wrap()))?;
            let queue = context.queue()?;
            let x = queue.upload(doubles([1.0; 64]))?;
            let y = queue.zeroed(x.len())?;
            queue.copy(&x, 0, &y, 0, x.len())?;
            scale(&queue, &y, 2.0, 1)?;
            read(&queue, &y)
        };
        assert_eq!(query()?, [3.0; 64]);
        for n in 1..=plan.calls(fault) {
            let before = plan.calls(fault);
            plan.fail(fault, n, u64::MAX);
            // The pace of the threads decides whether the read takes the upload's pinned block.
            // Else it allocates a fourth one, or reads into the heap. Waits after the last read
            // have no future.
            let optional = matches!((fault, n), (Fault::Alloc, 4..) | (Fault::Wait, 2..));
            let answer = query();
            let reached = plan.calls(fault) - before >= n;
            plan.heal();
            match answer {
                Ok(answer) => {
                    assert!(!reached || optional, "{fault:?} {n}");
                    assert_eq!(answer, [3.0; 64]);
                }
                Err(_) => assert!(reached, "{fault:?} {n}"),
            }
        }
        plan.wait_until_nothing_is_alive(Duration::from_secs(20)).unwrap();
    }
    Ok(())
}

#[test]
fn folder_keeps_programs_for_this_compiler() -> Result<()> {
    let Some(turn) = Turn::take() else { return Ok(()) };
    let folder = tempfile::tempdir().unwrap();
    let compile = || -> Result<_> {
        let context = Context::new(config(&turn.nvrtc).with_cache_dir(folder.path()))?;
        let queue = context.queue()?;
        let x = queue.upload(doubles([1.0; 64]))?;
        scale(&queue, &x, 1.0, 1)?;
        assert_eq!(read(&queue, &x)?, [2.0; 64]);
        Ok((context.counters().programs_compiled, context.counters().cache_hits_disk))
    };
    assert_eq!((compile()?, compile()?), ((1, 0), (0, 1)));
    let [file] = &std::fs::read_dir(&folder).unwrap().map(|file| file.unwrap().path()).collect::<Vec<_>>()[..] else { panic!() };
    let stored = std::fs::read(file).unwrap();
    let stored = String::from_utf8_lossy(&stored);
    assert!(stored.contains("NVRTC 1") && stored.contains("--fmad=false"));
    Ok(())
}

/// Beyond the limit of pinned reads: a read would use the heap.
#[test]
fn downloads_are_pinned_until_dropped() -> Result<()> {
    let Some(turn) = Turn::take() else { return Ok(()) };
    let context = Context::new(config(&turn.nvrtc))?;
    let queue = context.queue()?;
    let x = queue.upload(doubles((0..64).map(f64::from)))?;
    scale(&queue, &x, 2.0, 1)?;
    let large = queue.filled(300 << 20, 9)?;
    let copies = [queue.download(&x)?, queue.download(&large)?, queue.download(&large)?, queue.download(&large)?];
    let nothing = queue.download(&queue.alloc(0)?)?;
    block_on(queue.finish())?;
    drop((x, large, queue));
    assert!(turn.is_pinned(copies[0].as_ptr(), 512) && turn.is_pinned(nothing.as_ptr(), 16));
    assert!(copies[1..].iter().all(|copy| turn.is_pinned(copy.as_ptr(), 300 << 20)));
    // SAFETY: the queue has finished, and the ranges lie in the buffers; an empty one has 16 zeros.
    unsafe {
        assert_eq!(copies[0].as_ptr().cast::<f64>().add(63).read(), 127.0);
        assert_eq!(copies[3].as_ptr().add((300 << 20) - 1).read(), 9);
        assert_eq!(nothing.as_ptr().cast::<u128>().read(), 0);
    }
    let kept = [copies[0].as_ptr(), copies[3].as_ptr()];
    drop((copies, nothing));
    assert!(turn.is_pinned(kept[0], 512) && !turn.is_pinned(kept[1], 300 << 20), "what is small is kept for the next one");
    context.trim();
    assert!(!turn.is_pinned(kept[0], 512));
    turn.fail("cuMemHostAlloc", 2);
    assert!(context.queue()?.download(&context.queue()?.zeroed(8)?).unwrap_err().is_out_of_memory());
    Ok(())
}

#[test]
fn a_stream_of_the_primary_context_is_adopted() -> Result<()> {
    let Some(turn) = Turn::take() else { return Ok(()) };
    // An application with work of its own.
    let program = Context::new(config(&turn.nvrtc))?;
    let stream = program.shared_queue()?;
    // SAFETY: the stream lives as long as `program`.
    let adopted = unsafe { ApplicationQueue::new(DriverKind::Cuda, stream.0) }?;
    let context = Context::new(DeviceConfig::default().with_nvrtc_path(&turn.nvrtc).with_application_queue(adopted.clone()))?;
    assert_eq!((context.shared_queue()?, context.native()), (stream, program.native()));
    let queue = context.queue()?;
    let x = queue.upload(doubles((0..64).map(f64::from)))?;
    scale(&queue, &x, 2.0, 1)?;
    assert_eq!(read(&queue, &x)?[3], 7.0);

    turn.streams_of_others(true);
    let error = Context::new(config(&turn.nvrtc).with_application_queue(adopted)).unwrap_err().to_string();
    turn.streams_of_others(false);
    assert!(error.contains("the program's stream is not one of the device's primary context"), "{error}");
    let other = config(&turn.nvrtc).with_selector("#7".parse()?);
    // SAFETY: as above.
    let error = Context::new(other.with_application_queue(unsafe { ApplicationQueue::new(DriverKind::Cuda, stream.0) }?))
        .unwrap_err()
        .to_string();
    assert!(error.starts_with("device.selector = #7: the program's queue is one of #0 \"Emulated GPU\""), "{error}");
    turn.fail("cuStreamGetCtx", 400);
    // SAFETY: as above.
    let error = unsafe { ApplicationQueue::new(DriverKind::Cuda, stream.0) }.unwrap_err().to_string();
    assert!(error.contains("cuStreamGetCtx"), "{error}");
    Ok(())
}
