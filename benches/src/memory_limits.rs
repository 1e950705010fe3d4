// SPDX-License-Identifier: Apache-2.0
//! `devicefusion-bench memory-limits`: queries over files, in less and less device memory.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use datafusion::arrow::record_batch::RecordBatch;
use datafusion::common::tree_node::{TreeNode, TreeNodeRecursion};
use datafusion::error::{DataFusionError, Result};
use datafusion::physical_plan::ExecutionPlan;
use serde_json::json;

use crate::answers::difference;
use crate::data::{self, DataArguments};
use crate::engine::{Engine, Setting, Source};
use crate::measure::median;
use crate::process::SessionArguments;
use crate::report::{self, Table, red};
use crate::tpch;

#[derive(clap::Args)]
pub struct MemoryLimitsArguments {
    #[command(flatten)]
    data: DataArguments,
    /// Folder of Parquet files, one a table, instead of TPC-H's.
    #[arg(long, requires = "queries")]
    files: Option<PathBuf>,
    /// Folder of SQL files, one a query, instead of TPC-H's 22.
    #[arg(long, requires = "files")]
    queries: Option<PathBuf>,
    /// Queries by name: q1, or the name of a file without its end.
    #[arg(long, value_delimiter = ',')]
    only: Vec<String>,
    /// Limits of device memory, in MiB.
    #[arg(long, value_delimiter = ',', default_value = "256,64,16")]
    memory: Vec<usize>,
    /// Runs of each query, of which the median counts.
    #[arg(long, default_value_t = 1)]
    runs: usize,
    #[command(flatten)]
    session: SessionArguments,
    /// File for the full report.
    #[arg(long)]
    json: Option<PathBuf>,
}

struct Query {
    name: String,
    sql: String,
}

/// A file, by its name without its end.
type NamedFile = (String, PathBuf);

/// How a query ended on an engine.
enum Outcome {
    /// Seconds, and bytes on disk.
    Right(f64, usize),
    Wrong(String),
    Failed(String),
}

impl Outcome {
    fn seconds(&self) -> Option<f64> {
        match self {
            Outcome::Right(seconds, _) => Some(*seconds),
            Outcome::Wrong(_) | Outcome::Failed(_) => None,
        }
    }

    fn spilled_bytes(&self) -> usize {
        match self {
            Outcome::Right(_, bytes) => *bytes,
            Outcome::Wrong(_) | Outcome::Failed(_) => 0,
        }
    }

    fn cell(&self) -> String {
        match self {
            Outcome::Right(seconds, _) => format!("{seconds:.2}"),
            Outcome::Wrong(_) => red("wrong"),
            Outcome::Failed(_) => red("failed"),
        }
    }

    fn message(&self) -> Option<&str> {
        match self {
            Outcome::Right(..) => None,
            Outcome::Wrong(message) | Outcome::Failed(message) => Some(message),
        }
    }
}

/// Returns whether every query gave plain DataFusion's answer under every limit.
pub async fn run(arguments: MemoryLimitsArguments) -> Result<bool> {
    let (tables, queries) = arguments.inputs()?;
    let plain = Engine::plain(arguments.session.partitions).await?;
    let mut engines = Vec::new();
    for limit in [None].into_iter().chain(arguments.memory.iter().map(Some)) {
        let mut settings = vec![setting("device.fallback", "error")];
        settings.extend(limit.map(|limit| setting("device.memory_bytes", &(limit << 20).to_string())));
        settings.extend(arguments.session.settings.iter().cloned());
        let engine = Engine::device(&arguments.session.device, arguments.session.partitions, &settings).await?;
        engines.push((limit.map_or_else(|| "default".to_string(), |limit| format!("{limit} MiB")), engine));
    }
    for (table, path) in &tables {
        for engine in [&plain].into_iter().chain(engines.iter().map(|(_, engine)| engine)) {
            engine.register(table, path).await?;
        }
    }

    let mut rows = Vec::new();
    for query in &queries {
        let expected = plain.execute(Source::Parquet, &query.sql, true).await?.batches;
        let mut outcomes = Vec::new();
        for (name, engine) in &engines {
            let outcome = outcome(engine, &query.sql, &expected, arguments.runs).await?;
            if let Some(message) = outcome.message() {
                eprintln!("{} in {name}: {message}", query.name);
            }
            outcomes.push(outcome);
        }
        eprintln!("{}: {}", query.name, outcomes.iter().map(Outcome::cell).collect::<Vec<_>>().join(", "));
        rows.push(outcomes);
    }
    print(&queries, &engines, &rows);
    if let Some(path) = &arguments.json {
        let results: Vec<_> = queries
            .iter()
            .zip(&rows)
            .map(|(query, outcomes)| {
                let outcomes = engines.iter().zip(outcomes).map(|((name, _), outcome)| {
                    let (seconds, spilled) = (outcome.seconds(), outcome.spilled_bytes());
                    json!({ "limit": name, "seconds": seconds, "spilled_bytes": spilled, "error": outcome.message() })
                });
                json!({ "query": query.name, "limits": outcomes.collect::<Vec<_>>() })
            })
            .collect();
        let surroundings = report::surroundings(arguments.session.partitions);
        let report =
            json!({ "suite": "memory-limits", "runs": arguments.runs, "surroundings": surroundings, "results": results });
        report::write_json(path, &report)?;
    }
    Ok(rows.iter().flatten().all(|outcome| outcome.seconds().is_some()))
}

