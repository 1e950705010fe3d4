// SPDX-License-Identifier: Apache-2.0
//! Results of plans as a blocking reader of batches.

use std::collections::VecDeque;
use std::mem;
use std::sync::Arc;

use adbc_core::error::{Error, Result, Status};
use arrow::array::{AsArray, RecordBatch, RecordBatchReader};
use arrow::datatypes::{Schema, SchemaRef, UInt64Type};
use arrow::error::ArrowError;
use datafusion::execution::SendableRecordBatchStream;
use datafusion::execution::context::SessionContext;
use datafusion::logical_expr::LogicalPlan;
use futures::StreamExt;

use crate::cancel::CancelSignal;
use crate::effect::{counts_written_rows, is_command, writes_rows};
use crate::error::{error, from_datafusion};
use crate::ffi::note_failure;
use crate::runtime::DatabaseRuntime;

/// A reader that a caller pulls batches from.
pub(crate) type BoxedReader = Box<dyn RecordBatchReader + Send + 'static>;

/// The batches of several plans, one plan after another, all of one schema.
///
/// Each call of `next` blocks until there is a batch. A plan starts once the one before it has
/// ended. Plans with effects run to their end before the first call, see [`begin`](Self::begin).
pub(crate) struct PlanReader {
    runtime: Arc<DatabaseRuntime>,
    session: SessionContext,
    schema: SchemaRef,
    /// Whether the batches come from more than one plan.
    several: bool,
    plans: std::vec::IntoIter<LogicalPlan>,
    running: Option<Running>,
    /// Batches of plans with effects, which have ended.
    finished: VecDeque<RecordBatch>,
    rows_affected: Option<i64>,
    signal: CancelSignal,
}

/// The plan whose batches are read.
struct Running {
    stream: SendableRecordBatchStream,
    counts_written_rows: bool,
    has_effects: bool,
}

impl PlanReader {
    /// Starts the first of `plans`, which are `plan` with values for its parameters. Without plans
    /// there are no rows.
    ///
    /// Plans with effects (INSERT, COPY, DDL, SET …) all run to their end here. Their batches, such
    /// as the number of rows written, wait in memory. Of queries only the first one starts.
    ///
    /// # Errors
    /// - the first plan does not start;
    /// - a plan with effects fails; effects of the plans before it stay.
    pub fn begin(
        runtime: Arc<DatabaseRuntime>,
        session: SessionContext,
        plan: &LogicalPlan,
        plans: Vec<LogicalPlan>,
        signal: CancelSignal,
    ) -> Result<PlanReader> {
        let several = plans.len() > 1;
        let mut reader = PlanReader {
            runtime,
            session,
            schema: Arc::new(plan.schema().as_arrow().clone()),
            several,
            plans: plans.into_iter(),
            running: None,
            finished: VecDeque::new(),
            rows_affected: counts_written_rows(plan).then_some(0),
            signal,
        };
        if let Some(first) = reader.begin_next()? {
            // With other parameters a column may hold NULL.
            reader.schema = if several { Arc::new(nullable(&first)) } else { first };
        }
        if reader.running.as_ref().is_some_and(|running| running.has_effects) {
            let mut finished = VecDeque::new();
            while let Some(batch) = reader.advance()? {
                finished.push_back(batch);
            }
            reader.finished = finished;
        }
        Ok(reader)
    }

    /// Number of rows written by the plans so far; `None` if none of them counts.
    pub fn rows_affected(&self) -> Option<i64> {
        self.rows_affected
    }

    /// Starts the next plan and returns its schema; `None` after the last one.
    fn begin_next(&mut self) -> Result<Option<SchemaRef>> {
        let Some(plan) = self.plans.next() else { return Ok(None) };
        let is_command = is_command(&plan);
        let begun = async {
            let frame = devicefusion::execute_logical_plan(&self.session, plan).await?;
            // EXECUTE has become the prepared statement.
            let counts_written_rows = counts_written_rows(frame.logical_plan());
            let has_effects = is_command || writes_rows(frame.logical_plan());
            Ok(Running { stream: frame.execute_stream().await?, counts_written_rows, has_effects })
        };
        let running = self.runtime.block_on(&mut self.signal, begun)?.map_err(from_datafusion)?;
        if running.counts_written_rows {
            self.rows_affected.get_or_insert(0);
        }
        let schema = running.stream.schema();
        self.running = Some(running);
        Ok(Some(schema))
    }

    /// Refuses a plan whose columns have other types than the reader's.
    fn check(&self, schema: &Schema) -> Result<()> {
        let (first, now) = (self.schema.fields(), schema.fields());
        if first.len() == now.len() && first.iter().zip(now).all(|(a, b)| a.data_type().equals_datatype(b.data_type())) {
            return Ok(());
        }
        let types =
            |schema: &Schema| schema.fields().iter().map(|field| field.data_type().to_string()).collect::<Vec<_>>().join(", ");
        let (first, now) = (types(&self.schema), types(schema));
        let message = format!(
            "a row of parameters gives columns of ({now}), and the first row gave ({first}): bind them in runs of their own"
        );
        Err(error(Status::InvalidData, message))
    }

    /// The next batch; `None` after the last one.
    pub fn advance(&mut self) -> Result<Option<RecordBatch>> {
        if let Some(batch) = self.finished.pop_front() {
            return Ok(Some(batch));
        }
        while let Some(running) = &mut self.running {
            match self.runtime.block_on(&mut self.signal, running.stream.next())? {
                Some(batch) => {
                    let batch = batch.map_err(from_datafusion)?;
                    if let Some(rows) = self.rows_affected.as_mut().filter(|_| running.counts_written_rows) {
                        *rows += sum_of_counts(&batch);
                    }
                    return Ok(Some(if self.several { batch.with_schema(Arc::clone(&self.schema))? } else { batch }));
                }
                None => {
                    self.running = None;
                    if let Some(schema) = self.begin_next()? {
                        self.check(&schema)?;
                    }
                }
            }
        }
        Ok(None)
    }
}

impl Drop for PlanReader {
    fn drop(&mut self) {
        // Plans may be deep.
        let plans = (self.running.take(), mem::take(&mut self.plans));
        devicefusion::with_enough_stack(move || drop(plans));
    }
}

/// The sum of the column `count` that a write results in.
fn sum_of_counts(batch: &RecordBatch) -> i64 {
    let counts = batch.columns().first().and_then(|column| column.as_primitive_opt::<UInt64Type>());
    counts.map_or(0, |counts| counts.iter().flatten().sum::<u64>() as i64)
}

/// The schema with every column nullable.
fn nullable(schema: &Schema) -> Schema {
    let fields = schema.fields().iter().map(|field| field.as_ref().clone().with_nullable(true));
    Schema::new_with_metadata(fields.collect::<Vec<_>>(), schema.metadata().clone())
}

impl Iterator for PlanReader {
    type Item = std::result::Result<RecordBatch, ArrowError>;

    fn next(&mut self) -> Option<Self::Item> {
        let batch = self.advance();
        if let Err(failure) = &batch {
            // An error ends the reader.
            self.running = None;
            // An Arrow C stream carries its message alone.
            note_failure(failure);
        }
        batch.map_err(|error: Error| ArrowError::ExternalError(error.message.into())).transpose()
    }
}

impl RecordBatchReader for PlanReader {
    fn schema(&self) -> SchemaRef {
        Arc::clone(&self.schema)
    }
}
