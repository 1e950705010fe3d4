// SPDX-License-Identifier: Apache-2.0
//! The task of one batch: from the producer of this crate to its extraction.

use std::ffi::{c_int, c_void};
use std::mem::ManuallyDrop;
use std::sync::Arc;
use std::{fmt, ptr};

use parking_lot::Mutex;

use super::demand::Demand;
use super::{Metadata, failure_code};
use crate::callback::guard;
use crate::ffi::{ArrowDeviceType, FFI_ArrowAsyncTask, FFI_ArrowDeviceArray};
use crate::{Error, Result};

/// A batch that [`produce`](super::produce) delivers: an array, ready or deferred, and optional
/// metadata.
///
/// # Examples
/// ```
/// use arrow_device::async_stream::AsyncBatch;
/// use arrow_device::ffi::FFI_ArrowDeviceArray;
///
/// let plain = AsyncBatch::from(FFI_ArrowDeviceArray::empty());
/// let late = AsyncBatch::deferred(|| Ok(FFI_ArrowDeviceArray::empty()));
/// let with_metadata = late.with_metadata([("file".to_string(), "7.parquet".to_string())].into());
/// # drop((plain, with_metadata));
/// ```
pub struct AsyncBatch {
    array: BatchArray,
    pub(super) metadata: Option<Metadata>,
}

enum BatchArray {
    Ready(FFI_ArrowDeviceArray),
    Deferred(Box<dyn FnOnce() -> Result<FFI_ArrowDeviceArray> + Send>),
}

impl From<FFI_ArrowDeviceArray> for AsyncBatch {
    fn from(array: FFI_ArrowDeviceArray) -> Self {
        Self { array: BatchArray::Ready(array), metadata: None }
    }
}

impl AsyncBatch {
    /// A batch, made on the thread that extracts it.
    ///
    /// - `make` should be cheap and must not wait for other work (R93): decoding, not reading.
    /// - It does not run for an unwanted batch.
    /// - Its error goes to the caller of `extract_data`, and to the consumer's `on_error`.
    pub fn deferred(make: impl FnOnce() -> Result<FFI_ArrowDeviceArray> + Send + 'static) -> Self {
        Self { array: BatchArray::Deferred(Box::new(make)), metadata: None }
    }

    /// Adds key-value pairs for the consumer's `on_next_task`.
    pub fn with_metadata(mut self, metadata: Metadata) -> Self {
        self.metadata = Some(metadata);
        self
    }

    /// Refuses a ready array that a consumer must not get.
    pub(super) fn check(&self, device_type: ArrowDeviceType) -> Result<()> {
        match &self.array {
            BatchArray::Ready(array) => check(array, device_type),
            BatchArray::Deferred(_) => Ok(()),
        }
    }

    fn make(self, device_type: ArrowDeviceType) -> Result<FFI_ArrowDeviceArray> {
        let mut array = match self.array {
            BatchArray::Ready(array) => array,
            BatchArray::Deferred(make) => make()?,
        };
        check(&array, device_type)?;
        array.reserved = [0; 3];
        Ok(array)
    }
}

fn check(array: &FFI_ArrowDeviceArray, device_type: ArrowDeviceType) -> Result<()> {
    if array.is_released() {
        return Err(Error::Invalid("async stream: its source gave a released array".into()));
    }
    if array.device_type != device_type {
        let message = format!("async stream: its source gave an array on {}, but {device_type} is announced", array.device_type);
        return Err(Error::Invalid(message));
    }
    Ok(())
}

impl fmt::Debug for AsyncBatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let array: &dyn fmt::Debug = match &self.array {
            BatchArray::Ready(array) => array,
            BatchArray::Deferred(_) => &"deferred",
        };
        f.debug_struct("AsyncBatch").field("array", array).field("metadata", &self.metadata).finish()
    }
}

/// The private data of a task: a batch, until it is extracted or taken back.
pub(super) struct TaskPayload {
    batch: Mutex<Option<AsyncBatch>>,
    device_type: ArrowDeviceType,
    demand: Arc<Demand>,
}

/// A task during its delivery, which the consumer accepts or refuses.
pub(super) struct Delivery {
    payload: Arc<TaskPayload>,
    /// The consumer's reference.
    raw: *const TaskPayload,
}

impl Delivery {
    /// Makes a task for `on_next_task`.
    pub fn new(batch: AsyncBatch, device_type: ArrowDeviceType, demand: &Arc<Demand>) -> (Self, FFI_ArrowAsyncTask) {
        let payload = Arc::new(TaskPayload { batch: Mutex::new(Some(batch)), device_type, demand: Arc::clone(demand) });
        let raw = Arc::into_raw(Arc::clone(&payload));
        let task = FFI_ArrowAsyncTask { extract_data: Some(extract_data), private_data: raw.cast_mut().cast::<c_void>() };
        (Self { payload, raw }, task)
    }

    /// Takes back a refused task. A task that was extracted nevertheless stays extracted.
    pub fn refused(self) {
        let batch = self.payload.batch.lock().take();
        if let Some(batch) = batch {
            // SAFETY: `extract_data` has not taken the batch, so it never drops this reference.
            drop(unsafe { Arc::from_raw(self.raw) });
            discard(batch);
        }
    }
}

/// Drops an unwanted batch; a panic in its owner is swallowed.
fn discard(batch: AsyncBatch) {
    let _ = guard("a batch", || {
        drop(batch);
        Ok(())
    });
}

unsafe extern "C" fn extract_data(task: *mut FFI_ArrowAsyncTask, out: *mut FFI_ArrowDeviceArray) -> c_int {
    // SAFETY: null, or a task of `Delivery::new` or a copy of one, as the consumer guarantees.
    let Some(task) = (unsafe { task.as_mut() }) else { return libc::EINVAL };
    // A second call through the same copy finds null.
    let raw = std::mem::replace(&mut task.private_data, ptr::null_mut()).cast::<TaskPayload>();
    if raw.is_null() {
        return libc::EINVAL;
    }
    // SAFETY: the task's reference, not taken back before the first call.
    let payload = ManuallyDrop::new(unsafe { Arc::from_raw(raw) });
    let Some(batch) = payload.batch.lock().take() else { return libc::EINVAL };
    let payload = ManuallyDrop::into_inner(payload);
    if out.is_null() {
        discard(batch);
        return 0;
    }
    let (array, code) = match guard("a batch", || batch.make(payload.device_type)) {
        Ok(array) => (array, 0),
        Err(error) => {
            let code = failure_code(&error);
            // Only the waker can panic, after the failure is recorded.
            let _ = guard("a waker", || {
                payload.demand.fail(error);
                Ok(())
            });
            (FFI_ArrowDeviceArray::empty(), code)
        }
    };
    // SAFETY: the consumer's output, written whole; its old content needs no drop (R97).
    unsafe { out.write(array) };
    code
}
