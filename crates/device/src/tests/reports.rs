// SPDX-License-Identifier: Apache-2.0
//! Meters, counters, the report and the log.

use std::sync::Arc;
use std::time::Duration;

use super::*;
use crate::{DriverKind, Kernel, KernelCosts, Meter};

#[test]
fn meters_see_their_own_work() -> Result<()> {
    let context = context();
    let queue = context.queue()?;
    let (mine, other) = (Arc::new(Meter::default()), Arc::new(Meter::default()));
    let metered = queue.metered(&mine);
    let x = metered.zeroed(8)?;
    let program = block_on(metered.compile(source()))?;
    let spin = program.kernel("spin")?;
    metered.launch(&spin, Grid { work_groups: 1, work_group_size: 1 }, &[(&x).into(), 10_000_000u64.into()])?;
    queue.metered(&other).launch(&spin, Grid { work_groups: 1, work_group_size: 1 }, &[(&x).into(), 1u64.into()])?;
    block_on(metered.read(&x, 0..8))?;
    assert_eq!((mine.launches(), other.launches()), (1, 1));
    assert!(mine.kernel_time() > Duration::from_millis(1), "{:?}", mine.kernel_time());
    assert!(mine.compile_time() > Duration::ZERO && other.compile_time() == Duration::ZERO);
    assert_eq!((mine.bytes_down(), other.bytes_down()), (8, 0));
    let kernels = mine.kernels();
    let costs = KernelCosts { launches: 1, time: mine.kernel_time(), bytes: 8 };
    assert_eq!(kernels.iter().map(|(name, costs)| (&**name, *costs)).collect::<Vec<_>>(), [("spin", costs)]);
    let report = context.report();
    assert_eq!(report["kernels"][0]["name"], "spin");
    assert_eq!(report["kernels"][0]["launches"], 2);
    assert!(report["kernels"][0]["nanos"].as_u64().unwrap() >= 1_000_000);
    Ok(())
}

/// PoCL makes machine code at the first launch. Other drivers for CPUs may make it before.
#[test]
fn first_launches_on_a_cpu_count_as_compilation() -> Result<()> {
    let context = context();
    let queue = context.queue()?;
    let meter = Arc::new(Meter::default());
    let metered = queue.metered(&meter);
    let x = queue.zeroed(8)?;
    let launched = |queue: &Queue, kernel: &Kernel| -> Result<Duration> {
        queue.launch(kernel, Grid { work_groups: 1, work_group_size: 1 }, &[(&x).into(), 10u64.into()])?;
        block_on(queue.finish())?;
        Ok(meter.compile_time())
    };
    // The clocks are known after a kernel that is ready.
    let spin = block_on(queue.compile(source()))?.kernel("spin")?;
    launched(&queue, &spin)?;
    launched(&queue, &spin)?;
    // No cache of a driver has the kernel.
    let unique = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_nanos();
    let text = format!("kernel void other(global ulong *x, ulong n) {{ for (ulong i = 0; i < n; ++i) x[0] ^= {unique}UL * i; }}");
    let other = match context.info().driver {
        DriverKind::OpenCl => block_on(queue.compile(ProgramSource::new(text, "test")))?.kernel("other")?,
        DriverKind::Cuda => spin,
    };
    assert_eq!(meter.compile_time(), Duration::ZERO);
    let first = launched(&metered, &other)?;
    assert_eq!(launched(&metered, &other)?, first);
    if context.info().platform.contains("Portable Computing Language") {
        assert!(first > Duration::from_millis(2), "{first:?}");
    }
    Ok(())
}

#[test]
fn without_profiling_launches_are_counted_and_not_timed() -> Result<()> {
    let context = Context::new(config().with_profiling(false))?;
    let meter = Arc::new(Meter::default());
    let queue = context.queue()?.metered(&meter);
    let x = queue.zeroed(8)?;
    let program = block_on(queue.compile(source()))?;
    queue.launch(&program.kernel("spin")?, Grid { work_groups: 1, work_group_size: 1 }, &[(&x).into(), 1_000_000u64.into()])?;
    block_on(queue.finish())?;
    assert_eq!((meter.launches(), meter.kernel_time()), (1, Duration::ZERO));
    assert_eq!((&context.report()["kernels"][0]["launches"], &context.report()["kernels"][0]["nanos"]), (&1.into(), &0.into()));
    Ok(())
}

#[test]
fn paused_profiling_counts_launches_and_does_not_time_them() -> Result<()> {
    let context = context();
    let queue = context.queue()?;
    let x = queue.zeroed(8)?;
    let spin = block_on(queue.compile(source()))?.kernel("spin")?;
    let times_after_a_launch = || -> Result<_> {
        queue.launch(&spin, Grid { work_groups: 1, work_group_size: 1 }, &[(&x).into(), 1_000_000u64.into()])?;
        block_on(queue.finish())?;
        let kernel = &context.report()["kernels"][0];
        Ok((kernel["launches"].as_u64().unwrap(), kernel["nanos"].as_u64().unwrap()))
    };
    context.pause_profiling();
    assert_eq!(times_after_a_launch()?, (1, 0));
    context.unpause_profiling();
    let (launches, nanos) = times_after_a_launch()?;
    assert!(launches == 2 && nanos > 0);
    Ok(())
}

