// SPDX-License-Identifier: Apache-2.0
//! Devices behind one small trait: discovery, queues, memory, programs and profiling.
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used, clippy::panic))]

mod buffer;
mod config;
mod context;
pub mod cuda;
mod disk;
pub mod driver;
mod error;
mod info;
mod lane;
mod meter;
mod opencl;
mod pinned;
mod pool;
mod program;
mod queue;
pub mod testing;

pub use buffer::Buffer;
pub use context::Context;
pub use meter::{Counters, Meter};
pub use pool::{Pool, Reservation};
pub use program::{Kernel, Program, ProgramSource};
pub use queue::{Arg, Event, Queue};

pub use config::{DeviceConfig, LogSink, Wrap};
pub use driver::Grid;
pub use error::{Error, Result};
pub use info::{DeviceEntry, DeviceInfo, DeviceKind, DriverKind, Selector, devices};

#[cfg(test)]
mod tests;
