// SPDX-License-Identifier: Apache-2.0
//! TPC-H from Parquet in little device memory, against plain DataFusion. Strict.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeSet;
use std::process::Command;

use serde_json::Value;

/// Groups of queries, of which a part of the tests runs one.
const GROUPS: usize = 8;

#[test]
fn tpch_gives_plain_datafusions_answers_in_little_memory() {
    // Q10 spills in any group.
    let group = |number| (1..=22).filter(move |query| query % GROUPS == number || *query == 10);
    let groups: Vec<Vec<usize>> = (0..GROUPS).map(|number| group(number).collect()).collect();
    let groups = device::testing::sample(groups).unwrap();
    let (scale, memory) = if groups.len() == GROUPS { ("1", "32,16") } else { ("0.1", "32,2") };
    let queries: BTreeSet<usize> = groups.concat().into_iter().collect();
    let only = queries.iter().map(|query| format!("q{query}")).collect::<Vec<_>>().join(",");
    let device = device::testing::config().unwrap().selector.to_string();
    let folder = tempfile::tempdir().unwrap();
    let mut limits = Command::new(env!("CARGO_BIN_EXE_devicefusion-bench"));
    limits.current_dir(folder.path()).args(["memory-limits", "--scale", scale, "--memory", memory]);
    limits.args(["--json", "limits.json"]);
    let output = limits.args(["--only", &only, "--device", &device]).output().unwrap();
    let (printed, said) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    println!("{said}{printed}");
    assert!(output.status.success(), "{only} in {memory} MiB");
    let report: Value = serde_json::from_slice(&std::fs::read(folder.path().join("limits.json")).unwrap()).unwrap();
    let limits = report["results"].as_array().unwrap().iter().flat_map(|result| result["limits"].as_array().unwrap());
    let spilled = limits.filter(|limit| limit["limit"] != "default" && limit["spilled_bytes"].as_u64() > Some(0));
    assert!(spilled.count() > 0, "nothing was spilled");
}
