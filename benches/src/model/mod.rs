// SPDX-License-Identifier: Apache-2.0
//! `devicefusion-bench model`: TPC-H at a large scale on a GPU, modelled from small data.
//!
//! The queries run on the CUDA emulator over data that is smaller by a factor. Batches are smaller
//! by the same factor, so launches and waits are those of the large scale. Memory traffic is
//! multiplied.

mod gpu;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::Command;

use datafusion::error::{DataFusionError, Result};
use device::{DeviceEntry, Traffic};
use indicatif::ProgressBar;
use serde_json::{Value, json};

use self::gpu::{Gpu, SECTOR};
use crate::data;
use crate::engine::{Engine, Setting, Source, cores};
use crate::report::{self, Table, milliseconds};
use crate::tpch::{self, mentions};

#[derive(clap::Args)]
pub struct ModelArguments {
    /// Scale factor to model.
    #[arg(long, default_value_t = 100.0)]
    scale: f64,
    /// Scale factor of the data that runs.
    #[arg(long, default_value_t = 0.1)]
    data_scale: f64,
    /// Folder of that data [default: data/tpch-sfSCALE].
    #[arg(long)]
    data: Option<PathBuf>,
    /// Queries, by number [default: all 22].
    #[arg(long, value_delimiter = ',', default_values_t = 1..=tpch::ALL)]
    queries: Vec<usize>,
    /// The GPU: h100 or h200.
    #[arg(long, default_value = "h200")]
    model: Gpu,
    /// Settings of the session, such as device.resident_batch_rows=100000.
    #[arg(long = "set", value_name = "KEY=VALUE")]
    settings: Vec<Setting>,
    /// Prints the slowest kernels of each query, at most so many.
    #[arg(long, default_value_t = 0)]
    kernels: usize,
    /// File for the full report.
    #[arg(long)]
    json: Option<PathBuf>,
}

/// Rows of a batch and work-groups of a grid at the large scale: what the settings choose for a GPU
/// of 132 multiprocessors.
const RESIDENT_BATCH_ROWS: f64 = 67_108_864.0;
const BATCH_ROWS: f64 = 1_048_576.0;
const WORK_GROUPS: f64 = 16.0 * 132.0;

/// The emulator's variable for the bytes of its second-level cache.
const CACHE: &str = "EMULATOR_CACHE";

/// One query.
struct Modelled {
    query: usize,
    launches: u64,
    waits: usize,
    planning: f64,
    kernels: BTreeMap<String, (u64, Traffic)>,
    /// Bytes that the driver sets to a value.
    filled: f64,
    /// Most bytes of device memory in use at once, resident tables included.
    peak: usize,
    /// Bytes of the scanned columns at the large scale.
    bytes: Option<f64>,
}

/// Launches and traffic of each kernel so far.
fn kernels_of(engine: &Engine) -> BTreeMap<String, (u64, Traffic)> {
    let report = engine.context().map(device::Context::report).unwrap_or_default();
    let kernels = report["kernels"].as_array().into_iter().flatten();
    let entry = |kernel: &Value| {
        let traffic = Traffic::from_counts(|name| kernel["traffic"][name].as_u64().unwrap_or_default());
        Some((kernel["name"].as_str()?.to_string(), (kernel["launches"].as_u64()?, traffic)))
    };
    kernels.filter_map(entry).collect()
}

/// Fails without an emulator that counts.
fn check_emulator() -> Result<()> {
    let devices = device::devices();
    let emulated = |entry: &DeviceEntry| entry.info.as_ref().is_some_and(|info| info.name == "Emulated GPU");
    let is_counting = std::env::var("EMULATOR_COUNT").is_ok_and(|value| value == "1");
    if !is_counting || !devices.iter().any(emulated) {
        return Err(DataFusionError::Configuration(
            "model: memory traffic is counted by the CUDA emulator alone; run `eval \"$(scripts/cuda-emulator.sh)\"` and set \
             EMULATOR_COUNT=1"
                .to_string(),
        ));
    }
    Ok(())
}

/// Opens the emulator's device with settings that are smaller by `factor`.
async fn open(factor: f64, settings: &[Setting]) -> Result<Engine> {
    let least = |value: f64| (value / factor).ceil().max(1.0) as u64;
    let setting = |key: &str, value: u64| Setting { key: format!("device.{key}"), value: value.to_string() };
    let mut all = vec![
        Setting { key: "device.cost".to_string(), value: "always".to_string() },
        setting("resident_batch_rows", least(RESIDENT_BATCH_ROWS)),
        setting("batch_rows", least(BATCH_ROWS)),
        setting("max_work_groups", least(WORK_GROUPS)),
        setting("threshold_divisor", factor.round() as u64),
    ];
    all.extend(settings.iter().cloned());
    Engine::device("cuda", cores(), &all).await
}

