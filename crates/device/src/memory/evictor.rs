// SPDX-License-Identifier: Apache-2.0
//! Threads that return free memory after a time without reuse.

use std::sync::{Arc, Weak};
use std::thread::{self, Thread};
use std::time::Duration;

use crate::exit::{self, WorkGuard};

/// The period of a thread, and how long memory stays free before it is returned.
pub(super) const FREE_FOR: Duration = Duration::from_secs(5);

/// Starts a thread to call `evict` once a period, until it returns false or `owner` is gone.
///
/// `None` if the system has no thread: memory stays free, and the next free block tries again.
pub(super) fn start<T: Send + Sync + 'static>(
    name: &str,
    owner: &Arc<T>,
    evict: impl Fn(Arc<T>) -> bool + Send + 'static,
) -> Option<Thread> {
    let owner: Weak<T> = Arc::downgrade(owner);
    let run = move || loop {
        thread::park_timeout(FREE_FOR);
        let _guard = WorkGuard::begin();
        let Some(owner) = owner.upgrade() else { return };
        if exit::has_begun() || !evict(owner) {
            return;
        }
    };
    let started = thread::Builder::new().name(name.to_owned()).spawn(run);
    started.ok().map(|evictor| evictor.thread().clone())
}

/// Returns free memory of the heap to the system. glibc would keep what loads have freed.
pub(super) fn trim_heap() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: the function has no preconditions, and other threads may allocate meanwhile.
    unsafe {
        libc::malloc_trim(0);
    }
}
