// SPDX-License-Identifier: Apache-2.0
//! One case: tables, a query and settings. It runs on both sides, and can be shrunk to a smaller
//! one.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use datafusion::catalog::TableProvider;
use datafusion::common::tree_node::TreeNode;
use datafusion::common::{DataFusionError, Result};
use datafusion::datasource::MemTable;
use datafusion::logical_expr::{LogicalPlan, SortExpr};
use datafusion::physical_plan::ExecutionPlan;
use datafusion::prelude::SessionContext;
use device::Context;
use devicefusion::exec::DeviceToHostExec;
use devicefusion::{DeviceTable, PlacementKind};

use super::compare::difference;
use super::data::Table;
use super::query::Query;
use crate::harness::{self, Answer, set};

/// Substrings of errors that are faults of plain DataFusion:
/// - Arrow panics if dictionaries together have more values than their codes can count. Readers of
///   the failed task's output may find no array to concatenate.
/// - DataFusion plans joins with keys of different types if a subquery is correlated with a column
///   of a UNION. It then fails to compare the keys or, in dynamic filters, their ranges.
const FAULTS: [&str; 4] = [
    "Join Error",
    "concat requires input of at least one array",
    "Invalid comparison operation",
    "Can't compare arrays of different types",
];

/// Substrings of errors caused by rows. Errors of memory, plans or tables contain none of them.
const ROWS_FAIL_BY: [&str; 4] = ["verflow", "Divide by zero", "Cast error", "out of range"];

/// Bytes of device memory in [`Memory::Little`], the fewest that a device takes.
pub const LITTLE_BYTES: usize = 1 << 20;

/// Device memory beside the rows of the tables.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Memory {
    Ample,
    /// [`LITTLE_BYTES`], and tables of as many rows as fill them.
    Little,
}

/// The two sessions that run a case.
pub struct Sides {
    pub plain: SessionContext,
    pub device: SessionContext,
    /// The device, if `device` alone uses it.
    pub context: Option<Context>,
    /// First runs that were the host's, without a launch.
    pub host_runs: AtomicUsize,
}

#[derive(Debug, Clone)]
pub struct Case {
    pub tables: Vec<Table>,
    pub query: Query,
    pub settings: Settings,
}

#[derive(Debug, Clone)]
pub struct Settings {
    pub profile: &'static str,
    /// Batch size of the host, in rows.
    pub host_batch_rows: usize,
    /// Batch size of the device, in rows.
    pub device_batch_rows: usize,
    pub partitions: usize,
    /// Unsupported operators fail instead of running on the host.
    pub strict: bool,
    /// A first run may be the host's, while the kernels are compiled. Another run is the device's.
    pub starts_on_host: bool,
    pub memory: Memory,
}

/// Outcome of a case on both sides.
#[derive(Debug)]
pub enum Outcome {
    /// The answers are the same.
    Same { rows: usize, batches: usize, placement: PlacementKind, launches: usize, spills: bool },
    /// Both sides fail, or plain DataFusion has a fault of its own or takes too long.
    NoAnswer,
    /// Plain DataFusion has two answers, and the device gives the second one. It comes from whole
    /// batches without dynamic filters or, for an error, from the tables of the device.
    TwoAnswers,
    /// Little memory does not suffice; the operator that says so, and its message.
    OutOfMemory(String, String),
    /// Plain DataFusion cannot plan the query; its message.
    Invalid(String),
    /// Strict planning refuses the query; its message.
    Refused(String),
    /// The answers differ; the difference.
    Differs(String),
}

impl Case {
    pub fn sql(&self) -> String {
        self.query.sql(&self.tables)
    }

