// SPDX-License-Identifier: Apache-2.0
//! The driver and its databases.

use std::sync::Arc;

use adbc_core::error::Result;
use adbc_core::options::{OptionConnection, OptionDatabase, OptionValue};
use adbc_core::{Database, Driver, Optionable};
use datafusion::prelude::SessionContext;

use crate::connection::DeviceFusionConnection;
use crate::error::from_datafusion;
use crate::runtime::DatabaseRuntime;
use crate::settings::Settings;

/// The driver, which makes databases.
#[derive(Debug, Default)]
#[non_exhaustive]
pub struct DeviceFusionDriver {}

impl Driver for DeviceFusionDriver {
    type DatabaseType = DeviceFusionDatabase;

    fn new_database(&mut self) -> Result<DeviceFusionDatabase> {
        DeviceFusionDatabase::new()
    }

    fn new_database_with_opts(
        &mut self,
        options: impl IntoIterator<Item = (OptionDatabase, OptionValue)>,
    ) -> Result<DeviceFusionDatabase> {
        let mut database = DeviceFusionDatabase::new()?;
        options.into_iter().try_for_each(|(key, value)| database.set_option(key, value))?;
        Ok(database)
    }
}

/// An in-memory catalog and a device, which opens with the first query.
pub struct DeviceFusionDatabase {
    runtime: Arc<DatabaseRuntime>,
    session: SessionContext,
}

impl DeviceFusionDatabase {
    fn new() -> Result<DeviceFusionDatabase> {
        let session = devicefusion::session().map_err(from_datafusion)?;
        Ok(DeviceFusionDatabase { runtime: Arc::new(DatabaseRuntime::start()?), session })
    }

    fn settings(&self) -> Settings<'_> {
        Settings(&self.session)
    }
}

impl Optionable for DeviceFusionDatabase {
    type Option = OptionDatabase;

    fn set_option(&mut self, key: OptionDatabase, value: OptionValue) -> Result<()> {
        match (&key, &value) {
            // Driver managers may pass an empty one.
            (OptionDatabase::Uri, OptionValue::String(uri)) if uri.is_empty() => Ok(()),
            _ => self.settings().set_by_program(key.as_ref(), value),
        }
    }

    fn get_option_string(&self, key: OptionDatabase) -> Result<String> {
        self.settings().get(key.as_ref())
    }

    fn get_option_bytes(&self, key: OptionDatabase) -> Result<Vec<u8>> {
        self.settings().get(key.as_ref()).map(String::into_bytes)
    }

    fn get_option_int(&self, key: OptionDatabase) -> Result<i64> {
        self.settings().get_number(key.as_ref())
    }

    fn get_option_double(&self, key: OptionDatabase) -> Result<f64> {
        self.settings().get_number(key.as_ref())
    }
}

impl Database for DeviceFusionDatabase {
    type ConnectionType = DeviceFusionConnection;

    fn new_connection(&self) -> Result<DeviceFusionConnection> {
        DeviceFusionConnection::new(Arc::clone(&self.runtime), &self.session)
    }

    fn new_connection_with_opts(
        &self,
        options: impl IntoIterator<Item = (OptionConnection, OptionValue)>,
    ) -> Result<DeviceFusionConnection> {
        let mut connection = self.new_connection()?;
        options.into_iter().try_for_each(|(key, value)| connection.set_option(key, value))?;
        Ok(connection)
    }
}
