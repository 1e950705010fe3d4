// SPDX-License-Identifier: Apache-2.0
//! A query's rows, left on the device.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context as TaskPoll, Poll};

use arrow::datatypes::{Field, SchemaRef};
use arrow_device::async_stream::{AsyncHandler, ProduceOptions, produce};
use arrow_device::ffi::{FFI_ArrowDeviceArray, FFI_ArrowDeviceArrayStream};
use arrow_device::stream::export_stream;
use arrow_device::{Error, schema};
use columnar::{DeviceBatch, exchange};
use datafusion::common::runtime::JoinSet;
use datafusion::common::{Result, exec_datafusion_err, exec_err};
use datafusion::execution::TaskContext;
use datafusion::physical_plan::ExecutionPlan;
use datafusion::physical_plan::coalesce_partitions::CoalescePartitionsExec;
use datafusion::physical_plan::union::UnionExec;
use datafusion::prelude::DataFrame;
use device::{Context, Queue};
use futures::stream::BoxStream;
use futures::{Stream, StreamExt, TryStreamExt, stream};
use kernels::ops::ArrowLayout;
use tokio::runtime::Handle;

use super::{exchange_error, query_error};
use crate::error::{columnar_error, device_error, op_error};
use crate::exec::{DeviceToHostExec, HostToDeviceExec};
use crate::session::{kernel_options, task_context};

/// Batches that a query may be ahead of a foreign consumer, beside the one under way.
const AHEAD: usize = 1;

/// The name in errors.
const RESULT: &str = "DeviceResult";

/// The rows of a query on the device: nothing is downloaded.
///
/// - As a [`Stream`] it gives [`DeviceBatch`]es, within the session's tokio runtime. Batches of a
///   `UNION` may have different layouts: see each [column's type](columnar::DeviceColumn::ty).
/// - [`into_device_stream`](Self::into_device_stream) makes an `ArrowDeviceArrayStream`.
/// - [`push_into`](Self::push_into) pushes into an async handler.
///
/// Pulls from the latter two block. Read them on a thread that does not run the runtime's tasks:
/// within tokio, in `spawn_blocking`. Dropping them stops the query and releases its memory.
///
/// A plan that ends on the host is uploaded. With `device.fallback = 'error'` there is no such
/// plan.
///
/// # Examples
/// ```
/// # tokio::runtime::Runtime::new()?.block_on(async {
/// use arrow_device::stream::ArrowDeviceArrayStreamReader;
/// use devicefusion::DeviceResult;
///
/// let ctx = devicefusion::session()?;
/// let rows = ctx.sql("SELECT value * 2 AS even FROM generate_series(1, 1000) WHERE value > 10").await?;
/// let result = DeviceResult::try_new(rows).await?;
/// let stream = result.into_device_stream()?; // for C
///
/// // SAFETY: the stream comes from this crate.
/// let reader = unsafe { ArrowDeviceArrayStreamReader::try_new(stream)? };
/// let arrays = tokio::task::spawn_blocking(|| reader.collect::<Result<Vec<_>, _>>()).await??;
/// assert_eq!(arrays.iter().map(|array| array.len()).sum::<usize>(), 990);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct DeviceResult {
    schema: SchemaRef,
    context: Context,
    /// Each with its conversion to Arrow layouts: the inputs of a union have different layouts.
    batches: BoxStream<'static, Result<(Arc<ArrowLayout>, DeviceBatch)>>,
    runtime: Handle,
}

impl DeviceResult {
    /// Plans a query and starts it.
    ///
    /// # Errors
    /// The planner's; if the session has no device; or outside of a tokio runtime.
    pub async fn try_new(rows: DataFrame) -> Result<Self> {
        let task = Arc::new(rows.task_ctx());
        Self::execute(rows.create_physical_plan().await?, task)
    }

