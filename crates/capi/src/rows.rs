// SPDX-License-Identifier: Apache-2.0
//! A query's rows in host memory, as an Arrow C stream.
//!
//! The stream of arrow-rs would put a prefix for arrow's kind of error before a message.

use std::ffi::{CString, c_char, c_int};
use std::ptr;
use std::sync::Arc;

use arrow::ffi::{FFI_ArrowArray, FFI_ArrowSchema};
use arrow::ffi_stream::FFI_ArrowArrayStream;
use arrow_device::schema;
use datafusion::arrow::array::{Array, StructArray};
use datafusion::execution::SendableRecordBatchStream;
use datafusion::physical_plan::ExecutionPlan;
use futures::StreamExt;
use futures::future::BoxFuture;

use crate::boundary::catch_panics;
use crate::cancel::unless_cancelled;
use crate::context::Context;
use crate::error::{DEVICEFUSION_OUT_OF_MEMORY, Failure, Result};

/// Pulls batches of a query on the calling thread.
pub(crate) struct HostRows {
    rows: SendableRecordBatchStream,
    cancelled: BoxFuture<'static, ()>,
    /// The errno and the message of the last failure. Later calls for a batch repeat it.
    failure: Option<(c_int, CString)>,
    /// Keeps the plan alive, so that `devicefusion_query_progress` finds it.
    _plan: Arc<dyn ExecutionPlan>,
    context: Arc<Context>,
}

/// C may use a stream on any thread.
const _: () = {
    const fn is_send<T: Send>() {}
    is_send::<HostRows>();
};

impl HostRows {
    pub fn new(
        context: Arc<Context>,
        plan: Arc<dyn ExecutionPlan>,
        rows: SendableRecordBatchStream,
        cancelled: BoxFuture<'static, ()>,
    ) -> Self {
        Self { rows, cancelled, failure: None, _plan: plan, context }
    }

    /// The stream that C reads.
    pub fn into_stream(self) -> FFI_ArrowArrayStream {
        FFI_ArrowArrayStream {
            get_schema: Some(get_schema),
            get_next: Some(get_next),
            get_last_error: Some(get_last_error),
            release: Some(release),
            private_data: Box::into_raw(Box::new(self)).cast(),
        }
    }

    fn schema(&self) -> Result<FFI_ArrowSchema> {
        Ok(schema::export_schema(&self.rows.schema())?)
    }

    /// The next batch; a released array at the end.
    fn next_batch(&mut self) -> Result<FFI_ArrowArray> {
        let next = async { Ok(self.rows.next().await.transpose()?) };
        let batch = self.context.session()?.block_on(unless_cancelled("the query", &mut self.cancelled, next))?;
        Ok(batch.map_or_else(FFI_ArrowArray::empty, |batch| FFI_ArrowArray::new(&StructArray::from(batch).to_data())))
    }

    /// Keeps a failure for the stream and for the context. Returns its errno.
    fn fail(&mut self, Failure { code, message }: Failure) -> c_int {
        // A C string ends at a NUL.
        let message = message.replace('\0', "");
        let errno = if code == DEVICEFUSION_OUT_OF_MEMORY { libc::ENOMEM } else { libc::EINVAL };
        self.failure = Some((errno, CString::new(message.clone()).unwrap_or_default()));
        self.context.errors.keep(message);
        errno
    }
}

/// # Safety
/// `stream` is a live stream of this module, which one thread uses at a time.
unsafe fn rows<'a>(stream: *mut FFI_ArrowArrayStream) -> &'a mut HostRows {
    // SAFETY: `into_stream` made the private data, and `release` alone frees it.
    unsafe { &mut *(*stream).private_data.cast::<HostRows>() }
}

/// # Safety
/// As [`rows`]; `out` can be written.
unsafe extern "C" fn get_schema(stream: *mut FFI_ArrowArrayStream, out: *mut FFI_ArrowSchema) -> c_int {
    // SAFETY: this function's own condition.
    let rows = unsafe { rows(stream) };
    match catch_panics(|| rows.schema()) {
        Ok(schema) => {
            // SAFETY: this function's own condition.
            unsafe { out.write(schema) };
            0
        }
        Err(failure) => rows.fail(failure),
    }
}

/// # Safety
/// As [`rows`]; `out` can be written.
unsafe extern "C" fn get_next(stream: *mut FFI_ArrowArrayStream, out: *mut FFI_ArrowArray) -> c_int {
    // SAFETY: this function's own condition.
    let rows = unsafe { rows(stream) };
    if let Some((errno, _)) = &rows.failure {
        return *errno;
    }
    match catch_panics(|| rows.next_batch()) {
        Ok(batch) => {
            // SAFETY: this function's own condition.
            unsafe { out.write(batch) };
            0
        }
        Err(failure) => rows.fail(failure),
    }
}

/// # Safety
/// As [`rows`].
unsafe extern "C" fn get_last_error(stream: *mut FFI_ArrowArrayStream) -> *const c_char {
    // SAFETY: this function's own condition.
    let rows = unsafe { rows(stream) };
    rows.failure.as_ref().map_or(ptr::null(), |(_, message)| message.as_ptr())
}

/// # Safety
/// As [`rows`]; the stream is not used afterwards.
unsafe extern "C" fn release(stream: *mut FFI_ArrowArrayStream) {
    // SAFETY: this function's own condition. The write drops nothing.
    unsafe {
        let rows = Box::from_raw((*stream).private_data.cast::<HostRows>());
        stream.write(FFI_ArrowArrayStream::empty());
        drop(rows);
    }
}
