// SPDX-License-Identifier: Apache-2.0
//! The rows of plans, read by whoever is no task of a runtime.

use std::sync::Arc;

use adbc_core::error::{Error, Result, Status};
use arrow::array::{RecordBatch, RecordBatchReader};
use arrow::datatypes::{Schema, SchemaRef};
use arrow::error::ArrowError;
use datafusion::execution::SendableRecordBatchStream;
use datafusion::execution::context::SessionContext;
use datafusion::logical_expr::LogicalPlan;
use futures::StreamExt;

use crate::cancel::Cancelled;
use crate::error::{error, of_datafusion};
use crate::threads::Threads;

/// The batches of one plan after another, all of one schema. A plan begins when the one before it has ended; each call of `next`
/// waits for a batch.
pub(crate) struct Reader {
    threads: Arc<Threads>,
    session: SessionContext,
    schema: SchemaRef,
    /// Whether the batches come from more than one plan.
    several: bool,
    plans: std::vec::IntoIter<LogicalPlan>,
    stream: Option<SendableRecordBatchStream>,
    cancelled: Cancelled,
}

impl Reader {
    /// Begins the first plan. Without plans there are no rows, of `schema`; `cancelled` ends all with an error.
    ///
    /// # Errors
    /// What the first plan fails with when it begins.
    pub fn begin(
        threads: Arc<Threads>,
        session: SessionContext,
        schema: &Schema,
        plans: Vec<LogicalPlan>,
        cancelled: Cancelled,
    ) -> Result<Reader> {
        let (schema, several, plans) = (Arc::new(schema.clone()), plans.len() > 1, plans.into_iter());
        let mut reader = Reader { threads, session, schema, several, plans, stream: None, cancelled };
        if let Some(first) = reader.begin_next()? {
            // A NULL may be among the values of another plan's parameters.
            reader.schema = if several { Arc::new(nullable(&first)) } else { first };
        }
        Ok(reader)
    }

    /// The schema of the plan that has begun; `None` after the last one.
    fn begin_next(&mut self) -> Result<Option<SchemaRef>> {
        let Some(plan) = self.plans.next() else { return Ok(None) };
        let begun = async { self.session.execute_logical_plan(plan).await?.execute_stream().await };
        let stream = self.threads.wait(&mut self.cancelled, begun)?.map_err(of_datafusion)?;
        let schema = stream.schema();
        self.stream = Some(stream);
        Ok(Some(schema))
    }

    /// Refuses a plan whose rows are of other types than the stream's.
    fn check(&self, schema: &Schema) -> Result<()> {
        let (first, now) = (self.schema.fields(), schema.fields());
        if first.len() == now.len() && first.iter().zip(now).all(|(a, b)| a.data_type().equals_datatype(b.data_type())) {
            return Ok(());
        }
        let types =
            |schema: &Schema| schema.fields().iter().map(|field| field.data_type().to_string()).collect::<Vec<_>>().join(", ");
        let (first, now) = (types(&self.schema), types(schema));
        let words = format!(
            "a row of parameters gives columns of ({now}), and the first row gave ({first}): bind them in runs of their own"
        );
        Err(error(Status::InvalidData, words))
    }

    /// The next batch; `None` after the last one.
    pub fn advance(&mut self) -> Result<Option<RecordBatch>> {
        while let Some(stream) = &mut self.stream {
            match self.threads.wait(&mut self.cancelled, stream.next())? {
                Some(batch) => {
                    let batch = batch.map_err(of_datafusion)?;
                    return Ok(Some(if self.several { batch.with_schema(Arc::clone(&self.schema))? } else { batch }));
                }
                None => {
                    self.stream = None;
                    if let Some(schema) = self.begin_next()? {
                        self.check(&schema)?;
                    }
                }
            }
        }
        Ok(None)
    }
}

/// Columns that may all hold NULL.
fn nullable(schema: &Schema) -> Schema {
    let fields = schema.fields().iter().map(|field| field.as_ref().clone().with_nullable(true));
    Schema::new_with_metadata(fields.collect::<Vec<_>>(), schema.metadata().clone())
}

impl Iterator for Reader {
    type Item = std::result::Result<RecordBatch, ArrowError>;

    fn next(&mut self) -> Option<Self::Item> {
        let batch = self.advance();
        if batch.is_err() {
            // Nothing comes behind an error.
            self.stream = None;
        }
        // A stream of C has room for words alone.
        batch.map_err(|error: Error| ArrowError::ExternalError(error.message.into())).transpose()
    }
}

impl RecordBatchReader for Reader {
    fn schema(&self) -> SchemaRef {
        Arc::clone(&self.schema)
    }
}
