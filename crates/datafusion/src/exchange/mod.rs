// SPDX-License-Identifier: Apache-2.0
//! Device data in and out, through the Arrow C Device data interface.
//!
//! In: [`DeviceStreamTable`] and [`AsyncDeviceStreamTable`] are tables over streams of device
//! arrays that somebody else produces. Out: [`DeviceResult`] is a query's rows on the device, as
//! batches, as an `ArrowDeviceArrayStream`, or pushed into an `ArrowAsyncDeviceStreamHandler`. Rows
//! stay on the device all the way, where producer, session and consumer share one.

mod result;
mod source;
mod table;

pub use result::DeviceResult;
pub(crate) use source::Source;
pub use table::{AsyncDeviceStreamTable, DeviceStreamTable};

use datafusion::common::{DataFusionError, exec_datafusion_err, resources_datafusion_err};

/// A failure of the other side, for a query.
pub(crate) fn of_query(error: arrow_device::Error) -> DataFusionError {
    match error {
        arrow_device::Error::OutOfMemory(text) => resources_datafusion_err!("{text}"),
        error => exec_datafusion_err!("{error}"),
    }
}

/// A query's failure, for the other side, which sees an errno and the text.
fn of_device(error: &DataFusionError) -> arrow_device::Error {
    let text = error.strip_backtrace();
    match error.find_root() {
        DataFusionError::ResourcesExhausted(_) => arrow_device::Error::OutOfMemory(text),
        DataFusionError::NotImplemented(_) => arrow_device::Error::Unsupported(text),
        DataFusionError::Plan(_) | DataFusionError::SQL(..) | DataFusionError::SchemaError(..) => {
            arrow_device::Error::Invalid(text)
        }
        _ => arrow_device::Error::Other(text),
    }
}
