// SPDX-License-Identifier: Apache-2.0
//! `devicefusion-bench python`: a short query through the Python package, and through Rust.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Instant;

use datafusion::common::exec_datafusion_err;
use datafusion::error::Result;
use datafusion::prelude::SessionContext;

use crate::measure::median;

/// The limit of Python's addition: a share of Rust's time, and microseconds.
const SHARE: f64 = 0.1;
const MICROSECONDS: f64 = 50.0;

/// Runs of one side in a row.
const TURN: usize = 20;

const SETTINGS: [(&str, &str); 2] = [("device.cost", "always"), ("device.adaptive_start", "never")];

#[derive(clap::Args)]
pub struct PythonArguments {
    /// A Python interpreter that has the package.
    #[arg(long, default_value = "python3")]
    python: PathBuf,
    /// Rows of the resident table: of so many that Rust takes about a millisecond.
    #[arg(long, default_value_t = 400_000)]
    rows: usize,
    /// Processes of Python, one after another: the system may place the threads of one badly.
    #[arg(long, default_value_t = 5)]
    processes: usize,
    /// Turns of 20 runs for each side, in each process.
    #[arg(long, default_value_t = 10)]
    runs: usize,
}

/// Runs the query in turns: here, and in processes of Python.
///
/// Returns whether Python's median is within the limit.
pub async fn run(arguments: PythonArguments) -> Result<bool> {
    let PythonArguments { python, rows, processes, runs } = arguments;
    let load = format!("CREATE TABLE device.t AS SELECT value % 100 AS k FROM generate_series(1, {rows})");
    let query = "SELECT k, count(*) AS n FROM device.t GROUP BY k";
    let ctx = devicefusion::session()?;
    for (name, value) in SETTINGS {
        ctx.sql(&format!("SET {name} = '{value}'")).await?.collect().await?;
    }
    ctx.sql(&load).await?.collect().await?;
    let (mut of_rust, mut of_python) = (Vec::new(), Vec::new());
    for _ in 0..processes {
        let mut other = Other::start(&python, &load, query)?;
        // The first turn warms both.
        for turn in 0..=runs {
            let (rust, python) = (times(&ctx, query).await?, other.times()?);
            if turn > 0 {
                of_rust.extend(rust);
                of_python.extend(python);
            }
        }
        other.end()?;
    }
    let (rust, python) = (median(&of_rust) * 1e6, median(&of_python) * 1e6);
    let limit = rust * (1.0 + SHARE) + MICROSECONDS;
    println!("a grouped count of {rows} resident rows, medians of {} interleaved runs, µs", of_rust.len());
    println!("rust {rust:.0}  python {python:.0} ({:+.0}, {:.2} ×)  limit {limit:.0}", python - rust, python / rust);
    Ok(python <= limit)
}

async fn times(ctx: &SessionContext, query: &str) -> Result<Vec<f64>> {
    let mut times = Vec::new();
    for _ in 0..TURN {
        let begin = Instant::now();
        ctx.sql(query).await?.collect().await?;
        times.push(begin.elapsed().as_secs_f64());
    }
    Ok(times)
}

/// A process of Python. Each line to it is a turn, and its answer are the times.
struct Other {
    process: Child,
    turns: ChildStdin,
    times: BufReader<ChildStdout>,
}

impl Other {
    fn start(python: &Path, load: &str, query: &str) -> Result<Self> {
        let settings = SETTINGS.map(|(name, value)| format!("{name:?}: {value:?}")).join(", ");
        let program = format!(
            r#"
import sys, time, devicefusion
ctx = devicefusion.SessionContext({{{settings}}})
ctx.sql({load:?})
for _ in sys.stdin:
    for _ in range({TURN}):
        begin = time.perf_counter()
        ctx.sql({query:?}).to_arrow_table()
        print(time.perf_counter() - begin)
    sys.stdout.flush()
"#
        );
        let mut command = Command::new(python);
        let command = command.args(["-c", &program]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = command.spawn().map_err(|error| exec_datafusion_err!("{}: {error}", python.display()))?;
        match (process.stdin.take(), process.stdout.take()) {
            (Some(turns), Some(times)) => Ok(Other { process, turns, times: BufReader::new(times) }),
            _ => Err(exec_datafusion_err!("{} has no pipes", python.display())),
        }
    }

    fn times(&mut self) -> Result<Vec<f64>> {
        writeln!(self.turns)?;
        let mut times = Vec::new();
        for _ in 0..TURN {
            let mut line = String::new();
            self.times.read_line(&mut line)?;
            let seconds = line.trim().parse().map_err(|_| exec_datafusion_err!("Python has ended: is the package installed?"))?;
            times.push(seconds);
        }
        Ok(times)
    }

    fn end(self) -> Result<()> {
        let Other { mut process, turns, .. } = self;
        drop(turns);
        process.wait()?;
        Ok(())
    }
}
