// SPDX-License-Identifier: Apache-2.0
//! Cancelling, from any thread.

use adbc_core::CancelHandle;
use adbc_core::error::{Error, Result, Status};
use tokio::sync::watch;

use crate::error::error;

/// What a statement or a connection is cancelled by.
#[derive(Debug, Clone)]
pub(crate) struct Cancel(watch::Sender<u64>);

impl Default for Cancel {
    fn default() -> Self {
        Cancel(watch::Sender::new(0))
    }
}

impl CancelHandle for Cancel {
    fn try_cancel(&self) -> Result<()> {
        self.0.send_modify(|times| *times = times.wrapping_add(1));
        Ok(())
    }
}

/// One piece of work, which any of several cancels.
#[derive(Debug)]
pub(crate) struct Cancelled(Vec<watch::Receiver<u64>>);

impl Cancelled {
    /// By what happens from now on.
    pub fn by(cancels: &[&Cancel]) -> Cancelled {
        Cancelled(cancels.iter().map(|cancel| cancel.0.subscribe()).collect())
    }

    /// Waits for work, or for the end of it.
    pub async fn or<T>(&mut self, work: impl Future<Output = T>) -> std::result::Result<T, Error> {
        let mut work = std::pin::pin!(work);
        let changes = self.0.iter_mut().map(|receiver| {
            Box::pin(async {
                if receiver.changed().await.is_err() {
                    // Nobody is left who could cancel.
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
