// SPDX-License-Identifier: Apache-2.0
//! These tests under valgrind, if it exists.

use std::process::Command;

use crate::peer::try_peer;

/// Tests of threads and lifetimes: valgrind detects use after free and leaks.
#[test]
fn streams_are_clean_under_valgrind() {
    device::skip_unless_turn!(7);
    if Command::new("valgrind").arg("--version").output().is_err() {
        eprintln!("skipped: no valgrind");
        return;
    }
    // Built before valgrind runs.
    if try_peer().is_none() {
        return;
    }
    let leaks = ["--leak-check=full", "--show-leak-kinds=definite", "--errors-for-leak-kinds=definite"];
    let skipped = ["tools::", "arrays::", "many_batches", "y9_", "y10_", "y11_"];
    let run = Command::new("valgrind")
        .args(["-q", "--error-exitcode=99", "--fair-sched=yes"])
        .args(leaks)
        .arg(concat!("--suppressions=", env!("CARGO_MANIFEST_DIR"), "/tests/cpp/valgrind.supp"))
        .arg(std::env::current_exe().unwrap())
        // Skips tests with deliberate leaks, and slow ones without new coverage.
        .args(skipped.iter().flat_map(|name| ["--skip", name]))
        .env("RUST_BACKTRACE", "0")
        .output()
        .unwrap();
    let (printed, said) = (String::from_utf8_lossy(&run.stdout), String::from_utf8_lossy(&run.stderr));
    assert!(run.status.success(), "{}\n{printed}\n{said}", run.status);
}
