// SPDX-License-Identifier: Apache-2.0
//! Table functions in SHOW FUNCTIONS. DataFusion lists only their names.

use std::any::Any;
use std::collections::HashMap;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, RecordBatch, StringArray};
use arrow::datatypes::SchemaRef;
use datafusion::catalog::{Session, TableProvider};
use datafusion::common::Result;
use datafusion::common::tree_node::Transformed;
use datafusion::datasource::memory::MemorySourceConfig;
use datafusion::datasource::{TableType, provider_as_source, source_as_provider};
use datafusion::execution::session_state::SessionState;
use datafusion::logical_expr::{Expr, LogicalPlan, TableScan};
use datafusion::optimizer::{ApplyOrder, OptimizerConfig, OptimizerRule};
use datafusion::physical_plan::{ExecutionPlan, collect};
use futures::future::BoxFuture;

use crate::futhark::function::Function;
use crate::futhark::table::FutharkTable;
use crate::table::boxed_scan;

/// Adds arguments and columns of table functions to scans of `information_schema.routines`, which
/// SHOW FUNCTIONS reads.
#[derive(Debug)]
pub(crate) struct TableFunctionsListed;

impl OptimizerRule for TableFunctionsListed {
    fn name(&self) -> &str {
        "TableFunctionsListed"
    }

    fn apply_order(&self) -> Option<ApplyOrder> {
        Some(ApplyOrder::BottomUp)
    }

    fn supports_rewrite(&self) -> bool {
        true
    }

    fn rewrite(&self, plan: LogicalPlan, config: &dyn OptimizerConfig) -> Result<Transformed<LogicalPlan>> {
        let LogicalPlan::TableScan(scan) = &plan else { return Ok(Transformed::no(plan)) };
        let is_routines = scan.table_name.schema() == Some("information_schema") && scan.table_name.table() == "routines";
        if !is_routines || !config.options().catalog.information_schema {
            return Ok(Transformed::no(plan));
        }
        let listed = source_as_provider(&scan.source)?;
        let any: &dyn Any = listed.as_ref();
        if any.is::<Routines>() {
            return Ok(Transformed::no(plan));
        }
        let source = provider_as_source(Arc::new(Routines { listed }));
        Ok(Transformed::yes(LogicalPlan::TableScan(TableScan { source, ..scan.clone() })))
    }
}

/// `information_schema.routines` with the types of table functions.
#[derive(Debug)]
struct Routines {
    /// DataFusion's table.
    listed: Arc<dyn TableProvider>,
}

impl TableProvider for Routines {
    fn schema(&self) -> SchemaRef {
        self.listed.schema()
    }

    fn table_type(&self) -> TableType {
        self.listed.table_type()
    }

    boxed_scan!(|table, session, projection, filters, limit| table.plan_scan(session, projection, filters, limit));
}

impl Routines {
    fn plan_scan<'a>(
        &'a self,
        session: &'a dyn Session,
        projection: Option<&'a Vec<usize>>,
        filters: &'a [Expr],
        limit: Option<usize>,
    ) -> BoxFuture<'a, Result<Arc<dyn ExecutionPlan>>> {
        Box::pin(self.listed_with_types(session, projection, filters, limit))
    }

    async fn listed_with_types(
        &self,
        state: &dyn Session,
        projection: Option<&Vec<usize>>,
        filters: &[Expr],
        limit: Option<usize>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let functions = state.as_any().downcast_ref::<SessionState>().map(table_functions).unwrap_or_default();
        if functions.is_empty() {
            return self.listed.scan(state, projection, filters, limit).await;
        }
        let rows = collect(self.listed.scan(state, None, &[], None).await?, state.task_ctx()).await?;
        let rows = rows.iter().map(|batch| with_types(batch, &functions)).collect::<Result<Vec<_>>>()?;
        Ok(MemorySourceConfig::try_new_exec(&[rows], self.schema(), projection.cloned())?)
    }
}

/// The session's table functions of Futhark libraries, by name.
fn table_functions(state: &SessionState) -> HashMap<&str, &Function> {
    let tables = state.table_functions().iter().filter_map(|(name, table)| {
        let function: &dyn Any = table.function().as_ref();
        Some((name.as_str(), function.downcast_ref::<FutharkTable>()?.function()))
    });
    tables.collect()
}

/// Rows of `information_schema.routines` with the types of table functions.
fn with_types(batch: &RecordBatch, functions: &HashMap<&str, &Function>) -> Result<RecordBatch> {
    let strings = |name: &str| batch.column_by_name(name).and_then(|column| column.as_string_opt::<i32>());
    let (Some(names), Some(kinds)) = (strings("routine_name"), strings("function_type")) else { return Ok(batch.clone()) };
    let schema = batch.schema();
    let columns = schema.fields().iter().zip(batch.columns()).map(|(field, column)| -> ArrayRef {
        let shown: fn(&Function) -> String = match field.name().as_str() {
            "data_type" => Function::table_type,
            "description" => |function| function.documentation().description.clone(),
            "syntax_example" => Function::call_syntax,
            _ => return Arc::clone(column),
        };
        let Some(listed) = column.as_string_opt::<i32>() else { return Arc::clone(column) };
        let value = |row: usize| match functions.get(names.value(row)) {
            Some(function) if kinds.is_valid(row) && kinds.value(row) == "TABLE" => Some(shown(function)),
            _ => listed.is_valid(row).then(|| listed.value(row).to_owned()),
        };
        Arc::new((0..batch.num_rows()).map(value).collect::<StringArray>())
    });
    Ok(RecordBatch::try_new(Arc::clone(&schema), columns.collect())?)
}
