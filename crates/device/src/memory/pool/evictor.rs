// SPDX-License-Identifier: Apache-2.0
//! The thread that returns free memory to the driver where nothing reuses it.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use super::Pool;
use super::state::PoolState;
use crate::DeviceKind;
use crate::exit::{self, WorkGuard};

/// The thread's period, and how long memory stays free before it returns to the driver.
const FREE_FOR: Duration = Duration::from_secs(5);

impl Pool {
    /// Starts the thread, unless it runs. It ends when no memory is free, and with the pool. A
    /// GPU's memory stays free: returning it may wait for all work of the device.
    pub(super) fn start_evictor(&self, state: &mut PoolState) {
        if state.evictor.is_some() || self.0.driver.info().kind != DeviceKind::Cpu {
            return;
        }
        let pool = Arc::downgrade(&self.0);
        let run = move || loop {
            thread::park_timeout(FREE_FOR);
            let _guard = WorkGuard::begin();
            let Some(pool) = pool.upgrade() else { return };
            if exit::has_begun() || !Pool(pool).evict_unused(FREE_FOR) {
                return;
            }
        };
        // Without a thread the memory stays free, and the next free block tries again.
        let started = thread::Builder::new().name("device-memory".to_owned()).spawn(run);
        state.evictor = started.ok().map(|evictor| evictor.thread().clone());
    }

    /// Returns memory that has been free for `time` to the driver. Whether other memory is free: if
    /// not, the process is idle, and its heap returns free memory to the system.
    pub(crate) fn evict_unused(&self, time: Duration) -> bool {
        let mut state = self.0.state.lock();
        state.recent_peaks = [state.in_use, state.recent_peaks[0]];
        let mut freed = Vec::new();
        while let Some(block) = state.take_oldest(time) {
            freed.push(self.freed(block.memory));
        }
        let is_left = state.cached > 0;
        if !is_left {
            state.evictor = None;
        }
        drop(state);
        drop(freed);
        if !is_left {
            trim_heap();
        }
        is_left
    }
}

/// Returns free memory of the heap to the system. glibc would keep what loads have freed.
fn trim_heap() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: the function has no preconditions, and other threads may allocate meanwhile.
    unsafe {
        libc::malloc_trim(0);
    }
}
