// SPDX-License-Identifier: Apache-2.0
//! All 22 queries of TPC-H over Parquet files at scale factor 0.01, by `devicefusion --strict -c`.
//! The results equal those without a device. Plans of one query, with all that is known of them.

use std::path::Path;
use std::process::Command;

use crate::data::{QUERIES, query, table_statements, write_tables};

/// The shell's output for statements over the tables of a folder.
fn printed(folder: &Path, arguments: &[&str], options: &str, statements: impl IntoIterator<Item = String>) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_devicefusion"));
    command.env("DATAFUSION_DEVICE_COMPILE_OPTIONS", options);
    command.env("HOME", env!("CARGO_TARGET_TMPDIR")).args(arguments).args(["-q", "-c"]);
    let output = command.args(table_statements(folder)).args(statements).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// The shell's output for each query.
fn answers(folder: &Path, device: &[&str], options: &str) -> Vec<String> {
    let statements = (1..=QUERIES).flat_map(|number| [format!("SELECT 'Q{number}' AS query"), query(number)]);
    let printed = printed(folder, &[device, &["--format", "csv"]].concat(), options, statements);
    printed.split("query\nQ").skip(1).map(Into::into).collect()
}

/// The selector of the device, and options for its compiler.
fn tested_device() -> (String, &'static str) {
    let selector = device::testing::config().unwrap().selector.to_string();
    // Each kernel runs once, so optimization does not pay. Only OpenCL has the option.
    let options = if selector.starts_with("opencl") { "-cl-opt-disable" } else { "" };
    (selector, options)
}

#[test]
fn every_query_of_tpch_runs_strict() {
    let folder = tempfile::tempdir().unwrap();
    let to = folder.path();
    write_tables(to);
    let (selector, options) = tested_device();
    let device = ["--device", &selector, "--strict"];
    let (on_device, plain) = (answers(to, &device, options), answers(to, &["--device", "none"], ""));
    assert_eq!((on_device.len(), plain.len()), (QUERIES, QUERIES));
    for (on_device, plain) in on_device.iter().zip(&plain) {
        assert_eq!(on_device, plain);
    }
    assert!(plain.iter().filter(|answer| answer.lines().count() > 2).count() > QUERIES / 2, "{plain:?}");
}

/// Padded to the width of a table, Q3 had 3.7 and 21 MB. Its kernels have lines of a few spaces.
#[test]
fn verbose_plans_are_not_padded() {
    const MOST_BYTES: usize = 1_000_000;
    const MOST_SPACES: usize = 32;
    let folder = tempfile::tempdir().unwrap();
    write_tables(folder.path());
    let (selector, options) = tested_device();
    for (explain, part) in [("EXPLAIN VERBOSE", "-- end of "), ("EXPLAIN ANALYZE VERBOSE", "launches=")] {
        let statement = format!("{explain} {}", query(3));
        let plan = printed(folder.path(), &["--device", &selector, "--strict"], options, [statement]);
        assert!(plan.contains(part), "{plan}");
        assert!(plan.len() < MOST_BYTES, "{explain}: {} bytes", plan.len());
        let spaces = |line: &str| {
            let text = line.strip_suffix('|').unwrap_or(line);
            text.len() - text.trim_end().len()
        };
        let most = plan.lines().map(spaces).max().unwrap();
        assert!(most < MOST_SPACES, "{explain}: a line ends in {most} spaces");
    }
}
