// SPDX-License-Identifier: Apache-2.0
//! The shell as a user meets it: arguments in, text and exit status out. Its device is that of all tests,
//! `DEVICEFUSION_TEST_DEVICE`.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::io::Write;
use std::process::{Command, Stdio};

/// What a run left.
struct Run {
    success: bool,
    stdout: String,
    stderr: String,
}

fn shell(arguments: &[&str]) -> Run {
    shell_with_input(arguments, "")
}

fn shell_with_input(arguments: &[&str], input: &str) -> Run {
    let mut command = Command::new(env!("CARGO_BIN_EXE_devicefusion"));
    let selector = device::testing::config().unwrap().selector.to_string();
    run(command.args(arguments).env("DATAFUSION_DEVICE_SELECTOR", selector), input)
}

/// What a machine has of OpenCL.
#[derive(Debug, Clone, Copy)]
enum OpenCl {
    /// A registry of drivers that is empty.
    WithoutDriver,
    /// Not even the library.
    Absent,
}

/// A shell on a machine without any device, GPUs of CUDA included.
fn shell_without_device(opencl: OpenCl, arguments: &[&str]) -> Run {
    let folder = tempfile::tempdir().unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_devicefusion"));
    command.env_remove("DATAFUSION_DEVICE_SELECTOR").env("CUDA_VISIBLE_DEVICES", "").args(arguments);
    match opencl {
        OpenCl::WithoutDriver => command.env("OCL_ICD_VENDORS", folder.path()).env("PYOPENCL_HOME", folder.path()),
        OpenCl::Absent => {
            // The loader finds this first, and it is no library.
            std::fs::write(folder.path().join("libOpenCL.so.1"), "").unwrap();
            command.env("LD_LIBRARY_PATH", folder.path())
        }
    };
    run(&mut command, "")
}

fn run(command: &mut Command, input: &str) -> Run {
    let mut child = command
        // Neither startup files nor settings of the user.
        .env("HOME", env!("CARGO_TARGET_TMPDIR"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    Run {
        success: output.status.success(),
        stdout: String::from_utf8(output.stdout).unwrap(),
        stderr: String::from_utf8(output.stderr).unwrap(),
    }
}

fn file(text: &str) -> tempfile::NamedTempFile {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(text.as_bytes()).unwrap();
    file
}

const CSV: [&str; 3] = ["-q", "--format", "csv"];

#[track_caller]
fn check(statement: &str, expected: &str) {
    let run = shell(&[&CSV[..], &["-c", statement]].concat());
    assert!(run.success, "{}", run.stderr);
    assert_eq!(run.stdout, expected);
    assert_eq!(run.stderr, "", "quiet means quiet");
}

#[test]
fn command_prints_its_answer() {
    check("SELECT 1 + 1 AS two", "two\n2\n");
}

#[test]
fn query_runs_on_the_device() {
    let sql = "SELECT value % 2 AS odd, sum(value) AS total FROM generate_series(1, 100000) GROUP BY odd ORDER BY total";
    let run = shell(&["--format", "csv", "-c", "SET device.cost = 'always'", &format!("EXPLAIN {sql}"), sql]);
    assert!(run.success, "{}", run.stderr);
    assert!(run.stderr.starts_with("Device #"), "{}", run.stderr);
    assert!(run.stdout.contains("Device"), "{}", run.stdout);
    assert!(run.stdout.contains("0,2500050000"), "{}", run.stdout);
}

#[test]
fn strict_runs_what_has_a_device_form() {
    let run =
        shell(&[&CSV[..], &["--strict", "-c", "SELECT sum(value) AS s FROM generate_series(1, 1000) WHERE value > 10"]].concat());
    assert!(run.success, "{}", run.stderr);
    assert_eq!(run.stdout, "s\n500445\n");
}

#[test]
fn strict_refuses_what_stays_on_the_host() {
    let run = shell(&["--strict", "-c", "SELECT reverse(column1) FROM VALUES ('ab')"]);
    assert!(!run.success);
    assert!(run.stderr.contains("device.fallback"), "{}", run.stderr);
}

#[test]
fn failing_command_stops_with_failure() {
    let run = shell(&[&CSV[..], &["-c", "SELECT nope", "SELECT 1"]].concat());
    assert!(!run.success);
    assert!(run.stderr.contains("nope"), "{}", run.stderr);
    assert_eq!(run.stdout, "");
}

#[test]
fn malformed_sql_is_a_failure() {
    assert!(!shell(&["-c", "SELEC 1"]).success);
}

#[test]
fn failing_statement_of_a_file_is_a_failure_and_the_rest_runs() {
    let script =
        file("#!/usr/bin/env devicefusion\n-- first;\nSELECT 1 AS a;\nSELECT nope;\nSELECT 'x;\ny' AS b;\nSELECT 3 AS c");
    let run = shell(&[&CSV[..], &["-f", script.path().to_str().unwrap()]].concat());
    assert!(!run.success);
    assert!(run.stderr.contains("nope"), "{}", run.stderr);
    assert_eq!(run.stdout, "a\n1\nb\n\"x;\ny\"\nc\n3\n");
}

#[test]
fn file_without_failures_succeeds() {
    let script = file("CREATE TABLE t AS VALUES (1), (2);\nSELECT count(*) AS n FROM t;\n");
    let run = shell(&[&CSV[..], &["-f", script.path().to_str().unwrap()]].concat());
    assert!(run.success, "{}", run.stderr);
    assert_eq!(run.stdout, "n\n2\n");
}

#[test]
fn standard_input_works_as_a_file() {
    let run = shell_with_input(&CSV, "CREATE TABLE t AS VALUES (1);\n\\d t\nSELECT * FROM t;\n");
    assert!(run.success, "{}", run.stderr);
    assert!(run.stdout.contains("column1"), "{}", run.stdout);
    assert!(!shell_with_input(&CSV, "SELECT nope;\nSELECT 1;\n").success);
    assert!(!shell_with_input(&CSV, "\\nope\n").success);
    assert!(shell_with_input(&CSV, "\\q\nSELECT nope;\n").success);
}

#[test]
fn files_are_queried_by_name() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("t.csv"), "a,b\n1,2\n3,4\n").unwrap();
    let run = shell(&[&CSV[..], &["-p", folder.path().to_str().unwrap(), "-c", "SELECT sum(b) AS s FROM 't.csv'"]].concat());
    assert!(run.success, "{}", run.stderr);
    assert_eq!(run.stdout, "s\n6\n");
}

