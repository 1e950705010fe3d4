// SPDX-License-Identifier: Apache-2.0
//! Merging of scans that read different columns.

use std::sync::Arc;

use arrow::datatypes::Schema;
use datafusion::common::config::CsvOptions;
use datafusion::datasource::memory::MemorySourceConfig;
use datafusion::datasource::physical_plan::{CsvSource, FileScanConfig, FileScanConfigBuilder, FileSource, ParquetSource};
use datafusion::datasource::source::DataSourceExec;
use datafusion::physical_expr::expressions::Column;

use super::merged::{Merged, both, union};
use crate::exec::{DeviceScanExec, HostToDeviceExec};
use crate::planner::rewrite::Plan;
use crate::planner::same::same_source;

pub(super) fn scans(a: &Plan, b: &Plan) -> Option<Merged> {
    let (a, b) = both::<DeviceScanExec>(a, b)?;
    if !Arc::ptr_eq(a.snapshot(), b.snapshot()) {
        return None;
    }
    let columns = union(a.columns(), b.columns());
    let scan = DeviceScanExec::try_new(Arc::clone(a.snapshot()), columns.clone()).ok()?;
    Merged::of(scan, &columns, a.columns(), b.columns())
}

pub(super) fn uploads(a: &Plan, b: &Plan) -> Option<Merged> {
    let (a, b) = both::<HostToDeviceExec>(a, b)?;
    let (a_scan, b_scan) = (a.input().downcast_ref::<DataSourceExec>()?, b.input().downcast_ref::<DataSourceExec>()?);
    let (a_columns, b_columns) = (columns_of_scan(a_scan)?, columns_of_scan(b_scan)?);
    let columns = union(&a_columns, &b_columns);
    let (scan, same): (Plan, Plan) = (Arc::new(scan_of_columns(a_scan, &columns)?), Arc::new(scan_of_columns(b_scan, &columns)?));
    if scan.schema() != same.schema() || !same_source(&scan, &same) {
        return None;
    }
    Merged::of(HostToDeviceExec::new(scan, a.origin()), &columns, &a_columns, &b_columns)
}

/// The table's columns given by a scan of the host; `None` if it computes some.
fn columns_of_scan(scan: &DataSourceExec) -> Option<Vec<usize>> {
    let source = scan.data_source();
    if let Some(memory) = source.downcast_ref::<MemorySourceConfig>() {
        let all = || (0..memory.original_schema().fields().len()).collect();
        return Some(memory.projection().clone().unwrap_or_else(all));
    }
    let outputs = source.downcast_ref::<FileScanConfig>()?.file_source().projection()?;
    outputs.iter().map(|output| output.expr.downcast_ref::<Column>().map(Column::index)).collect()
}

/// A scan with other columns of its table; `None` if the table lacks one.
fn scan_of_columns(scan: &DataSourceExec, columns: &[usize]) -> Option<DataSourceExec> {
    let source = scan.data_source();
    let has_all = |schema: &Schema| columns.iter().all(|column| *column < schema.fields().len());
    if let Some(memory) = source.downcast_ref::<MemorySourceConfig>() {
        if !memory.sort_information().is_empty() || !has_all(&memory.original_schema()) {
            return None;
        }
        let other = MemorySourceConfig::try_new(memory.partitions(), memory.original_schema(), Some(columns.to_vec())).ok()?;
        let other = other.with_limit(source.fetch()).with_show_sizes(memory.show_sizes());
        return Some(DataSourceExec::new(Arc::new(other)));
    }
    let files = source.downcast_ref::<FileScanConfig>()?;
    if !has_all(files.file_source().table_schema().table_schema()) {
        return None;
    }
    let whole = of_all_columns(files)?;
    let of = |columns: Vec<usize>| {
        let builder = FileScanConfigBuilder::from(files.clone()).with_source(Arc::clone(&whole));
        Some(builder.with_projection_indices(Some(columns)).ok()?.build())
    };
    // Only `Debug` shows all options. With the same columns, the new source must print as the old
    // one.
    let same = of(columns_of_scan(scan)?)?;
    if printed(same.file_source())? != printed(files.file_source())? {
        return None;
    }
    Some(DataSourceExec::new(Arc::new(of(columns.to_vec())?)))
}

fn printed(source: &Arc<dyn FileSource>) -> Option<String> {
    let parquet = source.downcast_ref::<ParquetSource>().map(|parquet| format!("{parquet:?}"));
    parquet.or_else(|| source.downcast_ref::<CsvSource>().map(|csv| format!("{csv:?}")))
}

/// A file source with all columns of its table. DataFusion can narrow a source, but not widen it.
fn of_all_columns(files: &FileScanConfig) -> Option<Arc<dyn FileSource>> {
    let source = files.file_source();
    if let Some(csv) = source.downcast_ref::<CsvSource>() {
        let options = CsvOptions {
            has_header: Some(csv.has_header()),
            delimiter: csv.delimiter(),
            quote: csv.quote(),
            terminator: csv.terminator(),
            escape: csv.escape(),
            comment: csv.comment(),
            newlines_in_values: Some(csv.newlines_in_values()),
            truncated_rows: csv.truncate_rows().then_some(true),
            compression: *files.file_compression_type.get_variant(),
            ..CsvOptions::default()
        };
        return Some(Arc::new(CsvSource::new(source.table_schema().clone()).with_csv_options(options)));
    }
    let parquet = source.downcast_ref::<ParquetSource>()?;
    let options = parquet.table_parquet_options().clone();
    let hint = options.global.metadata_size_hint;
    let mut whole = ParquetSource::new(parquet.table_schema().clone()).with_table_parquet_options(options);
    if let Some(predicate) = parquet.filter() {
        whole = whole.with_predicate(predicate);
    }
    if let Some(factory) = parquet.parquet_file_reader_factory() {
        whole = whole.with_parquet_file_reader_factory(Arc::clone(factory));
    }
    if let Some(hint) = hint {
        whole = whole.with_metadata_size_hint(hint);
    }
    Some(Arc::new(whole))
}
