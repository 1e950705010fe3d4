// SPDX-License-Identifier: Apache-2.0
//! One query, plain DataFusion against each device: times, answers, and how near the bound it came.

use std::collections::BTreeMap;

use datafusion::error::{DataFusionError, Result};
use serde_json::{Value, json};

use crate::answers;
use crate::engine::{Engine, Source};
use crate::measure::{Contender, Series, interleave};
use crate::report::{self, Table, milliseconds, red, verdict};

/// A device with the bandwidth that its kernels are held against.
pub struct Device {
    /// The engine.
    pub engine: Engine,
    /// Bytes read plus written per second by its own copies.
    pub copy_bytes_per_second: f64,
}

impl Device {
    /// Whether this is a CPU driven as a device.
    pub fn is_cpu(&self) -> bool {
        self.engine.context().is_some_and(|context| context.info().kind == device::DeviceKind::Cpu)
    }
}

/// What a query should reach.
#[derive(Debug, Clone, Copy)]
pub enum Target {
    /// At most this many times plain DataFusion's time.
    Ratio(f64),
    /// At most so many seconds.
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

/// A query on one kind of table on one device.
pub struct Outcome {
    label: String,
    source: Source,
    device: String,
    result: Result<Ran, String>,
}

enum Ran {
    /// Plain DataFusion, where there is no device to compare with.
    Alone(Series),
    Compared(Box<Measured>),
}

struct Measured {
    plain: Series,
    fast: Series,
    target: Option<Target>,
    /// Bytes that had to move, where known.
    bytes: Option<usize>,
    percent_of_bound: Option<f64>,
    difference: Option<String>,
}

impl Measured {
    fn ratio(&self) -> f64 {
        self.fast.median() / self.plain.median()
    }

    fn meets(&self, target: Target) -> bool {
        match target {
            Target::Ratio(ratio) => self.ratio() <= ratio,
            Target::Seconds(seconds) => self.fast.median() <= seconds * 1000.0,
            Target::Bound(percent) => self.percent_of_bound.is_some_and(|reached| reached >= percent),
        }
    }
}

/// Runs a query on plain DataFusion and on every device, interleaved. Without devices the outcome is plain DataFusion's.
pub async fn compare(
    plain: &Engine,
    devices: &[Device],
    (label, sql): (&str, &str),
    source: Source,
    runs: usize,
    target: impl Fn(&Device) -> Option<Target>,
    tick: impl Fn(),
) -> Vec<Outcome> {
    let engines = std::iter::once(plain).chain(devices.iter().map(|device| &device.engine));
    let contenders = engines.map(|engine| Contender { engine, source }).collect::<Vec<_>>();
    let mut series = interleave(&contenders, sql, runs, tick).await.into_iter();
    let plain = series.next().unwrap_or_else(|| Err(DataFusionError::Internal("nothing ran".to_string())));
    let plain = plain.map_err(|error| format!("plain DataFusion: {}", error.strip_backtrace()));
    let outcome = |device: &str, result| Outcome { label: label.to_string(), source, device: device.to_string(), result };
    if devices.is_empty() {
        return vec![outcome("none", plain.map(|plain| Ran::Alone(plain.without_answer())))];
    }
    let mut outcomes = Vec::new();
    for (device, fast) in devices.iter().zip(series) {
        let result = match (&plain, fast) {
            (Ok(plain), Ok(fast)) => {
                judge(plain, fast, device, sql, source, target(device)).await.map_err(|error| error.strip_backtrace())
            }
            (Err(error), _) => Err(error.clone()),
            (_, Err(error)) => Err(error.strip_backtrace()),
        };
        outcomes.push(outcome(&device.engine.name, result.map(|measured| Ran::Compared(Box::new(measured)))));
    }
    outcomes
}

async fn judge(
    plain: &Series,
    mut fast: Series,
    device: &Device,
    sql: &str,
    source: Source,
    target: Option<Target>,
) -> Result<Measured> {
    let difference = answers::difference(&plain.first.batches, &fast.first.batches)?;
    let written = fast.first.batches.iter().map(fixed_width_bytes).sum::<usize>();
    let read = if source == Source::Resident { device.engine.scanned_bytes(source, sql).await? } else { None };
    let bytes = read.map(|read| read + written);
    let seconds = fast.kernel_median();
    let percent_of_bound =
        bytes.filter(|_| seconds > 0.0).map(|bytes| 100.0 * bytes as f64 / seconds / device.copy_bytes_per_second);
    fast.first.batches.clear();
    Ok(Measured { plain: plain.without_answer(), fast, target, bytes, percent_of_bound, difference })
}

/// Bytes of a batch's columns of fixed width: what a kernel wrote for it.
fn fixed_width_bytes(batch: &datafusion::arrow::record_batch::RecordBatch) -> usize {
    let widths = batch.columns().iter().filter_map(|column| column.data_type().primitive_width());
    widths.sum::<usize>() * batch.num_rows()
}

impl Outcome {
    /// Whether it ran, the answers agree, and runs after the first did nothing anew.
    pub fn is_good(&self) -> bool {
        self.result.as_ref().is_ok_and(|ran| match ran {
            Ran::Alone(_) => true,
            Ran::Compared(measured) => measured.difference.is_none() && measured.fast.fault().is_none(),
        })
    }

