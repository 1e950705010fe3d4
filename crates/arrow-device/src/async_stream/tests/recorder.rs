// SPDX-License-Identifier: Apache-2.0
//! A C consumer that logs calls, checks the rules, and runs a test's hook in each callback.

use std::collections::VecDeque;
use std::ffi::{CStr, c_char, c_int};
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use arrow::ffi::FFI_ArrowSchema;
use parking_lot::Mutex;

use crate::async_stream::AsyncHandler;
use crate::ffi::*;
use crate::metadata::decode;

/// The test's hook: gets the callback's name and its number of earlier calls; returns the
/// callback's result.
type Hook = Box<dyn FnMut(&Recorder, &str, usize) -> c_int + Send>;

/// A recording consumer; clones share their state.
#[derive(Clone)]
pub struct Recorder(Arc<RecorderShared>);

struct RecorderShared {
    state: Mutex<RecorderState>,
    hook: Mutex<Hook>,
    inside: AtomicBool,
}

#[derive(Default)]
struct RecorderState {
    log: Vec<String>,
    tasks: VecDeque<FFI_ArrowAsyncTask>,
    producer: Option<ProducerPtr>,
    requested: i64,
    delivered: i64,
    /// The only callback allowed next.
    only: Option<&'static str>,
}

#[derive(Clone, Copy)]
struct ProducerPtr(*mut FFI_ArrowAsyncProducer);

// SAFETY: the interface allows calls from any thread.
unsafe impl Send for ProducerPtr {}

impl Recorder {
    pub fn new(hook: impl FnMut(&Recorder, &str, usize) -> c_int + Send + 'static) -> (AsyncHandler, Self) {
        let this = Self(Arc::new(RecorderShared {
            state: Mutex::default(),
            hook: Mutex::new(Box::new(hook)),
            inside: AtomicBool::new(false),
        }));
        let handler = Box::into_raw(Box::new(FFI_ArrowAsyncDeviceStreamHandler {
            on_schema: Some(on_schema),
            on_next_task: Some(on_next_task),
            on_error: Some(on_error),
            release: Some(release),
            producer: ptr::null_mut(),
            private_data: Arc::into_raw(Arc::clone(&this.0)).cast_mut().cast(),
        }));
        // SAFETY: a new handler with all callbacks.
        (unsafe { AsyncHandler::from_raw(handler) }.unwrap(), this)
    }

    /// A consumer that requests `n` batches in `on_schema`, and keeps the tasks.
    pub fn requests(n: i64) -> (AsyncHandler, Self) {
        Self::new(move |this, call, _| {
            if call == "schema" {
                this.request(n);
            }
            0
        })
    }

    pub fn log(&self) -> String {
        self.0.state.lock().log.join(" ")
    }

    pub fn request(&self, n: i64) {
        let producer = {
            let mut state = self.0.state.lock();
            state.requested = state.requested.saturating_add(n.max(0));
            state.producer.unwrap().0
        };
        // SAFETY: valid until `release` has returned and all tasks are extracted (R96).
        unsafe { (*producer).request.unwrap()(producer, n) };
    }

    pub fn cancel(&self) {
        let producer = self.0.state.lock().producer.unwrap().0;
        // SAFETY: as in `request`.
        unsafe { (*producer).cancel.unwrap()(producer) };
    }

    pub fn producer_metadata(&self) -> Vec<(String, String)> {
        let producer = self.0.state.lock().producer.unwrap().0;
        // SAFETY: as in `request`.
        unsafe { decode((*producer).additional_metadata) }.unwrap()
    }

    pub fn waiting(&self) -> usize {
        self.0.state.lock().tasks.len()
    }

    /// Extracts the first waiting task, into memory filled with garbage.
    pub fn extract(&self) -> Result<FFI_ArrowDeviceArray, c_int> {
        let mut task = self.0.state.lock().tasks.pop_front().unwrap();
        let mut out = std::mem::MaybeUninit::<FFI_ArrowDeviceArray>::uninit();
        // SAFETY: an accepted task, extracted once; all bytes of the output are written here.
        let (code, array) = unsafe {
            out.as_mut_ptr().cast::<u8>().write_bytes(0xAB, size_of::<FFI_ArrowDeviceArray>());
            let code = task.extract_data.unwrap()(&mut task, out.as_mut_ptr());
            (code, out.assume_init())
        };
        assert_eq!(array.reserved, [0; 3], "R97: all of the output is written");
        // SAFETY: a second extraction through the same copy, which the task must detect.
        assert_eq!(unsafe { task.extract_data.unwrap()(&mut task, ptr::null_mut()) }, libc::EINVAL, "a second extraction");
        if code == 0 { Ok(array) } else { Err(code) }
    }

