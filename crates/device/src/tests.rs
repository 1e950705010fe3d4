// SPDX-License-Identifier: Apache-2.0
//! The crate against a real driver: OpenCL on the host's processor.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures::executor::block_on;

use crate::{Arg, Buffer, Context, DeviceConfig, Error, Grid, Meter, ProgramSource, Queue, Result, Selector};

/// Doubles as `y = a * x + b`, an integer sum, and a loop that takes its time.
const TEXT: &str = r#"
kernel void axpb(global const double *x, global double *y, double a, double b, ulong n) {
    for (ulong i = get_global_id(0); i < n; i += get_global_size(0)) y[i] = a * x[i] + b;
}
kernel void add(global ulong *x, ulong by, ulong n) {
    for (ulong i = get_global_id(0); i < n; i += get_global_size(0)) x[i] += by;
}
kernel void scalars(global ulong *out, uchar a, char b, ushort c, short d, uint e, int f, ulong g, long h, float i, double j) {
    out[0] = a; out[1] = (ulong)(long)b; out[2] = c; out[3] = (ulong)(long)d; out[4] = e;
    out[5] = (ulong)(long)f; out[6] = g; out[7] = (ulong)h; out[8] = (ulong)(long)i; out[9] = (ulong)(long)j;
}
kernel void spin(global ulong *x, ulong n) {
    ulong v = x[0];
    for (ulong i = 0; i < n; i++) v = v * 6364136223846793005UL + 1442695040888963407UL;
    x[0] = v;
}
"#;

fn config() -> DeviceConfig {
    DeviceConfig::default().with_selector(Selector::OpenCl)
}

fn source() -> ProgramSource {
    ProgramSource::new(TEXT, "tests")
}

fn context() -> Context {
    Context::new(config()).expect("the tests need an OpenCL driver; install pocl-opencl-icd")
}

fn numbers(range: std::ops::Range<u64>) -> Bytes {
    range.flat_map(u64::to_ne_bytes).collect::<Vec<u8>>().into()
}

fn to_numbers(bytes: &[u8]) -> Vec<u64> {
    bytes.chunks_exact(8).map(|chunk| u64::from_ne_bytes(chunk.try_into().unwrap())).collect()
}

fn add(queue: &Queue, x: &Buffer, by: u64) -> Result<()> {
    let program = block_on(queue.compile(source()))?;
    let n = x.len() as u64 / 8;
    let grid = Grid { groups: 4, group_size: 8 };
    queue.launch(&program.kernel("add")?, grid, &[x.into(), by.into(), n.into()])
}

#[test]
fn sizes_around_groups_and_pieces_come_back() -> Result<()> {
    let context = context();
    let queue = context.queue()?;
    for n in [0u64, 1, 255, 256, 257, 131_073, 600_000] {
        let x = queue.alloc(n as usize * 8)?;
        queue.write(&x, 0, &numbers(0..n))?;
        add(&queue, &x, 5)?;
        add(&queue, &x, 2)?;
        let bytes = block_on(queue.read(&x, 0..x.len()))?;
        assert!(to_numbers(&bytes).into_iter().eq(7..n + 7), "{n} numbers");
    }
    Ok(())
}

#[test]
fn upload_of_shared_memory_is_not_copied() -> Result<()> {
    let context = context();
    let queue = context.queue()?;
    let bytes = numbers(0..1000);
    // Not at the start of an allocation, as a slice of a column may be.
    let slice = bytes.slice(8..800);
    let buffer = queue.upload(slice.clone())?;
    assert_eq!(buffer.raw().host, slice.as_ptr() as usize);
    assert_eq!(context.pool().in_use(), 0);
    assert_eq!(context.counters().bytes_up, 792);
    let read = block_on(queue.read(&buffer, 8..24))?;
    assert_eq!(read.as_ptr() as usize, slice.as_ptr() as usize + 8);
    assert_eq!(to_numbers(&read), [2, 3]);
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
    queue.launch(&program.kernel("scalars")?, Grid { groups: 1, group_size: 1 }, &args)?;
    let signed = |value: i64| value as u64;
    let expected = [200, signed(-3), 60_000, signed(-4), u64::from(u32::MAX), signed(-5), u64::MAX, 1 << 63, signed(-6), 7];
    assert_eq!(to_numbers(&block_on(queue.read(&out, 0..80))?), expected);
    Ok(())
}

