// SPDX-License-Identifier: Apache-2.0
//! Arrow columns in device memory.
//!
//! - [`DeviceBatch`] is the device counterpart of `RecordBatch`.
//! - [`DeviceColumn`] is a column in the [`ColumnType`] of its source, which defines its layout.
//! - [`upload`] and [`download`] convert between host and device batches.
//! - [`BatchCoalescer`] uploads small host batches as one device batch.
//! - [`ResidentBuilder`] finds the narrowest types for a table that stays in device memory.
//! - [`StorageFormat`] keeps batches on the host or in files, in the layouts that they have.
//! - [`exchange`] imports and exports batches through the Arrow C Device data interface.
//!
//! The crate `kernels` computes on these columns; the crate `device` moves the bytes.
//!
//! ```
//! use std::sync::Arc;
//!
//! use arrow::array::{Int64Array, RecordBatch};
//! use columnar::{download, natural_types, upload};
//!
//! # futures::executor::block_on(async {
//! let host = RecordBatch::try_from_iter([("x", Arc::new(Int64Array::from(vec![1, 2, 3])) as _)])?;
//! let context = device::Context::new(device::DeviceConfig::default())?;
//! let queue = context.queue()?;
//! let types = natural_types(&host.schema())?;
//! let batch = upload(&queue, &host.schema(), &types, &[host.clone()])?;
//! assert_eq!(download(&queue, &batch.slice(1, 2)).await?, host.slice(1, 2));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! # }).unwrap();
//! ```
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::expect_used, clippy::panic))]

mod batch;
mod coalescer;
mod column;
mod download;
mod error;
pub mod exchange;
mod host_arrays;
mod interner;
mod layout;
mod narrow;
mod resident;
mod statistics;
mod storage;
mod upload;

pub use batch::{DeviceBatch, memory_bytes};
pub use coalescer::BatchCoalescer;
pub use column::DeviceColumn;
pub use download::{download, download_parts};
pub use error::{Error, Result};
pub use layout::{Carrier, ColumnType, Layout, file_types, natural_types};
pub use resident::{Resident, ResidentBuilder};
pub use statistics::ColumnStatistics;
pub use storage::{StorageFormat, StoredColumns};
pub use upload::upload;

#[cfg(test)]
mod tests;
