// SPDX-License-Identifier: Apache-2.0
//! Conversion of errors of lower crates to DataFusion's, with the name of the failing operator, and
//! the text of an error.

use std::collections::HashSet;
use std::fmt;

use datafusion::arrow::error::ArrowError;
use datafusion::common::{Column, DataFusionError, SchemaError, exec_datafusion_err};

/// Name of the physical optimizer rule. DataFusion puts it before the rule's errors.
pub(crate) const RULE: &str = "DevicePlanner";

/// Name of the analyzer rule.
pub(crate) const ANALYZER_RULE: &str = "TableChanges";

/// The text of an error for users.
///
/// It is DataFusion's, without backtraces, names of optimizer rules, and the prefixes for errors
/// that are not DataFusion's. Of several errors, such as those of a SELECT's expressions, it has
/// all.
///
/// # Examples
/// ```
/// use datafusion::common::DataFusionError;
///
/// let error = DataFusionError::External("no device".into()).context("opening a table");
/// assert_eq!(error.to_string(), "opening a table\ncaused by\nExternal error: no device");
/// assert_eq!(devicefusion::error_text(&error), "opening a table\ncaused by\nno device");
/// ```
pub fn error_text(error: &DataFusionError) -> String {
    match error {
        DataFusionError::Context(rule, cause) if rule == RULE || rule == ANALYZER_RULE => error_text(cause),
        DataFusionError::Context(what, cause) => format!("{what}\ncaused by\n{}", error_text(cause)),
        DataFusionError::Diagnostic(_, cause) => error_text(cause),
        DataFusionError::Shared(cause) => error_text(cause),
        DataFusionError::Collection(errors) => {
            let mut texts: Vec<String> = errors.iter().map(error_text).collect();
            // A wrong name may stand in several expressions.
            let mut seen = HashSet::new();
            texts.retain(|text| seen.insert(text.clone()));
            texts.join("\n")
        }
        DataFusionError::External(cause) => text_of_external(cause.as_ref()),
        DataFusionError::SchemaError(cause, _) => match cause.as_ref() {
            SchemaError::FieldNotFound { field, valid_fields } if valid_fields.len() > MOST_COLUMNS => {
                format!("Schema error: {}", text_of_missing(field, valid_fields))
            }
            _ => error.strip_backtrace(),
        },
        DataFusionError::ArrowError(cause, _) => match cause.as_ref() {
            ArrowError::ExternalError(cause) => text_of_external(cause.as_ref()),
            _ => error.strip_backtrace(),
        },
        error => error.strip_backtrace(),
    }
}

/// Columns that an error lists. Of more it names the closest ones.
const MOST_COLUMNS: usize = 20;

fn text_of_missing(missing: &Column, columns: &[Column]) -> String {
    let similarity = |column: &Column| strsim::jaro_winkler(&missing.name, &column.name);
    let mut closest: Vec<&Column> = columns.iter().collect();
    closest.sort_by(|a, b| similarity(b).total_cmp(&similarity(a)));
    let closest: Vec<String> = closest.iter().take(3).map(|column| column.quoted_flat_name()).collect();
    let missing = missing.quoted_flat_name();
    format!("No field named {missing}. Of {} columns the closest are {}.", columns.len(), closest.join(", "))
}

/// The text of an error that is not DataFusion's, or is one of DataFusion's in disguise.
fn text_of_external(cause: &(dyn std::error::Error + 'static)) -> String {
    if let Some(error) = cause.downcast_ref::<DataFusionError>() {
        return error_text(error);
    }
    match cause.downcast_ref::<ArrowError>() {
        Some(ArrowError::ExternalError(cause)) => text_of_external(cause.as_ref()),
        _ => cause.to_string(),
    }
}

/// Whether the device, its driver or its compiler has failed, rather than the query.
///
/// Memory that runs out is `ResourcesExhausted`, and no failure of the device.
///
/// # Examples
/// ```
/// use datafusion::common::exec_datafusion_err;
///
/// assert!(!devicefusion::is_device_error(&exec_datafusion_err!("Divide by zero")));
/// ```
pub fn is_device_error(error: &DataFusionError) -> bool {
    let DataFusionError::External(cause) = error.find_root() else { return false };
    cause.is::<device::Error>() || cause.is::<OperatorError>()
}

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
