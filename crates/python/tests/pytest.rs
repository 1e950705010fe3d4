// SPDX-License-Identifier: Apache-2.0
//! Runs the tests of this folder with pytest, each file in a process of its own. They use the
//! library that Cargo has built, and the Python files of the package.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A test for each file of pytest.
macro_rules! files {
    ($($test:ident),* $(,)?) => {
        $(#[test]
        fn $test() {
            passes(stringify!($test));
        })*

        const FILES: &[&str] = &[$(stringify!($test)),*];
    };
}

files! {
    test_book, test_context, test_dataframe, test_dbapi, test_device_in, test_device_out, test_differences,
    test_doctest, test_errors, test_extension, test_files, test_functions, test_hostile, test_leaks, test_notebooks,
    test_peers, test_progress, test_shell, test_sql, test_threads, test_typing,
}

#[test]
fn each_file_of_pytest_has_a_test() {
    let files = std::fs::read_dir(folder().join("tests")).unwrap().map(|entry| entry.unwrap().path());
    let names = files.filter(|path| path.extension().is_some_and(|extension| extension == "py"));
    let names: Vec<String> = names.map(|path| path.file_stem().unwrap().to_str().unwrap().to_owned()).collect();
    let missing =
        names.iter().filter(|name| name.starts_with("test_") && *name != "test_cuda" && !FILES.contains(&name.as_str()));
    assert_eq!(missing.collect::<Vec<_>>(), Vec::<&String>::new());
}

fn folder() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The package with the library that Cargo has built.
fn package() -> tempfile::TempDir {
    let site = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let package = site.path().join("devicefusion");
    std::fs::create_dir(&package).unwrap();
    for entry in std::fs::read_dir(folder().join("python/devicefusion")).unwrap() {
        let entry = entry.unwrap();
        // Left there by maturin or by an interpreter.
        if ![".so", "__pycache__"].iter().any(|end| entry.file_name().to_str().unwrap().ends_with(end)) {
            symlink(entry.path(), package.join(entry.file_name())).unwrap();
        }
    }
    let built = std::env::current_exe().unwrap().parent().unwrap().join("lib_devicefusion.so");
    symlink(built, package.join("_devicefusion.abi3.so")).unwrap();
    site
}

/// A Python with the packages of the tests. Without one: a message and `None`.
fn python() -> Option<PathBuf> {
    let python = Command::new(folder().join("../../scripts/python-peers.sh")).output().unwrap();
    if !python.status.success() {
        let required = std::env::var("DEVICEFUSION_REQUIRE_PYTHON").is_ok_and(|value| value == "1");
        assert!(!required, "DEVICEFUSION_REQUIRE_PYTHON = 1, but {}", String::from_utf8_lossy(&python.stderr));
        eprintln!("skipped: {}", String::from_utf8_lossy(&python.stderr));
        return None;
    }
    Some(PathBuf::from(String::from_utf8(python.stdout).unwrap().trim_end()))
}

/// Runs a file of pytest on the device of all tests.
#[track_caller]
fn passes(file: &str) {
    let Some(python) = python() else { return };
    let config = device::testing::config().unwrap();
    let mut python = Command::new(python);
    python.env("DATAFUSION_DEVICE_SELECTOR", config.selector.to_string());
    if !config.compile_options.is_empty() {
        python.env("DATAFUSION_DEVICE_COMPILE_OPTIONS", config.compile_options.join(" "));
    }
    run(&mut python, file);
}

/// Runs a file of pytest in a Python.
#[track_caller]
fn run(python: &mut Command, file: &str) {
    let site = package();
    python.args(["-B", "-m", "pytest", "-q", "-p", "no:cacheprovider"]);
    python.arg(folder().join("tests").join(file).with_extension("py"));
    let output = python.env("PYTHONPATH", site.path()).current_dir(folder()).output().unwrap();
    let printed = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{file}: {}\n{printed}", output.status);
    println!("{printed}");
}

/// Device data of CUDA, whose memory is apart, on the emulator.
#[test]
fn test_cuda() {
    let Some(python) = python() else { return };
    let Some(mut python) = device::testing::emulated(&python).unwrap() else { return };
    run(python.env("DATAFUSION_DEVICE_SELECTOR", "cuda"), "test_cuda");
}
