// SPDX-License-Identifier: Apache-2.0
//! Measurements: counters of a context, meters of callers, the timeline of launches and their
//! memory traffic.

mod counters;
mod meter;
mod record;
mod timeline;
mod traffic;

pub use counters::{CacheUse, Counters, KernelTotal};
pub(crate) use counters::{KernelTotals, LiveCounters, nanos};
pub(crate) use meter::Meters;
pub use meter::{KernelCosts, Meter};
pub(crate) use record::Clocks;
pub use record::{WorkKind, WorkRecord};
pub use timeline::LaunchRecord;
pub(crate) use timeline::Timeline;
pub use traffic::Traffic;
