// SPDX-License-Identifier: Apache-2.0
//! Comparison of a query on each device with plain DataFusion: times, answers, bandwidth.

use std::collections::BTreeMap;

use datafusion::error::{DataFusionError, Result};
use serde_json::{Value, json};

use crate::answers;
use crate::engine::{Engine, Source};
use crate::measure::{Contender, Series, interleave};
use crate::report::{self, Table, milliseconds, red, target_cell};

/// A device with its copy bandwidth.
pub struct Device {
    /// The engine.
    pub engine: Engine,
    /// Bytes read plus written per second by copies.
    pub copy_bytes_per_second: f64,
}

impl Device {
    /// Whether the device is a CPU.
    pub fn is_cpu(&self) -> bool {
        self.engine.context().is_some_and(|context| context.info().kind == device::DeviceKind::Cpu)
    }
}

/// Performance target of a query.
#[derive(Debug, Clone, Copy)]
pub enum Target {
    /// At most this many times plain DataFusion's time.
    Ratio(f64),
    /// At most this many seconds.
    Seconds(f64),
    /// At least this share of the copy bandwidth, in percent, by event time.
    Bound(f64),
}

impl Target {
    fn describe(self) -> String {
        match self {
            Target::Ratio(ratio) => format!("≤ {ratio:.2} ×"),
            Target::Seconds(seconds) => format!("≤ {seconds:.1} s"),
            Target::Bound(percent) => format!("≥ {percent:.0} % of bound"),
        }
    }
}

/// Result of a query on one device and one source.
pub struct QueryOutcome {
    label: String,
    source: Source,
    device: String,
    result: Result<Measurement, String>,
}

enum Measurement {
    /// Plain DataFusion without a device to compare with.
    Plain(Series),
    Compared(Box<Comparison>),
}

struct Comparison {
    /// `None` where plain DataFusion is left out.
    plain: Option<PlainRuns>,
    fast: Series,
    target: Option<Target>,
    /// `None` where the bytes are not known.
    traffic: Option<Traffic>,
}

/// Runs of plain DataFusion.
struct PlainRuns {
    series: Series,
    /// Of the device's answer to that of plain DataFusion.
    difference: Option<String>,
}

/// Memory traffic of a query.
#[derive(Debug, Clone, Copy)]
struct Traffic {
    /// Of scanned columns and answer.
    bytes: usize,
    /// `None` where the device does not time kernels.
    percent_of_bound: Option<f64>,
}

impl Comparison {
    /// Device time over plain DataFusion's.
    fn ratio(&self) -> Option<f64> {
        Some(self.fast.median() / self.plain.as_ref()?.series.median())
    }

    fn percent_of_bound(&self) -> Option<f64> {
        self.traffic?.percent_of_bound
    }

    /// Whether the answer is that of plain DataFusion, or there is none to compare with.
    fn is_equal(&self) -> bool {
        self.plain.as_ref().is_none_or(|plain| plain.difference.is_none())
    }

    fn meets(&self, target: Target) -> bool {
        match target {
            Target::Ratio(most) => self.ratio().is_some_and(|ratio| ratio <= most),
            Target::Seconds(seconds) => self.fast.median() <= seconds,
            Target::Bound(percent) => self.percent_of_bound().is_some_and(|reached| reached >= percent),
        }
    }

    /// The cells from `plain ms` on.
    fn cells(&self) -> [String; 13] {
        let metrics = self.fast.first.device_metrics();
        [
            self.plain.as_ref().map_or("–".to_string(), |plain| milliseconds(plain.series.median())),
            milliseconds(self.fast.median()),
            self.ratio().map_or("–".to_string(), |ratio| format!("{ratio:.3}")),
            self.target.map_or("–".to_string(), |target| target_cell(self.meets(target), &target.describe())),
            milliseconds(self.fast.planning_median()),
            milliseconds(self.fast.kernel_median()),
            self.percent_of_bound().map_or("–".to_string(), |percent| format!("{percent:.0} %")),
            metrics.launches.to_string(),
            metrics.waits.to_string(),
            milliseconds(self.fast.first.seconds),
            milliseconds(metrics.compile.as_secs_f64()),
            self.fast.first.placement_kind().to_string(),
            match &self.plain {
                None => "–".to_string(),
                Some(PlainRuns { difference: None, .. }) => "equal".to_string(),
                Some(PlainRuns { difference: Some(_), .. }) => red("differs"),
            },
        ]
    }
}

