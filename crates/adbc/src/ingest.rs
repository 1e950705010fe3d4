// SPDX-License-Identifier: Apache-2.0
//! Bulk ingest: bound rows become a new table, or are appended to one.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use adbc_core::error::{Result, Status};
use adbc_core::options::{IngestMode, OptionStatement, OptionValue};
use arrow::datatypes::SchemaRef;
use datafusion::catalog::streaming::StreamingTable;
use datafusion::common::{Constraints, TableReference, exec_err};
use datafusion::dataframe::DataFrameWriteOptions;
use datafusion::execution::SendableRecordBatchStream;
use datafusion::execution::TaskContext;
use datafusion::execution::context::SessionContext;
use datafusion::logical_expr::dml::InsertOp;
use datafusion::logical_expr::{CreateMemoryTable, DdlStatement, LogicalPlan};
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::streaming::PartitionStream;
use parking_lot::Mutex;

use crate::bind::Bound;
use crate::error::{error, from_datafusion, not_implemented};

/// The parts of the target table's name, which options set in any order.
#[derive(Debug, Clone, Default)]
struct TargetTable {
    catalog: Option<String>,
    schema: Option<String>,
    table: Option<String>,
}

impl TargetTable {
    fn reference(&self, session: &SessionContext) -> Result<TableReference> {
        let Some(table) = self.table.clone() else { return Err(error(Status::InvalidState, "no table to ingest into")) };
        Ok(match (self.catalog.clone(), self.schema.clone()) {
            (None, None) => TableReference::bare(table),
            (None, Some(schema)) => TableReference::partial(schema, table),
            (Some(catalog), schema) => {
                let current = || session.state().config_options().catalog.default_schema.clone();
                TableReference::full(catalog, schema.unwrap_or_else(current), table)
            }
        })
    }
}

/// Target table and mode, from the statement's options.
#[derive(Debug, Clone, Default)]
pub(crate) struct Ingest {
    target: TargetTable,
    mode: Option<IngestMode>,
}

impl Ingest {
    /// Whether the statement is an ingest: one with a target table.
    pub fn has_target(&self) -> bool {
        self.target.table.is_some()
    }

    pub fn set(&mut self, key: OptionStatement, value: OptionValue) -> Result<()> {
        match (key, &value) {
            (OptionStatement::TargetTable, OptionValue::String(name)) => self.target.table = Some(name.clone()),
            (OptionStatement::TargetDbSchema, OptionValue::String(name)) => self.target.schema = Some(name.clone()),
            (OptionStatement::TargetCatalog, OptionValue::String(name)) => self.target.catalog = Some(name.clone()),
            (OptionStatement::IngestMode, _) => self.mode = Some(IngestMode::try_from(&value)?),
            (OptionStatement::Temporary, _) if !bool::try_from(&value)? => {}
            (OptionStatement::Temporary, _) => return not_implemented("a temporary table"),
            (OptionStatement::Incremental, _) if !bool::try_from(&value)? => {}
            (key, _) => return not_implemented(&format!("the option {} with this value", key.as_ref())),
        }
        Ok(())
    }

    pub fn get(&self, key: &OptionStatement) -> Result<String> {
        let value = match key {
            OptionStatement::TargetTable => self.target.table.clone(),
            OptionStatement::TargetDbSchema => self.target.schema.clone(),
            OptionStatement::TargetCatalog => self.target.catalog.clone(),
            OptionStatement::IngestMode => Some(self.mode().into()),
            OptionStatement::Temporary | OptionStatement::Incremental => Some("false".into()),
            _ => None,
        };
        value.ok_or_else(|| error(Status::NotFound, format!("the option {} is not set", key.as_ref())))
    }

    fn mode(&self) -> IngestMode {
        self.mode.unwrap_or(IngestMode::Create)
    }

    /// Writes the rows into the target table, and returns how many there were. They stream: a table
    /// in device memory never has all of them on the host.
    pub async fn run(&self, session: &SessionContext, bound: Bound) -> Result<i64> {
        let target = self.target.reference(session)?;
        let exists = session.table_exist(target.clone()).map_err(from_datafusion)?;
        let (creates, replaces) = match (self.mode(), exists) {
            (IngestMode::Create, true) => {
                return Err(error(Status::AlreadyExists, format!("the table {target} exists already")));
            }
            (IngestMode::Append, false) => return Err(error(Status::NotFound, format!("there is no table {target}"))),
            (IngestMode::Replace, _) => (true, true),
            (IngestMode::Create | IngestMode::CreateAppend, false) => (true, false),
            (IngestMode::Append | IngestMode::CreateAppend, true) => (false, false),
        };
        let written = Arc::new(AtomicU64::new(0));
        let rows = BoundRows { schema: bound.schema(), bound: Mutex::new(Some(bound)), written: Arc::clone(&written) };
        let rows = StreamingTable::try_new(Arc::clone(&rows.schema), vec![Arc::new(rows)]).map_err(from_datafusion)?;
        let rows = session.read_table(Arc::new(rows)).map_err(from_datafusion)?;
        if !creates {
            let options = DataFrameWriteOptions::new().with_insert_operation(InsertOp::Append);
            rows.write_table(&target.to_quoted_string(), options).await.map_err(from_datafusion)?;
            return Ok(written.load(Ordering::Relaxed) as i64);
        }
        let create = CreateMemoryTable {
            name: target,
            constraints: Constraints::default(),
            input: Arc::new(rows.into_unoptimized_plan()),
            if_not_exists: false,
            or_replace: replaces,
            column_defaults: Vec::new(),
            temporary: false,
        };
        let create = LogicalPlan::Ddl(DdlStatement::CreateMemoryTable(create));
        devicefusion::execute_logical_plan(session, create).await.map_err(from_datafusion)?;
        Ok(written.load(Ordering::Relaxed) as i64)
    }
}

/// The bound rows as a partition, which is read once.
struct BoundRows {
    schema: SchemaRef,
    bound: Mutex<Option<Bound>>,
    written: Arc<AtomicU64>,
}

impl fmt::Debug for BoundRows {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BoundRows").field("schema", &self.schema).finish_non_exhaustive()
    }
}

impl PartitionStream for BoundRows {
    fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    fn execute(&self, _: Arc<TaskContext>) -> SendableRecordBatchStream {
        match self.bound.lock().take() {
            Some(bound) => bound.into_stream(Arc::clone(&self.written)),
            None => {
                let read = exec_err!("the bound rows have been read already");
                Box::pin(RecordBatchStreamAdapter::new(Arc::clone(&self.schema), futures::stream::iter([read])))
            }
        }
    }
}
