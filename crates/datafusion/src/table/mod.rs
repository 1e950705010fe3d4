// SPDX-License-Identifier: Apache-2.0
//! Resident tables: rows that stay in device memory between queries.

mod added_columns;
mod boxed_scan;
mod change_sink;
mod changes;
mod create;
mod device_table;
mod file_cache;
mod file_cache_function;
mod kernels_function;
mod memory_function;
mod merge;
mod merge_into;
mod missing;
mod numbered;
mod schema;
mod sink;
mod snapshot;
mod state;

pub(crate) use boxed_scan::boxed_scan;
pub(crate) use changes::TableChanges;
pub(crate) use create::{create_resident_table, streams};
pub use device_table::DeviceTable;
pub(crate) use file_cache::{COLUMNS_OF_FILES, CachedColumn, FileCache, FileColumn, FileVersion, RowGroupRange, RunFileCache};
pub use schema::register_schema;
pub(crate) use snapshot::Snapshot;
pub(crate) use state::{SnapshotHolder, TableState};