/// Runs a query on plain DataFusion, unless it is left out, and on every device, interleaved.
///
/// Returns an outcome per device, or that of plain DataFusion if there is no device.
pub async fn compare(
    plain: Option<&Engine>,
    devices: &[Device],
    (label, sql): (&str, &str),
    source: Source,
    runs: usize,
    target: impl Fn(&Device) -> Option<Target>,
    tick: impl Fn(),
) -> Vec<QueryOutcome> {
    let engines = plain.into_iter().chain(devices.iter().map(|device| &device.engine));
    let contenders = engines.map(|engine| Contender { engine, source }).collect::<Vec<_>>();
    let mut series = interleave(&contenders, sql, runs, tick).await.into_iter();
    let plain = plain.and_then(|_| series.next()).transpose();
    let plain = plain.map_err(|error| format!("plain DataFusion: {}", error.strip_backtrace()));
    let outcome = |device: &str, result| QueryOutcome { label: label.to_string(), source, device: device.to_string(), result };
    if devices.is_empty() {
        let plain = plain.and_then(|plain| plain.ok_or_else(|| "nothing ran".to_string()));
        return vec![outcome("none", plain.map(|plain| Measurement::Plain(plain.without_answer())))];
    }
    let mut outcomes = Vec::new();
    for (device, fast) in devices.iter().zip(series) {
        let result = match (&plain, fast) {
            (Ok(plain), Ok(fast)) => compare_series(plain.as_ref(), fast, device, sql, source, target(device))
                .await
                .map_err(|error| error.strip_backtrace()),
            (Err(error), _) => Err(error.clone()),
            (_, Err(error)) => Err(error.strip_backtrace()),
        };
        outcomes.push(outcome(&device.engine.name, result.map(|measured| Measurement::Compared(Box::new(measured)))));
    }
    outcomes
}

async fn compare_series(
    plain: Option<&Series>,
    mut fast: Series,
    device: &Device,
    sql: &str,
    source: Source,
    target: Option<Target>,
) -> Result<Comparison> {
    let compared = |plain: &Series| {
        let difference = answers::difference(&plain.first.batches, &fast.first.batches)?;
        Ok::<_, DataFusionError>(PlainRuns { series: plain.without_answer(), difference })
    };
    let plain = plain.map(compared).transpose()?;
    let written = fast.first.batches.iter().map(fixed_width_bytes).sum::<usize>();
    let read = if source == Source::Resident { device.engine.scanned_bytes(source, sql).await? } else { None };
    let seconds = fast.kernel_median();
    let traffic = read.map(|read| {
        let bytes = read + written;
        let percent = 100.0 * bytes as f64 / seconds / device.copy_bytes_per_second;
        Traffic { bytes, percent_of_bound: (seconds > 0.0).then_some(percent) }
    });
    fast.first.batches.clear();
    Ok(Comparison { plain, fast, target, traffic })
}

/// The kernels of the last run, those that took longest first.
fn kernels(series: &Series) -> Vec<Value> {
    let mut kernels: Vec<_> = series.kernels.iter().collect();
    kernels.sort_by_key(|(_, (_, nanos))| std::cmp::Reverse(*nanos));
    let entry = |(name, (launches, nanos)): (&String, &(u64, u64))| json!({ "name": name, "launches": launches, "milliseconds": *nanos as f64 / 1e6 });
    kernels.into_iter().map(entry).collect()
}

/// Bytes of a batch's columns of fixed width, as a kernel wrote them.
fn fixed_width_bytes(batch: &datafusion::arrow::record_batch::RecordBatch) -> usize {
    let widths = batch.columns().iter().filter_map(|column| column.data_type().primitive_width());
    widths.sum::<usize>() * batch.num_rows()
}

impl QueryOutcome {
    /// Whether the query ran, the answers agree and there was no [fault](Series::fault).
    pub fn is_good(&self) -> bool {
        self.result.as_ref().is_ok_and(|measurement| match measurement {
            Measurement::Plain(_) => true,
            Measurement::Compared(measured) => measured.is_equal() && measured.fast.fault().is_none(),
        })
    }