#[test]
fn resident_table_is_made_filled_and_replaced() {
    let run = shell(
        &[
            &CSV[..],
            &[
                "-c",
                "CREATE TABLE device.t AS SELECT value AS i FROM generate_series(1, 1000)",
                "INSERT INTO device.t SELECT value FROM generate_series(1, 1000)",
                "SELECT count(*) AS n, sum(i) AS s FROM device.t",
                "CREATE TABLE IF NOT EXISTS device.t AS SELECT 1 AS i",
                "CREATE OR REPLACE TABLE device.t AS SELECT 7 AS i",
                "SELECT * FROM device.t",
                "DROP TABLE device.t",
            ],
        ]
        .concat(),
    );
    assert!(run.success, "{}", run.stderr);
    assert!(run.stdout.contains("n,s\n2000,1001000\n"), "{}", run.stdout);
    assert!(run.stdout.contains("i\n7\n"), "{}", run.stdout);
    let twice = ["-c", "CREATE TABLE device.t AS SELECT 1 AS i", "CREATE TABLE device.t AS SELECT 1 AS i"];
    assert!(shell(&twice).stderr.contains("already exists"));
}

#[test]
fn log_tells_of_device_and_programs_where_asked_to() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_devicefusion"));
    let selector = device::testing::config().unwrap().selector.to_string();
    command.args(["--strict", "-c", "SELECT sum(value) AS s FROM generate_series(1, 1000) WHERE value > 10"]);
    command.env("DATAFUSION_DEVICE_SELECTOR", selector).env("RUST_LOG", "devicefusion=debug");
    let run = run(&mut command, "");
    assert!(run.success, "{}", run.stderr);
    for part in ["bytes of memory", "program of Reduce", "compiled in"] {
        assert!(run.stderr.contains(part), "{part}: {}", run.stderr);
    }
}

#[test]
fn no_device_is_said_and_the_host_works() {
    let run = shell(&["--device", "none", "-c", "SELECT 1"]);
    assert!(run.success);
    assert!(run.stderr.contains("host"), "{}", run.stderr);
    assert!(!shell(&["--device", "none", "--strict", "-c", "SELECT 1"]).success);
}

#[test]
fn without_a_driver_the_host_works_unless_strict() {
    for opencl in [OpenCl::WithoutDriver, OpenCl::Absent] {
        let devices = shell_without_device(opencl, &["devices"]);
        assert!(devices.success);
        assert!(devices.stdout.contains("No device can be used"), "{opencl:?}: {}", devices.stdout);
        let sql = "SELECT sum(value) AS s FROM generate_series(1, 100000)";
        let run = shell_without_device(opencl, &["--format", "csv", "-c", sql]);
        assert!(run.success, "{opencl:?}: {}", run.stderr);
        assert!(run.stdout.contains("5000050000"), "{opencl:?}: {}", run.stdout);
        assert!(run.stderr.starts_with("No device"), "{opencl:?}: {}", run.stderr);
        for arguments in [["--strict", "-c", "SELECT 1"], ["--device=opencl", "-c", "SELECT 1"]] {
            let run = shell_without_device(opencl, &arguments);
            assert!(!run.success, "{opencl:?}");
            assert!(run.stderr.contains("opencl"), "{opencl:?}: {}", run.stderr);
        }
    }
}

#[test]
fn unknown_device_is_named() {
    let run = shell(&["--device", "no such device", "-c", "SELECT 1"]);
    assert!(!run.success);
    assert!(run.stderr.contains("no such device"), "{}", run.stderr);
}

#[test]
fn unknown_setting_is_named() {
    let run = shell(&["-c", "SET device.fallbak = 'error'"]);
    assert!(!run.success);
    assert!(run.stderr.contains("device.fallback"), "{}", run.stderr);
}

#[test]
fn settings_can_change_until_the_first_query() {
    check("SET device.memory_bytes = 1000000000", "");
}

#[test]
fn devices_lists_every_driver() {
    let run = shell(&["devices"]);
    assert!(run.success);
    let lines: Vec<&str> = run.stdout.lines().collect();
    assert!(lines[0].contains("NAME") && lines[0].contains("MEMORY"), "{}", run.stdout);
    assert!(lines.iter().any(|line| line.contains("opencl")), "{}", run.stdout);
    assert!(lines.iter().any(|line| line.contains("cuda")), "{}", run.stdout);
}
