// SPDX-License-Identifier: Apache-2.0
//! What can go wrong with columns, by name of the column.

use std::sync::Arc;

use arrow::datatypes::{DataType, i256};
use arrow::error::ArrowError;

/// Result of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a column could not be described, uploaded or downloaded.
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
        /// What the source declares.
        expected: DataType,
        /// What the batch has.
        actual: DataType,
    },
    /// NULLs in a column that may have none.
    #[error("column \"{column}\" is declared non-nullable but {null_count} of {rows} rows are NULL")]
    Nulls {
        /// Name of the column.
        column: String,
        /// Number of NULLs.
        null_count: usize,
        /// Rows of the batch.
        rows: usize,
    },
    /// A value outside what the column's layout can hold.
    #[error("column \"{column}\" ({data_type}): {value} does not fit {carrier}")]
    Range {
        /// Name of the column.
        column: String,
        /// Its type.
        data_type: DataType,
        /// The value as stored: decimals unscaled, times in their unit.
        value: i256,
        /// What should hold it.
        carrier: &'static str,
    },
    /// More than one batch can address.
    #[error("column \"{column}\" ({data_type}): {actual} {what}, limit {limit}; lower device.batch_rows")]
    TooLarge {
        /// Name of the column.
        column: String,
        /// Its type.
        data_type: DataType,
        /// What there is too much of, with its unit.
        what: &'static str,
        /// How much of it there is.
        actual: usize,
        /// How much there may be.
        limit: usize,
    },
    /// The parts of a column or batch do not fit together: a fault of the caller.
    #[error("{0}")]
    Malformed(String),
    /// The device refused or failed.
    #[error(transparent)]
    Device(#[from] device::Error),
    /// A device array of somebody else cannot be used, or none can be made.
    #[error(transparent)]
    Exchange(#[from] arrow_device::Error),
    /// Arrow refused.
    #[error(transparent)]
    Arrow(Arc<ArrowError>),
}

impl From<ArrowError> for Error {
    fn from(error: ArrowError) -> Self {
        Error::Arrow(Arc::new(error))
    }
}
