// SPDX-License-Identifier: Apache-2.0
//! PoCL's folder of programs. A process checks it once, so each run is a process of its own.

use std::path::{Path, PathBuf};

use super::*;
use crate::Arg;

/// The variable of PoCL's folder.
const FOLDER: &str = "POCL_CACHE_DIR";

/// The variable of a process that dies.
const DIES: &str = "DEVICE_TEST_DIES";

/// The files below a folder, but for those of no bytes.
fn files(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let entry = entry.unwrap();
        match entry.file_type().unwrap().is_dir() {
            true => found.extend(files(&entry.path())),
            false if entry.metadata().unwrap().len() == 0 => {}
            false => found.push(entry.path()),
        }
    }
    found
}

fn with_extension(folder: &Path, extension: &str) -> Vec<PathBuf> {
    let mut found = files(folder);
    found.retain(|path| path.extension().is_some_and(|found| found == extension));
    found
}

/// Compiles and runs a program of two kernels.
fn run() {
    let queue = context().queue().unwrap();
    let x = queue.upload_values(vec![5_i32]).unwrap();
    let source = in_dialect("KERNEL void f(G int *x) { x[0] *= 2; }\nKERNEL void g(G int *x) { x[0] += 3; }");
    let program = block_on(queue.compile(ProgramSource::new(source, "tests"))).unwrap();
    for kernel in ["f", "g"] {
        let grid = Grid { work_groups: 1, work_group_size: 1 };
        queue.launch(&program.kernel(kernel).unwrap(), grid, &[(&x).into()]).unwrap();
    }
    assert_eq!(block_on(queue.read_values(&x, 0..1)).unwrap(), [13]);
}

fn damage(files: Vec<PathBuf>, damage: impl Fn(&mut Vec<u8>)) {
    for file in files {
        let mut bytes = std::fs::read(&file).unwrap();
        damage(&mut bytes);
        std::fs::write(&file, bytes).unwrap();
    }
}

/// A process that prepares a program has its machine code before the first launch.
#[test]
fn prepared_programs_have_machine_code() {
    const NAME: &str = "tests::pocl_cache::prepared_programs_have_machine_code";
    let folder = tempfile::tempdir().unwrap();
    if alone_with(NAME, &[(FOLDER, folder.path())]) {
        let context = context();
        context.prepare(vec![programs::prepared(1)]);
        assert!(context.wait_until_prepared(std::time::Duration::from_secs(300)));
        assert_eq!(context.counters().launches, 0);
        return;
    }
    if with_extension(folder.path(), "bc").is_empty() {
        return println!("skipped: the device is not PoCL's");
    }
    assert_eq!(with_extension(folder.path(), "so").len(), 1);
}

/// A program that a query waits for is compiled without optimization. Launches use the optimized
/// one once it is there, and later processes begin with it.
#[test]
fn programs_are_compiled_in_two_tiers() {
    const NAME: &str = "tests::pocl_cache::programs_are_compiled_in_two_tiers";
    let folder = tempfile::tempdir().unwrap();
    let alone = || alone_with(NAME, &[(FOLDER, folder.path())]);
    if alone() {
        return run_in_tiers(Path::new(&std::env::var_os(FOLDER).unwrap()));
    }
    if with_extension(folder.path(), "bc").is_empty() {
        return println!("skipped: the device is not PoCL's");
    }
    assert_eq!(with_extension(folder.path(), "so").len(), 2);
    assert!(!alone());
    assert_eq!(with_extension(folder.path(), "so").len(), 2);
}

/// The second process finds the note of the first.
fn run_in_tiers(folder: &Path) {
    let is_noted = folder.join("devicefusion/optimized").exists();
    let context = Context::new(DeviceConfig { compile_options: vec![], ..config() }).unwrap();
    let queue = context.queue().unwrap();
    let x = queue.alloc_values::<i32>(1).unwrap();
    // While a query runs, optimization waits for two seconds.
    let query = context.begin_query(1);
    let program = block_on(queue.compile(programs::prepared_of("IS_OPTIMIZED"))).unwrap();
    let is_optimized = || {
        let grid = Grid { work_groups: 1, work_group_size: 1 };
        queue.launch(&program.kernel("f").unwrap(), grid, &[(&x).into(), Arg::I32(0)]).unwrap();
        block_on(queue.read_values(&x, 0..1)).unwrap()[0] == 1
    };
    if context.info().platform.contains("Portable Computing Language") {
        assert_eq!(is_optimized(), is_noted);
        drop(query);
        assert!(context.wait_until_prepared(std::time::Duration::from_secs(300)));
        assert!(is_optimized());
        let counters = context.counters();
        assert_eq!((counters.programs_compiled, counters.programs_optimized), (1, u64::from(!is_noted)));
        assert!(context.is_ready(&programs::prepared_of("IS_OPTIMIZED")));
    }
}

/// A driver may have one lock for all compilations, and an optimization takes long.
#[test]
fn optimizations_wait_until_no_more_programs_are_requested() {
    const NAME: &str = "tests::pocl_cache::optimizations_wait_until_no_more_programs_are_requested";
    let folder = tempfile::tempdir().unwrap();
    if !alone_with(NAME, &[(FOLDER, folder.path())]) {
        return;
    }
    let context = Context::new(DeviceConfig { compile_options: vec![], ..config() }).unwrap();
    if !context.info().platform.contains("Portable Computing Language") {
        return println!("skipped: the device is not PoCL's");
    }
    let queue = context.queue().unwrap();
    let begin = std::time::Instant::now();
    let mut programs = vec![];
    while begin.elapsed() < std::time::Duration::from_secs(4) {
        let query = context.begin_query(1);
        programs.push(block_on(queue.compile(programs::prepared_of(&format!("{}", programs.len())))).unwrap());
        drop(query);
        std::thread::sleep(std::time::Duration::from_millis(200));
        assert_eq!(context.counters().programs_optimized, 0, "after {} programs", programs.len());
    }
    assert!(context.wait_until_prepared(std::time::Duration::from_secs(300)));
    assert_eq!(context.counters().programs_optimized, programs.len() as u64);
}

