// SPDX-License-Identifier: Apache-2.0
//! These tests under valgrind, where there is one.

use std::process::Command;

use crate::peer::try_peer;

/// Those in which threads and lifetimes meet: whoever reads what the other side has freed, or loses it, is told.
#[test]
fn streams_are_clean_under_valgrind() {
    if Command::new("valgrind").arg("--version").output().is_err() {
        eprintln!("skipped: no valgrind");
        return;
    }
    // Built before, not under valgrind.
    if try_peer().is_none() {
        return;
    }
    let leaks = ["--leak-check=full", "--show-leak-kinds=definite", "--errors-for-leak-kinds=definite"];
    let skipped = ["tools::", "arrays::", "many_batches", "y9_", "y10_", "y11_"];
    let run = Command::new("valgrind")
        .args(["-q", "--error-exitcode=99"])
        .args(leaks)
        .arg(concat!("--suppressions=", env!("CARGO_MANIFEST_DIR"), "/tests/cpp/valgrind.supp"))
        .arg(std::env::current_exe().unwrap())
        // What loses memory on purpose, and what takes long and tells nothing more.
        .args(skipped.iter().flat_map(|name| ["--skip", name]))
        .env("RUST_BACKTRACE", "0")
        .output()
        .unwrap();
    let (printed, said) = (String::from_utf8_lossy(&run.stdout), String::from_utf8_lossy(&run.stderr));
    assert!(run.status.success(), "{}\n{printed}\n{said}", run.status);
}
