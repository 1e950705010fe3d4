// SPDX-License-Identifier: Apache-2.0
//! The border to C: panics stop here, texts and results cross it.

use std::any::Any;
use std::ffi::{CStr, c_char, c_int};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;
use std::sync::Arc;

use crate::DEVICEFUSION_SUCCESS;
use crate::context::{CONTEXTS, Context, devicefusion_context};
use crate::error::{Failure, Result, keep_on_thread};
use crate::query::{QUERIES, Query, devicefusion_query};

/// Runs what a function of C does; a panic is a failure like any other.
pub(crate) fn caught<T>(body: impl FnOnce() -> Result<T>) -> Result<T> {
    catch_unwind(AssertUnwindSafe(body)).unwrap_or_else(|panic| {
        let text = panicked(panic.as_ref());
        // Dropping it might panic once more.
        std::mem::forget(panic);
        Err(Failure::other(text))
    })
}

fn panicked(panic: &(dyn Any + Send)) -> String {
    let said = panic.downcast_ref::<String>().map(String::as_str).or_else(|| panic.downcast_ref::<&str>().copied());
    format!("a bug of this library: it panicked, {}", said.unwrap_or("without a text"))
}

/// Runs what a function without a context does. Its failure is kept for the thread.
pub(crate) fn without_context<T>(body: impl FnOnce() -> Result<T>) -> std::result::Result<T, c_int> {
    caught(body).map_err(|failure| {
        keep_on_thread(failure.text);
        failure.code
    })
}

/// Runs what a function does with a context, which keeps its failure.
pub(crate) fn with_context<T>(
    context: *const devicefusion_context,
    body: impl FnOnce(&Arc<Context>) -> Result<T>,
) -> std::result::Result<T, c_int> {
    let context = without_context(|| CONTEXTS.get(context))?;
    reporting_to(&context, || body(&context))
}

/// Runs what a function does with a query, whose context keeps its failure.
pub(crate) fn with_query<T>(
    query: *const devicefusion_query,
    body: impl FnOnce(&Arc<Query>) -> Result<T>,
) -> std::result::Result<T, c_int> {
    let query = without_context(|| QUERIES.get(query))?;
    reporting_to(query.context(), || body(&query))
}

fn reporting_to<T>(context: &Context, body: impl FnOnce() -> Result<T>) -> std::result::Result<T, c_int> {
    caught(body).map_err(|failure| {
        context.errors.keep(failure.text);
        failure.code
    })
}

/// The code of a function that only succeeds or fails.
pub(crate) fn code(result: std::result::Result<(), c_int>) -> c_int {
    result.err().unwrap_or(DEVICEFUSION_SUCCESS)
}

/// The text that C passes for `what`.
///
/// # Safety
/// `text` is NULL, or a C string that outlives the result.
pub(crate) unsafe fn text<'a>(what: &str, text: *const c_char) -> Result<&'a str> {
    if text.is_null() {
        return Err(Failure::program(format!("the {what} is NULL")));
    }
    // SAFETY: not null, and the rest is this function's own condition.
    let text = unsafe { CStr::from_ptr(text) };
    text.to_str().map_err(|error| Failure::program(format!("the {what} is not UTF-8: {error}")))
}

/// Checks that C wants a result, before it is computed.
pub(crate) fn wanted<T>(what: &str, out: *mut T) -> Result<()> {
    if out.is_null() { Err(Failure::program(format!("there is no place for the {what}: the pointer is NULL"))) } else { Ok(()) }
}

/// A text for C, which calls `free` on it; NULL without memory. Cut at a NUL.
pub(crate) fn give_text(text: &str) -> *mut c_char {
    let len = text.find('\0').unwrap_or(text.len());
    // SAFETY: `malloc` has no precondition.
    let copy = unsafe { libc::malloc(len + 1) }.cast::<u8>();
    if copy.is_null() {
        return ptr::null_mut();
    }
    // SAFETY: the memory is new and has `len + 1` bytes, of which the text fills all but the last.
    unsafe {
        ptr::copy_nonoverlapping(text.as_ptr(), copy, len);
        copy.add(len).write(0);
    }
    copy.cast()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::DEVICEFUSION_FAILURE;
    use crate::error::take_from_thread;

    #[test]
    fn a_panic_is_a_failure_with_its_text() {
        let number = 7;
        let text_of = |body: &dyn Fn()| {
            let result = without_context(|| {
                body();
                Ok(())
            });
            assert_eq!(result, Err(DEVICEFUSION_FAILURE));
            take_from_thread().unwrap()
        };
        assert!(text_of(&|| panic!("number {number}")).ends_with("it panicked, number 7"));
        assert!(text_of(&|| panic!("plainly")).ends_with("it panicked, plainly"));
        assert!(text_of(&|| std::panic::panic_any(7)).ends_with("it panicked, without a text"));
    }

    #[test]
    fn texts_for_c_end_at_their_first_nul() {
        let given = give_text("öne\0two");
        // SAFETY: a C string of `malloc`, freed once.
        unsafe {
            assert_eq!(text("text", given).unwrap(), "öne");
            libc::free(given.cast());
        }
    }
}
