// SPDX-License-Identifier: Apache-2.0
//! `devicefusion-bench start`: queries over files in fresh processes, with the default settings.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use datafusion::arrow::util::pretty::pretty_format_batches;
use datafusion::error::Result;
use datafusion::prelude::SessionContext;
use devicefusion::DeviceRuntime;
use indicatif::ProgressBar;
use serde_json::{Value, json};

use crate::data;
use crate::measure::median;
use crate::process::{SessionArguments, files};
use crate::report::{self, Table, milliseconds, red, target_cell};
use crate::tpch;

/// Runs of a query in a process.
const RUNS: usize = 10;

/// The longest wait for the kernels of a query.
const PATIENCE: Duration = Duration::from_secs(120);

#[derive(clap::Args)]
pub struct StartArguments {
    #[command(flatten)]
    data: data::DataArguments,
    /// TPC-H queries by number, and 0 for a grouping of a CSV file of two rows [default: all].
    #[arg(long, value_delimiter = ',')]
    queries: Vec<usize>,
    /// Folder of .sql files, instead of TPC-H's queries.
    #[arg(long, requires = "tables", conflicts_with = "queries")]
    statements: Option<PathBuf>,
    /// Folder of Parquet files, which are the tables of the statements.
    #[arg(long, requires = "statements")]
    tables: Option<PathBuf>,
    /// Processes of each side; medians are shown.
    #[arg(long, default_value_t = 3)]
    processes: usize,
    #[command(flatten)]
    session: SessionArguments,
}

/// The query that one process runs, with its data and session.
#[derive(clap::Args)]
pub struct StartedArguments {
    /// The number of a query, or the path of a file.
    #[arg(long)]
    query: String,
    /// Whether the process has plain DataFusion.
    #[arg(long)]
    plain: bool,
    #[arg(long)]
    folder: PathBuf,
    #[arg(long)]
    scale: f64,
    #[command(flatten)]
    session: SessionArguments,
}

impl StartedArguments {
    fn command_line(&self) -> Vec<String> {
        let own = ["started", "--query", &self.query, "--scale", &self.scale.to_string(), "--folder"].map(str::to_string);
        let plain = self.plain.then(|| "--plain".to_string());
        own.into_iter().chain([self.folder.display().to_string()]).chain(plain).chain(self.session.command_line()).collect()
    }

    /// Runs the query ten times. The last runs follow the compilation of its kernels.
    pub async fn measure(&self) -> Result<Value> {
        let session = self.session.open(&self.folder, self.plain).await?;
        let sql = self.statement(&session).await?;
        let (mut seconds, mut answers) = (Vec::new(), Vec::new());
        for run in 0..RUNS {
            let begin = Instant::now();
            let rows = session.sql(&sql).await?.collect().await?;
            seconds.push(begin.elapsed().as_secs_f64());
            answers.push(pretty_format_batches(&rows)?.to_string());
            if run == 1
                && let Some(context) = DeviceRuntime::of(&session.copied_config()).and_then(|runtime| runtime.opened())
            {
                context.wait_until_prepared(PATIENCE);
            }
        }
        answers.dedup();
        let counters = DeviceRuntime::of(&session.copied_config()).and_then(|runtime| runtime.counters()).unwrap_or_default();
        Ok(json!({
            "seconds": seconds,
            "answers": answers,
            "programs": counters.programs_compiled,
            "launches": counters.launches,
        }))
    }

    /// The text of the query.
    async fn statement(&self, session: &SessionContext) -> Result<String> {
        if self.query == CSV {
            let file = self.folder.join("two-rows.csv");
            std::fs::write(&file, "k,v\na,1\nb,2\n")?;
            session.register_csv("two_rows", file.display().to_string(), Default::default()).await?;
            return Ok("SELECT k, sum(v) FROM two_rows GROUP BY k ORDER BY k".to_string());
        }
        match self.query.parse() {
            Ok(number) => tpch::query(number, self.scale),
            Err(_) => Ok(std::fs::read_to_string(&self.query)?),
        }
    }
}

