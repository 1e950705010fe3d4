// SPDX-License-Identifier: Apache-2.0
//! Host memory that a CPU device uses in place.

use std::alloc::{Layout, alloc, dealloc};

/// Vectors of 64 bytes, and the pair of cache lines that processors fetch together.
const ALIGN: usize = 128;

/// From here on memory is asked for in huge pages: hash tables miss the address cache without them.
const HUGE: usize = 4 << 20;
const HUGE_ALIGN: usize = 2 << 20;

/// Aligned memory, contents undefined; `None` where the host has none.
pub(super) fn allocate(bytes: usize) -> Option<usize> {
    let layout = layout(bytes)?;
    // SAFETY: the layout has at least one byte.
    let address = unsafe { alloc(layout) };
    if address.is_null() {
        return None;
    }
    if bytes >= HUGE {
        // SAFETY: the range is the allocation above. This is advice: a refusal changes nothing.
        unsafe { libc::madvise(address.cast(), bytes, libc::MADV_HUGEPAGE) };
    }
    Some(address as usize)
}

/// Gives memory back.
///
/// # Safety
/// `address` came from [`allocate`] with the same `bytes`, and nothing uses it any more.
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
