// SPDX-License-Identifier: Apache-2.0
//! The command line: the options of `datafusion-cli`, and those for devices.

use std::ffi::OsString;
use std::io::{IsTerminal, Write};
use std::path::PathBuf;

use clap::error::{ContextKind, ErrorKind};
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

    /// Device that queries run on: auto (GPUs first), none, a driver such as opencl, #k (see
    /// `devicefusion devices`) or a part of its name [default: auto]
    #[arg(long, value_name = "DEVICE")]
    pub device: Option<String>,

    /// Fail a query with an operator on the host (until SET device.enabled = false)
    #[arg(long)]
    pub strict: bool,

    /// Base folder of relative paths in statements [default: the current one]
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
    #[command(flatten)]
    pub query: QueryArgs,

    /// File to write, or - for standard output
    #[arg(short, long, value_name = "FILE", default_value = "profile.html")]
    pub output: PathBuf,

    /// Format to write [default: by the file's name: html, json, pgjson (PostgreSQL's), or trace]
    #[arg(long, value_enum)]
    pub format: Option<ProfileFormat>,

    /// Run the query so often before the run that is profiled, for kernels and caches: up to 1000
    #[arg(long, value_name = "RUNS", default_value_t = 0, value_parser = clap::value_parser!(u16).range(..=1000))]
    pub warm: u16,

    // One file each: more of them would take the query.
    /// Execute the statements of a file before; may be given several times
    #[arg(short = 'f', long, value_name = "FILE", value_parser = file)]
    pub file: Vec<String>,

    /// Device that the query runs on, as for the shell
    #[arg(long, value_name = "DEVICE")]
    pub device: Option<String>,

    /// Fail if an operator would run on the host, as for the shell
    #[arg(long)]
    pub strict: bool,

    /// Base folder of relative paths in statements [default: the current one]
    #[arg(short = 'p', long, value_parser = folder)]
    pub data_path: Option<PathBuf>,

    /// Limit of the host memory pool, such as '10g' [default: none]
    #[arg(short = 'm', long, value_parser = devicefusion::parse_bytes)]
    pub memory_limit: Option<usize>,
}

/// Where the query of `profile` stands.
#[derive(Debug, Clone, clap::Args)]
#[group(required = true, multiple = false)]
pub struct QueryArgs {
    /// The query, or - for standard input
    #[arg(value_parser = statement)]
    pub sql: Option<String>,

    /// File with the query
    #[arg(long, value_name = "FILE", value_parser = file)]
    pub query_file: Option<String>,
}

impl QueryArgs {
    /// Whether the query comes from standard input.
    pub fn is_stdin(&self) -> bool {
        self.sql.as_deref() == Some("-") || self.query_file.as_deref().is_some_and(is_stdin_location)
    }
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

/// Formats by the end of a file's name. The first one that fits counts.
const ENDINGS: [(&str, ProfileFormat); 7] = [
    (".html", ProfileFormat::Html),
    (".htm", ProfileFormat::Html),
    (".pg.json", ProfileFormat::Pgjson),
    (".pgjson", ProfileFormat::Pgjson),
    (".trace.json", ProfileFormat::Trace),
    (".trace", ProfileFormat::Trace),
    (".json", ProfileFormat::Json),
];

impl ProfileArgs {
    /// Whether the profile goes to standard output.
    pub fn is_stdout(&self) -> bool {
        self.output.as_os_str() == "-"
    }

    /// The format that was chosen, or the one of the file's name.
    ///
    /// # Errors
    /// If the name tells none.
    pub fn format(&self) -> Result<ProfileFormat, String> {
        if let Some(format) = self.format {
            return Ok(format);
        }
        if self.is_stdout() {
            return Ok(ProfileFormat::Html);
        }
        let name = self.output.file_name().map(|name| name.to_string_lossy().to_lowercase()).unwrap_or_default();
        let found = ENDINGS.iter().find(|(ending, _)| name.ends_with(ending));
        found.map(|(_, format)| *format).ok_or_else(|| {
            let endings = ENDINGS.map(|(ending, _)| ending).join(", ");
            format!("{} ends with none of {endings}: rename it, or choose a --format", self.output.display())
        })
    }

