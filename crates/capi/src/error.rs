// SPDX-License-Identifier: Apache-2.0
//! Failures: the code returned by a function, and the message, kept until C takes it.

use std::cell::RefCell;
use std::ffi::c_int;
use std::sync::atomic::{AtomicU64, Ordering};

use datafusion::arrow::error::ArrowError;
use datafusion::common::DataFusionError;
use devicefusion::error_text;

/// Success.
pub const DEVICEFUSION_SUCCESS: c_int = 0;
/// Something outside of the program failed (a device, a driver, a file), or a query was cancelled.
pub const DEVICEFUSION_FAILURE: c_int = 1;
/// The program is at fault: bad SQL, an invalid value, a call out of order, a NULL or freed
/// pointer.
pub const DEVICEFUSION_PROGRAM_ERROR: c_int = 2;
/// Memory ran out: that of the device, or the host's limit. Smaller batches or a higher limit may
/// help.
pub const DEVICEFUSION_OUT_OF_MEMORY: c_int = 3;

pub(crate) type Result<T> = std::result::Result<T, Failure>;

/// A failure to report to C.
#[derive(Debug)]
pub(crate) struct Failure {
    pub code: c_int,
    pub message: String,
}

impl Failure {
    /// The program is at fault.
    pub fn program(message: impl Into<String>) -> Self {
        Self { code: DEVICEFUSION_PROGRAM_ERROR, message: message.into() }
    }

    /// Host memory ran out.
    pub fn out_of_memory(message: impl Into<String>) -> Self {
        Self { code: DEVICEFUSION_OUT_OF_MEMORY, message: message.into() }
    }

    /// Any other failure.
    pub fn other(message: impl Into<String>) -> Self {
        Self { code: DEVICEFUSION_FAILURE, message: message.into() }
    }
}

impl From<DataFusionError> for Failure {
    fn from(error: DataFusionError) -> Self {
        use DataFusionError::*;
        if let Some(url) = url_without_store(&error) {
            return Self::program(format!(
                "{url} cannot be read: tables are files on this machine, by path or file:// URL; copy the file, or register its rows as a \
                 stream"
            ));
        }
        let code = match error.find_root() {
            ResourcesExhausted(_) => DEVICEFUSION_OUT_OF_MEMORY,
            SQL(..) | Plan(_) | SchemaError(..) | Configuration(_) | NotImplemented(_) | Execution(_) => {
                DEVICEFUSION_PROGRAM_ERROR
            }
            ArrowError(error, _) => code_of_arrow(error),
            External(error) => error.downcast_ref().map_or(DEVICEFUSION_FAILURE, code_of_arrow_device),
            _ => DEVICEFUSION_FAILURE,
        };
        Self { code, message: error_text(&error) }
    }
}

/// The URL of an object store that is not registered. DataFusion reports it as an internal error.
fn url_without_store(error: &DataFusionError) -> Option<&str> {
    let DataFusionError::Internal(message) = error.find_root() else { return None };
    message.strip_prefix("No suitable object store found for ")?.split(". See `").next()
}

impl From<ArrowError> for Failure {
    fn from(error: ArrowError) -> Self {
        Self { code: code_of_arrow(&error), message: error.to_string() }
    }
}

/// Errors of Arrow's kernels come from values, so most of them are the program's.
fn code_of_arrow(error: &ArrowError) -> c_int {
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
        Self { code, message: error.to_string() }
    }
}

impl From<arrow_device::Error> for Failure {
    fn from(error: arrow_device::Error) -> Self {
        Self { code: code_of_arrow_device(&error), message: error.to_string() }
    }
}

/// An invalid struct is the program's fault. A failing callback has some other cause.
fn code_of_arrow_device(error: &arrow_device::Error) -> c_int {
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

/// The last failures of a context, one for each thread, as `errno` is.
#[derive(Debug)]
pub(crate) struct LastErrors {
    /// Key of the context among the messages of a thread; above 0, never used again.
    key: u64,
}

impl LastErrors {
    pub fn new() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        Self { key: NEXT.fetch_add(1, Ordering::Relaxed) }
    }

    /// Keeps a message for this thread.
    pub fn keep(&self, message: String) {
        keep(self.key, message);
    }

    /// Takes the message that was kept for this thread.
    pub fn take(&self) -> Option<String> {
        take(self.key)
    }
}

impl Drop for LastErrors {
    fn drop(&mut self) {
        self.take();
    }
}

/// Most messages that a thread keeps. Then the oldest is dropped, whose context may be freed.
const MOST_KEPT: usize = 64;

/// Key of the failures without a context.
const NO_CONTEXT: u64 = 0;

thread_local! {
    /// Keys and messages of this thread's last failures, the oldest first.
    static MESSAGES: RefCell<Vec<(u64, String)>> = const { RefCell::new(Vec::new()) };
}

fn keep(key: u64, message: String) {
    // At the end of a thread the variable is gone, and no call can ask for it.
    _ = MESSAGES.try_with(|messages| {
        let mut messages = messages.borrow_mut();
        messages.retain(|(kept, _)| *kept != key);
        if messages.len() == MOST_KEPT {
            messages.remove(0);
        }
        messages.push((key, message));
    });
}

fn take(key: u64) -> Option<String> {
    let found = MESSAGES.try_with(|messages| {
        let mut messages = messages.borrow_mut();
        let index = messages.iter().position(|(kept, _)| *kept == key)?;
        Some(messages.remove(index).1)
    });
    found.ok().flatten()
}

/// Keeps a message without a context for this thread.
pub(crate) fn keep_on_thread(message: String) {
    keep(NO_CONTEXT, message);
}

/// Takes the message that [`keep_on_thread`] has kept.
pub(crate) fn take_from_thread() -> Option<String> {
    take(NO_CONTEXT)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_keeps_its_newest_messages() {
        let (old, others) = (LastErrors::new(), [(); MOST_KEPT].map(|()| LastErrors::new()));
        for other in &others {
            other.keep("of another context".to_owned());
        }
        keep_on_thread("of no context".to_owned());
        old.keep("first".to_owned());
        old.keep("second".to_owned());
        assert_eq!(old.take().as_deref(), Some("second"));
        assert_eq!(old.take(), None);
        assert_eq!(take_from_thread().as_deref(), Some("of no context"));
        assert_eq!(others.iter().filter_map(LastErrors::take).count(), MOST_KEPT - 2);
        assert_eq!(MESSAGES.with_borrow(Vec::len), 0);
    }
}
