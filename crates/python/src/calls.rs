// SPDX-License-Identifier: Apache-2.0
//! Calls of Python by threads of queries.
//!
//! A call of Python at the end of its interpreter kills the thread or hangs. So Python calls
//! [`end`] before, and that waits for the calls under way. Later ones fail.
//!
//! Threads of Python with the flag `daemon` are parked instead of a return to the interpreter. It
//! would end them by unwinding frames of Rust, which Rust does not allow.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{LazyLock, OnceLock};
use std::thread::ThreadId;
use std::time::{Duration, Instant};

use datafusion::common::exec_err;
use pyo3::prelude::*;
use tokio::sync::watch;

use crate::errors::{exception, query_error};
use crate::runtime::is_forked;

/// The longest wait at the end of the interpreter: a producer may never give its next batch.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Number of calls under way, in the process that has their threads.
static CALLS: AtomicUsize = AtomicUsize::new(0);
/// Whether the interpreter ends.
static IS_ENDING: LazyLock<watch::Sender<bool>> = LazyLock::new(|| watch::Sender::new(false));
/// The thread that ends it.
static LAST: OnceLock<ThreadId> = OnceLock::new();

/// A call of Python by a thread that is not Python's.
pub(crate) struct Call;

impl Call {
    /// `None` at the end of the interpreter.
    pub fn begin() -> Option<Call> {
        CALLS.fetch_add(1, Ordering::SeqCst);
        let call = Call;
        (!*IS_ENDING.borrow()).then_some(call)
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        CALLS.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Runs `work` without the interpreter, and returns to it. At its end the thread is parked.
pub(crate) fn detached<T: Send>(py: Python<'_>, work: impl FnOnce() -> T + Send) -> T {
    let (done, _call) = py.detach(|| (work(), return_or(|| ())));
    done
}

/// A call that returns to the interpreter. At its end the thread calls `stop` and is parked.
pub(crate) fn return_or(stop: impl FnOnce()) -> Call {
    let call = Call::begin();
    let is_last = LAST.get().is_some_and(|last| *last == std::thread::current().id());
    match call {
        Some(call) => call,
        None if is_last => {
            CALLS.fetch_add(1, Ordering::SeqCst);
            Call
        }
        None => {
            stop();
            loop {
                std::thread::park();
            }
        }
    }
}

/// Completes at the end of the interpreter.
pub(crate) async fn ended() {
    // The sender is static.
    _ = IS_ENDING.subscribe().wait_for(|is_ending| *is_ending).await;
}

/// Calls Python on a thread of a query. `None` at the end of the interpreter.
pub(crate) fn with_python<T>(work: impl FnOnce(Python<'_>) -> T) -> Option<T> {
    let _call = Call::begin()?;
    Some(Python::attach(work))
}

/// As [`with_python`], for work of a query. Its exceptions are the query's errors.
pub(crate) fn calling<T>(work: impl FnOnce(Python<'_>) -> PyResult<T>) -> datafusion::common::Result<T> {
    let called = with_python(|py| work(py).map_err(|raised| query_error(py, raised)));
    called.unwrap_or_else(|| exec_err!("{ENDED}"))
}

/// Calls `done` with a result and None, or with None and the exception. Does nothing at the end of
/// the interpreter.
pub(crate) fn tell<T>(done: &Py<PyAny>, result: datafusion::common::Result<T>)
where
    T: for<'py> IntoPyObject<'py>,
{
    with_python(|py| {
        let called = match result {
            Ok(result) => done.call1(py, (result, py.None())),
            Err(error) => done.call1(py, (py.None(), exception(error))),
        };
        if let Err(error) = called {
            error.write_unraisable(py, Some(done.bind(py)));
        }
    });
}

/// The message of a call at the end of the interpreter.
pub(crate) const ENDED: &str = "the interpreter of Python ends";

/// Waits for the calls under way. There is none afterwards.
#[pyfunction]
pub(crate) fn end(py: Python<'_>) {
    _ = LAST.set(std::thread::current().id());
    IS_ENDING.send_replace(true);
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
