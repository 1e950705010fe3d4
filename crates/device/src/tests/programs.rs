// SPDX-License-Identifier: Apache-2.0
//! Programs: errors, options, caches and folders.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::*;
use crate::{Arg, CacheDir, DriverKind, Error, Parameter};

#[test]
fn failed_compilation_reports_source_log_and_operator() {
    let context = context();
    let queue = context.queue().unwrap();
    let broken = in_dialect("KERNEL void f(G int *x) { x[0] = no_such_name; }");
    for _ in 0..2 {
        let error = block_on(queue.compile(ProgramSource::new(&*broken, "DeviceFilterExec"))).unwrap_err();
        let start = format!("DeviceFilterExec: kernel does not compile on {}: ", context.info().label());
        assert!(error.to_string().starts_with(&start), "{error}");
        let Error::CompileFailed { kernel_source: told, log, operator, .. } = error else { panic!("{error}") };
        assert_eq!((&*told, &*operator), (&*broken, "DeviceFilterExec"));
        assert!(log.contains("no_such_name"), "{log}");
    }
    let program = block_on(queue.compile(source())).unwrap();
    assert!(program.kernel("no_such_kernel").unwrap_err().to_string().contains("no_such_kernel"));
}

#[test]
fn compile_options_reach_the_compiler() -> Result<()> {
    let source = in_dialect("KERNEL void f(G int *x) { x[0] = ANSWER; x[1] = OWN; }");
    let source = ProgramSource::new(source, "tests").with_option("-DOWN=7");
    let queue = Context::new(config().with_compile_option("-DANSWER=42"))?.queue()?;
    let x = queue.alloc_values::<i32>(2)?;
    let program = block_on(queue.compile(source.clone()))?;
    queue.launch(&program.kernel("f")?, Grid { work_groups: 1, work_group_size: 1 }, &[(&x).into()])?;
    assert_eq!(block_on(queue.read_values(&x, 0..2))?, [42, 7]);
    assert!(matches!(block_on(context().queue()?.compile(source)), Err(Error::CompileFailed { .. })));
    Ok(())
}

#[test]
fn a_source_may_ask_for_no_optimization() -> Result<()> {
    let context = Context::new(DeviceConfig { compile_options: vec![], ..config() })?;
    if !context.info().platform.contains("Portable Computing Language") {
        return Ok(());
    }
    let text = "#ifdef __OPTIMIZE__\n#define YES 1\n#else\n#define YES 0\n#endif\nKERNEL void f(G int *x) { x[0] = YES; }";
    let queue = context.queue()?;
    let x = queue.alloc_values::<i32>(1)?;
    for is_optimized in [true, false] {
        let source = ProgramSource { is_optimized, ..ProgramSource::new(in_dialect(text), "tests") };
        let program = block_on(queue.compile(source))?;
        queue.launch(&program.kernel("f")?, Grid { work_groups: 1, work_group_size: 1 }, &[(&x).into()])?;
        assert_eq!(block_on(queue.read_values(&x, 0..1))?, [i32::from(is_optimized)]);
    }
    Ok(())
}

/// A program of one kernel, which returns from a dry launch.
pub(super) fn prepared(value: i32) -> ProgramSource {
    prepared_of(&value.to_string())
}

/// The same, of a value in C. IS_OPTIMIZED is 1 if the program is optimized, else 0.
pub(super) fn prepared_of(value: &str) -> ProgramSource {
    let is_optimized = "#ifdef __OPTIMIZE__\n#define IS_OPTIMIZED 1\n#else\n#define IS_OPTIMIZED 0\n#endif\n";
    let leave = "#ifdef __OPENCL_VERSION__\n  if (get_num_groups(1) != 1) return;\n#endif\n";
    let text = format!("{is_optimized}KERNEL void f(G int *x, int y) {{\n{leave}  x[0] = {value} + y;\n}}");
    let dry_launches = Arc::new([("f".to_owned(), vec![Parameter::Memory, Parameter::Value(4)])]);
    ProgramSource { dry_launches, ..ProgramSource::new(in_dialect(&text), "tests") }
}

fn wait_until_prepared(context: &Context) {
    assert!(context.wait_until_prepared(Duration::from_secs(300)), "{} programs are not compiled", context.unprepared());
}

