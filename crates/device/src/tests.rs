// SPDX-License-Identifier: Apache-2.0
//! The crate against a real driver: OpenCL on the host's processor, or what `DEVICEFUSION_TEST_DEVICE` names.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures::executor::block_on;

use crate::{
    Arg, Buffer, Context, DeviceConfig, DriverKind, Error, Grid, Meter, Program, ProgramSource, Queue, Result, Scalar, Selector,
    testing,
};

/// What both compilers understand.
const DIALECT: &str = r#"
#ifdef __OPENCL_VERSION__
#define KERNEL kernel
#define G global
#define ID get_global_id(0)
#define ITEMS get_global_size(0)
#else
#define KERNEL extern "C" __global__
#define G
#define ID (blockIdx.x * (ulong)blockDim.x + threadIdx.x)
#define ITEMS (gridDim.x * (ulong)blockDim.x)
typedef unsigned char uchar;
typedef unsigned short ushort;
typedef unsigned int uint;
typedef unsigned long ulong;
#endif
"#;

/// Doubles as `y = a * x + b`, an integer sum, scalars of every width, and a loop that takes its time.
const KERNELS: &str = r#"
KERNEL void axpb(G const double *x, G double *y, double a, double b, ulong n) {
    for (ulong i = ID; i < n; i += ITEMS) y[i] = a * x[i] + b;
}
KERNEL void add(G ulong *x, ulong by, ulong n) {
    for (ulong i = ID; i < n; i += ITEMS) x[i] += by;
}
KERNEL void scalars(G ulong *out, uchar a, char b, ushort c, short d, uint e, int f, ulong g, long h, float i, double j) {
    out[0] = a; out[1] = (ulong)(long)b; out[2] = c; out[3] = (ulong)(long)d; out[4] = e;
    out[5] = (ulong)(long)f; out[6] = g; out[7] = (ulong)h; out[8] = (ulong)(long)i; out[9] = (ulong)(long)j;
}
KERNEL void spin(G ulong *x, ulong n) {
    ulong v = x[0];
    for (ulong i = 0; i < n; i++) v = v * 6364136223846793005UL + 1442695040888963407UL;
    x[0] = v;
}
"#;

fn config() -> DeviceConfig {
    testing::config().unwrap()
}

fn text(kernels: &str) -> String {
    format!("{DIALECT}{kernels}")
}

fn source() -> ProgramSource {
    ProgramSource::new(text(KERNELS), "tests")
}

fn context() -> Context {
    Context::new(config()).expect("the tests need a device; for OpenCL on a CPU install pocl-opencl-icd")
}

