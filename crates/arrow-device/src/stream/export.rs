// SPDX-License-Identifier: Apache-2.0
//! The producer's side of a device stream.

use std::ffi::{CString, c_char, c_int, c_void};

use arrow::datatypes::Field;
use arrow::ffi::FFI_ArrowSchema;
use futures::Stream;

use super::block::Blocking;
use crate::callback::{c_string, guard};
use crate::ffi::{ArrowDeviceType, FFI_ArrowDeviceArray, FFI_ArrowDeviceArrayStream};
use crate::{Error, Result, schema};

/// Exports an iterator as a device stream.
///
/// - `field` describes every array ([`schema::batch_field`] for record batches), and each array
///   must be of `device_type` (R49).
/// - The iterator is dropped after its end or first error. Later calls repeat that end or error
///   (R60).
/// - A panic in the iterator is an error of the stream.
///
/// # Errors
/// `Unsupported` if C cannot express the field.
///
/// # Examples
/// See [the module](crate::stream).
pub fn export_iterator<I>(field: &Field, device_type: ArrowDeviceType, arrays: I) -> Result<FFI_ArrowDeviceArrayStream>
where
    I: IntoIterator<Item = Result<FFI_ArrowDeviceArray>>,
    I::IntoIter: Send + 'static,
{
    // Fails here, at the caller, rather than at the consumer's first call.
    drop(schema::export_field(field)?);
    let source = Source::Live(Box::new(arrays.into_iter()));
    let exported = ExportedStream { device_type, field: field.clone(), source, last_error: None };
    Ok(FFI_ArrowDeviceArrayStream {
        device_type,
        get_schema: Some(get_schema),
        get_next: Some(get_next),
        get_last_error: Some(get_last_error),
        release: Some(release),
        private_data: Box::into_raw(Box::new(exported)).cast(),
    })
}

/// Like [`export_iterator`], for a [`futures::Stream`].
///
/// `get_next` polls it on the calling thread, and parks the thread while the stream is pending. No
/// runtime is entered; a stream that needs one must bring it.
///
/// # Errors
/// As [`export_iterator`].
///
/// # Examples
/// ```
/// use std::sync::Arc;
/// use arrow::array::{ArrayRef, Int32Array};
/// use arrow_device::ffi::ArrowDeviceType;
/// use arrow_device::stream::{ArrowDeviceArrayStreamReader, export_stream};
/// use arrow_device::cpu;
///
/// let column: ArrayRef = Arc::new(Int32Array::from(vec![1, 2, 3]));
/// let field = cpu::field_of(&column);
/// let arrays = futures::stream::once(async move { cpu::export_array(&column) });
/// let exported = export_stream(&field, ArrowDeviceType::CPU, arrays)?;
/// // SAFETY: the stream comes from this crate's export.
/// let reader = unsafe { ArrowDeviceArrayStreamReader::try_new(exported)? };
/// assert_eq!(reader.count(), 1);
/// # Ok::<(), arrow_device::Error>(())
/// ```
pub fn export_stream<S>(field: &Field, device_type: ArrowDeviceType, arrays: S) -> Result<FFI_ArrowDeviceArrayStream>
where
    S: Stream<Item = Result<FFI_ArrowDeviceArray>> + Send + 'static,
{
    export_iterator(field, device_type, Blocking::new(arrays))
}

/// The private data of an exported stream.
struct ExportedStream {
    device_type: ArrowDeviceType,
    field: Field,
    source: Source,
    /// The message of the last call's error; valid until the next call (R56).
    last_error: Option<CString>,
}

enum Source {
    Live(Box<dyn Iterator<Item = Result<FFI_ArrowDeviceArray>> + Send>),
    Ended,
    Failed(Error),
}

impl ExportedStream {
    /// The next array; a released one at the end.
    fn next(&mut self) -> Result<FFI_ArrowDeviceArray> {
        let mut arrays = match std::mem::replace(&mut self.source, Source::Ended) {
            Source::Live(arrays) => arrays,
            Source::Ended => return Ok(FFI_ArrowDeviceArray::empty()),
            Source::Failed(error) => {
                self.source = Source::Failed(error.clone());
                return Err(error);
            }
        };
        let next = guard("get_next", || arrays.next().map(|array| self.check(array?)).transpose());
        if matches!(next, Ok(Some(_))) {
            self.source = Source::Live(arrays);
        } else {
            // Repeating the end or error needs no iterator; a panic in its drop changes nothing.
            let _ = guard("the end of the stream", || {
                drop(arrays);
                Ok(())
            });
        }
        match next {
            Ok(array) => Ok(array.unwrap_or_else(FFI_ArrowDeviceArray::empty)),
            Err(error) => {
                self.source = Source::Failed(error.clone());
                Err(error)
            }
        }
    }

