// SPDX-License-Identifier: Apache-2.0
//! Arrays pushed by a producer while a table is registered, with a limit on its silence.

use std::time::Duration;

use arrow_device::async_stream::AsyncDeviceStream;
use arrow_device::ffi::ArrowDeviceType;
use arrow_device::{Error, ImportedArray, Result};
use datafusion::arrow::datatypes::SchemaRef;
use futures::{Stream, StreamExt, stream};

/// The longest silence of a producer while its table is registered; `None` means no limit.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ProducerTimeout(Option<Duration>);

impl Default for ProducerTimeout {
    /// A producer that sorts or aggregates computes for some time before its first array.
    fn default() -> Self {
        Self::of_milliseconds(300_000)
    }
}

impl ProducerTimeout {
    /// A limit in milliseconds; 0 means none.
    pub fn of_milliseconds(milliseconds: usize) -> Self {
        Self((milliseconds > 0).then(|| Duration::from_millis(milliseconds as u64)))
    }

    /// Waits for a callback of the producer of `table`.
    async fn wait<T>(self, table: &str, callback: &str, awaited: impl Future<Output = T>) -> Result<T> {
        let Some(limit) = self.0 else { return Ok(awaited.await) };
        tokio::time::timeout(limit, awaited).await.map_err(|_| {
            Error::Other(format!(
                "the table {table}: its producer did not call {callback} within {limit:?}; \
                 devicefusion_context_config_set_producer_timeout sets another limit"
            ))
        })
    }
}

/// The arrays of a producer. Dropping them cancels it.
pub(crate) struct PushedArrays {
    stream: AsyncDeviceStream,
    /// Name of the table, for messages.
    table: String,
    timeout: ProducerTimeout,
}

impl PushedArrays {
    pub fn new(stream: AsyncDeviceStream, table: String, timeout: ProducerTimeout) -> Self {
        Self { stream, table, timeout }
    }

    /// Waits for the schema.
    pub async fn schema(&mut self) -> Result<SchemaRef> {
        self.timeout.wait(&self.table, "on_schema", self.stream.schema()).await?
    }

    /// Whether the arrays are in host memory; known once the schema has come.
    pub fn is_host(&self) -> bool {
        self.stream.device_type() == Some(ArrowDeviceType::CPU)
    }

    /// Waits for the schema. The arrays come later, without a limit.
    pub async fn opened(mut self) -> Result<AsyncDeviceStream> {
        self.schema().await?;
        Ok(self.stream)
    }

    /// The arrays, each within the limit. An error cancels the producer.
    pub fn into_stream(self) -> impl Stream<Item = Result<ImportedArray>> + Send {
        stream::try_unfold(self, |mut arrays| async move {
            let next = arrays.timeout.wait(&arrays.table, "on_next_task", arrays.stream.next()).await?;
            Ok::<_, Error>(next.transpose()?.map(|array| (array, arrays)))
        })
    }
}