    /// The entry in the JSON report.
    pub fn json(&self) -> Value {
        let mut value = json!({ "query": self.label, "source": self.source.name(), "device": self.device });
        let more = match &self.result {
            Err(error) => json!({ "error": error }),
            Ok(Measurement::Plain(plain)) => {
                json!({ "plain_seconds": plain.median(), "plain_runs_seconds": plain.seconds, "rows": plain.first.rows })
            }
            Ok(Measurement::Compared(measured)) => {
                let (fast, metrics) = (&measured.fast, measured.fast.first.device_metrics());
                json!({
                    "plain_seconds": measured.plain.as_ref().map(|plain| plain.series.median()),
                    "plain_runs_seconds": measured.plain.as_ref().map(|plain| &plain.series.seconds),
                    "device_seconds": fast.median(),
                    "device_runs_seconds": fast.seconds,
                    "ratio": measured.ratio(),
                    "target": measured.target.map(Target::describe),
                    "target_met": measured.target.map(|target| measured.meets(target)),
                    "planning_seconds": fast.planning_median(),
                    "kernel_seconds": fast.kernel_median(),
                    "bytes": measured.traffic.map(|traffic| traffic.bytes),
                    "percent_of_bound": measured.percent_of_bound(),
                    "first_seconds": fast.first.seconds,
                    "first_compile_seconds": metrics.compile.as_secs_f64(),
                    "first_programs_compiled": fast.first_cold.programs,
                    "first_first_launches": fast.first_cold.kernels,
                    "later_programs_compiled": fast.later_cold.programs,
                    "later_first_launches": fast.later_cold.kernels,
                    "kernels": kernels(fast),
                    "launches": metrics.launches,
                    "waits": metrics.waits,
                    "bytes_up": metrics.bytes_up,
                    "bytes_down": metrics.bytes_down,
                    "peak_device_bytes": metrics.peak_bytes,
                    "rows": fast.first.rows,
                    "placement": fast.first.placement_kind(),
                    "host_operators": fast.first.placement().host_operators.iter()
                        .map(|host| json!({ "operator": host.operator, "reason": host.reason })).collect::<Vec<_>>(),
                    "answer": measured.plain.as_ref().map(|plain| plain.difference.as_deref().unwrap_or("equal")),
                })
            }
        };
        if let (Value::Object(value), Value::Object(more)) = (&mut value, more) {
            value.extend(more);
        }
        value
    }

    /// The line in the table.
    fn cells(&self) -> [String; 16] {
        let values = match &self.result {
            Err(_) => ["–", "–", "–", "–", "–", "–", "–", "–", "–", "–", "–", "–", "failed"].map(str::to_string),
            Ok(Measurement::Plain(plain)) => {
                let mut values = ["–"; 13].map(str::to_string);
                values[0] = milliseconds(plain.median());
                values[9] = milliseconds(plain.first.seconds);
                values
            }
            Ok(Measurement::Compared(measured)) => measured.cells(),
        };
        cells([self.label.clone(), self.source.name().to_string(), self.device.clone()], values)
    }
}

/// Sums over all queries on one device and one source.
pub struct Total {
    source: Source,
    device: String,
    plain: Option<f64>,
    fast: f64,
    planning: f64,
    kernel: f64,
    launches: usize,
    waits: usize,
    target: Option<Target>,
}

/// Sums the outcomes; `None` if one of them failed.
pub fn total(outcomes: &[QueryOutcome], source: Source, device: &Device, target: Option<Target>) -> Option<Total> {
    let device = device.engine.name.clone();
    let mut total =
        Total { source, device, plain: Some(0.0), fast: 0.0, planning: 0.0, kernel: 0.0, launches: 0, waits: 0, target };
    for outcome in outcomes.iter().filter(|outcome| outcome.source == source && outcome.device == total.device) {
        let Ok(Measurement::Compared(measured)) = &outcome.result else { return None };
        let metrics = measured.fast.first.device_metrics();
        total.plain = total.plain.zip(measured.plain.as_ref()).map(|(sum, plain)| sum + plain.series.median());
        total.fast += measured.fast.median();
        total.planning += measured.fast.planning_median();
        total.kernel += measured.fast.kernel_median();
        total.launches += metrics.launches;
        total.waits += metrics.waits;
    }
    Some(total)
}

impl Total {
    fn cells(&self) -> [String; 16] {
        let ratio = self.plain.map(|plain| self.fast / plain);
        let target = self.target.map_or("–".to_string(), |target| match target {
            Target::Ratio(limit) => target_cell(ratio.is_some_and(|ratio| ratio <= limit), &target.describe()),
            Target::Seconds(limit) => target_cell(self.fast <= limit, &target.describe()),
            Target::Bound(_) => target.describe(),
        });
        let mut values = ["–"; 13].map(str::to_string);
        values[0] = self.plain.map_or("–".to_string(), milliseconds);
        values[1] = milliseconds(self.fast);
        values[2] = ratio.map_or("–".to_string(), |ratio| format!("{ratio:.3}"));
        values[3] = target;
        values[4] = milliseconds(self.planning);
        values[5] = milliseconds(self.kernel);
        values[7] = self.launches.to_string();
        values[8] = self.waits.to_string();
        cells(["all".to_string(), self.source.name().to_string(), self.device.clone()], values)
    }
}