    fn check(&self, array: FFI_ArrowDeviceArray) -> Result<FFI_ArrowDeviceArray> {
        if array.is_released() {
            // C would read it as the end.
            return Err(Error::Other("the stream's source gave a released array".into()));
        }
        if array.device_type != self.device_type {
            let (expected, got) = (self.device_type, array.device_type);
            return Err(Error::Other(format!("the stream's source gave an array of {got}, expected {expected}")));
        }
        Ok(array)
    }
}

/// Runs a callback and returns its errno; keeps the message for `get_last_error`.
///
/// # Safety
/// `stream` is null, or a stream of this module without a concurrent call (R59).
unsafe fn call(
    stream: *mut FFI_ArrowDeviceArrayStream,
    name: &str,
    body: impl FnOnce(&mut ExportedStream) -> Result<()>,
) -> c_int {
    // SAFETY: the caller upholds the contract.
    let Some(exported) = (unsafe { exported(stream) }) else { return libc::EINVAL };
    exported.last_error = None;
    match guard(name, || body(exported)) {
        Ok(()) => 0,
        Err(error) => {
            exported.last_error = Some(c_string(&error.to_string()));
            error.errno()
        }
    }
}

/// The stream's private data; `None` if the pointer is null or the stream is released (R54).
///
/// # Safety
/// As [`call`].
unsafe fn exported<'a>(stream: *mut FFI_ArrowDeviceArrayStream) -> Option<&'a mut ExportedStream> {
    // SAFETY: null or a stream; only `private_data` is used, because the struct may have been
    // moved.
    let stream = unsafe { stream.as_mut() }?;
    // SAFETY: boxed in `export_iterator`; null once released.
    unsafe { stream.private_data.cast::<ExportedStream>().as_mut() }
}

/// Clears an output of C, so that it is a released struct even after an error (R36).
///
/// # Safety
/// `out` is null or writable.
unsafe fn cleared<T>(out: *mut T, empty: T, name: &str) -> Result<*mut T> {
    if out.is_null() {
        return Err(Error::Invalid(format!("{name}: the output is null")));
    }
    // SAFETY: not null, so writable by this function's contract; the old content is not dropped.
    unsafe { out.write(empty) };
    Ok(out)
}

unsafe extern "C" fn get_schema(stream: *mut FFI_ArrowDeviceArrayStream, out: *mut FFI_ArrowSchema) -> c_int {
    let body = |exported: &mut ExportedStream| {
        // SAFETY: C passes null or an output.
        let out = unsafe { cleared(out, FFI_ArrowSchema::empty(), "get_schema")? };
        let schema = schema::export_field(&exported.field)?;
        // SAFETY: `cleared` wrote there, and that struct owns nothing.
        unsafe { out.write(schema) };
        Ok(())
    };
    // SAFETY: C passes null or a stream, one call at a time (R59).
    unsafe { call(stream, "get_schema", body) }
}

unsafe extern "C" fn get_next(stream: *mut FFI_ArrowDeviceArrayStream, out: *mut FFI_ArrowDeviceArray) -> c_int {
    let body = |exported: &mut ExportedStream| {
        // SAFETY: C passes null or an output.
        let out = unsafe { cleared(out, FFI_ArrowDeviceArray::empty(), "get_next")? };
        let array = exported.next()?;
        // SAFETY: `cleared` wrote there, and that struct owns nothing.
        unsafe { out.write(array) };
        Ok(())
    };
    // SAFETY: C passes null or a stream, one call at a time (R59).
    unsafe { call(stream, "get_next", body) }
}

unsafe extern "C" fn get_last_error(stream: *mut FFI_ArrowDeviceArrayStream) -> *const c_char {
    // SAFETY: C passes null or a stream, one call at a time (R59).
    let exported = unsafe { exported(stream) };
    exported.and_then(|exported| exported.last_error.as_ref()).map_or(std::ptr::null(), |message| message.as_ptr())
}

/// Frees the stream; its arrays and schemas outlive it (R57).
unsafe extern "C" fn release(stream: *mut FFI_ArrowDeviceArrayStream) {
    // SAFETY: C passes null or a stream, one call at a time (R59).
    let Some(stream) = (unsafe { stream.as_mut() }) else { return };
    stream.release = None;
    let exported: *mut c_void = std::mem::replace(&mut stream.private_data, std::ptr::null_mut());
    if exported.is_null() {
        return;
    }
    // C takes no error from a release: a panic in the source's drop is swallowed (R30).
    let _ = guard("release", || {
        // SAFETY: boxed in `export_iterator`; only the first release finds it.
        drop(unsafe { Box::from_raw(exported.cast::<ExportedStream>()) });
        Ok(())
    });
}
