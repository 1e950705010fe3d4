// SPDX-License-Identifier: Apache-2.0
//! Runs files and reports failures.

use std::io::IsTerminal;
use std::path::Path;
use std::sync::Arc;

use datafusion::common::runtime::SpawnedTask;
use datafusion::common::{Result, exec_datafusion_err};
use datafusion::error::DataFusionError;
use datafusion_sqllogictest::{DFColumnType, df_value_validator, setup_scratch_dir, value_normalizer};
use futures::StreamExt;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use sqllogictest::{Record, Runner, parse_file, strict_column_validator};

use crate::engine::{Engine, Setup, Side};
use crate::files::SltFile;
use crate::tally::SharedTally;

/// Failures to print for each file.
const SHOWN_FAILURES: usize = 10;
/// Lines to print of each failure.
const SHOWN_LINES: usize = 40;

/// Result of a statement, query or command.
#[derive(Debug)]
pub struct RecordResult {
    /// Line of the record.
    pub line: u32,
    /// Its SQL or command.
    pub source: String,
    /// The reason of its failure.
    pub error: Option<String>,
}

/// Result of a file.
#[derive(Debug)]
pub struct FileResult {
    /// Its statements, queries and commands, in order.
    pub records: Vec<RecordResult>,
    /// Number of kernels that its device has launched so far.
    pub launches: u64,
}

/// Runs the records of a file in a session of its own. `None` if the file needs a feature outside
/// this build.
///
/// # Errors
/// If the file cannot be read or the session cannot be set up.
pub async fn run_file(file: &SltFile, side: Side, setup: &Setup, tally: &SharedTally) -> Result<Option<FileResult>> {
    let Some(engine) = Engine::open(&file.name, side, setup, tally).await? else {
        return Ok(None);
    };
    let external = |error| DataFusionError::External(Box::new(error));
    let records = parse_file::<DFColumnType>(&file.path).map_err(external)?;
    if uses_scratch_folder(&file.path)? {
        setup_scratch_dir(&file.name)?;
    }

    let mut runner = runner(&engine);
    let mut results = Vec::new();
    for record in records {
        let (line, source) = match &record {
            Record::Halt { .. } => break,
            Record::Statement { loc, sql, .. } | Record::Query { loc, sql, .. } | Record::Let { loc, sql, .. } => {
                (loc.line(), sql.clone())
            }
            Record::System { loc, command, .. } => (loc.line(), command.clone()),
            _ => {
                // Comments and directives to the runner.
                if let Err(error) = runner.run_async(record).await {
                    return Err(DataFusionError::Execution(error.to_string()));
                }
                continue;
            }
        };
        let error = runner.run_async(record).await.err().map(|error| error.to_string());
        results.push(RecordResult { line, source, error });
    }
    runner.shutdown_async().await;
    Ok(Some(FileResult { records: results, launches: engine.launches() }))
}

/// A runner that reads and compares as DataFusion's runner does.
fn runner(engine: &Engine) -> Runner<Engine, Engine> {
    let mut runner = Runner::new(engine.clone());
    runner.add_label("Datafusion");
    runner.with_column_validator(strict_column_validator);
    runner.with_normalizer(value_normalizer);
    runner.with_validator(df_value_validator);
    runner
}

/// Writes the results of queries into the files and into the files that they include, one file
/// after another.
///
/// # Errors
/// If a file cannot be read or written, or a session cannot be set up.
pub async fn complete_all(files: Vec<SltFile>, setup: &Setup) -> Result<bool> {
    for file in files {
        let Some(engine) = Engine::open(&file.name, Side::Device, setup, &SharedTally::default()).await? else {
            continue;
        };
        let mut runner = runner(&engine);
        let written =
            runner.update_test_file(&file.path, " ", df_value_validator, value_normalizer, strict_column_validator).await;
        written.map_err(|error| exec_datafusion_err!("{}: {error}", file.path.display()))?;
        runner.shutdown_async().await;
    }
    Ok(true)
}

/// Whether the file writes below `test_files/scratch/NAME`, as some files of DataFusion do.
fn uses_scratch_folder(path: &Path) -> Result<bool> {
    Ok(std::fs::read_to_string(path)?.contains("test_files/scratch"))
}

/// Runs files with a device and prints failures and counts. Returns whether all records passed.
///
/// # Errors
/// If the progress cannot be shown.
pub async fn run_all(files: Vec<SltFile>, setup: Setup, jobs: usize) -> Result<bool> {
    let tally = SharedTally::default();
    let progress = progress(files.len());
    let mut running = futures::stream::iter(files.into_iter().map(|file| {
        let (setup, tally) = (setup.clone(), Arc::clone(&tally));
        async move {
            let name = file.name.display().to_string();
            let task = SpawnedTask::spawn(async move { run_file(&file, Side::Device, &setup, &tally).await });
            (name, flatten(task.join().await))
        }
    }))
    .buffer_unordered(jobs.max(1));

    while let Some((name, result)) = running.next().await {
        advance(&progress, &name);
        let mut tally = tally.lock();
        match result {
            Ok(None) => tally.skipped_files += 1,
            Ok(Some(result)) => {
                tally.files += 1;
                tally.records += result.records.len();
                tally.launches += result.launches;
                let failures: Vec<&RecordResult> = result.records.iter().filter(|record| record.error.is_some()).collect();
                tally.failed += failures.len();
                progress.suspend(|| print_failures(&name, &failures));
            }
            Err(error) => {
                tally.files += 1;
                tally.failed += 1;
                progress.suspend(|| println!("{name}: {}\n", error.strip_backtrace()));
            }
        }
    }
    progress.finish_and_clear();
    let tally = tally.lock();
    print!("{tally}");
    if tally.is_idle_device() {
        println!("queries were planned for the device, but it launched no kernel");
    }
    Ok(tally.failed == 0 && !tally.is_idle_device())
}

fn print_failures(name: &str, failures: &[&RecordResult]) {
    for failure in failures.iter().take(SHOWN_FAILURES) {
        println!("{name}:{}: {}", failure.line, shortened(failure.error.as_deref().unwrap_or_default()));
    }
    if failures.len() > SHOWN_FAILURES {
        println!("{name}: {} more records failed\n", failures.len() - SHOWN_FAILURES);
    }
}

/// The first lines of an error, which may contain whole results.
pub fn shortened(error: &str) -> String {
    let mut lines: Vec<&str> = error.lines().take(SHOWN_LINES + 1).collect();
    if lines.len() > SHOWN_LINES {
        lines[SHOWN_LINES] = "…";
    }
    lines.join("\n")
}

/// Turns a panic of a file's task into an error of the file.
pub fn flatten<T>(result: std::result::Result<Result<T>, tokio::task::JoinError>) -> Result<T> {
    result.unwrap_or_else(|error| Err(DataFusionError::Execution(error.to_string())))
}

/// A progress bar over files, hidden without a terminal.
pub fn progress(files: usize) -> ProgressBar {
    let style = ProgressStyle::with_template("[{elapsed_precise}] {bar:40} {pos}/{len} {msg}");
    let bar = ProgressBar::new(files as u64).with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
    if !std::io::stderr().is_terminal() {
        bar.set_draw_target(ProgressDrawTarget::hidden());
    }
    bar
}

/// Counts a finished file. Without a terminal, prints a line for every 50 files.
pub fn advance(progress: &ProgressBar, name: &str) {
    progress.inc(1);
    progress.set_message(name.to_string());
    if progress.is_hidden() && progress.position().is_multiple_of(50) {
        eprintln!("{} of {} files", progress.position(), progress.length().unwrap_or_default());
    }
}
