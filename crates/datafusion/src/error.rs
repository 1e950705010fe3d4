// SPDX-License-Identifier: Apache-2.0
//! Conversion of errors of lower crates to DataFusion's, with the name of the failing operator.

use std::fmt;

use datafusion::common::{DataFusionError, exec_datafusion_err};

/// Message for a resident table whose device met a fault.
pub(crate) const LOST: &str = "the rows of a resident table were lost with the device's context in a fault; \
     DROP TABLE it and create it again";

/// Converts a device error. Out of memory stays `ResourcesExhausted`.
pub(crate) fn device_error(operator: &str, error: device::Error) -> DataFusionError {
    let operator = operator.to_string();
    match error {
        device::Error::OutOfMemory { .. } | device::Error::TooLarge { .. } => {
            DataFusionError::ResourcesExhausted(format!("{operator}: {error}"))
        }
        device::Error::CompileFailed { device, kernel_source, options, log, .. } => {
            DataFusionError::External(Box::new(device::Error::CompileFailed { device, operator, kernel_source, options, log }))
        }
        error => DataFusionError::External(Box::new(OperatorError { operator, error: error.into() })),
    }
}

/// Converts an error of a kernel operator.
pub(crate) fn op_error(operator: &str, error: kernels::Error) -> DataFusionError {
    match error {
        kernels::Error::Device(error) => device_error(operator, error),
        kernels::Error::Columnar(error) => columnar_error(operator, error),
        // DataFusion's own message.
        kernels::Error::AverageOverflow => exec_datafusion_err!("{error}"),
        kernels::Error::Unsupported(_) | kernels::Error::Internal(_) => {
            DataFusionError::External(Box::new(OperatorError { operator: operator.to_string(), error }))
        }
        error => exec_datafusion_err!("{operator}: {error}"),
    }
}

/// Converts an error of device columns.
pub(crate) fn columnar_error(operator: &str, error: columnar::Error) -> DataFusionError {
    match error {
        columnar::Error::Device(error) => device_error(operator, error),
        error => exec_datafusion_err!("{operator}: {error}"),
    }
}

/// Why the device refuses an operator whatever its rows are: the host can run it. `None` for errors
/// of rows, memory and drivers, and for compiler options that the user chose.
pub(crate) fn refusal(error: &DataFusionError) -> Option<String> {
    let DataFusionError::External(external) = error.find_root() else { return None };
    let refuses = match external.downcast_ref::<device::Error>() {
        Some(device::Error::CompileFailed { options, .. }) => options.is_empty(),
        Some(_) => false,
        None => external.downcast_ref::<OperatorError>().is_some_and(|error| {
            matches!(
                error.error,
                kernels::Error::Unsupported(_)
                    | kernels::Error::Internal(_)
                    | kernels::Error::Device(device::Error::Launch { .. })
            )
        }),
    };
    refuses.then(|| external.to_string())
}

/// An error and the operator that met it.
#[derive(Debug)]
struct OperatorError {
    operator: String,
    error: kernels::Error,
}

impl fmt::Display for OperatorError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.operator, self.error)
    }
}

impl std::error::Error for OperatorError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.error)
    }
}