/// The number of the grouping of a CSV file.
const CSV: &str = "0";

/// The name of a query in the table.
fn name_of(query: &str) -> String {
    match query.parse::<usize>() {
        Ok(_) if query == CSV => "two rows of CSV".to_string(),
        Ok(number) => format!("Q{number}"),
        Err(_) => Path::new(query).file_stem().unwrap_or_default().to_string_lossy().into_owned(),
    }
}

/// Returns whether all answers are those of plain DataFusion.
pub async fn run(arguments: StartArguments, run: impl AsyncFn(&[String]) -> Result<Value>) -> Result<bool> {
    let StartArguments { data: data_arguments, mut queries, statements, tables, processes, session } = arguments;
    if queries.is_empty() {
        queries = (0..=tpch::ALL).collect();
    }
    let (folder, queries) = match (tables, statements) {
        (Some(tables), Some(statements)) => {
            let statements = files(&statements, "sql")?;
            (tables, statements.into_iter().map(|file| file.display().to_string()).collect::<Vec<_>>())
        }
        _ => (data::run(&data_arguments)?, queries.into_iter().map(|number| number.to_string()).collect()),
    };
    let progress = ProgressBar::new_spinner();
    let mut table = Table::new([
        "query",
        "plain first ms",
        "first ms",
        "ratio",
        "target",
        "second ms",
        "plain tenth ms",
        "tenth ms",
        "ratio",
        "programs",
        "answer",
    ]);
    let (mut all_equal, mut sums) = (true, [0.0; 4]);
    for query in queries {
        let (mut sides, mut reports) = ([Vec::new(), Vec::new()], Vec::new());
        for _ in 0..processes.max(1) {
            for (side, plain) in sides.iter_mut().zip([true, false]) {
                progress.set_message(name_of(&query));
                progress.tick();
                let (folder, scale, session) = (folder.clone(), data_arguments.scale, session.clone());
                let query = query.clone();
                let report = run(&StartedArguments { query, plain, folder, scale, session }.command_line()).await?;
                let seconds = report["seconds"].as_array().into_iter().flatten().filter_map(Value::as_f64);
                side.push(seconds.collect::<Vec<_>>());
                reports.push(report);
            }
        }
        let of_run =
            |side: usize, run: usize| median(&sides[side].iter().filter_map(|runs| runs.get(run).copied()).collect::<Vec<_>>());
        let times = [of_run(0, 0), of_run(1, 0), of_run(0, RUNS - 1), of_run(1, RUNS - 1)];
        sums.iter_mut().zip(times).for_each(|(sum, time)| *sum += time);
        let is_equal = reports.iter().all(|report| report["answers"] == reports[0]["answers"]);
        all_equal &= is_equal;
        let programs = reports.last().map_or(0, |report| report["programs"].as_u64().unwrap_or_default());
        let [plain_first, first, plain_tenth, tenth] = times;
        table.push([
            name_of(&query),
            milliseconds(plain_first),
            milliseconds(first),
            format!("{:.2}", first / plain_first),
            target_cell(first <= 1.15 * plain_first + 0.02, "1.15 × + 20 ms"),
            milliseconds(of_run(1, 1)),
            milliseconds(plain_tenth),
            milliseconds(tenth),
            format!("{:.2}", tenth / plain_tenth),
            programs.to_string(),
            if is_equal { "equal".to_string() } else { red("differs") },
        ]);
    }
    progress.finish_and_clear();
    report::print_surroundings(&report::surroundings(session.partitions), &[]);
    println!("  processes   medians of {processes} for each side, each with empty kernel caches");
    print!("{}", table.render());
    let [plain_first, first, plain_tenth, tenth] = sums;
    println!(
        "  all: first {} against {} ms, tenth {} against {} ms",
        milliseconds(first),
        milliseconds(plain_first),
        milliseconds(tenth),
        milliseconds(plain_tenth)
    );
    Ok(all_equal)
}
