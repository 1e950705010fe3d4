// SPDX-License-Identifier: Apache-2.0
//! A table of another library, whose scan may be a plan of this one.

use std::sync::Arc;

use async_trait::async_trait;
use datafusion::arrow::datatypes::SchemaRef;
use datafusion::catalog::{Session, TableProvider};
use datafusion::common::tree_node::Transformed;
use datafusion::common::{Result, Statistics};
use datafusion::datasource::{provider_as_source, source_as_provider};
use datafusion::logical_expr::dml::InsertOp;
use datafusion::logical_expr::{Expr, LogicalPlan, TableProviderFilterPushDown, TableType};
use datafusion::physical_plan::ExecutionPlan;
use datafusion_ffi::execution_plan::ForeignExecutionPlan;
use datafusion_ffi::table_provider::ForeignTableProvider;

use crate::foreign_query::ForeignQuery;

/// A table that plans its own queries, such as a view, asks the session for their plans. These are
/// whole plans of this library already, and the rules must not see them again.
#[derive(Debug)]
struct ForeignTable(Arc<dyn TableProvider>);

/// The plan with such tables in the place of those of other libraries.
pub(crate) fn with_foreign_tables(plan: LogicalPlan) -> Result<LogicalPlan> {
    let plan = plan.transform_down_with_subqueries(|node| {
        let LogicalPlan::TableScan(mut scan) = node else { return Ok(Transformed::no(node)) };
        let table = source_as_provider(&scan.source)?;
        if !table.is::<ForeignTableProvider>() {
            return Ok(Transformed::no(LogicalPlan::TableScan(scan)));
        }
        scan.source = provider_as_source(Arc::new(ForeignTable(table)));
        Ok(Transformed::yes(LogicalPlan::TableScan(scan)))
    })?;
    Ok(plan.data)
}

#[async_trait]
impl TableProvider for ForeignTable {
    fn schema(&self) -> SchemaRef {
        self.0.schema()
    }

    fn table_type(&self) -> TableType {
        self.0.table_type()
    }

    fn statistics(&self) -> Option<Statistics> {
        self.0.statistics()
    }

    fn supports_filters_pushdown(&self, filters: &[&Expr]) -> Result<Vec<TableProviderFilterPushDown>> {
        self.0.supports_filters_pushdown(filters)
    }

    async fn scan(
        &self,
        session: &dyn Session,
        projection: Option<&Vec<usize>>,
        filters: &[Expr],
        limit: Option<usize>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let plan = self.0.scan(session, projection, filters, limit).await?;
        Ok(match plan.is::<ForeignExecutionPlan>() {
            true => plan,
            false => Arc::new(ForeignQuery::new(plan, session.task_ctx())),
        })
    }

    async fn insert_into(
        &self,
        session: &dyn Session,
        rows: Arc<dyn ExecutionPlan>,
        how: InsertOp,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        self.0.insert_into(session, rows, how).await
    }
}
