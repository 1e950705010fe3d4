// SPDX-License-Identifier: Apache-2.0
//! The consumer of an async stream: what its reader holds, and the callbacks that C gets.

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

use super::inbox::{Arrival, Inbox, Next, Opening};
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
    /// How many batches may be requested and not yet read; at least 1, by default 2.
    ///
    /// More keep a producer busy while the reader works, and hold more memory of the device.
    pub fn with_in_flight(mut self, batches: usize) -> Self {
        self.in_flight = batches.max(1);
        self
    }

    /// How many batches may wait for the reader when the producer sends more than requested, by default 64.
    ///
    /// The interface forbids such batches. With 0 none is accepted; the first one beyond ends the stream with an error.
    pub fn with_unrequested(mut self, batches: usize) -> Self {
        self.unrequested = batches;
        self
    }

    /// Whether batches that nobody will read are extracted and released, instead of dismissed; by default they are not.
    ///
    /// For producers that cannot be told "not wanted" and write through the null pointer that says so: arrow-go 18 (Y5).
    pub fn with_extract_unwanted(mut self, extract: bool) -> Self {
        self.extract_unwanted = extract;
        self
    }
}

/// The arrays that a foreign producer pushes, as a [`Stream`].
///
/// The first poll of the stream starts the flow of batches, and each batch read lets the producer send one more. The
/// extraction of a batch from its task runs in the poll that returns it (R93 says that it is cheap).
///
/// The stream ends:
/// - with `None` after the producer's end marker, or, after [`Self::cancel`], whichever way the producer ends;
/// - with one error, after the batches before it, when the producer reports one, when a batch or the schema breaks the
///   interface, or when the producer releases the handler with neither an end marker nor an error: data may be missing
///   then, and nothing else would tell.
///
/// Dropping the stream cancels it, and dismisses the batches that wait and those that still come. If no schema has come
/// yet, it will be refused with `ECANCELED`.
///
/// # Threads
/// All methods may be called on any thread, also from inside the producer's callbacks (by a waker that polls). The handler
/// may be called on any thread, one call at a time. Its `release` waits for a call of the producer's `request` or `cancel`
/// that is running on another thread, so a producer must not make those wait for `release`.
///
/// # Examples
/// The module has one with both ends; here the producer is a C function.
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
    /// A stream, and the handler to give to its producer.
    ///
    /// Dropping the handler ends the stream with an error.
    ///
    /// # Safety
    /// - The producer that gets the handler follows the interface, as far as that cannot be checked: what it passes is valid
    ///   during the call, calls do not overlap, and none comes after `release`.
    /// - Its arrays are such that [`ImportedArray::import`] may take them.
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
        // SAFETY: `raw` is live, and nobody has it yet. `release` takes this reference back.
        unsafe { (*raw.as_ptr()).private_data = Arc::into_raw(Arc::clone(&inbox)).cast_mut().cast() };
        // SAFETY: live until its `release` has been called, and with all callbacks, each of which may be called anywhere.
        (unsafe { AsyncHandler::of(raw) }, Self { inbox, metadata: Metadata::default(), done: false })
    }

    /// Waits for the schema of all batches.
    ///
    /// This requests no batches, and it can be asked for repeatedly.
    ///
    /// # Errors
    /// The error of the producer, or of its schema, if there will be none; `Invalid` if the arrays are not structs.
    pub async fn schema(&mut self) -> Result<SchemaRef> {
        let field = self.field().await?;
        let schema = schema::schema_of(&field).ok_or_else(|| {
            Error::Invalid(format!(
                "async stream: its arrays are no record batches, but {}; ask for its field",
                field.data_type()
            ))
        });
        schema.map(Arc::new)
    }

    /// Like [`Self::schema`], for arrays of any type.
    ///
    /// # Errors
    /// The error of the producer, or of its schema, if there will be none.
    pub async fn field(&mut self) -> Result<FieldRef> {
        future::poll_fn(|cx| self.poll_field(cx)).await
    }

    /// As [`Self::field`], for those who poll.
    ///
    /// # Errors
    /// As [`Self::field`].
    pub fn poll_field(&mut self, cx: &mut Context<'_>) -> Poll<Result<FieldRef>> {
        match self.inbox.opening(cx) {
            Some(opening) => Poll::Ready(opening.map(|opening| Arc::clone(&opening.field))),
            None => Poll::Pending,
        }
    }

    /// The device type of all batches, once the schema has come.
    pub fn device_type(&self) -> Option<ArrowDeviceType> {
        self.inbox.opened().map(|opening| opening.device_type)
    }

    /// What the producer tells about the whole stream, beside the schema's own metadata; empty before the schema has come.
    pub fn producer_metadata(&self) -> Metadata {
        self.inbox.opened().map(|opening| opening.metadata.clone()).unwrap_or_default()
    }

    /// What the producer told with the batch read last.
    pub fn batch_metadata(&self) -> &Metadata {
        &self.metadata
    }

    /// What the producer told with the error that ended the stream.
    pub fn error_metadata(&self) -> Metadata {
        self.inbox.error_metadata()
    }

    /// Asks the producer for the end.
    ///
    /// What it had sent, and what it sends until it has noticed, can be read; then the stream ends. An error that had come
    /// before is still told, none that comes after it. Calls after the first do nothing.
    pub fn cancel(&self) {
        self.inbox.cancel();
    }

    /// Extracts and checks one array.
    fn extract(arrival: Arrival, opening: &Opening) -> Result<ImportedArray> {
        let array = arrival.extract()?;
        if array.device_type != opening.device_type {
            return Err(Error::Invalid(format!(
                "async stream: an array on {} from a producer that announced {} (R91)",
                array.device_type, opening.device_type
            )));
        }
        // SAFETY: as the caller of `new` promised for the producer.
        unsafe { ImportedArray::import_ref(array, &opening.field) }
    }
}

