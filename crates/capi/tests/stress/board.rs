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

/// The run time of all threads of this process so far. Linux counts hundredths of a second.
fn time_on_cores() -> Duration {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    // The name of the program, in parentheses, may contain blanks. User and system time are the
    // twelfth and thirteenth field after it.
    let fields = stat.rsplit(')').next().unwrap_or_default().split_whitespace().skip(11).take(2);
    Duration::from_millis(fields.filter_map(|ticks| ticks.parse::<u64>().ok()).sum::<u64>() * 10)
}

struct Running {
    begun: Instant,
    on_cores: Duration,
    sql: String,
}

/// The running statement of each thread.
pub struct Board(Vec<Mutex<Option<Running>>>);

impl Board {
    pub fn new(threads: usize) -> Self {
        Self((0..threads).map(|_| Mutex::default()).collect())
    }

    pub fn begin(&self, thread: usize, sql: &str) {
        let running = Running { begun: Instant::now(), on_cores: time_on_cores(), sql: sql.to_owned() };
        *self.0[thread].lock() = Some(running);
    }

    pub fn end(&self, thread: usize) {
        *self.0[thread].lock() = None;
    }

    /// Aborts the process if a statement hangs: its thread would never be joined.
    pub fn check(&self) {
        for (thread, running) in self.0.iter().enumerate() {
            let running = running.lock();
            let Some(Running { begun, on_cores, sql }) = &*running else { continue };
            let (elapsed, on_cores) = (begun.elapsed(), time_on_cores().saturating_sub(*on_cores));
            if elapsed > longest() {
                // Not captured, unlike what `eprintln` writes.
                _ = writeln!(
                    std::io::stderr(),
                    "thread {thread} hangs since {elapsed:?}, in which the process had {on_cores:?} on cores: {sql}"
                );
                std::process::abort();
            }
        }
    }
}
