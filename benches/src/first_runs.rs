// SPDX-License-Identifier: Apache-2.0
//! `devicefusion-bench first-runs`: long statements, each once in a process without kernels.

mod shapes;

use clap::ValueEnum;
use datafusion::error::{DataFusionError, Result};
use indicatif::ProgressBar;
use serde_json::{Value, json};

use crate::answers;
use crate::engine::{Engine, Setting, Source};
use crate::measure::median;
use crate::process::{SessionArguments, value_name_of};
use crate::report::{self, Table, milliseconds, red};
use crate::tpch::CommonArguments;

use self::shapes::Shape;

#[derive(clap::Args)]
pub struct FirstRunsArguments {
    /// Statements, by name [default: all].
    #[arg(long, value_delimiter = ',')]
    queries: Vec<Shape>,
    #[command(flatten)]
    common: CommonArguments,
}

/// The query and the session of one process.
#[derive(clap::Args)]
pub struct FirstRunArguments {
    #[arg(long)]
    query: Shape,
    #[command(flatten)]
    session: SessionArguments,
}

impl FirstRunArguments {
    fn command_line(&self) -> Vec<String> {
        [vec!["first-run".to_string(), "--query".to_string(), value_name_of(&self.query)], self.session.command_line()].concat()
    }

    /// Runs the statement on plain DataFusion and then on the device, over resident tables.
    pub async fn measure(&self) -> Result<Value> {
        let SessionArguments { device, partitions, settings } = &self.session;
        let plain = Engine::plain(*partitions).await?;
        let device = Engine::device(device, *partitions, settings).await?;
        let sql = self.query.sql();
        for (table, rows) in shapes::tables(&sql)? {
            for engine in [&plain, &device] {
                engine.put(table, rows.schema(), vec![vec![rows.clone()]]).await?;
            }
        }
        let expected = plain.execute(Source::Resident, &sql, true).await?;
        let before = device.cold_work();
        let first = device.execute(Source::Resident, &sql, true).await?;
        let cold = device.cold_work().since(before);
        Ok(json!({
            "plain_seconds": expected.seconds,
            "first_seconds": first.seconds,
            "planning_seconds": first.planning_seconds,
            "compile_seconds": first.device_metrics().compile.as_secs_f64(),
            "programs_compiled": cold.programs,
            "first_launches": cold.kernels,
            "placement": first.placement_kind(),
            "difference": answers::difference(&expected.batches, &first.batches)?,
        }))
    }
}

/// Returns whether every statement ran with the answer of plain DataFusion.
///
/// `run` takes the arguments of a command line, and returns the JSON that the command prints.
pub async fn run(arguments: FirstRunsArguments, run: impl AsyncFn(&[String]) -> Result<Value>) -> Result<bool> {
    let FirstRunsArguments { mut queries, mut common } = arguments;
    if common.runs == 0 {
        return Err(DataFusionError::Configuration("--runs 0: each statement needs at least one process".to_string()));
    }
    if queries.is_empty() {
        queries = Shape::value_variants().to_vec();
    }
    // The cost model leaves such small tables on the host.
    common.settings.insert(0, Setting { key: "device.cost".to_string(), value: "always".to_string() });
    let devices = common.open_devices().await?;
    if devices.is_empty() {
        return Err(DataFusionError::Configuration("--devices none: only devices compile kernels".to_string()));
    }

    let progress = ProgressBar::new_spinner();
    let mut outcomes = Vec::new();
    for query in queries {
        for device in &devices {
            let device = device.engine.name.clone();
            progress.set_message(format!("{}, {device}", value_name_of(&query)));
            let session =
                SessionArguments { device: device.clone(), partitions: common.partitions(), settings: common.settings.clone() };
            let arguments = FirstRunArguments { query, session }.command_line();
            let mut runs = Vec::new();
            for _ in 0..common.runs {
                progress.tick();
                runs.push(run(&arguments).await);
            }
            let runs = runs.into_iter().collect::<Result<Vec<_>>>().map_err(|error| error.strip_backtrace());
            outcomes.push(QueryRuns { query: value_name_of(&query), device, runs });
        }
    }
    progress.finish_and_clear();

    let surroundings = report::surroundings(common.partitions());
    let device_reports =
        devices.iter().map(|device| report::device(&device.engine, Some(device.copy_bytes_per_second))).collect::<Vec<_>>();
    report::print_surroundings(&surroundings, &device_reports);
    println!("  processes   medians of {} for each statement; empty kernel caches, resident tables", common.runs);
    print(&outcomes);
    if let Some(path) = &common.json {
        let results = outcomes.iter().map(QueryRuns::json).collect::<Vec<_>>();
        let report = json!({ "suite": "first-runs", "runs": common.runs, "surroundings": surroundings, "devices": device_reports, "results": results });
        report::write_json(path, &report)?;
    }
    Ok(outcomes.iter().all(QueryRuns::is_good))
}

