// SPDX-License-Identifier: Apache-2.0
//! Runs a published suite with and without the plugin, and compares the two record by record.
//!
//! - The oracle is plain DataFusion in the same set-up. A record counts if plain DataFusion passes
//!   it.
//! - Part of the suite's data is not published, so many records fail on both sides.
//! - EXPLAIN shows plans, which the plugin changes on purpose. These records are counted
//!   separately.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use datafusion::common::runtime::SpawnedTask;
use datafusion::common::{Result, exec_datafusion_err, exec_err};
use datafusion_sqllogictest::read_dir_recursive;
use futures::StreamExt;

use crate::engine::{Setup, Side};
use crate::files::{self, Part, SltFile, TEST_FILES};
use crate::run::{FileResult, RecordResult, advance, flatten, progress, run_file, shortened};
use crate::tally::SharedTally;

/// The results of a file, without and with the plugin.
struct FilePair {
    plain: FileResult,
    device: FileResult,
}

/// Number of records in each class.
#[derive(Debug, Default)]
struct Comparison {
    compared: usize,
    equal: usize,
    excepted: usize,
    explain: usize,
    explain_differs: usize,
    not_passed_by_plain: usize,
    passed_by_device_only: usize,
    failures: usize,
}

/// Runs the files of the suite, or those whose names contain one of `filters`. Returns whether the
/// plugin passes every record passed by plain DataFusion.
///
/// # Errors
/// If the files or the exceptions cannot be read.
pub async fn run(
    folder: &Path,
    filters: &[String],
    part: Part,
    exceptions: Option<&Path>,
    setup: Setup,
    jobs: usize,
) -> Result<bool> {
    let exceptions = exceptions.map(Exceptions::read).transpose()?.unwrap_or_default();
    let working_copy = WorkingCopy::new(folder)?;
    let mut suite = files::find(&[TEST_FILES.to_string()])?;
    suite.retain(|file| filters.is_empty() || filters.iter().any(|filter| file.name.to_string_lossy().contains(filter)));
    if suite.is_empty() {
        return exec_err!("no file of the suite is named like {}", filters.join(", "));
    }
    let suite = part.of(suite);

    let setup = setup.with_shared_device();
    let tally = SharedTally::default();
    let progress = progress(suite.len());
    let mut running = futures::stream::iter(suite.into_iter().map(|file| {
        let (setup, tally) = (setup.clone(), Arc::clone(&tally));
        async move {
            let name = file.name.display().to_string();
            let task = SpawnedTask::spawn(async move { run_pair(&file, &setup, &tally).await });
            (name, flatten(task.join().await))
        }
    }))
    .buffer_unordered(jobs.max(1));

    let mut comparison = Comparison::default();
    let mut unused = exceptions.clone();
    while let Some((name, result)) = running.next().await {
        advance(&progress, &name);
        match result {
            Ok(Some(pair)) => {
                tally.lock().files += 1;
                for (plain, device) in pair.plain.records.iter().zip(&pair.device.records) {
                    let excepted = exceptions.contains(&name, device.line);
                    if comparison.count(plain, device, excepted) {
                        unused.remove(&name, device.line);
                    }
                    if let (true, Some(error)) = (is_failure(plain, device) && !excepted, &device.error) {
                        progress.suspend(|| println!("{name}:{}: {}", device.line, shortened(error)));
                    }
                }
                let mut tally = tally.lock();
                tally.records += pair.device.records.len();
                // All files share the device, so its count only grows.
                tally.launches = tally.launches.max(pair.device.launches);
            }
            Ok(None) => tally.lock().skipped_files += 1,
            Err(error) => {
                comparison.failures += 1;
                progress.suspend(|| println!("{name}: {}\n", error.strip_backtrace()));
            }
        }
    }
    progress.finish_and_clear();
    drop(working_copy);

    let mut tally = tally.lock();
    tally.failed = comparison.failures;
    print!("{tally}");
    comparison.print();
    if filters.is_empty() && part.is_whole() {
        unused.print();
    }
    if tally.is_idle_device() {
        println!("queries were planned for the device, but it launched no kernel");
    }
    Ok(comparison.failures == 0 && !tally.is_idle_device())
}

/// Runs a file plain, then with the plugin. The runs are sequential, because both write to the same
/// scratch folder. `None` if the file cannot run plain.
async fn run_pair(file: &SltFile, setup: &Setup, tally: &SharedTally) -> Result<Option<FilePair>> {
    // A file that lacks its data or a feature has no plain result to compare with.
    let side = |side| {
        let (file, setup, tally) = (file.clone(), setup.clone(), Arc::clone(tally));
        SpawnedTask::spawn(async move { run_file(&file, side, &setup, &tally).await })
    };
    let Ok(Some(plain)) = flatten(side(Side::Plain).join().await) else {
        return Ok(None);
    };
    match flatten(side(Side::Device).join().await)? {
        Some(device) => Ok(Some(FilePair { plain, device })),
        None => exec_err!("the file runs without the plugin only"),
    }
}

/// Whether a record other than EXPLAIN passes plain and fails with the plugin.
fn is_failure(plain: &RecordResult, device: &RecordResult) -> bool {
    !is_explain(&plain.source) && plain.error.is_none() && device.error.is_some()
}

/// Whether a statement is EXPLAIN, after any comments.
fn is_explain(sql: &str) -> bool {
    let first = sql.lines().map(str::trim).find(|line| !line.is_empty() && !line.starts_with("--"));
    let keyword = first.unwrap_or_default().split(char::is_whitespace).next().unwrap_or_default();
    keyword.eq_ignore_ascii_case("explain")
}

