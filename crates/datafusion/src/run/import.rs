// SPDX-License-Identifier: Apache-2.0
//! Import of device arrays that another library produces.

use std::collections::VecDeque;
use std::sync::Arc;

use columnar::exchange;
use datafusion::common::{DataFusionError, Result};
use device::Queue;
use futures::{StreamExt, TryStreamExt, stream};
use kernels::ops::Decode;

use super::DeviceBatchStream;
use super::state::Run;
use crate::error::{columnar_error, op_error};
use crate::exchange::{Source, query_error};
use crate::graph::Stage;

/// Imports arrays a few ahead of the kernels, in batches of at most `run.batch_rows`.
pub(super) fn import(
    source: &Arc<Source>,
    columns: &[usize],
    decode: &Arc<Decode>,
    stage: &Stage,
    run: &Arc<Run>,
    queue: Queue,
) -> Result<DeviceBatchStream> {
    let (arrays, source, columns, decode) = (source.open()?, Arc::clone(source), columns.to_vec(), Arc::clone(decode));
    let (operator, run, batch_rows) = (stage.operator.clone(), Arc::clone(run), run.batch_rows);
    let imported = stream::try_unfold((arrays, VecDeque::new()), move |(mut arrays, mut consumed)| {
        let (operator, run, queue) = (operator.clone(), Arc::clone(&run), queue.clone());
        let (source, columns, decode) = (Arc::clone(&source), columns.clone(), Arc::clone(&decode));
        async move {
            run.throttle(&mut consumed, &operator).await?;
            let Some(array) = arrays.next().await else { return Ok(None) };
            let batch = exchange::import(&queue, array.map_err(query_error)?, source.schema(), &columns).await;
            let batch = batch.map_err(|error| columnar_error(&operator, error))?;
            let decoded = stream::iter(batch.chunks(batch_rows)).then(move |chunk| {
                let (decode, queue, operator) = (Arc::clone(&decode), queue.clone(), operator.clone());
                async move { decode.run(&queue, chunk).await.map_err(|error| op_error(&operator, error)) }
            });
            Ok::<_, DataFusionError>(Some((decoded, (arrays, consumed))))
        }
    });
    Ok(imported.try_flatten().boxed())
}
