// SPDX-License-Identifier: Apache-2.0
//! `UNNEST`: the elements of lists as rows, in batches of bounded size.

use std::sync::Arc;

use device::Queue;
use futures::{StreamExt, stream};
use kernels::ops::Unnest;

use super::DeviceBatchStream;
use crate::error::op_error;

pub(super) fn unnest(input: DeviceBatchStream, op: Arc<Unnest>, operator: String, queue: Queue) -> DeviceBatchStream {
    stream::try_unfold((input, Vec::new()), move |(mut input, mut pending)| {
        let (op, operator, queue) = (Arc::clone(&op), operator.clone(), queue.clone());
        async move {
            loop {
                let next = op.next(&queue, &mut pending).await;
                if let Some(batch) = next.map_err(|error| op_error(&operator, error))? {
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
