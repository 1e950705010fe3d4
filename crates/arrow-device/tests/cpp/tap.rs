// SPDX-License-Identifier: Apache-2.0
//! A proxy between the producer and the consumer of an async stream, which forwards and records all
//! calls.

use std::ffi::{CStr, c_char, c_int};
use std::ptr::null_mut;
use std::sync::Mutex;

use arrow::ffi::FFI_ArrowSchema;
use arrow_device::ffi::{
    ArrowDeviceType, FFI_ArrowAsyncDeviceStreamHandler as Handler, FFI_ArrowAsyncProducer as Producer,
    FFI_ArrowAsyncTask as Task, FFI_ArrowDeviceArray,
};

/// A recorded call, with its result.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Call {
    Schema(c_int),
    Task(c_int),
    End(c_int),
    Error(c_int, String),
    Release,
    Request(i64),
    Cancel,
    /// Whether there was an output, and the returned code.
    Extract(bool, c_int),
}

/// The calls of the handler, without those that may come at any time.
pub fn of_the_handler(calls: &[Call]) -> Vec<&Call> {
    calls.iter().filter(|call| !matches!(call, Call::Request(_) | Call::Cancel | Call::Extract(..))).collect()
}

/// A proxy handler between a producer and a consumer's handler. It outlives both.
pub struct Tap {
    // Raw, because C writes through it.
    inner: *mut TapInner,
}

struct TapInner {
    outer: Handler,
    target: *mut Handler,
    /// The proxy producer for the consumer, and the real one behind it.
    tapped: Producer,
    producer: *mut Producer,
    state: Mutex<TapState>,
    /// Whether the producer has released the handler. Then the producer may be gone.
    released: Mutex<bool>,
}

#[derive(Default)]
struct TapState {
    calls: Vec<Call>,
    requested: i64,
    delivered: i64,
    most: i64,
    too_many: bool,
    end_before_release: bool,
    refuse_tasks: c_int,
}

// SAFETY: the interface allows its calls on any thread; mutable state is behind a lock.
unsafe impl Send for Tap {}
// SAFETY: as above.
unsafe impl Sync for Tap {}

impl Drop for Tap {
    fn drop(&mut self) {
        // A failed test leaves both sides running.
        if !std::thread::panicking() {
            // SAFETY: boxed in `new`; the owner guarantees that no call follows.
            drop(unsafe { Box::from_raw(self.inner) });
        }
    }
}

impl Tap {
    /// A tap in front of the handler `target`.
    pub fn new(target: *mut Handler) -> Self {
        let outer = Handler {
            on_schema: Some(on_schema),
            on_next_task: Some(on_next_task),
            on_error: Some(on_error),
            release: Some(release),
            producer: null_mut(),
            private_data: null_mut(),
        };
        let tapped = Producer {
            device_type: ArrowDeviceType(0),
            request: Some(request),
            cancel: Some(cancel),
            additional_metadata: std::ptr::null(),
            private_data: null_mut(),
        };
        let (state, released) = Default::default();
        let inner = Box::into_raw(Box::new(TapInner { outer, target, tapped, producer: null_mut(), state, released }));
        // SAFETY: just boxed.
        unsafe {
            (*inner).outer.private_data = inner.cast();
            (*inner).tapped.private_data = inner.cast();
        }
        Self { inner }
    }

    /// The handler for the producer.
    pub fn handler(&self) -> *mut Handler {
        // SAFETY: live.
        unsafe { &raw mut (*self.inner).outer }
    }

    /// Cancels at the producer, as the consumer might, unless the handler is released.
    pub fn cancel(&self) {
        // SAFETY: the tap is live. So is the producer, since `release` waits for the lock.
        unsafe {
            let released = (*self.inner).released.lock().unwrap();
            if !*released {
                cancel(&raw mut (*self.inner).tapped);
            }
        }
    }

    /// Requests at the producer, as the consumer might.
    pub fn request(&self, n: i64) {
        // SAFETY: the tap is live, and the test guarantees that the producer is.
        unsafe { request(&raw mut (*self.inner).tapped, n) }
    }

    /// Sends the end marker before `release`, without which a consumer of Arrow C++ waits forever.
    pub fn end_before_release(&self) {
        self.state(|state| state.end_before_release = true);
    }

    /// Refuses all tasks with this code, in place of the consumer.
    pub fn refuse_tasks(&self, code: c_int) {
        self.state(|state| state.refuse_tasks = code);
    }

    fn state<T>(&self, f: impl FnOnce(&mut TapState) -> T) -> T {
        // SAFETY: live.
        f(&mut unsafe { &*self.inner }.state.lock().unwrap())
    }

    pub fn calls(&self) -> Vec<Call> {
        self.state(|state| state.calls.clone())
    }

    pub fn requested(&self) -> i64 {
        self.state(|state| state.requested)
    }

    pub fn delivered(&self) -> i64 {
        self.state(|state| state.delivered)
    }

    /// The maximum of batches that were requested and not delivered.
    pub fn most_outstanding(&self) -> i64 {
        self.state(|state| state.most)
    }

    pub fn released(&self) -> bool {
        self.state(|state| state.calls.contains(&Call::Release))
    }

