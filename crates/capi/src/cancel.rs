// SPDX-License-Identifier: Apache-2.0
//! How a run of a query is stopped from another thread.

use std::future::pending;

use parking_lot::Mutex;
use tokio::sync::watch;

use crate::error::{Failure, Result};

/// Stops what is at work when it is asked to, and nothing that comes later.
pub(crate) struct Canceller(Mutex<watch::Sender<bool>>);

impl Canceller {
    pub fn new() -> Self {
        Self(Mutex::new(watch::Sender::new(false)))
    }

    /// Ready once this is cancelled; never if it is dropped before that.
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

/// Runs `work` until it is done or the query is cancelled.
pub(crate) async fn unless<T>(cancelled: impl Future<Output = ()>, work: impl Future<Output = Result<T>>) -> Result<T> {
    tokio::select! {
        biased;
        () = cancelled => Err(Failure::other("the query was cancelled")),
        done = work => done,
    }
}
