// SPDX-License-Identifier: Apache-2.0
//! The rows of plans, read by whoever is no task of a runtime.

use std::sync::Arc;

use adbc_core::error::{Error, Result};
use arrow::array::{RecordBatch, RecordBatchReader};
use arrow::datatypes::{Schema, SchemaRef};
use arrow::error::ArrowError;
use datafusion::execution::SendableRecordBatchStream;
use datafusion::execution::context::SessionContext;
use datafusion::logical_expr::LogicalPlan;
use futures::StreamExt;

use crate::cancel::Cancelled;
use crate::error::of_datafusion;
use crate::threads::Threads;

/// The batches of one plan after another, all of one schema. A plan begins when the one before it has ended; each call of `next`
/// waits for a batch.
pub(crate) struct Reader {
    threads: Arc<Threads>,
    session: SessionContext,
    schema: SchemaRef,
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
        let (schema, plans) = (Arc::new(schema.clone()), plans.into_iter());
        let mut reader = Reader { threads, session, schema, plans, stream: None, cancelled };
        reader.begin_next()?;
        if let Some(stream) = &reader.stream {
            reader.schema = stream.schema();
        }
        Ok(reader)
    }

    fn begin_next(&mut self) -> Result<()> {
        let Some(plan) = self.plans.next() else { return Ok(()) };
        let begun = async { self.session.execute_logical_plan(plan).await?.execute_stream().await };
        self.stream = Some(self.threads.wait(&mut self.cancelled, begun)?.map_err(of_datafusion)?);
        Ok(())
    }

    /// The next batch; `None` after the last one.
    pub fn advance(&mut self) -> Result<Option<RecordBatch>> {
        while let Some(stream) = &mut self.stream {
            match self.threads.wait(&mut self.cancelled, stream.next())? {
                Some(batch) => return batch.map(Some).map_err(of_datafusion),
                None => {
                    self.stream = None;
                    self.begin_next()?;
                }
            }
        }
        Ok(None)
    }
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
