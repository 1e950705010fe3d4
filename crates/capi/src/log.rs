// SPDX-License-Identifier: Apache-2.0
//! The running log of a context: lines to standard error, or to a file that C has opened.

use std::ffi::CString;
use std::io::Write;

use parking_lot::Mutex;

/// Where lines go.
pub(crate) struct Log(Mutex<Target>);

enum Target {
    StandardError,
    /// C keeps it open until it names another, or has freed the context.
    File(*mut libc::FILE),
}

// SAFETY: C's functions on a FILE lock it, and may be called from any thread.
unsafe impl Send for Target {}

impl Log {
    pub fn new() -> Self {
        Self(Mutex::new(Target::StandardError))
    }

    /// Sends what follows to `file`; to standard error with NULL.
    ///
    /// # Safety
    /// `file` is NULL, or stays open until this is called again or the log has dropped.
    pub unsafe fn send_to(&self, file: *mut libc::FILE) {
        *self.0.lock() = if file.is_null() { Target::StandardError } else { Target::File(file) };
    }

    /// Writes a line. That it cannot be written is nobody's error.
    pub fn line(&self, text: &str) {
        let target = self.0.lock();
        match *target {
            Target::StandardError => _ = writeln!(std::io::stderr(), "devicefusion: {text}"),
            Target::File(file) => {
                let line = CString::new(format!("devicefusion: {}\n", text.replace('\0', ""))).unwrap_or_default();
                // SAFETY: the file is open, as `send_to` was promised, and the line ends with a NUL.
                unsafe {
                    libc::fputs(line.as_ptr(), file);
                    libc::fflush(file);
                }
            }
        }
    }
}
