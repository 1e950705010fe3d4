// SPDX-License-Identifier: Apache-2.0
//! This crate against pyarrow and nanoarrow, in Python: arrays, record batches and streams of every
//! type, both ways.
//!
//! The files `test_*.py` beside this one are the tests; each test here runs one. They call the
//! library of `peer/lib.rs`, an example of this crate. `scripts/python-peers.sh` installs the
//! peers. After its failure the tests pass with a notice, unless `DEVICEFUSION_REQUIRE_PYTHON=1`.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod example;
mod peers;

use std::path::PathBuf;

use peers::{interpreter, run};

fn library(example: &str) -> PathBuf {
    example::library(example, &["--package", "arrow-device"])
}

/// Runs a test file.
#[track_caller]
fn check(file: &str) {
    let Some(mut python) = interpreter() else { return };
    let said = run(python.arg(file).env("PYTHON_PEER", library("python_peer")));
    // A file without tests would pass too.
    assert!(said.contains("\nOK") && !said.contains("Ran 0 tests"), "{said}");
}

#[test]
fn arrays_and_batches_of_every_type_go_both_ways_with_pyarrow() {
    check("test_arrays.py");
}

#[test]
fn r98_r100_capsules_go_both_ways_with_pyarrow() {
    check("test_capsules.py");
}

#[test]
fn streams_go_both_ways_with_python() {
    check("test_streams.py");
}

#[test]
fn everything_is_released_once_on_any_thread_in_any_order() {
    check("test_lifetimes.py");
}

#[test]
fn arrays_of_every_type_go_both_ways_with_nanoarrow() {
    check("test_nanoarrow.py");
}

#[test]
fn peers_deviate_where_the_list_says_and_nowhere_else() {
    check("test_deviations.py");
}

#[test]
fn the_example_in_python_runs() {
    let Some(mut python) = interpreter() else { return };
    python.arg("../../examples/04_python.py").arg(library("04_python"));
    assert_eq!(run(&mut python), "[{'city': 'Oslo', 'people': 709000}]\n");
}
