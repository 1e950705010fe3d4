// SPDX-License-Identifier: Apache-2.0
//! Arrow columns in device memory.
//!
//! A [`DeviceBatch`] is what a `RecordBatch` is on the host: columns of one length under one schema.
//! Each [`DeviceColumn`] follows the [`ColumnType`] of its source, which says how values lie in
//! memory; [`upload`] and [`download`] convert between the two forms, and [`ResidentBuilder`] finds
//! the narrowest types for tables that stay. What computes on columns lives above, what moves bytes
//! below.
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
mod column;
mod dictionary;
mod download;
mod error;
pub mod exchange;
mod gather;
mod gathering;
mod interner;
mod layout;
mod lists;
mod narrow;
mod resident;
mod statistics;
mod strings;
mod upload;

pub use batch::DeviceBatch;
pub use column::DeviceColumn;
pub use download::{download, download_parts};
pub use error::{Error, Result};
pub use gather::ones;
pub use gathering::Gathering;
pub use layout::{Carrier, ColumnType, Layout, file_types, natural_types};
pub use resident::{Resident, ResidentBuilder};
pub use statistics::ColumnStatistics;
pub use upload::upload;

#[cfg(test)]
mod tests;
