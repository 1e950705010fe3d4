// SPDX-License-Identifier: Apache-2.0
//! Queues that an application shares with a context.

use std::sync::Arc;

use super::*;
use crate::driver::{RawArg, RawQueue};
use crate::{ApplicationQueue, DriverKind, Error, Selector, UnifiedMemory};

/// The shared queue of `program`, for another context to adopt.
fn queue_of(program: &Context) -> Result<ApplicationQueue> {
    let RawQueue(queue) = program.shared_queue()?;
    // SAFETY: the queue lives as long as `program`, which callers keep.
    unsafe { ApplicationQueue::new(program.info().driver, queue) }
}

/// Enqueues a slow launch, then an addition to `x`.
fn enqueue(context: &Context, queue: RawQueue, x: &Buffer) -> Result<()> {
    let driver = context.driver();
    let spun = context.queue()?.zeroed(8)?;
    let program = block_on(context.queue()?.compile(source()))?;
    let grid = Grid { work_groups: 1, work_group_size: 1 };
    let (turns, by, n) = (20_000_000u64.to_ne_bytes(), 7u64.to_ne_bytes(), (x.len() as u64 / 8).to_ne_bytes());
    context.synchronize()?;
    // SAFETY: a thread keeps program and buffers until the work has completed.
    unsafe {
        let spin = [RawArg::Memory(spun.raw()), RawArg::Value(&turns)];
        driver.launch(queue, program.kernel("spin")?.raw(), grid, &spin, false)?;
        let add = [RawArg::Memory(x.raw()), RawArg::Value(&by), RawArg::Value(&n)];
        driver.launch(queue, program.kernel("add")?.raw(), grid, &add, false)?;
        let done = driver.record(queue)?;
        driver.flush(queue)?;
        std::thread::spawn({
            let driver = Arc::clone(driver);
            move || {
                // A failure shows in the read of `x`.
                _ = driver.wait(done);
                driver.destroy_event(done);
                drop((spun, program));
            }
        });
    }
    Ok(())
}

fn read(queue: &Queue, x: &Buffer) -> Result<Vec<u64>> {
    Ok(to_numbers(&block_on(queue.read(x, 0..x.len()))?))
}

#[test]
fn work_of_the_shared_queue_comes_before_later_queues() -> Result<()> {
    let program = context();
    let adopting = Context::new(config().with_application_queue(queue_of(&program)?))?;
    let shared = adopting.shared_queue()?;
    assert_eq!(shared, program.shared_queue()?);
    for context in [&program, &adopting] {
        let x = context.queue()?.upload(numbers(0..100))?;
        context.synchronize()?;
        enqueue(context, shared, &x)?;
        assert_eq!(read(&context.queue()?, &x)?, (7..107).collect::<Vec<u64>>());
        enqueue(context, shared, &x)?;
        let copy = context.queue()?;
        let y = copy.alloc(x.len())?;
        copy.copy(&x, 0, &y, 0, x.len())?;
        assert_eq!(read(&copy, &y)?, (14..114).collect::<Vec<u64>>());
    }
    Ok(())
}

#[test]
fn context_of_an_application_queue_uses_its_memory_in_place() -> Result<()> {
    let program = context();
    let adopting = Context::new(config().with_application_queue(queue_of(&program)?))?;
    assert_eq!(adopting.native(), program.native());
    if program.info().driver == DriverKind::OpenCl {
        assert_ne!(self::context().native(), program.native());
        assert_ne!(program.native().context, 0);
    }
    let lent = program.queue()?.upload(numbers(0..10))?;
    program.synchronize()?;
    let queue = adopting.queue()?;
    // SAFETY: the owner is the buffer.
    let adopted = block_on(unsafe { queue.adopt(lent.raw().handle, None, Arc::new(lent.clone())) })?;
    assert_eq!(adopted.raw().handle, lent.raw().handle);
    assert_eq!(read(&queue, &adopted)?[..10], (0..10).collect::<Vec<u64>>());
    Ok(())
}