impl Stream for AsyncDeviceStream {
    type Item = Result<ImportedArray>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if self.done {
            return Poll::Ready(None);
        }
        match self.inbox.next(cx) {
            Next::Task(mut arrival, opening) => {
                self.metadata = std::mem::take(&mut arrival.metadata);
                let array = Self::extract(arrival, &opening);
                match array {
                    Ok(_) => self.inbox.request(),
                    Err(_) => self.done = true,
                }
                Poll::Ready(Some(array.map_err(|error| {
                    let error = self.inbox.reported(error);
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
        f.debug_struct("AsyncDeviceStream").field("opening", &self.inbox.opened()).field("done", &self.done).finish()
    }
}

/// The inbox behind a handler, kept alive during a callback: whatever this calls may come back and release it.
///
/// # Safety
/// `handler` is null or one of `AsyncDeviceStream::new` whose memory is live.
unsafe fn inbox(handler: *mut FFI_ArrowAsyncDeviceStreamHandler) -> Option<Arc<Inbox>> {
    // SAFETY: live, if not null.
    let private_data = unsafe { handler.as_ref() }?.private_data;
    if private_data.is_null() {
        return None;
    }
    // SAFETY: from `Arc::into_raw`; `release`, which takes that reference back, sets it to null.
    let kept = ManuallyDrop::new(unsafe { Arc::from_raw(private_data.cast::<Inbox>()) });
    Some(Arc::clone(&kept))
}

unsafe extern "C" fn on_schema(handler: *mut FFI_ArrowAsyncDeviceStreamHandler, schema: *mut FFI_ArrowSchema) -> c_int {
    let taken = guard("on_schema", || {
        // SAFETY: `handler` is live, as the producer must see to.
        let Some(inbox) = (unsafe { inbox(handler) }) else { return Ok(libc::EINVAL) };
        let schema = match schema.is_null() {
            true => FFI_ArrowSchema::empty(),
            // SAFETY: a schema for us to move out (R65), also if it is refused.
            false => unsafe { FFI_ArrowSchema::from_raw(schema) },
        };
        // SAFETY: live as above, and its producer set before this call (R79).
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
        // SAFETY: `handler` is live, as the producer must see to.
        let Some(inbox) = (unsafe { inbox(handler) }) else { return Ok(libc::EINVAL) };
        if task.is_null() {
            inbox.on_end();
            return Ok(0);
        }
        // SAFETY: a task for us to copy (R67), with metadata that is valid during the call (R90).
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
    // Nobody can be told of a panic; here, and below.
    let _ = guard("on_error", || {
        // SAFETY: `handler` is live, as the producer must see to.
        let Some(inbox) = (unsafe { inbox(handler) }) else { return Ok(()) };
        // SAFETY: null or text, valid during the call.
        let message = (!message.is_null()).then(|| unsafe { CStr::from_ptr(message) }.to_string_lossy().into_owned());
        // SAFETY: null or encoded metadata, valid during the call. What cannot be read must not hide the error.
        let metadata = unsafe { decode(metadata) }.unwrap_or_default();
        inbox.on_error(code, message, metadata);
        Ok(())
    });
}

unsafe extern "C" fn release(handler: *mut FFI_ArrowAsyncDeviceStreamHandler) {
    let _ = guard("release", || {
        // SAFETY: `handler` is live, as the producer must see to.
        let Some(inbox) = (unsafe { inbox(handler) }) else { return Ok(()) };
        inbox.on_release();
        // SAFETY: the memory is the inbox's, which is still held here.
        let reference = unsafe {
            (*handler).release = None;
            ptr::replace(&raw mut (*handler).private_data, ptr::null_mut())
        };
        if !reference.is_null() {
            // SAFETY: the reference of `AsyncDeviceStream::new`, taken back once: the pointer is null from now on.
            drop(unsafe { Arc::from_raw(reference.cast::<Inbox>()) });
        }
        Ok(())
    });
}