#[test]
fn programs_whose_optimization_fails_keep_their_first_tier() {
    const NAME: &str = "tests::pocl_cache::programs_whose_optimization_fails_keep_their_first_tier";
    let folder = tempfile::tempdir().unwrap();
    if !alone_with(NAME, &[(FOLDER, folder.path())]) {
        return;
    }
    let plan = FaultPlan::new().with_tiers();
    let context = Context::new(DeviceConfig { compile_options: vec![], ..config().with_wrap(plan.wrap()) }).unwrap();
    if !context.info().platform.contains("Portable Computing Language") {
        return println!("skipped: the device is not PoCL's");
    }
    let queue = context.queue().unwrap();
    let x = queue.alloc_values::<i32>(1).unwrap();
    plan.fail_compile(2);
    let source = || programs::prepared_of("7 + 10 * IS_OPTIMIZED");
    let value = || {
        let program = block_on(queue.compile(source())).unwrap();
        let grid = Grid { work_groups: 1, work_group_size: 1 };
        queue.launch(&program.kernel("f").unwrap(), grid, &[(&x).into(), Arg::I32(0)]).unwrap();
        block_on(queue.read_values(&x, 0..1)).unwrap()[0]
    };
    assert_eq!(value(), 7);
    assert!(context.wait_until_prepared(std::time::Duration::from_secs(300)));
    assert_eq!((value(), context.counters().programs_optimized), (7, 0));
    assert_eq!(std::fs::read_dir(folder.path().join("devicefusion/optimized")).map_or(0, Iterator::count), 0);
}

#[test]
fn damaged_files_are_compiled_again() {
    crate::skip_unless_turn!(3);
    const NAME: &str = "tests::pocl_cache::damaged_files_are_compiled_again";
    let folder = tempfile::tempdir().unwrap();
    let alone = || alone_with(NAME, &[(FOLDER, folder.path())]);
    if alone() {
        return run();
    }
    let programs = || (with_extension(folder.path(), "bc").len(), with_extension(folder.path(), "so").len());
    if programs() == (0, 0) {
        return println!("skipped: the device is not PoCL's");
    }
    assert_eq!(programs(), (1, 2));
    let damages: [fn(&mut Vec<u8>); 6] = [
        |bytes| bytes.clear(),
        |bytes| bytes.truncate(bytes.len() / 2),
        |bytes| bytes.truncate(bytes.len() - 1),
        |bytes| bytes.fill(0x5a),
        |bytes| bytes.fill(0),
        |bytes| {
            let half = bytes.len() / 2;
            bytes[half..].fill(0);
        },
    ];
    for change in damages {
        damage(files(folder.path()), change);
        assert!(!alone());
        assert_eq!(programs(), (1, 2));
    }
}

#[test]
fn a_process_that_dies_leaves_a_check_to_the_next() {
    crate::skip_unless_turn!(7);
    const NAME: &str = "tests::pocl_cache::a_process_that_dies_leaves_a_check_to_the_next";
    let folder = tempfile::tempdir().unwrap();
    let alone = || alone_with(NAME, &[(FOLDER, folder.path())]);
    if alone() {
        run();
        if std::env::var_os(DIES).is_some() {
            std::process::abort();
        }
        return;
    }
    let programs = || [with_extension(folder.path(), "bc"), with_extension(folder.path(), "so")].concat();
    if programs().is_empty() {
        return println!("skipped: the device is not PoCL's");
    }
    let notes = || {
        let entries = std::fs::read_dir(folder.path().join("devicefusion")).unwrap();
        entries.filter(|entry| entry.as_ref().unwrap().path().extension() == Some("running".as_ref())).count()
    };
    assert_eq!(notes(), 0, "a process that ends takes its note along");
    let dying = output_alone(NAME, &[(FOLDER, folder.path()), (DIES, "1".as_ref())]);
    assert!(!dying.status.success());
    assert_eq!(notes(), 1);
    damage(programs(), |bytes| bytes.truncate(bytes.len() / 2));
    assert!(!alone());
    assert_eq!(notes(), 0);
}

/// Programs of another user would run as this one.
#[cfg(unix)]
#[test]
fn a_folder_that_others_can_write_to_is_refused() {
    use std::os::unix::fs::PermissionsExt;
    const NAME: &str = "tests::pocl_cache::a_folder_that_others_can_write_to_is_refused";
    let folder = tempfile::tempdir().unwrap();
    std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o777)).unwrap();
    if alone_with(NAME, &[(FOLDER, folder.path())]) {
        let entries = crate::devices().into_iter();
        let of_pocl = |entry: &crate::DeviceEntry| entry.info.as_ref().is_some_and(|info| info.platform.contains("Portable"));
        for problem in entries.filter(of_pocl).map(|entry| entry.problem.unwrap()) {
            assert!(problem.starts_with("its driver loads programs from /"), "{problem}");
            assert!(problem.contains(": other users can write to it (mode 777)"), "{problem}");
            assert!(problem.ends_with("; POCL_CACHE_DIR names another folder"), "{problem}");
        }
    }
}
