// SPDX-License-Identifier: Apache-2.0
//! The row groups of a file that a scan needs.
//!
//! Statistics leave them out as DataFusion's own scan does: by the range, by minimum and maximum,
//! and by the page index. A file with Bloom filters that a predicate asks is DataFusion's.

use std::collections::HashMap;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use arrow::datatypes::SchemaRef;
use datafusion::common::{Result, ScalarValue};
use datafusion::datasource::listing::PartitionedFile;
use datafusion::datasource::physical_plan::FileSource;
use datafusion::datasource::physical_plan::parquet::{
    PagePruningAccessPlanFilter, ParquetAccessPlan, ParquetFileMetrics, RowGroupAccess, RowGroupAccessPlanFilter,
    apply_file_schema_type_coercions,
};
use datafusion::execution::TaskContext;
use datafusion::parquet::arrow::arrow_reader::{ArrowReaderMetadata, ArrowReaderOptions};
use datafusion::parquet::file::metadata::{ParquetMetaData, RowGroupMetaData};
use datafusion::physical_expr::PhysicalExpr;
use datafusion::physical_expr::simplifier::PhysicalExprSimplifier;
use datafusion::physical_expr_adapter::{
    DefaultPhysicalExprAdapterFactory, PhysicalExprAdapterFactory, replace_columns_with_literals,
};
use datafusion::physical_optimizer::pruning::PruningPredicateBuilder;
use datafusion::physical_plan::metrics::ExecutionPlanMetricsSet;
use futures::FutureExt;

use super::scan::CachedScan;
use crate::exec::panics::panic_text;
use crate::table::RowGroupRange;

/// Consecutive row groups of a file, with about the rows of a batch. Their columns stay together.
pub(super) struct RowGroupSpan {
    pub row_groups: RowGroupRange,
    pub rows: usize,
    /// The needed row groups and rows, where these are few.
    pub part: Option<Vec<(usize, RowGroupAccess)>>,
}

/// The row groups that a scan needs of a file.
pub(super) struct NeededRowGroups {
    pub spans: Vec<RowGroupSpan>,
    /// Number of row groups in the file.
    pub all: usize,
}

/// The row groups that a scan needs of a file. `None` if DataFusion must find them.
///
/// It must too after an error or a panic: a damaged file is for DataFusion's scan to report.
pub(super) async fn needed(
    scan: &CachedScan,
    file: &PartitionedFile,
    partition: usize,
    batch_rows: usize,
    task: &TaskContext,
) -> Option<NeededRowGroups> {
    let needed = AssertUnwindSafe(try_needed(scan, file, partition, batch_rows, task)).catch_unwind().await;
    needed.map_err(panic_text).ok()?.ok()?
}

async fn try_needed(
    scan: &CachedScan,
    file: &PartitionedFile,
    partition: usize,
    batch_rows: usize,
    task: &TaskContext,
) -> Result<Option<NeededRowGroups>> {
    let metrics = ExecutionPlanMetricsSet::new();
    let hint = file.metadata_size_hint;
    let mut reader = scan.readers(task)?.create_reader(partition, file.clone(), hint, &metrics)?;
    let metadata = reader.get_metadata(None).await?;
    let groups = metadata.row_groups();
    if groups.iter().any(|group| group.num_columns() == 0 || group.num_rows() < 1) {
        return Ok(None);
    }
    let options = &scan.source.table_parquet_options().global;
    let mut kept = RowGroupAccessPlanFilter::new(ParquetAccessPlan::new_all(groups.len()));
    if let Some(range) = &file.range {
        kept.prune_by_range(groups, range);
    }
    let in_range: Vec<usize> = kept.row_group_indexes().collect();
    let access = match FileSource::filter(&scan.source) {
        None => kept.build(),
        Some(predicate) => {
            let Some((predicate, schema)) = of_file(scan, file, &predicate, &metadata)? else { return Ok(None) };
            let location = file.object_meta.location.as_ref();
            let file_metrics = ParquetFileMetrics::new(partition, location, &metrics);
            let builder = PruningPredicateBuilder::new()
                .with_file_schema(Arc::clone(&schema))
                .with_max_in_list_size(scan.source.max_in_list_size());
            let descriptor = metadata.file_metadata().schema_descr();
            if let Some(pruning) = builder.build(Arc::clone(&predicate)) {
                let asks_bloom_filters = options.bloom_filter_on_read
                    && !pruning.literal_guarantees().is_empty()
                    && groups.iter().any(|group| group.columns().iter().any(|column| column.bloom_filter_offset().is_some()));
                if asks_bloom_filters {
                    return Ok(None);
                }
                if options.pruning {
                    kept.prune_by_statistics(&schema, descriptor, groups, &pruning, &file_metrics);
                }
            }
            // Reads count the others in the metrics of the scan.
            let of_scan = ParquetFileMetrics::new(partition, location, FileSource::metrics(&scan.source));
            of_scan.row_groups_pruned_statistics.add_pruned(file_metrics.row_groups_pruned_statistics.pruned());
            let kept = kept.build();
            match options.enable_page_index {
                true => PagePruningAccessPlanFilter::new(&predicate, Arc::clone(&schema)).prune_plan_with_page_index(
                    kept,
                    &schema,
                    descriptor,
                    &metadata,
                    &file_metrics,
                ),
                false => kept,
            }
        }
    };
    let accesses = access.into_inner();
    let spans = spans(&in_range, groups, batch_rows).into_iter().filter_map(|(row_groups, rows)| {
        let needed = (row_groups.first..row_groups.first + row_groups.number).filter_map(|index| match &accesses[index] {
            RowGroupAccess::Skip => None,
            access @ (RowGroupAccess::Scan | RowGroupAccess::Selection(_)) => Some((index, access.clone())),
        });
        let needed: Vec<(usize, RowGroupAccess)> = needed.collect();
        let kept_rows: usize = needed.iter().map(|(index, access)| rows_of(access, &groups[*index])).sum();
        // Where most rows are needed, all of them serve the next query too.
        let part = (kept_rows < rows / WHOLE.1 * WHOLE.0).then_some(needed);
        (kept_rows > 0).then_some(RowGroupSpan { row_groups, rows, part })
    });
    Ok(Some(NeededRowGroups { spans: spans.collect(), all: groups.len() }))
}

