// SPDX-License-Identifier: Apache-2.0
//! Another attempt of an offloaded subplan that found too little device memory beside other
//! queries.
//!
//! The failed attempt returns its memory first, so queries that fail do not wait for the memory of
//! one another. They take turns, since two attempts at once could fail again. Each wait has an end:
//! a client may keep the rows of two queries and read only one of them.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;
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
use tokio::sync::{Mutex, MutexGuard};

use crate::session::{number_of_query, task_context};

/// Attempts of a subplan. Queries that began later may take the memory each time.
const ATTEMPTS: usize = 4;
/// Time between two looks at the memory of others.
const LOOK: Duration = Duration::from_millis(5);
/// Time without a change of the memory in use, after which others are taken for idle.
const IDLE: Duration = Duration::from_secs(2);
/// Longest wait for others that are not idle.
const LONGEST_WAIT: Duration = Duration::from_secs(60);
/// Longest wait for the turn, whose holder may not be polled.
const LONGEST_TURN: Duration = Duration::from_secs(10);
/// Longest wait for the end of a failed attempt.
const LONGEST_END: Duration = Duration::from_secs(1);
/// Share of the limit that others must return at least, before another attempt.
const RETURNED_SHARE: usize = 8;

/// The turn to wait and to try again, of all devices.
static TURN: Mutex<()> = Mutex::const_new(());
/// The query that has the turn, or 0.
static TURN_OF: AtomicUsize = AtomicUsize::new(0);

/// Gives the turn back.
struct Turn {
    _guard: MutexGuard<'static, ()>,
}

impl Drop for Turn {
    fn drop(&mut self) {
        TURN_OF.store(0, Relaxed);
    }
}

/// The rows of `first`. If other queries run and memory for the first of them is missing, the rows
/// of another attempt.
pub(crate) fn retried(
    first: SendableRecordBatchStream,
    task: Arc<TaskContext>,
    again: impl Fn() -> Result<SendableRecordBatchStream> + Send + 'static,
) -> SendableRecordBatchStream {
    let schema = first.schema();
    let rows = async move {
        let (context, query) = (task_context(&task)?.0, number_of_query(&task));
        let (mut attempt, mut turn, mut left) = (Ok(first), None, ATTEMPTS);
        loop {
            left -= 1;
            let had_others = context.other_queries(query) > 0;
            let (head, rest) = match attempt {
                Ok(mut rows) => (rows.next().await, Some(rows)),
                Err(error) => (Some(Err(error)), None),
            };
            let is_short = head.as_ref().is_some_and(|head| head.as_ref().is_err_and(is_out_of_device_memory));
            if !is_short || left == 0 || !(had_others || context.other_queries(query) > 0) {
                let rows: BoxStream<'_, Result<RecordBatch>> = stream::iter(head).chain(stream::iter(rest).flatten()).boxed();
                return Ok::<_, DataFusionError>(rows);
            }
            let runs = context.runs_of_query(query);
            drop(rest);
            attempt_ended(&context, query, runs).await;
            if turn.is_none() {
                turn = take_turn(query).await;
            }
            if turn.is_none() || !others_returned_memory(&context, query).await {
                left = 1;
            }
            attempt = again();
        }
    };
    Box::pin(RecordBatchStreamAdapter::new(schema, stream::once(rows).try_flatten()))
}

/// Whether the memory of the device was short, not that of the host or the disk.
fn is_out_of_device_memory(error: &DataFusionError) -> bool {
    matches!(error.find_root(), DataFusionError::ResourcesExhausted(message) if message.contains("device.memory_bytes"))
}

/// Waits until a query has fewer than `runs` runs. Tasks of a dropped run end on other threads.
async fn attempt_ended(context: &Context, query: usize, runs: usize) {
    let begun = Instant::now();
    while context.runs_of_query(query) >= runs && begun.elapsed() < LONGEST_END {
        Delay::new(LOOK).await;
    }
}

/// The turn; `None` if another subplan of the query has it or it does not come.
async fn take_turn(query: usize) -> Option<Turn> {
    if TURN_OF.load(Relaxed) == query {
        return None;
    }
    match select(pin!(TURN.lock()), Delay::new(LONGEST_TURN)).await {
        Either::Left((guard, _)) => {
            TURN_OF.store(query, Relaxed);
            Some(Turn { _guard: guard })
        }
        Either::Right(_) => None,
    }
}

/// Waits until another query ends or returns memory, or none runs. False after a long wait.
async fn others_returned_memory(context: &Context, query: usize) -> bool {
    let pool = context.pool();
    let (begun, mut since, in_use) = (Instant::now(), Instant::now(), pool.in_use());
    let (mut others, mut last) = (context.other_queries(query), in_use);
    while others > 0 {
        if since.elapsed() > IDLE || begun.elapsed() > LONGEST_WAIT {
            return false;
        }
        Delay::new(LOOK).await;
        let now = pool.in_use();
        if context.other_queries(query) < others || now + pool.limit() / RETURNED_SHARE <= in_use {
            return true;
        }
        others = context.other_queries(query);
        if now != last {
            (last, since) = (now, Instant::now());
        }
    }
    true
}
