// SPDX-License-Identifier: Apache-2.0
//! `devicefusion-bench`: compares SQL on devices with plain DataFusion.
//!
//! Both run in the same process on the same data, and their answers are compared. All commands use
//! SQL and the public interface of `devicefusion`, except `sinks`, which times the operators of
//! joins and sorts. `cargo bench` times other kernels without SQL.

#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used, clippy::panic))]

mod answers;
mod bandwidth;
mod chain;
mod cold;
mod compare;
mod compile;
mod data;
mod demo;
mod engine;
mod first_runs;
mod load_memory;
mod measure;
mod memory_limits;
mod micro;
mod model;
mod planning;
mod process;
mod python;
mod recording;
mod report;
mod sectors;
mod sinks;
mod start;
mod tpch;

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use datafusion::error::Result;

/// Times SQL on devices and on plain DataFusion, on the same data, and compares the answers.
#[derive(Parser)]
#[command(name = "devicefusion-bench", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// TPC-H queries, resident and from Parquet.
    Tpch(tpch::TpchArguments),
    /// Grouped sum with many groups, and filters at three selectivities, on resident data.
    Micro(micro::MicroArguments),
    /// Joins and sorts without SQL, in percent of the device's memory bandwidth.
    Sinks(sinks::SinksArguments),
    /// Cost of new kernels in a warm process, with the drivers' caches off.
    Cold(tpch::CommonArguments),
    /// First runs of long statements, each in a process of its own with empty kernel caches.
    FirstRuns(first_runs::FirstRunsArguments),
    /// First and later runs of queries over files, each in a process with empty kernel caches.
    Start(start::StartArguments),
    /// TPC-H's queries in processes that wait for their kernels: with empty caches, then with kept
    /// ones.
    Compile(compile::CompileArguments),
    /// Host memory of loads into the device, in bytes a row.
    LoadMemory(load_memory::LoadMemoryArguments),
    /// Queries over files with less and less device memory: answers, and times beside the default.
    MemoryLimits(memory_limits::MemoryLimitsArguments),
    /// Planning time that the plugin adds to TPC-H's 22 queries.
    Planning(planning::PlanningArguments),
    /// A short query through the Python package, and through Rust.
    Python(python::PythonArguments),
    /// TPC-H's 22 queries with and without a profile.
    Recording(recording::RecordingArguments),
    /// TPC-H at a large scale on a GPU, modelled from small data on the CUDA emulator.
    Model(model::ModelArguments),
    /// Two engines chained by an async device stream, and each engine alone.
    Chain(chain::ChainArguments),
    /// Six queries with answers, the device or host of each operator, and times.
    Demo(demo::DemoArguments),
    /// Generates TPC-H data and stops.
    Generate(data::DataArguments),
    /// One process of `first-runs`.
    #[command(hide = true)]
    FirstRun(first_runs::FirstRunArguments),
    /// One process of `start`.
    #[command(hide = true)]
    Started(start::StartedArguments),
    /// One process of `compile`.
    #[command(hide = true)]
    Compiled(compile::CompiledArguments),
    /// One process of `load-memory`.
    #[command(hide = true)]
    Load(load_memory::LoadArguments),
}

