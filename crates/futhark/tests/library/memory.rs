// SPDX-License-Identifier: Apache-2.0
//! The tests of values and calls again, under valgrind. Without valgrind the test passes with a
//! notice.

use std::process::Command;

#[test]
fn valgrind_finds_nothing() {
    device::skip_unless_turn!(2);
    if let Err(error) = Command::new("valgrind").arg("--version").output() {
        eprintln!("skipped: valgrind: {error}");
        return;
    }
    let mut command = Command::new("valgrind");
    command.args(["--quiet", "--error-exitcode=9", "--leak-check=full", "--errors-for-leak-kinds=definite,indirect"]);
    let tests = std::env::current_exe().unwrap();
    let output = command.arg(tests).args(["values::", "calls::", "context::", "--test-threads=1"]).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && !said.contains("running 0 tests"), "{said}{}", String::from_utf8_lossy(&output.stderr));
}
