// SPDX-License-Identifier: Apache-2.0
//! Resident memory of this process, as Linux counts it.

use std::time::{Duration, Instant};

use datafusion::common::{exec_datafusion_err, exec_err};
use datafusion::error::Result;

use crate::report;

const STATUS: &str = "/proc/self/status";
const CLEAR_REFS: &str = "/proc/self/clear_refs";

/// A measurement that has begun.
pub struct Meter {
    base: u64,
    begin: Instant,
}

/// Resident bytes around a load.
pub struct Memory {
    pub seconds: f64,
    /// Before the load.
    pub base: u64,
    /// The most during the load.
    pub peak: u64,
    /// Some seconds after the load.
    pub settled: u64,
}

impl Meter {
    /// Begins, and forgets the peak so far.
    pub fn start() -> Result<Self> {
        std::fs::write(CLEAR_REFS, "5").map_err(|error| exec_datafusion_err!("{CLEAR_REFS}, which resets the peak: {error}"))?;
        Ok(Self { base: resident("VmRSS")?, begin: Instant::now() })
    }

    /// Ends the load, and waits `settle` seconds. The loaded rows must live on until then.
    pub fn finish(self, settle: u64) -> Result<Memory> {
        let seconds = self.begin.elapsed().as_secs_f64();
        let peak = resident("VmHWM")?;
        std::thread::sleep(Duration::from_secs(settle));
        Ok(Memory { seconds, base: self.base, peak, settled: resident("VmRSS")? })
    }
}

fn resident(key: &str) -> Result<u64> {
    match report::bytes_of(STATUS, key) {
        Some(bytes) => Ok(bytes),
        None => exec_err!("{STATUS} has no {key}: load-memory needs Linux"),
    }
}
