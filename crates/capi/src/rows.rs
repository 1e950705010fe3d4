// SPDX-License-Identifier: Apache-2.0
//! The rows of a query in host memory, for C to pull.

use std::sync::Arc;

use datafusion::arrow::array::{RecordBatch, RecordBatchReader};
use datafusion::arrow::datatypes::SchemaRef;
use datafusion::arrow::error::ArrowError;
use datafusion::execution::SendableRecordBatchStream;
use datafusion::physical_plan::ExecutionPlan;
use futures::StreamExt;

use crate::DEVICEFUSION_OUT_OF_MEMORY;
use crate::boundary::caught;
use crate::cancel::unless;
use crate::context::Context;
use crate::error::{Failure, Result};

/// Pulls batches of a query, on whatever thread C calls.
pub(crate) struct HostRows<C> {
    schema: SchemaRef,
    rows: SendableRecordBatchStream,
    cancelled: C,
    /// What a call before this one has failed with: there is no end after an error.
    failure: Option<String>,
    /// Kept while the rows come, for those who ask how far it is.
    _plan: Arc<dyn ExecutionPlan>,
    context: Arc<Context>,
}

impl<C: Future<Output = ()> + Send + Unpin> HostRows<C> {
    pub fn new(context: Arc<Context>, plan: Arc<dyn ExecutionPlan>, rows: SendableRecordBatchStream, cancelled: C) -> Self {
        Self { schema: rows.schema(), rows, cancelled, failure: None, _plan: plan, context }
    }

    fn pull(&mut self) -> Result<Option<RecordBatch>> {
        let next = async { Ok(self.rows.next().await.transpose()?) };
        self.context.session()?.wait(unless(&mut self.cancelled, next))
    }
}

impl<C: Future<Output = ()> + Send + Unpin> Iterator for HostRows<C> {
    type Item = std::result::Result<RecordBatch, ArrowError>;

    fn next(&mut self) -> Option<Self::Item> {
        if let Some(text) = &self.failure {
            return Some(Err(ArrowError::ExternalError(text.clone().into())));
        }
        match caught(|| self.pull()) {
            Ok(batch) => batch.map(Ok),
            Err(Failure { code, text }) => {
                // arrow-rs makes a C string of it.
                let text = text.replace('\0', "");
                self.failure = Some(text.clone());
                self.context.errors.keep(text.clone());
                Some(Err(match code {
                    DEVICEFUSION_OUT_OF_MEMORY => ArrowError::MemoryError(text),
                    _ => ArrowError::ExternalError(text.into()),
                }))
            }
        }
    }
}

impl<C: Future<Output = ()> + Send + Unpin> RecordBatchReader for HostRows<C> {
    fn schema(&self) -> SchemaRef {
        Arc::clone(&self.schema)
    }
}
