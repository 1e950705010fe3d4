// SPDX-License-Identifier: Apache-2.0
//! Runs `sql-tests/` on the device that `DEVICEFUSION_TEST_DEVICE` names, and DataFusion's own suite beside
//! plain DataFusion.
#![allow(clippy::unwrap_used)]

use std::path::Path;
use std::process::Command;

use device::DeviceConfig;

fn config() -> DeviceConfig {
    device::testing::config().unwrap()
}

/// Runs the runner in the workspace, whose files name their data from there.
#[track_caller]
fn run(arguments: &[&str]) {
    let status = Command::new(env!("CARGO_BIN_EXE_devicefusion-sqllogictest"))
        .current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("../.."))
        .args(["--device", &config().selector.to_string()])
        .args(arguments)
        .status();
    assert!(status.is_ok_and(|status| status.success()), "{}", arguments.join(" "));
}

/// In the device's own profile and then in that of GPUs: never side by side, for the files write to one folder.
#[test]
fn sql_tests_pass_on_the_device() {
    run(&["--strict", "sql-tests"]);
    run(&["--strict", "--set", "device.profile=gpu", "sql-tests"]);
}

/// One query of each kind, and one that fails.
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
fn run_closes_with_counts_and_reasons_by_frequency() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("one_of_each.slt");
    std::fs::write(&file, ONE_OF_EACH).unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_devicefusion-sqllogictest"))
        .args(["--device", &config().selector.to_string(), "--set", "device.cost=always"])
        .arg(&file)
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1));

    let text = String::from_utf8(output.stdout).unwrap();
    let counts: Vec<&str> = text.lines().skip_while(|line| !line.starts_with("records")).collect();
    let words = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ");
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
    let mut rest = counts.into_iter().map(words);
    for wanted in wanted {
        assert!(rest.any(|line| line.starts_with(wanted)), "no {wanted:?} in its place:\n{text}");
    }
    assert_eq!(rest.next(), None, "{text}");
}

#[test]
#[ignore = "takes some ten minutes; .ci/run runs it by itself"]
fn suite_of_datafusion_passes_as_plain() {
    let fast = "device.compile_options=-cl-opt-disable";
    run(&["--suite", "datafusion", "--set", fast, "--exceptions", "sql-tests/datafusion-exceptions.txt"]);
}
