// SPDX-License-Identifier: Apache-2.0
//! One batch on its way from a producer of this crate to whoever extracts it.

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

/// A batch that [`produce`](super::produce) delivers: an array, now or when it is extracted, and optional metadata.
///
/// # Examples
/// ```
/// use arrow_device::async_stream::AsyncBatch;
/// use arrow_device::ffi::FFI_ArrowDeviceArray;
///
/// let plain = AsyncBatch::from(FFI_ArrowDeviceArray::empty());
/// let late = AsyncBatch::deferred(|| Ok(FFI_ArrowDeviceArray::empty()));
/// let told = late.with_metadata([("file".to_string(), "7.parquet".to_string())].into());
/// # drop((plain, told));
/// ```
pub struct AsyncBatch {
    array: Array,
    pub(super) metadata: Option<Metadata>,
}

enum Array {
    Ready(FFI_ArrowDeviceArray),
    Deferred(Box<dyn FnOnce() -> Result<FFI_ArrowDeviceArray> + Send>),
}

impl From<FFI_ArrowDeviceArray> for AsyncBatch {
    fn from(array: FFI_ArrowDeviceArray) -> Self {
        Self { array: Array::Ready(array), metadata: None }
    }
}

impl AsyncBatch {
    /// A batch that is made on the thread that extracts it.
    ///
    /// `make` should be cheap and must not wait for other work (R93): decoding, not reading. It does not run for a batch
    /// that is not wanted. Its error goes to whoever extracts, and by `on_error` to the consumer.
    pub fn deferred(make: impl FnOnce() -> Result<FFI_ArrowDeviceArray> + Send + 'static) -> Self {
        Self { array: Array::Deferred(Box::new(make)), metadata: None }
    }

    /// Adds key-value pairs for the consumer's `on_next_task`.
    pub fn with_metadata(mut self, metadata: Metadata) -> Self {
        self.metadata = Some(metadata);
        self
    }

    /// Refuses an array of which can be told already that a consumer must not get it.
    pub(super) fn check(&self, device_type: ArrowDeviceType) -> Result<()> {
        match &self.array {
            Array::Ready(array) => check(array, device_type),
            Array::Deferred(_) => Ok(()),
        }
    }

    fn make(self, device_type: ArrowDeviceType) -> Result<FFI_ArrowDeviceArray> {
        let mut array = match self.array {
            Array::Ready(array) => array,
            Array::Deferred(make) => make()?,
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
        let text = format!("async stream: its source gave an array on {}, but {device_type} is announced", array.device_type);
        return Err(Error::Invalid(text));
    }
    Ok(())
}

impl fmt::Debug for AsyncBatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let array: &dyn fmt::Debug = match &self.array {
            Array::Ready(array) => array,
            Array::Deferred(_) => &"deferred",
        };
        f.debug_struct("AsyncBatch").field("array", array).field("metadata", &self.metadata).finish()
    }
}

/// What the private data of a task points to: a batch, until someone takes it.
pub(super) struct Parcel {
    batch: Mutex<Option<AsyncBatch>>,
    device_type: ArrowDeviceType,
    demand: Arc<Demand>,
}

/// A task during its delivery, in which the consumer may or may not accept it.
pub(super) struct Delivery {
    parcel: Arc<Parcel>,
    /// The consumer's reference.
    given: *const Parcel,
}

impl Delivery {
    /// A task to call `on_next_task` with.
    pub fn new(batch: AsyncBatch, device_type: ArrowDeviceType, demand: &Arc<Demand>) -> (Self, FFI_ArrowAsyncTask) {
        let parcel = Arc::new(Parcel { batch: Mutex::new(Some(batch)), device_type, demand: Arc::clone(demand) });
        let given = Arc::into_raw(Arc::clone(&parcel));
        let task = FFI_ArrowAsyncTask { extract_data: Some(extract_data), private_data: given.cast_mut().cast::<c_void>() };
        (Self { parcel, given }, task)
    }

    /// Takes the task back: the consumer has refused it. One that was extracted all the same stays extracted.
    pub fn refused(self) {
        let batch = self.parcel.batch.lock().take();
        if let Some(batch) = batch {
            // SAFETY: `extract_data` has not taken the batch, so it leaves this reference to us.
            drop(unsafe { Arc::from_raw(self.given) });
            discard(batch);
        }
    }
}

/// Drops a batch that nobody wants; whom would a panic in its owner concern?
fn discard(batch: AsyncBatch) {
    let _ = guard("a batch", || {
        drop(batch);
        Ok(())
    });
}

unsafe extern "C" fn extract_data(task: *mut FFI_ArrowAsyncTask, out: *mut FFI_ArrowDeviceArray) -> c_int {
    // SAFETY: a task of `Delivery::new`, or a copy of one, as the consumer must see to.
    let Some(task) = (unsafe { task.as_mut() }) else { return libc::EINVAL };
    // A second call through the same copy finds null.
    let given = std::mem::replace(&mut task.private_data, ptr::null_mut()).cast::<Parcel>();
    if given.is_null() {
        return libc::EINVAL;
    }
    // SAFETY: the reference of this task, not taken back before the first call.
    let parcel = ManuallyDrop::new(unsafe { Arc::from_raw(given) });
    let Some(batch) = parcel.batch.lock().take() else { return libc::EINVAL };
    let parcel = ManuallyDrop::into_inner(parcel);
    if out.is_null() {
        discard(batch);
        return 0;
    }
    let (array, code) = match guard("a batch", || batch.make(parcel.device_type)) {
        Ok(array) => (array, 0),
        Err(error) => {
            let code = failure_code(&error);
            // What panics here is a waker, after the failure is noted.
            let _ = guard("a waker", || {
                parcel.demand.fail(error);
                Ok(())
            });
            (FFI_ArrowDeviceArray::empty(), code)
        }
    };
    // SAFETY: the consumer's output, all of which is written; what is there needs no drop (R97).
    unsafe { out.write(array) };
    code
}
