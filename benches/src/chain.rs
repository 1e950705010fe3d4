// SPDX-License-Identifier: Apache-2.0
//! `devicefusion-bench chain`: two engines chained by an async device stream.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use arrow_device::ImportedArray;
use arrow_device::async_stream::{AsyncDeviceStream, AsyncStreamOptions};
use datafusion::arrow::datatypes::SchemaRef;
use datafusion::arrow::record_batch::RecordBatch;
use datafusion::common::{internal_err, runtime::SpawnedTask};
use datafusion::error::{DataFusionError, Result};
use datafusion::execution::session_state::SessionStateBuilder;
use datafusion::prelude::SessionContext;
use device::{Context, DeviceConfig, LaunchRecord};
use devicefusion::{AsyncDeviceStreamTable, DeviceResult, DeviceRuntime, DeviceTable, SessionStateBuilderExt, register_schema};
use futures::TryStreamExt;
use serde_json::json;

use crate::measure::median;
use crate::report;

/// Limit of the chain's time over the sum of the engines' times alone.
const TARGET: f64 = 1.1;
/// Capacity of the timeline.
const LAUNCHES: usize = 1 << 16;
/// Characters of a printed timeline.
const WIDTH: u64 = 72;

/// Query of the first engine over its table.
const FIRST: &str = "SELECT v % 1000 AS k, v * 3 + 1 AS a, CAST(v AS DOUBLE) / 7 AS b FROM device.t WHERE v % 7 <> 0";
/// Query of the second engine over the rows that the first engine pushes.
const SECOND: &str = "SELECT count(*) AS groups, sum(c) AS rows, sum(a) AS a, min(l) AS l, max(m) AS m FROM \
    (SELECT k, count(*) AS c, sum(a) AS a, min(b) AS l, max(b) AS m FROM pushed GROUP BY k)";

#[derive(clap::Args)]
pub struct ChainArguments {
    /// Rows that the first engine reads.
    #[arg(long, default_value_t = 30_000_000)]
    rows: usize,
    /// The device of both engines: auto, a driver such as opencl, #k, or a part of a name.
    #[arg(long, default_value = "auto")]
    device: String,
    /// Timed runs after the first; medians are reported.
    #[arg(long, default_value_t = 7)]
    runs: usize,
    /// Writes the latest launches of all runs as Chrome trace events.
    #[arg(long)]
    trace: Option<PathBuf>,
    /// Writes the report as JSON.
    #[arg(long)]
    json: Option<PathBuf>,
}

/// Returns whether the chain met the target. Another answer than that of one engine is an error.
pub async fn run(arguments: ChainArguments) -> Result<bool> {
    let selector = arguments.device.parse().map_err(external)?;
    let config = DeviceConfig::default().with_selector(selector).with_timeline(LAUNCHES);
    let context = Context::new(config).map_err(external)?;
    let engines = Engines::new(&context, arguments.rows).await?;

    let expected = engines.second.sql(&SECOND.replace("pushed", &format!("({FIRST})"))).await?.collect().await?;
    let mut seconds: [Vec<f64>; 3] = Default::default();
    for round in 0..=arguments.runs {
        let first = engines.first_alone().await?;
        let (second, _) = engines.chain("SELECT * FROM device.made").await?;
        let (chain, rows) = engines.chain(FIRST).await?;
        if rows != expected {
            return internal_err!("the chain's answer is not that of one engine");
        }
        // The first round compiles kernels.
        if round > 0 {
            seconds.iter_mut().zip([first, second, chain]).for_each(|(all, one)| all.push(one));
        }
    }
    let [first, second, chain] = seconds.map(|all| median(&all));
    let ratio = chain / (first + second);

    let timeline = Timeline::record(&context, &engines).await?;
    let device = context.info();
    println!("chain of two engines on {} ({}), {} rows", device.name, device.label(), arguments.rows);
    println!("  first   {FIRST}\n  second  {SECOND}");
    println!("  medians of {} interleaved runs after a first one\n", arguments.runs);
    for (name, seconds) in [("first alone", first), ("second alone", second), ("chain", chain)] {
        println!("  {name:<14}{:>10}", report::milliseconds(seconds));
    }
    let met = ratio <= TARGET;
    println!("  {:<14}{ratio:>10.3}  {}\n", "chain / sum", report::target_cell(met, &format!("at most {TARGET}")));
    timeline.print();
    if let Some(path) = &arguments.trace {
        report::write_json(path, &timeline.trace)?;
    }
    if let Some(path) = &arguments.json {
        let report = json!({
            "suite": "chain", "rows": arguments.rows, "runs": arguments.runs, "device": device.name,
            "first_seconds": first, "second_seconds": second, "chain_seconds": chain, "ratio": ratio, "target_met": met,
            "first_busy": timeline.busy(false), "second_busy": timeline.busy(true), "shared_span": timeline.shared_span(),
        });
        report::write_json(path, &report)?;
    }
    Ok(met)
}