/// The processes of a statement on one device.
struct QueryRuns {
    query: String,
    device: String,
    runs: Result<Vec<Value>, String>,
}

/// Median of a field.
fn middle(runs: &[Value], field: &str) -> f64 {
    median(&runs.iter().filter_map(|run| run[field].as_f64()).collect::<Vec<_>>())
}

/// First difference of the answers.
fn difference(runs: &[Value]) -> Option<&str> {
    runs.iter().find_map(|run| run["difference"].as_str())
}

fn ratio(runs: &[Value]) -> f64 {
    middle(runs, "first_seconds") / middle(runs, "plain_seconds")
}

impl QueryRuns {
    fn is_good(&self) -> bool {
        self.runs.as_ref().is_ok_and(|runs| difference(runs).is_none())
    }

    /// The entry in the JSON report.
    fn json(&self) -> Value {
        let Self { query, device, runs } = self;
        match runs {
            Err(error) => json!({ "query": query, "device": device, "error": error }),
            Ok(runs) => json!({
                "query": query,
                "device": device,
                "plain_seconds": middle(runs, "plain_seconds"),
                "first_seconds": middle(runs, "first_seconds"),
                "ratio": ratio(runs),
                "compile_seconds": middle(runs, "compile_seconds"),
                "programs_compiled": middle(runs, "programs_compiled"),
                "first_launches": middle(runs, "first_launches"),
                "answer": difference(runs).unwrap_or("equal"),
                "processes": runs,
            }),
        }
    }
}

fn print(outcomes: &[QueryRuns]) {
    let headings =
        ["query", "device", "plain ms", "first ms", "ratio", "compile ms", "programs", "new kernels", "runs on", "answer"];
    let mut table = Table::new(headings);
    let mut notes = Vec::new();
    for QueryRuns { query, device, runs } in outcomes {
        let mut row = |cells: [String; 8]| {
            let [plain, first, ratio, compile, programs, kernels, placement, answer] = cells;
            table.push([query.clone(), device.clone(), plain, first, ratio, compile, programs, kernels, placement, answer]);
        };
        let runs = match runs {
            Ok(runs) => runs,
            Err(error) => {
                notes.push(red(&format!("{query}, {device}: {error}")));
                row(["–", "–", "–", "–", "–", "–", "–", "failed"].map(str::to_string));
                continue;
            }
        };
        if let Some(difference) = difference(runs) {
            notes.push(red(&format!("{query}, {device}: {difference}")));
        }
        let milliseconds = |field| milliseconds(middle(runs, field));
        let placement = runs.first().and_then(|run| run["placement"].as_str()).unwrap_or("–");
        row([
            milliseconds("plain_seconds"),
            milliseconds("first_seconds"),
            format!("{:.3}", ratio(runs)),
            milliseconds("compile_seconds"),
            middle(runs, "programs_compiled").to_string(),
            middle(runs, "first_launches").to_string(),
            placement.to_string(),
            difference(runs).map_or("equal".to_string(), |_| red("differs")),
        ]);
    }
    print!("{}", table.render());
    for note in notes {
        println!("  {note}");
    }
}
