// SPDX-License-Identifier: Apache-2.0
//! The consumer of an async stream: the Rust stream, and the callbacks for C.

use std::ffi::{CStr, c_char, c_int};
use std::mem::ManuallyDrop;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::{fmt, future, ptr};

use arrow::datatypes::{FieldRef, SchemaRef};
use arrow::ffi::FFI_ArrowSchema;
use futures::Stream;
use futures::stream::FusedStream;

use super::inbox::{Inbox, Next};
use super::incoming::{PendingTask, StreamInfo};
use super::{AsyncHandler, Metadata};
use crate::callback::guard;
use crate::ffi::{ArrowDeviceType, FFI_ArrowAsyncDeviceStreamHandler, FFI_ArrowAsyncTask};
use crate::metadata::decode;
use crate::{Error, ImportedArray, Result, schema};

/// The settings of an [`AsyncDeviceStream`].
#[derive(Debug, Clone)]
pub struct AsyncStreamOptions {
    pub(super) in_flight: usize,
    pub(super) unrequested: usize,
    pub(super) extract_unwanted: bool,
}

impl Default for AsyncStreamOptions {
    fn default() -> Self {
        Self { in_flight: 2, unrequested: 64, extract_unwanted: false }
    }
}

impl AsyncStreamOptions {
    /// The limit of batches that are requested or waiting to be read; at least 1, by default 2.
    ///
    /// More batches keep the producer busy while the reader works, and hold more device memory.
    pub fn with_in_flight(mut self, batches: usize) -> Self {
        self.in_flight = batches.max(1);
        self
    }

    /// The limit of waiting batches when the producer sends more than requested; by default 64.
    ///
    /// The interface forbids unrequested batches; 0 accepts none. The first batch beyond the limit
    /// ends the stream with an error.
    pub fn with_unrequested(mut self, batches: usize) -> Self {
        self.unrequested = batches;
        self
    }

    /// Whether unwanted batches are extracted and released, instead of dismissed; by default they
    /// are not.
    ///
    /// For producers that write through the null output of a dismissal: arrow-go 18 (Y5).
    pub fn with_extract_unwanted(mut self, extract: bool) -> Self {
        self.extract_unwanted = extract;
        self
    }
}

/// The arrays of a foreign push producer, as a [`Stream`].
///
/// The first poll requests the first batches, and each batch read requests one more. A batch is
/// extracted from its task in the poll that returns it (R93 requires this to be cheap).
///
/// The stream ends with `None`:
/// - after the producer's end marker
/// - after [`Self::cancel`], however the producer ends
///
/// It ends with one error, after the batches before it:
/// - when the producer reports an error
/// - when a batch or the schema breaks the interface
/// - when the producer releases the handler without an end marker or error: data may be missing
///
/// Dropping the stream cancels it, and dismisses waiting and later batches. If no schema has come
/// yet, it will be refused with `ECANCELED`.
///
/// # Threads
/// - All methods may be called on any thread, even within the producer's callbacks (by a waker that
///   polls).
/// - The handler may be called on any thread, one call at a time.
/// - The handler's `release` waits for calls of the producer's `request` or `cancel` on other
///   threads. A producer must not make those calls wait for `release`.
/// # Examples
/// The module has an example with both ends; here the producer is a C function.
/// ```
/// # use std::ffi::c_int;
/// # use arrow_device::ffi::FFI_ArrowAsyncDeviceStreamHandler;
/// use arrow_device::async_stream::{AsyncDeviceStream, AsyncStreamOptions};
/// use futures::{StreamExt, executor::block_on};
///
/// # unsafe extern "C" fn read_table(handler: *mut FFI_ArrowAsyncDeviceStreamHandler) {
/// #     unsafe {
/// #         (*handler).on_error.map(|on_error| on_error(handler, libc::ENOENT, c"no such table".as_ptr(), std::ptr::null()));
/// #         (*handler).release.map(|release| release(handler));
/// #     }
/// # }
/// // SAFETY: `read_table` keeps to the interface.
/// let (handler, mut batches) = unsafe { AsyncDeviceStream::new(AsyncStreamOptions::default().with_in_flight(4)) };
/// unsafe { read_table(handler.into_raw()) };
///
/// let error = block_on(batches.next()).unwrap().unwrap_err();
/// assert_eq!(error.to_string(), "async producer failed with 2: no such table");
/// ```
pub struct AsyncDeviceStream {
    inbox: Arc<Inbox>,
    metadata: Metadata,
    done: bool,
}

impl Drop for AsyncDeviceStream {
    fn drop(&mut self) {
        self.inbox.abandon();
    }
}

