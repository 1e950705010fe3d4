// SPDX-License-Identifier: Apache-2.0
//! The rows of a resident table with their numbers, by which an UPDATE or a MERGE finds them again.

use std::sync::Arc;

use arrow::array::{ArrayRef, Int64Array, RecordBatch};
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use async_trait::async_trait;
use columnar::{ColumnType, DeviceBatch, Resident};
use datafusion::catalog::{Session, TableProvider};
use datafusion::common::{Result, internal_datafusion_err};
use datafusion::logical_expr::{Expr, TableType};
use datafusion::physical_plan::ExecutionPlan;

use crate::error::{columnar_error, device_error};
use crate::exec::DeviceScanExec;
use crate::table::added_columns::NUMBER;
use crate::table::snapshot::{OPERATOR, Snapshot};

/// One snapshot of a table, with the numbers of its rows in a last column.
#[derive(Debug)]
pub(super) struct NumberedTable {
    snapshot: Arc<Snapshot>,
    schema: SchemaRef,
}

impl NumberedTable {
    pub fn new(snapshot: Arc<Snapshot>) -> Self {
        let number = Arc::new(Field::new(NUMBER, DataType::Int64, false));
        let fields: Vec<_> = snapshot.schema().fields().iter().cloned().chain([number]).collect();
        NumberedTable { snapshot, schema: Arc::new(Schema::new(fields)) }
    }

    /// The rows; columns share the table's memory. Numbers take 8 bytes a row.
    async fn rows(&self) -> Result<Snapshot> {
        let of_column = |error| columnar_error(OPERATOR, error);
        let context = self.snapshot.context();
        let queue = context.queue().map_err(|error| device_error(OPERATOR, error))?;
        let ty = ColumnType::of(&DataType::Int64, false).ok_or_else(|| internal_datafusion_err!("Int64 has no column type"))?;
        let (mut batches, mut first) = (Vec::new(), 0);
        for batch in self.snapshot.batches() {
            let end = first + batch.num_rows() as i64;
            let numbers: ArrayRef = Arc::new(Int64Array::from_iter_values(first..end));
            let numbers = RecordBatch::try_from_iter([(NUMBER, numbers)])?;
            let numbers =
                columnar::upload(&queue, numbers.schema_ref(), std::slice::from_ref(&ty), std::slice::from_ref(&numbers));
            let columns = batch.columns().iter().chain(numbers.map_err(of_column)?.columns()).cloned().collect();
            batches.push(DeviceBatch::try_new(Arc::clone(&self.schema), columns, batch.num_rows()).map_err(of_column)?);
            first = end;
        }
        // The queues of scans do not wait for uploads.
        queue.finish().await.map_err(|error| device_error(OPERATOR, error))?;
        let types = self.snapshot.types().iter().cloned().chain([ty]).collect();
        let table = Resident::of_batches(Arc::clone(&self.schema), types, &batches).map_err(of_column)?;
        Ok(Snapshot::new(context.clone(), table))
    }
}

#[async_trait]
impl TableProvider for NumberedTable {
    fn schema(&self) -> SchemaRef {
        Arc::clone(&self.schema)
    }

    fn table_type(&self) -> TableType {
        TableType::Base
    }

    async fn scan(
        &self,
        _session: &dyn Session,
        projection: Option<&Vec<usize>>,
        _filters: &[Expr],
        _limit: Option<usize>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let columns = projection.cloned().unwrap_or_else(|| (0..self.schema.fields().len()).collect());
        Ok(Arc::new(DeviceScanExec::try_new(Arc::new(self.rows().await?), columns)?))
    }
}
