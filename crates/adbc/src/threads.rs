// SPDX-License-Identifier: Apache-2.0
//! The threads of a database, and waiting for what runs there.

use std::panic::{AssertUnwindSafe, catch_unwind};

use adbc_core::error::{Result, Status};
use tokio::runtime::{Handle, Runtime};

use crate::cancel::Cancelled;
use crate::error::error;

/// Dropped on any thread, they end by themselves.
pub(crate) struct Threads(Option<Runtime>);

impl Threads {
    pub fn start() -> Result<Threads> {
        let runtime = Runtime::new().map_err(|failure| error(Status::IO, format!("no threads: {failure}")))?;
        Ok(Threads(Some(runtime)))
    }

    /// Waits for `work`, which this thread drives, unless it is cancelled. A panic of it ends here: C knows none.
    ///
    /// # Errors
    /// `Cancelled`; `InvalidState` where this thread runs tasks of some runtime, which must not wait; `Internal` after a panic.
    pub fn wait<T>(&self, cancelled: &mut Cancelled, work: impl Future<Output = T>) -> Result<T> {
        if Handle::try_current().is_ok() {
            let advice = "calls of ADBC wait, which a thread that runs tasks must not: make them on a thread of their own";
            return Err(error(Status::InvalidState, advice));
        }
        let Some(runtime) = &self.0 else { return Err(error(Status::InvalidState, "the database's threads have ended")) };
        catch_unwind(AssertUnwindSafe(|| runtime.block_on(cancelled.or(work)))).unwrap_or_else(|panic| {
            let said = panic.downcast_ref::<String>().map(String::as_str).or_else(|| panic.downcast_ref::<&str>().copied());
            let text = format!("a bug of this library: it panicked, {}", said.unwrap_or("without a text"));
            // Dropping it might panic once more.
            std::mem::forget(panic);
            Err(error(Status::Internal, text))
        })
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}
