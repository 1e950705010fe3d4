// SPDX-License-Identifier: Apache-2.0
//! The command line: the options of `datafusion-cli`, and those for devices.

use std::io::{IsTerminal, Write};
use std::path::PathBuf;

use clap::{CommandFactory, Parser};
use datafusion_cli::object_storage::instrumented::InstrumentedObjectStoreMode;
use datafusion_cli::object_storage::is_stdin_location;
use datafusion_cli::pool_type::PoolType;
use datafusion_cli::print_format::PrintFormat;
use datafusion_cli::print_options::MaxRows;

use crate::devices;

/// SQL on a device: a GPU through CUDA or OpenCL, or a CPU through an OpenCL driver.
///
/// Without -c and -f, statements are read from the terminal or from standard input. Exits with a
/// status other than 0 when a statement failed.
#[derive(Debug, Parser)]
#[command(name = "devicefusion", version, args_conflicts_with_subcommands = true)]
pub struct Args {
    /// Task other than running statements.
    #[command(subcommand)]
    pub subcommand: Option<Subcommand>,

    /// Device that queries run on: auto (GPUs first), none, opencl, cuda, #k as numbered by
    /// `devicefusion devices`, or a part of its name [default: auto]
    #[arg(long, value_name = "DEVICE")]
    pub device: Option<String>,

    /// Fail a query if an operator would run on the host (until SET device.enabled = false)
    #[arg(long)]
    pub strict: bool,

    /// Base folder of relative paths [default: the current one]
    #[arg(short = 'p', long, value_parser = folder)]
    pub data_path: Option<PathBuf>,

    /// Rows in a batch of host operators [default: DataFusion's]
    #[arg(short = 'b', long, value_parser = batch_size)]
    pub batch_size: Option<usize>,

    /// Execute the given statement(s), then exit; stops at the first failure
    #[arg(short = 'c', long, num_args = 1.., value_parser = statement)]
    pub command: Vec<String>,

    /// Limit of the host memory pool, such as '10g' [default: none]
    #[arg(short = 'm', long, value_parser = devicefusion::parse_bytes)]
    pub memory_limit: Option<usize>,

    /// Execute the statements of file(s), then exit; continues after a failure
    #[arg(short = 'f', long, num_args = 1.., value_parser = file)]
    pub file: Vec<String>,

    /// Run these files first instead of devicefusion/rc.sql in the user's configuration folder
    #[arg(short = 'r', long, num_args = 0.., value_parser = file, conflicts_with = "file")]
    pub rc: Option<Vec<String>>,

    /// Format of results
    #[arg(long, value_enum, default_value_t = PrintFormat::Automatic)]
    pub format: PrintFormat,

    /// Print results only
    #[arg(short = 'q', long)]
    pub quiet: bool,

    /// Kind of the host memory pool: 'greedy' or 'fair'
    #[arg(long, default_value_t = PoolType::Greedy)]
    pub mem_pool_type: PoolType,

    /// Number of memory consumers in the error when host memory runs out; 0 tracks none
    #[arg(long, default_value_t = 3)]
    pub top_memory_consumers: usize,

    /// Maximum number of rows in the format 'table'; 'inf' for all
    #[arg(long, default_value = "40")]
    pub maxrows: MaxRows,

    /// Highlight syntax on the terminal
    #[arg(long)]
    pub color: bool,

    /// Disk space for spilling, such as '10g' [default: DataFusion's]
    #[arg(short = 'd', long, value_parser = devicefusion::parse_bytes)]
    pub disk_limit: Option<usize>,

    /// Report requests to object stores: disabled, summary or trace
    #[arg(long, default_value_t = InstrumentedObjectStoreMode::Disabled)]
    pub object_store_profiling: InstrumentedObjectStoreMode,
}

/// Tasks other than running statements.
#[derive(Debug, Clone, clap::Subcommand)]
pub enum Subcommand {
    /// List every device of every driver, with the reason if one cannot be used
    Devices,
    /// Write the completions of a shell's command line
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
    /// Write the manual page
    Man,
    /// Run a query and write how it went: its plan with times, and a timeline
    Profile(ProfileArgs),
}

/// The arguments of `profile`.
#[derive(Debug, Clone, clap::Args)]
pub struct ProfileArgs {
    /// The query
    #[arg(value_parser = statement)]
    pub sql: String,

    /// File to write
    #[arg(short, long, value_name = "FILE", default_value = "profile.html")]
    pub output: PathBuf,

    /// What to write [default: by the file's name: html, json, pgjson (PostgreSQL's), or trace]
    #[arg(long, value_enum)]
    pub format: Option<ProfileFormat>,

    /// Run the query so often before the run that is profiled, for kernels and caches
    #[arg(long, value_name = "RUNS", default_value_t = 0)]
    pub warm: usize,