impl AsyncDeviceStream {
    /// A stream, and the handler for its producer.
    ///
    /// Dropping the handler ends the stream with an error.
    ///
    /// # Safety
    /// - The producer follows the interface in all that cannot be checked. Its arguments are valid
    ///   during a call, calls do not overlap, and none comes after `release`.
    /// - Its arrays meet the conditions of [`ImportedArray::import`].
    pub unsafe fn new(options: AsyncStreamOptions) -> (AsyncHandler, Self) {
        let inbox = Inbox::new(
            options,
            FFI_ArrowAsyncDeviceStreamHandler {
                on_schema: Some(on_schema),
                on_next_task: Some(on_next_task),
                on_error: Some(on_error),
                release: Some(release),
                producer: ptr::null_mut(),
                private_data: ptr::null_mut(),
            },
        );
        let raw = inbox.handler();
        // SAFETY: `raw` is live and not shared yet. `release` takes this reference back.
        unsafe { (*raw.as_ptr()).private_data = Arc::into_raw(Arc::clone(&inbox)).cast_mut().cast() };
        // SAFETY: live until its `release` was called, with all callbacks set, each callable
        // anywhere.
        (unsafe { AsyncHandler::new(raw) }, Self { inbox, metadata: Metadata::default(), done: false })
    }

    /// Waits for the schema of all batches.
    ///
    /// It requests no batches, and may be called repeatedly. It waits without a limit. Dropping the
    /// future, as a time-out does, loses nothing.
    ///
    /// # Errors
    /// The error of the producer or of its schema, if no schema will come; `Invalid` for arrays
    /// other than structs.
    pub async fn schema(&mut self) -> Result<SchemaRef> {
        let field = self.field().await?;
        let schema = schema::schema_of(&field).ok_or_else(|| {
            Error::Invalid(format!(
                "async stream: its arrays are {} and not record batches; use `field` instead of `schema`",
                field.data_type()
            ))
        });
        schema.map(Arc::new)
    }

    /// Like [`Self::schema`], for arrays of any type.
    ///
    /// # Errors
    /// The error of the producer or of its schema, if no schema will come.
    pub async fn field(&mut self) -> Result<FieldRef> {
        future::poll_fn(|cx| self.poll_field(cx)).await
    }

    /// The poll function of [`Self::field`].
    ///
    /// # Errors
    /// As [`Self::field`].
    pub fn poll_field(&mut self, cx: &mut Context<'_>) -> Poll<Result<FieldRef>> {
        match self.inbox.poll_info(cx) {
            Some(info) => Poll::Ready(info.map(|info| Arc::clone(&info.field))),
            None => Poll::Pending,
        }
    }

    /// The device type of all batches; `None` before the schema has come.
    pub fn device_type(&self) -> Option<ArrowDeviceType> {
        self.inbox.info().map(|info| info.device_type)
    }

    /// The producer's metadata of the whole stream, beside the schema's own; empty before the
    /// schema has come.
    pub fn producer_metadata(&self) -> Metadata {
        self.inbox.info().map(|info| info.metadata.clone()).unwrap_or_default()
    }

    /// The producer's metadata of the batch read last.
    pub fn batch_metadata(&self) -> &Metadata {
        &self.metadata
    }

    /// The producer's metadata of the error that ended the stream.
    pub fn error_metadata(&self) -> Metadata {
        self.inbox.error_metadata()
    }

    /// Asks the producer to end the stream early.
    ///
    /// - Batches sent before the producer notices can still be read; then the stream ends.
    /// - An error reported before the cancellation is still returned, later ones are not.
    /// - Calls after the first do nothing.
    pub fn cancel(&self) {
        self.inbox.cancel();
    }

    /// Extracts and checks one array.
    fn extract(task: PendingTask, info: &StreamInfo) -> Result<ImportedArray> {
        let array = task.extract()?;
        if array.device_type != info.device_type {
            return Err(Error::Invalid(format!(
                "async stream: an array on {} from a producer that announced {} (R91)",
                array.device_type, info.device_type
            )));
        }
        // SAFETY: the producer's arrays are importable, by the contract of `new`.
        unsafe { ImportedArray::import_ref(array, &info.field) }
    }
}

impl Stream for AsyncDeviceStream {
    type Item = Result<ImportedArray>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if self.done {
            return Poll::Ready(None);
        }
        match self.inbox.next(cx) {
            Next::Task(mut task, info) => {
                self.metadata = std::mem::take(&mut task.metadata);
                let array = Self::extract(task, &info);
                match array {
                    Ok(_) => self.inbox.request(),
                    Err(_) => self.done = true,
                }
                Poll::Ready(Some(array.map_err(|error| {
                    let error = self.inbox.prefer_reported(error);
                    self.inbox.abandon();
                    error
                })))
            }
            Next::End(end) => {
                self.done = true;
                Poll::Ready(end.err().map(Err))
            }
            Next::Wait => {
                self.inbox.request();
                Poll::Pending
            }
        }
    }
}