#[test]
fn prepared_programs_are_compiled_while_no_query_runs() -> Result<()> {
    let context = context();
    let queue = context.queue()?;
    let value_of = |value: i32| {
        let x = queue.alloc_values::<i32>(1)?;
        let program = block_on(queue.compile(prepared(value)))?;
        let grid = Grid { work_groups: 1, work_group_size: 1 };
        queue.launch(&program.kernel("f")?, grid, &[(&x).into(), Arg::I32(1)])?;
        Ok(block_on(queue.read_values(&x, 0..1))?[0])
    };
    let broken = ProgramSource::new(in_dialect("KERNEL void f(G int *x) { x[0] = no_such_name; }"), "tests");
    context.prepare(vec![prepared(1), broken.clone()]);
    assert!(!context.is_ready(&prepared(2)));
    wait_until_prepared(&context);
    // A dry launch is no launch.
    assert_eq!((context.counters().launches, context.counters().programs_compiled), (0, 1));
    assert!(context.is_ready(&prepared(1)) && context.is_ready(&broken));
    assert_eq!(value_of(1)?, 2);
    assert_eq!(context.counters().programs_compiled, 1);
    assert!(matches!(block_on(queue.compile(broken)), Err(Error::CompileFailed { .. })));

    // Beside a running query each of them waits two seconds, unless it is needed.
    let query = context.begin_query(1);
    context.prepare((10..30).map(prepared).collect());
    let begin = Instant::now();
    assert_eq!(value_of(29)?, 30);
    assert!(context.unprepared() >= 10 && begin.elapsed() < Duration::from_secs(30), "{:?}", begin.elapsed());
    drop(query);
    wait_until_prepared(&context);
    assert!((10..30).all(|value| context.is_ready(&prepared(value))));
    // A context that is dropped compiles no further.
    context.prepare((30..40).map(prepared).collect());
    Ok(())
}

#[test]
fn compiled_programs_for_gpus_have_a_folder_by_default() -> Result<()> {
    let folder = tempfile::tempdir().unwrap();
    let cache_dir = CacheDir::GpuDefault(folder.path().join("programs"));
    let counters = || -> Result<_> {
        let context = Context::new(DeviceConfig { cache_dir: cache_dir.clone(), ..config() })?;
        block_on(context.queue()?.compile(prepared(1)))?;
        Ok((context.info().kind, context.counters().cache_hits_disk))
    };
    let (first, second) = (counters()?, counters()?);
    let expected = if first.0 == crate::DeviceKind::Cpu { 0 } else { 1 };
    assert_eq!((first.1, second.1), (0, expected));
    assert_eq!(folder.path().join("programs").exists(), expected == 1);
    // A default that cannot be used is no mistake, unlike a setting.
    let file = tempfile::NamedTempFile::new().unwrap();
    Context::new(DeviceConfig { cache_dir: CacheDir::GpuDefault(file.path().to_owned()), ..config() })?;
    assert!(Context::new(config().with_cache_dir(file.path())).is_err());
    Ok(())
}

/// PoCL skips its header for such a source, and reads it after all if a declaration is missing.
#[test]
fn sources_declare_the_functions_they_call() -> Result<()> {
    let context = context();
    let is_pocl = context.info().platform.contains("Portable Computing Language");
    let queue = context.queue()?;
    for (function, leaves_away) in [("get_local_id", is_pocl), ("get_global_id", false)] {
        let declares = format!(
            "#ifdef BUILTINS_UNDECLARED\n#define LEFT_AWAY 1\nulong __attribute__((overloadable, const)) {function}(uint);\n#else\n#define LEFT_AWAY 0\n#endif\n"
        );
        let calls = match context.info().driver {
            DriverKind::OpenCl => "get_local_id(0)",
            DriverKind::Cuda => "threadIdx.x",
        };
        let source = in_dialect(&format!("{declares}KERNEL void f(G int *x) {{ x[{calls}] = LEFT_AWAY; }}"));
        let program = block_on(queue.compile(ProgramSource::new(source, "tests")))?;
        let x = queue.alloc_values::<i32>(1)?;
        queue.launch(&program.kernel("f")?, Grid { work_groups: 1, work_group_size: 1 }, &[(&x).into()])?;
        assert_eq!(block_on(queue.read_values(&x, 0..1))?, [i32::from(leaves_away)], "{function}");
    }
    Ok(())
}

