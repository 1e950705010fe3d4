// SPDX-License-Identifier: Apache-2.0
//! Runs one test at a time, and checks that each side has released all structs at its end.

use std::ffi::c_int;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use arrow::ffi::FFI_ArrowArray;
use arrow_device::ffi::FFI_ArrowDeviceArray;

use crate::peer::{peer, try_peer};

/// Arrays of this crate that Arrow C++ holds.
static LIVE: AtomicI64 = AtomicI64::new(0);
static GIVEN: AtomicI64 = AtomicI64::new(0);

/// The device's counters, as in device.cc.
#[derive(Debug, Clone, Copy)]
pub enum DeviceCount {
    /// Live memories.
    Live = 0,
    Events = 1,
    /// Reads before the event.
    Early = 2,
    /// Unknown handles and events, and reads out of bounds.
    Breaches = 3,
    /// Events that Arrow C++ has wrapped.
    Wraps = 4,
    Waits = 5,
    Reads = 6,
}

pub fn count(which: DeviceCount) -> i64 {
    // SAFETY: no conditions.
    unsafe { (peer().peer_device_count)(which as c_int) }
}

/// The run of one test.
pub struct Session {
    _turn: MutexGuard<'static, ()>,
    before: [i64; 4],
    leaks: i64,
}

impl Session {
    /// Runs a test, and checks for leaks. Does nothing without a peer.
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
        // A failed test may have leaked, which is not this test's leak.
        Some(Self { _turn: turn, before: held(), leaks: 0 })
    }

    /// The number of exported arrays.
    pub fn given(&self) -> i64 {
        GIVEN.load(Ordering::SeqCst)
    }

    /// The number of exported arrays not yet released.
    pub fn live(&self) -> i64 {
        LIVE.load(Ordering::SeqCst)
    }

    /// Expects Arrow C++ to leak this many arrays in this test.
    pub fn leaks(&mut self, arrays: i64) {
        self.leaks = arrays;
    }

    /// Waits until both sides have released everything, perhaps on other threads.
    #[track_caller]
    fn end(self) {
        let left = || (self.live() - self.leaks, held());
        let nothing = (0, self.before);
        eventually(|| left() == nothing);
        assert_eq!(left(), nothing, "our arrays, and [bytes of Arrow C++, device memories, events, breaches]");
    }
}

/// The allocations of Arrow C++ and the device.
fn held() -> [i64; 4] {
    // SAFETY: no conditions.
    let bytes = unsafe { (peer().peer_bytes_allocated)() };
    [bytes, count(DeviceCount::Live), count(DeviceCount::Events), count(DeviceCount::Breaches)]
}

/// Whether the condition becomes true within ten seconds.
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

/// The same array, with a counting release callback.
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
