// SPDX-License-Identifier: Apache-2.0
//! Cache folders of processes that die, on a full disk, or shared by several processes.
//!
//! Each process here is one test of this binary, alone, with folders of its parent.

use std::os::unix::fs::{FileTypeExt, symlink};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;

use super::*;

/// The variable of the folder for `device.cache_dir`.
const CACHE: &str = "DEVICE_TEST_CACHE_DIR";

/// The variable of the number of programs.
const PROGRAMS: &str = "DEVICE_TEST_PROGRAMS";

/// The text that a process prints before its counts of compilations and of hits.
const COUNTED: &str = "compilations and hits: ";

struct Folders {
    cache: TempDir,
    /// PoCL's own folder: a killed process would leave a check of it to other tests.
    pocl: TempDir,
}

impl Folders {
    fn new() -> Self {
        Self { cache: tempfile::tempdir().unwrap(), pocl: tempfile::tempdir().unwrap() }
    }

    /// A process that runs the test `name` alone, with the first `programs` programs.
    fn process(&self, name: &str, programs: usize) -> Command {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", name, "--nocapture"]).env(ALONE, name);
        command.env(CACHE, self.cache.path()).env(PROGRAMS, programs.to_string());
        // A killed process would leave half a source in a folder for tools.
        command.env("POCL_CACHE_DIR", self.pocl.path()).env_remove("DEVICEFUSION_DUMP_KERNELS");
        command
    }

    fn entries(&self) -> Vec<PathBuf> {
        entries(self.cache.path())
    }
}

/// The entries of a cache folder, without files that are being written.
fn entries(cache: &Path) -> Vec<PathBuf> {
    let paths = std::fs::read_dir(cache).unwrap().map(|file| file.unwrap().path());
    paths.filter(|path| path.extension().is_some_and(|extension| extension == "program")).collect()
}

fn is_process_of(name: &str) -> bool {
    std::env::var(ALONE).is_ok_and(|alone| alone == name)
}

/// Compiles and runs programs one after another. Returns the counts of compilations and of hits in
/// the folder.
fn run() -> (usize, usize) {
    let cache = std::env::var_os(CACHE).unwrap();
    let programs: i32 = std::env::var(PROGRAMS).unwrap().parse().unwrap();
    let context = Context::new(config().with_cache_dir(cache)).unwrap();
    let queue = context.queue().unwrap();
    let grid = Grid { work_groups: 1, work_group_size: 1 };
    for number in 0..programs {
        let source = in_dialect(&format!("KERNEL void f(G int *x) {{ x[0] = x[0] * {number} + 7; }}"));
        let program = block_on(queue.compile(ProgramSource::new(source, "tests"))).unwrap();
        let x = queue.upload_values(vec![3_i32]).unwrap();
        queue.launch(&program.kernel("f").unwrap(), grid, &[(&x).into()]).unwrap();
        assert_eq!(block_on(queue.read_values(&x, 0..1)).unwrap(), [3 * number + 7]);
    }
    let counters = context.counters();
    (counters.programs_compiled.try_into().unwrap(), counters.cache_hits_disk.try_into().unwrap())
}

/// As [`run`], for a parent that reads the counts.
fn run_and_print() {
    let (compiled, hits) = run();
    println!("{COUNTED}{compiled} {hits}");
}

/// The counts that a process has printed.
#[track_caller]
fn counts(output: &Output) -> (usize, usize) {
    let (stdout, stderr) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{:?}\n{stdout}\n{stderr}", output.status);
    let (_, counted) = stdout.split_once(COUNTED).unwrap();
    let (compiled, hits) = counted.lines().next().unwrap().split_once(' ').unwrap();
    (compiled.parse().unwrap(), hits.parse().unwrap())
}

