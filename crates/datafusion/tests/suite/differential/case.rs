// SPDX-License-Identifier: Apache-2.0
//! One case: a table, a query and settings; how it is run on both sides, and how it is shrunk.

use std::sync::Arc;
use std::time::Duration;

use datafusion::catalog::TableProvider;
use datafusion::common::Result;
use datafusion::datasource::MemTable;
use datafusion::prelude::SessionContext;
use devicefusion::{DeviceTable, PlacementKind};

use super::compare::{Allowance, difference};
use super::data::Rows;
use super::query::Query;
use super::types::Column;
use crate::harness::{self, Answer, set};

/// A pair of sessions.
pub struct Sides {
    pub plain: SessionContext,
    pub device: SessionContext,
}

#[derive(Debug, Clone)]
pub struct Case {
    pub columns: Vec<Column>,
    pub rows: Rows,
    pub query: Query,
    pub settings: Settings,
}

#[derive(Debug, Clone)]
pub struct Settings {
    pub profile: &'static str,
    /// Rows of the host's batches.
    pub host_batch_rows: usize,
    /// Rows of the device's batches.
    pub device_batch_rows: usize,
    pub partitions: usize,
    /// The table lies on the device.
    pub resident: bool,
}

/// What came of a case.
#[derive(Debug)]
pub enum Outcome {
    /// The answers are the same.
    Same { rows: usize, batches: usize, computed: bool },
    /// Both sides fail.
    BothFail,
    /// Plain DataFusion cannot plan the query.
    Invalid,
    /// Strict planning refuses the query, in its words.
    Refused(String),
    /// The answers differ, and how.
    Differs(String),
}

impl Case {
    pub fn sql(&self) -> String {
        self.query.sql(&self.columns)
    }

    /// Runs the case on both sides.
    pub async fn run(&self, sides: &Sides) -> Outcome {
        if let Err(error) = self.set_up(sides).await {
            return Outcome::Differs(format!("the table cannot be made: {}", harness::text(&error)));
        }
        let sql = self.sql();
        let expected = match plan(&sides.plain, &sql).await {
            Err(_) => return Outcome::Invalid,
            Ok(plan) => harness::answer_of(plan, sides.plain.task_ctx()).await,
        };
        let device = sides.device.clone();
        let task = tokio::spawn(async move {
            let plan = match plan(&device, &sql).await {
                Ok(plan) => plan,
                Err(error) => return Err((true, error)),
            };
            harness::answer_of(plan, device.task_ctx()).await.map_err(|error| (false, error))
        });
        let actual = match tokio::time::timeout(Duration::from_secs(120), task).await {
            Err(_) => return Outcome::Differs("no answer after 120 seconds".to_string()),
            Ok(Err(panic)) => return Outcome::Differs(format!("panic: {panic}")),
            Ok(Ok(actual)) => actual,
        };
        match (actual, expected) {
            (Err((true, error)), _) if harness::text(&error).contains("device.fallback") => {
                let text = harness::text(&error);
                let reason = text.lines().find(|line| line.contains("device.fallback")).unwrap_or(&text);
                Outcome::Refused(reason.to_string())
            }
            (Err(_), Err(_)) => Outcome::BothFail,
            (Err((_, error)), Ok(_)) => Outcome::Differs(format!("fails: {}", harness::text(&error))),
            (Ok(_), Err(error)) => Outcome::Differs(format!("does not fail with: {}", harness::text(&error))),
            (Ok(actual), Ok(expected)) => self.compare(&actual, &expected),
        }
    }

    fn compare(&self, actual: &Answer, expected: &Answer) -> Outcome {
        let allowance = Allowance {
            any_order: !self.query.keeps_order(),
            zeros_are_equal: self.query.groups(),
            nans_are_equal: self.query.groups() || self.query.aggregates(),
            approximate: &self.query.approximate(),
        };
        if let Some(difference) = difference(actual, expected, &allowance) {
            return Outcome::Differs(difference);
        }
        let computed = actual.placement.kind() == PlacementKind::Whole;
        let idle = self.rows.num_rows() == 0 || !computed || self.query.limit.is_some() || self.query.only_passes_columns();
        if actual.launches == 0 && !idle && actual.placement.device_operators > 0 {
            return Outcome::Differs("nothing was launched".to_string());
        }
        let batches = actual.batches.iter().filter(|batch| batch.num_rows() > 0).count();
        Outcome::Same { rows: actual.num_rows(), batches, computed }
    }

