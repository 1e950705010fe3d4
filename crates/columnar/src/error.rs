// SPDX-License-Identifier: Apache-2.0
//! Errors of columns, which name the column.

use std::sync::Arc;

use arrow::datatypes::{DataType, i256};
use arrow::error::ArrowError;

/// Result of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Failure to describe, upload, download or exchange a column.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The type is not supported on the device.
    #[error("column \"{column}\": {data_type} is not supported on the device")]
    Unsupported {
        /// Name of the column.
        column: String,
        /// Its type.
        data_type: DataType,
    },
    /// A host column differs from the type that its source declares.
    #[error("column \"{column}\": expected {expected}, got {actual}")]
    Type {
        /// Name of the column.
        column: String,
        /// Type that the source declares.
        expected: DataType,
        /// Type in the batch.
        actual: DataType,
    },
    /// NULLs in a column declared non-nullable.
    #[error("column \"{column}\" is declared non-nullable but {null_count} of {rows} rows are NULL")]
    Nulls {
        /// Name of the column.
        column: String,
        /// Number of NULLs.
        null_count: usize,
        /// Rows of the batch.
        rows: usize,
    },
    /// A value out of the range of the column's layout.
    #[error("column \"{column}\" ({data_type}): {value} does not fit {carrier}")]
    Range {
        /// Name of the column.
        column: String,
        /// Its type.
        data_type: DataType,
        /// The stored value: decimals unscaled, times in their unit.
        value: i256,
        /// Physical type of the layout.
        carrier: &'static str,
    },
    /// A batch exceeds a limit of its types.
    #[error("column \"{column}\" ({data_type}): {actual} {what}, limit {limit}; lower device.batch_rows")]
    TooLarge {
        /// Name of the column.
        column: String,
        /// Its type.
        data_type: DataType,
        /// The counted quantity.
        what: &'static str,
        /// Its value.
        actual: usize,
        /// Its limit.
        limit: usize,
    },
    /// The parts of a column or batch are inconsistent, which is a bug of the caller.
    #[error("{0}")]
    Malformed(String),
    /// Failure of the device.
    #[error(transparent)]
    Device(#[from] device::Error),
    /// Failure to import or export a device array.
    #[error(transparent)]
    Exchange(#[from] arrow_device::Error),
    /// Failure of arrow-rs.
    #[error(transparent)]
    Arrow(Arc<ArrowError>),
}

impl From<ArrowError> for Error {
    fn from(error: ArrowError) -> Self {
        Error::Arrow(Arc::new(error))
    }
}
