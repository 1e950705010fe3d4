// SPDX-License-Identifier: Apache-2.0
//! Result streams that keep the ADBC error of a failure.
//!
//! An Arrow C stream has an errno and a message for a failure. A driver manager asks the driver for
//! the error itself, by `AdbcErrorFromArrayStream`.

use std::cell::RefCell;
use std::ffi::{CString, c_char, c_int, c_void};
use std::ptr;

use adbc_core::constants::ADBC_ERROR_VENDOR_CODE_PRIVATE_DATA;
use adbc_core::error::{AdbcStatusCode, Error};
use adbc_ffi::FFI_AdbcError;
use arrow::ffi::{FFI_ArrowArray, FFI_ArrowSchema};
use arrow::ffi_stream::FFI_ArrowArrayStream;

thread_local! {
    /// The failure of the reader that this thread calls last. A stream of arrow-rs passes on its
    /// message alone.
    static FAILURE: RefCell<Option<Error>> = const { RefCell::new(None) };
}

/// Notes the failure of a reader, for the stream that calls it.
pub(crate) fn note_failure(failure: &Error) {
    FAILURE.set(Some(failure.clone()));
}

/// The errno of a stream without a callback.
const EINVAL: c_int = 22;

/// The private data of a stream of this module.
struct ResultStream {
    /// The stream of `adbc_ffi`.
    inner: FFI_ArrowArrayStream,
    failure: Option<Failure>,
}

/// The failure of the last call.
struct Failure {
    status: AdbcStatusCode,
    message: CString,
    error: FFI_AdbcError,
}

impl Failure {
    fn new(error: Error) -> Failure {
        let status = error.status.into();
        let message = CString::new(error.message.replace('\0', "")).unwrap_or_default();
        let mut exported = FFI_AdbcError::try_from(error).unwrap_or_else(Into::into);
        // The error has the members of ADBC 1.1.
        exported.vendor_code = ADBC_ERROR_VENDOR_CODE_PRIVATE_DATA;
        Failure { status, message, error: exported }
    }
}

/// A stream with the batches of `inner`, which is one of arrow-rs over a reader of this crate.
pub(super) fn with_failures(inner: FFI_ArrowArrayStream) -> FFI_ArrowArrayStream {
    let stream = Box::new(ResultStream { inner, failure: None });
    FFI_ArrowArrayStream {
        get_schema: Some(get_schema),
        get_next: Some(get_next),
        get_last_error: Some(get_last_error),
        release: Some(release),
        private_data: Box::into_raw(stream).cast::<c_void>(),
    }
}

/// `AdbcErrorFromArrayStream`: the error of the last failing call, until the next call or the
/// release. NULL without one, and for streams of others.
///
/// # Safety
/// `stream` is NULL or a live stream; `status` is NULL or can be written.
pub(super) unsafe extern "C" fn error_from_array_stream(
    stream: *mut FFI_ArrowArrayStream,
    status: *mut AdbcStatusCode,
) -> *const FFI_AdbcError {
    // SAFETY: this function's own condition.
    let is_own = unsafe { stream.as_ref() }
        .and_then(|stream| stream.release)
        .is_some_and(|function| ptr::fn_addr_eq(function, release as unsafe extern "C" fn(*mut FFI_ArrowArrayStream)));
    if !is_own {
        return ptr::null();
    }
    // SAFETY: the stream is one of this module.
    let Some(failure) = &mut (unsafe { state(stream) }).failure else { return ptr::null() };
    if !status.is_null() {
        // SAFETY: this function's own condition.
        unsafe { status.write(failure.status) };
    }
    // Driver managers write their own pointer into it.
    &raw mut failure.error
}

/// # Safety
/// `stream` is a live stream of this module, which one thread uses at a time.
unsafe fn state<'a>(stream: *mut FFI_ArrowArrayStream) -> &'a mut ResultStream {
    // SAFETY: `with_failures` made the private data, and `release` alone frees it.
    unsafe { &mut *(*stream).private_data.cast::<ResultStream>() }
}

/// # Safety
/// As [`state`]; `schema` can be written.
unsafe extern "C" fn get_schema(stream: *mut FFI_ArrowArrayStream, schema: *mut FFI_ArrowSchema) -> c_int {
    // SAFETY: this function's own condition. The inner stream is live.
    unsafe { call(stream, |inner| inner.get_schema.map(|function| function(inner, schema))) }
}

/// # Safety
/// As [`state`]; `batch` can be written.
unsafe extern "C" fn get_next(stream: *mut FFI_ArrowArrayStream, batch: *mut FFI_ArrowArray) -> c_int {
    // SAFETY: this function's own condition. The inner stream is live.
    unsafe { call(stream, |inner| inner.get_next.map(|function| function(inner, batch))) }
}

/// Calls the inner stream, and keeps what its reader notes on failure.
///
/// # Safety
/// As [`state`].
unsafe fn call(stream: *mut FFI_ArrowArrayStream, function: impl FnOnce(&mut FFI_ArrowArrayStream) -> Option<c_int>) -> c_int {
    // SAFETY: this function's own condition.
    let state = unsafe { state(stream) };
    (state.failure, _) = (None, FAILURE.take());
    let code = function(&mut state.inner).unwrap_or(EINVAL);
    if code != 0 {
        state.failure = FAILURE.take().map(Failure::new);
    }
    code
}

/// # Safety
/// As [`state`].
unsafe extern "C" fn get_last_error(stream: *mut FFI_ArrowArrayStream) -> *const c_char {
    // SAFETY: this function's own condition.
    let state = unsafe { state(stream) };
    match (&state.failure, state.inner.get_last_error) {
        (Some(failure), _) => failure.message.as_ptr(),
        // SAFETY: the inner stream is live.
        (None, Some(function)) => unsafe { function(&raw mut state.inner) },
        (None, None) => ptr::null(),
    }
}

/// # Safety
/// As [`state`]; the stream is not used afterwards.
unsafe extern "C" fn release(stream: *mut FFI_ArrowArrayStream) {
    // SAFETY: this function's own condition. The inner stream's `Drop` releases it.
    unsafe {
        drop(Box::from_raw((*stream).private_data.cast::<ResultStream>()));
        (*stream).private_data = ptr::null_mut();
        (*stream).release = None;
    }
}