    pub fn dismiss(&self) {
        let mut task = self.0.state.lock().tasks.pop_front().unwrap();
        // SAFETY: an accepted task, extracted once.
        assert_eq!(unsafe { task.extract_data.unwrap()(&mut task, ptr::null_mut()) }, 0);
    }

    pub fn dismiss_all(&self) {
        while self.waiting() > 0 {
            self.dismiss();
        }
    }

    /// Checks the rules, logs the call, and runs the hook.
    fn called(&self, name: &'static str, entry: String) -> c_int {
        assert!(!self.0.inside.swap(true, SeqCst), "R85, R86: {name} inside or beside another callback");
        let before = {
            let mut state = self.0.state.lock();
            if let Some(only) = state.only {
                assert_eq!(name, only, "after {:?}", state.log);
            }
            let first = state.log.is_empty();
            assert!(matches!(name, "error" | "release") || first == (name == "schema"), "R80: {name} after {:?}", state.log);
            let before = state.log.iter().filter(|line| line.split('(').next() == Some(name)).count();
            state.log.push(entry);
            state.only = match name {
                "error" | "end" => Some("release"),
                "release" => Some("nothing"),
                _ => None,
            };
            before
        };
        let code = (self.0.hook.lock())(self, name, before);
        if code != 0 && matches!(name, "schema" | "task") {
            self.0.state.lock().only = Some("release");
        }
        assert!(self.0.inside.swap(false, SeqCst));
        code
    }
}

/// # Safety
/// `handler` is one of `Recorder::new`, not released.
unsafe fn recorder(handler: *mut FFI_ArrowAsyncDeviceStreamHandler) -> Recorder {
    // SAFETY: the caller upholds the contract.
    unsafe {
        let inner = (*handler).private_data.cast::<RecorderShared>().cast_const();
        Arc::increment_strong_count(inner);
        Recorder(Arc::from_raw(inner))
    }
}

unsafe extern "C" fn on_schema(handler: *mut FFI_ArrowAsyncDeviceStreamHandler, schema: *mut FFI_ArrowSchema) -> c_int {
    // SAFETY: as the interface requires.
    let (this, schema, producer) = unsafe { (recorder(handler), FFI_ArrowSchema::from_raw(schema), (*handler).producer) };
    assert!(!producer.is_null(), "R79");
    this.0.state.lock().producer = Some(ProducerPtr(producer));
    assert_eq!(crate::schema::schema_of(&(&schema).try_into().unwrap()).unwrap(), super::support::schema());
    this.called("schema", "schema".into())
}

unsafe extern "C" fn on_next_task(
    handler: *mut FFI_ArrowAsyncDeviceStreamHandler,
    task: *mut FFI_ArrowAsyncTask,
    metadata: *const c_char,
) -> c_int {
    // SAFETY: as the interface requires.
    let (this, task, metadata) = unsafe { (recorder(handler), task.as_ref().copied(), decode(metadata).unwrap()) };
    let Some(task) = task else { return this.called("end", "end".into()) };
    {
        let mut state = this.0.state.lock();
        state.delivered += 1;
        assert!(state.delivered <= state.requested, "R84: {} delivered of {}", state.delivered, state.requested);
        state.tasks.push_back(task);
    }
    let code = this.called("task", ["task".to_string()].into_iter().chain(metadata.into_iter().map(pair)).collect());
    if code != 0 {
        // Refused, so the task stays the producer's.
        this.0.state.lock().tasks.pop_back();
    }
    code
}

unsafe extern "C" fn on_error(
    handler: *mut FFI_ArrowAsyncDeviceStreamHandler,
    code: c_int,
    message: *const c_char,
    metadata: *const c_char,
) {
    // SAFETY: as the interface requires.
    let (this, message, metadata) = unsafe { (recorder(handler), CStr::from_ptr(message), decode(metadata).unwrap()) };
    let entry = format!("error({code}, {})", message.to_str().unwrap());
    this.called("error", [entry].into_iter().chain(metadata.into_iter().map(pair)).collect());
}

unsafe extern "C" fn release(handler: *mut FFI_ArrowAsyncDeviceStreamHandler) {
    // SAFETY: as the interface requires; the memory and the reference are those of `Recorder::new`.
    unsafe {
        let this = recorder(handler);
        this.called("release", "release".into());
        let handler = Box::from_raw(handler);
        drop(Arc::from_raw(handler.private_data.cast::<RecorderShared>().cast_const()));
    }
}

fn pair((key, value): (String, String)) -> String {
    format!("({key}={value})")
}