    /// Starts all partitions of a plan.
    ///
    /// # Errors
    /// As [`try_new`](Self::try_new).
    pub fn execute(plan: Arc<dyn ExecutionPlan>, task: Arc<TaskContext>) -> Result<Self> {
        let runtime = Handle::try_current()
            .map_err(|_| exec_datafusion_err!("{RESULT}: a query runs in a tokio runtime, and there is none"))?;
        let (context, options) = task_context(&task)?;
        let options = kernel_options(&options, &context)?;
        let schema = plan.schema();
        let mut batches = Vec::new();
        for part in parts(&plan) {
            let uploaded;
            let top = match part.downcast_ref::<DeviceToHostExec>() {
                Some(top) => top,
                None => {
                    let upload = Arc::new(HostToDeviceExec::new(Arc::clone(part), part.name()));
                    uploaded = DeviceToHostExec::try_new(upload, "nowhere", options.clone())?;
                    &uploaded
                }
            };
            let conversion = ArrowLayout::try_new(Arc::clone(&schema), top.types().to_vec(), top.options().clone());
            let conversion = Arc::new(conversion.map_err(|error| op_error(RESULT, error))?);
            for partition in 0..top.properties().partitioning.partition_count() {
                let (schema, conversion) = (Arc::clone(&schema), Arc::clone(&conversion));
                let of_result = move |batch: Result<DeviceBatch>| {
                    let batch = batch?;
                    // Inputs of a union have other column names.
                    let batch = DeviceBatch::try_new(Arc::clone(&schema), batch.columns().to_vec(), batch.num_rows());
                    Ok((Arc::clone(&conversion), batch.map_err(|error| columnar_error(RESULT, error))?))
                };
                batches.push(top.execute_device(partition, Arc::clone(&task))?.map(of_result));
            }
        }
        Ok(Self { schema, context, batches: stream::select_all(batches).boxed(), runtime })
    }