#[test]
fn copies_and_fills_keep_their_order() -> Result<()> {
    let queue = context().queue()?;
    let (a, b) = (queue.filled(1 << 20, 7)?, queue.zeroed(1 << 20)?);
    queue.copy(&a, 0, &b, 16, 1000)?;
    queue.fill(&a, 0, 1 << 20, 9)?;
    queue.fill(&b, 20, 3, 1)?;
    queue.write(&b, 1020, &[2, 3])?;
    let bytes = block_on(queue.read(&b, 0..1030))?;
    let expected = |index: usize| match index {
        20..23 => 1,
        1020 => 2,
        1021 => 3,
        16..1016 => 7,
        _ => 0,
    };
    assert!(bytes.iter().enumerate().all(|(index, byte)| *byte == expected(index)));
    assert!(matches!(queue.copy(&b, 0, &b, 10, 11), Err(Error::Range { .. })));
    assert!(matches!(queue.fill(&b, 1 << 20, 1, 0), Err(Error::Range { .. })));
    assert!(matches!(block_on(queue.read(&b, 5..(1 << 20) + 1)), Err(Error::Range { .. })));
    Ok(())
}

#[test]
fn broken_text_tells_text_log_and_operator() {
    let queue = context().queue().unwrap();
    let text = "kernel void f(global int *x) { x[0] = no_such_name; }";
    for _ in 0..2 {
        let error = block_on(queue.compile(ProgramSource::new(text, "DeviceFilterExec"))).unwrap_err();
        assert!(error.to_string().starts_with("DeviceFilterExec: kernel does not compile on opencl:0: "), "{error}");
        let Error::CompileFailed { text: told, log, operator, .. } = error else { panic!("{error}") };
        assert_eq!((&*told, &*operator), (text, "DeviceFilterExec"));
        assert!(log.contains("no_such_name"), "{log}");
    }
    let program = block_on(queue.compile(source())).unwrap();
    assert!(program.kernel("no_such_kernel").unwrap_err().to_string().contains("no_such_kernel"));
}

#[test]
fn meters_see_their_own_work() -> Result<()> {
    let context = context();
    let queue = context.queue()?;
    let (mine, other) = (Arc::new(Meter::default()), Arc::new(Meter::default()));
    let metered = queue.metered(&mine);
    let x = metered.zeroed(8)?;
    let program = block_on(metered.compile(source()))?;
    let spin = program.kernel("spin")?;
    metered.launch(&spin, Grid { groups: 1, group_size: 1 }, &[(&x).into(), 10_000_000u64.into()])?;
    queue.metered(&other).launch(&spin, Grid { groups: 1, group_size: 1 }, &[(&x).into(), 1u64.into()])?;
    block_on(metered.read(&x, 0..8))?;
    assert_eq!((mine.launches(), other.launches()), (1, 1));
    assert!(mine.kernel_time() > Duration::from_millis(1), "{:?}", mine.kernel_time());
    assert!(mine.compile_time() > Duration::ZERO && other.compile_time() == Duration::ZERO);
    assert_eq!((mine.bytes_down(), other.bytes_down()), (8, 0));
    let report = context.report();
    assert_eq!(report["kernels"][0]["name"], "spin");
    assert_eq!(report["kernels"][0]["launches"], 2);
    assert!(report["kernels"][0]["nanos"].as_u64().unwrap() >= 1_000_000);
    Ok(())
}

#[test]
fn second_request_compiles_nothing() -> Result<()> {
    let context = context();
    let queue = context.queue()?;
    let all = futures::future::join_all((0..8).map(|_| queue.compile(source())));
    let programs = block_on(all).into_iter().collect::<Result<Vec<_>>>()?;
    assert!(programs.iter().all(|program| Arc::ptr_eq(program, &programs[0])));
    let counters = context.counters();
    assert_eq!((counters.programs_compiled, counters.cache_hits_memory), (1, 7));
    let x = queue.zeroed(8)?;
    add(&queue, &x, 1)?;
    add(&queue, &x, 1)?;
    assert_eq!((context.counters().first_launches, context.counters().launches), (1, 2));
    assert_eq!(context.counters().programs_compiled, 1);
    Ok(())
}

#[test]
fn event_orders_two_queues() -> Result<()> {
    let context = context();
    let (first, second) = (context.queue()?, context.queue()?);
    let program = block_on(first.compile(source()))?;
    let grid = Grid { groups: 1, group_size: 1 };
    let x = first.filled(8, 0)?;
    first.launch(&program.kernel("spin")?, grid, &[(&x).into(), 30_000_000u64.into()])?;
    // The second queue waits because the first made the buffer.
    second.launch(&program.kernel("add")?, grid, &[(&x).into(), 1u64.into(), 1u64.into()])?;
    // The first waits because it is told to.
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
    long.launch(&program.kernel("spin")?, Grid { groups: 1, group_size: 1 }, &[(&x).into(), 1_000_000_000u64.into()])?;
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
