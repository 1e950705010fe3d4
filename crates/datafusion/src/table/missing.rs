// SPDX-License-Identifier: Apache-2.0
//! Errors of queries that read missing tables of the schema `device`.

use std::sync::Arc;

use datafusion::common::{Result, TableReference, plan_err};
use datafusion::logical_expr::planner::{RelationPlanner, RelationPlannerContext, RelationPlanning};
use datafusion::sql::sqlparser::ast::TableFactor;

use crate::session::{DeviceOptions, DeviceRuntime};
use crate::table::schema::DEVICE_SCHEMA;

/// Names the missing part for a query over a table outside device memory: the table, or the device.
///
/// The provider of the schema cannot: DataFusion asks it for tables that a statement creates, too.
#[derive(Debug)]
pub(super) struct MissingTables {
    /// The catalog of the schema.
    pub catalog: String,
    pub runtime: Arc<DeviceRuntime>,
}

impl MissingTables {
    /// Why there is no device, as far as that is known. Opening one would freeze settings.
    fn problem(&self, options: &DeviceOptions) -> Option<String> {
        match (self.runtime.opened(), &options.selector) {
            (Some(_), _) => None,
            (None, None) => Some("device.selector = 'none'".to_string()),
            (None, Some(_)) => self.runtime.problem(),
        }
    }
}

impl RelationPlanner for MissingTables {
    fn plan_relation(&self, relation: TableFactor, context: &mut dyn RelationPlannerContext) -> Result<RelationPlanning> {
        let reference = match &relation {
            TableFactor::Table { name, args: None, .. } => context.object_name_to_table_reference(name.clone()).ok(),
            _ => None,
        };
        // A bare name may be that of a common table expression.
        let Some(reference) = reference.filter(|reference| !matches!(reference, TableReference::Bare { .. })) else {
            return Ok(RelationPlanning::Original(Box::new(relation)));
        };
        let tables = context.context_provider();
        let defaults = &tables.options().catalog;
        let table = reference.clone().resolve(&defaults.default_catalog, &defaults.default_schema);
        let is_resident = *table.catalog == *self.catalog && *table.schema == *DEVICE_SCHEMA;
        if !is_resident || tables.get_table_source(reference.clone()).is_ok() {
            return Ok(RelationPlanning::Original(Box::new(relation)));
        }
        match self.problem(&DeviceOptions::of(tables.options())) {
            None => plan_err!(
                "table '{table}' not found: device memory has no such table; CREATE TABLE {reference} AS SELECT … makes one"
            ),
            Some(problem) => {
                plan_err!("table '{table}' not found: a table of device memory needs a device, and there is none: {problem}")
            }
        }
    }
}
