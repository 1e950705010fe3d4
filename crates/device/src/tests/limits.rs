// SPDX-License-Identifier: Apache-2.0
//! The memory limit: refusals, waits and reservations.

use std::time::{Duration, Instant};

use super::*;
use crate::DeviceKind;
use crate::testing::Fault;

#[test]
fn limits_beyond_what_a_device_can_have_are_refused() -> Result<()> {
    let error = Context::new(config().with_memory_bytes((1 << 20) - 1)).unwrap_err();
    assert_eq!(error.to_string(), "device.memory_bytes = 1048575: must be 0, for the device's default, or at least 1048576");
    let context = Context::new(config().with_memory_bytes(1 << 20))?;
    assert_eq!(context.pool().limit(), 1 << 20);

    let (memory, label) = (context.info().memory_bytes, context.info().label());
    let error = Context::new(config().with_memory_bytes(memory as usize + 1)).unwrap_err();
    let problem = format!("must be 0, for the device's default, or at most {memory}, the memory of {label}");
    assert_eq!(error.to_string(), format!("device.memory_bytes = {}: {problem}", memory + 1));
    assert_eq!(Context::new(config().with_memory_bytes(memory as usize))?.pool().limit(), memory as usize);
    Ok(())
}

#[test]
fn limit_names_pool_numbers_and_setting() -> Result<()> {
    let context = Context::new(config().with_memory_bytes(1 << 20))?;
    let queue = context.queue()?;
    let label = context.info().label();
    let half = queue.alloc(1 << 19)?;
    let error = queue.alloc((1 << 19) + 1).unwrap_err();
    assert_eq!(
        error.to_string(),
        format!(
            "pool \"{label}\": 655.4 kB requested, 524.3 kB of 1.0 MB in use; \
             raise device.memory_bytes or run fewer queries at once; for scans, lower device.batch_rows"
        )
    );
    drop(half);
    let plan = FaultPlan::new();
    let other = under(&plan);
    plan.fail_alloc(1);
    let error = other.queue()?.alloc(1000).unwrap_err();
    assert_eq!(
        error.to_string(),
        format!(
            "pool \"{label}\": 1.0 kB requested, 0 bytes in use, and the driver has no more; \
             lower device.memory_bytes or run fewer queries at once"
        )
    );
    let _whole = queue.alloc(1 << 20)?;
    assert_eq!((context.pool().in_use(), context.pool().peak()), (1 << 20, 1 << 20));
    assert!(queue.alloc(1).is_err());
    Ok(())
}

#[test]
fn memory_in_use_elsewhere_is_waited_for_on_the_device() -> Result<()> {
    let context = Context::new(config().with_memory_bytes(1 << 20))?;
    let (first, second) = (context.queue()?, context.queue()?);
    let program = block_on(first.compile(source()))?;
    let grid = Grid { work_groups: 1, work_group_size: 1 };
    for bytes in [1 << 20, 1 << 19] {
        let x = first.zeroed(1 << 20)?;
        first.launch(&program.kernel("spin")?, grid, &[(&x).into(), 50_000_000u64.into()])?;
        drop(x);
        // A running kernel uses the whole limit.
        let y = second.zeroed(bytes)?;
        add(&second, &y, 3)?;
        let read = block_on(second.read(&y, 0..y.len()))?;
        assert!(to_numbers(&read).into_iter().all(|number| number == 3));
    }
    Ok(())
}

#[test]
fn reservation_holds_back_what_is_not_allocated() -> Result<()> {
    let context = Context::new(config().with_memory_bytes(1 << 20))?;
    let queue = context.queue()?;
    let reservation = context.pool().reserve(3 << 18)?;
    assert!(context.pool().reserve(1 << 19).is_err());
    assert!(queue.alloc(1 << 19).is_err());
    let drawing = queue.reserved(&reservation);
    let buffer = drawing.alloc(1 << 19)?;
    assert_eq!((context.pool().in_use(), context.pool().reserved()), (1 << 19, 1 << 18));
    let other = queue.alloc(1 << 18)?;
    assert!(queue.alloc(1).is_err());
    reservation.resize(1 << 19)?;
    assert!(queue.alloc(1).is_ok());
    drop((reservation, other));
    assert_eq!((context.pool().in_use(), context.pool().reserved()), (1 << 19, 0));
    drop(buffer);
    assert_eq!(context.pool().in_use(), 0);
    Ok(())
}

#[test]
fn reservation_of_another_context_is_not_drawn_on() -> Result<()> {
    let (context, other) = (Context::new(config())?, Context::new(config())?);
    let reservation = other.pool().reserve(1 << 20)?;
    drop(context.queue()?.reserved(&reservation).alloc(1 << 19)?);
    assert_eq!((other.pool().reserved(), context.pool().reserved()), (1 << 20, 0));
    Ok(())
}

