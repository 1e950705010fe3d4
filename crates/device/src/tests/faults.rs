// SPDX-License-Identifier: Apache-2.0
//! Failures of the driver, a lost device and dropped work.

use std::time::Duration;

use super::*;
use crate::testing::{Fault, Live};
use crate::{Error, Program};

const PATIENCE: Duration = Duration::from_secs(20);

/// A small query: an upload, a fill, a copy, two launches and a read.
fn query(context: &Context) -> Result<Vec<u64>> {
    let queue = context.queue()?;
    let x = queue.upload(numbers(0..100))?;
    let y = queue.filled(800, 0)?;
    queue.copy(&x, 0, &y, 0, 800)?;
    add(&queue, &y, 1)?;
    add(&queue, &y, 2)?;
    Ok(to_numbers(&block_on(queue.read(&y, 0..800))?))
}

/// A queue whose work fails once a long launch has completed.
fn failing(plan: &FaultPlan, context: &Context) -> Result<(Queue, Buffer)> {
    let queue = context.queue()?;
    let x = queue.zeroed(1 << 19)?;
    let program = block_on(queue.compile(source()))?;
    plan.fail(Fault::Wait, 1, 1);
    let grid = Grid { work_groups: 1, work_group_size: 1 };
    queue.launch(&program.kernel("spin")?, grid, &[(&x).into(), 100_000_000u64.into()])?;
    Ok((queue, x))
}

#[test]
fn failure_of_every_single_call_is_an_error_and_heals() -> Result<()> {
    for unified in [true, false] {
        for fault in [Fault::Alloc, Fault::Launch, Fault::Compile, Fault::Copy, Fault::Queue] {
            let plan = FaultPlan::masking(move |info| info.unified_memory &= unified);
            query(&under(&plan))?;
            let calls = plan.calls(fault);
            assert!(calls > 0);
            for n in 1..=calls {
                let context = under(&plan);
                plan.fail(fault, n, u64::MAX);
                let error = query(&context).unwrap_err();
                assert_eq!(fault == Fault::Alloc, error.is_out_of_memory(), "{error}");
                if fault == Fault::Alloc {
                    assert!(error.to_string().contains("device.memory_bytes"), "{error}");
                }
                plan.heal();
                assert!(query(&context)?.into_iter().eq(3..103));
                drop(context);
                plan.wait_until_nothing_is_alive(PATIENCE).unwrap();
            }
        }
    }
    Ok(())
}

#[test]
fn any_failing_call_notes_the_lost_device() -> Result<()> {
    type Call = fn(&Queue, &Program) -> Option<Error>;
    let calls: [(&str, Call); 6] = [
        ("compile", |queue, _| block_on(queue.compile(ProgramSource::new(in_dialect("KERNEL void other() {}"), "tests"))).err()),
        ("kernel", |_, program| program.kernel("spin").err()),
        ("upload", |queue, _| queue.upload(numbers(0..100)).err()),
        ("alloc", |queue, _| queue.alloc(1 << 16).err()),
        ("create_queue", |queue, _| queue.context().queue().err()),
        ("launch", |queue, program| {
            let args = [0u64.into()];
            queue.launch(&program.kernel("add").ok()?, Grid { work_groups: 1, work_group_size: 1 }, &args).err()
        }),
    ];
    for unified in [true, false] {
        for (name, call) in &calls {
            let plan = FaultPlan::masking(move |info| info.unified_memory &= unified);
            let context = under(&plan);
            let queue = context.queue()?;
            let program = block_on(queue.compile(source()))?;
            program.kernel("add")?;
            plan.lose_device();
            assert!(!context.has_met_fatal_fault());
            let error = call(&queue, &program);
            assert!(error.as_ref().is_some_and(Error::is_device_lost), "{name}: {error:?}");
            assert!(context.has_met_fatal_fault(), "{name}");
        }
    }
    Ok(())
}

#[test]
fn one_refused_allocation_is_asked_for_again() -> Result<()> {
    let plan = FaultPlan::new();
    let context = under(&plan);
    let queue = context.queue()?;
    drop(queue.alloc(1 << 20)?);
    assert_eq!(context.pool().cached(), 1 << 20);
    plan.fail(Fault::Alloc, 1, 1);
    let buffer = queue.alloc(4096)?;
    assert_eq!((context.pool().cached(), context.pool().in_use(), buffer.len()), (0, 4096, 4096));
    Ok(())
}

