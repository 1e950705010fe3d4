// SPDX-License-Identifier: Apache-2.0
//! The log of a context: lines on standard error, or in a file that C has opened.

use std::ffi::CString;
use std::io::Write;

use parking_lot::Mutex;

/// Writer of log lines.
pub(crate) struct Log(Mutex<Target>);

enum Target {
    StandardError,
    /// Open until C names another file, or has freed the context.
    File(*mut libc::FILE),
}

// SAFETY: C's functions on a FILE lock it, and may be called from any thread.
unsafe impl Send for Target {}

impl Log {
    pub fn new() -> Self {
        Self(Mutex::new(Target::StandardError))
    }

    /// Sends later lines to `file`, or to standard error if it is NULL.
    ///
    /// # Safety
    /// `file` is NULL, or stays open until this is called again or the log has dropped.
    pub unsafe fn send_to(&self, file: *mut libc::FILE) {
        *self.0.lock() = if file.is_null() { Target::StandardError } else { Target::File(file) };
    }

    /// Writes a line. A failure to write is ignored.
    pub fn line(&self, line: &str) {
        let target = self.0.lock();
        match *target {
            Target::StandardError => _ = writeln!(std::io::stderr(), "devicefusion: {line}"),
            Target::File(file) => {
                let line = CString::new(format!("devicefusion: {}\n", line.replace('\0', ""))).unwrap_or_default();
                // SAFETY: the file is open by the condition of `send_to`, and the line ends with a
                // NUL.
                unsafe {
                    libc::fputs(line.as_ptr(), file);
                    libc::fflush(file);
                }
            }
        }
    }
}
