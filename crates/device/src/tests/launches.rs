// SPDX-License-Identifier: Apache-2.0
//! Kernels, their arguments, and the order of work in one queue and in several.

use std::time::{Duration, Instant};

use super::*;
use crate::{Arg, Error};

#[test]
fn kernels_see_values() -> Result<()> {
    let queue = context().queue()?;
    let program = block_on(queue.compile(source()))?;
    let x = queue.upload_values((0..1000).map(f64::from).collect())?;
    let y = queue.alloc_values::<f64>(1000)?;
    let args = [(&x).into(), (&y).into(), 2.0f64.into(), 0.5f64.into(), 1000u64.into()];
    queue.launch(&program.kernel("axpb")?, Grid { work_groups: 3, work_group_size: 16 }, &args)?;
    let expected: Vec<f64> = (0..1000).map(|i| 2.0 * f64::from(i) + 0.5).collect();
    assert_eq!(block_on(queue.read_values(&y, 0..1000))?, expected);
    Ok(())
}

#[test]
fn scalars_of_every_width_arrive() -> Result<()> {
    let queue = context().queue()?;
    let program = block_on(queue.compile(source()))?;
    let out = queue.zeroed(80)?;
    let args: [Arg<'_>; 11] = [
        (&out).into(),
        200u8.into(),
        (-3i8).into(),
        60_000u16.into(),
        (-4i16).into(),
        u32::MAX.into(),
        (-5i32).into(),
        u64::MAX.into(),
        i64::MIN.into(),
        (-6.0f32).into(),
        7.0f64.into(),
    ];
    queue.launch(&program.kernel("scalars")?, Grid { work_groups: 1, work_group_size: 1 }, &args)?;
    let signed = |value: i64| value as u64;
    let expected = [200, signed(-3), 60_000, signed(-4), u64::from(u32::MAX), signed(-5), u64::MAX, 1 << 63, signed(-6), 7];
    assert_eq!(to_numbers(&block_on(queue.read(&out, 0..80))?), expected);
    Ok(())
}

#[test]
fn arguments_beyond_the_limit_are_refused() -> Result<()> {
    let plan = FaultPlan::masking(|info| info.max_arg_bytes = 20);
    let context = under(&plan);
    let queue = context.queue()?;
    let error = add(&queue, &queue.zeroed(8)?, 1).unwrap_err();
    let label = context.info().label();
    assert_eq!(error.to_string(), format!("kernel add on {label}: arguments of 24 bytes exceed the limit of 20"));
    let program = block_on(queue.compile(source()))?;
    let empty = queue.launch(&program.kernel("add")?, Grid { work_groups: 0, work_group_size: 1 }, &[]).unwrap_err();
    assert_eq!(empty.to_string(), format!("kernel add on {label}: a grid of 0 work-groups of 1 work-items is empty"));
    Ok(())
}

#[test]
fn wrong_arguments_and_foreign_things_are_refused() -> Result<()> {
    let (mine, other) = (context().queue()?, context().queue()?);
    let program = block_on(mine.compile(source()))?;
    let (kernel, grid) = (program.kernel("add")?, Grid { work_groups: 1, work_group_size: 1 });
    let (x, foreign) = (mine.zeroed(8)?, other.zeroed(8)?);
    mine.launch(&kernel, grid, &[(&x).into(), 1u64.into(), 1u64.into()])?;
    let fewer = mine.launch(&kernel, grid, &[(&x).into(), 1u64.into()]).unwrap_err();
    assert!(fewer.to_string().contains("2 arguments given, the kernel has 3"), "{fewer}");
    assert!(mine.launch(&kernel, grid, &[(&x).into(), 1u8.into(), 1u64.into()]).is_err());
    let error = mine.copy(&foreign, 0, &x, 0, 8).unwrap_err();
    let label = mine.context().info().label();
    assert_eq!(error.to_string(), format!("use: a buffer of another context cannot be used on {label}"));
    assert!(matches!(other.launch(&kernel, grid, &[]), Err(Error::Foreign { .. })));
    assert_eq!(to_numbers(&block_on(mine.read(&x, 0..8))?), [1]);
    Ok(())
}

#[test]
fn futures_outlive_their_handles() -> Result<()> {
    fn assert_task(future: impl Future<Output = Result<Bytes>> + Send + 'static) -> impl Future<Output = Result<Bytes>> {
        future
    }
    let read = {
        let queue = context().queue()?;
        let x = queue.filled(16, 3)?;
        assert_task(queue.read(&x, 4..6))
    };
    assert_eq!(block_on(read)?[..], [3, 3]);
    Ok(())
}

#[test]
fn event_orders_two_queues() -> Result<()> {
    let context = context();
    let (first, second) = (context.queue()?, context.queue()?);
    let program = block_on(first.compile(source()))?;
    let grid = Grid { work_groups: 1, work_group_size: 1 };
    let x = first.filled(8, 0)?;
    first.launch(&program.kernel("spin")?, grid, &[(&x).into(), 30_000_000u64.into()])?;
    // The second queue waits, since the first allocated the buffer.
    second.launch(&program.kernel("add")?, grid, &[(&x).into(), 1u64.into(), 1u64.into()])?;
    // The first queue waits for an event.
    let event = second.record()?;
    first.wait_for(&event)?;
    first.launch(&program.kernel("add")?, grid, &[(&x).into(), 1u64.into(), 1u64.into()])?;
    let value = to_numbers(&block_on(first.read(&x, 0..8))?)[0];
    let spun = (0..30_000_000).fold(0u64, |v, _| v.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407));
    assert_eq!(value, spun.wrapping_add(2));
    block_on(event.wait())?;
    assert!(event.is_done()?);
    Ok(())
}