#[test]
fn work_dropped_midway_gives_everything_back() -> Result<()> {
    for unified in [true, false] {
        let plan = FaultPlan::masking(move |info| info.unified_memory &= unified);
        let context = under(&plan);
        let queue = context.queue()?;
        let program = block_on(queue.compile(source()))?;
        let host = numbers(0..10_000);
        let x = queue.upload(host.clone())?;
        let y = queue.alloc(80_000)?;
        let grid = Grid { work_groups: 1, work_group_size: 1 };
        queue.copy(&x, 0, &y, 0, 80_000)?;
        queue.launch(&program.kernel("spin")?, grid, &[(&y).into(), 300_000_000u64.into()])?;
        add(&queue, &y, 1)?;
        let read = queue.read(&y, 0..80_000);
        let finish = queue.finish();
        drop((read, finish, x, y, queue, program));
        assert_eq!(context.pool().in_use(), 0);
        drop(context);
        assert_ne!(plan.live(), Live::default(), "the kernel is still running");
        plan.wait_until_nothing_is_alive(PATIENCE).unwrap();
        // The upload's bytes are freed as well.
        assert!(host.try_into_mut().is_ok());
    }
    Ok(())
}

#[test]
fn every_future_reports_the_failure_of_work() -> Result<()> {
    let plan = FaultPlan::new();
    let context = under(&plan);
    let (queue, x) = failing(&plan, &context)?;
    let event = queue.record()?;
    // Dropped futures report nothing.
    drop((queue.read(&x, 0..8), queue.finish()));
    let told = |error: Error| assert!(error.to_string().contains("a fault that a test injected"), "{error}");
    told(block_on(queue.finish()).unwrap_err());
    told(block_on(queue.finish()).unwrap_err());
    told(block_on(queue.read(&x, 0..8)).unwrap_err());
    told(block_on(event.wait()).unwrap_err());
    told(event.is_done().unwrap_err());
    told(context.synchronize().unwrap_err());
    drop((queue, x, event));
    query(&context).map(|_| ())
}

#[test]
fn queue_that_failed_after_its_return_is_not_reused() -> Result<()> {
    let plan = FaultPlan::new();
    let context = under(&plan);
    let (queue, x) = failing(&plan, &context)?;
    let event = queue.record()?;
    drop((queue, x));
    assert!(block_on(event.wait()).is_err());
    drop(event);
    let queues = (0..3).map(|_| context.queue()).collect::<Result<Vec<_>>>()?;
    queues.iter().try_for_each(|queue| block_on(queue.finish()))
}

#[test]
fn failure_of_work_does_not_reach_a_queue_that_waits_for_its_memory() -> Result<()> {
    let plan = FaultPlan::new();
    let context = Context::new(config().with_wrap(plan.wrap()).with_memory_bytes(1 << 20))?;
    let (queue, x) = failing(&plan, &context)?;
    drop(x);
    let other = context.queue()?;
    assert_eq!(other.alloc(1 << 20)?.len(), 1 << 20);
    block_on(other.finish())?;
    assert!(block_on(queue.finish()).is_err());
    Ok(())
}

#[test]
fn memory_still_in_use_goes_back_before_the_device_is_out_of_memory() -> Result<()> {
    let plan = FaultPlan::new();
    let context = under(&plan);
    let (queue, x) = failing(&plan, &context)?;
    plan.heal();
    drop(x);
    plan.fail(Fault::Alloc, 1, 1);
    let other = context.queue()?.alloc(1 << 20)?;
    assert_eq!((context.pool().cached(), context.pool().in_use(), plan.live().allocations), (0, 1 << 20, 1));
    drop(other);
    block_on(queue.finish())
}

#[test]
fn trim_ends_idle_queues() -> Result<()> {
    let plan = FaultPlan::new();
    let context = under(&plan);
    let queues = (0..4).map(|_| context.queue()).collect::<Result<Vec<_>>>()?;
    drop(queues);
    assert_eq!(plan.live().queues, 4);
    context.trim();
    assert_eq!(plan.live().queues, 0);
    query(&context).map(|_| ())
}
