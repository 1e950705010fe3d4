// SPDX-License-Identifier: Apache-2.0
//! `devicefusion-bench compile`: TPC-H's queries in processes that wait for their kernels. A first
//! process has empty caches, a second one those of the first.

use std::path::{Path, PathBuf};
use std::time::Instant;

use datafusion::error::Result;
use devicefusion::DeviceRuntime;
use serde_json::{Value, json};

use crate::data;
use crate::process::SessionArguments;
use crate::report::{self, Table, target_cell};
use crate::tpch;

/// Most seconds of all 22 queries: with empty caches, and in the next process.
const TARGETS: [f64; 2] = [12.0, 2.5];

#[derive(clap::Args)]
pub struct CompileArguments {
    #[command(flatten)]
    data: data::DataArguments,
    /// Queries by number [default: all].
    #[arg(long, value_delimiter = ',')]
    queries: Vec<usize>,
    /// Pairs of processes, each with its own caches.
    #[arg(long, default_value_t = 3)]
    processes: usize,
    #[command(flatten)]
    session: SessionArguments,
}

/// The queries of one process, with their data and session.
#[derive(clap::Args)]
pub struct CompiledArguments {
    #[arg(long, value_delimiter = ',')]
    queries: Vec<usize>,
    #[arg(long)]
    folder: PathBuf,
    #[arg(long)]
    scale: f64,
    #[command(flatten)]
    session: SessionArguments,
}

impl CompiledArguments {
    fn command_line(&self) -> Vec<String> {
        let queries = self.queries.iter().map(usize::to_string).collect::<Vec<_>>().join(",");
        let own = ["compiled", "--queries", &queries, "--scale", &self.scale.to_string(), "--folder"].map(str::to_string);
        own.into_iter().chain([self.folder.display().to_string()]).chain(self.session.command_line()).collect()
    }

    /// Runs each query once. The wall time has planning, compilation and the runs.
    pub async fn measure(&self) -> Result<Value> {
        let session = self.session.open(&self.folder, false).await?;
        session.sql("SET device.adaptive_start = 'never'").await?;
        let begin = Instant::now();
        for query in &self.queries {
            session.sql(&tpch::query(*query, self.scale)?).await?.collect().await?;
        }
        let seconds = begin.elapsed().as_secs_f64();
        let counters = DeviceRuntime::of(&session.copied_config()).and_then(|runtime| runtime.counters()).unwrap_or_default();
        Ok(json!({ "seconds": seconds, "programs": counters.programs_compiled, "launches": counters.launches }))
    }
}

/// Prints the seconds of each pair of processes. `run` starts a process with a folder for caches.
/// Returns whether each process launched kernels.
pub async fn run(arguments: CompileArguments, run: impl AsyncFn(&Path, &[String]) -> Result<Value>) -> Result<bool> {
    let CompileArguments { data: data_arguments, mut queries, processes, session } = arguments;
    if queries.is_empty() {
        queries = (1..=tpch::ALL).collect();
    }
    let folder = data::run(&data_arguments)?;
    let partitions = session.partitions;
    let line = CompiledArguments { queries, folder, scale: data_arguments.scale, session }.command_line();
    let mut table = Table::new(["caches", "seconds", "target", "programs", "launches"]);
    let mut launched = true;
    for _ in 0..processes.max(1) {
        let caches = tempfile::tempdir()?;
        for (name, target) in ["empty", "kept"].into_iter().zip(TARGETS) {
            let report = run(caches.path(), &line).await?;
            let seconds = report["seconds"].as_f64().unwrap_or_default();
            launched &= report["launches"].as_u64() > Some(0);
            table.push([
                name.to_string(),
                format!("{seconds:.1}"),
                target_cell(seconds <= target, &format!("{target} s")),
                report["programs"].to_string(),
                report["launches"].to_string(),
            ]);
        }
    }
    report::print_surroundings(&report::surroundings(partitions), &[]);
    print!("{}", table.render());
    Ok(launched)
}