    /// Stops the query with an error when `cancelled` is ready.
    ///
    /// # Examples
    /// ```
    /// # tokio::runtime::Runtime::new()?.block_on(async {
    /// use devicefusion::DeviceResult;
    /// use futures::TryStreamExt;
    ///
    /// let ctx = devicefusion::session()?;
    /// let rows = ctx.sql("SELECT value * 2 FROM generate_series(1, 1000)").await?;
    /// let (cancel, cancelled) = tokio::sync::oneshot::channel::<()>();
    /// let mut result = DeviceResult::try_new(rows).await?.cancelled_by(async { _ = cancelled.await });
    /// drop(cancel);
    /// assert!(result.try_next().await.is_err_and(|error| error.to_string().contains("cancelled")));
    /// # datafusion::common::Result::<()>::Ok(())
    /// # })?;
    /// # datafusion::common::Result::<()>::Ok(())
    /// ```
    pub fn cancelled_by(mut self, cancelled: impl Future<Output = ()> + Send + 'static) -> Self {
        // `None` after the query was stopped.
        let mut query = Some((self.batches, Box::pin(cancelled)));
        let next = move |cx: &mut TaskPoll<'_>| {
            let Some((batches, cancelled)) = &mut query else { return Poll::Ready(None) };
            if cancelled.as_mut().poll(cx).is_pending() {
                return batches.poll_next_unpin(cx);
            }
            query = None;
            Poll::Ready(Some(exec_err!("the query was cancelled")))
        };
        self.batches = stream::poll_fn(next).boxed();
        self
    }

    /// Names and types of the columns.
    pub fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    /// The device of the rows.
    pub fn context(&self) -> &Context {
        &self.context
    }

    /// The rows as device arrays, when the last of them is written.
    ///
    /// # Errors
    /// The query's.
    ///
    /// # Examples
    /// ```
    /// # tokio::runtime::Runtime::new()?.block_on(async {
    /// let ctx = devicefusion::session()?;
    /// let rows = ctx.sql("SELECT value * 2 FROM generate_series(1, 1000)").await?;
    /// let arrays = devicefusion::DeviceResult::try_new(rows).await?.into_device_arrays().await?;
    /// assert_eq!(arrays.iter().map(|array| array.array.len()).sum::<usize>(), 1000);
    /// # datafusion::common::Result::<()>::Ok(())
    /// # })?;
    /// # datafusion::common::Result::<()>::Ok(())
    /// ```
    pub async fn into_device_arrays(mut self) -> Result<Vec<FFI_ArrowDeviceArray>> {
        let queue = self.context.queue().map_err(|error| device_error(RESULT, error))?;
        let mut arrays = Vec::new();
        while let Some((conversion, batch)) = self.batches.try_next().await? {
            for chunk in batch.chunks(conversion.max_rows()) {
                arrays.push(export(&conversion, &queue, &chunk).await?);
            }
            // The caller looks for signals while this yields: a host scan may never wait.
            tokio::task::yield_now().await;
        }
        queue.finish().await.map_err(|error| device_error(RESULT, error))?;
        Ok(arrays)
    }

    /// The rows as a stream for C. A pull blocks its thread until there is a batch.
    ///
    /// # Errors
    /// If C cannot express the schema, or the device refuses a queue.
    pub fn into_device_stream(self) -> Result<FFI_ArrowDeviceArrayStream> {
        let (field, device_type) = (self.field(), exchange::exported_device(self.context.info()).0);
        export_stream(&field, device_type, self.into_arrays()?).map_err(query_error)
    }

    /// Pushes batches into a handler as it requests them, then calls its `release`.
    ///
    /// The handler gets errors of the query.
    pub async fn push_into(self, handler: AsyncHandler) {
        let (field, device_type) = (self.field(), exchange::exported_device(self.context.info()).0);
        let arrays = match self.into_arrays() {
            Ok(arrays) => arrays.boxed(),
            Err(error) => stream::iter([Err(exchange_error(&error))]).boxed(),
        };
        produce(arrays, &field, device_type, handler, ProduceOptions::default()).await;
    }

    fn field(&self) -> Field {
        schema::batch_field(&self.schema)
    }

    /// The rows as device arrays. The query runs in a task of the session's runtime, whichever
    /// thread reads.
    fn into_arrays(self) -> Result<impl Stream<Item = arrow_device::Result<FFI_ArrowDeviceArray>> + Send + use<>> {
        let queue = self.context.queue().map_err(|error| device_error(RESULT, error))?;
        let (sender, receiver) = tokio::sync::mpsc::channel(AHEAD);
        let mut batches = self.batches;
        let mut tasks = JoinSet::new();
        let forward = async move {
            while let Some(batch) = batches.next().await {
                let (conversion, batch) = match batch {
                    Ok(batch) => batch,
                    Err(error) => {
                        // The consumer may be gone.
                        _ = sender.send(Err(exchange_error(&error))).await;
                        return;
                    }
                };
                for chunk in batch.chunks(conversion.max_rows()) {
                    let array = export(&conversion, &queue, &chunk).await.map_err(|error| exchange_error(&error));
                    let failed = array.is_err();
                    if sender.send(array).await.is_err() || failed {
                        return;
                    }
                }
            }
            // Exports may fail after their arrays were sent.
            if let Err(error) = queue.finish().await {
                // The consumer may be gone.
                _ = sender.send(Err(exchange_error(&device_error(RESULT, error)))).await;
            }
        };
        tasks.spawn_on(forward, &self.runtime);
        Ok(stream::unfold((receiver, tasks), |(mut receiver, mut tasks)| async move {
            if let Some(array) = receiver.recv().await {
                return Some((array, (receiver, tasks)));
            }
            // A panicked task, or one of an ended runtime, closes its channel without an error.
            let ended = tasks.join_next().await?;
            let error = ended.err()?;
            Some((Err(Error::Other(format!("{RESULT}: the query's task failed: {error}"))), (receiver, tasks)))
        }))
    }
}

impl Stream for DeviceResult {
    type Item = Result<DeviceBatch>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut TaskPoll<'_>) -> Poll<Option<Self::Item>> {
        self.batches.poll_next_unpin(cx).map_ok(|(_, batch)| batch)
    }
}

async fn export(conversion: &ArrowLayout, queue: &Queue, batch: &DeviceBatch) -> Result<FFI_ArrowDeviceArray> {
    let batch = conversion.run(queue, batch).await.map_err(|error| op_error(RESULT, error))?;
    exchange::export(queue, &batch).map_err(|error| columnar_error(RESULT, error))
}

/// The plans below operators that only merge partitions, as the result does itself.
fn parts(plan: &Arc<dyn ExecutionPlan>) -> Vec<&Arc<dyn ExecutionPlan>> {
    let gathers = plan.is::<CoalescePartitionsExec>() && plan.fetch().is_none();
    match gathers || plan.is::<UnionExec>() {
        true => plan.children().into_iter().flat_map(parts).collect(),
        false => vec![plan],
    }
}
