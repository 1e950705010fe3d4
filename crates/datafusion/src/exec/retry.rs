// SPDX-License-Identifier: Apache-2.0
//! Another attempt of an offloaded subplan that found too little device memory, while other queries
//! held some.
//!
//! The failed attempt returns its memory first, so queries that fail do not wait for one another.
//! Only one query at a time waits and tries again. No wait is without an end: a client may keep the
//! rows of two queries and read only one of them.

use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use arrow::array::RecordBatch;
use datafusion::common::{DataFusionError, Result};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use device::Context;
use futures::future::{Either, select};
use futures::stream::BoxStream;
use futures::{StreamExt, TryStreamExt, stream};
use futures_timer::Delay;
use tokio::sync::Mutex;

use crate::session::task_context;

/// Attempts of a subplan. Queries that began later may take the memory each time.
const ATTEMPTS: usize = 8;
/// Time between two looks at the memory of others.
const LOOK: Duration = Duration::from_millis(5);
/// Time without a change of the memory in use, after which others are taken for idle.
const IDLE: Duration = Duration::from_secs(2);
/// Longest wait for the turn, whose holder may not be polled.
const LONGEST_TURN: Duration = Duration::from_secs(30);

/// The turn to wait and to try again. Contexts of several devices share it.
static TURN: Mutex<()> = Mutex::const_new(());

/// The rows of `first`. If memory for the first of them is missing while other queries run, the
/// rows of another attempt.
pub(crate) fn retried(
    first: SendableRecordBatchStream,
    task: Arc<TaskContext>,
    again: impl Fn() -> Result<SendableRecordBatchStream> + Send + 'static,
) -> SendableRecordBatchStream {
    let schema = first.schema();
    let rows = async move {
        let context = task_context(&task)?.0;
        let (mut attempt, mut turn, mut left) = (Ok(first), None, ATTEMPTS);
        loop {
            left -= 1;
            // With the attempt's own run.
            let had_others = context.running_queries() > 1;
            let (head, rest) = match attempt {
                Ok(mut rows) => (rows.next().await, Some(rows)),
                Err(error) => (Some(Err(error)), None),
            };
            let is_short = head.as_ref().is_some_and(|head| head.as_ref().is_err_and(is_out_of_memory));
            if !is_short || left == 0 || !(had_others || context.running_queries() > 1) {
                let rows: BoxStream<'_, Result<RecordBatch>> = stream::iter(head).chain(stream::iter(rest).flatten()).boxed();
                return Ok::<_, DataFusionError>(rows);
            }
            drop(rest);
            if turn.is_none() {
                turn = match select(pin!(TURN.lock()), Delay::new(LONGEST_TURN)).await {
                    Either::Left((turn, _)) => Some(turn),
                    Either::Right(_) => None,
                };
            }
            if !others_return_memory(&context).await {
                left = 1;
            }
            attempt = again();
        }
    };
    Box::pin(RecordBatchStreamAdapter::new(schema, stream::once(rows).try_flatten()))
}

fn is_out_of_memory(error: &DataFusionError) -> bool {
    matches!(error.find_root(), DataFusionError::ResourcesExhausted(_))
}

/// Waits until a query ends, or none runs. False if none of them does anything.
async fn others_return_memory(context: &Context) -> bool {
    let (mut queries, mut in_use, mut since) = (context.running_queries(), context.pool().in_use(), Instant::now());
    while queries > 0 {
        if since.elapsed() > IDLE {
            return false;
        }
        Delay::new(LOOK).await;
        if context.running_queries() < queries {
            return true;
        }
        queries = context.running_queries();
        let now = context.pool().in_use();
        if now != in_use {
            (in_use, since) = (now, Instant::now());
        }
    }
    true
}
