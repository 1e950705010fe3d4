// SPDX-License-Identifier: Apache-2.0
//! Connections: sessions over a database's catalog and device, with settings of their own.

use std::collections::HashSet;
use std::str::FromStr;
use std::sync::Arc;

use adbc_core::error::{Result, Status};
use adbc_core::options::{InfoCode, ObjectDepth, OptionConnection, OptionValue};
use adbc_core::{CancelHandle, Connection, Optionable};
use arrow::array::RecordBatchReader;
use arrow::datatypes::Schema;
use datafusion::common::TableReference;
use datafusion::execution::session_state::SessionStateBuilder;
use datafusion::prelude::SessionContext;

use crate::cancel::{Cancel, Cancelled};
use crate::error::{error, not_implemented, of_datafusion};
use crate::objects;
use crate::statement::DeviceFusionStatement;
use crate::threads::Threads;

/// Rows that a caller pulls.
pub(crate) type Rows = Box<dyn RecordBatchReader + Send + 'static>;

/// A session of a database.
pub struct DeviceFusionConnection {
    threads: Arc<Threads>,
    session: SessionContext,
    cancel: Cancel,
}

impl DeviceFusionConnection {
    pub(crate) fn new(threads: Arc<Threads>, database: &SessionContext) -> DeviceFusionConnection {
        // The catalogs and the device are shared, the settings copied.
        let state = SessionStateBuilder::new_from_existing(database.state()).build();
        DeviceFusionConnection { threads, session: SessionContext::new_with_state(state), cancel: Cancel::default() }
    }

    fn settings(&self) -> Settings<'_> {
        Settings(&self.session)
    }
}

/// The settings of a session, under the names that SQL's `SET` knows.
pub(crate) struct Settings<'a>(pub &'a SessionContext);

impl Settings<'_> {
    pub fn set(&self, key: &str, value: OptionValue) -> Result<()> {
        let text = match value {
            OptionValue::String(text) => text,
            OptionValue::Int(number) => number.to_string(),
            OptionValue::Double(number) => number.to_string(),
            _ => return Err(error(Status::InvalidArguments, format!("the option {key} is no bytes"))),
        };
        self.get(key)?;
        let state = self.0.state_ref();
        state.write().config_mut().options_mut().set(key, &text).map_err(of_datafusion)
    }

    pub fn get(&self, key: &str) -> Result<String> {
        let entries = self.0.state_ref().read().config_options().entries();
        match entries.into_iter().find(|entry| entry.key == key) {
            Some(entry) => Ok(entry.value.unwrap_or_default()),
            None => Err(error(Status::NotFound, format!("there is no option {key}"))),
        }
    }

    pub fn get_number<T: FromStr>(&self, key: &str) -> Result<T> {
        let text = self.get(key)?;
        text.parse().map_err(|_| error(Status::NotFound, format!("the option {key} is '{text}', which is no number")))
    }
}

/// The setting behind an option that ADBC names.
fn setting(key: &OptionConnection) -> &str {
    match key {
        OptionConnection::CurrentCatalog => "datafusion.catalog.default_catalog",
        OptionConnection::CurrentSchema => "datafusion.catalog.default_schema",
        other => other.as_ref(),
    }
}

impl Optionable for DeviceFusionConnection {
    type Option = OptionConnection;

    fn set_option(&mut self, key: OptionConnection, value: OptionValue) -> Result<()> {
        match key {
            OptionConnection::AutoCommit if bool::try_from(&value)? => Ok(()),
            OptionConnection::ReadOnly if !bool::try_from(&value)? => Ok(()),
            OptionConnection::AutoCommit => not_implemented("a connection without autocommit"),
            OptionConnection::ReadOnly => not_implemented("a connection that only reads"),
            OptionConnection::IsolationLevel => not_implemented("the choice of an isolation level"),
            key => self.settings().set(setting(&key), value),
        }
    }

    fn get_option_string(&self, key: OptionConnection) -> Result<String> {
        match key {
            OptionConnection::AutoCommit => Ok("true".into()),
            OptionConnection::ReadOnly => Ok("false".into()),
            key => self.settings().get(setting(&key)),
        }
    }

    fn get_option_bytes(&self, key: OptionConnection) -> Result<Vec<u8>> {
        self.get_option_string(key).map(String::into_bytes)
    }

    fn get_option_int(&self, key: OptionConnection) -> Result<i64> {
        self.settings().get_number(setting(&key))
    }

    fn get_option_double(&self, key: OptionConnection) -> Result<f64> {
        self.settings().get_number(setting(&key))
    }
}

impl Connection for DeviceFusionConnection {
    type StatementType = DeviceFusionStatement;

    fn new_statement(&mut self) -> Result<DeviceFusionStatement> {
        Ok(DeviceFusionStatement::new(Arc::clone(&self.threads), self.session.clone(), self.cancel.clone()))
    }

    fn get_cancel_handle(&self) -> Box<dyn CancelHandle> {
        Box::new(self.cancel.clone())
    }

    fn get_info(&self, codes: Option<HashSet<InfoCode>>) -> Result<Rows> {
        objects::info(codes)
    }

    fn get_objects(
        &self,
        depth: ObjectDepth,
        catalog: Option<&str>,
        schema: Option<&str>,
        table: Option<&str>,
        table_types: Option<Vec<&str>>,
        column: Option<&str>,
    ) -> Result<Rows> {
        let wanted = objects::Wanted { depth, catalog, schema, table, table_types, column };
        self.threads.wait(&mut Cancelled::by(&[&self.cancel]), objects::objects(&self.session, &wanted))?
    }

    fn get_table_schema(&self, catalog: Option<&str>, schema: Option<&str>, table: &str) -> Result<Schema> {
        let name = match (catalog, schema) {
            (Some(catalog), Some(schema)) => TableReference::full(catalog, schema, table),
            (None, Some(schema)) => TableReference::partial(schema, table),
            (None, None) => TableReference::bare(table),
            (Some(_), None) => return Err(error(Status::InvalidArguments, "a catalog's table without its schema")),
        };
        let provider = self.threads.wait(&mut Cancelled::by(&[&self.cancel]), self.session.table_provider(name.clone()))?;
        let provider = provider.map_err(|_| error(Status::NotFound, format!("there is no table {name}")))?;
        Ok(provider.schema().as_ref().clone())
    }

    fn get_table_types(&self) -> Result<Rows> {
        objects::table_types()
    }

    fn get_statistic_names(&self) -> Result<Rows> {
        not_implemented("a list of statistics")
    }

    fn get_statistics(&self, _: Option<&str>, _: Option<&str>, _: Option<&str>, _: bool) -> Result<Rows> {
        not_implemented("a list of statistics")
    }

    fn commit(&mut self) -> Result<()> {
        Err(error(Status::InvalidState, "each statement commits itself"))
    }

    fn rollback(&mut self) -> Result<()> {
        Err(error(Status::InvalidState, "each statement commits itself"))
    }

    fn read_partition(&self, _: impl AsRef<[u8]>) -> Result<Rows> {
        not_implemented("a result in partitions")
    }
}
