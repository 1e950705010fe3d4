// SPDX-License-Identifier: Apache-2.0
//! The timeline of launches.

use serde_json::Value;

use super::*;
use crate::LaunchRecord;

/// Iterations of a kernel that takes milliseconds.
const LONG: u64 = 10_000_000;

fn timed(limit: usize) -> Result<Context> {
    Context::new(config().with_timeline(limit))
}

fn spin(queue: &Queue, x: &Buffer, loops: u64) -> Result<()> {
    let program = block_on(queue.compile(source()))?;
    queue.launch(&program.kernel("spin")?, Grid { work_groups: 1, work_group_size: 1 }, &[x.into(), loops.into()])
}

fn of<'a>(queue: &Queue, timeline: &'a [LaunchRecord]) -> Vec<&'a LaunchRecord> {
    timeline.iter().filter(|record| record.queue == queue.number()).collect()
}

fn overlap(one: &LaunchRecord, other: &LaunchRecord) -> bool {
    one.start_nanos < other.end_nanos && other.start_nanos < one.end_nanos
}

#[test]
fn records_of_a_queue_are_in_order_and_apart() -> Result<()> {
    let context = timed(1000)?;
    let queue = context.queue()?;
    let x = queue.zeroed(8)?;
    for _ in 0..100 {
        add(&queue, &x, 1)?;
        spin(&queue, &x, 1000)?;
    }
    context.synchronize()?;
    let timeline = context.timeline();
    assert_eq!(timeline.len(), 200);
    assert!(timeline.chunks(2).all(|pair| (&*pair[0].kernel, &*pair[1].kernel) == ("add", "spin")));
    assert!(timeline.iter().all(|record| record.queue == queue.number() && record.start_nanos <= record.end_nanos));
    assert!(timeline.is_sorted_by(|first, second| first.end_nanos <= second.start_nanos));
    Ok(())
}

#[test]
fn record_is_as_long_as_the_kernel_time() -> Result<()> {
    let context = timed(10)?;
    let queue = context.queue()?;
    spin(&queue, &queue.zeroed(8)?, LONG)?;
    block_on(queue.finish())?;
    let [record] = &context.timeline()[..] else { panic!("one launch, one record") };
    let nanos = record.end_nanos - record.start_nanos;
    assert!(nanos > 1_000_000, "{nanos}");
    assert_eq!(context.report()["kernels"][0]["nanos"], nanos);
    Ok(())
}

#[test]
fn queues_are_seen_to_run_at_the_same_time() -> Result<()> {
    let context = timed(1000)?;
    let (first, second) = (context.queue()?, context.queue()?);
    assert_ne!(first.number(), second.number());
    let (x, y) = (first.zeroed(8)?, second.zeroed(8)?);
    // A busy machine may run the kernels one after the other for a while.
    for _ in 0..100 {
        for _ in 0..3 {
            spin(&first, &x, LONG)?;
            spin(&second, &y, LONG)?;
        }
        context.synchronize()?;
        let timeline = context.timeline();
        let (one, other) = (of(&first, &timeline), of(&second, &timeline));
        assert_eq!(one.len(), other.len());
        if one.iter().any(|one| other.iter().any(|other| overlap(one, other))) {
            return Ok(());
        }
    }
    panic!("no kernels of two queues overlap: {:?}", context.timeline());
}

#[test]
fn nothing_is_recorded_by_default() -> Result<()> {
    let context = context();
    let queue = context.queue()?;
    add(&queue, &queue.zeroed(8)?, 1)?;
    context.synchronize()?;
    assert_eq!(context.timeline(), []);
    Ok(())
}

#[test]
fn timeline_needs_no_other_profiling() -> Result<()> {
    let context = Context::new(config().with_profiling(false).with_timeline(10))?;
    let queue = context.queue()?;
    add(&queue, &queue.zeroed(8)?, 1)?;
    context.synchronize()?;
    assert_eq!(context.timeline().len(), 1);
    Ok(())
}

#[test]
fn only_the_latest_launches_are_kept() -> Result<()> {
    let context = timed(3)?;
    let queue = context.queue()?;
    let x = queue.zeroed(8)?;
    let kernels = || context.timeline().into_iter().map(|record| record.kernel.to_string()).collect::<Vec<_>>();
    (0..10).try_for_each(|_| spin(&queue, &x, 1))?;
    add(&queue, &x, 1)?;
    context.synchronize()?;
    assert_eq!(kernels(), ["spin", "spin", "add"]);
    (0..1000).try_for_each(|_| add(&queue, &x, 1))?;
    context.synchronize()?;
    assert_eq!(kernels(), ["add"; 3]);
    Ok(())
}

#[test]
fn every_record_is_there_once_work_is_known_to_have_completed() -> Result<()> {
    let context = timed(1000)?;
    let queue = context.queue()?;
    let x = queue.zeroed(8)?;
    for launches in 1..=300 {
        add(&queue, &x, 1)?;
        let event = queue.record()?;
        while event.raw().is_some() {
            std::thread::yield_now();
        }
        assert_eq!(context.timeline().len(), launches);
    }
    Ok(())
}

#[test]
fn number_of_a_queue_is_that_of_its_next_user() -> Result<()> {
    let context = timed(10)?;
    let first = context.queue()?;
    let number = first.number();
    assert_ne!(context.queue()?.number(), number);
    drop(first);
    let both = [context.queue()?, context.queue()?];
    assert!(both.iter().any(|queue| queue.number() == number));
    Ok(())
}

#[test]
fn trace_has_a_row_for_each_queue() -> Result<()> {
    let context = timed(10)?;
    let (first, second) = (context.queue()?, context.queue()?);
    let x = first.zeroed(8)?;
    spin(&first, &x, LONG)?;
    // Waits for the first queue, which allocated the buffer.
    add(&second, &x, 1)?;
    context.synchronize()?;

    let trace: Value = serde_json::from_str(&context.trace().to_string()).unwrap();
    let [process, rows @ .., spun, added] = &trace["traceEvents"].as_array().unwrap()[..] else { panic!("{trace}") };
    assert_eq!((&process["ph"], &process["name"]), (&"M".into(), &"process_name".into()));
    assert!(process["args"]["name"].as_str().unwrap().starts_with(&context.info().label()));
    for (row, queue) in rows.iter().zip([&first, &second]) {
        let number = queue.number();
        let expected = serde_json::json!(
            { "ph": "M", "name": "thread_name", "pid": 1, "tid": number, "args": { "name": format!("queue {number}") } }
        );
        assert_eq!(row, &expected);
    }
    assert_eq!(rows.len(), 2);
    for (event, queue, name) in [(spun, &first, "spin"), (added, &second, "add")] {
        assert_eq!((&event["ph"], &event["name"]), (&"X".into(), &name.into()));
        assert_eq!((&event["pid"], &event["tid"]), (&1.into(), &queue.number().into()));
    }
    // Microseconds since the first launch.
    let [record, next] = &context.timeline()[..] else { panic!() };
    assert_eq!((&spun["ts"], &spun["dur"]), (&0.0.into(), &((record.end_nanos - record.start_nanos) as f64 / 1e3).into()));
    assert_eq!(added["ts"], (next.start_nanos - record.start_nanos) as f64 / 1e3);
    Ok(())
}
