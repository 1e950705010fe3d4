// SPDX-License-Identifier: Apache-2.0
//! Device data in and out, through the Arrow C Device data interface.
//!
//! - In: [`DeviceStreamTable`] and [`AsyncDeviceStreamTable`] are tables over streams of device
//!   arrays of another library.
//! - Out: [`DeviceResult`] is a query's rows on the device: as batches, as an
//!   `ArrowDeviceArrayStream`, or pushed into an `ArrowAsyncDeviceStreamHandler`.
//!
//! Rows stay on the device if producer, session and consumer share it.

mod result;
mod source;
mod table;

pub use result::DeviceResult;
pub(crate) use source::Source;
pub use table::{AsyncDeviceStreamTable, DeviceStreamTable};

use datafusion::common::{DataFusionError, exec_datafusion_err, resources_datafusion_err};

use crate::error::error_text;

/// Converts an error of the other library to the query's.
pub(crate) fn query_error(error: arrow_device::Error) -> DataFusionError {
    match error {
        arrow_device::Error::OutOfMemory(message) => resources_datafusion_err!("{message}"),
        error => exec_datafusion_err!("{error}"),
    }
}

/// Converts a query's error for the other library, which gets an errno and the message.
fn exchange_error(error: &DataFusionError) -> arrow_device::Error {
    let message = error_text(error);
    match error.find_root() {
        DataFusionError::ResourcesExhausted(_) => arrow_device::Error::OutOfMemory(message),
        DataFusionError::NotImplemented(_) => arrow_device::Error::Unsupported(message),
        DataFusionError::Plan(_) | DataFusionError::SQL(..) | DataFusionError::SchemaError(..) => {
            arrow_device::Error::Invalid(message)
        }
        _ => arrow_device::Error::Other(message),
    }
}
