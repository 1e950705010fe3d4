// SPDX-License-Identifier: Apache-2.0
//! `devicefusion-bench planning`: planning time that the plugin adds to TPC-H queries.

use datafusion::error::Result;

use crate::data;
use crate::engine::{Engine, Source};
use crate::measure::median;
use crate::tpch::{self, CommonArguments};

#[derive(clap::Args)]
pub struct PlanningArguments {
    #[command(flatten)]
    data: data::DataArguments,
    #[command(flatten)]
    common: CommonArguments,
}

/// Plans each query `1 + runs` times on each engine, interleaved, over Parquet files and over
/// resident tables. A device keeps the plans of the latter.
///
/// Prints the sum of the first runs, and medians of the others in milliseconds.
pub async fn run(arguments: PlanningArguments) -> Result<bool> {
    let PlanningArguments { data: data_arguments, common } = arguments;
    let devices = common.open_devices().await?;
    let folder = data::run(&data_arguments)?;
    let plain = Engine::plain(common.partitions()).await?;
    let engines: Vec<&Engine> = std::iter::once(&plain).chain(devices.iter().map(|device| &device.engine)).collect();
    for table in data::TABLES {
        for engine in &engines {
            engine.register(table, &folder.join(format!("{table}.parquet"))).await?;
            engine.load(table, |_| true).await?;
        }
    }
    for source in [Source::Parquet, Source::Resident] {
        let (scale, runs) = (data_arguments.scale, common.runs);
        println!("planning of TPC-H, {} tables, scale {scale}, medians of {runs} runs, ms", source.name());
        let (mut firsts, mut totals) = (vec![0.0; engines.len()], vec![0.0; engines.len()]);
        for number in 1..=tpch::ALL {
            let sql = tpch::query(number, scale)?;
            let mut times = vec![Vec::new(); engines.len()];
            for round in 0..=runs {
                for (index, engine) in engines.iter().enumerate() {
                    let milliseconds = engine.plan(source, &sql).await? * 1e3;
                    match round {
                        0 => firsts[index] += milliseconds,
                        _ => times[index].push(milliseconds),
                    }
                }
            }
            let medians: Vec<f64> = times.iter().map(|times| median(times)).collect();
            print_row(&format!("Q{number}"), &engines, &medians);
            totals.iter_mut().zip(medians).for_each(|(total, median)| *total += median);
        }
        print_row("all", &engines, &totals);
        print_row("first", &engines, &firsts);
    }
    Ok(true)
}

fn print_row(label: &str, engines: &[&Engine], times: &[f64]) {
    let plain = times.first().copied().unwrap_or(f64::NAN);
    let sides = engines.iter().zip(times).map(|(engine, time)| format!("{} {time:.2} ({:+.2})", engine.name, time - plain));
    println!("{label:5} {}", sides.collect::<Vec<_>>().join("  "));
}
