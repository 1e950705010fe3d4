// SPDX-License-Identifier: Apache-2.0
//! A line on the terminal about a statement that takes long.

use std::fmt;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use datafusion::common::runtime::SpawnedTask;
use datafusion::common::stats::Precision;
use datafusion::datasource::file_format::file_compression_type::FileCompressionType;
use datafusion::datasource::physical_plan::{CsvSource, FileScanConfig, JsonSource};
use datafusion::datasource::source::DataSourceExec;
use datafusion::execution::TaskContext;
use datafusion::execution::memory_pool::MemoryPool;
use datafusion::execution::object_store::ObjectStoreUrl;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::statistics::{StatisticsArgs, StatisticsContext};
use device::{Context, ProgramSource};
use devicefusion::DeviceRuntime;
use devicefusion::exec::DeviceToHostExec;
use indicatif::{HumanBytes, HumanCount, ProgressBar, ProgressStyle};

/// Statements that end earlier show nothing.
pub const DELAY: Duration = Duration::from_secs(1);

/// Time between two looks at the plan.
const INTERVAL: Duration = Duration::from_millis(200);

/// The line of a running statement; its drop removes the line. There is none unless standard error
/// is a terminal.
pub struct Progress {
    /// Ends with its owner.
    _task: SpawnedTask<()>,
    bar: ProgressBar,
}

