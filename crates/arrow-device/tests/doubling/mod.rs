// SPDX-License-Identifier: Apache-2.0
//! A schema of 24 structs in C that a conversion would copy to 16 million fields.

use std::ffi::{CStr, c_int};
use std::ptr;

use arrow::ffi::FFI_ArrowSchema;
use arrow::ffi_stream::FFI_ArrowArrayStream;

const LEVELS: usize = 23;

/// The private data of a struct of the schema.
struct Owned {
    below: FFI_ArrowSchema,
    /// Both children are the struct below.
    children: [*mut FFI_ArrowSchema; 2],
}

/// Structs over an integer, each with the next one twice.
pub fn doubling() -> FFI_ArrowSchema {
    (0..LEVELS).fold(node(c"l"), |below, _| {
        let owned = Box::into_raw(Box::new(Owned { below, children: [ptr::null_mut(); 2] }));
        let mut above = node(c"+s");
        above.n_children = 2;
        above.private_data = owned.cast();
        // SAFETY: boxed above; `release` frees it.
        unsafe {
            (*owned).children = [&raw mut (*owned).below; 2];
            above.children = (&raw mut (*owned).children).cast();
        }
        above
    })
}

fn node(format: &'static CStr) -> FFI_ArrowSchema {
    let mut node = FFI_ArrowSchema::empty();
    node.format = format.as_ptr();
    node.name = c"x".as_ptr();
    node.release = Some(release);
    node
}

unsafe extern "C" fn release(schema: *mut FFI_ArrowSchema) {
    // SAFETY: a struct of `doubling`, which is released once.
    unsafe {
        let owned = (*schema).private_data.cast::<Owned>();
        if !owned.is_null() {
            drop(Box::from_raw(owned));
        }
        (*schema).release = None;
    }
}

/// A stream of host arrays with this schema.
pub fn doubling_stream() -> FFI_ArrowArrayStream {
    unsafe extern "C" fn get_schema(_: *mut FFI_ArrowArrayStream, out: *mut FFI_ArrowSchema) -> c_int {
        // SAFETY: the consumer gives a place for the schema.
        unsafe { out.write(doubling()) };
        0
    }
    unsafe extern "C" fn release(stream: *mut FFI_ArrowArrayStream) {
        // SAFETY: the stream to be released, which owns nothing.
        unsafe { (*stream).release = None };
    }
    let mut stream = FFI_ArrowArrayStream::empty();
    stream.get_schema = Some(get_schema);
    stream.release = Some(release);
    stream
}
