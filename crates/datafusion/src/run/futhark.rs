// SPDX-License-Identifier: Apache-2.0
//! Calls of Futhark libraries that share the device: columns' buffers in, buffers as columns out.
//!
//! A library works in a queue of its own, which nobody else may use. So the arguments are waited for, then the call in a
//! thread for what blocks; what comes after it is enqueued once the library has waited for its own work.

use std::sync::Arc;

use columnar::DeviceBatch;
use datafusion::common::runtime::SpawnedTask;
use datafusion::common::{Result, exec_err, internal_err};
use datafusion::physical_plan::metrics::{MetricBuilder, Time};
use device::{Buffer, Queue};
use futures::StreamExt;
use futures::future::OptionFuture;
use kernels::ops::Arguments;

use super::{DeviceBatchStream, columnar_error, explain, op_error};
use crate::futhark::unreached;
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
    let failed = |error| device_error(operator, error);
    let function = library.call.function();
    if !function.context().device().is_some_and(|device| device.same(queue.context())) {
        let name = function.name();
        return exec_err!(
            "the Futhark function {name} shares another device than the query's; CREATE OR REPLACE FUNCTION makes it anew"
        );
    }
    let mut buffers = Vec::with_capacity(arguments.buffers.len());
    for (buffer, consumed) in arguments.buffers.iter().zip(library.call.consumes()) {
        buffers.push(match consumed {
            true => copy(queue, buffer).map_err(failed)?,
            false => buffer.clone(),
        });
    }
    queue.record_after(&buffers).map_err(failed)?;
    queue.finish().await.map_err(failed)?;
    let (call, count, own) = (Arc::clone(&library.call), arguments.count, queue.clone());
    let timer = time.timer();
    let called = SpawnedTask::spawn_blocking(move || call.call(buffers, count, &own)).join().await;
    timer.done();
    let (values, mask) = called.map_err(|error| unreached(&library.call, error))??;
    let mask = OptionFuture::from(mask).await.transpose()?;
    Ok((values.await?, mask))
}

/// Memory that the library may overwrite.
fn copy(queue: &Queue, buffer: &Buffer) -> device::Result<Buffer> {
    let copy = queue.alloc(buffer.len())?;
    queue.copy(buffer, 0, &copy, 0, buffer.len())?;
    Ok(copy)
}
