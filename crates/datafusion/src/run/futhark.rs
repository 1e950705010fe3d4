// SPDX-License-Identifier: Apache-2.0
//! Calls of Futhark libraries that share the device: buffers of columns in, buffers as columns out.
//!
//! A library works in a queue of its own. A call
//! 1. waits for its arguments,
//! 2. runs in a blocking thread,
//! 3. waits for the library's own work; later kernels are enqueued after that.

use std::sync::Arc;

use columnar::DeviceBatch;
use datafusion::common::runtime::SpawnedTask;
use datafusion::common::{Result, ScalarValue, exec_datafusion_err, exec_err};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_plan::metrics::{MetricBuilder, Time};
use device::{Buffer, Queue};
use futures::future::OptionFuture;
use futures::{StreamExt, stream};
use kernels::ops::Arguments;

use super::DeviceBatchStream;
use super::errors::explain;
use crate::error::{columnar_error, device_error, op_error};
use crate::futhark::{DeviceAggregate, Function, row_of, unreached};
use crate::graph::{Checks, LibraryAggregate, LibraryCall, Stage};

/// Batches of the input with the results of calls behind their columns.
pub(super) fn call(
    input: DeviceBatchStream,
    calls: Arc<[LibraryCall]>,
    checks: Checks,
    stage: Arc<Stage>,
    queue: Queue,
    partition: usize,
) -> DeviceBatchStream {
    let time = MetricBuilder::new(&stage.metrics.set()).subset_time("library_time", partition);
    let extended = input.map(move |batch| {
        let (calls, checks) = (Arc::clone(&calls), Arc::clone(&checks));
        let (stage, queue, time) = (Arc::clone(&stage), queue.clone(), time.clone());
        async move { with_results(&calls, &checks, &stage, &queue, &time, batch?).await }
    });
    // Kernels compute the arguments of the next batch while the library works.
    extended.buffered(2).boxed()
}

async fn with_results(
    calls: &[LibraryCall],
    checks: &[Arc<dyn PhysicalExpr>],
    stage: &Stage,
    queue: &Queue,
    time: &Time,
    batch: DeviceBatch,
) -> Result<DeviceBatch> {
    let failed = |error| columnar_error(&stage.operator, error);
    let (rows, mut columns) = (batch.num_rows(), batch.columns().to_vec());
    for library in calls {
        let before = DeviceBatch::try_new(Arc::clone(&library.schema), columns.clone(), rows).map_err(failed)?;
        let arguments = match library.adapter.arguments(queue, &before).await {
            Ok(arguments) => arguments,
            Err(error) => return Err(explain(error, &stage.operator, queue, &batch, checks).await),
        };
        let values = match arguments.count {
            0 => None,
            _ => Some(values(library, &arguments, queue, time, &stage.operator).await?),
        };
        let column = library.adapter.column(queue, &arguments, values, Arc::clone(&library.ty)).await;
        columns.push(column.map_err(|error| op_error(&stage.operator, error))?);
    }
    DeviceBatch::try_new(Arc::clone(&stage.schema), columns, rows).map_err(failed)
}

/// The library's result in place, and its mask. `time` counts from the call to the end of the
/// library's work.
async fn values(
    library: &LibraryCall,
    arguments: &Arguments,
    queue: &Queue,
    time: &Time,
    operator: &str,
) -> Result<(Buffer, Option<Buffer>)> {
    shares(library.call.function(), queue)?;
    let mut buffers = Vec::with_capacity(arguments.buffers.len());
    for (buffer, consumed) in arguments.buffers.iter().zip(library.call.consumes()) {
        buffers.push(prepared(library.call.function(), queue, buffer, consumed)?);
    }
    arrived(queue, &buffers, operator).await?;
    let (call, count, of_call) = (Arc::clone(&library.call), arguments.count, queue.clone());
    let timer = time.timer();
    let called = SpawnedTask::spawn_blocking(move || call.call(buffers, count, &of_call)).join().await;
    timer.done();
    let (values, mask) = called.map_err(|error| unreached(&library.call, error))??;
    let mask = OptionFuture::from(mask).await.transpose()?;
    Ok((values.await?, mask))
}

