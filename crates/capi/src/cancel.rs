// SPDX-License-Identifier: Apache-2.0
//! Cancellation of what is under way in a query or a context, from any thread.

use std::future::pending;

use parking_lot::Mutex;
use tokio::sync::watch;

use crate::error::{Failure, Result};

/// Cancels what is under way. Later calls are not affected.
pub(crate) struct Canceller(Mutex<watch::Sender<bool>>);

impl Canceller {
    pub fn new() -> Self {
        Self(Mutex::new(watch::Sender::new(false)))
    }

    /// A future that is ready once [`cancel`](Self::cancel) is called. Without a call it stays
    /// pending.
    pub fn cancelled(&self) -> impl Future<Output = ()> + Send + use<> {
        let mut cancelled = self.0.lock().subscribe();
        async move {
            if cancelled.wait_for(|cancelled| *cancelled).await.is_err() {
                pending::<()>().await;
            }
        }
    }

    pub fn cancel(&self) {
        let current = std::mem::replace(&mut *self.0.lock(), watch::Sender::new(false));
        current.send_replace(true);
    }
}

/// Runs `work` to its end, or fails once `cancelled` is ready. `what` names the work in messages.
pub(crate) async fn unless_cancelled<T>(
    what: &str,
    cancelled: impl Future<Output = ()>,
    work: impl Future<Output = Result<T>>,
) -> Result<T> {
    tokio::select! {
        biased;
        () = cancelled => Err(Failure::other(format!("{what} was cancelled"))),
        done = work => done,
    }
}
