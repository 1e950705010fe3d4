// SPDX-License-Identifier: Apache-2.0
//! DataFusion's errors as Python exceptions.

use datafusion::arrow::error::ArrowError;
use datafusion::common::DataFusionError;
use devicefusion::{error_text, is_device_error};
use pyo3::exceptions::{
    PyFileNotFoundError, PyMemoryError, PyNotImplementedError, PyOSError, PyOverflowError, PyRuntimeError, PyStopIteration,
    PyValueError, PyZeroDivisionError,
};
use pyo3::{PyErr, Python, create_exception};

create_exception!(devicefusion, ExecutionError, PyRuntimeError, "A query failed while it ran.");
create_exception!(
    devicefusion,
    DeviceError,
    ExecutionError,
    "The device, its driver or its compiler has failed, or there is no device."
);

/// The exception for an error. One that a callback of Python raised comes back as it was.
pub(crate) fn exception(error: DataFusionError) -> PyErr {
    let text = error_text(&error);
    match error.find_root() {
        DataFusionError::External(cause) if let Some(raised) = cause.downcast_ref::<PyErr>() => {
            Python::attach(|py| raised.clone_ref(py))
        }
        DataFusionError::ResourcesExhausted(_) => PyMemoryError::new_err(text),
        DataFusionError::Plan(what) | DataFusionError::Execution(what) if lacks_device(what) => DeviceError::new_err(text),
        DataFusionError::Execution(what) if is_of_name(what, " already exists") => {
            PyValueError::new_err(format!("{text}: drop it first, or choose another name"))
        }
        DataFusionError::Execution(what) if is_of_name(what, " doesn't exist.") => PyValueError::new_err(text),
        DataFusionError::SQL(..)
        | DataFusionError::Plan(_)
        | DataFusionError::SchemaError(..)
        | DataFusionError::Configuration(_) => PyValueError::new_err(text),
        DataFusionError::NotImplemented(_) => PyNotImplementedError::new_err(text),
        DataFusionError::IoError(_) => PyOSError::new_err(text),
        DataFusionError::ObjectStore(cause) if matches!(cause.as_ref(), object_store::Error::NotFound { .. }) => {
            PyFileNotFoundError::new_err(text)
        }
        DataFusionError::ObjectStore(_) => PyOSError::new_err(text),
        DataFusionError::ArrowError(cause, _) => of_arrow(cause, text),
        DataFusionError::Internal(what) if let Some(url) = url_without_store(what) => {
            PyValueError::new_err(format!("there is no object store for {url}: call register_object_store first"))
        }
        _ if is_device_error(&error) => DeviceError::new_err(text),
        _ => ExecutionError::new_err(text),
    }
}

/// The URL of a path whose object store is not registered. DataFusion has no variant for it.
fn url_without_store(what: &str) -> Option<&str> {
    what.strip_prefix("No suitable object store found for ")?.split_whitespace().next()?.strip_suffix('.')
}

/// Whether the cause of an error is a missing device. The engine has no variant for it, but these
/// words.
fn lacks_device(what: &str) -> bool {
    let begins = ["device ", "device.selector = ", "device.platform = ", "device.fallback = error and there is no device"];
    let words = ["a table of device memory needs a device", " has lost its context to a fault"];
    begins.iter().any(|begin| what.starts_with(begin)) || words.iter().any(|words| what.contains(words))
}

/// Whether an error is of a name in a statement. DataFusion finds it as the statement runs, and has
/// no variant for it.
fn is_of_name(what: &str, end: &str) -> bool {
    let kinds = ["Table ", "The table ", "External table ", "View ", "Schema ", "Catalog "];
    what.ends_with(end) && kinds.iter().any(|kind| what.starts_with(kind))
}

fn of_arrow(error: &ArrowError, text: String) -> PyErr {
    match error {
        ArrowError::DivideByZero => PyZeroDivisionError::new_err(text),
        ArrowError::ArithmeticOverflow(_) => PyOverflowError::new_err(text),
        ArrowError::MemoryError(_) => PyMemoryError::new_err(text),
        ArrowError::CastError(_) | ArrowError::ParseError(_) | ArrowError::SchemaError(_) => PyValueError::new_err(text),
        ArrowError::IoError(..) => PyOSError::new_err(text),
        _ => ExecutionError::new_err(text),
    }
}

/// The exception for an error of an Arrow interface.
pub(crate) fn interface_exception(error: arrow_device::Error) -> PyErr {
    let text = error.to_string();
    match error {
        arrow_device::Error::OutOfMemory(_) => PyMemoryError::new_err(text),
        arrow_device::Error::Invalid(_) | arrow_device::Error::Unsupported(_) => PyValueError::new_err(text),
        arrow_device::Error::Foreign { .. } | arrow_device::Error::Other(_) => ExecutionError::new_err(text),
    }
}

/// The exception for an error of the device.
pub(crate) fn device_exception(error: device::Error) -> PyErr {
    match error.is_out_of_memory() {
        true => PyMemoryError::new_err(error.to_string()),
        false => DeviceError::new_err(error.to_string()),
    }
}

/// The exception for an error of device columns.
pub(crate) fn columnar_exception(error: columnar::Error) -> PyErr {
    match error {
        columnar::Error::Device(error) => device_exception(error),
        error => PyValueError::new_err(error.to_string()),
    }
}

/// An exception of Python as a query's error.
pub(crate) fn query_error(py: Python<'_>, raised: PyErr) -> DataFusionError {
    if !raised.is_instance_of::<PyStopIteration>(py) {
        return DataFusionError::External(Box::new(raised));
    }
    // It would end the loop over the query's rows, as in a generator (PEP 479).
    let error = PyRuntimeError::new_err("a function that a query calls raised StopIteration");
    error.set_cause(py, Some(raised));
    DataFusionError::External(Box::new(error))
}
