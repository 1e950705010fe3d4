// SPDX-License-Identifier: Apache-2.0
//! Runs the statements of commands, files, standard input or the terminal, and records failures.
//!
//! `datafusion-cli` plans, runs and prints each statement. Its loops over files drop errors after
//! printing them, so this module has its own loops.

use std::fs::File;
use std::io::{BufRead, BufReader, Write, stdout};
use std::ops::ControlFlow;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use datafusion::common::{Result, exec_datafusion_err, exec_err};
use datafusion::error::DataFusionError;
use datafusion::sql::sqlparser::dialect::{GenericDialect, dialect_from_str};
use datafusion::sql::sqlparser::tokenizer::Tokenizer;
use datafusion_cli::DATAFUSION_CLI_VERSION;
use datafusion_cli::cli_context::CliSessionContext;
use datafusion_cli::command::{Command, OutputFormat};
use datafusion_cli::exec;
use datafusion_cli::print_format::PrintFormat;
use datafusion_cli::print_options::{MaxRows, PrintOptions};
use devicefusion::{DeviceRuntime, error_text};
use futures::FutureExt;
use rustyline::error::ReadlineError;
use tokio::signal::ctrl_c;
use tokio::signal::unix::{SignalKind, signal};

use crate::args::Args;
use crate::completion::Words;
use crate::prompt::{Input, Prompt};
use crate::session::Session;

/// How a run ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// Nothing failed.
    AllStatementsSucceeded,
    /// At least one statement failed; its error is printed.
    StatementsFailed,
}

/// Opens the session and runs the statements of the arguments. Stores the session's device in
/// `device`.
///
/// # Errors
/// If the session cannot be opened, a file cannot be read, or a statement of `-c` fails.
pub async fn run(args: Args, device: &mut Option<Arc<DeviceRuntime>>) -> Result<Outcome> {
    if let Some(folder) = &args.data_path {
        std::env::set_current_dir(folder)?;
    }
    let interactive = args.is_interactive();
    // The compiler of an OpenCL driver installs a SIGINT handler, which calls the handler before
    // it. Without an earlier handler it ends the process.
    let _interrupts = interactive.then(|| signal(SignalKind::interrupt())).transpose()?;
    let (session, registry) = Session::open(&args).await?;
    *device = DeviceRuntime::of(session.task_ctx().session_config());
    if !args.quiet {
        eprintln!("{}", session.device_note());
    }

    let print = PrintOptions {
        format: args.format,
        quiet: args.quiet,
        // Only tables for people are truncated, not formats for programs.
        maxrows: match args.format {
            PrintFormat::Table | PrintFormat::Automatic => args.maxrows,
            _ => MaxRows::Unlimited,
        },
        color: args.color,
        instrumented_registry: Arc::clone(&registry),
    };
    let mut statements = Statements { session: &session, print, outcome: Outcome::AllStatementsSucceeded };

    let reads_input = args.file.is_empty() && args.command.is_empty();
    for path in args.rc.unwrap_or_else(|| if reads_input { startup_files() } else { vec![] }) {
        statements.run_file(&path).await?;
    }
    for path in &args.file {
        statements.run_file(path).await?;
    }
    for command in &args.command {
        statements.run_command(command).await?;
    }
    if reads_input {
        if interactive {
            statements.run_terminal().await?;
        } else {
            statements.run_lines(std::io::stdin().lock()).await?;
        }
    }
    Ok(statements.outcome)
}

/// Prints an error, unless the reader of the output has gone, as `head` does.
pub fn print_error(error: &DataFusionError) {
    let text = error_text(error);
    // Arrow's writers make text of an I/O error.
    let is_of_writer = matches!(error.find_root(), DataFusionError::ArrowError(..) | DataFusionError::IoError(_));
    if !is_of_writer || !text.ends_with(&std::io::Error::from_raw_os_error(nix::libc::EPIPE).to_string()) {
        eprintln!("Error: {text}");
    }
}

/// The backslash commands.
const HELP: &str = "\
\\d                   tables
\\d TABLE             columns of a table
\\h                   functions
\\h FUNCTION          what a function does
\\i FILE              run the statements of a file
\\pset format FORMAT  format of results: automatic, table, csv, tsv, json or nd-json
\\pset maxrows ROWS   rows that tables show, or inf
\\quiet on|off        results only
\\object_store_profiling MODE
                     requests to object stores: disabled, summary or trace
\\?, help             this list
\\q, exit, quit       leave the shell

A statement ends with a semicolon. EXPLAIN shows where its operators run.";

/// The user's startup file.
fn startup_files() -> Vec<String> {
    let file = dirs::config_dir().map(|folder| folder.join("devicefusion/rc.sql")).filter(|file| file.exists());
    file.and_then(|file| file.into_os_string().into_string().ok()).into_iter().collect()
}

/// Runs statements and records whether one failed.
struct Statements<'a> {
    session: &'a Session,
    print: PrintOptions,
    outcome: Outcome,
}

