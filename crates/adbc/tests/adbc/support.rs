// SPDX-License-Identifier: Apache-2.0
//! Databases on the test device, and results as Rust values.

use std::sync::Arc;

use adbc_core::error::Result;
use adbc_core::options::{OptionDatabase, OptionValue};
use adbc_core::{Connection, Database, Driver, Statement};
use arrow::array::{ArrayRef, AsArray, Int64Array, RecordBatch};
use arrow::datatypes::Int64Type;
use devicefusion_adbc::{DeviceFusionConnection, DeviceFusionDatabase, DeviceFusionDriver};

/// A database on the test device. Operators that the device does not support fail.
pub fn database() -> DeviceFusionDatabase {
    let selector = device::testing::config().unwrap().selector.to_string();
    let options = [("device.selector", selector.as_str()), ("device.cost", "always"), ("device.fallback", "error")];
    let options = options.map(|(key, value)| (OptionDatabase::from(key), OptionValue::from(value)));
    DeviceFusionDriver::default().new_database_with_opts(options).unwrap()
}

pub fn connection() -> DeviceFusionConnection {
    database().new_connection().unwrap()
}

pub fn query(connection: &mut DeviceFusionConnection, sql: &str) -> Result<Vec<RecordBatch>> {
    let mut statement = connection.new_statement()?;
    statement.set_sql_query(sql)?;
    statement.execute()?.map(|batch| Ok(batch?)).collect()
}

pub fn numbers(batches: &[RecordBatch]) -> Vec<i64> {
    batches.iter().flat_map(|batch| batch.column(0).as_primitive::<Int64Type>().values().to_vec()).collect()
}

pub fn ints(values: &[i64]) -> RecordBatch {
    RecordBatch::try_from_iter([("x", Arc::new(Int64Array::from(values.to_vec())) as ArrayRef)]).unwrap()
}
