// SPDX-License-Identifier: Apache-2.0
//! Counts the allocations of this library, so that tests detect its leaks.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicI64, Ordering::Relaxed};

static ALLOCATED: AtomicI64 = AtomicI64::new(0);

#[global_allocator]
static COUNTING: CountingAllocator = CountingAllocator;

struct CountingAllocator;

// SAFETY: forwards to the system's allocator.
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATED.fetch_add(layout.size() as i64, Relaxed);
        // SAFETY: the caller upholds the contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        ALLOCATED.fetch_sub(layout.size() as i64, Relaxed);
        // SAFETY: the caller upholds the contract.
        unsafe { System.dealloc(memory, layout) }
    }
}

pub(crate) fn allocated_bytes() -> i64 {
    ALLOCATED.load(Relaxed)
}
