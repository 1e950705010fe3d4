// SPDX-License-Identifier: Apache-2.0
//! Builds the C sources.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use libloading::Library;

/// The recorder's files, for the library and for its self-test.
pub const SOURCES: [&str; 5] = ["core.c", "data.c", "pull.c", "async.c", "handler.c"];
pub const STRICT: [&str; 4] = ["-std=c11", "-Wall", "-Wextra", "-Werror"];

pub fn source(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/recorder").join(name)
}

pub fn include() -> String {
    format!("-I{}", Path::new(env!("CARGO_MANIFEST_DIR")).join("include").display())
}

/// An output path for this process alone: others may build in parallel.
pub fn output(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("{}-{name}", std::process::id()))
}

/// Runs a compiler; the error is its output.
pub fn compile(compiler: &str, arguments: &[&str], sources: &[&str], to: &Path) -> Result<(), String> {
    let sources = sources.iter().map(|name| source(name));
    let mut command = Command::new(compiler);
    command.args(arguments).arg(include()).args(sources).arg("-o").arg(to);
    let output = command.output().map_err(|error| format!("{compiler}: {error}"))?;
    match output.status.success() {
        true => Ok(()),
        false => Err(format!("{command:?}\n{}", String::from_utf8_lossy(&output.stderr))),
    }
}

/// The recorder. Each test has a process, so the library is kept for those that follow.
pub fn recorder() -> &'static Library {
    static RECORDER: OnceLock<Library> = OnceLock::new();
    RECORDER.get_or_init(|| {
        let flags = [STRICT.as_slice(), &["-shared", "-fPIC", "-O1", "-g", "-pthread"]].concat();
        let mut hasher = DefaultHasher::new();
        flags.hash(&mut hasher);
        for name in SOURCES.iter().chain(&["recorder.h", "../../include/arrow_device.h"]) {
            std::fs::read(source(name)).unwrap().hash(&mut hasher);
        }
        let library = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("recorder-{:016x}.so", hasher.finish()));
        if !library.exists() {
            let built = output("recorder.so");
            compile("cc", &flags, &SOURCES, &built).unwrap();
            std::fs::rename(built, &library).unwrap();
        }
        // SAFETY: the recorder has no initialisers.
        unsafe { Library::new(&library) }.unwrap()
    })
}
