// SPDX-License-Identifier: Apache-2.0
//! Devices behind one small trait: discovery, queues, memory, programs and profiling.
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used, clippy::panic))]

mod config;
pub mod cuda;
pub mod driver;
mod error;
mod info;
mod opencl;

pub use config::{DeviceConfig, LogSink, Wrap};
pub use driver::Grid;
pub use error::{Error, Result};
pub use info::{DeviceEntry, DeviceInfo, DeviceKind, DriverKind, Selector, devices};