    /// Runs the case on both sides. Afterwards nothing may be left in a device of its own.
    pub async fn run(&self, sides: &Sides) -> Outcome {
        let outcome = self.run_on_both(sides).await;
        let Some(context) = &sides.context else { return outcome };
        if let Err(error) = self.tables.iter().try_for_each(|table| sides.device.deregister_table(&*table.name).map(drop)) {
            return Outcome::Differs(format!("a table cannot be dropped: {}", harness::text(&error)));
        }
        let start = Instant::now();
        while context.pool().in_use() > 0 {
            if start.elapsed() > Duration::from_secs(30) {
                return Outcome::Differs(format!("{} bytes stay in use", context.pool().in_use()));
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        outcome
    }

    async fn run_on_both(&self, sides: &Sides) -> Outcome {
        if let Err(error) = self.set_up(sides).await {
            return Outcome::Differs(format!("a table cannot be made: {}", harness::text(&error)));
        }
        let sql = self.sql();
        let (keys, task) = match plan(&sides.plain, &sql).await {
            Err(error) => return Outcome::Invalid(harness::text(&error)),
            Ok((keys, plan)) => (keys, tokio::spawn(harness::answer_of(plan, sides.plain.task_ctx()))),
        };
        // Sorts of many rows in tiny batches take quadratic time.
        let stopped = task.abort_handle();
        let Ok(expected) = tokio::time::timeout(Duration::from_secs(60), task).await else {
            stopped.abort();
            return Outcome::NoAnswer;
        };
        let fault = |error: &DataFusionError| FAULTS.iter().any(|fault| harness::text(error).contains(fault));
        let Some(expected) = expected.ok().filter(|expected| !expected.as_ref().is_err_and(fault)) else {
            return Outcome::NoAnswer;
        };
        if self.settings.starts_on_host
            && let Ok(expected) = &expected
            && let Some(difference) = self.first_run_differs(sides, expected, keys.as_deref()).await
        {
            return Outcome::Differs(difference);
        }
        let device = sides.device.clone();
        let task = tokio::spawn(async move {
            let plan = match plan(&device, &sql).await {
                Ok((_, plan)) => plan,
                Err(error) => return Err((true, error)),
            };
            harness::answer_of(plan, device.task_ctx()).await.map_err(|error| (false, error))
        });
        let is_little = self.settings.memory == Memory::Little;
        let actual = match tokio::time::timeout(Duration::from_secs(120), task).await {
            Err(_) => return Outcome::Differs("no answer after 120 seconds".to_string()),
            Ok(Err(panic)) => return Outcome::Differs(format!("panic: {panic}")),
            Ok(Ok(actual)) => actual,
        };
        if let Err((_, error)) = &actual
            && let Some(operator) = operator_out_of_memory(error).filter(|_| is_little && expected.is_ok())
        {
            return Outcome::OutOfMemory(operator, harness::text(error));
        }
        match (actual, expected) {
            (Err((true, error)), _) if harness::text(&error).contains("device.fallback") => {
                let text = harness::text(&error);
                let reason = text.lines().find(|line| line.contains("device.fallback")).unwrap_or(&text);
                Outcome::Refused(reason.to_string())
            }
            (Err(_), Err(_)) => Outcome::NoAnswer,
            (Err((planning, error)), Ok(_)) => match !planning && self.fails_over_tables_of_the_device(sides, &error).await {
                true => Outcome::TwoAnswers,
                false => Outcome::Differs(format!("fails: {}", harness::text(&error))),
            },
            (Ok(_), Err(error)) => Outcome::Differs(format!("does not fail with: {}", harness::text(&error))),
            (Ok(actual), Ok(expected)) => match self.compare(&actual, &expected, keys.as_deref()) {
                Outcome::Differs(how) => match self.simple_answer(sides).await {
                    Some(simple) if matches!(self.compare(&actual, &simple, keys.as_deref()), Outcome::Same { .. }) => {
                        Outcome::TwoAnswers
                    }
                    _ => Outcome::Differs(how),
                },
                other => other,
            },
        }
    }

    /// How the answer of a run that may start on the host differs.
    async fn first_run_differs(&self, sides: &Sides, expected: &Answer, keys: Option<&[String]>) -> Option<String> {
        const SETTINGS: [(&str, &str, &str); 4] = [
            ("device.fallback", "host", "error"),
            ("device.cost", "auto", "always"),
            ("device.adaptive_start", "always", "auto"),
            ("device.min_rows", "0", "10000"),
        ];
        SETTINGS.iter().for_each(|(key, value, _)| set(&sides.device, key, value));
        let (device, sql) = (sides.device.clone(), self.sql());
        let task = tokio::spawn(async move {
            let (_, plan) = plan(&device, &sql).await?;
            let answer = harness::answer_of(Arc::clone(&plan), device.task_ctx()).await?;
            let is_of_host = answer.launches == 0 && ran_on_host(&plan)?;
            Ok::<_, DataFusionError>((answer, is_of_host))
        });
        let answer = tokio::time::timeout(Duration::from_secs(120), task).await;
        SETTINGS.iter().for_each(|(key, _, value)| set(&sides.device, key, value));
        let (answer, is_of_host) = match answer {
            Err(_) => return Some("the first run gives no answer within 120 seconds".to_string()),
            Ok(Err(panic)) => return Some(format!("the first run panics: {panic}")),
            // Over tables of the device another row may fail first, which the other run judges.
            Ok(Ok(Err(error))) if ROWS_FAIL_BY.iter().any(|part| harness::text(&error).contains(part)) => return None,
            Ok(Ok(Err(error))) => return Some(format!("the first run fails: {}", harness::text(&error))),
            Ok(Ok(Ok(answer))) => answer,
        };
        sides.host_runs.fetch_add(usize::from(is_of_host), Ordering::Relaxed);
        let differs = difference(&answer, expected, &self.query.allowance(expected, keys));
        differs.map(|how| format!("the first run differs: {how}"))
    }

    /// Whether DataFusion's own operators fail for the same row over the tables of the device.
    /// These have more precise statistics, so a join may build the other side. If no row can be
    /// joined, the join does not read its probe side.
    async fn fails_over_tables_of_the_device(&self, sides: &Sides, error: &DataFusionError) -> bool {
        let (text, device, sql) = (harness::text(error), sides.device.clone(), self.sql());
        if !ROWS_FAIL_BY.iter().any(|part| text.contains(part)) {
            return false;
        }
        set(&sides.device, "device.enabled", "false");
        let task = tokio::spawn(async move { harness::answer(&device, &sql).await.map(drop) });
        let stopped = task.abort_handle();
        let answer = tokio::time::timeout(Duration::from_secs(60), task).await;
        stopped.abort();
        set(&sides.device, "device.enabled", "true");
        matches!(answer, Ok(Ok(Err(of_host))) if harness::text(&of_host) == text)
    }

    /// Answer of plain DataFusion with as few optimizations as possible. With small batches, its
    /// windows end a group of NULLs in RANGE frames with the batch. Its dynamic filters treat one
    /// floating-point zero as less than the other.
    async fn simple_answer(&self, sides: &Sides) -> Option<Answer> {
        const DYNAMIC_FILTERS: &str = "datafusion.optimizer.enable_dynamic_filter_pushdown";
        let plain = &sides.plain;
        set(plain, "datafusion.execution.batch_size", "1000000");
        set(plain, DYNAMIC_FILTERS, "false");
        let answer = harness::answer(plain, &self.sql()).await;
        set(plain, DYNAMIC_FILTERS, "true");
        set(plain, "datafusion.execution.batch_size", &self.settings.host_batch_rows.to_string());
        answer.ok()
    }

    fn compare(&self, actual: &Answer, expected: &Answer, keys: Option<&[String]>) -> Outcome {
        let allowance = self.query.allowance(expected, keys);
        if let Some(difference) = difference(actual, expected, &allowance) {
            return Outcome::Differs(difference);
        }
        let placement = actual.placement.kind();
        let empty = self.tables.iter().any(|table| table.rows.num_rows() == 0);
        let idle = empty || placement != PlacementKind::Whole || self.query.may_be_idle();
        if actual.launches == 0 && !idle && actual.placement.device_operators > 0 {
            return Outcome::Differs("nothing was launched".to_string());
        }
        let batches = actual.batches.iter().filter(|batch| batch.num_rows() > 0).count();
        Outcome::Same { rows: actual.num_rows(), batches, placement, launches: actual.launches, spills: actual.spilled_bytes > 0 }
    }

    async fn set_up(&self, sides: &Sides) -> Result<()> {
        let settings = &self.settings;
        for ctx in [&sides.plain, &sides.device] {
            set(ctx, "datafusion.execution.target_partitions", &settings.partitions.to_string());
            set(ctx, "datafusion.execution.batch_size", &settings.host_batch_rows.to_string());
            self.tables.iter().try_for_each(|table| ctx.deregister_table(table.name.as_str()).map(drop))?;
        }
        set(&sides.device, "device.fallback", if settings.strict { "error" } else { "host" });
        set(&sides.device, "device.profile", settings.profile);
        set(&sides.device, "device.batch_rows", &settings.device_batch_rows.to_string());
        for table in &self.tables {
            let (name, schema) = (table.name.as_str(), &table.rows.schema);
            let on_host: Arc<dyn TableProvider> = Arc::new(MemTable::try_new(Arc::clone(schema), table.rows.partitions.clone())?);
            sides.plain.register_table(name, Arc::clone(&on_host))?;
            if table.resident {
                let batches = table.rows.partitions.iter().flatten().cloned().collect();
                let on_device = DeviceTable::try_from_batches(&sides.device, Arc::clone(schema), batches).await?;
                sides.device.register_table(name, on_device)?;
            } else {
                sides.device.register_table(name, on_host)?;
            }
        }
        Ok(())
    }

    /// Smallest case found that still differs, within the given number of attempts.
    pub async fn shrunk(&self, sides: &Sides, first: &str, mut attempts: usize) -> (Case, String) {
        let mut best = self.clone();
        let mut reason = match best.run(sides).await {
            Outcome::Differs(reason) => reason,
            _ => return (best, format!("differed once and does not do so again: {first}")),
        };
        loop {
            let mut improved = false;
            for candidate in best.candidates() {
                if attempts == 0 {
                    return (best, reason);
                }
                attempts -= 1;
                if let Outcome::Differs(why) = candidate.run(sides).await {
                    (best, reason, improved) = (candidate, why, true);
                    break;
                }
            }
            if !improved {
                return (best, reason);
            }
        }
    }

    /// Cases that are one step simpler, large steps first.
    fn candidates(&self) -> Vec<Case> {
        let mut found = Vec::new();
        let one_batch = |table: &Table| table.rows.partitions.len() == 1 && table.rows.partitions[0].len() == 1;
        if !self.tables.iter().all(one_batch) {
            let mut gathered = Case { settings: Settings { partitions: 1, ..self.settings.clone() }, ..self.clone() };
            gathered.tables.iter_mut().for_each(|table| table.rows = table.rows.gathered());
            found.push(gathered);
        } else {
            for index in 0..self.tables.len() {
                found.extend(self.fewer_rows(index));
            }
        }
        found.extend(self.query.simpler().into_iter().map(|query| Case { query, ..self.clone() }));
        found.extend(self.fewer_columns());
        for index in (0..self.tables.len()).filter(|index| self.tables[*index].resident) {
            found.push(self.with_table(index, |table| table.resident = false));
        }
        if self.settings.device_batch_rows != 0 {
            found.push(Case { settings: Settings { device_batch_rows: 0, ..self.settings.clone() }, ..self.clone() });
        }
        found
    }

    /// Variants of the case without parts of a table's rows, large parts first.
    fn fewer_rows(&self, index: usize) -> Vec<Case> {
        let rows = &self.tables[index].rows;
        let count = rows.num_rows();
        let mut found = Vec::new();
        let mut length = count / 2;
        while length > 0 {
            if length == count / 2 {
                found.push(rows.slice(0, length));
                found.push(rows.slice(length, count - length));
            } else {
                found.extend((0..count / length).take(16).map(|index| rows.without(index * length, length)));
            }
            length /= 2;
        }
        found.into_iter().map(|rows| self.with_table(index, |table| table.rows = rows)).collect()
    }

    /// The case without columns that the query does not read. With several tables, the planner
    /// decides which columns are unused.
    fn fewer_columns(&self) -> Vec<Case> {
        match &self.query {
            Query::OneTable(query) => {
                let used = query.columns();
                if used.len() == self.tables[0].columns.len() || used.is_empty() {
                    return Vec::new();
                }
                let mut query = query.clone();
                query.renumber(&|column| used.iter().position(|kept| *kept == column).unwrap_or(column));
                vec![Case { query: Query::OneTable(query), ..self.with_table(0, |table| table.project(&used)) }]
            }
            Query::Relational(_) => {
                let columns = (0..self.tables.len())
                    .flat_map(|table| (0..self.tables[table].columns.len()).map(move |column| (table, column)));
                let without = |(table, column): (usize, usize)| {
                    let kept: Vec<usize> = (0..self.tables[table].columns.len()).filter(|kept| *kept != column).collect();
                    self.with_table(table, |table| table.project(&kept))
                };
                columns.filter(|(table, _)| self.tables[*table].columns.len() > 1).map(without).collect()
            }
        }
    }

    fn with_table(&self, index: usize, change: impl FnOnce(&mut Table)) -> Case {
        let mut case = self.clone();
        change(&mut case.tables[index]);
        case
    }

    /// SQL that reproduces the difference.
    pub fn reproducer(&self) -> String {
        let settings = &self.settings;
        let memory = match settings.memory {
            Memory::Ample => String::new(),
            Memory::Little => format!("SET device.memory_bytes = {LITTLE_BYTES};\n"),
        };
        let tables: Vec<String> = self.tables.iter().map(|table| format!("{};\n", table.create())).collect();
        format!(
            "{memory}SET datafusion.execution.target_partitions = {};\nSET datafusion.execution.batch_size = {};\nSET device.profile = '{}';\nSET device.batch_rows = {};\nSET device.fallback = '{}';\n{}{};",
            settings.partitions,
            settings.host_batch_rows,
            settings.profile,
            settings.device_batch_rows,
            if settings.strict { "error" } else { "host" },
            tables.concat(),
            self.sql()
        )
    }
}

/// Plan of a query, with its sort keys.
async fn plan(ctx: &SessionContext, sql: &str) -> Result<(Option<Vec<String>>, Arc<dyn ExecutionPlan>)> {
    let query = ctx.sql(sql).await?;
    let keys = sort_keys(&query.clone().into_optimized_plan()?);
    Ok((keys, query.create_physical_plan().await?))
}

/// Operator that an error of too little device memory names. The error must name the setting, too.
fn operator_out_of_memory(error: &DataFusionError) -> Option<String> {
    let text = harness::text(error);
    if !matches!(error.find_root(), DataFusionError::ResourcesExhausted(_)) || !text.contains("device.memory_bytes") {
        return None;
    }
    text.split(": ").find(|part| part.ends_with("Exec")).map(str::to_string)
}

/// Whether the host ran a subplan of the device. Kernels may have nothing to do elsewhere, too.
fn ran_on_host(plan: &Arc<dyn ExecutionPlan>) -> Result<bool> {
    plan.exists(|node| Ok(node.downcast_ref::<DeviceToHostExec>().is_some_and(|subplan| subplan.host_run().is_some())))
}

/// Sort keys of the sort at the top of an optimized plan, if all of them are columns.
fn sort_keys(plan: &LogicalPlan) -> Option<Vec<String>> {
    match plan {
        LogicalPlan::Limit(limit) => sort_keys(&limit.input),
        LogicalPlan::Sort(sort) => {
            let column = |key: &SortExpr| key.expr.try_as_col().map(|column| column.name.clone());
            sort.expr.iter().map(column).collect()
        }
        _ => None,
    }
}