fn main() -> ExitCode {
    let command = Cli::parse().command;
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

/// Returns whether every query of the command succeeded.
async fn run(command: Command) -> Result<bool> {
    match command {
        Command::Tpch(arguments) => tpch::run(arguments).await,
        Command::Micro(arguments) => micro::run(arguments).await,
        Command::Sinks(arguments) => sinks::run(arguments).await,
        Command::Cold(arguments) => cold::run(arguments).await,
        Command::FirstRuns(arguments) => first_runs::run(arguments, process::apart).await,
        Command::Start(arguments) => start::run(arguments, process::apart).await,
        Command::Compile(arguments) => compile::run(arguments, process::apart_in).await,
        Command::LoadMemory(arguments) => load_memory::run(arguments, process::apart).await,
        Command::MemoryLimits(arguments) => memory_limits::run(arguments).await,
        Command::Planning(arguments) => planning::run(arguments).await,
        Command::Python(arguments) => python::run(arguments).await,
        Command::Recording(arguments) => recording::run(arguments).await,
        Command::Model(arguments) => model::run(arguments).await,
        Command::Chain(arguments) => chain::run(arguments).await,
        Command::Demo(arguments) => demo::run(arguments).await,
        Command::Generate(arguments) => data::run(&arguments).map(|_| true),
        Command::FirstRun(arguments) => process::print(&arguments.measure().await?),
        Command::Started(arguments) => process::print(&arguments.measure().await?),
        Command::Compiled(arguments) => process::print(&arguments.measure().await?),
        Command::Load(arguments) => process::print(&arguments.measure().await?),
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use clap::CommandFactory;
    use serde_json::Value;

    use super::*;

    #[test]
    fn arguments_are_valid() {
        Cli::command().debug_assert();
    }

    fn parse(arguments: &[&str]) -> Command {
        Cli::try_parse_from(std::iter::once(&"devicefusion-bench").chain(arguments)).unwrap().command
    }

    #[test]
    fn commands_of_the_book_have_valid_arguments() {
        let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/benchmarks.md");
        let page = std::fs::read_to_string(page).unwrap();
        let commands = page.lines().filter_map(|line| line.strip_prefix("$ target/release/devicefusion-bench "));
        let commands: Vec<_> = commands.map(|command| parse(&command.split_whitespace().collect::<Vec<_>>())).collect();
        assert!(commands.len() > 10, "{} commands", commands.len());
    }

    /// The value that a process of a command prints.
    async fn here(arguments: &[String]) -> Result<Value> {
        match parse(&arguments.iter().map(String::as_str).collect::<Vec<_>>()) {
            Command::FirstRun(arguments) => arguments.measure().await,
            Command::Load(arguments) => arguments.measure().await,
            Command::Started(arguments) => arguments.measure().await,
            Command::Compiled(arguments) => arguments.measure().await,
            _ => panic!("{arguments:?} is not the command of a process"),
        }
    }

    async fn works(arguments: &[&str]) {
        // Some commands start the executable again, which here is the test.
        let good = match parse(arguments) {
            Command::Cold(common) => cold::measure(common).await,
            Command::FirstRuns(arguments) => first_runs::run(arguments, here).await,
            Command::LoadMemory(arguments) => load_memory::run(arguments, here).await,
            Command::Start(arguments) => start::run(arguments, here).await,
            Command::Compile(arguments) => compile::run(arguments, async |_, line| here(line).await).await,
            command => run(command).await,
        };
        assert!(good.unwrap(), "{}", arguments.join(" "));
    }

    fn report(path: &Path) -> Value {
        serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
    }

    #[track_caller]
    fn has(value: &Value, fields: &str) {
        for field in fields.split(' ') {
            assert!(!value[field].is_null(), "no {field} in {value}");
        }
    }

    // The commands of docs/benchmarks.md on small data. One part of the long tests has one of them.

    fn selector() -> String {
        device::testing::selector().unwrap().to_string()
    }

    /// Files that commands write.
    struct Files(tempfile::TempDir);

    impl Files {
        fn new() -> Files {
            Files(tempfile::tempdir().unwrap())
        }

        fn path(&self, name: &str) -> String {
            self.0.path().join(name).to_str().unwrap().to_string()
        }
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn tpch_and_the_demo_work_and_report() {
        if !device::testing::is_turn(0).unwrap() {
            return;
        }
        let (device, files) = (selector(), Files::new());
        let (data, json) = (files.path("tpch"), files.path("report.json"));
        let data = ["--scale", "0.001", "--data", &data];
        let compared = ["--devices", &format!("none,{device}"), "--runs", "1", "--json", &json];
        works(&[&["tpch"][..], &data, &["--queries", "1,6"], &compared].concat()).await;
        let tpch = report(json.as_ref());
        has(&tpch, "suite scale runs surroundings devices results");
        has(&tpch["surroundings"], "date commit command cpu cores memory_bytes datafusion target_partitions");
        has(&tpch["devices"][0], "selector name driver platform driver_version compute_units memory_bytes copy_bytes_per_second");
        let results = tpch["results"].as_array().unwrap();
        let ran = results.iter().map(|result| (result["query"].as_str().unwrap(), result["source"].as_str().unwrap()));
        assert_eq!(ran.collect::<Vec<_>>(), [("Q1", "resident"), ("Q1", "parquet"), ("Q6", "resident"), ("Q6", "parquet")]);
        for result in results {
            has(result, "device plain_seconds plain_runs_seconds device_seconds device_runs_seconds ratio target target_met");
            has(result, "kernel_seconds first_seconds first_compile_seconds first_programs_compiled first_first_launches");
            has(result, "later_programs_compiled later_first_launches launches bytes_up bytes_down peak_device_bytes rows");
            has(result, "placement host_operators answer");
            assert_eq!(result["answer"], "equal");
        }
        has(&results[0], "bytes percent_of_bound");

        works(&[&["tpch"][..], &data, &["--queries", "6", "--devices", "none", "--runs", "1", "--json", &json]].concat()).await;
        let alone = report(json.as_ref());
        has(&alone["results"][0], "query source device plain_seconds plain_runs_seconds rows");
        assert_eq!(alone["results"][0]["device"], "none");

        let limits = ["--only", "q6,q9", "--memory", "1", "--partitions", "2", "--device", &device, "--json", &json];
        works(&[&["memory-limits"][..], &data, &limits].concat()).await;
        let limited = report(json.as_ref());
        has(&limited, "suite runs surroundings results");
        for query in limited["results"].as_array().unwrap() {
            let limits: Vec<_> = query["limits"].as_array().unwrap().iter().map(|limit| limit["limit"].as_str()).collect();
            assert_eq!(limits, [Some("default"), Some("1 MiB")]);
        }
        let error = run(parse(&[&["memory-limits"][..], &data, &["--only", "q23"]].concat())).await.unwrap_err().to_string();
        assert!(error.contains("--only q23: the queries are q1, q2"), "{error}");

        works(&[&["start"][..], &data, &["--queries", "0,6", "--processes", "1", "--device", &device]].concat()).await;
        works(
            &[
                &["compile"][..],
                &data,
                &["--queries", "6,1", "--processes", "1", "--device", &device, "--set", "device.cost=always"],
            ]
            .concat(),
        )
        .await;

        works(&[&["demo"][..], &data, &["--device", &device, "--runs", "1"]].concat()).await;
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn microbenchmarks_work_and_report() {
        if !device::testing::is_turn(1).unwrap() {
            return;
        }
        let files = Files::new();
        let json = files.path("report.json");
        let compared = ["--devices", &format!("none,{}", selector()), "--runs", "1", "--json", &json];
        works(&[&["micro", "--rows", "20000", "--groups", "100"][..], &compared].concat()).await;
        has(&report(json.as_ref()), "suite rows groups runs surroundings devices results");
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn sinks_work_and_report() {
        if !device::testing::is_turn(2).unwrap() {
            return;
        }
        let (device, files) = (selector(), Files::new());
        let json = files.path("report.json");
        works(&["sinks", "--rows", "20000", "--devices", &device, "--runs", "1", "--json", &json]).await;
        let sinks = report(json.as_ref());
        has(&sinks["devices"][0], "copy_bytes_per_second sector_bytes random_sectors_per_second");
        for result in sinks["joins"].as_array().unwrap() {
            has(result, "device build_rows probe_rows rows_per_key hit_percent dense pairs build_seconds probe_seconds");
            has(result, "build_percent_of_random_sectors probe_percent_of_random_sectors");
        }
        for result in sinks["sorts"].as_array().unwrap() {
            has(result, "device sort rows bytes seconds percent_of_copies");
        }
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn first_queries_and_chains_work_and_report() {
        if !device::testing::is_turn(3).unwrap() {
            return;
        }
        let (device, files) = (selector(), Files::new());
        let json = files.path("report.json");
        let compared = ["--devices", &format!("none,{device}"), "--runs", "1", "--json", &json];
        works(&[&["cold"][..], &compared].concat()).await;
        let cold = report(json.as_ref());
        for result in cold["results"].as_array().unwrap() {
            has(result, "kind device new_seconds new_worst_seconds new_queries_seconds compile_seconds programs_compiled");
            has(result, "first_launches seconds_per_kernel target_seconds_per_kernel target_met");
        }

        // With so few rows the times mean nothing, so the results of `run` are ignored.
        let data = files.path("tpch");
        run(parse(&["recording", "--scale", "0.001", "--data", &data, "--devices", &device, "--runs", "1"])).await.unwrap();
        let trace = files.path("trace.json");
        let arguments = ["chain", "--rows", "20000", "--device", &device, "--runs", "1", "--trace", &trace, "--json", &json];
        run(parse(&arguments)).await.unwrap();
        has(&report(json.as_ref()), "suite rows runs device first_seconds second_seconds chain_seconds ratio target_met");
        has(&report(json.as_ref()), "first_busy second_busy shared_span");
        assert!(report(trace.as_ref())["traceEvents"].as_array().unwrap().len() > 4);
    }

    /// The tests of the runner run the model where the emulator is.
    #[tokio::test(flavor = "multi_thread")]
    async fn the_model_says_what_it_lacks() {
        let refused = async |arguments: &[&str]| run(parse(arguments)).await.unwrap_err().to_string();
        let error = refused(&["model", "--scale", "1", "--data-scale", "2"]).await;
        assert!(error.contains("--scale 1 --data-scale 2"), "{error}");
        let error = refused(&["model", "--queries", "23"]).await;
        assert!(error.contains("--queries 23"), "{error}");
        if std::env::var_os("EMULATOR_COUNT").is_none() {
            let error = refused(&["model", "--queries", "6"]).await;
            assert!(error.contains("scripts/cuda-emulator.sh") && error.contains("EMULATOR_COUNT=1"), "{error}");
        }
        let error = Cli::try_parse_from(["devicefusion-bench", "model", "--model", "a100"]).err().unwrap().to_string();
        assert!(error.contains("a100: there are h100 and h200"), "{error}");
    }

    /// The commands of docs/benchmarks.md whose measurements are processes.
    #[tokio::test(flavor = "multi_thread")]
    async fn commands_with_processes_work_and_report() {
        let (device, files) = (selector(), Files::new());
        let (data, json) = (files.path("tpch"), files.path("report.json"));

        works(&["first-runs", "--queries", "concat60", "--devices", &device, "--runs", "1", "--json", &json]).await;
        let first = &report(json.as_ref())["results"][0];
        has(first, "query device plain_seconds first_seconds ratio compile_seconds first_launches processes");
        assert_eq!(first["answer"], "equal");
        assert!(first["programs_compiled"].as_f64().unwrap() > 0.0, "{first}");

        let arguments = ["--scale", "0.001", "--data", &data, "--device", &device, "--settle", "0", "--json", &json];
        works(&[&["load-memory"][..], &arguments].concat()).await;
        let memory = report(json.as_ref());
        assert_eq!(memory["results"].as_array().unwrap().len(), 5);
        for result in memory["results"].as_array().unwrap() {
            has(result, "way seconds peak_bytes_per_row settled_bytes_per_row");
            for (field, least) in [("rows", 5000), ("base_bytes", 1 << 20), ("peak_bytes", 1 << 20), ("settled_bytes", 1 << 20)] {
                assert!(result[field].as_u64().unwrap() > least, "{field} of {result}");
            }
        }
    }
}