impl Comparison {
    /// Counts a record. Returns whether it needed its exception.
    fn count(&mut self, plain: &RecordResult, device: &RecordResult, excepted: bool) -> bool {
        match (plain.error.is_none(), device.error.is_none()) {
            (passes, passes_too) if is_explain(&plain.source) => {
                self.explain += 1;
                self.explain_differs += usize::from(passes != passes_too);
            }
            (false, passes) => {
                self.not_passed_by_plain += 1;
                self.passed_by_device_only += usize::from(passes);
            }
            (true, true) => {
                self.compared += 1;
                self.equal += 1;
            }
            (true, false) => {
                self.compared += 1;
                self.excepted += usize::from(excepted);
                self.failures += usize::from(!excepted);
                return excepted;
            }
        }
        false
    }

    fn print(&self) {
        let lines = [
            ("compared with plain", self.compared),
            ("  pass on both sides", self.equal),
            ("  named exceptions", self.excepted),
            ("  fail on the device", self.failures),
            ("EXPLAIN, apart", self.explain),
            ("  differ as they should", self.explain_differs),
            ("fail plain, left out", self.not_passed_by_plain),
            ("  pass on the device", self.passed_by_device_only),
        ];
        for (name, count) in lines {
            println!("{name:<24}{count:>8}");
        }
    }
}

/// Records that may fail with the plugin only. Each line of the file is `FILE:LINE reason`.
#[derive(Debug, Default, Clone)]
struct Exceptions(BTreeMap<(String, u32), String>);

impl Exceptions {
    fn read(path: &Path) -> Result<Self> {
        let lines =
            std::fs::read_to_string(path).map_err(|error| exec_datafusion_err!("cannot read {}: {error}", path.display()))?;
        Self::parse(&lines).map_err(|error| error.context(path.display().to_string()))
    }

    fn parse(lines: &str) -> Result<Self> {
        let mut exceptions = BTreeMap::new();
        for line in lines.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#')) {
            let (location, reason) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
            let location = location.rsplit_once(':').and_then(|(file, line)| Some((file.to_string(), line.parse().ok()?)));
            match location {
                Some(location) if !reason.trim().is_empty() => exceptions.insert(location, reason.trim().to_string()),
                _ => return exec_err!("expected FILE:LINE and a reason, got: {line}"),
            };
        }
        Ok(Exceptions(exceptions))
    }

    fn contains(&self, file: &str, line: u32) -> bool {
        self.0.contains_key(&(file.to_string(), line))
    }

    fn remove(&mut self, file: &str, line: u32) {
        self.0.remove(&(file.to_string(), line));
    }

    /// Prints the exceptions that no record needed.
    fn print(&self) {
        for ((file, line), reason) in &self.0 {
            println!("exception not needed: {file}:{line} {reason}");
        }
    }
}

/// A copy of the suite in a temporary folder, which becomes the current folder. The files read and
/// write relative to it.
struct WorkingCopy {
    _folder: tempfile::TempDir,
    previous: PathBuf,
}

impl WorkingCopy {
    fn new(test_files: &Path) -> Result<Self> {
        let test_files = test_files
            .canonicalize()
            .map_err(|error| exec_datafusion_err!("cannot find the suite in {}: {error}", test_files.display()))?;
        let folder = tempfile::tempdir()?;
        // The path of the suite in DataFusion's repository.
        let home = folder.path().join("datafusion").join("sqllogictest");
        for part in [TEST_FILES, "data"] {
            copy_folder(&test_files.with_file_name(part), &home.join(part))?;
        }
        let previous = std::env::current_dir()?;
        std::env::set_current_dir(&home)?;
        Ok(WorkingCopy { _folder: folder, previous })
    }
}

impl Drop for WorkingCopy {
    fn drop(&mut self) {
        // Lets the temporary folder be removed. A failure is harmless.
        let _ = std::env::set_current_dir(&self.previous);
    }
}

fn copy_folder(from: &Path, to: &Path) -> Result<()> {
    if !from.is_dir() {
        return Ok(());
    }
    for path in read_dir_recursive(from)? {
        let Ok(name) = path.strip_prefix(from) else { continue };
        let target = to.join(name);
        if let Some(folder) = target.parent() {
            std::fs::create_dir_all(folder)?;
        }
        std::fs::copy(&path, &target)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(source: &str, passes: bool) -> RecordResult {
        RecordResult { line: 1, source: source.to_string(), error: (!passes).then(|| "wrong".to_string()) }
    }

    #[test]
    fn a_record_counts_if_plain_passes_it() {
        let mut comparison = Comparison::default();
        assert!(!comparison.count(&record("select 1", true), &record("select 1", true), false));
        assert!(!comparison.count(&record("select 2", true), &record("select 2", false), false));
        assert!(comparison.count(&record("show all", true), &record("show all", false), true));
        assert!(!comparison.count(&record("select 3", false), &record("select 3", false), false));
        assert!(!comparison.count(&record("explain select 1", true), &record("explain select 1", false), false));
        assert_eq!((comparison.compared, comparison.equal), (3, 1));
        assert_eq!((comparison.excepted, comparison.failures), (1, 1));
        assert_eq!((comparison.not_passed_by_plain, comparison.explain), (1, 1));
    }

    #[test]
    fn explain_is_recognized_after_comments() {
        assert!(is_explain("-- plan\n  EXPLAIN ANALYZE select 1"));
        assert!(!is_explain("select 'explain'"));
        assert!(!is_explain("-- nothing"));
    }

    #[test]
    fn exceptions_need_a_location_and_a_reason() {
        let read = Exceptions::parse("# why\n\nset_variable.slt:12 SHOW ALL lists device.* too\n");
        assert!(read.is_ok_and(|read| read.contains("set_variable.slt", 12)));
        assert!(Exceptions::parse("set_variable.slt:12").is_err());
        assert!(Exceptions::parse("set_variable.slt reason").is_err());
    }
}