#[test]
fn log_that_panics_costs_one_program() {
    let log: crate::LogSink = Arc::new(|line| assert!(!line.starts_with("program of PanicExec")));
    let context = Context::new(config().with_log(log)).unwrap();
    let queue = context.queue().unwrap();
    for index in 0..2 * std::thread::available_parallelism().unwrap().get() {
        let source = ProgramSource::new(in_dialect("KERNEL void f() {}"), "PanicExec").with_option(format!("-DX={index}"));
        assert!(matches!(block_on(queue.compile(source)), Err(Error::Interrupted(_))));
    }
    assert!(block_on(queue.compile(source())).is_ok());
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
    // Other options make another program.
    assert_eq!(compile(config().with_compile_option("-DX=1"))?, (1, 0));
    let files = || std::fs::read_dir(folder.path().join("programs")).unwrap().map(|file| file.unwrap().path());
    assert_eq!(files().count(), 2);
    // A damaged, a truncated and an empty file are replaced by a compilation.
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

#[test]
fn sources_in_the_common_dialect_are_left_in_a_folder() {
    crate::skip_unless_turn!(6);
    let folder = tempfile::tempdir().unwrap();
    let sources = folder.path().join("sources");
    let variables = [("DEVICEFUSION_DUMP_KERNELS", &*sources)];
    if !alone_with("tests::programs::sources_in_the_common_dialect_are_left_in_a_folder", &variables) {
        return;
    }
    let sources = std::path::PathBuf::from(std::env::var_os("DEVICEFUSION_DUMP_KERNELS").unwrap());
    let common = "#ifdef __OPENCL_VERSION__\nkernel void\n#else\nextern \"C\" __global__ void\n#endif\nf() {}\n";
    let broken = format!("{common}nonsense");
    for _ in 0..2 {
        let context = context();
        let queue = context.queue().unwrap();
        let of_one_compiler = match context.info().driver {
            DriverKind::OpenCl => "kernel void f() {}",
            DriverKind::Cuda => "extern \"C\" __global__ void f() {}",
        };
        for source in [common, of_one_compiler] {
            block_on(queue.compile(ProgramSource::new(source, "tests"))).unwrap();
        }
        block_on(queue.compile(ProgramSource::new(common, "tests").with_option("-DX"))).unwrap();
        block_on(queue.compile(ProgramSource::new(&*broken, "tests"))).unwrap_err();
    }
    let files: Vec<_> = std::fs::read_dir(sources).unwrap().map(|file| file.unwrap().path()).collect();
    let [file] = &files[..] else { panic!("{files:?}") };
    assert_eq!((file.extension().unwrap().to_str(), &*std::fs::read_to_string(file).unwrap()), (Some("cl"), common));
}

#[test]
fn programs_are_left_in_a_folder_and_taken_from_there() -> Result<()> {
    crate::skip_unless_turn!(1, Ok(()));
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let of = |extension: &str| -> Vec<_> {
        let paths = std::fs::read_dir(folder).unwrap().map(|file| file.unwrap().path());
        paths.filter(|path| path.extension().is_some_and(|found| found == extension)).collect()
    };
    let run = |config: DeviceConfig| -> Result<_> {
        let context = Context::new(config)?;
        let queue = context.queue()?;
        let x = queue.alloc_values::<i32>(1)?;
        let program = block_on(queue.compile(ProgramSource::new(in_dialect("KERNEL void f(G int *x) { x[0] = 1; }"), "tests")))?;
        queue.launch(&program.kernel("f")?, Grid { work_groups: 1, work_group_size: 1 }, &[(&x).into()])?;
        let counters = context.counters();
        Ok((block_on(queue.read_values(&x, 0..1))?[0], counters.programs_compiled, counters.cache_hits_disk))
    };
    assert_eq!(run(config().with_dump_programs(folder))?, (1, 1, 0));
    let (sources, images) = (of("cl"), of("program"));
    assert_eq!((sources.len(), images.len()), (1, 1));
    assert!(std::fs::read_to_string(&sources[0]).unwrap().contains("x[0] = 1;"));

    assert_eq!(run(config().with_load_programs(folder))?, (1, 0, 1));
    // A program from one folder can be left in another.
    let other = tempfile::tempdir().unwrap();
    assert_eq!(run(config().with_load_programs(folder).with_dump_programs(other.path()))?, (1, 0, 1));
    assert_eq!(std::fs::read_dir(other.path()).unwrap().count(), 2);

    // An edited source takes precedence over the image.
    let edited = std::fs::read_to_string(&sources[0]).unwrap().replace("x[0] = 1;", "x[0] = 2;");
    std::fs::write(&sources[0], edited).unwrap();
    assert_eq!(run(config().with_load_programs(folder))?, (2, 1, 0));
    std::fs::remove_file(&images[0]).unwrap();
    std::fs::remove_file(&sources[0]).unwrap();
    assert_eq!(run(config().with_load_programs(folder))?, (1, 1, 0));
    assert_eq!(std::fs::read_dir(folder).unwrap().count(), 0);

    let error = Context::new(config().with_load_programs(folder.join("missing"))).unwrap_err().to_string();
    assert!(error.starts_with("device.load_programs = ") && error.contains("cannot be used as a folder"), "{error}");
    Ok(())
}

/// Programs of another user would run as this one.
#[cfg(unix)]
#[test]
fn folders_that_others_can_write_to_are_refused() -> Result<()> {
    use std::os::unix::fs::{MetadataExt, PermissionsExt};
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    let configs = || [config().with_cache_dir(path), config().with_dump_programs(path), config().with_load_programs(path)];
    for mode in [0o777, 0o770, 0o1777, 0o702] {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
        for config in configs() {
            let error = Context::new(config).unwrap_err().to_string();
            assert!(error.starts_with("device.") && error.contains("other users can write to it (mode 7"), "{error}");
        }
    }
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).unwrap();
    for config in configs() {
        Context::new(config)?;
    }
    // A new folder is for this user alone, whatever the umask.
    let new = path.join("a/b");
    Context::new(config().with_cache_dir(&new))?;
    assert_eq!(new.metadata().unwrap().mode() & 0o777, 0o700);
    Ok(())
}
