// SPDX-License-Identifier: Apache-2.0
//! Guards for callbacks from C: no panic may leave them, and messages must be C strings (R30, R55).

use std::any::Any;
use std::ffi::CString;
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::{Error, Result};

/// Runs the body of a callback; a panic becomes an error, because unwinding into C is undefined.
///
/// After the error of a panic, state that the body changed must be discarded, or be valid
/// half-changed.
pub(crate) fn guard<T>(call: &str, body: impl FnOnce() -> Result<T>) -> Result<T> {
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(result) => result,
        Err(payload) => {
            let error = Error::Other(format!("{call} panicked{}", panic_message(&*payload)));
            // The payload may panic on drop; the payload of that panic is leaked.
            if let Err(another) = catch_unwind(AssertUnwindSafe(|| drop(payload))) {
                std::mem::forget(another);
            }
            Err(error)
        }
    }
}

/// The message of a panic, as the end of a sentence.
fn panic_message(payload: &(dyn Any + Send)) -> String {
    let message = payload.downcast_ref::<&str>().copied().or_else(|| payload.downcast_ref::<String>().map(String::as_str));
    message.map(|message| format!(": {message}")).unwrap_or_default()
}

/// Converts a string for C: each NUL becomes U+FFFD, because C strings end at a NUL.
pub(crate) fn c_string(string: &str) -> CString {
    // Never fails without a NUL; the default is unreachable.
    CString::new(string.replace('\0', "\u{fffd}")).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::PanicOnDrop;

    #[test]
    fn r30_a_panic_becomes_an_error_that_names_the_call() {
        let error = guard::<()>("get_next", || panic!("row {}", 7)).unwrap_err();
        assert_eq!(error.to_string(), "get_next panicked: row 7");
        assert_eq!(error.errno(), libc::EIO);
    }

    #[test]
    #[cfg_attr(miri, ignore = "leaks the second payload, on purpose")]
    fn r30_a_payload_that_panics_as_it_drops_is_caught_too() {
        let error = guard::<()>("release", || std::panic::panic_any(PanicOnDrop)).unwrap_err();
        assert_eq!(error.to_string(), "release panicked");
    }

    #[test]
    fn r55_a_nul_in_a_string_does_not_cut_it() {
        assert_eq!(c_string("a\0b").to_str().unwrap(), "a\u{fffd}b");
    }
}