/// Prints the outcomes as a table, then the operators on the host and the failures.
pub fn print(outcomes: &[QueryOutcome], totals: &[Total]) {
    let mut table = Table::new([
        "query",
        "tables",
        "device",
        "plain ms",
        "device ms",
        "ratio",
        "target",
        "planning ms",
        "kernel ms",
        "of bound",
        "launches",
        "waits",
        "first ms",
        "compile ms",
        "runs on",
        "answer",
    ]);
    outcomes.iter().for_each(|outcome| table.push(outcome.cells()));
    totals.iter().for_each(|total| table.push(total.cells()));
    print!("{}", table.render());
    print_host_operators(outcomes);
    for failure in outcomes.iter().flat_map(failures) {
        println!("  {failure}");
    }
}

/// Prints each operator on the host with its reason and the queries.
fn print_host_operators(outcomes: &[QueryOutcome]) {
    let mut reasons = BTreeMap::<String, Vec<&str>>::new();
    for outcome in outcomes {
        let Ok(Measurement::Compared(measured)) = &outcome.result else { continue };
        for host in measured.fast.first.placement().host_operators {
            let queries = reasons.entry(format!("{}: {}", host.operator, host.reason)).or_default();
            if queries.last() != Some(&outcome.label.as_str()) {
                queries.push(&outcome.label);
            }
        }
    }
    if !reasons.is_empty() {
        println!("  on the host:");
        for (reason, mut queries) in reasons {
            queries.dedup();
            println!("    {reason} {}", report::dim(&format!("({})", queries.join("; "))));
        }
    }
}

/// The error of a query, or its wrong answer and its [fault](Series::fault).
fn failures(outcome: &QueryOutcome) -> Vec<String> {
    let QueryOutcome { label, source, device, result } = outcome;
    let problems: Vec<String> = match result {
        Err(error) => vec![error.clone()],
        Ok(Measurement::Plain(_)) => vec![],
        Ok(Measurement::Compared(measured)) => {
            let difference = measured.plain.as_ref().and_then(|plain| plain.difference.as_ref());
            let difference = difference.map(|difference| format!("wrong answer: {difference}"));
            difference.into_iter().chain(measured.fast.fault()).collect()
        }
    };
    problems.iter().map(|problem| red(&format!("{label}, {}, {device}: {problem}", source.name()))).collect()
}

fn cells(names: [String; 3], values: [String; 13]) -> [String; 16] {
    let mut all = names.into_iter().chain(values);
    std::array::from_fn(|_| all.next().unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use datafusion::arrow::datatypes::Schema;
    use datafusion::physical_plan::empty::EmptyExec;

    use super::*;
    use crate::engine::{ColdWork, Execution, KernelTotals};

    fn outcome(later_cold: ColdWork) -> QueryOutcome {
        let plan = Arc::new(EmptyExec::new(Arc::new(Schema::empty())));
        let first = Execution { seconds: 1.0, planning_seconds: 0.5, rows: 0, batches: Vec::new(), plan };
        let first_cold = ColdWork { programs: 1, kernels: 2 };
        let fast = Series {
            first,
            first_cold,
            seconds: vec![0.5],
            planning_seconds: vec![0.1],
            kernel_seconds: vec![0.1],
            later_cold,
            kernels: KernelTotals::new(),
        };
        let plain = Some(PlainRuns { series: fast.without_answer(), difference: None });
        let measured = Comparison { plain, fast, target: None, traffic: None };
        QueryOutcome {
            label: "Q6".to_string(),
            source: Source::Resident,
            device: "opencl".to_string(),
            result: Ok(Measurement::Compared(Box::new(measured))),
        }
    }

    #[test]
    fn a_compilation_or_first_launch_after_the_first_run_is_a_fault() {
        assert!(outcome(ColdWork::default()).is_good());
        for later in [ColdWork { programs: 1, kernels: 0 }, ColdWork { programs: 0, kernels: 1 }] {
            assert!(!outcome(later).is_good(), "{later:?}");
        }
        assert_eq!(outcome(ColdWork { programs: 0, kernels: 3 }).json()["later_first_launches"], 3);
    }
}
