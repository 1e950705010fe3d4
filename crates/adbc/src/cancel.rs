// SPDX-License-Identifier: Apache-2.0
//! Cancellation of statements and connections, from any thread.

use adbc_core::CancelHandle;
use adbc_core::error::{Error, Result, Status};
use tokio::sync::watch;

use crate::error::error;

/// Cancel handle of a statement or a connection. It counts the calls of `try_cancel`.
#[derive(Debug, Clone)]
pub(crate) struct Canceller(watch::Sender<u64>);

impl Default for Canceller {
    fn default() -> Self {
        Canceller(watch::Sender::new(0))
    }
}

impl CancelHandle for Canceller {
    fn try_cancel(&self) -> Result<()> {
        self.0.send_modify(|times| *times = times.wrapping_add(1));
        Ok(())
    }
}

/// Receiver of one operation, which any of several cancellers stops.
#[derive(Debug, Clone)]
pub(crate) struct CancelSignal(Vec<watch::Receiver<u64>>);

impl CancelSignal {
    /// Listens to `cancellers` from now on; earlier cancellations do not count.
    pub fn of(cancellers: &[&Canceller]) -> CancelSignal {
        CancelSignal(cancellers.iter().map(|canceller| canceller.0.subscribe()).collect())
    }

    /// Runs `work` to its end, or until a cancellation.
    pub async fn race<T>(&mut self, work: impl Future<Output = T>) -> std::result::Result<T, Error> {
        let mut work = std::pin::pin!(work);
        let changes = self.0.iter_mut().map(|receiver| {
            Box::pin(async {
                if receiver.changed().await.is_err() {
                    // The canceller was dropped, so this signal never comes.
                    std::future::pending::<()>().await;
                }
            })
        });
        let cancelled = futures::future::select_all(changes);
        tokio::select! {
            biased;
            _ = cancelled => Err(error(Status::Cancelled, "the query was cancelled")),
            done = &mut work => Ok(done),
        }
    }
}