async fn model(engine: &Engine, query: usize, sql: &str, factor: f64) -> Result<Modelled> {
    // The first run compiles.
    engine.execute(Source::Resident, sql, false).await?;
    let filled = || engine.context().map_or(0, |context| context.counters().bytes_filled);
    let (before, filled_before) = (kernels_of(engine), filled());
    engine.context().inspect(|context| context.pool().reset_peak());
    let run = engine.execute(Source::Resident, sql, false).await?;
    let mut kernels = kernels_of(engine);
    let filled = (filled() - filled_before) as f64;
    let peak = engine.context().map_or(0, |context| context.pool().peak());
    for (name, (launches, traffic)) in before {
        if let Some(after) = kernels.get_mut(&name) {
            *after = (after.0 - launches, after.1.since(&traffic));
        }
    }
    kernels.retain(|_, (launches, _)| *launches > 0);
    let bytes = engine.scanned_bytes(Source::Resident, sql).await?.map(|bytes| bytes as f64 * factor);
    if let Some((name, _)) = kernels.iter().find(|(_, (_, traffic))| traffic.threads == 0) {
        return Err(DataFusionError::Execution(format!(
            "model: Q{query}: no traffic was counted for the kernel {name}; device.profiling must be true"
        )));
    }
    let launches = kernels.values().map(|(launches, _)| launches).sum();
    let waits = run.device_metrics().waits;
    Ok(Modelled { query, launches, waits, planning: run.planning_seconds, kernels, filled, peak, bytes })
}

impl Modelled {
    /// Seconds of all kernels and fills.
    fn kernel_seconds(&self, gpu: &Gpu, factor: f64) -> f64 {
        let kernels = self.kernels.values().map(|(_, traffic)| gpu.time(traffic, factor).seconds());
        kernels.sum::<f64>() + self.fill_seconds(gpu, factor)
    }

    fn fill_seconds(&self, gpu: &Gpu, factor: f64) -> f64 {
        self.filled * factor / gpu.memory
    }

    /// Bytes of all sectors that kernels ask for, each as often as a request does.
    fn sector_bytes(&self, factor: f64) -> f64 {
        let sectors = self.kernels.values().map(|(_, traffic)| traffic.load_sectors + traffic.store_sectors);
        sectors.sum::<u64>() as f64 * SECTOR * factor
    }

    fn total(&self, gpu: &Gpu, factor: f64) -> f64 {
        let waits = self.waits as f64 * gpu.wait;
        self.planning + self.launches as f64 * gpu.launch + waits + self.kernel_seconds(gpu, factor)
    }

    fn json(&self, gpu: &Gpu, factor: f64) -> Value {
        let kernel = |(name, (launches, traffic)): (&String, &(u64, Traffic))| {
            let time = gpu.time(traffic, factor);
            let counts: serde_json::Map<_, _> = traffic.counts().map(|(name, count)| (name.to_string(), count.into())).collect();
            json!({
                "name": name, "launches": launches, "seconds": time.seconds(), "memory_seconds": time.memory,
                "cache_seconds": time.cache, "shared_seconds": time.shared, "traffic": counts,
            })
        };
        json!({
            "query": format!("Q{}", self.query),
            "launches": self.launches,
            "waits": self.waits,
            "planning_seconds": self.planning,
            "scanned_bytes": self.bytes,
            "sector_bytes": self.sector_bytes(factor),
            "kernel_seconds": self.kernel_seconds(gpu, factor),
            "fill_seconds": self.fill_seconds(gpu, factor),
            "peak_bytes": self.peak as f64 * factor,
            "total_seconds": self.total(gpu, factor),
            "kernels": self.kernels.iter().map(kernel).collect::<Vec<_>>(),
        })
    }
}

