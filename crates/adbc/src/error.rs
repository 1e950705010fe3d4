// SPDX-License-Identifier: Apache-2.0
//! DataFusion's errors as ADBC's.

use adbc_core::error::{Error, Status};
use datafusion::common::{DataFusionError, SchemaError};

/// An error of a kind.
pub(crate) fn error(status: Status, message: impl Into<String>) -> Error {
    // C ends a text where a NUL is, and whoever makes one of it here panics.
    Error::with_message_and_status(message.into().replace('\0', ""), status)
}

/// What this driver does not do.
pub(crate) fn not_implemented<T>(what: &str) -> Result<T, Error> {
    Err(error(Status::NotImplemented, format!("{what} is not implemented")))
}

/// The same words, and the nearest kind.
pub(crate) fn of_datafusion(failure: DataFusionError) -> Error {
    let status = match failure.find_root() {
        DataFusionError::SQL(..) | DataFusionError::Plan(_) | DataFusionError::Configuration(_) => Status::InvalidArguments,
        DataFusionError::SchemaError(schema, _) => match schema.as_ref() {
            SchemaError::FieldNotFound { .. } => Status::NotFound,
            _ => Status::InvalidArguments,
        },
        DataFusionError::NotImplemented(_) => Status::NotImplemented,
        DataFusionError::IoError(_) | DataFusionError::ObjectStore(_) => Status::IO,
        DataFusionError::ArrowError(..) | DataFusionError::ParquetError(_) => Status::InvalidData,
        DataFusionError::Execution(_) => Status::Unknown,
        _ => Status::Internal,
    };
    error(status, failure.strip_backtrace())
}
