// SPDX-License-Identifier: Apache-2.0
//! `devicefusion-bench`: times SQL on devices beside plain DataFusion, in the same process and on the
//! same data, and checks that the answers agree.
//!
//! Everything goes through SQL and the public interface of `devicefusion`; kernels alone are timed by
//! `cargo bench`.

#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used, clippy::panic))]

mod answers;
mod bandwidth;
mod cold;
mod compare;
mod data;
mod demo;
mod engine;
mod measure;
mod micro;
mod report;
mod tpch;

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use datafusion::error::Result;

/// Times SQL on devices beside plain DataFusion, on the same data, and compares the answers.
#[derive(Parser)]
#[command(name = "devicefusion-bench", version)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// TPC-H queries, resident and from Parquet.
    Tpch(tpch::Arguments),
    /// Grouped sum with many groups, and filters at three selectivities, on resident data.
    Micro(micro::Arguments),
    /// What new kernels cost in a warm process with the drivers' caches off.
    Cold(tpch::Common),
    /// A handful of queries with their answers, where each operator ran, and times.
    Demo(demo::Arguments),
    /// Generates TPC-H data and stops.
    Generate(data::Arguments),
}

fn main() -> ExitCode {
    let command = Arguments::parse().command;
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("devicefusion-bench: {error}");
            return ExitCode::FAILURE;
        }
    };
    match runtime.block_on(run(command)) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("devicefusion-bench: {}", error.strip_backtrace());
            ExitCode::FAILURE
        }
    }
}

/// Whether all that was asked for worked.
async fn run(command: Command) -> Result<bool> {
    match command {
        Command::Tpch(arguments) => tpch::run(arguments).await,
        Command::Micro(arguments) => micro::run(arguments).await,
        Command::Cold(arguments) => cold::run(arguments).await,
        Command::Demo(arguments) => demo::run(arguments).await,
        Command::Generate(arguments) => data::run(&arguments).map(|_| true),
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    #[test]
    fn arguments_fit_together() {
        super::Arguments::command().debug_assert();
    }
}