/// Two sessions on one device. The first has a table `t` and the result of [`FIRST`] as `made`.
struct Engines {
    first: SessionContext,
    second: SessionContext,
}

impl Engines {
    async fn new(context: &Context, rows: usize) -> Result<Self> {
        let runtime = DeviceRuntime::with_context(context.clone());
        let engines = Self { first: session(&runtime).await?, second: session(&runtime).await? };
        let table = format!("CREATE TABLE device.t AS SELECT value AS v FROM generate_series(1, {rows})");
        for session in [&engines.first, &engines.second] {
            session.sql(&table).await?.collect().await?;
        }
        let (schema, arrays) = engines.pushed().await?;
        let made = DeviceTable::try_from_device_arrays(&engines.first, schema, arrays).await?;
        engines.first.register_table("device.made", made)?;
        Ok(engines)
    }

    /// All arrays that the first engine pushes.
    async fn pushed(&self) -> Result<(SchemaRef, Vec<ImportedArray>)> {
        let (mut stream, producer) = self.push(FIRST).await?;
        let schema = stream.schema().await.map_err(external)?;
        let arrays = stream.try_collect().await.map_err(external)?;
        producer.join().await.map_err(external)?;
        Ok((schema, arrays))
    }

    async fn push(&self, sql: &str) -> Result<(AsyncDeviceStream, SpawnedTask<()>)> {
        // SAFETY: `push_into` is a producer that follows the interface.
        let (handler, stream) = unsafe { AsyncDeviceStream::new(AsyncStreamOptions::default()) };
        let rows = DeviceResult::try_new(self.first.sql(sql).await?).await?;
        Ok((stream, SpawnedTask::spawn(rows.push_into(handler))))
    }

    /// Seconds of the first engine with a consumer that drops all arrays.
    async fn first_alone(&self) -> Result<f64> {
        let start = Instant::now();
        let (mut stream, producer) = self.push(FIRST).await?;
        while let Some(array) = stream.try_next().await.map_err(external)? {
            drop(array);
        }
        producer.join().await.map_err(external)?;
        Ok(start.elapsed().as_secs_f64())
    }

    /// Seconds and answer of the second engine over the rows of `sql` from the first engine.
    async fn chain(&self, sql: &str) -> Result<(f64, Vec<RecordBatch>)> {
        let start = Instant::now();
        let (stream, producer) = self.push(sql).await?;
        self.second.register_table("pushed", Arc::new(AsyncDeviceStreamTable::try_new(stream).await?))?;
        let rows = self.second.sql(SECOND).await?.collect().await?;
        producer.join().await.map_err(external)?;
        self.second.deregister_table("pushed")?;
        Ok((start.elapsed().as_secs_f64(), rows))
    }
}

async fn session(runtime: &Arc<DeviceRuntime>) -> Result<SessionContext> {
    let state = SessionStateBuilder::new().with_default_features().with_device_runtime(Arc::clone(runtime)).build();
    let session = SessionContext::new_with_state(state);
    register_schema(&session)?;
    for setting in ["SET device.cost = 'always'", "SET device.fallback = 'error'"] {
        session.sql(setting).await?.collect().await?;
    }
    Ok(session)
}

fn external(error: impl std::error::Error + Send + Sync + 'static) -> DataFusionError {
    DataFusionError::External(Box::new(error))
}

