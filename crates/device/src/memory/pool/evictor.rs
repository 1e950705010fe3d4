// SPDX-License-Identifier: Apache-2.0
//! Free memory returns to the driver where nothing reuses it.

use std::time::Duration;

use super::Pool;
use super::state::PoolState;
use crate::DeviceKind;
use crate::memory::evictor::{self, FREE_FOR, trim_heap};

impl Pool {
    /// Starts the thread, unless it runs. It ends when no memory is free, and with the pool. A
    /// GPU's memory stays free: returning it may wait for all work of the device.
    pub(super) fn start_evictor(&self, state: &mut PoolState) {
        if state.evictor.is_none() && self.0.driver.info().kind == DeviceKind::Cpu {
            state.evictor = evictor::start("device-memory", &self.0, |pool| Pool(pool).evict_unused(FREE_FOR));
        }
    }

    /// Returns memory that has been free for `time` to the driver. Whether other memory is free. If
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