    /// Execute the statements of file(s) before
    #[arg(short = 'f', long, num_args = 1.., value_parser = file)]
    pub file: Vec<String>,

    /// Device that the query runs on, as for the shell
    #[arg(long, value_name = "DEVICE")]
    pub device: Option<String>,
}

/// A format of profiles.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum ProfileFormat {
    /// A page for a browser
    Html,
    /// All data of the page
    Json,
    /// The plan as of PostgreSQL's EXPLAIN
    Pgjson,
    /// The timeline, for Perfetto
    Trace,
}

impl ProfileArgs {
    /// The format that was chosen, or the one of the file's name.
    pub fn format(&self) -> ProfileFormat {
        let name = self.output.file_name().map(|name| name.to_string_lossy().to_lowercase()).unwrap_or_default();
        let by_name = || match name {
            name if name.ends_with(".trace.json") || name.ends_with(".trace") => ProfileFormat::Trace,
            name if name.ends_with(".pg.json") || name.ends_with(".pgjson") => ProfileFormat::Pgjson,
            name if name.ends_with(".json") => ProfileFormat::Json,
            _ => ProfileFormat::Html,
        };
        self.format.unwrap_or_else(by_name)
    }
}

impl Subcommand {
    /// Writes what a subcommand that needs no session asks for.
    ///
    /// # Errors
    /// Those of the writer.
    pub fn write(&self, mut out: impl Write) -> std::io::Result<()> {
        match self {
            Subcommand::Devices => write!(out, "{}", devices::table(&device::devices())),
            Subcommand::Completions { shell } => {
                // The generator panics where it cannot write.
                let mut script = Vec::new();
                clap_complete::generate(*shell, &mut Args::command(), "devicefusion", &mut script);
                out.write_all(&script)
            }
            Subcommand::Man => clap_mangen::Man::new(Args::command()).render(&mut out),
            Subcommand::Profile(_) => Ok(()),
        }
    }
}

impl Args {
    /// Whether statements are typed at a terminal.
    pub fn is_interactive(&self) -> bool {
        self.subcommand.is_none() && self.file.is_empty() && self.command.is_empty() && std::io::stdin().is_terminal()
    }

    /// Whether statements come from the terminal or from standard input.
    pub fn reads_statements_from_stdin(&self) -> bool {
        let none_given = self.subcommand.is_none() && self.command.is_empty() && self.file.is_empty();
        none_given || self.file.iter().any(|file| is_stdin_location(file))
    }
}

fn folder(path: &str) -> Result<PathBuf, String> {
    let path = PathBuf::from(path);
    if path.is_dir() { Ok(path) } else { Err("there is no such folder".to_string()) }
}

/// Parses an existing file, or one of the names of standard input.
fn file(path: &str) -> Result<String, String> {
    let found = is_stdin_location(path) || PathBuf::from(path).is_file();
    if found { Ok(path.to_string()) } else { Err("there is no such file".to_string()) }
}

fn statement(sql: &str) -> Result<String, String> {
    if sql.trim().is_empty() { Err("the statement is empty".to_string()) } else { Ok(sql.to_string()) }
}

fn batch_size(rows: &str) -> Result<usize, String> {
    match rows.parse() {
        Ok(rows) if rows > 0 => Ok(rows),
        _ => Err("must be a whole number above 0".to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_are_consistent() {
        Args::command().debug_assert();
    }

    #[test]
    fn the_name_of_a_profile_tells_its_format() {
        let format = |list: &[&str]| match Args::try_parse_from(["devicefusion", "profile", "SELECT 1"].iter().chain(list)) {
            Ok(Args { subcommand: Some(Subcommand::Profile(profile)), .. }) => profile.format(),
            other => panic!("{other:?}"),
        };
        assert_eq!(format(&[]), ProfileFormat::Html);
        assert_eq!(format(&["-o", "q.json"]), ProfileFormat::Json);
        assert_eq!(format(&["-o", "q.pg.json"]), ProfileFormat::Pgjson);
        assert_eq!(format(&["-o", "q.Trace.json"]), ProfileFormat::Trace);
        assert_eq!(format(&["-o", "q.json", "--format", "html"]), ProfileFormat::Html);
    }

    #[test]
    fn statements_come_from_stdin_unless_given() {
        let args = |list: &[&str]| Args::try_parse_from(std::iter::once(&"devicefusion").chain(list));
        assert!(args(&[]).is_ok_and(|args| args.reads_statements_from_stdin()));
        assert!(args(&["-c", "select 1"]).is_ok_and(|args| !args.reads_statements_from_stdin()));
        assert!(args(&["-f", "/dev/stdin"]).is_ok_and(|args| args.reads_statements_from_stdin()));
        assert!(args(&["devices"]).is_ok_and(|args| args.subcommand.is_some()));
        assert!(args(&["-f", "/nowhere.sql"]).is_err());
        assert!(args(&["-c", " "]).is_err());
    }
}
