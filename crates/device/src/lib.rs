// SPDX-License-Identifier: Apache-2.0
//! Devices behind one small trait: discovery, queues, memory, programs and profiling.
//!
//! A [`Context`] is one opened device with its configuration. All work goes through its [`Queue`]s,
//! in order: allocations, copies, and launches of [`Kernel`]s out of [`Program`]s, which are
//! compiled at run time. This crate knows neither Arrow nor SQL: the crates above generate the
//! kernels and define the bytes.
//!
//! ```
//! use device::{Context, DeviceConfig, Grid, ProgramSource};
//!
//! # let run = async {
//! // A machine without a device gives an ordinary error.
//! let Ok(context) = Context::new(DeviceConfig::default()) else { return Ok(()) };
//! # if context.info().driver == device::DriverKind::Cuda { return Ok(()) }
//! let queue = context.queue()?;
//! let source = "kernel void twice(global uint *x) { x[get_global_id(0)] *= 2; }";
//! let program = queue.compile(ProgramSource::new(source, "example")).await?;
//!
//! let values = queue.alloc_values(4)?;
//! queue.write_values(&values, 0, &[1u32, 2, 3, 4])?;
//! let grid = Grid { work_groups: 2, work_group_size: 2 };
//! queue.launch(&program.kernel("twice")?, grid, &[(&values).into()])?;
//! assert_eq!(queue.read_values(&values, 0..4).await?, [2, 4, 6, 8]);
//! # Ok::<(), device::Error>(())
//! # };
//! # futures::executor::block_on(run)?;
//! # Ok::<(), device::Error>(())
//! ```
//!
//! # Blocking
//! An operation that enqueues returns at once. A thread of each queue waits for the device and
//! wakes futures. Drops never wait. Only these operations may block for the length of a launch:
//! - an allocation at the limit of pool or device, while all free memory is still in use;
//! - an upload, while 128 MiB of other uploads are in flight;
//! - [`Context::synchronize`];
//! - [`Context::new`].
//!
//! The end of the process waits for running work, ten seconds at most.
//!
//! # Inspecting kernels
//! The environment variable `DEVICEFUSION_DUMP_KERNELS` names a folder. Each source in the common
//! dialect of both compilers is left there as `HASH.cl`, once, after it has compiled.
//!
//! # Profiling
//! The device times each launch. A [`Meter`] and [`Context::report`] add up kernel times. A context
//! made [`with_timeline`](DeviceConfig::with_timeline) lists the launches with start and end;
//! [`Context::trace`] shows them as a picture of its queues.
//!
//! # Modules
//! | module | contents |
//! |---|---|
//! | [`driver`] | the [`Driver`](driver::Driver) trait: the interface that a driver implements |
//! | [`drivers`] | OpenCL and CUDA, and the registry that lists them |
//! | `selector`, `info` | selection and properties of devices |
//! | `context`, `config` | an opened device and its settings |
//! | `queue` | queues, and the worker thread that waits for each of them |
//! | `memory` | pool, buffers and pinned host memory |
//! | `program` | compilation and its caches |
//! | `report` | counters, meters and the timeline |
//! | `interop` | queues, memory and events shared with other libraries of the process |
//! | [`testing`] | a driver that fails on demand, around the real one |
//!
//! Only [`drivers`] knows OpenCL and CUDA.
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used, clippy::panic))]

mod bandwidth;
mod config;
mod context;
mod device_loss;
pub mod driver;
pub mod drivers;
mod error;
mod exit;
mod host;
mod info;
mod interop;
mod memory;
mod program;
mod queue;
mod report;
mod selector;
pub mod testing;

pub use bandwidth::MemoryBandwidth;
pub use config::{CacheDir, DeviceConfig, UnifiedMemory, Wrap};
pub use context::Context;
pub use driver::{Grid, KeepAlive, LogSink, Parameter};
pub use drivers::opencl::{DECLARES_BUILTINS, place_pocl_cache};
pub use drivers::{ArrowDeviceTypes, CompilerOptions, DriverKind, MemoryHandle, cuda, devices, devices_for};
pub use error::{Error, Result};
pub use info::{DeviceEntry, DeviceInfo, DeviceKind};
pub use interop::{ApplicationQueue, ForeignContext, LibraryQueue};
pub use memory::{Buffer, Pool, Reclaim, Reservation, Scalar, SoftReservation, Values};
pub use program::{DryLaunch, Kernel, MegakernelPart, MegakernelPartWriter, Program, ProgramSource, RunningQuery};
pub use queue::{Arg, Download, Event, Queue};
pub use report::{CacheUse, Counters, KernelCosts, KernelTotal, LaunchRecord, Meter, Traffic, WorkKind, WorkRecord};
pub use selector::Selector;

#[cfg(test)]
mod tests;