/// A context whose device shares the host's memory, if it is such a device that the tests run on.
fn sharing() -> Option<Context> {
    let context = context();
    if !context.info().unified_memory {
        println!("skipped: {} has memory of its own", context.info().label());
        return None;
    }
    Some(context)
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
fn values_of_every_type_come_back() -> Result<()> {
    fn check<T: Scalar + PartialEq + std::fmt::Debug>(queue: &Queue, values: [T; 5]) -> Result<()> {
        let up = queue.upload_values(values.to_vec())?;
        assert_eq!((up.len(), up.buffer().len()), (5, 5 * size_of::<T>()));
        assert_eq!(block_on(queue.read_values(&up, 0..5))?, values);
        assert_eq!(block_on(queue.read_values(&up, 2..4))?, values[2..4]);
        let written = queue.alloc_values::<T>(7)?;
        queue.write_values(&written, 1, &values)?;
        assert_eq!(block_on(queue.read_values(&written, 1..6))?, values);
        assert!(matches!(queue.write_values(&written, 3, &values), Err(Error::Range { .. })));
        assert!(matches!(block_on(queue.read_values(&written, 3..8)), Err(Error::Range { .. })));
        assert!(queue.upload_values(Vec::<T>::new())?.is_empty());
        assert!(queue.alloc_values::<T>(usize::MAX).is_err());
        Ok(())
    }
    let queue = context().queue()?;
    check(&queue, [0u8, 1, 2, 3, u8::MAX])?;
    check(&queue, [0i8, 1, -2, i8::MIN, i8::MAX])?;
    check(&queue, [0u16, 1, 2, 3, u16::MAX])?;
    check(&queue, [0i16, 1, -2, i16::MIN, i16::MAX])?;
    check(&queue, [0u32, 1, 2, 3, u32::MAX])?;
    check(&queue, [0i32, 1, -2, i32::MIN, i32::MAX])?;
    check(&queue, [0u64, 1, 2, 3, u64::MAX])?;
    check(&queue, [0i64, 1, -2, i64::MIN, i64::MAX])?;
    check(&queue, [0f32, -1.5, f32::MIN_POSITIVE, f32::NEG_INFINITY, f32::MAX])?;
    check(&queue, [0f64, -1.5, f64::MIN_POSITIVE, f64::NEG_INFINITY, f64::MAX])
}

#[test]
fn kernels_see_values() -> Result<()> {
    let queue = context().queue()?;
    let program = block_on(queue.compile(source()))?;
    let x = queue.upload_values((0..1000).map(f64::from).collect())?;
    let y = queue.alloc_values::<f64>(1000)?;
    let args = [(&x).into(), (&y).into(), 2.0f64.into(), 0.5f64.into(), 1000u64.into()];
    queue.launch(&program.kernel("axpb")?, Grid { groups: 3, group_size: 16 }, &args)?;
    let expected: Vec<f64> = (0..1000).map(|i| 2.0 * f64::from(i) + 0.5).collect();
    assert_eq!(block_on(queue.read_values(&y, 0..1000))?, expected);
    Ok(())
}

#[test]
fn upload_of_shared_memory_is_not_copied() -> Result<()> {
    let Some(context) = sharing() else { return Ok(()) };
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
fn shared_memory_is_not_written() -> Result<()> {
    let Some(context) = sharing() else { return Ok(()) };
    let queue = context.queue()?;
    let host = numbers(0..100);
    let x = queue.upload(host.clone())?;
    let y = queue.zeroed(800)?;
    let written = [queue.write(&x, 0, &[1]), queue.fill(&x, 0, 8, 1), queue.copy(&y, 0, &x, 0, 8)];
    let errors = written.map(|result| result.unwrap_err().to_string());
    let reason = "the buffer is the host's own memory, which upload only lends";
    assert_eq!(errors, ["write", "fill", "copy"].map(|call| format!("{call}: {reason}")));
    assert_eq!(host, numbers(0..100));
    Ok(())
}

#[test]
fn read_of_shared_memory_is_not_copied() -> Result<()> {
    let Some(context) = sharing() else { return Ok(()) };
    let queue = context.queue()?;
    let x = queue.zeroed(1 << 20)?;
    add(&queue, &x, 3)?;
    let bytes = block_on(queue.read(&x, 16..1 << 20))?;
    assert_eq!(bytes.as_ptr() as usize, x.raw().host + 16);
    // The bytes keep the memory.
    drop(x);
    let others: Vec<Buffer> = (0..4).map(|_| queue.filled(1 << 20, 0)).collect::<Result<_>>()?;
    block_on(queue.finish())?;
    assert!(others.iter().all(|other| other.raw().host + 16 != bytes.as_ptr() as usize));
    assert!(to_numbers(&bytes).into_iter().all(|number| number == 3));
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
    let context = context();
    let queue = context.queue().unwrap();
    let text = text("KERNEL void f(G int *x) { x[0] = no_such_name; }");
    for _ in 0..2 {
        let error = block_on(queue.compile(ProgramSource::new(&*text, "DeviceFilterExec"))).unwrap_err();
        let start = format!("DeviceFilterExec: kernel does not compile on {}: ", context.info().label());
        assert!(error.to_string().starts_with(&start), "{error}");
        let Error::CompileFailed { text: told, log, operator, .. } = error else { panic!("{error}") };
        assert_eq!((&*told, &*operator), (&*text, "DeviceFilterExec"));
        assert!(log.contains("no_such_name"), "{log}");
    }
    let program = block_on(queue.compile(source())).unwrap();
    assert!(program.kernel("no_such_kernel").unwrap_err().to_string().contains("no_such_kernel"));
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
fn without_profiling_launches_are_counted_and_not_timed() -> Result<()> {
    let context = Context::new(config().with_profiling(false))?;
    let meter = Arc::new(Meter::default());
    let queue = context.queue()?.metered(&meter);
    let x = queue.zeroed(8)?;
    let program = block_on(queue.compile(source()))?;
    queue.launch(&program.kernel("spin")?, Grid { groups: 1, group_size: 1 }, &[(&x).into(), 1_000_000u64.into()])?;
    block_on(queue.finish())?;
    assert_eq!((meter.launches(), meter.kernel_time()), (1, Duration::ZERO));
    assert_eq!((&context.report()["kernels"][0]["launches"], &context.report()["kernels"][0]["nanos"]), (&1.into(), &0.into()));
    Ok(())
}

#[test]
fn compile_options_reach_the_compiler() -> Result<()> {
    let text = text("KERNEL void f(G int *x) { x[0] = ANSWER; x[1] = OWN; }");
    let source = ProgramSource::new(text, "tests").with_option("-DOWN=7");
    let queue = Context::new(config().with_compile_option("-DANSWER=42"))?.queue()?;
    let x = queue.alloc_values::<i32>(2)?;
    let program = block_on(queue.compile(source.clone()))?;
    queue.launch(&program.kernel("f")?, Grid { groups: 1, group_size: 1 }, &[(&x).into()])?;
    assert_eq!(block_on(queue.read_values(&x, 0..2))?, [42, 7]);
    assert!(matches!(block_on(context().queue()?.compile(source)), Err(Error::CompileFailed { .. })));
    Ok(())
}

#[test]
fn log_tells_of_the_device_and_of_each_program() -> Result<()> {
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
fn report_has_the_documented_keys() -> Result<()> {
    let context = context();
    add(&context.queue()?, &context.queue()?.zeroed(80)?, 1)?;
    context.synchronize()?;
    let report = context.report();
    let keys = |value: &serde_json::Value| value.as_object().unwrap().keys().cloned().collect::<Vec<_>>().join(" ");
    assert_eq!(keys(&report), "copies device kernels memory programs version");
    assert_eq!(keys(&report["device"]), "driver driver_version index name platform");
    assert_eq!(keys(&report["kernels"][0]), "launches name nanos");
    assert_eq!(keys(&report["copies"]), "bytes_down bytes_up");
    assert_eq!(keys(&report["programs"]), "cache_hits_disk cache_hits_memory compiled first_launches nanos");
    assert_eq!(keys(&report["memory"]), "allocations cached in_use limit peak reserved");
    assert!(report["programs"]["nanos"].as_u64() > Some(0) && report["memory"]["peak"].as_u64() > Some(0));
    Ok(())
}

#[test]
fn part_of_a_name_a_number_and_a_platform_select() -> Result<()> {
    let info = context().info().clone();
    let by = |selector: &str, platform: &str| {
        Context::new(DeviceConfig::default().with_selector(selector.parse()?).with_platform(platform))
            .map(|found| found.info().clone())
    };
    let part = &info.name[..info.name.len() / 2].to_uppercase();
    assert_eq!(by(part, &info.platform)?, info);
    assert_eq!(by(&format!("#{}", info.index), &info.platform.to_lowercase())?, info);
    let error = by("auto", "no such platform").unwrap_err().to_string();
    assert!(error.contains("device.platform = no such platform must be a part of its platform's name"), "{error}");
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
fn wrong_arguments_and_foreign_things_are_refused() -> Result<()> {
    let (mine, other) = (context().queue()?, context().queue()?);
    let program = block_on(mine.compile(source()))?;
    let (kernel, grid) = (program.kernel("add")?, Grid { groups: 1, group_size: 1 });
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
fn one_kernel_runs_in_ever_wider_grids_at_once() -> Result<()> {
    let contexts = [context(), context()];
    for queues in [vec![&contexts[0]; 6], contexts.iter().cycle().take(6).collect()] {
        let queues = queues.into_iter().map(Context::queue).collect::<Result<Vec<_>>>()?;
        let kernels = queues.iter().map(|queue| block_on(queue.compile(source()))?.kernel("spin"));
        let kernels = kernels.collect::<Result<Vec<_>>>()?;
        let buffers = queues.iter().map(|queue| queue.zeroed(8)).collect::<Result<Vec<_>>>()?;
        let launch = |queue: usize, groups: u32, turns: u64| {
            queues[queue].launch(&kernels[queue], Grid { groups, group_size: 1 }, &[(&buffers[queue]).into(), turns.into()])
        };
        // All are at work on a narrow grid when the last one comes with wider ones. PoCL 3.1 aborts where they overlap.
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
    let plan = testing::FaultPlan::masking(|info| info.unified_memory = false);
    let context = Context::new(config().with_wrap(plan.wrap()))?;
    let (computing, uploading) = (context.queue()?, context.queue()?);
    let program = block_on(computing.compile(source()))?;
    let x = computing.zeroed(8)?;
    let spin = [(&x).into(), 1_000_000_000u64.into()];
    computing.launch(&program.kernel("spin")?, Grid { groups: 1, group_size: 1 }, &spin)?;
    let end = computing.record()?;
    // More than one pinned piece.
    let host: Vec<u64> = (0..1 << 20).collect();
    let y = uploading.upload_values(host.clone())?;
    block_on(uploading.finish())?;
    assert!(!end.is_done()?, "the upload has waited for the kernel");
    // What computes with it waits for it on the device.
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

/// Runs the test `name` in a process of its own with variables set; in that process, answers `true`.
fn alone_with(name: &str, variables: &[(&str, &std::path::Path)]) -> bool {
    const MARK: &str = "DEVICE_TEST_ALONE";
    if std::env::var(MARK).is_ok_and(|alone| alone == name) {
        return true;
    }
    let mut command = std::process::Command::new(std::env::current_exe().unwrap());
    let output = command.args(["--exact", name]).env(MARK, name).envs(variables.iter().copied()).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
    assert!(String::from_utf8_lossy(&output.stdout).contains("1 passed"));
    false
}

#[test]
fn texts_in_the_common_dialect_are_left_in_a_folder() {
    let folder = tempfile::tempdir().unwrap();
    let texts = folder.path().join("texts");
    if !alone_with("tests::texts_in_the_common_dialect_are_left_in_a_folder", &[("DEVICEFUSION_DUMP_KERNELS", &texts)]) {
        return;
    }
    let texts = std::path::PathBuf::from(std::env::var_os("DEVICEFUSION_DUMP_KERNELS").unwrap());
    let common = "#ifdef __OPENCL_VERSION__\nkernel void\n#else\nextern \"C\" __global__ void\n#endif\nf() {}\n";
    let broken = format!("{common}nonsense");
    for _ in 0..2 {
        let context = context();
        let queue = context.queue().unwrap();
        let of_one_compiler = match context.info().driver {
            DriverKind::OpenCl => "kernel void f() {}",
            DriverKind::Cuda => "extern \"C\" __global__ void f() {}",
        };
        for text in [common, of_one_compiler] {
            block_on(queue.compile(ProgramSource::new(text, "tests"))).unwrap();
        }
        block_on(queue.compile(ProgramSource::new(common, "tests").with_option("-DX"))).unwrap();
        block_on(queue.compile(ProgramSource::new(&*broken, "tests"))).unwrap_err();
    }
    let files: Vec<_> = std::fs::read_dir(texts).unwrap().map(|file| file.unwrap().path()).collect();
    let [file] = &files[..] else { panic!("{files:?}") };
    assert_eq!((file.extension().unwrap().to_str(), &*std::fs::read_to_string(file).unwrap()), (Some("cl"), common));
}

#[test]
fn log_that_panics_costs_one_program() {
    let log: crate::LogSink = Arc::new(|line| assert!(!line.starts_with("program of PanicExec")));
    let context = Context::new(config().with_log(log)).unwrap();
    let queue = context.queue().unwrap();
    for index in 0..2 * std::thread::available_parallelism().unwrap().get() {
        let source = ProgramSource::new(text("KERNEL void f() {}"), "PanicExec").with_option(format!("-DX={index}"));
        assert!(matches!(block_on(queue.compile(source)), Err(Error::Interrupted(_))));
    }
    assert!(block_on(queue.compile(source())).is_ok());
}

#[test]
fn machine_without_a_platform_says_so() {
    let nowhere = tempfile::tempdir().unwrap();
    let variables = [("OCL_ICD_VENDORS", nowhere.path()), ("CUDA_VISIBLE_DEVICES", "".as_ref())];
    if alone_with("tests::machine_without_a_platform_says_so", &variables) {
        let error = Context::new(DeviceConfig::default().with_selector(Selector::OpenCl)).unwrap_err().to_string();
        assert!(error.starts_with("device opencl: no driver could be opened: "), "{error}");
        // A machine with a GPU may have no loader at all.
        let known = ["knows no driver; for a CPU install pocl-opencl-icd", "cannot be opened; install ocl-icd-libopencl1"];
        assert!(known.iter().any(|known| error.contains(&format!("opencl: libOpenCL.so.1 {known}"))), "{error}");
    }
}

#[test]
fn file_of_a_driver_that_cannot_be_opened_is_named_alone_and_in_its_folder() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("broken.icd");
    std::fs::write(&file, "/nowhere/libbroken.so\n").unwrap();
    for vendors in [folder.path(), &file] {
        let variables = [("OCL_ICD_VENDORS", vendors), ("CUDA_VISIBLE_DEVICES", "".as_ref())];
        if alone_with("tests::file_of_a_driver_that_cannot_be_opened_is_named_alone_and_in_its_folder", &variables) {
            let error = Context::new(DeviceConfig::default().with_selector(Selector::OpenCl)).unwrap_err().to_string();
            // A machine with a GPU may have no loader at all.
            let named = error.contains("broken.icd names \"/nowhere/libbroken.so\": ") && error.contains("No such file");
            assert!(named || error.contains("libOpenCL.so.1 cannot be opened"), "{error}");
            return;
        }
    }
}

#[test]
fn machine_without_the_library_says_so() {
    let folder = tempfile::tempdir().unwrap();
    // The loader finds this first, and it is no library.
    std::fs::write(folder.path().join("libOpenCL.so.1"), "").unwrap();
    if alone_with(
        "tests::machine_without_the_library_says_so",
        &[("LD_LIBRARY_PATH", folder.path()), ("CUDA_VISIBLE_DEVICES", "".as_ref())],
    ) {
        let problems: Vec<_> = crate::devices().into_iter().filter_map(|entry| entry.problem).collect();
        assert!(problems.iter().any(|problem| problem.starts_with("libOpenCL.so.1 cannot be opened")), "{problems:?}");
        assert!(matches!(Context::new(DeviceConfig::default()), Err(Error::NoDriver { .. })));
    }
}

mod faults {
    //! Limits, failures and dropped work.

    use super::*;
    use crate::testing::{Fault, FaultPlan, Live};

    const PATIENCE: Duration = Duration::from_secs(20);

    fn context(plan: &FaultPlan) -> Context {
        Context::new(config().with_wrap(plan.wrap())).unwrap()
    }

    /// A small query: two uploads, a fill, two programs' worth of launches, a read.
    fn query(context: &Context) -> Result<Vec<u64>> {
        let queue = context.queue()?;
        let x = queue.upload(numbers(0..100))?;
        let y = queue.filled(800, 0)?;
        queue.copy(&x, 0, &y, 0, 800)?;
        add(&queue, &y, 1)?;
        add(&queue, &y, 2)?;
        Ok(to_numbers(&block_on(queue.read(&y, 0..800))?))
    }

    #[test]
    fn failure_of_every_single_call_is_an_error_and_heals() -> Result<()> {
        for unified in [true, false] {
            for fault in [Fault::Alloc, Fault::Launch, Fault::Compile, Fault::Copy, Fault::Queue] {
                let plan = FaultPlan::masking(move |info| info.unified_memory &= unified);
                query(&context(&plan))?;
                let calls = plan.calls(fault);
                assert!(calls > 0);
                for n in 1..=calls {
                    let context = context(&plan);
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
    fn lost_device_is_noted_whatever_call_tells_of_it_first() -> Result<()> {
        type Call = fn(&Queue, &Program) -> Option<Error>;
        let calls: [(&str, Call); 6] = [
            ("compile", |queue, _| block_on(queue.compile(ProgramSource::new(text("KERNEL void other() {}"), "tests"))).err()),
            ("kernel", |_, program| program.kernel("spin").err()),
            ("upload", |queue, _| queue.upload(numbers(0..100)).err()),
            ("alloc", |queue, _| queue.alloc(1 << 16).err()),
            ("create_queue", |queue, _| queue.context().queue().err()),
            ("launch", |queue, program| {
                let args = [0u64.into()];
                queue.launch(&program.kernel("add").ok()?, Grid { groups: 1, group_size: 1 }, &args).err()
            }),
        ];
        for unified in [true, false] {
            for (name, call) in &calls {
                let plan = FaultPlan::masking(move |info| info.unified_memory &= unified);
                let context = context(&plan);
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
        let context = context(&plan);
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
            let context = context(&plan);
            let queue = context.queue()?;
            let program = block_on(queue.compile(source()))?;
            let host = numbers(0..10_000);
            let x = queue.upload(host.clone())?;
            let y = queue.alloc(80_000)?;
            let grid = Grid { groups: 1, group_size: 1 };
            queue.copy(&x, 0, &y, 0, 80_000)?;
            queue.launch(&program.kernel("spin")?, grid, &[(&y).into(), 300_000_000u64.into()])?;
            add(&queue, &y, 1)?;
            let read = queue.read(&y, 0..80_000);
            let finish = queue.finish();
            drop((read, finish, x, y, queue, program));
            assert_eq!(context.pool().in_use(), 0);
            drop(context);
            assert_ne!(plan.live(), Live::default(), "nobody has waited: the kernel is still running");
            plan.wait_until_nothing_is_alive(PATIENCE).unwrap();
            // The upload's bytes have been let go as well.
            assert!(host.try_into_mut().is_ok());
        }
        Ok(())
    }

    #[test]
    fn memory_in_use_elsewhere_is_waited_for_on_the_device() -> Result<()> {
        let context = Context::new(config().with_memory_bytes(1 << 20))?;
        let (first, second) = (context.queue()?, context.queue()?);
        let program = block_on(first.compile(source()))?;
        let grid = Grid { groups: 1, group_size: 1 };
        for bytes in [1 << 20, 1 << 19] {
            let x = first.zeroed(1 << 20)?;
            first.launch(&program.kernel("spin")?, grid, &[(&x).into(), 50_000_000u64.into()])?;
            drop(x);
            // The whole limit is in use by a kernel that still runs.
            let y = second.zeroed(bytes)?;
            add(&second, &y, 3)?;
            let read = block_on(second.read(&y, 0..y.len()))?;
            assert!(to_numbers(&read).into_iter().all(|number| number == 3));
        }
        Ok(())
    }

    /// A queue with work whose failure will be seen once a long launch has completed.
    fn failing(plan: &FaultPlan, context: &Context) -> Result<(Queue, Buffer)> {
        let queue = context.queue()?;
        let x = queue.zeroed(1 << 19)?;
        let program = block_on(queue.compile(source()))?;
        plan.fail(Fault::Wait, 1, 1);
        let grid = Grid { groups: 1, group_size: 1 };
        queue.launch(&program.kernel("spin")?, grid, &[(&x).into(), 100_000_000u64.into()])?;
        Ok((queue, x))
    }

    #[test]
    fn failure_of_work_is_told_by_every_future() -> Result<()> {
        let plan = FaultPlan::new();
        let context = context(&plan);
        let (queue, x) = failing(&plan, &context)?;
        let event = queue.record()?;
        // Nobody is there to be told by these.
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
    fn queue_whose_work_failed_after_its_return_is_not_given_out() -> Result<()> {
        let plan = FaultPlan::new();
        let context = context(&plan);
        let (queue, x) = failing(&plan, &context)?;
        let event = queue.record()?;
        drop((queue, x));
        assert!(block_on(event.wait()).is_err());
        drop(event);
        let queues = (0..3).map(|_| context.queue()).collect::<Result<Vec<_>>>()?;
        queues.iter().try_for_each(|queue| block_on(queue.finish()))
    }

    #[test]
    fn failure_of_work_is_not_told_to_others_that_wait_for_its_memory() -> Result<()> {
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
        let context = context(&plan);
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
        let context = context(&plan);
        let queues = (0..4).map(|_| context.queue()).collect::<Result<Vec<_>>>()?;
        drop(queues);
        assert_eq!(plan.live().queues, 4);
        context.trim();
        assert_eq!(plan.live().queues, 0);
        query(&context).map(|_| ())
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
    fn limit_too_small_to_work_with_is_refused() -> Result<()> {
        let error = Context::new(config().with_memory_bytes(65_535)).unwrap_err();
        assert_eq!(error.to_string(), "device.memory_bytes = 65535: must be 0, for the device's default, or at least 65536");
        assert_eq!(Context::new(config().with_memory_bytes(65_536))?.pool().limit(), 65_536);
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
                 raise device.memory_bytes or run fewer queries at once"
            )
        );
        drop(half);
        let plan = FaultPlan::new();
        let other = self::context(&plan);
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
    fn device_without_capabilities_is_refused_by_name() {
        let plan = FaultPlan::masking(|info| (info.fp64, info.atomics64) = (false, false));
        let error = Context::new(config().with_wrap(plan.wrap())).unwrap_err().to_string();
        assert!(error.contains("cannot be used: it lacks double precision (cl_khr_fp64) and 64-bit atomics"), "{error}");
        assert!(error.ends_with("; device.selector chooses another"), "{error}");
    }

    #[test]
    fn arguments_beyond_the_limit_are_refused() -> Result<()> {
        let plan = FaultPlan::masking(|info| info.max_arg_bytes = 20);
        let context = context(&plan);
        let queue = context.queue()?;
        let error = add(&queue, &queue.zeroed(8)?, 1).unwrap_err();
        let label = context.info().label();
        assert_eq!(error.to_string(), format!("kernel add on {label}: arguments of 24 bytes exceed the limit of 20"));
        let program = block_on(queue.compile(source()))?;
        let empty = queue.launch(&program.kernel("add")?, Grid { groups: 0, group_size: 1 }, &[]).unwrap_err();
        assert_eq!(empty.to_string(), format!("kernel add on {label}: a grid of 0 groups of 1 items is empty"));
        Ok(())
    }

    #[test]
    fn copied_memory_overlaps_in_pieces_and_comes_back() -> Result<()> {
        let plan = FaultPlan::masking(|info| info.unified_memory = false);
        let context = context(&plan);
        let queue = context.queue()?;
        // More than may be on its way at once.
        let bytes = numbers(0..40 << 17);
        let x = queue.upload(bytes.clone())?;
        assert_eq!(x.raw().host, 0);
        add(&queue, &x, 1)?;
        let read = block_on(queue.read(&x, 8..x.len()))?;
        assert!(to_numbers(&read).into_iter().eq(2..(40 << 17) + 1));
        Ok(())
    }

    #[test]
    fn cache_folder_serves_the_next_context() -> Result<()> {
        let folder = tempfile::tempdir().unwrap();
        let config = || config().with_cache_dir(folder.path().join("programs"));
        let compile = |config: DeviceConfig| -> Result<_> {
            let context = Context::new(config)?;
            assert!(block_on(context.queue()?.compile(source()))?.kernel("add").is_ok());
            let counters = context.counters();
            Ok((counters.programs_compiled, counters.cache_hits_disk))
        };
        assert_eq!(compile(config())?, (1, 0));
        assert_eq!(compile(config())?, (0, 1));
        // Other options are another program.
        assert_eq!(compile(config().with_compile_option("-DX=1"))?, (1, 0));
        let files = || std::fs::read_dir(folder.path().join("programs")).unwrap().map(|file| file.unwrap().path());
        assert_eq!(files().count(), 2);
        // A damaged byte, a cut file and an empty one cost a compilation and are replaced.
        type Damage = fn(&mut Vec<u8>);
        let damages: [Damage; 3] = [|file| *file.last_mut().unwrap() ^= 1, |file| file.truncate(20), Vec::clear];
        for damage in damages {
            for path in files() {
                let mut file = std::fs::read(&path).unwrap();
                damage(&mut file);
                std::fs::write(&path, file).unwrap();
            }
            assert_eq!(compile(config())?, (1, 0));
            assert_eq!(compile(config())?, (0, 1));
        }
        Ok(())
    }
}