impl FusedStream for AsyncDeviceStream {
    fn is_terminated(&self) -> bool {
        self.done
    }
}

impl fmt::Debug for AsyncDeviceStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AsyncDeviceStream").field("info", &self.inbox.info()).field("done", &self.done).finish()
    }
}

/// The inbox behind a handler, kept alive during a callback, because a waker may release it
/// meanwhile.
///
/// # Safety
/// `handler` is null or one of `AsyncDeviceStream::new` whose memory is live.
unsafe fn inbox(handler: *mut FFI_ArrowAsyncDeviceStreamHandler) -> Option<Arc<Inbox>> {
    // SAFETY: live, if not null.
    let private_data = unsafe { handler.as_ref() }?.private_data;
    if private_data.is_null() {
        return None;
    }
    // SAFETY: from `Arc::into_raw`; `release` sets it to null when it takes the reference back.
    let kept = ManuallyDrop::new(unsafe { Arc::from_raw(private_data.cast::<Inbox>()) });
    Some(Arc::clone(&kept))
}

unsafe extern "C" fn on_schema(handler: *mut FFI_ArrowAsyncDeviceStreamHandler, schema: *mut FFI_ArrowSchema) -> c_int {
    let taken = guard("on_schema", || {
        // SAFETY: `handler` is live, as the producer guarantees.
        let Some(inbox) = (unsafe { inbox(handler) }) else { return Ok(libc::EINVAL) };
        let schema = match schema.is_null() {
            true => FFI_ArrowSchema::empty(),
            // SAFETY: the consumer moves the schema out (R65), even if it refuses it.
            false => unsafe { FFI_ArrowSchema::from_raw(schema) },
        };
        // SAFETY: live as above; its producer was set before this call (R79).
        Ok(inbox.on_schema(schema, unsafe { (*handler).producer }))
    });
    taken.unwrap_or(libc::EIO)
}

unsafe extern "C" fn on_next_task(
    handler: *mut FFI_ArrowAsyncDeviceStreamHandler,
    task: *mut FFI_ArrowAsyncTask,
    metadata: *const c_char,
) -> c_int {
    let taken = guard("on_next_task", || {
        // SAFETY: `handler` is live, as the producer guarantees.
        let Some(inbox) = (unsafe { inbox(handler) }) else { return Ok(libc::EINVAL) };
        if task.is_null() {
            inbox.on_end();
            return Ok(0);
        }
        // SAFETY: the consumer copies the task (R67); the metadata is valid during the call (R90).
        let (task, metadata) = unsafe { (*task, decode(metadata)) };
        Ok(inbox.on_next_task(task, metadata))
    });
    taken.unwrap_or(libc::EIO)
}

unsafe extern "C" fn on_error(
    handler: *mut FFI_ArrowAsyncDeviceStreamHandler,
    code: c_int,
    message: *const c_char,
    metadata: *const c_char,
) {
    // C takes no error here or in `release`, so a panic is swallowed.
    let _ = guard("on_error", || {
        // SAFETY: `handler` is live, as the producer guarantees.
        let Some(inbox) = (unsafe { inbox(handler) }) else { return Ok(()) };
        // SAFETY: null or a C string, valid during the call.
        let message = (!message.is_null()).then(|| unsafe { CStr::from_ptr(message) }.to_string_lossy().into_owned());
        // SAFETY: null or encoded metadata, valid during the call. Broken metadata must not hide
        // the error.
        let metadata = unsafe { decode(metadata) }.unwrap_or_default();
        inbox.on_error(code, message, metadata);
        Ok(())
    });
}

unsafe extern "C" fn release(handler: *mut FFI_ArrowAsyncDeviceStreamHandler) {
    let _ = guard("release", || {
        // SAFETY: `handler` is live, as the producer guarantees.
        let Some(inbox) = (unsafe { inbox(handler) }) else { return Ok(()) };
        inbox.on_release();
        // SAFETY: the memory is the inbox's, which `inbox` keeps alive.
        let reference = unsafe {
            (*handler).release = None;
            ptr::replace(&raw mut (*handler).private_data, ptr::null_mut())
        };
        if !reference.is_null() {
            // SAFETY: the reference of `AsyncDeviceStream::new`; the pointer is null from now on,
            // so this runs once.
            drop(unsafe { Arc::from_raw(reference.cast::<Inbox>()) });
        }
        Ok(())
    });
}
