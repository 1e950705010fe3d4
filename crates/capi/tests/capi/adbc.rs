// SPDX-License-Identifier: Apache-2.0
//! The library's ADBC driver, loaded by ADBC's driver manager for Python.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::c::{built, install, python, root, run};

#[test]
fn pythons_driver_manager_loads_and_uses_the_driver() {
    uses_the_driver(&test_file("driver_manager.py"), &[]);
}

#[test]
fn malformed_arrow_data_is_refused() {
    uses_the_driver(&test_file("malformed.py"), &[]);
}

/// The two loads have processes of their own, since a process has one peak.
#[test]
fn a_table_of_a_query_takes_little_more_than_its_rows_and_gives_them_back() {
    uses_the_driver(&test_file("memory.py"), &["query"]);
}

#[test]
fn an_ingested_table_takes_little_more_than_its_rows_and_gives_them_back() {
    uses_the_driver(&test_file("memory.py"), &["ingest"]);
}

#[test]
fn the_example_in_the_documentation_runs() {
    let page = std::fs::read_to_string(root().join("docs/adbc.md")).unwrap();
    let (_, example) = page.split_once("```python\n").unwrap();
    let (example, _) = example.split_once("```").unwrap();
    let script: PathBuf = Path::new(env!("CARGO_TARGET_TMPDIR")).join("adbc_page.py");
    std::fs::write(&script, example).unwrap();
    uses_the_driver(&script, &[]);
}

#[test]
fn the_examples_of_the_page_on_python_run() {
    let page = std::fs::read_to_string(root().join("docs/python-adbc.md")).unwrap();
    let blocks: Vec<&str> = page.split("```python,adbc\n").skip(1).filter_map(|rest| rest.split("```").next()).collect();
    assert!(blocks.len() > 3);
    let script = Path::new(env!("CARGO_TARGET_TMPDIR")).join("python_page.py");
    std::fs::write(&script, blocks.concat()).unwrap();
    uses_the_driver(&script, &[]);
}

/// By the manifest that `make install` puts below its prefix, and by ADBC's default entry point.
#[test]
fn an_installed_driver_is_found_by_its_name() {
    let Some(python) = python() else { return };
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    install(&[&format!("PREFIX={}", folder.path().display()), "INSTALL_STATIC=ln -f"]);
    let script = "import sys\n\
        from adbc_driver_manager import dbapi\n\
        for driver in ['devicefusion', sys.argv[1]]:\n\
        \x20   with dbapi.connect(driver=driver, autocommit=True) as connection, connection.cursor() as cursor:\n\
        \x20       assert cursor.execute('SELECT 6 * 7').fetchone() == (42,)\n";
    let mut command = Command::new(python);
    command.args(["-B", "-c", script]).arg(folder.path().join("lib/libdevicefusion.so"));
    run(command.env("ADBC_DRIVER_PATH", folder.path().join("etc/adbc/drivers")));
}

/// A file in this folder.
fn test_file(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/capi").join(name)
}

/// Runs a script with the library, the test device and more arguments. Skipped without a suitable
/// Python.
fn uses_the_driver(script: &Path, arguments: &[&str]) {
    let Some(python) = python() else { return };
    let selector = device::testing::config().unwrap().selector.to_string();
    run(Command::new(python).arg("-B").arg(script).arg(built().join("libdevicefusion_capi.so")).arg(selector).args(arguments));
}
