// SPDX-License-Identifier: Apache-2.0
//! An [ADBC](https://arrow.apache.org/adbc/) driver: SQL on devices, loaded by any ADBC driver manager.
//!
//! The C library has it, with the entry point [`devicefusion_adbc_init`]. In Rust the driver is [`DeviceFusionDriver`]:
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
//! A database is a catalog and a device; its connections share both. Options are DataFusion's settings and ours under their
//! own names, such as `device.selector`: of a database before it is opened, of a connection at any time. Rows of a bulk ingest
//! go to a table in the host's memory, or to the device where the target schema is `device`.

mod cancel;
mod connection;
mod database;
mod error;
mod ffi;
mod ingest;
mod objects;
mod reader;
mod statement;
mod threads;

pub use connection::DeviceFusionConnection;
pub use database::{DeviceFusionDatabase, DeviceFusionDriver};
pub use ffi::devicefusion_adbc_init;
pub use statement::DeviceFusionStatement;
