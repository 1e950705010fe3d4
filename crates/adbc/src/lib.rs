// SPDX-License-Identifier: Apache-2.0
//! An [ADBC](https://arrow.apache.org/adbc/) driver: SQL on devices, for any ADBC driver manager.
//!
//! The C library exports it by the entry point [`devicefusion_adbc_init`]. In Rust the driver is
//! [`DeviceFusionDriver`]:
//!
//! ```
//! use adbc_core::{Connection, Database, Driver, Statement};
//! use devicefusion_adbc::DeviceFusionDriver;
//!
//! let mut connection = DeviceFusionDriver::default().new_database()?.new_connection()?;
//! let mut statement = connection.new_statement()?;
//! statement.set_sql_query("SELECT sum(value) AS total FROM generate_series(1, 100)")?;
//! let batches = statement.execute()?.collect::<Result<Vec<_>, _>>()?;
//! assert_eq!(batches[0].num_rows(), 1);
//! # Ok::<(), adbc_core::error::Error>(())
//! ```
//!
//! - **Databases.** A database is a catalog and a device. Its connections share both.
//! - **Options** are the settings of DataFusion and DeviceFusion by their names, such as
//!   `device.selector`. A database takes them before it has connections, a connection at any time.
//!   `devicefusion.report`, read only, is the report of the device as JSON.
//! - **Execution.** `execute` runs INSERT, UPDATE, DELETE, COPY, DDL and SET to their end. Queries
//!   are lazy: the reader runs them.
//! - **Bulk ingest** writes to a table in host memory, or in device memory if the target schema is
//!   `device`.

mod bind;
mod cancel;
mod connection;
mod database;
#[cfg(test)]
#[path = "../../arrow-device/tests/doubling/mod.rs"]
mod doubling;
mod effect;
mod error;
mod ffi;
mod ingest;
mod objects;
mod parameters;
mod reader;
mod runtime;
mod settings;
mod statement;

pub use connection::DeviceFusionConnection;
pub use database::{DeviceFusionDatabase, DeviceFusionDriver};
pub use effect::{counts_written_rows, writes_rows};
pub use ffi::{AdbcDriverInit, devicefusion_adbc_init};
pub use statement::DeviceFusionStatement;