/// The kernels of one run of the chain.
struct Timeline {
    /// Launches, with `true` for those of the second engine.
    launches: Vec<(LaunchRecord, bool)>,
    trace: serde_json::Value,
}

impl Timeline {
    /// Records a run of the chain.
    ///
    /// Runs each engine alone first, to attribute kernels by name. Kernels of both are left out.
    async fn record(context: &Context, engines: &Engines) -> Result<Self> {
        let synchronized = || context.synchronize().map_err(external);
        let now = || context.timeline().last().map_or(0, |last| last.start_nanos);
        let kernels = |start: u64| context.timeline().into_iter().filter(move |launch| launch.start_nanos > start);
        let names = |start: u64| -> BTreeSet<Arc<str>> { kernels(start).map(|launch| launch.kernel).collect() };
        synchronized()?;
        let before = now();
        engines.first_alone().await?;
        synchronized()?;
        let first_kernels = names(before);
        let before = now();
        engines.chain("SELECT * FROM device.made").await?;
        synchronized()?;
        let second_kernels = names(before);
        let before = now();
        engines.chain(FIRST).await?;
        synchronized()?;
        let launches = kernels(before).filter_map(|launch| {
            let (first, second) = (first_kernels.contains(&launch.kernel), second_kernels.contains(&launch.kernel));
            (first != second).then_some((launch, second))
        });
        Ok(Self { launches: launches.collect(), trace: context.trace() })
    }

    fn of_engine(&self, second: bool) -> impl Iterator<Item = &LaunchRecord> {
        self.launches.iter().filter(move |(_, is_second)| *is_second == second).map(|(launch, _)| launch)
    }

    /// Start of an engine's first kernel and end of its last.
    fn span(&self, second: bool) -> Option<(u64, u64)> {
        let start = self.of_engine(second).map(|launch| launch.start_nanos).min()?;
        Some((start, self.of_engine(second).map(|launch| launch.end_nanos).max()?))
    }

    /// Share of its span in which an engine had a kernel running.
    fn busy(&self, second: bool) -> f64 {
        let Some((start, end)) = self.span(second) else { return 0.0 };
        let (mut busy, mut until) = (0, start);
        for launch in self.of_engine(second) {
            busy += launch.end_nanos.saturating_sub(launch.start_nanos.max(until));
            until = until.max(launch.end_nanos);
        }
        busy as f64 / (end - start).max(1) as f64
    }

    /// Share of the run that lies in the spans of both engines.
    fn shared_span(&self) -> f64 {
        let (Some(first), Some(second)) = (self.span(false), self.span(true)) else { return 0.0 };
        let shared = first.1.min(second.1).saturating_sub(first.0.max(second.0));
        shared as f64 / (first.1.max(second.1) - first.0.min(second.0)).max(1) as f64
    }

    /// Prints a line for each engine, darker where it had a kernel running for longer.
    fn print(&self) {
        let spans = [false, true].map(|second| self.span(second));
        let (Some(start), Some(end)) =
            (spans.iter().flatten().map(|span| span.0).min(), spans.iter().flatten().map(|span| span.1).max())
        else {
            return;
        };
        let step = (end - start).div_ceil(WIDTH).max(1);
        println!("  kernels of one run, {} to the character", report::milliseconds(step as f64 / 1e9));
        for (name, second) in [("first", false), ("second", true)] {
            let cell = |at: u64| {
                let (from, to) = (start + at * step, start + (at + 1) * step);
                let inside = |launch: &LaunchRecord| launch.end_nanos.min(to).saturating_sub(launch.start_nanos.max(from));
                let busy: u64 = self.of_engine(second).map(inside).sum();
                [' ', '░', '▒', '▓', '█'][(busy * 5 / (step + 1)).min(4) as usize]
            };
            let line: String = (0..WIDTH).map(cell).collect();
            println!("  {name:<8}{line}  busy {:.0} % of its span", 100.0 * self.busy(second));
        }
        println!("  both engines are at work during {:.0} % of the run\n", 100.0 * self.shared_span());
    }
}
