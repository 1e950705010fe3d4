// SPDX-License-Identifier: Apache-2.0
//! A clock for the launches of all queues, made from CUDA's events.
//!
//! CUDA only tells the distance of two events, in milliseconds as `f32`, which gets coarse with the
//! distance. So the base event moves on with the timed launches.

use std::ops::Range;

use crate::Result;
use crate::driver::{RawEvent, Timer};

/// The age in nanoseconds at which the base is replaced. Events resolve half a microsecond, which
/// is the distance of adjacent `f32` milliseconds at 4 seconds.
const MAX_AGE: u64 = 4_000_000_000;

/// The clock of a device.
#[derive(Default)]
pub(super) struct Clock {
    /// A completed event; set once the driver is open.
    base: Option<RawEvent>,
    /// Nanoseconds from the opening of the driver to the base.
    nanos: u64,
}

impl Clock {
    /// A clock that starts at a completed event.
    pub fn new(base: RawEvent) -> Self {
        Self { base: Some(base), nanos: 0 }
    }

    /// The base event, which the clock's owner destroys.
    pub fn base(&self) -> Option<RawEvent> {
        self.base
    }

    /// Start and end of a completed launch; `between` gives the nanoseconds from one event to
    /// another.
    ///
    /// If the base has grown too old, the launch's first event becomes the new base.
    pub fn times(&mut self, timer: Timer, between: impl Fn(RawEvent, RawEvent) -> Result<i64>) -> Result<Range<u64>> {
        let base = self.base.unwrap_or(timer.start);
        let start = self.nanos.saturating_add_signed(between(base, timer.start)?);
        if start <= self.nanos + MAX_AGE {
            return Ok(start..self.nanos.saturating_add_signed(between(base, timer.end)?));
        }
        *self = Self::new(timer.start);
        self.nanos = start;
        Ok(start..start.saturating_add_signed(between(timer.start, timer.end)?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base_moves_on_with_the_launches() {
        // An event's handle is its time in nanoseconds.
        let between = |from: RawEvent, to: RawEvent| Ok(to.0.cast_signed() - from.0.cast_signed());
        let timer = |start: u64| Timer { start: RawEvent(start), end: RawEvent(start + 10) };
        let mut clock = Clock::new(RawEvent(100));
        assert_eq!(clock.times(timer(150), between).unwrap(), 50..60);
        assert_eq!(clock.base(), Some(RawEvent(100)));
        let late = 100 + MAX_AGE + 1;
        assert_eq!(clock.times(timer(late), between).unwrap(), MAX_AGE + 1..MAX_AGE + 11);
        assert_eq!(clock.base(), Some(RawEvent(late)));
        // A launch before the new base is still on the same clock.
        assert_eq!(clock.times(timer(late - 100), between).unwrap(), MAX_AGE - 99..MAX_AGE - 89);
    }
}
