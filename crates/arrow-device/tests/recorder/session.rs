// SPDX-License-Identifier: Apache-2.0
//! A session of the recorder: its settings, counters and result.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::ptr::null_mut;
use std::time::{Duration, Instant};

use arrow::ffi::FFI_ArrowSchema;
use arrow_device::ffi::{FFI_ArrowAsyncDeviceStreamHandler, FFI_ArrowDeviceArray, FFI_ArrowDeviceArrayStream};

use crate::c::recorder;

/// Declares the functions of recorder.h that tests call.
macro_rules! functions {
    ($($name:ident($($argument:ty),*) $(-> $result:ty)?;)*) => {
        /// The recorder's functions.
        #[derive(Clone, Copy)]
        struct Functions { $($name: unsafe extern "C" fn($($argument),*) $(-> $result)?,)* }

        fn functions() -> Functions {
            let library = recorder();
            // SAFETY: the signatures are those of recorder.h.
            unsafe { Functions { $($name: *library.get(concat!(stringify!($name), "\0").as_bytes()).unwrap(),)* } }
        }
    };
}

type Raw = *mut c_void;

functions! {
    rec_new() -> Raw;
    rec_set(Raw, *const c_char, i64) -> c_int;
    rec_get(Raw, *const c_char) -> i64;
    rec_log(Raw, *mut c_char, usize) -> usize;
    rec_violations(Raw, *mut c_char, usize) -> usize;
    rec_settle(Raw);
    rec_destroy(Raw);
    rec_make_schema(Raw, *mut FFI_ArrowSchema);
    rec_make_array(Raw, i64, *mut FFI_ArrowDeviceArray);
    rec_event_wait(*mut c_void);
    rec_check_schema(Raw, *mut FFI_ArrowSchema);
    rec_check_array(Raw, *mut FFI_ArrowDeviceArray);
    rec_take(Raw, i64, *mut FFI_ArrowDeviceArray) -> c_int;
    rec_take_schema(Raw, *mut FFI_ArrowSchema) -> c_int;
    rec_pull_new(Raw, *mut FFI_ArrowDeviceArrayStream);
    rec_pull_open(Raw, *mut FFI_ArrowDeviceArrayStream);
    rec_pull_schema(Raw) -> c_int;
    rec_pull_next(Raw) -> c_int;
    rec_pull_error(Raw, *mut c_char, usize) -> i64;
    rec_pull_release(Raw);
    rec_async_start(Raw, *mut FFI_ArrowAsyncDeviceStreamHandler);
    rec_handler_new(Raw) -> *mut FFI_ArrowAsyncDeviceStreamHandler;
    rec_request(Raw, i64);
    rec_cancel(Raw);
    rec_handler_wait(Raw, c_int) -> c_int;
    rec_async_error(Raw, *mut c_char, usize) -> i64;
}

/// One conversation with the recorder. [`Session::end`] checks that no rule was violated.
pub struct Session {
    raw: Raw,
    f: Functions,
    ended: bool,
}

// SAFETY: the recorder locks its shared state; each function is called by one test at a time.
unsafe impl Send for Session {}
// SAFETY: as above.
unsafe impl Sync for Session {}

impl Drop for Session {
    fn drop(&mut self) {
        // A failed test leaks its session, because the other side may still call it.
        if !std::thread::panicking() {
            assert!(self.ended, "a session without `end`");
        }
    }
}

impl Session {
    /// A session with settings of `SETTINGS` in core.c.
    #[track_caller]
    pub fn new(settings: &[(&str, i64)]) -> Self {
        let f = functions();
        // SAFETY: no conditions.
        let session = Self { raw: unsafe { (f.rec_new)() }, f, ended: false };
        for (key, value) in settings {
            session.set(key, *value);
        }
        session
    }

    #[track_caller]
    pub fn set(&self, key: &str, value: i64) {
        let name = CString::new(key).unwrap();
        // SAFETY: a live session.
        assert_eq!(unsafe { (self.f.rec_set)(self.raw, name.as_ptr(), value) }, 0, "no setting {key}");
    }

