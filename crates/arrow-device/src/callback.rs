// SPDX-License-Identifier: Apache-2.0
//! What every callback that C calls needs: no panic may leave it, and its texts must be C strings (R30, R55).

use std::any::Any;
use std::ffi::CString;
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::{Error, Result};

/// Runs the body of a callback; a panic in it becomes an error, because unwinding into C is undefined.
///
/// Whatever the body was changing must be thrown away, or be fine half-changed, once this gives the error of a panic.
pub(crate) fn guard<T>(call: &str, body: impl FnOnce() -> Result<T>) -> Result<T> {
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(result) => result,
        Err(payload) => {
            let error = Error::Other(format!("{call} panicked{}", text(&*payload)));
            // A payload may panic as it drops; the payload of that panic is better leaked than tried.
            if let Err(another) = catch_unwind(AssertUnwindSafe(|| drop(payload))) {
                std::mem::forget(another);
            }
            Err(error)
        }
    }
}

/// What a panic said, as the end of a sentence.
fn text(payload: &(dyn Any + Send)) -> String {
    let text = payload.downcast_ref::<&str>().copied().or_else(|| payload.downcast_ref::<String>().map(String::as_str));
    text.map(|text| format!(": {text}")).unwrap_or_default()
}

/// A text for C: what follows a NUL would be lost there, so each becomes a replacement character.
pub(crate) fn c_text(text: &str) -> CString {
    // Without a NUL this cannot fail; the empty text stands for the impossible.
    CString::new(text.replace('\0', "\u{fffd}")).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn r30_a_panic_becomes_an_error_that_names_the_call() {
        let error = guard::<()>("get_next", || panic!("row {}", 7)).unwrap_err();
        assert_eq!(error.to_string(), "get_next panicked: row 7");
        assert_eq!(error.errno(), libc::EIO);
    }

    #[test]
    #[cfg_attr(miri, ignore = "leaks the second payload, on purpose")]
    fn r30_a_payload_that_panics_as_it_drops_is_caught_too() {
        struct Bomb;
        impl Drop for Bomb {
            fn drop(&mut self) {
                panic!("payload dropped");
            }
        }
        let error = guard::<()>("release", || std::panic::panic_any(Bomb)).unwrap_err();
        assert_eq!(error.to_string(), "release panicked");
    }

    #[test]
    fn r55_a_nul_in_a_text_does_not_cut_it() {
        assert_eq!(c_text("a\0b").to_str().unwrap(), "a\u{fffd}b");
    }
}
