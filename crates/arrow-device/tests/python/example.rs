// SPDX-License-Identifier: Apache-2.0
//! Builds the shared library of an example. The tests of other crates include this file too.

use std::path::{Path, PathBuf};
use std::process::Command;

/// The library of the example `name`.
///
/// A run of all tests has just built it. For a run of this test alone it is built here, from the
/// `packages` of cargo's arguments, with the features of the tests.
pub fn library(name: &str, packages: &[&str]) -> PathBuf {
    let test = std::env::current_exe().unwrap();
    // target/debug/deps/python-0123456789abcdef
    let profile = test.parent().and_then(Path::parent).unwrap();
    let file = format!("{}{name}{}", std::env::consts::DLL_PREFIX, std::env::consts::DLL_SUFFIX);
    let library = profile.join("examples").join(file);
    if !is_fresh(&library) {
        let profile = profile.file_name().and_then(|profile| profile.to_str()).unwrap();
        let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        cargo.arg("build").args(packages).args(["--example", name]);
        cargo.args(["--profile", if profile == "debug" { "dev" } else { profile }]);
        // The build folder, which is the parent of the folder for temporary files.
        let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().unwrap();
        let output = cargo.arg("--target-dir").arg(target).current_dir(env!("CARGO_MANIFEST_DIR")).output().unwrap();
        assert!(output.status.success(), "{cargo:?}: {}\n{}", output.status, String::from_utf8_lossy(&output.stderr));
    }
    assert!(library.exists(), "{} is not built: cargo build {} --example {name}", library.display(), packages.join(" "));
    library
}

/// Whether the library was built from this checkout after the last change of its sources. Cargo
/// lists these beside it.
fn is_fresh(library: &Path) -> bool {
    let modified = |path: &Path| path.metadata().and_then(|metadata| metadata.modified());
    let Ok(built) = modified(library) else { return false };
    let Ok(list) = std::fs::read_to_string(library.with_extension("d")) else { return false };
    // Spaces separate the names; those within names are escaped.
    let sources = list.split_once(": ").map(|(_, sources)| sources.trim_end().replace("\\ ", "\0")).unwrap_or_default();
    let sources: Vec<PathBuf> = sources.split(' ').map(|source| source.replace('\0', " ").into()).collect();
    // The outputs of build scripts lie in the build folder.
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap();
    let target = library.ancestors().nth(2).unwrap();
    sources.iter().all(|source| {
        let mine = source.starts_with(target) || source.canonicalize().is_ok_and(|source| source.starts_with(&root));
        mine && modified(source).is_ok_and(|changed| changed <= built)
    })
}
