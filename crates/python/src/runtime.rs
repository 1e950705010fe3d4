// SPDX-License-Identifier: Apache-2.0
//! The threads of queries, and calls that wait for them.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::{Arc, LazyLock};
use std::task::{Context, Poll, Wake};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use datafusion::common::{DataFusionError, Result};
use devicefusion::{STACK_BYTES, with_enough_stack};
use pyo3::exceptions::PyRuntimeError;
use pyo3::{PyErr, PyResult, Python};
use tokio::runtime::{Builder, Handle, Runtime};

use crate::calls::{detached, return_or};
use crate::errors::exception;

/// How often a waiting call looks for Ctrl-C.
const SIGNALS: Duration = Duration::from_millis(50);

/// The message of a wait on a thread of a query.
pub(crate) const WITHIN_QUERY: &str = "a function that a query calls cannot wait for another query";

/// The threads of all sessions, and the process that they belong to.
struct Threads {
    process: u32,
    runtime: std::io::Result<Runtime>,
}

static THREADS: LazyLock<Threads> = LazyLock::new(|| {
    let mut builder = Builder::new_multi_thread();
    let builder = builder.enable_all().thread_name("devicefusion").thread_stack_size(STACK_BYTES);
    Threads { process: std::process::id(), runtime: builder.build() }
});

/// Whether this process was forked from that of the threads.
pub(crate) fn is_forked() -> bool {
    THREADS.process != std::process::id()
}

/// The threads of queries.
///
/// # Errors
/// In a forked process, which has none of them.
pub(crate) fn runtime() -> PyResult<&'static Runtime> {
    if is_forked() {
        return Err(PyRuntimeError::new_err(
            "this process was forked from one that used devicefusion, and has none of its threads; start processes with \
             multiprocessing's method 'spawn' or 'forkserver'",
        ));
    }
    THREADS.runtime.as_ref().map_err(|error| PyRuntimeError::new_err(format!("there are no threads for queries: {error}")))
}

/// As [`runtime`], for work of a query.
pub(crate) fn query_runtime() -> Result<&'static Runtime> {
    runtime().map_err(|error| DataFusionError::External(Box::new(error)))
}

/// Waits for work of a query. Other Python threads run meanwhile, and Ctrl-C drops the work.
pub(crate) fn wait<T: Send>(py: Python<'_>, work: impl Future<Output = Result<T>> + Send) -> PyResult<T> {
    wait_for(py, work, exception)
}

/// As [`wait`], for work with errors of another type.
pub(crate) fn wait_for<T: Send, E: Send>(
    py: Python<'_>,
    work: impl Future<Output = Result<T, E>> + Send,
    exception: impl FnOnce(E) -> PyErr,
) -> PyResult<T> {
    wait_watched(py, work, exception, |py| py.check_signals())
}

/// As [`wait_for`], with a look at the work from time to time. An exception of `look` drops the
/// work.
pub(crate) fn wait_watched<T: Send, E: Send>(
    py: Python<'_>,
    work: impl Future<Output = Result<T, E>> + Send,
    exception: impl FnOnce(E) -> PyErr,
    mut look: impl FnMut(Python<'_>) -> PyResult<()>,
) -> PyResult<T> {
    if Handle::try_current().is_ok() {
        return Err(PyRuntimeError::new_err(WITHIN_QUERY));
    }
    let runtime = runtime()?;
    // Boxed: futures of whole plans have many kilobytes.
    let mut work = Some(Box::pin(work));
    let drop_work = |work: &mut Option<_>| {
        let _entered = runtime.enter();
        *work = None;
    };
    loop {
        let (turn, call) = py.detach(|| {
            let turn = work.as_mut().and_then(|work| with_enough_stack(|| wait_until(Instant::now() + SIGNALS, runtime, work)));
            (turn, return_or(|| drop_work(&mut work)))
        });
        drop(call);
        if let Some(done) = turn {
            return done.map_err(exception);
        }
        if let Err(interrupt) = look(py) {
            detached(py, || drop_work(&mut work));
            return Err(interrupt);
        }
    }
}

/// Polls work on this thread. `None` if it is not done at `end`.
///
/// `timeout` of tokio would set a timer for each wait, and wake another thread by that. Each poll
/// enters the runtime, for its budget makes busy operators yield.
fn wait_until<T>(end: Instant, runtime: &Runtime, work: &mut Pin<Box<impl Future<Output = T>>>) -> Option<T> {
    let waker = Arc::new(Unpark(thread::current())).into();
    let mut context = Context::from_waker(&waker);
    loop {
        let polled = runtime.block_on(poll_fn(|_| Poll::Ready(work.as_mut().poll(&mut context))));
        if let Poll::Ready(done) = polled {
            return Some(done);
        }
        let left = end.checked_duration_since(Instant::now())?;
        thread::park_timeout(left);
    }
}

/// Wakes a thread of [`wait_until`].
struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}