    /// A counter; -1 if this session has no such counter.
    pub fn get(&self, key: &str) -> i64 {
        let name = CString::new(key).unwrap();
        // SAFETY: a live session.
        unsafe { (self.f.rec_get)(self.raw, name.as_ptr()) }
    }

    /// Waits until a counter reaches `least`; false after 30 seconds.
    pub fn wait_for(&self, key: &str, least: i64) -> bool {
        let start = Instant::now();
        while self.get(key) < least {
            if start.elapsed() > Duration::from_secs(30) {
                return false;
            }
            std::thread::sleep(Duration::from_micros(200));
        }
        true
    }

    fn string_of(&self, get: unsafe extern "C" fn(Raw, *mut c_char, usize) -> usize) -> String {
        let mut bytes = vec![0u8; 1 << 20];
        // SAFETY: a live session, and a buffer of that size.
        let all = unsafe { get(self.raw, bytes.as_mut_ptr().cast(), bytes.len()) };
        bytes.truncate(all);
        String::from_utf8_lossy(&bytes).into_owned()
    }

    pub fn log(&self) -> String {
        self.string_of(self.f.rec_log)
    }

    /// The number of log lines that begin like this.
    pub fn logged(&self, beginning: &str) -> usize {
        self.log().lines().filter(|line| line.starts_with(beginning)).count()
    }

    /// Ends the conversation: everything is released, and no rule was violated.
    #[track_caller]
    pub fn end(self) {
        self.end_with(&[]);
    }

    /// As [`Self::end`], but exactly these rules were violated.
    #[track_caller]
    pub fn end_with(mut self, expected: &[&str]) {
        self.ended = true;
        // SAFETY: a live session.
        unsafe { (self.f.rec_settle)(self.raw) };
        let violations = self.string_of(self.f.rec_violations);
        let mut broken: Vec<_> = violations.lines().filter_map(|line| line.split_once(':')).map(|(rule, _)| rule).collect();
        broken.sort_unstable();
        broken.dedup();
        assert_eq!(broken, expected, "violations:\n{violations}\nlog:\n{}", self.log());
        // SAFETY: a live session that has settled, so no more calls come.
        unsafe { (self.f.rec_destroy)(self.raw) };
    }

    // ---- Arrays

    pub fn make_schema(&self) -> FFI_ArrowSchema {
        let mut schema = FFI_ArrowSchema::empty();
        // SAFETY: a live session and an output.
        unsafe { (self.f.rec_make_schema)(self.raw, &mut schema) };
        schema
    }

    pub fn make_array(&self, batch: i64) -> FFI_ArrowDeviceArray {
        let mut array = FFI_ArrowDeviceArray::empty();
        // SAFETY: a live session and an output.
        unsafe { (self.f.rec_make_array)(self.raw, batch, &mut array) };
        array
    }

    /// Waits for an event of the recorder.
    pub fn event_wait(&self, event: *mut c_void) {
        // SAFETY: any pointer is accepted; one that is no event is a violation.
        unsafe { (self.f.rec_event_wait)(event) }
    }

    /// Passes a schema to the recorder, which checks it.
    pub fn check_schema(&self, mut schema: FFI_ArrowSchema) {
        // SAFETY: a live session and a live schema, which is moved out.
        unsafe { (self.f.rec_check_schema)(self.raw, &mut schema) };
    }

    /// Passes an array to the recorder, which checks it against the last schema.
    pub fn check_array(&self, mut array: FFI_ArrowDeviceArray) {
        // SAFETY: a live session and a live array, which is moved out.
        unsafe { (self.f.rec_check_array)(self.raw, &mut array) };
    }

