// SPDX-License-Identifier: Apache-2.0
//! Streams of DataFusion, read by whoever is no task of a runtime.

use std::sync::Arc;

use adbc_core::error::{Error, Result};
use arrow::array::{RecordBatch, RecordBatchReader};
use arrow::datatypes::SchemaRef;
use arrow::error::ArrowError;
use datafusion::execution::SendableRecordBatchStream;
use futures::StreamExt;
use tokio::runtime::Runtime;

use crate::cancel::Cancelled;
use crate::error::of_datafusion;

/// The batches of one stream after another, all of one schema. Each call of `next` waits for one.
pub(crate) struct Reader {
    runtime: Arc<Runtime>,
    schema: SchemaRef,
    streams: std::vec::IntoIter<SendableRecordBatchStream>,
    stream: Option<SendableRecordBatchStream>,
    cancelled: Cancelled,
}

impl Reader {
    /// `cancelled` ends it with an error.
    pub fn new(
        runtime: Arc<Runtime>,
        schema: SchemaRef,
        streams: Vec<SendableRecordBatchStream>,
        cancelled: Cancelled,
    ) -> Reader {
        Reader { runtime, schema, streams: streams.into_iter(), stream: None, cancelled }
    }

    fn advance(&mut self) -> Result<Option<RecordBatch>> {
        loop {
            if self.stream.is_none() {
                self.stream = self.streams.next();
            }
            let Some(stream) = &mut self.stream else { return Ok(None) };
            match self.runtime.block_on(self.cancelled.or(stream.next()))? {
                Some(batch) => return batch.map(Some).map_err(of_datafusion),
                None => self.stream = None,
            }
        }
    }
}

impl Iterator for Reader {
    type Item = std::result::Result<RecordBatch, ArrowError>;

    fn next(&mut self) -> Option<Self::Item> {
        let batch = self.advance();
        if batch.is_err() {
            // Nothing comes behind an error.
            self.stream = None;
            self.streams = Vec::new().into_iter();
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
