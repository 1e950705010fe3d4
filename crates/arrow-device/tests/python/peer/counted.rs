// SPDX-License-Identifier: Apache-2.0
//! Counting release callbacks, in front of those of any producer.

use std::sync::{Mutex, MutexGuard};

use arrow::ffi::FFI_ArrowArray;
use arrow_device::ffi::FFI_ArrowDeviceArray;

/// The key of an array and the thread that released it, in the order of the releases.
static RELEASES: Mutex<Vec<(i64, usize)>> = Mutex::new(Vec::new());

fn releases() -> MutexGuard<'static, Vec<(i64, usize)>> {
    let mut releases = RELEASES.lock().unwrap();
    // Reserved once, so that releases do not allocate.
    if releases.capacity() == 0 {
        releases.reserve(1 << 14);
    }
    releases
}

/// Counts the release of an array under this key.
///
/// # Safety
/// `array` points to a live array.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn peer_count(array: *mut FFI_ArrowDeviceArray, key: i64) {
    // SAFETY: the caller upholds the contract.
    let array = unsafe { &mut (*array).array };
    // SAFETY: a bitwise copy, the only one with the original callback.
    let original = unsafe { std::ptr::read(array) };
    array.private_data = Box::into_raw(Box::new((original, key))).cast();
    array.release = Some(release);
}

unsafe extern "C" fn release(array: *mut FFI_ArrowArray) {
    // SAFETY: called with the struct to be released, whose private data `peer_count` has set.
    let private = unsafe {
        (*array).release = None;
        Box::from_raw((*array).private_data.cast::<(FFI_ArrowArray, i64)>())
    };
    // SAFETY: no conditions.
    releases().push((private.1, unsafe { libc::pthread_self() } as usize));
    drop(private);
}

/// The key and the thread of release `index`; false if there were fewer.
///
/// # Safety
/// The outputs are writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn peer_release_at(index: usize, key: *mut i64, thread: *mut usize) -> bool {
    let Some(release) = releases().get(index).copied() else { return false };
    // SAFETY: the caller upholds the contract.
    unsafe {
        key.write(release.0);
        thread.write(release.1);
    }
    true
}