#[test]
fn the_shared_queue_waits_for_events() -> Result<()> {
    let context = context();
    let shared = context.shared_queue()?;
    let queue = context.queue()?;
    let x = queue.upload(numbers(0..10))?;
    let slow = queue.zeroed(8)?;
    let program = block_on(queue.compile(source()))?;
    queue.launch(
        &program.kernel("spin")?,
        Grid { work_groups: 1, work_group_size: 1 },
        &[(&slow).into(), 20_000_000u64.into()],
    )?;
    let written = queue.record()?;
    if let Some(event) = written.raw() {
        // SAFETY: `written` keeps the event alive.
        unsafe { context.shared_queue_waits_for(event) }?;
    }
    let driver = context.driver();
    // SAFETY: the queue lives as long as the context.
    let (behind, flushed) = unsafe { (driver.record(shared)?, driver.flush(shared)) };
    flushed?;
    // SAFETY: recorded above, and destroyed last.
    unsafe {
        driver.wait(behind)?;
        assert!(written.raw().is_none_or(|event| driver.is_done(event).is_ok_and(|done| done)));
        driver.destroy_event(behind);
    }
    assert_eq!(read(&queue, &x)?, (0..10).collect::<Vec<u64>>());
    Ok(())
}

#[test]
fn the_shared_queue_follows_other_queues() -> Result<()> {
    let context = context();
    let other = context.driver().create_queue()?;
    let x = context.queue()?.upload(numbers(0..100))?;
    context.synchronize()?;
    enqueue(&context, other, &x)?;
    // SAFETY: the queue was created above, and is destroyed last.
    unsafe { context.shared_queue_follows(other) }?;
    assert_eq!(read(&context.queue()?, &x)?, (7..107).collect::<Vec<u64>>());
    // SAFETY: its work has completed, since the read followed it.
    unsafe { context.driver().destroy_queue(other) };
    Ok(())
}

#[test]
fn idle_queues_are_reused_after_waits() -> Result<()> {
    let context = context();
    context.shared_queue()?;
    let mut most = 0;
    for _ in 0..200 {
        most = most.max(context.queue()?.number());
        context.synchronize()?;
    }
    assert!(most < 10, "{most} queues were made");
    Ok(())
}

#[test]
fn unusable_queues_are_refused() -> Result<()> {
    // SAFETY: NULL is allowed.
    let (opencl, cuda) = unsafe { (ApplicationQueue::new(DriverKind::OpenCl, 0), ApplicationQueue::new(DriverKind::Cuda, 0)) };
    assert!(opencl.unwrap_err().to_string().contains("the cl_command_queue is NULL"));
    assert!(cuda.unwrap_err().to_string().contains("the CUstream is NULL; CUDA's default stream is CU_STREAM_LEGACY"));

    let program = context();
    for selector in [Selector::Index(1000), Selector::Name("some other device".to_owned())] {
        let other = config().with_selector(selector.clone()).with_application_queue(queue_of(&program)?);
        let error = Context::new(other).unwrap_err();
        assert!(matches!(error, Error::Config { setting: "device.selector", .. }), "{error}");
        let expected = format!("device.selector = {selector}: the program's queue is one of #{}", program.info().index);
        assert!(error.to_string().starts_with(&expected), "{error}");
    }
    Ok(())
}

#[test]
fn host_memory_is_copied_with_unified_memory_never() -> Result<()> {
    let context = Context::new(config().with_unified_memory(UnifiedMemory::Never))?;
    assert!(!context.info().unified_memory);
    let queue = context.queue()?;
    let x = queue.upload(numbers(0..1000))?;
    assert_eq!(x.raw().host, 0);
    add(&queue, &x, 1)?;
    assert_eq!(read(&queue, &x)?, (1..1001).collect::<Vec<u64>>());

    let always = Context::new(config().with_unified_memory(UnifiedMemory::Always));
    match self::context().info().unified_memory {
        true => assert!(always?.info().unified_memory),
        false => assert!(always.unwrap_err().to_string().contains("device.unified_memory = always")),
    }
    Ok(())
}
