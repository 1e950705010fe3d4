// SPDX-License-Identifier: Apache-2.0
//! Measurements: counters of a context, meters of callers, the timeline of launches and their
//! memory traffic.

mod counters;
mod meter;
mod timeline;
mod traffic;

pub use counters::Counters;
pub(crate) use counters::{KernelTotals, LiveCounters, nanos};
pub(crate) use meter::Meters;
pub use meter::{KernelCosts, Meter};
pub use timeline::LaunchRecord;
pub(crate) use timeline::Timeline;
pub use traffic::Traffic;
