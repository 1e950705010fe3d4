// SPDX-License-Identifier: Apache-2.0
//! Queues: all work of a device is enqueued through one.
//!
//! - `worker` owns the driver's queue and waits for its work; `workers` are those of a context.
//! - `handle` is [`Queue`]; `transfer`, `download` and `launch` add the operations that enqueue.
//! - `uses` records the work that a buffer or program waits for.

mod argument;
mod download;
mod event;
mod handle;
mod launch;
mod transfer;
mod uses;
mod worker;
mod workers;

pub use argument::Arg;
pub use download::Download;
pub use event::Event;
pub use handle::Queue;
pub(crate) use uses::{LastUses, PendingUses, drop_after};
pub(crate) use worker::{QUEUE_GONE, QueueWorker};
pub(crate) use workers::Workers;