#[test]
fn long_kernel_does_not_delay_another_queue() -> Result<()> {
    let context = context();
    let (long, short) = (context.queue()?, context.queue()?);
    let program = block_on(long.compile(source()))?;
    let x = long.zeroed(8)?;
    let y = short.zeroed(8)?;
    add(&short, &y, 1)?;
    block_on(short.finish())?;
    long.launch(&program.kernel("spin")?, Grid { work_groups: 1, work_group_size: 1 }, &[(&x).into(), 1_000_000_000u64.into()])?;
    let done = long.finish();
    add(&short, &y, 1)?;
    let start = Instant::now();
    block_on(short.finish())?;
    let waited = start.elapsed();
    block_on(done)?;
    assert!(waited < start.elapsed() / 2, "{waited:?} of {:?}", start.elapsed());
    Ok(())
}

#[test]
fn one_kernel_runs_in_ever_wider_grids_at_once() -> Result<()> {
    let contexts = [context(), context()];
    for queues in [vec![&contexts[0]; 6], contexts.iter().cycle().take(6).collect()] {
        let queues = queues.into_iter().map(Context::queue).collect::<Result<Vec<_>>>()?;
        let kernels = queues.iter().map(|queue| block_on(queue.compile(source()))?.kernel("spin"));
        let kernels = kernels.collect::<Result<Vec<_>>>()?;
        let buffers = queues.iter().map(|queue| queue.zeroed(8)).collect::<Result<Vec<_>>>()?;
        let launch = |queue: usize, work_groups: u32, turns: u64| {
            let grid = Grid { work_groups, work_group_size: 1 };
            queues[queue].launch(&kernels[queue], grid, &[(&buffers[queue]).into(), turns.into()])
        };
        // All queues run a narrow grid when the last one launches wider ones. PoCL 3.1 aborts if
        // they overlap.
        for groups in [1, 4, 16] {
            (0..5).try_for_each(|queue| launch(queue, groups, 20_000_000 / u64::from(groups)))?;
            std::thread::sleep(Duration::from_millis(20));
            (0..3).try_for_each(|more| launch(5, groups * 2 + more, 1000))?;
            (0..5).try_for_each(|queue| launch(queue, groups, 1000))?;
            queues.iter().try_for_each(|queue| block_on(queue.finish()))?;
        }
    }
    Ok(())
}

#[test]
fn upload_arrives_while_another_queue_computes() -> Result<()> {
    let plan = FaultPlan::masking(|info| info.unified_memory = false);
    let context = Context::new(config().with_wrap(plan.wrap()))?;
    let (computing, uploading) = (context.queue()?, context.queue()?);
    let program = block_on(computing.compile(source()))?;
    let x = computing.zeroed(8)?;
    let spin = [(&x).into(), 1_000_000_000u64.into()];
    computing.launch(&program.kernel("spin")?, Grid { work_groups: 1, work_group_size: 1 }, &spin)?;
    let end = computing.record()?;
    // More than one chunk of an upload.
    let host: Vec<u64> = (0..1 << 20).collect();
    let y = uploading.upload_values(host.clone())?;
    block_on(uploading.finish())?;
    assert!(!end.is_done()?, "the upload has waited for the kernel");
    // A kernel that uses the upload waits for it on the device.
    add(&computing, y.buffer(), 1)?;
    let read = block_on(computing.read_values(&y, 0..host.len()))?;
    assert!(read.into_iter().eq(1..=1 << 20));
    Ok(())
}

#[test]
fn queues_and_threads_at_once_give_right_answers() -> Result<()> {
    let context = context();
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..8u64)
            .map(|thread| {
                let context = context.clone();
                scope.spawn(move || -> Result<()> {
                    for round in 0..20 {
                        let queue = context.queue()?;
                        let n = 1000 + thread * 100;
                        let x = queue.alloc(n as usize * 8)?;
                        queue.write(&x, 0, &numbers(round..round + n))?;
                        (0..3).try_for_each(|_| add(&queue, &x, thread))?;
                        let bytes = block_on(queue.read(&x, 0..x.len()))?;
                        assert!(to_numbers(&bytes).into_iter().eq(round + 3 * thread..round + n + 3 * thread));
                    }
                    Ok(())
                })
            })
            .collect();
        threads.into_iter().try_for_each(|thread| thread.join().unwrap())
    })?;
    assert_eq!(context.counters().programs_compiled, 1);
    assert_eq!(context.counters().launches, 8 * 20 * 3);
    assert_eq!(context.pool().in_use(), 0);
    Ok(())
}

#[test]
fn handles_share_queues_from_a_bound_on() -> Result<()> {
    let plan = FaultPlan::new();
    let context = under(&plan);
    let queues = (0..100).map(|_| context.queue()).collect::<Result<Vec<_>>>()?;
    assert_eq!(plan.live().queues, 32);
    let of_number = |number| queues.iter().filter(|queue| queue.number() == number).count();
    assert!((1..=32).all(|number| (3..=4).contains(&of_number(number))));
    let buffers = queues.iter().map(|queue| queue.zeroed(80)).collect::<Result<Vec<_>>>()?;
    for (number, (queue, x)) in (0u64..).zip(queues.iter().zip(&buffers)) {
        add(queue, x, number)?;
    }
    for (number, (queue, x)) in (0u64..).zip(queues.iter().zip(&buffers)) {
        assert_eq!(to_numbers(&block_on(queue.read(x, 0..80))?), [number; 10]);
    }
    drop((buffers, queues));
    context.synchronize()?;
    // All are idle again, so that none is shared.
    let queues = (0..32).map(|_| context.queue()).collect::<Result<Vec<_>>>()?;
    assert!((1..=32).all(|number| queues.iter().any(|queue| queue.number() == number)));
    Ok(())
}
