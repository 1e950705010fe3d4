// SPDX-License-Identifier: Apache-2.0
//! Execution of an offloaded subplan: stages become streams of device batches.
//!
//! One execution has one in-order queue. A second queue uploads on devices with memory of their
//! own. [`execute_host`] and [`execute_device`] start a run; `open.rs` opens its stages from the
//! top.

mod aggregate;
mod blocking;
mod coalesce;
mod distinct;
mod errors;
mod execute;
mod expand;
mod files;
mod futhark;
mod import;
mod joins;
mod kept_rows;
mod limit;
mod lists;
mod memory;
mod merge;
mod metrics;
mod open;
mod partitions;
mod scan;
mod select;
mod shared;
mod sorts;
mod spill;
mod state;
mod subqueries;
mod unnest;
mod upload;
mod windows;

use std::pin::Pin;

use columnar::DeviceBatch;
use datafusion::common::Result;
use futures::Stream;

pub(crate) use execute::{execute_device, execute_host};
pub(crate) use metrics::{Activities, Activity, ActivityKind, OperatorKernels, Recording, WallTime, output_rows, timed};

/// Batches that stay on the device.
pub type DeviceBatchStream = Pin<Box<dyn Stream<Item = Result<DeviceBatch>> + Send>>;
