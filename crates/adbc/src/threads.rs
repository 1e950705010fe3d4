// SPDX-License-Identifier: Apache-2.0
//! The threads of a database, and waiting for what runs there.

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

    /// Waits for `work`, which this thread drives, unless it is cancelled.
    ///
    /// # Errors
    /// `Cancelled`; `InvalidState` where this thread runs tasks of some runtime, which must not wait.
    pub fn wait<T>(&self, cancelled: &mut Cancelled, work: impl Future<Output = T>) -> Result<T> {
        if Handle::try_current().is_ok() {
            let advice = "calls of ADBC wait, which a thread that runs tasks must not: make them on a thread of their own";
            return Err(error(Status::InvalidState, advice));
        }
        let Some(runtime) = &self.0 else { return Err(error(Status::InvalidState, "the database's threads have ended")) };
        runtime.block_on(cancelled.or(work))
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}
