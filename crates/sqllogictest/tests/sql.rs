// SPDX-License-Identifier: Apache-2.0
//! Runs `sql-tests/` on the device `DEVICEFUSION_TEST_DEVICE`, and compares DataFusion's suite with
//! plain DataFusion.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use device::DeviceConfig;
use device::testing::{self, PARTS};

fn config() -> DeviceConfig {
    device::testing::config().unwrap()
}

/// Runs the binary in the workspace's folder, which the files' paths are relative to.
#[track_caller]
fn run(device: &str, arguments: &[&str]) {
    let status = Command::new(env!("CARGO_BIN_EXE_devicefusion-sqllogictest"))
        .current_dir(workspace())
        .args(["--device", device])
        .args(arguments)
        .status();
    assert!(status.is_ok_and(|status| status.success()), "{}", arguments.join(" "));
}

fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Runs one after another, because the files write to one folder:
///
/// - a part of the files in the device's default profile;
/// - another part in the profile of GPUs, without optimization: each kernel runs once;
/// - two parts without a device, since plain DataFusion must give the same results, except in
///   `plans` and for what only `device` has.
///
/// With `DEVICEFUSION_TEST_PART=all` both profiles run all files, and the default one optimizes.
#[test]
fn sql_tests_pass_plain_and_on_the_device() {
    let entries = std::fs::read_dir(workspace().join("sql-tests")).unwrap();
    let files = entries.map(|entry| entry.unwrap().path()).filter(|path| path.extension().is_some_and(|end| end == "slt"));
    let files: Vec<String> = files.map(|path| path.to_str().unwrap().to_string()).collect();
    let mut files: Vec<&str> = files.iter().map(String::as_str).collect();
    files.sort_unstable();

    let device = config().selector.to_string();
    let fast = fast(&device);
    let parts = testing::parts().unwrap();
    let default_options = if parts.len() == PARTS { &[] } else { fast };
    let other = |part: usize| (part + PARTS / 2) % PARTS;
    for part in &parts {
        run(&device, &[&["--strict", "--part", &name(*part), "sql-tests"], default_options].concat());
        let part = name(other(*part));
        run(&device, &[&["--strict", "--part", &part, "--set", "device.profile=gpu", "sql-tests"], fast].concat());
    }
    let plain: BTreeSet<usize> = parts.iter().flat_map(|part| [*part, other(*part)]).collect();
    for part in plain {
        run("none", &[&["--part", &name(part)], files.as_slice()].concat());
    }
}

/// Compiles kernels faster, where only answers count.
fn fast(device: &str) -> &'static [&'static str] {
    if device == "opencl" { &["--set", "device.compile_options=-cl-opt-disable"] } else { &[] }
}