    /// Moves the nth array of the recorder out.
    pub fn take(&self, n: i64) -> Option<FFI_ArrowDeviceArray> {
        let mut array = FFI_ArrowDeviceArray::empty();
        // SAFETY: a live session and an output.
        let code = unsafe { (self.f.rec_take)(self.raw, n, &mut array) };
        (code == 0).then_some(array)
    }

    /// Moves the schema of the recorder out.
    pub fn take_schema(&self) -> Option<FFI_ArrowSchema> {
        let mut schema = FFI_ArrowSchema::empty();
        // SAFETY: a live session and an output.
        let code = unsafe { (self.f.rec_take_schema)(self.raw, &mut schema) };
        (code == 0).then_some(schema)
    }

    // ---- Pull streams

    /// A stream of the recorder.
    pub fn stream(&self) -> FFI_ArrowDeviceArrayStream {
        let mut stream = FFI_ArrowDeviceArrayStream::empty();
        // SAFETY: a live session and an output.
        unsafe { (self.f.rec_pull_new)(self.raw, &mut stream) };
        stream
    }

    /// Passes a stream to the recorder, which moves it.
    pub fn open(&self, mut stream: FFI_ArrowDeviceArrayStream) {
        // SAFETY: a live session and a live stream, which is moved out.
        unsafe { (self.f.rec_pull_open)(self.raw, &mut stream) };
    }

    /// 0, or minus the errno.
    pub fn schema(&self) -> c_int {
        // SAFETY: a live session with an open stream.
        unsafe { (self.f.rec_pull_schema)(self.raw) }
    }

    /// 0, 1 at the end, or minus the errno.
    pub fn next(&self) -> c_int {
        // SAFETY: a live session with an open stream.
        unsafe { (self.f.rec_pull_next)(self.raw) }
    }

    /// The message of the last call's failure.
    pub fn error(&self) -> Option<String> {
        self.message(self.f.rec_pull_error)
    }

    pub fn release(&self) {
        // SAFETY: a live session with an open stream.
        unsafe { (self.f.rec_pull_release)(self.raw) }
    }

    fn message(&self, get: unsafe extern "C" fn(Raw, *mut c_char, usize) -> i64) -> Option<String> {
        let mut bytes = vec![0u8; 200_000];
        // SAFETY: a live session, and a buffer of that size.
        let length = unsafe { get(self.raw, bytes.as_mut_ptr().cast(), bytes.len() - 1) };
        usize::try_from(length).ok()?;
        Some(CStr::from_bytes_until_nul(&bytes).unwrap().to_str().unwrap().to_string())
    }

    // ---- Async streams

    /// Starts a producer of the recorder for a handler.
    pub fn produce(&self, handler: *mut FFI_ArrowAsyncDeviceStreamHandler) {
        assert_ne!(handler, null_mut());
        // SAFETY: a live session and a live handler.
        unsafe { (self.f.rec_async_start)(self.raw, handler) }
    }

    /// A handler of the recorder.
    pub fn handler(&self) -> *mut FFI_ArrowAsyncDeviceStreamHandler {
        // SAFETY: a live session.
        unsafe { (self.f.rec_handler_new)(self.raw) }
    }

    pub fn request(&self, n: i64) {
        // SAFETY: a live session with a handler.
        unsafe { (self.f.rec_request)(self.raw, n) }
    }

    pub fn cancel(&self) {
        // SAFETY: a live session with a handler.
        unsafe { (self.f.rec_cancel)(self.raw) }
    }

    /// Waits for the handler's release.
    #[track_caller]
    pub fn wait_for_release(&self) {
        // SAFETY: a live session with a handler.
        let code = unsafe { (self.f.rec_handler_wait)(self.raw, 30_000) };
        assert_eq!(code, 0, "release does not come:\n{}", self.log());
    }

    /// The arguments of `on_error`: the errno and the message.
    pub fn async_error(&self) -> Option<(i64, Option<String>)> {
        (self.get("errored") == 1).then(|| (self.get("error_code"), self.message(self.f.rec_async_error)))
    }
}
