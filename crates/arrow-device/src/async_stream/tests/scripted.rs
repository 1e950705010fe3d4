// SPDX-License-Identifier: Apache-2.0
//! A scripted C producer: each of its steps is a call of the test.

use std::collections::VecDeque;
use std::ffi::{CString, c_int};
use std::ptr;
use std::sync::Arc;

use arrow::ffi::FFI_ArrowSchema;
use parking_lot::Mutex;

use super::support::{LiveCount, LiveToken, array, schema};
use crate::async_stream::AsyncHandler;
use crate::ffi::*;
use crate::metadata::encode;
use crate::schema::export_schema;

/// A producer without logic of its own.
pub struct Scripted {
    pub handler: *mut FFI_ArrowAsyncDeviceStreamHandler,
    /// Freed with this, so that a call after `release` is detected rather than undefined.
    producer: *mut FFI_ArrowAsyncProducer,
    pub calls: Arc<ConsumerCalls>,
}

// SAFETY: the interface allows calls from any thread.
unsafe impl Send for Scripted {}

/// The calls of the consumer.
#[derive(Default)]
pub struct ConsumerCalls {
    log: Mutex<Vec<String>>,
    gone: std::sync::atomic::AtomicBool,
    /// Hooks for the next calls of `request` and `cancel`.
    hooks: Mutex<VecDeque<Box<dyn FnOnce() + Send>>>,
}

impl ConsumerCalls {
    /// Returns and clears the log of calls.
    pub fn take(&self) -> String {
        std::mem::take(&mut *self.log.lock()).join(" ")
    }

    pub fn on_next_call(&self, hook: impl FnOnce() + Send + 'static) {
        self.hooks.lock().push_back(Box::new(hook));
    }

    fn record(&self, call: String) {
        assert!(!self.gone.load(std::sync::atomic::Ordering::SeqCst), "R75: {call} after release");
        self.log.lock().push(call);
        let hook = self.hooks.lock().pop_front();
        if let Some(hook) = hook {
            hook();
        }
    }
}

unsafe extern "C" fn request(producer: *mut FFI_ArrowAsyncProducer, n: i64) {
    // SAFETY: the private data of `Scripted::new`.
    unsafe { &*(*producer).private_data.cast::<ConsumerCalls>() }.record(format!("request({n})"));
}

unsafe extern "C" fn cancel(producer: *mut FFI_ArrowAsyncProducer) {
    // SAFETY: the private data of `Scripted::new`.
    unsafe { &*(*producer).private_data.cast::<ConsumerCalls>() }.record("cancel".into());
}

impl Drop for Scripted {
    fn drop(&mut self) {
        if !self.handler.is_null() {
            self.release();
        }
        // SAFETY: boxed in `new`.
        unsafe {
            let producer = Box::from_raw(self.producer);
            drop(Arc::from_raw(producer.private_data.cast::<ConsumerCalls>()));
        }
    }
}

impl Scripted {
    pub fn new(handler: AsyncHandler) -> Self {
        let calls = Arc::new(ConsumerCalls::default());
        let producer = Box::into_raw(Box::new(FFI_ArrowAsyncProducer {
            device_type: ArrowDeviceType::CPU,
            request: Some(request),
            cancel: Some(cancel),
            additional_metadata: ptr::null(),
            private_data: Arc::into_raw(Arc::clone(&calls)).cast_mut().cast(),
        }));
        Self { handler: handler.into_raw(), producer, calls }
    }

    /// A producer that has passed its schema.
    pub fn opened(handler: AsyncHandler) -> Self {
        let mut peer = Self::new(handler);
        assert_eq!(peer.schema(), 0);
        peer
    }

    pub fn producer(&mut self) -> &mut FFI_ArrowAsyncProducer {
        // SAFETY: boxed in `new`, without a concurrent reader.
        unsafe { &mut *self.producer }
    }

    pub fn schema(&mut self) -> c_int {
        let mut schema = export_schema(&schema()).unwrap();
        let code = self.schema_of(&mut schema);
        assert!(schema.release.is_none(), "R65: moved out");
        code
    }

    pub fn schema_of(&mut self, schema: *mut FFI_ArrowSchema) -> c_int {
        // SAFETY: the handler is live until `release`.
        unsafe {
            (*self.handler).producer = self.producer;
            self.schema_without_producer(schema)
        }
    }

    /// # Safety
    /// The handler's producer is null or valid.
    pub unsafe fn schema_without_producer(&mut self, schema: *mut FFI_ArrowSchema) -> c_int {
        // SAFETY: the handler is live until `release`.
        unsafe { (*self.handler).on_schema.unwrap()(self.handler, schema) }
    }

    pub fn batch(&mut self, live: &LiveCount, n: usize) -> c_int {
        self.task(ScriptedTask::good(live, n))
    }

    pub fn task(&mut self, task: FFI_ArrowAsyncTask) -> c_int {
        self.task_with(task, None)
    }