#[test]
fn as_much_memory_stays_free_as_was_in_use_twice() -> Result<()> {
    let plan = FaultPlan::new();
    let context = under(&plan);
    if context.info().kind != DeviceKind::Cpu {
        return Ok(());
    }
    let (queue, pool) = (context.queue()?, context.pool());
    // One buffer at a time, most of them too large for each free block.
    for megabytes in 1..=16 {
        drop(queue.alloc(megabytes << 20)?);
        assert!(pool.cached() <= 2 * pool.peak(), "{} of {} bytes stay free", pool.cached(), pool.peak());
    }
    assert!(pool.cached() > pool.peak(), "{} of {} bytes stay free", pool.cached(), pool.peak());
    // The last ones stay.
    let before = plan.calls(Fault::Alloc);
    drop(queue.alloc(16 << 20)?);
    assert_eq!(plan.calls(Fault::Alloc), before);
    Ok(())
}

#[test]
fn free_memory_in_use_is_waited_for_before_there_is_more_of_it() -> Result<()> {
    let context = context();
    if context.info().kind != DeviceKind::Cpu {
        return Ok(());
    }
    let queues = (0..8).map(|_| context.queue()).collect::<Result<Vec<_>>>()?;
    let spin = block_on(queues[0].compile(source()))?.kernel("spin")?;
    for queue in &queues {
        let x = queue.zeroed(1 << 20)?;
        queue.launch(&spin, Grid { work_groups: 1, work_group_size: 1 }, &[(&x).into(), 30_000_000u64.into()])?;
    }
    // One buffer at a time was in use. Two stay free, and the third makes queues wait.
    assert!(context.pool().cached() <= 3 << 20, "{} bytes are free", context.pool().cached());
    context.synchronize()
}

#[test]
fn memory_returns_to_the_driver_where_nothing_reuses_it() -> Result<()> {
    let context = context();
    let (queue, pool) = (context.queue()?, context.pool());
    let (old, new) = (queue.alloc(4 << 20)?, queue.alloc(1 << 20)?);
    drop(old);
    std::thread::sleep(Duration::from_millis(500));
    drop(new);
    assert!(pool.evict_unused(Duration::from_millis(400)));
    assert_eq!(pool.cached(), 1 << 20);
    assert!(!pool.evict_unused(Duration::ZERO));
    assert_eq!(pool.cached(), 0);
    Ok(())
}

#[test]
fn trimmed_memory_that_a_launch_uses_returns_after_it() -> Result<()> {
    let plan = FaultPlan::new();
    let context = under(&plan);
    let queue = context.queue()?;
    let spin = block_on(queue.compile(source()))?.kernel("spin")?;
    let (before, x) = (plan.live().allocations, queue.zeroed(1 << 20)?);
    queue.launch(&spin, Grid { work_groups: 1, work_group_size: 1 }, &[(&x).into(), 300_000_000u64.into()])?;
    drop(x);
    context.pool().trim();
    assert_eq!((context.pool().cached(), plan.live().allocations), (0, before + 1));
    let start = Instant::now();
    while plan.live().allocations > before {
        assert!(start.elapsed() < Duration::from_secs(20), "{:?}", plan.live());
        std::thread::sleep(Duration::from_millis(10));
    }
    Ok(())
}

#[test]
fn pinned_memory_returns_to_the_driver_where_nothing_reuses_it() -> Result<()> {
    let context = context();
    let pinned = context.pinned();
    let (old, new) = (pinned.for_export(4 << 20)?, pinned.for_export(1 << 20)?);
    drop(old);
    std::thread::sleep(Duration::from_millis(500));
    drop(new);
    assert!(pinned.evict_unused(Duration::from_millis(400)));
    assert_eq!(pinned.cached(), 1 << 20);
    assert!(!pinned.evict_unused(Duration::ZERO));
    assert_eq!(pinned.cached(), 0);
    Ok(())
}

/// By the thread of each pool: a block is free for 5 to 10 seconds.
#[test]
fn free_memory_returns_by_itself() -> Result<()> {
    let context = context();
    drop(context.pinned().for_export(1 << 20)?);
    drop(context.queue()?.alloc(1 << 20)?);
    let (pinned, start) = (context.pinned(), Instant::now());
    let is_cpu = context.info().kind == DeviceKind::Cpu;
    while pinned.cached() > 0 || (is_cpu && context.pool().cached() > 0) {
        assert!(start.elapsed() < Duration::from_secs(30), "{} bytes stay", pinned.cached() + context.pool().cached());
        std::thread::sleep(Duration::from_millis(100));
    }
    assert!(start.elapsed() >= Duration::from_secs(4), "{:?}", start.elapsed());
    Ok(())
}

#[test]
#[cfg(all(target_os = "linux", target_env = "gnu"))]
fn the_heap_returns_free_memory_where_the_process_is_idle() -> Result<()> {
    let context = context();
    let resident = || {
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap();
        line.trim_end_matches("kB").trim().parse::<usize>().unwrap() << 10
    };
    // Blocks below the size that glibc maps for itself. The last one keeps the heap's end in place.
    let mut blocks: Vec<Vec<u8>> = (0..2000).map(|_| vec![1; 64 << 10]).collect();
    let last = blocks.pop();
    drop(blocks);
    let before = resident();
    assert!(!context.pool().evict_unused(Duration::ZERO));
    assert!(resident() + (64 << 20) < before, "{} of {before} bytes stay resident", resident());
    drop(last);
    Ok(())
}