/// The least share of needed rows with which a span is read as a whole: three of four.
const WHOLE: (usize, usize) = (3, 4);

/// Row groups in spans of at most `batch_rows` rows, or of one row group, with their rows.
fn spans(in_range: &[usize], groups: &[RowGroupMetaData], batch_rows: usize) -> Vec<(RowGroupRange, usize)> {
    let mut spans: Vec<(RowGroupRange, usize)> = Vec::new();
    for index in in_range {
        let rows = groups[*index].num_rows() as usize;
        match spans.last_mut() {
            Some((range, of_span)) if range.first + range.number == *index && *of_span + rows <= batch_rows => {
                range.number += 1;
                *of_span += rows;
            }
            Some(_) | None => spans.push((RowGroupRange { first: *index, number: 1 }, rows)),
        }
    }
    spans
}

fn rows_of(access: &RowGroupAccess, group: &RowGroupMetaData) -> usize {
    match access {
        RowGroupAccess::Skip => 0,
        RowGroupAccess::Scan => group.num_rows() as usize,
        RowGroupAccess::Selection(rows) => rows.row_count(),
    }
}

/// A scan's predicate over the columns of a file, with their schema.
fn of_file(
    scan: &CachedScan,
    file: &PartitionedFile,
    predicate: &Arc<dyn PhysicalExpr>,
    metadata: &Arc<ParquetMetaData>,
) -> Result<Option<(Arc<dyn PhysicalExpr>, SchemaRef)>> {
    if scan.source.table_parquet_options().global.coerce_int96.is_some() {
        return Ok(None);
    }
    let table = FileSource::table_schema(&scan.source);
    let logical = table.file_schema();
    let options = ArrowReaderOptions::new();
    let options = match &file.arrow_schema {
        Some(schema) => options.with_schema(Arc::clone(schema)),
        None => options,
    };
    let mut schema = Arc::clone(ArrowReaderMetadata::try_new(Arc::clone(metadata), options)?.schema());
    if let Some(coerced) = apply_file_schema_type_coercions(logical, &schema) {
        schema = Arc::new(coerced);
    }
    let partition_fields = table.table_partition_cols().iter();
    let values = partition_fields.zip(&file.partition_values).map(|(field, value)| (field.name().as_str(), value));
    let values: HashMap<&str, &ScalarValue> = values.collect();
    let predicate = replace_columns_with_literals(Arc::clone(predicate), &values)?;
    let adapter = DefaultPhysicalExprAdapterFactory.create(Arc::clone(logical), Arc::clone(&schema))?;
    let predicate = PhysicalExprSimplifier::new(&schema).simplify(adapter.rewrite(predicate)?)?;
    Ok(Some((predicate, schema)))
}
