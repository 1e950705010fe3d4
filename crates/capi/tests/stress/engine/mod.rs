// SPDX-License-Identifier: Apache-2.0
//! A device context behind each of the interfaces.

pub mod adbc;
pub mod c;
pub mod rust;

use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use arrow::array::RecordBatch;

/// Opens an engine with a limit of device memory in bytes.
pub type Open = fn(usize) -> Box<dyn Engine>;

/// A device context with its tables.
pub trait Engine: Sync {
    /// A session for one thread.
    fn connect(&self) -> Box<dyn Session + '_>;

    /// The report of the device, which is open.
    fn report(&self) -> serde_json::Value;

    /// Frees caches, where the interface can.
    fn trim(&self);
}

pub trait Session {
    /// Runs a statement to its end, or until it is cancelled after a time. Returns the rows, or the
    /// message of the failure, which is [`CANCELLED`] for a cancel.
    fn run(&mut self, sql: &str, cancel: Option<Duration>) -> Result<Vec<RecordBatch>, String>;
}

/// The message of a statement that was cancelled, or a part of it.
pub const CANCELLED: &str = "the query was cancelled";

/// Time between two cancels.
const AGAIN: Duration = Duration::from_millis(20);

/// Settings of an engine: strict, on the test device.
fn settings(limit: usize) -> [(&'static str, String); 3] {
    let selector = device::testing::config().unwrap().selector.to_string();
    [("device.selector", selector), ("device.fallback", "error".to_owned()), ("device.memory_bytes", limit.to_string())]
}

/// Runs `work`, and calls `cancel` on another thread after a time.
///
/// It calls again until the work ends: a cancel counts only once the statement has begun.
fn cancelling<T>(after: Option<Duration>, cancel: impl Fn() + Send, work: impl FnOnce() -> T) -> T {
    let Some(after) = after else { return work() };
    thread::scope(|scope| {
        let (running, ended) = mpsc::channel::<()>();
        scope.spawn(move || {
            let mut pause = after;
            while ended.recv_timeout(pause) == Err(RecvTimeoutError::Timeout) {
                cancel();
                pause = AGAIN;
            }
        });
        let result = work();
        drop(running);
        result
    })
}