impl Statements<'_> {
    /// Runs one `-c` argument: statements or a backslash command. Returns the first failure.
    async fn run_command(&mut self, command: &str) -> Result<()> {
        if command.trim_start().starts_with('\\') {
            return self.run_backslash(command.trim()).await.map(|_| ());
        }
        self.run_sql(command.to_string()).await
    }

    async fn run_file(&mut self, path: &str) -> Result<()> {
        let file = File::open(path).map_err(|error| exec_datafusion_err!("cannot open {path}: {error}"))?;
        let result = self.run_lines(BufReader::new(file)).await;
        // Failed statements are reported already. This is an error of the file.
        result.map_err(|error| exec_datafusion_err!("cannot read {path}: {}", error.message()))
    }

    /// Runs the statements of a reader. A statement ends with a line that ends with ';'. Failures
    /// are reported and recorded, and the next statement runs.
    async fn run_lines(&mut self, reader: impl BufRead) -> Result<()> {
        let mut pending = String::new();
        for (number, line) in reader.lines().enumerate() {
            let line = line?;
            if number == 0 && line.starts_with("#!") {
                continue;
            }
            if pending.trim().is_empty() && line.starts_with('\\') {
                let control = Box::pin(self.run_backslash(line.trim_end())).await;
                match control {
                    Ok(ControlFlow::Continue(())) => {}
                    Ok(ControlFlow::Break(())) => return Ok(()),
                    Err(error) => self.report(&error),
                }
                continue;
            }
            pending.push_str(&line);
            pending.push('\n');
            if line.trim_end().ends_with(';') && self.is_complete(&pending) {
                self.run_reported(std::mem::take(&mut pending)).await;
            }
        }
        if !pending.trim().is_empty() {
            self.run_reported(pending).await;
        }
        Ok(())
    }

    async fn run_terminal(&mut self) -> Result<()> {
        if !self.print.quiet {
            writeln!(stdout(), "DeviceFusion {} on DataFusion {DATAFUSION_CLI_VERSION}", env!("CARGO_PKG_VERSION"))?;
        }
        let failed = |error: ReadlineError| DataFusionError::External(Box::new(error));
        let dialect = || self.session.task_ctx().session_config().options().sql_parser.dialect;
        let mut prompt = Prompt::open(&dialect(), self.print.color).map_err(failed)?;
        loop {
            let words = Words::of(self.session.context()).await;
            match prompt.read(words, &dialect()).map_err(failed)? {
                Input::Statements(sql) => tokio::select! {
                    result = self.run_sql(sql) => {
                        _ = result.inspect_err(print_error);
                    }
                    _ = ctrl_c() => writeln!(stdout(), "^C")?,
                },
                Input::Command(command) => match Box::pin(self.run_backslash(&command)).await {
                    Ok(ControlFlow::Continue(())) => {}
                    Ok(ControlFlow::Break(())) => return Ok(()),
                    Err(error) => print_error(&error),
                },
                Input::Interrupted => {}
                Input::End => return Ok(()),
            }
        }
    }

    async fn run_reported(&mut self, sql: String) {
        if let Err(error) = self.run_sql(sql).await {
            self.report(&error);
        }
    }

    fn report(&mut self, error: &DataFusionError) {
        print_error(error);
        self.outcome = Outcome::StatementsFailed;
    }

    /// Runs statements. A panic, which damaged files cause in some readers, fails them alone.
    async fn run_sql(&self, sql: String) -> Result<()> {
        devicefusion::check_nesting(self.session.task_ctx().session_config().options(), &sql)?;
        let statements = exec::exec_from_commands(self.session, vec![sql], &self.print);
        AssertUnwindSafe(statements).catch_unwind().await.unwrap_or_else(|panic| {
            let message = devicefusion::panic_text(panic);
            exec_err!("the statement panicked: {}", message.as_deref().unwrap_or("without a message"))
        })
    }

    /// Runs a backslash command. `Break` means that the shell quits.
    async fn run_backslash(&mut self, line: &str) -> Result<ControlFlow<()>> {
        let command = line.split_whitespace().collect::<Vec<_>>().join(" ");
        match command.trim_start_matches('\\').parse::<Command>() {
            Ok(Command::Quit) => return Ok(ControlFlow::Break(())),
            Ok(Command::Help) => writeln!(stdout(), "{HELP}")?,
            Ok(Command::Include(Some(path))) => Box::pin(self.run_file(&path)).await?,
            Ok(Command::OutputFormat(None)) => writeln!(stdout(), "Output format is {:?}.", self.print.format)?,
            Ok(Command::OutputFormat(Some(setting))) => match (setting.split_once(' '), setting.parse::<OutputFormat>()) {
                (Some(("maxrows", rows)), _) => {
                    self.print.maxrows = rows.parse().map_err(|problem: String| exec_datafusion_err!("{problem}"))?;
                }
                (_, Ok(format)) => format.execute(&mut self.print)?,
                (_, Err(())) => return exec_err!("'{line}' is not a command; \\? lists them"),
            },
            Ok(command) => command.execute(self.session, &mut self.print).await?,
            Err(()) => return exec_err!("'{line}' is not a command; \\? lists them"),
        }
        Ok(ControlFlow::Continue(()))
    }

    /// Whether the final ';' ends the statement, instead of being within a string or a comment.
    fn is_complete(&self, sql: &str) -> bool {
        let task = self.session.task_ctx();
        let dialect = dialect_from_str(task.session_config().options().sql_parser.dialect);
        let dialect = dialect.unwrap_or_else(|| Box::new(GenericDialect));
        Tokenizer::new(dialect.as_ref(), sql).tokenize().is_ok()
    }
}