    /// Offers a task, and frees it if it is refused. The pointers are valid during the call only.
    pub fn task_with(&mut self, mut task: FFI_ArrowAsyncTask, metadata: Option<Vec<u8>>) -> c_int {
        let metadata = metadata.map(Vec::into_boxed_slice);
        let pointer = metadata.as_ref().map_or(ptr::null(), |bytes| bytes.as_ptr().cast());
        let mut passed = Box::new(task);
        // SAFETY: the handler is live until `release`.
        let code = unsafe { (*self.handler).on_next_task.unwrap()(self.handler, &raw mut *passed, pointer) };
        passed.private_data = ptr::dangling_mut();
        if code != 0
            && let Some(extract) = task.extract_data
        {
            // SAFETY: refused, so still the producer's.
            unsafe { extract(&mut task, ptr::null_mut()) };
        }
        code
    }

    pub fn end(&mut self) -> c_int {
        // SAFETY: the handler is live until `release`.
        unsafe { (*self.handler).on_next_task.unwrap()(self.handler, ptr::null_mut(), ptr::null()) }
    }

    pub fn error(&mut self, code: c_int, message: Option<&str>) {
        fail(self.handler, code, message);
    }

    pub fn release(&mut self) {
        // SAFETY: the handler is live until this call. Set first: the consumer may not call from
        // here on.
        unsafe { (*self.handler).release.unwrap()(self.handler) };
        self.calls.gone.store(true, std::sync::atomic::Ordering::SeqCst);
        self.handler = ptr::null_mut();
    }
}

/// Calls `on_error` with metadata.
pub fn fail(handler: *mut FFI_ArrowAsyncDeviceStreamHandler, code: c_int, message: Option<&str>) {
    let message = message.map(|message| CString::new(message).unwrap());
    let metadata = encode([("code", code.to_string())]).unwrap();
    // SAFETY: the handler is live, as the test guarantees.
    unsafe {
        let message = message.as_ref().map_or(ptr::null(), |message| message.as_ptr());
        (*handler).on_error.unwrap()(handler, code, message, metadata.as_ptr().cast());
    }
}

/// The behaviour of `extract_data`.
pub enum ScriptedTask {
    /// Returns this array.
    Array(FFI_ArrowDeviceArray),
    /// Returns success without writing an array.
    Nothing,
    /// Fails after writing a release callback that must not be called.
    Error(c_int),
}

impl ScriptedTask {
    pub fn good(live: &LiveCount, n: usize) -> FFI_ArrowAsyncTask {
        Self::Array(array(live, n)).into_ffi(live)
    }

    /// Makes a task, counted as live until it is extracted.
    pub fn into_ffi(self, live: &LiveCount) -> FFI_ArrowAsyncTask {
        let private: Box<(Self, LiveToken)> = Box::new((self, live.token()));
        FFI_ArrowAsyncTask { extract_data: Some(extract_data), private_data: Box::into_raw(private).cast() }
    }
}

unsafe extern "C" fn never(_: *mut arrow::ffi::FFI_ArrowArray) {
    panic!("R73: the output of a failed extraction was used");
}

unsafe extern "C" fn extract_data(task: *mut FFI_ArrowAsyncTask, out: *mut FFI_ArrowDeviceArray) -> c_int {
    // SAFETY: a task of `into_ffi`, extracted once.
    let private = unsafe { Box::from_raw((*task).private_data.cast::<(ScriptedTask, LiveToken)>()) };
    // SAFETY: null or an output.
    let Some(out) = (unsafe { out.as_mut() }) else { return 0 };
    assert_eq!((out.array.length, out.device_id, out.reserved), (0, 0, [0; 3]), "R44: zeroed");
    assert!(out.is_released() && out.sync_event.is_null() && out.array.buffers.is_null(), "R44: zeroed");
    match private.0 {
        ScriptedTask::Array(array) => *out = array,
        ScriptedTask::Nothing => {}
        ScriptedTask::Error(code) => {
            out.array.release = Some(never);
            return code;
        }
    }
    0
}

/// A handler's pointer, for hooks that call it within `request` or `cancel`.
#[derive(Clone, Copy)]
pub struct HandlerPtr(pub *mut FFI_ArrowAsyncDeviceStreamHandler);

// SAFETY: the interface allows calls from any thread.
unsafe impl Send for HandlerPtr {}

impl HandlerPtr {
    pub fn fail(self, code: c_int, message: &str) {
        fail(self.0, code, Some(message));
    }

    pub fn give(self, mut task: FFI_ArrowAsyncTask) -> c_int {
        // SAFETY: the handler is live, as the test guarantees.
        unsafe { (*self.0).on_next_task.unwrap()(self.0, &mut task, ptr::null()) }
    }

    pub fn release(self) {
        // SAFETY: the handler is live, as the test guarantees.
        unsafe { (*self.0).release.unwrap()(self.0) }
    }
}
