// SPDX-License-Identifier: Apache-2.0
//! DataFusion's errors as ADBC errors.

use adbc_core::error::{Error, Status};
use datafusion::common::{DataFusionError, SchemaError};

/// An error with a status.
pub(crate) fn error(status: Status, message: impl Into<String>) -> Error {
    // The exporter panics at a NUL within a message, because it makes a C string of it.
    Error::with_message_and_status(message.into().replace('\0', ""), status)
}

/// Error for a feature that this driver lacks.
pub(crate) fn not_implemented<T>(feature: &str) -> Result<T, Error> {
    Err(error(Status::NotImplemented, format!("{feature} is not implemented")))
}

/// Keeps DataFusion's message and chooses the nearest ADBC status.
pub(crate) fn from_datafusion(failure: DataFusionError) -> Error {
    // An error of the bound rows, which went through an operator.
    if let DataFusionError::External(inner) = failure.find_root()
        && let Some(bound) = inner.downcast_ref::<Error>()
    {
        return error(bound.status, bound.message.clone());
    }
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
