// SPDX-License-Identifier: Apache-2.0
//! Reader of a query's rows in host memory, behind an Arrow C stream.

use std::sync::Arc;

use datafusion::arrow::array::{RecordBatch, RecordBatchReader};
use datafusion::arrow::datatypes::SchemaRef;
use datafusion::arrow::error::ArrowError;
use datafusion::execution::SendableRecordBatchStream;
use datafusion::physical_plan::ExecutionPlan;
use futures::StreamExt;

use crate::boundary::catch_panics;
use crate::cancel::unless_cancelled;
use crate::context::Context;
use crate::error::{DEVICEFUSION_OUT_OF_MEMORY, Failure, Result};

/// Pulls batches of a query on the calling thread.
pub(crate) struct HostRows<C> {
    schema: SchemaRef,
    rows: SendableRecordBatchStream,
    cancelled: C,
    /// Message of an earlier failure, which every later call repeats.
    failure: Option<String>,
    /// Keeps the plan alive, so that `devicefusion_query_progress` finds it.
    _plan: Arc<dyn ExecutionPlan>,
    context: Arc<Context>,
}

impl<C: Future<Output = ()> + Send + Unpin> HostRows<C> {
    pub fn new(context: Arc<Context>, plan: Arc<dyn ExecutionPlan>, rows: SendableRecordBatchStream, cancelled: C) -> Self {
        Self { schema: rows.schema(), rows, cancelled, failure: None, _plan: plan, context }
    }

    fn pull(&mut self) -> Result<Option<RecordBatch>> {
        let next = async { Ok(self.rows.next().await.transpose()?) };
        self.context.session()?.block_on(unless_cancelled("the query", &mut self.cancelled, next))
    }
}

impl<C: Future<Output = ()> + Send + Unpin> Iterator for HostRows<C> {
    type Item = std::result::Result<RecordBatch, ArrowError>;

    fn next(&mut self) -> Option<Self::Item> {
        if let Some(message) = &self.failure {
            return Some(Err(ArrowError::ExternalError(message.clone().into())));
        }
        match catch_panics(|| self.pull()) {
            Ok(batch) => batch.map(Ok),
            Err(Failure { code, message }) => {
                // arrow-rs makes a C string of it.
                let message = message.replace('\0', "");
                self.failure = Some(message.clone());
                self.context.errors.keep(message.clone());
                Some(Err(match code {
                    DEVICEFUSION_OUT_OF_MEMORY => ArrowError::MemoryError(message),
                    _ => ArrowError::ExternalError(message.into()),
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
