// SPDX-License-Identifier: Apache-2.0
//! `UNNEST`: the elements of lists as rows, in batches of bounded size.

use std::sync::Arc;

use datafusion::common::internal_err;
use device::Queue;
use futures::{StreamExt, stream};

use super::DeviceBatchStream;
use crate::error::op_error;
use crate::graph::{Stage, StageKind};

pub(super) fn unnest(input: DeviceBatchStream, stage: Arc<Stage>, queue: Queue) -> DeviceBatchStream {
    stream::try_unfold((input, Vec::new()), move |(mut input, mut pending)| {
        let (stage, queue) = (Arc::clone(&stage), queue.clone());
        async move {
            let StageKind::Unnest { op, .. } = &stage.kind else { return internal_err!("an unnest stage") };
            loop {
                let next = op.next(&queue, &mut pending).await;
                if let Some(batch) = next.map_err(|error| op_error(&stage.operator, error))? {
                    return Ok(Some((batch, (input, pending))));
                }
                match input.next().await {
                    Some(batch) => pending.push(batch?),
                    None => return Ok(None),
                }
            }
        }
    })
    .boxed()
}