#[test]
fn report_has_the_documented_keys() -> Result<()> {
    let context = context();
    add(&context.queue()?, &context.queue()?.zeroed(80)?, 1)?;
    context.synchronize()?;
    let report = context.report();
    let keys = |value: &serde_json::Value| value.as_object().unwrap().keys().cloned().collect::<Vec<_>>().join(" ");
    assert_eq!(keys(&report), "copies device host kernels memory programs version");
    assert_eq!(keys(&report["device"]), "driver driver_version index name platform");
    assert_eq!(keys(&report["kernels"][0]), "launches name nanos");
    assert_eq!(keys(&report["copies"]), "bytes_down bytes_filled bytes_up");
    assert_eq!(keys(&report["programs"]), "cache_hits_disk cache_hits_memory compiled first_launches nanos optimized");
    assert_eq!(keys(&report["memory"]), "allocations cached in_use limit peak reserved");
    assert_eq!(keys(&report["host"]), "cached downloading uploading");
    assert!(report["programs"]["nanos"].as_u64() > Some(0) && report["memory"]["peak"].as_u64() > Some(0));
    Ok(())
}

#[test]
fn log_names_the_device_and_each_program() -> Result<()> {
    let lines = Arc::new(std::sync::Mutex::new(Vec::new()));
    let sink = Arc::clone(&lines);
    let folder = tempfile::tempdir().unwrap();
    let config =
        config().with_cache_dir(folder.path()).with_log(Arc::new(move |line| sink.lock().unwrap().push(line.to_owned())));
    for _ in 0..2 {
        let context = Context::new(config.clone())?;
        let queue = context.queue()?;
        for _ in 0..2 {
            block_on(queue.compile(source()))?;
        }
        let lines = std::mem::take(&mut *lines.lock().unwrap());
        let info = context.info();
        let device =
            format!("{} is \"{}\" of \"{}\", {} bytes of memory", info.label(), info.name, info.platform, context.pool().limit());
        assert!(lines.contains(&device), "{lines:?}");
        let programs: Vec<_> = lines.iter().filter(|line| line.starts_with("program of tests: ")).collect();
        let [program] = &programs[..] else { panic!("{lines:?}") };
        let how = if context.counters().programs_compiled == 1 { "compiled in " } else { "loaded from the cache folder in " };
        assert!(program.contains(how), "{program}");
    }
    Ok(())
}

#[test]
fn concurrent_waits_count_once() -> Result<()> {
    let meter = Arc::new(Meter::default());
    let queue = context().queue()?.metered(&meter);
    let program = block_on(queue.compile(source()))?;
    let x = queue.zeroed(16)?;
    let spin = || {
        queue.launch(&program.kernel("spin")?, Grid { work_groups: 1, work_group_size: 1 }, &[(&x).into(), 30_000_000u64.into()])
    };
    spin()?;
    let (first, second) = block_on(futures::future::join(queue.read(&x, 0..8), queue.read(&x, 8..16)));
    assert!(first?.len() == 8 && second?.len() == 8);
    assert_eq!(meter.waits(), 1);
    spin()?;
    block_on(queue.finish())?;
    assert_eq!(meter.waits(), 2);
    // Completed work needs no wait.
    block_on(queue.finish())?;
    assert_eq!(meter.waits(), 2);
    Ok(())
}

#[test]
fn errors_of_memory_name_the_holders() -> Result<()> {
    let context = Context::new(config().with_memory_bytes(1 << 20))?;
    let queue = context.queue()?;
    let (sort, join) = (Arc::new(Meter::named("a sort")), Arc::new(Meter::named("a join")));
    let of_sort = [queue.metered(&sort).alloc(300_000)?, queue.metered(&sort).alloc(1000)?];
    // Another partition of the operator, through a handle that both charge.
    let of_both = queue.metered(&sort).metered(&Arc::new(Meter::named("a join"))).alloc(2000)?;
    let of_join = queue.metered(&join).alloc(5000)?;
    let _unnamed = queue.metered(&Arc::new(Meter::default())).alloc(100)?;
    let held = context.pool().held();
    assert_eq!(held.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>(), ["a sort", "a join"]);
    let bytes = |buffers: &[&Buffer]| buffers.iter().map(|buffer| buffer.len() as u64).sum::<u64>();
    assert!(held[0].1 >= bytes(&[&of_sort[0], &of_sort[1], &of_both]), "{held:?}");
    assert!(held[1].1 >= bytes(&[&of_join, &of_both]) && held[1].1 < held[0].1, "{held:?}");
    let error = queue.alloc(1 << 20).unwrap_err().to_string();
    assert!(error.contains("of 1.0 MB in use (by a sort ") && error.contains(", a join "), "{error}");
    drop((of_sort, of_both, of_join));
    assert_eq!(context.pool().held(), []);
    assert!(!queue.alloc(2 << 20).unwrap_err().to_string().contains("(by"));
    Ok(())
}
