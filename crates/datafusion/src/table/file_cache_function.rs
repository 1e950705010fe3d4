// SPDX-License-Identifier: Apache-2.0
//! The table function `device_file_cache()`: columns of files that are on the device.

use std::fmt;
use std::sync::Arc;

use arrow::array::{ArrayRef, RecordBatch, StringArray, UInt64Array};
use datafusion::catalog::{TableFunctionArgs, TableFunctionImpl, TableProvider};
use datafusion::common::Result;
use datafusion::datasource::MemTable;

use crate::session::DeviceRuntime;
use crate::table::CachedColumn;
use crate::table::memory_function::without_arguments;

/// Name of the function.
pub(super) const NAME: &str = "device_file_cache";

/// Rows of the function, as they are when a query is planned. It does not open the device.
pub(super) struct DeviceFileCache(pub Arc<DeviceRuntime>);

impl fmt::Debug for DeviceFileCache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(NAME)
    }
}

impl TableFunctionImpl for DeviceFileCache {
    fn call_with_args(&self, args: TableFunctionArgs) -> Result<Arc<dyn TableProvider>> {
        without_arguments(NAME, &args)?;
        let columns = self.0.cached_columns();
        let texts =
            |text: fn(&CachedColumn) -> &str| Arc::new(StringArray::from_iter_values(columns.iter().map(text))) as ArrayRef;
        let counts = |count: fn(&CachedColumn) -> usize| {
            Arc::new(UInt64Array::from_iter_values(columns.iter().map(|column| count(column) as u64))) as ArrayRef
        };
        let batch = RecordBatch::try_from_iter_with_nullable([
            ("file", texts(|column| &column.file), false),
            ("column_name", texts(|column| &column.column), false),
            ("encoding", texts(|column| &column.encoding), false),
            ("row_groups", counts(|column| column.row_groups), false),
            ("rows", counts(|column| column.rows), false),
            ("bytes", counts(|column| column.bytes), false),
            ("hits", counts(|column| column.hits), false),
        ])?;
        Ok(Arc::new(MemTable::try_new(batch.schema(), vec![vec![batch]])?))
    }
}
