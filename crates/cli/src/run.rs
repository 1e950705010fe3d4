// SPDX-License-Identifier: Apache-2.0
//! Runs the statements of commands, files, standard input or the terminal, and records failures.
//!
//! `datafusion-cli` plans each statement. Its loops over files drop errors after printing them, so
//! this module has its own loops.

use std::fs::File;
use std::io::{BufRead, BufReader, Write, stdout};
use std::ops::ControlFlow;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use datafusion::common::{Result, exec_datafusion_err, exec_err};
use datafusion::config::Dialect;
use datafusion::error::DataFusionError;
use datafusion_cli::DATAFUSION_CLI_VERSION;
use datafusion_cli::cli_context::CliSessionContext;
use datafusion_cli::command::Command;
use datafusion_cli::exec;
use datafusion_cli::functions::Function;
use datafusion_cli::print_format::PrintFormat;
use datafusion_cli::print_options::{MaxRows, PrintOptions};
use devicefusion::{DeviceRuntime, error_text};
use futures::FutureExt;
use rustyline::error::ReadlineError;
use tokio::signal::ctrl_c;
use tokio::signal::unix::{SignalKind, signal};

use crate::args::{Args, ProfileArgs, Subcommand};
use crate::completion::Candidates;
use crate::printer::{Expanded, Printer, StatementKind, print_to_stderr};
use crate::profile::{Profiling, print_profile, profiled};
use crate::prompt::{Input, Prompt, command};
use crate::session::Session;
use crate::statement::{is_complete, statements};
use crate::summarize::{summarized, summary};

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
/// If the session cannot be opened, a file cannot be read, or a statement of `-c` fails. A profile
/// also fails with a statement before its query.
pub async fn run(mut args: Args, device: &mut Option<Arc<DeviceRuntime>>) -> Result<Outcome> {
    let profiling = match args.subcommand.clone() {
        Some(Subcommand::Profile(profile)) => {
            let profiling = Profiling::open(&profile)?;
            let ProfileArgs { file, device, strict, data_path, memory_limit, .. } = profile;
            args = Args { file, device, strict, data_path, memory_limit, ..args };
            Some(profiling)
        }
        Some(Subcommand::Devices | Subcommand::Completions { .. } | Subcommand::Man) | None => None,
    };
    if let Some(folder) = &args.data_path {
        // These are of the folder that the shell was started in.
        for file in args.file.iter_mut().chain(args.rc.iter_mut().flatten()) {
            *file = std::path::absolute(&*file)?.to_string_lossy().into_owned();
        }
        std::env::set_current_dir(folder)?;
    }
    let interactive = args.is_interactive();
    // The compiler of an OpenCL driver installs a SIGINT handler, which calls the handler before
    // it. Without an earlier handler it ends the process.
    let _interrupts = interactive.then(|| signal(SignalKind::interrupt())).transpose()?;
    let session = Session::open(&args).await?;
    *device = DeviceRuntime::of(session.task_ctx().session_config());

    let mut statements = Statements { session: &session, color: args.color, outcome: Outcome::AllStatementsSucceeded, files: 0 };

    let reads_input = profiling.is_none() && args.file.is_empty() && args.command.is_empty();
    match args.rc {
        Some(files) => {
            for path in files {
                statements.run_file(&path).await?;
            }
        }
        None => {
            for path in startup_files().into_iter().filter(|_| reads_input) {
                // A file that cannot be read must not keep its user out of the shell.
                _ = statements.run_file(&path).await.inspect_err(print_error);
            }
        }
    }
    for path in &args.file {
        statements.run_file(path).await?;
        if profiling.is_some() && statements.outcome == Outcome::StatementsFailed {
            return exec_err!("no profile: statements of {path} failed");
        }
    }
    for command in &args.command {
        statements.run_command(command).await?;
    }
    if let Some(profiling) = profiling {
        profiling.write(&session).await?;
    }
    if reads_input {
        if interactive {
            statements.run_terminal().await?;
        } else {
            statements.run_lines(std::io::stdin().lock(), None).await?;
        }
    }
    Ok(statements.outcome)
}

/// Prints an error, unless the reader of the output has gone, as `head` does.
pub fn print_error(error: &DataFusionError) {
    print_error_of("", error);
}

/// Most characters of an error that are printed.
const MOST_CHARACTERS: usize = 4000;