#[test]
fn processes_killed_amid_compilations_leave_right_programs() {
    crate::skip_unless_turn!(4);
    const NAME: &str = "tests::cache_attacks::processes_killed_amid_compilations_leave_right_programs";
    /// More programs than a process compiles before it is killed.
    const MANY: usize = 100_000;
    /// Only a hang takes longer, also on a busy machine.
    const LONGEST: Duration = Duration::from_secs(300);
    if is_process_of(NAME) {
        return run_and_print();
    }
    let folders = Folders::new();
    for round in 1..=4_u8 {
        let few = folders.entries().len() + 3;
        let mut process = folders.process(NAME, MANY).stdout(Stdio::null()).spawn().unwrap();
        let begin = Instant::now();
        while folders.entries().len() < few && begin.elapsed() < LONGEST && process.try_wait().unwrap().is_none() {
            std::thread::sleep(Duration::from_millis(1));
        }
        // Each round is to end in another step of a compilation.
        std::thread::sleep(Duration::from_millis(7) * u32::from(round));
        process.kill().unwrap();
        let status = process.wait().unwrap();
        assert_eq!(status.signal(), Some(libc::SIGKILL), "it has ended before: {status:?}");
        assert!(folders.entries().len() >= few, "few programs in {:?}", begin.elapsed());
    }
    // Programs were stored in turn: these are the first ones, without a gap.
    let entries = folders.entries();
    // Where the whole machine dies, the end of an entry may be lost.
    let whole = std::fs::read(&entries[0]).unwrap();
    std::fs::write(&entries[0], &whole[..whole.len() / 2]).unwrap();
    let next = || counts(&folders.process(NAME, entries.len()).output().unwrap());
    assert_eq!(next(), (1, entries.len() - 1));
    assert_eq!(next(), (0, entries.len()));
}

/// Writes to `/dev/full` fail as on a full disk, for root too. A limit of the size of files would
/// also stop PoCL, which compiles by files.
#[test]
fn a_full_disk_costs_the_cache_alone() {
    crate::skip_unless_turn!(5);
    const NAME: &str = "tests::cache_attacks::a_full_disk_costs_the_cache_alone";
    const FULL: &str = "/dev/full";
    if !std::fs::metadata(FULL).is_ok_and(|metadata| metadata.file_type().is_char_device()) {
        return println!("skipped: there is no {FULL}");
    }
    if !is_process_of(NAME) {
        let (folders, programs) = (Folders::new(), 6);
        assert_eq!(counts(&folders.process(NAME, programs).output().unwrap()), (0, programs));
        assert_eq!(std::fs::read_dir(folders.cache.path()).unwrap().count(), programs);
        return;
    }
    let cache = PathBuf::from(std::env::var_os(CACHE).unwrap());
    let programs: usize = std::env::var(PROGRAMS).unwrap().parse().unwrap();
    // The files that this process writes before it renames them.
    let parts = (0..2 * programs).map(|number| cache.join(format!("{}-{number}.part", std::process::id())));
    let parts: Vec<_> = parts.collect();
    parts.iter().for_each(|part| symlink(FULL, part).unwrap());
    let left = || parts.iter().filter(|part| part.symlink_metadata().is_ok()).count();
    // Each failed write takes its file along, here a link.
    for turn in [1, 0] {
        assert_eq!(run(), (programs, 0));
        assert_eq!((entries(&cache).len(), left()), (0, turn * programs));
    }
    // The disk has room again.
    assert_eq!(run(), (programs, 0));
    run_and_print();
}

#[test]
fn processes_at_once_fill_one_folder() {
    crate::skip_unless_turn!(2);
    const NAME: &str = "tests::cache_attacks::processes_at_once_fill_one_folder";
    const COUNT: usize = 12;
    if is_process_of(NAME) {
        return run_and_print();
    }
    let folders = Folders::new();
    let piped = || folders.process(NAME, COUNT).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let processes = [piped(), piped(), piped()];
    // A process may find what another one has just stored.
    for output in processes.map(|process| process.wait_with_output().unwrap()) {
        let (compiled, hits) = counts(&output);
        assert_eq!(compiled + hits, COUNT);
    }
    assert_eq!(std::fs::read_dir(folders.cache.path()).unwrap().count(), COUNT, "entries, and no file that is half-written");
    assert_eq!(counts(&folders.process(NAME, COUNT).output().unwrap()), (0, COUNT));
}