/// Models each query, and prints it beside its bandwidth floor.
pub async fn run(arguments: ModelArguments) -> Result<bool> {
    let ModelArguments { scale, data_scale, data: folder, queries, model: gpu, settings, kernels, json: path } = arguments;
    if !(data_scale > 0.0 && scale >= data_scale) {
        return Err(DataFusionError::Configuration(format!(
            "--scale {scale} --data-scale {data_scale}: the scale of the data must be above 0 and at most the modelled one"
        )));
    }
    let factor = scale / data_scale;
    // Query 11 has a fraction by scale, which the data decides.
    let sql_of = |&number: &usize| Ok((number, tpch::query(number, data_scale)?));
    let statements = queries.iter().map(sql_of).collect::<Result<Vec<_>>>()?;
    check_emulator()?;
    // The emulator's cache is smaller by the same factor.
    if std::env::var_os(CACHE).is_none() {
        let bytes = (gpu.cache_bytes / factor).round().to_string();
        let again = Command::new(std::env::current_exe()?).args(std::env::args_os().skip(1)).env(CACHE, bytes).status()?;
        return Ok(again.success());
    }
    let engine = open(factor, &settings).await?;
    let folder = data::run(&data::DataArguments { scale: data_scale, data: folder })?;
    let progress = ProgressBar::new_spinner();
    let all_sql = statements.iter().map(|(_, sql)| sql.as_str()).collect::<Vec<_>>().join("\n");
    for table in data::TABLES.into_iter().filter(|table| mentions(&all_sql, table)) {
        progress.set_message(format!("loading {table}"));
        progress.tick();
        engine.register(table, &folder.join(format!("{table}.parquet"))).await?;
        engine.load(table, |column| mentions(&all_sql, column)).await?;
    }
    let mut modelled = Vec::new();
    for (number, sql) in &statements {
        progress.set_message(format!("Q{number}"));
        progress.tick();
        modelled.push(model(&engine, *number, sql, factor).await?);
    }
    progress.finish_and_clear();
    let surroundings = report::surroundings(cores());
    report::print_surroundings(&surroundings, &[]);
    println!("  TPC-H       scale {scale} on {}, modelled from scale {data_scale}; planning is measured here", gpu.name);
    print(&modelled, &gpu, factor, kernels);
    if let Some(path) = path {
        let results = modelled.iter().map(|query| query.json(&gpu, factor)).collect::<Vec<_>>();
        let report = json!({ "suite": "model", "scale": scale, "data_scale": data_scale, "model": gpu.name, "surroundings": surroundings, "results": results });
        report::write_json(&path, &report)?;
    }
    Ok(true)
}

fn print(modelled: &[Modelled], gpu: &Gpu, factor: f64, kernels: usize) {
    let mut table = Table::new([
        "query",
        "total ms",
        "planning",
        "launches",
        "waits",
        "kernels ms",
        "floor ms",
        "scanned",
        "sectors",
        "peak",
    ]);
    let gigabytes = |bytes: f64| format!("{:.2} GB", bytes / 1e9);
    let row = |label: String, sums: [f64; 8], peak: f64| {
        let [total, planning, launches, waits, kernels, floor, scanned, sectors] = sums;
        [
            label,
            milliseconds(total),
            milliseconds(planning),
            format!("{launches}"),
            format!("{waits}"),
            milliseconds(kernels),
            milliseconds(floor),
            gigabytes(scanned),
            gigabytes(sectors),
            gigabytes(peak),
        ]
    };
    let mut all = [0.0; 8];
    for query in modelled {
        let scanned = query.bytes.unwrap_or(f64::NAN);
        let (launches, waits) = (query.launches as f64, query.waits as f64);
        let (kernel, sectors) = (query.kernel_seconds(gpu, factor), query.sector_bytes(factor));
        let sums = [query.total(gpu, factor), query.planning, launches, waits, kernel, scanned / gpu.memory, scanned, sectors];
        all.iter_mut().zip(sums).for_each(|(all, sum)| *all += sum);
        table.push(row(format!("Q{}", query.query), sums, query.peak as f64 * factor));
    }
    let peak = modelled.iter().map(|query| query.peak).max().unwrap_or_default();
    table.push(row("all".to_string(), all, peak as f64 * factor));
    print!("{}", table.render());
    for query in modelled.iter().filter(|_| kernels > 0) {
        let mut slowest: Vec<_> =
            query.kernels.iter().map(|(name, (launches, traffic))| (name, *launches, gpu.time(traffic, factor))).collect();
        slowest.sort_by(|a, b| b.2.seconds().total_cmp(&a.2.seconds()));
        println!("  Q{}: fills {}", query.query, milliseconds(query.fill_seconds(gpu, factor)));
        for (name, launches, time) in slowest.into_iter().take(kernels) {
            let parts = [("memory", time.memory), ("cache", time.cache), ("shared", time.shared)];
            let parts = parts.map(|(part, seconds)| format!("{part} {}", milliseconds(seconds))).join(", ");
            println!("    {:>9}  {name}, {launches} launches: {parts}", milliseconds(time.seconds()));
        }
    }
}

#[cfg(test)]
mod tests {
    use devicefusion::DeviceOptions;

    use super::*;

    #[test]
    fn constants_are_those_that_the_settings_choose() {
        let described = |key: &str, choice: String| {
            let documentation = DeviceOptions::documentation();
            let setting = documentation.iter().find(|setting| setting.key == key).unwrap();
            assert!(setting.description.contains(&choice), "{choice:?} is not in {:?}", setting.description);
        };
        described("device.resident_batch_rows", format!("{RESIDENT_BATCH_ROWS} elsewhere"));
        described("device.batch_rows", format!("{BATCH_ROWS} elsewhere"));
        described("device.max_work_groups", format!("{} in the profile 'gpu'", WORK_GROUPS / 132.0));
    }
}
