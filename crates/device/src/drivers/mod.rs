// SPDX-License-Identifier: Apache-2.0
//! The drivers. Everything driver-specific of this crate lies in this folder.
//!
//! - `kind` names the drivers and holds the facts that other crates need.
//! - `registry` has the factory of each driver.
//! - `docs/drivers.md` lists the steps that add a driver.

pub mod cuda;
mod kind;
mod loader;
pub mod opencl;
mod registry;

pub use kind::{ArrowDeviceTypes, CompilerOptions, DriverKind, MemoryHandle};
pub(crate) use registry::{adopt_queue, open};
pub use registry::{devices, devices_for};