/// A few of the files on the CUDA emulator, or all: their kernels in CUDA C++, through CUDA's
/// driver. Two compilers take each kernel, so a part has a quarter of the files of others.
///
/// Runs in a folder of its own, since files are written below the current one.
#[test]
fn sql_tests_pass_on_the_cuda_emulator() {
    let Some(mut runner) = testing::emulated(env!("CARGO_BIN_EXE_devicefusion-sqllogictest")).unwrap() else {
        eprintln!("skipped: no NVRTC; scripts/nvrtc.sh installs it");
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let files = workspace().canonicalize().unwrap().join("sql-tests");
    std::os::unix::fs::symlink(files, folder.path().join("sql-tests")).unwrap();
    let part = part_of_today(4);
    let arguments = ["--device", "cuda", "--strict", "--part", &part, "sql-tests"];
    let status = runner.current_dir(folder.path()).args(arguments).status();
    assert!(status.is_ok_and(|status| status.success()), "part {part}");
}

/// One of `shares` of the part, as `--part` takes it: each day another. All without a part.
fn part_of_today(shares: usize) -> String {
    let days = std::time::UNIX_EPOCH.elapsed().unwrap().as_secs() as usize / 86_400;
    match &testing::parts().unwrap()[..] {
        [part] => format!("{}/{}", shares * part + days % shares + 1, shares * PARTS),
        _ => "1/1".to_owned(),
    }
}

/// A part of the files, as `--part` takes it.
fn name(part: usize) -> String {
    format!("{}/{PARTS}", part + 1)
}

/// `sql-tests/` has the results and plans of the benchmarks' queries.
#[test]
fn tpch_has_the_queries_of_the_benchmarks() {
    let read = |path: String| std::fs::read_to_string(workspace().join(path)).unwrap();
    for number in 1..=22 {
        let timed = read(format!("benches/queries/q{number}.sql"));
        let mut timed = timed.lines().filter(|line| !line.starts_with("--")).collect::<Vec<_>>().join("\n");
        if number == 11 {
            // A fraction that depends on the scale factor.
            timed = timed.replace("0.0001", "0.001");
        }
        for (folder, explain) in [("tpch", ""), ("plans/tpch", "EXPLAIN ")] {
            let records = read(format!("sql-tests/{folder}/q{number}.slt.part"));
            assert!(records.contains(&format!("\n{explain}{timed}\n----\n")), "Q{number} in {folder}");
        }
    }
}

#[test]
fn complete_writes_results_into_files_and_their_includes() {
    let folder = tempfile::tempdir().unwrap();
    let (file, part) = (folder.path().join("whole.slt"), folder.path().join("part.slt.part"));
    std::fs::write(&file, "# Two queries.\n\ninclude ./part.slt.part\n\nquery I\nSELECT 'two'\n----\n").unwrap();
    std::fs::write(&part, "query I\nSELECT 1 + 1\n----\n3\n").unwrap();
    run("none", &["--complete", file.to_str().unwrap()]);
    assert_eq!(std::fs::read_to_string(&part).unwrap(), "query I\nSELECT 1 + 1\n----\n2\n");
    let completed = "# Two queries.\n\ninclude ./part.slt.part\n\nquery T\nSELECT 'two'\n----\ntwo\n";
    assert_eq!(std::fs::read_to_string(&file).unwrap(), completed);
}

/// A query of each placement, and one that fails.
const ONE_OF_EACH: &str = "
statement ok
CREATE TABLE t AS VALUES (3), (1), (2)

query I rowsort
SELECT column1 + 1 FROM t WHERE column1 > 1
----
3
4

query T
SELECT md5(CAST(column1 AS VARCHAR)) FROM t WHERE column1 > 2
----
eccbc87e4b5ce2fe28308fd9f2a7baf3

query T
SELECT max(md5(CAST(column1 AS VARCHAR))) FROM t
----
eccbc87e4b5ce2fe28308fd9f2a7baf3

query I rowsort
SELECT column1 FROM t
----
1
2
3

query I
SELECT missing FROM t
----
1
";

#[test]
fn run_ends_with_counts_and_reasons_by_frequency() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("one_of_each.slt");
    std::fs::write(&file, ONE_OF_EACH).unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_devicefusion-sqllogictest"))
        .args(["--device", &config().selector.to_string(), "--set", "device.cost=always"])
        .arg(&file)
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1));

    let printed = String::from_utf8(output.stdout).unwrap();
    let counts: Vec<&str> = printed.lines().skip_while(|line| !line.starts_with("records")).collect();
    let tokens = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ");
    let wanted = [
        "records 6",
        "wholly on the device 1",
        "partly on the device 1",
        "on the host 1",
        "scan-only 1",
        "failed 1",
        "1 AggregateExec: ",
        "1 ProjectionExec: ",
    ];
    let mut rest = counts.into_iter().map(tokens);
    for wanted in wanted {
        assert!(rest.any(|line| line.starts_with(wanted)), "no {wanted:?} in order:\n{printed}");
    }
    assert_eq!(rest.next(), None, "{printed}");
}

/// Half a part of DataFusion's suite, or all of it.
#[test]
fn suite_of_datafusion_passes_as_plain() {
    let device = config().selector.to_string();
    let part = part_of_today(2);
    let exceptions = ["--exceptions", "sql-tests/datafusion-exceptions.txt"];
    let arguments = [&["--suite", "datafusion", "--part", &part], exceptions.as_slice(), fast(&device)];
    run(&device, &arguments.concat());
}
