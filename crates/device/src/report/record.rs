// SPDX-License-Identifier: Apache-2.0
//! Records of a [`Meter`](super::Meter): when its work ran, by the host's clock.

use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// The most records of a meter; later work is not recorded.
const MAX_RECORDS: usize = 1 << 16;

/// Work of a [recording](crate::Meter::recording) meter, by the host's clock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkRecord {
    /// The kind of the work.
    pub kind: WorkKind,
    /// Its start.
    pub start: Instant,
    /// Its end.
    pub end: Instant,
}

/// The kind of a [`WorkRecord`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WorkKind {
    /// A launch; without profiling there are none.
    Kernel {
        /// The kernel's name in its source.
        name: Arc<str>,
        /// The [`number`](crate::Queue::number) of its queue.
        queue: u32,
    },
    /// A copy into memory that the device reads, as far as the host takes part in it.
    Upload {
        /// Bytes of the copy.
        bytes: u64,
    },
    /// A wait of the host for bytes of the device.
    Read {
        /// Bytes that arrive.
        bytes: u64,
    },
    /// A wait of the host for the end of all work.
    Wait,
    /// A compilation, or the load of a compiled program.
    Compile,
}

/// The records of a meter.
#[derive(Debug, Default)]
pub(super) struct Records(Mutex<Vec<WorkRecord>>);

impl Records {
    pub fn push(&self, kind: WorkKind, time: Range<Instant>) {
        let mut records = self.0.lock();
        if records.len() < MAX_RECORDS {
            records.push(WorkRecord { kind, start: time.start, end: time.end });
        }
    }

    pub fn take(&self) -> Vec<WorkRecord> {
        std::mem::take(&mut self.0.lock())
    }
}

/// One instant on both clocks, the host's and the device's.
///
/// A launch starts after the host has enqueued it. So the launch that started soonest after that
/// tells best how the clocks differ.
#[derive(Debug, Default)]
pub(crate) struct Clocks(Mutex<Option<ClockPair>>);

#[derive(Debug, Clone, Copy)]
struct ClockPair {
    host: Instant,
    device_nanos: u64,
}

impl Clocks {
    /// Learns from a launch that was enqueued at `host` and started at `device_nanos`. Returns the
    /// launch on the host's clock.
    pub fn on_host(&self, enqueued: Instant, device: &Range<u64>) -> Range<Instant> {
        let mut known = self.0.lock();
        let new = ClockPair { host: enqueued, device_nanos: device.start };
        let pair = match *known {
            Some(known) if known.at(device.start) >= enqueued => known,
            _ => *known.insert(new),
        };
        pair.at(device.start)..pair.at(device.end.max(device.start))
    }
}

impl ClockPair {
    /// A time of the device on the host's clock.
    fn at(&self, device_nanos: u64) -> Instant {
        let after = Duration::from_nanos(device_nanos.saturating_sub(self.device_nanos));
        let before = Duration::from_nanos(self.device_nanos.saturating_sub(device_nanos));
        let at = self.host + after;
        at.checked_sub(before).unwrap_or(at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn launches_start_after_they_were_enqueued() {
        let (clocks, zero) = (Clocks::default(), Instant::now());
        let at = |micros| zero + Duration::from_micros(micros);
        // A busy queue: it started 500 µs after it was enqueued, which is not known yet.
        assert_eq!(clocks.on_host(at(100), &(7_600_000..7_700_000)), at(100)..at(200));
        // An idle queue: 10 µs later.
        assert_eq!(clocks.on_host(at(1000), &(8_010_000..8_020_000)), at(1000)..at(1010));
        // From then on the clocks are known up to 10 µs.
        assert_eq!(clocks.on_host(at(1001), &(8_510_000..8_520_000)), at(1500)..at(1510));
        assert_eq!(clocks.on_host(at(1002), &(8_000_000..8_000_000)), at(1002)..at(1002));
    }
}
