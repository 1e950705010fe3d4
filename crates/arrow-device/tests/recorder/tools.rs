// SPDX-License-Identifier: Apache-2.0
//! The recorder against itself under the sanitizers, and all these tests under valgrind, if the
//! tools exist.

use std::process::Command;

use crate::c::{SOURCES, STRICT, compile, output};
use crate::data::BRIEF;

/// Builds the recorder's self-test with these flags and runs it; `None` if the compiler lacks the
/// sanitizer.
fn selftest(name: &str, flags: &[&str], arguments: &[&str]) -> Option<String> {
    let program = output(&format!("selftest-{name}"));
    let flags = [STRICT.as_slice(), &["-O1", "-g", "-pthread"], flags].concat();
    let sources = [SOURCES.as_slice(), &["selftest.c"]].concat();
    if let Err(error) = compile("cc", &flags, &sources, &program) {
        // Only a sanitizer may be missing.
        assert!(name != "plain", "{error}");
        eprintln!("skipped: {error}");
        return None;
    }
    let run = Command::new(&program).args(arguments).output().unwrap();
    std::fs::remove_file(&program).unwrap();
    let (printed, said) = (String::from_utf8_lossy(&run.stdout), String::from_utf8_lossy(&run.stderr));
    // Sanitizers need address ranges and ptrace that some systems do not allow.
    if said.contains("unexpected memory mapping") || said.contains("LeakSanitizer has encountered a fatal error") {
        eprintln!("skipped: {said}");
        return None;
    }
    assert!(run.status.success(), "{name}: {}\n{printed}\n{said}", run.status);
    Some(printed.into_owned())
}

#[test]
fn recorder_detects_every_violation_and_nothing_else() {
    device::skip_unless_turn!(3);
    let printed = selftest("plain", &[], &[]).unwrap();
    assert!(!printed.starts_with("0 breaches") && printed.contains("\n0 problems"), "{printed}");
}

#[test]
fn recorder_itself_is_clean_under_address_and_undefined_behaviour_sanitizers() {
    device::skip_unless_turn!(7);
    selftest("address", &["-fsanitize=address,undefined", "-fno-sanitize-recover=all"], &[]);
}

#[test]
fn recorder_itself_is_clean_under_the_thread_sanitizer() {
    device::skip_unless_turn!(1);
    selftest("thread", &["-fsanitize=thread"], &["kept"]);
}

/// The recorder poisons freed memory for valgrind, which detects every late read of either side.
#[test]
fn all_tests_are_clean_under_valgrind() {
    device::skip_unless_turn!(5);
    if Command::new("valgrind").arg("--version").output().is_err() {
        eprintln!("skipped: no valgrind");
        return;
    }
    let leaks = ["--leak-check=full", "--show-leak-kinds=definite,indirect", "--errors-for-leak-kinds=definite,indirect"];
    let run = Command::new("valgrind")
        .args(["-q", "--error-exitcode=99"])
        .args(leaks)
        .arg(std::env::current_exe().unwrap())
        // Tests that run other programs are pointless here.
        .args(["--skip", "tools::", "--skip", "header::", "--test-threads", "8"])
        // Reading the symbols of a backtrace takes longer than the tests.
        .env("RUST_BACKTRACE", "0")
        .env(BRIEF, "1")
        .output()
        .unwrap();
    let (printed, said) = (String::from_utf8_lossy(&run.stdout), String::from_utf8_lossy(&run.stderr));
    assert!(run.status.success(), "{}\n{printed}\n{said}", run.status);
}
