// SPDX-License-Identifier: Apache-2.0
//! Connections to one ADBC database.

use std::time::Duration;

use adbc_core::options::{OptionDatabase, OptionValue};
use adbc_core::{Connection, Database, Driver, Optionable, Statement};
use arrow::array::RecordBatch;
use devicefusion_adbc::{DeviceFusionConnection, DeviceFusionDatabase, DeviceFusionDriver};

use super::{Engine, Session, cancelling, settings};

struct AdbcEngine(DeviceFusionDatabase);

pub fn open(limit: usize) -> Box<dyn Engine> {
    let options = settings(limit).map(|(key, value)| (OptionDatabase::from(key), OptionValue::from(value)));
    Box::new(AdbcEngine(DeviceFusionDriver::default().new_database_with_opts(options).unwrap()))
}

impl Engine for AdbcEngine {
    fn connect(&self) -> Box<dyn Session + '_> {
        Box::new(AdbcSession(self.0.new_connection().unwrap()))
    }

    fn report(&self) -> serde_json::Value {
        serde_json::from_str(&self.0.get_option_string("devicefusion.report".into()).unwrap()).unwrap()
    }

    fn trim(&self) {}
}

struct AdbcSession(DeviceFusionConnection);

impl Session for AdbcSession {
    fn run(&mut self, sql: &str, cancel: Option<Duration>) -> Result<Vec<RecordBatch>, String> {
        let mut statement = self.0.new_statement().unwrap();
        statement.set_sql_query(sql).unwrap();
        let handle = statement.get_cancel_handle();
        let cancel_statement = move || handle.try_cancel().unwrap();
        cancelling(cancel, cancel_statement, || {
            let reader = statement.execute().map_err(|error| error.message)?;
            reader.collect::<Result<_, _>>().map_err(|error| error.to_string())
        })
    }
}
