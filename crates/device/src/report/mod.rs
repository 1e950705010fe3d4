// SPDX-License-Identifier: Apache-2.0
//! Measurements: counters of a context, meters of callers and the timeline of launches.

mod counters;
mod meter;
mod timeline;

pub use counters::Counters;
pub(crate) use counters::{KernelTotals, LiveCounters, nanos};
pub use meter::Meter;
pub(crate) use meter::Meters;
pub use timeline::LaunchRecord;
pub(crate) use timeline::Timeline;
