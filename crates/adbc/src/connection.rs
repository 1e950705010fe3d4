// SPDX-License-Identifier: Apache-2.0
//! Connections: sessions that share a database's catalog and device, each with its own settings.

use std::collections::HashSet;
use std::sync::Arc;

use adbc_core::error::{Result, Status};
use adbc_core::options::{InfoCode, ObjectDepth, OptionConnection, OptionValue};
use adbc_core::{CancelHandle, Connection, Optionable};
use arrow::datatypes::Schema;
use datafusion::common::TableReference;
use datafusion::execution::session_state::SessionStateBuilder;
use datafusion::prelude::SessionContext;
use devicefusion::with_file_tables;

use crate::cancel::{CancelSignal, Canceller};
use crate::error::{error, from_datafusion, not_implemented};
use crate::objects;
use crate::reader::BoxedReader;
use crate::runtime::DatabaseRuntime;
use crate::settings::Settings;
use crate::statement::DeviceFusionStatement;

/// A session of a database.
pub struct DeviceFusionConnection {
    runtime: Arc<DatabaseRuntime>,
    session: SessionContext,
    canceller: Canceller,
}

impl DeviceFusionConnection {
    pub(crate) fn new(runtime: Arc<DatabaseRuntime>, database: &SessionContext) -> Result<DeviceFusionConnection> {
        // The catalogs and the device are shared, the settings copied.
        let state = SessionStateBuilder::new_from_existing(database.state()).build();
        let session = with_file_tables(SessionContext::new_with_state(state)).map_err(from_datafusion)?;
        Ok(DeviceFusionConnection { runtime, session, canceller: Canceller::default() })
    }

    fn settings(&self) -> Settings<'_> {
        Settings(&self.session)
    }
}

/// The DataFusion setting of an ADBC option.
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
            OptionConnection::ReadOnly => not_implemented("a read-only connection"),
            OptionConnection::IsolationLevel => not_implemented("an isolation level"),
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
        Ok(DeviceFusionStatement::new(Arc::clone(&self.runtime), self.session.clone(), self.canceller.clone()))
    }

    fn get_cancel_handle(&self) -> Box<dyn CancelHandle> {
        Box::new(self.canceller.clone())
    }

    fn get_info(&self, codes: Option<HashSet<InfoCode>>) -> Result<BoxedReader> {
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
    ) -> Result<BoxedReader> {
        let filter = objects::ObjectFilter { depth, catalog, schema, table, table_types, column };
        self.runtime.block_on(&mut CancelSignal::of(&[&self.canceller]), objects::objects(&self.session, &filter))?
    }

    fn get_table_schema(&self, catalog: Option<&str>, schema: Option<&str>, table: &str) -> Result<Schema> {
        let name = match (catalog, schema) {
            (Some(catalog), Some(schema)) => TableReference::full(catalog, schema, table),
            (None, Some(schema)) => TableReference::partial(schema, table),
            (None, None) => TableReference::bare(table),
            (Some(_), None) => return Err(error(Status::InvalidArguments, "the schema is missing between catalog and table")),
        };
        let mut signal = CancelSignal::of(&[&self.canceller]);
        let provider = self.runtime.block_on(&mut signal, self.session.table_provider(name.clone()))?;
        let provider = provider.map_err(|_| error(Status::NotFound, format!("there is no table {name}")))?;
        Ok(provider.schema().as_ref().clone())
    }

    fn get_table_types(&self) -> Result<BoxedReader> {
        objects::table_types()
    }

    fn get_statistic_names(&self) -> Result<BoxedReader> {
        not_implemented("statistics")
    }

    fn get_statistics(&self, _: Option<&str>, _: Option<&str>, _: Option<&str>, _: bool) -> Result<BoxedReader> {
        not_implemented("statistics")
    }

    fn commit(&mut self) -> Result<()> {
        Err(error(Status::InvalidState, "there are no transactions: each statement commits itself"))
    }

    fn rollback(&mut self) -> Result<()> {
        Err(error(Status::InvalidState, "there are no transactions: each statement commits itself"))
    }

    fn read_partition(&self, _: impl AsRef<[u8]>) -> Result<BoxedReader> {
        not_implemented("a partitioned result")
    }
}