    /// For the JSON report.
    pub fn json(&self) -> Value {
        let mut value = json!({ "query": self.label, "source": self.source.name(), "device": self.device });
        let more = match &self.result {
            Err(error) => json!({ "error": error }),
            Ok(Ran::Alone(plain)) => {
                json!({ "plain_seconds": plain.median(), "plain_runs_seconds": plain.seconds, "rows": plain.first.rows })
            }
            Ok(Ran::Compared(measured)) => {
                let (fast, work) = (&measured.fast, measured.fast.first.work());
                json!({
                    "plain_seconds": measured.plain.median(),
                    "plain_runs_seconds": measured.plain.seconds,
                    "device_seconds": fast.median(),
                    "device_runs_seconds": fast.seconds,
                    "ratio": measured.ratio(),
                    "target": measured.target.map(Target::describe),
                    "target_met": measured.target.map(|target| measured.meets(target)),
                    "kernel_seconds": fast.kernel_median(),
                    "bytes": measured.bytes,
                    "percent_of_bound": measured.percent_of_bound,
                    "first_seconds": fast.first.seconds,
                    "first_compile_seconds": work.compile.as_secs_f64(),
                    "first_programs_compiled": fast.first_new.programs,
                    "first_first_launches": fast.first_new.kernels,
                    "later_programs_compiled": fast.later_new.programs,
                    "later_first_launches": fast.later_new.kernels,
                    "launches": work.launches,
                    "waits": work.waits,
                    "bytes_up": work.bytes_up,
                    "bytes_down": work.bytes_down,
                    "peak_device_bytes": work.peak_bytes,
                    "rows": fast.first.rows,
                    "placement": fast.first.place(),
                    "host_operators": fast.first.placement().host_operators.iter()
                        .map(|host| json!({ "operator": host.operator, "reason": host.reason })).collect::<Vec<_>>(),
                    "answer": measured.difference.as_deref().unwrap_or("equal"),
                })
            }
        };
        if let (Value::Object(value), Value::Object(more)) = (&mut value, more) {
            value.extend(more);
        }
        value
    }
}

/// All queries on one kind of table on one device.
pub struct Total {
    source: Source,
    device: String,
    plain: f64,
    fast: f64,
    kernel: f64,
    launches: usize,
    waits: usize,
    target: Option<Target>,
}

/// The sums of all outcomes; `None` where one of them failed.
pub fn total(outcomes: &[Outcome], source: Source, device: &Device, target: Option<Target>) -> Option<Total> {
    let device = device.engine.name.clone();
    let mut total = Total { source, device, plain: 0.0, fast: 0.0, kernel: 0.0, launches: 0, waits: 0, target };
    for outcome in outcomes.iter().filter(|outcome| outcome.source == source && outcome.device == total.device) {
        let Ok(Ran::Compared(measured)) = &outcome.result else { return None };
        let work = measured.fast.first.work();
        total.plain += measured.plain.median();
        total.fast += measured.fast.median();
        total.kernel += measured.fast.kernel_median();
        total.launches += work.launches;
        total.waits += work.waits;
    }
    Some(total)
}

impl Total {
    fn cells(&self) -> [String; 15] {
        let ratio = self.fast / self.plain;
        let target = self.target.map_or("–".to_string(), |target| match target {
            Target::Ratio(most) => verdict(ratio <= most, &target.describe()),
            Target::Seconds(most) => verdict(self.fast <= most * 1000.0, &target.describe()),
            Target::Bound(_) => target.describe(),
        });
        let mut values = ["–"; 12].map(str::to_string);
        values[0] = milliseconds(self.plain);
        values[1] = milliseconds(self.fast);
        values[2] = format!("{ratio:.3}");
        values[3] = target;
        values[4] = milliseconds(self.kernel);
        values[6] = self.launches.to_string();
        values[7] = self.waits.to_string();
        cells(["all".to_string(), self.source.name().to_string(), self.device.clone()], values)
    }
}

/// Prints the outcomes as a table, then what stayed on the host and what went wrong.
pub fn print(outcomes: &[Outcome], totals: &[Total]) {
    let mut table = Table::new([
        "query",
        "tables",
        "device",
        "plain ms",
        "device ms",
        "ratio",
        "target",
        "kernel ms",
        "of bound",
        "launches",
        "waits",
        "first ms",
        "compile ms",
        "runs on",
        "answer",
    ]);
    let mut notes = Vec::new();
    let mut reasons = BTreeMap::<String, Vec<&str>>::new();
    for outcome in outcomes {
        let Outcome { label, source, device, result } = outcome;
        let names = [label.clone(), source.name().to_string(), device.clone()];
        match result {
            Err(error) => {
                notes.push(red(&format!("{label}, {}, {device}: {error}", source.name())));
                table.push(cells(names, ["–", "–", "–", "–", "–", "–", "–", "–", "–", "–", "–", "failed"].map(str::to_string)));
            }
            Ok(Ran::Alone(plain)) => {
                let mut values = ["–"; 12].map(str::to_string);
                values[0] = milliseconds(plain.median());
                values[8] = milliseconds(plain.first.seconds);
                table.push(cells(names, values));
            }
            Ok(Ran::Compared(measured)) => {
                let (fast, work) = (&measured.fast, measured.fast.first.work());
                if let Some(difference) = &measured.difference {
                    notes.push(red(&format!("{label}, {}, {device}: wrong answer: {difference}", source.name())));
                }
                if let Some(fault) = fast.fault() {
                    notes.push(red(&format!("{label}, {}, {device}: {fault}", source.name())));
                }
                for host in fast.first.placement().host_operators {
                    let queries = reasons.entry(format!("{}: {}", host.operator, host.reason)).or_default();
                    if queries.last() != Some(&label.as_str()) {
                        queries.push(label);
                    }
                }
                table.push(cells(
                    names,
                    [
                        milliseconds(measured.plain.median()),
                        milliseconds(fast.median()),
                        format!("{:.3}", measured.ratio()),
                        measured.target.map_or("–".to_string(), |target| verdict(measured.meets(target), &target.describe())),
                        milliseconds(fast.kernel_median()),
                        measured.percent_of_bound.map_or("–".to_string(), |percent| format!("{percent:.0} %")),
                        work.launches.to_string(),
                        work.waits.to_string(),
                        milliseconds(fast.first.seconds),
                        milliseconds(work.compile.as_secs_f64()),
                        fast.first.place().to_string(),
                        if measured.difference.is_none() { "equal".to_string() } else { red("differs") },
                    ],
                ));
            }
        }
    }
    totals.iter().for_each(|total| table.push(total.cells()));
    print!("{}", table.render());
    if !reasons.is_empty() {
        println!("  on the host:");
        for (reason, mut queries) in reasons {
            queries.dedup();
            println!("    {reason} {}", report::dim(&format!("({})", queries.join("; "))));
        }
    }
    for note in notes {
        println!("  {note}");
    }
}

fn cells(names: [String; 3], values: [String; 12]) -> [String; 15] {
    let mut all = names.into_iter().chain(values);
    std::array::from_fn(|_| all.next().unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use datafusion::arrow::datatypes::Schema;
    use datafusion::physical_plan::empty::EmptyExec;

    use super::*;
    use crate::engine::{Execution, New};

    fn outcome(later_new: New) -> Outcome {
        let plan = Arc::new(EmptyExec::new(Arc::new(Schema::empty())));
        let first = Execution { seconds: 1.0, rows: 0, batches: Vec::new(), plan };
        let first_new = New { programs: 1, kernels: 2 };
        let fast = Series { first, first_new, seconds: vec![0.5], kernel_seconds: vec![0.1], later_new };
        let plain = fast.without_answer();
        let measured = Measured { plain, fast, target: None, bytes: None, percent_of_bound: None, difference: None };
        Outcome {
            label: "Q6".to_string(),
            source: Source::Resident,
            device: "opencl".to_string(),
            result: Ok(Ran::Compared(Box::new(measured))),
        }
    }

    #[test]
    fn a_later_run_that_makes_anything_new_is_a_fault() {
        assert!(outcome(New::default()).is_good());
        for later in [New { programs: 1, kernels: 0 }, New { programs: 0, kernels: 1 }] {
            assert!(!outcome(later).is_good(), "{later:?}");
        }
        assert_eq!(outcome(New { programs: 0, kernels: 3 }).json()["later_first_launches"], 3);
    }
}