fn setting(key: &str, value: &str) -> Setting {
    Setting { key: key.to_string(), value: value.to_string() }
}

async fn outcome(engine: &Engine, sql: &str, expected: &[RecordBatch], runs: usize) -> Result<Outcome> {
    let (mut seconds, mut spilled) = (Vec::new(), 0);
    for _ in 0..runs.max(1) {
        match engine.execute(Source::Parquet, sql, true).await {
            Ok(execution) => {
                if let Some(difference) = difference(expected, &execution.batches)? {
                    return Ok(Outcome::Wrong(difference));
                }
                seconds.push(execution.seconds);
                spilled = spilled_bytes(&execution.plan)?;
            }
            Err(error) => return Ok(Outcome::Failed(error.strip_backtrace())),
        }
    }
    Ok(Outcome::Right(median(&seconds), spilled))
}

/// Bytes that the operators of a plan have written to disk.
fn spilled_bytes(plan: &Arc<dyn ExecutionPlan>) -> Result<usize> {
    let mut bytes = 0;
    plan.apply(|node| {
        bytes += node.metrics().and_then(|metrics| metrics.spilled_bytes()).unwrap_or_default();
        Ok(TreeNodeRecursion::Continue)
    })?;
    Ok(bytes)
}

fn print(queries: &[Query], engines: &[(String, Engine)], rows: &[Vec<Outcome>]) {
    let mut table = Table::new(["limit", "right", "sum s", "of default", "spilled MiB"]);
    for (index, (name, _)) in engines.iter().enumerate() {
        let right = rows.iter().filter(|outcomes| outcomes[index].seconds().is_some()).count();
        // The ratio is over the queries that ran on both.
        let both: Vec<_> =
            rows.iter().filter_map(|outcomes| Some((outcomes[0].seconds()?, outcomes[index].seconds()?))).collect();
        let sum = |of: fn(&(f64, f64)) -> f64| both.iter().map(of).sum::<f64>();
        let (default, limited) = (sum(|pair| pair.0), sum(|pair| pair.1));
        let ratio = format!("{:.2} ×", limited / default);
        let spilled = rows.iter().map(|outcomes| outcomes[index].spilled_bytes()).sum::<usize>() as f64 / (1 << 20) as f64;
        let right = format!("{right} of {}", queries.len());
        table.push([name.clone(), right, format!("{limited:.1}"), ratio, format!("{spilled:.1}")]);
    }
    println!("  {} queries over files; a first run compiles its kernels\n{}", queries.len(), table.render());
}

impl MemoryLimitsArguments {
    /// The tables with their files, and the queries.
    fn inputs(&self) -> Result<(Vec<NamedFile>, Vec<Query>)> {
        let (tables, mut queries) = match (&self.files, &self.queries) {
            (Some(files), Some(queries)) => {
                let read = |(name, path): NamedFile| Ok(Query { name, sql: std::fs::read_to_string(path)? });
                let queries = named_files(queries, "sql")?.into_iter().map(read).collect::<Result<Vec<_>>>()?;
                (named_files(files, "parquet")?, queries)
            }
            _ => {
                let folder = data::run(&self.data)?;
                let tables = data::TABLES.map(|table| (table.to_string(), folder.join(format!("{table}.parquet"))));
                let query = |number| Ok(Query { name: format!("q{number}"), sql: tpch::query(number, self.data.scale)? });
                (tables.to_vec(), (1..=tpch::ALL).map(query).collect::<Result<Vec<_>>>()?)
            }
        };
        for only in &self.only {
            if !queries.iter().any(|query| query.name == *only) {
                let names: Vec<&str> = queries.iter().map(|query| query.name.as_str()).collect();
                return Err(DataFusionError::Configuration(format!("--only {only}: the queries are {}", names.join(", "))));
            }
        }
        queries.retain(|query| self.only.is_empty() || self.only.contains(&query.name));
        Ok((tables, queries))
    }
}

/// The files of a folder that end in `.extension`, by their names without it.
fn named_files(folder: &Path, extension: &str) -> Result<Vec<NamedFile>> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        if path.extension().is_some_and(|end| end == extension)
            && let Some(name) = path.file_stem()
        {
            files.push((name.to_string_lossy().into_owned(), path.clone()));
        }
    }
    files.sort();
    Ok(files)
}