    async fn set_up(&self, sides: &Sides) -> Result<()> {
        let settings = &self.settings;
        for ctx in [&sides.plain, &sides.device] {
            set(ctx, "datafusion.execution.target_partitions", &settings.partitions.to_string());
            set(ctx, "datafusion.execution.batch_size", &settings.host_batch_rows.to_string());
            ctx.deregister_table("t")?;
        }
        set(&sides.device, "device.profile", settings.profile);
        set(&sides.device, "device.batch_rows", &settings.device_batch_rows.to_string());
        let table: Arc<dyn TableProvider> =
            Arc::new(MemTable::try_new(Arc::clone(&self.rows.schema), self.rows.partitions.clone())?);
        sides.plain.register_table("t", Arc::clone(&table))?;
        if settings.resident {
            let batches = self.rows.partitions.iter().flatten().cloned().collect();
            let table = DeviceTable::try_from_batches(&sides.device, Arc::clone(&self.rows.schema), batches).await?;
            sides.device.register_table("t", table)?;
        } else {
            sides.device.register_table("t", table)?;
        }
        Ok(())
    }

    /// The smallest case found that still differs, within so many attempts.
    pub async fn shrunk(&self, sides: &Sides, mut attempts: usize) -> (Case, String) {
        let mut best = self.clone();
        let mut reason = match best.run(sides).await {
            Outcome::Differs(reason) => reason,
            _ => return (best, "it differed once and does not do so again".to_string()),
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

    /// Cases that are a step simpler, large steps first.
    fn candidates(&self) -> Vec<Case> {
        let mut found = Vec::new();
        let one_batch = self.rows.partitions.len() == 1 && self.rows.partitions[0].len() == 1;
        if !one_batch {
            found.push(Case {
                rows: self.rows.gathered(),
                settings: Settings { partitions: 1, ..self.settings.clone() },
                ..self.clone()
            });
        } else {
            let rows = self.rows.num_rows();
            let mut piece = rows / 2;
            while piece > 0 {
                if piece == rows / 2 {
                    found.push(self.with_rows(self.rows.slice(0, piece)));
                    found.push(self.with_rows(self.rows.slice(piece, rows - piece)));
                } else {
                    let pieces = (0..rows / piece).take(16);
                    found.extend(pieces.map(|index| self.with_rows(self.rows.without(index * piece, piece))));
                }
                piece /= 2;
            }
        }
        found.extend(self.query.simpler().into_iter().map(|query| Case { query, ..self.clone() }));
        let used = self.query.columns();
        if used.len() < self.columns.len() && !used.is_empty() {
            let mut query = self.query.clone();
            query.renumber(&|column| used.iter().position(|kept| *kept == column).unwrap_or(column));
            let columns = used.iter().map(|index| self.columns[*index].clone()).collect();
            found.push(Case { columns, rows: self.rows.project(&used), query, settings: self.settings.clone() });
        }
        if self.settings.resident {
            found.push(Case { settings: Settings { resident: false, ..self.settings.clone() }, ..self.clone() });
        }
        if self.settings.device_batch_rows != 0 {
            found.push(Case { settings: Settings { device_batch_rows: 0, ..self.settings.clone() }, ..self.clone() });
        }
        found
    }

    fn with_rows(&self, rows: Rows) -> Case {
        Case { rows, ..self.clone() }
    }

    /// SQL that shows the difference.
    pub fn reproducer(&self) -> String {
        let settings = &self.settings;
        let table = self.rows.create_table();
        let table = if settings.resident { table.replace("CREATE TABLE t ", "CREATE TABLE device.t ") } else { table };
        format!(
            "SET datafusion.execution.target_partitions = {};\nSET datafusion.execution.batch_size = {};\nSET device.profile = '{}';\nSET device.batch_rows = {};\nSET device.fallback = 'error';\n{table};\n{};",
            settings.partitions,
            settings.host_batch_rows,
            settings.profile,
            settings.device_batch_rows,
            self.sql()
        )
    }
}

async fn plan(ctx: &SessionContext, sql: &str) -> Result<Arc<dyn datafusion::physical_plan::ExecutionPlan>> {
    ctx.sql(sql).await?.create_physical_plan().await
}