/// As [`print_error`], behind the position of the statement.
fn print_error_of(prefix: &str, error: &DataFusionError) {
    let text = error_text(error);
    // Arrow's writers make text of an I/O error.
    let is_of_writer = matches!(error.find_root(), DataFusionError::ArrowError(..) | DataFusionError::IoError(_));
    if is_of_writer && text.ends_with(&std::io::Error::from_raw_os_error(nix::libc::EPIPE).to_string()) {
        return;
    }
    // Some errors quote what a whole file has.
    match text.char_indices().nth(MOST_CHARACTERS) {
        Some((end, _)) => print_to_stderr(&format!("{prefix}Error: {}… ({} bytes in all)", &text[..end], text.len())),
        None => print_to_stderr(&format!("{prefix}Error: {text}")),
    }
}

/// The backslash commands.
const HELP: &str = "\
\\d                   tables
\\d TABLE             columns of a table
\\h                   statements
\\h NAME              the syntax of a statement, or what a function does
\\i FILE              run the statements of a file
\\pset format FORMAT  format of results: automatic, table, csv, tsv, json or nd-json
\\pset maxrows ROWS   rows that tables show, or inf
\\x on|off|auto       a line for each value, or that for wide tables alone
\\timing on|off       the time of each statement
\\quiet on|off        results only
\\object_store_profiling MODE
                     requests to object stores: disabled, summary or trace
\\?, help             this list
\\q, exit, quit       leave the shell

A statement ends with a semicolon. EXPLAIN shows where its operators run.";

/// Statements whose syntax `\h` shows.
const STATEMENTS: [Function; 7] = [
    Function::CreateTable,
    Function::CreateTableAs,
    Function::DropTable,
    Function::Explain,
    Function::Insert,
    Function::Select,
    Function::Show,
];

/// The user's startup file.
fn startup_files() -> Vec<String> {
    let file = dirs::config_dir().map(|folder| folder.join("devicefusion/rc.sql")).filter(|file| file.exists());
    file.and_then(|file| file.into_os_string().into_string().ok()).into_iter().collect()
}

/// Runs statements and records whether one failed.
struct Statements<'a> {
    session: &'a Session,
    color: bool,
    outcome: Outcome,
    /// Files that run, each included by the one before.
    files: usize,
}

/// The deepest inclusion of files.
const MOST_FILES: usize = 16;

/// Where a statement stands, before its error. One that was typed or piped needs none.
fn location(file: Option<&str>, line: usize) -> String {
    file.map(|file| format!("{file}:{line}: ")).unwrap_or_default()
}

