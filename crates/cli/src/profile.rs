// SPDX-License-Identifier: Apache-2.0
//! `devicefusion profile` and `EXPLAIN ANALYZE FORMAT html`: they run a query, and write how the
//! run went.

use std::fs::File;
use std::io::{Write, stderr, stdin, stdout};
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::time::Duration;

use clap::ValueEnum;
use datafusion::common::{Result, exec_datafusion_err, exec_err};
use datafusion::error::DataFusionError;
use datafusion::prelude::SessionContext;
use devicefusion::{DeviceRuntime, Profile};
use nix::unistd::dup2_stdout;

use crate::args::{ProfileArgs, ProfileFormat, QueryArgs};
use crate::printer::print_to_stderr;
use crate::run::print_error;
use crate::session::Session;
use crate::summarize::without_comments;

/// The longest wait for the optimization of kernels after warm runs.
const PATIENCE: Duration = Duration::from_secs(60);

/// A query to profile, and where its profile goes.
pub struct Profiling {
    sql: String,
    format: ProfileFormat,
    /// Runs before.
    warm: u16,
    output: Output,
}

/// Where a profile goes.
enum Output {
    File(PathBuf),
    Stdout(File),
}

impl Profiling {
    /// Reads the query. A profile on standard output has it alone from now on.
    ///
    /// # Errors
    /// If the query cannot be read, or is empty.
    pub fn open(args: &ProfileArgs) -> Result<Profiling> {
        let sql = read(&args.query)?;
        let format = args.format().map_err(|problem| exec_datafusion_err!("{problem}"))?;
        let output = match &args.data_path {
            _ if args.is_stdout() => Output::Stdout(claim_stdout()?),
            // The file is of the folder that the shell was started in.
            Some(_) => Output::File(std::path::absolute(&args.output)?),
            None => Output::File(args.output.clone()),
        };
        Ok(Profiling { sql, format, warm: args.warm, output })
    }

    /// Runs the query and writes its profile, also if the run fails. The run waits for its kernels,
    /// so that the device has it.
    ///
    /// # Errors
    /// Those of the query, and of writing.
    pub async fn write(&self, session: &Session) -> Result<()> {
        let ctx = session.context();
        let state = ctx.state_ref();
        state.write().config_mut().options_mut().set("device.adaptive_start", "never")?;
        devicefusion::check_nesting(ctx.state().config_options(), &self.sql)?;
        for run in 1..=self.warm {
            let (profile, outcome) = Profile::of_run(ctx, &self.sql).await?;
            if outcome.is_err() {
                return self.write_run(&profile, outcome);
            }
            print_to_stderr(&format!("warm run {run} of {}: {:.3} s", self.warm, profile.total().as_secs_f64()));
        }
        let runtime = DeviceRuntime::of(&ctx.copied_config());
        if self.warm > 0
            && let Some(context) = runtime.and_then(|runtime| runtime.opened())
        {
            // Without the wait, the profile may have kernels that are not optimized yet.
            _ = tokio::task::spawn_blocking(move || context.wait_until_prepared(PATIENCE)).await;
        }
        let (profile, outcome) = Profile::of_run(ctx, &self.sql).await?;
        self.write_run(&profile, outcome)
    }

    /// Writes the profile of a run. The error of the run comes before one of writing.
    fn write_run(&self, profile: &Profile, outcome: Result<()>) -> Result<()> {
        let text = text_of(profile, self.format);
        let written = match &self.output {
            Output::File(path) => {
                let written = std::fs::write(path, text).map(|()| path.display().to_string());
                written.map_err(|error| exec_datafusion_err!("cannot write {}: {error}", path.display()))
            }
            Output::Stdout(file) => {
                let mut file: &File = file;
                file.write_all(text.as_bytes()).map(|()| "to standard output".to_string()).map_err(DataFusionError::from)
            }
        };
        if let (Err(error), Err(_)) = (&outcome, &written) {
            print_error(error);
        }
        let target = written?;
        let rows = if profile.rows() == 1 { "row" } else { "rows" };
        let ended = if outcome.is_ok() { format!("{} {rows}", profile.rows()) } else { "failed".to_string() };
        print_to_stderr(&format!("{ended} in {:.3} s; wrote {target}", profile.total().as_secs_f64()));
        outcome
    }
}

fn text_of(profile: &Profile, format: ProfileFormat) -> String {
    match format {
        ProfileFormat::Html => profile.to_html(),
        ProfileFormat::Json => profile.to_json(),
        ProfileFormat::Pgjson => profile.to_pgjson(),
        ProfileFormat::Trace => profile.to_trace(),
    }
}

/// The format and the query of `EXPLAIN ANALYZE FORMAT html SELECT …`; `None` for other statements.
pub fn profiled(statement: &str) -> Option<(ProfileFormat, &str)> {
    let mut rest = without_comments(statement);
    for keyword in ["EXPLAIN", "ANALYZE", "FORMAT"] {
        let (first, behind) = rest.split_once(char::is_whitespace)?;
        rest = behind.trim_start();
        if !first.eq_ignore_ascii_case(keyword) {
            return None;
        }
    }
    let (format, query) = rest.split_once(char::is_whitespace)?;
    Some((ProfileFormat::from_str(format, true).ok()?, query.trim_start()))
}

/// Runs a query, and writes its profile to standard output.
///
/// # Errors
/// Those of the query, and of writing.
pub async fn print_profile(ctx: &SessionContext, query: &str, format: ProfileFormat) -> Result<()> {
    let (profile, outcome) = Profile::of_run(ctx, query).await?;
    outcome?;
    writeln!(stdout(), "{}", text_of(&profile, format))?;
    Ok(())
}

/// Reads the query.
fn read(query: &QueryArgs) -> Result<String> {
    let sql = match (&query.sql, &query.query_file) {
        (Some(sql), _) if sql == "-" => {
            std::io::read_to_string(stdin()).map_err(|error| exec_datafusion_err!("cannot read standard input: {error}"))?
        }
        (Some(sql), _) => sql.clone(),
        (None, Some(file)) => {
            std::fs::read_to_string(file).map_err(|error| exec_datafusion_err!("cannot read {file}: {error}"))?
        }
        (None, None) => String::new(),
    };
    if sql.trim().is_empty() { exec_err!("the query is empty") } else { Ok(sql) }
}

/// Standard output. Other output of the process goes to standard error from now on: results of
/// statements before the query, and messages of compilers.
fn claim_stdout() -> Result<File> {
    let output = stdout().as_fd().try_clone_to_owned()?;
    dup2_stdout(stderr()).map_err(std::io::Error::from)?;
    Ok(File::from(output))
}
