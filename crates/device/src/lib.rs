// SPDX-License-Identifier: Apache-2.0
//! Devices behind one small trait: discovery, queues, memory, programs and profiling.
//!
//! A [`Context`] is one opened device with its configuration. Its [`Queue`]s take everything that happens
//! on the device, in order: allocations, copies, launches of [`Kernel`]s out of [`Program`]s that are compiled at
//! run time. Nothing here knows Arrow or SQL; the crates above generate the kernels and give bytes a meaning.
//!
//! ```
//! use device::{Context, DeviceConfig, Grid, ProgramSource};
//!
//! # let run = async {
//! // No device is an error like any other.
//! let Ok(context) = Context::new(DeviceConfig::default()) else { return Ok(()) };
//! # if context.info().driver == device::DriverKind::Cuda { return Ok(()) }
//! let queue = context.queue()?;
//! let text = "kernel void twice(global uint *x) { x[get_global_id(0)] *= 2; }";
//! let program = queue.compile(ProgramSource::new(text, "example")).await?;
//!
//! let values = queue.alloc_values(4)?;
//! queue.write_values(&values, 0, &[1u32, 2, 3, 4])?;
//! queue.launch(&program.kernel("twice")?, Grid { groups: 2, work_group_size: 2 }, &[(&values).into()])?;
//! assert_eq!(queue.read_values(&values, 0..4).await?, [2, 4, 6, 8]);
//! # Ok::<(), device::Error>(())
//! # };
//! # futures::executor::block_on(run)?;
//! # Ok::<(), device::Error>(())
//! ```
//!
//! # Who waits
//! Whatever enqueues returns at once; futures are woken by a thread that each queue has for waiting; dropping
//! never waits. Four things may block their caller for the length of a launch: an allocation at the memory limit
//! (the pool's or the device's) while all that could be freed is in use, an upload behind 128 MiB of others, [`Context::synchronize`], and
//! the opening of a context. The end of the process waits, for ten seconds at most, until nothing is at work.
//!
//! # Looking at kernels
//! With the environment variable `DEVICEFUSION_DUMP_KERNELS` set to a folder, the text of each program in the
//! dialect that both compilers understand is left there, once, as soon as it has compiled: `HASH.cl`.
//!
//! # Looking at time
//! The device times each launch: a [`Meter`] and [`Context::report`] add up how long kernels ran, and the timeline of a
//! context made [`with_timeline`](DeviceConfig::with_timeline) tells when, [`Context::trace`] as a picture of its queues.
//!
//! # Layers
//! [`driver::Driver`] is what OpenCL and CUDA have in common, and the whole of what a further driver has to
//! write. A *lane* is a driver's queue with the numbers, marks and timers that tell when its work is done;
//! queues, buffers, the [`Pool`] and the programs are built on it and know no driver. [`testing`] puts a
//! driver in between that fails on demand.
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used, clippy::panic))]

mod buffer;
mod config;
mod context;
pub mod cuda;
mod disk;
pub mod driver;
mod error;
mod exit;
mod foreign;
mod info;
mod lane;
mod lent;
mod loader;
mod loss;
mod meter;
mod neighbour;
mod opencl;
mod pinned;
mod pool;
mod program;
mod queue;
mod shared;
pub mod testing;
mod timeline;
mod typed;

pub use buffer::{Buffer, Guardian};
pub use context::Context;
pub use lent::LentQueue;
pub use meter::{Counters, Meter};
pub use neighbour::Neighbour;
pub use opencl::DECLARES_BUILTINS;
pub use pool::{Pool, Reservation};
pub use program::{Kernel, Program, ProgramSource};
pub use queue::{Arg, Download, Event, Queue};
pub use shared::ProgramQueue;
pub use timeline::LaunchRecord;
pub use typed::{Scalar, Values};

pub use config::{DeviceConfig, LogSink, UnifiedMemory, Wrap};
pub use driver::Grid;
pub use error::{Error, Result};
pub use info::{DeviceEntry, DeviceInfo, DeviceKind, DriverKind, Selector, devices, devices_for};

#[cfg(test)]
mod tests;
