// SPDX-License-Identifier: Apache-2.0
//! A query's rows in host memory, as an Arrow C stream.

use std::sync::Arc;

use arrow::ffi_stream::FFI_ArrowArrayStream;
use arrow_device::cpu;
use datafusion::arrow::array::RecordBatch;
use datafusion::execution::SendableRecordBatchStream;
use datafusion::physical_plan::ExecutionPlan;
use futures::StreamExt;
use futures::future::BoxFuture;

use crate::cancel::unless_cancelled;
use crate::context::Context;
use crate::error::{DEVICEFUSION_OUT_OF_MEMORY, Failure, Result};

/// Pulls batches of a query on the calling thread.
pub(crate) struct HostRows {
    rows: SendableRecordBatchStream,
    cancelled: BoxFuture<'static, ()>,
    /// Keeps the plan alive, so that `devicefusion_query_progress` finds it.
    _plan: Arc<dyn ExecutionPlan>,
    context: Arc<Context>,
}

impl HostRows {
    pub fn new(
        context: Arc<Context>,
        plan: Arc<dyn ExecutionPlan>,
        rows: SendableRecordBatchStream,
        cancelled: BoxFuture<'static, ()>,
    ) -> Self {
        Self { rows, cancelled, _plan: plan, context }
    }

    /// The stream that C reads, on any thread.
    pub fn into_stream(self) -> Result<FFI_ArrowArrayStream> {
        Ok(cpu::export_host_stream(&self.rows.schema(), self)?)
    }

    fn next_batch(&mut self) -> Result<Option<RecordBatch>> {
        let next = async { Ok(self.rows.next().await.transpose()?) };
        self.context.session()?.block_on(unless_cancelled("the query", &mut self.cancelled, next))
    }

    /// Keeps a failure for the context, and makes it the stream's.
    fn fail(&self, Failure { code, message }: Failure) -> arrow_device::Error {
        self.context.errors.keep(message.clone());
        match code {
            DEVICEFUSION_OUT_OF_MEMORY => arrow_device::Error::OutOfMemory(message),
            _ => arrow_device::Error::Invalid(message),
        }
    }
}

impl Iterator for HostRows {
    type Item = arrow_device::Result<RecordBatch>;

    fn next(&mut self) -> Option<Self::Item> {
        self.next_batch().map_err(|failure| self.fail(failure)).transpose()
    }
}
