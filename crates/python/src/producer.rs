// SPDX-License-Identifier: Apache-2.0
//! Calls of Python by threads of queries: functions, callbacks, and streams that Python produces.
//!
//! A call of Python at the end of its interpreter kills the thread or hangs. So Python calls
//! [`end`] before, and that waits for the calls under way. Later ones fail.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use arrow_device::ffi::FFI_ArrowDeviceArray;
use arrow_device::stream::{ArrowDeviceArrayStreamReader, export_iterator};
use arrow_device::{Error, ImportedArray, Result};
use datafusion::common::{DataFusionError, exec_datafusion_err};
use pyo3::prelude::*;

use crate::runtime::is_forked;

/// The longest wait at the end of the interpreter: a producer may never give its next batch.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Number of calls under way, in the process that has their threads.
static CALLS: AtomicUsize = AtomicUsize::new(0);
/// Whether the interpreter ends.
static IS_ENDING: AtomicBool = AtomicBool::new(false);

/// A call of Python by a thread that is not Python's.
struct Call;

impl Call {
    /// `None` at the end of the interpreter.
    fn begin() -> Option<Call> {
        CALLS.fetch_add(1, Ordering::SeqCst);
        let call = Call;
        (!IS_ENDING.load(Ordering::SeqCst)).then_some(call)
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        CALLS.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Calls Python on a thread of a query. `None` at the end of the interpreter.
pub(crate) fn with_python<T>(work: impl FnOnce(Python<'_>) -> T) -> Option<T> {
    let _call = Call::begin()?;
    Some(Python::attach(work))
}

/// The error of a call at the end of the interpreter.
pub(crate) fn ended() -> DataFusionError {
    exec_datafusion_err!("{ENDED}")
}

const ENDED: &str = "the interpreter of Python ends";

/// Waits for the calls under way. There is none afterwards.
#[pyfunction]
pub(crate) fn end(py: Python<'_>) {
    IS_ENDING.store(true, Ordering::SeqCst);
    // A forked child has none of the threads.
    if is_forked() {
        return;
    }
    let latest = Instant::now() + TIMEOUT;
    py.detach(|| {
        while CALLS.load(Ordering::SeqCst) > 0 && Instant::now() < latest {
            std::thread::sleep(Duration::from_millis(1));
        }
    });
}

/// The stream of a producer, which any thread may read.
pub(crate) fn guarded(reader: ArrowDeviceArrayStreamReader) -> Result<ArrowDeviceArrayStreamReader> {
    let (field, device_type) = (reader.field().as_ref().clone(), reader.device_type());
    let stream = export_iterator(&field, device_type, Guarded(Some(reader)))?;
    // SAFETY: the stream was just exported. Its arrays were checked as they came.
    unsafe { ArrowDeviceArrayStreamReader::try_new(stream) }
}

/// `None` only while it drops.
struct Guarded(Option<ArrowDeviceArrayStreamReader>);

impl Iterator for Guarded {
    type Item = Result<FFI_ArrowDeviceArray>;

    fn next(&mut self) -> Option<Self::Item> {
        let Some(_call) = Call::begin() else { return Some(Err(Error::Other(ENDED.into()))) };
        Some(self.0.as_mut()?.next()?.map(ImportedArray::into_ffi))
    }
}

impl Drop for Guarded {
    fn drop(&mut self) {
        let reader = self.0.take();
        match Call::begin() {
            Some(_call) => drop(reader),
            // The process ends, too.
            None => std::mem::forget(reader),
        }
    }
}
