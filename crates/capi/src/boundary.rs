// SPDX-License-Identifier: Apache-2.0
//! The C boundary: panics become failures, failures become codes, strings are converted.

use std::ffi::{CStr, c_char, c_int};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;

use crate::error::{DEVICEFUSION_SUCCESS, Failure, Result, keep_on_thread};

/// Runs the body of a C function, which may copy or free the plan of deep SQL. A panic becomes a
/// failure.
pub(crate) fn catch_panics<T>(body: impl FnOnce() -> Result<T>) -> Result<T> {
    catch_unwind(AssertUnwindSafe(|| devicefusion::with_enough_stack(body))).unwrap_or_else(|panic| {
        let message = devicefusion::panic_text(panic);
        let message = message.as_deref().unwrap_or("without a message");
        Err(Failure::other(format!("a bug in this library: it panicked, {message}")))
    })
}

/// Runs the body of a C function without a context. The calling thread keeps its failure.
pub(crate) fn without_context<T>(body: impl FnOnce() -> Result<T>) -> std::result::Result<T, c_int> {
    catch_panics(body).map_err(|failure| {
        keep_on_thread(failure.message);
        failure.code
    })
}

/// The code that a C function without another result returns.
pub(crate) fn code(result: std::result::Result<(), c_int>) -> c_int {
    result.err().unwrap_or(DEVICEFUSION_SUCCESS)
}

/// A C string as UTF-8. `what` names the argument in messages.
///
/// # Safety
/// `string` is NULL, or a C string that outlives the result.
pub(crate) unsafe fn string<'a>(what: &str, string: *const c_char) -> Result<&'a str> {
    if string.is_null() {
        return Err(Failure::program(format!("the {what} is NULL")));
    }
    // SAFETY: not null, and the rest is this function's own condition.
    let string = unsafe { CStr::from_ptr(string) };
    string.to_str().map_err(|error| Failure::program(format!("the {what} is not UTF-8: {error}")))
}

/// Checks the pointer for a result before the result is computed.
pub(crate) fn check_out<T>(what: &str, out: *mut T) -> Result<()> {
    if out.is_null() { Err(Failure::program(format!("the pointer for the {what} is NULL"))) } else { Ok(()) }
}

/// A copy of a string for C, which calls `free` on it. The copy ends at the first NUL.
///
/// NULL if there is no memory.
pub(crate) fn malloc_string(string: &str) -> *mut c_char {
    let len = string.find('\0').unwrap_or(string.len());
    // SAFETY: `malloc` has no precondition.
    let copy = unsafe { libc::malloc(len + 1) }.cast::<u8>();
    if copy.is_null() {
        return ptr::null_mut();
    }
    // SAFETY: the memory is new and has `len + 1` bytes; the string fills all but the last.
    unsafe {
        ptr::copy_nonoverlapping(string.as_ptr(), copy, len);
        copy.add(len).write(0);
    }
    copy.cast()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::{DEVICEFUSION_FAILURE, take_from_thread};

    #[test]
    fn a_panic_is_a_failure_with_its_message() {
        let number = 7;
        let message_of = |body: &dyn Fn()| {
            let result = without_context(|| {
                body();
                Ok(())
            });
            assert_eq!(result, Err(DEVICEFUSION_FAILURE));
            take_from_thread().unwrap()
        };
        assert!(message_of(&|| panic!("number {number}")).ends_with("it panicked, number 7"));
        assert!(message_of(&|| panic!("plainly")).ends_with("it panicked, plainly"));
        assert!(message_of(&|| std::panic::panic_any(7)).ends_with("it panicked, without a message"));
    }

    #[test]
    fn strings_for_c_end_at_their_first_nul() {
        let copy = malloc_string("öne\0two");
        // SAFETY: a C string of `malloc`, freed once.
        unsafe {
            assert_eq!(string("string", copy).unwrap(), "öne");
            libc::free(copy.cast());
        }
    }
}
