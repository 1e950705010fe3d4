// SPDX-License-Identifier: Apache-2.0
//! The shared object, loaded by ADBC's driver manager in Python.

use std::path::{Path, PathBuf};
use std::process::Command;

#[test]
fn the_driver_manager_of_python_loads_and_uses_it() {
    run(&root().join("crates/adbc/tests/adbc/driver_manager.py"));
}

#[test]
fn the_example_of_the_page_runs() {
    let page = std::fs::read_to_string(root().join("docs/adbc.md")).unwrap();
    let (_, example) = page.split_once("```python\n").unwrap();
    let (example, _) = example.split_once("```").unwrap();
    let script = Path::new(env!("CARGO_TARGET_TMPDIR")).join("adbc_page.py");
    std::fs::write(&script, example).unwrap();
    run(&script);
}

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Runs a script with the library and the tests' device, where there is a Python to run it.
fn run(script: &Path) {
    let found = Command::new(root().join("scripts/python-peers.sh")).output().unwrap();
    if !found.status.success() {
        let why = String::from_utf8_lossy(&found.stderr).into_owned();
        assert!(std::env::var_os("DEVICEFUSION_REQUIRE_PYTHON").is_none(), "{why}");
        eprintln!("skipped: {why}");
        return;
    }
    let python = String::from_utf8(found.stdout).unwrap();
    // Cargo builds it before the tests, beside them or one folder above.
    let folder = std::env::current_exe().unwrap().parent().unwrap().to_path_buf();
    let library = [folder.join("libdevicefusion_adbc.so"), folder.join("../libdevicefusion_adbc.so")];
    let library = library.iter().find(|path| path.exists()).expect("cargo builds the library before its tests");
    let selector = device::testing::config().unwrap().selector.to_string();
    let run = Command::new(python.trim()).arg(script).arg(library).arg(selector).output().unwrap();
    assert!(run.status.success(), "{}{}", String::from_utf8_lossy(&run.stdout), String::from_utf8_lossy(&run.stderr));
}
