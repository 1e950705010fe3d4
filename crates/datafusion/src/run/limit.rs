// SPDX-License-Identifier: Apache-2.0
//! `LIMIT` and `OFFSET`: slices of batches.

use futures::{StreamExt, stream};

use super::DeviceBatchStream;

pub(super) fn limit(input: DeviceBatchStream, skip: usize, fetch: Option<usize>) -> DeviceBatchStream {
    let state = Some((input, skip, fetch.unwrap_or(usize::MAX)));
    stream::try_unfold(state, |state| async move {
        let Some((mut input, mut skip, fetch)) = state else { return Ok(None) };
        if fetch == 0 {
            return Ok(None);
        }
        while let Some(batch) = input.next().await {
            let batch = batch?;
            if skip >= batch.num_rows() {
                skip -= batch.num_rows();
                continue;
            }
            let rows = (batch.num_rows() - skip).min(fetch);
            let batch = batch.slice(skip, rows);
            // Dropping the input with the last row stops the work below.
            let rest = (fetch > rows).then(|| (input, 0, fetch - rows));
            return Ok(Some((batch, rest)));
        }
        Ok(None)
    })
    .boxed()
}
