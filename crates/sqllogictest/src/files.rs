// SPDX-License-Identifier: Apache-2.0
//! The files to run.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::str::FromStr;

use datafusion::common::{Result, exec_datafusion_err, exec_err};
use datafusion_sqllogictest::read_dir_recursive;

/// Name of the folder that DataFusion's files expect as their parent.
pub const TEST_FILES: &str = "test_files";

/// A file to run.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct SltFile {
    /// Path of the file.
    pub path: PathBuf,
    /// Path relative to the folder of the arguments. It decides the set-up of the session.
    pub name: PathBuf,
}

/// A part of the files, as `--part` names it.
#[derive(Debug, Clone, Copy)]
pub struct Part {
    /// From 0 on.
    number: usize,
    parts: usize,
}

impl Part {
    /// Whether the part has all files.
    pub fn is_whole(self) -> bool {
        self.parts == 1
    }

    /// The files of this part.
    pub fn of(self, files: Vec<SltFile>) -> Vec<SltFile> {
        files.into_iter().skip(self.number).step_by(self.parts).collect()
    }
}

impl FromStr for Part {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Part, String> {
        let numbers: Option<(usize, usize)> =
            text.split_once('/').and_then(|(number, parts)| Some((number.parse().ok()?, parts.parse().ok()?)));
        match numbers {
            Some((number, parts)) if (1..=parts).contains(&number) => Ok(Part { number: number - 1, parts }),
            _ => Err("must look like 2/4, from 1/4 to 4/4".to_string()),
        }
    }
}

/// The files among `paths` and in folders among them, sorted and without duplicates.
///
/// # Errors
/// If a path does not exist or a folder cannot be read.
pub fn find(paths: &[String]) -> Result<Vec<SltFile>> {
    let mut files = Vec::new();
    for path in paths {
        let path = Path::new(path);
        if path.is_dir() {
            for found in read_dir_recursive(path)?.into_iter().filter(|found| is_slt(found)) {
                let name = name_within(path, &found);
                files.push(SltFile { path: found, name });
            }
        } else if path.is_file() {
            files.push(SltFile { name: name_within(path.parent().unwrap_or(Path::new("")), path), path: path.into() });
        } else {
            return exec_err!("there is no file or folder {}", path.display());
        }
    }
    files.sort();
    files.dedup_by(|a, b| a.path == b.path);
    Ok(files)
}

/// The folder `test_files` of the crate `datafusion-sqllogictest` in cargo's registry, in the
/// version of this build.
///
/// # Errors
/// If `cargo metadata` fails.
pub fn datafusion_test_files() -> Result<PathBuf> {
    let help = "name the folder with --suite-folder";
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(cargo)
        .args(["metadata", "--format-version=1", "--locked", "--manifest-path"])
        .arg(concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml"))
        .output()
        .map_err(|error| exec_datafusion_err!("cargo metadata: {error}; {help}"))?;
    if !output.status.success() {
        return exec_err!("cargo metadata: {}; {help}", String::from_utf8_lossy(&output.stderr).trim());
    }
    let metadata: serde_json::Value =
        serde_json::from_slice(&output.stdout).map_err(|error| exec_datafusion_err!("cargo metadata: {error}; {help}"))?;
    let packages = metadata["packages"].as_array().into_iter().flatten();
    let manifest = packages
        .filter(|package| package["name"] == "datafusion-sqllogictest")
        .find_map(|package| package["manifest_path"].as_str());
    match manifest.and_then(|manifest| Path::new(manifest).parent()) {
        Some(folder) => Ok(folder.join(TEST_FILES)),
        None => exec_err!("cargo metadata lacks the package datafusion-sqllogictest; {help}"),
    }
}

fn is_slt(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "slt")
}

/// The part of `path` below a folder `test_files`, else below `folder`.
fn name_within(folder: &Path, path: &Path) -> PathBuf {
    let components: Vec<_> = path.components().collect();
    if let Some(position) = components.iter().rposition(|part| part.as_os_str() == TEST_FILES) {
        return components[position + 1..].iter().collect();
    }
    path.strip_prefix(folder).unwrap_or(path).to_path_buf()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_start_below_test_files_or_the_folder() {
        let name = |folder: &str, path: &str| name_within(Path::new(folder), Path::new(path));
        assert_eq!(name("a", "a/test_files/spark/x.slt"), Path::new("spark/x.slt"));
        assert_eq!(name("a/test_files/spark", "a/test_files/spark/x.slt"), Path::new("spark/x.slt"));
        assert_eq!(name("sql-tests", "sql-tests/casts/x.slt"), Path::new("casts/x.slt"));
    }

    #[test]
    fn a_missing_path_is_named() {
        let error = find(&["nowhere.slt".to_string()]).map_err(|error| error.to_string());
        assert!(error.is_err_and(|error| error.contains("nowhere.slt")));
    }
}
