// SPDX-License-Identifier: Apache-2.0
//! The scans whose columns may stay on the device.

use std::sync::Arc;

use arrow::datatypes::{Schema, SchemaRef};
use datafusion::common::{Result, internal_datafusion_err};
use datafusion::datasource::listing::PartitionedFile;
use datafusion::datasource::physical_plan::parquet::{
    DefaultParquetFileReaderFactory, ParquetAccessPlan, ParquetFileReaderFactory, ParquetRowSelection, RowGroupAccess,
};
use datafusion::datasource::physical_plan::{FileGroup, FileScanConfig, FileScanConfigBuilder, FileSource, ParquetSource};
use datafusion::datasource::source::DataSourceExec;
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::expressions::{Column, lit};
use datafusion::physical_expr::projection::{ProjectionExpr, ProjectionExprs};
use datafusion::physical_plan::ExecutionPlan;

use crate::exec::panics;
use crate::table::FileColumn;

/// A scan of Parquet files that only selects columns.
#[derive(Clone)]
pub(in crate::run) struct CachedScan {
    pub config: Arc<FileScanConfig>,
    pub source: ParquetSource,
    pub schema: SchemaRef,
    /// The columns of the schema.
    pub columns: Vec<FileColumn>,
}

impl CachedScan {
    /// `None` for scans of other formats, and for those that read or compute something else than
    /// columns of whole row groups.
    pub fn of(plan: &Arc<dyn ExecutionPlan>) -> Option<CachedScan> {
        let config = plan.downcast_ref::<DataSourceExec>()?.data_source().downcast_ref::<FileScanConfig>()?;
        let source = config.file_source().downcast_ref::<ParquetSource>()?;
        let options = &source.table_parquet_options().global;
        let is_plain = config.limit.is_none() && config.expr_adapter_factory.is_none() && !options.pushdown_filters;
        let crypto = &source.table_parquet_options().crypto;
        let is_encrypted = crypto.file_decryption.is_some() || crypto.factory_id.is_some();
        let table = config.file_source().table_schema();
        let has_virtual = !table.virtual_columns().is_empty();
        let has_ranges = |file: &PartitionedFile| {
            file.extensions.contains::<ParquetAccessPlan>() || file.extensions.contains::<ParquetRowSelection>()
        };
        if !is_plain || is_encrypted || has_virtual || config.file_groups.iter().flat_map(FileGroup::iter).any(has_ranges) {
            return None;
        }
        let schema = plan.schema();
        let of_file = table.file_schema().fields().len();
        let columns = source.projection()?.iter().zip(schema.fields()).map(|(output, field)| {
            let column = output.expr.downcast_ref::<Column>()?;
            let (name, is_partition) = (column.name().to_owned(), column.index() >= of_file);
            Some(FileColumn { name, data_type: field.data_type().clone(), is_partition })
        });
        let columns: Vec<FileColumn> = columns.collect::<Option<_>>()?;
        let whole = !columns.is_empty() && columns.len() == schema.fields().len();
        whole.then(|| CachedScan { config: Arc::new(config.clone()), source: source.clone(), schema, columns })
    }

    /// The files of a partition.
    pub fn files(&self, partition: usize) -> Vec<PartitionedFile> {
        self.config.file_groups.get(partition).map_or_else(Vec::new, |group| group.iter().cloned().collect())
    }

    /// The factory of readers, which the metadata comes from.
    pub fn readers(&self, task: &TaskContext) -> Result<Arc<dyn ParquetFileReaderFactory>> {
        if let Some(factory) = self.source.parquet_file_reader_factory() {
            return Ok(Arc::clone(factory));
        }
        let store = task.runtime_env().object_store(&self.config.object_store_url)?;
        Ok(Arc::new(DefaultParquetFileReaderFactory::new(store)))
    }

    /// A file as DataFusion reads it.
    pub fn read_file(&self, file: PartitionedFile, task: &Arc<TaskContext>) -> Result<SendableRecordBatchStream> {
        let config = FileScanConfigBuilder::from(self.config.as_ref().clone());
        let config = config.with_file_groups(vec![FileGroup::new(vec![file])]);
        rows_of(config.build(), task)
    }

    /// Some columns of some row groups, of `row_groups` in all.
    pub fn read_row_groups(
        &self,
        file: &PartitionedFile,
        needed: impl IntoIterator<Item = (usize, RowGroupAccess)>,
        row_groups: usize,
        columns: &[usize],
        task: &Arc<TaskContext>,
    ) -> Result<SendableRecordBatchStream> {
        let mut accesses = ParquetAccessPlan::new_none(row_groups);
        needed.into_iter().for_each(|(row_group, access)| accesses.set(row_group, access));
        let mut file = file.clone();
        (file.range, file.statistics) = (None, None);
        file.extensions.insert(accesses);
        // Statistics have chosen the row groups. Their pages stay together.
        let whole = self.source.with_predicate(lit(true));
        let projection = columns.iter().map(|index| {
            let name = self.schema.field(*index).name();
            ProjectionExpr { expr: Arc::new(Column::new(name, *index)), alias: name.clone() }
        });
        let source = whole.try_pushdown_projection(&ProjectionExprs::new(projection))?;
        let source = source.ok_or_else(|| internal_datafusion_err!("a Parquet source takes no projection"))?;
        let config = FileScanConfigBuilder::from(self.config.as_ref().clone());
        let config = config.with_source(source).with_file_groups(vec![FileGroup::new(vec![file])]).with_output_ordering(vec![]);
        rows_of(config.build(), task)
    }

    /// The schema of some columns.
    pub fn schema_of(&self, columns: &[usize]) -> SchemaRef {
        let fields: Vec<_> = columns.iter().map(|index| Arc::clone(&self.schema.fields()[*index])).collect();
        Arc::new(Schema::new_with_metadata(fields, self.schema.metadata().clone()))
    }
}

fn rows_of(scan: FileScanConfig, task: &Arc<TaskContext>) -> Result<SendableRecordBatchStream> {
    let plan: Arc<dyn ExecutionPlan> = DataSourceExec::from_data_source(scan);
    panics::caught(&plan, || plan.execute(0, Arc::clone(task)))
}
