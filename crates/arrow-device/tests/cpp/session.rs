// SPDX-License-Identifier: Apache-2.0
//! One test at a time, and its bookkeeping: whatever either side gives away must have been released at its end.

use std::ffi::c_int;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use arrow::ffi::FFI_ArrowArray;
use arrow_device::ffi::FFI_ArrowDeviceArray;

use crate::peer::{peer, try_peer};

/// Arrays of ours that Arrow C++ holds.
static LIVE: AtomicI64 = AtomicI64::new(0);
static GIVEN: AtomicI64 = AtomicI64::new(0);

/// What the device counts, as in device.cc.
#[derive(Debug, Clone, Copy)]
pub enum Count {
    /// Memories.
    Live = 0,
    Events = 1,
    /// Reads of what is not written yet.
    Early = 2,
    /// Handles and events that are none, and reads out of bounds.
    Breaches = 3,
    /// Events that Arrow C++ took over.
    Wraps = 4,
    Waits = 5,
    Reads = 6,
}

pub fn count(which: Count) -> i64 {
    // SAFETY: no conditions.
    unsafe { (peer().peer_device_count)(which as c_int) }
}

/// A test's turn.
pub struct Session {
    _turn: MutexGuard<'static, ()>,
    before: [i64; 4],
    leaks: i64,
}

impl Session {
    /// Runs a test in its turn, and looks for what it left behind. Does nothing where there is no peer.
    #[track_caller]
    pub fn run(test: impl FnOnce(&mut Self)) {
        let Some(mut session) = Self::start() else { return };
        test(&mut session);
        session.end();
    }

    fn start() -> Option<Self> {
        static TURN: Mutex<()> = Mutex::new(());
        let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        let functions = try_peer()?;
        LIVE.store(0, Ordering::SeqCst);
        GIVEN.store(0, Ordering::SeqCst);
        // SAFETY: no conditions.
        unsafe { (functions.peer_device_reset)() };
        // A test that failed may have left something, which is not this one's.
        Some(Self { _turn: turn, before: held(), leaks: 0 })
    }

    /// How many arrays of ours were given away.
    pub fn given(&self) -> i64 {
        GIVEN.load(Ordering::SeqCst)
    }

    /// How many of these are not released.
    pub fn live(&self) -> i64 {
        LIVE.load(Ordering::SeqCst)
    }

    /// Arrow C++ loses so many of our arrays in this test.
    pub fn leaks(&mut self, arrays: i64) {
        self.leaks = arrays;
    }

    /// All is released on both sides, or will be soon: other threads may be at it.
    #[track_caller]
    fn end(self) {
        let left = || (self.live() - self.leaks, held());
        let nothing = (0, self.before);
        eventually(|| left() == nothing);
        assert_eq!(left(), nothing, "our arrays, and [bytes of Arrow C++, device memories, events, breaches]");
    }
}

/// What Arrow C++ and the device hold.
fn held() -> [i64; 4] {
    // SAFETY: no conditions.
    let bytes = unsafe { (peer().peer_bytes_allocated)() };
    [bytes, count(Count::Live), count(Count::Events), count(Count::Breaches)]
}

/// Whether it becomes true, within ten seconds.
pub fn eventually(condition: impl Fn() -> bool) -> bool {
    let start = Instant::now();
    while !condition() {
        if start.elapsed() > Duration::from_secs(10) {
            return false;
        }
        std::thread::sleep(Duration::from_micros(100));
    }
    true
}

/// The same array behind a release callback that counts.
pub fn counted(array: FFI_ArrowDeviceArray) -> FFI_ArrowDeviceArray {
    let FFI_ArrowArray { length, null_count, offset, n_buffers, n_children, buffers, children, dictionary, .. } = array.array;
    let FFI_ArrowDeviceArray { device_id, device_type, sync_event, reserved, .. } = array;
    let array = FFI_ArrowArray {
        length,
        null_count,
        offset,
        n_buffers,
        n_children,
        buffers,
        children,
        dictionary,
        release: Some(release),
        private_data: Box::into_raw(Box::new(array)).cast(),
    };
    LIVE.fetch_add(1, Ordering::SeqCst);
    GIVEN.fetch_add(1, Ordering::SeqCst);
    FFI_ArrowDeviceArray { array, device_id, device_type, sync_event, reserved }
}

unsafe extern "C" fn release(array: *mut FFI_ArrowArray) {
    // SAFETY: made by `counted`, released once.
    let inner = unsafe {
        (*array).release = None;
        Box::from_raw((*array).private_data.cast::<FFI_ArrowDeviceArray>())
    };
    drop(inner);
    LIVE.fetch_sub(1, Ordering::SeqCst);
}
