// SPDX-License-Identifier: Apache-2.0
//! `devicefusion-bench cold`: cost of kernels that are new to a warm process.

use std::process::Command;
use std::sync::Arc;

use datafusion::arrow::array::Int64Array;
use datafusion::arrow::datatypes::DataType;
use datafusion::arrow::record_batch::RecordBatch;
use datafusion::error::{DataFusionError, Result};
use indicatif::ProgressBar;
use serde_json::{Value, json};

use crate::compare::Device;
use crate::engine::{Setting, Source};
use crate::measure::{Contender, Series, interleave, median};
use crate::micro;
use crate::report::{self, Table, milliseconds, red, target_cell};
use crate::tpch::CommonArguments;

/// Variables that disable the drivers' kernel caches. Drivers read them at load time.
const CACHES_OFF: [(&str, &str); 2] = [("POCL_KERNEL_CACHE", "0"), ("CUDA_CACHE_DISABLE", "1")];

/// Query templates, with `{}` for an expression that is distinct for each query.
const KINDS: [(&str, &str); 3] = [
    ("filter", "SELECT {} FROM pairs WHERE k > 3"),
    ("reduction", "SELECT sum({}) FROM pairs WHERE k > 3"),
    ("grouping", "SELECT k, sum({}) FROM pairs WHERE v > 3 GROUP BY k"),
];

/// Enough rows to launch every kernel of a query, few enough to take no time beside compilation.
const ROWS: i64 = 20_000;

const OPERATORS: [&str; 3] = ["+", "-", "*"];
/// Operators per expression, so that all expressions have one size.
const LENGTH: u32 = 5;
const SHAPES: usize = OPERATORS.len().pow(LENGTH);

/// The expression number `shape`; all are distinct.
fn expression(shape: usize) -> String {
    let mut sql = "v".to_string();
    let mut rest = shape;
    for operand in ["k", "v"].into_iter().cycle().take(LENGTH as usize) {
        sql = format!("({sql} {} {operand})", OPERATORS[rest % OPERATORS.len()]);
        rest /= OPERATORS.len();
    }
    sql
}

/// Returns whether every query ran and launched new kernels.
///
/// Restarts the executable with the caches off, unless they are off.
pub async fn run(common: CommonArguments) -> Result<bool> {
    if CACHES_OFF.iter().all(|(name, value)| std::env::var(name).is_ok_and(|set| set == *value)) {
        return measure(common).await;
    }
    let again = Command::new(std::env::current_exe()?).args(std::env::args_os().skip(1)).envs(CACHES_OFF).status()?;
    Ok(again.success())
}

/// As [`run`], without the restart.
pub async fn measure(mut common: CommonArguments) -> Result<bool> {
    if common.runs >= SHAPES {
        return Err(DataFusionError::Configuration(format!("--runs {}: there are {} new queries", common.runs, SHAPES - 1)));
    }
    // The cost model leaves such small tables on the host.
    common.settings.insert(0, Setting { key: "device.cost".to_string(), value: "always".to_string() });
    let devices = common.open_devices().await?;
    if devices.is_empty() {
        return Err(DataFusionError::Configuration("--devices none: only devices have kernels".to_string()));
    }
    let schema = micro::schema(&[("k", DataType::Int64), ("v", DataType::Int64)]);
    let keys = Int64Array::from_iter_values((0..ROWS).map(|row| row % 100));
    let values = Int64Array::from_iter_values(0..ROWS);
    let batch = RecordBatch::try_new(Arc::clone(&schema), vec![Arc::new(keys), Arc::new(values)])?;
    for device in &devices {
        device.engine.put("pairs", Arc::clone(&schema), vec![vec![batch.clone()]]).await?;
    }

    let progress = ProgressBar::new_spinner();
    let mut outcomes = Vec::new();
    for device in &devices {
        for (kind, sql) in KINDS {
            progress.set_message(format!("{kind}, {}", device.engine.name));
            let contender = Contender { engine: &device.engine, source: Source::Resident };
            let mut series = Vec::new();
            // The first shape warms up the kernels that all queries of the kind share.
            for shape in 0..=common.runs {
                let sql = sql.replace("{}", &expression(shape));
                series.extend(
                    interleave(&[contender], &sql, 1, || progress.tick()).await.into_iter().skip(usize::from(shape == 0)),
                );
            }
            let series = series.into_iter().collect::<Result<Vec<_>>>().map_err(|error| error.strip_backtrace());
            outcomes.push(ColdOutcome { kind, device, series });
        }
    }
    progress.finish_and_clear();

    let surroundings = report::surroundings(common.partitions());
    let device_reports =
        devices.iter().map(|device| report::device(&device.engine, Some(device.copy_bytes_per_second))).collect::<Vec<_>>();
    report::print_surroundings(&surroundings, &device_reports);
    println!("  new queries {} of each kind over {ROWS} resident rows; first run minus second; drivers' caches off", common.runs);
    print(&outcomes);
    if let Some(path) = &common.json {
        let results = outcomes.iter().map(ColdOutcome::json).collect::<Vec<_>>();
        let report = json!({ "suite": "cold", "rows": ROWS, "runs": common.runs, "surroundings": surroundings, "devices": device_reports, "results": results });
        report::write_json(path, &report)?;
    }
    Ok(outcomes.iter().all(ColdOutcome::is_good))
}

