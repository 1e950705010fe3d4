// SPDX-License-Identifier: Apache-2.0
//! Aligned host memory that a CPU device uses in place.

use std::alloc::{Layout, alloc, dealloc};

/// The alignment: at least 64-byte vectors, and the pair of cache lines that processors fetch
/// together.
const ALIGN: usize = 128;

/// The size from which on memory is advised to use huge pages: hash tables miss the TLB otherwise.
const HUGE: usize = 4 << 20;
const HUGE_ALIGN: usize = 2 << 20;

/// Allocates aligned memory, contents undefined; `None` where the host has none.
pub(super) fn allocate(bytes: usize) -> Option<usize> {
    let layout = layout(bytes)?;
    // SAFETY: the layout has at least one byte.
    let address = unsafe { alloc(layout) };
    if address.is_null() {
        return None;
    }
    if bytes >= HUGE {
        // SAFETY: the range is the allocation above. A refused advice changes nothing.
        unsafe { libc::madvise(address.cast(), bytes, libc::MADV_HUGEPAGE) };
    }
    Some(address as usize)
}

/// Frees memory.
///
/// # Safety
/// `address` came from [`allocate`] with the same `bytes`, and is not used any more.
pub(super) unsafe fn release(address: usize, bytes: usize) {
    if let Some(layout) = layout(bytes) {
        // SAFETY: the caller promises that address and bytes are those of an allocation made here.
        unsafe { dealloc(address as *mut u8, layout) };
    }
}

fn layout(bytes: usize) -> Option<Layout> {
    let align = if bytes >= HUGE { HUGE_ALIGN } else { ALIGN };
    Layout::from_size_align(bytes.max(1), align).ok()
}