    /// Checks the order of all calls, by the rules that Arrow C++ keeps too.
    #[track_caller]
    pub fn check(&self) {
        let calls = self.calls();
        let handler = of_the_handler(&calls);
        assert_eq!(handler.last(), Some(&&Call::Release), "{calls:?}");
        assert_eq!(handler.iter().filter(|call| ***call == Call::Release).count(), 1, "{calls:?}");
        assert!(matches!(handler[0], Call::Schema(_) | Call::Error(..) | Call::Release), "R80: {calls:?}");
        assert!(!self.state(|state| state.too_many), "R84: {calls:?}");
        let accepted = calls.iter().filter(|call| **call == Call::Task(0)).count();
        let extracted = calls.iter().filter(|call| matches!(call, Call::Extract(..))).count();
        assert_eq!(accepted, extracted, "R68: {calls:?}");
    }
}

impl TapInner {
    fn record(&self, call: Call) {
        self.state.lock().unwrap().calls.push(call);
    }
}

/// # Safety
/// `handler` is that of a live tap.
unsafe fn inner(handler: *mut Handler) -> *mut TapInner {
    // SAFETY: the caller upholds the contract.
    unsafe { (*handler).private_data.cast() }
}

unsafe extern "C" fn on_schema(handler: *mut Handler, schema: *mut FFI_ArrowSchema) -> c_int {
    // SAFETY: the tap and its target live until they are released; the producer is set.
    unsafe {
        let tap = inner(handler);
        (*tap).producer = (*handler).producer;
        (*tap).tapped.device_type = (*(*tap).producer).device_type;
        (*tap).tapped.additional_metadata = (*(*tap).producer).additional_metadata;
        let target = (*tap).target;
        (*target).producer = &raw mut (*tap).tapped;
        let code = (*target).on_schema.unwrap()(target, schema);
        (*tap).record(Call::Schema(code));
        code
    }
}

struct TappedTask {
    task: Task,
    tap: *mut TapInner,
}

unsafe extern "C" fn on_next_task(handler: *mut Handler, task: *mut Task, metadata: *const c_char) -> c_int {
    // SAFETY: as in `on_schema`.
    let (tap, target) = unsafe { (inner(handler), (*inner(handler)).target) };
    if task.is_null() {
        // SAFETY: as above.
        return unsafe {
            let code = (*target).on_next_task.unwrap()(target, task, metadata);
            (*tap).record(Call::End(code));
            code
        };
    }
    // SAFETY: as above; the producer passes the task.
    unsafe {
        {
            let mut state = (*tap).state.lock().unwrap();
            state.delivered += 1;
            state.too_many |= state.delivered > state.requested;
            if state.refuse_tasks != 0 {
                let code = state.refuse_tasks;
                state.calls.push(Call::Task(code));
                return code;
            }
        }
        let private = Box::into_raw(Box::new(TappedTask { task: *task, tap }));
        let mut tapped = Task { extract_data: Some(extract_data), private_data: private.cast() };
        let code = (*target).on_next_task.unwrap()(target, &mut tapped, metadata);
        (*tap).record(Call::Task(code));
        if code != 0 {
            drop(Box::from_raw(private));
        }
        code
    }
}

unsafe extern "C" fn extract_data(task: *mut Task, out: *mut FFI_ArrowDeviceArray) -> c_int {
    // SAFETY: a task of `on_next_task`, extracted once.
    unsafe {
        let mut tapped = Box::from_raw((*task).private_data.cast::<TappedTask>());
        let code = tapped.task.extract_data.unwrap()(&mut tapped.task, out);
        (*tapped.tap).record(Call::Extract(!out.is_null(), code));
        code
    }
}

unsafe extern "C" fn on_error(handler: *mut Handler, code: c_int, message: *const c_char, metadata: *const c_char) {
    // SAFETY: as in `on_schema`.
    unsafe {
        let tap = inner(handler);
        let copy = if message.is_null() { String::new() } else { CStr::from_ptr(message).to_string_lossy().into_owned() };
        (*tap).record(Call::Error(code, copy));
        let target = (*tap).target;
        (*target).on_error.unwrap()(target, code, message, metadata);
    }
}

unsafe extern "C" fn release(handler: *mut Handler) {
    // SAFETY: as in `on_schema`.
    unsafe {
        let tap = inner(handler);
        let target = (*tap).target;
        if (*tap).state.lock().unwrap().end_before_release {
            (*target).on_next_task.unwrap()(target, null_mut(), std::ptr::null());
        }
        (*tap).record(Call::Release);
        *(*tap).released.lock().unwrap() = true;
        (*target).release.unwrap()(target);
    }
}

unsafe extern "C" fn request(producer: *mut Producer, n: i64) {
    // SAFETY: the producer of a live tap, with a real one behind it since `on_schema`.
    unsafe {
        let tap = (*producer).private_data.cast::<TapInner>();
        {
            let mut state = (*tap).state.lock().unwrap();
            state.calls.push(Call::Request(n));
            state.requested += n;
            state.most = state.most.max(state.requested - state.delivered);
        }
        (*(*tap).producer).request.unwrap()((*tap).producer, n);
    }
}

unsafe extern "C" fn cancel(producer: *mut Producer) {
    // SAFETY: as in `request`.
    unsafe {
        let tap = (*producer).private_data.cast::<TapInner>();
        (*tap).record(Call::Cancel);
        (*(*tap).producer).cancel.unwrap()((*tap).producer);
    }
}
