// SPDX-License-Identifier: Apache-2.0
//! `devicefusion-bench recording`: what it costs to record a profile of a query.

use std::time::Instant;

use datafusion::error::Result;
use devicefusion::Profile;

use crate::data;
use crate::engine::{Engine, Source};
use crate::measure::median;
use crate::report::milliseconds;
use crate::tpch::{self, CommonArguments};

/// The largest ratio of the sum of medians with a profile to the sum without.
const TARGET: f64 = 1.03;

#[derive(clap::Args)]
pub struct RecordingArguments {
    #[command(flatten)]
    data: data::DataArguments,
    #[command(flatten)]
    common: CommonArguments,
}

/// Runs TPC-H's queries over Parquet files in turn with and without a profile. Prints medians and
/// their ratio for each query.
pub async fn run(arguments: RecordingArguments) -> Result<bool> {
    let RecordingArguments { data: data_arguments, common } = arguments;
    let devices = common.open_devices().await?;
    let folder = data::run(&data_arguments)?;
    let (scale, runs) = (data_arguments.scale, common.runs);
    let mut is_met = true;
    for device in &devices {
        let engine = &device.engine;
        for table in data::TABLES {
            engine.register(table, &folder.join(format!("{table}.parquet"))).await?;
        }
        println!(
            "{}: TPC-H from Parquet, scale {scale}, medians of {runs} runs each, ms without and with a profile",
            engine.name
        );
        let mut sums = [0.0; 2];
        for number in 1..=tpch::ALL {
            let medians = measure(engine, &tpch::query(number, scale)?, runs).await?;
            print_row(&format!("Q{number}"), medians);
            sums.iter_mut().zip(medians).for_each(|(sum, median)| *sum += median);
        }
        print_row("all", sums);
        is_met &= sums[1] <= TARGET * sums[0];
    }
    println!("target: at most {TARGET} × {}", if is_met { "met" } else { "missed" });
    Ok(is_met)
}

/// Median seconds without a profile, and with it.
async fn measure(engine: &Engine, sql: &str, runs: usize) -> Result<[f64; 2]> {
    engine.execute(Source::Parquet, sql, false).await?;
    engine.wait_until_optimized();
    let mut seconds = [Vec::new(), Vec::new()];
    for _ in 0..runs {
        seconds[0].push(engine.execute(Source::Parquet, sql, false).await?.seconds);
        let begin = Instant::now();
        Profile::of(engine.session(), sql).await?;
        seconds[1].push(begin.elapsed().as_secs_f64());
    }
    Ok(seconds.map(|seconds| median(&seconds)))
}

fn print_row(label: &str, [without, with]: [f64; 2]) {
    println!("{label:5} {:>8} {:>8} {:.3} ×", milliseconds(without), milliseconds(with), with / without);
}
