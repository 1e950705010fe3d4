// SPDX-License-Identifier: Apache-2.0
//! All 22 queries of TPC-H over Parquet files at scale factor 0.01, by `devicefusion --strict -c`.
//! The results equal those without a device.

use std::path::Path;
use std::process::Command;

use crate::data::{QUERIES, query, table_statements, write_tables};

/// The shell's output for each query.
fn answers(folder: &Path, device: &[&str], compile_options: &str) -> Vec<String> {
    let mut command = Command::new(env!("CARGO_BIN_EXE_devicefusion"));
    command.env("DATAFUSION_DEVICE_COMPILE_OPTIONS", compile_options);
    command.env("HOME", env!("CARGO_TARGET_TMPDIR")).args(device).args(["-q", "--format", "csv", "-c"]);
    command.args(table_statements(folder));
    for number in 1..=QUERIES {
        command.arg(format!("SELECT 'Q{number}' AS query")).arg(query(number));
    }
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let printed = String::from_utf8(output.stdout).unwrap();
    printed.split("query\nQ").skip(1).map(Into::into).collect()
}

#[test]
fn every_query_of_tpch_runs_strict() {
    let folder = tempfile::tempdir().unwrap();
    let to = folder.path();
    write_tables(to);
    let selector = device::testing::config().unwrap().selector.to_string();
    // Each kernel runs once, so optimization does not pay. Only OpenCL has the option.
    let options = if selector.starts_with("opencl") { "-cl-opt-disable" } else { "" };
    let device = ["--device", &selector, "--strict"];
    let (on_device, plain) = (answers(to, &device, options), answers(to, &["--device", "none"], ""));
    assert_eq!((on_device.len(), plain.len()), (QUERIES, QUERIES));
    for (on_device, plain) in on_device.iter().zip(&plain) {
        assert_eq!(on_device, plain);
    }
    assert!(plain.iter().filter(|answer| answer.lines().count() > 2).count() > QUERIES / 2, "{plain:?}");
}
