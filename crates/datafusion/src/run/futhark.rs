// SPDX-License-Identifier: Apache-2.0
//! Calls of Futhark libraries that share the device: columns' buffers in, buffers as columns out.
//!
//! A library works in a queue of its own, which nobody else may use. So the arguments are waited for, then the call in a
//! thread for what blocks; what comes after it is enqueued once the library has waited for its own work.

use std::sync::Arc;

use columnar::DeviceBatch;
use datafusion::common::runtime::SpawnedTask;
use datafusion::common::{Result, ScalarValue, exec_datafusion_err, exec_err, internal_err};
use datafusion::physical_plan::metrics::{MetricBuilder, Time};
use device::{Buffer, Queue};
use futures::future::OptionFuture;
use futures::{StreamExt, stream};
use kernels::ops::Arguments;

use super::{DeviceBatchStream, columnar_error, explain, op_error};
use crate::futhark::{Fold, Function, row_of, unreached};
use crate::graph::{LibraryCall, Stage, StageKind};
use crate::runtime::device_error;

/// Batches of the input with the results of the calls.
pub(super) fn call(input: DeviceBatchStream, stage: Arc<Stage>, queue: Queue, partition: usize) -> DeviceBatchStream {
    let time = MetricBuilder::new(&stage.metrics).subset_time("library_time", partition);
    let extended = input.map(move |batch| {
        let (stage, queue, time) = (Arc::clone(&stage), queue.clone(), time.clone());
        async move { with_results(&stage, &queue, &time, batch?).await }
    });
    // While the library works at one batch, kernels make the arguments of the next.
    extended.buffered(2).boxed()
}

async fn with_results(stage: &Stage, queue: &Queue, time: &Time, batch: DeviceBatch) -> Result<DeviceBatch> {
    let StageKind::Futhark { calls, checks, .. } = &stage.kind else { return internal_err!("a stage of calls") };
    let failed = |error| columnar_error(&stage.operator, error);
    let (rows, mut columns) = (batch.num_rows(), batch.columns().to_vec());
    for library in calls {
        let before = DeviceBatch::try_new(Arc::clone(&library.schema), columns.clone(), rows).map_err(failed)?;
        let arguments = match library.way.arguments(queue, &before).await {
            Ok(arguments) => arguments,
            Err(error) => return Err(explain(error, &stage.operator, queue, &batch, checks).await),
        };
        let values = match arguments.count {
            0 => None,
            _ => Some(values(library, &arguments, queue, time, &stage.operator).await?),
        };
        let column = library.way.column(queue, &arguments, values, Arc::clone(&library.ty)).await;
        columns.push(column.map_err(|error| op_error(&stage.operator, error))?);
    }
    DeviceBatch::try_new(Arc::clone(&stage.schema), columns, rows).map_err(failed)
}

/// What the library gives for the arguments, where it lies, and its mask. `time` counts from the call to the end of its work.
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
        buffers.push(place(library.call.function(), queue, buffer, consumed)?);
    }
    arrived(queue, &buffers, operator).await?;
    let (call, count, own) = (Arc::clone(&library.call), arguments.count, queue.clone());
    let timer = time.timer();
    let called = SpawnedTask::spawn_blocking(move || call.call(buffers, count, &own)).join().await;
    timer.done();
    let (values, mask) = called.map_err(|error| unreached(&library.call, error))??;
    let mask = OptionFuture::from(mask).await.transpose()?;
    Ok((values.await?, mask))
}

/// One row of what libraries make of all rows of the input.
pub(super) fn fold(input: DeviceBatchStream, stage: Arc<Stage>, queue: Queue, partition: usize) -> DeviceBatchStream {
    let time = MetricBuilder::new(&stage.metrics).subset_time("library_time", partition);
    stream::once(async move { folded(input, &stage, &queue, &time).await }).boxed()
}

async fn folded(mut input: DeviceBatchStream, stage: &Stage, queue: &Queue, time: &Time) -> Result<DeviceBatch> {
    let StageKind::Fold { folds, checks, .. } = &stage.kind else { return internal_err!("a stage of folds") };
    let mut pieces: Vec<Vec<Arguments>> = folds.iter().map(|_| Vec::new()).collect();
    while let Some(batch) = input.next().await {
        let batch = batch?;
        for (library, pieces) in folds.iter().zip(&mut pieces) {
            match library.way.arguments(queue, &batch).await {
                Ok(arguments) if arguments.count > 0 => pieces.push(arguments),
                Ok(_) => {}
                Err(error) => return Err(explain(error, &stage.operator, queue, &batch, checks).await),
            }
        }
    }
    drop(input);
    let mut values = Vec::with_capacity(folds.len());
    for (library, pieces) in folds.iter().zip(pieces) {
        values.push(result(&library.fold, pieces, queue, time, &stage.operator).await?);
    }
    let row = row_of(values, &stage.schema)?;
    let uploaded = columnar::upload(queue, &stage.schema, &stage.types, &[row]);
    uploaded.map_err(|error| columnar_error(&stage.operator, error))
}

/// What a library makes of the rows of all batches.
async fn result(fold: &Arc<Fold>, pieces: Vec<Arguments>, queue: &Queue, time: &Time, operator: &str) -> Result<ScalarValue> {
    let rows = pieces.iter().map(|piece| piece.count).sum();
    if !fold.is_called(rows) {
        return fold.missing();
    }
    shares(fold.function(), queue)?;
    let mut buffers = Vec::new();
    for ((argument, width), consumed) in fold.widths().enumerate().zip(fold.consumes()) {
        let own: Vec<(&Buffer, usize)> =
            pieces.iter().filter_map(|piece| Some((piece.buffers.get(argument)?, piece.count * width))).collect();
        buffers.push(match own.as_slice() {
            [(buffer, _)] => place(fold.function(), queue, buffer, consumed)?,
            own => place(fold.function(), queue, &joined(queue, own).map_err(|error| device_error(operator, error))?, false)?,
        });
    }
    // What was joined is there once more.
    drop(pieces);
    arrived(queue, &buffers, operator).await?;
    let called = Arc::clone(fold);
    let timer = time.timer();
    let value = SpawnedTask::spawn_blocking(move || called.call(buffers, rows)).join().await;
    timer.done();
    value.map_err(|error| exec_datafusion_err!("{}: {error}", fold.function().name()))?
}

/// The first bytes of buffers, one after the other.
fn joined(queue: &Queue, pieces: &[(&Buffer, usize)]) -> device::Result<Buffer> {
    let all = queue.alloc(pieces.iter().map(|(_, bytes)| bytes).sum())?;
    let mut end = 0;
    for (piece, bytes) in pieces {
        queue.copy(piece, 0, &all, end, *bytes)?;
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

/// A buffer as the library can use it.
fn place(function: &Function, queue: &Queue, buffer: &Buffer, consumed: bool) -> Result<Buffer> {
    function.context().prepare_buffer(queue, buffer, consumed).map_err(|error| function.failed(error))
}

/// Waits for arguments.
async fn arrived(queue: &Queue, buffers: &[Buffer], operator: &str) -> Result<()> {
    let failed = |error| device_error(operator, error);
    queue.record_after(buffers).map_err(failed)?;
    queue.finish().await.map_err(failed)
}
