// SPDX-License-Identifier: Apache-2.0
//! Foreign memory and events: those of another queue, or of another context of the process.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use super::*;
use crate::driver::RawEvent;
use crate::{DriverKind, Error, Event};

/// A keep-alive owner: holds a buffer, and sets a flag when dropped.
struct Lender(#[allow(dead_code)] Buffer, Arc<AtomicBool>);

impl Drop for Lender {
    fn drop(&mut self) {
        self.1.store(true, SeqCst);
    }
}

/// A slow launch that changes `x` as [`spun`] does.
fn spin(queue: &Queue, x: &Buffer, turns: u64) -> Result<Event> {
    let program = block_on(queue.compile(source()))?;
    queue.launch(&program.kernel("spin")?, Grid { work_groups: 1, work_group_size: 1 }, &[x.into(), turns.into()])?;
    queue.record()
}

fn spun(mut value: u64, turns: u64) -> u64 {
    for _ in 0..turns {
        value = value.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    }
    value
}

/// Lets `to` adopt a buffer of `from`; also gives the flag that tells of its return.
fn lend(from: &Queue, to: &Queue, turns: u64) -> Result<(Buffer, Arc<AtomicBool>)> {
    let lent = from.alloc(4096)?;
    from.write(&lent, 0, &numbers(0..512))?;
    let written = spin(from, &lent, turns)?;
    let returned = Arc::new(AtomicBool::new(false));
    let keep_alive: crate::KeepAlive = Arc::new(Lender(lent.clone(), Arc::clone(&returned)));
    if let Some(event) = written.raw() {
        // SAFETY: `written` lives until the end of this function, longer than the future.
        block_on(unsafe { to.wait_for_foreign(event, Arc::clone(&keep_alive)) })?;
    }
    // SAFETY: the owner holds the buffer, which is not written.
    let adopted = block_on(unsafe { to.adopt(lent.raw().handle, Some(4096), keep_alive) })?;
    Ok((adopted, returned))
}

fn check(from: &Queue, to: &Queue) -> Result<()> {
    const TURNS: u64 = 3_000_000;
    let (adopted, returned) = lend(from, to, TURNS)?;
    assert_eq!(adopted.len(), 4096);
    // A third queue waits like the adopting one.
    for queue in [&to.context().queue()?, to] {
        let copy = queue.alloc(4096)?;
        queue.copy(&adopted, 0, &copy, 0, 4096)?;
        let bytes = to_numbers(&block_on(queue.read(&copy, 0..4096))?);
        assert_eq!((bytes[0], bytes[1], bytes[511]), (spun(0, TURNS), 1, 511));
    }
    if Arc::ptr_eq(from.driver(), to.driver()) {
        assert!(matches!(to.fill(&adopted, 0, 8, 0), Err(Error::ReadOnly { .. })));
    }
    drop(adopted);
    block_on(to.finish())?;
    assert_returned(&returned);
    Ok(())
}

/// The waiting thread drops its resources shortly after it has completed the future.
#[track_caller]
fn assert_returned(returned: &AtomicBool) {
    for _ in 0..5000 {
        if returned.load(SeqCst) {
            return;
        }
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    panic!("the lender has not got its memory back");
}

#[test]
fn memory_of_this_context_is_used_in_place() -> Result<()> {
    let context = context();
    let (from, to) = (context.queue()?, context.queue()?);
    check(&from, &to)?;
    let lent = from.alloc(1000)?;
    // SAFETY: the owner is the buffer.
    let adopted = block_on(unsafe { to.adopt(lent.raw().handle, None, Arc::new(lent.clone())) })?;
    assert_eq!((adopted.raw().handle, adopted.len()), (lent.raw().handle, lent.raw().bytes));
    assert_eq!(context.pool().in_use(), lent.raw().bytes);
    // SAFETY: as above.
    let longer = block_on(unsafe { to.adopt(lent.raw().handle, Some(1 << 20), Arc::new(lent.clone())) });
    assert!(matches!(longer, Err(Error::Range { .. })));
    Ok(())
}

#[test]
fn memory_of_another_context_arrives() -> Result<()> {
    check(&context().queue()?, &context().queue()?)
}

#[test]
fn adopted_memory_is_released_after_the_last_use() -> Result<()> {
    let context = context();
    let (from, to) = (context.queue()?, context.queue()?);
    let (adopted, returned) = lend(&from, &to, 1)?;
    let slow = to.zeroed(8)?;
    spin(&to, &slow, 50_000_000)?;
    to.copy(&adopted, 0, &slow, 0, 8)?;
    drop(adopted);
    assert!(!returned.load(SeqCst), "given back while a copy from it waits");
    assert_eq!(to_numbers(&block_on(to.read(&slow, 0..8))?), [spun(0, 1)]);
    Ok(())
}

#[test]
fn raw_event_is_none_once_its_work_has_completed() -> Result<()> {
    let queue = context().queue()?;
    let x = queue.zeroed(8)?;
    let event = spin(&queue, &x, 30_000_000)?;
    assert_ne!(event.raw(), None);
    block_on(event.wait())?;
    assert_eq!(event.raw(), None::<RawEvent>);
    Ok(())
}

/// The driver refuses a number that is no CUDA address.
#[test]
fn number_that_is_no_address_is_refused() -> Result<()> {
    let context = context();
    if context.info().driver != DriverKind::Cuda {
        println!("skipped: OpenCL handles cannot be checked");
        return Ok(());
    }
    // SAFETY: CUDA checks whether a number is one of its addresses.
    let refused = block_on(unsafe { context.queue()?.adopt(8, None, Arc::new(())) });
    assert!(matches!(refused, Err(Error::Driver { .. })));
    Ok(())
}

/// A user event in the context of `buffer`.
fn user_event(buffer: &Buffer) -> opencl3::types::cl_event {
    let context = opencl3::memory::get_mem_object_data(buffer.raw().handle as *mut _, opencl3::memory::CL_MEM_CONTEXT).unwrap();
    let context = usize::from_ne_bytes(context.try_into().unwrap()) as *mut _;
    opencl3::event::create_user_event(context).unwrap()
}

/// A thread waits for an event of another context. A dropped future must not free the event.
#[test]
fn event_outlives_a_dropped_wait() -> Result<()> {
    let (context, other) = (context(), context());
    if context.info().driver == DriverKind::Cuda {
        println!("skipped: queues wait for CUDA's events of any context");
        return Ok(());
    }
    let buffer = other.queue()?.alloc(8)?;
    let event = user_event(&buffer);
    let returned = Arc::new(AtomicBool::new(false));
    let keep_alive: crate::KeepAlive = Arc::new(Lender(buffer, Arc::clone(&returned)));
    let queue = context.queue()?;
    // SAFETY: released below, after the owner was dropped.
    let mut wait = Box::pin(unsafe { queue.wait_for_foreign(RawEvent(event as u64), keep_alive) });
    let mut polls = std::task::Context::from_waker(std::task::Waker::noop());
    assert!(wait.as_mut().poll(&mut polls).is_pending());
    drop(wait);
    std::thread::sleep(std::time::Duration::from_millis(20));
    assert!(!returned.load(SeqCst), "given back while a thread waits for it");
    opencl3::event::set_user_event_status(event, 0).unwrap();
    assert_returned(&returned);
    // SAFETY: created above, and not waited for any more.
    unsafe { opencl3::event::release_event(event) }.unwrap();
    Ok(())
}

/// PoCL never runs commands that wait for a failed event. So the wait fails before it is enqueued.
#[test]
fn event_that_has_failed_is_an_error() -> Result<()> {
    let context = context();
    if context.info().driver == DriverKind::Cuda {
        println!("skipped: CUDA's events do not fail by themselves");
        return Ok(());
    }
    let queue = context.queue()?;
    let buffer = queue.alloc(8)?;
    let event = user_event(&buffer);
    opencl3::event::set_user_event_status(event, -5).unwrap();
    // SAFETY: released at the end.
    let waited = block_on(unsafe { queue.wait_for_foreign(RawEvent(event as u64), Arc::new(())) });
    assert!(matches!(waited, Err(Error::Driver { code: -5, .. })), "{waited:?}");
    // SAFETY: created above, and not waited for.
    unsafe { opencl3::event::release_event(event) }.unwrap();
    block_on(queue.finish())
}
