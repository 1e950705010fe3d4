// SPDX-License-Identifier: Apache-2.0
//! Runs sqllogictest files with queries on a device, and counts where they ran.
//!
//! Normalization, set-up and the meaning of records are those of `datafusion-sqllogictest`. This
//! crate adds:
//!
//! - the plugin in each session;
//! - counts of queries on the device and on the host, with the reasons;
//! - a mode that compares DataFusion's suite with and without the plugin, record by record.

mod engine;
mod files;
mod run;
mod suite;
mod tally;
mod tpch;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Parser, ValueEnum};
use datafusion::common::utils::get_available_parallelism;
use datafusion::common::{Result, config_err, exec_err};

use crate::engine::Setup;
use crate::files::Part;

/// Run sqllogictest files with queries on a device
///
/// Ends with counts of records, of queries by placement, of failures, and of reasons for the host.
/// Paths within a file start from the current folder. Exits with a status other than 0 when a
/// record fails.
#[derive(Debug, Parser)]
#[command(name = "devicefusion-sqllogictest", version)]
struct Args {
    /// Files that end in .slt, or folders of them; with --suite, parts of the names of its files
    paths: Vec<String>,

    /// Device that queries run on: auto, none, a driver such as opencl, #k or a part of its name
    #[arg(long, value_name = "DEVICE", default_value = "auto")]
    device: String,

    /// Fail a query if an operator would run on the host
    #[arg(long)]
    strict: bool,

    /// A setting of every session, such as device.profile=gpu; may be repeated
    #[arg(long, value_name = "KEY=VALUE", value_parser = setting)]
    set: Vec<(String, String)>,

    /// Write the results of queries into the files, instead of checking them
    #[arg(long, conflicts_with = "suite")]
    complete: bool,

    /// Run a published suite with and without the plugin, and compare record by record
    #[arg(long, value_enum, value_name = "SUITE", conflicts_with = "strict")]
    suite: Option<Suite>,

    /// Folder of the suite's `test_files` [default: in cargo's registry]
    #[arg(long, value_name = "FOLDER", requires = "suite")]
    suite_folder: Option<PathBuf>,

    /// File of records that may fail with the plugin only, each with its reason
    #[arg(long, value_name = "FILE", requires = "suite")]
    exceptions: Option<PathBuf>,

    /// Run a part of the files: 2/4 is every fourth one, from the second on
    #[arg(long, value_name = "NUMBER/PARTS", default_value = "1/1")]
    part: Part,

    /// Number of files that run in parallel
    #[arg(long, default_value_t = get_available_parallelism())]
    jobs: usize,

    /// Seconds after which a statement counts as hanging
    #[arg(long, default_value_t = 300)]
    timeout: u64,
}

/// A published suite.
#[derive(Debug, Clone, Copy, ValueEnum)]
enum Suite {
    /// DataFusion's suite, from the crate `datafusion-sqllogictest`
    Datafusion,
}

fn setting(argument: &str) -> std::result::Result<(String, String), String> {
    match argument.split_once('=') {
        Some((key, value)) if !key.trim().is_empty() => Ok((key.trim().to_string(), value.trim().to_string())),
        _ => Err("must look like key=value".to_string()),
    }
}

fn main() -> ExitCode {
    let args = Args::parse();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        // Planners in debug builds need a deep stack.
        .thread_stack_size(16 << 20)
        .build();
    let result = match runtime {
        Ok(runtime) => runtime.block_on(run(args)),
        Err(error) => Err(error.into()),
    };
    match result {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("Error: {}", error.strip_backtrace());
            ExitCode::FAILURE
        }
    }
}

/// Runs the files or the suite. Returns whether every record passed.
async fn run(args: Args) -> Result<bool> {
    let mut settings = vec![("device.selector".to_string(), args.device)];
    if args.strict {
        settings.push(("device.fallback".to_string(), "error".to_string()));
    }
    if args.suite.is_some() {
        settings.push(("device.cost".to_string(), "always".to_string()));
    }
    settings.extend(args.set);
    let setup = Setup::new(settings, Duration::from_secs(args.timeout))?;

    match args.suite {
        Some(Suite::Datafusion) => {
            let folder = match args.suite_folder {
                Some(folder) => folder,
                None => files::datafusion_test_files()?,
            };
            suite::run(&folder, &args.paths, args.part, args.exceptions.as_deref(), setup, args.jobs).await
        }
        None if args.paths.is_empty() => config_err!("name at least one file or folder"),
        None => {
            let files = files::find(&args.paths)?;
            if files.is_empty() {
                return exec_err!("there is no file that ends in .slt in {}", args.paths.join(", "));
            }
            let files = args.part.of(files);
            match args.complete {
                true => run::complete_all(files, &setup).await,
                false => run::run_all(files, setup, args.jobs).await,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn arguments_are_consistent() {
        Args::command().debug_assert();
    }

    #[test]
    fn a_setting_needs_a_key() {
        assert_eq!(setting("device.cost=always"), Ok(("device.cost".to_string(), "always".to_string())));
        assert!(setting("=always").is_err());
        assert!(setting("device.cost").is_err());
    }
}