fn not_a_command<T>(line: &str) -> Result<T> {
    exec_err!("'{line}' is not a command; \\? lists them")
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
        if self.files >= MOST_FILES {
            return exec_err!("{path}: files include each other {MOST_FILES} deep");
        }
        self.files += 1;
        let result = self.run_opened(path).await;
        self.files -= 1;
        result
    }

    async fn run_opened(&mut self, path: &str) -> Result<()> {
        let file = File::open(path).map_err(|error| exec_datafusion_err!("cannot open {path}: {error}"))?;
        let result = self.run_lines(BufReader::new(file), Some(path)).await;
        // Failed statements are reported already. This is an error of the file.
        result.map_err(|error| exec_datafusion_err!("cannot read {path}: {}", error.message()))
    }

    /// Runs the statements of a reader. A statement ends with a line whose last token is ';'.
    /// Failures are reported and recorded, and the next statement runs. The reports name the file,
    /// if it is given, and the first line of the statement.
    async fn run_lines(&mut self, reader: impl BufRead, file: Option<&str>) -> Result<()> {
        let (mut pending, mut begin) = (String::new(), 1);
        for (number, line) in (1..).zip(reader.lines()) {
            let line = line?;
            if number == 1 && line.starts_with("#!") {
                continue;
            }
            if pending.is_empty() {
                let command = command(&line).or_else(|| line.starts_with('\\').then(|| line.trim_end()));
                if let Some(command) = command {
                    let control = Box::pin(self.run_backslash(command)).await;
                    match control {
                        Ok(ControlFlow::Continue(())) => {}
                        Ok(ControlFlow::Break(())) => return Ok(()),
                        Err(error) => self.report(&location(file, number), &error),
                    }
                    continue;
                }
                if line.starts_with('.') {
                    if let Err(error) = not_a_command::<()>(line.trim()) {
                        self.report(&location(file, number), &error);
                    }
                    continue;
                }
                // The parser counts lines from the first one that it gets.
                if line.trim().is_empty() || line.trim_start().starts_with("--") {
                    continue;
                }
                begin = number;
            }
            pending.push_str(&line);
            pending.push('\n');
            if line.contains(';') && is_complete(&self.dialect(), &pending) {
                self.run_reported(std::mem::take(&mut pending), file, begin).await;
            }
        }
        if !pending.is_empty() {
            self.run_reported(pending, file, begin).await;
        }
        Ok(())
    }

    async fn run_terminal(&mut self) -> Result<()> {
        if !self.session.printer.lock().quiet {
            writeln!(stdout(), "DeviceFusion {} on DataFusion {DATAFUSION_CLI_VERSION}", env!("CARGO_PKG_VERSION"))?;
        }
        let failed = |error: ReadlineError| DataFusionError::External(Box::new(error));
        let mut prompt = Prompt::open(&self.dialect(), self.color).map_err(failed)?;
        loop {
            // Ctrl-C may have ended one within others.
            self.files = 0;
            let candidates = Candidates::of(self.session.context()).await;
            match prompt.read(candidates, &self.dialect()).map_err(failed)? {
                // The first poll of `ctrl_c` makes it listen, so it comes before work that blocks.
                Input::Statements(sql) => tokio::select! {
                    biased;
                    _ = ctrl_c() => writeln!(stdout(), "^C")?,
                    result = self.run_sql(sql) => {
                        _ = result.inspect_err(print_error);
                    }
                },
                Input::Command(command) => tokio::select! {
                    biased;
                    _ = ctrl_c() => writeln!(stdout(), "^C")?,
                    control = Box::pin(self.run_backslash(&command)) => match control {
                        Ok(ControlFlow::Continue(())) => {}
                        Ok(ControlFlow::Break(())) => return Ok(()),
                        Err(error) => print_error(&error),
                    },
                },
                Input::Malformed => print_to_stderr("Error: the input is not UTF-8"),
                Input::Interrupted => {}
                Input::End => return Ok(()),
            }
        }
    }

    /// Runs statements of a text that begins in a line of a file.
    async fn run_reported(&mut self, sql: String, file: Option<&str>, begin: usize) {
        if let Err(error) = self.run_sql(sql).await {
            self.report(&location(file, begin), &error);
        }
    }

    fn report(&mut self, prefix: &str, error: &DataFusionError) {
        print_error_of(prefix, error);
        self.outcome = Outcome::StatementsFailed;
    }

    /// Runs statements. A panic, which damaged files cause in some readers, fails them alone.
    async fn run_sql(&self, sql: String) -> Result<()> {
        devicefusion::check_nesting(self.session.task_ctx().session_config().options(), &sql)?;
        self.session.start_timer();
        let print = self.nothing_printed();
        let running = async {
            let mut cut = statements(&self.dialect(), &sql);
            // DataFusion's parser does not know these statements, and takes others as one text.
            if !cut.iter().any(|statement| summarized(statement).is_some() || profiled(statement).is_some()) {
                cut = vec![sql];
            }
            for statement in cut {
                if let Some(query) = summarized(&statement) {
                    let summary = summary(self.session.context(), &query).await?;
                    self.session.print_rows(summary, StatementKind::Listing).await?;
                } else if let Some((format, query)) = profiled(&statement) {
                    print_profile(self.session.context(), query, format).await?;
                } else {
                    exec::exec_from_commands(self.session, vec![statement], &print).await?;
                }
            }
            Ok(())
        };
        AssertUnwindSafe(running).catch_unwind().await.unwrap_or_else(|panic| {
            let message = devicefusion::panic_text(panic);
            exec_err!("the statement panicked: {}", message.as_deref().unwrap_or("without a message"))
        })
    }

    /// Runs a backslash command. `Break` means that the shell quits.
    async fn run_backslash(&mut self, line: &str) -> Result<ControlFlow<()>> {
        let tokens: Vec<&str> = line.trim_start_matches('\\').trim_end_matches(';').split_whitespace().collect();
        if let Some(()) = self.set_printer(&tokens)? {
            return Ok(ControlFlow::Continue(()));
        }
        match tokens.join(" ").parse::<Command>() {
            Ok(Command::Quit) => return Ok(ControlFlow::Break(())),
            Ok(Command::Help) => {
                writeln!(stdout(), "devicefusion {}, the shell of DeviceFusion\n\n{HELP}", env!("CARGO_PKG_VERSION"))?
            }
            Ok(Command::Include(Some(path))) => Box::pin(self.run_file(&path)).await?,
            Ok(Command::OutputFormat(_) | Command::QuietMode(_) | Command::ObjectStoreProfileMode(_)) | Err(()) => {
                return not_a_command(line);
            }
            // `datafusion-cli` would panic without a reader of the output.
            Ok(Command::ListFunctions) => {
                STATEMENTS.iter().try_for_each(|statement| writeln!(stdout(), "{statement}"))?;
            }
            Ok(Command::SearchFunctions(name)) => match name.parse::<Function>() {
                Ok(statement) => writeln!(stdout(), "{}", statement.function_details()?.trim())?,
                Err(()) => {
                    self.run_sql(format!("SHOW FUNCTIONS LIKE '{}'", name.to_lowercase().replace('\'', "''"))).await?;
                }
            },
            // Files have no columns in the information schema.
            Ok(Command::DescribeTableStmt(name)) if name.starts_with('\'') => self.run_sql(format!("DESCRIBE {name}")).await?,
            Ok(command) => {
                self.session.start_timer();
                command.execute(self.session, &mut self.nothing_printed()).await?;
            }
        }
        Ok(ControlFlow::Continue(()))
    }

    /// Runs a command about printing; `None` for others. Without a value it shows or flips the
    /// current one.
    fn set_printer(&self, tokens: &[&str]) -> Result<Option<()>> {
        let mut printer = self.session.printer.lock();
        let switched = |value: Option<&&str>, current: bool| match value {
            Some(&"on" | &"true") => Ok(true),
            Some(&"off" | &"false") => Ok(false),
            Some(value) => exec_err!("'{value}' is neither on nor off"),
            None => Ok(!current),
        };
        let on_off = |on: bool| if on { "on" } else { "off" };
        let mut out = stdout();
        match tokens {
            ["timing", rest @ ..] => {
                printer.timing = switched(rest.first(), printer.timing)?;
                writeln!(out, "Timing is {}.", on_off(printer.timing))?;
            }
            ["quiet", rest @ ..] => {
                printer.quiet = switched(rest.first(), printer.quiet)?;
                writeln!(out, "Quiet mode is {}.", on_off(printer.quiet))?;
            }
            ["x", "auto"] => {
                printer.expanded = Expanded::Auto;
                writeln!(out, "Records of wide tables have a line for each value.")?;
            }
            ["x", value] if !["on", "off", "true", "false"].contains(value) => {
                return exec_err!("'{value}' is none of on, off and auto");
            }
            ["x", rest @ ..] => {
                let on = switched(rest.first(), printer.expanded == Expanded::On)?;
                printer.expanded = if on { Expanded::On } else { Expanded::Off };
                writeln!(out, "A line for each value is {}.", on_off(on))?;
            }
            ["object_store_profiling", mode @ ..] => {
                if let Some(mode) = mode.first() {
                    let unknown = |_| exec_datafusion_err!("'{mode}' is none of disabled, summary and trace");
                    printer.registry.set_instrument_mode(mode.parse().map_err(unknown)?);
                }
                writeln!(out, "Profiling of object stores is {}.", printer.registry.instrument_mode())?;
            }
            ["pset"] => {
                let Printer { format, maxrows, .. } = &*printer;
                writeln!(out, "format {format:?}\nmaxrows {maxrows}")?;
            }
            ["pset", "maxrows", rows] => {
                printer.maxrows = rows.parse().map_err(|problem: String| exec_datafusion_err!("{problem}"))?;
            }
            ["pset", "maxrows" | "format"] => return exec_err!("\\{} needs a value", tokens.join(" ")),
            ["pset", "format", format] | ["pset", format] => {
                let unknown = |_| exec_datafusion_err!("'{format}' is none of automatic, table, csv, tsv, json and nd-json");
                printer.format = format.parse().map_err(unknown)?;
                writeln!(out, "Output format is {:?}.", printer.format)?;
            }
            _ => return Ok(None),
        }
        Ok(Some(()))
    }

    /// Options with which `datafusion-cli` prints nothing: the session has printed the rows.
    fn nothing_printed(&self) -> PrintOptions {
        let instrumented_registry = Arc::clone(&self.session.printer.lock().registry);
        let (format, maxrows) = (PrintFormat::Csv, MaxRows::Unlimited);
        PrintOptions { format, maxrows, quiet: true, color: false, instrumented_registry }
    }

    fn dialect(&self) -> Dialect {
        self.session.task_ctx().session_config().options().sql_parser.dialect
    }
}