impl Progress {
    /// Watches a plan that runs in a session.
    pub fn of(plan: &Arc<dyn ExecutionPlan>, task: &TaskContext) -> Progress {
        let mut watched = WatchedPlan::new(plan, task);
        let bar = ProgressBar::new_spinner()
            .with_style(ProgressStyle::with_template("{msg}").unwrap_or(ProgressStyle::default_spinner()));
        let shown = bar.clone();
        let watch = async move {
            tokio::time::sleep(DELAY).await;
            loop {
                shown.set_message(watched.state().to_string());
                shown.tick();
                tokio::time::sleep(INTERVAL).await;
            }
        };
        Progress { _task: SpawnedTask::spawn(watch), bar }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

/// A plan that runs, and how far it is.
pub struct WatchedPlan {
    plan: Arc<dyn ExecutionPlan>,
    begun: Instant,
    runtime: Option<Arc<DeviceRuntime>>,
    host: Arc<dyn MemoryPool>,
    /// All rows of the leaves, if they are known, and the programs of the device's parts. The first
    /// look finds them.
    facts: Option<(Option<usize>, Vec<ProgramSource>)>,
}

impl WatchedPlan {
    /// A plan that begins to run in a session.
    pub fn new(plan: &Arc<dyn ExecutionPlan>, task: &TaskContext) -> WatchedPlan {
        let (runtime, host) = (DeviceRuntime::of(task.session_config()), Arc::clone(task.memory_pool()));
        WatchedPlan { plan: Arc::clone(plan), begun: Instant::now(), runtime, host, facts: None }
    }

    /// The time since the plan began.
    pub fn elapsed(&self) -> Duration {
        self.begun.elapsed()
    }

    /// How far the plan is.
    pub fn state(&mut self) -> State {
        let plan = &self.plan;
        let (total, programs) = self.facts.get_or_insert_with(|| (total_rows(plan), likely_programs(plan)));
        let context = self.runtime.as_ref().and_then(|runtime| runtime.opened());
        State {
            time: self.begun.elapsed(),
            operator: running_operator(plan),
            read: read_rows(plan),
            total: *total,
            device_bytes: context.as_ref().map_or(0, |context| context.pool().in_use()),
            host_bytes: self.host.reserved(),
            compiling: context.as_ref().and_then(|context| Compiling::of(context, programs)),
        }
    }
}

/// The state of a statement, such as `12.3 s · DeviceJoinExec · 34 % · 20,480 of 60,000 rows ·
/// device 1.20 GiB · host 3.00 MiB · compiling program 3 of 9`.
#[derive(Debug, Default)]
pub struct State {
    time: Duration,
    operator: Option<String>,
    /// Rows that were read.
    pub read: usize,
    /// All rows to read, if their number is known.
    pub total: Option<usize>,
    device_bytes: usize,
    /// Memory that operators of the host have reserved, those of other statements included.
    host_bytes: usize,
    compiling: Option<Compiling>,
}

/// The compilation of a statement's programs.
#[derive(Debug)]
enum Compiling {
    /// So many of those that the statement needs are ready.
    Known { ready: usize, all: usize },
    /// So many are compiled, perhaps for other statements.
    Others(usize),
}

impl Compiling {
    fn of(context: &Context, programs: &[ProgramSource]) -> Option<Compiling> {
        let compiling = context.compiling();
        let (ready, all) = (programs.iter().filter(|program| context.is_ready(program)).count(), programs.len());
        match compiling {
            0 => None,
            _ if ready < all => Some(Compiling::Known { ready, all }),
            programs => Some(Compiling::Others(programs)),
        }
    }
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut parts = vec![format!("{:.1} s", self.time.as_secs_f64())];
        parts.extend(self.operator.clone());
        let read = self.read;
        match self.total {
            Some(total) if total > 0 => {
                // Estimates may be too low.
                let total = total.max(read);
                parts.push(format!("{} %", read as u128 * 100 / total as u128));
                parts.push(format!("{} of {} rows", HumanCount(read as u64), HumanCount(total as u64)));
            }
            _ if read > 0 => parts.push(format!("{} rows", HumanCount(read as u64))),
            _ => {}
        }
        for (ran_on, bytes) in [("device", self.device_bytes), ("host", self.host_bytes)] {
            if bytes > 0 {
                parts.push(format!("{ran_on} {}", HumanBytes(bytes as u64)));
            }
        }
        parts.extend(self.compiling.as_ref().map(|compiling| match compiling {
            Compiling::Known { ready, all } => format!("compiling program {} of {all}", ready + 1),
            Compiling::Others(1) => "compiling a program".to_owned(),
            Compiling::Others(programs) => format!("compiling {programs} programs"),
        }));
        f.write_str(&parts.join(" · "))
    }
}

/// The operator that works: it gives rows, or reads the rows of one below it. The operators above
/// it wait.
fn running_operator(plan: &Arc<dyn ExecutionPlan>) -> Option<String> {
    fn gives_rows(plan: &Arc<dyn ExecutionPlan>) -> bool {
        plan.metrics().and_then(|metrics| metrics.output_rows()).is_some_and(|rows| rows > 0)
    }
    let host = plan.downcast_ref::<DeviceToHostExec>().and_then(DeviceToHostExec::host_run);
    if let Some(host) = host {
        return running_operator(&host);
    }
    let children = plan.children();
    if gives_rows(plan) || children.iter().any(|child| gives_rows(child)) {
        return Some(plan.name().to_owned());
    }
    children.into_iter().find_map(running_operator)
}

/// The programs that the device's parts of a plan most likely need.
fn likely_programs(plan: &Arc<dyn ExecutionPlan>) -> Vec<ProgramSource> {
    let own = plan.downcast_ref::<DeviceToHostExec>().map(DeviceToHostExec::likely_programs);
    own.into_iter().flatten().chain(plan.children().into_iter().flat_map(likely_programs)).collect()
}

/// The running leaves: those of the host, where it runs a part of the device.
fn leaves(plan: &Arc<dyn ExecutionPlan>, found: &mut Vec<Arc<dyn ExecutionPlan>>) {
    if let Some(host) = plan.downcast_ref::<DeviceToHostExec>().and_then(DeviceToHostExec::host_run) {
        return leaves(&host, found);
    }
    let children = plan.children();
    if children.is_empty() {
        found.push(Arc::clone(plan));
    }
    children.into_iter().for_each(|child| leaves(child, found));
}

/// Rows that the leaves have given.
fn read_rows(plan: &Arc<dyn ExecutionPlan>) -> usize {
    let mut found = vec![];
    leaves(plan, &mut found);
    found.into_iter().filter_map(|leaf| leaf.metrics()?.output_rows()).sum()
}

/// Rows of the leaves, by their statistics or a look at their files; `None` if one tells nothing.
fn total_rows(plan: &Arc<dyn ExecutionPlan>) -> Option<usize> {
    let mut found = vec![];
    leaves(plan, &mut found);
    let statistics = StatisticsContext::new();
    let rows = |leaf: &Arc<dyn ExecutionPlan>| match statistics.compute(leaf.as_ref(), &StatisticsArgs::new()).ok()?.num_rows {
        Precision::Exact(rows) | Precision::Inexact(rows) => Some(rows),
        Precision::Absent => rows_of_lines(leaf),
    };
    found.iter().map(rows).sum()
}

/// Bytes of a file of lines that tell how long its lines are.
const SAMPLE: u64 = 64 << 10;

/// About the rows of a scan of local CSV or JSON files, of which no statistics are kept. The lines
/// in the middle of the first file are taken for all others.
fn rows_of_lines(leaf: &Arc<dyn ExecutionPlan>) -> Option<usize> {
    let scan = leaf.downcast_ref::<DataSourceExec>()?.data_source().downcast_ref::<FileScanConfig>()?;
    let (source, is_plain) = (scan.file_source(), scan.file_compression_type == FileCompressionType::UNCOMPRESSED);
    let has_lines = source.is::<CsvSource>() || source.is::<JsonSource>();
    if !has_lines || !is_plain || scan.object_store_url != ObjectStoreUrl::local_filesystem() {
        return None;
    }
    let files = || scan.file_groups.iter().flat_map(|group| group.files());
    let bytes = files().map(|file| match &file.range {
        Some(range) => u64::try_from(range.end - range.start).unwrap_or_default(),
        None => file.object_meta.size,
    });
    let first = &files().next()?.object_meta;
    let mut sample = vec![0; first.size.min(SAMPLE) as usize];
    let file = File::open(Path::new("/").join(first.location.as_ref())).ok()?;
    let middle = (first.size - sample.len() as u64) / 2;
    file.read_exact_at(&mut sample, middle).ok()?;
    let lines = sample.iter().filter(|byte| **byte == b'\n').count();
    let rows = u128::from(bytes.sum::<u64>()) * lines as u128 / sample.len().max(1) as u128;
    (lines > 0).then(|| usize::try_from(rows).ok()).flatten()
}

#[cfg(test)]
mod tests {
    use datafusion::arrow::array::RecordBatch;
    use datafusion::physical_plan::collect;
    use datafusion::prelude::SessionContext;

