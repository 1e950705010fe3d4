// SPDX-License-Identifier: Apache-2.0
//! DataFusion's errors as ADBC errors, with statuses and SQLSTATEs.

use adbc_core::error::{Error, Status};
use arrow::error::ArrowError;
use datafusion::common::{DataFusionError, SchemaError};
use devicefusion::error_text;

/// An error with a status, and the SQLSTATE of all errors of that status.
pub(crate) fn error(status: Status, message: impl Into<String>) -> Error {
    let sqlstate = match status {
        Status::NotImplemented => "0A000",
        Status::NotFound => "42704",
        Status::AlreadyExists => "42710",
        Status::InvalidArguments => "22023",
        Status::InvalidState => "55000",
        Status::InvalidData => "22000",
        Status::Cancelled => "57014",
        Status::IO => "58030",
        Status::Internal => "XX000",
        _ => "HY000",
    };
    with_sqlstate(status, sqlstate, message)
}

fn with_sqlstate(status: Status, sqlstate: &str, message: impl Into<String>) -> Error {
    // The exporter panics at a NUL within a message, because it makes a C string of it.
    let mut error = Error::with_message_and_status(message.into().replace('\0', ""), status);
    for (to, from) in error.sqlstate.iter_mut().zip(sqlstate.bytes()) {
        *to = from as _;
    }
    error
}

/// Error for a feature that this driver lacks.
pub(crate) fn not_implemented<T>(feature: &str) -> Result<T, Error> {
    Err(error(Status::NotImplemented, format!("{feature} is not implemented")))
}

/// Keeps DataFusion's message, and chooses the nearest status and SQLSTATE.
pub(crate) fn from_datafusion(failure: DataFusionError) -> Error {
    let message = error_text(&failure);
    let (status, sqlstate) = match failure.find_root() {
        // An error of the bound rows, which went through an operator.
        DataFusionError::External(inner) if let Some(bound) = inner.downcast_ref::<Error>() => return bound.clone(),
        DataFusionError::SQL(..) => (Status::InvalidArguments, "42601"),
        DataFusionError::Plan(_) => (Status::InvalidArguments, "42000"),
        DataFusionError::SchemaError(schema, _) => match schema.as_ref() {
            SchemaError::FieldNotFound { .. } => (Status::NotFound, "42703"),
            _ => (Status::InvalidArguments, "42702"),
        },
        DataFusionError::ArrowError(inner, _) => of_arrow(inner),
        DataFusionError::Configuration(_) => return error(Status::InvalidArguments, message),
        DataFusionError::NotImplemented(_) => return error(Status::NotImplemented, message),
        DataFusionError::IoError(_) | DataFusionError::ObjectStore(_) => return error(Status::IO, message),
        DataFusionError::ParquetError(_) => return error(Status::InvalidData, message),
        // The message of AVG, on the host and on devices.
        DataFusionError::Execution(text) if text.starts_with("Arithmetic Overflow") => (Status::InvalidData, "22003"),
        DataFusionError::Execution(_) => return error(Status::Unknown, message),
        DataFusionError::ResourcesExhausted(_) => OUT_OF_MEMORY,
        _ => return error(Status::Internal, message),
    };
    with_sqlstate(status, sqlstate, message)
}

/// ADBC has no status for it. In Python this one is an `OperationalError`, as PEP 249 says.
const OUT_OF_MEMORY: (Status, &str) = (Status::IO, "53200");

fn of_arrow(failure: &ArrowError) -> (Status, &'static str) {
    match failure {
        ArrowError::DivideByZero => (Status::InvalidData, "22012"),
        ArrowError::ArithmeticOverflow(_) => (Status::InvalidData, "22003"),
        ArrowError::CastError(_) | ArrowError::ParseError(_) => (Status::InvalidData, "22018"),
        ArrowError::MemoryError(_) => OUT_OF_MEMORY,
        ArrowError::IoError(..) => (Status::IO, "58030"),
        _ => (Status::InvalidData, "22000"),
    }
}

#[cfg(test)]
mod tests {
    use datafusion::common::{exec_datafusion_err, plan_datafusion_err, resources_datafusion_err};

    use super::*;

    fn parts(error: &Error) -> (Status, String) {
        (error.status, error.sqlstate.iter().map(|byte| char::from(*byte as u8)).collect())
    }

    #[test]
    fn errors_have_a_status_and_an_sqlstate() {
        let of = |failure| parts(&from_datafusion(failure));
        assert_eq!(of(plan_datafusion_err!("no table")), (Status::InvalidArguments, "42000".into()));
        assert_eq!(of(resources_datafusion_err!("no memory")), (Status::IO, "53200".into()));
        let rows = DataFusionError::ArrowError(Box::new(ArrowError::DivideByZero), None).context("adding");
        assert_eq!(of(rows), (Status::InvalidData, "22012".into()));
        let average = exec_datafusion_err!("Arithmetic Overflow in AvgAccumulator");
        assert_eq!(of(average), (Status::InvalidData, "22003".into()));
        assert_eq!(of(exec_datafusion_err!("no luck")).0, Status::Unknown);
        assert_eq!(parts(&error(Status::Cancelled, "the query was cancelled")), (Status::Cancelled, "57014".into()));
    }

    #[test]
    fn an_error_of_bound_rows_stays_as_it_is() {
        let bound = error(Status::InvalidArguments, "the Arrow data cannot be used");
        let failure = DataFusionError::External(Box::new(bound.clone())).context("reading");
        assert_eq!(from_datafusion(failure), bound);
    }
}
