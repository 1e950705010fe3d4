// SPDX-License-Identifier: Apache-2.0
//! The interpreter with the peers, and the libraries that it loads.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::SystemTime;

const REQUIRED: &str = "DEVICEFUSION_REQUIRE_PYTHON";

/// A command of Python with the peers, in the folder of the tests; nothing where they cannot be had.
pub fn interpreter() -> Option<Command> {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR"));
    let script = manifest.join("../../scripts/python-peers.sh");
    let why = match Command::new(&script).output() {
        Ok(output) if output.status.success() => {
            let python = String::from_utf8(output.stdout).unwrap();
            let mut command = Command::new(python.trim_end());
            // No files beside the sources, no packages of the user's.
            command.args(["-B", "-s", "-X", "faulthandler"]).current_dir(manifest.join("tests/python")).env_remove("PYTHONPATH");
            return Some(command);
        }
        Ok(output) => String::from_utf8_lossy(&output.stderr).into_owned(),
        Err(error) => error.to_string(),
    };
    let required = std::env::var(REQUIRED).is_ok_and(|value| value == "1");
    assert!(!required, "no pyarrow, but {REQUIRED} = 1: {}: {why}", script.display());
    eprintln!("skipped: no pyarrow; {}: {why}", script.display());
    None
}

/// What a command printed; it must succeed.
#[track_caller]
pub fn run(command: &mut Command) -> String {
    let output = command.output().unwrap();
    let said = [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).concat();
    // What is wrong with one type is often wrong with all: the first failures say it.
    let lines: Vec<&str> = said.lines().collect();
    let (first, last) = (lines.iter().take(150), lines.iter().skip(150.max(lines.len().saturating_sub(5))));
    let shown = || first.chain(last).copied().collect::<Vec<_>>().join("\n");
    assert!(output.status.success(), "{command:?}: {}\n{}", output.status, shown());
    said
}

/// The shared library of an example of this crate. Whoever runs all tests has just built it; for those who name this test
/// alone it is built here.
pub fn library(example: &str) -> PathBuf {
    let test = std::env::current_exe().unwrap();
    // target/debug/deps/python-0123456789abcdef
    let profile = test.parent().and_then(Path::parent).unwrap();
    let file = format!("{}{example}{}", std::env::consts::DLL_PREFIX, std::env::consts::DLL_SUFFIX);
    let library = profile.join("examples").join(file);
    if !is_fresh(&library) {
        let name = profile.file_name().and_then(|name| name.to_str()).unwrap();
        let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        cargo.args(["build", "--package", "arrow-device", "--example", example]);
        cargo.args(["--profile", if name == "debug" { "dev" } else { name }]);
        // The folder of this build: a folder for temporary files lies in it.
        let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().unwrap();
        cargo.arg("--target-dir").arg(target).current_dir(env!("CARGO_MANIFEST_DIR"));
        run(&mut cargo);
    }
    assert!(library.exists(), "{} is not built: cargo build -p arrow-device --example {example}", library.display());
    library
}

/// Whether the library was built after the last change of its sources, which cargo lists beside it.
fn is_fresh(library: &Path) -> bool {
    let modified = |path: &Path| path.metadata().and_then(|metadata| metadata.modified());
    let Ok(built) = modified(library) else { return false };
    let Ok(list) = std::fs::read_to_string(library.with_extension("d")) else { return false };
    // Spaces in names are escaped, and separate them otherwise.
    let sources = list.split_once(": ").map(|(_, sources)| sources.trim_end().replace("\\ ", "\0")).unwrap_or_default();
    let sources: Vec<PathBuf> = sources.split(' ').map(|source| source.replace('\0', " ").into()).collect();
    let mine = |source: &PathBuf| source.starts_with(env!("CARGO_MANIFEST_DIR"));
    let older = |source: &PathBuf| modified(source).is_ok_and(|changed: SystemTime| changed <= built);
    sources.iter().all(|source| mine(source) && older(source))
}
