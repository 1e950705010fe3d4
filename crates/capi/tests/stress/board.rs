// SPDX-License-Identifier: Apache-2.0
//! The statements that run now. One that hangs ends the test.

use std::io::Write;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// A longer statement counts as hanging. The emulator runs each work-item of a GPU on the host.
fn longest() -> Duration {
    let is_emulated = std::env::var("DEVICEFUSION_TEST_DEVICE").is_ok_and(|device| device == "cuda-emulated");
    Duration::from_secs(if is_emulated { 600 } else { 60 })
}

/// The running statement of each thread, and since when it runs.
pub struct Board(Vec<Mutex<Option<(Instant, String)>>>);

impl Board {
    pub fn new(threads: usize) -> Self {
        Self((0..threads).map(|_| Mutex::default()).collect())
    }

    pub fn begin(&self, thread: usize, sql: &str) {
        *self.0[thread].lock() = Some((Instant::now(), sql.to_owned()));
    }

    pub fn end(&self, thread: usize) {
        *self.0[thread].lock() = None;
    }

    /// Aborts the process if a statement hangs: its thread would never be joined.
    pub fn check(&self) {
        for (thread, running) in self.0.iter().enumerate() {
            if let Some((begun, sql)) = &*running.lock()
                && begun.elapsed() > longest()
            {
                // Not captured, unlike what `eprintln` writes.
                _ = writeln!(std::io::stderr(), "thread {thread} hangs since {:?}: {sql}", begun.elapsed());
                std::process::abort();
            }
        }
    }
}
