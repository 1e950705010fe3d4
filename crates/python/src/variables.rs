// SPDX-License-Identifier: Apache-2.0
//! Variables of the calling program as tables: `SELECT sum(x) FROM frame`.
//!
//! They are found before a statement is planned. Meanwhile the catalog has them for names without a
//! table.

use std::collections::HashMap;
use std::sync::Arc;

use async_trait::async_trait;
use datafusion::catalog::{DynamicFileCatalog, TableProvider, UrlTableFactory};
use datafusion::common::{Result, TableReference, plan_err};
use datafusion::execution::SessionState;
use datafusion::logical_expr::LogicalPlan;
use datafusion::prelude::SessionContext;
use datafusion::sql::parser::Statement;
use datafusion::sql::planner::IdentNormalizer;
use datafusion::sql::sqlparser::ast;
use pyo3::prelude::*;

use crate::errors::exception;
use crate::runtime::wait;
use crate::source::Source;

tokio::task_local! {
    static VARIABLES: Variables;
}

/// The variables of a statement by their names in SQL.
#[derive(Clone, Default)]
pub(crate) struct Variables(HashMap<String, Arc<dyn TableProvider>>);

impl Variables {
    /// Asks `find` for each name of the statement that no table has. It gives the object of a name,
    /// or None.
    pub fn of(
        py: Python<'_>,
        session: &SessionContext,
        state: &SessionState,
        statement: &Statement,
        find: &Py<PyAny>,
    ) -> PyResult<Variables> {
        let (mut found, created) = (HashMap::new(), created_table(statement));
        for name in state.resolve_table_references(statement).map_err(exception)? {
            let TableReference::Bare { table } = &name else { continue };
            if session.table_exist(name.clone()).map_err(exception)? {
                continue;
            }
            let source = find.bind(py).call1((table.as_ref(),)).and_then(|object| match object.is_none() {
                true => Ok(None),
                false => Source::of(session, &object).map(Some),
            });
            match source {
                Ok(Some(source)) => _ = found.insert(table.to_string(), wait(py, source.into_table(session))?),
                Ok(None) => {}
                // A variable that is no table may have the name of a new one.
                Err(_) if created.as_deref() == Some(&**table) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(Variables(found))
    }

    /// The plan of a statement, which may read the variables and not write to them.
    pub async fn plan(self, state: &SessionState, statement: Statement) -> Result<LogicalPlan> {
        let names: Vec<String> = self.0.keys().cloned().collect();
        let plan = VARIABLES.scope(self, state.statement_to_plan(statement)).await?;
        if let LogicalPlan::Dml(dml) = &plan
            && let TableReference::Bare { table } = &dml.table_name
            && names.iter().any(|name| **name == **table)
        {
            return plan_err!("{table} is a variable of Python, and no table that SQL can change: register a table first");
        }
        Ok(plan)
    }
}

/// The new table of a statement, for names without a schema.
fn created_table(statement: &Statement) -> Option<String> {
    let name = match statement {
        Statement::Statement(statement) => match statement.as_ref() {
            ast::Statement::CreateTable(created) => &created.name,
            _ => return None,
        },
        Statement::CreateExternalTable(created) => &created.name,
        _ => return None,
    };
    match name.0.as_slice() {
        [part] => part.as_ident().map(|ident| IdentNormalizer::default().normalize(ident.clone())),
        _ => None,
    }
}

/// Lets a session find tables among variables.
pub(crate) fn install(session: &SessionContext) {
    let catalogs = Arc::clone(session.state().catalog_list());
    session.register_catalog_list(Arc::new(DynamicFileCatalog::new(catalogs, Arc::new(Finder))));
}

#[derive(Debug)]
struct Finder;

#[async_trait]
impl UrlTableFactory for Finder {
    async fn try_new(&self, name: &str) -> Result<Option<Arc<dyn TableProvider>>> {
        // Outside of a statement there are none.
        Ok(VARIABLES.try_with(|variables| variables.0.get(name).cloned()).ok().flatten())
    }
}
