// SPDX-License-Identifier: Apache-2.0
//! What went wrong: the code that a function returns, and the text that is kept until C takes it.

use std::cell::RefCell;
use std::ffi::c_int;

use datafusion::arrow::error::ArrowError;
use datafusion::common::DataFusionError;
use parking_lot::Mutex;

/// Returned by a function that did what it says.
pub const DEVICEFUSION_SUCCESS: c_int = 0;
/// Returned where something outside of the program failed (a device, a driver, a file), or a query was cancelled.
pub const DEVICEFUSION_FAILURE: c_int = 1;
/// Returned where the program is at fault: bad SQL, a value that the query cannot compute with, a pointer that is NULL or
/// has been freed, a call out of order.
pub const DEVICEFUSION_PROGRAM_ERROR: c_int = 2;
/// Returned where memory ran out, that of the device or the host's limit. Smaller pieces or a higher limit may help.
pub const DEVICEFUSION_OUT_OF_MEMORY: c_int = 3;

pub(crate) type Result<T> = std::result::Result<T, Failure>;

/// A failure on its way to C.
#[derive(Debug)]
pub(crate) struct Failure {
    pub code: c_int,
    pub text: String,
}

impl Failure {
    /// The program's own fault.
    pub fn program(text: impl Into<String>) -> Self {
        Self { code: DEVICEFUSION_PROGRAM_ERROR, text: text.into() }
    }

    /// Memory of the host ran out.
    pub fn out_of_memory(text: impl Into<String>) -> Self {
        Self { code: DEVICEFUSION_OUT_OF_MEMORY, text: text.into() }
    }

    /// Anything that has no code of its own.
    pub fn other(text: impl Into<String>) -> Self {
        Self { code: DEVICEFUSION_FAILURE, text: text.into() }
    }
}

impl From<DataFusionError> for Failure {
    fn from(error: DataFusionError) -> Self {
        use DataFusionError::*;
        if let Some(url) = without_store(&error) {
            return Self::program(format!(
                "{url} cannot be reached: tables are files of this machine, by path or file:// URL; copy them there, or register \
                 their rows as a stream"
            ));
        }
        let code = match error.find_root() {
            ResourcesExhausted(_) => DEVICEFUSION_OUT_OF_MEMORY,
            SQL(..) | Plan(_) | SchemaError(..) | Configuration(_) | NotImplemented(_) | Execution(_) => {
                DEVICEFUSION_PROGRAM_ERROR
            }
            ArrowError(error, _) => of_arrow(error),
            External(error) => error.downcast_ref().map_or(DEVICEFUSION_FAILURE, of_arrow_device),
            _ => DEVICEFUSION_FAILURE,
        };
        Self { code, text: error.strip_backtrace() }
    }
}

/// The URL that DataFusion has no store for, which it takes for a bug of its own.
fn without_store(error: &DataFusionError) -> Option<&str> {
    let DataFusionError::Internal(text) = error.find_root() else { return None };
    text.strip_prefix("No suitable object store found for ")?.split(". See `").next()
}

impl From<ArrowError> for Failure {
    fn from(error: ArrowError) -> Self {
        Self { code: of_arrow(&error), text: error.to_string() }
    }
}

/// What Arrow's kernels refuse, values brought about.
fn of_arrow(error: &ArrowError) -> c_int {
    match error {
        ArrowError::MemoryError(_) => DEVICEFUSION_OUT_OF_MEMORY,
        ArrowError::IoError(..) | ArrowError::IpcError(_) | ArrowError::ExternalError(_) => DEVICEFUSION_FAILURE,
        _ => DEVICEFUSION_PROGRAM_ERROR,
    }
}

impl From<device::Error> for Failure {
    fn from(error: device::Error) -> Self {
        let code = match &error {
            device::Error::Config { .. } => DEVICEFUSION_PROGRAM_ERROR,
            error if error.is_out_of_memory() => DEVICEFUSION_OUT_OF_MEMORY,
            _ => DEVICEFUSION_FAILURE,
        };
        Self { code, text: error.to_string() }
    }
}

impl From<arrow_device::Error> for Failure {
    fn from(error: arrow_device::Error) -> Self {
        Self { code: of_arrow_device(&error), text: error.to_string() }
    }
}

/// What the other side gave may be wrong; where its callbacks fail, something behind them has.
fn of_arrow_device(error: &arrow_device::Error) -> c_int {
    match error {
        arrow_device::Error::Invalid(_) | arrow_device::Error::Unsupported(_) => DEVICEFUSION_PROGRAM_ERROR,
        arrow_device::Error::OutOfMemory(_) => DEVICEFUSION_OUT_OF_MEMORY,
        arrow_device::Error::Foreign { .. } | arrow_device::Error::Other(_) => DEVICEFUSION_FAILURE,
    }
}

impl From<std::io::Error> for Failure {
    fn from(error: std::io::Error) -> Self {
        Self::other(error.to_string())
    }
}

/// The text of the last failure of a context.
#[derive(Debug, Default)]
pub(crate) struct LastError(Mutex<Option<String>>);

impl LastError {
    pub fn keep(&self, text: String) {
        *self.0.lock() = Some(text);
    }

    pub fn take(&self) -> Option<String> {
        self.0.lock().take()
    }
}

thread_local! {
    /// Of calls on this thread that had no context to keep it.
    static HOMELESS: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// Keeps a text for this thread.
pub(crate) fn keep_on_thread(text: String) {
    // A thread that is ending has nobody who would ask.
    _ = HOMELESS.try_with(|last| last.replace(Some(text)));
}

/// The text that was kept for this thread.
pub(crate) fn take_from_thread() -> Option<String> {
    HOMELESS.try_with(RefCell::take).ok().flatten()
}
