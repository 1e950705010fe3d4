// SPDX-License-Identifier: Apache-2.0
//! TPC-H from Parquet in little device memory, against plain DataFusion. Strict.
#![allow(clippy::unwrap_used)]

use std::process::Command;

/// Groups of queries, of which a part of the tests runs one.
const GROUPS: usize = 8;

#[test]
fn tpch_gives_plain_datafusions_answers_in_little_memory() {
    let group = |number| (1..=22).filter(move |query| query % GROUPS == number);
    let groups: Vec<Vec<usize>> = (0..GROUPS).map(|number| group(number).collect()).collect();
    let queries = device::testing::sample(groups).unwrap().concat();
    // A sixth of lineitem's bytes, or less.
    let (scale, memory) = if queries.len() == 22 { ("1", "32,16") } else { ("0.1", "8") };
    let only = queries.iter().map(|query| format!("q{query}")).collect::<Vec<_>>().join(",");
    let device = device::testing::config().unwrap().selector.to_string();
    let folder = tempfile::tempdir().unwrap();
    let mut limits = Command::new(env!("CARGO_BIN_EXE_devicefusion-bench"));
    limits.current_dir(folder.path()).args(["memory-limits", "--scale", scale, "--memory", memory]);
    let output = limits.args(["--only", &only, "--device", &device]).output().unwrap();
    let (printed, said) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    println!("{said}{printed}");
    assert!(output.status.success(), "{only} in {memory} MiB");
}