    use super::*;

    #[test]
    fn a_line_tells_what_is_known() {
        let time = Duration::from_millis(12_345);
        let state = |read, total| State { time, read, total, ..State::default() };
        assert_eq!(state(20_480, Some(60_000)).to_string(), "12.3 s · 34 % · 20,480 of 60,000 rows");
        assert_eq!(state(70_000, Some(60_000)).to_string(), "12.3 s · 100 % · 70,000 of 70,000 rows");
        assert_eq!(state(7, None).to_string(), "12.3 s · 7 rows");
        assert_eq!(state(0, None).to_string(), "12.3 s");
        let host = State { host_bytes: 5 << 20, ..state(7, None) };
        assert_eq!(host.to_string(), "12.3 s · 7 rows · host 5.00 MiB");
        let both = State { device_bytes: 3 << 20, ..host };
        assert_eq!(both.to_string(), "12.3 s · 7 rows · device 3.00 MiB · host 5.00 MiB");
        let compiling =
            |compiling| State { operator: Some("SortExec".into()), device_bytes: 3 << 20, compiling, ..state(0, None) };
        let known = compiling(Some(Compiling::Known { ready: 2, all: 9 }));
        assert_eq!(known.to_string(), "12.3 s · SortExec · device 3.00 MiB · compiling program 3 of 9");
        assert!(compiling(Some(Compiling::Others(4))).to_string().ends_with(" · compiling 4 programs"));
    }

    #[tokio::test]
    async fn files_of_lines_have_about_so_many_rows() {
        let folder = tempfile::tempdir().unwrap();
        let ctx = SessionContext::new();
        for (file, format) in [("a.csv", "CSV"), ("a.json", "JSON"), ("a.csv.gz", "CSV OPTIONS (format.compression gzip)")] {
            let path = folder.path().join(file);
            let rows = "SELECT value, value % 7 AS k FROM generate_series(1, 100000)";
            let written = format!("COPY ({rows}) TO '{}' STORED AS {format}", path.display());
            ctx.sql(&written).await.unwrap().collect().await.unwrap();
            let (kind, options) = format.split_once(' ').unwrap_or((format, ""));
            let made = format!("CREATE EXTERNAL TABLE t STORED AS {kind} LOCATION '{}' {options}", path.display());
            ctx.sql(&made).await.unwrap();
            let plan = ctx.sql("SELECT sum(value) FROM t WHERE k > 2").await.unwrap().create_physical_plan().await.unwrap();
            match total_rows(&plan) {
                Some(rows) => assert!(!file.ends_with("gz") && (95_000..105_000).contains(&rows), "{file}: {rows}"),
                None => assert!(file.ends_with("gz"), "{file}"),
            }
            ctx.sql("DROP TABLE t").await.unwrap();
        }
    }

    #[tokio::test]
    async fn the_operator_that_reads_rows_works() {
        let ctx = SessionContext::new();
        let frame = ctx.sql("SELECT value % 7, count(*) FROM generate_series(1, 1000) GROUP BY 1 ORDER BY 1").await.unwrap();
        let plan = frame.create_physical_plan().await.unwrap();
        assert_eq!(running_operator(&plan), None);
        assert_eq!(read_rows(&plan), 0);
        let rows = collect(Arc::clone(&plan), ctx.task_ctx()).await.unwrap();
        assert_eq!(rows.iter().map(RecordBatch::num_rows).sum::<usize>(), 7);
        assert_eq!(running_operator(&plan).as_deref(), Some(plan.name()));
        assert_eq!(read_rows(&plan), 1000);
    }
}
