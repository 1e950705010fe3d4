// SPDX-License-Identifier: Apache-2.0
//! Tables over streams of device arrays.

use std::sync::Arc;

use arrow::datatypes::SchemaRef;
use arrow_device::async_stream::AsyncDeviceStream;
use arrow_device::stream::ArrowDeviceArrayStreamReader;
use async_trait::async_trait;
use datafusion::catalog::{Session, TableProvider};
use datafusion::common::{Result, exec_err, plan_datafusion_err};
use datafusion::logical_expr::{Expr, TableType};
use datafusion::physical_plan::ExecutionPlan;
use futures::StreamExt;

use super::query_error;
use super::source::{ImportedArrayStream, Source};
use crate::exec::DeviceStreamExec;

/// Arrays that a pull stream reads ahead of the kernels.
const READ_AHEAD: usize = 2;

/// A table over an `ArrowDeviceArrayStream` of another library, read in place.
///
/// - The rows must be memory of the session's device, or of the host, which is uploaded.
/// - Only the columns of a query are read. Filters are fused into the kernels that read them.
/// - A limit stops the stream.
///
/// # Examples
/// SQL over batches of another library, here of arrow-rs:
/// ```
/// # tokio::runtime::Runtime::new()?.block_on(async {
/// use std::sync::Arc;
/// use arrow::array::{ArrayRef, Int64Array, RecordBatch};
/// use arrow_device::stream::{ArrowDeviceArrayStreamReader, export_iterator};
/// use arrow_device::{cpu, ffi::ArrowDeviceType, schema};
/// use devicefusion::DeviceStreamTable;
///
/// let prices: ArrayRef = Arc::new(Int64Array::from(vec![3, 1, 4]));
/// let batch = RecordBatch::try_from_iter([("price", prices)])?;
/// let field = schema::batch_field(&batch.schema());
/// let stream = export_iterator(&field, ArrowDeviceType::CPU, [cpu::export_batch(&batch)])?;
///
/// // SAFETY: the stream comes from arrow-device's export.
/// let reader = unsafe { ArrowDeviceArrayStreamReader::try_new(stream)? };
/// let ctx = devicefusion::session()?;
/// ctx.register_table("prices", Arc::new(DeviceStreamTable::try_new(reader)?))?;
/// let sum = ctx.sql("SELECT sum(price) AS sum FROM prices WHERE price > 2").await?.collect().await?;
/// assert_eq!(sum[0].column(0).as_ref(), &Int64Array::from(vec![7]));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct DeviceStreamTable {
    source: Arc<Source>,
}

impl DeviceStreamTable {
    /// A table of one stream, which one scan can read; another scan is an error. A thread begins to
    /// pull at once, a few arrays ahead of the scan.
    ///
    /// # Errors
    /// If the arrays are not record batches.
    pub fn try_new(reader: ArrowDeviceArrayStreamReader) -> Result<Self> {
        let schema = schema_of(&reader)?;
        Ok(Self { source: Arc::new(Source::once("ArrowDeviceArrayStream", schema, pulled(reader)?)) })
    }

    /// A table that reads a new stream of `factory` in each scan. A scan fails if the factory does,
    /// or the stream's schema is not `schema`.
    pub fn from_factory(
        schema: SchemaRef,
        factory: impl Fn() -> Result<ArrowDeviceArrayStreamReader> + Send + Sync + 'static,
    ) -> Self {
        let expected = Arc::clone(&schema);
        let open = move || {
            let reader = factory()?;
            let actual = schema_of(&reader)?;
            if actual != expected {
                return exec_err!("a stream of a table of columns {expected} has columns {actual}");
            }
            pulled(reader)
        };
        Self { source: Arc::new(Source::each("ArrowDeviceArrayStream", schema, Box::new(open))) }
    }
}

/// A table over an async device stream, which a producer pushes as fast as the query reads.
///
/// One scan can read it; another scan is an error. Memory and columns are as for
/// [`DeviceStreamTable`]. A query that fails or ends early cancels the producer.
#[derive(Debug)]
pub struct AsyncDeviceStreamTable {
    source: Arc<Source>,
}

impl AsyncDeviceStreamTable {
    /// A table of a stream. Waits for the schema, without a limit.
    ///
    /// Dropping the future cancels the producer. So `tokio::time::timeout` limits the wait for a
    /// producer that may never call.
    ///
    /// # Errors
    /// The producer's; also if its arrays are not record batches.
    pub async fn try_new(mut stream: AsyncDeviceStream) -> Result<Self> {
        let schema = stream.schema().await.map_err(query_error)?;
        Ok(Self { source: Arc::new(Source::once("ArrowAsyncDeviceStream", schema, stream.boxed())) })
    }
}

fn schema_of(reader: &ArrowDeviceArrayStreamReader) -> Result<SchemaRef> {
    reader
        .schema()
        .ok_or_else(|| plan_datafusion_err!("a table needs a stream of record batches, got one of {}", reader.data_type()))
}

/// The arrays of a pull stream, whose blocking calls run in a thread of its own.
fn pulled(reader: ArrowDeviceArrayStreamReader) -> Result<ImportedArrayStream> {
    Ok(reader.into_stream(READ_AHEAD).map_err(query_error)?.boxed())
}

fn scan(source: &Arc<Source>, projection: Option<&Vec<usize>>) -> Result<Arc<dyn ExecutionPlan>> {
    let columns = projection.cloned().unwrap_or_else(|| (0..source.schema().fields().len()).collect());
    Ok(Arc::new(DeviceStreamExec::try_new(Arc::clone(source), columns)?))
}

/// Implements `TableProvider` for a table over a source.
macro_rules! provider {
    ($table:ident) => {
        #[async_trait]
        impl TableProvider for $table {
            fn schema(&self) -> SchemaRef {
                Arc::clone(self.source.schema())
            }

            fn table_type(&self) -> TableType {
                TableType::Base
            }

            async fn scan(
                &self,
                _session: &dyn Session,
                projection: Option<&Vec<usize>>,
                _filters: &[Expr],
                _limit: Option<usize>,
            ) -> Result<Arc<dyn ExecutionPlan>> {
                scan(&self.source, projection)
            }
        }
    };
}
provider!(DeviceStreamTable);
provider!(AsyncDeviceStreamTable);
