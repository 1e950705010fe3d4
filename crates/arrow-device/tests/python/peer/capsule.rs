// SPDX-License-Identifier: Apache-2.0
//! The destructor of PyCapsules with structs of this crate (R98). It may run while an exception
//! propagates, so it runs no Python code.

use std::ffi::{CStr, c_char, c_void};
use std::sync::OnceLock;

use arrow::ffi::{FFI_ArrowArray, FFI_ArrowSchema};
use arrow_device::ffi::FFI_ArrowDeviceArray;

type GetName = unsafe extern "C" fn(*mut c_void) -> *const c_char;
type GetPointer = unsafe extern "C" fn(*mut c_void, *const c_char) -> *mut c_void;

static FUNCTIONS: OnceLock<(GetName, GetPointer)> = OnceLock::new();

/// CapsuleMemory for the largest struct.
#[repr(C, align(8))]
struct CapsuleMemory([u8; 128]);

/// Sets the Python functions that the destructor calls: `PyCapsule_GetName` and
/// `PyCapsule_GetPointer`.
#[unsafe(no_mangle)]
pub extern "C" fn peer_capsule_functions(get_name: GetName, get_pointer: GetPointer) {
    let _ = FUNCTIONS.set((get_name, get_pointer));
}

/// CapsuleMemory for the struct of a capsule, which [`peer_capsule_destroy`] frees.
#[unsafe(no_mangle)]
pub extern "C" fn peer_capsule_memory() -> *mut c_void {
    Box::into_raw(Box::new(CapsuleMemory([0; 128]))).cast()
}

/// Releases the struct of a capsule unless it was moved out, and frees its memory.
///
/// # Safety
/// `capsule` is a capsule of a struct in memory of [`peer_capsule_memory`], with the name of the
/// struct.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn peer_capsule_destroy(capsule: *mut c_void) {
    let (get_name, get_pointer) = FUNCTIONS.get().unwrap();
    // SAFETY: a capsule in its destructor still has its name and its pointer.
    unsafe {
        let name = get_name(capsule);
        let memory = get_pointer(capsule, name);
        // Dropping a released struct does nothing.
        match CStr::from_ptr(name).to_bytes() {
            b"arrow_schema" => drop(FFI_ArrowSchema::from_raw(memory.cast())),
            b"arrow_array" => drop(FFI_ArrowArray::from_raw(memory.cast())),
            _ => drop(FFI_ArrowDeviceArray::from_raw(memory.cast())),
        }
        drop(Box::from_raw(memory.cast::<CapsuleMemory>()));
    }
}
