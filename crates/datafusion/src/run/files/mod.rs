// SPDX-License-Identifier: Apache-2.0
//! Scans of Parquet files whose columns stay on the device.
//!
//! - `scan`: the scans whose columns may stay, and the reads of their files.
//! - `row_groups`: the row groups of a file that a scan needs, as DataFusion's own scan finds them.
//! - `rows`: batches of a row group, of columns that are on the device and of others.

mod row_groups;
mod rows;
mod scan;

pub(super) use rows::rows;
pub(super) use scan::CachedScan;
