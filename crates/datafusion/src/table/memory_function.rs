// SPDX-License-Identifier: Apache-2.0
//! The table function `device_memory()`: what holds device memory, and the host's beside it.

use std::fmt;
use std::sync::Arc;

use arrow::array::{ArrayRef, Float64Array, RecordBatch, StringArray, UInt64Array};
use datafusion::catalog::{TableFunctionArgs, TableFunctionImpl, TableProvider};
use datafusion::common::{Result, plan_err};
use datafusion::datasource::MemTable;

use crate::table::COLUMNS_OF_FILES;
use crate::table::device_table::DeviceTable;
use crate::table::schema::DeviceSchema;

/// Name of the function.
pub(super) const NAME: &str = "device_memory";

/// Rows of the function, as they are when a query is planned. It does not open the device.
pub(super) struct DeviceMemory(pub Arc<DeviceSchema>);

impl fmt::Debug for DeviceMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(NAME)
    }
}

/// One holder of memory.
struct Row {
    /// `table`, `query`, `cache`, `pool` or `host`.
    holder: &'static str,
    name: String,
    column: Option<String>,
    encoding: Option<String>,
    rows: Option<u64>,
    bytes: u64,
}

impl DeviceMemory {
    fn rows(&self) -> Vec<Row> {
        let mut rows = Vec::new();
        for (name, table) in self.0.resident() {
            rows.extend(table.downcast_ref().iter().flat_map(|table| columns(&name, table)));
        }
        let Some(context) = self.0.runtime().opened() else { return rows };
        let pool = context.pool();
        let plain =
            |holder, name: &str, bytes| Row { holder, name: name.into(), column: None, encoding: None, rows: None, bytes };
        rows.extend(context.caches().into_iter().map(|cache| Row {
            rows: cache.entries.map(|entries| entries as u64),
            ..plain("cache", cache.name, cache.bytes as u64)
        }));
        let of_files = self.0.runtime().cached_columns();
        rows.push(Row {
            rows: Some(of_files.len() as u64),
            ..plain("cache", COLUMNS_OF_FILES, of_files.iter().map(|column| column.bytes as u64).sum())
        });
        let held = pool.held();
        let of_queries = held.iter().filter(|(holder, _)| holder != COLUMNS_OF_FILES);
        rows.extend(of_queries.map(|(operator, bytes)| plain("query", operator, *bytes)));
        let pool = [("in use", pool.in_use()), ("free", pool.cached()), ("peak", pool.peak()), ("limit", pool.limit())];
        rows.extend(pool.map(|(name, bytes)| plain("pool", name, bytes as u64)));
        let (uploads, downloads) = context.staged_bytes();
        let of_host = [("uploads", Some(uploads)), ("downloads", Some(downloads)), ("operators", self.0.host_bytes())];
        rows.extend(of_host.into_iter().filter_map(|(name, bytes)| Some(plain("host", name, bytes? as u64))));
        rows
    }
}

/// The columns of a resident table.
fn columns(name: &str, table: &DeviceTable) -> Vec<Row> {
    // A table that was lost with its device has none.
    let Ok(snapshot) = table.state().current() else { return vec![] };
    let columns = snapshot.schema().fields().iter().zip(snapshot.types()).zip(&snapshot.statistics().column_statistics);
    let rows = columns.map(|((field, ty), statistics)| Row {
        holder: "table",
        name: name.into(),
        column: Some(field.name().clone()),
        encoding: Some(ty.layout.to_string()),
        rows: Some(snapshot.num_rows() as u64),
        bytes: statistics.byte_size.get_value().copied().unwrap_or(0) as u64,
    });
    rows.collect()
}

/// Checks that a function has no arguments.
pub(super) fn without_arguments(name: &str, args: &TableFunctionArgs) -> Result<()> {
    if args.exprs().is_empty() { Ok(()) } else { plan_err!("{name}() takes no arguments") }
}

impl TableFunctionImpl for DeviceMemory {
    fn call_with_args(&self, args: TableFunctionArgs) -> Result<Arc<dyn TableProvider>> {
        without_arguments(NAME, &args)?;
        let rows = self.rows();
        let texts = |text: &dyn Fn(&Row) -> Option<String>| Arc::new(StringArray::from_iter(rows.iter().map(text))) as ArrayRef;
        let a_row = |row: &Row| row.rows.filter(|rows| *rows > 0).map(|rows| row.bytes as f64 / rows as f64);
        let batch = RecordBatch::try_from_iter_with_nullable([
            ("holder", texts(&|row| Some(row.holder.into())), false),
            ("name", texts(&|row| Some(row.name.clone())), false),
            ("column_name", texts(&|row| row.column.clone()), true),
            ("encoding", texts(&|row| row.encoding.clone()), true),
            ("rows", Arc::new(UInt64Array::from_iter(rows.iter().map(|row| row.rows))), true),
            ("bytes", Arc::new(UInt64Array::from_iter_values(rows.iter().map(|row| row.bytes))), false),
            ("bytes_a_row", Arc::new(Float64Array::from_iter(rows.iter().map(a_row))), true),
        ])?;
        Ok(Arc::new(MemTable::try_new(batch.schema(), vec![vec![batch]])?))
    }
}
