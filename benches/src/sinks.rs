// SPDX-License-Identifier: Apache-2.0
//! `devicefusion-bench sinks`: joins and sorts without SQL, as a share of memory bandwidth.

mod joins;
mod sorts;

use std::time::Instant;

use columnar::{DeviceBatch, natural_types, upload};
use datafusion::arrow::record_batch::RecordBatch;
use datafusion::error::{DataFusionError, Result};
use device::Queue;
use indicatif::ProgressBar;
use kernels::codegen::Profile;
use kernels::ops::{Input, Options};
use serde_json::json;

use crate::compare::Device;
use crate::measure::median;
use crate::report;
use crate::sectors;
use crate::tpch::CommonArguments;

/// Rows of a device batch, as the engine coalesces them.
const BATCH_ROWS: usize = 1 << 20;

#[derive(clap::Args)]
pub struct SinksArguments {
    /// Rows of the probe side and of sorts. Sorts of strings have a quarter.
    #[arg(long, default_value_t = 1 << 24)]
    rows: usize,
    #[command(flatten)]
    common: CommonArguments,
}

/// A device with its kernel options and its memory bandwidth.
struct SinkBench {
    queue: Queue,
    options: Options,
    runs: usize,
    copy_bytes_per_second: f64,
    sectors_per_second: f64,
}

impl SinkBench {
    async fn open(device: &Device, common: &CommonArguments) -> Result<Option<Self>> {
        let Some(context) = device.engine.context() else { return Ok(None) };
        let profile = common.settings.iter().rfind(|setting| setting.key == "device.profile");
        let profile = match profile.map(|setting| setting.value.as_str()) {
            Some("cpu") => Profile::Cpu,
            Some("gpu") => Profile::Gpu,
            _ if device.is_cpu() => Profile::Cpu,
            _ => Profile::Gpu,
        };
        let mut options = Options::new(profile);
        options.max_arg_bytes = context.info().max_arg_bytes as usize;
        options.shared_bytes = context.info().shared_bytes as usize;
        Ok(Some(Self {
            queue: context.queue().map_err(external)?,
            options,
            runs: common.runs,
            copy_bytes_per_second: device.copy_bytes_per_second,
            sectors_per_second: sectors::measure(context).await.map_err(external)?,
        }))
    }

    /// Uploads a table in its natural types. Returns it with the input description of a sink.
    fn upload(&self, rows: RecordBatch) -> Result<(Input, DeviceBatch)> {
        let types = natural_types(&rows.schema()).map_err(external)?;
        let batch = upload(&self.queue, &rows.schema(), &types, std::slice::from_ref(&rows)).map_err(external)?;
        Ok((Input { schema: rows.schema(), types, filter: None }, batch))
    }

    /// Median seconds of the runs after the first, which compiles, and the last run's result.
    async fn time<T>(&self, mut run: impl AsyncFnMut() -> kernels::Result<T>) -> kernels::Result<(f64, T)> {
        let mut last = run().await?;
        let mut seconds = Vec::new();
        for _ in 0..self.runs {
            self.queue.finish().await?;
            let begin = Instant::now();
            last = run().await?;
            self.queue.finish().await?;
            seconds.push(begin.elapsed().as_secs_f64());
        }
        Ok((median(&seconds), last))
    }
}

/// Returns whether there was a device. A failed sink or a wrong number of rows is an error.
pub async fn run(arguments: SinksArguments) -> Result<bool> {
    let SinksArguments { rows, common } = arguments;
    let devices = common.open_devices().await?;
    let progress = ProgressBar::new_spinner();
    let surroundings = report::surroundings(common.partitions());
    let (mut reports, mut join_results, mut sort_results) = (Vec::new(), Vec::new(), Vec::new());
    for device in &devices {
        let Some(bench) = SinkBench::open(device, &common).await? else { continue };
        let mut report = report::device(&device.engine, Some(bench.copy_bytes_per_second));
        report["sector_bytes"] = device.engine.context().map(sectors::bytes).into();
        report["random_sectors_per_second"] = bench.sectors_per_second.into();
        reports.push(report);
        let name = &device.engine.name;
        for case in joins::cases(rows) {
            progress.set_message(format!("{name}: join, {case}"));
            progress.tick();
            join_results.push((name.clone(), case, joins::measure(&bench, case).await?));
        }
        for case in sorts::cases(rows) {
            progress.set_message(format!("{name}: sort, {case}"));
            progress.tick();
            sort_results.push((name.clone(), case, sorts::measure(&bench, case).await?));
        }
    }
    progress.finish_and_clear();

    report::print_surroundings(&surroundings, &reports);
    for report in &reports {
        println!(
            "  {:<11} {:.0} M random sectors of {} bytes/s",
            report["selector"].as_str().unwrap_or("?"),
            report["random_sectors_per_second"].as_f64().unwrap_or(f64::NAN) / 1e6,
            report["sector_bytes"],
        );
    }
    println!("  sinks       without SQL; medians of {} runs after a first one", common.runs);
    joins::print(&join_results);
    sorts::print(&sort_results);
    if let Some(path) = &common.json {
        let joins = join_results.iter().map(|(device, case, timed)| timed.json(device, *case)).collect::<Vec<_>>();
        let sorts = sort_results.iter().map(|(device, case, timed)| timed.json(device, *case)).collect::<Vec<_>>();
        let report = json!({ "suite": "sinks", "rows": rows, "runs": common.runs, "surroundings": surroundings, "devices": reports, "joins": joins, "sorts": sorts });
        report::write_json(path, &report)?;
    }
    Ok(!reports.is_empty())
}

fn external(error: impl std::error::Error + Send + Sync + 'static) -> DataFusionError {
    DataFusionError::External(Box::new(error))
}

/// Millions per second.
fn millions(count: usize, seconds: f64) -> String {
    format!("{:.1}", count as f64 / seconds / 1e6)
}

fn percent(share: f64) -> String {
    format!("{:.0} %", share * 100.0)
}
