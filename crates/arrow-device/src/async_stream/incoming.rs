// SPDX-License-Identifier: Apache-2.0
//! The producer's side as a consumer sees it: stream info, methods and tasks, read from C.

use std::ptr;
use std::sync::Arc;

use arrow::datatypes::FieldRef;
use arrow::ffi::FFI_ArrowSchema;

use super::Metadata;
use crate::ffi::{ArrowDeviceType, FFI_ArrowAsyncProducer, FFI_ArrowAsyncTask, FFI_ArrowDeviceArray};
use crate::metadata::decode;
use crate::{Error, Result, schema};

/// The name of a task's callback in errors.
pub(super) const EXTRACT: &str = "extract_data";

/// The properties of a stream, known from `on_schema` on.
#[derive(Debug)]
pub(super) struct StreamInfo {
    /// The field of all arrays: for record batches a struct of their columns.
    pub field: FieldRef,
    pub device_type: ArrowDeviceType,
    pub metadata: Metadata,
}

/// The methods of the producer, copied in `on_schema`.
#[derive(Clone, Copy)]
pub(super) struct ProducerHandle {
    pub raw: *mut FFI_ArrowAsyncProducer,
    pub request: unsafe extern "C" fn(*mut FFI_ArrowAsyncProducer, i64),
    pub cancel: unsafe extern "C" fn(*mut FFI_ArrowAsyncProducer),
}

// SAFETY: the methods may be called from any thread (R86, R89); `raw` is only passed to them.
unsafe impl Send for ProducerHandle {}

impl StreamInfo {
    /// Copies the info and methods that come with a schema.
    ///
    /// # Safety
    /// `schema` is empty or follows the interface, `producer` is null or valid.
    pub unsafe fn read(schema: FFI_ArrowSchema, producer: *mut FFI_ArrowAsyncProducer) -> Result<(Self, ProducerHandle)> {
        let invalid = |what: &str| Error::Invalid(format!("async stream: {what}"));
        let raw = producer;
        // SAFETY: valid, if not null.
        let producer = unsafe { raw.as_ref() }.ok_or_else(|| invalid("on_schema came without a producer"))?;
        let (Some(request), Some(cancel)) = (producer.request, producer.cancel) else {
            return Err(invalid("the producer lacks request or cancel"));
        };
        // SAFETY: a schema of the producer, or an empty one.
        let field = Arc::new(unsafe { schema::import_field(schema) }?);
        // SAFETY: null or encoded, by the interface (R90).
        let metadata = unsafe { decode(producer.additional_metadata) }?;
        let info = Self { field, device_type: producer.device_type, metadata };
        Ok((info, ProducerHandle { raw, request, cancel }))
    }
}

/// A task that waits for the reader.
pub(super) struct PendingTask {
    pub task: FFI_ArrowAsyncTask,
    pub metadata: Metadata,
}

impl PendingTask {
    /// Takes the array out: the single call of `extract_data` (R68).
    pub fn extract(mut self) -> Result<FFI_ArrowDeviceArray> {
        let mut array = FFI_ArrowDeviceArray::empty();
        let failed = |code| Error::Foreign { call: EXTRACT, code, message: None };
        let extract = self.task.extract_data.ok_or_else(|| failed(libc::EINVAL))?;
        // SAFETY: an accepted task, extracted once; the output is zero (R44).
        match unsafe { extract(&mut self.task, &mut array) } {
            0 if array.is_released() => Err(Error::Invalid("async stream: extract_data succeeded without an array".into())),
            0 => Ok(array),
            code => {
                // The output of a failed call must not be used, nor released (R73).
                std::mem::forget(array);
                Err(failed(code))
            }
        }
    }

    /// Dismisses the task (R68, R77), by extraction and release if `extract`.
    pub fn discard(mut self, extract: bool) {
        if extract {
            drop(self.extract());
        } else if let Some(extract) = self.task.extract_data {
            // SAFETY: an accepted task, extracted once.
            unsafe { extract(&mut self.task, ptr::null_mut()) };
        }
    }
}