    /// Refuses what would fail later, as a long run must not be lost for it.
    fn check(&self) -> Result<(), String> {
        let files = self.file.iter().filter(|file| is_stdin_location(file)).count();
        if files + usize::from(self.query.is_stdin()) > 1 {
            return Err("only one of the query and the files of -f can be standard input".to_string());
        }
        self.format()?;
        let output = self.output.display();
        if self.output.is_dir() && !self.is_stdout() {
            return Err(format!("cannot write {output}: it is a folder"));
        }
        match self.output.parent().filter(|folder| !folder.as_os_str().is_empty() && !folder.is_dir()) {
            Some(folder) => Err(format!("cannot write {output}: there is no folder {}", folder.display())),
            None => Ok(()),
        }
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

/// An error as clap's own, with the usage of `profile`.
fn refused(problem: String) -> clap::Error {
    let mut command = Args::command();
    // The usage has the name of the whole command only then.
    command.build();
    match command.find_subcommand_mut("profile") {
        Some(profile) => profile.error(ErrorKind::ValueValidation, problem),
        None => command.error(ErrorKind::ValueValidation, problem),
    }
}

impl Args {
    /// Parses a command line.
    ///
    /// # Errors
    /// Those of clap, and options of `profile` that do not fit each other or the file system.
    pub fn of(line: impl IntoIterator<Item = impl Into<OsString> + Clone>) -> Result<Args, clap::Error> {
        let args = Args::try_parse_from(line).map_err(|error| match error.kind() {
            // The first argument that is no option is taken for a task.
            ErrorKind::InvalidSubcommand | ErrorKind::ArgumentConflict if error.to_string().contains("subcommand") => {
                let name = error.get(ContextKind::InvalidSubcommand).map_or_else(String::new, |name| format!(" '{name}'"));
                let hint = format!("there is no task{name}: run a file by -f FILE, statements by -c 'SELECT …'");
                Args::command().error(ErrorKind::InvalidSubcommand, hint)
            }
            _ => error,
        })?;
        match &args.subcommand {
            Some(Subcommand::Profile(profile)) => profile.check().map_err(refused)?,
            Some(Subcommand::Devices | Subcommand::Completions { .. } | Subcommand::Man) | None => {}
        }
        Ok(args)
    }

    /// Whether statements are typed at a terminal.
    pub fn is_interactive(&self) -> bool {
        self.subcommand.is_none() && self.file.is_empty() && self.command.is_empty() && std::io::stdin().is_terminal()
    }

    /// Whether statements come from the terminal or from standard input.
    pub fn reads_statements_from_stdin(&self) -> bool {
        let none_given = self.command.is_empty() && self.file.is_empty();
        let by_default = match &self.subcommand {
            Some(Subcommand::Profile(profile)) => profile.query.is_stdin(),
            Some(Subcommand::Devices | Subcommand::Completions { .. } | Subcommand::Man) => false,
            None => none_given,
        };
        by_default || self.file.iter().any(|file| is_stdin_location(file))
    }
}

fn folder(path: &str) -> Result<PathBuf, String> {
    let path = PathBuf::from(path);
    if path.is_dir() { Ok(path) } else { Err("there is no such folder".to_string()) }
}

/// Parses an existing file, a pipe among them, or one of the names of standard input.
fn file(path: &str) -> Result<String, String> {
    if path == "-" {
        return Ok("/dev/stdin".to_string());
    }
    match std::fs::metadata(path) {
        _ if is_stdin_location(path) => Ok(path.to_string()),
        Ok(file) if file.is_dir() => Err("it is a folder".to_string()),
        Ok(_) => Ok(path.to_string()),
        Err(_) => Err("there is no such file".to_string()),
    }
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

    fn profile(list: &[&str]) -> Result<ProfileArgs, String> {
        match Args::of(["devicefusion", "profile"].iter().chain(list)) {
            Ok(Args { subcommand: Some(Subcommand::Profile(profile)), .. }) => Ok(profile),
            Ok(other) => panic!("{other:?}"),
            Err(error) => Err(error.to_string()),
        }
    }

    #[test]
    fn the_name_of_a_profile_tells_its_format() {
        let format = |list: &[&str]| profile(&[&["SELECT 1"][..], list].concat()).and_then(|profile| profile.format());
        assert_eq!(format(&[]), Ok(ProfileFormat::Html));
        for (name, expected) in [
            ("q.html", ProfileFormat::Html),
            ("q.HTM", ProfileFormat::Html),
            ("q.json", ProfileFormat::Json),
            ("q.pg.json", ProfileFormat::Pgjson),
            ("q.pgjson", ProfileFormat::Pgjson),
            ("q.Trace.json", ProfileFormat::Trace),
            ("q.trace", ProfileFormat::Trace),
            ("-", ProfileFormat::Html),
        ] {
            assert_eq!(format(&["-o", name]), Ok(expected), "{name}");
        }
        for name in ["q.json", "q.txt", "-"] {
            assert_eq!(format(&["-o", name, "--format", "trace"]), Ok(ProfileFormat::Trace), "{name}");
        }
        for name in ["q.txt", "q", "html"] {
            let problem = format(&["-o", name]).unwrap_err();
            let named = [".html", ".htm", ".json", ".pg.json", ".pgjson", ".trace.json", ".trace", "--format"];
            assert!(named.iter().all(|part| problem.contains(part)) && problem.contains("devicefusion profile"), "{problem}");
        }
    }

    #[test]
    fn a_file_of_a_profile_is_one_value() {
        let args = profile(&["-f", "Cargo.toml", "-f", "src/main.rs", "SELECT 1", "--warm", "1000"]).unwrap();
        assert_eq!(args.file, ["Cargo.toml", "src/main.rs"]);
        assert_eq!((args.query.sql.as_deref(), args.warm), (Some("SELECT 1"), 1000));
        let args = profile(&["--query-file", "Cargo.toml", "-f", "/dev/stdin"]).unwrap();
        assert_eq!((args.query.sql, args.query.query_file.as_deref()), (None, Some("Cargo.toml")));
    }

    #[test]
    fn a_profile_refuses_what_would_fail_later() {
        let cases: [(&[&str], &str); 10] = [
            (&[], "<SQL|--query-file <FILE>>"),
            (&["SELECT 1", "--query-file", "Cargo.toml"], "cannot be used with"),
            (&["--query-file", "/nowhere.sql"], "there is no such file"),
            (&["SELECT 1", "SELECT 2"], "SELECT 2"),
            (&["-", "-f", "/dev/stdin"], "can be standard input"),
            (&["--query-file", "/dev/stdin", "-f", "/dev/fd/0"], "can be standard input"),
            (&["SELECT 1", "-f", "/dev/stdin", "-f", "/dev/stdin"], "can be standard input"),
            (&["SELECT 1", "-o", "/nowhere/q.html"], "cannot write /nowhere/q.html: there is no folder /nowhere"),
            (&["SELECT 1", "-o", "src", "--format", "html"], "cannot write src: it is a folder"),
            (&["SELECT 1", "--warm", "1001"], "1001 is not in "),
        ];
        for (list, expected) in cases {
            let problem = profile(list).unwrap_err();
            assert!(problem.contains(expected), "{list:?}: {problem}");
        }
    }

    #[test]
    fn an_argument_that_is_no_option_has_a_hint() {
        for list in [&["nosemi.sql"][..], &["-q", "nosemi.sql"], &["-q", "SELECT 1"]] {
            let problem = Args::of(["devicefusion"].iter().chain(list)).unwrap_err().to_string();
            assert!(problem.contains("run a file by -f FILE, statements by -c"), "{list:?}: {problem}");
        }
        assert!(Args::of(["devicefusion", "-q", "devices"]).is_err());
    }

    #[test]
    fn statements_come_from_stdin_unless_given() {
        let args = |list: &[&str]| Args::try_parse_from(std::iter::once(&"devicefusion").chain(list));
        assert!(args(&[]).is_ok_and(|args| args.reads_statements_from_stdin()));
        assert!(args(&["-c", "select 1"]).is_ok_and(|args| !args.reads_statements_from_stdin()));
        assert!(args(&["-f", "/dev/stdin"]).is_ok_and(|args| args.reads_statements_from_stdin()));
        assert!(args(&["devices"]).is_ok_and(|args| args.subcommand.is_some() && !args.reads_statements_from_stdin()));
        assert!(args(&["profile", "-"]).is_ok_and(|args| args.reads_statements_from_stdin()));
        assert!(args(&["profile", "--query-file", "/dev/stdin"]).is_ok_and(|args| args.reads_statements_from_stdin()));
        assert!(args(&["profile", "SELECT 1"]).is_ok_and(|args| !args.reads_statements_from_stdin()));
        assert!(args(&["-f", "-"]).is_ok_and(|args| args.reads_statements_from_stdin()));
        assert!(args(&["-f", "/dev/null"]).is_ok_and(|args| !args.reads_statements_from_stdin()));
        assert!(args(&["-f", "/nowhere.sql"]).is_err());
        assert!(args(&["-c", " "]).is_err());
    }
}
