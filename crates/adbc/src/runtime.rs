// SPDX-License-Identifier: Apache-2.0
//! The tokio runtime of a database, and blocking calls into it.

use std::panic::{AssertUnwindSafe, catch_unwind};

use adbc_core::error::{Result, Status};
use devicefusion::{STACK_BYTES, with_enough_stack};
use tokio::runtime::{Builder, Handle, Runtime};

use crate::cancel::CancelSignal;
use crate::error::error;

/// Runtime that all connections of a database share. Dropping it on any thread stops its threads
/// without waiting for them.
pub(crate) struct DatabaseRuntime(Option<Runtime>);

impl DatabaseRuntime {
    pub fn start() -> Result<DatabaseRuntime> {
        let runtime = Builder::new_multi_thread().enable_all().thread_stack_size(STACK_BYTES).build();
        let runtime = runtime.map_err(|failure| error(Status::IO, format!("no threads: {failure}")))?;
        Ok(DatabaseRuntime(Some(runtime)))
    }

    /// Drives `work` on the calling thread until it ends or is cancelled.
    ///
    /// It has a stack of its own after deep SQL, which needs more than a program's thread may have.
    /// A panic becomes an error, since C cannot unwind.
    ///
    /// # Errors
    /// - `Cancelled`;
    /// - `InvalidState` on a thread of an async runtime, which must not block;
    /// - `Internal` after a panic.
    pub fn block_on<T>(&self, signal: &mut CancelSignal, work: impl Future<Output = T>) -> Result<T> {
        if Handle::try_current().is_ok() {
            let advice = "ADBC calls block, which a thread of an async runtime must not do: use a thread of its own";
            return Err(error(Status::InvalidState, advice));
        }
        let Some(runtime) = &self.0 else { return Err(error(Status::InvalidState, "the database's threads have ended")) };
        let driven = || with_enough_stack(|| runtime.block_on(signal.race(work)));
        catch_unwind(AssertUnwindSafe(driven)).unwrap_or_else(|panic| {
            let message = devicefusion::panic_text(panic);
            let message = message.as_deref().unwrap_or("without a message");
            Err(error(Status::Internal, format!("a bug in this library: it panicked, {message}")))
        })
    }
}

impl Drop for DatabaseRuntime {
    fn drop(&mut self) {
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}