/// One row of aggregates of libraries.
pub(super) fn aggregate(
    input: DeviceBatchStream,
    aggregates: Arc<[LibraryAggregate]>,
    checks: Checks,
    stage: Arc<Stage>,
    queue: Queue,
    partition: usize,
) -> DeviceBatchStream {
    let time = MetricBuilder::new(&stage.metrics.set()).subset_time("library_time", partition);
    stream::once(async move { aggregated(input, &aggregates, &checks, &stage, &queue, &time).await }).boxed()
}

async fn aggregated(
    mut input: DeviceBatchStream,
    aggregates: &[LibraryAggregate],
    checks: &[Arc<dyn PhysicalExpr>],
    stage: &Stage,
    queue: &Queue,
    time: &Time,
) -> Result<DeviceBatch> {
    let mut chunks: Vec<Vec<Arguments>> = aggregates.iter().map(|_| Vec::new()).collect();
    while let Some(batch) = input.next().await {
        let batch = batch?;
        for (library, chunks) in aggregates.iter().zip(&mut chunks) {
            match library.adapter.arguments(queue, &batch).await {
                Ok(arguments) if arguments.count > 0 => chunks.push(arguments),
                Ok(_) => {}
                Err(error) => return Err(explain(error, &stage.operator, queue, &batch, checks).await),
            }
        }
    }
    drop(input);
    let mut values = Vec::with_capacity(aggregates.len());
    for (library, chunks) in aggregates.iter().zip(chunks) {
        values.push(result(&library.fold, chunks, queue, time, &stage.operator).await?);
    }
    let row = row_of(values, &stage.schema)?;
    let uploaded = columnar::upload(queue, &stage.schema, &stage.types, &[row]);
    uploaded.map_err(|error| columnar_error(&stage.operator, error))
}

/// The aggregate of a library over all batches.
async fn result(
    aggregate: &Arc<DeviceAggregate>,
    chunks: Vec<Arguments>,
    queue: &Queue,
    time: &Time,
    operator: &str,
) -> Result<ScalarValue> {
    let rows = chunks.iter().map(|chunk| chunk.count).sum();
    if !aggregate.is_called(rows) {
        return aggregate.missing();
    }
    shares(aggregate.function(), queue)?;
    let mut buffers = Vec::new();
    for ((argument, width), consumed) in aggregate.widths().enumerate().zip(aggregate.consumes()) {
        let chunks: Vec<(&Buffer, usize)> =
            chunks.iter().filter_map(|chunk| Some((chunk.buffers.get(argument)?, chunk.count * width))).collect();
        buffers.push(match chunks.as_slice() {
            [(buffer, _)] => prepared(aggregate.function(), queue, buffer, consumed)?,
            chunks => prepared(
                aggregate.function(),
                queue,
                &concatenated(queue, chunks).map_err(|error| device_error(operator, error))?,
                false,
            )?,
        });
    }
    // Concatenated arguments were copied.
    drop(chunks);
    arrived(queue, &buffers, operator).await?;
    let called = Arc::clone(aggregate);
    let timer = time.timer();
    let value = SpawnedTask::spawn_blocking(move || called.call(buffers, rows)).join().await;
    timer.done();
    value.map_err(|error| exec_datafusion_err!("{}: {error}", aggregate.function().name()))?
}

/// The given bytes of buffers, one after the other.
fn concatenated(queue: &Queue, chunks: &[(&Buffer, usize)]) -> device::Result<Buffer> {
    let all = queue.alloc(chunks.iter().map(|(_, bytes)| bytes).sum())?;
    let mut end = 0;
    for (chunk, bytes) in chunks {
        queue.copy(chunk, 0, &all, end, *bytes)?;
        end += bytes;
    }
    Ok(all)
}

/// Refuses a library that works on another device.
fn shares(function: &Function, queue: &Queue) -> Result<()> {
    if function.context().device().is_some_and(|device| device.same(queue.context())) {
        return Ok(());
    }
    let name = function.name();
    exec_err!("the Futhark function {name} shares another device than the query's; CREATE OR REPLACE FUNCTION makes it anew")
}

/// A buffer that the library can use.
fn prepared(function: &Function, queue: &Queue, buffer: &Buffer, consumed: bool) -> Result<Buffer> {
    function.context().prepare_buffer(queue, buffer, consumed).map_err(|error| function.failed(error))
}

/// Waits until the arguments have been computed.
async fn arrived(queue: &Queue, buffers: &[Buffer], operator: &str) -> Result<()> {
    let failed = |error| device_error(operator, error);
    queue.record_after(buffers).map_err(failed)?;
    queue.finish().await.map_err(failed)
}