/// The new queries of one kind on one device.
struct ColdOutcome<'a> {
    kind: &'static str,
    device: &'a Device,
    series: Result<Vec<Series>, String>,
}

/// Cost of new queries: first run minus second run, in seconds.
struct Cost {
    query: f64,
    worst_query: f64,
    compile: f64,
    programs: f64,
    kernels: f64,
    /// A query's cost per kernel that it launched first.
    kernel: f64,
}

impl Cost {
    fn of(series: &[Series]) -> Self {
        let middle = |value: fn(&Series) -> f64| median(&series.iter().map(value).collect::<Vec<_>>());
        Self {
            query: middle(new_seconds),
            worst_query: series.iter().map(new_seconds).fold(f64::NAN, f64::max),
            compile: middle(|series| series.first.device_metrics().compile.as_secs_f64()),
            programs: middle(|series| series.first_cold.programs as f64),
            kernels: middle(|series| series.first_cold.kernels as f64),
            kernel: middle(|series| new_seconds(series) / series.first_cold.kernels as f64),
        }
    }
}

fn new_seconds(series: &Series) -> f64 {
    series.first.seconds - series.median()
}

impl ColdOutcome<'_> {
    /// Limit of the cost of a new kernel, in seconds.
    fn target(&self) -> f64 {
        if self.device.is_cpu() { 0.5 } else { 0.15 }
    }

    /// Whether every query launched new kernels in its first run, and none in the second.
    fn is_good(&self) -> bool {
        self.series.as_ref().is_ok_and(|series| {
            series
                .iter()
                .all(|series| series.first_cold.programs > 0 && series.first_cold.kernels > 0 && series.fault().is_none())
        })
    }

    /// The entry in the JSON report.
    fn json(&self) -> Value {
        let (kind, device) = (self.kind, &self.device.engine.name);
        match &self.series {
            Err(error) => json!({ "kind": kind, "device": device, "error": error }),
            Ok(series) => {
                let cost = Cost::of(series);
                json!({
                    "kind": kind,
                    "device": device,
                    "new_seconds": cost.query,
                    "new_worst_seconds": cost.worst_query,
                    "new_queries_seconds": series.iter().map(new_seconds).collect::<Vec<_>>(),
                    "compile_seconds": cost.compile,
                    "programs_compiled": cost.programs,
                    "first_launches": cost.kernels,
                    "seconds_per_kernel": cost.kernel,
                    "target_seconds_per_kernel": self.target(),
                    "target_met": cost.kernel <= self.target(),
                })
            }
        }
    }
}

fn print(outcomes: &[ColdOutcome<'_>]) {
    let mut table = Table::new([
        "kind",
        "device",
        "new query ms",
        "worst ms",
        "compile ms",
        "programs",
        "new kernels",
        "ms per kernel",
        "target",
    ]);
    let mut notes = Vec::new();
    for outcome in outcomes {
        let (kind, device) = (outcome.kind, outcome.device.engine.name.as_str());
        let mut row = |cells: [String; 7]| {
            let [query, worst, compile, programs, kernels, kernel, target] = cells;
            table.push([kind.to_string(), device.to_string(), query, worst, compile, programs, kernels, kernel, target]);
        };
        match &outcome.series {
            Err(error) => {
                notes.push(red(&format!("{kind}, {device}: {error}")));
                row(["–", "–", "–", "–", "–", "–", "failed"].map(str::to_string));
            }
            Ok(series) => {
                let (cost, target) = (Cost::of(series), outcome.target());
                if !outcome.is_good() {
                    notes.push(red(&format!("{kind}, {device}: a first run launched no new kernel, or a second one did")));
                }
                row([
                    milliseconds(cost.query),
                    milliseconds(cost.worst_query),
                    milliseconds(cost.compile),
                    cost.programs.to_string(),
                    cost.kernels.to_string(),
                    milliseconds(cost.kernel),
                    target_cell(cost.kernel <= target, &format!("≤ {} ms", milliseconds(target))),
                ]);
            }
        }
    }
    print!("{}", table.render());
    for note in notes {
        println!("  {note}");
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::{SHAPES, expression};

    #[test]
    fn expressions_are_distinct() {
        let all = (0..SHAPES).map(expression).collect::<HashSet<_>>();
        assert_eq!(all.len(), SHAPES);
        assert_eq!(expression(0), "(((((v + k) + v) + k) + v) + k)");
    }
}
